//! Tests of unexpected messages: those that arrive before a receive is posted for them.

use super::peer::{Peer, tagged, untagged};
use super::*;
use crate::time::{MS, SECOND};
use crate::wire::rdmap::{Cause, Opcode, ReadRequest};

/// The time-out of a message that waits for a receive.
const RNR_NS: u64 = 100 * MS;

/// Options of a connection whose accepting side has this time-out for messages without a receive.
fn patient(rnr_timeout_ns: Option<u64>) -> Setup {
    let setup = Setup::default();
    Setup { accept: AcceptOptions { rnr_timeout_ns, ..setup.accept.clone() }, ..setup }
}

/// A Send takes one receive even if the program posts it only after its own Read and Write have
/// completed.
#[test]
fn r11_a_send_takes_one_receive_even_if_that_is_posted_later() {
    for setup in setups() {
        let accept = AcceptOptions { rnr_timeout_ns: None, ..setup.accept.clone() };
        let mut pair = Pair::connected(&Setup { accept, ..setup.clone() });
        let (theirs, own) =
            (pair.a.region(pattern(10_000, 1), 0), pair.b.region(vec![0; 10_000], 0));
        // A responder may send after the first message.
        pair.a.post(1, SendOp::Send, &[(theirs, 0, 5000)]);
        pair.a.post(2, SendOp::Send, &[]);
        pair.a.post(
            3,
            SendOp::WriteImmediate(Remote { stag: own, addr: 9000 }, 77),
            &[(theirs, 0, 40)],
        );
        pair.a.post(4, SendOp::Write(Remote { stag: own, addr: 9100 }), &[(theirs, 0, 10)]);
        pair.a.post(5, SendOp::Read(Remote { stag: own, addr: 9100 }), &[(theirs, 9000, 10)]);
        pair.run();
        assert_eq!(pair.a.done().len(), 5, "{setup:?}");
        assert_eq!(pair.a.ram.0[0][9000..9010], pattern(10_000, 1)[..10]);
        assert_eq!(pair.b.done(), [], "no receive is there");
        let from = Remote { stag: theirs, addr: 0 };
        pair.b.post(6, SendOp::Read(from), &[(own, 6000, 500)]);
        pair.b.post(7, SendOp::Write(from), &[(own, 6000, 500)]);
        pair.run();
        assert_eq!(pair.b.done(), [(6, Status::Success), (7, Status::Success)], "{setup:?}");
        for id in 8..11 {
            pair.b.recv(id, &[(own, 0, 2000), (own, 2000, 3000)]);
            pair.run();
        }
        let got: Vec<_> = core::iter::from_fn(|| pair.b.poll()).collect();
        let what: Vec<_> = got.iter().map(|c| (c.id, c.status, c.len, c.immediate)).collect();
        let good = Status::Success;
        assert_eq!(
            what,
            [(8, good, 5000, None), (9, good, 0, None), (10, good, 40, Some(77))],
            "{setup:?}"
        );
        assert_eq!(pair.b.ram.0[0][..5000], pattern(10_000, 1)[..5000]);
        pair.a.post(11, SendOp::Send, &[(theirs, 0, 8)]);
        pair.b.recv(12, &[(own, 0, 8)]);
        pair.run();
        assert_eq!(pair.b.done(), [(12, Status::Success)]);
    }
}

/// A receive that is posted between two pieces of a segment takes the whole message.
#[test]
fn a_receive_posted_within_a_message_takes_all_of_it() {
    for (crc, markers) in [(false, false), (true, true)] {
        let setup = Setup { crc, markers, cut: Cut::Each(100), ..patient(None) };
        let mut pair = Pair::connected(&setup);
        let (source, sink) = (pair.a.region(pattern(9000, 3), 0), pair.b.region(vec![0; 9000], 0));
        pair.a.post(1, SendOp::Send, &[(source, 0, 9000)]);
        pair.step(25);
        pair.b.recv(2, &[(sink, 0, 9000)]);
        pair.run();
        assert_eq!(pair.b.done(), [(2, Status::Success)]);
        assert_eq!(pair.b.ram.0[0], pattern(9000, 3));
    }
}

