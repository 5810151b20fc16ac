//! MPA on a stream (RFC 5044, 6581): the frames of its start-up, and the arithmetic of its FPDUs. `docs/formats.md` ("iWARP")
//! is normative.
//!
//! ```text
//! start-up  0 key(16)  16 u8 M C R S reserved(4)  17 u8 revision  18 u16 length  20 private data; with S its first 4 are:
//!           u16 A B ird(14)  u16 C D ord(14)
//! FPDU      u16 ulpdu length | ULPDU | 0–3 zeros | CRC32C(4), a multiple of 4 without its markers
//! marker    every 512 bytes of the stream, itself counted: u16 0 | u16 bytes back to the ulpdu length
//! ```
//!
//! Always: what [`Start::emit`] writes is parsed back as the same frame, and nothing is refused for a bit that the RFCs
//! reserve. Not here: what two frames mean together (`rdma::start`), cutting and joining FPDUs (`rdma::fpdu`).

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

/// Bytes of a start-up frame without private data.
pub const START: usize = 20;
/// Most bytes of private data, the block of RFC 6581 counted.
pub const PRIVATE_MAX: usize = 512;
/// Bytes of the block of RFC 6581.
pub const ENHANCED: usize = 4;
/// The highest revision that is understood; 1 is RFC 5044, 2 is RFC 6581, 0 was the RDMA Consortium's.
pub const REVISION_MAX: u8 = 2;
/// Stands for "not negotiated here" in [`Enhanced::ird`] and [`Enhanced::ord`], which have 14 bits.
pub const UNSAID: u16 = 0x3fff;

/// Bytes of an FPDU's length field.
pub const LENGTH: usize = 2;
/// Bytes of an FPDU's CRC.
pub const CRC: usize = 4;
/// Bytes of a marker.
pub const MARKER: usize = 4;
/// Bytes of the stream between one marker and the next.
pub const BETWEEN: usize = 512 - MARKER;
/// The smallest and the largest MULPDU (RFC 5044 section 3).
pub const MULPDU_MIN: usize = 128;
/// See [`MULPDU_MIN`].
pub const MULPDU_MAX: usize = 64_768;
/// The longest FPDU that a peer can send: a ULPDU of 65,535 bytes with a marker in front and all others inside.
pub const FPDU_MAX: usize = fpdu_len(65_535) + MARKER * markers(0, fpdu_len(65_535));

const M: u8 = 0x80;
const C: u8 = 0x40;
const R: u8 = 0x20;
const S: u8 = 0x10;
/// A and B in the first half of the block of RFC 6581, C and D in its second.
const HIGH: u16 = 0x8000;
const LOW: u16 = 0x4000;

/// Which of the two start-up frames it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

impl Kind {
    /// The 16 bytes that a frame of this kind begins with.
    #[must_use]
    pub const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// A form of the ready-to-receive frame, which an initiator sends first in the peer-to-peer model. All are of length zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RtrKind {
    /// A Send.
    Send,
    /// An RDMA Write.
    Write,
    /// An RDMA Read.
    Read,
}

/// A set of forms of the ready-to-receive frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rtr {
    /// [`RtrKind::Send`] is among them.
    pub send: bool,
    /// [`RtrKind::Write`] is.
    pub write: bool,
    /// [`RtrKind::Read`] is.
    pub read: bool,
}

impl Rtr {
    /// All forms.
    pub const ALL: Self = Self { send: true, write: true, read: true };

    /// This one alone.
    #[must_use]
    pub const fn only(kind: RtrKind) -> Self {
        Self {
            send: matches!(kind, RtrKind::Send),
            write: matches!(kind, RtrKind::Write),
            read: matches!(kind, RtrKind::Read),
        }
    }

    /// True if there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !(self.send || self.write || self.read)
    }

    /// True if `kind` is among them.
    #[must_use]
    pub const fn contains(self, kind: RtrKind) -> bool {
        match kind {
            RtrKind::Send => self.send,
            RtrKind::Write => self.write,
            RtrKind::Read => self.read,
        }
    }

    /// Those in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// The cheapest of them: a Write costs the peer nothing, a Read an answer, a Send a receive.
    #[must_use]
    pub const fn cheapest(self) -> Option<RtrKind> {
        match self {
            Self { write: true, .. } => Some(RtrKind::Write),
            Self { read: true, .. } => Some(RtrKind::Read),
            Self { send: true, .. } => Some(RtrKind::Send),
            _ => None,
        }
    }
}

/// The block of RFC 6581 section 9.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Enhanced {
    /// In the peer-to-peer model, the forms of the first frame that the initiator can send or the responder accepts. `None`
    /// for client and server: no flag is sent then, and none looked at.
    pub rtr: Option<Rtr>,
    /// Reads that the sender of this frame takes at once, or [`UNSAID`]; nothing above that can be said.
    pub ird: u16,
    /// Reads that the sender of this frame makes at once, likewise.
    pub ord: u16,
}

impl Enhanced {
    fn parse(block: [u8; ENHANCED]) -> Self {
        let first = u16::from_be_bytes([block[0], block[1]]);
        let second = u16::from_be_bytes([block[2], block[3]]);
        let rtr =
            Rtr { send: first & LOW != 0, write: second & HIGH != 0, read: second & LOW != 0 };
        Self { rtr: (first & HIGH != 0).then_some(rtr), ird: first & UNSAID, ord: second & UNSAID }
    }

