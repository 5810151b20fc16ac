use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use sprat_proto::wire::checksum::crc32c;

use super::wire::{UNBOUNDED, span};
use super::*;
use crate::types::LeaseId;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

const OLDER: Span = Span { first: SegmentId(2), last: SegmentId(3) };
const ONCE: Once = Once { lease: LeaseId(3), rpc: 5, ack: 4 };
const SUM_OF_TEST: Option<[u8; 8]> = Some(*b"12345678");

fn object() -> Object<'static> {
    let (table, version) = (TableId(0x07_0000_0001), Version(0x0900_0000_000a));
    Object { table, version, older: OLDER, key: b"key", value: b"v1", expires: WallTime::NEVER }
}

/// Makes the entry of an object with a record, as a write appends them.
fn written(sum: Option<[u8; 8]>) -> Vec<u8> {
    let mut bytes = vec![0; object().entry_len() + Record::size(sum.is_some())];
    put_object(&mut bytes, &object(), Some(&Record { once: ONCE, sum, old: &[] }));
    bytes
}

/// The bytes of headers and objects agree with bytes that were written by hand after
/// docs/formats.md, checksums left out.
#[test]
fn golden_headers_and_objects() {
    let header = Header {
        cluster: 9,
        server: ServerId { index: 1, generation: 2 },
        segment: SegmentId(3),
        capacity: 4096,
        safe_version: Version(5),
    };
    let mut bytes = vec![0; HEADER];
    put_header(&mut bytes, &header);
    assert_eq!(
        bytes,
        hex("01 000020 00000000 0000000000000009 00000001 00000002 00000003 00001000 \
             0000000000000005")
    );
    assert_eq!(parse(&bytes), Some((Entry::Header(header), HEADER)));

    let mut bytes = vec![0; object().entry_len()];
    put_object(&mut bytes, &object(), None);
    let fixed = "0700000001 000003 09000000000a 00000002 000002 6b6579";
    assert_eq!(bytes, hex(&["02 00001a 00000000", fixed, "7631"].concat()));
    assert_eq!(parse(&bytes), Some((Entry::Object(object(), None), 34)));

    for (sum, kind_len, tail) in [
        (None, "12 000027", "0000000003 000000000005 0001"),
        (SUM_OF_TEST, "32 00002f", "0000000003 000000000005 0001 3132333435363738"),
    ] {
        let bytes = written(sum);
        assert_eq!(bytes, hex(&[kind_len, "00000000", fixed, "7631", tail].concat()));
        let entry = Entry::Object(object(), Some(Record { once: ONCE, sum, old: &[] }));
        assert_eq!(parse(&bytes), Some((entry, bytes.len())));
        assert_eq!(super::object(&bytes), object());
    }

    let Object { table, version, older, key, .. } = object();
    let tombstone = Tombstone { table, version, older, key };
    let record = Record { once: ONCE, sum: None, old: &[] };
    let mut bytes = vec![0; tombstone.entry_len() + Record::size(false)];
    put_tombstone(&mut bytes, &tombstone, Some(&record));
    let tail = "0000000003 000000000005 0001";
    assert_eq!(bytes, hex(&["13 000025 00000000", fixed, tail].concat()));
    assert_eq!(parse(&bytes), Some((Entry::Tombstone(tombstone, Some(record)), 45)));

    let expiring = Object { expires: WallTime(0x0102_0304_0506), ..object() };
    let mut bytes = vec![0; expiring.entry_len() + Record::size(false)];
    put_object(&mut bytes, &expiring, Some(&record));
    assert_eq!(bytes, hex(&["17 00002d 00000000", fixed, "7631 010203040506", tail].concat()));
    assert_eq!(parse(&bytes), Some((Entry::Object(expiring, Some(record)), 53)));
    assert_eq!(super::object(&bytes), expiring);
    let head = Head::of(&bytes).unwrap();
    assert!(head.is_object() && head.expires() && head.live_record(&bytes) == Some(record));
    // Without its record, as the cleaner copies it.
    let mut copied = vec![0; expiring.entry_len()];
    copy(&mut copied, &bytes, OLDER);
    assert_eq!(copied, hex(&["07 000020 00000000", fixed, "7631 010203040506"].concat()));
    // An entry that ends within the time is malformed.
    let cut = hex(&["07 00001d 00000000", fixed, "0102030405"].concat());
    assert_eq!((cut.len(), parse(&cut)), (37, None));
}

