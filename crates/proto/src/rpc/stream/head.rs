//! The header of a frame on a byte stream: the datagram transport's 32 bytes, of which a stream
//! uses these.
//!
//! ```text
//!  0 u8  version(3) | type(5)   1 u8 flags   2 u8 0   3 u8 extension words
//!  4 u32 0    8 u32 seq    12 u32 msg_len    16 u32 offset    20 u32 0    24 u64 0
//! ```
//! What a stream does not use is zero and checked, so that bytes of another protocol are found out
//! at the first header. `docs/formats.md` ("RPC over a byte stream") is normative.

use arrayvec::ArrayVec;

use crate::Instant;
use crate::rpc::limits::MAX_MESSAGE;
use crate::wire::rpc::{
    self as wire, HEAD_MAX, HEADER, ResetReason, SEQ_MAX, TO_CLIENT, TTL, VERSION,
};

/// The length of a frame's header without extension words, in bytes.
pub(super) const FIXED: usize = HEADER;
/// The length of the longest frame header that this side writes, in bytes.
pub(super) const LONGEST: usize = HEAD_MAX;
/// The bits of a sequence number in a frame's header.
pub(super) const SEQ_MASK: u32 = SEQ_MAX;

const DATA: u8 = wire::Kind::Data as u8;
const BUSY: u8 = wire::Kind::Busy as u8;
const RESET: u8 = wire::Kind::Reset as u8;
/// The reason in a RESET frame to a peer of another version.
pub(super) const REASON_VERSION: u32 = ResetReason::Version as u32;

/// The kind of a frame on a byte stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The frame is a DATA packet to the server: a request.
    Request,
    /// The frame is a DATA packet to the client: a reply.
    Reply,
    /// A BUSY packet: the request was not executed; try again in `extra` microseconds.
    Refusal,
    /// A RESET packet: the server ends the connection; `extra` is the reason.
    Reset,
}

/// The reason why bytes on a stream are no frame. They end the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BadFrame {
    /// The peer speaks another version of the frame's header.
    Version,
    /// The type of the frame may not appear on a stream, a length exceeds [`MAX_MESSAGE`], or an
    /// unused field is not zero.
    Field,
}

/// The values of a frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// The sequence number of the request, chosen by the client.
    pub(super) seq: u32,
    /// The length in bytes of the message that follows the header.
    pub(super) len: u32,
    /// By the frame's [`Kind`]: the time in microseconds before the next attempt, or the reason of
    /// a RESET; else 0.
    pub(super) extra: u32,
    /// The time in microseconds until the request's deadline.
    pub(super) ttl_us: Option<u32>,
}

/// The length of a frame's header whose first four bytes are `bytes`.
pub(super) fn len(bytes: &[u8]) -> usize {
    FIXED + 4 * usize::from(bytes[3])
}

/// Checks the part of a frame's header that has arrived, so that an error is found without the
/// rest.
pub(super) fn check(part: &[u8]) -> Result<(), BadFrame> {
    match (part.first(), part.first_chunk()) {
        (_, Some(fixed)) => Head::fixed(fixed).map(drop),
        (Some(first), None) if first >> 5 != VERSION && first & 0x1f != RESET => {
            Err(BadFrame::Version)
        }
        _ => Ok(()),
    }
}

impl Head {
    /// Parses a frame's whole header with its extension words. Unknown words are skipped.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadFrame> {
        let Some((fixed, extensions)) = bytes.split_first_chunk::<FIXED>() else {
            return Err(BadFrame::Field);
        };
        let mut head = Self::fixed(fixed)?;
        if let (Some(ttl_us), Some(word)) = (&mut head.ttl_us, extensions.first_chunk()) {
            *ttl_us = u32::from_be_bytes(*word);
        }
        Ok(head)
    }

    /// Parses the fixed part of a frame's header. The time until the deadline follows in an
    /// extension word.
    fn fixed(fixed: &[u8; FIXED]) -> Result<Self, BadFrame> {
        let word = |at: usize| {
            u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
        };
        let [version_type, flags, ..] = *fixed;
        if version_type >> 5 != VERSION && version_type & 0x1f != RESET {
            return Err(BadFrame::Version);
        }
        let kind = match (version_type & 0x1f, flags & !TTL) {
            (DATA, 0) => Kind::Request,
            (DATA, TO_CLIENT) => Kind::Reply,
            (BUSY, TO_CLIENT) => Kind::Refusal,
            (RESET, TO_CLIENT) => Kind::Reset,
            _ => return Err(BadFrame::Field),
        };
        let (seq, len, extra) = (word(8), word(12), word(16));
        let unused = fixed[2] == 0 && word(4) == 0 && [20, 24, 28].iter().all(|&at| word(at) == 0);
        let message = matches!(kind, Kind::Request | Kind::Reply);
        let limit = if message { MAX_MESSAGE } else { 0 };
        if !unused || (message && extra != 0) || seq > SEQ_MASK || len as usize > limit {
            return Err(BadFrame::Field);
        }
        let ttl_us = (flags & TTL != 0).then_some(0);
        if ttl_us.is_some() && fixed[3] == 0 {
            return Err(BadFrame::Field);
        }
        Ok(Self { kind, seq, len, extra, ttl_us })
    }

    /// Encodes a frame's header. A request has the time that is left until its deadline, `left_ns`,
    /// unless its deadline is [`Instant::NEVER`] or too far away for the field.
    pub(super) fn encode(&self, left_ns: u64, deadline: Instant, out: &mut ArrayVec<u8, LONGEST>) {
        let (kind, direction) = match self.kind {
            Kind::Request => (DATA, 0),
            Kind::Reply => (DATA, TO_CLIENT),
            Kind::Refusal => (BUSY, TO_CLIENT),
            Kind::Reset => (RESET, TO_CLIENT),
        };
        let ttl_us =
            if deadline == Instant::NEVER { None } else { u32::try_from(left_ns / 1_000).ok() };
        let ttl = if ttl_us.is_some() { TTL } else { 0 };
        let mut fixed = [0; FIXED];
        fixed[..4].copy_from_slice(&[
            VERSION << 5 | kind,
            direction | ttl,
            0,
            u8::from(ttl_us.is_some()),
        ]);
        for (at, word) in [(8, self.seq), (12, self.len), (16, self.extra)] {
            fixed[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        out.clear();
        out.extend(fixed);
        if let Some(us) = ttl_us {
            out.extend(us.to_be_bytes());
        }
    }

    /// The RESET frame that a server writes before it disconnects a client of another version.
    pub(super) fn reset_version() -> ArrayVec<u8, LONGEST> {
        let head = Self { kind: Kind::Reset, seq: 0, len: 0, extra: REASON_VERSION, ttl_us: None };
        let mut bytes = ArrayVec::new();
        head.encode(0, Instant::NEVER, &mut bytes);
        bytes
    }
}