    fn emit(self) -> [u8; ENHANCED] {
        let flag = |on: bool, bit: u16| if on { bit } else { 0 };
        let rtr = self.rtr.unwrap_or_default();
        let first = flag(self.rtr.is_some(), HIGH) | flag(rtr.send, LOW) | self.ird.min(UNSAID);
        let second = flag(rtr.write, HIGH) | flag(rtr.read, LOW) | self.ord.min(UNSAID);
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }
}

/// Why bytes are no start-up frame: the stream has to be closed (RFC 5044 section 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Neither key.
    #[error("no MPA start-up frame")]
    Key,
    /// A revision above [`REVISION_MAX`].
    #[error("an unknown revision of MPA")]
    Revision,
    /// More private data than [`PRIVATE_MAX`].
    #[error("private data is too long")]
    PrivateData,
    /// The flag says that the block of RFC 6581 is there, the length that it is not.
    #[error("the block of enhanced connection set-up is missing")]
    Enhanced,
}

/// A start-up frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start<'a> {
    /// Which.
    pub kind: Kind,
    /// The sender wants markers in what it receives.
    pub markers: bool,
    /// The sender wants CRCs.
    pub crc: bool,
    /// The responder refuses; never so in a Request.
    pub reject: bool,
    /// The revision of MPA.
    pub revision: u8,
    /// The block of RFC 6581; there only from revision 2 on.
    pub enhanced: Option<Enhanced>,
    /// The program's private data, at most [`Start::room`].
    pub private_data: &'a [u8],
}

impl<'a> Start<'a> {
    /// Reads a frame from the start of `bytes`: the frame and its length, or `None` if it goes on.
    ///
    /// # Errors
    /// [`Malformed`], as soon as what is there shows it.
    pub fn parse(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let starts = |kind: Kind| bytes.iter().zip(kind.key()).all(|(a, b)| a == b);
        let kind = match (starts(Kind::Request), starts(Kind::Reply)) {
            (true, _) => Kind::Request,
            (_, true) => Kind::Reply,
            _ => return Err(Malformed::Key),
        };
        let Some(&[flags, revision, high, low]) = bytes.get(16..START) else { return Ok(None) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let enhanced = revision >= 2 && flags & S != 0;
        if revision > REVISION_MAX {
            return Err(Malformed::Revision);
        }
        if length > PRIVATE_MAX {
            return Err(Malformed::PrivateData);
        }
        if enhanced && length < ENHANCED {
            return Err(Malformed::Enhanced);
        }
        let Some(data) = bytes.get(START..START + length) else { return Ok(None) };
        let (enhanced, private_data) = match data.split_first_chunk() {
            Some((&block, rest)) if enhanced => (Some(Enhanced::parse(block)), rest),
            _ => (None, data),
        };
        let reject = kind == Kind::Reply && flags & R != 0;
        let (markers, crc) = (flags & M != 0, flags & C != 0);
        let start = Self { kind, markers, crc, reject, revision, enhanced, private_data };
        Ok(Some((start, START + length)))
    }

    /// Appends the frame to `out`.
    ///
    /// # Errors
    /// [`Malformed`], if it would not be parsed: nothing is appended then.
    pub fn emit(&self, out: &mut Vec<u8>) -> Result<(), Malformed> {
        if self.revision > REVISION_MAX || self.enhanced.is_some() && self.revision < 2 {
            return Err(Malformed::Revision);
        }
        if self.private_data.len() > Self::room(self.enhanced.is_some()) {
            return Err(Malformed::PrivateData);
        }
        let block = self.enhanced.map(Enhanced::emit);
        let block = block.as_ref().map_or(&[][..], |block| block);
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let reject = self.reject && self.kind == Kind::Reply;
        let flags = flag(self.markers, M)
            | flag(self.crc, C)
            | flag(reject, R)
            | flag(!block.is_empty(), S);
        let length = (block.len() + self.private_data.len()) as u16;
        out.extend_from_slice(self.kind.key());
        out.extend_from_slice(&[flags, self.revision]);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(block);
        out.extend_from_slice(self.private_data);
        Ok(())
    }

    /// The most bytes of the program's private data, with the block of RFC 6581 or without.
    #[must_use]
    pub const fn room(enhanced: bool) -> usize {
        if enhanced { PRIVATE_MAX - ENHANCED } else { PRIVATE_MAX }
    }
}

/// Bytes of an FPDU with a ULPDU of `ulpdu` bytes, markers not counted.
#[must_use]
pub const fn fpdu_len(ulpdu: usize) -> usize {
    (LENGTH + ulpdu).next_multiple_of(4) + CRC
}

/// The largest ULPDU for a segment of `emss` bytes (RFC 5044 section 4.5).
#[must_use]
pub const fn mulpdu(emss: usize, markers: bool) -> usize {
    let markers = if markers { MARKER * emss.div_ceil(BETWEEN + MARKER) } else { 0 };
    let len = emss.saturating_sub(LENGTH + CRC + markers + emss % 4);
    if len < MULPDU_MIN {
        MULPDU_MIN
    } else if len > MULPDU_MAX {
        MULPDU_MAX
    } else {
        len
    }
}

/// How many markers an FPDU of `len` bytes (markers not counted) has, if `to_marker` bytes of the stream were left to the
/// next one, 0 to [`BETWEEN`], before it began. One that is due where it begins is its own, one that is due where it ends is
/// not.
#[must_use]
pub const fn markers(to_marker: usize, len: usize) -> usize {
    len.saturating_sub(to_marker).div_ceil(BETWEEN)
}

/// The bytes left to the next marker after such an FPDU.
#[must_use]
pub const fn to_marker_after(to_marker: usize, len: usize) -> usize {
    to_marker + BETWEEN * markers(to_marker, len) - len
}
