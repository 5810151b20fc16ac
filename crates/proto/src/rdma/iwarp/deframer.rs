//! FPDUs out of the stream.

use alloc::vec::Vec;

use crate::wire::checksum::Crc32c;
use crate::wire::ddp::{TAGGED, header_len};
use crate::wire::mpa::{BETWEEN, CRC, LENGTH, MARKER, fpdu_len, markers, to_marker_after};

/// Why a stream cannot be received any further. The stream itself stays open, so that a Terminate can still be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FpduError {
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
pub enum Deframed<'a> {
    /// Not enough: come again with these bytes and more behind them.
    More,
    /// Part of a ULPDU, or all of it.
    Piece {
        /// The DDP header, whole (14 or 18 bytes), in the first piece of a ULPDU.
        header: Option<&'a [u8]>,
        /// Payload, in its order; maybe none.
        payload: &'a [u8],
        /// Bytes of payload of this ULPDU that are still to come.
        rest: usize,
        /// The FPDU ends with this piece. Its payload may have ended earlier, its trailer then comes as an empty piece.
        last: bool,
        /// Bytes of the stream that are used up.
        consumed: usize,
    },
    /// Nothing more will come out.
    Error(FpduError),
}

/// The receiving half of a stream in full operation.
#[derive(Clone, Debug)]
pub struct Deframer {
    crc: Option<Crc32c>,
    /// Bytes until the next marker is due, if any are received.
    to_marker: Option<usize>,
    /// Within an FPDU that is received in pieces.
    inside: Option<Inside>,
    fault: Option<FpduError>,
}

#[derive(Clone, Copy, Debug)]
struct Inside {
    /// Bytes of payload still to come.
    payload: usize,
    /// Bytes of pad and CRC behind it.
    trailer: usize,
}

impl Deframer {
    /// For a stream whose next byte is the first of an FPDU; `crc` computes the CRC, if it is checked.
    #[must_use]
    pub const fn new(crc: Option<Crc32c>, markers: bool) -> Self {
        Self { crc, to_marker: if markers { Some(0) } else { None }, inside: None, fault: None }
    }

    /// Takes the next step with `bytes`, which are all bytes of the stream that were not consumed so far and are there.
    /// With a CRC or markers a step takes a whole FPDU, so the caller has to keep up to
    /// [`FPDU_MAX`](crate::wire::mpa::FPDU_MAX) of them. `scratch` is for payload that markers tore apart.
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

    /// Bytes of payload that come next on the stream, before anything else: the caller may place them without
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

    /// The caller has placed `bytes` of the [`Deframer::rest`] itself; more than that do not count.
    pub fn skip(&mut self, bytes: usize) {
        if let Some(inside) = &mut self.inside {
            inside.payload = inside.payload.saturating_sub(bytes);
        }
    }

    /// True if what was consumed ends with an FPDU: here a stream may end, if nothing is left that was not consumed.
    #[must_use]
    pub const fn between(&self) -> bool {
        self.inside.is_none()
    }

    /// With CRC or markers: one FPDU.
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

    /// With neither: whatever there is.
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

/// The header of the FPDU that `bytes` begin with, and what follows it; `None` if it goes on.
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

/// The offsets of the markers in an FPDU of `total` bytes, markers counted.
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

/// The bytes of an FPDU without its markers.
fn squeeze<'a>(fpdu: &[u8], to_marker: usize, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    scratch.clear();
    scratch.extend_from_slice(&fpdu[..to_marker]);
    for at in marker_offsets(to_marker, fpdu.len()) {
        let end = fpdu.len().min(at + MARKER + BETWEEN);
        scratch.extend_from_slice(&fpdu[at + MARKER..end]);
    }
    scratch
}
