//! The packets of the RPC transport: a 32-byte header, optional extension words, a body, and a
//! CRC32C where the driver can damage bytes. `docs/formats.md` ("RPC packets") is normative.
//!
//! ```text
//!  0 u8  version(3) | type(5)    1 u8 flags    2 u8 channel    3 u8 extension words
//!  4 u32 session   8 u32 seq   12 u32 msg_len   16 u32 offset
//! 20 u16 ts_us    22 u16 ts_echo_us             24 u64 token
//! ```
//!
//! Always: what [`parse`] accepts needs no further length check, and it parses what
//! [`Packet::head`] writes back to the same packet. Not here: the effect of a packet on a session.

#[cfg(test)]
mod tests;

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::{Crc32c, step};
use crate::datagrams::PaddedHeader;

/// The version of the RPC packet format that this crate sends.
pub const VERSION: u8 = 1;
/// The length in bytes of an RPC packet's header without extensions.
pub const HEADER: usize = 32;
/// The length in bytes of the longest RPC packet header that [`Packet::head`] writes.
pub const HEAD_MAX: usize = HEADER + 4;
/// The length in bytes of the CRC32C at the end of an RPC packet.
pub const CRC: usize = 4;
/// The number of bits of an RPC packet's sequence number.
pub const SEQ_BITS: u32 = 29;
/// The largest sequence number of an RPC packet. 0 follows it.
pub const SEQ_MAX: u32 = (1 << SEQ_BITS) - 1;
/// The number of packets that the bitmap of one [`Kind::Nack`] covers.
pub const NACK_PACKETS: u32 = 256;

/// The flag of an RPC packet that travels to the client of the session, not to the server.
pub const TO_CLIENT: u8 = 0x01;
/// The RPC packet's flag that says that its field `ts_echo_us` is valid.
pub const ECHO: u8 = 0x02;
/// The RPC packet's flag of a retransmission.
pub const RESENT: u8 = 0x04;
/// The flag of an RPC packet whose first extension word is the request's time left, in µs.
pub const TTL: u8 = 0x08;
/// The RPC packet's flag in a [`Kind::Busy`] for a request that is being executed. Without it the
/// request was refused and will never be executed.
pub const EXECUTING: u8 = 0x10;
/// The RPC packet's flag in a [`Kind::Data`] by which a sender whose window is nearly full asks the
/// receiver to send a [`Kind::Grant`] at once.
pub const ASK: u8 = 0x20;
/// The RPC packet's flag in a [`Kind::Data`] of a reply that the server does not retain: the client
/// does not acknowledge it by [`Kind::Done`].
pub const NO_ACK: u8 = 0x40;

/// The type of an RPC packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// DATA: bytes of a request or reply.
    Data = 1,
    /// GRANT: the peer may send up to `offset`. All bytes before `msg_len` have arrived.
    Grant = 2,
    /// NACK: packets of a message are missing. `offset` is the first missing byte, and the peer may
    /// send up to `msg_len`. The body is 256 bits, one for each packet from `offset` on; it is set
    /// if the packet is missing.
    Nack = 3,
    /// PROBE: the client, which has sent `offset` bytes of a request, asks for its state.
    Probe = 4,
    /// BUSY: with the flag [`EXECUTING`] the request is being executed. Without it the server
    /// refused the request; the client retries in `offset` microseconds under another number.
    Busy = 5,
    /// UNKNOWN: the server never received this request, or has forgotten it because the request is
    /// idempotent. The client has to send it again.
    Unknown = 6,
    /// GONE: the request was executed or dropped, and the server no longer retains the reply.
    Gone = 7,
    /// DONE: the client has received these replies. Body: entries of [`DoneEntry`] and numbers.
    Done = 8,
    /// NEED_ACK: the server asks whether the client received this reply.
    NeedAck = 9,
    /// OPEN: the client asks for a session. `seq` counts the client's OPENs, `offset` is the
    /// client's session and `token` is the client's nonce. Body: [`OpenBody`].
    Open = 10,
    /// COOKIE: the server wants the OPEN with this [`CookieBody`]. `token` is the client's nonce.
    Cookie = 11,
    /// ACCEPT: the server opens the session. `token` is the client's nonce. Body: [`AcceptBody`].
    Accept = 12,
    /// CLOSE: the client ends the session.
    Close = 13,
    /// RESET: the server does not know the session or refuses it. `token` is that of the packet
    /// that caused it, and `offset` is a [`ResetReason`].
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

    /// The least length in bytes of the body of an RPC packet of this type.
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

