//! RDMAP (RFC 5040 section 4, RFC 7306 sections 5 and 6): the control byte, the payloads of Read
//! Requests, Atomics and Immediate Data, and the Terminate with its causes. `docs/formats.md`
//! ("iWARP") is normative.
//!
//! ```text
//!  control         u8 RV(0xc0 = 0x40) reserved(0x30) opcode(0x0f)
//!  Read Request    28: 0 u32 sink STag   4 u64 sink TO   12 u32 size
//!                      16 u32 source STag   20 u64 source TO
//!  Atomic Request  52: 0 u32 AOpCode(0x0f)   4 u32 id   8 u32 STag  12 u64 TO
//!                      20 u64 add or swap   28 u64 its mask   36 u64 compare   44 u64 its mask
//!  Atomic Response 12: 0 u32 id   4 u64 the old value
//!  Immediate Data   8: 0 u64
//!  Terminate    4..52: 0 u8 layer(0xf0) type(0x0f)   1 u8 code
//!                      2 u8 M(0x80) D(0x40) R(0x20)   3 u8 0
//!                      with D: 4 u16 ULPDU length   6 the DDP header (14 or 18)
//!                      with R: then the Read Request (28)
//! ```
//!
//! Invariant: a parser reads back what was emitted. Reserved bits are written as zero and ignored,
//! and a wrong length is refused. Linux's siw writes Terminates with the bits of each byte in the
//! other order; [`Terminate::parse`] reads those too.
//!
//! Not here: the order of messages.

mod cause;
#[cfg(test)]
mod tests;

pub use cause::Cause;

use arrayvec::ArrayVec;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ddp::{self, Buffer, Header, HeaderBytes};

/// The RDMAP version.
pub const VERSION: u8 = 1;
/// The queue number of Sends and Immediate Data.
pub const QN_SEND: u32 = 0;
/// The queue number of Read and Atomic Requests.
pub const QN_REQUEST: u32 = 1;
/// The queue number of Terminates.
pub const QN_TERMINATE: u32 = 2;
/// The queue number of Atomic Responses.
pub const QN_ATOMIC_RESPONSE: u32 = 3;
/// The length of a Read Request.
pub const READ_REQUEST: usize = 28;
/// The length of an Atomic Request.
pub const ATOMIC_REQUEST: usize = 52;
/// The length of an Atomic Response.
pub const ATOMIC_RESPONSE: usize = 12;
/// The length of Immediate Data.
pub const IMMEDIATE: usize = 8;
/// The length of the longest Terminate that is sent.
pub const TERMINATE_MAX: usize = 4 + 2 + ddp::HEADER_MAX + READ_REQUEST;

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// A tagged message into the peer's memory.
    Write = 0,
    /// A [`ReadRequest`] on queue 1.
    ReadRequest = 1,
    /// The tagged response to a Read Request.
    ReadResponse = 2,
    /// A message into the peer's next receive.
    Send = 3,
    /// A Send that also invalidates an STag of the receiver, which the ULP's word names.
    SendInvalidate = 4,
    /// A Send whose completion is a solicited event.
    SendSolicited = 5,
    /// A Send with Invalidate whose completion is a solicited event.
    SendSolicitedInvalidate = 6,
    /// A [`Terminate`] on queue 2.
    Terminate = 7,
    /// 8 bytes that consume a receive.
    Immediate = 8,
    /// Immediate Data whose completion is a solicited event.
    ImmediateSolicited = 9,
    /// An [`AtomicRequest`] on queue 1.
    AtomicRequest = 10,
    /// An [`AtomicResponse`] on queue 3.
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

    /// Returns the kind of a segment's message.
    ///
    /// # Errors
    /// The [`Cause`] to answer with: no such queue, another RDMAP version, no such opcode, or an
    /// opcode that does not belong in this kind of header or this queue. DDP's check comes first,
    /// like its layer.
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

    /// The control byte of the segments.
    #[must_use]
    pub const fn control(self) -> u8 {
        VERSION << 6 | self as u8
    }

    /// The queue of the messages, or `None` if they are tagged.
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

    /// True if the ULP's word names an STag to invalidate. Other messages have 0 there, which is
    /// ignored.
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// True if the completion of the receive is a solicited event.
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

/// A request to read `size` bytes at `source_to` of `source_stag` into `sink_to` of `sink_stag`.
/// Only the requestor can check the sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// The requestor's tag. The response repeats it.
    pub sink_stag: u32,
    /// The requestor's tagged offset. The response repeats it.
    pub sink_to: u64,
    /// The length in bytes.
    pub size: u32,
    /// The responder's tag.
    pub source_stag: u32,
    /// The responder's tagged offset.
    pub source_to: u64,
}

