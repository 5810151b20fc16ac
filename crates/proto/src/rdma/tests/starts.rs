//! Tests of MPA's start-up: its frames, the rules for the first FPDU, and start-ups that fail.

use super::peer::{segments, tagged, untagged};
use super::*;
use crate::time::SECOND;
use crate::wire::mpa::{self, Enhanced, Kind, Rtr, RtrKind, Start};
use crate::wire::rdmap::{Cause, Opcode, Terminate};

fn start(kind: Kind) -> Start<'static> {
    let enhanced = Some(Enhanced { rtr: None, ird: 8, ord: 8 });
    Start {
        kind,
        markers: false,
        crc: true,
        reject: false,
        revision: 2,
        enhanced,
        private_data: &[],
    }
}

fn bytes(start: &Start<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    start.emit(&mut out).unwrap();
    out
}

#[test]
fn private_data_and_depths_reach_both_programs() {
    for cut in [Cut::Whole, Cut::Each(1)] {
        let mut setup = Setup { cut, ..Setup::default() };
        setup.connect = ConnectOptions {
            ird: 5,
            ord: 9,
            private_data: b"who".to_vec(),
            ..ConnectOptions::default()
        };
        setup.accept = AcceptOptions {
            ird: 4,
            ord: 7,
            private_data: vec![7; 508],
            ..AcceptOptions::default()
        };
        let mut pair = Pair::new(&setup);
        pair.start(&setup);
        let conn = pair.b.conn.unwrap();
        let (private_data, ird, ord) = (b"who".to_vec(), Some(5), Some(9));
        assert_eq!(pair.b.events, [Event::ConnectRequest { conn, private_data, ird, ord }]);
        assert_eq!(pair.a.rnic.state(pair.a.qp), Some(QpState::Starting));
        pair.accept(&setup);
        let (qp, private_data) = (pair.b.qp, Vec::new());
        assert_eq!(pair.b.events[1], Event::Established { conn, qp, private_data, ird: 4, ord: 5 });
        let (qp, conn) = (pair.a.qp, pair.a.conn.unwrap());
        let established =
            Event::Established { conn, qp, private_data: vec![7; 508], ird: 5, ord: 4 };
        assert_eq!(pair.a.events, [established]);
        assert_eq!(pair.a.rnic.state(qp), Some(QpState::Ready));
    }
}

#[test]
fn m7_a_rejected_queue_pair_is_idle_again_and_can_ask_once_more() {
    let setup = Setup::default();
    let mut pair = Pair::new(&setup);
    let sink = pair.a.region(vec![0; 8], 0);
    pair.a.recv(5, &[(sink, 0, 8)]);
    pair.start(&setup);
    pair.a.post(1, SendOp::Send, &[]);
    let conn = pair.b.conn.unwrap();
    pair.b.rnic.reject(pair.now, conn, b"no").unwrap();
    pair.run();
    let (qp, ours) = (pair.a.qp, pair.a.conn.unwrap());
    let rejected = Event::Rejected {
        conn: ours,
        qp,
        private_data: b"no".to_vec(),
        ird: Some(0),
        ord: Some(0),
    };
    assert_eq!(pair.a.events, [rejected, Event::Close { conn: ours, reset: false }]);
    assert_eq!(pair.b.events[1..], [Event::Close { conn, reset: false }]);
    assert_eq!(pair.a.rnic.state(qp), Some(QpState::Idle));
    assert_eq!(pair.a.done(), [(1, Status::Flushed)], "receives stay");
    for side in [&mut pair.a, &mut pair.b] {
        (side.closed, side.told) = (None, false);
        side.events.clear();
    }
    pair.start(&setup);
    pair.accept(&setup);
    pair.b.post(1, SendOp::Send, &[]);
    pair.a.post(2, SendOp::Write(Remote::default()), &[]);
    pair.run();
    assert_eq!(pair.a.done(), [(2, Status::Success), (5, Status::Success)]);
}

#[test]
fn m3_a_responder_sends_nothing_before_the_first_fpdu() {
    for markers in [false, true] {
        let mut pair = Pair::connected(&Setup { markers, ..Setup::default() });
        let inbox = pair.a.region(vec![0; 8], 0);
        pair.a.recv(1, &[(inbox, 0, 8)]);
        pair.b.sent.clear();
        pair.b.post(1, SendOp::Send, &[]);
        pair.run();
        assert!(pair.b.sent.is_empty());
        pair.a.post(1, SendOp::Write(Remote::default()), &[]);
        pair.run();
        assert!(!pair.b.sent.is_empty());
        assert_eq!(pair.b.done(), [(1, Status::Success)]);
    }
}

