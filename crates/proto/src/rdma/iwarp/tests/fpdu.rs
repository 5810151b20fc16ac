//! Tests of FPDUs: each rule of RFC 5044 by itself.

use alloc::vec;
use alloc::vec::Vec;

use super::*;

#[test]
fn f1_one_ulpdu_an_fpdu_of_whole_words_whose_length_counts_it_alone() {
    for mode in MODES {
        for len in 14..1_100 {
            let (mut framer, mut record) = (mode.framer(), Record::default());
            let ulpdu = ulpdu(len, true);
            put(&mut framer, &ulpdu, &mut record);
            let length_at = if mode.markers { 4 } else { 0 };
            assert_eq!(record.bytes[length_at..][..2], (len as u16).to_be_bytes());
            assert_eq!(record.len() % 4, 0);
            assert_eq!(take(&mut mode.deframer(), &record.bytes), (vec![ulpdu], None));
        }
    }
}

#[test]
fn f2_the_pad_is_zeros_and_may_be_anything_under_a_right_crc() {
    let mode = Mode { crc: true, markers: false };
    for len in [19, 20, 21] {
        let mut record = Record::default();
        put(&mut mode.framer(), &ulpdu(len, false), &mut record);
        let pad = 2 + len..record.len() - CRC;
        assert!(!pad.is_empty() && record.bytes[pad.clone()].iter().all(|&b| b == 0));
        let forged = forged(&record.bytes, pad.start, 0xff);
        assert_eq!(take(&mut mode.deframer(), &forged), (vec![ulpdu(len, false)], None));
    }
}

#[test]
fn f3_both_samples_of_the_rfc() {
    let (mut framer, mut record) = (BOTH.framer(), Record::default());
    put(&mut framer, &sample(1), &mut record);
    let first = [&[0, 0, 0, 0, 0, 42][..], &sample(1), &[0x52, 0x23, 0x99, 0x83]].concat();
    assert_eq!(record.bytes, first);
    assert_eq!(take(&mut BOTH.deframer(), &first), (vec![sample(1).to_vec()], None));

    // The second FPDU follows one that ends at 492.
    let (mut framer, mut record) = (BOTH.framer(), Record::default());
    put(&mut framer, &ulpdu(482, false), &mut record);
    assert_eq!(record.len(), 492);
    put(&mut framer, &sample(2), &mut record);
    let (header, payload) = (&sample(2)[..18], &sample(2)[18..]);
    let second = [&[0, 42], header, &[0, 0, 0, 0x14], payload, &[0x84, 0x92, 0x58, 0x98]].concat();
    assert_eq!(record.bytes[492..], second);
    let both = vec![ulpdu(482, false), sample(2).to_vec()];
    assert_eq!(take(&mut BOTH.deframer(), &record.bytes), (both, None));
}

#[test]
fn f4_markers_before_the_length_and_before_the_crc_count_in_it() {
    // The pad of the first FPDU ends at 512, where a marker is due: 4 + 2 + 506 bytes.
    let mut record = Record::default();
    let mut framer = BOTH.framer();
    put(&mut framer, &ulpdu(506, true), &mut record);
    assert_eq!(record.len(), 512 + MARKER + CRC);
    assert_eq!(record.bytes[512..516], 508u32.to_be_bytes());
    for at in [0, 512] {
        let mut damaged = record.bytes.clone();
        damaged[at] |= 1;
        assert_eq!(take(&mut BOTH.deframer(), &damaged), (vec![], Some(FpduError::Crc)));
        let forged = forged(&record.bytes, at, 1);
        assert_eq!(take(&mut BOTH.deframer(), &forged), (vec![ulpdu(506, true)], None));
    }
}

#[test]
fn f5_nothing_is_returned_before_its_crc_is_checked() {
    for mode in [MODES[2], BOTH] {
        let (mut framer, mut record) = (mode.framer(), Record::default());
        put(&mut framer, &ulpdu(1_200, true), &mut record);
        let mut scratch = Vec::new();
        for end in 0..record.len() {
            let mut deframer = mode.deframer();
            assert_eq!(deframer.next(&record.bytes[..end], &mut scratch), Deframed::More);
            assert_eq!(deframer.rest(), 0, "nor may the caller place it");
        }
        for at in 0..record.len() {
            let mut damaged = record.bytes.clone();
            damaged[at] ^= 0x10;
            let (ulpdus, _) = take(&mut mode.deframer(), &damaged);
            assert!(ulpdus.is_empty(), "damaged at {at}");
        }
    }
}

