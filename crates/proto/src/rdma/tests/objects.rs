//! Tests of queues, windows, posting and the limits of posting.

use super::peer::segments;
use super::*;
use crate::wire::ddp::Buffer;
use crate::wire::rdmap::Cause;

#[test]
fn one_completion_queue_that_overflows_hurts_no_other() {
    let setup = Setup::default();
    let mut pair = Pair::new(&setup);
    let small = pair.a.rnic.create_cq(2).unwrap();
    let other = pair.a.rnic.create_qp(qp_options(pair.a.pd, pair.a.cq)).unwrap();
    pair.a.qp = pair
        .a
        .rnic
        .create_qp(QpOptions { send_cq: small, ..qp_options(pair.a.pd, pair.a.cq) })
        .unwrap();
    pair.start(&setup);
    pair.accept(&setup);
    pair.a.events.clear();
    for id in 0..3 {
        pair.a.post(id, SendOp::Write(Remote::default()), &[]);
    }
    pair.run();
    let qp = pair.a.qp;
    assert_eq!(pair.a.events[0], Event::CqOverflow(small));
    assert_eq!(pair.a.events[1], Event::QpFailed { qp, cause: Cause::LOCAL, ours: true });
    assert_eq!(pair.a.rnic.state(qp), Some(QpState::Error));
    assert_eq!(pair.a.rnic.state(other), Some(QpState::Idle));
    assert!(pair.b.events.contains(&Event::QpFailed {
        qp: pair.b.qp,
        cause: Cause::LOCAL,
        ours: false
    }));
}

#[test]
fn an_armed_queue_notifies_once() {
    let mut pair = Pair::connected(&Setup::default());
    let (qp, cq) = (pair.b.qp, pair.b.cq);
    let _ = qp;
    for id in 0..4 {
        pair.b.recv(id, &[]);
    }
    pair.b.rnic.arm(cq, true).unwrap();
    pair.a.post(1, SendOp::Send, &[]);
    pair.run();
    assert!(pair.b.events.is_empty(), "nobody asked for an event");
    let solicited = SendFlags { solicited: true, ..SendFlags::default() };
    pair.a.post_with(2, SendOp::Send, &[], solicited).unwrap();
    pair.a.post_with(3, SendOp::Immediate(1), &[], solicited).unwrap();
    pair.run();
    assert_eq!(pair.b.events, [Event::CqReady(cq)]);
    pair.b.rnic.arm(cq, false).unwrap();
    pair.a.post(4, SendOp::Send, &[]);
    pair.run();
    assert_eq!(pair.b.events.len(), 2);
}

#[test]
fn queue_pairs_share_receives() {
    let setup = Setup::default();
    let mut pair = Pair::new(&setup);
    let srq = pair.b.rnic.create_srq(pair.b.pd, 8, 1).unwrap();
    let options = QpOptions { srq: Some(srq), ..qp_options(pair.b.pd, pair.b.cq) };
    pair.b.qp = pair.b.rnic.create_qp(options).unwrap();
    let inbox = pair.b.region(vec![0; 64], 0);
    for id in 0..4 {
        let list = sges(&[(inbox, 16 * id, 16)]);
        pair.b.rnic.post_srq_recv(srq, RecvRequest { id, list }).unwrap();
    }
    assert_eq!(pair.b.rnic.destroy_srq(srq), Err(PostError::Busy));
    let request = RecvRequest { id: 0, list: sges(&[]) };
    assert_eq!(pair.b.rnic.post_recv(pair.b.qp, request), Err(PostError::Invalid));
    pair.b.rnic.limit_srq(srq, 3).unwrap();
    pair.start(&setup);
    pair.accept(&setup);
    pair.b.events.clear();
    let mine = pair.a.region(pattern(64, 1), 0);
    pair.a.post(1, SendOp::Send, &[(mine, 0, 16)]);
    pair.run();
    assert!(pair.b.events.is_empty());
    pair.a.post(2, SendOp::Send, &[(mine, 16, 16)]);
    pair.a.post(3, SendOp::Send, &[(mine, 32, 16)]);
    pair.run();
    assert_eq!(pair.b.events, [Event::SrqLimit(srq)], "once");
    assert_eq!(pair.b.done().len(), 3);
    assert_eq!(pair.b.ram.0[0][..48], pattern(64, 1)[..48]);
    pair.a.rnic.disconnect(pair.now, pair.a.qp).unwrap();
    pair.run();
    assert!(pair.b.events.contains(&Event::LastWqe(pair.b.qp)));
    assert_eq!(pair.b.done(), [], "what is left in a shared queue stays there");
    pair.b.rnic.destroy_qp(pair.b.qp).unwrap();
    pair.b.rnic.destroy_srq(srq).unwrap();
}

