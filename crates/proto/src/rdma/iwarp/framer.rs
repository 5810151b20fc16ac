//! Frames ULPDUs as FPDUs of the stream (RFC 5044 sections 4 to 6).
//!
//! ```text
//! header + pieces ─ Framer ─► record: bytes and spans of memory ─► stream
//! ```
//!
//! With a CRC or markers the framer copies the payload. With neither it names long pieces of
//! memory, and the caller sends them from where they lie.
//!
//! Invariant: an FPDU costs one pass over the bytes that are copied, and a constant number of steps
//! otherwise.
//!
//! Not here: the content of a ULPDU.

use alloc::vec::Vec;

use crate::rdma::memory::{Memory, Part, Record, Span, Unmapped};
use crate::wire::checksum::Crc32c;
use crate::wire::mpa::{BETWEEN, CRC, LENGTH, MARKER, MULPDU_MAX, fpdu_len, markers, mulpdu};

/// The framer names pieces of memory of at least this many bytes instead of copying them. Below
/// this length a copy is cheaper than another part of the record.
const WORTH_A_PART: u32 = 2048;

/// The framer copies and sums memory in blocks of this size, so that a sum after the copy finds
/// each block in the first-level cache.
const BLOCK: usize = 8192;

/// The framer sums runs of memory from this length on while it copies them. It sums shorter runs
/// later, together with the bytes around them.
const WORTH_A_SUM: u32 = 1024;

/// A piece of a ULPDU's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece<'a> {
    /// A piece of payload in bytes of the engine.
    Bytes(&'a [u8]),
    /// A piece of payload in registered memory.
    Memory(Span),
}

impl Piece<'_> {
    /// The length of the piece of payload in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(span) => span.len as usize,
        }
    }

    /// True if the piece of payload is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The sending half of a stream in full operation.
#[derive(Clone, Debug)]
pub struct Framer {
    crc: Option<Crc32c>,
    /// The number of bytes until the next marker, if the stream has markers.
    to_marker: Option<usize>,
    emss: usize,
}

impl Framer {
    /// Creates a framer for a stream at the start of an FPDU. `crc` extends a CRC32C, if the stream
    /// has CRCs. The segment size has no limit until [`Framer::set_emss`].
    #[must_use]
    pub const fn new(crc: Option<Crc32c>, markers: bool) -> Self {
        Self { crc, to_marker: if markers { Some(0) } else { None }, emss: usize::MAX }
    }

    /// Sets the number of bytes that fit into a segment of the stream, for the FPDUs that follow.
    pub const fn set_emss(&mut self, bytes: usize) {
        self.emss = bytes;
    }

    /// The most bytes of a ULPDU, 128 to 64,768.
    #[must_use]
    pub const fn mulpdu(&self) -> usize {
        mulpdu(self.emss, self.to_marker.is_some())
    }

