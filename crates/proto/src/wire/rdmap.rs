//! RDMAP (RFC 5040 section 4, RFC 7306 sections 5 and 6): the control byte, what Read Requests, Atomics and Immediate Data
//! carry, and the Terminate with its causes. `docs/formats.md` ("iWARP") is normative.
//!
//! ```text
//!  control         u8 RV(0xc0 = 0x40) reserved(0x30) opcode(0x0f)
//!  Read Request    28: 0 u32 sink STag   4 u64 sink TO   12 u32 size   16 u32 source STag   20 u64 source TO
//!  Atomic Request  52: 0 u32 AOpCode(0x0f)   4 u32 id   8 u32 STag  12 u64 TO
//!                      20 u64 add or swap   28 u64 its mask   36 u64 compare   44 u64 its mask
//!  Atomic Response 12: 0 u32 id   4 u64 what was there
//!  Immediate Data   8: 0 u64
//!  Terminate    4..52: 0 u8 layer(0xf0) type(0x0f)   1 u8 code   2 u8 M(0x80) D(0x40) R(0x20)   3 u8 0
//!                      with D: 4 u16 ULPDU length   6 the DDP header (14 or 18)      with R: then the Read Request (28)
//! ```
//!
//! Always: what is written is read back as the same; reserved bits are written as zero and not looked at; a length that is
//! not the message's own is refused. Linux's siw writes its Terminates with the bits of each byte in the other order:
//! those are understood too, see [`Terminate::parse`]. Not here: which message may come when.

mod cause;
#[cfg(test)]
mod tests;

pub use cause::Cause;

use arrayvec::ArrayVec;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ddp::{self, Buffer, Header, HeaderBytes};

/// The version that this file speaks.
pub const VERSION: u8 = 1;
/// The queue of Sends and Immediate Data.
pub const QN_SEND: u32 = 0;
/// The queue of Read and Atomic Requests.
pub const QN_REQUEST: u32 = 1;
/// The queue of the Terminate.
pub const QN_TERMINATE: u32 = 2;
/// The queue of Atomic Responses.
pub const QN_ATOMIC_RESPONSE: u32 = 3;
/// Bytes of a Read Request.
pub const READ_REQUEST: usize = 28;
/// Bytes of an Atomic Request.
pub const ATOMIC_REQUEST: usize = 52;
/// Bytes of an Atomic Response.
pub const ATOMIC_RESPONSE: usize = 12;
/// Bytes of Immediate Data.
pub const IMMEDIATE: usize = 8;
/// Bytes of the longest Terminate that is sent.
pub const TERMINATE_MAX: usize = 4 + 2 + ddp::HEADER_MAX + READ_REQUEST;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// Tagged: into the peer's memory.
    Write = 0,
    /// [`ReadRequest`] on queue 1.
    ReadRequest = 1,
    /// Tagged: the answer to a Read Request.
    ReadResponse = 2,
    /// Into the peer's next receive.
    Send = 3,
    /// The same; the ULP's word is an STag of the receiver that is invalid afterwards.
    SendInvalidate = 4,
    /// A Send whose completion is a solicited event.
    SendSolicited = 5,
    /// Both.
    SendSolicitedInvalidate = 6,
    /// [`Terminate`] on queue 2.
    Terminate = 7,
    /// 8 bytes that take a receive.
    Immediate = 8,
    /// The same; its completion is a solicited event.
    ImmediateSolicited = 9,
    /// [`AtomicRequest`] on queue 1.
    AtomicRequest = 10,
    /// [`AtomicResponse`] on queue 3.
    AtomicResponse = 11,
}

