//! Tests of our own IP layer against the kernel's: neighbours found both ways, echoes, datagrams,
//! fragments, closed ports.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, ipproto};
use sprat::internals::driver::Driver as _;
use sprat::internals::driver::ip::Stack;
use sprat::rpc::{Call, Client, Server};
use sprat_proto::net::StackEvent;
use sprat_proto::{Addr, Datagrams as _, Device as _, TimedDatagrams as _};
use sprat_sys::clock;
use sprat_sys::netns::{DEV, Wire, link};

use crate::Case;

/// A test's function: it gets the world and the addresses of the kernel and of our IP stack.
type Test = fn(&mut World, SocketAddr, SocketAddr);

const TESTS: &[(&str, Test)] = &[
    ("the_kernel_is_pinged_and_pings", echoes),
    ("datagrams_and_fragments_go_both_ways", datagrams),
    ("a_closed_port_is_told_both_ways", closed),
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for driver in ["packet", "xdp"] {
        for (name, test) in TESTS {
            for (version, kernel, ours) in
                [("v4", "10.77.0.1", "10.77.0.2"), ("v6", "fd77::1", "fd77::2")]
            {
                let run = move || {
                    // A device that was opened for one port takes only datagrams to that port, so
                    // it refuses none.
                    let port = if name.starts_with("a_closed") { 0 } else { 7 };
                    let mut world = World::new(driver, kernel, ours, &port.to_string());
                    let [kernel, ours] =
                        [kernel, ours].map(|ip| SocketAddr::new(ip.parse().unwrap(), 7));
                    test(&mut world, kernel, ours);
                };
                cases.push(Case::root(&format!("stack::{driver}::{version}::{name}"), run));
            }
        }
    }
    for driver in ["packet", "xdp"] {
        let name = format!("stack::{driver}::v4::neighbours_are_asked_and_told_both_ways");
        cases.push(Case::root(&name, move || neighbours(driver)));
        let name = format!("stack::{driver}::v4::our_announcement_is_heard");
        cases.push(Case::root(&name, move || announced(driver)));
        let name = format!("stack::{driver}::v4::another_one_with_our_address_is_noticed");
        cases.push(Case::root(&name, move || conflict(driver)));
    }
    for driver in ["packet", "xdp"] {
        for (version, ours) in [("v4", "10.77.0.2"), ("v6", "fd77::2")] {
            let name = format!("stack::{driver}::{version}::rpc_of_all_sizes");
            cases.push(Case::root(&name, move || rpc(driver, ours)));
        }
    }
    cases.push(Case::root("stack::the_kernels_own_address_is_refused", refused));
    cases
}

/// The world of a test: a kernel's IP in one namespace, our IP stack in the other.
pub(crate) struct World {
    net: Wire,
    stack: Stack,
}

impl World {
    /// Makes the world of a test. The locator of our IP stack ends with `port`, which may have
    /// options too.
    pub(crate) fn new(driver: &str, kernel: &str, ours: &str, port: &str) -> Self {
        let net = Wire::new(1500).unwrap();
        net.end(0).run(|| link::address(DEV, kernel.parse().unwrap(), 24)).unwrap().unwrap();
        let locator = format!("fast+{driver}:dev={DEV},host={ours},port={port}").parse().unwrap();
        let stack = net.end(1).run(|| Stack::listen(&locator)).unwrap().unwrap();
        Self { net, stack }
    }

    /// Returns the locator under which others reach our IP stack.
    pub(crate) fn locator(&self) -> String {
        self.stack.locator().unwrap()
    }

    /// Makes one turn of our IP stack. It sleeps a moment if no frame arrives.
    fn turn<T>(&mut self, done: &mut impl FnMut(&mut Stack, usize) -> Option<T>) -> Option<T> {
        let stack = &mut self.stack;
        stack.set_now(clock::now());
        let n = stack.recv_burst();
        if stack.deadline().is_some_and(|due| due <= clock::now()) {
            stack.tick(clock::now());
        }
        let found = done(stack, n);
        if found.is_none() {
            stack.flush();
            if n == 0 && stack.arm() {
                let mut fds = [PollFd::from_borrowed_fd(stack.fd(), PollFlags::IN)];
                poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })).unwrap();
            }
            stack.disarm();
        }
        found
    }

    /// Makes turns of our IP stack until `done` returns a value. Fails after a time.
    fn until<T>(&mut self, mut done: impl FnMut(&mut Stack, usize) -> Option<T>) -> T {
        for _ in 0..20_000 {
            if let Some(found) = self.turn(&mut done) {
                return found;
            }
        }
        let mut counted = Vec::new();
        self.stack.counters(&mut |name, count| {
            counted.extend((count > 0).then(|| format!("{name} {count}")))
        });
        panic!("it does not come: {}", counted.join(", "));
    }

    fn kernel<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        self.net.end(0).run(body).unwrap()
    }
}

