//! A log that lacks segments, and the text that names them.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use crate::coordinator::durable::Kept;
use crate::message::recovery::DamagedReplica;
use crate::objects::segment::SegmentId;
use crate::recovery::inventory::Found;
use crate::types::ServerId;

/// The reason why a log with too many segments cannot be recovered.
pub(super) const TOO_LONG: &str = "the log has too many segments";
/// The most segments and damaged replicas that the reason of a blocked recovery names.
const MOST_NAMED: usize = 4;

/// A log of which some segments are lost.
#[derive(Debug)]
pub(super) struct Lost {
    /// True if the end of the log is lost.
    head: bool,
    /// The segments of the log by id, as far as they are known. No server has those that are lost.
    segments: Vec<Found>,
    /// The damaged replicas of lost segments.
    damaged: Vec<DamagedReplica>,
}

impl Lost {
    /// Returns a log with these segments, without its end if `head` is true: then each replica of
    /// `damaged` may have the end. Otherwise those of lost segments are of interest.
    pub(super) fn new(
        head: bool,
        segments: Vec<Found>,
        damaged: &BTreeSet<(ServerId, SegmentId)>,
    ) -> Self {
        let is_lost = |&&(_, segment): &&(ServerId, SegmentId)| {
            let at = segments.binary_search_by_key(&segment, |found| found.segment);
            head || at.is_ok_and(|at| segments[at].backups.is_empty())
        };
        let replica = |&(backup, segment): &_| DamagedReplica { backup, segment };
        let damaged = damaged.iter().filter(is_lost).map(replica).collect();
        Self { head, segments, damaged }
    }

    /// Returns true if the end of the log is lost.
    pub(super) fn head(&self) -> bool {
        self.head
    }

    /// Iterates over the segments that are lost, by id.
    pub(super) fn lost(&self) -> impl Iterator<Item = &Found> {
        self.segments.iter().filter(|found| found.backups.is_empty())
    }

    /// Iterates over the segments that are left, by id.
    pub(super) fn kept(&self) -> impl Iterator<Item = Kept> {
        let kept = self.segments.iter().filter(|found| !found.backups.is_empty());
        kept.map(|found| Kept { segment: found.segment, len: found.len })
    }

    /// Iterates over the damaged replicas of lost segments.
    pub(super) fn damaged(&self) -> impl Iterator<Item = &DamagedReplica> {
        self.damaged.iter()
    }

    /// Returns the reason why the log cannot be recovered, for people.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let count = self.lost().count();
        if self.head {
            text.push_str("no server has the head of the log");
        } else {
            let noun = if count == 1 { "segment" } else { "segments" };
            let _ = write!(text, "no server has {count} {noun} of the log:");
            for (i, found) in self.lost().take(MOST_NAMED).enumerate() {
                let _ = write!(text, "{} {}", if i > 0 { "," } else { "" }, found.segment.0);
            }
            if count > MOST_NAMED {
                text.push_str(" and others");
            }
        }
        for DamagedReplica { backup, segment } in self.damaged().take(MOST_NAMED) {
            let _ = write!(text, "; the replica of segment {} on server {backup}", segment.0);
            text.push_str(" is damaged");
        }
        text
    }
}