#[test]
fn the_rnr_time_out_ends_with_the_terminate_of_a_missing_receive() {
    let mut peer = Peer::with(&patient(Some(RNR_NS)));
    peer.say(untagged(Opcode::Send, 1, 0, true), b"first");
    peer.say(untagged(Opcode::Send, 2, 0, true), b"second");
    assert!(peer.hear().is_empty());
    peer.pair.wait(RNR_NS - 1);
    // The first message has its receive, so the second one's time-out starts now.
    peer.recv(1, 16);
    assert!(peer.hear().is_empty());
    assert_eq!(peer.us().done(), [(1, Status::Success)]);
    peer.pair.wait(RNR_NS - 1);
    assert_eq!(peer.pair.b.rnic.state(peer.pair.b.qp), Some(QpState::Ready));
    peer.pair.now = peer.pair.now.after(1);
    let now = peer.pair.now;
    peer.us().rnic.tick(now);
    let terminate = peer.terminated();
    assert_eq!(terminate.cause, Cause::UNTAGGED_NO_BUFFER);
    let about = terminate.about.unwrap();
    assert_eq!((about.header, about.ulpdu_len), (untagged(Opcode::Send, 2, 0, true).emit(), 24));
    assert_eq!(peer.us().rnic.shared.unexpected.messages, 0);
}

#[test]
fn a_receive_that_is_too_short_is_an_error_as_if_it_had_been_there() {
    let mut peer = Peer::with(&patient(None));
    peer.say(untagged(Opcode::Send, 1, 0, true), b"too long");
    peer.recv(1, 4);
    let terminate = peer.terminated();
    assert_eq!(terminate.cause, Cause::UNTAGGED_TOO_LONG);
    assert_eq!(terminate.about.unwrap().header, untagged(Opcode::Send, 1, 0, true).emit());
    assert_eq!(peer.us().done(), [(1, Status::LocalLength)]);
    peer.untouched();
}

#[test]
fn writes_reads_and_a_terminate_pass_what_waits() {
    let mut peer = Peer::with(&patient(None));
    peer.say(untagged(Opcode::Send, 1, 0, true), b"waits");
    peer.say(tagged(Opcode::Write, peer.stag, 0x1000, true), b"placed");
    let source_stag = peer.stag.0;
    let read = ReadRequest { sink_stag: 5, sink_to: 0, size: 6, source_stag, source_to: 0x1000 };
    peer.say(untagged(Opcode::ReadRequest, 1, 0, true), &read.emit());
    let heard = peer.hear();
    assert_eq!(heard.len(), 1);
    assert_eq!(heard[0].1, b"placed");
    peer.say(untagged(Opcode::Terminate, 1, 0, true), &[0, 0, 0, 0]);
    assert!(peer.hear().is_empty());
    assert_eq!(peer.pair.b.rnic.state(peer.pair.b.qp), Some(QpState::Error));
    assert_eq!(peer.us().rnic.shared.unexpected.messages, 0);
}

/// Without receives the engine buffers messages up to a limit. It goes on as receives are posted.
#[test]
fn a_stream_stalls_at_a_limit() {
    for len in [0_usize, 100, 1000] {
        let mut peer = Peer::with(&patient(None));
        let conn = peer.us().conn.unwrap();
        let mut said = 0;
        while !peer.us().rnic.is_stalled(conn) {
            said += 1;
            peer.say(untagged(Opcode::Send, said, 0, true), &vec![said as u8; len]);
            assert!(said < 2000, "no end of it");
        }
        assert!(said > 200, "{said} messages of {len} bytes are kept");
        assert!(said as usize * len < 300 << 10);
        peer.say(untagged(Opcode::Send, said + 1, 0, true), &vec![9; len]);
        let left = peer.us().inbox.len();
        assert!(left > len, "it is not consumed");
        let stag = peer.us().region(vec![0; 1000], 0);
        for id in 0..64 {
            peer.us().recv(id, &[(stag, 0, 1000)]);
        }
        assert!(peer.hear().is_empty());
        assert!(!peer.us().rnic.is_stalled(conn));
        peer.pair.b.take(peer.pair.now, &[]);
        assert!(peer.us().inbox.is_empty(), "it goes on");
        let done = peer.us().done();
        assert_eq!(done, (0..64).map(|id| (id, Status::Success)).collect::<Vec<_>>());
    }
}

