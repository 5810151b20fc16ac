//! Tests of the rules of RDMAP (RFC 5040, 7306), each by its number in the list of rules.

use super::peer::{Peer, segments, tagged, untagged};
use super::*;
use crate::wire::ddp::{Buffer, Header};
use crate::wire::rdmap::{AtomicOp, AtomicRequest, AtomicResponse, Cause, Opcode, ReadRequest};

fn read_of(peer: &Peer, size: u32, to: u64) -> ReadRequest {
    ReadRequest { sink_stag: 0xabcd, sink_to: 99, size, source_stag: peer.stag.0, source_to: to }
}

fn request(msn: u32) -> Header {
    untagged(Opcode::ReadRequest, msn, 0, true)
}

#[test]
fn r1_reserved_bits_are_ignored_and_another_version_is_fatal() {
    let mut peer = Peer::new();
    let mut header = tagged(Opcode::Write, peer.stag, 0x1000, true);
    header.control |= 0x30;
    peer.say(header, b"abcd");
    assert_eq!(&peer.region()[..4], b"abcd");
    header.control = 0x80;
    peer.say(header, b"efgh");
    let terminate = peer.terminated();
    assert_eq!(terminate.cause, Cause::VERSION);
    assert_eq!(terminate.about.unwrap().header, header.emit());
    assert_eq!(&peer.region()[..4], b"abcd");
}

#[test]
fn r2_the_word_for_a_tag_is_ignored_in_messages_without_one() {
    let mut peer = Peer::new();
    peer.recv(1, 16);
    let buffer = Buffer::Untagged { ulp: peer.stag.0, qn: 0, msn: 1, mo: 0 };
    peer.say(Header { last: true, control: Opcode::Send.control(), buffer }, b"abcd");
    let got = peer.us().poll().unwrap();
    assert_eq!((got.status, got.invalidated), (Status::Success, None));
    let stag = peer.stag;
    peer.say(tagged(Opcode::Write, stag, 0x1000, true), b"1234");
    assert_eq!(&peer.region()[..4], b"1234");
}

#[test]
fn r3_opcode_and_form_of_header_belong_together() {
    let stag = Peer::new().stag;
    let on = |opcode: u8, qn: Option<u32>| {
        let buffer = match qn {
            Some(qn) => Buffer::Untagged { ulp: 0, qn, msn: 1, mo: 0 },
            None => Buffer::Tagged { stag: stag.0, to: 0x1000 },
        };
        Header { last: true, control: 0x40 | opcode, buffer }
    };
    let wrong =
        [(0, Some(0)), (2, Some(1)), (1, None), (3, None), (7, None), (1, Some(0)), (3, Some(1))];
    let more = [(7, Some(0)), (3, Some(2)), (11, Some(1)), (10, Some(3)), (8, Some(1)), (11, None)];
    let unknown = (12..16).flat_map(|opcode| [(opcode, Some(0)), (opcode, None)]);
    for (opcode, qn) in wrong.into_iter().chain(more).chain(unknown) {
        let mut peer = Peer::new();
        peer.recv(1, 16);
        peer.say(on(opcode, qn), b"abcd");
        assert_eq!(peer.cause(), Cause::OPCODE, "{opcode} {qn:?}");
        peer.untouched();
    }
}

#[test]
fn r4_a_read_request_gets_one_response_to_the_sink_it_names() {
    let mut peer = Peer::new();
    peer.region()[..4].copy_from_slice(b"read");
    let read = read_of(&peer, 4, 0x1000);
    peer.say(request(1), &read.emit());
    let sink = Header {
        last: true,
        control: Opcode::ReadResponse.control(),
        buffer: Buffer::Tagged { stag: 0xabcd, to: 99 },
    };
    assert_eq!(peer.hear(), [(sink, b"read".to_vec())]);
    assert!(peer.hear().is_empty());
    assert_eq!(peer.us().poll(), None, "the program sees nothing");
    assert!(peer.us().events.iter().all(|e| matches!(e, Event::Established { .. })));
}

