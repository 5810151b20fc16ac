//! The entries of the log, byte by byte (normative: `docs/formats.md`, "Log entries").
//!
//! ```text
//! entry       0 kind u8 | 1 length of the body u24 | 4 crc32c u32 | 8 body
//! 1 header    8 cluster u64 | 16 server index u32 | 20 generation u32 | 24 segment id u32
//!            28 capacity u32 | 32 safe version u64
//! 2 object    8 table u40 | 13 key length u24 | 16 version u48 | 22 older first u32
//!            26 older count u24 | 29 key | value | [expires u48] | [old value | its length u32]
//!            [record]
//! 3 tombstone as an object without a value
//! 4 completion 8 lease u40 | 13 rpc u48 | 19 rpc - ack u16 | 21 table u40 | 26 status u8
//!            27 key hash u64 | 35 version u48 | [41 sum 8 B] | [49 old value]
//! 5 digest    8 segment id u32 | 12 length u32 | and so on for all segments of the log
//! 6 change    as a digest, with the segments that are new in the log, and those that left it
//!             (length 0)
//! 6 group     with bit 5: 8 length u32 of the entries that follow
//! 7 object    as 2, with the time at which it expires
//! record      0 lease u40 | 5 rpc u48 | 11 rpc - ack u16 | [13 sum 8 B]
//! kind        bits 0..2 as above | bit 3 the record, or the completion, has an old value
//!             bit 4 a record follows | bit 5 it, or the completion, has a sum
//!             bit 6 the record is dead here | bit 7 the rest is dead here
//! ```
//!
//! Integers are big-endian. An object expires at a time of the wall clock, in milliseconds since
//! 1970. A segment is a header and entries without gaps. The checksum covers the
//! kind, the length and the body. That of a header starts with 0, and those of the other entries
//! continue the header's, so that no entry of another segment, cluster or server has a correct one.
//! A record is the completion of the mutation that wrote the entry.
//! It has no table, version or status of its own: it says that the mutation of this object, or the
//! removal, succeeded. One checksum covers both, so that they stand or fall together. A completion
//! that stands alone is that of a mutation that changed nothing, or one whose object is dead.
//! The record of a swap has the version of the object before as its sum, and the value of that
//! object as its old value, unless that is empty. So a repetition of the swap gets them wherever
//! the record is.
//!
//! The entries behind a group's count together or not at all: if the segment ends before the last
//! of them, a replay ends before the first.
//!
//! The two highest bits of a kind are not part of the entry: a master marks there what is dead in
//! its own memory, so that the cleaner skips it without a look-up. Checksums take them as 0, and a
//! replay ignores them. A replay keeps for each key the object of the highest version, unless a
//! tombstone has at least that version. It lets no version fall below a header's safe version or
//! below a version that it has seen.
//!
//! `older` is a span of the segments that may hold older versions of the key. Its tombstone must
//! stay while one of them does, or a replay would bring an old version back. Invariant: parsing
//! never panics, for any bytes.

use core::ops::Range;

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use crate::message::Status;
use crate::message::data::Once;
use crate::objects::segment::{SegmentId, Span};
use crate::types::{KeyHash, ServerId, TableId, Version, WallTime};

mod digest;
mod head;
mod seal;
mod wire;

pub use digest::{DIGESTED, Digest, put_change, put_digest};
pub use head::{Head, mark_dead, mark_record_dead};
pub use seal::{Entries, checksum, replay, seal};
use wire::{
    CompletionWire, HeadWire, HeaderWire, ObjectWire, RecordWire, VersionWire, from_low48, low48,
};
pub use wire::{MAX_RPC, MOST_AHEAD};

/// The number of bytes before the body of an entry in the log.
const HEAD: usize = 8;
/// The length in bytes of the entry of an object or a tombstone, without key, value and record.
pub const OBJECT: usize = size_of::<ObjectWire>();
/// The length in bytes of the longest record behind an entry in the log, without an old value.
pub const RECORD: usize = size_of::<RecordWire>() + SUM;
/// The length in bytes of the longest completion that stands alone, without an old value. Each live
/// record counts as this many and its old value, for the cleaner may have to write it apart from
/// its object.
pub const COMPLETION: usize = size_of::<CompletionWire>() + SUM;
/// The length of a segment's header in bytes.
pub const HEADER: usize = size_of::<HeaderWire>();
/// The length in bytes of the sum of an increment, or of the length after an append.
const SUM: usize = 8;
/// The length in bytes of the length of an old value.
const OLD_LEN: usize = 4;

