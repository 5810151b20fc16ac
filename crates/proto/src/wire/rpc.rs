//! The packets of the RPC transport: a 32-byte header, optional extension words, a body, and a CRC32C where the driver
//! can damage bytes. `docs/formats.md` ("RPC packets") is normative.
//!
//! ```text
//!  0 u8  version(3) | type(5)    1 u8 flags    2 u8 channel    3 u8 extension words
//!  4 u32 session   8 u32 seq   12 u32 msg_len   16 u32 offset   20 u16 ts_us   22 u16 ts_echo_us   24 u64 token
//! ```
//!
//! Always: what [`parse`] accepts can be used without a further length check, and what [`Packet::head`] writes is parsed
//! back to the same packet. Not here: what any of it means to a session.

#[cfg(test)]
mod tests;

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::{Crc32c, step};
use crate::datagrams::PaddedHeader;

/// The version that this file speaks.
pub const VERSION: u8 = 1;
/// Bytes of a header without extensions.
pub const HEADER: usize = 32;
/// Bytes of the longest header that [`Packet::head`] writes.
pub const HEAD_MAX: usize = HEADER + 4;
/// Bytes of the trailing CRC32C.
pub const CRC: usize = 4;
/// Bits of a sequence number.
pub const SEQ_BITS: u32 = 29;
/// The largest sequence number; they wrap to 0 after it.
pub const SEQ_MAX: u32 = (1 << SEQ_BITS) - 1;
/// Packets that one [`Kind::Nack`] speaks of.
pub const NACK_PACKETS: u32 = 256;

/// The packet travels to the client of the session; else to its server.
pub const TO_CLIENT: u8 = 0x01;
/// `ts_echo` holds a time.
pub const ECHO: u8 = 0x02;
/// Sent before.
pub const RESENT: u8 = 0x04;
/// The first extension word is the time that the request has left, in microseconds.
pub const TTL: u8 = 0x08;
/// In a [`Kind::Busy`]: the request is being executed. Without it the request was refused and will never be executed.
pub const EXECUTING: u8 = 0x10;
/// In a [`Kind::Data`]: the sender's window is filling, tell at once what has arrived.
pub const ASK: u8 = 0x20;

/// What a packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Bytes of a request or reply.
    Data = 1,
    /// `offset`: send up to here. `msg_len`: everything before this has arrived.
    Grant = 2,
    /// `offset`: the first missing byte. `msg_len`: send up to here. Body: 256 bits, the missing packets from there on.
    Nack = 3,
    /// Where are you with this request? `offset`: request bytes sent so far. Body: [`ProbeBody`].
    Probe = 4,
    /// With [`EXECUTING`]: wait. Without: refused, try again in `offset` microseconds under another number.
    Busy = 5,
    /// The server never saw this request: send it again.
    Unknown = 6,
    /// The request was executed or dropped, and the reply is no longer kept.
    Gone = 7,
    /// The client has these replies. Body: [`DoneEntry`] and its numbers, repeated.
    Done = 8,
    /// The server wants to know if the reply has arrived.
    NeedAck = 9,
    /// `seq`: its number. `offset`: the client's session. `token`: the client's nonce. Body: [`OpenBody`].
    Open = 10,
    /// `token`: the nonce. Body: [`CookieBody`].
    Cookie = 11,
    /// `token`: the nonce. Body: [`AcceptBody`].
    Accept = 12,
    /// The client ends the session.
    Close = 13,
    /// The server does not know the session; `token` echoes the packet that asked, `offset` is a [`ResetReason`].
    Reset = 14,
}

impl Kind {
    fn new(bits: u8) -> Option<Self> {
        Some(match bits {
            1 => Self::Data,
            2 => Self::Grant,
            3 => Self::Nack,
            4 => Self::Probe,
            5 => Self::Busy,
            6 => Self::Unknown,
            7 => Self::Gone,
            8 => Self::Done,
            9 => Self::NeedAck,
            10 => Self::Open,
            11 => Self::Cookie,
            12 => Self::Accept,
            13 => Self::Close,
            14 => Self::Reset,
            _ => return None,
        })
    }

    /// The length that a body of this kind has at least.
    fn body_min(self) -> usize {
        match self {
            Self::Nack => NACK_PACKETS as usize / 8,
            Self::Probe => size_of::<ProbeBody>(),
            Self::Done => size_of::<DoneEntry>(),
            Self::Open => size_of::<OpenBody>(),
            Self::Cookie => size_of::<CookieBody>(),
            Self::Accept => size_of::<AcceptBody>(),
            _ => 0,
        }
    }
}

/// Why a server refuses a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ResetReason {
    /// It does not know the session: it restarted, or the session expired.
    Unknown = 1,
    /// It does not speak the version of the OPEN.
    Version = 2,
    /// It accepts no (more) sessions.
    Refused = 3,
}

