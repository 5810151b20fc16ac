//! Messages of transactions.
//!
//! ```text
//! client ── Prepare ─► the masters of the other objects   check, lock, remember
//!        ── Commit ──► the master of the first object     the commit point
//!        ── Decide ──► the others                         write, unlock
//! master ── FindOwner ► coordinator                       the client is silent:
//!        ── Resolve ─► the master of the first object     was it committed? If not, never
//!        ── Decide ──► the others                         if it was
//!
//! Prepare, Commit, Validate
//!           0 version u8 | 1 opcode u8 | 2 parts u16 | 4 others u16 | 6 zero u16 | 8 cluster u64
//!          16 lease u64 | 24 ack u64 | 32 participants, as many as `others` | parts
//! participant 0 table u64 | 8 key hash u64 | 16 rpc u64
//! part      0 kind u8 | 1 rules u8 | 2 zero u16 | 4 key length u32 | 8 table u64
//!          16 given version u64 | 24 rpc u64 | 32 lifetime u64 | 40 value length u32
//!          44 zero u32 | 48 key | value
//! reply     0 head | then
//!           OK        4 for each part: 0 held u8 | 1 version u64
//!           Conflict  4 why u8 | 5 zero u8 | 6 part u16 | 8 zero u32 | 12 version u64
//! Decide    0 version u8 | 1 opcode u8 | 2 zero u16 | 4 decision u8 | 5 zero u24 | 8 cluster u64
//!          16 lease u64 | 24 participants; the reply is a head
//! ```
//!
//! The kind of a part is 0 for a check, 1 for a write, 2 for a removal, and 3 for edits of a leaf,
//! which are its value ([`crate::btree::edit`]). The others of a commit are the objects that are
//! prepared. The other of a prepare is the first object of the transaction, whose master decides.
//! A lifetime is in milliseconds, [`u64::MAX`] means none.
//!
//! Invariants: parsing never panics and copies nothing.

use alloc::vec::Vec;

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codec::{choices, replies, requests};
use super::data::{Refusal, RejectRules, accepted, head};
use super::{Opcode, Status, VERSION};
use crate::btree::edit::Edits;
use crate::types::{KeyHash, LeaseId, Lifetime, MAX_TRANSACTION, ServerId, TableId, Version};

choices! {
    pub,
    /// The decision on a transaction.
    Decision {
        /// The transaction changes nothing.
        Abort = 0,
        /// The transaction makes its changes.
        Commit = 1,
        /// The changes of the transaction are made on all servers.
        Finish = 2,
    }

    /// The answer in the reply [`Resolved`].
    Resolution {
        /// The transaction is not committed, and never will be.
        Aborted = 0,
        /// The transaction is committed.
        Committed = 1,
    }
}

impl Resolution {
    /// Returns the answer for a transaction that is committed, or never will be.
    #[must_use]
    pub fn of(is_committed: bool) -> Self {
        if is_committed { Self::Committed } else { Self::Aborted }
    }
}

requests! {
    /// Asks the coordinator for the server of an object. The reply is [`Owner`].
    FindOwner {
        /// The id of the cluster that the server joined.
        cluster: u64,
        /// The table of the object.
        table: TableId,
        /// The key hash of the object.
        hash: u64,
    }

    /// Asks the master of a transaction's first object if the transaction is committed. If it is
    /// not, it never will be. The reply is [`Resolved`].
    Resolve {
        /// The id of the cluster that the sender joined.
        cluster: u64,
        /// The lease of the transaction's client.
        lease: u64,
        /// The client's number for the first object.
        rpc: u64,
        /// The table of the first object.
        table: TableId,
        /// The key hash of the first object.
        hash: u64,
    }
}

replies! {
    /// The reply to [`FindOwner`].
    Owner<'a> {
        /// The server of the object. Its generation is 0 if no server has it now.
        server: ServerId,
        /// True if the table does not exist, or the object's tablet is lost: no server will ever
        /// have the object.
        gone: bool,
        /// The locators at which the server takes requests, with `;` between them.
        data: &'a str,
    }

    /// The reply to [`Resolve`].
    Resolved {
        /// The answer.
        resolution: Resolution,
    }
}

