//! The parts that messages between clients and masters have in common.
//!
//! ```text
//! request   0 version u8 | 1 opcode u8 | 2 zero u16 | 4 rules u8 | 5 zero u24 | 8 cluster u64
//!          16 table u64 | 24 given version u64 | then, in a mutation,
//!          32 lease u64 | 40 rpc u64 | 48 ack u64 | then the rest of the operation
//! reply     0 version u8 | 1 status u8 | 2 zero u16 | then
//!           OK                 4 the rest of the operation
//!           a verdict          4 version u64 of the object as it is, 0 if it does not exist
//!           any other status   4 a text for people
//! ```
//!
//! Each file in [`crate::ops`] has the rest of one operation. A length that follows from the length
//! of the message is not sent.
//!
//! Invariants: parsing never panics and copies nothing. The master enforces the limits of keys and
//! values, not the format. [`super::control`] has the messages of the coordinator.

use alloc::vec::Vec;
use core::fmt;

use zerocopy::byteorder::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Opcode, Status, VERSION};
use crate::types::{LeaseId, TableId, Version};

/// The conditions under which a master refuses an operation on an object.
///
/// The default has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RejectRules {
    /// The version that `version_le_given` and `version_ne_given` compare with.
    pub given_version: Version,
    /// True to refuse the operation if the object does not exist.
    pub doesnt_exist: bool,
    /// True to refuse the operation if the object exists.
    pub exists: bool,
    /// True to refuse the operation if the object's version is at most the given one.
    pub version_le_given: bool,
    /// True to refuse the operation if the object's version differs from the given one.
    pub version_ne_given: bool,
}

impl RejectRules {
    /// Checks these reject rules for an object of version `current`, 0 if it does not exist.
    ///
    /// # Errors
    /// The verdict. Only `doesnt_exist` refuses a missing object. If an existing object breaks
    /// several rules, `exists` comes first. (This is RAMCloud's order.)
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

    pub(crate) fn flags(&self) -> u8 {
        u8::from(self.doesnt_exist)
            | u8::from(self.exists) << 1
            | u8::from(self.version_le_given) << 2
            | u8::from(self.version_ne_given) << 3
    }

    /// Returns the rules with these flags.
    #[inline]
    pub(crate) fn of_flags(flags: u8, given_version: Version) -> Result<Self, Status> {
        if flags & !0xf != 0 {
            return Err(Status::BadFormat);
        }
        Ok(Self {
            given_version,
            doesnt_exist: flags & 1 != 0,
            exists: flags & 2 != 0,
            version_le_given: flags & 4 != 0,
            version_ne_given: flags & 8 != 0,
        })
    }
}

/// The identity of a mutation, by which it is executed exactly once (RIFL).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Once {
    /// The lease of the client that sent the mutation.
    pub lease: LeaseId,
    /// The client's sequence number of the mutation, from 1. A repetition has the same number.
    pub rpc: u64,
    /// The client has the replies to all its mutations up to this number.
    pub ack: u64,
}

/// The table of an operation on an object, and the conditions of the operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Target {
    /// The id of the cluster that the client means.
    pub cluster: u64,
    /// The table of the object that the request names.
    pub table: TableId,
    /// The conditions under which the master refuses the operation.
    pub rules: RejectRules,
    /// True if the reply to a mutation waits until the change is durable, whatever the durability
    /// of the table.
    pub durable: bool,
}

/// The amount of an increment, which also selects the kind of number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Amount {
    /// The amount is a 64-bit integer in two's complement.
    Integer(i64),
    /// The amount is a finite IEEE 754 double.
    Double(f64),
}

// A NaN is not equal to itself, but no proof here rests on that.
impl Eq for Amount {}

/// The first 32 bytes of a request that has a [`Target`].
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct TargetWire {
    version: u8,
    opcode: u8,
    zero: U16,
    rules: u8,
    durable: u8,
    zeros: [u8; 2],
    cluster: U64,
    table: U64,
    given_version: U64,
}

/// The first 56 bytes of a mutation.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct MutationWire {
    pub(crate) target: TargetWire,
    lease: U64,
    rpc: U64,
    ack: U64,
}

/// Checks the head of a request and splits off the request's fixed part.
#[inline]
pub(crate) fn split<T: FromBytes + KnownLayout + Immutable + Unaligned>(
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
    pub(crate) fn wire(&self, opcode: Opcode) -> TargetWire {
        TargetWire {
            version: VERSION,
            opcode: opcode as u8,
            zero: U16::ZERO,
            rules: self.rules.flags(),
            durable: self.durable.into(),
            zeros: [0; 2],
            cluster: self.cluster.into(),
            table: self.table.0.into(),
            given_version: self.rules.given_version.0.into(),
        }
    }

    /// Lets the reply to a mutation wait until the change is durable.
    pub(crate) fn set_durable(request: &mut [u8]) {
        if let Ok((wire, _)) = TargetWire::mut_from_prefix(request) {
            wire.durable = 1;
        }
    }

    /// Sets the id of the cluster in a request that begins with a target.
    #[inline]
    pub(crate) fn set_cluster(request: &mut [u8], cluster: u64) {
        if let Ok((wire, _)) = TargetWire::mut_from_prefix(request) {
            wire.cluster = cluster.into();
        }
    }

    #[inline]
    pub(crate) fn parse(wire: &TargetWire) -> Result<Self, Status> {
        if wire.zeros != [0; 2] || wire.durable > 1 {
            return Err(Status::BadFormat);
        }
        let rules = RejectRules::of_flags(wire.rules, Version(wire.given_version.get()))?;
        let (cluster, table) = (wire.cluster.get(), TableId(wire.table.get()));
        Ok(Self { cluster, table, rules, durable: wire.durable == 1 })
    }
}

