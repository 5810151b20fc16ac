//! Tests of verbs over loopback TCP and over our own TCP: every operation, in every threading
//! model, with every way to copy. `ahead` has frames that are lost or late, `wire` has two devices
//! over our own TCP, `memory` the tests of objects that open memory to a peer, `connections` those
//! of connections and of objects that queue pairs share.

mod ahead;
mod connections;
mod memory;
mod wire;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sprat_rdma::{
    AcceptOptions, Access, AsyncEvent, Cause, Completed, Completion, CompletionQueue, ConnectError,
    ConnectOptions, Connection, Copies, Counters, Device, MemoryRegion, Options, OutOfBounds,
    PairOptions, PostError, ProtectionDomain, QueuePair, RecvRequest, Remote, SendOp, SendRequest,
    Stag, Status, Threading, WindowKind,
};
use sprat_sys::clock::now;

const SOON: Option<Duration> = Some(Duration::from_secs(20));

/// A way to open the devices of two sides that a test connects.
type Way = fn(Options) -> [Device; 2];

/// The ways to open the devices of two sides: over the kernel's TCP, and over our own.
const WAYS: [Way; 2] = [on_kernel, wire::devices];

fn on_kernel(options: Options) -> [Device; 2] {
    [0, 1].map(|_| Device::open(options).unwrap())
}

/// One device of the kernel's TCP for both sides.
fn on_one_device(options: Options) -> [Device; 2] {
    let device = Device::open(options).unwrap();
    [device.clone(), device]
}

/// An address of a device, at any port.
fn address(device: &Device) -> SocketAddr {
    let own = device.interface().map(|interface| interface.addresses[0]);
    SocketAddr::new(own.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), 0)
}

/// Calls `act` while another thread makes progress on a device.
fn beside<T>(device: &Device, act: impl FnOnce() -> T) -> T {
    let (done, begin) = (AtomicBool::new(false), now());
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Ordering::Relaxed) && now().since(begin) < 20_000_000_000 {
                device.wait(Some(Duration::from_millis(1)), || false);
            }
        });
        let result = act();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// One side of a test's connection, with the objects that a program usually has.
struct Side {
    device: Device,
    domain: ProtectionDomain,
    queue: CompletionQueue,
    pair: QueuePair,
    memory: MemoryRegion,
}

impl Side {
    fn of(device: &Device, len: usize) -> Self {
        let domain = device.protection_domain().unwrap();
        let queue = device.completion_queue(256).unwrap();
        let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
        let memory = domain.register(len, Access::ALL).unwrap();
        Self { device: device.clone(), domain, queue, pair, memory }
    }

    fn done(&self) -> Completion {
        self.queue.wait(SOON).expect("a completion in time").result().expect("it ended well")
    }

    fn send(&self, id: u64, op: SendOp, range: std::ops::Range<usize>) {
        self.pair.post_send(SendRequest::new(id, op, self.memory.sge(range))).unwrap();
    }

    fn recv(&self, id: u64, range: std::ops::Range<usize>) {
        self.pair.post_recv(RecvRequest::new(id, self.memory.sge(range))).unwrap();
    }
}

fn depths() -> ConnectOptions {
    ConnectOptions { ird: 8, ord: 8, ..ConnectOptions::default() }
}

/// Two connected sides of a test, each with a device of its own. The first one opened the
/// connection.
fn connected(way: Way, options: Options, len: usize) -> [Side; 2] {
    let sides = way(options).map(|device| Side::of(&device, len));
    connect(&sides[0], &sides[1], depths());
    sides
}

fn connect(a: &Side, b: &Side, options: ConnectOptions) {
    let listener = b.device.listen(address(&b.device)).unwrap();
    a.pair.begin_connect(listener.local_addr(), options).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            let request = listener.next(SOON).expect("a request");
            let accept = AcceptOptions {
                ird: 8,
                ord: 8,
                private_data: b"welcome".to_vec(),
                ..AcceptOptions::default()
            };
            request.accept(&b.pair, accept).unwrap();
            // Makes progress here until the other side is connected.
            b.pair.connected(Some(Duration::from_millis(1))).ok();
        });
        assert_eq!(a.pair.connected(SOON).unwrap().private_data, b"welcome");
    });
}

