//! The state of cleaning with a helper, a thread of the host that copies entries ([`super::job`]).

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::job::{Copier, Source};
use crate::objects::segment::SegmentId;
use crate::types::WallTime;

/// The smallest log, job and free memory for which a helper is of use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worth {
    /// The segments that the log may have.
    pub segments: u32,
    /// The live bytes of the segments that a job cleans, in percent of a segment.
    pub percent: u32,
    /// The free memory beyond what the cleaner keeps free, in quarters of a segment.
    pub quarters: u32,
}

impl Worth {
    /// The smallest ones of a server. In a smaller log, the segments that a job keeps are a large
    /// share. The survivor of a job should be full, and its memory must not delay writes.
    pub const SERVER: Self = Self { segments: 256, percent: 100, quarters: 5 };
}

/// The maximum of sources of a job. Segments with less in them are cleaned as fast without help.
pub(super) const MOST_SOURCES: usize = 4;

/// The state of cleaning with a helper.
#[derive(Debug, Default)]
pub(super) struct Help {
    pub(super) helper: Option<Box<dyn Copier>>,
    pub(super) worth: Worth,
    pub(super) stage: Stage,
    /// The slot of a source that is copied in part, and the offset of the rest.
    pub(super) rest: Option<(u32, usize)>,
    /// True if the chosen segments are enough for a job.
    pub(super) ready: bool,
    /// [`Log::clock`](crate::objects::log::Log::clock) before which there is no other job.
    pub(super) not_before: u32,
    /// The written bytes at which the cleaner looks for the end of the job again.
    pub(super) look_at: u64,
    /// The number of survivors that a helper has filled.
    pub(super) filled: u64,
}

#[derive(Debug, Default)]
pub(super) enum Stage {
    #[default]
    None,
    /// The helper fills the survivor `twin` since the log's clock showed `since`, and `written`
    /// bytes were written.
    Away { twin: SegmentId, since: u32, written: u64 },
    /// The table has to point to the copies.
    Copied(Box<Copied>),
}

/// The copies of a job, and how far the table points to them.
#[derive(Debug)]
pub(super) struct Copied {
    /// The slot of the survivor.
    pub(super) slot: u32,
    /// The earliest time at which one of the copied objects expires.
    pub(super) expires: WallTime,
    pub(super) sources: Vec<Source>,
    /// The source and the find in it that come next, and the offset of its copy.
    pub(super) source: usize,
    pub(super) find: usize,
    pub(super) to: usize,
    /// The number of bytes of the present source that are done.
    pub(super) passed: u64,
}

impl Help {
    /// Returns true if the table has to point to copies.
    #[inline]
    pub(super) fn has_copies(&self) -> bool {
        matches!(self.stage, Stage::Copied(_))
    }

    /// Returns true if there is work before or in the next job: the rest of a source that is too
    /// little for one, or a scan if something `changed`.
    #[inline]
    pub(super) fn has_use(&self, changed: bool) -> bool {
        self.ready || self.rest.is_some() || changed
    }

    /// Returns true if there is a helper and the log may have enough `segments` for one.
    #[inline]
    pub(super) fn is_used(&self, segments: u32) -> bool {
        self.helper.is_some() && segments >= self.worth.segments
    }

    /// Returns the number of segments that a scan of a log of at most `segments` has to choose at
    /// least: those of a job, if a helper is used.
    pub(super) fn least_chosen(&self, segments: u32) -> usize {
        if self.is_used(segments) { MOST_SOURCES } else { 1 }
    }

    /// Returns true if a helper has a job.
    #[inline]
    pub(super) fn is_away(&self) -> bool {
        matches!(self.stage, Stage::Away { .. })
    }

    /// Returns the number of bytes that have been passed of sources that are not freed yet.
    pub(super) fn passed(&self) -> u64 {
        let rest = self.rest.map_or(0, |(_, offset)| offset as u64);
        let Stage::Copied(copied) = &self.stage else { return rest };
        let source = copied.sources.get(copied.source);
        rest + copied.passed + source.map_or(0, |source| source.from as u64)
    }
}
