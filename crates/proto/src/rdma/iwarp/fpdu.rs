//! FPDUs (RFC 5044 sections 4 to 6): ULPDUs into the stream, and out of it.
//!
//! ```text
//! header + pieces ─ Framer ─► record: bytes, spans of memory ─ stream ─► octets ─ Deframer ─► header, pieces of payload
//! ```
//!
//! With a CRC or markers an FPDU is copied, and received as a whole: nothing of it is handed out before it was checked. With
//! neither, memory is sent from where it lies, and payload is handed out as it comes, or read by the caller straight into its
//! place.
//!
//! Always: an FPDU costs one pass over its octets where they are copied, and a constant number of steps where not; after an
//! error nothing more comes out. Not here: what a ULPDU says, but for the bit that tells how long its header is.

#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use crate::rdma::{Memory, Part, Record, Span, Unmapped};
use crate::wire::checksum::Crc32c;
use crate::wire::ddp::{TAGGED, header_len};
use crate::wire::mpa::{
    BETWEEN, CRC, LENGTH, MARKER, MULPDU_MAX, fpdu_len, markers, mulpdu, to_marker_after,
};

/// Memory is sent from where it lies from so many octets on; less is copied, which is cheaper than one more part.
const WORTH_A_PART: u32 = 2048;

/// Memory is copied and summed in steps of so many octets, which the nearest cache still holds at the second touch.
const BLOCK: usize = 8192;

/// A part of a ULPDU's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece<'a> {
    /// These octets.
    Bytes(&'a [u8]),
    /// Octets of registered memory.
    Memory(Span),
}

impl Piece<'_> {
    /// How many octets it is.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(span) => span.len as usize,
        }
    }

    /// True if it is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Record {
    /// Appends a copy of `bytes`.
    pub fn append(&mut self, bytes: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.cover(start);
    }

    /// Makes what stands in `bytes` from `start` on a part, or the end of the last part.
    fn cover(&mut self, start: usize) {
        let end = self.bytes.len();
        match self.parts.last_mut() {
            Some(Part::Bytes(range)) if range.end == start => range.end = end,
            _ if start < end => self.parts.push(Part::Bytes(start..end)),
            _ => {}
        }
    }

    /// Takes back what was appended since there were so many bytes and parts.
    fn take_back(&mut self, bytes: usize, parts: usize) {
        self.bytes.truncate(bytes);
        self.parts.truncate(parts);
        if let Some(Part::Bytes(range)) = self.parts.last_mut() {
            range.end = range.end.min(bytes);
        }
    }
}

/// The sending half of a stream in full operation.
#[derive(Clone, Debug)]
pub struct Framer {
    crc: Option<Crc32c>,
    /// Octets until the next marker is due, if any are sent.
    to_marker: Option<usize>,
    emss: usize,
}

impl Framer {
    /// For a stream whose next octet is the first of an FPDU; `crc` computes the CRC, if there is one. Segments count as
    /// endless until [`Framer::set_emss`].
    #[must_use]
    pub const fn new(crc: Option<Crc32c>, markers: bool) -> Self {
        Self { crc, to_marker: if markers { Some(0) } else { None }, emss: usize::MAX }
    }

    /// Says how many octets fit into a segment of the stream; what is already framed stays as it is.
    pub const fn set_emss(&mut self, octets: usize) {
        self.emss = octets;
    }

    /// The most octets of a ULPDU, 128 to 64,768.
    #[must_use]
    pub const fn mulpdu(&self) -> usize {
        mulpdu(self.emss, self.to_marker.is_some())
    }

    /// Appends the FPDU of one ULPDU, which is `header` and then `payload`.
    ///
    /// # Errors
    /// [`Unmapped`]: nothing was appended.
    ///
    /// # Panics
    /// If the ULPDU is longer than 64,768 octets.
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

    /// With a CRC or markers: all of it is copied into `record.bytes`.
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
        // A marker between pad and CRC counts in the CRC, so it has to be there first.
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

/// Without CRC and markers: long pieces of memory are only referred to.
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

/// Appends a copy of `span` to `bytes`; where it is empty, it may lie anywhere.
fn append<M: Memory + ?Sized>(
    bytes: &mut Vec<u8>,
    span: Span,
    memory: &mut M,
) -> Result<(), Unmapped> {
    if span.len == 0 { Ok(()) } else { memory.append(span, bytes) }
}

/// Octets with markers among them.
struct Interleaved<'a> {
    bytes: &'a mut Vec<u8>,
    /// Octets until the next marker is due; endless without markers.
    to_marker: usize,
    /// Where in `bytes` the FPDU's length field is: what its markers point to.
    length_at: usize,
    crc: Option<Crc32c>,
    /// The CRC of this FPDU up to `summed` in `bytes`; 0 without.
    sum: u32,
    summed: usize,
}