#[test]
fn f6_after_a_fault_nothing_more_is_passed_up() {
    let mode = MODES[2];
    let mut framer = mode.framer();
    let (mut good, mut bad) = (Record::default(), Record::default());
    put(&mut framer, &ulpdu(40, true), &mut bad);
    put(&mut framer, &ulpdu(50, true), &mut good);
    bad.bytes[9] ^= 1;
    let mut deframer = mode.deframer();
    assert_eq!(take(&mut deframer, &bad.bytes), (vec![], Some(FpduError::Crc)));
    assert_eq!(take(&mut deframer, &good.bytes), (vec![], Some(FpduError::Crc)));
    assert_eq!(take(&mut deframer, &[]), (vec![], Some(FpduError::Crc)));
}

/// A stream with markers and many FPDUs, short and long, and the offsets at which the FPDUs start.
/// A marker before an FPDU belongs to it.
fn marked() -> (Vec<u8>, Vec<usize>) {
    let (mut framer, mut record) = (BOTH.framer(), Record::default());
    let mut rng = Rng::seeded(5);
    let mut starts = Vec::new();
    while record.len() < 400_000 {
        let most = if rng.chance(500_000) { 60 } else { 3_000 };
        starts.push(record.len());
        put(&mut framer, &ulpdu(14 + rng.below(most) as usize, true), &mut record);
    }
    (record.bytes, starts)
}

/// Reads the marker at offset `at` of the stream.
fn marker(stream: &[u8], at: usize) -> usize {
    u32::from_be_bytes(stream[at..at + 4].try_into().unwrap()) as usize
}

#[test]
fn f8_full_operation_starts_with_a_marker_of_zeros() {
    let (stream, _) = marked();
    let first = u16::from_be_bytes([stream[4], stream[5]]);
    assert_eq!(
        (marker(&stream, 0), usize::from(first)),
        (0, take(&mut BOTH.deframer(), &stream).0[0].len())
    );
}

#[test]
fn f9_markers_stand_every_512_bytes_counted_from_the_first_not_by_sequence_numbers() {
    let (stream, starts) = marked();
    let markers = stream.len().div_ceil(512);
    let (ulpdus, fault) = take(&mut BOTH.deframer(), &stream);
    assert_eq!((ulpdus.len(), fault), (starts.len(), None));
    let words = ulpdus.iter().map(|ulpdu| fpdu_len(ulpdu.len())).sum::<usize>();
    assert_eq!(stream.len(), words + MARKER * markers);
}

#[test]
fn f10_every_marker_inside_an_fpdu_points_to_its_length_field() {
    let (stream, starts) = marked();
    let mut inside = 0;
    for at in (0..stream.len()).step_by(512) {
        let start = *starts.iter().rfind(|&&start| start <= at).unwrap();
        if start < at {
            let length_at = start + if start % 512 == 0 { MARKER } else { 0 };
            assert_eq!(marker(&stream, at), at - length_at, "at {at}");
            inside += 1;
        }
    }
    assert!(inside > 500);
}

#[test]
fn f11_a_marker_between_fpdus_is_zero_and_the_following_ones() {
    let (stream, starts) = marked();
    let between: Vec<usize> = starts.iter().copied().filter(|start| start % 512 == 0).collect();
    assert!(between.len() > 2, "{between:?}");
    for &at in &between {
        assert_eq!(marker(&stream, at), 0, "at {at}");
        // The FPDU that ends here is whole without the marker. The next one is incomplete until its
        // last byte.
        let before = take(&mut BOTH.deframer(), &stream[..at]).0.len();
        assert_eq!(before, starts.iter().filter(|&&start| start < at).count());
        assert_eq!(take(&mut BOTH.deframer(), &stream[..at + MARKER]).0.len(), before);
    }
}