#[test]
fn a_destroyed_queue_pair_leaves_no_completion() {
    let mut pair = Pair::connected(&Setup::default());
    let mine = pair.a.region(pattern(64, 1), 0);
    pair.b.recv(7, &[]);
    pair.a.post(1, SendOp::Send, &[(mine, 0, 0)]);
    pair.run();
    pair.b.rnic.destroy_qp(pair.b.qp).unwrap();
    assert_eq!(pair.b.done(), []);
    assert_eq!(pair.a.done().len(), 1, "the other side's are its own");
}

#[test]
fn what_cannot_be_posted_is_refused() {
    let mut pair = Pair::new(&Setup::default());
    let sink = pair.a.region(vec![0; 64], 0);
    let send = |op, data| SendRequest { id: 1, op, data, flags: SendFlags::default() };
    let gather = |n: usize, len| Data::Gather(sges(&vec![(sink, 0, len); n]));
    let rnic = &mut pair.a.rnic;
    let qp = pair.a.qp;
    assert_eq!(
        rnic.post_send(qp, send(SendOp::Send, gather(0, 0))),
        Err(PostError::Invalid),
        "idle"
    );
    let options = QpOptions {
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline: 16,
        send_depth: 2,
        recv_depth: 1,
        ..qp_options(pair.a.pd, pair.a.cq)
    };
    pair.a.qp = rnic.create_qp(options).unwrap();
    pair.start(&Setup::default());
    pair.accept(&Setup::default());
    let rnic = &mut pair.a.rnic;
    let to = Remote::default();
    let add = SendOp::FetchAdd { to, add: 1, mask: 0 };
    let invalidate = SendOp::Invalidate(sink);
    for (request, error) in [
        (send(SendOp::Send, gather(3, 1)), PostError::TooManyElements),
        (send(SendOp::Read(to), gather(2, 1)), PostError::TooManyElements),
        (send(SendOp::Read(to), Data::Inline(vec![1])), PostError::Inline),
        (send(add, gather(1, 7)), PostError::Rights),
        (send(add, gather(2, 8)), PostError::TooManyElements),
        (send(add, gather(0, 8)), PostError::TooManyElements),
        (send(add, Data::Inline(vec![0; 8])), PostError::Inline),
        (send(SendOp::Send, Data::Inline(vec![0; 17])), PostError::Inline),
        (send(SendOp::Immediate(1), Data::Inline(vec![0; 1])), PostError::Inline),
        (send(invalidate, gather(1, 1)), PostError::Inline),
        (send(SendOp::Write(to), gather(2, 1 << 31)), PostError::TooLong),
        (send(SendOp::Read(to), gather(1, u32::MAX)), PostError::TooLong),
    ] {
        assert_eq!(rnic.post_send(pair.a.qp, request.clone()), Err(error), "{request:?}");
    }
    for _ in 0..2 {
        rnic.post_send(pair.a.qp, send(SendOp::Write(to), Data::Inline(Vec::new()))).unwrap();
    }
    let request = send(SendOp::Write(to), gather(0, 0));
    assert_eq!(rnic.post_send(pair.a.qp, request), Err(PostError::Full));
    let list = sges(&[(sink, 0, 1), (sink, 1, 1)]);
    assert_eq!(
        rnic.post_recv(pair.a.qp, RecvRequest { id: 1, list }),
        Err(PostError::TooManyElements)
    );
    let recv = RecvRequest { id: 1, list: sges(&[]) };
    rnic.post_recv(pair.a.qp, recv.clone()).unwrap();
    assert_eq!(rnic.post_recv(pair.a.qp, recv), Err(PostError::Full));
    assert_eq!(
        rnic.connect(pair.now, pair.a.qp, &ConnectOptions::default()),
        Err(PostError::Invalid)
    );
}