    /// Appends the FPDU of one ULPDU, which is `header` followed by `payload`.
    ///
    /// # Errors
    /// [`Unmapped`]; nothing is appended.
    ///
    /// # Panics
    /// If the ULPDU is longer than 64,768 bytes.
    pub fn frame<M: Memory + ?Sized>(
        &mut self,
        header: &[u8],
        payload: &[Piece<'_>],
        memory: &mut M,
        record: &mut Record,
    ) -> Result<(), Unmapped> {
        let ulpdu = header.len() + payload.iter().map(Piece::len).sum::<usize>();
        assert!(ulpdu <= MULPDU_MAX, "a ULPDU is cut by the MULPDU before it comes here");
        let (bytes, parts) = (record.bytes.len(), record.parts.len());
        let done = if self.crc.is_some() || self.to_marker.is_some() {
            self.copied(ulpdu, header, payload, memory, record)
        } else {
            referred(ulpdu, header, payload, memory, record)
        };
        if done.is_err() {
            record.take_back(bytes, parts);
        }
        done
    }

    /// Appends an FPDU with a CRC or markers. All of the FPDU is copied into `record.bytes`.
    fn copied<M: Memory + ?Sized>(
        &mut self,
        ulpdu: usize,
        header: &[u8],
        payload: &[Piece<'_>],
        memory: &mut M,
        record: &mut Record,
    ) -> Result<(), Unmapped> {
        let len = fpdu_len(ulpdu);
        let start = record.bytes.len();
        record.bytes.reserve(len + self.to_marker.map_or(0, |to| MARKER * markers(to, len)));
        let length_at = start + if self.to_marker == Some(0) { MARKER } else { 0 };
        let to_marker = self.to_marker.unwrap_or(usize::MAX);
        let bytes = &mut record.bytes;
        let mut out =
            Interleaved { bytes, to_marker, length_at, crc: self.crc, sum: 0, summed: start };
        out.put(&(ulpdu as u16).to_be_bytes());
        out.put(header);
        for piece in payload {
            match *piece {
                Piece::Bytes(bytes) => out.put(bytes),
                Piece::Memory(span) => out.copy(span, memory)?,
            }
        }
        out.put(&[0; 3][..len - CRC - LENGTH - ulpdu]);
        // The CRC covers a marker between the pad and the CRC, so the marker goes first.
        out.room();
        out.sum();
        out.put(&out.sum.to_le_bytes());
        if self.to_marker.is_some() {
            self.to_marker = Some(out.to_marker);
        }
        record.cover(start);
        Ok(())
    }
}

/// Appends an FPDU without CRC and markers. It names long pieces of memory and does not copy them.
fn referred<M: Memory + ?Sized>(
    ulpdu: usize,
    header: &[u8],
    payload: &[Piece<'_>],
    memory: &mut M,
    record: &mut Record,
) -> Result<(), Unmapped> {
    let mut start = record.bytes.len();
    record.bytes.extend_from_slice(&(ulpdu as u16).to_be_bytes());
    record.bytes.extend_from_slice(header);
    for piece in payload {
        match *piece {
            Piece::Bytes(bytes) => record.bytes.extend_from_slice(bytes),
            Piece::Memory(span) if span.len < WORTH_A_PART => {
                append(&mut record.bytes, span, memory)?
            }
            Piece::Memory(span) => {
                record.cover(start);
                start = record.bytes.len();
                record.parts.push(Part::Memory(span));
            }
        }
    }
    let trailer = fpdu_len(ulpdu) - LENGTH - ulpdu;
    record.bytes.extend_from_slice(&[0; 3 + CRC][..trailer]);
    record.cover(start);
    Ok(())
}

/// Appends a copy of `span` to `bytes`. An empty span needs no memory.
fn append<M: Memory + ?Sized>(
    bytes: &mut Vec<u8>,
    span: Span,
    memory: &mut M,
) -> Result<(), Unmapped> {
    if span.len == 0 { Ok(()) } else { memory.append(span, bytes) }
}

/// A writer of an FPDU's bytes with markers among them.
struct Interleaved<'a> {
    bytes: &'a mut Vec<u8>,
    /// The number of bytes until the next marker; `usize::MAX` without markers.
    to_marker: usize,
    /// The offset of the FPDU's length field in `bytes`. The FPDU's markers point to it.
    length_at: usize,
    crc: Option<Crc32c>,
    /// The CRC of this FPDU up to `summed` in `bytes`; 0 without CRCs.
    sum: u32,
    summed: usize,
}

impl Interleaved<'_> {
    /// Writes a marker if one is due. Returns the number of bytes that fit before the next marker,
    /// at least 1.
    fn room(&mut self) -> usize {
        if self.to_marker == 0 {
            // A marker in front of the length field points 0 bytes back.
            let back = self.bytes.len().saturating_sub(self.length_at);
            self.bytes.extend_from_slice(&(back as u32).to_be_bytes());
            self.to_marker = BETWEEN;
        }
        self.to_marker
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (run, rest) = bytes.split_at(bytes.len().min(self.room()));
            self.bytes.extend_from_slice(run);
            self.to_marker -= run.len();
            bytes = rest;
        }
    }

    fn copy<M: Memory + ?Sized>(&mut self, mut span: Span, memory: &mut M) -> Result<(), Unmapped> {
        while span.len > 0 {
            let run = self.room().min(BLOCK).min(span.len as usize) as u32;
            let piece = Span { len: run, ..span };
            match self.crc {
                Some(crc) if run >= WORTH_A_SUM => {
                    self.sum();
                    self.sum = memory.append_summed(piece, self.bytes, self.sum, crc)?;
                    self.summed = self.bytes.len();
                }
                _ => append(self.bytes, piece, memory)?,
            }
            self.to_marker -= run as usize;
            span.offset += u64::from(run);
            span.len -= run;
            if self.bytes.len() - self.summed >= BLOCK {
                self.sum();
            }
        }
        Ok(())
    }

    /// Extends the CRC over the FPDU's bytes that are not yet summed.
    fn sum(&mut self) {
        if let Some(crc) = self.crc {
            self.sum = crc(self.sum, &self.bytes[self.summed..]);
        }
        self.summed = self.bytes.len();
    }
}
