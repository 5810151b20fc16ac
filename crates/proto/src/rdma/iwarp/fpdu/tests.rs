//! FPDUs: each rule of RFC 5044 by itself, then random streams, cut anywhere, against an oracle that goes by words.

use alloc::vec;
use alloc::vec::Vec;

use proptest::collection::vec as vec_of;
use proptest::prelude::*;

use super::*;
use crate::rand::Rng;
use crate::wire::checksum::crc32c;
use crate::wire::mpa::FPDU_MAX;

/// Registered memory: one region, which counts how often it is read.
#[derive(Default)]
struct Region {
    bytes: Vec<u8>,
    reads: usize,
}

impl Region {
    fn new(len: usize) -> Self {
        let mut bytes = vec![0; len];
        Rng::seeded(len as u64).fill(&mut bytes);
        Self { bytes, reads: 0 }
    }
}

impl Memory for Region {
    fn write(&mut self, _: Span, _: &[u8]) -> Result<(), Unmapped> {
        Err(Unmapped)
    }

    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        self.reads += 1;
        let at = span.offset as usize;
        bytes.copy_from_slice(self.bytes.get(at..at + bytes.len()).ok_or(Unmapped)?);
        Ok(())
    }

    fn atomic(&mut self, _: Span, _: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        Err(Unmapped)
    }
}

fn span(offset: u64, len: u32) -> Span {
    Span { region: 7, offset, len }
}

/// Which of CRC and markers a stream has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mode {
    crc: bool,
    markers: bool,
}

const MODES: [Mode; 4] = [
    Mode { crc: false, markers: false },
    Mode { crc: false, markers: true },
    Mode { crc: true, markers: false },
    Mode { crc: true, markers: true },
];
const BOTH: Mode = MODES[3];

impl Mode {
    fn framer(self) -> Framer {
        Framer::new(self.crc.then_some(crc32c), self.markers)
    }

    fn deframer(self) -> Deframer {
        Deframer::new(self.crc.then_some(crc32c), self.markers)
    }

    /// The stream of these ULPDUs, made word by word as the RFC tells it.
    fn stream(self, ulpdus: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = Vec::new();
        for ulpdu in ulpdus {
            let mut words = (ulpdu.len() as u16).to_be_bytes().to_vec();
            words.extend(ulpdu);
            words.resize(words.len().next_multiple_of(4) + 4, 0);
            let (start, mut length_at) = (stream.len(), None);
            let last = words.len() / 4 - 1;
            for (i, word) in words.chunks(4).enumerate() {
                if self.markers && stream.len() % 512 == 0 {
                    let back = length_at.map_or(0, |at| stream.len() - at);
                    stream.extend((back as u32).to_be_bytes());
                }
                length_at.get_or_insert(stream.len());
                if i == last && self.crc {
                    stream.extend(crc32c(0, &stream[start..]).to_le_bytes());
                } else {
                    stream.extend(word);
                }
            }
        }
        stream
    }
}

/// A ULPDU of `len` octets that begins as a tagged or an untagged one.
fn ulpdu(len: usize, tagged: bool) -> Vec<u8> {
    let mut ulpdu: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
    if let Some(first) = ulpdu.first_mut() {
        *first = if tagged { 0x81 } else { 0x41 };
    }
    ulpdu
}

/// Frames `ulpdu` from bytes alone.
fn put(framer: &mut Framer, ulpdu: &[u8], record: &mut Record) {
    let (header, payload) = ulpdu.split_at(header_len(ulpdu[0]));
    framer.frame(header, &[Piece::Bytes(payload)], &mut Region::default(), record).unwrap();
}

/// What a record is on the stream.
fn flat(record: &Record, region: &Region) -> Vec<u8> {
    let mut stream = Vec::new();
    for part in &record.parts {
        match part {
            Part::Bytes(range) => stream.extend(&record.bytes[range.clone()]),
            Part::Memory(span) => {
                stream.extend(&region.bytes[span.offset as usize..][..span.len as usize]);
            }
        }
    }
    stream
}