/// The bit that marks an entry as dead in this memory, its record apart.
const DEAD: u8 = 0x80;
/// The bit that marks the record of an entry as dead in this memory.
const RECORD_DEAD: u8 = 0x40;
const HAS_SUM: u8 = 0x20;
const HAS_RECORD: u8 = 0x10;
const HAS_OLD: u8 = 0x08;
const KIND: u8 = 0x07;
const KIND_HEADER: u8 = 1;
const KIND_OBJECT: u8 = 2;
const KIND_TOMBSTONE: u8 = 3;
const KIND_COMPLETION: u8 = 4;
const KIND_DIGEST: u8 = 5;
const KIND_CHANGE: u8 = 6;
const KIND_EXPIRING: u8 = 7;
/// The kind of a group: that of a change, which has no sum, with the bit of one.
const KIND_GROUP: u8 = KIND_CHANGE | HAS_SUM;
/// The length in bytes of the entry before the entries of a group.
pub const GROUP: usize = HEAD + size_of::<u32>();
/// The length in bytes of the time at which an object expires.
const EXPIRES: usize = 6;

/// The first entry of a segment, which describes the segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The id of the cluster that the server belongs to.
    pub cluster: u64,
    /// The server that owns the log.
    pub server: ServerId,
    /// The id of the segment that the header opens.
    pub segment: SegmentId,
    /// The size of the segment that the header opens, in bytes.
    pub capacity: u32,
    /// The lowest version for a new object after a replay of the segment.
    pub safe_version: Version,
}

/// The entry of an object in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object<'a> {
    /// The id of the object's table.
    pub table: TableId,
    /// The version of the object.
    pub version: Version,
    /// A span of the segments that may hold older versions of the object.
    pub older: Span,
    /// The key of the object.
    pub key: &'a [u8],
    /// The value of the object.
    pub value: &'a [u8],
    /// The time from which on the object does not exist any more.
    pub expires: WallTime,
}

impl Object<'_> {
    /// Returns the length of the object's entry without a record, in bytes.
    #[must_use]
    #[inline]
    pub fn entry_len(&self) -> usize {
        let expires = if self.expires == WallTime::NEVER { 0 } else { EXPIRES };
        OBJECT + self.key.len() + self.value.len() + expires
    }
}

/// The removal of all versions of an object up to `version`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tombstone<'a> {
    /// The id of the object's table.
    pub table: TableId,
    /// The version of the object that was removed.
    pub version: Version,
    /// A span of the segments that may hold versions of the object.
    pub older: Span,
    /// The key of the removed object.
    pub key: &'a [u8],
}

impl Tombstone<'_> {
    /// Returns the length of the tombstone's entry without a record, in bytes.
    #[must_use]
    pub fn entry_len(&self) -> usize {
        OBJECT + self.key.len()
    }
}

/// The outcome of a mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The status of the mutation: OK or a verdict.
    pub status: Status,
    /// The version that the mutation's reply has.
    pub version: Version,
    /// The sum, the length, or the version of the old object that the mutation's reply has, if it
    /// was an increment, an append or a swap that succeeded.
    pub sum: Option<[u8; 8]>,
}

/// The record of the mutation that wrote an entry.
///
/// The mutation succeeded, and its version is that of the entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The identity of the mutation: lease, number and acknowledgement.
    pub once: Once,
    /// The sum for the mutation's reply, as in [`Outcome::sum`].
    pub sum: Option<[u8; 8]>,
    /// The value that the object had before, if the mutation was a swap, else empty. It comes with
    /// a sum.
    pub old: &'a [u8],
}

impl Record<'_> {
    /// Returns the length of a record without an old value, with a sum or without, in bytes.
    #[must_use]
    #[inline]
    pub fn size(has_sum: bool) -> usize {
        RECORD - if has_sum { 0 } else { SUM }
    }

    /// Returns the length of the longest record with such an old value, without the value itself.
    #[must_use]
    #[inline]
    pub fn longest(&self) -> usize {
        RECORD + if self.old.is_empty() { 0 } else { OLD_LEN }
    }

    /// Returns the length of the record behind an entry, in bytes.
    #[must_use]
    #[inline]
    pub fn entry_len(&self) -> usize {
        let old = if self.old.is_empty() { 0 } else { self.old.len() + OLD_LEN };
        Self::size(self.sum.is_some()) + old
    }
}

