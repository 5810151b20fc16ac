//! Lists of objects in replies to enumerations.
//!
//! ```text
//! reply     0 head | 4 count u32 | 8 next cursor u64, 0 at the end | count × object
//! object    0 version u64 | 8 value length u32 | 12 key length u32 | 16 key | value
//! ```
//!
//! Invariant: iteration never panics and ends after the promised number of objects at the latest.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::data::{Refusal, accepted};
use super::{ReplyHead, Status, VERSION};
use crate::types::Version;

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

/// Some objects of a tablet in a reply. Iterates over (key, version, value).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Objects<'a> {
    /// The position of the next object, or `None` at the end of the tablet.
    pub next: Option<u64>,
    left: u32,
    records: &'a [u8],
}

impl<'a> Iterator for Objects<'a> {
    type Item = (&'a [u8], Version, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (wire, rest) = ObjectWire::ref_from_prefix(self.records).ok()?;
        let (key, rest) = rest.split_at_checked(wire.key_len.get() as usize)?;
        let (value, rest) = rest.split_at_checked(wire.value_len.get() as usize)?;
        self.records = rest;
        Some((key, Version(wire.version.get()), value))
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
pub fn object_head(key_len: u32, version: Version, value_len: u32) -> [u8; 16] {
    let wire = ObjectWire {
        version: version.0.into(),
        value_len: value_len.into(),
        key_len: key_len.into(),
    };
    let mut out = [0; 16];
    out.copy_from_slice(wire.as_bytes());
    out
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