/// The bytes of completions agree with bytes that were written by hand after docs/formats.md,
/// checksums left out.
#[test]
fn golden_completions() {
    for (sum, kind_len, golden) in
        [(None, "04 000021", ""), (SUM_OF_TEST, "24 000029", "3132333435363738")]
    {
        let outcome = Outcome { status: Status::WrongVersion, version: Version(9), sum };
        let (table, hash) = (TableId(7), KeyHash(0x0102));
        let completion = Completion { once: ONCE, table, hash, outcome, old: &[] };
        let mut bytes = vec![0; completion.entry_len()];
        put_completion(&mut bytes, &completion);
        let fixed = "00000000 0000000003 000000000005 0001 0000000007";
        let rest = "0000000000000102 000000000009";
        let status = alloc::format!("{:02x}", Status::WrongVersion as u8);
        assert_eq!(bytes, hex(&[kind_len, fixed, &status, rest, golden].concat()));
        assert_eq!(parse(&bytes), Some((Entry::Completion(completion), bytes.len())));
    }
}

/// The bytes of entries with an old value agree with bytes that were written by hand after
/// docs/formats.md, checksums left out.
#[test]
fn golden_old_values() {
    let record = Record { once: ONCE, sum: SUM_OF_TEST, old: b"old" };
    let fixed = "0700000001 000003 09000000000a 00000002 000002 6b6579";
    let tail = "6f6c64 00000003 0000000003 000000000005 0001 3132333435363738";
    for (expires, kind_len, end) in [
        (WallTime::NEVER, "3a 000036", ""),
        (WallTime(0x0102_0304_0506), "3f 00003c", "010203040506"),
    ] {
        let object = Object { expires, ..object() };
        let mut bytes = vec![0; object.entry_len() + record.entry_len()];
        put_object(&mut bytes, &object, Some(&record));
        assert_eq!(bytes, hex(&[kind_len, "00000000", fixed, "7631", end, tail].concat()));
        assert_eq!(parse(&bytes), Some((Entry::Object(object, Some(record)), bytes.len())));
        assert_eq!((super::object(&bytes), old(&bytes)), (object, &b"old"[..]));
        let head = Head::of(&bytes).unwrap();
        assert_eq!((head.is_object(), head.live_record(&bytes)), (true, Some(record)));
        assert_eq!(head.expires(), expires != WallTime::NEVER);
        // With its record and without, as the cleaner copies it.
        let mut copied = vec![0; bytes.len()];
        copy(&mut copied, &bytes, OLDER);
        assert_eq!(copied, bytes);
        let (mut copied, mut alone) = (vec![0; object.entry_len()], vec![0; object.entry_len()]);
        copy(&mut copied, &bytes, OLDER);
        put_object(&mut alone, &object, None);
        assert_eq!((&copied, old(&copied)), (&alone, &b""[..]));
        assert_eq!(mark_record_dead(&mut bytes), COMPLETION + 3);
        assert_eq!(Head::of(&bytes).unwrap().live_record(&bytes), None);
        // An old value without a sum, longer than the entry, or empty is malformed.
        for (at, byte) in [(0, bytes[0] & 0x0f), (0, bytes[0] & 0xdf), (bytes.len() - 22, 9)] {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            assert_eq!(parse(&bytes), None, "{at}");
        }
        let at = bytes.len() - 22;
        bytes[at] = 0;
        assert_eq!(parse(&bytes), None);
    }

    let outcome = Outcome { status: Status::Ok, version: Version(9), sum: SUM_OF_TEST };
    let (table, hash) = (TableId(7), KeyHash(0x0102));
    let completion = Completion { once: ONCE, table, hash, outcome, old: b"old" };
    let mut bytes = vec![0; completion.entry_len()];
    put_completion(&mut bytes, &completion);
    let fixed = "00000000 0000000003 000000000005 0001 0000000007 00";
    let rest = "0000000000000102 000000000009 3132333435363738 6f6c64";
    assert_eq!(bytes, hex(&["2c 00002c", fixed, rest].concat()));
    assert_eq!(parse(&bytes), Some((Entry::Completion(completion), bytes.len())));
    assert_eq!(old(&bytes), b"old");
    assert_eq!(mark_record_dead(&mut bytes), COMPLETION + 3);
    assert!(Head::of(&bytes).unwrap().is_all_dead());
    let bytes =
        hex(&["2c 000029", fixed, "0000000000000102 000000000009", "3132333435363738"].concat());
    assert_eq!(parse(&bytes), None, "the old value is missing");
    // Other kinds have none.
    for kind in ["09", "0b", "0d", "0e"] {
        assert_eq!(parse(&hex(&[kind, "000020", &"00".repeat(36)].concat())), None);
    }
}

