//! Acknowledgements of placed Writes between two engines of this kind. An empty Write carries them:
//! receivers do not check its STag and tagged offset (RFC 5041 section 5.2), so it has no effect on
//! other peers. `docs/formats.md` ("Placed Writes") is normative.
//!
//! ```text
//!  STag  u32 0x53707261        TO  u64 hello(1 << 63) ack request(1 << 62) reserved(6) count(56)
//! ```
//!
//! Invariant: [`WriteAck::parse`] reads back the header that [`WriteAck::header`] creates. Reserved
//! bits are written as zero and ignored.
//!
//! Not here: the times at which acknowledgements are sent.

use super::ddp::{Buffer, Header};
use super::rdmap::Opcode;

/// The steering tag of an empty Write that carries an acknowledgement of placed Writes.
pub const STAG: u32 = 0x5370_7261;
const HELLO: u64 = 1 << 63;
const ACK_REQUEST: u64 = 1 << 62;
/// The bits of the tagged offset that hold the count of placed Writes.
const COUNT: u64 = (1 << 56) - 1;

/// An acknowledgement of placed Writes, a request for one, or a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteAck {
    /// The sender acknowledges placed Writes on request, and requests acknowledgements if the peer
    /// sends a hello too.
    pub hello: bool,
    /// The sender requests an acknowledgement of its Writes.
    pub ack_request: bool,
    /// The number of the receiver's Writes that the sender has placed since the stream began.
    pub count: u64,
}

impl WriteAck {
    /// The DDP header of the empty Write that carries this acknowledgement.
    #[must_use]
    pub const fn header(self) -> Header {
        let flags =
            if self.hello { HELLO } else { 0 } | if self.ack_request { ACK_REQUEST } else { 0 };
        let buffer = Buffer::Tagged { stag: STAG, to: flags | (self.count & COUNT) };
        Header { last: true, control: Opcode::Write.control(), buffer }
    }

    /// Parses the DDP header of an empty segment as an acknowledgement of placed Writes. Returns
    /// `None` for any other segment.
    #[must_use]
    pub const fn parse(header: &Header) -> Option<Self> {
        match header.buffer {
            Buffer::Tagged { stag: STAG, to } if header.last => Some(Self {
                hello: to & HELLO != 0,
                ack_request: to & ACK_REQUEST != 0,
                count: to & COUNT,
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ddp;

    /// Acknowledgements of placed Writes are emitted as golden bytes, which are made by hand from
    /// docs/formats.md.
    #[test]
    fn golden() {
        for (said, bytes) in [
            (
                WriteAck { hello: true, ack_request: false, count: 0 },
                "c140537072618000000000000000",
            ),
            (
                WriteAck { hello: false, ack_request: true, count: 0 },
                "c140537072614000000000000000",
            ),
            (
                WriteAck { hello: false, ack_request: false, count: 0x0102_0304 },
                "c140537072610000000001020304",
            ),
            (
                WriteAck { hello: false, ack_request: true, count: COUNT },
                "c1405370726140ffffffffffffff",
            ),
        ] {
            let header = said.header();
            let hex: String =
                header.emit().iter().map(|byte| alloc::format!("{byte:02x}")).collect();
            assert_eq!(hex, bytes);
            assert_eq!(WriteAck::parse(&ddp::parse(&header.emit()).unwrap()), Some(said));
        }
    }

    #[test]
    fn other_segments_say_nothing_and_reserved_bits_are_not_looked_at() {
        let header = |stag, to, last| {
            let buffer = Buffer::Tagged { stag, to };
            WriteAck::parse(&Header { last, control: Opcode::Write.control(), buffer })
        };
        assert_eq!(
            header(STAG, 0x3f00_0000_0000_0005, true),
            Some(WriteAck { count: 5, ..WriteAck::default() })
        );
        assert_eq!(header(STAG ^ 1, 5, true), None);
        assert_eq!(header(STAG, 5, false), None);
    }

    use alloc::string::String;
}
