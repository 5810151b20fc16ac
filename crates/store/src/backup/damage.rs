//! Replicas that are lost or damaged while the server runs, and what their masters have to learn.
//!
//! ```text
//!  scrub: bytes damaged ─► replica ─► unreported ── ReplicaDamaged ─► master ─► another replica
//!  device failed: all ───────────────────┘                                        │
//!       the frame is free ◄── FreeReplica, or the other replica is here ──────────┘
//! ```
//!
//! A damaged replica does not count and is not read. It keeps its frame until its master has freed
//! it, or has another replica of the segment here: so the next life of the server finds one of the
//! two in any case.
//!
//! Invariant: each unreported replica and each replaced one has a frame, so that the frames bound
//! both.

use alloc::vec::Vec;

use super::Backup;
use crate::message::control::MAX_PAGE;
use crate::message::damage::LostReplica;
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

impl Backup {
    /// Records that the bytes of a replica are damaged. Its master has to learn it.
    pub(crate) fn mark_damaged(&mut self, id: (ServerId, SegmentId)) {
        if let Some(replica) = self.replicas.get_mut(&id) {
            replica.damaged = true;
            self.unreported.insert(id);
        }
    }

    /// Records that all replicas are lost if the device of the frames has failed. Their masters
    /// have to learn it, apart from those of replicas that an earlier life has left: they know
    /// that this life has nothing of theirs.
    pub(crate) fn lose_all(&mut self) {
        if self.frames.has_failed() {
            let known = self.replicas.iter().filter(|(_, replica)| !replica.left);
            self.unreported.extend(known.map(|(&id, _)| id));
        }
    }

    /// Returns the first master behind `after`, or else the first one, that has to learn of lost
    /// replicas and that `suits` accepts. Returns also those replicas, as many as fit into a page.
    pub(crate) fn next_report(
        &self,
        after: ServerId,
        suits: impl Fn(ServerId) -> bool,
    ) -> Option<(ServerId, Vec<LostReplica>)> {
        let mut masters: Vec<_> = self.unreported.iter().map(|(master, _)| *master).collect();
        masters.dedup();
        let may_hear = |master: &&ServerId| suits(**master) && !self.is_fenced(**master);
        let behind = masters.iter().filter(|master| **master > after).find(may_hear);
        let &master = behind.or_else(|| masters.iter().find(may_hear))?;
        let of_master = (master, SegmentId(0))..=(master, SegmentId(u32::MAX));
        let lost = |id: &(ServerId, SegmentId)| {
            let replica = self.replicas.get(id)?;
            Some(LostReplica { segment: id.1, epoch: replica.epoch })
        };
        let page = self.unreported.range(of_master).filter_map(lost).take(MAX_PAGE);
        Some((master, page.collect()))
    }

    /// Records that a master has counted these replicas as lost.
    pub(crate) fn reported(&mut self, master: ServerId, page: &[LostReplica]) {
        for lost in page {
            let id = (master, lost.segment);
            if self.replicas.get(&id).is_some_and(|replica| replica.epoch == lost.epoch) {
                self.unreported.remove(&id);
            }
        }
    }

    /// Returns the number of lost replicas of which their masters have not heard.
    pub(crate) fn unreported(&self) -> usize {
        self.unreported.len()
    }

    /// Returns the number of damaged replicas, those that earlier lives have left among them.
    pub(crate) fn damaged(&self) -> usize {
        let damaged = self.replicas.values().filter(|replica| replica.damaged);
        damaged.count() + self.replaced.len()
    }

    /// Returns the number of frames that are not used, since the device does not deliver them.
    pub(crate) fn retired(&self) -> usize {
        self.retired.len()
    }

    /// Takes a replica that is not as its master has written it out of the way of one that takes
    /// its place. It keeps its frame.
    pub(super) fn replace(&mut self, id: (ServerId, SegmentId)) {
        if let Some(replica) = self.replicas.remove(&id) {
            self.unreported.remove(&id);
            self.appends.iter_mut().for_each(|appends| appends.remove(id));
            if let Some(earlier) = self.replaced.insert(id, replica) {
                self.vacate(earlier.frame);
            }
        }
    }

    /// Frees the frame of a replica whose place another one has taken, if its epoch is at most
    /// `epoch`.
    pub(super) fn free_replaced(&mut self, id: (ServerId, SegmentId), epoch: u32) {
        if self.replaced.get(&id).is_some_and(|replica| replica.epoch <= epoch)
            && let Some(replica) = self.replaced.remove(&id)
        {
            self.vacate(replica.frame);
        }
    }

    /// Forgets all losses of masters that are fenced: their replicas are never written again.
    pub(super) fn forget_fenced(&mut self) {
        let fenced = &self.fenced;
        let is_fenced =
            |m: ServerId| fenced.get(&m.index).is_some_and(|&last| m.generation <= last);
        self.unreported.retain(|&(master, _)| !is_fenced(master));
    }

    /// Returns the segments of `master` with replaced replicas.
    pub(super) fn replaced_of(&self, master: ServerId) -> Vec<(ServerId, SegmentId)> {
        let of_master = (master, SegmentId(0))..=(master, SegmentId(u32::MAX));
        self.replaced.range(of_master).map(|(&id, _)| id).collect()
    }
}
