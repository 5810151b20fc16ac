//! Tests of malformed input, row by row as it was tried on Linux's siw, with the answers of this
//! engine.

use super::peer::{Peer, tagged, untagged};
use super::*;
use crate::wire::ddp::{Buffer, Header};
use crate::wire::mpa::{Enhanced, Kind, Start};
use crate::wire::rdmap::{AtomicOp, AtomicRequest, Cause, Opcode, ReadRequest};

/// The engine's answer to a Request: the Reply's flags, revision and private data, or no Reply.
#[derive(PartialEq, Eq, Debug)]
enum Reply {
    Accepts(u8, u8, Vec<u8>),
    Closes,
}

/// The engine's answer to the bytes of a Request, with `ird` and `ord` granted.
fn reply(config: &RnicOptions, bytes: &[u8], ird: u16, ord: u16) -> Reply {
    let mut side = Side::new(config.clone(), 1);
    let now = Instant::from_ns(1);
    let conn = side.rnic.incoming(now).unwrap();
    side.conn = Some(conn);
    side.take(now, bytes);
    side.hear();
    if let [
        Event::Failed { qp: None, why: StartupError::Negotiation(_), .. },
        Event::Close { reset: true, .. },
    ] = side.events[..]
    {
        side.send(now);
        assert!(side.sent.is_empty());
        return Reply::Closes;
    }
    side.rnic
        .accept(now, conn, side.qp, &AcceptOptions { ird, ord, ..AcceptOptions::default() })
        .unwrap();
    side.send(now);
    let (start, len) = Start::parse(&side.sent).unwrap().unwrap();
    assert_eq!((start.kind, len), (Kind::Reply, side.sent.len()));
    Reply::Accepts(side.sent[16], side.sent[17], side.sent[20..].to_vec())
}

