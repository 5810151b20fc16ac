//! The entries of the log, byte by byte (normative: `docs/formats.md`, "Log entries").
//!
//! ```text
//! entry       0 kind u8 | 1 length of the body u24 | 4 crc32c u32 | 8 body
//! 1 header    8 server index u32 | 12 generation u32 | 16 segment id u32 | 20 capacity u32 | 24 safe version u64
//! 2 object    8 table u64 | 16 version u64 | 24 stamp u32 | 28 older first u32 | 32 older last u32
//!            36 key length u32 | 40 key | value
//! 3 tombstone 8 table u64 | 16 version u64 | 24 stamp u32 | 28 older first u32 | 32 older last u32 | 36 key
//! 4 completion 8 lease u64 | 16 rpc u64 | 24 ack u64 | 32 table u64 | 40 key hash u64 | 48 version u64 | 56 sum 8 B
//!            64 status u8 | 65 has a sum u8 | 66 zero u16
//! 5 group     8 entries, which stand or fall together: an object or tombstone, then the completion
//! ```
//!
//! Integers are big-endian. A segment is a header followed by entries without gaps. The checksum covers the kind, the
//! length and the body; inside a group it is zero, since the group's own covers all of it: half a group is no group.
//! The highest bit of a kind is not part of the entry: a master marks there what is dead in its own memory, so that the
//! cleaner need not ask the tables. Checksums are made as if it were 0, and whoever replays a log ignores it.
//! Whoever replays a log keeps for each key the object of the highest version, unless a tombstone has at least that
//! version; and lets no version fall below a header's safe version or a version that it saw.
//!
//! `older` names the segments that may hold older versions of the key: its tombstone must stay as long as one of them
//! does, or a replay would bring an old version back. What always holds: parsing never panics, whatever the bytes.

use sprat_proto::wire::checksum::Crc32c;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::message::Status;
use crate::message::data::Once;
use crate::objects::segment::{SegmentId, Span};
use crate::types::{KeyHash, LeaseId, ServerId, TableId, Version};

/// Bytes before the body of an entry.
pub const HEAD: usize = 8;
/// Bytes of an object's entry without key and value.
pub const OBJECT: usize = size_of::<ObjectWire>();
/// Bytes of a tombstone's entry without the key.
pub const TOMBSTONE: usize = size_of::<TombstoneWire>();
/// Bytes of a completion's entry.
pub const COMPLETION: usize = size_of::<CompletionWire>();
/// Bytes of a segment's header.
pub const HEADER: usize = size_of::<HeaderWire>();

/// The mark of an entry that is dead in this memory.
const DEAD: u8 = 0x80;
const KIND_HEADER: u8 = 1;
const KIND_OBJECT: u8 = 2;
const KIND_TOMBSTONE: u8 = 3;
const KIND_COMPLETION: u8 = 4;
const KIND_GROUP: u8 = 5;

/// How a segment begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Whose log this is.
    pub server: ServerId,
    /// Which segment.
    pub segment: SegmentId,
    /// Its size in bytes.
    pub capacity: u32,
    /// A new object gets at least this version.
    pub safe_version: Version,
}

/// An object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object<'a> {
    /// Its table.
    pub table: TableId,
    /// Its version.
    pub version: Version,
    /// The number of segments that the log had opened when it was written: for its age only.
    pub stamp: u32,
    /// Where older versions of it may be.
    pub older: Span,
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

impl Object<'_> {
    /// How long its entry is.
    #[must_use]
    #[inline]
    pub fn entry_len(&self) -> usize {
        OBJECT + self.key.len() + self.value.len()
    }
}

/// The end of an object: of all its versions up to `version`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tombstone<'a> {
    /// The object's table.
    pub table: TableId,
    /// The version that was removed.
    pub version: Version,
    /// The number of segments that the log had opened when it was written.
    pub stamp: u32,
    /// Where versions of it may be.
    pub older: Span,
    /// Its key.
    pub key: &'a [u8],
}

/// What came of a mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// OK or a verdict.
    pub status: Status,
    /// The version to tell the client.
    pub version: Version,
    /// The sum to tell the client, if it was an increment that succeeded.
    pub sum: Option<[u8; 8]>,
}

