//! Tests of Writes that complete when the peer has placed them.

use super::peer::{Peer, segments, tagged};
use super::*;
use crate::rdma::iwarp::acks::UNSURE_NS;
use crate::rdma::qp::deferred::DEFER_NS;
use crate::time::US;
use crate::wire::rdmap::{Cause, Opcode};
use crate::wire::write_ack::WriteAck;

fn ours() -> Setup {
    Setup { acknowledge: true, ..Setup::default() }
}

fn write_to(stag: Stag, addr: u64) -> SendOp {
    SendOp::Write(Remote { stag, addr })
}

/// The acknowledgements of Writes in `bytes`.
fn said(bytes: &[u8]) -> Vec<WriteAck> {
    segments(bytes, true)
        .iter()
        .filter(|(_, payload)| payload.is_empty())
        .filter_map(|(header, _)| WriteAck::parse(header))
        .collect()
}

fn count(count: u64) -> WriteAck {
    WriteAck { count, ..WriteAck::default() }
}

#[test]
fn r14_a_write_completes_when_it_is_placed() {
    for setup in setups() {
        let mut pair = Pair::connected(&Setup { acknowledge: true, ..setup.clone() });
        let (own, theirs) = (pair.a.region(pattern(9000, 1), 0), pair.b.region(vec![0; 9000], 0));
        for (id, len) in [(1, 9000), (2, 0), (3, 10)] {
            pair.a.post(id, write_to(theirs, 0), &[(own, 0, len)]);
        }
        // Everything is sent, and nothing has come back.
        while pair.a.send(pair.now) {}
        assert_eq!(pair.a.done(), [], "{setup:?}");
        pair.run();
        assert_eq!(pair.a.done(), [1, 2, 3].map(|id| (id, Status::Success)), "{setup:?}");
        assert_eq!(pair.b.ram.0[0][..9000], pattern(9000, 1));
        // The other direction works too.
        pair.b.post(4, write_to(own, 0), &[(theirs, 5, 100)]);
        while pair.b.send(pair.now) {}
        assert_eq!(pair.b.done(), []);
        pair.run();
        assert_eq!(pair.b.done(), [(4, Status::Success)]);
        assert!(pair.a.events.is_empty() && pair.b.events.is_empty());
    }
}

#[test]
fn a_write_right_behind_the_reply_waits_too() {
    let mut pair = Pair::new(&ours());
    let (own, theirs) = (pair.a.region(pattern(64, 1), 0), pair.b.region(vec![0; 64], 0));
    pair.start(&ours());
    pair.a.post(1, write_to(theirs, 0), &[(own, 0, 64)]);
    pair.b.rnic.accept(pair.now, pair.b.conn.unwrap(), pair.b.qp, &ours().accept).unwrap();
    pair.b.send(pair.now);
    let mut cut = Cut::Whole;
    pair.a.draw(pair.now, &mut pair.b.wire, &mut cut);
    while pair.a.send(pair.now) {}
    assert_eq!(pair.a.done(), []);
    pair.run();
    assert_eq!(pair.a.done(), [(1, Status::Success)]);
}

#[test]
fn a_refused_write_fails_and_those_before_it_do_not() {
    let mut pair = Pair::connected(&ours());
    let (own, theirs) = (pair.a.region(pattern(64, 1), 0), pair.b.region(vec![0; 64], 0));
    pair.a.post(1, write_to(theirs, 0), &[(own, 0, 8)]);
    pair.a.post(2, write_to(theirs, 60), &[(own, 0, 8)]);
    pair.a.post(3, SendOp::Send, &[]);
    pair.run();
    let (good, bad) = (Status::Success, Status::RemoteAccess);
    assert_eq!(pair.a.done(), [(1, good), (2, bad), (3, Status::Flushed)]);
    let failed = Event::QpFailed { qp: pair.a.qp, cause: Cause::TAGGED_BOUNDS, ours: false };
    assert!(pair.a.events.contains(&failed));
    // Of several segments of one Write the last is refused.
    let mut pair = Pair::connected(&ours());
    let (own, theirs) = (pair.a.region(pattern(9000, 1), 0), pair.b.region(vec![0; 8999], 0));
    pair.a.post(1, write_to(theirs, 0), &[(own, 0, 9000)]);
    pair.a.post(2, write_to(theirs, 0), &[(own, 0, 1)]);
    pair.run();
    assert_eq!(pair.a.done(), [(1, bad), (2, Status::Flushed)]);
}

