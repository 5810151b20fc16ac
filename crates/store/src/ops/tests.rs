//! Tests of the operations: golden bytes of requests and replies, and arbitrary bytes.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::message::data::{Amount, Once, RejectRules, Target, head, result_head};
use crate::message::list::{Listed, object_head, objects_head, objects_reply};
use crate::types::{LeaseId, Lifetime, Version};

/// Parses the reply to a read.
pub(crate) fn read_reply(reply: &[u8]) -> Result<(Version, &[u8]), Refusal<'_>> {
    match Request::Read(()).completion(reply)? {
        Reply::Object { version, value } => Ok((version, &reply[value..])),
        other => panic!("{other:?}"),
    }
}

/// Parses the reply to a write or remove.
pub(crate) fn mutation_reply(reply: &[u8]) -> Result<Version, Refusal<'_>> {
    match Request::Write(None).completion(reply)? {
        Reply::Version(version) => Ok(version),
        other => panic!("{other:?}"),
    }
}

/// Parses the reply to an increment of an integer.
pub(crate) fn increment_reply(reply: &[u8]) -> Result<(Version, [u8; 8]), Refusal<'_>> {
    match Request::Increment(Amount::Integer(0)).completion(reply)? {
        Reply::Integer { version, sum } => Ok((version, sum.to_be_bytes())),
        other => panic!("{other:?}"),
    }
}

/// Parses the reply to an echo, or to a request for counters.
pub(crate) fn echo_reply(reply: &[u8]) -> Result<&[u8], Refusal<'_>> {
    match Request::Echo(()).completion(reply)? {
        Reply::Bytes(skip) => Ok(&reply[skip..]),
        other => panic!("{other:?}"),
    }
}

/// Returns the bytes of hexadecimal digits, blanks ignored.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .map(|c| c.to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

const TARGET: Target = Target {
    cluster: 9,
    table: TableId(7),
    rules: RejectRules {
        given_version: Version(0x0102),
        doesnt_exist: true,
        exists: false,
        version_le_given: false,
        version_ne_given: true,
    },
    durable: false,
};
const ONCE: Once = Once { lease: LeaseId(3), rpc: 5, ack: 4 };

/// Compares an operation's request with its bytes, which were written by hand from docs/formats.md,
/// both ways.
macro_rules! golden {
    ($name:ident, $fixed:literal, $hex:expr, $value:expr) => {{
        let (bytes, value) = (hex($hex), $value);
        assert_eq!(value.emit(), bytes, "{value:?}");
        assert_eq!($name::parse(&bytes), Ok(value));
        for short in 0..$fixed {
            assert!($name::parse(&bytes[..short]).is_err(), "{short} bytes");
        }
        let mut other = bytes.clone();
        other[0] = VERSION + 1;
        assert_eq!($name::parse(&other), Err(Status::BadVersion));
        (other[0], other[1]) = (VERSION, 1);
        assert_eq!($name::parse(&other), Err(Status::BadFormat));
        (other[1], other[3]) = (bytes[1], 1);
        assert_eq!($name::parse(&other), Err(Status::BadFormat));
    }};
}

#[test]
fn requests_with_a_lifetime() {
    for (lifetime, hex) in
        [(Some(Lifetime(0x0102)), "0000000000000102"), (None, "ffffffffffffffff")]
    {
        let all = [
            "01 0d 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
             0000000000000003 0000000000000005 0000000000000004",
            hex,
            "00000002 6b6579 7631",
        ];
        let swap = Swap { target: TARGET, once: ONCE, key: b"key", value: b"v1", lifetime };
        golden!(Swap, 68, &all.concat(), swap);
        assert_eq!(key(&swap.emit()), Some((TableId(7), &b"key"[..])));
    }
    golden!(
        Write,
        68,
        "01 0b 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
         0000000000000003 0000000000000005 0000000000000004 0000000000000102 00000002 6b6579 7631",
        Write {
            target: TARGET,
            once: ONCE,
            key: b"key",
            value: b"v1",
            lifetime: Some(Lifetime(0x0102))
        }
    );
    golden!(
        Touch,
        64,
        "01 0c 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
         0000000000000003 0000000000000005 0000000000000004 0000000000000102 6b6579",
        Touch { target: TARGET, once: ONCE, key: b"key", lifetime: Some(Lifetime(0x0102)) }
    );
    golden!(
        Touch,
        64,
        "01 0c 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
         0000000000000003 0000000000000005 0000000000000004 ffffffffffffffff 6b6579",
        Touch { target: TARGET, once: ONCE, key: b"key", lifetime: None }
    );
}