/// Makes one operation of each kind between two connected sides, whose memory has at least 600,000
/// bytes.
fn everything(a: &Side, b: &Side) {
    let (done_a, done_b) = std::thread::scope(|s| {
        let pattern: Vec<u8> = (0..200_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        a.memory.write(0, &pattern).unwrap();
        b.recv(1, 0..100);
        b.recv(2, 200_000..400_000);
        b.recv(3, 0..0);
        let theirs = s.spawn(|| (b.done(), b.done(), b.done()));
        a.send(10, SendOp::Send, 0..64);
        a.send(11, SendOp::Write(b.memory.remote(400_000)), 0..200_000);
        a.send(12, SendOp::Send, 0..200_000);
        a.send(13, SendOp::Read(b.memory.remote(400_000)), 200_000..400_000);
        a.send(14, SendOp::Send, 0..0);
        // What is complete has reached TCP. Our own TCP needs the calls of either side to send it.
        let ours = beside(&b.device, || [a.done(), a.done(), a.done(), a.done(), a.done()]);
        let mut read = vec![0; 200_000];
        a.memory.read(200_000, &mut read).unwrap();
        assert!(read == pattern, "a Read returns what a Write placed");

        let theirs = beside(&a.device, || theirs.join().unwrap());
        b.memory.read(200_000, &mut read).unwrap();
        assert!(read == pattern, "a Send of many segments arrives whole");
        (ours, theirs)
    });
    assert_eq!(done_a.map(|c| c.id), [10, 11, 12, 13, 14]);
    assert_eq!((done_a[3].completed, done_a[3].len), (Completed::Read, 200_000));
    let (first, second, third) = done_b;
    assert_eq!([first, second, third].map(|c| (c.id, c.len)), [(1, 64), (2, 200_000), (3, 0)]);
    assert_eq!(first.completed, Completed::Recv);
}

/// Each threading model, on each way to open the devices of two sides.
fn every_threading() -> impl Iterator<Item = (Way, Options)> {
    let models =
        [Threading::Caller, Threading::IoThread, Threading::ReceiveThread, Threading::Background];
    let options = models.map(|threading| Options { threading, ..Options::default() });
    WAYS.into_iter().flat_map(move |way| options.map(|options| (way, options)))
}

#[test]
fn sends_writes_and_reads_in_every_threading_model() {
    for (way, options) in every_threading() {
        let [a, b] = connected(way, options, 600_000);
        everything(&a, &b);
        everything(&b, &a);
    }
}

#[test]
fn a_thread_of_the_device_serves_a_peer_while_its_program_does_not_call() {
    for (way, options) in every_threading().filter(|(_, o)| o.threading != Threading::Caller) {
        let [a, b] = connected(way, options, 4096);
        let device = &b.device;
        let before = device.counters();
        a.memory.write(0, b"far").unwrap();
        for round in 0..100 {
            a.send(round, SendOp::Write(b.memory.remote(100)), 0..3);
            a.send(round, SendOp::Read(b.memory.remote(100)), 200..203);
            assert_eq!(
                [a.done().completed, a.done().completed],
                [Completed::Write, Completed::Read]
            );
        }
        let mut came = [0; 3];
        a.memory.read(200, &mut came).unwrap();
        assert_eq!(&came, b"far");
        let after = device.counters();
        let turns = |counters: Counters| (counters.turns, counters.thread_turns);
        assert!(turns(after).1 > turns(before).1, "{after:?}");
        assert_eq!(
            turns(after).0 - turns(before).0,
            turns(after).1 - turns(before).1,
            "only the thread made progress"
        );
    }
}

/// Messages arrive before their receives are posted, in the end more of them than the device keeps.
/// Reads of the receiver go on meanwhile, and all messages arrive.
#[test]
fn messages_wait_for_their_receives() {
    const LEN: usize = 64 << 10;
    for (way, options) in every_threading() {
        let [a, b] = connected(way, options, 32 * LEN);
        let pattern: Vec<u8> = (0..32 * LEN).map(|i| (i * 7 % 251) as u8).collect();
        a.memory.write(0, &pattern).unwrap();
        a.send(0, SendOp::Send, 0..LEN);
        std::thread::scope(|s| {
            let ours = s.spawn(|| (0..33).map(|_| a.done().id).collect::<Vec<_>>());
            b.send(100, SendOp::Read(a.memory.remote(8)), 0..8);
            assert_eq!(b.done().id, 100);
            for id in 0..32 {
                a.send(id + 1, SendOp::Send, id as usize * LEN..(id as usize + 1) * LEN);
            }
            for _ in 0..1000 {
                assert_eq!(b.queue.poll(), None);
            }
            // What is complete has reached TCP. Our own TCP needs calls of this side to send it.
            beside(&a.device, || {
                for id in 0..33 {
                    b.recv(id, 0..LEN);
                    assert_eq!((b.done().id, id), (id, id));
                    let (mut came, from) = (vec![0; LEN], (id as usize).saturating_sub(1) * LEN);
                    b.memory.read(0, &mut came).unwrap();
                    assert!(came == pattern[from..from + LEN], "message {id}");
                }
            });
            assert_eq!(ours.join().unwrap(), (0..33).collect::<Vec<_>>());
        });
    }
}

/// The peer's Writes are placed while a program only posts Sends, polls ready completions and reads
/// its memory. Such a program may wait for credits that its peer writes.
#[test]
fn what_comes_is_placed_while_a_program_only_posts_and_takes() {
    WAYS.into_iter().for_each(what_comes_is_placed);
}

fn what_comes_is_placed(way: Way) {
    let [a, b] = connected(way, Options::default(), 4096);
    let seen = |mark: u8| {
        let mut byte = [0];
        a.memory.read(100, &mut byte).unwrap();
        byte[0] == mark
    };
    // Waits longer than the engine may leave input unread.
    let rest = || {
        let begin = now();
        while now().since(begin) < 50_000 {}
    };
    let credit = |mark: u8| {
        b.memory.write(0, &[mark]).unwrap();
        let write = SendRequest::new(1, SendOp::Write(a.memory.remote(100)), b.memory.sge(0..1));
        b.pair.post_send(write.unsignaled()).unwrap();
        rest();
        assert!(!seen(mark), "the program made no call");
    };
    // A busy kernel may deliver what was sent a while later. Our own TCP may keep it until the peer
    // has handled an acknowledgement.
    let comes = |mark: u8, call: &dyn Fn()| {
        (0..1000).any(|_| {
            call();
            seen(mark) || {
                rest();
                b.device.progress();
                false
            }
        })
    };
    // Sends complete without the other side; a Write completes only when that has placed it.
    let post = |id| a.send(id, SendOp::Send, 0..1);
    // The accepting side may send once a message has arrived.
    post(1);
    a.done();
    for mark in 1..=100 {
        credit(mark);
        assert!(comes(mark, &|| post(1)), "by posting");
        credit(mark + 100);
        assert_eq!(a.queue.poll().expect("done at once").id, 1);
        assert!(comes(mark + 100, &|| _ = a.queue.poll()), "by taking");
    }
}

#[test]
fn sends_writes_and_reads_with_every_way_to_copy() {
    for (copies, direct) in [
        (Copies::Two, u64::MAX),
        (Copies::One, u64::MAX),
        (Copies::Direct, 300_000),
        // The Read's payload alone.
        (Copies::DirectReads, 100_000),
    ] {
        for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
            for way in WAYS {
                let options = Options { copies, crc, markers, ..Options::default() };
                let [a, b] = connected(way, options, 600_000);
                everything(&a, &b);
                everything(&b, &a);
                let counters = b.device.counters();
                let is_native = b.device.interface().is_some();
                assert_eq!(
                    counters.direct > direct,
                    direct < u64::MAX && !crc && !markers && !is_native,
                    "{counters:?}"
                );
                assert_eq!(counters.copied > 600_000, copies == Copies::Two, "{counters:?}");
            }
        }
    }
}

