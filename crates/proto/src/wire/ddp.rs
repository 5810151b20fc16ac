//! DDP segment headers (RFC 5041 section 4), at the start of every ULPDU. `docs/formats.md`
//! ("iWARP") is normative.
//!
//! ```text
//!  both           0 u8 T(0x80) L(0x40) reserved(0x3c) DV(0x03)   1 u8 RDMAP control
//!  tagged    14:  T=1   2 u32 STag        6 u64 TO
//!  untagged  18:  T=0   2 u32 ULP's word  6 u32 QN  10 u32 MSN  14 u32 MO
//! ```
//!
//! Invariant: [`parse`] reads back the header that [`Header::emit`] writes. Reserved bits are
//! written as zero and ignored.
//!
//! Not here: the RDMAP control byte ([`super::rdmap`]), message numbers, memory.

#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of DDP in a segment's header.
pub const VERSION: u8 = 1;
/// The length of a tagged DDP header in bytes.
pub const TAGGED: usize = 14;
/// The length of an untagged DDP header in bytes.
pub const UNTAGGED: usize = 18;
/// The length of the longer DDP header, the untagged one, in bytes.
pub const HEADER_MAX: usize = UNTAGGED;

const T: u8 = 0x80;
const L: u8 = 0x40;
const DV: u8 = 0x03;

/// A DDP header on the wire: 14 or 18 bytes, or fewer if no more arrived.
pub type HeaderBytes = ArrayVec<u8, HEADER_MAX>;

/// The receiver's buffer for the payload of a DDP segment: tagged or untagged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Buffer {
    /// A tagged buffer: memory that the receiver has advertised.
    Tagged {
        /// The steering tag of the memory that the segment's payload goes to.
        stag: u32,
        /// The tagged offset of the DDP segment's first byte.
        to: u64,
    },
    /// The next untagged buffer of a queue of the receiver.
    Untagged {
        /// The word that DDP carries for the ULP (RDMAP's Invalidate STag, or 0).
        ulp: u32,
        /// The number of the receiver's untagged queue.
        qn: u32,
        /// The number of the message in its untagged queue (MSN). The first is 1, and 0 follows
        /// `u32::MAX`.
        msn: u32,
        /// The offset of the segment's first byte in its untagged message (MO), in bytes.
        mo: u32,
    },
}

/// The header of a DDP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The DDP segment is the last of its message.
    pub last: bool,
    /// The byte that DDP carries for the ULP (RDMAP's control byte).
    pub control: u8,
    /// The receiver's buffer that the DDP segment's payload goes to.
    pub buffer: Buffer,
}

/// The bytes are no DDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderError {
    /// The ULPDU is shorter than the DDP header that its first bit announces.
    Short,
    /// A tagged header has another DDP version (error 1/1/04).
    TaggedVersion,
    /// An untagged header has another DDP version (error 1/2/06).
    UntaggedVersion,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Tagged {
    bits: u8,
    control: u8,
    stag: U32,
    to: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Untagged {
    bits: u8,
    control: u8,
    ulp: U32,
    qn: U32,
    msn: U32,
    mo: U32,
}

/// The length in bytes of a DDP header whose first byte is `first`.
#[must_use]
pub const fn header_len(first: u8) -> usize {
    if first & T == 0 { UNTAGGED } else { TAGGED }
}

/// Parses the DDP header at the start of `ulpdu`. The payload begins [`Header::len`] bytes in.
///
/// # Errors
/// [`HeaderError`]. The DDP version is checked first, since it gives the meaning of the rest.
#[inline]
pub fn parse(ulpdu: &[u8]) -> Result<Header, HeaderError> {
    let &bits = ulpdu.first().ok_or(HeaderError::Short)?;
    let tagged = bits & T != 0;
    if bits & DV != VERSION {
        return Err(if tagged { HeaderError::TaggedVersion } else { HeaderError::UntaggedVersion });
    }
    let last = bits & L != 0;
    if tagged {
        let (h, _) = Tagged::ref_from_prefix(ulpdu).map_err(|_| HeaderError::Short)?;
        let buffer = Buffer::Tagged { stag: h.stag.get(), to: h.to.get() };
        Ok(Header { last, control: h.control, buffer })
    } else {
        let (h, _) = Untagged::ref_from_prefix(ulpdu).map_err(|_| HeaderError::Short)?;
        let (ulp, qn, msn, mo) = (h.ulp.get(), h.qn.get(), h.msn.get(), h.mo.get());
        Ok(Header { last, control: h.control, buffer: Buffer::Untagged { ulp, qn, msn, mo } })
    }
}

impl Header {
    /// The length of the DDP header on the wire, in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no header is empty")]
    pub const fn len(&self) -> usize {
        match self.buffer {
            Buffer::Tagged { .. } => TAGGED,
            Buffer::Untagged { .. } => UNTAGGED,
        }
    }

    /// Returns the DDP header in wire format.
    #[must_use]
    #[inline]
    pub fn emit(&self) -> HeaderBytes {
        let bits = VERSION | if self.last { L } else { 0 };
        let mut out = HeaderBytes::new();
        let taken = match self.buffer {
            Buffer::Tagged { stag, to } => {
                let h = Tagged {
                    bits: bits | T,
                    control: self.control,
                    stag: stag.into(),
                    to: to.into(),
                };
                out.try_extend_from_slice(h.as_bytes())
            }
            Buffer::Untagged { ulp, qn, msn, mo } => {
                let (ulp, qn, msn, mo) = (ulp.into(), qn.into(), msn.into(), mo.into());
                out.try_extend_from_slice(
                    Untagged { bits, control: self.control, ulp, qn, msn, mo }.as_bytes(),
                )
            }
        };
        debug_assert!(taken.is_ok(), "both headers fit");
        out
    }
}

/// The DDP header at the start of `ulpdu` as received, valid or not, for a Terminate. Returns
/// `None` if it is incomplete.
#[must_use]
pub fn raw_header(ulpdu: &[u8]) -> Option<HeaderBytes> {
    let header = ulpdu.get(..header_len(*ulpdu.first()?))?;
    HeaderBytes::try_from(header).ok()
}

/// Cuts a DDP message of `total` bytes into segments (RFC 5041 section 5.2). Returns the payload
/// length of the segment at offset `done`, and whether it is the last. `payload_max` is the MULPDU
/// without the header, at least 1. An empty message is one segment.
#[must_use]
pub const fn next_segment(total: u32, done: u32, payload_max: u32) -> (u32, bool) {
    let left = total.saturating_sub(done);
    if left > payload_max { (payload_max, false) } else { (left, true) }
}
