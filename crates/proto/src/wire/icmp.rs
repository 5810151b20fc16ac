//! ICMP messages (RFC 792): echo, and the errors that a host sends and handles.
//!
//! ```text
//!  0 u8 type   1 u8 code   2 u16 checksum of the message
//!  echo 8, reply 0   4 u16 identifier   6 u16 sequence number   8 data
//!  unreachable 3     4 u16 zero   6 u16 next-hop MTU, if code is 4 (RFC 1191)
//!                    8 the packet's header and the bytes after it
//! ```
//!
//! Always: [`Icmp::parse`] reads back what [`Icmp::emit`] writes with its data behind it, and
//! verifies the checksum.

use super::checksum::Sum;

/// The length of an ICMP header in bytes. The data of an echo or the packet of an error follows it.
pub const HEADER: usize = 8;

/// The type of the ICMP error "time exceeded".
pub const TIME_EXCEEDED: u8 = 11;
/// The type of the ICMP error "parameter problem".
pub const PARAMETER_PROBLEM: u8 = 12;
/// The code of the ICMP error "destination unreachable" about a protocol that the host has not.
pub const PROTOCOL_CODE: u8 = 2;

const REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO: u8 = 8;
const PORT: u8 = 3;
const TOO_BIG: u8 = 4;

/// The header of an ICMP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Icmp {
    /// An ICMP echo request.
    Echo {
        /// The identifier that the sender of the echo request chose.
        ident: u16,
        /// The sequence number of the echo request.
        seq: u16,
    },
    /// An ICMP echo reply.
    Reply {
        /// The identifier of the echo request that this reply answers.
        ident: u16,
        /// The sequence number of the echo request that this reply answers.
        seq: u16,
    },
    /// The ICMP error "port unreachable".
    PortUnreachable,
    /// The ICMP error "fragmentation needed": a packet that must not be fragmented is too big for a
    /// link.
    TooBig {
        /// The MTU in bytes of the link that the packet was too big for; 0 if the router does not
        /// report it.
        mtu: u16,
    },
    /// The ICMP error "destination unreachable" with another code than "port unreachable" and
    /// "fragmentation needed".
    Unreachable {
        /// The ICMP code of the error "destination unreachable".
        code: u8,
    },
    /// An ICMP message of a type that the host does not handle. The value is the type.
    Other(u8),
}

/// The reason why bytes are not a valid ICMP message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IcmpParseError {
    /// The ICMP message is shorter than its header.
    Length,
    /// The checksum of the ICMP message is wrong.
    Checksum,
}

impl Icmp {
    /// Parses an ICMP message. Returns its header and the data behind it.
    ///
    /// # Errors
    /// [`IcmpParseError`] if the message is too short or damaged.
    pub fn parse(message: &[u8]) -> Result<(Self, &[u8]), IcmpParseError> {
        let (&[kind, code, _, _, a, b, c, d], data) =
            message.split_first_chunk::<HEADER>().ok_or(IcmpParseError::Length)?;
        if Sum::new().bytes(message).checksum() != 0 {
            return Err(IcmpParseError::Checksum);
        }
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let message = match (kind, code) {
            (ECHO, 0) => Self::Echo { ident: first, seq: second },
            (REPLY, 0) => Self::Reply { ident: first, seq: second },
            (UNREACHABLE, PORT) => Self::PortUnreachable,
            (UNREACHABLE, TOO_BIG) => Self::TooBig { mtu: second },
            (UNREACHABLE, code) => Self::Unreachable { code },
            _ => Self::Other(kind),
        };
        Ok((message, data))
    }

    /// Returns the ICMP header in wire format, for a message with `data` behind it.
    #[must_use]
    pub fn emit(&self, data: &[u8]) -> [u8; HEADER] {
        let (kind, code, first, second) = match *self {
            Self::Echo { ident, seq } => (ECHO, 0, ident, seq),
            Self::Reply { ident, seq } => (REPLY, 0, ident, seq),
            Self::PortUnreachable => (UNREACHABLE, PORT, 0, 0),
            Self::TooBig { mtu } => (UNREACHABLE, TOO_BIG, 0, mtu),
            Self::Unreachable { code } => (UNREACHABLE, code, 0, 0),
            Self::Other(kind) => (kind, 0, 0, 0),
        };
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        let [high, low] =
            Sum::new().bytes(&[kind, code, 0, 0, a, b, c, d]).bytes(data).checksum().to_be_bytes();
        [kind, code, high, low, a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
    /// Headers of ICMP messages that Linux 6 sent: an echo request, its reply, and the error about
    /// a closed port.
    const REQUEST: [u8; HEADER] = [8, 0, 0xd9, 0xba, 0x12, 0x34, 0, 1];
    const ANSWER: [u8; HEADER] = [0, 0, 0xe1, 0xba, 0x12, 0x34, 0, 1];
    const CLOSED: [u8; HEADER] = [3, 3, 0x26, 0x42, 0, 0, 0, 0];
    /// The packet that the captured ICMP error "port unreachable" quotes.
    const QUOTED: [u8; 33] = [
        0x45, 0, 0, 0x21, 0xe9, 0x8c, 0x40, 0, 0x40, 0x11, 0x3d, 0x2f, 10, 7, 0, 1, 10, 7, 0, 2,
        0x12, 0x34, 0x56, 0x78, 0, 0x0d, 0x14, 0x2f, 0x73, 0x70, 0x72, 0x61, 0x74,
    ];

    #[test]
    fn golden() {
        let (ident, seq) = (0x1234, 1);
        let cases = [
            (REQUEST, &DATA[..], Icmp::Echo { ident, seq }),
            (ANSWER, &DATA, Icmp::Reply { ident, seq }),
            (CLOSED, &QUOTED, Icmp::PortUnreachable),
        ];
        for (header, data, message) in cases {
            let bytes = [&header, data].concat();
            assert_eq!(Icmp::parse(&bytes), Ok((message, data)));
            assert_eq!(message.emit(data), header);
        }
    }

    #[test]
    fn parse_reads_back_what_emit_writes() {
        for message in [Icmp::TooBig { mtu: 1400 }, Icmp::Unreachable { code: 1 }, Icmp::Other(11)]
        {
            let bytes = [&message.emit(&DATA[..7])[..], &DATA[..7]].concat();
            assert_eq!(Icmp::parse(&bytes), Ok((message, &DATA[..7])));
        }
    }

    #[test]
    fn damaged_and_short_messages_are_rejected() {
        let bytes = [REQUEST, DATA].concat();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x20;
            assert_eq!(Icmp::parse(&bad), Err(IcmpParseError::Checksum), "byte {at}");
        }
        assert!((0..HEADER).all(|len| Icmp::parse(&bytes[..len]) == Err(IcmpParseError::Length)));
    }
}
