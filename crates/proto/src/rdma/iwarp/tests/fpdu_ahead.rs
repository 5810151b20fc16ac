//! Tests of FPDUs that are found behind missing bytes.

use proptest::collection::vec as vec_of;
use proptest::prelude::*;

use super::*;

/// The offsets of the FPDUs of these ULPDUs in their stream, and of its end.
fn begins(mode: Mode, ulpdus: &[Vec<u8>]) -> Vec<usize> {
    (0..=ulpdus.len()).map(|count| mode.stream(&ulpdus[..count]).len()).collect()
}

/// A piece of a stream in the middle of payload that looks like an FPDU with a right CRC. Without
/// markers nothing tells it from one, so nothing is found. With markers they name the FPDU around
/// it, which is not whole. Nothing is found without CRCs either.
#[test]
fn f16_an_fpdu_is_found_by_a_marker_and_never_by_the_beginning_of_a_piece() {
    for mode in MODES {
        let forged = Mode { markers: false, ..mode }.stream(&[ulpdu(400, true)]);
        let header = ulpdu(14, true);
        let outer = [&header[..], &forged, &[0; 200]].concat();
        let last = ulpdu(600, true);
        let stream = mode.stream(&[outer.clone(), last.clone()]);
        let at = stream.windows(32).position(|w| w == &forged[..32]).unwrap();
        let found = mode.deframer().find_ahead(at, &stream[at..at + forged.len()]);
        assert!(found.is_none(), "{mode:?}");
        // The next FPDU is found if a marker names it.
        let (begin, piece) = (mode.stream(&[outer]).len(), &stream[at..]);
        let found = mode.deframer().find_ahead(at, piece);
        assert_eq!(found.is_some(), mode == BOTH, "{mode:?}");
        if let Some((from, mut deframer)) = found {
            assert_eq!(at + from, begin);
            assert_eq!(take(&mut deframer, &piece[from..]), (vec![last], None));
        }
    }
}

/// A marker that names an FPDU which ends before the marker is wrong, and is not believed.
#[test]
fn f16_a_marker_lies_in_the_fpdu_that_it_names() {
    let ulpdus = [ulpdu(100, true), ulpdu(450, true), ulpdu(450, true)];
    let stream = BOTH.stream(&ulpdus);
    let begins = begins(BOTH, &ulpdus);
    let piece = &stream[begins[1]..];
    let (from, _) = BOTH.deframer().find_ahead(begins[1], piece).unwrap();
    assert_eq!(from, 0, "the marker at 512 is in the second FPDU");
    let mut wrong = stream.clone();
    wrong[514..516].copy_from_slice(&(512 - 4_u16).to_be_bytes());
    let (from, _) = BOTH.deframer().find_ahead(4, &wrong[4..]).unwrap();
    assert_eq!(4 + from, begins[2], "the next marker is right");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// A deframer finds, in a piece of a stream, the first whole FPDU with a marker and all whole
    /// ones behind it, and nothing that is no FPDU. A deframer that passes FPDUs goes on behind
    /// them.
    #[test]
    fn f16_markers_lead_to_the_fpdus_of_a_piece(
        lens in vec_of((0..1500usize, any::<bool>()), 1..12),
        cuts in (any::<u64>(), any::<u64>()),
        passed in 0..12usize,
    ) {
        let ulpdus: Vec<_> = lens.iter().map(|(len, tagged)| ulpdu(18 + len, *tagged)).collect();
        let (stream, begins) = (BOTH.stream(&ulpdus), begins(BOTH, &ulpdus));
        let passed = passed.min(ulpdus.len() - 1);
        let mut deframer = BOTH.deframer();
        deframer.pass(begins[passed]);
        let (rest, mut at) = (&stream[begins[passed]..], 0);
        at += cuts.0 as usize % rest.len();
        let end = at + cuts.1 as usize % (rest.len() - at + 1);
        let (from_stream, to_stream) = (at + begins[passed], end + begins[passed]);
        let has_marker = |i: &usize| {
            let (begin, end) = (begins[*i], begins[*i + 1]);
            begin.next_multiple_of(512) < end
        };
        let is_whole = |i: &usize| begins[*i] >= from_stream && begins[*i + 1] <= to_stream;
        let first = (0..ulpdus.len()).filter(is_whole).find(has_marker);
        let found = deframer.find_ahead(at, &rest[at..end]);
        if let Some(first) = first {
            let (from, mut deframer) = found.expect("a marker names it");
            prop_assert_eq!(from_stream + from, begins[first]);
            let all: Vec<_> = (first..ulpdus.len()).filter(is_whole).collect();
            let wanted = &ulpdus[first..=*all.last().unwrap()];
            prop_assert_eq!(take(&mut deframer, &rest[at + from..end]), (wanted.to_vec(), None));
        } else if let Some((from, mut deframer)) = found {
            prop_assert!(begins.contains(&(from_stream + from)));
            prop_assert_eq!(take(&mut deframer, &rest[at + from..end]), (vec![], None));
        }
        prop_assert_eq!(take(&mut deframer, rest), (ulpdus[passed..].to_vec(), None));
    }

    /// Whatever bytes arrive behind a gap, nothing panics, and an FPDU that is found is in them.
    #[test]
    fn any_bytes_behind_a_gap_are_searched(
        bytes in vec_of(any::<u8>(), 0..3_000),
        distance in 0..5_000usize,
    ) {
        if let Some((from, mut deframer)) = BOTH.deframer().find_ahead(distance, &bytes) {
            prop_assert!(from < bytes.len());
            take(&mut deframer, &bytes[from..]);
        }
    }
}
