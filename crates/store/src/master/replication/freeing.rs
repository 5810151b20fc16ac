//! The replicas that no recovery needs any more: their backups free them.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::Output;

use super::segment::{Free, Kind, Segment};
use super::{Call, Complete, Replication};
use crate::master::links;
use crate::master::membership::CALL_NS;
use crate::message::recovery::FreeLeftReplicas;
use crate::message::replica::{FreeReplica, Target};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The most calls that free replicas at a time.
const MOST_FREEING: usize = 8;

impl Replication {
    /// Returns the next call to a backup to free a replica.
    pub(super) fn next_free(
        &mut self,
        now: Instant,
        (cluster, master): (u64, ServerId),
        tag: u64,
    ) -> Option<Output> {
        if self.freeing >= MOST_FREEING {
            return None;
        }
        let at = self.frees.iter().position(|free| free.due <= now);
        let Some(free) = at.and_then(|at| self.frees.remove(at)) else {
            let next = self.frees.iter().map(|free| free.due).min();
            self.due = self.due.min(next.unwrap_or(Instant::NEVER));
            return None;
        };
        let Free { segment, backup, epoch, .. } = free;
        if let Some(connect) = self.backups.connect(backup) {
            self.frees.push_front(free);
            return Some(connect);
        }
        self.freeing += 1;
        self.calls.insert(tag, Call::Free(free));
        let target = Target { cluster, backup, master, segment };
        let message = FreeReplica { target, epoch }.emit();
        let deadline = now.after(CALL_NS);
        Some(Output::Call { link: links::backup(backup), tag, message: message.into(), deadline })
    }

    /// Returns the call to a backup to free the replicas that an earlier life of it has left, once
    /// the log has all its replicas elsewhere.
    pub(super) fn next_free_left(
        &mut self,
        now: Instant,
        (cluster, master): (u64, ServerId),
        tag: u64,
    ) -> Option<Output> {
        let (backup, at) = self.backups.next_to_clean()?;
        if now < at {
            self.due = self.due.min(at);
            return None;
        }
        if !self.is_whole() {
            return None;
        }
        if let Some(connect) = self.backups.connect(backup) {
            return Some(connect);
        }
        self.backups.clean_again(backup, Instant::NEVER);
        self.calls.insert(tag, Call::FreeLeft(backup));
        let message = FreeLeftReplicas { cluster, backup, master }.emit().into();
        Some(Output::Call {
            link: links::backup(backup),
            tag,
            message,
            deadline: now.after(CALL_NS),
        })
    }

    /// Returns true if all replicas that a recovery of the log needs are on servers of the list.
    pub(super) fn is_whole(&self) -> bool {
        let is_whole = |(&id, segment): (&SegmentId, &Segment)| {
            // A recovery knows the replicas of a segment aside by their lengths.
            let recorded = segment.kind == Kind::Side || !self.must_record(id, segment);
            segment.is_sound() && segment.waived == 0 && recorded
        };
        let is_there = |complete: &Complete| complete.backups.iter().all(|b| self.backups.has(*b));
        self.active.iter().all(is_whole) && self.complete.values().all(is_there)
    }

    /// Frees the replicas that were given up and that no recovery needs any more.
    pub(super) fn free_given_up(&mut self) {
        let (recorded, backups) = (self.recorded, &self.backups);
        for (&id, segment) in &mut self.active {
            let settled = segment.kind == Kind::Side || recorded >= (id, segment.epoch);
            let is_sound = segment.is_sound() && segment.waived == 0;
            if segment.given_up.is_empty() || !settled || !is_sound {
                continue;
            }
            for (backup, epoch) in segment.given_up.drain(..) {
                if backups.has(backup) {
                    self.frees.push_back(Free { segment: id, backup, epoch, due: Instant::ZERO });
                }
            }
        }
    }

    /// Frees the replicas of a segment that has left the log.
    pub(super) fn free(&mut self, id: SegmentId) {
        let (epoch, backups): (u32, Vec<_>) =
            match (self.active.remove(&id), self.complete.remove(&id)) {
                (Some(segment), _) => {
                    // Their replicas are not counted any more.
                    for &(backup, _) in &segment.given_up {
                        self.free_on(id, backup, segment.epoch);
                    }
                    (segment.epoch, segment.replicas.iter().map(|r| r.backup).collect())
                }
                (None, Some(Complete { epoch, backups })) => (epoch, backups.into_iter().collect()),
                (None, None) => return,
            };
        for backup in backups {
            self.backups.lost(backup);
            self.free_on(id, backup, epoch);
        }
        self.heads.retain(|&head| head != id);
    }

    /// Lets a backup free its replica of a segment, if the backup is in the list.
    pub(super) fn free_on(&mut self, segment: SegmentId, backup: ServerId, epoch: u32) {
        if self.backups.has(backup) {
            self.frees.push_back(Free { segment, backup, epoch, due: Instant::ZERO });
        }
    }
}
