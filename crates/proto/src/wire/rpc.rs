//! The packets of the RPC transport: a 32-byte header, optional extension words, a body, and a
//! CRC32C where the driver can damage bytes. `docs/formats.md` ("RPC packets") is normative.
//!
//! ```text
//!  0 u8  version(3) | type(5)    1 u8 flags    2 u8 channel    3 u8 extension words
//!  4 u32 session   8 u32 seq   12 u32 msg_len   16 u32 offset
//! 20 u16 ts_us    22 u16 ts_echo_us             24 u64 token
//! ```
//!
//! Always: what [`parse`] accepts can be used without a further length check, and what
//! [`Packet::head`] writes is parsed back to the same packet. Not here: what any of it means to a
//! session.

#[cfg(test)]
mod tests;

use zerocopy::byteorder::big_endian::{U32, U64};
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
/// In a [`Kind::Busy`]: the request is being executed. Without it the request was refused and will
/// never be executed.
pub const EXECUTING: u8 = 0x10;
/// In a [`Kind::Data`]: the sender's window is filling, tell at once what has arrived.
pub const ASK: u8 = 0x20;

/// The type of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Bytes of a request or reply.
    Data = 1,
    /// `offset`: send up to here. `msg_len`: everything before this has arrived.
    Grant = 2,
    /// `offset`: the first missing byte. `msg_len`: send up to here. Body: 256 bits, the missing
    /// packets from there on.
    Nack = 3,
    /// Asks for the state of a request. `offset`: request bytes sent so far. Body: [`ProbeBody`].
    Probe = 4,
    /// With [`EXECUTING`]: wait. Without: refused, try again in `offset` microseconds under another
    /// number.
    Busy = 5,
    /// The server never saw this request: send it again.
    Unknown = 6,
    /// The request was executed or dropped, and the reply is no longer kept.
    Gone = 7,
    /// The client has these replies. Body: [`DoneEntry`] and its numbers, repeated.
    Done = 8,
    /// The server wants to know if the reply has arrived.
    NeedAck = 9,
    /// `seq`: its number. `offset`: the client's session. `token`: the client's nonce. Body:
    /// [`OpenBody`].
    Open = 10,
    /// `token`: the nonce. Body: [`CookieBody`].
    Cookie = 11,
    /// `token`: the nonce. Body: [`AcceptBody`].
    Accept = 12,
    /// The client ends the session.
    Close = 13,
    /// The server does not know the session; `token` echoes the packet that asked, `offset` is a
    /// [`ResetReason`].
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

/// The reason why a server refuses a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ResetReason {
    /// The server does not know the session: it restarted, or the session expired.
    Unknown = 1,
    /// The server does not speak the version of the OPEN.
    Version = 2,
    /// The server accepts no (more) sessions.
    Refused = 3,
}

/// The reason why bytes are no packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// Shorter than its header, its extensions, its body's fixed part or its checksum.
    Short,
    /// The CRC32C is wrong.
    Checksum,
    /// Another version, and neither OPEN nor RESET.
    Version,
    /// An unknown type, or a channel, number, length or offset out of range.
    Field,
}

/// A packet's header as values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The packet's version: [`VERSION`], unless it is an OPEN or RESET.
    pub version: u8,
    /// The type.
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
    /// The time of sending, in microseconds of the sender's clock.
    pub ts_us: u16,
    /// With [`ECHO`]: the receiver's own time, moved on by as long as the sender held it.
    pub ts_echo_us: u16,
    /// The session's secret; see [`Kind`] for packets outside a session.
    pub token: u64,
    /// With [`TTL`]: microseconds that the request has left, else 0.
    pub ttl_us: u32,
    /// The offset of the body in the datagram.
    pub body_start: u32,
    /// The offset of the body's end.
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

    /// The header and its extensions as they are sent.
    #[inline(always)]
    #[must_use]
    pub fn head(&self) -> PaddedHeader {
        let has_ttl = self.flags & TTL != 0;
        let version_kind = self.version << 5 | self.kind as u8;
        let words = [
            u64::from(version_kind) << 56
                | u64::from(self.flags) << 48
                | u64::from(self.channel) << 40
                | u64::from(has_ttl) << 32
                | u64::from(self.session),
            u64::from(self.seq) << 32 | u64::from(self.msg_len),
            u64::from(self.offset) << 32 | u64::from(self.ts_us) << 16 | u64::from(self.ts_echo_us),
            self.token,
            if has_ttl { u64::from(self.ttl_us) << 32 } else { 0 },
        ];
        let mut bytes = [0; PaddedHeader::CAPACITY];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
            *to = word.to_be_bytes();
        }
        PaddedHeader::new(bytes, if has_ttl { HEAD_MAX } else { HEADER })
    }
}

/// The first byte of a packet of [`Kind::Data`].
const DATA: u8 = VERSION << 5 | Kind::Data as u8;

/// A packet that arrived: the words of its header, and its body. [`Packet`] has the same fields as
/// values.
#[derive(Clone, Copy, Debug)]
pub struct RxPacket<'b> {
    words: [u64; 4],
    bytes: &'b [u8],
    body: &'b [u8],
}