/// Why bytes are no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// Shorter than its header, its extensions, its body's fixed part or its checksum.
    Short,
    /// The CRC32C is wrong.
    Checksum,
    /// Another version, and neither OPEN nor RESET.
    Version,
    /// A type nobody knows, or a channel, number, length or offset out of range.
    Field,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    version_type: u8,
    flags: u8,
    channel: u8,
    ext_words: u8,
    session: U32,
    seq: U32,
    msg_len: U32,
    offset: U32,
    ts: U16,
    ts_echo: U16,
    token: U64,
}

/// A packet's header as values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Its version: [`VERSION`], unless it is an OPEN or RESET.
    pub version: u8,
    /// What it is.
    pub kind: Kind,
    /// [`TO_CLIENT`] and the others.
    pub flags: u8,
    /// The channel, below 8.
    pub channel: u8,
    /// The receiver's name for the session: slab index (24 bits) and generation (8 bits on top).
    pub session: u32,
    /// The request's number on its channel, at most [`SEQ_MAX`].
    pub seq: u32,
    /// See [`Kind`]; in DATA the length of the whole message.
    pub msg_len: u32,
    /// See [`Kind`]; in DATA the place of the first payload byte in the message.
    pub offset: u32,
    /// When it was sent, in microseconds of the sender's clock.
    pub ts_us: u16,
    /// With [`ECHO`]: the receiver's own time, moved on by as long as the sender held it.
    pub ts_echo_us: u16,
    /// The session's secret; see [`Kind`] for packets outside a session.
    pub token: u64,
    /// With [`TTL`]: microseconds that the request has left, else 0.
    pub ttl_us: u32,
    /// Where the body begins in the datagram.
    pub body_start: u32,
    /// Where it ends.
    pub body_end: u32,
}

impl Packet {
    /// A packet of `kind` with everything else zero.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self {
            version: VERSION,
            kind,
            flags: 0,
            channel: 0,
            session: 0,
            seq: 0,
            msg_len: 0,
            offset: 0,
            ts_us: 0,
            ts_echo_us: 0,
            token: 0,
            ttl_us: 0,
            body_start: HEADER as u32,
            body_end: HEADER as u32,
        }
    }

    /// The body's length in bytes.
    #[must_use]
    pub const fn body_len(&self) -> usize {
        (self.body_end - self.body_start) as usize
    }

    /// The body within the datagram that this was parsed from.
    #[must_use]
    pub fn body<'b>(&self, datagram: &'b [u8]) -> &'b [u8] {
        datagram.get(self.body_start as usize..self.body_end as usize).unwrap_or(&[])
    }

    /// Writes the header and its extensions to `out`; returns their length.
    #[inline]
    pub fn head(&self, out: &mut [u8; HEAD_MAX]) -> usize {
        let ttl = self.flags & TTL != 0;
        let header = Header {
            version_type: self.version << 5 | self.kind as u8,
            flags: self.flags,
            channel: self.channel,
            ext_words: u8::from(ttl),
            session: U32::new(self.session),
            seq: U32::new(self.seq),
            msg_len: U32::new(self.msg_len),
            offset: U32::new(self.offset),
            ts: U16::new(self.ts_us),
            ts_echo: U16::new(self.ts_echo_us),
            token: U64::new(self.token),
        };
        out[..HEADER].copy_from_slice(header.as_bytes());
        if !ttl {
            return HEADER;
        }
        out[HEADER..].copy_from_slice(&self.ttl_us.to_be_bytes());
        HEAD_MAX
    }
}

/// The header of a packet of [`Kind::Data`] that holds a whole message and was not sent before: the most frequent of all,
/// and short enough to be read and written in four words. [`Packet`] says the same of it, and more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Whole {
    /// As the flag [`TO_CLIENT`].
    pub to_client: bool,
    /// As in [`Packet`].
    pub channel: u8,
    /// As in [`Packet`].
    pub session: u32,
    /// As in [`Packet`].
    pub seq: u32,
    /// As in [`Packet`].
    pub token: u64,
    /// As in [`Packet`], with [`TTL`].
    pub ttl_us: Option<u32>,
    /// As in [`Packet`]; 0 on a driver that loses nothing.
    pub ts_us: u16,
    /// As in [`Packet`], with [`ECHO`]; never on a driver that loses nothing.
    pub ts_echo_us: Option<u16>,
}

/// The first two bytes of a whole message.
const fn whole(flags: u8) -> u64 {
    ((VERSION << 5 | Kind::Data as u8) as u64) << 8 | flags as u64
}

