//! What clients ask of masters: operations on objects.
//!
//! ```text
//! request   0 version u8 | 1 opcode u8 | 2 zero u16 | 4 rules u8 | 5 zero u24 | 8 cluster u64 | 16 table u64
//!          24 given version u64 | then
//!           Read                    32 key
//!           Remove                  32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 key
//!           Write                   32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 value length u32 | 60 key | value
//!           IncrementInteger/Double 32 lease u64 | 40 rpc u64 | 48 ack u64 | 56 amount 8 B | 64 key
//!           Enumerate               0 head | 4 limit u32 | 8 cluster | 16 table | 24 first u64 | 32 last u64 | 40 cursor u64
//!           Echo                    0 head | 4 any bytes          Stats   0 head
//! reply     0 version u8 | 1 status u8 | 2 zero u16 | then
//!           OK                      4 version u64 | 12 the value (Read) or the sum, 8 B (increments)
//!           a verdict               4 version u64 of the object as it is, 0 if there is none
//!           any other status        4 a text for people
//!           Enumerate, OK           4 count u32 | 8 next cursor u64 | count × (version u64, value length u32,
//!                                   key length u32, key, value)
//! ```
//!
//! Lengths that the message's own length implies are not sent: a key is what its request has left. What always holds:
//! `parse` takes exactly what `emit` makes; it never panics and copies nothing. The limits on keys and values are the
//! master's to enforce, not the format's. Messages of the coordinator are in [`super::control`], also those that it
//! sends to masters.

use alloc::vec::Vec;

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Opcode, ReplyHead, Status, VERSION};
use crate::types::{LeaseId, TableId, Version};

/// Under which conditions an operation is refused. None, if all are unset.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RejectRules {
    /// What the two version rules compare with.
    pub given_version: Version,
    /// Refuse if there is no such object.
    pub doesnt_exist: bool,
    /// Refuse if there is one.
    pub exists: bool,
    /// Refuse if its version is at most the given one.
    pub version_le_given: bool,
    /// Refuse if its version is another than the given one.
    pub version_ne_given: bool,
}

impl RejectRules {
    /// Whether an operation on an object of version `current` (0: there is none) may go on.
    ///
    /// # Errors
    /// The verdict. A missing object is refused by `doesnt_exist` alone; of several rules that an existing one breaks,
    /// `exists` comes first. (RAMCloud's order.)
    #[inline]
    pub fn check(&self, current: Version) -> Result<(), Status> {
        if current == Version(0) {
            return if self.doesnt_exist { Err(Status::ObjectDoesntExist) } else { Ok(()) };
        }
        if self.exists {
            return Err(Status::ObjectExists);
        }
        let le = self.version_le_given && current <= self.given_version;
        let ne = self.version_ne_given && current != self.given_version;
        if le || ne { Err(Status::WrongVersion) } else { Ok(()) }
    }

    fn flags(&self) -> u8 {
        u8::from(self.doesnt_exist)
            | u8::from(self.exists) << 1
            | u8::from(self.version_le_given) << 2
            | u8::from(self.version_ne_given) << 3
    }
}

/// Who asks for a mutation, so that it happens exactly once (RIFL).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Once {
    /// The client's lease.
    pub lease: LeaseId,
    /// The client's number for it: from 1, each mutation the next one, a repetition the same.
    pub rpc: u64,
    /// The client has the answers to all its mutations up to this one: forget them.
    pub ack: u64,
}

/// Where an operation on an object is to happen, and under which conditions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Target {
    /// The cluster that the client means.
    pub cluster: u64,
    /// The table.
    pub table: TableId,
    /// Conditions.
    pub rules: RejectRules,
}

/// Asks for an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read<'a> {
    /// Where.
    pub target: Target,
    /// The key.
    pub key: &'a [u8],
}

/// Asks for an object to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write<'a> {
    /// Where.
    pub target: Target,
    /// Who asks.
    pub once: Once,
    /// The key.
    pub key: &'a [u8],
    /// Its new value.
    pub value: &'a [u8],
}

/// Asks for an object to be removed. OK also if there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remove<'a> {
    /// Where.
    pub target: Target,
    /// Who asks.
    pub once: Once,
    /// The key.
    pub key: &'a [u8],
}

/// Asks for something to be added to an object that is a number: decimal text, see
/// [`crate::objects::number`]. A missing object counts as zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Increment<'a> {
    /// Where.
    pub target: Target,
    /// Who asks.
    pub once: Once,
    /// What to add.
    pub amount: Amount,
    /// The key.
    pub key: &'a [u8],
}

