//! Verbs over loopback TCP: every operation, in every threading model, with every way to copy.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sprat_rdma::{
    AcceptOptions, Access, AsyncEvent, Cause, Completed, Completion, CompletionQueue, ConnectError,
    ConnectOptions, Connection, Copies, Counters, Device, MemoryRegion, Options, OutOfBounds,
    PairOptions, PostError, ProtectionDomain, QueuePair, RecvRequest, Remote, SendOp, SendRequest,
    Stag, Status, Threading, WindowKind,
};
use sprat_sys::clock::now;

const SOON: Option<Duration> = Some(Duration::from_secs(20));

/// A program's usual belongings.
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

/// Two sides, each with a device of its own, connected; the first one has asked.
fn connected(options: Options, len: usize) -> [Side; 2] {
    let sides = [0, 1].map(|_| Side::of(&Device::open(options).unwrap(), len));
    connect(&sides[0], &sides[1], depths());
    sides
}

fn connect(a: &Side, b: &Side, options: ConnectOptions) {
    let listener = b.device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
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

/// One of everything between two connected sides, whose memory has at least 600,000 octets.
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
        let ours = [a.done(), a.done(), a.done(), a.done(), a.done()];
        let mut read = vec![0; 200_000];
        a.memory.read(200_000, &mut read).unwrap();
        assert!(read == pattern, "a Read brings what a Write has put there");
        let theirs = theirs.join().unwrap();
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

#[test]
fn sends_writes_and_reads_in_every_threading_model() {
    for threading in
        [Threading::Caller, Threading::IoThread, Threading::ReceiveThread, Threading::Background]
    {
        let [a, b] = connected(Options { threading, ..Options::default() }, 600_000);
        everything(&a, &b);
        everything(&b, &a);
    }
}

#[test]
fn a_thread_of_the_device_serves_a_peer_while_its_program_does_not_call() {
    for threading in [Threading::IoThread, Threading::ReceiveThread, Threading::Background] {
        let device = Device::open(Options { threading, ..Options::default() }).unwrap();
        let (a, b) =
            (Side::of(&Device::open(Options::default()).unwrap(), 4096), Side::of(&device, 4096));
        connect(&a, &b, depths());
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
            "nobody else did"
        );
    }
}

/// Messages come before their receives, at last more of them than are kept: own Reads go on
/// meanwhile, and all arrive.
#[test]
fn messages_wait_for_their_receives() {
    const LEN: usize = 64 << 10;
    for threading in
        [Threading::Caller, Threading::IoThread, Threading::ReceiveThread, Threading::Background]
    {
        let [a, b] = connected(Options { threading, ..Options::default() }, 32 * LEN);
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
            for id in 0..33 {
                b.recv(id, 0..LEN);
                assert_eq!((b.done().id, id), (id, id));
                let (mut came, from) = (vec![0; LEN], (id as usize).saturating_sub(1) * LEN);
                b.memory.read(0, &mut came).unwrap();
                assert!(came == pattern[from..from + LEN], "message {id}");
            }
            assert_eq!(ours.join().unwrap(), (0..33).collect::<Vec<_>>());
        });
    }
}

/// A program's credits may be Writes of its peer's: it sends, takes completions that are there
/// already, and looks in its memory.
#[test]
fn what_comes_is_placed_while_a_program_only_posts_and_takes() {
    let [a, b] = connected(Options::default(), 4096);
    let seen = |mark: u8| {
        let mut octet = [0];
        a.memory.read(100, &mut octet).unwrap();
        octet[0] == mark
    };
    // Longer than anything may be left lying.
    let rest = || {
        let begin = now();
        while now().since(begin) < 50_000 {}
    };
    let credit = |mark: u8| {
        b.memory.write(0, &[mark]).unwrap();
        let write = SendRequest::new(1, SendOp::Write(a.memory.remote(100)), b.memory.sge(0..1));
        b.pair.post_send(write.unsignaled()).unwrap();
        rest();
        assert!(!seen(mark), "nobody has called");
    };
    // A busy kernel may deliver what was sent a while later.
    let comes = |mark: u8, call: &dyn Fn()| {
        (0..1000).any(|_| {
            call();
            seen(mark) || {
                rest();
                false
            }
        })
    };
    // Sends, since a Write completes only when the other side has placed it; nobody takes them
    // there.
    let post = |id| a.send(id, SendOp::Send, 0..1);
    // Who was asked may send once he has heard something.
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
            let [a, b] = connected(Options { copies, crc, markers, ..Options::default() }, 600_000);
            everything(&a, &b);
            everything(&b, &a);
            let counters = b.device.counters();
            assert_eq!(
                counters.direct > direct,
                direct < u64::MAX && !crc && !markers,
                "{counters:?}"
            );
            assert_eq!(counters.copied > 600_000, copies == Copies::Two, "{counters:?}");
        }
    }
}