#[test]
fn changes_of_indexed_objects() {
    let written = ChangeIndexed {
        target: TARGET,
        once: ONCE,
        nodes: TableId(8),
        kind: Kind::Write(Some(Lifetime(0x0102))),
        key: b"key",
        value: b"v1",
    };
    golden!(
        ChangeIndexed,
        80,
        "01 14 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
         0000000000000003 0000000000000005 0000000000000004 0000000000000102
         0000000000000008 01 000000 00000002 6b6579 7631",
        written
    );
    golden!(
        ChangeIndexed,
        80,
        "01 14 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
         0000000000000003 0000000000000005 0000000000000004 ffffffffffffffff
         0000000000000008 00 000000 00000000 6b6579",
        ChangeIndexed { kind: Kind::Remove, value: b"", ..written }
    );
}

#[test]
fn requests() {
    golden!(
        ReadExpiring,
        32,
        "01 0e 0000 09 000000 0000000000000009 0000000000000007 0000000000000102 6b6579",
        ReadExpiring { target: TARGET, key: b"key" }
    );
    golden!(
        LookUp,
        36,
        "01 13 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
         00000002 6b6579 7131",
        LookUp { target: TARGET, key: b"key", query: b"q1" }
    );
    golden!(
        Read,
        32,
        "01 02 0000 09 000000 0000000000000009 0000000000000007 0000000000000102 6b6579",
        Read { target: TARGET, key: b"key" }
    );
    golden!(
        Write,
        60,
        "01 03 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
         0000000000000003 0000000000000005 0000000000000004 00000002 6b6579 7631",
        Write { target: TARGET, once: ONCE, key: b"key", value: b"v1", lifetime: None }
    );
    golden!(
        Append,
        60,
        "01 0a 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
         0000000000000003 0000000000000005 0000000000000004 00000002 6b6579 7631",
        Append { target: TARGET, once: ONCE, key: b"key", bytes: b"v1" }
    );
    golden!(
        Remove,
        56,
        "01 04 0000 00 000000 0000000000000000 0000000000000000 0000000000000000
         0000000000000003 0000000000000005 0000000000000004",
        Remove { target: Target::default(), once: ONCE, key: b"" }
    );
    golden!(
        Increment,
        64,
        "01 05 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
         0000000000000003 0000000000000005 0000000000000004 fffffffffffffffe 6b",
        Increment { target: TARGET, once: ONCE, amount: Amount::Integer(-2), key: b"k" }
    );
    golden!(
        Increment,
        64,
        "01 06 0000 09 000000 0000000000000009 0000000000000007 0000000000000102
         0000000000000003 0000000000000005 0000000000000004 3ff8000000000000 6b",
        Increment { target: TARGET, once: ONCE, amount: Amount::Double(1.5), key: b"k" }
    );
    let all =
        Enumerate { cluster: 9, table: TableId(7), first: 1, last: 2, cursor: 3, limit_bytes: 4 };
    golden!(
        Enumerate,
        48,
        "01 07 0000 00000004 0000000000000009 0000000000000007 0000000000000001 0000000000000002
         0000000000000003",
        all
    );
    assert_eq!(Enumerate::parse(&Enumerate { first: 3, ..all }.emit()), Err(Status::BadFormat));
    assert_eq!(Echo(b"hi").emit(), hex("01 01 0000 6869"));
    assert_eq!(Stats.emit(), hex("01 08 0000"));
}

