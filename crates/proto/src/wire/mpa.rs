//! MPA on a stream (RFC 5044, 6581): start-up frames, and the lengths of FPDUs. `docs/formats.md`
//! ("iWARP") is normative.
//!
//! ```text
//! start-up  0 key(16)  16 u8 M C R S reserved(4)  17 u8 revision  18 u16 length  20 private data
//!           with S, private data begins with: u16 A B ird(14)  u16 C D ord(14)
//! FPDU      u16 ulpdu length | ULPDU | 0–3 zeros | CRC32C(4); a multiple of 4 without its markers
//! marker    every 512 bytes of the stream, itself included: u16 0 | u16 bytes back to ulpdu length
//! ```
//!
//! Invariant: [`Start::parse`] reads back the frame that [`Start::emit`] writes, and refuses no
//! frame for a bit that the RFCs reserve.
//!
//! Not here: the meaning of a Request and its Reply (`rdma::iwarp::start`), FPDUs of a stream
//! (`rdma::iwarp::framer`, `rdma::iwarp::deframer`).

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

/// The length of an MPA start-up frame without private data, in bytes.
pub const START: usize = 20;
/// The most bytes of private data of an MPA start-up frame, the block of RFC 6581 included.
pub const PRIVATE_MAX: usize = 512;
/// The length of the block of RFC 6581 (enhanced start-up) in bytes.
pub const ENHANCED: usize = 4;
/// The highest known MPA revision. 0 is the RDMA Consortium's, 1 is RFC 5044, 2 is RFC 6581.
pub const REVISION_MAX: u8 = 2;
/// The value of [`Enhanced::ird`] and [`Enhanced::ord`], which have 14 bits, that means "not
/// negotiated here".
pub const UNSAID: u16 = 0x3fff;

/// The length of an FPDU's length field in bytes.
pub const LENGTH: usize = 2;
/// The length of an FPDU's CRC in bytes.
pub const CRC: usize = 4;
/// The length of an MPA marker in bytes.
pub const MARKER: usize = 4;
/// The number of bytes of the stream between two MPA markers.
pub const BETWEEN: usize = 512 - MARKER;
/// The smallest MULPDU (RFC 5044 section 3), in bytes.
pub const MULPDU_MIN: usize = 128;
/// The largest MULPDU (RFC 5044 section 3), in bytes.
pub const MULPDU_MAX: usize = 64_768;
/// The length in bytes of the longest FPDU that a peer can send: a ULPDU of 65,535 bytes with a
/// marker in front and all others inside.
pub const FPDU_MAX: usize = fpdu_len(65_535) + MARKER * markers(0, fpdu_len(65_535));

const M: u8 = 0x80;
const C: u8 = 0x40;
const R: u8 = 0x20;
const S: u8 = 0x10;
/// The highest bit of a half of the block of RFC 6581: the flag A in the first half, C in the
/// second. The bit below it is the flag B or D.
const HIGH: u16 = 0x8000;
const LOW: u16 = 0x4000;

/// The kind of an MPA start-up frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The MPA start-up frame of the initiator.
    Request,
    /// The MPA start-up frame of the responder.
    Reply,
}

impl Kind {
    /// The key of a start-up frame of this kind: its first 16 bytes.
    #[must_use]
    pub const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// A kind of ready-to-receive frame, the first frame of an initiator in the peer-to-peer model. The
/// frame is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RtrKind {
    /// The ready-to-receive frame is a Send.
    Send,
    /// The ready-to-receive frame is an RDMA Write.
    Write,
    /// The ready-to-receive frame is an RDMA Read.
    Read,
}

/// A set of kinds of ready-to-receive frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rtr {
    /// The set of ready-to-receive frames has [`RtrKind::Send`].
    pub send: bool,
    /// The set of ready-to-receive frames has [`RtrKind::Write`].
    pub write: bool,
    /// The set of ready-to-receive frames has [`RtrKind::Read`].
    pub read: bool,
}

impl Rtr {
    /// The set of all kinds of ready-to-receive frames.
    pub const ALL: Self = Self { send: true, write: true, read: true };

    /// The set of one kind of ready-to-receive frame.
    #[must_use]
    pub const fn only(kind: RtrKind) -> Self {
        Self {
            send: matches!(kind, RtrKind::Send),
            write: matches!(kind, RtrKind::Write),
            read: matches!(kind, RtrKind::Read),
        }
    }