#[test]
fn r5_a_read_of_nothing_is_answered_whatever_its_source() {
    let mut peer = Peer::new();
    let read = ReadRequest { source_stag: 0xbad, source_to: u64::MAX, ..read_of(&peer, 0, 0) };
    peer.say(request(1), &read.emit());
    let heard = peer.hear();
    assert_eq!((heard.len(), heard[0].1.len()), (1, 0));
    assert!(heard[0].0.last && heard[0].0.control == Opcode::ReadResponse.control());
}

#[test]
fn r6_the_source_of_a_read_is_checked() {
    for (case, cause) in [
        ("unknown", Cause::INVALID_STAG),
        ("below", Cause::BOUNDS),
        ("above", Cause::BOUNDS),
        ("huge", Cause::BOUNDS),
        ("wrap", Cause::TO_WRAP),
        ("foreign", Cause::NOT_ASSOCIATED),
        ("right", Cause::ACCESS),
    ] {
        let mut peer = Peer::new();
        let mut read = read_of(&peer, 4, 0x1000);
        let us = &mut peer.pair.b;
        match case {
            "unknown" => read.source_stag ^= 1,
            "below" => read.source_to = 0xfff,
            "above" => read.source_to = 0x10fd,
            "huge" => read.size = 0x8000_0001,
            "wrap" => read.source_to = u64::MAX - 2,
            "foreign" => {
                let other = us.rnic.alloc_pd().unwrap();
                read.source_stag = us.rnic.register(other, 0, 0x1000, 256, ALL).unwrap().0;
            }
            _ => {
                let access = Access { remote_read: false, ..ALL };
                read.source_stag = us.rnic.register(us.pd, 0, 0x1000, 256, access).unwrap().0;
            }
        }
        peer.say(request(1), &read.emit());
        let terminate = peer.terminated();
        assert_eq!(terminate.cause, cause, "{case}");
        let about = terminate.about.unwrap();
        assert_eq!((about.ulpdu_len, about.read), (46, Some(read)));
        assert_eq!(about.header, request(1).emit());
    }
}

#[test]
fn r7_a_read_sees_every_earlier_write_and_send() {
    for cut in [Cut::Whole, Cut::Each(3)] {
        let mut pair = Pair::connected(&Setup { cut, ..Setup::default() });
        let mine = pair.a.region(pattern(64, 1), 0);
        let theirs = pair.b.region(vec![0; 64], 0);
        pair.b.recv(1, &[(theirs, 32, 32)]);
        pair.a.post(1, SendOp::Write(Remote { stag: theirs, addr: 0 }), &[(mine, 0, 16)]);
        pair.a.post(2, SendOp::Send, &[(mine, 16, 16)]);
        let back = pair.a.region(vec![0; 64], 0);
        pair.a.post(3, SendOp::Read(Remote { stag: theirs, addr: 0 }), &[(back, 0, 64)]);
        pair.run();
        assert_eq!(pair.a.ram.0[1][..16], pattern(64, 1)[..16]);
        assert_eq!(pair.a.ram.0[1][32..48], pattern(64, 1)[16..32]);
    }
}

#[test]
fn r8_a2_responses_leave_in_the_order_of_their_requests() {
    let mut peer = Peer::new();
    peer.region().fill(0);
    for msn in 1..=6 {
        if msn % 2 == 0 {
            let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
            let atomic = AtomicRequest { id: msn * 100, stag: peer.stag.0, to: 0x1000, op };
            peer.say(untagged(Opcode::AtomicRequest, msn, 0, true), &atomic.emit());
        } else {
            let read = ReadRequest { sink_to: u64::from(msn), ..read_of(&peer, 8, 0x1000) };
            peer.say(request(msn), &read.emit());
        }
    }
    let heard = peer.hear();
    assert_eq!(heard.len(), 6);
    for (i, (header, payload)) in heard.iter().enumerate() {
        let (msn, n) = (i as u32 + 1, i as u64 / 2);
        #[expect(clippy::host_endian_bytes, reason = "a number of the program's")]
        let word = n.to_ne_bytes();
        if msn % 2 == 0 {
            assert_eq!(*header, untagged(Opcode::AtomicResponse, msn / 2, 0, true));
            let response = AtomicResponse::parse(payload).unwrap();
            assert_eq!(response, AtomicResponse { id: msn * 100, was: n });
        } else {
            assert_eq!(header.buffer, Buffer::Tagged { stag: 0xabcd, to: u64::from(msn) });
            assert_eq!(payload[..], word, "a Read sees the atomics before it and none behind it");
        }
    }
}

