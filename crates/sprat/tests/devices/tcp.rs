//! Tests of our TCP against the kernel's: streams each way, ends, refusals, losses.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, spawn};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat::internals::device::{AnyNic, Nic as _, Options, open};
use sprat_proto::net::tcp::{TcpConfig, TcpError, TcpId};
use sprat_proto::net::{Ipv4Assignment, Stack, StackOptions};
use sprat_proto::{Device as _, Rng};
use sprat_sys::clock;
use sprat_sys::netns::{DEV, Wire, link};

use crate::Case;

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const PORT: u16 = 7;
/// The bytes of a stream.
const BULK: usize = 3_000_000;
/// The time after which a test has failed.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for driver in ["packet", "xdp"] {
        let mut case = |name: &str, run: fn(&'static str)| {
            cases.push(Case::root(&format!("tcp::{driver}::{name}"), move || run(driver)));
        };
        case("the_kernel_streams_to_us_and_back", kernel_connects);
        case("we_stream_to_the_kernel_and_back", we_connect);
        case("a_closed_port_is_refused_both_ways", refused);
        case("many_short_connections", churn);
    }
    cases
}

/// Our end of a test's wire. The kernel's TCP is at the other one.
struct World {
    device: AnyNic,
    stack: Stack,
    /// The bytes that the connections of our end have received and not echoed yet.
    held: BTreeMap<TcpId, Vec<u8>>,
}

impl World {
    fn new(driver: &str) -> (Wire, Self) {
        let net = Wire::new(1500).unwrap();
        net.end(0).run(|| link::address(DEV, KERNEL.into(), 24)).unwrap().unwrap();
        // The kernel hands segments of 64 KB to a veth.
        let options = Options { dev: DEV.into(), long_frames: true, ..Options::default() };
        let device = net.end(1).run(|| open(driver, &options)).unwrap().unwrap();
        let options = StackOptions {
            ipv4: Ipv4Assignment::Static { addr: OURS, prefix: 24 },
            accept_partial_checksum: true,
            ..StackOptions::default()
        };
        let mut stack = Stack::new(options, device.info(), Rng::seeded(clock::now().as_ns()));
        stack.enable_tcp(TcpConfig { ecn: false, ..TcpConfig::default() }, 1000);
        (net, Self { device, stack, held: BTreeMap::new() })
    }

    /// Makes a turn of our stack. It sleeps a moment if no frame arrives.
    fn turn(&mut self) {
        let now = clock::now();
        self.stack.input(now, &mut self.device);
        if self.stack.deadline().is_some_and(|at| at <= now) {
            self.stack.tick(now);
        }
        self.stack.output(now, &mut self.device);
        if self.stack.is_idle() && self.device.arm() {
            let mut fds = [PollFd::from_borrowed_fd(self.device.fd(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 })).unwrap();
        }
        self.device.disarm();
    }

    /// Echoes what arrives at our connections, and ends them when their peers do. Returns the
    /// number of those that have ended.
    fn echo(&mut self) -> usize {
        let tcp = self.stack.tcp().unwrap();
        let mut ended = 0;
        let mut buffer = vec![0; 65_536];
        while let Some((id, changes)) = tcp.event() {
            self.held.entry(id).or_default();
            if changes.ended {
                assert_eq!(tcp.error(id), None);
                self.held.remove(&id);
                tcp.release(id);
                ended += 1;
            }
        }
        for (id, held) in &mut self.held {
            loop {
                let written = tcp.write(*id, held);
                held.drain(..written);
                let count = if held.is_empty() { tcp.read(*id, &mut buffer) } else { 0 };
                held.extend_from_slice(&buffer[..count]);
                if count == 0 {
                    break;
                }
            }
            if held.is_empty() && tcp.connection(*id).is_some_and(|c| c.is_finished()) {
                tcp.close(*id);
            }
        }
        ended
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Sends bytes by a kernel's stream and reads them back, in two threads.
fn exchange(stream: TcpStream, len: usize) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let wanted = bytes(len);
    let sent = wanted.clone();
    let writing = spawn(move || {
        writer.write_all(&sent).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut got = Vec::new();
    let mut stream = stream;
    stream.read_to_end(&mut got).unwrap();
    writing.join().unwrap();
    assert!(got == wanted, "{} of {len} bytes", got.len());
}

fn ours(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(OURS), port)
}

/// Runs `body` in the kernel's namespace beside our stack's turns, until both are done.
fn beside(
    net: &Wire,
    world: &mut World,
    body: impl FnOnce() + Send,
    mut turn: impl FnMut(&mut World) -> bool,
) {
    let is_done = AtomicBool::new(false);
    let end = clock::now().after(PATIENCE.as_nanos() as u64);
    scope(|threads| {
        let thread = threads.spawn(|| {
            net.end(0).run(body).unwrap();
            is_done.store(true, Ordering::Release);
        });
        let mut has_ended = false;
        while !(is_done.load(Ordering::Acquire) && has_ended) && clock::now() < end {
            if thread.is_finished() && !is_done.load(Ordering::Acquire) {
                break;
            }
            has_ended |= turn(world);
        }
        if thread.join().is_err() {
            let mut counted = Vec::new();
            let mut each = |name: &'static str, count: u64| {
                counted.extend((count > 0).then(|| format!("{name} {count}")));
            };
            world.device.counters(&mut each);
            world.stack.counters().each(&mut each);
            panic!("the kernel's end has failed: {}", counted.join(", "));
        }
        assert!(has_ended, "our end has not ended");
    });
}

fn kernel_connects(driver: &str) {
    let (net, mut world) = World::new(driver);
    world.stack.tcp().unwrap().listen(PORT, 10).unwrap();
    let body = || exchange(TcpStream::connect_timeout(&ours(PORT), PATIENCE).unwrap(), BULK);
    beside(&net, &mut world, body, |world| {
        world.turn();
        world.echo() > 0
    });
}

fn we_connect(driver: &str) {
    let (net, mut world) = World::new(driver);
    let listener = net.end(0).run(|| TcpListener::bind((KERNEL, PORT))).unwrap().unwrap();
    let peer = listener.local_addr().unwrap();
    world.stack.tick(clock::now());
    world.stack.connect_tcp(clock::now(), 0, peer).unwrap();
    // The kernel has the TIME-WAIT: it closes first.
    let body = move || exchange(listener.accept().unwrap().0, BULK);
    beside(&net, &mut world, body, |world| {
        world.turn();
        world.echo() > 0
    });
}

fn refused(driver: &str) {
    let (net, mut world) = World::new(driver);
    world.stack.tick(clock::now());
    let peer = SocketAddr::new(IpAddr::V4(KERNEL), 9);
    let id = world.stack.connect_tcp(clock::now(), 0, peer).unwrap();
    let body = || {
        let error = TcpStream::connect_timeout(&ours(9), PATIENCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    };
    beside(&net, &mut world, body, |world| {
        world.turn();
        world.stack.tcp().unwrap().error(id) == Some(TcpError::Refused)
    });
}

fn churn(driver: &str) {
    const CONNECTIONS: usize = 300;
    let (net, mut world) = World::new(driver);
    world.stack.tcp().unwrap().listen(PORT, 10).unwrap();
    let body = || {
        for n in 0..CONNECTIONS {
            exchange(TcpStream::connect_timeout(&ours(PORT), PATIENCE).unwrap(), n * 10);
        }
    };
    let mut ended = 0;
    beside(&net, &mut world, body, |world| {
        world.turn();
        ended += world.echo();
        ended == CONNECTIONS
    });
    world.turn();
    assert_eq!(world.stack.tcp().unwrap().connections(), 0);
}