/// All ULPDUs of a stream that is there at once, and the fault that it ends with.
fn take(deframer: &mut Deframer, mut bytes: &[u8]) -> (Vec<Vec<u8>>, Option<Fault>) {
    let (mut ulpdus, mut scratch) = (Vec::new(), Vec::new());
    loop {
        match deframer.next(bytes, &mut scratch) {
            Step::More => return (ulpdus, None),
            Step::Bad(fault) => return (ulpdus, Some(fault)),
            Step::Piece { header, payload, rest, last, consumed } => {
                assert!(last && rest == 0, "all of it is there");
                ulpdus.push([header.unwrap(), payload].concat());
                bytes = &bytes[consumed..];
            }
        }
    }
}

/// `stream`, which is one FPDU, with `bits` turned at `at` and a CRC that fits.
fn forged(stream: &[u8], at: usize, bits: u8) -> Vec<u8> {
    let mut forged = stream.to_vec();
    forged[at] ^= bits;
    let body = forged.len() - CRC;
    let crc = crc32c(0, &forged[..body]);
    forged[body..].copy_from_slice(&crc.to_le_bytes());
    forged
}

/// The sample of RFC 5044 section 4.4: an untagged header with this MSN, and 24 zeros.
fn sample(msn: u8) -> [u8; 42] {
    let mut ulpdu = [0; 42];
    (ulpdu[0], ulpdu[1], ulpdu[13]) = (0x41, 0x43, msn);
    ulpdu
}

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

    // The second follows an FPDU that ends at 492.
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
    // The first FPDU ends its pad at 512, where a marker is due: 4 + 2 + 506 octets.
    let mut record = Record::default();
    let mut framer = BOTH.framer();
    put(&mut framer, &ulpdu(506, true), &mut record);
    assert_eq!(record.len(), 512 + MARKER + CRC);
    assert_eq!(record.bytes[512..516], 508u32.to_be_bytes());
    for at in [0, 512] {
        let mut damaged = record.bytes.clone();
        damaged[at] |= 1;
        assert_eq!(take(&mut BOTH.deframer(), &damaged), (vec![], Some(Fault::Crc)));
        let forged = forged(&record.bytes, at, 1);
        assert_eq!(take(&mut BOTH.deframer(), &forged), (vec![ulpdu(506, true)], None));
    }
}

#[test]
fn f5_nothing_comes_out_before_its_crc_is_right() {
    for mode in [MODES[2], BOTH] {
        let (mut framer, mut record) = (mode.framer(), Record::default());
        put(&mut framer, &ulpdu(1_200, true), &mut record);
        let mut scratch = Vec::new();
        for end in 0..record.len() {
            let mut deframer = mode.deframer();
            assert_eq!(deframer.next(&record.bytes[..end], &mut scratch), Step::More);
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
    assert_eq!(take(&mut deframer, &bad.bytes), (vec![], Some(Fault::Crc)));
    assert_eq!(take(&mut deframer, &good.bytes), (vec![], Some(Fault::Crc)));
    assert_eq!(take(&mut deframer, &[]), (vec![], Some(Fault::Crc)));
}

/// A stream with many FPDUs, short and long, and where they start, their first marker counted.
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

/// The marker at `at`.
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
fn f9_markers_stand_every_512_octets_counted_from_the_first_not_by_sequence_numbers() {
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
        // What ends here is whole without the marker; what follows is not, until all of it is there.
        let before = take(&mut BOTH.deframer(), &stream[..at]).0.len();
        assert_eq!(before, starts.iter().filter(|&&start| start < at).count());
        assert_eq!(take(&mut BOTH.deframer(), &stream[..at + MARKER]).0.len(), before);
    }
}

#[test]
fn f12_reserved_bits_of_a_marker_say_nothing_but_its_pointer_does() {
    let mut record = Record::default();
    put(&mut BOTH.framer(), &ulpdu(600, true), &mut record);
    for (at, bits) in [(0, 0xff), (1, 0xff), (3, 3), (512, 0xff), (513, 0xff), (515, 3)] {
        assert_eq!(record.bytes[at] & bits, 0);
        let forged = forged(&record.bytes, at, bits);
        assert_eq!(take(&mut BOTH.deframer(), &forged), (vec![ulpdu(600, true)], None));
    }
    for (at, bits) in [(2, 1), (3, 4), (514, 0x80), (515, 4)] {
        let wrong = forged(&record.bytes, at, bits);
        assert_eq!(take(&mut BOTH.deframer(), &wrong), (vec![], Some(Fault::Marker)), "at {at}");
    }
    // Without a CRC a wrong marker is seen as well.
    let mut record = Record::default();
    put(&mut MODES[1].framer(), &ulpdu(600, true), &mut record);
    record.bytes[514] ^= 0x20;
    assert_eq!(take(&mut MODES[1].deframer(), &record.bytes), (vec![], Some(Fault::Marker)));
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
fn f15_octet_by_octet_and_all_at_once() {
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
                (vec![], Some(Fault::Short)),
                "{mode:?} {len}"
            );
        }
    }
    // Without CRC and markers as soon as it shows.
    let mut scratch = Vec::new();
    assert_eq!(MODES[0].deframer().next(&[0, 13], &mut scratch), Step::Bad(Fault::Short));
    assert_eq!(MODES[0].deframer().next(&[0, 17, 0x41], &mut scratch), Step::Bad(Fault::Short));
    assert_eq!(MODES[0].deframer().next(&[0, 17], &mut scratch), Step::More);
}

