//! Tests of the rules of DDP (RFC 5041), each by its number in the list of rules.

use super::peer::{Peer, segments, tagged, untagged};
use super::*;
use crate::wire::ddp::{Buffer, Header};
use crate::wire::rdmap::{Cause, Opcode};

#[test]
fn d1_reserved_bits_are_ignored_and_another_version_is_fatal() {
    let mut peer = Peer::new();
    let mut raw = tagged(Opcode::Write, peer.stag, 0x1000, true).emit();
    raw[0] |= 0x3c;
    peer.say_raw(&raw, b"abcd");
    assert_eq!(&peer.region()[..4], b"abcd");
    raw[0] = raw[0] & !3 | 2;
    peer.say_raw(&raw, b"efgh");
    assert_eq!(peer.cause(), Cause::TAGGED_VERSION);
    assert_eq!(&peer.region()[..4], b"abcd");

    let mut peer = Peer::new();
    peer.recv(1, 64);
    let mut raw = untagged(Opcode::Send, 1, 0, true).emit();
    raw[0] &= !3;
    peer.say_raw(&raw, b"abcd");
    assert_eq!(peer.cause(), Cause::UNTAGGED_VERSION);
    peer.untouched();
}

#[test]
fn d2_d4_segments_of_a_message_carry_their_offset() {
    let setup = Setup { emss: 1504, ..Setup::default() };
    let mut pair = Pair::connected(&setup);
    let source = pair.a.region(pattern(2048, 0), 0);
    let sink = pair.b.region(vec![0; 4096], 0);
    pair.b.recv(1, &[(sink, 0, 4096)]);
    pair.a.sent.clear();
    let invalid = pair.b.rnic.alloc_fast(pair.b.pd).unwrap();
    pair.a.post(1, SendOp::Send, &[(source, 0, 2048)]);
    pair.a.post(2, SendOp::Write(Remote { stag: sink, addr: 1000 }), &[(source, 0, 2048)]);
    pair.a.post(3, SendOp::SendInvalidate(invalid), &[(source, 0, 2048)]);
    pair.run();
    let said = segments(&pair.a.sent, true);
    let untagged = |last, ulp, msn, mo, op: Opcode| Header {
        last,
        control: op.control(),
        buffer: Buffer::Untagged { ulp, qn: 0, msn, mo },
    };
    let headers: Vec<_> = said.iter().map(|(header, payload)| (*header, payload.len())).collect();
    assert_eq!(
        headers,
        [
            (untagged(false, 0, 1, 0, Opcode::Send), 1480),
            (untagged(true, 0, 1, 1480, Opcode::Send), 568),
            (tagged(Opcode::Write, sink, 1000, false), 1484),
            (tagged(Opcode::Write, sink, 2484, true), 564),
            (untagged(false, invalid.0, 2, 0, Opcode::SendInvalidate), 1480),
            (untagged(true, invalid.0, 2, 1480, Opcode::SendInvalidate), 568),
        ]
    );
}

#[test]
fn d3_message_numbers_start_at_1_and_wrap_to_0() {
    let mut pair = Pair::connected(&Setup::default());
    let sink = pair.b.region(vec![0; 64], 0);
    pair.a.sent.clear();
    let (a, b) = (pair.a.qp.0, pair.b.qp.0);
    for (set, expected) in [(0, 1), (u32::MAX - 1, u32::MAX), (u32::MAX, 0), (0, 1)] {
        pair.a.rnic.qps.get_mut(a).unwrap().send.msn = set;
        pair.b.rnic.qps.get_mut(b).unwrap().receive.delivered = set;
        pair.b.recv(1, &[(sink, 0, 8)]);
        pair.a.post(1, SendOp::Immediate(5), &[]);
        pair.run();
        let said = segments(&core::mem::take(&mut pair.a.sent), true);
        assert_eq!(said[0].0, untagged(Opcode::Immediate, expected, 0, true));
        assert_eq!(pair.b.done(), [(1, Status::Success)]);
    }
}