/// The fixed part of a transaction's request.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FrontWire {
    version: u8,
    opcode: u8,
    parts: U16,
    others: U16,
    zero: U16,
    cluster: U64,
    lease: U64,
    ack: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PartWire {
    kind: u8,
    rules: u8,
    zero: U16,
    key_len: U32,
    table: U64,
    given_version: U64,
    rpc: U64,
    lifetime_ms: U64,
    value_len: U32,
    zeros: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DecideWire {
    version: u8,
    opcode: u8,
    zero: U16,
    decision: u8,
    zeros: [u8; 3],
    cluster: U64,
    lease: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ParticipantWire {
    table: U64,
    hash: U64,
    rpc: U64,
}

/// An object of a transaction, as the transaction's messages name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Participant {
    /// The table of the object.
    pub table: TableId,
    /// The hash of the object's key.
    pub hash: KeyHash,
    /// The client's number for the object, by which its part is executed exactly once.
    pub rpc: u64,
}

/// Some objects of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Participants<'a>(&'a [u8]);

impl<'a> Participants<'a> {
    /// Returns the participants in these bytes.
    ///
    /// # Errors
    /// [`Status::BadFormat`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Status> {
        let is_whole = bytes.len().is_multiple_of(size_of::<ParticipantWire>());
        let is_short = bytes.len() <= MAX_TRANSACTION * size_of::<ParticipantWire>();
        if is_whole && is_short { Ok(Self(bytes)) } else { Err(Status::BadFormat) }
    }

    /// Returns the number of participants.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len() / size_of::<ParticipantWire>()
    }

    /// Returns true if there is no participant.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the participants as they are in messages.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Iterates over the participants.
    pub fn iter(self) -> impl Iterator<Item = Participant> + 'a {
        <[ParticipantWire]>::ref_from_bytes(self.0).unwrap_or_default().iter().map(|wire| {
            let (table, hash) = (TableId(wire.table.get()), KeyHash(wire.hash.get()));
            Participant { table, hash, rpc: wire.rpc.get() }
        })
    }
}

impl Participant {
    /// Appends the participant to a message.
    pub fn emit_to(self, out: &mut Vec<u8>) {
        let wire = ParticipantWire {
            table: self.table.0.into(),
            hash: self.hash.0.into(),
            rpc: self.rpc.into(),
        };
        out.extend_from_slice(wire.as_bytes());
    }
}

/// The change that a transaction makes to an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// The transaction has read the object, and does not change it.
    Check,
    /// The transaction writes this value. The object expires after the lifetime.
    Write(&'a [u8], Option<Lifetime>),
    /// The transaction removes the object.
    Remove,
    /// The transaction adds entries to the object, a leaf of an index, and removes some, as these
    /// [edits](crate::btree::edit) say.
    Edit(&'a [u8]),
}

/// A part of a transaction: one object with its conditions and its change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part<'a> {
    /// The table of the object.
    pub table: TableId,
    /// The conditions under which the transaction is refused.
    pub rules: RejectRules,
    /// The client's number for the part, 0 in a validation.
    pub rpc: u64,
    /// The key of the object.
    pub key: &'a [u8],
    /// The change that the transaction makes to the object.
    pub change: Change<'a>,
}

impl Part<'_> {
    /// Appends the part to a message.
    ///
    /// # Panics
    /// If the value has 4 GiB or more.
    pub fn emit_to(&self, out: &mut Vec<u8>) {
        let (kind, value, lifetime) = match self.change {
            Change::Check => (0, &[][..], None),
            Change::Write(value, lifetime) => (1, value, lifetime),
            Change::Remove => (2, &[][..], None),
            Change::Edit(edits) => (3, edits, None),
        };
        let wire = PartWire {
            kind,
            rules: self.rules.flags(),
            zero: U16::ZERO,
            key_len: u32::try_from(self.key.len()).expect("a key of less than 4 GiB").into(),
            table: self.table.0.into(),
            given_version: self.rules.given_version.0.into(),
            rpc: self.rpc.into(),
            lifetime_ms: lifetime.map_or(u64::MAX, |Lifetime(ms)| ms).into(),
            value_len: u32::try_from(value.len()).expect("a value of less than 4 GiB").into(),
            zeros: U32::ZERO,
        };
        out.extend_from_slice(wire.as_bytes());
        out.extend_from_slice(self.key);
        out.extend_from_slice(value);
    }
}

/// The parts of a transaction in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    /// Splits the next part off.
    fn split(&mut self) -> Result<Part<'a>, Status> {
        let (wire, rest) = PartWire::ref_from_prefix(self.0).map_err(|_| Status::BadFormat)?;
        let (key, rest) =
            rest.split_at_checked(wire.key_len.get() as usize).ok_or(Status::BadFormat)?;
        let (value, rest) =
            rest.split_at_checked(wire.value_len.get() as usize).ok_or(Status::BadFormat)?;
        self.0 = rest;
        let lifetime = match wire.lifetime_ms.get() {
            u64::MAX => None,
            ms if ms <= Lifetime::MAX.0 => Some(Lifetime(ms)),
            _ => return Err(Status::BadFormat),
        };
        let change = match (wire.kind, lifetime) {
            (0, None) if value.is_empty() => Change::Check,
            (1, lifetime) => Change::Write(value, lifetime),
            (2, None) if value.is_empty() => Change::Remove,
            (3, None) => {
                Edits::parse(value)?;
                Change::Edit(value)
            }
            _ => return Err(Status::BadFormat),
        };
        let rules = RejectRules::of_flags(wire.rules, Version(wire.given_version.get()))?;
        if wire.zero != U16::ZERO || wire.zeros != U32::ZERO {
            return Err(Status::BadFormat);
        }
        Ok(Part { table: TableId(wire.table.get()), rules, rpc: wire.rpc.get(), key, change })
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Part<'a>> {
        if self.0.is_empty() { None } else { self.split().ok() }
    }
}