/// After a peer's end on a stalled stream, the connection ends in time, unless the program posts
/// receives.
#[test]
fn a_peers_end_on_a_stalled_stream_ends_it_in_time() {
    for receives in [false, true] {
        let mut peer = Peer::with(&patient(None));
        let conn = peer.us().conn.unwrap();
        let mut said = 0;
        while !peer.us().rnic.is_stalled(conn) {
            said += 1;
            peer.say(untagged(Opcode::Send, said, 0, true), &[7; 1000]);
        }
        let now = peer.pair.now;
        peer.us().rnic.ended(now, conn, StreamEnd::Unread);
        let stag = peer.us().region(vec![0; 1000], 0);
        for id in 0..if receives { 64 } else { 0 } {
            peer.us().recv(id, &[(stag, 0, 1000)]);
        }
        assert!(peer.hear().is_empty());
        peer.pair.wait(2 * SECOND - 1);
        assert_eq!(peer.us().closed, None);
        peer.pair.wait(1);
        let reset = peer.us().closed;
        assert_eq!(reset, if receives { None } else { Some(true) });
    }
}

/// All queue pairs together have a limit of buffered messages, and a queue pair below its own limit
/// goes on when there is room.
#[test]
fn all_queue_pairs_together_have_a_limit() {
    let mut peer = Peer::with(&patient(None));
    let conn = peer.us().conn.unwrap();
    peer.us().rnic.shared.unexpected = qp::unexpected::UnexpectedPool::new(8 << 10);
    for msn in 1..=3 {
        peer.say(untagged(Opcode::Send, msn, 0, true), &[1; 1000]);
        assert!(!peer.us().rnic.is_stalled(conn), "{msn}");
    }
    peer.say(untagged(Opcode::Send, 4, 0, true), &[1; 1000]);
    assert!(peer.us().rnic.is_stalled(conn));
    assert!(peer.hear().is_empty());
    let stag = peer.us().region(vec![0; 1000], 0);
    peer.us().recv(1, &[(stag, 0, 1000)]);
    assert!(peer.hear().is_empty());
    assert!(!peer.us().rnic.is_stalled(conn));
    // Beyond the limit nothing is buffered.
    for msn in 5..=7 {
        peer.say(untagged(Opcode::Send, msn, 0, true), &[1; 60]);
    }
    assert!(peer.us().rnic.is_stalled(conn));
    let mut hasty = Peer::with(&patient(None));
    hasty.us().rnic.shared.unexpected = qp::unexpected::UnexpectedPool::new(1 << 10);
    hasty.say(untagged(Opcode::Send, 1, 0, true), &[1; 1000]);
    assert_eq!(hasty.cause(), Cause::UNTAGGED_NO_BUFFER);
    assert_eq!(hasty.us().rnic.shared.unexpected.messages, 0);
}

/// Messages before the peer's end are delivered if their receives come in time.
#[test]
fn messages_before_the_peers_end_are_delivered() {
    for in_time in [true, false] {
        let mut pair = Pair::connected(&patient(None));
        let (source, sink) = (pair.a.region(pattern(64, 3), 0), pair.b.region(vec![0; 64], 0));
        pair.a.post(1, SendOp::Send, &[(source, 0, 10)]);
        pair.a.post(2, SendOp::Send, &[(source, 0, 20)]);
        pair.run();
        pair.a.rnic.disconnect(pair.now, pair.a.qp).unwrap();
        pair.run();
        assert_eq!(pair.a.closed, Some(false));
        assert_eq!((pair.b.closed, pair.b.rnic.state(pair.b.qp)), (None, Some(QpState::Ready)));
        if !in_time {
            pair.wait(2 * SECOND);
        }
        pair.b.recv(1, &[(sink, 0, 64)]);
        pair.b.recv(2, &[(sink, 0, 64)]);
        pair.run();
        let status = if in_time { Status::Success } else { Status::Flushed };
        assert_eq!(pair.b.done(), [(1, status), (2, status)]);
        assert_eq!(pair.b.closed, Some(false));
        assert_eq!(
            pair.b.events.last(),
            Some(&Event::Close { conn: pair.b.conn.unwrap(), reset: false })
        );
    }
}

