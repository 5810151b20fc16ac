//! Tests of FPDUs with memory that is named in place, and with random streams, cut anywhere,
//! against an oracle that works word by word.

use alloc::vec;
use alloc::vec::Vec;

use proptest::collection::vec as vec_of;
use proptest::prelude::*;

use super::*;
use crate::rand::Rng;

#[test]
fn long_memory_is_referred_to_and_not_touched() {
    let mut region = Region::new(70_000);
    let (mut framer, mut record) = (MODES[0].framer(), Record::default());
    let header = [0xc1; 14];
    framer.frame(&header, &[Piece::Memory(span(100, 64_000))], &mut region, &mut record).unwrap();
    assert_eq!((region.reads, record.bytes.len()), (0, 2 + 14 + 4));
    let parts = [Part::Bytes(0..16), Part::Memory(span(100, 64_000)), Part::Bytes(16..20)];
    assert_eq!(record.parts, parts);

    // Two FPDUs in one record: the bytes between two spans are one part.
    framer.frame(&header, &[Piece::Memory(span(0, 2_048))], &mut region, &mut record).unwrap();
    assert_eq!(record.parts.len(), 5);
    assert_eq!(record.parts[2..4], [Part::Bytes(16..36), Part::Memory(span(0, 2_048))]);
    // Shorter memory is copied.
    framer.frame(&header, &[Piece::Memory(span(0, 2_047))], &mut region, &mut record).unwrap();
    assert_eq!((record.parts.len(), region.reads), (5, 1));
    let (first, second, third) = (64_000, 2_048, 2_047);
    let expected = [(100, first), (0, second), (0, third)]
        .map(|(at, len): (usize, usize)| [&header[..], &region.bytes[at..at + len]].concat());
    assert_eq!(take(&mut MODES[0].deframer(), &flat(&record, &region)), (expected.to_vec(), None));
}

#[test]
fn unmapped_memory_leaves_record_and_stream_as_they_were() {
    for mode in MODES {
        let mut region = Region::new(5_000);
        let (mut framer, mut record) = (mode.framer(), Record::default());
        put(&mut framer, &ulpdu(700, true), &mut record);
        let before = record.clone();
        let pieces = [Piece::Memory(span(0, 4_000)), Piece::Memory(span(4_999, 2))];
        assert_eq!(framer.frame(&[0x81; 14], &pieces, &mut region, &mut record), Err(Unmapped));
        assert_eq!(record, before);
        put(&mut framer, &ulpdu(900, false), &mut record);
        let expected = vec![ulpdu(700, true), ulpdu(900, false)];
        assert_eq!(
            take(&mut mode.deframer(), &flat(&record, &region)),
            (expected, None),
            "{mode:?}"
        );
    }
}

#[test]
fn memory_of_length_zero_may_lie_anywhere() {
    for mode in MODES {
        let (mut region, mut record) = (Region::default(), Record::default());
        let nowhere = [Piece::Memory(span(u64::MAX, 0)), Piece::Bytes(&[])];
        mode.framer().frame(&ulpdu(14, true), &nowhere, &mut region, &mut record).unwrap();
        assert_eq!((region.reads, record.parts.len()), (0, 1));
        assert_eq!(take(&mut mode.deframer(), &record.bytes), (vec![ulpdu(14, true)], None));
    }
}