/// The request of some parts of a transaction to one master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Front<'a> {
    /// The id of the cluster that the client means.
    pub cluster: u64,
    /// The lease of the client.
    pub lease: LeaseId,
    /// The client has the replies to all its mutations up to this number.
    pub ack: u64,
    /// The participants that are not in this request: see [`self`].
    pub others: Participants<'a>,
    /// The parts of the request, at least one and at most [`MAX_TRANSACTION`].
    pub parts: Parts<'a>,
    /// The number of parts.
    pub count: usize,
    /// True if a part edits a leaf.
    pub has_edits: bool,
}

impl<'a> Front<'a> {
    /// Parses a request with this opcode.
    ///
    /// # Errors
    /// [`Status::BadFormat`] or [`Status::BadVersion`].
    pub fn parse(request: &'a [u8], opcode: Opcode) -> Result<Self, Status> {
        let (wire, rest) = FrontWire::ref_from_prefix(request).map_err(|_| Status::BadFormat)?;
        if wire.version != VERSION {
            return Err(Status::BadVersion);
        }
        let (count, others) = (usize::from(wire.parts.get()), usize::from(wire.others.get()));
        let makes_sense = wire.opcode == opcode as u8
            && wire.zero == U16::ZERO
            && (1..=MAX_TRANSACTION).contains(&count)
            && others <= MAX_TRANSACTION;
        let others_len = others * size_of::<ParticipantWire>();
        let (others, rest) = rest.split_at_checked(others_len).ok_or(Status::BadFormat)?;
        let parts = Parts(rest);
        // This walk checks all parts, so that later iterations meet none that is wrong.
        let (mut walk, mut has_edits) = (parts, false);
        for _ in 0..count {
            has_edits |= matches!(walk.split()?.change, Change::Edit(_));
        }
        if !makes_sense || !walk.0.is_empty() {
            return Err(Status::BadFormat);
        }
        Ok(Self {
            cluster: wire.cluster.get(),
            lease: LeaseId(wire.lease.get()),
            ack: wire.ack.get(),
            others: Participants::parse(others)?,
            parts,
            count,
            has_edits,
        })
    }
}

/// Returns the bytes of a request of some parts of a transaction.
#[must_use]
pub fn request<'a>(
    opcode: Opcode,
    (cluster, lease, ack): (u64, LeaseId, u64),
    others: impl ExactSizeIterator<Item = Participant>,
    parts: impl ExactSizeIterator<Item = Part<'a>>,
) -> Vec<u8> {
    let mut out = begin(opcode, (cluster, lease, ack), others, (parts.len(), 0));
    parts.for_each(|part| part.emit_to(&mut out));
    out
}

/// Returns the beginning of a request, with room for its parts behind it: their number, and the
/// number of their bytes.
#[must_use]
pub fn begin(
    opcode: Opcode,
    (cluster, lease, ack): (u64, LeaseId, u64),
    others: impl ExactSizeIterator<Item = Participant>,
    (parts, bytes): (usize, usize),
) -> Vec<u8> {
    let wire = FrontWire {
        version: VERSION,
        opcode: opcode as u8,
        parts: (parts as u16).into(),
        others: (others.len() as u16).into(),
        zero: U16::ZERO,
        cluster: cluster.into(),
        lease: lease.0.into(),
        ack: ack.into(),
    };
    let fixed = wire.as_bytes();
    let len = fixed.len() + others.len() * size_of::<ParticipantWire>() + bytes;
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(fixed);
    others.for_each(|participant| participant.emit_to(&mut out));
    out
}

/// Sets the client's number in the bytes of a part, as [`Part::emit_to`] makes them.
pub fn set_rpc(part: &mut [u8], rpc: u64) {
    if let Ok((wire, _)) = PartWire::mut_from_prefix(part) {
        wire.rpc = rpc.into();
    }
}

/// The number of bytes of a part without its key and value.
pub const PART: usize = size_of::<PartWire>();

/// The refusal of a transaction: one of its parts met another state than it needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The verdict of the part's conditions, or [`Status::Locked`] if another transaction is about
    /// to change the object, or [`Status::Aborted`].
    pub why: Status,
    /// The index of the part in its request.
    pub part: u16,
    /// The version of the object, 0 if it does not exist.
    pub version: Version,
}