#[test]
fn r9_never_more_than_ord_reads_and_atomics_are_outstanding() {
    let mut setup = Setup::default();
    setup.accept.ird = 3;
    let mut pair = Pair::connected(&setup);
    let sink = pair.a.region(vec![0; 64], 0);
    let theirs = Remote { stag: pair.b.region(vec![0; 64], 0), addr: 0 };
    pair.a.sent.clear();
    for id in 0..6 {
        let op = if id % 2 == 0 {
            SendOp::Read(theirs)
        } else {
            SendOp::FetchAdd { to: theirs, add: 1, mask: 0 }
        };
        pair.a.post(id, op, &[(sink, id * 8, 8)]);
    }
    pair.a.send(pair.now);
    assert_eq!(segments(&pair.a.sent, true).len(), 3);
    pair.run();
    assert_eq!(segments(&pair.a.sent, true).len(), 6);
    assert_eq!(pair.a.done().len(), 6);
}

#[test]
fn r9_without_any_depth_a_read_fails_as_an_operation_of_our_own() {
    let mut setup = Setup::default();
    setup.connect.ord = 0;
    let mut pair = Pair::connected(&setup);
    let sink = pair.a.region(vec![0; 64], 0);
    pair.a.post(1, SendOp::Read(Remote::default()), &[(sink, 0, 8)]);
    pair.a.post(2, SendOp::Send, &[(sink, 0, 8)]);
    pair.run();
    assert_eq!(pair.a.done(), [(1, Status::LocalOperation), (2, Status::Flushed)]);
    assert!(pair.b.events.contains(&Event::QpFailed {
        qp: pair.b.qp,
        cause: Cause::LOCAL,
        ours: false
    }));
}

#[test]
fn r10_as_many_requests_as_agreed_are_taken_at_once_and_one_more_is_an_error() {
    let mut peer = Peer::new();
    for msn in 1..=8 {
        let read = read_of(&peer, 4, 0x1000);
        peer.say(request(msn), &read.emit());
    }
    assert_eq!(peer.hear().len(), 8);
    for msn in 9..=17 {
        let read = read_of(&peer, 4, 0x1000);
        peer.say(request(msn), &read.emit());
    }
    let terminate = peer.terminated();
    assert_eq!(terminate.cause, Cause::UNTAGGED_NO_BUFFER);
    assert_eq!(terminate.about.unwrap().header, request(17).emit());
}

#[test]
fn requests_with_a_wrong_number_or_shape_are_errors() {
    for (header, len, cause) in [
        (request(2), 28, Cause::UNTAGGED_MSN),
        (request(0), 28, Cause::UNTAGGED_MSN),
        (untagged(Opcode::ReadRequest, 1, 4, true), 28, Cause::UNTAGGED_MO),
        (untagged(Opcode::ReadRequest, 1, 0, false), 28, Cause::UNTAGGED_TOO_LONG),
        (request(1), 27, Cause::OPERATION),
        (request(1), 29, Cause::OPERATION),
        (request(1), 300, Cause::OPERATION),
        (request(1), 0, Cause::OPERATION),
        (untagged(Opcode::AtomicRequest, 1, 0, true), 51, Cause::OPERATION),
        (untagged(Opcode::AtomicResponse, 1, 0, true), 12, Cause::OPCODE),
        (untagged(Opcode::AtomicResponse, 2, 0, true), 12, Cause::UNTAGGED_MSN),
        (untagged(Opcode::Terminate, 1, 0, true), 3, Cause::OPERATION),
        (untagged(Opcode::Terminate, 2, 0, true), 4, Cause::UNTAGGED_MSN),
    ] {
        let mut peer = Peer::new();
        peer.say(header, &[0; 300][..len]);
        assert_eq!(peer.cause(), cause, "{header:?} {len}");
    }
}

