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
//! Invariant: a parser reads back the bytes that `emit` wrote. Reserved bits are written as zero
//! and ignored, and a wrong length is refused. Linux's siw writes Terminates with the bits of each
//! byte in the other order; [`Terminate::parse`] reads those too.
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

/// The version of RDMAP in the control byte.
pub const VERSION: u8 = 1;
/// The number of the untagged queue of Sends and Immediate Data.
pub const QN_SEND: u32 = 0;
/// The number of the untagged queue of Read and Atomic Requests.
pub const QN_REQUEST: u32 = 1;
/// The number of the untagged queue of Terminates.
pub const QN_TERMINATE: u32 = 2;
/// The number of the untagged queue of Atomic Responses.
pub const QN_ATOMIC_RESPONSE: u32 = 3;
/// The length of an RDMAP Read Request in bytes.
pub const READ_REQUEST: usize = 28;
/// The length of an RDMAP Atomic Request in bytes.
pub const ATOMIC_REQUEST: usize = 52;
/// The length of an RDMAP Atomic Response in bytes.
pub const ATOMIC_RESPONSE: usize = 12;
/// The length of RDMAP Immediate Data in bytes.
pub const IMMEDIATE: usize = 8;
/// The length in bytes of the longest RDMAP Terminate that is sent.
pub const TERMINATE_MAX: usize = 4 + 2 + ddp::HEADER_MAX + READ_REQUEST;

/// The opcode of an RDMAP message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write: a tagged message into the peer's memory.
    Write = 0,
    /// RDMA Read Request: a [`ReadRequest`] on the untagged queue 1.
    ReadRequest = 1,
    /// RDMA Read Response: the tagged response to a Read Request.
    ReadResponse = 2,
    /// Send: a message into the peer's next receive.
    Send = 3,
    /// Send with Invalidate: a Send that also invalidates an STag of the receiver, which the ULP's
    /// word names.
    SendInvalidate = 4,
    /// Send with Solicited Event: a Send whose completion is a solicited event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate: a Send with Invalidate whose completion is a
    /// solicited event.
    SendSolicitedInvalidate = 6,
    /// Terminate: the last message of a stream, a [`Terminate`] on the untagged queue 2.
    Terminate = 7,
    /// Immediate Data: 8 bytes that consume a receive.
    Immediate = 8,
    /// Immediate Data with Solicited Event: Immediate Data whose completion is a solicited event.
    ImmediateSolicited = 9,
    /// Atomic Request: an [`AtomicRequest`] on the untagged queue 1.
    AtomicRequest = 10,
    /// Atomic Response: an [`AtomicResponse`] on the untagged queue 3.
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

    /// Returns the RDMAP opcode of a segment's message.
    ///
    /// # Errors
    /// The [`Cause`] to answer with: no such queue, another RDMAP version, no such opcode, or an
    /// opcode that does not belong in this kind of header or this queue. DDP is the lower layer, so
    /// its check of the queue comes first.
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

    /// The RDMAP control byte of the segments of a message with this opcode.
    #[must_use]
    pub const fn control(self) -> u8 {
        VERSION << 6 | self as u8
    }

    /// The number of the untagged queue of messages with this opcode, or `None` if they are tagged.
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

    /// True if the ULP's word of messages with this opcode names an STag to invalidate. Other
    /// messages have 0 there, which is ignored.
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// True if a message with this opcode makes the completion of the receive a solicited event.
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

/// An RDMAP Read Request: read `size` bytes at `source_to` of `source_stag` into `sink_to` of
/// `sink_stag`. Only the requestor can check the sink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// The requestor's steering tag for the Read. The response repeats it.
    pub sink_stag: u32,
    /// The requestor's tagged offset for the Read. The response repeats it.
    pub sink_to: u64,
    /// The number of bytes that a Read Request asks for.
    pub size: u32,
    /// The responder's steering tag of the memory to read.
    pub source_stag: u32,
    /// The responder's tagged offset of the first byte to read.
    pub source_to: u64,
}

impl ReadRequest {
    /// Parses the payload of an RDMAP Read Request.
    ///
    /// # Errors
    /// [`Cause::OPERATION`] if the payload is not as long as a Read Request.
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

    /// Returns the RDMAP Read Request in wire format.
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