impl Conflict {
    /// Returns the conflict as the eight bytes that a completion record has room for, without the
    /// version.
    #[must_use]
    pub fn to_sum(self) -> [u8; 8] {
        let [a, b] = self.part.to_be_bytes();
        [self.why as u8, 0, a, b, 0, 0, 0, 0]
    }

    /// Returns the conflict with these bytes of a completion record.
    #[must_use]
    pub fn of_sum(sum: [u8; 8], version: Version) -> Self {
        let why = Status::from_code(sum[0]).unwrap_or(Status::Aborted);
        Self { why, part: u16::from_be_bytes([sum[2], sum[3]]), version }
    }

    /// Appends the reply with the conflict.
    pub fn emit_to(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&head(Status::Conflict));
        out.extend_from_slice(&self.to_sum());
        out.extend_from_slice(&self.version.0.to_be_bytes());
    }
}

/// The reply to the parts of a transaction that are in one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered<'a> {
    /// All parts are prepared, committed or valid.
    Done(&'a [[u8; ANSWER]]),
    /// One part is not.
    Conflict(Conflict),
}

/// The number of bytes of the answer to one part.
pub const ANSWER: usize = 9;

/// Returns the answer to a part. `held` is true if the part is prepared, and not committed.
#[must_use]
pub fn answer(held: bool, version: Version) -> [u8; ANSWER] {
    let mut answer = [0; ANSWER];
    answer[0] = u8::from(held);
    answer[1..].copy_from_slice(&version.0.to_be_bytes());
    answer
}

/// Parses the answer to a part, as [`answer`] makes it.
#[must_use]
pub fn part_answer(&[held, ref version @ ..]: &[u8; ANSWER]) -> (bool, Version) {
    (held != 0, Version(u64::from_be_bytes(*version)))
}

/// Parses the reply to a request of this number of parts.
///
/// # Errors
/// The refusal in the reply.
pub fn answered(reply: &[u8], parts: usize) -> Result<Answered<'_>, Refusal<'_>> {
    if let [VERSION, status, _, _, why, 0, a, b, 0, 0, 0, 0, version @ ..] = reply
        && *status == Status::Conflict as u8
    {
        let version = version.try_into().map_err(|_| Status::BadFormat)?;
        let sum = [*why, 0, *a, *b, 0, 0, 0, 0];
        let conflict = Conflict::of_sum(sum, Version(u64::from_be_bytes(version)));
        return Ok(Answered::Conflict(conflict));
    }
    let (answers, rest) = accepted(reply)?.as_chunks();
    if answers.len() != parts || !rest.is_empty() {
        return Err(Status::BadFormat.into());
    }
    Ok(Answered::Done(answers))
}

/// A request to make a decision known to the master of some prepared objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decide<'a> {
    /// The id of the cluster that the sender means.
    pub cluster: u64,
    /// The lease of the transaction's client.
    pub lease: LeaseId,
    /// The decision.
    pub decision: Decision,
    /// The objects.
    pub objects: Participants<'a>,
}

impl<'a> Decide<'a> {
    /// Parses a request.
    ///
    /// # Errors
    /// [`Status::BadFormat`] or [`Status::BadVersion`].
    pub fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let (wire, rest) = DecideWire::ref_from_prefix(request).map_err(|_| Status::BadFormat)?;
        if wire.version != VERSION {
            return Err(Status::BadVersion);
        }
        if wire.opcode != Opcode::Decide as u8 || wire.zero != U16::ZERO || wire.zeros != [0; 3] {
            return Err(Status::BadFormat);
        }
        let decision = match wire.decision {
            0 => Decision::Abort,
            1 => Decision::Commit,
            2 => Decision::Finish,
            _ => return Err(Status::BadFormat),
        };
        let objects = Participants::parse(rest)?;
        let (cluster, lease) = (wire.cluster.get(), LeaseId(wire.lease.get()));
        Ok(Self { cluster, lease, decision, objects })
    }
}

/// Returns the bytes of a request to make a decision known.
#[must_use]
pub fn decide(
    (cluster, lease): (u64, LeaseId),
    decision: Decision,
    objects: impl Iterator<Item = Participant>,
) -> Vec<u8> {
    let wire = DecideWire {
        version: VERSION,
        opcode: Opcode::Decide as u8,
        zero: U16::ZERO,
        decision: decision as u8,
        zeros: [0; 3],
        cluster: cluster.into(),
        lease: lease.0.into(),
    };
    let mut out = wire.as_bytes().to_vec();
    objects.for_each(|participant| participant.emit_to(&mut out));
    out
}
