//! Why a stream was terminated: the table of RFC 5040 figure 9, RFC 5041 section 7.2, RFC 5044 section 8 and RFC 6581.

use core::fmt;

use crate::wire::ddp;

/// Why a stream is terminated: layer, type and code, written as `1/1/00`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cause {
    /// 0 RDMAP, 1 DDP, 2 what is below (MPA).
    pub layer: u8,
    /// The type of error, 4 bits.
    pub etype: u8,
    /// Which.
    pub code: u8,
}

macro_rules! causes {
    ($($(#[$doc:meta])+ $name:ident = $layer:literal / $etype:literal / $code:literal, $text:literal;)+) => {
        impl Cause {
            $($(#[$doc])+ pub const $name: Self = Self { layer: $layer, etype: $etype, code: $code };)+

            /// What it is called; None for a number that no RFC has given out.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($text),)+
                    _ => None,
                }
            }

            /// Every cause that has a name.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

causes! {
    /// The sender of the Terminate itself failed. It stands for any code.
    LOCAL = 0 / 0 / 0x00, "local catastrophic error";

    /// Source of a Read or word of an Atomic: no such STag.
    INVALID_STAG = 0 / 1 / 0x00, "invalid STag";
    /// The same: outside of its region.
    BOUNDS = 0 / 1 / 0x01, "base or bounds violation";
    /// The same: the right is missing.
    ACCESS = 0 / 1 / 0x02, "access rights violation";
    /// The same: an STag of another protection domain or stream.
    NOT_ASSOCIATED = 0 / 1 / 0x03, "STag not associated with the stream";
    /// The same: the end is behind 2⁶⁴.
    TO_WRAP = 0 / 1 / 0x04, "tagged offset wraps";
    /// The STag of a Send with Invalidate is not one that the peer may invalidate.
    CANNOT_INVALIDATE = 0 / 1 / 0x09, "STag cannot be invalidated";
    /// Any other error of protection.
    PROTECTION = 0 / 1 / 0xff, "unspecified protection error";

    /// Another RDMAP version.
    VERSION = 0 / 2 / 0x05, "invalid RDMAP version";
    /// An opcode that is not known, or not expected there.
    OPCODE = 0 / 2 / 0x06, "unexpected opcode";
    /// The stream cannot go on: misaligned Atomics among others.
    STREAM = 0 / 2 / 0x07, "catastrophic error of the stream";
    /// No stream can go on.
    GLOBAL = 0 / 2 / 0x08, "catastrophic error of all streams";
    /// [`Self::CANNOT_INVALIDATE`] in the type that siw sends.
    CANNOT_INVALIDATE_OPERATION = 0 / 2 / 0x09, "STag cannot be invalidated";
    /// Any other error in a message: a length that is not its own among others.
    OPERATION = 0 / 2 / 0xff, "unspecified operation error";

    /// DDP cannot go on: a ULPDU too short for its header among others.
    DDP_LOCAL = 1 / 0 / 0x00, "DDP catastrophic error";

    /// Sink of a Write: no such STag, or the right is missing (for which DDP has no code).
    TAGGED_STAG = 1 / 1 / 0x00, "tagged: invalid STag";
    /// The same: outside of its region.
    TAGGED_BOUNDS = 1 / 1 / 0x01, "tagged: base or bounds violation";
    /// The same: an STag of another protection domain or stream.
    TAGGED_NOT_ASSOCIATED = 1 / 1 / 0x02, "tagged: STag not associated with the stream";
    /// The same: the end is behind 2⁶⁴.
    TAGGED_WRAP = 1 / 1 / 0x03, "tagged: offset wraps";
    /// Another DDP version.
    TAGGED_VERSION = 1 / 1 / 0x04, "tagged: invalid DDP version";

    /// No such queue.
    UNTAGGED_QN = 1 / 2 / 0x01, "untagged: invalid queue number";
    /// No receive is posted for it.
    UNTAGGED_NO_BUFFER = 1 / 2 / 0x02, "untagged: no buffer for this message";
    /// The message's number is not one that can come.
    UNTAGGED_MSN = 1 / 2 / 0x03, "untagged: message number out of range";
    /// The offset is behind the buffer.
    UNTAGGED_MO = 1 / 2 / 0x04, "untagged: invalid message offset";
    /// The message is longer than its buffer.
    UNTAGGED_TOO_LONG = 1 / 2 / 0x05, "untagged: message too long for its buffer";
    /// Another DDP version.
    UNTAGGED_VERSION = 1 / 2 / 0x06, "untagged: invalid DDP version";

    /// The TCP connection is gone.
    MPA_LOST = 2 / 0 / 0x01, "connection lost";
    /// An FPDU's CRC is wrong.
    MPA_CRC = 2 / 0 / 0x02, "CRC error";
    /// A Marker and the FPDU's length do not agree.
    MPA_MARKER = 2 / 0 / 0x03, "marker and length do not agree";
    /// A start-up frame is not valid.
    MPA_START = 2 / 0 / 0x04, "invalid start-up frame";
    /// Any other failure of an enhanced start-up.
    MPA_LOCAL = 2 / 0 / 0x05, "local error at start-up";
    /// The peer's read depths cannot be met.
    MPA_DEPTH = 2 / 0 / 0x06, "insufficient IRD";
    /// No form of the first frame is known to both.
    MPA_RTR = 2 / 0 / 0x07, "no common RTR frame";
}

impl Cause {
    /// The layer RDMAP.
    pub const RDMAP: u8 = 0;
    /// The layer DDP.
    pub const DDP: u8 = 1;
    /// The layer below DDP: MPA.
    pub const MPA: u8 = 2;

    /// The header of the segment that caused it goes along: errors of DDP, and those of RDMAP that are not local.
    #[must_use]
    pub const fn shows_header(self) -> bool {
        matches!((self.layer, self.etype), (Self::DDP, _) | (Self::RDMAP, 1..))
    }

    /// It is about STags, bounds or rights (verbs call that a remote access error; anything else is a remote operation error).
    #[must_use]
    pub const fn is_access(self) -> bool {
        matches!((self.layer, self.etype), (Self::RDMAP | Self::DDP, 1))
            && !matches!(self, Self::TAGGED_VERSION)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{:02x}", self.layer, self.etype, self.code)?;
        self.name().map_or(Ok(()), |name| write!(f, " ({name})"))
    }
}

impl From<ddp::HeaderError> for Cause {
    fn from(bad: ddp::HeaderError) -> Self {
        match bad {
            // No code is named for it.
            ddp::HeaderError::Short => Self::DDP_LOCAL,
            ddp::HeaderError::TaggedVersion => Self::TAGGED_VERSION,
            ddp::HeaderError::UntaggedVersion => Self::UNTAGGED_VERSION,
        }
    }
}