/// What [`Increment`] adds; it says as which kind of number the object is read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Amount {
    /// Two's complement.
    Integer(i64),
    /// IEEE 754, finite.
    Double(f64),
}

// A NaN is not equal to itself, but no proof here rests on that.
impl Eq for Amount {}

/// Asks for the objects of a tablet, some at a time, each once if it is not changed meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enumerate {
    /// The cluster that the client means.
    pub cluster: u64,
    /// The table.
    pub table: TableId,
    /// The first key hash of the tablet.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Where to go on: 0 at the start, then what the last reply said.
    pub cursor: u64,
    /// About how many bytes of objects to send; the master has a limit of its own.
    pub limit_bytes: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TargetWire {
    version: u8,
    opcode: u8,
    zero: U16,
    rules: u8,
    zeros: [u8; 3],
    cluster: U64,
    table: U64,
    given_version: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MutationWire {
    target: TargetWire,
    lease: U64,
    rpc: U64,
    ack: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WriteWire {
    mutation: MutationWire,
    value_len: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct IncrementWire {
    mutation: MutationWire,
    amount: [u8; 8],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EnumerateWire {
    version: u8,
    opcode: u8,
    zero: U16,
    limit_bytes: U32,
    cluster: U64,
    table: U64,
    first: U64,
    last: U64,
    cursor: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EnumeratedWire {
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

/// Checks the head of a request and splits its fixed part off.
#[inline]
fn split<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    request: &[u8],
    opcode: Opcode,
) -> Result<(&T, &[u8]), Status> {
    match *request {
        [VERSION, code, 0, 0, ..] if code == opcode as u8 => {
            T::ref_from_prefix(request).map_err(|_| Status::BadFormat)
        }
        [VERSION, ..] | [] => Err(Status::BadFormat),
        _ => Err(Status::BadVersion),
    }
}

impl Target {
    #[inline]
    fn wire(&self, opcode: Opcode) -> TargetWire {
        TargetWire {
            version: VERSION,
            opcode: opcode as u8,
            zero: U16::ZERO,
            rules: self.rules.flags(),
            zeros: [0; 3],
            cluster: self.cluster.into(),
            table: self.table.0.into(),
            given_version: self.rules.given_version.0.into(),
        }
    }

    #[inline]
    fn parse(wire: &TargetWire) -> Result<Self, Status> {
        if wire.rules & !0xf != 0 || wire.zeros != [0; 3] {
            return Err(Status::BadFormat);
        }
        let rules = RejectRules {
            given_version: Version(wire.given_version.get()),
            doesnt_exist: wire.rules & 1 != 0,
            exists: wire.rules & 2 != 0,
            version_le_given: wire.rules & 4 != 0,
            version_ne_given: wire.rules & 8 != 0,
        };
        Ok(Self { cluster: wire.cluster.get(), table: TableId(wire.table.get()), rules })
    }
}

impl Once {
    fn wire(&self, target: TargetWire) -> MutationWire {
        let Self { lease, rpc, ack } = *self;
        MutationWire { target, lease: lease.0.into(), rpc: rpc.into(), ack: ack.into() }
    }

    #[inline]
    fn parse(wire: &MutationWire) -> Self {
        Self { lease: LeaseId(wire.lease.get()), rpc: wire.rpc.get(), ack: wire.ack.get() }
    }
}

/// The parts as one vector: `out`, whatever it held, or a longer one of exactly their length.
#[inline]
fn concat(
    mut out: Vec<u8>,
    fixed: &(impl IntoBytes + Immutable),
    key: &[u8],
    value: &[u8],
) -> Vec<u8> {
    let fixed = fixed.as_bytes();
    out.clear();
    out.reserve_exact(fixed.len() + key.len() + value.len());
    out.extend_from_slice(fixed);
    out.extend_from_slice(key);
    out.extend_from_slice(value);
    out
}

impl<'a> Read<'a> {
    /// The request's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        self.emit_in(Vec::new())
    }

    /// The same in a buffer that the caller has, whatever it holds, if they fit there.
    #[inline]
    #[must_use]
    pub fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        concat(out, &self.target.wire(Opcode::Read), self.key, &[])
    }

    /// Reads a request of this opcode.
    ///
    /// # Errors
    /// The status to answer with.
    #[inline]
    pub fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, key) = split::<TargetWire>(request, Opcode::Read)?;
        Ok(Self { target: Target::parse(wire)?, key })
    }
}

impl<'a> Write<'a> {
    /// The request's bytes.
    ///
    /// # Panics
    /// If the value has 4 GiB or more; callers keep to the store's limits.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        self.emit_in(Vec::new())
    }

    /// The same in a buffer that the caller has, whatever it holds, if they fit there.
    ///
    /// # Panics
    /// As [`Write::emit`].
    #[inline]
    #[must_use]
    pub fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        let mutation = self.once.wire(self.target.wire(Opcode::Write));
        let value_len = u32::try_from(self.value.len()).expect("a value of less than 4 GiB").into();
        concat(out, &WriteWire { mutation, value_len }, self.key, self.value)
    }

    /// Reads a request of this opcode.
    ///
    /// # Errors
    /// The status to answer with.
    #[inline]
    pub fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, rest) = split::<WriteWire>(request, Opcode::Write)?;
        let key_len =
            rest.len().checked_sub(wire.value_len.get() as usize).ok_or(Status::BadFormat)?;
        let (key, value) = rest.split_at(key_len);
        let target = Target::parse(&wire.mutation.target)?;
        Ok(Self { target, once: Once::parse(&wire.mutation), key, value })
    }
}