impl ReadRequest {
    /// Parses the payload of a Read Request.
    ///
    /// # Errors
    /// [`Cause::OPERATION`] for another length.
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

    /// The bytes on the wire.
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

    /// The rest of the request after `bytes` were answered, for a Terminate that comes in the
    /// middle.
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

/// An atomic operation on a 64-bit word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// Adds field by field.
    FetchAdd {
        /// The value to add.
        add: u64,
        /// Each set bit is the highest bit of a field, and its carry is dropped. 0 means one field
        /// of 64 bits.
        mask: u64,
    },
    /// Swaps the word if it has the expected value.
    CompareSwap {
        /// The new value.
        swap: u64,
        /// The bits of the word that are replaced.
        swap_mask: u64,
        /// The expected value.
        compare: u64,
        /// The bits of the word that are compared.
        compare_mask: u64,
    },
}

impl AtomicOp {
    const FETCH_ADD: u32 = 0;
    const COMPARE_SWAP: u32 = 2;

    /// Returns the new value of a word that holds `old` (RFC 7306 section 5.1).
    #[must_use]
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            // The sum omits the highest bit of each field, so no carry leaves a field. XOR adds
            // those bits.
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

/// A request to execute `op` on the aligned 64-bit word at `to` of `stag` and return the old value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequest {
    /// The requestor's identifier. The response repeats it.
    pub id: u32,
    /// The responder's tag.
    pub stag: u32,
    /// The responder's tagged offset.
    pub to: u64,
    /// The operation.
    pub op: AtomicOp,
}

impl AtomicRequest {
    /// Parses the payload of an Atomic Request.
    ///
    /// # Errors
    /// [`Cause::OPERATION`] for another length, [`Cause::OPCODE`] for an unknown operation.
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

    /// The bytes on the wire.
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

/// The response to an [`AtomicRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResponse {
    /// The identifier of the request.
    pub id: u32,
    /// The old value of the word.
    pub was: u64,
}

impl AtomicResponse {
    /// Parses the payload of an Atomic Response.
    ///
    /// # Errors
    /// [`Cause::OPERATION`] for another length.
    pub fn parse(payload: &[u8]) -> Result<Self, Cause> {
        let wire = AtomicAnswerWire::ref_from_bytes(payload).map_err(|_| Cause::OPERATION)?;
        Ok(Self { id: wire.id.get(), was: wire.was.get() })
    }

    /// The bytes on the wire.
    #[must_use]
    pub fn emit(&self) -> [u8; ATOMIC_RESPONSE] {
        zerocopy::transmute!(AtomicAnswerWire { id: self.id.into(), was: self.was.into() })
    }
}

/// Parses the payload of Immediate Data.
///
/// # Errors
/// [`Cause::OPERATION`] for another length than 8 (RFC 7306 section 6.3 requires the check and
/// names no code).
pub fn parse_immediate(payload: &[u8]) -> Result<u64, Cause> {
    payload.try_into().map(u64::from_be_bytes).map_err(|_| Cause::OPERATION)
}

/// The segment that a Terminate names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offending {
    /// The length of its ULPDU: header and payload.
    pub ulpdu_len: u16,
    /// The header as received ([`ddp::raw_header`]).
    pub header: HeaderBytes,
    /// The Read Request in the segment, or the rest of it if it was partly answered. Never set for
    /// an Atomic Request.
    pub read: Option<ReadRequest>,
}

/// A Terminate, the last message of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// The cause.
    pub cause: Cause,
    /// The other cause that the bytes may mean. Without headers, RFC order and siw's order cannot
    /// always be told apart. The receiver may know the right one: only an initiator in start-up
    /// sends 2/0/05 to 2/0/07.
    pub or: Option<Cause>,
    /// The segment that caused the error.
    pub about: Option<Offending>,
}

const M: u8 = 0x80;
const D: u8 = 0x40;
const R: u8 = 0x20;

impl Terminate {
    /// Emits the payload of a Terminate with the headers that `cause` requires (RFC 5040 figure 10
    /// and section 7.1), as far as `about` has them: none for local errors and those of the layer
    /// below, otherwise the DDP header, and for RDMAP's errors a Read Request too. `about` is
    /// `None` for an error that no segment caused.
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

    /// Parses the payload of a Terminate, in RFC order or in siw's, which exchanges the two halves
    /// of the first byte and has M, D, R as 0x01, 0x02, 0x04. If the third byte is 0, the order
    /// that gives a named cause is taken. If both orders give one, the RFC's is taken, and the
    /// other is in [`Terminate::or`]. Announced headers that are missing are left out.
    ///
    /// Returns `None` for fewer than 4 bytes.
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

/// Parses the headers behind a Terminate's first word.
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
