//! The recoveries that the coordinator runs, and their calls to servers.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use sprat_proto::Instant;

use super::lost::Lost;
use crate::coordinator::durable::Kept;
use crate::message::recovery::{DamagedReplica, Part, Replica};
use crate::objects::segment::SegmentId;
use crate::recovery::inventory::Found;
use crate::recovery::{Crashed, Listed, ReadHead, Search, salvage, search};
use crate::types::ServerId;

/// A call that a recovery makes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::coordinator) enum Step {
    /// Ask this backup for its replicas behind this segment.
    List(ServerId, SegmentId),
    /// Read the replica of this segment that the search needs, from this offset on.
    Read(SegmentId, u32),
    /// Order or poll the master of the partition with this key.
    Recover(u64),
    /// Order this backup to free its replicas.
    Free(ServerId),
    /// Try again what was not possible. This is no call.
    Again,
}

/// A step of the recovery of a crashed server.
pub(in crate::coordinator) type Job = (ServerId, Step);

/// The recoveries of all crashed servers whose logs have replicas.
#[derive(Debug, Default)]
pub(in crate::coordinator) struct Recoveries {
    /// The recoveries by crashed server.
    pub(super) all: BTreeMap<ServerId, Recovery>,
    /// The jobs to do now.
    pub(super) ready: VecDeque<Job>,
    /// The jobs to do later.
    pub(super) later: BTreeSet<(Instant, Job)>,
    /// The calls in progress by tag, and the servers that they went to.
    pub(super) calls: BTreeMap<u64, (Job, ServerId)>,
    /// The masters that get the replies to their reports once these changes are durable. Each gets
    /// its next partition then.
    pub(super) reported: BTreeMap<ServerId, u64>,
    /// The number of assignments and of partitions in this life of the coordinator.
    pub(super) count: u32,
    /// The number of recoveries that ended in this life of the coordinator.
    pub(super) done: u64,
    /// The recovery that has begun to read a replica last.
    pub(super) last_reader: Option<ServerId>,
    /// True if servers or tablets have changed since the recoveries were advanced.
    pub(super) dirty: bool,
}

impl Recoveries {
    /// Begins the recovery of a crashed server, once the change `after` is durable.
    pub(in crate::coordinator) fn begin(&mut self, crashed: ServerId, after: u64) {
        self.all.entry(crashed).or_insert_with(|| Recovery { after, ..Recovery::default() });
        self.dirty = true;
    }

    /// Keeps the recoveries of `crashed` alone. The others begin anew if they have to.
    pub(in crate::coordinator) fn only(&mut self, crashed: &[ServerId]) {
        self.all.retain(|id, _| crashed.contains(id));
        for recovery in self.all.values_mut() {
            (recovery.free_after, recovery.replan) = (None, true);
        }
    }

    /// Plans all recoveries again, since the owners of tablets have changed.
    pub(in crate::coordinator) fn replan(&mut self) {
        self.all.values_mut().for_each(|recovery| recovery.replan = true);
        self.dirty = true;
    }

    /// Advances the recoveries at the next output, since servers or durable changes have changed.
    pub(in crate::coordinator) fn notice(&mut self) {
        self.dirty |= !self.all.is_empty();
    }

    pub(in crate::coordinator) fn has_output(&self) -> bool {
        self.dirty || !self.ready.is_empty()
    }

    /// Returns the number of calls in progress.
    pub(in crate::coordinator) fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Returns the time of the next job that waits.
    pub(in crate::coordinator) fn deadline(&self) -> Option<Instant> {
        self.later.first().map(|&(at, _)| at)
    }

    /// Returns the reason why the log of this crashed server cannot be recovered now. It is empty
    /// if nothing blocks the recovery.
    pub(in crate::coordinator) fn blocked(&self, crashed: ServerId) -> &str {
        self.all.get(&crashed).map_or("", |recovery| &recovery.blocked)
    }

    /// Returns the numbers of recoveries that run, that are blocked, and that have ended.
    pub(in crate::coordinator) fn counts(&self) -> (usize, usize, u64) {
        let blocked = self.all.values().filter(|recovery| !recovery.blocked.is_empty()).count();
        (self.all.len() - blocked, blocked, self.done)
    }
}

/// The recovery of one crashed server.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// The change that must be durable before the recovery begins.
    pub(super) after: u64,
    /// The change that must be durable before replicas are freed, if no tablet is left.
    pub(super) free_after: Option<u64>,
    pub(super) backups: BTreeMap<ServerId, Backup>,
    /// The replicas that were read, by backup and segment.
    pub(super) heads: BTreeMap<(ServerId, SegmentId), ReadHead>,
    pub(super) reading: Option<Reading>,
    /// True if lists or replicas have arrived since the last search.
    pub(super) unsearched: bool,
    /// The text of the reason why the log cannot be recovered now, or empty.
    pub(super) blocked: String,
    /// The log that the recovery would lose a part of, unless nothing blocks it.
    pub(super) lost: Option<Lost>,
    /// The replicas that masters have found damaged. They do not count.
    pub(super) damaged: BTreeSet<(ServerId, SegmentId)>,
    /// True if the step [`Step::Again`] is queued or waits.
    pub(super) again: bool,
    /// The segments of the log, once they are found.
    pub(super) log: Option<Vec<Found>>,
    /// True if a search must succeed before more assignments are made.
    pub(super) suspect: bool,
    /// True if the tablets have changed since the partitions were planned.
    pub(super) replan: bool,
    pub(super) partitions: BTreeMap<u64, Partition>,
}

