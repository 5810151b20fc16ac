//! The entries of the log, byte by byte (normative: `docs/formats.md`, "Log entries").
//!
//! ```text
//! entry       0 kind u8 | 1 length of the body u24 | 4 crc32c u32 | 8 body
//! 1 header    8 server index u32 | 12 generation u32 | 16 segment id u32 | 20 capacity u32
//!            24 safe version u64
//! 2 object    8 table u64 | 16 version u64 | 24 stamp u32 | 28 older first u32 | 32 older last u32
//!            36 key length u32 | 40 key | value
//! 3 tombstone 8 table u64 | 16 version u64 | 24 stamp u32 | 28 older first u32 | 32 older last u32
//!            36 key
//! 4 completion 8 lease u64 | 16 rpc u64 | 24 ack u64 | 32 table u64 | 40 key hash u64
//!            48 version u64 | 56 sum 8 B | 64 status u8 | 65 has a sum u8 | 66 zero u16
//! 5 group     8 entries, which stand or fall together: an object or tombstone, then the completion
//! ```
//!
//! Integers are big-endian. A segment is a header and entries without gaps. The checksum covers the
//! kind, the length and the body; inside a group it is zero, since the checksum of the group covers
//! all of it: half a group is no group. The highest bit of a kind is not part of the entry: a
//! master marks entries there that are dead in its own memory, so that the cleaner skips them
//! without a look-up. Checksums take it as 0, and a replay ignores it. A replay keeps for each key
//! the object of the highest version, unless a tombstone has at least that version. It lets no
//! version fall below a header's safe version or below a version that it has seen.
//!
//! `older` is a span of the segments that may hold older versions of the key. Its tombstone must
//! stay while one of them does, or a replay would bring an old version back. Invariant: parsing
//! never panics, for any bytes.

use sprat_proto::wire::checksum::Crc32c;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::message::Status;
use crate::message::data::Once;
use crate::objects::segment::{SegmentId, Span};
use crate::types::{KeyHash, LeaseId, ServerId, TableId, Version};

/// The bytes before the body of an entry.
pub const HEAD: usize = 8;
/// The bytes of an object's entry without key and value.
pub const OBJECT: usize = size_of::<ObjectWire>();
/// The bytes of a tombstone's entry without the key.
pub const TOMBSTONE: usize = size_of::<TombstoneWire>();
/// The bytes of a completion record's entry.
pub const COMPLETION: usize = size_of::<CompletionWire>();
/// The bytes of a segment's header.
pub const HEADER: usize = size_of::<HeaderWire>();

/// The bit that marks an entry as dead in this memory.
const DEAD: u8 = 0x80;
const KIND_HEADER: u8 = 1;
const KIND_OBJECT: u8 = 2;
const KIND_TOMBSTONE: u8 = 3;
const KIND_COMPLETION: u8 = 4;
const KIND_GROUP: u8 = 5;

/// The first entry of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The owner of the log.
    pub server: ServerId,
    /// The number of the segment.
    pub segment: SegmentId,
    /// The size of the segment in bytes.
    pub capacity: u32,
    /// The lowest version for a new object.
    pub safe_version: Version,
}

/// An object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object<'a> {
    /// The table.
    pub table: TableId,
    /// The version.
    pub version: Version,
    /// The number of segments that the log had opened when it was written: for its age only.
    pub stamp: u32,
    /// A span of the segments that may hold older versions.
    pub older: Span,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl Object<'_> {
    /// Returns the length of its entry.
    #[must_use]
    #[inline]
    pub fn entry_len(&self) -> usize {
        OBJECT + self.key.len() + self.value.len()
    }
}

/// The removal of all versions of an object up to `version`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tombstone<'a> {
    /// The table of the object.
    pub table: TableId,
    /// The version that was removed.
    pub version: Version,
    /// The number of segments that the log had opened when it was written.
    pub stamp: u32,
    /// A span of the segments that may hold versions of the object.
    pub older: Span,
    /// The key.
    pub key: &'a [u8],
}

/// The outcome of a mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The status: OK or a verdict.
    pub status: Status,
    /// The version for the reply.
    pub version: Version,
    /// The sum for the reply, if the mutation was an increment that succeeded.
    pub sum: Option<[u8; 8]>,
}

/// The record of an executed mutation (RIFL's completion record).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The identity of the mutation.
    pub once: Once,
    /// The table of its object. The record belongs to the same tablet as the object.
    pub table: TableId,
    /// The hash of the object's key.
    pub hash: KeyHash,
    /// The outcome.
    pub outcome: Outcome,
}

/// An entry of any kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// The header of the segment.
    Header(Header),
    /// An object.
    Object(Object<'a>),
    /// The removal of an object.
    Tombstone(Tombstone<'a>),
    /// The record of an executed mutation.
    Completion(Completion),
    /// The bytes of several entries that belong together.
    Group(&'a [u8]),
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeadWire {
    /// The kind in the highest byte, and the length of the body in the others.
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

/// Rewrites the span of older versions in the object or tombstone at the start of `entry`, and
/// clears its checksum. The cleaner does that to its copies.
pub fn set_older(entry: &mut [u8], older: Span) {
    if let Ok((wire, _)) = TombstoneWire::mut_from_prefix(entry) {
        wire.head.crc = U32::ZERO;
        wire.first = older.first.0.into();
        wire.last = older.last.0.into();
    }
}

/// Returns the object at the start of `entry`. This is the fast path for bytes of this process's
/// own log.
///
/// # Panics
/// If `entry` does not start with an object.
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

/// Parses the entry at the start of `bytes`, without its checksum, and returns it with its length.
/// `None` means that there is no entry or that it is malformed.
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

/// Returns the length of the entry at the start of `entry` if it is marked as dead.
#[must_use]
#[inline]
pub fn dead(entry: &[u8]) -> Option<usize> {
    let (&[kind, a, b, c], _) = entry.split_first_chunk()?;
    (kind & DEAD != 0).then_some(HEAD + u32::from_be_bytes([0, a, b, c]) as usize)
}

/// Returns the checksum of the entry that fills `entry`.
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

/// Fills in the checksum of the entry at the start of `bytes`. Returns its length, or `None` if
/// there is no entry.
pub fn seal(crc32c: Crc32c, bytes: &mut [u8]) -> Option<usize> {
    let (_, len) = parse(bytes)?;
    let crc = checksum(crc32c, &bytes[..len]);
    bytes[4..8].copy_from_slice(&crc.to_be_bytes());
    Some(len)
}

/// Iterates over the entries of a sealed segment, with groups taken apart, up to the end or to the
/// first entry that is malformed or has a wrong checksum.
#[must_use]
pub fn replay(crc32c: Crc32c, segment: &[u8]) -> Replay<'_> {
    Replay { crc32c, rest: segment, group: &[] }
}

/// The iterator that [`replay`] returns.
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
