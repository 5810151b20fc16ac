//! A round of scrubbing: which replica is verified, and when the next one is.

use sprat_proto::Instant;

use super::header::FrameHeader;
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The replica that is verified, and the time of the next one.
#[derive(Debug)]
pub(super) struct Round {
    /// The time in which each closed replica is verified once. `None`: none is.
    pub(super) ns: Option<u64>,
    /// The replica that is verified, with the header that its frame has to have.
    pub(super) running: Option<((ServerId, SegmentId), FrameHeader)>,
    /// The replica that was verified last.
    pub(super) last: (ServerId, SegmentId),
    pub(super) due: Instant,
    pub(super) counts: Scrubbed,
}

/// The numbers of what was verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Scrubbed {
    /// The bytes of replicas.
    pub(crate) bytes: u64,
    /// The replicas that were not as they were written, or whose headers were not.
    pub(crate) damaged: u64,
}

impl Round {
    pub(super) fn new() -> Self {
        let last = (ServerId::default(), SegmentId(0));
        let counts = Scrubbed::default();
        Self { ns: None, running: None, last, due: Instant::NEVER, counts }
    }
}