    /// True if the set of ready-to-receive frames is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        !(self.send || self.write || self.read)
    }

    /// True if the set of ready-to-receive frames has `kind`.
    #[must_use]
    pub const fn contains(self, kind: RtrKind) -> bool {
        match kind {
            RtrKind::Send => self.send,
            RtrKind::Write => self.write,
            RtrKind::Read => self.read,
        }
    }

    /// The kinds of ready-to-receive frames that are in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// The cheapest kind of ready-to-receive frame in the set: a Write costs the peer nothing, a
    /// Read a response, a Send a receive.
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

/// The block of RFC 6581 section 9: the fields of an enhanced MPA start-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Enhanced {
    /// In the peer-to-peer model, the first frames that the initiator can send or the responder
    /// accepts. `None` in the client–server model, which sends no flags and ignores them.
    pub rtr: Option<Rtr>,
    /// The number of Reads that the sender of this frame serves at once, or [`UNSAID`].
    pub ird: u16,
    /// The number of Reads that the sender of this frame requests at once, or [`UNSAID`].
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

/// The bytes are no MPA start-up frame. The stream must be closed (RFC 5044 section 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// The key is neither that of an MPA Request nor that of an MPA Reply.
    #[error("no MPA start-up frame")]
    Key,
    /// The frame's MPA revision is above [`REVISION_MAX`].
    #[error("an unknown revision of MPA")]
    Revision,
    /// The start-up frame's private data is longer than [`PRIVATE_MAX`].
    #[error("private data is too long")]
    PrivateData,
    /// The start-up frame's flag S announces the block of RFC 6581, but the length leaves no room
    /// for it.
    #[error("the block of enhanced connection set-up is missing")]
    Enhanced,
}

/// An MPA start-up frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start<'a> {
    /// The kind of the MPA start-up frame: Request or Reply.
    pub kind: Kind,
    /// The sender of the start-up frame requests markers in its received stream.
    pub markers: bool,
    /// The sender of the start-up frame requests CRCs.
    pub crc: bool,
    /// The responder rejects the connection; false in a Request.
    pub reject: bool,
    /// The MPA revision of the start-up frame.
    pub revision: u8,
    /// The block of RFC 6581 of the start-up frame, present only from revision 2 on.
    pub enhanced: Option<Enhanced>,
    /// The program's private data in the start-up frame, at most [`Start::room`].
    pub private_data: &'a [u8],
}

impl<'a> Start<'a> {
    /// Parses an MPA start-up frame at the start of `bytes`. Returns the frame and its length, or
    /// `None` if it is incomplete.
    ///
    /// # Errors
    /// [`Malformed`], as soon as the bytes show that they are no start-up frame.
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

    /// Appends the MPA start-up frame to `out`.
    ///
    /// # Errors
    /// [`Malformed`] if [`Start::parse`] would refuse the frame. Nothing is appended.
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

    /// The most bytes of the program's private data in an MPA start-up frame, with or without the
    /// block of RFC 6581.
    #[must_use]
    pub const fn room(enhanced: bool) -> usize {
        if enhanced { PRIVATE_MAX - ENHANCED } else { PRIVATE_MAX }
    }
}

/// The length in bytes of an FPDU with a ULPDU of `ulpdu` bytes, without markers.
#[must_use]
pub const fn fpdu_len(ulpdu: usize) -> usize {
    (LENGTH + ulpdu).next_multiple_of(4) + CRC
}

/// The largest ULPDU in bytes for a TCP segment of `emss` bytes (RFC 5044 section 4.5).
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

/// The number of MPA markers in an FPDU of `len` bytes (without markers) that begins `to_marker`
/// bytes, 0 to [`BETWEEN`], before the next marker. A marker that is due at the FPDU's start
/// belongs to it, one that is due at its end does not.
#[must_use]
pub const fn markers(to_marker: usize, len: usize) -> usize {
    len.saturating_sub(to_marker).div_ceil(BETWEEN)
}

/// The number of bytes from the end of an FPDU to the next MPA marker. The FPDU has `len` bytes
/// (without markers) and begins `to_marker` bytes before a marker.
#[must_use]
pub const fn to_marker_after(to_marker: usize, len: usize) -> usize {
    to_marker + BETWEEN * markers(to_marker, len) - len
}
