//! Verbs over loopback TCP: every operation, in every threading model, with every way to copy.

use std::time::Duration;

use sprat::verbs::{
    Access, Completed, Completion, CompletionQueue, ConnectOptions, Copies, Device, MemoryRegion, Options,
    PairOptions, ProtectionDomain, QueuePair, RecvRequest, SendOp, SendRequest, Threading,
};

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
            let accept = sprat::verbs::AcceptOptions { ird: 8, ord: 8, private_data: b"welcome".to_vec() };
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
    for threading in [Threading::Caller, Threading::IoThread, Threading::ReceiveThread] {
        let [a, b] = connected(Options { threading, ..Options::default() }, 600_000);
        everything(&a, &b);
        everything(&b, &a);
    }
}

#[test]
fn sends_writes_and_reads_with_every_way_to_copy() {
    for copies in [Copies::Two, Copies::One, Copies::Direct] {
        for (crc, markers) in [(false, false), (true, false), (false, true), (true, true)] {
            let [a, b] = connected(Options { copies, crc, markers, ..Options::default() }, 600_000);
            everything(&a, &b);
            everything(&b, &a);
            let counters = b.device.counters();
            assert_eq!(
                counters.direct > 300_000,
                copies == Copies::Direct && !crc && !markers,
                "{counters:?}"
            );
            assert_eq!(counters.copied > 600_000, copies == Copies::Two, "{counters:?}");
        }
    }
}
