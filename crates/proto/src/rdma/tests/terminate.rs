//! Tests of Terminates, revocations, and unmapped memory.

use super::peer::{segments, untagged};
use super::*;
use crate::wire::rdmap::{Cause, Opcode, ReadRequest};

#[test]
fn t1_t2_both_programs_get_the_error_and_nothing_follows_the_terminate() {
    let mut pair = Pair::connected(&Setup::default());
    let mine = pair.a.region(vec![0; 64], 0);
    let theirs = pair.b.region(vec![0; 64], 0);
    pair.b.recv(1, &[(theirs, 0, 8)]);
    pair.a.recv(1, &[(mine, 0, 8)]);
    pair.b.sent.clear();
    pair.a.post(1, SendOp::Write(Remote { stag: theirs, addr: 60 }), &[(mine, 0, 8)]);
    pair.a.send(pair.now);
    pair.b.post(9, SendOp::Send, &[(theirs, 0, 8)]);
    pair.run();
    let cause = Cause::TAGGED_BOUNDS;
    let (a, b) = (pair.a.qp, pair.b.qp);
    assert_eq!(
        pair.b.events,
        [
            Event::QpFailed { qp: b, cause, ours: true },
            Event::Disconnected { qp: b },
            Event::Close { conn: pair.b.conn.unwrap(), reset: false }
        ]
    );
    assert_eq!(
        pair.a.events,
        [
            Event::QpFailed { qp: a, cause, ours: false },
            Event::Disconnected { qp: a },
            Event::Close { conn: pair.a.conn.unwrap(), reset: false }
        ]
    );
    let said = segments(&pair.b.sent, true);
    assert_eq!(said.last().unwrap().0, untagged(Opcode::Terminate, 1, 0, true));
    assert_eq!(said.iter().filter(|(h, _)| h.control == Opcode::Terminate.control()).count(), 1);
    assert_eq!(pair.a.done().last(), Some(&(1, Status::Flushed)), "the receive");
}

#[test]
fn t4_a_terminate_names_the_rest_of_a_partly_answered_read() {
    let mut pair = Pair::connected(&Setup { emss: 512, ..Setup::default() });
    let mine = pair.a.region(vec![0; 4096], 0);
    let theirs = pair.b.region(pattern(4096, 1), 0x1000);
    pair.a.post(1, SendOp::Read(Remote { stag: theirs, addr: 0x1000 }), &[(mine, 7, 4000)]);
    pair.a.post(2, SendOp::Write(Remote::default()), &[]);
    pair.a.send(pair.now);
    let bytes: Vec<u8> = pair.a.wire.drain(..).collect();
    pair.b.take(pair.now, &bytes);
    // One segment leaves, then the region ends.
    let conn = pair.b.rnic.ready().unwrap();
    let mut record = Record::default();
    assert!(pair.b.rnic.output(pair.now, conn, &mut record, &mut pair.b.ram));
    pair.b.rnic.deregister(theirs).unwrap();
    while pair.b.rnic.output(pair.now, conn, &mut record, &mut pair.b.ram) {}
    let said = segments(&record.bytes, true);
    let terminate = crate::wire::rdmap::Terminate::parse(&said[1].1).unwrap();
    assert_eq!(terminate.cause, Cause::INVALID_STAG);
    let first = said[0].1.len() as u64;
    let left = ReadRequest {
        sink_stag: mine.0,
        sink_to: 7 + first,
        size: 4000 - first as u32,
        source_stag: theirs.0,
        source_to: 0x1000 + first,
    };
    assert_eq!(terminate.about.unwrap().read, Some(left));
    pair.a.take(pair.now, &record.bytes);
    let done = pair.a.done();
    assert_eq!(
        done,
        [(1, Status::RemoteAccess), (2, Status::Flushed)],
        "the Read that is to blame is named"
    );
}

/// Of several Reads the engine finds the one that the peer refused, even if their sinks are equal
/// or adjacent.
#[test]
fn of_several_reads_the_refused_one_fails() {
    for sink in [100, 200] {
        let mut pair = Pair::connected(&Setup::default());
        let mine = pair.a.region(vec![0; 400], 0);
        let theirs = Remote { stag: pair.b.region(pattern(100, 1), 0), addr: 0 };
        pair.a.post(1, SendOp::Read(theirs), &[(mine, 100, 100)]);
        pair.a.post(2, SendOp::Read(Remote { addr: 1, ..theirs }), &[(mine, sink, 100)]);
        pair.run();
        assert_eq!(pair.a.done(), [(1, Status::Flushed), (2, Status::RemoteAccess)], "{sink}");
    }
}

