//! The rig of the device tests: two devices on one wire, and waits for frames that end and do not
//! depend on the clock.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat::internals::device::fake;
use sprat::internals::device::{AnyNic, Nic, Options, XdpMode, memif, open, shm};
use sprat_proto::device::{Device as _, HEADER, Mac, Offload, RxOffload, Sent};
use sprat_sys::netns::{DEV, Wire};

/// The Ethernet type of the test's frames: one for experiments, which nothing else sends.
pub(crate) const KIND: u16 = 0x88b5;
/// The time after which a frame that has not arrived fails the test.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// The time without a frame after which a wire counts as quiet.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Two packet devices on one wire, under test.
pub(crate) struct Pair {
    pub(crate) a: AnyNic,
    pub(crate) b: AnyNic,
    /// The wire of the devices' interfaces, if they have some.
    pub(crate) net: Option<Wire>,
    /// The name of the devices' interface, at each end that has one.
    pub(crate) dev: &'static str,
}

/// A kind of packet device, and the function that makes a pair of them.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) root: bool,
    pub(crate) pair: fn(mtu: usize) -> Pair,
}

fn on_veth(driver: &str, mtu: usize, change: impl FnOnce(&mut Options)) -> Pair {
    on_queues(1, driver, mtu, change)
}

/// Makes a pair of devices on interfaces with several queues.
fn on_queues(queues: u32, driver: &str, mtu: usize, change: impl FnOnce(&mut Options)) -> Pair {
    let mut options = Options { dev: DEV.into(), ..Options::default() };
    change(&mut options);
    let net = Wire::with_queues(mtu, queues).unwrap();
    let end = |i| net.end(i).run(|| open(driver, &options)).unwrap().unwrap();
    Pair { a: end(0), b: end(1), net: Some(net), dev: DEV }
}

/// Makes a pair of a tap device and a packet device on the tap's interface inside the kernel.
fn on_tap(mtu: usize, no_offload: bool) -> Pair {
    const TAP: &str = "tap7";
    let net = Wire::new(mtu).unwrap();
    let options = Options { dev: TAP.into(), mtu: mtu as u16, no_offload, ..Options::default() };
    let end = |driver| net.end(0).run(|| open(driver, &options));
    let (a, b) = (end("tap").unwrap().unwrap(), end("packet").unwrap().unwrap());
    Pair { a, b, net: Some(net), dev: TAP }
}

/// Makes a pair of a memif server and its client.
fn on_memif(mtu: usize, ring: usize) -> Pair {
    let folder = tempfile::tempdir().unwrap();
    let end = |role| {
        let memif =
            memif::Options { mtu, ring, ..memif::Options::new(role, folder.path().join("memif")) };
        open("memif", &Options { memif: Some(memif), ..Options::default() }).unwrap()
    };
    let mut pair =
        Pair { a: end(memif::Role::Server), b: end(memif::Role::Client), net: None, dev: "" };
    // `wake` goes on with the exchange at the socket.
    for _ in 0..100 {
        for device in [&mut pair.a, &mut pair.b] {
            device.disarm();
        }
    }
    pair
}

/// Makes a pair of a listening device of shared memory and one that connects to it.
fn on_shm(mtu: usize) -> Pair {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let end = |listens| {
        let shm = shm::Options { name: name.clone(), listens, mac: None, mtu };
        open("shm", &Options { shm: Some(shm), ..Options::default() }).unwrap()
    };
    let mut pair = Pair { a: end(true), b: end(false), net: None, dev: "" };
    // The hellos, which are heard while frames are looked for.
    for _ in 0..1000 {
        for device in [&mut pair.a, &mut pair.b] {
            device.recv_burst();
        }
    }
    pair
}

/// Makes a pair over memif: our server and DPDK's client.
#[cfg(feature = "dpdk")]
fn on_dpdk(mtu: usize) -> Pair {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif");
    let memif = memif::Options { mtu, ..memif::Options::new(memif::Role::Server, &socket) };
    let mut a = open("memif", &Options { memif: Some(memif), ..Options::default() }).unwrap();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let dev = format!(
        "net_memif{n},role=client,id=0,socket={},socket-abstract=no,mac=02:00:00:00:02:{n:02x}",
        socket.display()
    );
    let mut b = open("dpdk", &Options { dev, mtu: mtu as u16, ..Options::default() }).unwrap();
    // DPDK connects by a thread of its own, several times a second.
    for _ in 0..2_000_000 {
        a.disarm();
        if a.carries() && b.carries() {
            break;
        }
        std::thread::yield_now();
    }
    // It offers its buffers when it is first asked for frames.
    b.recv_burst();
    Pair { a, b, net: None, dev: "" }
}

