//! Takes FPDUs out of the received stream (RFC 5044 sections 4 to 6).
//!
//! ```text
//! stream ─► bytes ─ Deframer ─► header, pieces of payload
//! ```
//!
//! With a CRC or markers the deframer checks an FPDU as a whole before it returns any of it. With
//! neither it returns payload as it arrives, or the caller reads payload from the stream directly
//! into its place.
//!
//! Invariant: after an error the deframer returns nothing more.
//!
//! Not here: the content of a ULPDU, except for the bit that gives the length of its header.

use alloc::vec::Vec;

use crate::wire::checksum::Crc32c;
use crate::wire::ddp::{TAGGED, header_len};
use crate::wire::mpa::{BETWEEN, CRC, LENGTH, MARKER, fpdu_len, markers, to_marker_after};

/// The number of bytes of the stream from one marker to the next.
const PERIOD: usize = MARKER + BETWEEN;

/// An error after which a stream cannot be received. A Terminate can still be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FpduError {
    /// The CRC is wrong: Terminate 2/0/02.
    #[error("the CRC of an FPDU is wrong")]
    Crc,
    /// A marker and the length fields disagree on the start of an FPDU: Terminate 2/0/03.
    #[error("markers and lengths of FPDUs disagree")]
    Marker,
    /// A ULPDU is shorter than its DDP header. The RFCs name no code for this.
    #[error("an FPDU is too short for a DDP header")]
    Short,
}

/// The result of [`Deframer::next`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deframed<'a> {
    /// The input is incomplete: the caller must call again with these bytes and more.
    More,
    /// The deframer returns a ULPDU, or a part of one.
    Piece {
        /// The whole DDP header (14 or 18 bytes), in the first piece of a ULPDU.
        header: Option<&'a [u8]>,
        /// The payload bytes of this piece in their order, possibly empty.
        payload: &'a [u8],
        /// The number of bytes of this ULPDU's payload that are still missing.
        rest: usize,
        /// The FPDU ends with this piece. If the payload ended earlier, the trailer is an empty
        /// piece.
        last: bool,
        /// The number of bytes of the stream that the deframer has consumed in this call.
        consumed: usize,
    },
    /// The stream cannot be received any further.
    Error(FpduError),
}

/// The receiving half of a stream in full operation.
#[derive(Clone, Debug)]
pub struct Deframer {
    crc: Option<Crc32c>,
    /// The number of bytes until the next marker, if the stream has markers.
    to_marker: Option<usize>,
    /// The remaining bytes of the FPDU that the deframer receives in pieces, if it is inside one.
    inside: Option<Inside>,
    fault: Option<FpduError>,
}

#[derive(Clone, Copy, Debug)]
struct Inside {
    /// The number of payload bytes of the current FPDU that are missing.
    payload: usize,
    /// The number of bytes of pad and CRC after the payload of the current FPDU.
    trailer: usize,
}

impl Deframer {
    /// Creates a deframer for a stream at the start of an FPDU. `crc` extends a CRC32C, if CRCs are
    /// checked.
    #[must_use]
    pub const fn new(crc: Option<Crc32c>, markers: bool) -> Self {
        Self { crc, to_marker: if markers { Some(0) } else { None }, inside: None, fault: None }
    }

    /// Takes the next piece of an FPDU out of the stream. `bytes` are all bytes of the stream that
    /// were not consumed. With a CRC or markers a call needs a whole FPDU, so the caller must be
    /// able to keep [`FPDU_MAX`](crate::wire::mpa::FPDU_MAX) bytes. `scratch` is for payload
    /// without its markers.
    pub fn next<'a>(&mut self, bytes: &'a [u8], scratch: &'a mut Vec<u8>) -> Deframed<'a> {
        if let Some(fault) = self.fault {
            return Deframed::Error(fault);
        }
        let step = if self.crc.is_some() || self.to_marker.is_some() {
            self.whole(bytes, scratch)
        } else {
            self.stream(bytes)
        };
        if let Deframed::Error(fault) = step {
            self.fault = Some(fault);
        }
        step
    }

