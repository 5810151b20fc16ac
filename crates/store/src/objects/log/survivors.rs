//! The open survivor segments of a log, and where they end.
//!
//! `sorting` chooses the survivor for an entry.

use crate::objects::segment::{Position, SegmentId};

/// The number of kinds of survivors: for young and for old entries.
pub(super) const KINDS: usize = 2;

/// The place in [`Ends`] of the survivor that a helper of the cleaner has filled.
pub(super) const HELPED: usize = KINDS;

/// The ends of the open survivors: the position behind the last entry in each. It is the default
/// where none is open. The last one is the end of a survivor that a helper has filled.
pub(super) type Ends = [Position; KINDS + 1];

/// The open survivors of a log.
#[derive(Debug, Default)]
pub(super) struct Survivors {
    /// The slots of the survivors for young and for old entries.
    pub(super) open: [Option<u32>; KINDS],
    /// The survivor among them that takes the next entries.
    pub(super) current: usize,
    /// The number of segments from which on the log has a survivor for old entries.
    pub(super) sorted_from: u32,
    /// The mean of the segments in which the entries were written that are being moved.
    pub(super) born: SegmentId,
}