impl Opcode {
    const ALL: [Self; 12] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInvalidate,
        Self::SendSolicited,
        Self::SendSolicitedInvalidate,
        Self::Terminate,
        Self::Immediate,
        Self::ImmediateSolicited,
        Self::AtomicRequest,
        Self::AtomicResponse,
    ];

    /// What a segment is part of.
    ///
    /// # Errors
    /// The [`Cause`] to answer with: no such queue, another RDMAP version, no such opcode, or one that does not belong into
    /// this form of header or this queue. DDP's check comes first, as its layer does.
    #[inline]
    pub fn of(header: &Header) -> Result<Self, Cause> {
        let queue = match header.buffer {
            Buffer::Tagged { .. } => None,
            Buffer::Untagged { qn, .. } if qn > QN_ATOMIC_RESPONSE => {
                return Err(Cause::UNTAGGED_QN);
            }
            Buffer::Untagged { qn, .. } => Some(qn),
        };
        if header.control >> 6 != VERSION {
            return Err(Cause::VERSION);
        }
        let opcode = Self::ALL.get(usize::from(header.control & 0x0f)).copied();
        opcode.filter(|o| o.queue() == queue).ok_or(Cause::OPCODE)
    }

    /// The control byte of its segments.
    #[must_use]
    pub const fn control(self) -> u8 {
        VERSION << 6 | self as u8
    }

    /// The queue of its messages; None if they are tagged.
    #[must_use]
    pub const fn queue(self) -> Option<u32> {
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::ReadRequest | Self::AtomicRequest => Some(QN_REQUEST),
            Self::Terminate => Some(QN_TERMINATE),
            Self::AtomicResponse => Some(QN_ATOMIC_RESPONSE),
            _ => Some(QN_SEND),
        }
    }

    /// The ULP's word names an STag to invalidate; in all other messages it is sent as 0 and not looked at.
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// The completion of the receive is a solicited event.
    #[must_use]
    pub const fn solicits(self) -> bool {
        matches!(
            self,
            Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited
        )
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReadWire {
    sink_stag: U32,
    sink_to: U64,
    size: U32,
    source_stag: U32,
    source_to: U64,
}

/// Read `size` bytes at `source_to` of `source_stag`, and write them to `sink_to` of `sink_stag`, which only the sender of
/// the request can judge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// The requestor's tag: copied into the Response as it is.
    pub sink_stag: u32,
    /// The requestor's tagged offset: likewise.
    pub sink_to: u64,
    /// Bytes.
    pub size: u32,
    /// The responder's tag.
    pub source_stag: u32,
    /// Its tagged offset.
    pub source_to: u64,
}

impl ReadRequest {
    /// Reads the payload of a Read Request.
    ///
    /// # Errors
    /// [`Cause::OPERATION`] if it is not of a Read Request's length.
    pub fn parse(payload: &[u8]) -> Result<Self, Cause> {
        let wire = ReadWire::ref_from_bytes(payload).map_err(|_| Cause::OPERATION)?;
        Ok(Self {
            sink_stag: wire.sink_stag.get(),
            sink_to: wire.sink_to.get(),
            size: wire.size.get(),
            source_stag: wire.source_stag.get(),
            source_to: wire.source_to.get(),
        })
    }

    /// Its bytes on the wire.
    #[must_use]
    pub fn emit(&self) -> [u8; READ_REQUEST] {
        let wire = ReadWire {
            sink_stag: self.sink_stag.into(),
            sink_to: self.sink_to.into(),
            size: self.size.into(),
            source_stag: self.source_stag.into(),
            source_to: self.source_to.into(),
        };
        zerocopy::transmute!(wire)
    }

    /// What is left of it once `bytes` were answered: what a Terminate speaks of that comes in the middle.
    #[must_use]
    pub const fn after(self, bytes: u32) -> Self {
        Self {
            sink_to: self.sink_to.wrapping_add(bytes as u64),
            size: self.size.saturating_sub(bytes),
            source_to: self.source_to.wrapping_add(bytes as u64),
            ..self
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AtomicWire {
    code: U32,
    id: U32,
    stag: U32,
    to: U64,
    data: U64,
    mask: U64,
    compare: U64,
    compare_mask: U64,
}

/// What an atomic operation does with the 64-bit word that it meets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Adds, field by field.
    FetchAdd {
        /// The summands.
        add: u64,
        /// A set bit is the highest of a field: its carry is dropped. 0: one field of 64 bits.
        mask: u64,
    },
    /// Swaps if the word is as expected.
    CompareSwap {
        /// The new value, where `swap_mask` has a set bit.
        swap: u64,
        /// See there.
        swap_mask: u64,
        /// The value expected, where `compare_mask` has a set bit.
        compare: u64,
        /// See there.
        compare_mask: u64,
    },
}

impl AtomicOp {
    const FETCH_ADD: u32 = 0;
    const COMPARE_SWAP: u32 = 2;

    /// What it makes of a word that holds `old` (RFC 7306 section 5.1).
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            // The fields' highest bits are left out of the sum, so that no carry leaves a field, and are then added alone.
            Self::FetchAdd { add, mask } => {
                (old & !mask).wrapping_add(add & !mask) ^ ((old ^ add) & mask)
            }
            Self::CompareSwap { swap, swap_mask, compare, compare_mask } => {
                if (compare ^ old) & compare_mask == 0 {
                    old & !swap_mask | swap & swap_mask
                } else {
                    old
                }
            }
        }
    }
}