    /// The number of payload bytes that come next on the stream. The caller may place them without
    /// [`Deframer::next`]. 0 if each FPDU must be checked as a whole.
    #[must_use]
    pub fn rest(&self) -> usize {
        self.inside.map_or(0, |inside| inside.payload)
    }

    /// True if the deframer returns payload as it arrives, since there are no CRCs and no markers.
    #[must_use]
    pub const fn in_pieces(&self) -> bool {
        self.crc.is_none() && self.to_marker.is_none()
    }

    /// Reports that the caller has placed this many bytes of [`Deframer::rest`].
    pub fn skip(&mut self, bytes: usize) {
        if let Some(inside) = &mut self.inside {
            inside.payload = inside.payload.saturating_sub(bytes);
        }
    }

    /// True if the bytes that the deframer has consumed end with an FPDU. The stream may end here
    /// if no byte is left over.
    #[must_use]
    pub const fn between(&self) -> bool {
        self.inside.is_none()
    }

    /// Finds the first FPDU that a marker names in `bytes`, which lie `distance` bytes behind those
    /// that the deframer has consumed. Returns its offset in `bytes`, and a deframer that begins
    /// there. Returns `None` without markers or CRCs: where a segment of TCP begins tells nothing,
    /// and only a CRC proves that the marker is right (RFC 5044 section 6).
    #[must_use]
    pub fn find_ahead(&self, distance: usize, bytes: &[u8]) -> Option<(usize, Self)> {
        let first = to_marker_behind(self.to_marker?, distance);
        let crc = self.crc.filter(|_| self.fault.is_none())?;
        let is_marker = |at: usize| at % PERIOD == first % PERIOD;
        for at in (first..bytes.len().saturating_sub(MARKER - 1)).step_by(PERIOD) {
            let back = pointer(&bytes[at..]);
            // A marker between two FPDUs belongs to the second.
            let length_at = if back == 0 { Some(at + MARKER) } else { at.checked_sub(back) };
            let Some(length_at) = length_at else { continue };
            let begin = match length_at.checked_sub(MARKER) {
                Some(before) if is_marker(before) => before,
                None if is_marker(length_at + PERIOD - MARKER) => continue,
                _ => length_at,
            };
            let Some(&[high, low]) = bytes.get(length_at..length_at + LENGTH) else { return None };
            let len = fpdu_len(usize::from(u16::from_be_bytes([high, low])));
            // The marker lies in the FPDU that it names.
            if begin + len > at {
                let to_marker = Some(to_marker_behind(first, begin));
                let crc = Some(crc);
                return Some((begin, Self { crc, to_marker, inside: None, fault: None }));
            }
        }
        None
    }

    /// Reports that the next `bytes` bytes of the stream are whole FPDUs that the caller has
    /// received otherwise.
    pub fn pass(&mut self, bytes: usize) {
        self.to_marker = self.to_marker.map(|to| to_marker_behind(to, bytes));
    }

    /// Takes one whole FPDU of a stream with CRC or markers.
    fn whole<'a>(&mut self, bytes: &'a [u8], scratch: &'a mut Vec<u8>) -> Deframed<'a> {
        let lead = if self.to_marker == Some(0) { MARKER } else { 0 };
        let Some(&[high, low]) = bytes.get(lead..lead + LENGTH) else { return Deframed::More };
        let ulpdu = usize::from(u16::from_be_bytes([high, low]));
        let len = fpdu_len(ulpdu);
        let total = len + self.to_marker.map_or(0, |to| MARKER * markers(to, len));
        let Some(fpdu) = bytes.get(..total) else { return Deframed::More };
        if let Some(crc) = self.crc
            && crc(0, &fpdu[..total - CRC]).to_le_bytes() != fpdu[total - CRC..]
        {
            return Deframed::Error(FpduError::Crc);
        }
        let body = match self.to_marker {
            Some(to) if !markers_agree(fpdu, to) => return Deframed::Error(FpduError::Marker),
            Some(to) => {
                self.to_marker = Some(to_marker_after(to, len));
                if total == lead + len { &fpdu[lead..] } else { squeeze(fpdu, to, scratch) }
            }
            None => fpdu,
        };
        let ulpdu = &body[LENGTH..LENGTH + ulpdu];
        match ulpdu.first().and_then(|&first| ulpdu.split_at_checked(header_len(first))) {
            Some((header, payload)) => Deframed::Piece {
                header: Some(header),
                payload,
                rest: 0,
                last: true,
                consumed: total,
            },
            None => Deframed::Error(FpduError::Short),
        }
    }