#[test]
fn r11_every_send_takes_exactly_one_receive() {
    let mut peer = Peer::new();
    for id in 0..4 {
        peer.recv(id, 16);
    }
    for msn in 1..=3 {
        peer.say(untagged(Opcode::Send, msn, 0, true), if msn == 2 { b"" } else { b"abc" });
    }
    assert_eq!(
        peer.us().done(),
        [(0, Status::Success), (1, Status::Success), (2, Status::Success)]
    );
    peer.say(untagged(Opcode::Send, 4, 0, true), &[0; 17]);
    assert_eq!(peer.cause(), Cause::UNTAGGED_TOO_LONG);
    assert_eq!(peer.us().done(), [(3, Status::LocalLength)]);
}

#[test]
fn r12_a_write_is_not_reported_and_is_there_when_a_later_send_is() {
    for setup in setups() {
        let mut pair = Pair::connected(&setup);
        let mine = pair.a.region(pattern(3000, 3), 0);
        let theirs = pair.b.region(vec![0; 3000], 0);
        let inbox = pair.b.region(vec![0; 8], 0);
        pair.b.recv(1, &[(inbox, 0, 8)]);
        pair.a.post(1, SendOp::Write(Remote { stag: theirs, addr: 0 }), &[(mine, 0, 3000)]);
        pair.run();
        assert_eq!(pair.b.poll(), None);
        assert!(pair.b.events.is_empty());
        pair.a.post(2, SendOp::Send, &[]);
        pair.run();
        assert_eq!(pair.b.done(), [(1, Status::Success)]);
        assert_eq!(pair.b.ram.0[0], pattern(3000, 3));
    }
}

#[test]
fn r13_a_send_invalidates_a_tag_of_this_stream_and_no_other() {
    let mut pair = Pair::connected(&Setup::default());
    let theirs = pair.b.region(vec![0; 64], 0);
    let free = pair.b.rnic.alloc_fast(pair.b.pd).unwrap();
    let access = Access { local_write: true, remote_write: true, ..Access::default() };
    let fast = SendOp::FastRegister { stag: free, region: 0, offset: 0, base: 0, len: 64, access };
    pair.b.post(1, fast, &[]);
    pair.run();
    assert_eq!(pair.b.done(), [(1, Status::Success)]);
    let mine = pair.a.region(pattern(64, 1), 0);
    pair.b.recv(2, &[(theirs, 32, 32)]);
    pair.b.recv(3, &[(theirs, 32, 32)]);
    pair.a.post(1, SendOp::Write(Remote { stag: free, addr: 0 }), &[(mine, 0, 8)]);
    pair.a.post(2, SendOp::SendInvalidate(free), &[(mine, 0, 4)]);
    pair.run();
    assert_eq!(pair.b.ram.0[0][..8], pattern(64, 1)[..8]);
    let got = pair.b.poll().unwrap();
    assert_eq!((got.id, got.status, got.invalidated), (2, Status::Success, Some(free)));
    pair.a.done();
    pair.a.post(3, SendOp::Write(Remote { stag: free, addr: 0 }), &[(mine, 32, 8)]);
    pair.run();
    assert_eq!(pair.b.ram.0[0][..8], pattern(64, 1)[..8], "the tag is not usable any more");
    let cause = Cause::TAGGED_STAG;
    assert!(pair.a.events.contains(&Event::QpFailed { qp: pair.a.qp, cause, ours: false }));

    // A region of the domain is no tag of this stream alone.
    let mut peer = Peer::new();
    peer.recv(1, 16);
    let buffer = Buffer::Untagged { ulp: peer.stag.0, qn: 0, msn: 1, mo: 0 };
    let header = Header { last: true, control: Opcode::SendInvalidate.control(), buffer };
    peer.say(header, b"abcd");
    let terminate = peer.terminated();
    assert_eq!(terminate.cause, Cause::CANNOT_INVALIDATE);
    assert_eq!(terminate.about.unwrap().header, header.emit());
    assert_eq!(peer.us().done(), [(1, Status::Flushed)]);
}