impl Once {
    /// Sets the identity of the mutation in its request.
    #[inline]
    pub(crate) fn set_in(&self, request: &mut [u8]) {
        if let Ok((wire, _)) = MutationWire::mut_from_prefix(request) {
            (wire.lease, wire.rpc, wire.ack) =
                (self.lease.0.into(), self.rpc.into(), self.ack.into());
        }
    }

    pub(crate) fn wire(&self, target: TargetWire) -> MutationWire {
        let Self { lease, rpc, ack } = *self;
        MutationWire { target, lease: lease.0.into(), rpc: rpc.into(), ack: ack.into() }
    }

    #[inline]
    pub(crate) fn parse(wire: &MutationWire) -> Self {
        Self { lease: LeaseId(wire.lease.get()), rpc: wire.rpc.get(), ack: wire.ack.get() }
    }
}

/// Puts the parts of a message into `out`, whose old contents are dropped.
#[inline(always)]
pub(crate) fn concat(
    mut out: Vec<u8>,
    fixed: &(impl IntoBytes + Immutable),
    key: &[u8],
    value: &[u8],
) -> Vec<u8> {
    let fixed = fixed.as_bytes();
    out.clear();
    out.reserve(fixed.len() + key.len() + value.len());
    out.extend_from_slice(fixed);
    out.extend_from_slice(key);
    if !value.is_empty() {
        out.extend_from_slice(value);
    }
    out
}

/// The reason why a master did not execute a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// The status of the refusal. A malformed reply gives [`Status::BadFormat`] or
    /// [`Status::BadVersion`].
    pub status: Status,
    /// The version of the object that the master left unchanged, 0 if it does not exist. Only a
    /// verdict has one.
    pub version: Version,
    /// The refusal's text for people, often empty. A verdict has none.
    pub text: &'a str,
}

impl fmt::Debug for Refusal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} (version {}) {:?}", self.status, self.version.0, self.text)
    }
}

impl From<Status> for Refusal<'_> {
    fn from(status: Status) -> Self {
        Self { status, version: Version(0), text: "" }
    }
}

/// Returns true for the statuses of operations that were executed and changed nothing.
///
/// Their replies carry the object's version, and the master remembers them like OK (RIFL).
#[must_use]
#[inline]
pub fn is_verdict(status: Status) -> bool {
    matches!(
        status,
        Status::ObjectDoesntExist
            | Status::ObjectExists
            | Status::WrongVersion
            | Status::NotANumber
            | Status::Overflow
    )
}

/// Returns the first bytes of every reply.
#[must_use]
#[inline]
pub fn head(status: Status) -> [u8; 4] {
    [VERSION, status as u8, 0, 0]
}

/// Returns the first bytes of the reply to an operation on one object: head and version.
#[must_use]
#[inline]
pub fn result_head(status: Status, version: Version) -> [u8; 12] {
    let mut out = [0; 12];
    out[..4].copy_from_slice(&head(status));
    out[4..].copy_from_slice(&version.0.to_be_bytes());
    out
}

/// Returns the rest of a reply whose status is OK.
#[inline]
pub(crate) fn accepted(reply: &[u8]) -> Result<&[u8], Refusal<'_>> {
    let (status, rest) = match *reply {
        [VERSION, code, _, _, ref rest @ ..] => {
            (Status::from_code(code).ok_or(Status::BadFormat)?, rest)
        }
        [_, _, _, _, ..] => return Err(Status::BadVersion.into()),
        _ => return Err(Status::BadFormat.into()),
    };
    match status {
        Status::Ok => Ok(rest),
        verdict if is_verdict(verdict) => {
            let version = rest.try_into().map_err(|_| Status::BadFormat)?;
            Err(Refusal { status, version: Version(u64::from_be_bytes(version)), text: "" })
        }
        _ => Err(Refusal {
            status,
            version: Version(0),
            text: core::str::from_utf8(rest).unwrap_or(""),
        }),
    }
}

/// Returns the object's version in a reply whose status is OK, and the bytes behind it.
#[inline]
pub(crate) fn versioned(reply: &[u8]) -> Result<(Version, &[u8]), Refusal<'_>> {
    let (version, rest) = accepted(reply)?.split_first_chunk().ok_or(Status::BadFormat)?;
    Ok((Version(u64::from_be_bytes(*version)), rest))
}