    /// Takes the available bytes of an FPDU without CRC and markers.
    fn stream<'a>(&mut self, bytes: &'a [u8]) -> Deframed<'a> {
        let (header, inside, from) = match self.inside {
            Some(inside) => (None, inside, 0),
            None => match begin(bytes) {
                Ok(Some((header, inside))) => (Some(header), inside, LENGTH + header.len()),
                Ok(None) => return Deframed::More,
                Err(fault) => return Deframed::Error(fault),
            },
        };
        let here = &bytes[from..];
        let payload = &here[..inside.payload.min(here.len())];
        let rest = inside.payload - payload.len();
        let last = here.len() >= inside.payload + inside.trailer;
        if header.is_none() && payload.is_empty() && !last {
            return Deframed::More;
        }
        self.inside = if last { None } else { Some(Inside { payload: rest, ..inside }) };
        let trailer = if last { inside.trailer } else { 0 };
        Deframed::Piece { header, payload, rest, last, consumed: from + payload.len() + trailer }
    }
}

/// Parses the header of the FPDU at the start of `bytes`. Returns `None` if it is incomplete.
fn begin(bytes: &[u8]) -> Result<Option<(&[u8], Inside)>, FpduError> {
    let Some((&length, after)) = bytes.split_first_chunk::<LENGTH>() else { return Ok(None) };
    let ulpdu = usize::from(u16::from_be_bytes(length));
    let Some(&first) = after.first() else {
        return if ulpdu < TAGGED { Err(FpduError::Short) } else { Ok(None) };
    };
    let Some(payload) = ulpdu.checked_sub(header_len(first)) else { return Err(FpduError::Short) };
    let trailer = fpdu_len(ulpdu) - LENGTH - ulpdu;
    Ok(after.get(..header_len(first)).map(|header| (header, Inside { payload, trailer })))
}

/// The number of bytes to the first marker at least `bytes` bytes behind a place in the stream that
/// lies `to_marker` bytes before a marker.
const fn to_marker_behind(to_marker: usize, bytes: usize) -> usize {
    (to_marker + PERIOD - bytes % PERIOD) % PERIOD
}

/// The distance to a length field that the marker at the start of `bytes` tells. The two lowest
/// bits and the reserved half are ignored.
fn pointer(bytes: &[u8]) -> usize {
    usize::from(u16::from_be_bytes([bytes[2], bytes[3]]) & !3)
}

/// The offsets of the markers in an FPDU of `total` bytes, markers included.
fn marker_offsets(to_marker: usize, total: usize) -> impl Iterator<Item = usize> {
    (to_marker..total).step_by(PERIOD)
}

/// True if each marker points to the FPDU's length field.
fn markers_agree(fpdu: &[u8], to_marker: usize) -> bool {
    let length_at = if to_marker == 0 { MARKER } else { 0 };
    marker_offsets(to_marker, fpdu.len())
        .all(|at| pointer(&fpdu[at..]) == at.saturating_sub(length_at))
}

/// Copies an FPDU without its markers to `scratch`.
fn squeeze<'a>(fpdu: &[u8], to_marker: usize, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    scratch.clear();
    scratch.extend_from_slice(&fpdu[..to_marker]);
    for at in marker_offsets(to_marker, fpdu.len()) {
        let end = fpdu.len().min(at + PERIOD);
        scratch.extend_from_slice(&fpdu[at + MARKER..end]);
    }
    scratch
}