#[test]
fn unknown_rules_and_lengths_that_lie_are_refused() {
    let mut read = Read { target: TARGET, key: b"key" }.emit();
    read[4] = 0x10;
    assert_eq!(Read::parse(&read), Err(Status::BadFormat));
    let mut write =
        Write { target: TARGET, once: ONCE, key: b"k", value: b"v", lifetime: None }.emit();
    write[59] = 2;
    assert_eq!(Write::parse(&write).map(|w| (w.key, w.value)), Ok((&b""[..], &b"kv"[..])));
    write[59] = 3;
    assert_eq!(Write::parse(&write), Err(Status::BadFormat));
}

#[test]
fn replies() {
    let ok = [&result_head(Status::Ok, Version(258))[..], b"12345678"].concat();
    assert_eq!(ok, hex("01 00 0000 0000000000000102 3132333435363738"));
    assert_eq!(read_reply(&ok), Ok((Version(258), &b"12345678"[..])));
    assert_eq!(increment_reply(&ok), Ok((Version(258), *b"12345678")));
    assert_eq!(mutation_reply(&ok), Err(Status::BadFormat.into()));
    assert_eq!(mutation_reply(&ok[..12]), Ok(Version(258)));
    assert_eq!(read_reply(&ok[..11]), Err(Status::BadFormat.into()));

    let verdict = result_head(Status::WrongVersion, Version(3));
    assert_eq!(verdict[..], hex("01 05 0000 0000000000000003"));
    let refusal = Refusal { status: Status::WrongVersion, version: Version(3), text: "" };
    assert_eq!(mutation_reply(&verdict), Err(refusal));
    assert_eq!(mutation_reply(&verdict[..8]), Err(Status::BadFormat.into()));

    let text = [&head(Status::NoSpace)[..], b"full"].concat();
    let refusal = Refusal { status: Status::NoSpace, version: Version(0), text: "full" };
    assert_eq!(read_reply(&text), Err(refusal));
    assert_eq!(read_reply(&hex("01 ff 0000")), Err(Status::BadFormat.into()));
    assert_eq!(read_reply(&hex("02 00 0000")), Err(Status::BadVersion.into()));
    assert_eq!(echo_reply(&hex("01 00 0000 6869")), Ok(&b"hi"[..]));
}

#[test]
fn replies_with_objects() {
    let objects = [
        &objects_head(3, 6)[..],
        &object_head(1, Version(4), 2, None),
        b"kvw",
        &object_head(1, Version(7), 2, Some(Lifetime(0x0102))),
        b"exy",
        &object_head(0, Version(5), 0, None),
    ]
    .concat();
    let golden = "01 00 0000 00000003 0000000000000006
        0000000000000004 00000002 00000001 6b 7677
        0000000000000007 00000002 80000001 0000000000000102 65 7879
        0000000000000005 00000000 00000000";
    assert_eq!(objects, hex(golden));
    let parsed = objects_reply(&objects).unwrap();
    assert_eq!(parsed.next, Some(6));
    let listed: Vec<_> = parsed.collect();
    let of = |key, version, value, lifetime| {
        let (version, lifetime) = (Version(version), lifetime);
        Listed { key, version, value, lifetime }
    };
    let lifetime = Some(Lifetime(0x0102));
    let expected = [of(b"k", 4, b"vw", None), of(b"e", 7, b"xy", lifetime), of(b"", 5, b"", None)];
    assert_eq!(listed, expected);
    for short in 0..objects.len() {
        assert!(objects_reply(&objects[..short]).is_err());
    }
    assert!(objects_reply(&[&objects[..], &[0]].concat()).is_err());
    assert_eq!(objects_reply(&objects_head(0, 0)).unwrap().next, None);
    assert!(objects_reply(&objects_head(u32::MAX, 0)).is_err());
}