#[test]
fn immediate_data_atomics_and_invalidation() {
    let [a, b] = connected(Options::default(), 4096);
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

#[test]
fn a_window_opens_part_of_a_region_until_the_peer_invalidates_it() {
    let [a, b] = connected(Options::default(), 4096);
    let window = b.domain.window(WindowKind::OneQp).unwrap();
    let inner = b.domain.register(4096, Access { bind: true, ..Access::LOCAL }).unwrap();
    let access = Access { remote_write: true, ..Access::default() };
    let region = inner.key().unwrap();
    let bind = SendOp::Bind { window: window.tag(), region, addr: 1000, len: 100, access };
    // The window's new key is in its tag.
    b.pair.post_send(SendRequest::bare(1, bind)).unwrap();
    let bound = b.done();
    assert_eq!(bound.completed, Completed::Bind);
    let tag = window.tag();
    std::thread::scope(|s| {
        b.recv(2, 0..64);
        let theirs = s.spawn(|| b.done());
        a.memory.write(0, b"through the window").unwrap();
        a.send(10, SendOp::Write(Remote { stag: tag, addr: 1010 }), 0..18);
        a.send(11, SendOp::SendInvalidate(tag), 0..0);
        a.done();
        a.done();
        assert_eq!(theirs.join().unwrap().invalidated, Some(tag));
    });
    let mut text = [0; 18];
    inner.read(1010, &mut text).unwrap();
    assert_eq!(&text, b"through the window");
    // It is closed now.
    a.send(12, SendOp::Write(Remote { stag: tag, addr: 1010 }), 0..18);
    std::thread::scope(|s| {
        s.spawn(|| b.pair.disconnected(SOON));
        assert!(a.pair.disconnected(SOON));
    });
    assert!(matches!(
        b.pair.connection(),
        Connection::Not(ConnectError::Disconnected { ours: true, .. })
    ));
}

#[test]
fn fast_registration_opens_memory_by_a_work_request() {
    let [a, b] = connected(Options::default(), 4096);
    let (memory, fast) = (b.domain.allocate(4096).unwrap(), b.domain.fast_region().unwrap());
    let access = Access { remote_read: true, ..Access::LOCAL };
    let stag = fast.tag();
    memory.write(100, b"fast").unwrap();
    let register = SendOp::FastRegister {
        stag,
        region: memory.number(),
        offset: 96,
        base: 0x1000,
        len: 64,
        access,
    };
    b.pair.post_send(SendRequest::bare(1, register)).unwrap();
    assert_eq!(b.done().completed, Completed::FastRegister);
    std::thread::scope(|s| {
        b.recv(2, 0..0);
        let theirs = s.spawn(|| b.done());
        a.send(10, SendOp::Read(Remote { stag, addr: 0x1004 }), 0..4);
        let read = a.done();
        assert_eq!((read.completed, read.len), (Completed::Read, 4));
        a.send(11, SendOp::Send, 0..0);
        a.done();
        assert_eq!(theirs.join().unwrap().id, 2);
    });
    let mut text = [0; 4];
    a.memory.read(0, &mut text).unwrap();
    assert_eq!(&text, b"fast");
}

/// What opens memory to a peer, and is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Opens {
    Window(WindowKind),
    Fast,
    /// The region that a window is bound to; the window stays.
    RegionOf(WindowKind),
}

