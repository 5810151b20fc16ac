//! Tests of RPC packets: golden bytes of every type, bytes that are no packet, and that emitting
//! and parsing are inverse.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use proptest::prelude::*;
use zerocopy::IntoBytes as _;

use super::*;
use crate::wire::checksum::crc32c;

fn emit(packet: &Packet, body: &[u8], crc: Option<Crc32c>) -> Vec<u8> {
    let mut bytes = [&packet.head()[..], body].concat();
    if let Some(crc) = crc {
        let value = crc(crc_start(bytes.len() + CRC), &bytes);
        bytes.extend_from_slice(&value.to_be_bytes());
    }
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().enumerate().fold(String::new(), |mut out, (i, byte)| {
        let space = if i > 0 && i % 4 == 0 { " " } else { "" };
        write!(out, "{space}{byte:02x}").expect("a string takes everything");
        out
    })
}

/// Checks that an RPC packet and its body are emitted as the golden bytes, and that these are
/// parsed to the packet.
fn check(packet: Packet, body: &[u8], golden: &str) {
    let bytes = emit(&packet, body, None);
    assert_eq!(hex(&bytes), golden);
    let start = bytes.len() - body.len();
    let expected = Packet { body_start: start as u32, body_end: bytes.len() as u32, ..packet };
    assert_eq!(parse(&bytes, None), Ok(expected));
    assert_eq!(expected.body(&bytes), body);
    let with_crc = emit(&packet, body, Some(crc32c));
    assert_eq!(parse(&with_crc, Some(crc32c)), Ok(expected));
}

/// An RPC packet with the fields that all golden packets share.
fn base(kind: Kind) -> Packet {
    let mut packet = Packet::new(kind);
    packet.channel = 5;
    packet.session = 0x0700_0003;
    packet.seq = 0x1234_5678;
    packet.token = 0xa1a2_a3a4_a5a6_a7a8;
    packet
}

#[test]
fn golden_data() {
    let mut packet = base(Kind::Data);
    packet.msg_len = 11;
    packet.offset = 8;
    check(
        packet,
        b"abc",
        "21000500 07000003 12345678 0000000b 00000008 00000000 a1a2a3a4 a5a6a7a8 616263",
    );
    // With every flag that DATA has: the first word after the header is the time left.
    packet.flags = TO_CLIENT | ECHO | RESENT | TTL;
    packet.ts_us = 0x0102;
    packet.ts_echo_us = 0x0304;
    packet.ttl_us = 250;
    check(
        packet,
        b"abc",
        "210f0501 07000003 12345678 0000000b 00000008 01020304 a1a2a3a4 a5a6a7a8 000000fa 616263",
    );
}

#[test]
fn a_request_of_one_packet_is_seen_before_it_is_checked() {
    let mut packet = base(Kind::Data);
    packet.msg_len = 3;
    let datagram = |packet: &Packet, body: &[u8]| [&packet.head()[..], body].concat();
    for flags in [0, TTL, ECHO] {
        packet.flags = flags;
        assert_eq!(peek_request(&datagram(&packet, b"abc"), false), Some(&b"abc"[..]));
        assert_eq!(peek_request(&datagram(&packet, b"abc\0\0\0\0"), true), Some(&b"abc"[..]));
    }
    let whole = datagram(&packet, b"abc");
    assert!((0..whole.len()).all(|len| peek_request(&whole[..len], false).is_none()));
    assert!((0..7).all(|len| peek_request(&whole[..len], true).is_none()));
    assert_eq!(peek_request(&datagram(&packet, b"abcd"), false), None, "of several packets");
    packet.flags = TO_CLIENT;
    assert_eq!(peek_request(&datagram(&packet, b"abc"), false), None, "a reply");
    packet = base(Kind::Probe);
    packet.msg_len = 3;
    assert_eq!(peek_request(&datagram(&packet, b"abc"), false), None, "no request");
}

#[test]
fn golden_progress() {
    let mut grant = base(Kind::Grant);
    grant.msg_len = 0x1_0000;
    grant.offset = 0x2_0000;
    check(grant, b"", "22000500 07000003 12345678 00010000 00020000 00000000 a1a2a3a4 a5a6a7a8");
    let mut nack = base(Kind::Nack);
    nack.offset = 0x1_0000;
    nack.msg_len = 0x2_0000;
    let mut bitmap = [0; 32];
    bitmap[7] = 0b101;
    check(
        nack,
        &bitmap,
        "23000500 07000003 12345678 00020000 00010000 00000000 a1a2a3a4 a5a6a7a8 \
         00000000 00000005 00000000 00000000 00000000 00000000 00000000 00000000",
    );
    let mut probe = base(Kind::Probe);
    probe.msg_len = 100;
    probe.offset = 60;
    let body = ProbeBody { client: 9.into(), received: 16.into(), granted: 32.into() };
    check(
        probe,
        body.as_bytes(),
        "24000500 07000003 12345678 00000064 0000003c 00000000 a1a2a3a4 a5a6a7a8 \
         00000009 00000010 00000020",
    );
}