#[test]
fn r14_requests_complete_in_the_order_posted_when_the_stream_took_them() {
    let mut pair = Pair::connected(&Setup::default());
    let a = &mut pair.a;
    let mine = a.region(pattern(5000, 1), 0);
    let theirs = Remote { stag: pair.b.region(vec![0; 5000], 0), addr: 0 };
    a.post(1, SendOp::Write(theirs), &[(mine, 0, 5000)]);
    a.post(2, SendOp::Read(theirs), &[(mine, 0, 8)]);
    a.post(3, SendOp::Write(theirs), &[(mine, 0, 8)]);
    let conn = a.rnic.ready().unwrap();
    assert_eq!(a.rnic.ready(), None, "named once");
    let mut record = Record::default();
    while a.rnic.output(pair.now, conn, &mut record, &mut a.ram) {}
    assert_eq!(a.poll(), None, "nothing is taken yet");
    let first = record.bytes.len() - (2 + 18 + 28 + 4) - (2 + 14 + 8 + 4);
    let first = first / 4 * 4;
    a.rnic.sent(conn, first - 1);
    assert_eq!(a.poll(), None, "an byte of the Write is left");
    a.rnic.sent(conn, record.bytes.len() - (first - 1));
    assert_eq!(
        a.done(),
        [(1, Status::Success)],
        "the Read waits for its Response, and what follows for the Read"
    );
    a.wire.extend(&record.bytes);
    pair.run();
    assert_eq!(pair.a.done(), [(2, Status::Success), (3, Status::Success)]);
}

#[test]
fn r14_unsignalled_requests_leave_no_completion_unless_they_fail() {
    let mut pair = Pair::new(&Setup::default());
    let options = QpOptions { signal_all: false, ..qp_options(pair.a.pd, pair.a.cq) };
    pair.a.qp = pair.a.rnic.create_qp(options).unwrap();
    pair.start(&Setup::default());
    pair.accept(&Setup::default());
    let mine = pair.a.region(pattern(64, 1), 0);
    let theirs = Remote { stag: pair.b.region(vec![0; 64], 0), addr: 0 };
    let signaled = SendFlags { signaled: true, ..SendFlags::default() };
    pair.a.post(1, SendOp::Write(theirs), &[(mine, 0, 8)]);
    pair.a.post_with(2, SendOp::Write(theirs), &[(mine, 0, 8)], signaled).unwrap();
    pair.a.post(3, SendOp::Read(theirs), &[(mine, 0, 8)]);
    pair.run();
    assert_eq!(pair.a.done(), [(2, Status::Success)]);
    pair.a.post(4, SendOp::Write(theirs), &[(mine, 0, 8)]);
    pair.a.post(5, SendOp::Write(theirs), &[(mine, 60, 8)]);
    pair.a.post(6, SendOp::Write(theirs), &[(mine, 0, 8)]);
    pair.run();
    let done = pair.a.done();
    assert_eq!(done, [(4, Status::Flushed), (5, Status::LocalProtection), (6, Status::Flushed)]);
}

#[test]
fn the_fence_waits_for_reads() {
    let mut pair = Pair::connected(&Setup::default());
    let mine = pair.a.region(vec![0; 64], 0);
    let theirs = Remote { stag: pair.b.region(pattern(64, 9), 0), addr: 0 };
    pair.a.sent.clear();
    let fence = SendFlags { fence: true, ..SendFlags::default() };
    pair.a.post(1, SendOp::Read(theirs), &[(mine, 0, 64)]);
    let back = Remote { addr: 0, ..theirs };
    pair.a.post_with(2, SendOp::Write(back), &[(mine, 32, 8)], fence).unwrap();
    pair.a.send(pair.now);
    assert_eq!(segments(&pair.a.sent, true).len(), 1);
    pair.run();
    assert_eq!(pair.b.ram.0[0][..8], pattern(64, 9)[32..40], "what was read was written");
    assert_eq!(pair.a.done(), [(1, Status::Success), (2, Status::Success)]);
}