/// Do `op` with the aligned 64-bit word at `to` of `stag`, and answer with what was there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequest {
    /// The requestor's number for it, reflected in the Response.
    pub id: u32,
    /// The responder's tag.
    pub stag: u32,
    /// Its tagged offset.
    pub to: u64,
    /// What to do.
    pub op: AtomicOp,
}

impl AtomicRequest {
    /// Reads the payload of an Atomic Request.
    ///
    /// # Errors
    /// [`Cause::OPERATION`] if it is not of an Atomic Request's length, [`Cause::OPCODE`] for an operation that nobody knows.
    pub fn parse(payload: &[u8]) -> Result<Self, Cause> {
        let wire = AtomicWire::ref_from_bytes(payload).map_err(|_| Cause::OPERATION)?;
        let op = match wire.code.get() & 0x0f {
            AtomicOp::FETCH_ADD => {
                AtomicOp::FetchAdd { add: wire.data.get(), mask: wire.mask.get() }
            }
            AtomicOp::COMPARE_SWAP => AtomicOp::CompareSwap {
                swap: wire.data.get(),
                swap_mask: wire.mask.get(),
                compare: wire.compare.get(),
                compare_mask: wire.compare_mask.get(),
            },
            _ => return Err(Cause::OPCODE),
        };
        Ok(Self { id: wire.id.get(), stag: wire.stag.get(), to: wire.to.get(), op })
    }

    /// Its bytes on the wire.
    #[must_use]
    pub fn emit(&self) -> [u8; ATOMIC_REQUEST] {
        let (code, data, mask, compare, compare_mask) = match self.op {
            AtomicOp::FetchAdd { add, mask } => (AtomicOp::FETCH_ADD, add, mask, 0, u64::MAX),
            AtomicOp::CompareSwap { swap, swap_mask, compare, compare_mask } => {
                (AtomicOp::COMPARE_SWAP, swap, swap_mask, compare, compare_mask)
            }
        };
        let wire = AtomicWire {
            code: code.into(),
            id: self.id.into(),
            stag: self.stag.into(),
            to: self.to.into(),
            data: data.into(),
            mask: mask.into(),
            compare: compare.into(),
            compare_mask: compare_mask.into(),
        };
        zerocopy::transmute!(wire)
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct AtomicAnswerWire {
    id: U32,
    was: U64,
}

/// The answer to an [`AtomicRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResponse {
    /// The request's number.
    pub id: u32,
    /// What the word held before.
    pub was: u64,
}

impl AtomicResponse {
    /// Reads the payload of an Atomic Response.
    ///
    /// # Errors
    /// [`Cause::OPERATION`] if it is not of an Atomic Response's length.
    pub fn parse(payload: &[u8]) -> Result<Self, Cause> {
        let wire = AtomicAnswerWire::ref_from_bytes(payload).map_err(|_| Cause::OPERATION)?;
        Ok(Self { id: wire.id.get(), was: wire.was.get() })
    }