/// Opens the kernel's own socket for echo requests (icmp(7)). The kernel fills in identifier and
/// checksum.
fn pinger(to: IpAddr) -> OwnedFd {
    let (family, protocol) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    std::fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647").unwrap();
    rustix::net::socket(family, SocketType::DGRAM, Some(protocol)).unwrap()
}

pub(crate) fn echoes(world: &mut World, kernel: SocketAddr, ours: SocketAddr) {
    for len in [8, 56, 1400, 8000, 60_000] {
        world.stack.port().interface_mut().set_now(clock::now());
        let seq = world
            .stack
            .port()
            .interface_mut()
            .stack_mut()
            .ping(clock::now(), kernel.ip(), len)
            .unwrap();
        let event = world.until(|stack, _| stack.event());
        let StackEvent::EchoReply { from, seq: answered, len: back, .. } = event else {
            panic!("{event:?}")
        };
        assert_eq!((from, answered, back), (kernel.ip(), seq, len));
    }
    let socket = world.kernel(|| pinger(ours.ip()));
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    let kind = if ours.is_ipv4() { 8 } else { 128 };
    for len in [8, 1400, 8000, 60_000] {
        let mut request = vec![kind, 0, 0, 0, 0, 0, 0, 1];
        request.extend((0..len).map(|i| (i * 7) as u8));
        rustix::net::sendto(&socket, &request, rustix::net::SendFlags::empty(), &ours).unwrap();
        let mut reply = vec![0; 70_000];
        let n = world.until(|_, _| {
            rustix::net::recv(&socket, &mut reply[..], rustix::net::RecvFlags::empty())
                .ok()
                .map(|(n, _)| n)
        });
        assert_eq!(&reply[8..n], &request[8..], "{len}");
    }
}