#[test]
fn a_peer_may_send_the_longest_fpdu_there_is() {
    for mode in MODES {
        // With markers the longest whose last marker can still tell its distance: it fits the 16 bits.
        let len = if mode.markers { MULPDU_MAX } else { 65_535 };
        let ulpdus = [ulpdu(len, true), ulpdu(20, false)];
        let stream = mode.stream(&ulpdus);
        assert!(stream.len() <= FPDU_MAX + 28);
        assert_eq!(take(&mut mode.deframer(), &stream), (ulpdus.to_vec(), None));
    }
    // Beyond that nobody can send it rightly; it is refused, and not before it is there.
    let stream = Mode { crc: false, markers: true }.stream(&[ulpdu(65_535, true)]);
    assert_eq!(stream.len(), FPDU_MAX);
    let mut deframer = Mode { crc: false, markers: true }.deframer();
    let mut scratch = Vec::new();
    assert_eq!(deframer.next(&stream[..FPDU_MAX - 1], &mut scratch), Step::More);
    assert_eq!(deframer.next(&stream, &mut scratch), Step::Bad(Fault::Marker));
}

#[test]
fn long_memory_is_referred_to_and_not_touched() {
    let mut region = Region::new(70_000);
    let (mut framer, mut record) = (MODES[0].framer(), Record::default());
    let header = [0xc1; 14];
    framer.frame(&header, &[Piece::Memory(span(100, 64_000))], &mut region, &mut record).unwrap();
    assert_eq!((region.reads, record.bytes.len()), (0, 2 + 14 + 4));
    let parts = [Part::Bytes(0..16), Part::Memory(span(100, 64_000)), Part::Bytes(16..20)];
    assert_eq!(record.parts, parts);

    // Two FPDUs in one record: what lies between two spans is one part.
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
fn payload_without_crc_and_markers_comes_as_it_arrives_from_where_it_lies() {
    let mode = MODES[0];
    let sent = ulpdu(115, true);
    let stream = mode.stream(&[sent.clone(), ulpdu(20, true)]);
    let (mut deframer, mut scratch) = (mode.deframer(), Vec::new());
    assert!(deframer.between());
    assert_eq!(deframer.next(&stream[..15], &mut scratch), Step::More);
    assert!(deframer.between());
    let step = deframer.next(&stream[..16], &mut scratch);
    let (header, none) = (Some(&sent[..14]), &[][..]);
    assert_eq!(step, Step::Piece { header, payload: none, rest: 101, last: false, consumed: 16 });
    assert!(!deframer.between());
    assert_eq!(deframer.rest(), 101);
    // The caller places 100 octets itself, and no more than are announced count.
    deframer.skip(100);
    assert_eq!(deframer.rest(), 1);
    let step = deframer.next(&stream[116..118], &mut scratch);
    let payload = &sent[114..];
    assert_eq!(step, Step::Piece { header: None, payload, rest: 0, last: false, consumed: 1 });
    deframer.skip(1);
    // Pad and CRC are used up at once: 115 + 2 octets need a pad of 3.
    assert_eq!(deframer.next(&stream[117..123], &mut scratch), Step::More);
    let step = deframer.next(&stream[117..124], &mut scratch);
    assert_eq!(step, Step::Piece { header: None, payload: none, rest: 0, last: true, consumed: 7 });
    assert!(deframer.between());
    assert_eq!(take(&mut deframer, &stream[124..]), (vec![ulpdu(20, true)], None));
    assert!(scratch.is_empty());
}

/// Receives `stream` in pieces of the lengths that `cut` says, given what is left; with `direct`, the caller places payload
/// itself whenever it may.
fn receive(
    mode: Mode,
    stream: &[u8],
    cut: &mut dyn FnMut(usize) -> usize,
    direct: bool,
) -> Vec<Vec<u8>> {
    let (mut deframer, mut scratch) = (mode.deframer(), Vec::new());
    let (mut ulpdus, mut current) = (Vec::new(), Vec::new());
    let (mut here, mut end) = (0, 0);
    while end < stream.len() {
        end += cut(stream.len() - end).clamp(1, stream.len() - end);
        if direct && deframer.rest() > 0 && here < end {
            let n = deframer.rest().min(end - here);
            current.extend(&stream[here..here + n]);
            deframer.skip(n);
            here += n;
        }
        loop {
            match deframer.next(&stream[here..end], &mut scratch) {
                Step::More => break,
                Step::Bad(fault) => panic!("{fault}"),
                Step::Piece { header, payload, rest, last, consumed } => {
                    assert_eq!(header.is_some(), current.is_empty());
                    assert_eq!(rest, deframer.rest());
                    current.extend(header.unwrap_or_default());
                    current.extend(payload);
                    here += consumed;
                    if last {
                        ulpdus.push(core::mem::take(&mut current));
                    }
                    assert_eq!(last, deframer.between());
                }
            }
        }
    }
    assert_eq!(here, stream.len(), "all of it is used up");
    ulpdus
}

/// A ULPDU as it is posted: its kind, and where its payload is cut into pieces of memory and of bytes.
fn posted() -> impl Strategy<Value = (bool, Vec<(bool, usize)>)> {
    let len = prop_oneof![4 => 0usize..60, 3 => 0usize..1_500, 1 => 2_000usize..9_000];
    (any::<bool>(), vec_of((any::<bool>(), len), 0..4))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is framed is the oracle's stream, and comes out again however it is cut.
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
        prop_assert!(pairs.into_iter().all(|pair| !matches!(pair, [Part::Bytes(_), Part::Bytes(_)])));
        let mut rng = Rng::seeded(seed);
        let most = 1 << rng.below(15);
        let mut cut = |_: usize| rng.below(most) as usize + 1;
        prop_assert_eq!(receive(mode, &stream, &mut cut, direct), ulpdus);
    }

    /// Whatever a peer sends, every step uses up what it says, and nothing panics.
    #[test]
    fn any_octets_are_taken_or_refused(
        mut bytes in vec_of(any::<u8>(), 0..2_000),
        short: bool,
        mode in 0..4usize,
    ) {
        if short && bytes.len() > 1 {
            (bytes[0], bytes[1]) = (0, bytes[1] | 0x20);
        }
        let mut deframer = MODES[mode].deframer();
        let (mut rest, mut scratch) = (&bytes[..], Vec::new());
        while let Step::Piece { header, payload, consumed, .. } = deframer.next(rest, &mut scratch) {
            prop_assert!(consumed > 0 && consumed <= rest.len());
            prop_assert!(header.map_or(0, <[u8]>::len) + payload.len() <= consumed);
            rest = &rest[consumed..];
        }
    }
}