/// Parses one datagram to values, as [`RxPacket::parse`] does.
///
/// # Errors
/// [`Bad`].
pub fn parse(datagram: &[u8], crc: Option<Crc32c>) -> Result<Packet, Bad> {
    RxPacket::parse(datagram, crc).map(|packet| packet.packet())
}

/// [`TTL`] in the first word of a header.
const TTL_BIT: u64 = (TTL as u64) << 48;

impl<'b> RxPacket<'b> {
    /// Parses one datagram. `crc` is `None` where the driver cannot damage bytes and packets have
    /// no checksum.
    ///
    /// # Errors
    /// [`Bad`]: the caller drops the datagram and counts it.
    #[inline(always)]
    pub fn parse(datagram: &'b [u8], crc: Option<Crc32c>) -> Result<Self, Bad> {
        let covered = match crc {
            None => datagram,
            Some(crc) => checked(datagram, crc)?,
        };
        let Some((head, rest)) = covered.split_first_chunk::<HEADER>() else {
            return Err(Bad::Short);
        };
        let word = |i: usize| u64::from_be_bytes(head.as_chunks().0[i]);
        let words = [word(0), word(1), word(2), word(3)];
        let ext_bytes = 4 * usize::from((words[0] >> 32) as u8);
        let Some(body) = rest.get(ext_bytes..) else {
            return Err(too_short(words[0]));
        };
        let packet = Self { words, bytes: covered, body };
        // The channel is below 8, and the number has 29 bits.
        let in_range = words[0] & CHANNEL_HIGH == 0 && words[1] >> (32 + SEQ_BITS) == 0;
        let has_ttl = words[0] & TTL_BIT == 0 || ext_bytes > 0;
        if packet.is_data() && in_range && has_ttl && packet.data_fits() {
            return Ok(packet);
        }
        check_other(words[0], body.len(), in_range && has_ttl)?;
        Ok(packet)
    }

    /// The packet without its checksum. [`RxPacket::parse`] without one returns the packet again: a
    /// function that is rarely called gets these bytes, which take less to pass than the packet.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(&self) -> &'b [u8] {
        self.bytes
    }

    /// True if the packet is of [`Kind::Data`].
    #[inline(always)]
    #[must_use]
    pub const fn is_data(&self) -> bool {
        self.words[0] >> 56 == DATA as u64
    }

    /// The flags.
    #[inline(always)]
    #[must_use]
    pub const fn flags(&self) -> u8 {
        (self.words[0] >> 48) as u8
    }

    /// The channel, below 8.
    #[inline(always)]
    #[must_use]
    pub const fn channel(&self) -> u8 {
        (self.words[0] >> 40) as u8
    }

    /// The receiver's name for the session.
    #[inline(always)]
    #[must_use]
    pub const fn session(&self) -> u32 {
        self.words[0] as u32
    }

    /// The request's number on its channel.
    #[inline(always)]
    #[must_use]
    pub const fn seq(&self) -> u32 {
        (self.words[1] >> 32) as u32
    }

    /// See [`Packet::msg_len`].
    #[inline(always)]
    #[must_use]
    pub const fn msg_len(&self) -> u32 {
        self.words[1] as u32
    }

    /// The sender's clock in microseconds and, if the packet has one, the echo of the receiver's.
    #[inline(always)]
    #[must_use]
    pub const fn timestamps(&self) -> (u16, Option<u16>) {
        let word = self.words[2];
        let echo_us = if self.flags() & ECHO != 0 { Some(word as u16) } else { None };
        ((word >> 16) as u16, echo_us)
    }

    /// The session's secret.
    #[inline(always)]
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.words[3]
    }

    /// The microseconds that the request has left, if the packet says so.
    #[inline(always)]
    #[must_use]
    pub fn ttl_us(&self) -> Option<u32> {
        if self.words[0] & TTL_BIT == 0 {
            return None;
        }
        self.bytes.get(HEADER..)?.first_chunk().map(|ttl| u32::from_be_bytes(*ttl))
    }

    /// The bytes behind the header and its extensions.
    #[inline(always)]
    #[must_use]
    pub const fn body(&self) -> &'b [u8] {
        self.body
    }

    /// True if the packet holds a whole message.
    #[inline(always)]
    #[must_use]
    pub const fn is_whole_message(&self) -> bool {
        self.body.len() == self.msg_len() as usize
    }

    /// All fields as values.
    #[must_use]
    pub fn packet(&self) -> Packet {
        let [first, _, third, _] = self.words;
        let start = self.bytes.len() - self.body.len();
        Packet {
            version: (first >> 61) as u8,
            kind: Kind::new((first >> 56) as u8 & 0x1f).unwrap_or(Kind::Data),
            flags: self.flags(),
            channel: self.channel(),
            session: self.session(),
            seq: self.seq(),
            msg_len: self.msg_len(),
            offset: (third >> 32) as u32,
            ts_us: (third >> 16) as u16,
            ts_echo_us: third as u16,
            token: self.token(),
            ttl_us: self.ttl_us().unwrap_or(0),
            body_start: start as u32,
            body_end: (start + self.body.len()) as u32,
        }
    }

    /// True if the payload lies within the message, and only the empty message has an empty
    /// packet.
    #[inline(always)]
    const fn data_fits(&self) -> bool {
        let (msg_len, offset) = (self.msg_len() as u64, self.words[2] >> 32);
        let len = self.body.len() as u64;
        msg_len <= crate::rpc::MAX_MESSAGE as u64
            && offset.wrapping_add(len) <= msg_len
            && (len > 0 || msg_len == 0)
    }
}