/// A server that holds replicas, as a recovery knows it.
#[derive(Debug, Default)]
pub(super) struct Backup {
    /// True if the list is complete. The backup has fenced the crashed master.
    pub(super) listed: bool,
    /// True if the backup has freed its replicas.
    pub(super) freed: bool,
    /// True if a job for this backup is queued, waits or is called.
    pub(super) busy: bool,
    pub(super) failures: u32,
    pub(super) replicas: Vec<Replica>,
}

/// A replica that is being read.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) backup: ServerId,
    pub(super) segment: SegmentId,
    /// The listed length of the replica.
    pub(super) len: u32,
    pub(super) bytes: Vec<u8>,
    pub(super) failures: u32,
}

/// Tablets of a crashed server that one master recovers.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) parts: Vec<Part>,
    /// The number of the last assignment, and its master if the assignment stands.
    pub(super) number: u64,
    pub(super) master: Option<ServerId>,
    /// The masters that could not recover the partition.
    pub(super) avoid: BTreeSet<ServerId>,
    pub(super) failures: u32,
    /// The time at which the master is ordered or polled again, if that waits.
    pub(super) due: Option<Instant>,
    /// The number of bytes of the log that the master has replayed.
    pub(super) replayed: u64,
}

impl Backup {
    /// Returns the last segment that the backup has listed so far.
    pub(super) fn last(&self) -> SegmentId {
        self.replicas.last().map_or(SegmentId(0), |replica| replica.segment)
    }
}

impl Recovery {
    /// Returns true if each backup has listed its replicas.
    pub(super) fn all_listed(&self) -> bool {
        self.backups.values().all(|backup| backup.listed)
    }

    /// Returns the replicas of complete lists that are not known as damaged.
    fn counted(&self) -> Vec<Listed> {
        let mut all = Vec::new();
        for (&id, backup) in self.backups.iter().filter(|(_, backup)| backup.listed) {
            let good = |replica: &&Replica| !self.damaged.contains(&(id, replica.segment));
            all.extend(backup.replicas.iter().filter(good).map(|replica| {
                let &Replica { segment, epoch, len, closed } = replica;
                Listed { backup: id, segment, epoch, len, closed }
            }));
        }
        all
    }

    /// Searches for the log among the replicas of complete lists.
    pub(super) fn search(&self, crashed: &Crashed) -> Search {
        search(crashed, &self.counted(), |backup, id| self.heads.get(&(backup, id)))
    }

    /// Searches for what is left of the log without its head.
    ///
    /// # Errors
    /// The replica that must be read first.
    pub(super) fn salvage(&self) -> Result<Vec<Found>, (ServerId, SegmentId)> {
        salvage(&self.counted(), |backup, id| self.heads.get(&(backup, id)))
    }

    /// Returns the segments that are left after an accepted loss, with the servers that have them.
    pub(super) fn find(&self, kept: &[Kept]) -> Vec<Found> {
        let counted = self.counted();
        let found = |&Kept { segment, len }: &Kept| {
            let has = |replica: &&Listed| replica.segment == segment && replica.len >= len;
            let backups = counted.iter().filter(has).map(|replica| replica.backup).collect();
            Found { segment, len, backups }
        };
        kept.iter().map(found).collect()
    }

    /// Takes the damaged replicas that a master reports, as far as they are listed.
    pub(super) fn take_damaged(&mut self, damaged: &[DamagedReplica]) {
        for &DamagedReplica { backup, segment } in damaged {
            let listed = self.backups.get(&backup).map_or(&[][..], |state| &state.replicas);
            if listed.binary_search_by_key(&segment, |replica| replica.segment).is_ok() {
                self.damaged.insert((backup, segment));
            }
        }
    }

    /// Returns the replicas that are known as damaged, by masters or by the search for the head.
    pub(super) fn all_damaged(&self) -> BTreeSet<(ServerId, SegmentId)> {
        let heads = self.heads.iter().filter(|(_, head)| head.is_damaged());
        self.damaged.iter().chain(heads.map(|(id, _)| id)).copied().collect()
    }

    /// Records that nothing blocks the recovery.
    pub(super) fn unblock(&mut self) {
        self.blocked.clear();
        self.lost = None;
    }

    /// Forgets all lists, so that they are made again. Replicas that are no heads are not read
    /// again: the backups take no more writes to them.
    pub(super) fn forget_lists(&mut self) {
        self.heads.retain(|_, head| !head.has_digest() && *head != ReadHead::default());
        self.reading = None;
        for backup in self.backups.values_mut() {
            backup.listed = false;
            backup.replicas.clear();
        }
    }

    /// Returns true if partitions can be given to masters.
    pub(super) fn can_assign(&self) -> bool {
        self.log.is_some() && self.blocked.is_empty() && !self.suspect
    }
}