#[test]
fn inline_data_is_copied_at_the_call() {
    for setup in setups() {
        let mut pair = Pair::connected(&setup);
        let inbox = pair.b.region(vec![0; 64], 0);
        pair.b.recv(1, &[(inbox, 0, 64)]);
        let data = Data::Inline(b"by value".to_vec());
        let request = SendRequest { id: 1, op: SendOp::Send, data, flags: SendFlags::default() };
        pair.a.rnic.post_send(pair.a.qp, request).unwrap();
        pair.run();
        assert_eq!(&pair.b.ram.0[0][..8], b"by value");
    }
}

#[test]
fn own_sends_get_their_turn_among_answers() {
    let mut pair = Pair::connected(&Setup::default());
    let mine = pair.a.region(vec![0; 4096], 0);
    let theirs = pair.b.region(pattern(4096, 1), 0);
    let inbox = pair.a.region(vec![0; 64], 0);
    for id in 0..2 {
        pair.a.recv(id, &[(inbox, 0, 8)]);
    }
    for id in 0..8 {
        pair.a.post(id, SendOp::Read(Remote { stag: theirs, addr: 0 }), &[(mine, 0, 8)]);
    }
    pair.a.send(pair.now);
    pair.b.sent.clear();
    pair.b.post(1, SendOp::Send, &[]);
    pair.b.post(2, SendOp::Send, &[]);
    pair.run();
    let sends: Vec<_> = segments(&pair.b.sent, true)
        .iter()
        .map(|(header, _)| matches!(header.buffer, Buffer::Untagged { .. }))
        .collect();
    let expected = [false, false, false, false, true, false, false, false, false, true];
    assert_eq!(sends, expected, "four answers, then a Send");
}

#[test]
fn windows_open_a_part_of_a_region_to_one_stream() {
    let mut pair = Pair::connected(&Setup::default());
    let plain = Access { local_write: true, bind: true, ..Access::default() };
    let region = pair.b.region_with(vec![0; 256], 0x1000, plain);
    let window = pair.b.rnic.alloc_window(pair.b.pd, mr::WindowKind::OneQp).unwrap();
    let access = Access { remote_write: true, remote_read: true, ..Access::default() };
    let bind = |len| SendOp::Bind { window, region, addr: 0x1040, len, access };
    pair.b.post(1, bind(64), &[]);
    pair.run();
    let done = pair.b.poll().unwrap();
    assert_eq!((done.status, done.completed), (Status::Success, Completed::Bind));
    assert_eq!(pair.b.rnic.deregister(region), Err(PostError::Busy));
    let mine = pair.a.region(pattern(64, 1), 0);
    pair.a.post(1, SendOp::Write(Remote { stag: window, addr: 0x1040 }), &[(mine, 0, 64)]);
    pair.run();
    assert_eq!(pair.b.ram.0[0][64..128], pattern(64, 1));
    pair.b.post(2, SendOp::Invalidate(window), &[]);
    pair.run();
    assert_eq!(pair.b.done(), [(2, Status::Success)]);
    pair.b.rnic.deregister(region).unwrap();
    pair.a.post(2, SendOp::Write(Remote { stag: window, addr: 0x1040 }), &[(mine, 0, 1)]);
    pair.run();
    assert_eq!(pair.b.rnic.state(pair.b.qp), Some(QpState::Error));
    // A failed bind has a status of its own.
    let mut pair = Pair::connected(&Setup::default());
    pair.a.post(1, SendOp::Invalidate(Stag(5)), &[]);
    pair.run();
    assert_eq!(pair.a.done(), [(1, Status::Bind)]);
}

#[test]
fn a_read_can_invalidate_its_sink() {
    let mut pair = Pair::connected(&Setup::default());
    pair.a.region(vec![0; 64], 0);
    let stag = pair.a.rnic.alloc_fast(pair.a.pd).unwrap();
    let access = Access { local_write: true, ..Access::default() };
    pair.a.post(
        1,
        SendOp::FastRegister { stag, region: 0, offset: 0, base: 0x50, len: 64, access },
        &[],
    );
    let theirs = pair.b.region(pattern(64, 1), 0);
    pair.a.post(2, SendOp::ReadInvalidate(Remote { stag: theirs, addr: 0 }), &[(stag, 0x50, 64)]);
    pair.run();
    assert_eq!(pair.a.done(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.a.ram.0[0], pattern(64, 1));
    pair.a.post(3, SendOp::Read(Remote { stag: theirs, addr: 0 }), &[(stag, 0x50, 64)]);
    pair.run();
    assert_eq!(pair.a.done(), [(3, Status::LocalProtection)]);
}