/// Binding and fast registration give a tag another key, and dropping its owner has to end it under
/// that key: peers went on to write otherwise, and neither the tag nor the domain was ever given
/// back, which shows as a panic here.
#[test]
fn nothing_is_placed_after_what_opened_memory_is_dropped() {
    for opens in [
        Opens::Window(WindowKind::Domain),
        Opens::Window(WindowKind::OneQp),
        Opens::Fast,
        Opens::RegionOf(WindowKind::Domain),
        Opens::RegionOf(WindowKind::OneQp),
    ] {
        let [a, b] = connected(Options::default(), 4096);
        let mut inner =
            Some(b.domain.register(64, Access { bind: true, ..Access::LOCAL }).unwrap());
        let (mut window, mut fast) = (None, None);
        let (tag, open) = match opens {
            Opens::Window(kind) | Opens::RegionOf(kind) => {
                let made = window.insert(b.domain.window(kind).unwrap());
                let tag = Stag(made.tag().0 ^ 0x55);
                let access = Access { remote_write: true, ..Access::default() };
                let region = inner.as_ref().and_then(MemoryRegion::key).unwrap();
                (tag, SendOp::Bind { window: tag, region, addr: 0, len: 64, access })
            }
            Opens::Fast => {
                let tag = Stag(fast.insert(b.domain.fast_region().unwrap()).tag().0 ^ 0x55);
                let region = inner.as_ref().map(MemoryRegion::number).unwrap();
                let access = Access { remote_write: true, ..Access::LOCAL };
                (
                    tag,
                    SendOp::FastRegister { stag: tag, region, offset: 0, base: 0, len: 64, access },
                )
            }
        };
        b.pair.post_send(SendRequest::bare(1, open)).unwrap();
        b.done();
        a.memory.write(0, b"before").unwrap();
        let to = Remote { stag: tag, addr: 0 };
        b.recv(2, 0..64);
        std::thread::scope(|s| {
            s.spawn(|| assert_eq!(b.done().id, 2));
            a.send(10, SendOp::Write(to), 0..6);
            a.send(11, SendOp::Send, 0..6);
            a.done();
            a.done();
        });
        let mut text = [0; 6];
        inner.as_ref().unwrap().read(0, &mut text).unwrap();
        assert_eq!(&text, b"before", "{opens:?}");

        match opens {
            Opens::Window(_) => drop(window.take()),
            Opens::Fast => drop(fast.take()),
            Opens::RegionOf(_) => drop(inner.take()),
        }
        a.memory.write(0, b"behind").unwrap();
        a.send(12, SendOp::Write(to), 0..6);
        std::thread::scope(|s| {
            s.spawn(|| b.pair.disconnected(SOON));
            assert!(a.pair.disconnected(SOON));
        });
        let ended = ConnectError::Disconnected { cause: Some(Cause::TAGGED_STAG), ours: false };
        assert_eq!(a.pair.connection(), Connection::Not(ended), "{opens:?}");
        if let Some(inner) = &inner {
            inner.read(0, &mut text).unwrap();
            assert_eq!(&text, b"before", "{opens:?}");
        }
    }
}

#[test]
fn nothing_is_placed_after_a_region_is_dropped() {
    let [a, b] = connected(Options::default(), 4096);
    let gone = b.domain.register(4096, Access::ALL).unwrap();
    let to = gone.remote(0);
    drop(gone);
    a.send(1, SendOp::Write(to), 0..64);
    std::thread::scope(|s| {
        s.spawn(|| b.pair.disconnected(SOON));
        assert!(a.pair.disconnected(SOON));
    });
    let ConnectError::Disconnected { cause: Some(cause), ours: false } =
        a.pair.connected(SOON).unwrap_err()
    else {
        panic!("the peer says why")
    };
    assert_eq!(cause, Cause::TAGGED_STAG);
    assert_eq!(a.pair.post_send(SendRequest::new(2, SendOp::Send, a.memory.sge(0..1))), Ok(()));
    let statuses: Vec<Status> = std::iter::from_fn(|| a.queue.poll()).map(|c| c.status).collect();
    assert_eq!(statuses.last(), Some(&Status::Flushed));
}