#[test]
fn golden_states() {
    let mut busy = base(Kind::Busy);
    busy.flags = TO_CLIENT;
    busy.offset = 1000;
    check(busy, b"", "25010500 07000003 12345678 00000000 000003e8 00000000 a1a2a3a4 a5a6a7a8");
    let mut executing = base(Kind::Busy);
    executing.flags = TO_CLIENT | EXECUTING;
    check(
        executing,
        b"",
        "25110500 07000003 12345678 00000000 00000000 00000000 a1a2a3a4 a5a6a7a8",
    );
    for (kind, first) in
        [(Kind::Unknown, "26"), (Kind::Gone, "27"), (Kind::NeedAck, "29"), (Kind::Close, "2d")]
    {
        let golden = "000500 07000003 12345678 00000000 00000000 00000000 a1a2a3a4 a5a6a7a8";
        check(base(kind), b"", &[first, golden].concat());
    }
}

#[test]
fn golden_done() {
    let entry = DoneEntry {
        session: 0x0700_0003.into(),
        token: 0xa1a2_a3a4_a5a6_a7a8.into(),
        channels: 0b1000_0001,
        padding: [0; 3],
    };
    let body = [entry.as_bytes(), &[0, 0, 0, 1], &[0, 0, 0, 2]].concat();
    check(
        Packet::new(Kind::Done),
        &body,
        "28000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 \
         07000003 a1a2a3a4 a5a6a7a8 81000000 00000001 00000002",
    );
}

#[test]
fn golden_opening() {
    let mut open = Packet::new(Kind::Open);
    open.offset = 0x0100_0002;
    open.seq = 12;
    open.token = 0xb1b2_b3b4_b5b6_b7b8;
    let body = OpenBody {
        features: 0.into(),
        max_payload: 1472.into(),
        unscheduled: 0x1_0000.into(),
        epoch: 3.into(),
        cookie: 0xc1c2_c3c4_c5c6_c7c8.into(),
        incarnation: 0xe1e2_e3e4_e5e6_e7e8.into(),
    };
    check(
        open,
        body.as_bytes(),
        "2a000000 00000000 0000000c 00000000 01000002 00000000 b1b2b3b4 b5b6b7b8 \
         00000000 000005c0 00010000 00000003 c1c2c3c4 c5c6c7c8 e1e2e3e4 e5e6e7e8",
    );
    let mut cookie = Packet::new(Kind::Cookie);
    cookie.flags = TO_CLIENT;
    cookie.session = 0x0100_0002;
    cookie.token = open.token;
    let body =
        CookieBody { epoch: 3.into(), padding: 0.into(), cookie: 0xc1c2_c3c4_c5c6_c7c8.into() };
    check(
        cookie,
        body.as_bytes(),
        "2b010000 01000002 00000000 00000000 00000000 00000000 b1b2b3b4 b5b6b7b8 \
         00000003 00000000 c1c2c3c4 c5c6c7c8",
    );
    let body = AcceptBody {
        session: 0x0700_0003.into(),
        mss: 1432.into(),
        unscheduled: 0x1_0000.into(),
        padding: 0.into(),
        token: 0xa1a2_a3a4_a5a6_a7a8.into(),
        incarnation: 0xd1d2_d3d4_d5d6_d7d8.into(),
    };
    check(
        Packet { kind: Kind::Accept, ..cookie },
        body.as_bytes(),
        "2c010000 01000002 00000000 00000000 00000000 00000000 b1b2b3b4 b5b6b7b8 \
         07000003 00000598 00010000 00000000 a1a2a3a4 a5a6a7a8 d1d2d3d4 d5d6d7d8",
    );
    check(
        Packet { kind: Kind::Reset, offset: ResetReason::Version as u32, ..cookie },
        b"",
        "2e010000 01000002 00000000 00000000 00000002 00000000 b1b2b3b4 b5b6b7b8",
    );
}