/// A span of older versions is parsed as it was written, or as a larger one if it is longer than
/// its field.
#[test]
fn spans_of_older_versions() {
    let last = UNBOUNDED - 1;
    for (first, end, read_end) in [
        (0, 0, 0),
        (1, 1, 1),
        (7, 9, 9),
        (5, last + 4, last + 4),
        (5, last + 5, u32::MAX),
        (1, u32::MAX, u32::MAX),
        (u32::MAX, u32::MAX, u32::MAX),
    ] {
        let older = span(first, end);
        let mut bytes = vec![0; object().entry_len()];
        put_object(&mut bytes, &Object { older, ..object() }, None);
        assert_eq!(super::object(&bytes).older, span(first, read_end), "{older:?}");
    }
}

/// Makes a sealed segment of a header and these entries.
fn segment(id: u32, entries: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    let (server, segment) = (ServerId { index: 1, generation: 2 }, SegmentId(id));
    let header = Header { cluster: 9, server, segment, capacity: 4096, safe_version: Version(5) };
    put_header(&mut bytes, &header);
    seal(crc32c, 0, &mut bytes);
    let seed = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
    for entry in entries {
        let at = bytes.len();
        bytes.extend_from_slice(entry);
        assert_eq!(seal(crc32c, seed, &mut bytes[at..]), Some(entry.len()));
    }
    bytes
}

/// Memory of a frame may have an old entry of another segment where one was to be written.
#[test]
fn no_entry_of_another_segment_is_replayed() {
    let (one, other) = (segment(1, &[&written(None)]), segment(2, &[&written(None)]));
    assert_eq!(replay(crc32c, &one).count(), 2);
    let mixed = [&one[..HEADER], &other[HEADER..]].concat();
    assert_eq!(replay(crc32c, &mixed).count(), 1);
    assert_eq!(replay(crc32c, &[&one[..], &one].concat()).count(), 2, "a second header");
    assert_eq!(replay(crc32c, &one[HEADER..]).count(), 0, "no header");
}