#[test]
fn f12_reserved_bits_of_a_marker_are_ignored_and_its_pointer_is_checked() {
    let mut record = Record::default();
    put(&mut BOTH.framer(), &ulpdu(600, true), &mut record);
    for (at, bits) in [(0, 0xff), (1, 0xff), (3, 3), (512, 0xff), (513, 0xff), (515, 3)] {
        assert_eq!(record.bytes[at] & bits, 0);
        let forged = forged(&record.bytes, at, bits);
        assert_eq!(take(&mut BOTH.deframer(), &forged), (vec![ulpdu(600, true)], None));
    }
    for (at, bits) in [(2, 1), (3, 4), (514, 0x80), (515, 4)] {
        let wrong = forged(&record.bytes, at, bits);
        assert_eq!(
            take(&mut BOTH.deframer(), &wrong),
            (vec![], Some(FpduError::Marker)),
            "at {at}"
        );
    }
    // A wrong marker shows without a CRC too.
    let mut record = Record::default();
    put(&mut MODES[1].framer(), &ulpdu(600, true), &mut record);
    record.bytes[514] ^= 0x20;
    assert_eq!(take(&mut MODES[1].deframer(), &record.bytes), (vec![], Some(FpduError::Marker)));
}

#[test]
fn f14_the_mulpdu_follows_the_segment_and_keeps_its_bounds() {
    for (markers, expected) in [(false, [64_768, 1_442, 128]), (true, [64_768, 1_430, 128])] {
        let mut framer = Framer::new(None, markers);
        assert_eq!(framer.mulpdu(), expected[0]);
        framer.set_emss(1_448);
        assert_eq!(framer.mulpdu(), expected[1]);
        framer.set_emss(90);
        assert_eq!(framer.mulpdu(), expected[2]);
    }
}

#[test]
fn f15_byte_by_byte_and_all_at_once() {
    for mode in MODES {
        let ulpdus = [
            ulpdu(14, true),
            ulpdu(18, false),
            ulpdu(700, false),
            ulpdu(515, true),
            ulpdu(14, true),
        ];
        let stream = mode.stream(&ulpdus);
        assert_eq!(take(&mut mode.deframer(), &stream), (ulpdus.to_vec(), None));
        assert_eq!(receive(mode, &stream, &mut |_| 1, false), ulpdus);
    }
}

#[test]
fn m10_without_crc_its_field_is_there_and_may_hold_anything() {
    for mode in [MODES[0], MODES[1]] {
        let mut record = Record::default();
        put(&mut mode.framer(), &ulpdu(33, true), &mut record);
        let end = record.len();
        assert_eq!(record.bytes[end - CRC..], [0; CRC]);
        record.bytes[end - CRC..].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(take(&mut mode.deframer(), &record.bytes), (vec![ulpdu(33, true)], None));
    }
}

#[test]
fn a_ulpdu_shorter_than_its_header_is_a_fault() {
    for mode in MODES {
        for (len, tagged) in [(0, true), (1, true), (13, true), (14, false), (17, false)] {
            let stream = mode.stream(&[ulpdu(len, tagged)]);
            assert_eq!(
                take(&mut mode.deframer(), &stream),
                (vec![], Some(FpduError::Short)),
                "{mode:?} {len}"
            );
        }
    }
    // Without CRC and markers the error shows at once.
    let mut scratch = Vec::new();
    assert_eq!(MODES[0].deframer().next(&[0, 13], &mut scratch), Deframed::Error(FpduError::Short));
    assert_eq!(
        MODES[0].deframer().next(&[0, 17, 0x41], &mut scratch),
        Deframed::Error(FpduError::Short)
    );
    assert_eq!(MODES[0].deframer().next(&[0, 17], &mut scratch), Deframed::More);
}

#[test]
fn a_peer_may_send_the_longest_fpdu_there_is() {
    for mode in MODES {
        // With markers, the longest FPDU whose last marker can state its distance in 16 bits.
        let len = if mode.markers { MULPDU_MAX } else { 65_535 };
        let ulpdus = [ulpdu(len, true), ulpdu(20, false)];
        let stream = mode.stream(&ulpdus);
        assert!(stream.len() <= FPDU_MAX + 28);
        assert_eq!(take(&mut mode.deframer(), &stream), (ulpdus.to_vec(), None));
    }
    // No peer can frame a longer one correctly. It is refused, but not before it is complete.
    let stream = Mode { crc: false, markers: true }.stream(&[ulpdu(65_535, true)]);
    assert_eq!(stream.len(), FPDU_MAX);
    let mut deframer = Mode { crc: false, markers: true }.deframer();
    let mut scratch = Vec::new();
    assert_eq!(deframer.next(&stream[..FPDU_MAX - 1], &mut scratch), Deframed::More);
    assert_eq!(deframer.next(&stream, &mut scratch), Deframed::Error(FpduError::Marker));
}