impl Whole {
    /// The header and its extension before a message of `len` bytes.
    #[inline(always)]
    #[must_use]
    pub fn head(&self, len: u32) -> PaddedHeader {
        let flags = if self.to_client { TO_CLIENT } else { 0 }
            | if self.ttl_us.is_some() { TTL } else { 0 }
            | if self.ts_echo_us.is_some() { ECHO } else { 0 };
        let ext_words = u64::from(self.ttl_us.is_some());
        let words = [
            whole(flags) << 48
                | u64::from(self.channel) << 40
                | ext_words << 32
                | u64::from(self.session),
            u64::from(self.seq) << 32 | u64::from(len),
            u64::from(self.ts_us) << 16 | u64::from(self.ts_echo_us.unwrap_or(0)),
            self.token,
            u64::from(self.ttl_us.unwrap_or(0)) << 32,
        ];
        let mut bytes = [0; PaddedHeader::CAPACITY];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_be_bytes();
        }
        PaddedHeader::new(bytes, HEADER + 4 * ext_words as usize)
    }

    /// The header and the message, if a datagram is such a packet: one that [`parse`] accepts, with nothing in it that this
    /// does not say. If `timed`, it has the times of a lossy driver; if `checked`, a checksum follows, which is not compared yet:
    /// see [`is_intact`].
    #[inline(always)]
    #[must_use]
    pub fn parse(datagram: &[u8], timed: bool, checked: bool) -> Option<(Self, &[u8])> {
        let covered = if checked { datagram.split_last_chunk::<CRC>()?.0 } else { datagram };
        let (head, rest) = covered.split_first_chunk::<HEADER>()?;
        let word = |i: usize| u64::from_be_bytes(head.as_chunks().0[i]);
        let [first, second, third] = [word(0), word(1), word(2)];
        let echo = if timed { u64::from(ECHO) << 48 } else { 0 };
        let (to_client, ttl_us, body) = match ((first & !echo) >> 48, first >> 32 & 0xff) {
            (TO_CLIENT_WHOLE, 0) => (true, None, rest),
            (TIMED_WHOLE, 1) => {
                let (ttl, body) = rest.split_first_chunk()?;
                (false, Some(u32::from_be_bytes(*ttl)), body)
            }
            (TO_SERVER_WHOLE, 0) => (false, None, rest),
            _ => return None,
        };
        let channel = (first >> 40) as u8;
        let seq = (second >> 32) as u32;
        let fits = third >> 32 == 0 && body.len() == second as u32 as usize;
        if channel > 7 || seq > SEQ_MAX || !fits || body.len() > crate::rpc::MAX_MESSAGE {
            return None;
        }
        let ts_us = if timed { (third >> 16) as u16 } else { 0 };
        let ts_echo_us = (first & echo != 0).then_some(third as u16);
        let session = first as u32;
        Some((
            Self { to_client, channel, session, seq, token: word(3), ttl_us, ts_us, ts_echo_us },
            body,
        ))
    }
}

const TO_CLIENT_WHOLE: u64 = whole(TO_CLIENT);
const TO_SERVER_WHOLE: u64 = whole(0);
const TIMED_WHOLE: u64 = whole(TTL);

/// Parses one datagram. `crc` is `None` where the driver cannot damage bytes, and packets have no checksum.
///
/// # Errors
/// [`Bad`]: drop it and count it.
#[inline(always)]
pub fn parse(datagram: &[u8], crc: Option<Crc32c>) -> Result<Packet, Bad> {
    let end = match crc {
        None => datagram.len(),
        Some(crc) => checked(datagram, crc)?,
    };
    let (header, _) = Header::ref_from_prefix(&datagram[..end]).map_err(|_| Bad::Short)?;
    let kind = Kind::new(header.version_type & 0x1f).ok_or(Bad::Field)?;
    let version = header.version_type >> 5;
    if version != VERSION && !matches!(kind, Kind::Open | Kind::Reset) {
        return Err(Bad::Version);
    }
    let start = HEADER + 4 * usize::from(header.ext_words);
    let body_min = if kind == Kind::Data { 0 } else { kind.body_min() };
    if start + body_min > end && (version == VERSION || start > end) {
        return Err(Bad::Short);
    }
    let mut packet = Packet {
        version,
        kind,
        flags: header.flags,
        channel: header.channel,
        session: header.session.get(),
        seq: header.seq.get(),
        msg_len: header.msg_len.get(),
        offset: header.offset.get(),
        ts_us: header.ts.get(),
        ts_echo_us: header.ts_echo.get(),
        token: header.token.get(),
        ttl_us: 0,
        body_start: start as u32,
        body_end: end as u32,
    };
    if packet.flags & TTL != 0 {
        let ext = datagram[HEADER..start].first_chunk().ok_or(Bad::Field)?;
        packet.ttl_us = u32::from_be_bytes(*ext);
    }
    if packet.channel > 7 || packet.seq > SEQ_MAX || (kind == Kind::Data && !data_fits(&packet)) {
        return Err(Bad::Field);
    }
    Ok(packet)
}

