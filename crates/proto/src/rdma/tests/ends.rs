//! Tests of the ends of streams: disconnects, time-outs, resets at any byte, destroyed queue pairs.

use super::*;
use crate::time::SECOND;
use crate::wire::rdmap::Cause;

#[test]
fn disconnecting_sends_what_was_posted_and_waits_for_answers() {
    for setup in setups() {
        let mut pair = Pair::connected(&setup);
        let mine = pair.a.region(pattern(4000, 1), 0);
        let theirs = Remote { stag: pair.b.region(pattern(4000, 2), 0), addr: 0 };
        let inbox = pair.b.region(vec![0; 4000], 0);
        pair.a.recv(7, &[(mine, 0, 8)]);
        pair.b.recv(8, &[(inbox, 0, 4000)]);
        pair.b.recv(9, &[]);
        pair.a.post(1, SendOp::Send, &[(mine, 0, 4000)]);
        pair.a.post(2, SendOp::Read(theirs), &[(mine, 100, 3000)]);
        pair.a.rnic.disconnect(pair.now, pair.a.qp).unwrap();
        assert_eq!(pair.a.rnic.state(pair.a.qp), Some(QpState::Closing));
        pair.a.post(3, SendOp::Send, &[]);
        pair.run();
        let ok = Status::Success;
        assert_eq!(pair.a.done(), [(1, ok), (2, ok), (3, Status::Flushed), (7, Status::Flushed)]);
        assert_eq!(pair.b.done(), [(8, ok), (9, Status::Flushed)]);
        for side in [&mut pair.a, &mut pair.b] {
            let (qp, conn) = (side.qp, side.conn.unwrap());
            assert_eq!(
                side.events,
                [Event::Disconnected { qp }, Event::Close { conn, reset: false }]
            );
            assert_eq!(side.rnic.state(qp), Some(QpState::Error));
            side.post(9, SendOp::Send, &[]);
            side.recv(10, &[]);
            assert_eq!(side.done(), [(9, Status::Flushed), (10, Status::Flushed)]);
        }
    }
}

#[test]
fn an_end_that_stalls_is_cut_short() {
    let mut pair = Pair::connected(&Setup::default());
    let mine = pair.a.region(pattern(64, 1), 0);
    pair.a.post(2, SendOp::Read(Remote { stag: Stag(1), addr: 0 }), &[(mine, 0, 8)]);
    pair.a.rnic.disconnect(pair.now, pair.a.qp).unwrap();
    pair.a.send(pair.now);
    pair.now = pair.now.after(5 * SECOND);
    pair.a.rnic.tick(pair.now);
    pair.a.hear();
    let (qp, conn) = (pair.a.qp, pair.a.conn.unwrap());
    assert_eq!(pair.a.events, [Event::Disconnected { qp }, Event::Close { conn, reset: true }]);
    assert_eq!(pair.a.done(), [(2, Status::Flushed)]);
    // The start-up's timer is outdated and expires without effect.
    pair.a.rnic.tick(pair.now.after(60 * SECOND));
    assert_eq!((pair.a.rnic.deadline(), pair.a.events.len()), (None, 2));
}

#[test]
fn the_stream_may_end_at_any_byte() {
    for end in [StreamEnd::Finished, StreamEnd::Reset] {
        for crc in [false, true] {
            let setup = Setup { crc, ..Setup::default() };
            let mut at = 0;
            loop {
                let mut pair = Pair::new(&setup);
                let theirs = pair.b.region(vec![0; 64], 0);
                pair.b.recv(1, &[(theirs, 0, 64)]);
                // All bytes of `a`: its Request, and a Send of 20 bytes.
                pair.start(&setup);
                let request = pair.a.sent.len();
                pair.accept(&setup);
                let mine = pair.a.region(pattern(64, 1), 0);
                pair.a.post(1, SendOp::Send, &[(mine, 0, 20)]);
                pair.a.send(pair.now);
                let said = pair.a.sent.clone();
                if at > said.len() {
                    break;
                }
                let mut b = Side::new(RnicOptions { crc, ..RnicOptions::default() }, 3);
                let inbox = b.region(vec![0; 64], 0);
                b.recv(1, &[(inbox, 0, 64)]);
                let conn = b.rnic.incoming(pair.now).unwrap();
                b.conn = Some(conn);
                b.take(pair.now, &said[..at.min(request)]);
                if at >= request {
                    b.rnic.accept(pair.now, conn, b.qp, &setup.accept).unwrap();
                    b.send(pair.now);
                    b.take(pair.now, &said[request..at]);
                }
                b.hear();
                b.events.clear();
                b.rnic.ended(pair.now, conn, end);
                b.hear();
                let qp = b.qp;
                let close = Event::Close { conn, reset: end == StreamEnd::Reset };
                let failed = Event::QpFailed { qp, cause: Cause::MPA_LOST, ours: true };
                let gone = Event::Disconnected { qp };
                let expected = if at < request {
                    vec![Event::Failed { conn, qp: None, why: StartupError::Ended(end) }, close]
                } else if end == StreamEnd::Finished && (at == request || at == said.len()) {
                    vec![gone, close]
                } else {
                    vec![failed, gone, close]
                };
                assert_eq!(b.events, expected, "{at} of {} {end:?}", said.len());
                let came = if crc { at == said.len() } else { at >= request + 2 + 18 + 20 };
                let done = match (at < request, came) {
                    (true, _) => vec![],
                    (_, true) => vec![(1, Status::Success)],
                    _ => vec![(1, Status::Flushed)],
                };
                assert_eq!(b.done(), done, "{at}");
                at += 1;
            }
        }
    }
}

#[test]
fn a_destroyed_queue_pair_takes_its_connection_along() {
    let mut pair = Pair::connected(&Setup::default());
    let (conn, qp) = (pair.a.conn.unwrap(), pair.a.qp);
    assert_eq!(pair.a.rnic.destroy_cq(pair.a.cq), Err(PostError::Busy));
    assert_eq!(pair.a.rnic.dealloc_pd(pair.a.pd), Err(PostError::Busy));
    pair.a.rnic.destroy_qp(qp).unwrap();
    pair.run();
    assert_eq!(pair.a.events, [Event::Close { conn, reset: false }]);
    assert_eq!(pair.b.events[0], Event::Disconnected { qp: pair.b.qp });
    assert_eq!(pair.a.rnic.destroy_qp(qp), Err(PostError::Invalid));
    pair.a.rnic.destroy_cq(pair.a.cq).unwrap();
    pair.a.rnic.dealloc_pd(pair.a.pd).unwrap();
    // Late calls have no effect.
    assert_eq!(pair.a.rnic.input(pair.now, conn, b"late", &mut pair.a.ram), 4);
    pair.a.rnic.sent(conn, 5);
    pair.a.rnic.ended(pair.now, conn, StreamEnd::Reset);
    assert_eq!(pair.a.rnic.event(), None);
}