#[test]
fn payload_without_crc_and_markers_is_returned_in_place_as_it_arrives() {
    let mode = MODES[0];
    let sent = ulpdu(115, true);
    let stream = mode.stream(&[sent.clone(), ulpdu(20, true)]);
    let (mut deframer, mut scratch) = (mode.deframer(), Vec::new());
    assert!(deframer.between());
    assert_eq!(deframer.next(&stream[..15], &mut scratch), Deframed::More);
    assert!(deframer.between());
    let step = deframer.next(&stream[..16], &mut scratch);
    let (header, none) = (Some(&sent[..14]), &[][..]);
    assert_eq!(
        step,
        Deframed::Piece { header, payload: none, rest: 101, last: false, consumed: 16 }
    );
    assert!(!deframer.between());
    assert_eq!(deframer.rest(), 101);
    // The caller places 100 bytes; more than announced do not count.
    deframer.skip(100);
    assert_eq!(deframer.rest(), 1);
    let step = deframer.next(&stream[116..118], &mut scratch);
    let payload = &sent[114..];
    assert_eq!(step, Deframed::Piece { header: None, payload, rest: 0, last: false, consumed: 1 });
    deframer.skip(1);
    // Pad and CRC are consumed at once: 115 + 2 bytes need a pad of 3.
    assert_eq!(deframer.next(&stream[117..123], &mut scratch), Deframed::More);
    let step = deframer.next(&stream[117..124], &mut scratch);
    assert_eq!(
        step,
        Deframed::Piece { header: None, payload: none, rest: 0, last: true, consumed: 7 }
    );
    assert!(deframer.between());
    assert_eq!(take(&mut deframer, &stream[124..]), (vec![ulpdu(20, true)], None));
    assert!(scratch.is_empty());
}

/// A random ULPDU to post: its kind, and the lengths of its pieces of memory and of bytes.
fn posted() -> impl Strategy<Value = (bool, Vec<(bool, usize)>)> {
    let len = prop_oneof![4 => 0usize..60, 3 => 0usize..1_500, 1 => 2_000usize..9_000];
    (any::<bool>(), vec_of((any::<bool>(), len), 0..4))
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// The framed stream equals the oracle's, and the deframer returns its ULPDUs wherever it is
    /// cut.
    #[test]
    fn streams_equal_the_oracles_and_survive_any_cut(
        posted in vec_of(posted(), 1..12),
        mode in 0..4usize,
        seed: u64,
        direct: bool,
    ) {
        let mode = MODES[mode];
        let mut region = Region::new(40_000);
        let memory = region.bytes.clone();
        let (mut framer, mut record) = (mode.framer(), Record::default());
        let mut ulpdus = Vec::new();
        for (tagged, cuts) in &posted {
            let header = ulpdu(if *tagged { 14 } else { 18 }, *tagged);
            let (mut at, mut pieces, mut whole) = (0, Vec::new(), header.clone());
            for &(is_memory, len) in cuts {
                pieces.push(match is_memory {
                    true => Piece::Memory(span(at as u64, len as u32)),
                    false => Piece::Bytes(&memory[at..at + len]),
                });
                whole.extend(&memory[at..at + len]);
                at += len;
            }
            framer.frame(&header, &pieces, &mut region, &mut record).unwrap();
            ulpdus.push(whole);
        }
        let stream = mode.stream(&ulpdus);
        prop_assert_eq!(flat(&record, &region), &stream[..]);
        prop_assert_eq!(record.len(), stream.len());
        let pairs = record.parts.windows(2);
        let both_bytes = |pair: &[Part]| matches!(pair, [Part::Bytes(_), Part::Bytes(_)]);
        prop_assert!(!pairs.into_iter().any(both_bytes));
        let mut rng = Rng::seeded(seed);
        let most = 1 << rng.below(15);
        let mut cut = |_: usize| rng.below(most) as usize + 1;
        prop_assert_eq!(receive(mode, &stream, &mut cut, direct), ulpdus);
    }

    /// Whatever bytes the peer sends, every call of the deframer consumes the bytes that it
    /// reports, and nothing panics.
    #[test]
    fn any_bytes_are_taken_or_refused(
        mut bytes in vec_of(any::<u8>(), 0..2_000),
        short: bool,
        mode in 0..4usize,
    ) {
        if short && bytes.len() > 1 {
            (bytes[0], bytes[1]) = (0, bytes[1] | 0x20);
        }
        let mut deframer = MODES[mode].deframer();
        let (mut rest, mut scratch) = (&bytes[..], Vec::new());
        while let Deframed::Piece { header, payload, consumed, .. } =
            deframer.next(rest, &mut scratch)
        {
            prop_assert!(consumed > 0 && consumed <= rest.len());
            prop_assert!(header.map_or(0, <[u8]>::len) + payload.len() <= consumed);
            rest = &rest[consumed..];
        }
    }
}
