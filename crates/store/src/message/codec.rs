//! Formats from declarations: a record is its fields in order. One declaration gives the struct,
//! its writer and its reader, so that they cannot disagree. Control messages and the coordinator's
//! durable state use it.
//!
//! Invariants: reading never panics, takes each byte once, and allocates by the bytes present.

use alloc::vec::Vec;

use super::{Opcode, Status, VERSION};
use crate::durability::{Durability, TableDurability};
use crate::objects::segment::SegmentId;
use crate::types::{HashKey, LeaseId, ServerId, TableId, Version};

/// The bytes of a message that are still to be parsed.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Status> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Status::BadFormat)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Status> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Status::BadFormat)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Checks that no byte of the message is left.
    pub(crate) fn end(&self) -> Result<(), Status> {
        if self.0.is_empty() { Ok(()) } else { Err(Status::BadFormat) }
    }
}

/// A field of a message.
pub(crate) trait Field<'a>: Sized {
    /// The fewest bytes that the field takes.
    const MIN: usize;
    /// Appends the field to `out`.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes the field from the front of `from`.
    fn take(from: &mut Reader<'a>) -> Result<Self, Status>;
}

macro_rules! integers {
    ($($int:ty)*) => { $(
        impl Field<'_> for $int {
            const MIN: usize = size_of::<$int>();
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn take(from: &mut Reader<'_>) -> Result<Self, Status> {
                Ok(Self::from_be_bytes(from.array()?))
            }
        }
    )* };
}
integers!(u8 u16 u32 u64);

impl Field<'_> for bool {
    const MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Status> {
        match from.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [_] => Err(Status::BadFormat),
        }
    }
}

/// Implements [`Field`] for types that have a code of one byte.
macro_rules! coded {
    ($($coded:ty)*) => { $(
        impl Field<'_> for $coded {
            const MIN: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                out.push(self.code());
            }
            fn take(from: &mut Reader<'_>) -> Result<Self, Status> {
                let [code] = from.array()?;
                Self::from_code(code).ok_or(Status::BadFormat)
            }
        }
    )* };
}
coded!(Durability TableDurability);

impl Field<'_> for HashKey {
    const MIN: usize = 16;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Status> {
        Ok(Self(from.array()?))
    }
}

impl<'a> Field<'a> for &'a str {
    const MIN: usize = 2;
    /// Appends a text behind its length. Callers keep texts within their limits. A text that is too
    /// long for the length field becomes empty, so that no wrong length is sent.
    fn put(&self, out: &mut Vec<u8>) {
        let text = if self.len() > usize::from(u16::MAX) { "" } else { self };
        (text.len() as u16).put(out);
        out.extend_from_slice(text.as_bytes());
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Status> {
        let len = u16::take(from)?;
        core::str::from_utf8(from.take(len.into())?).map_err(|_| Status::BadFormat)
    }
}

impl<'a, T: Field<'a>> Field<'a> for Vec<T> {
    const MIN: usize = 2;
    /// Appends a list behind its count. Callers keep lists within their limits (the largest is
    /// `control::MAX_CHECKED_LEASES`).
    fn put(&self, out: &mut Vec<u8>) {
        let entries = &self[..self.len().min(usize::from(u16::MAX))];
        (entries.len() as u16).put(out);
        entries.iter().for_each(|entry| entry.put(out));
    }
    fn take(from: &mut Reader<'a>) -> Result<Self, Status> {
        let count = usize::from(u16::take(from)?);
        if from.0.len() / T::MIN < count {
            return Err(Status::BadFormat);
        }
        (0..count).map(|_| T::take(from)).collect()
    }
}