/// The checksum of an RPC packet covers the pseudo-header ("sprt" and the length), then all bytes
/// before the checksum.
#[test]
fn golden_checksum() {
    let bytes = emit(&base(Kind::Gone), b"", Some(crc32c));
    let covered = [b"sprt", &[0, 0, 0, 36][..], &bytes[..32]].concat();
    assert_eq!(bytes[32..], crc32c(0, &covered).to_be_bytes());
    for bit in 0..8 * bytes.len() {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(parse(&flipped, Some(crc32c)), Err(Bad::Checksum), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(
            matches!(parse(&bytes[..len], Some(crc32c)), Err(Bad::Checksum | Bad::Short)),
            "{len} bytes"
        );
    }
}

#[test]
fn what_is_no_packet() {
    let data = |change: fn(&mut Packet), body: &[u8]| {
        let mut packet = base(Kind::Data);
        packet.msg_len = 10;
        change(&mut packet);
        parse(&emit(&packet, body, None), None).map(|_| ())
    };
    // Expect: the whole and a part of a message are packets.
    assert_eq!(data(|_| (), &[0; 10]), Ok(()));
    assert_eq!(data(|p| p.offset = 4, &[0; 6]), Ok(()));
    assert_eq!(data(|p| p.msg_len = 0, &[]), Ok(()));
    // Expect: beyond the message, beyond the limit, or nothing at all is none.
    assert_eq!(data(|p| p.offset = 5, &[0; 6]), Err(Bad::Field));
    assert_eq!(data(|p| p.offset = u32::MAX, &[0; 6]), Err(Bad::Field));
    assert_eq!(data(|p| p.msg_len = (16 << 20) + 1, &[0; 6]), Err(Bad::Field));
    assert_eq!(data(|_| (), &[]), Err(Bad::Field));
    // Expect: fields out of range are refused.
    assert_eq!(data(|p| p.channel = 8, &[0; 10]), Err(Bad::Field));
    assert_eq!(data(|p| p.seq = SEQ_MAX + 1, &[0; 10]), Err(Bad::Field));
    // Expect: another version is refused, unless it opens or resets, whose headers never change.
    assert_eq!(data(|p| p.version = 2, &[0; 10]), Err(Bad::Version));
    for (kind, result) in
        [(Kind::Open, true), (Kind::Reset, true), (Kind::Accept, false), (Kind::Probe, false)]
    {
        let packet = Packet { version: 5, ..Packet::new(kind) };
        assert_eq!(parse(&emit(&packet, &[0; 64], None), None).is_ok(), result, "{kind:?}");
    }
    // Expect: unknown extension words are skipped, missing ones are noticed.
    let mut bytes = emit(&base(Kind::Gone), &[1, 2, 3, 4, 5, 6, 7, 8], None);
    bytes[3] = 2;
    assert_eq!(parse(&bytes, None).map(|p| p.body_len()), Ok(0));
    bytes[3] = 3;
    assert_eq!(parse(&bytes, None), Err(Bad::Short));
    bytes[3] = 0;
    bytes[1] = TTL;
    assert_eq!(parse(&bytes, None), Err(Bad::Field));
}

fn kinds() -> impl Strategy<Value = Kind> {
    (1u8..=14).prop_map(|bits| Kind::new(bits).expect("a kind"))
}

proptest! {
    /// The part of the pseudo-header's checksum that is computed ahead equals the computed one.
    #[test]
    fn the_checksum_begins_with_name_and_length(len: u32, short: u16) {
        for len in [len, u32::from(short), 0, 0xffff, 0x1_0000] {
            let [a, b, c, d] = len.to_be_bytes();
            let start = [b's', b'p', b'r', b't', a, b, c, d];
            prop_assert_eq!(crc_start(len as usize), crc32c(0, &start));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..120), crc: bool,
    ) {
        if let Ok(packet) = parse(&bytes, crc.then_some(crc32c as Crc32c)) {
            prop_assert!(packet.body_end as usize <= bytes.len());
            prop_assert!(packet.body_start <= packet.body_end);
        }
    }

    /// Random bytes that begin like an RPC packet reach the deeper checks of the parser, which
    /// never panics.
    #[test]
    fn nearly_packets_never_panic(
        kind in 0u8..32, ext in 0u8..4, rest in proptest::collection::vec(any::<u8>(), 28..100),
    ) {
        let mut bytes = alloc::vec![VERSION << 5 | kind, 0, 0, ext];
        bytes.extend(rest);
        if let Ok(packet) = parse(&bytes, None) {
            prop_assert!(packet.body_len() >= packet.kind.body_min());
        }
    }

    #[test]
    fn emit_and_parse_are_inverse(
        kind in kinds(), flags in 0u8..32, channel in 0u8..8, session: u32, seq in 0..=SEQ_MAX,
        offset: u32, ts_us: u16, ts_echo_us: u16, token: u64, ttl_us: u32,
        body in proptest::collection::vec(any::<u8>(), 40..80),
    ) {
        let data = kind == Kind::Data;
        let offset = if data { offset % 1000 } else { offset };
        let msg_len = if data { offset + body.len() as u32 } else { offset ^ 77 };
        let ttl_us = if flags & TTL == 0 { 0 } else { ttl_us };
        let packet = Packet {
            version: VERSION, kind, flags, channel, session, seq, msg_len, offset, ts_us,
            ts_echo_us, token, ttl_us, body_start: 0, body_end: 0,
        };
        let bytes = emit(&packet, &body, Some(crc32c));
        let head = packet.head();
        prop_assert!(head.padded()[head.len()..].iter().all(|&b| b == 0));
        prop_assert_eq!(&trailer(crc32c, &[&head, &body])[..], &bytes[bytes.len() - CRC..]);
        let parsed = parse(&bytes, Some(crc32c)).expect("a packet");
        prop_assert_eq!(parsed.body(&bytes), &body[..]);
        prop_assert_eq!(Packet { body_start: 0, body_end: 0, ..parsed }, packet);
    }
}
