//! The entries of another log that a recovery adds to this one.
//!
//! They go to survivor segments, which need no order: neither do they wait for the head, nor the
//! head for them. A digest names these segments after the last entry. Until then a crash of this
//! server loses them, and the recovery starts again elsewhere.

use super::{Full, Log, Purpose, REMOVALS, SURVIVORS};
use crate::objects::segment::{Position, SegmentId};

impl Log {
    /// Closes the head and the survivor segments, so that all later entries are in later segments.
    /// Returns the id of the last segment before.
    ///
    /// # Errors
    /// [`Full::NoSegment`], and nothing changed.
    pub fn begin_side(&mut self) -> Result<SegmentId, Full> {
        if self.available() <= SURVIVORS + REMOVALS || self.last_id.0 == u32::MAX {
            return Err(Full::NoSegment);
        }
        self.close_survivors();
        let last = self.last_id;
        self.close_head();
        self.advance(0, usize::MAX, Purpose::Write)?;
        Ok(last)
    }

    /// Opens a new head whose header has the present safe version, if that of the present one is
    /// lower and the log has replicas. The versions of objects that were removed in the other log
    /// may be in no entry here.
    ///
    /// # Errors
    /// [`Full::NoSegment`], and nothing changed.
    pub fn keep_safe_version(&mut self) -> Result<(), Full> {
        if !self.is_replicated() || self.head_version >= self.safe_version {
            return Ok(());
        }
        if self.available() <= SURVIVORS + REMOVALS || self.last_id.0 == u32::MAX {
            return Err(Full::NoSegment);
        }
        self.close_head();
        self.advance(0, usize::MAX, Purpose::Write).map(|_| ())
    }

    /// Lets the next change of the digest name all survivor segments up to their present end, once
    /// all replicas have that.
    pub fn end_side(&mut self) {
        let ends = self.survivor_ends();
        if let Some(replicated) = &mut self.replicated {
            (replicated.adopting, replicated.adopted) = (Some(ends), None);
        }
    }

    /// Returns true if a durable digest names what [`Log::end_side`] was called for.
    #[must_use]
    pub fn is_side_durable(&self) -> bool {
        let adopted = |end: Position| end <= self.durable;
        self.replicated.as_ref().is_none_or(|replicated| replicated.adopted.is_some_and(adopted))
    }
}