/// The checksum of a datagram of `len` bytes, before its first byte: the pseudo-header, which makes it a packet of ours
/// and its length part of what is checked. All of it that is the same for every length below 2¹⁶ is computed beforehand.
#[must_use]
#[inline]
pub const fn crc_start(len: usize) -> u32 {
    const NAME: u32 = step(step(step(step(!0, b's'), b'p'), b'r'), b't');
    const NAME_SHORT: u32 = step(step(NAME, 0), 0);
    let [a, b, c, d] = (len as u32).to_be_bytes();
    let high = if a | b == 0 { NAME_SHORT } else { step(step(NAME, a), b) };
    !step(step(high, c), d)
}

/// Which way a datagram seems to travel (true: to the client) and the session that it names, before anything is checked:
/// good for nothing but to load what [`parse`] will be followed by.
#[must_use]
#[inline]
pub fn peek(datagram: &[u8]) -> Option<(bool, u32)> {
    let (&[_, flags, _, _, a, b, c, d], _) = datagram.split_first_chunk()?;
    Some((flags & TO_CLIENT != 0, u32::from_be_bytes([a, b, c, d])))
}

#[inline]
fn checked(datagram: &[u8], crc: Crc32c) -> Result<usize, Bad> {
    let (covered, trailer) = datagram.split_last_chunk::<CRC>().ok_or(Bad::Short)?;
    if crc(crc_start(datagram.len()), covered) != u32::from_be_bytes(*trailer) {
        return Err(Bad::Checksum);
    }
    Ok(covered.len())
}

/// True if the checksum at a datagram's end is right.
#[must_use]
#[inline]
pub fn is_intact(datagram: &[u8], crc: Crc32c) -> bool {
    checked(datagram, crc).is_ok()
}

/// The checksum at the end of a datagram of these parts before it.
#[must_use]
#[inline]
pub fn trailer(crc: Crc32c, parts: &[&[u8]]) -> [u8; CRC] {
    let len = CRC + parts.iter().map(|p| p.len()).sum::<usize>();
    parts.iter().fold(crc_start(len), |c, part| crc(c, part)).to_be_bytes()
}

/// True if the payload lies within the message and only the empty message has an empty packet.
fn data_fits(packet: &Packet) -> bool {
    let (len, end) =
        (packet.body_len() as u64, u64::from(packet.offset) + packet.body_len() as u64);
    packet.msg_len as usize <= crate::rpc::MAX_MESSAGE
        && end <= u64::from(packet.msg_len)
        && (len > 0 || packet.msg_len == 0)
}

/// The body of an OPEN: at least as long as any answer to it.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct OpenBody {
    /// Feature bits; none is defined.
    pub features: U32,
    /// The largest datagram that the client takes, in bytes.
    pub max_payload: U32,
    /// Bytes of a reply that may come without a grant.
    pub unscheduled: U32,
    /// From the COOKIE, else 0.
    pub epoch: U32,
    /// From the COOKIE, else 0.
    pub cookie: U64,
    /// Drawn anew each time the client starts; `seq` counts its OPENs to this server.
    pub incarnation: U64,
}

/// The body of a COOKIE.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CookieBody {
    /// When the cookie was made, in units of the server's.
    pub epoch: U32,
    /// Zero.
    pub padding: U32,
    /// What to send back.
    pub cookie: U64,
}

/// The body of an ACCEPT.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AcceptBody {
    /// The server's name for the session.
    pub session: U32,
    /// Payload bytes of every packet of a message but its last.
    pub mss: U32,
    /// Bytes of a request that may come without a grant.
    pub unscheduled: U32,
    /// Zero.
    pub padding: U32,
    /// The session's secret.
    pub token: U64,
    /// Drawn anew each time the server starts.
    pub incarnation: U64,
}

/// The body of a PROBE.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ProbeBody {
    /// The client's name for the session, so that a server which does not know it can answer.
    pub client: U32,
    /// Everything before this byte of the reply has arrived.
    pub received: U32,
    /// The reply may be sent up to here.
    pub granted: U32,
}

/// One session in a DONE; as many numbers (u32) follow as bits are set in `channels`, lowest channel first.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DoneEntry {
    /// The server's name for the session.
    pub session: U32,
    /// The session's secret.
    pub token: U64,
    /// Which channels.
    pub channels: u8,
    /// Zero.
    pub padding: [u8; 3],
}

const _: () = {
    assert!(size_of::<Header>() == HEADER);
    assert!(size_of::<OpenBody>() >= size_of::<AcceptBody>());
    assert!(size_of::<OpenBody>() >= size_of::<CookieBody>());
};