/// The completion record of a mutation that stands alone (RIFL).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion<'a> {
    /// The identity of the mutation: lease, number and acknowledgement.
    pub once: Once,
    /// The table of the mutation's object. The record belongs to the same tablet as the object.
    pub table: TableId,
    /// The hash of the object's key.
    pub hash: KeyHash,
    /// The outcome of the mutation.
    pub outcome: Outcome,
    /// The old value for the mutation's reply, as in [`Record::old`].
    pub old: &'a [u8],
}

impl Completion<'_> {
    /// Returns the length of the completion's entry in bytes.
    #[must_use]
    pub fn entry_len(&self) -> usize {
        COMPLETION + self.old.len() - if self.outcome.sum.is_some() { 0 } else { SUM }
    }
}

/// A parsed entry of the log, of any kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// The entry is the header of the segment.
    Header(Header),
    /// An object, and the record of the mutation that wrote it.
    Object(Object<'a>, Option<Record<'a>>),
    /// The removal of an object, and the record of the mutation that removed it.
    Tombstone(Tombstone<'a>, Option<Record<'a>>),
    /// The completion record of an executed mutation, which stands alone.
    Completion(Completion<'a>),
    /// The segments of the log, this one apart.
    Digest(Digest<'a>),
    /// The segments by which the log differs from the digest before.
    Change(Digest<'a>),
    /// The entries in the next bytes, this number of them, count together or not at all: if the
    /// segment ends before, none does.
    Group(usize),
}

fn head(kind: u8, entry_len: usize) -> HeadWire {
    let len = entry_len - HEAD;
    debug_assert!(len < 1 << 24, "no segment is that long");
    HeadWire { kind_len: (u32::from(kind) << 24 | len as u32).into(), crc: U32::ZERO }
}

/// Writes a segment's header at the start of `out`.
pub fn put_header(out: &mut [u8], header: &Header) {
    let wire = HeaderWire {
        head: head(KIND_HEADER, HEADER),
        cluster: header.cluster.into(),
        index: header.server.index.into(),
        generation: header.server.generation.into(),
        segment: header.segment.0.into(),
        capacity: header.capacity.into(),
        safe_version: header.safe_version.0.into(),
    };
    out[..HEADER].copy_from_slice(wire.as_bytes());
}

/// Writes the entry of an object and its record, which fill `out`.
#[inline]
pub fn put_object(out: &mut [u8], object: &Object<'_>, record: Option<&Record<'_>>) {
    let kind = if object.expires == WallTime::NEVER { KIND_OBJECT } else { KIND_EXPIRING };
    put(out, kind, object, record);
}

/// Writes the entry of a tombstone and its record, which fill `out`.
#[inline]
pub fn put_tombstone(out: &mut [u8], tombstone: &Tombstone<'_>, record: Option<&Record<'_>>) {
    let Tombstone { table, version, older, key } = *tombstone;
    let object = Object { table, version, older, key, value: &[], expires: WallTime::NEVER };
    put(out, KIND_TOMBSTONE, &object, record);
}

#[inline]
fn put(out: &mut [u8], kind: u8, object: &Object<'_>, record: Option<&Record<'_>>) {
    let Object { table, version, older, key, value, expires } = *object;
    debug_assert!(table.base() <= TableId::MAX && version <= Version::MAX);
    let flags = match record {
        None => 0,
        Some(Record { sum: None, .. }) => HAS_RECORD,
        Some(Record { old: [], .. }) => HAS_RECORD | HAS_SUM,
        Some(_) => HAS_RECORD | HAS_SUM | HAS_OLD,
    };
    let mut wire = ObjectWire {
        head: head(kind | flags, out.len()),
        table_key_len: (table.0 << 24 | key.len() as u64).into(),
        version: VersionWire::new(version),
        first: U32::ZERO,
        count: [0; 3],
    };
    wire.set_older(older);
    let (fixed, rest) = out.split_at_mut(OBJECT);
    fixed.copy_from_slice(wire.as_bytes());
    let (key_out, rest) = rest.split_at_mut(key.len());
    key_out.copy_from_slice(key);
    let (value_out, rest) = rest.split_at_mut(value.len());
    value_out.copy_from_slice(value);
    let (expires_out, rest) = rest.split_at_mut(expires_len(kind));
    expires_out.copy_from_slice(&low48(expires.0)[..expires_out.len()]);
    if let Some(Record { once, sum, old }) = record {
        let rest = if old.is_empty() { rest } else { put_old(rest, old) };
        let (fixed, rest) = rest.split_at_mut(size_of::<RecordWire>());
        fixed.copy_from_slice(RecordWire::new(once).as_bytes());
        rest.copy_from_slice(sum.as_ref().map_or(&[], |sum| sum));
    }
}

/// Writes an old value and its length. Returns the rest of `out`.
#[cold]
fn put_old<'a>(out: &'a mut [u8], old: &[u8]) -> &'a mut [u8] {
    let (value, rest) = out.split_at_mut(old.len());
    value.copy_from_slice(old);
    let (len, rest) = rest.split_at_mut(OLD_LEN);
    len.copy_from_slice(&(old.len() as u32).to_be_bytes());
    rest
}