impl<'a> Remove<'a> {
    /// The request's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        self.emit_in(Vec::new())
    }

    /// The same in a buffer that the caller has, whatever it holds, if they fit there.
    #[inline]
    #[must_use]
    pub fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        concat(out, &self.once.wire(self.target.wire(Opcode::Remove)), self.key, &[])
    }

    /// Reads a request of this opcode.
    ///
    /// # Errors
    /// The status to answer with.
    #[inline]
    pub fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, key) = split::<MutationWire>(request, Opcode::Remove)?;
        Ok(Self { target: Target::parse(&wire.target)?, once: Once::parse(wire), key })
    }
}

impl<'a> Increment<'a> {
    /// The request's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        self.emit_in(Vec::new())
    }

    /// The same in a buffer that the caller has, whatever it holds, if they fit there.
    #[inline]
    #[must_use]
    pub fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        let (opcode, amount) = match self.amount {
            Amount::Integer(amount) => (Opcode::IncrementInteger, amount.to_be_bytes()),
            Amount::Double(amount) => (Opcode::IncrementDouble, amount.to_be_bytes()),
        };
        let mutation = self.once.wire(self.target.wire(opcode));
        concat(out, &IncrementWire { mutation, amount }, self.key, &[])
    }

    /// Reads a request of one of the two opcodes.
    ///
    /// # Errors
    /// The status to answer with.
    #[inline]
    pub fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let double = request.get(1) == Some(&(Opcode::IncrementDouble as u8));
        let opcode = if double { Opcode::IncrementDouble } else { Opcode::IncrementInteger };
        let (wire, key) = split::<IncrementWire>(request, opcode)?;
        let amount = if double {
            Amount::Double(f64::from_be_bytes(wire.amount))
        } else {
            Amount::Integer(i64::from_be_bytes(wire.amount))
        };
        let target = Target::parse(&wire.mutation.target)?;
        Ok(Self { target, once: Once::parse(&wire.mutation), amount, key })
    }
}

impl Enumerate {
    /// The request's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let wire = EnumerateWire {
            version: VERSION,
            opcode: Opcode::Enumerate as u8,
            zero: U16::ZERO,
            limit_bytes: self.limit_bytes.into(),
            cluster: self.cluster.into(),
            table: self.table.0.into(),
            first: self.first.into(),
            last: self.last.into(),
            cursor: self.cursor.into(),
        };
        wire.as_bytes().to_vec()
    }

    /// Reads a request of this opcode.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn parse(request: &[u8]) -> Result<Self, Status> {
        let (wire, rest) = split::<EnumerateWire>(request, Opcode::Enumerate)?;
        if !rest.is_empty() || wire.first > wire.last {
            return Err(Status::BadFormat);
        }
        Ok(Self {
            cluster: wire.cluster.get(),
            table: TableId(wire.table.get()),
            first: wire.first.get(),
            last: wire.last.get(),
            cursor: wire.cursor.get(),
            limit_bytes: wire.limit_bytes.get(),
        })
    }
}

/// A request that the server answers with the same `bytes`.
#[must_use]
pub fn echo(bytes: &[u8]) -> Vec<u8> {
    concat(Vec::new(), &[VERSION, Opcode::Echo as u8, 0, 0], bytes, &[])
}

/// A request for what the server has counted.
#[must_use]
pub fn stats() -> Vec<u8> {
    [VERSION, Opcode::Stats as u8, 0, 0].to_vec()
}

mod reply;
pub use reply::*;

#[cfg(test)]
mod tests;
