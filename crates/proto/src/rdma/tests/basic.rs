//! Tests of all operations, with every framing and cut, and of the limits of an engine.

use super::super::mr::WindowKind;
use super::*;

#[test]
fn send_write_and_read_over_every_framing() {
    for setup in setups() {
        let mut pair = Pair::connected(&setup);
        let (a, b) = (&mut pair.a, &mut pair.b);
        let source = a.region(pattern(5000, 1), 0x1000);
        let sink = b.region(vec![0; 10_000], 0x20_000);
        b.recv(7, &[(sink, 0x20_000, 2000), (sink, 0x21_000, 4000)]);
        a.post(1, SendOp::Send, &[(source, 0x1000, 5000)]);
        a.post(2, SendOp::Write(Remote { stag: sink, addr: 0x22_000 }), &[(source, 0x1064, 1400)]);
        pair.run();
        let (a, b) = (&mut pair.a, &mut pair.b);
        assert_eq!(a.done(), [(1, Status::Success), (2, Status::Success)], "{setup:?}");
        let got = b.poll().unwrap();
        assert_eq!((got.id, got.status, got.len), (7, Status::Success, 5000));
        assert_eq!(got.completed, Completed::Recv);
        assert_eq!(b.ram.0[0][..2000], pattern(5000, 1)[..2000]);
        assert_eq!(b.ram.0[0][4096..7096], pattern(5000, 1)[2000..]);
        assert_eq!(b.ram.0[0][8192..8192 + 1400], pattern(5000, 1)[100..1500]);

        let back = a.region(vec![0; 9000], 0);
        a.post(3, SendOp::Read(Remote { stag: sink, addr: 0x20_010 }), &[(back, 5, 8000)]);
        pair.run();
        let read = pair.a.poll().unwrap();
        assert_eq!((read.id, read.status, read.len), (3, Status::Success, 8000));
        assert_eq!(pair.a.ram.0[1][5..8005], pair.b.ram.0[0][16..8016]);
        assert!(pair.a.events.is_empty() && pair.b.events.is_empty());
    }
}

/// An idle connection takes little memory: its queues have no buffers.
#[test]
fn an_idle_connection_takes_little_memory() {
    let (stream, queues) = (size_of::<iwarp::connection::Connection>(), size_of::<qp::QueuePair>());
    assert!(stream + queues <= 1200, "{stream} {queues}");
    let pair = Pair::connected(&Setup::default());
    let queue_pair = pair.a.rnic.qps.get(pair.a.qp.0).unwrap();
    assert!(queue_pair.is_quiet() && queue_pair.receive.len() == 0);
}