#[test]
fn requests_are_accepted_or_refused_with_private_data() {
    let device = Device::open(Options::default()).unwrap();
    let (a, b) = (Side::of(&device, 4096), Side::of(&device, 4096));
    let listener = device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let ask = ConnectOptions {
        private_data: b"may I?".to_vec(),
        ird: 3,
        ord: 5,
        ..ConnectOptions::default()
    };
    a.pair.begin_connect(listener.local_addr(), ask.clone()).unwrap();
    let request = listener.next(SOON).unwrap();
    assert_eq!(
        (request.private_data(), request.ird(), request.ord()),
        (&b"may I?"[..], Some(3), Some(5))
    );
    request.reject(b"not now").unwrap();
    match a.pair.connected(SOON).unwrap_err() {
        ConnectError::Rejected { private_data, .. } => assert_eq!(private_data, b"not now"),
        other => panic!("{other:?}"),
    }
    // The pair may try again.
    connect(&a, &b, ask);
    everything_small(&a, &b);
    // A listener that has gone answers nobody.
    let at = listener.local_addr();
    drop(listener);
    let c = Side::of(&device, 4096);
    let refused = c.pair.connect(at, depths(), SOON).unwrap_err();
    assert_eq!(refused, ConnectError::Unreachable(std::io::ErrorKind::ConnectionRefused));
}

fn everything_small(a: &Side, b: &Side) {
    b.recv(1, 0..64);
    a.send(2, SendOp::Send, 0..64);
    let wait = |side: &Side| side.done().id;
    std::thread::scope(|s| {
        let theirs = s.spawn(|| wait(b));
        let mine = wait(a);
        let ids = [mine, theirs.join().unwrap()];
        // One queue each, or one for both: either way each comes once.
        assert!(ids == [2, 1] || ids == [1, 2], "{ids:?}");
    });
}

#[test]
fn several_pairs_share_receives_and_a_channel_tells_of_their_queues() {
    let device = Device::open(Options::default()).unwrap();
    let domain = device.protection_domain().unwrap();
    let channel = device.completion_channel().unwrap();
    let memory = domain.register(4096, Access::LOCAL).unwrap();
    let shared = domain.shared_receive_queue(16, 1).unwrap();
    for id in 0..4 {
        shared
            .post_recv(RecvRequest::new(id, memory.sge(id as usize * 64..(id as usize + 1) * 64)))
            .unwrap();
    }
    shared.limit(2);
    let listener = device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let pairs = [(); 2].map(|()| {
        let queue = channel.completion_queue(16).unwrap();
        queue.arm(false);
        let pair = domain
            .queue_pair(&PairOptions { shared: Some(&shared), ..PairOptions::new(&queue) })
            .unwrap();
        let client = Side::of(&device, 4096);
        client.pair.begin_connect(listener.local_addr(), depths()).unwrap();
        listener.next(SOON).unwrap().accept(&pair, AcceptOptions::default()).unwrap();
        client.pair.connected(SOON).unwrap();
        (queue, pair, client)
    });
    for (queue, _, client) in &pairs {
        client.send(9, SendOp::Send, 0..8);
        assert_eq!(channel.next(SOON), Some(queue.number()));
        assert_eq!(queue.wait(SOON).unwrap().len, 8);
        client.send(9, SendOp::Send, 0..8);
        assert_eq!(queue.sleep(SOON).unwrap().len, 8);
    }
    // Armed once, told once.
    assert_eq!(channel.next(Some(Duration::ZERO)), None);
    assert_eq!(device.async_event(), Some(AsyncEvent::Limit(shared.number())));
}

#[test]
fn a_thousand_connections_on_one_device_each_do_a_ping() {
    let options = Options { threading: Threading::IoThread, ..Options::default() };
    let (server, client) = (Device::open(options).unwrap(), Device::open(options).unwrap());
    let domain = server.protection_domain().unwrap();
    let queue = server.completion_queue(4096).unwrap();
    let memory = domain.register(64, Access::ALL).unwrap();
    let listener = server.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    // Two descriptors each in this one process: what the system allows decides how many there are.
    let most =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(4096);
    let count = 1000.min((most as usize).saturating_sub(100) / 2);
    let mut sides = Vec::new();
    for _ in 0..count {
        let side = Side::of(&client, 4096);
        side.pair.begin_connect(listener.local_addr(), depths()).unwrap();
        let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
        pair.post_recv(RecvRequest::new(0, memory.sge(0..64))).unwrap();
        let request = listener.next(SOON).unwrap();
        request.accept(&pair, AcceptOptions::default()).unwrap();
        side.pair.connected(SOON).unwrap();
        sides.push((side, pair));
    }
    for (side, _) in &sides {
        side.send(1, SendOp::Send, 0..64);
        side.done();
    }
    for _ in 0..count {
        assert_eq!(queue.wait(SOON).unwrap().len, 64);
    }
}