impl Interleaved<'_> {
    /// How many octets may follow in one run, at least 1: a marker that is due is written.
    fn room(&mut self) -> usize {
        if self.to_marker == 0 {
            // The one marker in front of the length field points 0 octets back.
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
            append(self.bytes, Span { len: run, ..span }, memory)?;
            self.to_marker -= run as usize;
            span.offset += u64::from(run);
            span.len -= run;
            if self.bytes.len() - self.summed >= BLOCK {
                self.sum();
            }
        }
        Ok(())
    }

    /// Brings the CRC up to what is there.
    fn sum(&mut self) {
        if let Some(crc) = self.crc {
            self.sum = crc(self.sum, &self.bytes[self.summed..]);
        }
        self.summed = self.bytes.len();
    }
}

/// Why a stream cannot be received any further. The stream itself stays open, so that a Terminate can still be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// The CRC is wrong: Terminate 2/0/02.
    #[error("the CRC of an FPDU is wrong")]
    Crc,
    /// A marker points elsewhere than to the FPDU that the lengths gave: Terminate 2/0/03.
    #[error("markers and lengths of FPDUs disagree")]
    Marker,
    /// A ULPDU is shorter than a DDP header; the RFCs name no code for this.
    #[error("an FPDU is too short for a DDP header")]
    Short,
}

/// What [`Deframer::next`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step<'a> {
    /// Not enough: come again with these octets and more behind them.
    More,
    /// Part of a ULPDU, or all of it.
    Piece {
        /// The DDP header, whole (14 or 18 octets), in the first piece of a ULPDU.
        header: Option<&'a [u8]>,
        /// Payload, in its order; maybe none.
        payload: &'a [u8],
        /// Octets of payload of this ULPDU that are still to come.
        rest: usize,
        /// The FPDU ends with this piece. Its payload may have ended earlier, its trailer then comes as an empty piece.
        last: bool,
        /// Octets of the stream that are used up.
        consumed: usize,
    },
    /// Nothing more will come out.
    Bad(Fault),
}

/// The receiving half of a stream in full operation.
#[derive(Clone, Debug)]
pub struct Deframer {
    crc: Option<Crc32c>,
    /// Octets until the next marker is due, if any are received.
    to_marker: Option<usize>,
    /// Within an FPDU that is received in pieces.
    inside: Option<Inside>,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug)]
struct Inside {
    /// Octets of payload still to come.
    payload: usize,
    /// Octets of pad and CRC behind it.
    trailer: usize,
}

impl Deframer {
    /// For a stream whose next octet is the first of an FPDU; `crc` computes the CRC, if it is checked.
    #[must_use]
    pub const fn new(crc: Option<Crc32c>, markers: bool) -> Self {
        Self { crc, to_marker: if markers { Some(0) } else { None }, inside: None, fault: None }
    }

    /// Takes the next step with `bytes`, which are all octets of the stream that were not consumed so far and are there.
    /// With a CRC or markers a step takes a whole FPDU, so the caller has to keep up to
    /// [`FPDU_MAX`](crate::wire::mpa::FPDU_MAX) of them. `scratch` is for payload that markers tore apart.
    pub fn next<'a>(&mut self, bytes: &'a [u8], scratch: &'a mut Vec<u8>) -> Step<'a> {
        if let Some(fault) = self.fault {
            return Step::Bad(fault);
        }
        let step = if self.crc.is_some() || self.to_marker.is_some() {
            self.whole(bytes, scratch)
        } else {
            self.stream(bytes)
        };
        if let Step::Bad(fault) = step {
            self.fault = Some(fault);
        }
        step
    }

    /// Octets of payload that come next on the stream, before anything else: the caller may place them without
    /// [`Deframer::next`]. 0 if each FPDU has to be checked as a whole.
    #[must_use]
    pub fn rest(&self) -> usize {
        self.inside.map_or(0, |inside| inside.payload)
    }

    /// True if payload is handed out as it comes: there is neither CRC nor marker.
    #[must_use]
    pub const fn in_pieces(&self) -> bool {
        self.crc.is_none() && self.to_marker.is_none()
    }

    /// The caller has placed `octets` of the [`Deframer::rest`] itself; more than that do not count.
    pub fn skip(&mut self, octets: usize) {
        if let Some(inside) = &mut self.inside {
            inside.payload = inside.payload.saturating_sub(octets);
        }
    }

