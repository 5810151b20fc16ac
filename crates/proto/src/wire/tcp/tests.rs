//! Tests of TCP headers, byte by byte.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// The SYN with which Linux 6 begins a connection over a link of 1,500 bytes.
const SYN: [u8; 40] = [
    0xc0, 0x01, 0x1e, 0x3c, 0x01, 0x02, 0x03, 0x04, 0, 0, 0, 0, 0xa0, 0x02, 0xfa, 0xf0, 0, 0, 0, 0,
    2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7,
];

fn emit(tcp: &Tcp) -> Vec<u8> {
    let mut out = [0xff; MAX_HEADER];
    let len = tcp.emit(&mut out);
    out[..len].to_vec()
}

/// A SYN has the options of Linux's in their order: four bytes less than with each option aligned
/// alone.
#[test]
fn a_syn_is_that_of_linux() {
    let (tcp, payload) = Tcp::parse(&SYN).unwrap();
    let options = TcpOptions {
        mss: Some(1460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some((9, 0)),
        sack: SackBlocks::default(),
    };
    let wanted = Tcp {
        from: 0xc001,
        to: 7740,
        seq: 0x0102_0304,
        ack: 0,
        flags: Flags::SYN,
        window: 64_240,
        urgent: 0,
        options,
    };
    assert_eq!((tcp, payload), (wanted, &[][..]));
    assert_eq!(emit(&wanted), SYN);
    let without = TcpOptions { timestamps: None, ..options };
    let bytes = emit(&Tcp { options: without, ..wanted });
    assert_eq!(bytes[HEADER..], [2, 4, 0x05, 0xb4, 1, 1, 4, 2, 1, 3, 3, 7]);
}

#[test]
fn golden() {
    let mut sack = SackBlocks::default();
    sack.push((10, 20));
    let tcp = Tcp {
        from: 1,
        to: 2,
        seq: 3,
        ack: 4,
        flags: Flags::ACK.with(Flags::PSH),
        window: 5,
        urgent: 6,
        options: TcpOptions { timestamps: Some((7, 8)), sack, ..TcpOptions::default() },
    };
    let bytes = emit(&tcp);
    let wanted = [
        0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0xb0, 0x18, 0, 5, 0, 0, 0, 6, //
        1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 8, //
        1, 1, 5, 10, 0, 0, 0, 10, 0, 0, 0, 20,
    ];
    assert_eq!(bytes, wanted);
    assert_eq!(Tcp::parse(&bytes), Ok((tcp, &[][..])));
}

#[test]
fn sack_blocks_take_the_room_that_timestamps_leave() {
    let mut sack = SackBlocks::default();
    (0..9).for_each(|n| sack.push((n, n + 1)));
    assert_eq!(sack.as_slice().len(), MAX_SACK);
    let of = |timestamps| {
        let options = TcpOptions { timestamps, sack, ..TcpOptions::default() };
        let bytes = emit(&Tcp { options, ..Tcp::default() });
        (bytes.len(), Tcp::parse(&bytes).unwrap().0.options.sack.as_slice().len())
    };
    assert_eq!((of(None), of(Some((1, 2)))), ((56, 4), (60, 3)));
}

#[test]
fn tm7_tm68_malformed_segments_are_refused() {
    assert!((0..20).all(|len| Tcp::parse(&SYN[..len]) == Err(TcpParseError::Length)));
    assert!((20..40).all(|len| Tcp::parse(&SYN[..len]) == Err(TcpParseError::Length)));
    for offset in 0..5 {
        let mut bytes = SYN;
        bytes[12] = offset << 4;
        assert_eq!(Tcp::parse(&bytes), Err(TcpParseError::Length));
    }
    // RFC 9293 MUST-7: every length of an option, also 0.
    for kind in [2, 3, 4, 5, 8, 253] {
        for len in 0..=41 {
            let mut bytes = [1; MAX_HEADER];
            bytes[12] = 0xf0;
            bytes[20..22].copy_from_slice(&[kind, len]);
            let right = match kind {
                2 => len == 4,
                3 => len == 3,
                4 => len == 2,
                5 => len > 2 && len % 8 == 2 && len <= 40,
                8 => len == 10,
                _ => (2..=40).contains(&len),
            };
            assert_eq!(Tcp::parse(&bytes).is_ok(), right, "{kind} {len}");
        }
    }
}

#[test]
fn tm4_what_follows_the_end_of_options_does_not_count() {
    let mut bytes = SYN;
    bytes[24] = 0;
    let (tcp, _) = Tcp::parse(&bytes).unwrap();
    assert_eq!(tcp.options, TcpOptions { mss: Some(1460), ..TcpOptions::default() });
}

/// RFC 9293 3.1: options begin at any byte, those of unknown kinds are skipped by their lengths,
/// and no-operations fill any place.
#[test]
fn tm4_tm6_tm64_options_begin_anywhere_and_unknown_ones_are_skipped() {
    for nops in 0..20 {
        for unknown in 2..10 {
            let mut bytes = [1; MAX_HEADER];
            bytes[12] = 0xf0;
            bytes[20 + nops..22 + nops].copy_from_slice(&[254, unknown as u8]);
            bytes[22 + nops..20 + nops + unknown].fill(9);
            let at = 20 + nops + unknown;
            bytes[at..at + 4].copy_from_slice(&[2, 4, 0x12, 0x34]);
            bytes[at + 4] = 0;
            // What follows the end is no option.
            bytes[at + 5] = 2;
            let (tcp, _) = Tcp::parse(&bytes).unwrap();
            assert_eq!(tcp.options, TcpOptions { mss: Some(0x1234), ..TcpOptions::default() });
        }
    }
}

/// RFC 9293 3.1: a header is whole words, and only no-operations fill it.
#[test]
fn tm69_a_header_is_filled_up_to_whole_words() {
    for bits in 0..32_u32 {
        let has = |bit: u32| bits & 1 << bit != 0;
        let mut sack = SackBlocks::default();
        (0..4).filter(|_| has(4)).for_each(|n| sack.push((n, n + 1)));
        let options = TcpOptions {
            mss: has(0).then_some(1460),
            window_scale: has(1).then_some(7),
            sack_permitted: has(2),
            timestamps: has(3).then_some((1, 2)),
            sack,
        };
        let bytes = emit(&Tcp { options, ..Tcp::default() });
        assert!(bytes.len().is_multiple_of(4) && bytes.len() == usize::from(bytes[12] >> 4) * 4);
        let mut left = &bytes[20..];
        while let Some((&kind, rest)) = left.split_first() {
            assert_ne!(kind, 0, "{bits:#b}: what follows an end would have to be zeros");
            left = if kind == 1 { rest } else { &left[usize::from(left[1])..] };
        }
    }
}

proptest! {
    /// Any bytes are a segment or not. What is one keeps its fields through the wire.
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        if let Ok((tcp, payload)) = Tcp::parse(&bytes) {
            prop_assert!(payload.len() + HEADER <= bytes.len());
            let again = emit(&tcp);
            let mut tcp = tcp;
            // A header with all other options has less room for blocks.
            let kept = Tcp::parse(&again).unwrap().0.options.sack;
            tcp.options.sack.truncate(kept.as_slice().len());
            prop_assert_eq!(Tcp::parse(&again), Ok((tcp, &[][..])));
        }
    }
}

#[test]
fn sack_blocks_equal_others_whatever_was_truncated() {
    let mut blocks = SackBlocks::default();
    blocks.push((1, 2));
    let one = blocks;
    blocks.push((3, 4));
    assert_ne!(blocks, one);
    blocks.truncate(256);
    assert_ne!(blocks, one);
    blocks.truncate(1);
    assert_eq!(blocks, one);
}