/// Receives of a shared receive queue go to the waiting queue pairs in order, and raise the limit's
/// event.
#[test]
fn shared_receives_go_to_waiting_queue_pairs_in_order() {
    let mut pair = Pair::new(&patient(None));
    let b = &mut pair.b;
    let srq = b.rnic.create_srq(b.pd, 8, 1).unwrap();
    let options = QpOptions { srq: Some(srq), ..qp_options(b.pd, b.cq) };
    let (first, second) = (b.qp, b.rnic.create_qp(options).unwrap());
    b.rnic.destroy_qp(first).unwrap();
    b.qp = second;
    pair.start(&patient(None));
    pair.accept(&patient(None));
    pair.b.events.clear();
    let (source, sink) = (pair.a.region(pattern(64, 3), 0), pair.b.region(vec![0; 64], 0));
    for id in 1..=3 {
        pair.a.post(id, SendOp::Send, &[(source, 0, 10)]);
    }
    pair.run();
    assert_eq!(pair.b.done(), []);
    pair.b.rnic.limit_srq(srq, 1).unwrap();
    for id in 1..=3 {
        let list = sges(&[(sink, 10 * id, 10)]);
        pair.b.rnic.post_srq_recv(srq, RecvRequest { id, list }).unwrap();
    }
    pair.run();
    assert_eq!(pair.b.done(), [1, 2, 3].map(|id| (id, Status::Success)));
    assert_eq!(pair.b.events, [Event::SrqLimit(srq)]);
    // A queue pair that ends gives its turn to the others.
    pair.a.post(4, SendOp::Send, &[(source, 0, 10)]);
    pair.run();
    pair.b.rnic.destroy_qp(second).unwrap();
    assert_eq!(pair.b.rnic.shared.unexpected.messages, 0);
    pair.b.rnic.post_srq_recv(srq, RecvRequest { id: 9, list: sges(&[]) }).unwrap();
    pair.b.rnic.destroy_srq(srq).unwrap();
}

/// A peer that begins messages and completes none once took all shared receives, present and later,
/// for as long as it was connected.
#[test]
fn a_peer_that_ends_no_message_takes_few_shared_receives() {
    for posted_before in [true, false] {
        let mut pair = Pair::new(&patient(None));
        let b = &mut pair.b;
        let srq = b.rnic.create_srq(b.pd, 64, 1).unwrap();
        b.qp = b.rnic.create_qp(QpOptions { srq: Some(srq), ..qp_options(b.pd, b.cq) }).unwrap();
        pair.start(&patient(None));
        pair.accept(&patient(None));
        pair.b.sent.clear();
        let sink = pair.b.region(vec![0; 64], 0);
        let post = |b: &mut Side| {
            for id in 0..64 {
                b.rnic
                    .post_srq_recv(srq, RecvRequest { id, list: sges(&[(sink, 0, 64)]) })
                    .unwrap();
            }
        };
        let mut peer = Peer { pair, stag: sink };
        if posted_before {
            post(peer.us());
        }
        for msn in 1..=16 {
            peer.say(untagged(Opcode::Send, msn, 0, false), b"x");
        }
        if !posted_before {
            post(peer.us());
        }
        assert_eq!(peer.hear(), []);
        assert_eq!(peer.us().rnic.shared.srq_len(srq), 48);
        peer.say(untagged(Opcode::Send, 17, 0, false), b"x");
        assert_eq!(peer.cause(), Cause::UNTAGGED_MSN);
        assert_eq!(peer.us().rnic.shared.srq_len(srq), 48);
    }
}