/// Unsignaled Writes cause no request for an acknowledgement. A signaled work request after them
/// waits for them.
#[test]
fn unsignaled_writes_request_no_acknowledgement() {
    let mut pair = Pair::connected(&ours());
    let qp =
        pair.a.rnic.create_qp(QpOptions { signal_all: false, ..qp_options(pair.a.pd, pair.a.cq) });
    pair.a.rnic.destroy_qp(qp.unwrap()).unwrap();
    pair.a.rnic.qps.get_mut(pair.a.qp.0).unwrap().options.signal_all = false;
    let (own, theirs) = (pair.a.region(pattern(64, 1), 0), pair.b.region(vec![0; 64], 0));
    (pair.a.sent, pair.b.sent) = (Vec::new(), Vec::new());
    for id in 0..100 {
        pair.a.post(id, write_to(theirs, 0), &[(own, 0, 8)]);
        pair.run();
    }
    assert!(said(&pair.a.sent).is_empty() && pair.b.sent.is_empty());
    assert_eq!(pair.a.rnic.qps.get(pair.a.qp.0).unwrap().send.len(), 0);
    pair.b.recv(1, &[]);
    let signaled = SendFlags { signaled: true, ..SendFlags::default() };
    pair.a.post_with(100, SendOp::Send, &[], signaled).unwrap();
    while pair.a.send(pair.now) {}
    assert_eq!(pair.a.done(), []);
    pair.run();
    assert_eq!(said(&pair.a.sent), [WriteAck { ack_request: true, ..WriteAck::default() }]);
    assert_eq!(said(&pair.b.sent), [WriteAck { hello: true, ..count(100) }]);
    assert_eq!(pair.a.done(), [(100, Status::Success)]);
    // A Send without an unacknowledged Write before it waits for nothing.
    pair.b.recv(1, &[]);
    pair.a.post_with(101, SendOp::Send, &[], signaled).unwrap();
    while pair.a.send(pair.now) {}
    assert_eq!(pair.a.done(), [(101, Status::Success)]);
}

/// Writes to a peer that does not acknowledge complete by the RFCs' rule, once it has sent another
/// segment first, or nothing for long.
#[test]
fn a_plain_peer_gets_no_requests() {
    for speaks in [true, false] {
        let mut pair = Pair::new(&ours());
        let foreign = RnicOptions { acknowledge_writes: false, ..RnicOptions::default() };
        pair.b = Side::new(foreign, 2);
        pair.start(&ours());
        pair.accept(&ours());
        let (own, theirs) = (pair.a.region(pattern(64, 1), 0), pair.b.region(vec![0; 64], 0));
        pair.a.post(1, write_to(theirs, 0), &[(own, 0, 64)]);
        pair.run();
        assert_eq!(pair.a.done(), [], "it may be one of ours, and was asked");
        if speaks {
            pair.b.post(9, write_to(own, 0), &[(theirs, 0, 1)]);
            pair.run();
        } else {
            pair.wait(UNSURE_NS - 1);
            assert_eq!(pair.a.done(), []);
            pair.wait(1);
        }
        assert_eq!(pair.a.done(), [(1, Status::Success)]);
        pair.a.sent.clear();
        pair.a.post(2, write_to(theirs, 0), &[(own, 0, 64)]);
        while pair.a.send(pair.now) {}
        assert_eq!(pair.a.done(), [(2, Status::Success)]);
        pair.run();
        assert_eq!(said(&pair.a.sent), [], "no question");
        // The other direction: a peer whose first segment is no hello does not acknowledge.
        pair.b.post(3, write_to(own, 0), &[(theirs, 0, 8)]);
        pair.run();
        assert!(pair.b.done().contains(&(3, Status::Success)));
    }
}

#[test]
fn counts_that_lie_end_the_stream_and_others_change_nothing() {
    let mut peer = Peer::with(&ours());
    let stag = peer.stag;
    peer.us().post(1, write_to(Stag(5), 0), &[(stag, 0x1000, 8)]);
    peer.us().post(2, write_to(Stag(5), 0), &[(stag, 0x1000, 8)]);
    let heard = peer.hear();
    let said: Vec<_> = heard.iter().map(|(header, _)| WriteAck::parse(header)).collect();
    let hello = WriteAck { hello: true, ack_request: false, count: 1 };
    let asked = WriteAck { hello: false, ack_request: true, count: 1 };
    assert_eq!(said, [Some(hello), None, None, Some(asked)], "of the peer's, one");
    peer.say(count(1).header(), &[]);
    peer.say(count(1).header(), &[]);
    peer.say(count(0).header(), &[]);
    peer.say(WriteAck { hello: true, ..WriteAck::default() }.header(), &[]);
    assert_eq!(peer.us().done(), [(1, Status::Success)]);
    peer.say(count(3).header(), &[]);
    assert_eq!(peer.cause(), Cause::OPERATION);
    assert_eq!(peer.us().done(), [(2, Status::Flushed)]);
    // An acknowledgement of Writes that the stream has not taken is an error.
    let mut peer = Peer::with(&ours());
    let (stag, conn, now) = (peer.stag, peer.us().conn.unwrap(), peer.pair.now);
    peer.us().post(1, write_to(Stag(5), 0), &[(stag, 0x1000, 8)]);
    let mut record = Record::default();
    let us = &mut peer.pair.b;
    while us.rnic.output(now, conn, &mut record, &mut us.ram) {}
    peer.say(count(1).header(), &[]);
    assert_eq!(peer.us().done(), []);
}