#[test]
fn an_initiator_may_open_for_a_peer_that_sends_first() {
    for first_fpdu_delay_ns in [0, 500] {
        let mut setup = Setup::default();
        (setup.connect.open_with_write, setup.connect.first_fpdu_delay_ns) =
            (true, first_fpdu_delay_ns);
        let mut pair = Pair::connected(&setup);
        let inbox = pair.a.region(vec![0; 8], 0);
        pair.a.recv(1, &[(inbox, 0, 8)]);
        pair.b.post(2, SendOp::Send, &[]);
        pair.wait(first_fpdu_delay_ns);
        assert_eq!(pair.b.done(), [(2, Status::Success)]);
        assert_eq!(pair.a.done(), [(1, Status::Success)], "and nothing of the Write");
        assert_eq!(
            segments(&pair.a.sent[pair.a.sent.len() - 20..], true).len(),
            1,
            "the Write alone"
        );
        pair.a.post(3, SendOp::Send, &[]);
        pair.b.recv(4, &[]);
        pair.run();
        assert_eq!(
            (pair.a.done(), pair.b.done()),
            (vec![(3, Status::Success)], vec![(4, Status::Success)])
        );
    }
}

#[test]
fn a_responder_may_wait_a_limited_time_for_the_first_fpdu() {
    let mut setup = Setup::default();
    setup.accept.first_fpdu_timeout_ns = Some(SECOND);
    let mut pair = Pair::connected(&setup);
    let inbox = pair.a.region(vec![0; 8], 0);
    pair.a.recv(1, &[(inbox, 0, 8)]);
    pair.b.post(2, SendOp::Send, &[]);
    pair.wait(SECOND - 1);
    assert_eq!(pair.b.done(), []);
    pair.wait(1);
    assert_eq!(
        (pair.a.done(), pair.b.done()),
        (vec![(1, Status::Success)], vec![(2, Status::Success)])
    );
}

#[test]
fn m3_a_first_fpdu_that_is_not_right_is_answered_by_closing() {
    let mut pair = Pair::connected(&Setup::default());
    pair.b.sent.clear();
    pair.a.post(1, SendOp::Write(Remote::default()), &[]);
    pair.a.send(pair.now);
    pair.a.wire[17] ^= 1;
    pair.run();
    assert!(pair.b.sent.is_empty());
    assert_eq!(pair.b.closed, Some(true));
    let qp = pair.b.qp;
    assert_eq!(pair.b.events[0], Event::QpFailed { qp, cause: Cause::MPA_CRC, ours: true });
}

#[test]
fn f6_f7_a_crc_error_is_answered_by_a_terminate() {
    let mut pair = Pair::connected(&Setup::default());
    let mine = pair.a.region(pattern(64, 1), 0);
    let theirs = Remote { stag: pair.b.region(vec![0; 64], 0), addr: 0 };
    pair.a.post(1, SendOp::Write(theirs), &[(mine, 0, 8)]);
    pair.run();
    pair.b.sent.clear();
    pair.a.post(2, SendOp::Write(Remote { addr: 8, ..theirs }), &[(mine, 8, 8)]);
    pair.a.send(pair.now);
    pair.a.wire[20] ^= 1;
    pair.a.post(3, SendOp::Write(Remote { addr: 16, ..theirs }), &[(mine, 16, 8)]);
    pair.run();
    assert_eq!(pair.b.ram.0[0][..8], pattern(64, 1)[..8]);
    assert!(pair.b.ram.0[0][8..].iter().all(|&byte| byte == 0));
    let said = segments(&pair.b.sent, true);
    let terminate = Terminate::parse(&said[0].1).unwrap();
    assert_eq!((said.len(), terminate.cause, terminate.about), (1, Cause::MPA_CRC, None));
    let qp = pair.a.qp;
    assert!(pair.a.events.contains(&Event::QpFailed { qp, cause: Cause::MPA_CRC, ours: false }));
}