/// All kinds of packet devices that the tests run against.
pub(crate) const KINDS: &[Kind] = &[
    Kind {
        name: "fake",
        root: false,
        pair: |mtu| {
            let [a, b] =
                fake::pair([Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])], mtu).unwrap();
            Pair { a: AnyNic::other(a), b: AnyNic::other(b), net: None, dev: "" }
        },
    },
    Kind { name: "memif", root: false, pair: |mtu| on_memif(mtu, 1024) },
    Kind { name: "shm", root: false, pair: on_shm },
    #[cfg(feature = "dpdk")]
    Kind { name: "dpdk", root: false, pair: on_dpdk },
    Kind { name: "memif_small", root: false, pair: |mtu| on_memif(mtu, 128) },
    Kind { name: "packet", root: true, pair: |mtu| on_veth("packet", mtu, |_| ()) },
    Kind {
        name: "packet_plain",
        root: true,
        pair: |mtu| on_veth("packet", mtu, |o| o.no_offload = true),
    },
    Kind { name: "tap", root: true, pair: |mtu| on_tap(mtu, false) },
    Kind { name: "tap_plain", root: true, pair: |mtu| on_tap(mtu, true) },
    Kind { name: "xdp", root: true, pair: |mtu| on_veth("xdp", mtu, |_| ()) },
    Kind { name: "xdp_queues", root: true, pair: |mtu| on_queues(4, "xdp", mtu, |_| ()) },
    Kind {
        name: "xdp_native",
        root: true,
        pair: |mtu| on_veth("xdp", mtu, |o| o.xdp_mode = Some(XdpMode::Native)),
    },
];

/// Returns a frame of `len` bytes from `from` to `to`: its number, then a pattern of the number.
pub(crate) fn frame(from: Mac, to: Mac, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = [&to.0[..], &from.0, &KIND.to_be_bytes()].concat();
    let fill = (0..).map(|i: u32| (number.wrapping_mul(31).wrapping_add(i * 7) >> 2) as u8);
    bytes.extend(number.to_be_bytes().into_iter().chain(fill).take(len.saturating_sub(HEADER)));
    bytes
}

/// Receives frames of the test until at least `n` have arrived.
pub(crate) fn receive(nic: &mut AnyNic, n: usize) -> Vec<(Vec<u8>, RxOffload)> {
    let mut frames = Vec::new();
    while frames.len() < n {
        let before = frames.len();
        frames.extend(arrived(nic));
        if frames.len() == before && !sleep(nic, &PATIENCE) {
            panic!("{} of {n} frames arrived", frames.len());
        }
    }
    frames
}

/// Returns the frames of the test that arrive until the wire is quiet.
pub(crate) fn drain(nic: &mut AnyNic) -> Vec<(Vec<u8>, RxOffload)> {
    let mut frames = Vec::new();
    let mut idle = 0;
    loop {
        let more = arrived(nic);
        idle = if more.is_empty() { idle + 1 } else { 0 };
        // A poll-mode device wakes its owner now and then without having anything.
        if idle > 0 && (!sleep(nic, &QUIET) || idle == 500) {
            return frames;
        }
        frames.extend(more);
    }
}

/// Sleeps on a device as a worker does. Returns false if nothing woke it in time.
pub(crate) fn sleep(nic: &mut impl Nic, at_most: &Timespec) -> bool {
    let woken = !nic.arm() || {
        let mut fds = [PollFd::from_borrowed_fd(nic.fd(), PollFlags::IN)];
        poll(&mut fds, Some(at_most)).unwrap() > 0
    };
    nic.disarm();
    woken
}

fn arrived(nic: &mut AnyNic) -> Vec<(Vec<u8>, RxOffload)> {
    let n = nic.recv_burst();
    let frames = (0..n).map(|i| nic.frame(i)).map(|(bytes, arrival)| (bytes.to_vec(), arrival));
    frames.filter(|(bytes, _)| bytes.get(12..14) == Some(&KIND.to_be_bytes()[..])).collect()
}

/// Sends one frame, and waits for room before.
pub(crate) fn send(nic: &mut AnyNic, bytes: &[u8]) {
    for _ in 0..1_000_000 {
        match nic.send(&[bytes], Offload::None) {
            Sent::Yes => return nic.flush(),
            Sent::Full => nic.flush(),
            Sent::Gone => panic!("the device has vanished"),
        }
    }
    panic!("there is never room");
}

/// Returns the device's counter called `name`.
pub(crate) fn counter(nic: &AnyNic, name: &str) -> u64 {
    let mut found = None;
    nic.counters(&mut |n, value| found = if n == name { Some(value) } else { found });
    found.unwrap_or_else(|| panic!("there is no counter {name}"))
}
