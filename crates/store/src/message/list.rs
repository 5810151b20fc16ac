//! Lists of objects in replies to enumerations.
//!
//! ```text
//! reply     0 head | 4 count u32 | 8 next cursor u64, 0 at the end | count × object
//! object    0 version u64 | 8 value length u32 | 12 key length u32 | [lifetime u64] | key | value
//! ```
//!
//! The highest bit of the key's length says that the object expires: then the rest of its lifetime
//! follows, in milliseconds.
//!
//! Invariant: iteration never panics and ends after the promised number of objects at the latest.

use arrayvec::ArrayVec;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::data::{Refusal, accepted};
use super::{ReplyHead, Status, VERSION};
use crate::types::{Lifetime, Version};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ListWire {
    head: ReplyHead,
    count: U32,
    cursor: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ObjectWire {
    version: U64,
    value_len: U32,
    key_len: U32,
}

/// The bit in the length of a key that says that the object expires.
const EXPIRES: u32 = 1 << 31;

/// An object of a table in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed<'a> {
    /// The key of the listed object.
    pub key: &'a [u8],
    /// The version of the listed object.
    pub version: Version,
    /// The value of the listed object.
    pub value: &'a [u8],
    /// The rest of the object's lifetime when the server listed it, or `None` if the object does
    /// not expire.
    pub lifetime: Option<Lifetime>,
}

/// Some objects of a tablet in a reply. Iterates over them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Objects<'a> {
    /// The position of the next object, or `None` at the end of the tablet.
    pub next: Option<u64>,
    left: u32,
    records: &'a [u8],
}

impl<'a> Iterator for Objects<'a> {
    type Item = Listed<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (wire, rest) = ObjectWire::ref_from_prefix(self.records).ok()?;
        let expires = wire.key_len.get() & EXPIRES != 0;
        let (lifetime, rest) = match rest.split_first_chunk() {
            Some((ms, rest)) if expires => (Some(Lifetime(u64::from_be_bytes(*ms))), rest),
            None if expires => return None,
            _ => (None, rest),
        };
        let (key, rest) = rest.split_at_checked((wire.key_len.get() & !EXPIRES) as usize)?;
        let (value, rest) = rest.split_at_checked(wire.value_len.get() as usize)?;
        self.records = rest;
        Some(Listed { key, version: Version(wire.version.get()), value, lifetime })
    }
}

/// Returns the start of a reply with a list of objects, up to its `count` objects. `next` is 0 at
/// the end of the tablet.
#[must_use]
pub fn objects_head(count: u32, next: u64) -> [u8; 16] {
    let head = ReplyHead { version: VERSION, status: Status::Ok as u8, reserved: U16::ZERO };
    let wire = ListWire { head, count: count.into(), cursor: next.into() };
    let mut out = [0; 16];
    out.copy_from_slice(wire.as_bytes());
    out
}

/// Returns the start of an object in a list, up to its key and value.
#[must_use]
pub fn object_head(
    key_len: u32,
    version: Version,
    value_len: u32,
    lifetime: Option<Lifetime>,
) -> ArrayVec<u8, 24> {
    let flag = if lifetime.is_some() { EXPIRES } else { 0 };
    let wire = ObjectWire {
        version: version.0.into(),
        value_len: value_len.into(),
        key_len: (key_len | flag).into(),
    };
    let rest = lifetime.map(|Lifetime(ms)| ms.to_be_bytes());
    wire.as_bytes().iter().copied().chain(rest.into_iter().flatten()).collect()
}

/// Parses a reply with a list of objects.
///
/// # Errors
/// The refusal in the reply, or [`Status::BadFormat`].
pub fn objects_reply(reply: &[u8]) -> Result<Objects<'_>, Refusal<'_>> {
    accepted(reply)?;
    let (wire, records) = ListWire::ref_from_prefix(reply).map_err(|_| Status::BadFormat)?;
    let next = Some(wire.cursor.get()).filter(|&cursor| cursor != 0);
    let objects = Objects { next, left: wire.count.get(), records };
    // This walk checks all lengths, so that later iterations meet none that is wrong.
    let mut walk = objects;
    let whole = walk.by_ref().count() == wire.count.get() as usize && walk.records.is_empty();
    if whole { Ok(objects) } else { Err(Status::BadFormat.into()) }
}
