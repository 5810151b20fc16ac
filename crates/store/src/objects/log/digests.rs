//! The digest of a log with replicas: which segments it names, and which may leave it.
//!
//! Invariants: a segment in the digest has all its entries in its replicas, up to the named length.
//! Segments leave in the order in which they were cleaned.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::survivors::Ends;
use crate::objects::entry::DIGESTED;
use crate::objects::segment::{Position, SegmentId, Span};

/// The number of bytes before the segments of a digest.
pub(super) const DIGEST_HEAD: usize = 8;
/// A digest takes at most this share of a segment.
const DIGEST_SHARE: u32 = 4;
/// The number of segments that a digest may name for each segment of the log: those that were
/// cleaned stay for a while.
pub(super) const NAMED: u32 = 2;

/// The state of a log that has replicas.
#[derive(Debug, Default)]
pub(super) struct Replicated {
    /// The segments that the digest names, with the least length of each; not the head.
    pub(super) named: BTreeMap<SegmentId, u32>,
    /// The survivors that the digest does not name with their final lengths.
    pub(super) survivors: BTreeMap<SegmentId, Survivor>,
    /// The cleaned segments that the digest names, and the ends of the survivors behind the last
    /// entry that was moved out of each.
    pub(super) leaving: VecDeque<(SegmentId, Ends)>,
    /// The segments that the digest no longer names, and the end of the entry that says so.
    pub(super) left: VecDeque<(SegmentId, Position)>,
    /// The segments of `leaving` and `left`.
    pub(super) lingering: BTreeSet<SegmentId>,
    /// The segments in which the log was opened, for `Log::take_opened`.
    pub(super) opened: VecDeque<Opened>,
    /// The segments that no durable digest names, for `Log::take_freed`.
    pub(super) freed: VecDeque<SegmentId>,
    /// The ends up to which the next digest has to name the survivors.
    pub(super) adopting: Option<Ends>,
    /// The end of the entry that did so.
    pub(super) adopted: Option<Position>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Survivor {
    /// The number of bytes that all replicas have.
    pub(super) durable: u32,
    /// The length of the survivor once it is closed and all replicas have all of it.
    pub(super) whole: Option<u32>,
}

/// A segment that was opened and needs replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The id of the opened segment.
    pub id: SegmentId,
    /// The slot of the opened segment.
    pub slot: u32,
    /// True if the cleaner fills the segment.
    pub survivor: bool,
    /// The length of the header and the digest of a head, which open its replicas.
    pub front: u32,
}

/// Returns the last segment of these ends.
fn last(ends: &Ends) -> SegmentId {
    ends.iter().map(|end| end.segment).max().unwrap_or_default()
}

/// Returns the later ends of two, each of which were those of the open survivors at some time.
fn later(a: Ends, b: Ends) -> Ends {
    core::array::from_fn(|kind| a[kind].max(b[kind]))
}

impl Replicated {
    /// Returns the most segments of a log with replicas, so that its digest fits into a segment.
    pub(super) fn most_segments(segment_bytes: u32) -> u32 {
        let bytes = segment_bytes / DIGEST_SHARE - DIGEST_HEAD as u32;
        bytes / DIGESTED as u32 / NAMED
    }

    /// Returns the span of the lingering segments in `span`.
    pub(super) fn lingering_in(&self, span: Span) -> Span {
        let mut left = self.lingering.range(span.first..=span.last);
        match left.next() {
            None => Span::default(),
            Some(&first) => Span { first, last: left.next_back().copied().unwrap_or(first) },
        }
    }

    /// Returns ends that all replicas have once they have all of the survivors that are not
    /// settled, of which none is open.
    pub(super) fn survivors_end(&self) -> Ends {
        let mut ends = Ends::default();
        if let Some((&segment, _)) = self.survivors.last_key_value() {
            ends[0] = Position { segment, offset: u32::MAX };
        }
        ends
    }

    /// Returns true if all replicas have what was in the survivors when these were the ends of
    /// those that were open.
    pub(super) fn has_survived(&self, ends: &Ends) -> bool {
        self.survivors.range(..=last(ends)).all(|(&id, survivor)| {
            let is_there = |end: &Position| end.segment == id && survivor.durable >= end.offset;
            survivor.whole.is_some() || ends.iter().any(is_there)
        })
    }

    /// Returns the ends of [`Self::adopting`] if all replicas have the entries up to them.
    pub(super) fn adoptable(&self) -> Option<Ends> {
        self.adopting.filter(|ends| self.has_survived(ends))
    }

    /// Takes segments that may leave the digest, at most `most`, and names the survivors that have
    /// their entries, and those of a recovery. Returns the segments by which the digest changes.
    pub(super) fn change(&mut self, most: usize) -> Vec<(SegmentId, u32)> {
        let mut changed = Vec::new();
        let mut survived = Ends::default();
        let mut gone = Vec::new();
        while gone.len() < most
            && let Some(&(id, ends)) = self.leaving.front()
            && self.has_survived(&ends)
        {
            self.leaving.pop_front();
            survived = later(survived, ends);
            gone.push(id);
        }
        survived = later(survived, self.adoptable().unwrap_or_default());
        let named = self.survivors.range(..=last(&survived)).filter_map(|(&id, survivor)| {
            let end = survived.iter().find(|end| end.segment == id).map(|end| end.offset);
            Some((id, survivor.whole.or(end)?, survivor.whole))
        });
        let named: Vec<_> = named.collect();
        for (id, len, whole) in named {
            if self.named.insert(id, len) != Some(len) {
                changed.push((id, len));
            }
            if whole.is_some() {
                self.survivors.remove(&id);
            }
        }
        for id in gone {
            self.named.remove(&id);
            // All its entries may have died before a digest named it.
            self.survivors.remove(&id);
            changed.retain(|&(other, _)| other != id);
            changed.push((id, 0));
        }
        changed
    }

    /// Records that the segments with length 0 in `changed` have left the digest by the entry that
    /// ends at `end`.
    pub(super) fn leave(&mut self, changed: &[(SegmentId, u32)], end: Position) {
        if self.adoptable().is_some() {
            (self.adopting, self.adopted) = (None, Some(end));
        }
        let gone = changed.iter().filter(|&&(_, len)| len == 0);
        self.left.extend(gone.map(|&(id, _)| (id, end)));
    }
}
