//! Causes of a Terminate: the tables of RFC 5040 figure 9, RFC 5041 section 7.2, RFC 5044 section 8
//! and RFC 6581.

use core::fmt;

use crate::wire::ddp;

/// The cause of a Terminate: layer, type and code, written as `1/1/00`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Cause {
    /// The layer of a Terminate's cause: 0 is RDMAP, 1 is DDP, 2 is the layer below (MPA).
    pub layer: u8,
    /// The error type of a Terminate's cause, 4 bits.
    pub etype: u8,
    /// The error code of a Terminate's cause.
    pub code: u8,
}

macro_rules! causes {
    ($(
        $(#[$doc:meta])+
        $name:ident = $layer:literal / $etype:literal / $code:literal, $text:literal;
    )+) => {
        impl Cause {
            $(
                $(#[$doc])+
                pub const $name: Self = Self { layer: $layer, etype: $etype, code: $code };
            )+

            /// The name of a Terminate's cause, or `None` for a number that no RFC assigns.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some($text),)+
                    _ => None,
                }
            }

            /// All causes of a Terminate that have a name.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

causes! {
    /// The sender of the Terminate failed locally. The code can stand for any error.
    LOCAL = 0 / 0 / 0x00, "local catastrophic error";

    /// The STag of a Read's source or of an Atomic's word does not exist.
    INVALID_STAG = 0 / 1 / 0x00, "invalid STag";
    /// A Read's source or an Atomic's word is outside of its region.
    BOUNDS = 0 / 1 / 0x01, "base or bounds violation";
    /// The memory region does not grant the rights that a Read or Atomic needs.
    ACCESS = 0 / 1 / 0x02, "access rights violation";
    /// The STag of a Read's source or of an Atomic's word belongs to another protection domain or
    /// stream.
    NOT_ASSOCIATED = 0 / 1 / 0x03, "STag not associated with the stream";
    /// The end of a Read's source or of an Atomic's word is above 2⁶⁴.
    TO_WRAP = 0 / 1 / 0x04, "tagged offset wraps";
    /// The peer may not invalidate the STag of a Send with Invalidate.
    CANNOT_INVALIDATE = 0 / 1 / 0x09, "STag cannot be invalidated";
    /// A protection error of RDMAP that no other code names.
    PROTECTION = 0 / 1 / 0xff, "unspecified protection error";

    /// The RDMAP version of a message is unknown.
    VERSION = 0 / 2 / 0x05, "invalid RDMAP version";
    /// The RDMAP opcode is unknown or not expected in this header or queue.
    OPCODE = 0 / 2 / 0x06, "unexpected opcode";
    /// The RDMAP stream cannot go on, for example after a misaligned Atomic.
    STREAM = 0 / 2 / 0x07, "catastrophic error of the stream";
    /// No RDMAP stream between the two peers can go on.
    GLOBAL = 0 / 2 / 0x08, "catastrophic error of all streams";
    /// The peer may not invalidate the STag of a Send with Invalidate. Linux's siw sends this
    /// cause, with another error type than [`Self::CANNOT_INVALIDATE`].
    CANNOT_INVALIDATE_OPERATION = 0 / 2 / 0x09, "STag cannot be invalidated";
    /// An error in an RDMAP message that no other code names, for example a wrong length.
    OPERATION = 0 / 2 / 0xff, "unspecified operation error";

    /// DDP cannot go on, for example after a ULPDU that is shorter than its header.
    DDP_LOCAL = 1 / 0 / 0x00, "DDP catastrophic error";

    /// The STag of a Write's sink does not exist, or does not allow Writes, for which DDP has no
    /// code.
    TAGGED_STAG = 1 / 1 / 0x00, "tagged: invalid STag";
    /// A Write's sink is outside of its region.
    TAGGED_BOUNDS = 1 / 1 / 0x01, "tagged: base or bounds violation";
    /// The STag of a Write's sink belongs to another protection domain or stream.
    TAGGED_NOT_ASSOCIATED = 1 / 1 / 0x02, "tagged: STag not associated with the stream";
    /// The end of a Write's sink is above 2⁶⁴.
    TAGGED_WRAP = 1 / 1 / 0x03, "tagged: offset wraps";
    /// The DDP version of a tagged segment is unknown.
    TAGGED_VERSION = 1 / 1 / 0x04, "tagged: invalid DDP version";

    /// The number of the untagged DDP queue is unknown.
    UNTAGGED_QN = 1 / 2 / 0x01, "untagged: invalid queue number";
    /// No receive is posted for the untagged message.
    UNTAGGED_NO_BUFFER = 1 / 2 / 0x02, "untagged: no buffer for this message";
    /// The number of the untagged message is not expected.
    UNTAGGED_MSN = 1 / 2 / 0x03, "untagged: message number out of range";
    /// The message offset of an untagged segment is beyond the buffer.
    UNTAGGED_MO = 1 / 2 / 0x04, "untagged: invalid message offset";
    /// The untagged message is longer than its buffer.
    UNTAGGED_TOO_LONG = 1 / 2 / 0x05, "untagged: message too long for its buffer";
    /// The DDP version of an untagged segment is unknown.
    UNTAGGED_VERSION = 1 / 2 / 0x06, "untagged: invalid DDP version";

    /// The TCP connection is lost.
    MPA_LOST = 2 / 0 / 0x01, "connection lost";
    /// The CRC of an FPDU is wrong.
    MPA_CRC = 2 / 0 / 0x02, "CRC error";
    /// A marker and the length of an FPDU disagree.
    MPA_MARKER = 2 / 0 / 0x03, "marker and length do not agree";
    /// An MPA start-up frame is invalid.
    MPA_START = 2 / 0 / 0x04, "invalid start-up frame";
    /// An error in an enhanced MPA start-up that no other code names.
    MPA_LOCAL = 2 / 0 / 0x05, "local error at start-up";
    /// The peer requires a higher depth of inbound Reads (IRD) than this end offers.
    MPA_DEPTH = 2 / 0 / 0x06, "insufficient IRD";
    /// The two ends of an MPA start-up have no kind of ready-to-receive frame in common.
    MPA_RTR = 2 / 0 / 0x07, "no common RTR frame";
}

impl Cause {
    /// The number of the layer RDMAP in a Terminate.
    pub const RDMAP: u8 = 0;
    /// The number of the layer DDP in a Terminate.
    pub const DDP: u8 = 1;
    /// The number of the layer MPA in a Terminate.
    pub const MPA: u8 = 2;

    /// True if a Terminate with this cause includes the header of the segment: for DDP's errors,
    /// and RDMAP's errors that are not local.
    #[must_use]
    pub const fn shows_header(self) -> bool {
        matches!((self.layer, self.etype), (Self::DDP, _) | (Self::RDMAP, 1..))
    }

    /// True for causes of a Terminate that concern STags, bounds and rights, which verbs call
    /// remote access errors. All others are remote operation errors.
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
            // The RFCs name no code for it.
            ddp::HeaderError::Short => Self::DDP_LOCAL,
            ddp::HeaderError::TaggedVersion => Self::TAGGED_VERSION,
            ddp::HeaderError::UntaggedVersion => Self::UNTAGGED_VERSION,
        }
    }
}