    /// The rest of the Read Request after `bytes` were answered, for a Terminate in the middle of
    /// the response.
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

/// An atomic operation on a 64-bit word (RFC 7306).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicOp {
    /// FetchAdd: adds to the 64-bit word, field by field.
    FetchAdd {
        /// The value that the atomic FetchAdd adds.
        add: u64,
        /// The mask of the atomic FetchAdd. Each set bit is the highest bit of a field, and its
        /// carry is dropped. 0 means one field of 64 bits.
        mask: u64,
    },
    /// CompareSwap: swaps the 64-bit word if it has the expected value.
    CompareSwap {
        /// The value that the atomic CompareSwap stores.
        swap: u64,
        /// The bits of the word that the atomic CompareSwap replaces.
        swap_mask: u64,
        /// The value of the word that the atomic CompareSwap expects.
        compare: u64,
        /// The bits of the word that the atomic CompareSwap compares.
        compare_mask: u64,
    },
}

impl AtomicOp {
    const FETCH_ADD: u32 = 0;
    const COMPARE_SWAP: u32 = 2;

    /// Returns the new value of a word that holds `old` before the atomic operation (RFC 7306
    /// section 5.1).
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

/// An RDMAP Atomic Request: execute `op` on the aligned 64-bit word at `to` of `stag` and return
/// the old value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequest {
    /// The requestor's identifier of the Atomic Request. The response repeats it.
    pub id: u32,
    /// The responder's steering tag of the memory with the 64-bit word.
    pub stag: u32,
    /// The responder's tagged offset of the 64-bit word.
    pub to: u64,
    /// The atomic operation that the responder executes.
    pub op: AtomicOp,
}

impl AtomicRequest {
    /// Parses the payload of an RDMAP Atomic Request.
    ///
    /// # Errors
    /// [`Cause::OPERATION`] if the payload is not as long as an Atomic Request, [`Cause::OPCODE`]
    /// for an unknown operation.
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

    /// Returns the RDMAP Atomic Request in wire format.
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

/// An RDMAP Atomic Response, which answers an [`AtomicRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResponse {
    /// The identifier of the Atomic Request that this response answers.
    pub id: u32,
    /// The value of the 64-bit word before the atomic operation.
    pub was: u64,
}

impl AtomicResponse {
    /// Parses the payload of an RDMAP Atomic Response.
    ///
    /// # Errors
    /// [`Cause::OPERATION`] if the payload is not as long as an Atomic Response.
    pub fn parse(payload: &[u8]) -> Result<Self, Cause> {
        let wire = AtomicAnswerWire::ref_from_bytes(payload).map_err(|_| Cause::OPERATION)?;
        Ok(Self { id: wire.id.get(), was: wire.was.get() })
    }

    /// Returns the RDMAP Atomic Response in wire format.
    #[must_use]
    pub fn emit(&self) -> [u8; ATOMIC_RESPONSE] {
        zerocopy::transmute!(AtomicAnswerWire { id: self.id.into(), was: self.was.into() })
    }
}

/// Parses the payload of RDMAP Immediate Data.
///
/// # Errors
/// [`Cause::OPERATION`] for another length than 8 (RFC 7306 section 6.3 requires the check and
/// names no code).
pub fn parse_immediate(payload: &[u8]) -> Result<u64, Cause> {
    payload.try_into().map(u64::from_be_bytes).map_err(|_| Cause::OPERATION)
}

/// The segment that an RDMAP Terminate names as the cause of the error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offending {
    /// The length in bytes of the offending segment's ULPDU: header and payload.
    pub ulpdu_len: u16,
    /// The DDP header of the offending segment as received ([`ddp::raw_header`]).
    pub header: HeaderBytes,
    /// The Read Request in the offending segment, or the rest of it if it was partly answered.
    /// Never set for an Atomic Request.
    pub read: Option<ReadRequest>,
}

/// An RDMAP Terminate, the last message of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terminate {
    /// The layer, type and code of the error that the Terminate reports.
    pub cause: Cause,
    /// The second cause that the bytes of the Terminate may mean. Without headers, RFC order and
    /// siw's order cannot always be told apart. The receiver may know the right one: only an
    /// initiator in start-up sends 2/0/05 to 2/0/07.
    pub or: Option<Cause>,
    /// The segment that caused the error which the Terminate reports, if it names one.
    pub about: Option<Offending>,
}

const M: u8 = 0x80;
const D: u8 = 0x40;
const R: u8 = 0x20;

impl Terminate {
    /// Emits the payload of a Terminate with the headers that `cause` requires (RFC 5040 figure 10
    /// and section 7.1), as far as `about` has them. Local errors and those of the layer below
    /// require none. All others require the DDP header, and RDMAP's errors a Read Request too.
    /// `about` is `None` for an error that no segment caused.
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
    /// that gives a named cause is taken. If both orders give a named cause, [`Terminate::cause`]
    /// is that of the RFC's order and [`Terminate::or`] that of siw's. Announced headers that are
    /// missing are left out.
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

/// Parses the headers behind a Terminate's first word. The flags say which headers the Terminate
/// announces.
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