/// Implements [`Field`] for a struct, whose format is its fields in order.
macro_rules! fields {
    ($name:ident $(<$l:lifetime>)? { $($field:tt: $type:ty),* }) => {
        impl<'a> $crate::message::codec::Field<'a> for $name $(<$l>)? {
            const MIN: usize = 0 $(+ <$type as $crate::message::codec::Field<'a>>::MIN)*;
            fn put(&self, _out: &mut alloc::vec::Vec<u8>) {
                $($crate::message::codec::Field::put(&self.$field, _out);)*
            }
            fn take(
                _from: &mut $crate::message::codec::Reader<'a>,
            ) -> Result<Self, $crate::message::Status> {
                Ok(Self { $($field: <$type as $crate::message::codec::Field<'a>>::take(_from)?),* })
            }
        }
    };
}
fields!(TableId { 0: u64 });
fields!(LeaseId { 0: u64 });
fields!(SegmentId { 0: u32 });
fields!(Version { 0: u64 });

impl Field<'_> for ServerId {
    const MIN: usize = 8;
    fn put(&self, out: &mut Vec<u8>) {
        self.index.put(out);
        self.generation.put(out);
    }
    fn take(from: &mut Reader<'_>) -> Result<Self, Status> {
        let id = Self { index: Field::take(from)?, generation: Field::take(from)? };
        if id.index <= Self::MAX_INDEX { Ok(id) } else { Err(Status::BadFormat) }
    }
}

/// Declares structs of messages together with their format.
macro_rules! records {
    ($vis:vis, $($(#[$meta:meta])* $name:ident $(<$l:lifetime>)?
        { $($(#[$doc:meta])* $field:ident: $type:ty,)* })*) => { $(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        $vis struct $name $(<$l>)? { $($(#[$doc])* $vis $field: $type,)* }

        $crate::message::codec::fields!($name $(<$l>)? { $($field: $type),* });
    )* };
}

/// Declares an enum that a message carries in one byte.
macro_rules! choices {
    ($vis:vis, $($(#[$meta:meta])* $name:ident {
        $($(#[$doc:meta])* $variant:ident = $code:literal,)*
    })*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        $vis enum $name { $($(#[$doc])* $variant = $code,)* }

        impl $crate::message::codec::Field<'_> for $name {
            const MIN: usize = 1;
            fn put(&self, out: &mut alloc::vec::Vec<u8>) {
                out.push(*self as u8);
            }
            fn take(
                from: &mut $crate::message::codec::Reader<'_>,
            ) -> Result<Self, $crate::message::Status> {
                match from.array()? {
                    $([$code] => Ok(Self::$variant),)*
                    [_] => Err($crate::message::Status::BadFormat),
                }
            }
        }
    )* };
}

/// Returns the opcode of a request to any machine.
///
/// # Errors
/// The status to reply with: `Status::BadFormat` if it is shorter than a head,
/// `Status::BadVersion`, `Status::UnknownOpcode`.
#[inline]
pub fn opcode(request: &[u8]) -> Result<Opcode, Status> {
    match *request {
        [VERSION, code, _, _, ..] => Opcode::from_code(code).ok_or(Status::UnknownOpcode),
        [_, _, _, _, ..] => Err(Status::BadVersion),
        _ => Err(Status::BadFormat),
    }
}

/// Returns the status of a reply and the bytes behind the head.
///
/// # Errors
/// `Status::BadFormat` if it is shorter than a head or the status is unknown,
/// `Status::BadVersion`.
#[inline]
pub fn outcome(reply: &[u8]) -> Result<(Status, &[u8]), Status> {
    match *reply {
        [VERSION, code, _, _, ref rest @ ..] => {
            Ok((Status::from_code(code).ok_or(Status::BadFormat)?, rest))
        }
        [_, _, _, _, ..] => Err(Status::BadVersion),
        _ => Err(Status::BadFormat),
    }
}

/// Returns a reply that refuses a request with `status` and a text for people, cut to 1,000 bytes.
#[must_use]
pub fn failure(status: Status, text: &str) -> Vec<u8> {
    let mut end = text.len().min(1000);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut out = Vec::with_capacity(4 + end);
    out.extend_from_slice(&[VERSION, status as u8, 0, 0]);
    out.extend_from_slice(&text.as_bytes()[..end]);
    out
}

/// Returns the text for people in a reply whose status is not OK. It is empty if there is none.
#[must_use]
pub fn failure_text(reply: &[u8]) -> &str {
    reply.get(4..).and_then(|text| core::str::from_utf8(text).ok()).unwrap_or("")
}

/// Returns a reply with status OK and nothing else.
#[must_use]
pub fn done() -> Vec<u8> {
    failure(Status::Ok, "")
}

/// Declares control requests: records with an opcode.
macro_rules! requests {
    ($($(#[$meta:meta])* $name:ident $(<$l:lifetime>)? { $($fields:tt)* })*) => { $(
        $crate::message::codec::records! { pub, $(#[$meta])* $name $(<$l>)? { $($fields)* } }

        impl<'a> $name $(<$l>)? {
            /// Returns the bytes of the control request.
            #[must_use]
            pub fn emit(&self) -> alloc::vec::Vec<u8> {
                let mut out = alloc::vec::Vec::with_capacity(128);
                out.extend_from_slice(&[
                    $crate::message::VERSION,
                    $crate::message::Opcode::$name as u8, 0, 0]);
                $crate::message::codec::Field::put(self, &mut out);
                out
            }

            /// Parses a request whose opcode is this one.
            ///
            /// # Errors
            /// The status to reply with.
            pub fn parse(request: &'a [u8]) -> Result<Self, $crate::message::Status> {
                let opcode = $crate::message::codec::opcode(request)?;
                if opcode != $crate::message::Opcode::$name || request[2..4] != [0, 0] {
                    return Err($crate::message::Status::BadFormat);
                }
                let mut rest = $crate::message::codec::Reader(&request[4..]);
                let parsed = <Self as $crate::message::codec::Field<'a>>::take(&mut rest)?;
                rest.end()?;
                Ok(parsed)
            }
        }
    )* };
}

/// Declares control replies: records after an OK.
macro_rules! replies {
    ($($(#[$meta:meta])* $name:ident $(<$l:lifetime>)? { $($fields:tt)* })*) => { $(
        $crate::message::codec::records! { pub, $(#[$meta])* $name $(<$l>)? { $($fields)* } }

        impl<'a> $name $(<$l>)? {
            /// Returns the reply's bytes, with `Status::Ok`.
            #[must_use]
            pub fn emit(&self) -> alloc::vec::Vec<u8> {
                let mut out = $crate::message::codec::done();
                $crate::message::codec::Field::put(self, &mut out);
                out
            }

            /// Parses the reply.
            ///
            /// # Errors
            /// The status in the reply if it is not OK, or `Status::BadFormat` or
            /// `Status::BadVersion` if the reply is malformed.
            pub fn parse(reply: &'a [u8]) -> Result<Self, $crate::message::Status> {
                let (status, rest) = $crate::message::codec::outcome(reply)?;
                if status != $crate::message::Status::Ok {
                    return Err(status);
                }
                let mut rest = $crate::message::codec::Reader(rest);
                let parsed = <Self as $crate::message::codec::Field<'a>>::take(&mut rest)?;
                rest.end()?;
                Ok(parsed)
            }
        }
    )* };
}

pub(crate) use {choices, fields, records, replies, requests};