/// The reason why a server refuses an RPC session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum ResetReason {
    /// The server does not know the RPC session: it restarted, or the session expired.
    Unknown = 1,
    /// The server does not speak the version of the OPEN.
    Version = 2,
    /// The server accepts no further sessions, or none at all.
    Refused = 3,
}

/// The reason why bytes are no RPC packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bad {
    /// The RPC packet is shorter than its header, extensions, body's fixed part or checksum.
    Short,
    /// The CRC32C of the RPC packet is wrong.
    Checksum,
    /// The RPC packet is of another version, and neither an OPEN nor a RESET.
    Version,
    /// The RPC packet has an unknown type, or a field that is out of range.
    Field,
}

/// An RPC packet's header as values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// The RPC packet's version: [`VERSION`], or any in an OPEN or RESET.
    pub version: u8,
    /// The type of the RPC packet.
    pub kind: Kind,
    /// The flags of the RPC packet, such as [`TO_CLIENT`] and [`TTL`].
    pub flags: u8,
    /// The channel of the RPC packet, below 8.
    pub channel: u8,
    /// The receiver's name for the RPC session: slab index (24 bits) below generation (8 bits).
    pub session: u32,
    /// The number of the RPC's request on its channel, at most [`SEQ_MAX`].
    pub seq: u32,
    /// In DATA the length in bytes of the whole message; else as [`Kind`] says.
    pub msg_len: u32,
    /// In DATA the offset of the payload in the message, in bytes; else as [`Kind`] says.
    pub offset: u32,
    /// The time at which the RPC packet was sent, in microseconds of the sender's clock.
    pub ts_us: u16,
    /// With the flag [`ECHO`]: the time of the receiver's own clock that the sender last received,
    /// plus the time for which the sender held it, in microseconds.
    pub ts_echo_us: u16,
    /// The secret of the RPC session. [`Kind`] gives the meaning in packets outside a session.
    pub token: u64,
    /// The time that the request has left, in microseconds, or 0 without the flag [`TTL`].
    pub ttl_us: u32,
    /// The byte offset of the RPC packet's body in the datagram.
    pub body_start: u32,
    /// The byte offset of the end of the RPC packet's body in the datagram.
    pub body_end: u32,
}

impl Packet {
    /// An RPC packet of the type `kind`, with all other fields zero and an empty body.
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

    /// The length of the RPC packet's body in bytes.
    #[must_use]
    pub const fn body_len(&self) -> usize {
        (self.body_end - self.body_start) as usize
    }

    /// The RPC packet's body within the datagram from which the header was parsed.
    #[must_use]
    pub fn body<'b>(&self, datagram: &'b [u8]) -> &'b [u8] {
        datagram.get(self.body_start as usize..self.body_end as usize).unwrap_or(&[])
    }

    /// The RPC packet's header and its extensions in wire format.
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

/// The first byte of an RPC packet of [`Kind::Data`].
const DATA: u8 = VERSION << 5 | Kind::Data as u8;

/// An RPC packet that arrived: its header as words, and its body.
#[derive(Clone, Copy, Debug)]
pub struct RxPacket<'b> {
    words: [u64; 4],
    bytes: &'b [u8],
    body: &'b [u8],
}

/// Parses one datagram to an RPC packet's values, as [`RxPacket::parse`] does.
///
/// # Errors
/// [`Bad`] if the datagram is no RPC packet.
pub fn parse(datagram: &[u8], crc: Option<Crc32c>) -> Result<Packet, Bad> {
    RxPacket::parse(datagram, crc).map(|packet| packet.packet())
}

/// The flag [`TTL`] in the first word of an RPC packet's header.
const TTL_BIT: u64 = (TTL as u64) << 48;

impl<'b> RxPacket<'b> {
    /// Parses one datagram as an RPC packet. `crc` is `None` where the driver cannot damage bytes
    /// and packets have no checksum.
    ///
    /// # Errors
    /// [`Bad`] if the datagram is no RPC packet. The caller drops the datagram and counts it.
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