    /// Its bytes on the wire.
    #[must_use]
    pub fn emit(&self) -> [u8; ATOMIC_RESPONSE] {
        zerocopy::transmute!(AtomicAnswerWire { id: self.id.into(), was: self.was.into() })
    }
}

/// Reads the payload of Immediate Data.
///
/// # Errors
/// [`Cause::OPERATION`] if it is not of 8 bytes (RFC 7306 section 6.3 wants that checked and names no code).
pub fn parse_immediate(payload: &[u8]) -> Result<u64, Cause> {
    payload.try_into().map(u64::from_be_bytes).map_err(|_| Cause::OPERATION)
}

/// The segment that a Terminate complains of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offending {
    /// The bytes of its ULPDU: header and payload.
    pub ulpdu_len: u16,
    /// Its header as it came ([`ddp::raw_header`]).
    pub header: HeaderBytes,
    /// What it carried, if it was a Read Request; what was left of it, if it was partly answered. Never for an Atomic.
    pub read: Option<ReadRequest>,
}

/// A Terminate: the last message of a stream, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// Why.
    pub cause: Cause,
    /// The other cause that the bytes may mean. Without headers RFC order and siw's cannot always be told apart; the
    /// receiver may know which of the two can be (2/0/05 to 2/0/07 come from an initiator at start-up and never else).
    pub or: Option<Cause>,
    /// What it was about.
    pub about: Option<Offending>,
}

const M: u8 = 0x80;
const D: u8 = 0x40;
const R: u8 = 0x20;

impl Terminate {
    /// The payload of a Terminate with what headers `cause` calls for (RFC 5040 figure 10 and section 7.1), as far as
    /// `about` has them: none for local errors and those of the layer below, else the DDP header, and for RDMAP's errors a
    /// Read Request besides. `about` is None for errors that no incoming segment caused.
    #[must_use]
    pub fn emit(cause: Cause, about: Option<&Offending>) -> ArrayVec<u8, TERMINATE_MAX> {
        let about = about.filter(|a| cause.shows_header() && !a.header.is_empty());
        let read = about.and_then(|a| a.read).filter(|_| cause.layer == Cause::RDMAP);
        let bits = if about.is_some() { M | D } else { 0 } | if read.is_some() { R } else { 0 };
        let mut out = ArrayVec::new();
        out.extend([cause.layer << 4 | cause.etype & 0x0f, cause.code, bits, 0]);
        if let Some(about) = about {
            out.extend(about.ulpdu_len.to_be_bytes());
            out.extend(about.header.iter().copied());
        }
        if let Some(read) = read {
            out.extend(read.emit());
        }
        out
    }

    /// Reads the payload of a Terminate, in RFC order or in siw's: there the two halves of the first byte are exchanged
    /// and M, D, R are 0x01, 0x02, 0x04. If neither has a bit set in the third byte, the cause that has a name is taken; if
    /// both have, the RFC's, and the other stands in [`Terminate::or`]. Headers that are announced and not there are left out.
    ///
    /// None if there are fewer than 4 bytes.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Option<Self> {
        let (&[first, code, bits, _], rest) = payload.split_first_chunk()?;
        let straight = Cause { layer: first >> 4, etype: first & 0x0f, code };
        let mirrored = Cause { layer: first & 0x0f, etype: first >> 4, code };
        let ours = bits & (M | D | R) != 0;
        let (cause, or) = match (ours, bits & 0x07 != 0) {
            (true, _) => (straight, None),
            (false, true) => (mirrored, None),
            _ if straight == mirrored || mirrored.name().is_none() => (straight, None),
            _ if straight.name().is_none() => (mirrored, None),
            _ => (straight, Some(mirrored)),
        };
        let has = |bit: u8| if ours { bits & bit != 0 } else { bits.reverse_bits() & bit != 0 };
        Some(Self { cause, or, about: offending(rest, has(M) || has(D), has(D), has(R)) })
    }
}

/// The headers behind a Terminate's first word.
fn offending(rest: &[u8], length: bool, header: bool, read: bool) -> Option<Offending> {
    let (ulpdu_len, rest) = match rest.split_first_chunk() {
        Some((len, rest)) if length => (u16::from_be_bytes(*len), rest),
        _ => return None,
    };
    let header = if header { ddp::raw_header(rest) } else { None }.unwrap_or_default();
    let behind = rest.get(header.len()..).filter(|_| read && !header.is_empty());
    let read = behind.and_then(|b| ReadRequest::parse(b.get(..READ_REQUEST)?).ok());
    Some(Offending { ulpdu_len, header, read })
}