#[test]
fn s2_nothing_is_placed_behind_a_revocation() {
    // Without CRC payload is placed as it arrives, and refused after the region's end.
    let setup = Setup { crc: false, ..Setup::default() };
    for into in ["Write", "Send", "Read"] {
        let mut pair = Pair::connected(&setup);
        let mine = pair.a.region(pattern(1000, 1), 0);
        let theirs = pair.b.region(vec![0xee; 1000], 0);
        match into {
            "Write" => {
                pair.a.post(1, SendOp::Write(Remote { stag: theirs, addr: 0 }), &[(mine, 0, 1000)])
            }
            "Send" => {
                pair.b.recv(5, &[(theirs, 0, 1000)]);
                pair.a.post(1, SendOp::Send, &[(mine, 0, 1000)]);
            }
            _ => {
                pair.a.post(1, SendOp::Write(Remote::default()), &[]);
                pair.run();
                assert_eq!(pair.a.done().len(), 1);
                pair.b.post(2, SendOp::Read(Remote { stag: mine, addr: 0 }), &[(theirs, 0, 1000)]);
                pair.b.send(pair.now);
                let bytes: Vec<u8> = pair.b.wire.drain(..).collect();
                pair.a.take(pair.now, &bytes);
            }
        }
        pair.a.send(pair.now);
        let bytes: Vec<u8> = pair.a.wire.drain(..).collect();
        pair.b.take(pair.now, &bytes[..500]);
        let placed = pair.b.ram.0[0].iter().filter(|&&byte| byte != 0xee).count();
        assert!(placed > 400, "{into}");
        let before = pair.b.ram.0[0].clone();
        assert!(pair.b.rnic.direct_span(pair.b.conn.unwrap()).is_some());
        pair.b.rnic.deregister(theirs).unwrap();
        assert_eq!(pair.b.rnic.direct_span(pair.b.conn.unwrap()), None);
        pair.b.take(pair.now, &bytes[500..]);
        pair.run();
        assert_eq!(pair.b.ram.0[0], before, "{into}");
        assert_eq!(pair.b.rnic.state(pair.b.qp), Some(QpState::Error));
        let done = pair.b.done();
        match into {
            "Write" => assert_eq!(done, []),
            "Send" => assert_eq!(done, [(5, Status::LocalProtection)]),
            _ => assert_eq!(done, [(2, Status::LocalProtection)]),
        }
    }
}

#[test]
fn memory_that_is_gone_ends_the_stream_and_not_the_process() {
    for (side, op) in [
        ("source", "write"),
        ("sink", "write"),
        ("source", "read"),
        ("sink", "read"),
        ("sink", "send"),
    ] {
        let mut pair = Pair::connected(&Setup::default());
        let mine = pair.a.region(pattern(64, 1), 0);
        let theirs = pair.b.region(vec![0; 64], 0);
        let remote = Remote { stag: theirs, addr: 0 };
        let gone = match (side, op) {
            ("source", "write") | ("sink", "read") => &mut pair.a.ram.0[0],
            _ => &mut pair.b.ram.0[0],
        };
        gone.clear();
        pair.b.recv(9, &[(theirs, 0, 64)]);
        let what = match op {
            "write" => SendOp::Write(remote),
            "read" => SendOp::Read(remote),
            _ => SendOp::Send,
        };
        pair.a.post(1, what, &[(mine, 0, 64)]);
        pair.run();
        assert_eq!(pair.a.rnic.state(pair.a.qp), Some(QpState::Error), "{side} {op}");
        assert_eq!(pair.b.rnic.state(pair.b.qp), Some(QpState::Error), "{side} {op}");
        let (a, b) = (pair.a.done(), pair.b.done());
        match (side, op) {
            ("source", "write") | ("sink", "read") => assert_eq!(a, [(1, Status::LocalProtection)]),
            ("sink", "send") => assert_eq!(b, [(9, Status::LocalProtection)]),
            ("source", _) => assert_eq!(a, [(1, Status::RemoteAccess)]),
            _ => assert_eq!(b, [(9, Status::Flushed)]),
        }
    }
}

#[test]
fn memory_that_cannot_be_read_when_it_is_sent_fails_its_request_alone() {
    let mut pair = Pair::connected(&Setup { crc: false, emss: 60_000, ..Setup::default() });
    let (first, second) = (pair.a.region(pattern(4096, 1), 0), pair.a.region(pattern(4096, 2), 0));
    let theirs = pair.b.region(vec![0; 4096], 0);
    let write = SendOp::Write(Remote { stag: theirs, addr: 0 });
    pair.a.post(1, write, &[(first, 0, 4096)]);
    pair.a.post(2, write, &[(first, 0, 100), (second, 0, 4096)]);
    pair.a.post(3, write, &[(first, 0, 4096)]);
    let conn = pair.a.conn.unwrap();
    let mut record = Record::default();
    while pair.a.rnic.output(pair.now, conn, &mut record, &mut pair.a.ram) {}
    let mut gone = record.parts.iter().filter_map(|part| match part {
        Part::Memory(span) if span.region == 1 => Some(*span),
        _ => None,
    });
    let gone = gone.next_back().unwrap();
    pair.a.rnic.source_unmapped(pair.now, conn, gone);
    assert_eq!(
        pair.a.done(),
        [(1, Status::Flushed), (2, Status::LocalProtection), (3, Status::Flushed)]
    );
    let mut events = core::iter::from_fn(|| pair.a.rnic.event());
    assert!(
        events.any(|event| event == Event::Close { conn, reset: true }),
        "no half of an FPDU is left"
    );
}