#[test]
fn d6_an_empty_message_is_one_segment_whose_tag_is_not_checked() {
    let mut pair = Pair::connected(&Setup::default());
    pair.a.sent.clear();
    pair.b.recv(9, &[]);
    pair.a.post(1, SendOp::Write(Remote { stag: Stag(0xdead), addr: u64::MAX }), &[]);
    pair.a.post(2, SendOp::Send, &[(Stag(77), 5, 0)]);
    pair.run();
    let said = segments(&pair.a.sent, true);
    assert_eq!(said.len(), 2);
    assert!(said.iter().all(|(header, payload)| header.last && payload.is_empty()));
    assert_eq!(pair.a.done(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(pair.b.done(), [(9, Status::Success)]);
}

#[test]
fn d7_messages_leave_in_the_order_posted_and_are_delivered_once() {
    let mut pair = Pair::connected(&Setup { cut: Cut::Each(5), ..Setup::default() });
    let source = pair.a.region(pattern(256, 0), 0);
    let sink = pair.b.region(vec![0; 4096], 0);
    for id in 0..20 {
        pair.b.recv(id, &[(sink, id * 100, 100)]);
        pair.a.post(id, SendOp::Send, &[(source, id, id as u32)]);
    }
    pair.run();
    let ids: Vec<_> = (0..20).map(|id| (id, Status::Success)).collect();
    assert_eq!(pair.a.done(), ids);
    for id in 0..20 {
        let got = pair.b.poll().unwrap();
        assert_eq!((got.id, got.len), (id, id as u32));
        let at = id as usize * 100;
        assert_eq!(
            pair.b.ram.0[0][at..at + id as usize],
            pattern(256, 0)[id as usize..2 * id as usize]
        );
    }
    assert_eq!(pair.b.poll(), None);
}

#[test]
fn d8_delivery_waits_for_all_segments_and_all_earlier_messages() {
    let mut peer = Peer::new();
    peer.recv(1, 64);
    let stag = peer.stag;
    peer.us().recv(2, &[(stag, 0x1040, 64)]);
    // The second message goes first, with its end before its beginning.
    peer.say(untagged(Opcode::Send, 2, 4, true), b"4567");
    peer.say(untagged(Opcode::Send, 2, 0, false), b"0123");
    assert_eq!(peer.us().poll(), None, "the first message is missing");
    peer.say(untagged(Opcode::Send, 1, 8, true), b"89");
    peer.say(untagged(Opcode::Send, 1, 0, false), b"01");
    peer.say(untagged(Opcode::Send, 1, 4, false), b"4567");
    assert_eq!(peer.us().poll(), None, "a hole is left");
    peer.say(untagged(Opcode::Send, 1, 2, false), b"23");
    for (id, len) in [(1, 10), (2, 8)] {
        let got = peer.us().poll().unwrap();
        assert_eq!((got.id, got.status, got.len), (id, Status::Success, len));
    }
    assert_eq!(&peer.region()[..10], b"0123456789");
    assert_eq!(&peer.region()[64..72], b"01234567");
}

#[test]
fn d9_tagged_segments_are_checked_before_anything_is_placed() {
    let read_only = Access { remote_read: true, ..Access::default() };
    for (case, cause) in [
        ("unknown", Cause::TAGGED_STAG),
        ("below", Cause::TAGGED_BOUNDS),
        ("above", Cause::TAGGED_BOUNDS),
        ("far", Cause::TAGGED_BOUNDS),
        ("wrap", Cause::TAGGED_WRAP),
        ("foreign", Cause::TAGGED_NOT_ASSOCIATED),
        ("right", Cause::TAGGED_STAG),
        ("revoked", Cause::TAGGED_STAG),
    ] {
        let mut peer = Peer::new();
        let us = &mut peer.pair.b;
        let (mut stag, mut to) = (peer.stag, 0x1000);
        match case {
            "unknown" => stag = Stag(stag.0 ^ 1),
            "below" => to = 0xfff,
            "above" => to = 0x10fd,
            "far" => to = 0x1100,
            "wrap" => to = u64::MAX - 1,
            "foreign" => {
                let other = us.rnic.alloc_pd().unwrap();
                stag = us.rnic.register(other, 0, 0x1000, 256, ALL).unwrap();
            }
            "right" => stag = us.rnic.register(us.pd, 0, 0x1000, 256, read_only).unwrap(),
            _ => us.rnic.deregister(stag).unwrap(),
        }
        peer.say(tagged(Opcode::Write, stag, to, true), b"abcd");
        let terminate = peer.terminated();
        assert_eq!(terminate.cause, cause, "{case}");
        let about = terminate.about.unwrap();
        assert_eq!(about.header, tagged(Opcode::Write, stag, to, true).emit());
        assert_eq!((about.ulpdu_len, about.read), (18, None));
        peer.untouched();
    }
}

#[test]
fn d10_untagged_segments_are_checked_before_anything_is_placed() {
    let send = |msn, mo| untagged(Opcode::Send, msn, mo, true);
    let on_queue = |qn| {
        let buffer = Buffer::Untagged { ulp: 0, qn, msn: 1, mo: 0 };
        Header { last: true, control: Opcode::Send.control(), buffer }
    };
    for (header, len, receives, cause) in [
        (on_queue(4), 4, 1, Cause::UNTAGGED_QN),
        (on_queue(u32::MAX), 4, 1, Cause::UNTAGGED_QN),
        (send(1, 0), 4, 0, Cause::UNTAGGED_NO_BUFFER),
        (send(1, 0), 0, 0, Cause::UNTAGGED_NO_BUFFER),
        (send(3, 0), 4, 1, Cause::UNTAGGED_MSN),
        (send(0, 0), 4, 1, Cause::UNTAGGED_MSN),
        (send(1, 17), 4, 1, Cause::UNTAGGED_MO),
        (send(1, u32::MAX), 4, 1, Cause::UNTAGGED_MO),
        (send(1, 13), 4, 1, Cause::UNTAGGED_TOO_LONG),
        (send(1, 0), 17, 1, Cause::UNTAGGED_TOO_LONG),
    ] {
        let mut peer = Peer::new();
        for id in 0..receives {
            peer.recv(id, 16);
        }
        peer.say(header, &[7; 20][..len]);
        let terminate = peer.terminated();
        assert_eq!(terminate.cause, cause, "{header:?}");
        assert_eq!(terminate.about.unwrap().header, header.emit());
        peer.untouched();
        let status = match cause {
            Cause::UNTAGGED_TOO_LONG | Cause::UNTAGGED_MO => Status::LocalLength,
            _ => Status::Flushed,
        };
        let expected: Vec<_> = (0..receives).map(|id| (id, status)).collect();
        assert_eq!(peer.us().done(), expected);
    }
}

#[test]
fn d11_t5_after_an_error_nothing_is_placed_and_only_the_first_is_reported() {
    let mut peer = Peer::new();
    let stag = peer.stag;
    peer.say(tagged(Opcode::Write, stag, 0x2000, true), b"bad");
    peer.say(tagged(Opcode::Write, stag, 0x1000, true), b"good");
    peer.say(untagged(Opcode::Send, 9, 0, true), b"bad");
    assert_eq!(peer.cause(), Cause::TAGGED_BOUNDS);
    peer.say(tagged(Opcode::Write, stag, 0x1000, true), b"good");
    assert!(peer.hear().is_empty());
    peer.untouched();
}

#[test]
fn d12_f7_the_terminate_is_sent_before_the_stream_is_closed() {
    let mut peer = Peer::new();
    peer.say(untagged(Opcode::Send, 1, 0, true), b"nobody waits for this");
    peer.us().hear();
    assert_eq!(peer.us().closed, None, "not before it was sent");
    assert_eq!(peer.cause(), Cause::UNTAGGED_NO_BUFFER);
    assert_eq!(peer.us().closed, Some(false));
}

#[test]
fn d13_a_message_is_delivered_with_its_length_and_the_ulps_word() {
    let mut peer = Peer::new();
    peer.recv(1, 64);
    peer.recv(2, 64);
    let mut header = untagged(Opcode::Send, 1, 0, false);
    peer.say(header, &[1; 30]);
    header = untagged(Opcode::Send, 1, 30, true);
    peer.say(header, &[2; 3]);
    let got = peer.us().poll().unwrap();
    assert_eq!((got.len, got.invalidated), (33, None));
}