pub(crate) fn datagrams(world: &mut World, kernel: SocketAddr, ours: SocketAddr) {
    let socket = world.kernel(|| UdpSocket::bind(kernel)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut bytes = vec![0; 70_000];
    for len in [0, 1, 100, 1452, 1472, 1473, 8192, 30_000, 65_507] {
        let sent: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        socket.send_to(&sent, ours).unwrap();
        let (from, got) = world.until(|stack, n| {
            assert!(n <= 1);
            (n == 1).then(|| stack.datagram(0)).map(|(from, bytes)| (from, bytes.to_vec()))
        });
        assert!((from, &got) == (Addr::Net(kernel), &sent), "{len}: {} from {from}", got.len());
        let (a, b) = sent.split_at(len / 2);
        world.stack.send(Addr::Net(kernel), &[a, b]);
        world.stack.flush();
        let (n, from) = world.until(|_, _| socket.recv_from(&mut bytes).ok());
        assert!((from, &bytes[..n]) == (ours, &sent[..]), "{len}: {n} from {from}");
    }
}

fn closed(world: &mut World, kernel: SocketAddr, ours: SocketAddr) {
    // Theirs.
    world.stack.send(Addr::Net(kernel), &[b"nobody is there"]);
    world.stack.flush();
    let event = world.until(|stack, _| stack.event());
    let port = world.stack.port().port();
    assert_eq!(event, StackEvent::PortUnreachable { to: kernel, port });
    // Ours: the kernel tells the socket.
    let other = SocketAddr::new(ours.ip(), 9);
    let bind = SocketAddr::new(kernel.ip(), 0);
    let socket = world.kernel(move || UdpSocket::bind(bind)).unwrap();
    world.kernel(|| socket.connect(other)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.send(b"nobody is here").unwrap();
    let told = world.until(|_, _| {
        socket.recv(&mut [0; 9]).err().filter(|e| e.kind() != std::io::ErrorKind::WouldBlock)
    });
    assert_eq!(told.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// Returns the MAC address that the kernel's neighbour table has for `ip`.
fn arp_entry(world: &World, ip: &str) -> Option<String> {
    let table = world.kernel(|| std::fs::read_to_string("/proc/thread-self/net/arp")).unwrap();
    let line = table.lines().find(|line| line.starts_with(&format!("{ip} ")))?;
    let mut columns = line.split_whitespace().skip(2);
    (columns.next() == Some("0x2")).then(|| columns.next().unwrap_or_default().to_owned())
}

fn sysctl(name: &str) {
    std::fs::write(format!("/proc/sys/net/ipv4/conf/{DEV}/{name}"), "1").unwrap();
}

fn neighbours(driver: &str) {
    // The kernel asks first, since it speaks first.
    let [kernel, ours] = ["10.77.0.1:7", "10.77.0.2:7"].map(|at| at.parse::<SocketAddr>().unwrap());
    let mut world = World::new(driver, "10.77.0.1", "10.77.0.2", "7");
    let socket = world.kernel(|| UdpSocket::bind(kernel)).unwrap();
    socket.send_to(b"who are you?", ours).unwrap();
    world.until(|_, n| (n == 1).then_some(()));
    let mac = world.stack.port().interface().device().info().mac;
    assert_eq!(arp_entry(&world, "10.77.0.2"), Some(mac.to_string()));
    // We ask first.
    let mut world = World::new(driver, "10.77.0.1", "10.77.0.2", "7");
    let socket = world.kernel(|| UdpSocket::bind(kernel)).unwrap();
    socket.set_nonblocking(true).unwrap();
    world.stack.set_now(clock::now());
    world.stack.send(Addr::Net(kernel), &[b"and you?"]);
    world.stack.flush();
    let (_, from) = world.until(|_, _| socket.recv_from(&mut [0; 64]).ok());
    assert_eq!(from, ours);
}

fn announced(driver: &str) {
    let net = Wire::new(1500).unwrap();
    let kernel = "10.77.0.1".parse().unwrap();
    net.end(0)
        .run(|| link::address(DEV, kernel, 24).map(|()| sysctl("arp_accept")))
        .unwrap()
        .unwrap();
    let locator = format!("fast+{driver}:dev={DEV},host=10.77.0.2,port=7").parse().unwrap();
    let stack = net.end(1).run(|| Stack::listen(&locator)).unwrap().unwrap();
    let mut world = World { net, stack };
    let mac = world.stack.port().interface().device().info().mac.to_string();
    for _ in 0..2_000 {
        world.turn(&mut |_, _| None::<()>);
        if arp_entry(&world, "10.77.0.2") == Some(mac.clone()) {
            return;
        }
    }
    panic!("the kernel has not heard of {mac}");
}

fn conflict(driver: &str) {
    let mut world = World::new(driver, "10.77.0.1", "10.77.0.2", "7");
    let ours = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
    // The kernel takes our address and says so.
    world.kernel(|| {
        link::address(DEV, ours, 24).unwrap();
        sysctl("arp_notify");
        link::switch(DEV, false).unwrap();
        link::switch(DEV, true).unwrap();
    });
    let theirs = world.kernel(|| link::find(DEV)).unwrap().mac;
    let event = world.until(|stack, _| stack.event());
    let StackEvent::AddressConflict { addr, mac, lost } = event else { panic!("{event:?}") };
    assert_eq!((addr, mac, lost), (ours, theirs, false));
}

/// Calls a server in one namespace from a client in the other.
fn rpc(driver: &str, ours: &str) {
    let net = Wire::new(1500).unwrap();
    let locator = format!("fast+{driver}:dev={DEV},host={ours},port=0");
    let echo = |call: Call<'_>| Some(call.payload.into_vec());
    let mut server = net.end(1).run(|| Server::listen(&[locator.as_str()], echo)).unwrap().unwrap();
    let (at, stop) = (server.locators(), server.stop());
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || server.run());
        let asked = net.end(0).run(|| {
            let mut client = Client::new().unwrap();
            let session = client.connect(&at).unwrap();
            for len in [0, 1, 100, 1400, 1500, 65_536, 1_000_000, 5_000_000] {
                let request: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
                let reply = client.call(session, &request, Duration::from_secs(20));
                assert!(reply.unwrap() == request, "{len} octets");
            }
        });
        stop.stop();
        serving.join().unwrap();
        asked.unwrap();
    });
}

fn refused() {
    let net = Wire::new(1500).unwrap();
    net.end(0).run(|| link::address(DEV, Ipv4Addr::new(10, 77, 0, 1).into(), 24)).unwrap().unwrap();
    let locator = format!("fast+packet:dev={DEV},host=10.77.0.1,port=7").parse().unwrap();
    let error = net.end(0).run(|| Stack::listen(&locator)).unwrap().unwrap_err();
    assert!(error.to_string().contains("give one that no interface has"), "{error}");
}