/// Writes the entry of a completion, which fills `out`.
#[inline]
pub fn put_completion(out: &mut [u8], completion: &Completion<'_>) {
    let Completion { once, table, hash, outcome, old } = *completion;
    let [_, _, _, table @ ..] = table.0.to_be_bytes();
    let flags = match outcome.sum {
        None => 0,
        Some(_) if old.is_empty() => HAS_SUM,
        Some(_) => HAS_SUM | HAS_OLD,
    };
    let wire = CompletionWire {
        head: head(KIND_COMPLETION | flags, out.len()),
        record: RecordWire::new(&once),
        table,
        status: outcome.status as u8,
        hash: hash.0.into(),
        version: VersionWire::new(outcome.version),
    };
    let (fixed, rest) = out.split_at_mut(size_of::<CompletionWire>());
    fixed.copy_from_slice(wire.as_bytes());
    let (sum_out, rest) = rest.split_at_mut(outcome.sum.map_or(0, |_| SUM));
    sum_out.copy_from_slice(outcome.sum.as_ref().map_or(&[], |sum| sum));
    rest.copy_from_slice(old);
}

/// Writes the entry before the entries of a group, which have `len` bytes together. It fills `out`,
/// and the cleaner takes it as dead.
pub fn put_group(out: &mut [u8], len: usize) {
    let (fixed, rest) = out.split_at_mut(HEAD);
    fixed.copy_from_slice(head(KIND_GROUP | DEAD, GROUP).as_bytes());
    rest.copy_from_slice(&(len as u32).to_be_bytes());
}

/// Copies the object or tombstone at the start of `entry` to `out`, which it fills, with another
/// span of older versions. Its record goes with it if it fits.
///
/// # Panics
/// If `out` is not as long as the entry, with its record or without.
pub fn copy(out: &mut [u8], entry: &[u8], older: Span) {
    let (fixed, rest) = ObjectWire::read_from_prefix(entry).expect("an object's entry");
    let mut wire = fixed;
    let kind = (wire.head.kind_len.get() >> 24) as u8;
    let whole = out.len() == len(entry);
    wire.head = head(if whole { kind & !(DEAD | RECORD_DEAD) } else { kind & KIND }, out.len());
    wire.set_older(older);
    let (fixed_out, rest_out) = out.split_at_mut(OBJECT);
    fixed_out.copy_from_slice(wire.as_bytes());
    rest_out.copy_from_slice(&rest[..rest_out.len()]);
}

/// Returns the object at the start of `entry`. This is the fast path for bytes of this process's
/// own log.
///
/// # Panics
/// If `entry` does not start with an object.
#[inline(always)]
#[must_use]
pub fn object(entry: &[u8]) -> Object<'_> {
    let (wire, rest) = ObjectWire::ref_from_prefix(entry).expect("an object's entry");
    let kind_len = wire.head.kind_len.get();
    let kind = (kind_len >> 24) as u8;
    debug_assert!(is_object(kind));
    let (key, rest) = rest.split_at(wire.key_len());
    let len = (kind_len & 0xff_ffff) as usize + HEAD - record_len(kind);
    let (value, expires) = split_expires(kind, &rest[..len - OBJECT - key.len()]);
    let (table, version, older) = (wire.table(), wire.version.get(), wire.older());
    Object { table, version, older, key, value, expires }
}