/// A mutation that was executed (RIFL's completion record).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Which one.
    pub once: Once,
    /// The table of its object: the record follows the object wherever that goes.
    pub table: TableId,
    /// The hash of its object's key.
    pub hash: KeyHash,
    /// What came of it.
    pub outcome: Outcome,
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// The segment's own.
    Header(Header),
    /// An object.
    Object(Object<'a>),
    /// The end of an object.
    Tombstone(Tombstone<'a>),
    /// A mutation that was executed.
    Completion(Completion),
    /// Several that belong together: their bytes.
    Group(&'a [u8]),
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeadWire {
    /// Kind in the highest byte, length of the body in the others.
    kind_len: U32,
    crc: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderWire {
    head: HeadWire,
    index: U32,
    generation: U32,
    segment: U32,
    capacity: U32,
    safe_version: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TombstoneWire {
    head: HeadWire,
    table: U64,
    version: U64,
    stamp: U32,
    first: U32,
    last: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ObjectWire {
    buried: TombstoneWire,
    key_len: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CompletionWire {
    head: HeadWire,
    lease: U64,
    rpc: U64,
    ack: U64,
    table: U64,
    hash: U64,
    version: U64,
    sum: [u8; 8],
    status: u8,
    has_sum: u8,
    zero: U16,
}

fn head(kind: u8, entry_len: usize) -> HeadWire {
    let len = entry_len - HEAD;
    debug_assert!(len < 1 << 24, "no segment is that long");
    HeadWire { kind_len: (u32::from(kind) << 24 | len as u32).into(), crc: U32::ZERO }
}

/// Writes the head of a group that fills `out`.
#[inline]
pub fn put_group(out: &mut [u8]) {
    let head = head(KIND_GROUP, out.len());
    out[..HEAD].copy_from_slice(head.as_bytes());
}

/// Writes a segment's header at the start of `out`.
pub fn put_header(out: &mut [u8], header: &Header) {
    let wire = HeaderWire {
        head: head(KIND_HEADER, HEADER),
        index: header.server.index.into(),
        generation: header.server.generation.into(),
        segment: header.segment.0.into(),
        capacity: header.capacity.into(),
        safe_version: header.safe_version.0.into(),
    };
    out[..HEADER].copy_from_slice(wire.as_bytes());
}

/// Writes an object, which fills `out`.
#[inline]
pub fn put_object(out: &mut [u8], object: &Object<'_>) {
    let Object { table, version, stamp, older, key, value } = *object;
    let buried = TombstoneWire {
        head: head(KIND_OBJECT, out.len()),
        table: table.0.into(),
        version: version.0.into(),
        stamp: stamp.into(),
        first: older.first.0.into(),
        last: older.last.0.into(),
    };
    let wire = ObjectWire { buried, key_len: (key.len() as u32).into() };
    let (fixed, rest) = out.split_at_mut(OBJECT);
    fixed.copy_from_slice(wire.as_bytes());
    let (key_out, value_out) = rest.split_at_mut(key.len());
    key_out.copy_from_slice(key);
    value_out.copy_from_slice(value);
}

/// Writes a tombstone, which fills `out`.
#[inline]
pub fn put_tombstone(out: &mut [u8], tombstone: &Tombstone<'_>) {
    let Tombstone { table, version, stamp, older, key } = *tombstone;
    let wire = TombstoneWire {
        head: head(KIND_TOMBSTONE, out.len()),
        table: table.0.into(),
        version: version.0.into(),
        stamp: stamp.into(),
        first: older.first.0.into(),
        last: older.last.0.into(),
    };
    let (fixed, rest) = out.split_at_mut(TOMBSTONE);
    fixed.copy_from_slice(wire.as_bytes());
    rest.copy_from_slice(key);
}

/// Writes a completion, which fills `out`.
#[inline]
pub fn put_completion(out: &mut [u8], completion: &Completion) {
    let Completion { once, table, hash, outcome } = *completion;
    let wire = CompletionWire {
        head: head(KIND_COMPLETION, COMPLETION),
        lease: once.lease.0.into(),
        rpc: once.rpc.into(),
        ack: once.ack.into(),
        table: table.0.into(),
        hash: hash.0.into(),
        version: outcome.version.0.into(),
        sum: outcome.sum.unwrap_or([0; 8]),
        status: outcome.status as u8,
        has_sum: u8::from(outcome.sum.is_some()),
        zero: U16::ZERO,
    };
    out.copy_from_slice(wire.as_bytes());
}

/// Rewrites the span of older versions in the object or tombstone at the start of `entry`, and unfills its checksum: for
/// the copy that the cleaner makes.
pub fn set_older(entry: &mut [u8], older: Span) {
    if let Ok((wire, _)) = TombstoneWire::mut_from_prefix(entry) {
        wire.head.crc = U32::ZERO;
        wire.first = older.first.0.into();
        wire.last = older.last.0.into();
    }
}

/// The object at the start of `entry`, which is one: the fast path, for bytes of this process's own log.
///
/// # Panics
/// If it is none.
#[inline]
#[must_use]
pub fn object(entry: &[u8]) -> Object<'_> {
    let (wire, rest) = ObjectWire::ref_from_prefix(entry).expect("an object's entry");
    let kind_len = wire.buried.head.kind_len.get();
    debug_assert_eq!((kind_len >> 24) as u8 & !DEAD, KIND_OBJECT);
    let (key, rest) = rest.split_at(wire.key_len.get() as usize);
    let value = &rest[..(kind_len & 0xff_ffff) as usize + HEAD - OBJECT - key.len()];
    let TombstoneWire { table, version, stamp, .. } = wire.buried;
    Object {
        table: TableId(table.get()),
        version: Version(version.get()),
        stamp: stamp.get(),
        older: span(&wire.buried),
        key,
        value,
    }
}

fn span(wire: &TombstoneWire) -> Span {
    Span { first: SegmentId(wire.first.get()), last: SegmentId(wire.last.get()) }
}

/// Reads the entry at the start of `bytes`: what it is and how long it is, checksum not looked at. `None` if there is
/// none or it makes no sense.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<(Entry<'_>, usize)> {
    let (head, rest) = HeadWire::ref_from_prefix(bytes).ok()?;
    let kind_len = head.kind_len.get();
    let len = HEAD + (kind_len & 0xff_ffff) as usize;
    rest.get(..len - HEAD)?;
    let whole = &bytes[..len];
    let entry = match (kind_len >> 24) as u8 & !DEAD {
        KIND_HEADER => Entry::Header(parse_header(HeaderWire::ref_from_bytes(whole).ok()?)),
        KIND_OBJECT => {
            let (wire, rest) = ObjectWire::ref_from_prefix(whole).ok()?;
            rest.get(..wire.key_len.get() as usize)?;
            Entry::Object(object(whole))
        }
        KIND_TOMBSTONE => {
            let (wire, key) = TombstoneWire::ref_from_prefix(whole).ok()?;
            Entry::Tombstone(Tombstone {
                table: TableId(wire.table.get()),
                version: Version(wire.version.get()),
                stamp: wire.stamp.get(),
                older: span(wire),
                key,
            })
        }
        KIND_COMPLETION => {
            Entry::Completion(parse_completion(CompletionWire::ref_from_bytes(whole).ok()?)?)
        }
        KIND_GROUP => Entry::Group(&whole[HEAD..]),
        _ => return None,
    };
    Some((entry, len))
}

fn parse_header(wire: &HeaderWire) -> Header {
    Header {
        server: ServerId { index: wire.index.get(), generation: wire.generation.get() },
        segment: SegmentId(wire.segment.get()),
        capacity: wire.capacity.get(),
        safe_version: Version(wire.safe_version.get()),
    }
}

fn parse_completion(wire: &CompletionWire) -> Option<Completion> {
    let sum = match wire.has_sum {
        0 => None,
        1 => Some(wire.sum),
        _ => return None,
    };
    let once = Once { lease: LeaseId(wire.lease.get()), rpc: wire.rpc.get(), ack: wire.ack.get() };
    let outcome = Outcome {
        status: Status::from_code(wire.status)?,
        version: Version(wire.version.get()),
        sum,
    };
    Some(Completion {
        once,
        table: TableId(wire.table.get()),
        hash: KeyHash(wire.hash.get()),
        outcome,
    })
}

/// Marks the entry at the start of `entry` as dead in this memory.
#[inline]
pub fn mark_dead(entry: &mut [u8]) {
    if let Some(kind) = entry.first_mut() {
        *kind |= DEAD;
    }
}

/// The length of the entry at the start of `entry` if it is marked as dead.
#[must_use]
#[inline]
pub fn dead(entry: &[u8]) -> Option<usize> {
    let (&[kind, a, b, c], _) = entry.split_first_chunk()?;
    (kind & DEAD != 0).then_some(HEAD + u32::from_be_bytes([0, a, b, c]) as usize)
}

/// The checksum of the entry that is `entry`.
#[must_use]
pub fn checksum(crc32c: Crc32c, entry: &[u8]) -> u32 {
    let mut crc = crc32c(crc32c(0, &[entry[0] & !DEAD]), &entry[1..4]);
    let mut rest = &entry[HEAD..];
    if entry[0] & !DEAD == KIND_GROUP {
        while let Some((_, len)) = parse(rest) {
            crc = crc32c(crc32c(crc, &[rest[0] & !DEAD]), &rest[1..len]);
            rest = &rest[len..];
        }
    }
    crc32c(crc, rest)
}

/// Fills in the checksum of the entry at the start of `bytes`; its length, or `None` if there is none.
pub fn seal(crc32c: Crc32c, bytes: &mut [u8]) -> Option<usize> {
    let (_, len) = parse(bytes)?;
    let crc = checksum(crc32c, &bytes[..len]);
    bytes[4..8].copy_from_slice(&crc.to_be_bytes());
    Some(len)
}

/// The entries of a sealed segment, groups taken apart, up to the end or to the first that makes no sense or whose
/// checksum is wrong: what a replay may rely on.
#[must_use]
pub fn replay(crc32c: Crc32c, segment: &[u8]) -> Replay<'_> {
    Replay { crc32c, rest: segment, group: &[] }
}

/// See [`replay`].
#[derive(Debug)]
pub struct Replay<'a> {
    crc32c: Crc32c,
    rest: &'a [u8],
    group: &'a [u8],
}

impl<'a> Iterator for Replay<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        while self.group.is_empty() {
            let (entry, len) = parse(self.rest)?;
            let (whole, rest) = self.rest.split_at(len);
            if whole[4..8] != checksum(self.crc32c, whole).to_be_bytes() {
                self.rest = &[];
                return None;
            }
            self.rest = rest;
            match entry {
                Entry::Group(group) => self.group = group,
                entry => return Some(entry),
            }
        }
        match parse(self.group) {
            Some((entry, len)) if !matches!(entry, Entry::Group(_)) => {
                self.group = &self.group[len..];
                Some(entry)
            }
            _ => {
                (self.group, self.rest) = (&[], &[]);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
