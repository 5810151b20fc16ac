use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use sprat_proto::wire::checksum::crc32c;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

const OLDER: Span = Span { first: SegmentId(2), last: SegmentId(3) };

fn completion(sum: Option<[u8; 8]>) -> Completion {
    Completion {
        once: Once { lease: LeaseId(3), rpc: 5, ack: 4 },
        table: TableId(7),
        hash: KeyHash(0x0102),
        outcome: Outcome { status: Status::Ok, version: Version(9), sum },
    }
}

/// Written by hand after docs/formats.md, checksums left out.
#[test]
fn golden_entries() {
    let header = Header {
        server: ServerId { index: 1, generation: 2 },
        segment: SegmentId(3),
        capacity: 4096,
        safe_version: Version(5),
    };
    let mut bytes = vec![0; HEADER];
    put_header(&mut bytes, &header);
    assert_eq!(
        bytes,
        hex("01 000018 00000000 00000001 00000002 00000003 00001000 0000000000000005")
    );
    assert_eq!(parse(&bytes), Some((Entry::Header(header), HEADER)));

    let object = Object {
        table: TableId(7),
        version: Version(9),
        stamp: 1,
        older: OLDER,
        key: b"key",
        value: b"v1",
    };
    let mut bytes = vec![0; object.entry_len()];
    put_object(&mut bytes, &object);
    assert_eq!(
        bytes,
        hex("02 000025 00000000 0000000000000007 0000000000000009 00000001 00000002 00000003
             00000003 6b6579 7631")
    );
    assert_eq!(parse(&bytes), Some((Entry::Object(object), 45)));

    let tombstone =
        Tombstone { table: TableId(7), version: Version(9), stamp: 1, older: OLDER, key: b"key" };
    let mut bytes = vec![0; TOMBSTONE + 3];
    put_tombstone(&mut bytes, &tombstone);
    assert_eq!(
        bytes,
        hex(
            "03 00001f 00000000 0000000000000007 0000000000000009 00000001 00000002 00000003 6b6579"
        )
    );
    assert_eq!(parse(&bytes), Some((Entry::Tombstone(tombstone), 39)));

    for (sum, golden) in
        [(None, "0000000000000000 00 00 0000"), (Some(*b"12345678"), "3132333435363738 00 01 0000")]
    {
        let mut bytes = vec![0; COMPLETION];
        put_completion(&mut bytes, &completion(sum));
        let fixed = hex("04 00003c 00000000 0000000000000003 0000000000000005 0000000000000004
             0000000000000007 0000000000000102 0000000000000009");
        assert_eq!(bytes, [fixed, hex(golden)].concat());
        assert_eq!(parse(&bytes), Some((Entry::Completion(completion(sum)), COMPLETION)));
    }
}

/// An object and its completion, as a write appends them.
fn group() -> Vec<u8> {
    let object = Object {
        table: TableId(7),
        version: Version(9),
        stamp: 1,
        older: OLDER,
        key: b"k",
        value: b"v",
    };
    let len = object.entry_len();
    let mut bytes = vec![0; HEAD + len + COMPLETION];
    put_group(&mut bytes);
    put_object(&mut bytes[HEAD..HEAD + len], &object);
    put_completion(&mut bytes[HEAD + len..], &completion(None));
    bytes
}

#[test]
fn the_mark_of_the_dead_is_not_part_of_an_entry() {
    let mut bytes = group();
    seal(crc32c, &mut bytes);
    let entries: Vec<_> = replay(crc32c, &bytes).map(|entry| alloc::format!("{entry:?}")).collect();
    assert_eq!(dead(&bytes[HEAD..]), None);
    mark_dead(&mut bytes[HEAD..]);
    assert_eq!(dead(&bytes[HEAD..]), Some(OBJECT + 2));
    let marked: Vec<_> = replay(crc32c, &bytes).map(|entry| alloc::format!("{entry:?}")).collect();
    assert_eq!((entries.len(), marked), (2, entries));
    let sealed = bytes[4..8].to_vec();
    seal(crc32c, &mut bytes);
    assert_eq!(bytes[4..8], sealed);
}

#[test]
fn a_group_is_replayed_whole_or_not_at_all() {
    let mut bytes = group();
    assert_eq!(bytes[..8], hex("05 00006e 00000000"));
    let len = bytes.len();
    bytes.extend_from_slice(&group());
    assert_eq!(
        replay(crc32c, &bytes).count(),
        0,
        "a checksum that is not filled in is a wrong one"
    );
    assert_eq!(seal(crc32c, &mut bytes), Some(len));
    assert_eq!(replay(crc32c, &bytes).count(), 2);
    assert_eq!(seal(crc32c, &mut bytes[len..]), Some(len));
    assert_eq!(replay(crc32c, &bytes).count(), 4);
    for end in 0..bytes.len() {
        let whole = if end < len { 0 } else { 2 };
        assert_eq!(replay(crc32c, &bytes[..end]).count(), whole, "cut at {end}");
    }
    for flipped in 0..len {
        let mut bytes = bytes.clone();
        bytes[flipped] ^= 0x10;
        assert_eq!(replay(crc32c, &bytes).count(), 0, "byte {flipped}");
    }
}

proptest! {
    /// No bytes make the parser or a replay panic.
    #[test]
    fn arbitrary_bytes(
        kind in 0u8..8,
        len in 0u8..100,
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        if bytes.len() >= 8 {
            bytes[..4].copy_from_slice(&[kind, 0, 0, len]);
            if let Some((_, len)) = parse(&bytes) {
                prop_assert!(len <= bytes.len());
            }
            let _ = seal(crc32c, &mut bytes);
        }
        let _ = replay(crc32c, &bytes).count();
        if bytes.len() >= 16 {
            // Nested in a group.
            let inner = bytes.len() as u8 - 8;
            bytes.copy_within(..usize::from(inner), 8);
            bytes[..4].copy_from_slice(&[5, 0, 0, inner]);
            prop_assert_eq!(seal(crc32c, &mut bytes), Some(usize::from(inner) + 8));
            let _ = replay(crc32c, &bytes).count();
        }
    }
}