#[test]
fn an_acknowledgement_passes_messages_without_a_receive() {
    let accept = AcceptOptions { rnr_timeout_ns: None, ..Setup::default().accept };
    let mut pair = Pair::connected(&Setup { accept, ..ours() });
    let (own, theirs) = (pair.a.region(pattern(64, 1), 0), pair.b.region(vec![0; 64], 0));
    pair.a.post(1, SendOp::Send, &[(own, 0, 8)]);
    pair.a.post(2, write_to(theirs, 0), &[(own, 0, 8)]);
    pair.run();
    assert_eq!(pair.a.done(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.b.done(), []);
}

/// An acknowledgement of Writes goes with the program's answer if that is a Write, once the engine
/// has seen an earlier answer that an acknowledgement could have gone with.
#[test]
fn an_acknowledgement_goes_with_an_answer() {
    let mut pair = Pair::connected(&ours());
    let (own, theirs) = (pair.a.region(vec![0; 64], 0), pair.b.region(vec![0; 64], 0));
    let round = |pair: &mut Pair, id: u64, answers: bool| {
        pair.b.sent.clear();
        pair.wait(US);
        pair.a.post(id, write_to(theirs, 0), &[(own, 0, 8)]);
        pair.run();
        let early = pair.a.done().len();
        if answers {
            pair.b.post(id, write_to(own, 8), &[(theirs, 8, 8)]);
            pair.run();
        } else {
            pair.wait(DEFER_NS - 1);
            assert_eq!(pair.a.done().len(), 0);
            pair.wait(1);
        }
        let said = said(&pair.b.sent).len();
        assert_eq!(early + pair.a.done().len(), 1);
        pair.b.done();
        (early, said)
    };
    assert_eq!(round(&mut pair, 1, true), (1, 2), "by itself, and a question");
    for id in 2..10 {
        assert_eq!(round(&mut pair, id, true), (0, 1), "both in one, behind the answer");
    }
    // After one miss it goes alone again.
    assert_eq!(round(&mut pair, 10, false), (0, 1));
    assert_eq!(round(&mut pair, 11, true).0, 1);
    assert_eq!(round(&mut pair, 12, true), (0, 1));
    pair.wait(DEFER_NS);
    assert!(pair.a.rnic.shared.ack_timers.is_empty() && pair.b.rnic.shared.ack_timers.is_empty());
}

/// The engine requests acknowledgements of many Writes while more follow, and one acknowledgement
/// covers all that have arrived.
#[test]
fn completions_come_while_more_is_sent() {
    let mut pair = Pair::connected(&ours());
    let (own, theirs) = (pair.a.region(vec![0; 64], 0), pair.b.region(vec![0; 64], 0));
    (pair.a.sent, pair.b.sent) = (Vec::new(), Vec::new());
    for id in 0..64 {
        pair.a.post(id, write_to(theirs, 0), &[(own, 0, 8)]);
    }
    pair.run();
    assert_eq!(pair.a.done().len(), 64);
    assert_eq!(said(&pair.a.sent).len(), 2, "behind each half");
    assert_eq!(pair.a.pushed, 2, "each at once");
    assert_eq!(said(&pair.b.sent), [WriteAck { hello: true, ..count(64) }]);
}

/// A pending acknowledgement of Writes leaves before the stream's end, even if the program destroys
/// the queue pair as soon as it sees the bytes.
#[test]
fn a_pending_acknowledgement_leaves_before_the_end() {
    for how in 0..3 {
        let mut pair = Pair::connected(&ours());
        let (own, theirs) = (pair.a.region(vec![0; 64], 0), pair.b.region(vec![0; 64], 0));
        pair.a.post(1, write_to(theirs, 0), &[(own, 0, 8)]);
        while pair.a.send(pair.now) {}
        pair.b.draw(pair.now, &mut pair.a.wire, &mut Cut::Whole);
        match how {
            0 => pair.b.rnic.destroy_qp(pair.b.qp).unwrap(),
            1 => pair.b.rnic.fail_qp(pair.now, pair.b.qp).unwrap(),
            _ => pair.b.rnic.disconnect(pair.now, pair.b.qp).unwrap(),
        }
        pair.run();
        assert_eq!(pair.a.done(), [(1, Status::Success)], "{how}");
        assert_eq!((pair.a.closed, pair.b.closed), (Some(false), Some(false)));
    }
}

/// An empty Write of a program is no acknowledgement, whatever tag it names.
#[test]
fn a_programs_empty_write_is_no_acknowledgement() {
    let mut pair = Pair::connected(&ours());
    pair.a.sent.clear();
    let stag = Stag(crate::wire::write_ack::STAG);
    pair.a.post(1, write_to(stag, 77), &[]);
    pair.run();
    assert_eq!(pair.a.done(), [(1, Status::Success)]);
    let all = segments(&pair.a.sent, true);
    assert_eq!(all[0].0, tagged(Opcode::Write, Stag(1), 77, true));
    assert_eq!(said(&pair.a.sent), [WriteAck { ack_request: true, ..WriteAck::default() }]);
}