#[test]
fn peers_that_talk_nonsense_stall_or_leave_harm_nobody_else() {
    let options = Options { start_timeout: Duration::from_millis(50), ..Options::default() };
    let device = Device::open(options).unwrap();
    let listener = device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr();
    let mut nonsense = TcpStream::connect(at).unwrap();
    nonsense.write_all(b"GET / HTTP/1.1\r\nHost: sprat\r\n\r\n").unwrap();
    let mut stalled = TcpStream::connect(at).unwrap();
    stalled.write_all(b"MPA ID Req Fra").unwrap();
    drop(TcpStream::connect(at).unwrap());
    let (a, b) = (Side::of(&device, 4096), Side::of(&device, 4096));
    a.pair.begin_connect(at, depths()).unwrap();
    listener.next(SOON).unwrap().accept(&b.pair, AcceptOptions::default()).unwrap();
    a.pair.connected(SOON).unwrap();
    everything_small(&a, &b);
    // Both are closed, one at once and one after its time.
    for stream in [&mut nonsense, &mut stalled] {
        stream.set_nonblocking(true).unwrap();
        let mut octets = [0; 64];
        assert!(device.wait(SOON, || !matches!(
            stream.read(&mut octets),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock
        )));
    }
}

#[test]
fn misuse_is_an_error() {
    let device = Device::open(Options::default()).unwrap();
    let a = Side::of(&device, 4096);
    assert_eq!(a.memory.read(4090, &mut [0; 7]), Err(OutOfBounds));
    assert_eq!(a.memory.write(usize::MAX, &[0]), Err(OutOfBounds));
    assert!(a.memory.word(4).is_err() && a.memory.word(4096).is_err());
    let outside = a.pair.begin_connect("192.0.2.1:7".parse().unwrap(), depths()).unwrap_err();
    assert_eq!(outside.kind(), std::io::ErrorKind::PermissionDenied);
    assert!(device.listen("0.0.0.0:0".parse().unwrap()).is_err());
    assert!(a.pair.disconnect().is_err());
    assert_eq!(a.pair.connected(SOON), Err(ConnectError::Idle));
    let other = Device::open(Options::default()).unwrap();
    let listener = other.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    a.pair.begin_connect(listener.local_addr(), depths()).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| a.pair.connected(SOON).unwrap_err());
        // A queue pair of another device.
        let foreign = Side::of(&device, 64);
        assert_eq!(
            listener.next(SOON).unwrap().accept(&foreign.pair, AcceptOptions::default()),
            Err(PostError::Invalid)
        );
    });
}

/// A program that is done says so and exits, and what it did not read makes its kernel reset the
/// connection. Its peer finds that out by sending, and has its last words all the same.
#[test]
fn last_words_are_heard_by_who_finds_the_end_by_sending() {
    let [a, b] = connected(Options { threading: Threading::Caller, ..Options::default() }, 64);
    b.recv(1, 0..8);
    // Who was asked may send once the other has.
    a.send(10, SendOp::Send, 0..8);
    assert_eq!((a.done().id, b.done().id), (10, 1));
    b.recv(2, 0..8);
    b.recv(3, 8..16);
    b.send(4, SendOp::Send, 16..24);
    a.send(11, SendOp::Send, 0..8);
    drop(a);
    // Nothing has been read here since; these find the end.
    b.send(5, SendOp::Send, 16..24);
    b.send(6, SendOp::Send, 16..24);
    let mut ended: Vec<_> =
        (0..5).map(|_| b.queue.wait(SOON).expect("a completion in time")).collect();
    ended.sort_by_key(|c| c.id);
    let of = |id: u64| ended.iter().find(|c| c.id == id).map(|c| c.status);
    assert_eq!((of(2), of(3)), (Some(Status::Success), Some(Status::Flushed)), "{ended:?}");
}