#[test]
fn e4_the_initiators_first_fpdu_is_of_the_form_agreed_upon() {
    for kind in [RtrKind::Write, RtrKind::Read, RtrKind::Send] {
        let mut setup = Setup::default();
        setup.connect.peer_to_peer = Some(kind);
        // The programs use no Reads, and still the first frame may be one.
        (setup.connect.ord, setup.accept.ird) = (0, 0);
        let mut pair = Pair::new(&setup);
        let inbox = pair.a.region(vec![0; 64], 0);
        pair.a.recv(1, &[(inbox, 0, 8)]);
        pair.start(&setup);
        let start = pair.a.sent.len();
        pair.a.post(8, SendOp::Send, &[]);
        pair.b.recv(2, &[]);
        // The responder's program sends first.
        let conn = pair.b.conn.unwrap();
        pair.b.rnic.accept(pair.now, conn, pair.b.qp, &setup.accept).unwrap();
        pair.b.post(9, SendOp::Send, &[]);
        let told = |side: &Side| side.events.iter().any(|e| matches!(e, Event::Established { .. }));
        pair.b.send(pair.now);
        pair.b.hear();
        assert!(!told(&pair.b), "not before the first frame came");
        pair.run();
        assert!(told(&pair.a) && told(&pair.b));
        let said = segments(&pair.a.sent[start..], true);
        let opcode = match kind {
            RtrKind::Send => Opcode::Send,
            RtrKind::Write => Opcode::Write,
            RtrKind::Read => Opcode::ReadRequest,
        };
        assert_eq!((said.len(), said[0].0.control), (2, opcode.control()));
        match kind {
            RtrKind::Send => assert_eq!(said[0].0, untagged(opcode, 1, 0, true)),
            RtrKind::Write => assert_eq!(said[0].0, tagged(opcode, Stag(1), 0, true)),
            RtrKind::Read => assert_eq!(said[0].0, untagged(opcode, 1, 0, true)),
        }
        assert_eq!(pair.a.done(), [(8, Status::Success), (1, Status::Success)], "{kind:?}");
        let mut done = pair.b.done();
        done.sort_by_key(|(id, _)| *id);
        assert_eq!(
            done,
            [(2, Status::Success), (9, Status::Success)],
            "the program does not see the first frame"
        );
        // A disconnect directly after the first frame is orderly too.
        pair.a.rnic.disconnect(pair.now, pair.a.qp).unwrap();
        pair.run();
        assert_eq!((pair.a.closed, pair.b.closed), (Some(false), Some(false)));
    }
}

#[test]
fn e4_an_immediate_disconnect_sends_the_first_frame_before() {
    let mut setup = Setup::default();
    setup.connect.peer_to_peer = Some(RtrKind::Write);
    let mut pair = Pair::new(&setup);
    pair.start(&setup);
    pair.b.rnic.accept(pair.now, pair.b.conn.unwrap(), pair.b.qp, &setup.accept).unwrap();
    pair.b.send(pair.now);
    let reply: Vec<u8> = pair.b.wire.drain(..).collect();
    pair.a.sent.clear();
    pair.a.take(pair.now, &reply);
    pair.a.rnic.disconnect(pair.now, pair.a.qp).unwrap();
    pair.a.hear();
    assert_eq!(pair.a.closed, None);
    pair.run();
    assert_eq!(segments(&pair.a.sent, true).len(), 1);
    assert_eq!((pair.a.closed, pair.b.closed), (Some(false), Some(false)));
}

/// Connects side `a` with `options` and answers it with the hand-made Reply `reply`.
fn answered(options: ConnectOptions, reply: &[u8]) -> Pair {
    let setup = Setup { connect: options, ..Setup::default() };
    let mut pair = Pair::new(&setup);
    pair.start(&setup);
    pair.a.sent.clear();
    pair.a.take(pair.now, reply);
    pair.a.send(pair.now);
    pair.a.hear();
    pair
}

#[test]
fn e5_e6_replies_that_cannot_be_met_are_answered_by_a_terminate() {
    let block =
        |rtr, ird, ord| Start { enhanced: Some(Enhanced { rtr, ird, ord }), ..start(Kind::Reply) };
    let p2p = ConnectOptions {
        ird: 4,
        ord: 4,
        peer_to_peer: Some(RtrKind::Write),
        ..ConnectOptions::default()
    };
    let plain = ConnectOptions { ird: 4, ord: 4, ..ConnectOptions::default() };
    let read = Some(Rtr::only(RtrKind::Read));
    for (options, reply, cause) in
        [(p2p, block(read, 4, 4), Cause::MPA_RTR), (plain, block(None, 4, 5), Cause::MPA_DEPTH)]
    {
        let pair = answered(options, &bytes(&reply));
        let said = segments(&pair.a.sent, true);
        let terminate = Terminate::parse(&said[0].1).unwrap();
        assert_eq!((said.len(), terminate.cause, terminate.about), (1, cause, None));
        let (conn, qp) = (pair.a.conn.unwrap(), pair.a.qp);
        assert!(matches!(
            pair.a.events[0],
            Event::Failed { qp: Some(q), why: StartupError::Negotiation(_), .. } if q == qp
        ));
        assert_eq!(pair.a.events[1..], [Event::Close { conn, reset: false }]);
        assert_eq!(pair.a.rnic.state(qp), Some(QpState::Idle));
    }
}

#[test]
fn m1_m5_replies_that_are_none_close_the_stream() {
    let request = bytes(&start(Kind::Request));
    let plain = bytes(&Start { enhanced: None, revision: 1, ..start(Kind::Reply) });
    let mut key = bytes(&start(Kind::Reply));
    key[3] ^= 0x20;
    let mut revision = bytes(&start(Kind::Reply));
    revision[17] = 3;
    for reply in [request, plain, key, revision] {
        let pair = answered(ConnectOptions::default(), &reply);
        assert!(pair.a.sent.is_empty());
        assert!(
            matches!(pair.a.events[0], Event::Failed { why: StartupError::Negotiation(_), .. }),
            "{:?}",
            pair.a.events
        );
        assert_eq!(pair.a.closed, Some(true));
        assert_eq!(pair.a.rnic.state(pair.a.qp), Some(QpState::Idle));
    }
}