/// The engine keeps exactly to each limit of [`RnicOptions`], and freed objects can be replaced.
#[test]
fn limits_are_those_of_the_configuration() {
    let config = RnicOptions {
        max_qps: 3,
        max_cqs: 4,
        max_srqs: 5,
        max_pds: 6,
        max_tags: 7,
        max_depth: 8,
        max_cqe: 9,
        ..RnicOptions::default()
    };
    let limits = config.limits();
    let mut rnic = Rnic::new(config, Rng::seeded(1));
    let (pd, cq) = (rnic.alloc_pd().unwrap(), rnic.create_cq(limits.completions).unwrap());
    let options = QpOptions {
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        send_depth: limits.requests,
        recv_depth: limits.requests,
        max_send_sge: limits.elements,
        max_recv_sge: limits.elements,
        max_inline: limits.inline,
        signal_all: false,
    };
    // Counts the objects that fit after the first two.
    let most = |make: &mut dyn FnMut() -> Result<(), PostError>| {
        let made = (0..100).take_while(|_| make().is_ok()).count();
        assert_eq!(make(), Err(PostError::NoRoom));
        made
    };
    assert_eq!(most(&mut || rnic.create_qp(options).map(drop)), limits.queue_pairs);
    assert_eq!(most(&mut || rnic.create_cq(1).map(drop)), limits.completion_queues - 1);
    assert_eq!(most(&mut || rnic.create_srq(pd, 1, 1).map(drop)), limits.shared_receive_queues);
    assert_eq!(most(&mut || rnic.alloc_pd().map(drop)), limits.protection_domains - 1);
    let region = rnic.register(pd, 0, 0, 1, Access::LOCAL).unwrap();
    rnic.alloc_window(pd, WindowKind::Domain).unwrap();
    rnic.alloc_fast(pd).unwrap();
    assert_eq!(most(&mut || rnic.register(pd, 0, 0, 1, Access::LOCAL).map(drop)), limits.tags - 3);
    assert_eq!(rnic.alloc_window(pd, WindowKind::Domain), Err(PostError::NoRoom));
    rnic.deregister(region).unwrap();
    rnic.alloc_window(pd, WindowKind::OneQp).unwrap();

    assert_eq!(rnic.resize_cq(cq, limits.completions + 1), Err(PostError::NoRoom));
    rnic.resize_cq(cq, limits.completions).unwrap();
    let mut fresh = Rnic::new(
        RnicOptions { max_cqe: 9, max_depth: 8, ..RnicOptions::default() },
        Rng::seeded(1),
    );
    let (pd, cq) = (fresh.alloc_pd().unwrap(), fresh.create_cq(9).unwrap());
    let options = QpOptions { pd, send_cq: cq, recv_cq: cq, ..options };
    assert_eq!(fresh.create_cq(10), Err(PostError::NoRoom));
    assert_eq!(fresh.create_srq(pd, 9, 1), Err(PostError::NoRoom));
    assert_eq!(fresh.create_srq(pd, 8, MAX_SGE + 1), Err(PostError::TooManyElements));
    assert_eq!(fresh.create_qp(QpOptions { send_depth: 9, ..options }), Err(PostError::NoRoom));
    assert_eq!(fresh.create_qp(QpOptions { recv_depth: 9, ..options }), Err(PostError::NoRoom));
    assert_eq!(
        fresh.create_qp(QpOptions { max_recv_sge: MAX_SGE + 1, ..options }),
        Err(PostError::TooManyElements)
    );
    assert_eq!(
        fresh.create_qp(QpOptions { max_inline: MAX_INLINE + 1, ..options }),
        Err(PostError::Inline)
    );
    fresh.create_qp(options).unwrap();
}

/// Long messages of a program with several in progress may wait for more of them. All others go at
/// once: few in progress, short, enough to fill a call, or beside an answer that the peer awaits.
#[test]
fn long_messages_of_a_stream_may_wait_for_posts() {
    const LONG: u32 = 64 << 10;
    let setup = Setup { acknowledge: true, ..Setup::default() };
    let mut pair = Pair::connected(&setup);
    let len = 2 * LONG;
    let own = pair.a.region(vec![0; len as usize], 0);
    let theirs = pair.b.region(vec![0; len as usize], 0);
    let remote = Remote { stag: theirs, addr: 0 };
    let (write, read) = (SendOp::Write(remote), SendOp::Read(remote));
    let waits = |pair: &mut Pair, op: SendOp, len: u32| {
        pair.a.post(0, op, &[(own, 0, len)]);
        let waits = pair.a.rnic.may_wait_for_posts();
        while pair.a.send(pair.now) {}
        waits
    };
    assert!(!pair.a.rnic.may_wait_for_posts(), "nothing to send");
    // Four in progress, of which the program has not taken the completions.
    let first = [(); 5].map(|()| waits(&mut pair, write, LONG));
    assert_eq!(first, [false, false, false, false, true]);
    pair.run();
    assert!(waits(&mut pair, write, LONG), "done, and not polled");
    for (op, len) in [(write, LONG + 1), (write, 4095), (read, LONG)] {
        assert!(!waits(&mut pair, op, len), "{op:?} {len}");
    }
    assert!(waits(&mut pair, write, 4096));
    // The second one fills a call.
    pair.a.post(0, write, &[(own, 0, LONG)]);
    assert!(pair.a.rnic.may_wait_for_posts());
    assert!(!waits(&mut pair, write, LONG));
    // The peer waits for an answer.
    pair.b.post(0, SendOp::Write(Remote { stag: own, addr: 0 }), &[(theirs, 0, 8)]);
    pair.b.send(pair.now);
    let mut wire = core::mem::take(&mut pair.b.wire);
    pair.a.draw(pair.now, &mut wire, &mut Cut::Whole);
    assert!(!waits(&mut pair, write, LONG), "it asks for an acknowledgement");
    // The program has taken all completions, so it may make no further call.
    pair.run();
    pair.wait(crate::time::MS);
    pair.a.done();
    assert!(!waits(&mut pair, write, LONG));
}