/// Returns true if an entry of this kind is an object.
#[inline]
fn is_object(kind: u8) -> bool {
    matches!(kind & KIND, KIND_OBJECT | KIND_EXPIRING)
}

/// Returns the length of the time behind the value of an object of `kind`.
#[inline]
fn expires_len(kind: u8) -> usize {
    if kind & KIND == KIND_EXPIRING { EXPIRES } else { 0 }
}

/// Splits the bytes behind the key of an object of `kind`, without the fixed part of the record,
/// into the value and the time at which it expires.
#[inline(always)]
fn split_expires(kind: u8, bytes: &[u8]) -> (&[u8], WallTime) {
    // One comparison for the common kinds, which have neither.
    if kind & (KIND | HAS_OLD) < KIND_EXPIRING {
        return (bytes, WallTime::NEVER);
    }
    let bytes = if kind & HAS_OLD == 0 { bytes } else { split_old(bytes).map_or(bytes, |it| it.0) };
    match bytes.split_last_chunk() {
        Some((value, expires)) if kind & KIND == KIND_EXPIRING => {
            (value, WallTime(from_low48(*expires)))
        }
        _ => (bytes, WallTime::NEVER),
    }
}

/// Splits bytes that end with an old value and its length into those before and the old value.
#[inline]
fn split_old(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (bytes, len) = bytes.split_last_chunk()?;
    let at = bytes.len().checked_sub(u32::from_be_bytes(*len) as usize)?;
    (at < bytes.len()).then(|| bytes.split_at(at))
}

/// Returns the place in `entry` of the old value that the record of the object there has, or the
/// completion there. It is empty if there is none.
#[must_use]
pub fn old_place(entry: &[u8]) -> Range<usize> {
    let (kind, len) = (entry.first().copied().unwrap_or_default(), len(entry));
    if kind & HAS_OLD == 0 {
        return 0..0;
    }
    if kind & KIND == KIND_COMPLETION {
        return COMPLETION.min(len)..len;
    }
    let end = len.saturating_sub(RECORD);
    let old = entry.get(..end).and_then(split_old).map_or(0, |(_, old)| old.len());
    end.saturating_sub(OLD_LEN + old)..end.saturating_sub(OLD_LEN)
}

/// Returns the old value at [`old_place`].
#[must_use]
pub fn old(entry: &[u8]) -> &[u8] {
    entry.get(old_place(entry)).unwrap_or_default()
}

/// Returns true if the object at the start of `entry` is that of `key` in `table`.
///
/// # Panics
/// If `entry` does not start with an object.
#[inline]
#[must_use]
pub fn is_of(entry: &[u8], table: TableId, key: &[u8]) -> bool {
    let (wire, rest) = ObjectWire::ref_from_prefix(entry).expect("an object's entry");
    wire.table_key_len.get() == (table.0 << 24 | key.len() as u64) && rest.starts_with(key)
}

/// Returns the length of the record behind an entry of `kind`, without an old value.
#[inline]
fn record_len(kind: u8) -> usize {
    match kind & (HAS_RECORD | HAS_SUM) {
        0 => 0,
        HAS_RECORD => Record::size(false),
        _ => Record::size(true),
    }
}

/// Returns the length of the entry at the start of `entry`.
#[inline]
fn len(entry: &[u8]) -> usize {
    let length = entry.first_chunk().map_or(0, |&[_, a, b, c]| u32::from_be_bytes([0, a, b, c]));
    HEAD + length as usize
}