#[test]
fn a_start_that_stalls_is_given_up_by_both() {
    // The responder waits for a whole Request.
    let mut pair = Pair::new(&Setup::default());
    pair.b.conn = Some(pair.b.rnic.incoming(pair.now).unwrap());
    pair.b.take(pair.now, &bytes(&start(Kind::Request))[..19]);
    pair.wait(4 * SECOND);
    assert!(pair.b.events.is_empty());
    assert_eq!(pair.b.rnic.deadline(), Some(Instant::from_ns(1000 + 5 * SECOND)));
    pair.wait(SECOND);
    let conn = pair.b.conn.unwrap();
    let failed = Event::Failed { conn, qp: None, why: StartupError::Timeout };
    assert_eq!(pair.b.events, [failed, Event::Close { conn, reset: true }]);
    assert_eq!(pair.b.rnic.deadline(), None);
    // The initiator waits for the Reply, since the responder's program may take its time.
    let setup = Setup::default();
    let mut pair = Pair::new(&setup);
    pair.start(&setup);
    pair.wait(59 * SECOND);
    assert!(pair.a.events.is_empty(), "a program may take its time to answer");
    pair.wait(SECOND);
    let (conn, qp) = (pair.a.conn.unwrap(), pair.a.qp);
    let failed = Event::Failed { conn, qp: Some(qp), why: StartupError::Timeout };
    assert_eq!(pair.a.events, [failed, Event::Close { conn, reset: true }]);
    assert_eq!(pair.b.events.len(), 3, "the responder hears of the end");
    assert_eq!(
        pair.b.rnic.accept(pair.now, pair.b.conn.unwrap(), pair.b.qp, &setup.accept),
        Err(PostError::Invalid)
    );
    // The first frame does not arrive.
    let mut setup = Setup::default();
    setup.connect.peer_to_peer = Some(RtrKind::Write);
    let mut pair = Pair::new(&setup);
    pair.start(&setup);
    pair.b.rnic.accept(pair.now, pair.b.conn.unwrap(), pair.b.qp, &setup.accept).unwrap();
    pair.b.send(pair.now);
    pair.b.wire.clear();
    pair.now = pair.now.after(6 * SECOND);
    pair.b.rnic.tick(pair.now);
    pair.b.hear();
    let (conn, qp) = (pair.b.conn.unwrap(), pair.b.qp);
    assert_eq!(pair.b.events[1], Event::Failed { conn, qp: Some(qp), why: StartupError::Timeout });
    assert_eq!(pair.b.rnic.state(qp), Some(QpState::Idle));
}

#[test]
fn a_delayed_first_fpdu_leaves_in_time() {
    let mut setup = Setup::default();
    setup.connect.first_fpdu_delay_ns = SECOND;
    let mut pair = Pair::connected(&setup);
    pair.a.post(1, SendOp::Write(Remote::default()), &[]);
    pair.run();
    assert_eq!(pair.a.done(), []);
    assert_eq!(pair.a.rnic.deadline(), Some(pair.now.after(SECOND)));
    pair.wait(SECOND);
    assert_eq!(pair.a.done(), [(1, Status::Success)]);
}

/// A first FPDU that is delayed leaves in time even after a disconnect, whose deadline replaces the
/// one of the delay.
#[test]
fn a_delayed_first_fpdu_leaves_in_time_after_a_disconnect() {
    let mut setup = Setup::default();
    setup.connect.first_fpdu_delay_ns = SECOND;
    let mut pair = Pair::connected(&setup);
    pair.a.post(1, SendOp::Write(Remote::default()), &[]);
    pair.a.rnic.disconnect(pair.now, pair.a.qp).unwrap();
    pair.run();
    assert_eq!(pair.a.done(), []);
    pair.wait(SECOND);
    assert_eq!(pair.a.done(), [(1, Status::Success)]);
    assert_eq!(pair.a.closed, Some(false));
}

#[test]
fn the_longest_start_up_frames_pass() {
    let frame =
        Start { private_data: &[1; 512], enhanced: None, revision: 1, ..start(Kind::Request) };
    let mut side = Side::new(RnicOptions::default(), 1);
    side.conn = Some(side.rnic.incoming(Instant::ZERO).unwrap());
    side.take(Instant::ZERO, &bytes(&frame));
    side.hear();
    assert!(matches!(
        &side.events[0],
        Event::ConnectRequest { private_data, .. } if private_data.len() == 512
    ));
    assert_eq!(mpa::PRIVATE_MAX, 512);
}
