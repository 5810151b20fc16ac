//! Tests of an interface with several queues: one device takes all of them, or several devices take
//! one each.
//!
//! The kernel spreads its datagrams over the queues of a veth pair by a hash of their addresses and
//! ports. What it sends by queue n arrives on queue n where the driver runs the program, and where
//! the kernel does on queue n - 1, or 0.

use std::net::UdpSocket;
use std::panic::catch_unwind;
use std::time::Duration;

use rustix::event::Timespec;
use sprat::internals::device::{Nic as _, Options, Steer, XdpMode, open, xdp::Xdp};
use sprat::rpc::{Call, Client, Server};
use sprat_proto::device::Device as _;
use sprat_sys::netns::{DEV, Wire, link};

use crate::Case;
use crate::house::sleep;

const QUEUES: u32 = 4;
/// Number of sockets that send: enough for datagrams on every queue.
const SOCKETS: usize = 128;
const PORT: u16 = 7;
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, xdp_mode) in [("generic", XdpMode::Generic), ("native", XdpMode::Native)] {
        let test = format!("queues::{name}::what_comes_on_any_is_delivered_in_order");
        cases.push(Case::root(&test, move || all_of_them(xdp_mode)));
        let test = format!("queues::{name}::a_sleeper_is_woken_by_any");
        cases.push(Case::root(&test, move || sleeper(xdp_mode)));
    }
    cases.push(Case::root("queues::one_gets_what_comes_on_it", one_of_them));
    cases.push(Case::root("queues::those_that_there_are_not_are_refused", refused));
    cases.push(Case::root("queues::calls_come_by_all", calls));
    cases.push(Case::root("queues::each_of_several_devices_gets_its_own", each));
    cases.push(Case::root("queues::who_is_left_goes_on_when_the_first_one_ends", left));
    cases.push(Case::root("queues::what_was_left_a_moment_ago_is_to_be_had", again));
    cases.push(Case::root("queues::what_is_taken_is_refused_with_the_remedy", taken));
    cases
}

fn options(xdp_mode: XdpMode, queue: Option<u32>) -> Options {
    let steer = Steer { addr: Some(Wire::ours(1, 0)), port: PORT };
    Options { dev: DEV.into(), xdp_mode: Some(xdp_mode), steer, queue, ..Options::default() }
}

/// A wire with sockets of the kernel at one end. The kernel there knows our address.
struct Net {
    wire: Wire,
    sockets: Vec<UdpSocket>,
}

impl Net {
    fn new() -> Self {
        let wire = Wire::with_queues(1500, QUEUES).unwrap();
        let ours = wire.end(1).run(|| link::find(DEV)).unwrap().unwrap();
        assert_eq!(ours.queues, QUEUES);
        let socket = |_| UdpSocket::bind((Wire::kernel(0), 0)).unwrap();
        let sockets = wire.end(0).run(|| {
            link::neighbour(DEV, Wire::ours(1, 0), ours.mac).unwrap();
            (0..SOCKETS).map(socket).collect()
        });
        Self { wire, sockets: sockets.unwrap() }
    }

    fn open(&self, options: &Options) -> Xdp {
        self.wire.end(1).run(|| Xdp::open(options)).unwrap().unwrap()
    }

    fn send(&self, socket: usize, round: u8) {
        let payload = [socket as u8, round];
        assert_eq!(self.sockets[socket].send_to(&payload, (Wire::ours(1, 0), PORT)).unwrap(), 2);
    }
}

/// Waits until at least `n` datagrams have arrived. Returns the socket and the round of each.
fn datagrams(device: &mut Xdp, n: usize) -> Vec<(usize, u8)> {
    let mut found = Vec::new();
    while found.len() < n {
        let count = device.recv_burst();
        let frames = (0..count).map(|i| device.frame(i).0).filter(|frame| frame[23] == 17);
        found.extend(frames.map(|frame| (usize::from(frame[42]), frame[43])));
        assert!(count > 0 || sleep(device, &PATIENCE), "{} of {n} datagrams arrived", found.len());
    }
    found
}

fn all_of_them(xdp_mode: XdpMode) {
    const ROUNDS: u8 = 5;
    let net = Net::new();
    let mut device = net.open(&options(xdp_mode, None));
    assert_eq!(device.queues() as u32, QUEUES);
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        (0..SOCKETS).for_each(|socket| net.send(socket, round));
        all.extend(datagrams(&mut device, SOCKETS));
    }
    for socket in 0..SOCKETS {
        let of_one = all.iter().filter(|(from, _)| *from == socket).map(|(_, round)| *round);
        assert!(of_one.eq(0..ROUNDS), "each once and in order");
    }
    let used = device.received().filter(|(_, frames)| *frames > 0).count() as u32;
    assert_eq!(used, if xdp_mode == XdpMode::Native { QUEUES } else { QUEUES - 1 });
}

fn sleeper(xdp_mode: XdpMode) {
    let net = Net::new();
    let mut nic = net.wire.end(1).run(|| open("xdp", &options(xdp_mode, None))).unwrap().unwrap();
    for socket in 0..SOCKETS {
        assert_eq!(nic.recv_burst(), 0);
        std::thread::scope(|scope| {
            let to = &mut nic;
            let woken = scope.spawn(move || sleep(to, &PATIENCE));
            net.send(socket, 0);
            assert!(woken.join().unwrap());
        });
        assert_eq!(nic.recv_burst(), 1);
    }
    assert!(nic.arm(), "there is nothing more");
}