    /// The bytes of the RPC packet without its checksum. [`RxPacket::parse`] without `crc` parses
    /// them to the same packet. A function that is rarely called gets these bytes, which take less
    /// to pass than the packet.
    #[inline(always)]
    #[must_use]
    pub const fn bytes(&self) -> &'b [u8] {
        self.bytes
    }

    /// True if the RPC packet is of [`Kind::Data`].
    #[inline(always)]
    #[must_use]
    pub const fn is_data(&self) -> bool {
        self.words[0] >> 56 == DATA as u64
    }

    /// The flags of the RPC packet.
    #[inline(always)]
    #[must_use]
    pub const fn flags(&self) -> u8 {
        (self.words[0] >> 48) as u8
    }

    /// The channel of the RPC packet, below 8.
    #[inline(always)]
    #[must_use]
    pub const fn channel(&self) -> u8 {
        (self.words[0] >> 40) as u8
    }

    /// The receiver's name for the RPC session.
    #[inline(always)]
    #[must_use]
    pub const fn session(&self) -> u32 {
        self.words[0] as u32
    }

    /// The number of the RPC's request on its channel.
    #[inline(always)]
    #[must_use]
    pub const fn seq(&self) -> u32 {
        (self.words[1] >> 32) as u32
    }

    /// The length in bytes of the whole message in a DATA packet; else as [`Kind`] says.
    #[inline(always)]
    #[must_use]
    pub const fn msg_len(&self) -> u32 {
        self.words[1] as u32
    }

    /// The times of the RPC packet: the sender's clock in µs, and the echo of the receiver's, if
    /// any.
    #[inline(always)]
    #[must_use]
    pub const fn timestamps(&self) -> (u16, Option<u16>) {
        let word = self.words[2];
        let echo_us = if self.flags() & ECHO != 0 { Some(word as u16) } else { None };
        ((word >> 16) as u16, echo_us)
    }

    /// The secret of the RPC session that the packet names.
    #[inline(always)]
    #[must_use]
    pub const fn token(&self) -> u64 {
        self.words[3]
    }

    /// The microseconds that the request has left, if the RPC packet says so.
    #[inline(always)]
    #[must_use]
    pub fn ttl_us(&self) -> Option<u32> {
        if self.words[0] & TTL_BIT == 0 {
            return None;
        }
        self.bytes.get(HEADER..)?.first_chunk().map(|ttl| u32::from_be_bytes(*ttl))
    }

    /// The bytes behind the RPC packet's header and its extensions.
    #[inline(always)]
    #[must_use]
    pub const fn body(&self) -> &'b [u8] {
        self.body
    }

    /// True if the RPC packet holds a whole message.
    #[inline(always)]
    #[must_use]
    pub const fn is_whole_message(&self) -> bool {
        self.body.len() == self.msg_len() as usize
    }

    /// All fields of the RPC packet's header as values.
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

    /// True if the payload lies within its message. Only an empty message has an empty packet.
    #[inline(always)]
    const fn data_fits(&self) -> bool {
        let (msg_len, offset) = (self.msg_len() as u64, self.words[2] >> 32);
        let len = self.body.len() as u64;
        msg_len <= crate::rpc::MAX_MESSAGE as u64
            && offset.wrapping_add(len) <= msg_len
            && (len > 0 || msg_len == 0)
    }
}

/// Checks an RPC packet that is not a valid one of [`Kind::Data`]. `first` is the first word of its
/// header, and `in_range` is true if its other fields are in range.
#[cold]
fn check_other(first: u64, body_len: usize, in_range: bool) -> Result<(), Bad> {
    let kind = packet_kind(first)?;
    let is_ours = first >> 61 == u64::from(VERSION);
    if is_ours && kind != Kind::Data && body_len < kind.body_min() {
        return Err(Bad::Short);
    }
    if !in_range || kind == Kind::Data { Err(Bad::Field) } else { Ok(()) }
}

/// The bits of an RPC packet's first word that are zero for a channel below 8.
const CHANNEL_HIGH: u64 = 0xf8 << 40;

/// The type of an RPC packet from the first word of its header. It is an error if the packet has
/// another version, unless it is an OPEN or RESET, which every version has.
fn packet_kind(first: u64) -> Result<Kind, Bad> {
    let kind = Kind::new((first >> 56) as u8 & 0x1f).ok_or(Bad::Field)?;
    let is_ours = first >> 61 == u64::from(VERSION);
    if !is_ours && !matches!(kind, Kind::Open | Kind::Reset) {
        return Err(Bad::Version);
    }
    Ok(kind)
}

/// The reason why bytes that lack some of their extension words are no RPC packet.
#[cold]
fn too_short(first: u64) -> Bad {
    packet_kind(first).err().unwrap_or(Bad::Short)
}

