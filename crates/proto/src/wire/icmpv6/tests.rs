use super::*;
use crate::wire::ipv4::Ecn;

const A: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0xa);
const B: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0xff, 0xfe00, 0xb);

const fn ip(from: Ipv6Addr, to: Ipv6Addr, hops: u8) -> Ipv6 {
    Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: ICMPV6, hops, from, to }
}

/// A neighbour solicitation for the address `B` that Linux 6 sent.
const SOLICITATION: [u8; 32] = [
    135, 0, 0x7c, 0x73, 0, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0x0b,
    1, 1, 2, 0, 0, 0, 0, 0x0a,
];
/// The neighbour advertisement of the address `B` that Linux 6 sent.
const ADVERTISEMENT: [u8; 32] = [
    136, 0, 0x1a, 0xf6, 0x60, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0,
    0x0b, 2, 1, 2, 0, 0, 0, 0, 0x0b,
];
/// The probe of duplicate address detection for the address `A` that Linux 6 sent. It has a nonce
/// option (RFC 7527), which the parser skips.
const DETECTION: [u8; 32] = [
    135, 0, 0x42, 0x44, 0, 0, 0, 0, 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 0x0a,
    14, 1, 0x22, 4, 0x81, 0x71, 0x89, 0x50,
];
/// An ICMPv6 echo request and its reply.
const REQUEST: [u8; 16] = [128, 0, 0x66, 0x59, 0x12, 0x34, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7];
const ANSWER: [u8; 16] = [129, 0, 0x65, 0x59, 0x12, 0x34, 0, 1, 0, 1, 2, 3, 4, 5, 6, 7];

#[test]
fn golden() {
    let [a, b] = [0xa, 0xb].map(|last| Mac([2, 0, 0, 0, 0, last]));
    let group = super::super::ipv6::solicited;
    let advertise = Icmpv6::Advertise {
        target: B,
        mac: Some(b),
        router: false,
        solicited: true,
        replaces: true,
    };
    let solicit = Icmpv6::Solicit { target: B, mac: Some(a) };
    for (bytes, header, message) in
        [(SOLICITATION, ip(A, group(B), 255), solicit), (ADVERTISEMENT, ip(B, A, 255), advertise)]
    {
        assert_eq!(Icmpv6::parse(&header, &bytes), Ok((message, &bytes[8..])));
        assert_eq!(message.emit(&header, &[]), bytes);
    }
    let detect = Icmpv6::Solicit { target: A, mac: None };
    let header = ip(Ipv6Addr::UNSPECIFIED, group(A), 255);
    assert_eq!(Icmpv6::parse(&header, &DETECTION).unwrap().0, detect);
    let (ident, seq) = (0x1234, 1);
    let echoes = [
        (REQUEST, ip(A, B, 64), Icmpv6::Echo { ident, seq }),
        (ANSWER, ip(B, A, 64), Icmpv6::Reply { ident, seq }),
    ];
    for (bytes, header, message) in echoes {
        assert_eq!(Icmpv6::parse(&header, &bytes), Ok((message, &bytes[8..])));
        assert_eq!(message.emit(&header, &bytes[8..]), bytes);
    }
}

#[test]
fn parse_reads_back_what_emit_writes() {
    let header = ip(A, B, 64);
    let nothing =
        Icmpv6::Advertise { target: A, mac: None, router: true, solicited: false, replaces: false };
    for message in
        [Icmpv6::PortUnreachable, Icmpv6::Unreachable { code: 3 }, Icmpv6::TooBig { mtu: 1280 }]
    {
        let bytes = message.emit(&header, b"quoted!");
        assert_eq!(Icmpv6::parse(&header, &bytes), Ok((message, &b"quoted!"[..])));
    }
    for message in [nothing, Icmpv6::Solicit { target: B, mac: None }, Icmpv6::Other(134)] {
        assert_eq!(Icmpv6::parse(&header, &message.emit(&header, &[])).unwrap().0, message);
    }
}

#[test]
fn damaged_truncated_and_endless_messages_are_rejected() {
    let header = ip(B, A, 255);
    for at in 0..ADVERTISEMENT.len() {
        let mut bad = ADVERTISEMENT;
        bad[at] ^= 4;
        assert_eq!(Icmpv6::parse(&header, &bad), Err(Icmpv6ParseError::Checksum), "byte {at}");
    }
    assert!(
        (0..HEADER)
            .all(|len| Icmpv6::parse(&header, &ADVERTISEMENT[..len])
                == Err(Icmpv6ParseError::Length))
    );
    // Messages with correct checksums: truncated targets and options, and an option of length 0.
    let sealed = |mut bytes: Vec<u8>| {
        bytes[2..4].fill(0);
        let checksum = header.pseudo(ICMPV6, bytes.len()).bytes(&bytes).checksum();
        bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
        Icmpv6::parse(&header, &bytes).map(|(message, _)| message)
    };
    for len in 8..32 {
        let parsed = sealed(ADVERTISEMENT[..len].to_vec());
        assert_eq!(parsed.is_ok(), len == 24, "{len} bytes: {parsed:?}");
    }
    let mut endless = ADVERTISEMENT.to_vec();
    endless[25] = 0;
    assert_eq!(sealed(endless), Err(Icmpv6ParseError::Length));
}