fn one_of_them() {
    let net = Net::new();
    let mut device = net.open(&options(XdpMode::Native, Some(2)));
    assert_eq!(device.queues(), 1);
    (0..SOCKETS).for_each(|socket| net.send(socket, 0));
    let n = rest(&mut device).len();
    assert!(n < SOCKETS, "{n}");
    assert!(device.received().eq([(2, n as u64)]));
}

fn refused() {
    let net = Net::new();
    let error =
        net.wire.end(1).run(|| Xdp::open(&options(XdpMode::Generic, Some(QUEUES)))).unwrap();
    let text = error.unwrap_err().to_string();
    assert!(text.contains("it has no queue 4: 4 to receive and 4 to send"), "{text}");
}

/// Opens several devices on one interface, each with a queue and a port.
fn each() {
    let net = Net::new();
    let open = |n: u32| {
        let mut options = options(XdpMode::Native, Some(n));
        options.steer.port = if n < 2 { PORT } else { PORT + 1 };
        net.open(&options)
    };
    let mut devices: Vec<_> = (0..QUEUES).map(open).collect();
    for (socket, from) in net.sockets.iter().enumerate() {
        for port in [PORT, PORT + 1] {
            from.send_to(&[socket as u8, port as u8], (Wire::ours(1, 0), port)).unwrap();
        }
    }
    for (device, port) in devices.iter_mut().zip([PORT, PORT, PORT + 1, PORT + 1]) {
        let found = rest(device);
        assert!(
            !found.is_empty() && found.iter().all(|(_, at)| u16::from(*at) == port),
            "{found:?}"
        );
    }
}

/// Waits for a datagram, and returns all that have arrived.
fn rest(device: &mut Xdp) -> Vec<(usize, u8)> {
    let mut found = datagrams(device, 1);
    while sleep(device, &Timespec { tv_sec: 0, tv_nsec: 20_000_000 }) {
        found.extend(datagrams(device, 1));
    }
    found
}

fn has_program(net: &Net) -> bool {
    net.wire.end(1).run(|| link::find(DEV)).unwrap().unwrap().xdp
}

fn left() {
    let net = Net::new();
    let mut all: Vec<_> = (0..3).map(|n| net.open(&options(XdpMode::Native, Some(n)))).collect();
    drop(all.remove(0));
    // A device opens the queue of the one that is gone, and finds the program that it attached.
    all.push(net.open(&options(XdpMode::Native, Some(3))));
    (0..SOCKETS).for_each(|socket| net.send(socket, 0));
    let found: Vec<_> = all.iter_mut().map(|device| rest(device).len()).collect();
    assert!(
        found.iter().sum::<usize>() < SOCKETS,
        "{found:?} of which the first queue's are the kernel's"
    );
    assert!(has_program(&net));
    drop(all);
    assert!(!has_program(&net), "nothing stays behind");
}

fn again() {
    let net = Net::new();
    for n in 0..20 {
        let queue = Some(n % 2).filter(|_| n % 3 > 0);
        let xdp_mode = if n % 4 < 2 { XdpMode::Generic } else { XdpMode::Native };
        drop(net.open(&options(xdp_mode, queue)));
        assert!(!has_program(&net));
    }
}

fn taken() {
    let net = Net::new();
    for (first, second, why) in [
        (None, None, "If that is another Sprat, which took all queues"),
        (None, Some(1), "If that is another Sprat, which took all queues"),
        (Some(1), None, "another XDP program has it"),
        (Some(2), Some(2), "another AF_XDP socket has one of its queues"),
    ] {
        let _device = net.open(&options(XdpMode::Generic, first));
        let error = net.wire.end(1).run(|| Xdp::open(&options(XdpMode::Generic, second))).unwrap();
        let text = error.unwrap_err().to_string();
        assert!(text.contains(why), "{first:?} {second:?}: {text}");
    }
}

/// Calls a server that takes all queues, by clients over the kernel's UDP, each with a port of its
/// own.
fn calls() {
    let net = Wire::with_queues(1500, QUEUES).unwrap();
    let locator = format!("fast+xdp:dev={DEV},host={},port=0", Wire::ours(1, 0));
    let echo = |call: Call<'_>| Some(call.payload.into_vec());
    let mut server = net.end(1).run(|| Server::listen(&[locator.as_str()], echo)).unwrap().unwrap();
    let (at, stop) = (server.locators(), server.stop());
    let port = at.rsplit_once("port=").unwrap().1;
    let by_kernel = format!("fast+udp:host={},port={port}", Wire::ours(1, 0));
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || server.run());
        let asked = net.end(0).run(|| {
            catch_unwind(|| {
                for n in 0..16 {
                    let mut client = Client::builder().insecure_network(true).build().unwrap();
                    let session = client.connect(&by_kernel).unwrap();
                    // What is longer the kernel would send as one frame for a card to cut, and
                    // there is no card here.
                    for len in [0, 100, 1000] {
                        let request: Vec<u8> = (0..len).map(|i| (i * 7 + n) as u8).collect();
                        let reply = client.call(session, &request, Duration::from_secs(20));
                        assert!(reply.unwrap() == request, "{len} octets");
                    }
                }
            })
        });
        stop.stop();
        serving.join().unwrap();
        asked.unwrap().unwrap();
    });
}