#[test]
fn immediate_data_atomics_and_invalidation() {
    WAYS.into_iter().for_each(immediate_data_and_atomics);
}

fn immediate_data_and_atomics(way: Way) {
    let [a, b] = connected(way, Options::default(), 4096);
    std::thread::scope(|s| {
        for id in 1..=3 {
            b.recv(id, 0..64);
        }
        let theirs = s.spawn(|| [b.done(), b.done(), b.done()]);
        let to = b.memory.remote(1024);
        b.memory.word(1024).unwrap().store(40, Ordering::SeqCst);
        a.memory.write(0, b"written").unwrap();
        a.send(10, SendOp::WriteImmediate(b.memory.remote(512), 77), 0..7);
        a.pair.post_send(SendRequest::bare(11, SendOp::Immediate(78))).unwrap();
        a.send(12, SendOp::FetchAdd { to, add: 2, mask: 0 }, 64..72);
        let masks = u64::MAX;
        let swap =
            SendOp::CompareSwap { to, compare: 42, compare_mask: masks, swap: 7, swap_mask: masks };
        a.send(13, swap, 72..80);
        a.pair.post_send(SendRequest::new(14, SendOp::Send, a.memory.sge(0..7)).fenced()).unwrap();
        let ours = [a.done(), a.done(), a.done(), a.done(), a.done()];
        assert_eq!(ours.map(|c| c.id), [10, 11, 12, 13, 14]);
        let theirs = theirs.join().unwrap();
        assert_eq!(theirs.map(|c| c.immediate), [Some(77), Some(78), None]);
        assert_eq!(theirs[0].completed, Completed::RecvImmediate);
        let word = |memory: &MemoryRegion, at| memory.word(at).unwrap().load(Ordering::SeqCst);
        assert_eq!((word(&a.memory, 64), word(&a.memory, 72), word(&b.memory, 1024)), (40, 42, 7));
        let mut seven = [0; 7];
        b.memory.read(512, &mut seven).unwrap();
        assert_eq!(&seven, b"written");
    });
}