/// The bytes of a Request with these flags, revision and private data, unchecked.
fn request(flags: u8, revision: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = Kind::Request.key().to_vec();
    bytes.extend([flags, revision]);
    bytes.extend((data.len() as u16).to_be_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn start_up_frames() {
    // CRC is off here by the administrator's option, so the Reply shows the echo of the flag.
    let config = RnicOptions { crc: false, ..RnicOptions::default() };
    let answer = |bytes: &[u8]| reply(&config, bytes, 8, 8);
    let plain = |flags, revision| Reply::Accepts(flags, revision, Vec::new());
    let enhanced = |ird, ord| {
        let block = Enhanced { rtr: None, ird, ord };
        let (kind, enhanced) = (Kind::Request, Some(block));
        let start = Start {
            kind,
            markers: false,
            crc: false,
            reject: false,
            revision: 2,
            enhanced,
            private_data: &[],
        };
        let mut bytes = Vec::new();
        start.emit(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(answer(&request(0, 1, &[])), plain(0, 1), "rev1 no flags");
    assert_eq!(answer(&request(0x40, 1, &[])), plain(0x40, 1), "rev1 C");
    assert_eq!(
        answer(&request(0x80, 1, &[])),
        plain(0, 1),
        "rev1 M: we send markers then; siw refuses"
    );
    assert_eq!(answer(&request(0x40, 1, b"12345")), plain(0x40, 1), "rev1 C pd5");
    assert_eq!(answer(&request(0, 0, &[])), plain(0, 0), "rev0");
    assert_eq!(answer(&request(0x40, 2, &[])), plain(0x40, 2), "rev2 no S");
    assert_eq!(
        answer(&enhanced(2, 3)),
        Reply::Accepts(0x10, 2, vec![0, 8, 0, 2]),
        "rev2 S ird2 ord3"
    );
    let deep = reply(&config, &enhanced(300, 300), 128, 128);
    assert_eq!(deep, Reply::Accepts(0x10, 2, vec![0, 128, 0, 128]), "rev2 S ird300 ord300");
    assert_eq!(answer(&request(0x10, 2, &[])), Reply::Closes, "rev2 S no pd: siw refuses");
    assert_eq!(answer(&request(0, 3, &[])), Reply::Closes, "rev3");
    let mut key = request(0, 1, &[]);
    key[8] ^= 1;
    assert_eq!(answer(&key), Reply::Closes, "bad key");
    for len in [252, 255, 256, 257, 512] {
        assert_eq!(
            answer(&request(0, 1, &vec![7; len])),
            plain(0, 1),
            "pd {len}: siw resets from 257 on"
        );
    }
    assert_eq!(answer(&request(0, 1, &[7; 513])), Reply::Closes, "pd 513");
    let mut extra = request(0, 1, &[]);
    extra.extend(b"extra");
    assert_eq!(answer(&extra), Reply::Closes, "extra bytes behind request");
    assert_eq!(answer(&request(0x0f, 1, &[])), plain(0, 1), "flags reserved 0x0f: siw echoes them");
    // M8: without that option the engine requests CRC.
    assert_eq!(reply(&RnicOptions::default(), &request(0, 1, &[]), 8, 8), plain(0x40, 1));
    assert_eq!(reply(&RnicOptions::default(), &request(0x0f, 1, &[]), 8, 8), plain(0x40, 1));
}

/// Checks the engine's answer to one segment, with a receive of 16 bytes posted.
#[track_caller]
fn answers(header: Header, payload: &[u8], cause: Cause) {
    let mut peer = Peer::new();
    peer.recv(1, 16);
    peer.say(header, payload);
    assert_eq!(peer.cause(), cause, "{header:?}");
    peer.untouched();
}

#[test]
fn wrong_messages() {
    let bad = Stag(0xdead);
    let send = untagged(Opcode::Send, 1, 0, true);
    answers(tagged(Opcode::Write, bad, 0, true), &[0; 8], Cause::TAGGED_STAG);
    // The engine knows immediate data and atomics, which siw calls bad opcodes.
    answers(Header { control: 0x4c, ..send }, &[0; 8], Cause::OPCODE);
    answers(Header { control: 0x83, ..send }, &[0; 8], Cause::VERSION);
    let mut peer = Peer::new();
    let mut raw = send.emit();
    raw[0] = raw[0] & !3 | 2;
    peer.say_raw(&raw, &[0; 8]);
    assert_eq!(peer.cause(), Cause::UNTAGGED_VERSION);
    answers(untagged(Opcode::Send, 7, 0, true), &[0; 16], Cause::UNTAGGED_MSN);
    answers(send, &[0; 64], Cause::UNTAGGED_TOO_LONG);
    let buffer = Buffer::Untagged { ulp: 0, qn: 1, msn: 1, mo: 0 };
    answers(Header { buffer, ..send }, &[0; 16], Cause::OPCODE);
    let read = ReadRequest { sink_stag: 5, sink_to: 0, size: 8, source_stag: bad.0, source_to: 0 };
    answers(untagged(Opcode::ReadRequest, 1, 0, true), &read.emit(), Cause::INVALID_STAG);
    let buffer = Buffer::Untagged { ulp: 0x0bad_0000, qn: 0, msn: 1, mo: 0 };
    let mut peer = Peer::new();
    peer.recv(1, 16);
    peer.say(Header { last: true, control: Opcode::SendInvalidate.control(), buffer }, &[0xee; 16]);
    assert_eq!(peer.cause(), Cause::CANNOT_INVALIDATE);
    assert_eq!(peer.us().done(), [(1, Status::Flushed)]);
    answers(tagged(Opcode::ReadResponse, Stag(5), 0, true), &[0; 8], Cause::OPCODE);
}

#[test]
fn messages_that_are_right_here_though_not_for_siw() {
    // At an offset of 4 the bytes before it may still arrive.
    let mut peer = Peer::new();
    peer.recv(1, 16);
    peer.say(untagged(Opcode::Send, 1, 4, true), b"4567");
    assert!(peer.hear().is_empty());
    peer.say(untagged(Opcode::Send, 1, 0, false), b"0123");
    assert_eq!(peer.us().done(), [(1, Status::Success)]);
    // Immediate data.
    let mut peer = Peer::new();
    peer.recv(1, 16);
    peer.say(untagged(Opcode::Immediate, 1, 0, true), &[0, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(peer.us().poll().unwrap().immediate, Some(9));
    // An atomic.
    let mut peer = Peer::new();
    let op = AtomicOp::FetchAdd { add: 0, mask: 0 };
    let atomic = AtomicRequest { id: 3, stag: peer.stag.0, to: 0x1000, op };
    peer.say(untagged(Opcode::AtomicRequest, 1, 0, true), &atomic.emit());
    assert_eq!(peer.hear().len(), 1);
    // An empty Write to a tag that does not exist.
    let mut peer = Peer::new();
    peer.say(tagged(Opcode::Write, Stag(0xdead), u64::MAX, true), &[]);
    assert!(peer.hear().is_empty());
    assert_eq!(peer.pair.b.rnic.state(peer.pair.b.qp), Some(QpState::Ready));
}

#[test]
fn a_read_beyond_the_depth() {
    let mut peer = Peer::new();
    for msn in 1..=9 {
        let source_stag = peer.stag.0;
        let read =
            ReadRequest { sink_stag: 5, sink_to: 0, size: 8, source_stag, source_to: 0x1000 };
        peer.say(untagged(Opcode::ReadRequest, msn, 0, true), &read.emit());
    }
    assert_eq!(peer.cause(), Cause::UNTAGGED_NO_BUFFER);
}

#[test]
fn a_second_send_without_a_receive() {
    let mut peer = Peer::new();
    peer.recv(1, 16);
    peer.say(untagged(Opcode::Send, 1, 0, true), b"first");
    peer.say(untagged(Opcode::Send, 2, 0, true), b"second");
    let terminate = peer.terminated();
    assert_eq!(terminate.cause, Cause::UNTAGGED_NO_BUFFER);
    assert_eq!(terminate.about.unwrap().header, untagged(Opcode::Send, 2, 0, true).emit());
    assert_eq!(peer.us().done(), [(1, Status::Success)]);
}

#[test]
fn a_ulpdu_that_is_shorter_than_a_header() {
    // siw does not answer these.
    for len in [0, 1, 4, 13, 17] {
        let mut peer = Peer::new();
        peer.say_raw(&[0x41; 17][..len], &[]);
        assert_eq!(peer.cause(), Cause::DDP_LOCAL, "{len}");
    }
    let mut peer = Peer::new();
    peer.say_raw(&[0xc1; 13], &[]);
    assert_eq!(peer.cause(), Cause::DDP_LOCAL);
}

#[test]
fn a_wrong_crc() {
    let mut peer = Peer::new();
    let mut record = Record::default();
    let header = tagged(Opcode::Write, peer.stag, 0x1000, true).emit();
    iwarp::framer::Framer::new(None, false)
        .frame(&header, &[], &mut Ram::default(), &mut record)
        .unwrap();
    let now = peer.pair.now;
    peer.us().take(now, &record.bytes);
    let terminate = peer.terminated();
    assert_eq!((terminate.cause, terminate.about), (Cause::MPA_CRC, None));
}