    /// True if what was consumed ends with an FPDU: here a stream may end, if nothing is left that was not consumed.
    #[must_use]
    pub const fn between(&self) -> bool {
        self.inside.is_none()
    }

    /// With CRC or markers: one FPDU.
    fn whole<'a>(&mut self, bytes: &'a [u8], scratch: &'a mut Vec<u8>) -> Step<'a> {
        let lead = if self.to_marker == Some(0) { MARKER } else { 0 };
        let Some(&[high, low]) = bytes.get(lead..lead + LENGTH) else { return Step::More };
        let ulpdu = usize::from(u16::from_be_bytes([high, low]));
        let len = fpdu_len(ulpdu);
        let total = len + self.to_marker.map_or(0, |to| MARKER * markers(to, len));
        let Some(fpdu) = bytes.get(..total) else { return Step::More };
        if let Some(crc) = self.crc
            && crc(0, &fpdu[..total - CRC]).to_le_bytes() != fpdu[total - CRC..]
        {
            return Step::Bad(Fault::Crc);
        }
        let body = match self.to_marker {
            Some(to) if !markers_agree(fpdu, to) => return Step::Bad(Fault::Marker),
            Some(to) => {
                self.to_marker = Some(to_marker_after(to, len));
                if total == lead + len { &fpdu[lead..] } else { squeeze(fpdu, to, scratch) }
            }
            None => fpdu,
        };
        let ulpdu = &body[LENGTH..LENGTH + ulpdu];
        match ulpdu.first().and_then(|&first| ulpdu.split_at_checked(header_len(first))) {
            Some((header, payload)) => {
                Step::Piece { header: Some(header), payload, rest: 0, last: true, consumed: total }
            }
            None => Step::Bad(Fault::Short),
        }
    }

    /// With neither: whatever there is.
    fn stream<'a>(&mut self, bytes: &'a [u8]) -> Step<'a> {
        let (header, inside, from) = match self.inside {
            Some(inside) => (None, inside, 0),
            None => match begin(bytes) {
                Ok(Some((header, inside))) => (Some(header), inside, LENGTH + header.len()),
                Ok(None) => return Step::More,
                Err(fault) => return Step::Bad(fault),
            },
        };
        let here = &bytes[from..];
        let payload = &here[..inside.payload.min(here.len())];
        let rest = inside.payload - payload.len();
        let last = here.len() >= inside.payload + inside.trailer;
        if header.is_none() && payload.is_empty() && !last {
            return Step::More;
        }
        self.inside = if last { None } else { Some(Inside { payload: rest, ..inside }) };
        let trailer = if last { inside.trailer } else { 0 };
        Step::Piece { header, payload, rest, last, consumed: from + payload.len() + trailer }
    }
}

/// The header of the FPDU that `bytes` begin with, and what follows it; `None` if it goes on.
fn begin(bytes: &[u8]) -> Result<Option<(&[u8], Inside)>, Fault> {
    let Some((&length, after)) = bytes.split_first_chunk::<LENGTH>() else { return Ok(None) };
    let ulpdu = usize::from(u16::from_be_bytes(length));
    let Some(&first) = after.first() else {
        return if ulpdu < TAGGED { Err(Fault::Short) } else { Ok(None) };
    };
    let Some(payload) = ulpdu.checked_sub(header_len(first)) else { return Err(Fault::Short) };
    let trailer = fpdu_len(ulpdu) - LENGTH - ulpdu;
    Ok(after.get(..header_len(first)).map(|header| (header, Inside { payload, trailer })))
}

/// The offsets of the markers in an FPDU of `total` octets, markers counted.
fn marker_offsets(to_marker: usize, total: usize) -> impl Iterator<Item = usize> {
    (to_marker..total).step_by(MARKER + BETWEEN)
}

/// True if each marker points to where the FPDU's length field is. The two lowest bits and the reserved half say nothing.
fn markers_agree(fpdu: &[u8], to_marker: usize) -> bool {
    let length_at = if to_marker == 0 { MARKER } else { 0 };
    marker_offsets(to_marker, fpdu.len()).all(|at| {
        let back = usize::from(u16::from_be_bytes([fpdu[at + 2], fpdu[at + 3]]) & !3);
        back == at.saturating_sub(length_at)
    })
}

/// The octets of an FPDU without its markers.
fn squeeze<'a>(fpdu: &[u8], to_marker: usize, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    scratch.clear();
    scratch.extend_from_slice(&fpdu[..to_marker]);
    for at in marker_offsets(to_marker, fpdu.len()) {
        let end = fpdu.len().min(at + MARKER + BETWEEN);
        scratch.extend_from_slice(&fpdu[at + MARKER..end]);
    }
    scratch
}