/// The value with which the checksum of an RPC datagram of `len` bytes begins. It covers the
/// pseudo-header: the name `sprt` and the length. The part that is the same for every length below
/// 2¹⁶ is computed beforehand.
#[must_use]
#[inline]
pub const fn crc_start(len: usize) -> u32 {
    const NAME: u32 = step(step(step(step(!0, b's'), b'p'), b'r'), b't');
    const NAME_SHORT: u32 = step(step(NAME, 0), 0);
    let [a, b, c, d] = (len as u32).to_be_bytes();
    let high = if a | b == 0 { NAME_SHORT } else { step(step(NAME, a), b) };
    !step(step(high, c), d)
}

/// The direction of a datagram (true: to the client) and the RPC session that it seems to name,
/// before any check. The caller may only use them to load memory in advance.
#[must_use]
#[inline]
pub fn peek(datagram: &[u8]) -> Option<(bool, u32)> {
    let (&[_, flags, _, _, a, b, c, d], _) = datagram.split_first_chunk()?;
    Some((flags & TO_CLIENT != 0, u32::from_be_bytes([a, b, c, d])))
}

/// The body of a datagram that seems to be a request of one packet, before any check. The caller
/// may only use it to load memory that the request will need.
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

/// The bytes of an RPC packet before its checksum, if the checksum is right.
#[inline]
fn checked(datagram: &[u8], crc: Crc32c) -> Result<&[u8], Bad> {
    let (covered, trailer) = datagram.split_last_chunk::<CRC>().ok_or(Bad::Short)?;
    if crc(crc_start(datagram.len()), covered) != u32::from_be_bytes(*trailer) {
        return Err(Bad::Checksum);
    }
    Ok(covered)
}

/// The checksum at the end of an RPC datagram that consists of `parts` and the checksum.
#[must_use]
#[inline]
pub fn trailer(crc: Crc32c, parts: &[&[u8]]) -> [u8; CRC] {
    let len = CRC + parts.iter().map(|p| p.len()).sum::<usize>();
    parts.iter().fold(crc_start(len), |c, part| crc(c, part)).to_be_bytes()
}

/// The body of an OPEN, the packet by which a client asks for a session. It is at least as long as
/// any answer to it.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct OpenBody {
    /// The feature bits of an OPEN; none is defined.
    pub features: U32,
    /// The largest datagram that the client of the session takes, in bytes.
    pub max_payload: U32,
    /// The number of bytes of a reply that the server may send without a grant.
    pub unscheduled: U32,
    /// The epoch that the server sent in its COOKIE, or 0 in an OPEN before that.
    pub epoch: U32,
    /// The cookie that the server sent in its COOKIE, or 0 in an OPEN before that.
    pub cookie: U64,
    /// The client's incarnation: a random number drawn each time the client starts.
    pub incarnation: U64,
}

/// The body of a COOKIE, the server's answer to an OPEN without a cookie.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct CookieBody {
    /// The time at which the server made the cookie, in units of its own.
    pub epoch: U32,
    /// Padding of a COOKIE's body, which is zero.
    pub padding: U32,
    /// The cookie that the client sends back in its next OPEN.
    pub cookie: U64,
}

/// The body of an ACCEPT, the packet by which a server opens a session.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct AcceptBody {
    /// The server's name for the RPC session.
    pub session: U32,
    /// The number of payload bytes in every packet of a message but its last.
    pub mss: U32,
    /// The number of bytes of a request that the client may send without a grant.
    pub unscheduled: U32,
    /// Padding of an ACCEPT's body, which is zero.
    pub padding: U32,
    /// The secret of the RPC session, drawn by the server.
    pub token: U64,
    /// The server's incarnation: a random number drawn each time the server starts.
    pub incarnation: U64,
}

/// The body of a PROBE, the packet by which a client asks for the state of its request.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct ProbeBody {
    /// The client's name for the RPC session, for an answer of a server that does not know it.
    pub client: U32,
    /// The number of bytes of the reply that the client has received without a gap.
    pub received: U32,
    /// The number of bytes of the reply up to which the server may send.
    pub granted: U32,
}

/// The entry of one session in the body of a DONE. It is followed by as many request numbers (u32)
/// as bits are set in `channels`, lowest channel first.
#[derive(
    Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DoneEntry {
    /// The server's name for the RPC session.
    pub session: U32,
    /// The secret of the RPC session.
    pub token: U64,
    /// A bit for each channel of the session whose reply the client has received.
    pub channels: u8,
    /// Padding of a DONE's entry, which is zero.
    pub padding: [u8; 3],
}

const _: () = assert!(size_of::<OpenBody>() >= size_of::<AcceptBody>());
const _: () = assert!(size_of::<OpenBody>() >= size_of::<CookieBody>());