#[test]
fn the_marks_of_the_dead_are_not_part_of_an_entry() {
    let mut bytes = written(SUM_OF_TEST);
    seal(crc32c, 7, &mut bytes);
    let (sealed, len) = (bytes.clone(), bytes.len());
    let entry = parse(&sealed).unwrap();
    mark_dead(&mut bytes);
    let head = Head::of(&bytes).unwrap();
    assert_eq!((head.is_object(), head.is_dead(), head.is_all_dead()), (true, true, false));
    assert_eq!(Entry::Object(object(), head.live_record(&bytes)), entry.0);
    mark_record_dead(&mut bytes);
    let head = Head::of(&bytes).unwrap();
    assert_eq!((head.is_all_dead(), head.entry_len()), (true, len));
    assert_eq!(head.live_record(&bytes), None);
    assert_eq!(parse(&bytes), Some(entry));
    seal(crc32c, 7, &mut bytes);
    assert_eq!(bytes[4..], sealed[4..]);
    let mut marked = segment(1, &[&written(SUM_OF_TEST)]);
    mark_dead(&mut marked[HEADER..]);
    mark_record_dead(&mut marked[HEADER..]);
    assert_eq!(replay(crc32c, &marked).nth(1), Some((HEADER, entry.0)));

    let mut bytes = written(None);
    mark_record_dead(&mut bytes);
    let head = Head::of(&bytes).unwrap();
    assert_eq!((head.is_dead(), head.has_live_record()), (false, false));
    let outcome = Outcome { status: Status::Ok, version: Version(9), sum: None };
    let completion =
        Completion { once: ONCE, table: TableId(1), hash: KeyHash(2), outcome, old: &[] };
    let mut bytes = vec![0; completion.entry_len()];
    put_completion(&mut bytes, &completion);
    assert!(!Head::of(&bytes).unwrap().is_all_dead());
    mark_record_dead(&mut bytes);
    let head = Head::of(&bytes).unwrap();
    assert_eq!((head.is_all_dead(), head.entry_len()), (true, completion.entry_len()));
}

/// The cleaner's copy of an object, with its record or without, has no marks of dead parts.
#[test]
fn a_copy_has_no_marks() {
    for record in [None, Some(Record { once: ONCE, sum: SUM_OF_TEST, old: &[] })] {
        let mut bytes = written(SUM_OF_TEST);
        mark_dead(&mut bytes);
        mark_record_dead(&mut bytes);
        let len = object().entry_len() + if record.is_some() { RECORD } else { 0 };
        let mut out = vec![0xff; len];
        copy(&mut out, &bytes, Span::default());
        let copied = Object { older: Span::default(), ..object() };
        assert_eq!(parse(&out), Some((Entry::Object(copied, record), len)));
        let mut golden = vec![0; len];
        put_object(&mut golden, &copied, record.as_ref());
        assert_eq!(out, golden);
    }
}

#[test]
fn an_entry_is_replayed_whole_or_not_at_all() {
    let bytes = segment(1, &[&written(None), &written(SUM_OF_TEST)]);
    let first = HEADER + written(None).len();
    let offsets: Vec<_> = replay(crc32c, &bytes).map(|(at, _)| at).collect();
    assert_eq!(offsets, [0, HEADER, first]);
    for end in 0..bytes.len() {
        let whole = usize::from(end >= HEADER) + usize::from(end >= first);
        assert_eq!(replay(crc32c, &bytes[..end]).count(), whole, "cut at {end}");
    }
    for flipped in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[flipped] ^= 0x08;
        let whole = usize::from(flipped >= HEADER) + usize::from(flipped >= first);
        assert_eq!(replay(crc32c, &bytes).count(), whole, "byte {flipped}");
    }
    let mut bytes = bytes;
    bytes[first + 4..first + 8].fill(0);
    assert_eq!(replay(crc32c, &bytes).count(), 2, "a checksum that is not filled in");
}

proptest! {
    /// No bytes make the parser or a replay panic.
    #[test]
    fn arbitrary_bytes(
        kind in 0u8..16,
        flags in 0u8..16,
        len in 0u8..100,
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        if bytes.len() >= 8 {
            bytes[..4].copy_from_slice(&[flags << 4 | kind, 0, 0, len]);
            if bytes.len() >= OBJECT {
                bytes[13..15].fill(0);
            }
            if let Some((_, len)) = parse(&bytes) {
                prop_assert!(len <= bytes.len());
            }
            let _ = (seal(crc32c, 0, &mut bytes), old(&bytes));
        }
        let _ = replay(crc32c, &bytes).count();
    }
}