/// Checks a packet that is no proper one of [`Kind::Data`]: its first word, the length of its body,
/// and whether its other fields are in range.
#[cold]
fn check_other(first: u64, body_len: usize, in_range: bool) -> Result<(), Bad> {
    let kind = kind_of(first)?;
    let is_ours = first >> 61 == u64::from(VERSION);
    if is_ours && kind != Kind::Data && body_len < kind.body_min() {
        return Err(Bad::Short);
    }
    if !in_range || kind == Kind::Data { Err(Bad::Field) } else { Ok(()) }
}

/// The bits of the first word that a channel below 8 leaves zero.
const CHANNEL_HIGH: u64 = 0xf8 << 40;

/// The kind of a packet, if it is of our version or of a kind that every version has.
fn kind_of(first: u64) -> Result<Kind, Bad> {
    let kind = Kind::new((first >> 56) as u8 & 0x1f).ok_or(Bad::Field)?;
    let is_ours = first >> 61 == u64::from(VERSION);
    if !is_ours && !matches!(kind, Kind::Open | Kind::Reset) {
        return Err(Bad::Version);
    }
    Ok(kind)
}

/// The reason why a packet without all its extension words is none.
#[cold]
fn too_short(first: u64) -> Bad {
    kind_of(first).err().unwrap_or(Bad::Short)
}

/// The checksum of a datagram of `len` bytes, before its first byte: the pseudo-header, which makes
/// it a packet of ours and its length part of what is checked. All of it that is the same for every
/// length below 2¹⁶ is computed beforehand.
#[must_use]
#[inline]
pub const fn crc_start(len: usize) -> u32 {
    const NAME: u32 = step(step(step(step(!0, b's'), b'p'), b'r'), b't');
    const NAME_SHORT: u32 = step(step(NAME, 0), 0);
    let [a, b, c, d] = (len as u32).to_be_bytes();
    let high = if a | b == 0 { NAME_SHORT } else { step(step(NAME, a), b) };
    !step(step(high, c), d)
}

/// Which way a datagram seems to travel (true: to the client) and the session that it names, before
/// anything is checked: good for nothing but to load what [`parse`] will be followed by.
#[must_use]
#[inline]
pub fn peek(datagram: &[u8]) -> Option<(bool, u32)> {
    let (&[_, flags, _, _, a, b, c, d], _) = datagram.split_first_chunk()?;
    Some((flags & TO_CLIENT != 0, u32::from_be_bytes([a, b, c, d])))
}

/// The body of a datagram that seems to be a request of one packet, before anything is checked:
/// good for nothing but to load what the request will touch.
#[must_use]
#[inline]
pub fn peek_request(datagram: &[u8], has_crc: bool) -> Option<&[u8]> {
    let covered = if has_crc { datagram.split_last_chunk::<CRC>()?.0 } else { datagram };
    let (&[kind, flags, _, extensions, ..], rest) = covered.split_first_chunk::<HEADER>()?;
    let body = rest.get(4 * usize::from(extensions)..)?;
    let msg_len = u32::from_be_bytes(*covered.get(12..)?.first_chunk()?);
    let is_request = kind == DATA && flags & TO_CLIENT == 0 && msg_len as usize == body.len();
    is_request.then_some(body)
}

/// The bytes before the checksum, if that is right.
#[inline]
fn checked(datagram: &[u8], crc: Crc32c) -> Result<&[u8], Bad> {
    let (covered, trailer) = datagram.split_last_chunk::<CRC>().ok_or(Bad::Short)?;
    if crc(crc_start(datagram.len()), covered) != u32::from_be_bytes(*trailer) {
        return Err(Bad::Checksum);
    }
    Ok(covered)
}

/// The checksum at the end of a datagram of these parts before it.
#[must_use]
#[inline]
pub fn trailer(crc: Crc32c, parts: &[&[u8]]) -> [u8; CRC] {
    let len = CRC + parts.iter().map(|p| p.len()).sum::<usize>();
    parts.iter().fold(crc_start(len), |c, part| crc(c, part)).to_be_bytes()
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
    /// The time at which the server made the cookie, in its own units.
    pub epoch: U32,
    /// Zero.
    pub padding: U32,
    /// The cookie to send back.
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

/// One session in a DONE; as many numbers (u32) follow as bits are set in `channels`, lowest
/// channel first.
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
    assert!(size_of::<OpenBody>() >= size_of::<AcceptBody>());
    assert!(size_of::<OpenBody>() >= size_of::<CookieBody>());
};