#[test]
fn reject_rules_in_ramclouds_order() {
    let rules = |flags: u8| RejectRules {
        given_version: Version(5),
        doesnt_exist: flags & 1 != 0,
        exists: flags & 2 != 0,
        version_le_given: flags & 4 != 0,
        version_ne_given: flags & 8 != 0,
    };
    for flags in 0..16 {
        let missing = if flags & 1 != 0 { Err(Status::ObjectDoesntExist) } else { Ok(()) };
        assert_eq!(rules(flags).check(Version(0)), missing);
        for version in 4..=6 {
            let expected = match flags {
                f if f & 2 != 0 => Err(Status::ObjectExists),
                f if f & 4 != 0 && version <= 5 => Err(Status::WrongVersion),
                f if f & 8 != 0 && version != 5 => Err(Status::WrongVersion),
                _ => Ok(()),
            };
            assert_eq!(rules(flags).check(Version(version)), expected, "{flags} {version}");
        }
    }
}

#[test]
fn the_key_of_a_request_is_found() {
    let found = Some((TableId(7), &b"key"[..]));
    assert_eq!(key(&Read { target: TARGET, key: b"key" }.emit()), found);
    let write =
        Write { target: TARGET, once: ONCE, key: b"key", value: b"value", lifetime: None }.emit();
    assert_eq!(key(&write), found);
    assert_eq!(key(&write[..60]), None);
    assert_eq!(key(&Remove { target: TARGET, once: ONCE, key: b"key" }.emit()), found);
    let amount = Amount::Double(1.0);
    assert_eq!(key(&Increment { target: TARGET, once: ONCE, amount, key: b"key" }.emit()), found);
    assert_eq!((key(&Echo(b"key").emit()), key(&Stats.emit()), key(&[])), (None, None, None));
}

proptest! {
    /// No bytes make an operation's parser panic, and emitting a parsed request gives the same
    /// bytes.
    #[test]
    fn arbitrary_bytes(
        opcode in 0u8..21,
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let _ = key(&bytes);
        if bytes.len() > 8 {
            let head = [VERSION, opcode, 0, 0, bytes[4] & 0xf, 0, 0, 0];
            bytes[..8].copy_from_slice(&head);
        }
        if let Ok(read) = Read::parse(&bytes) {
            prop_assert_eq!(read.emit(), &bytes[..]);
        }
        if let Ok(write) = Write::parse(&bytes) {
            prop_assert_eq!(write.emit(), &bytes[..]);
        }
        if let Ok(change) = ChangeIndexed::parse(&bytes) {
            prop_assert_eq!(change.emit(), &bytes[..]);
        }
        if let Ok(look_up) = LookUp::parse(&bytes) {
            prop_assert_eq!(look_up.emit(), &bytes[..]);
        }
        if let Ok(swap) = Swap::parse(&bytes) {
            prop_assert_eq!(swap.emit(), &bytes[..]);
        }
        if let Ok(remove) = Remove::parse(&bytes) {
            prop_assert_eq!(remove.emit(), &bytes[..]);
        }
        if let Ok(increment) = Increment::parse(&bytes) {
            prop_assert_eq!(increment.emit(), &bytes[..]);
        }
        if let Ok(enumerate) = Enumerate::parse(&bytes) {
            prop_assert_eq!(enumerate.emit(), &bytes[..]);
        }
    }

    #[test]
    fn arbitrary_replies(
        status in 0u8..25,
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        if bytes.len() > 8 {
            let head = [VERSION, status, 0, 0, 0, 0, 0, bytes[7] & 3];
            bytes[..8].copy_from_slice(&head);
        }
        let _ = (read_reply(&bytes), mutation_reply(&bytes), increment_reply(&bytes));
        let _ = (echo_reply(&bytes), Swap::completion(None, &bytes));
        let _ = ReadExpiring::completion((), &bytes);
        if let Ok(objects) = objects_reply(&bytes) {
            prop_assert!(objects.count() <= bytes.len() / 16);
        }
    }
}