/// Parses the entry at the start of `bytes`, without a check of its checksum, and returns it with
/// its length. `None` means that there is no entry or that it is malformed.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<(Entry<'_>, usize)> {
    let (head, _) = HeadWire::ref_from_prefix(bytes).ok()?;
    let kind = (head.kind_len.get() >> 24) as u8;
    let whole = bytes.get(..len(bytes))?;
    let entry = match kind & KIND {
        KIND_HEADER if kind & (HAS_RECORD | HAS_SUM | HAS_OLD) == 0 => {
            Entry::Header(parse_header(HeaderWire::ref_from_bytes(whole).ok()?))
        }
        KIND_OBJECT | KIND_EXPIRING => {
            let (object, record) = parse_object(kind, whole)?;
            Entry::Object(object, record)
        }
        KIND_TOMBSTONE if kind & HAS_OLD == 0 => {
            let (Object { table, version, older, key, value: [], .. }, record) =
                parse_object(kind, whole)?
            else {
                return None;
            };
            Entry::Tombstone(Tombstone { table, version, older, key }, record)
        }
        KIND_COMPLETION => Entry::Completion(parse_completion(kind, whole)?),
        KIND_DIGEST if kind & (HAS_RECORD | HAS_SUM | HAS_OLD) == 0 => {
            Entry::Digest(Digest::parse(whole)?)
        }
        KIND_CHANGE if kind & (HAS_RECORD | HAS_SUM | HAS_OLD) == 0 => {
            Entry::Change(Digest::parse(whole)?)
        }
        KIND_CHANGE if kind & !(DEAD | RECORD_DEAD) == KIND_GROUP => {
            let len = whole.get(HEAD..)?.try_into().ok()?;
            Entry::Group(u32::from_be_bytes(len) as usize)
        }
        _ => return None,
    };
    Some((entry, whole.len()))
}

fn parse_header(wire: &HeaderWire) -> Header {
    Header {
        cluster: wire.cluster.get(),
        server: ServerId { index: wire.index.get(), generation: wire.generation.get() },
        segment: SegmentId(wire.segment.get()),
        capacity: wire.capacity.get(),
        safe_version: Version(wire.safe_version.get()),
    }
}

fn parse_object(kind: u8, whole: &[u8]) -> Option<(Object<'_>, Option<Record<'_>>)> {
    let (wire, rest) = ObjectWire::ref_from_prefix(whole).ok()?;
    let (rest, tail) = rest.split_at_checked(rest.len().checked_sub(record_len(kind))?)?;
    let (key, rest) = rest.split_at_checked(wire.key_len())?;
    let (rest, old) = if kind & HAS_OLD == 0 { (rest, &[][..]) } else { split_old(rest)? };
    if rest.len() < expires_len(kind) {
        return None;
    }
    let (value, expires) = split_expires(kind & !HAS_OLD, rest);
    let (has_record, has_sum) = (kind & HAS_RECORD != 0, kind & HAS_SUM != 0);
    if has_sum && !has_record || kind & HAS_OLD != 0 && !has_sum {
        return None;
    }
    let record = if has_record { Some(parse_record(tail, old)?) } else { None };
    let (table, version, older) = (wire.table(), wire.version.get(), wire.older());
    Some((Object { table, version, older, key, value, expires }, record))
}

/// Parses the fixed part of a record, which fills `bytes`.
fn parse_record<'a>(bytes: &[u8], old: &'a [u8]) -> Option<Record<'a>> {
    let (wire, sum) = RecordWire::ref_from_prefix(bytes).ok()?;
    Some(Record { once: wire.get()?, sum: sum.first_chunk().copied(), old })
}

fn parse_completion(kind: u8, whole: &[u8]) -> Option<Completion<'_>> {
    let (wire, rest) = CompletionWire::ref_from_prefix(whole).ok()?;
    let (sum, old) = match (kind & (HAS_RECORD | HAS_SUM | HAS_OLD), rest.split_first_chunk()) {
        (0, None) if rest.is_empty() => (None, &[][..]),
        (HAS_SUM, Some((sum, []))) => (Some(*sum), &[][..]),
        (flags, Some((sum, old))) if flags == HAS_SUM | HAS_OLD && !old.is_empty() => {
            (Some(*sum), old)
        }
        _ => return None,
    };
    let [a, b, c, d, e] = wire.table;
    let outcome =
        Outcome { status: Status::from_code(wire.status)?, version: wire.version.get(), sum };
    Some(Completion {
        once: wire.record.get()?,
        table: TableId(u64::from_be_bytes([0, 0, 0, a, b, c, d, e])),
        hash: KeyHash(wire.hash.get()),
        outcome,
        old,
    })
}

#[cfg(test)]
mod tests;
