//! The replicas of one segment, and what each of them has.

use alloc::vec::Vec;

use arrayvec::ArrayVec;
use sprat_proto::Instant;

use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The most replicas of a segment.
pub const MAX_REPLICAS: usize = 8;

/// The place of a segment in the order of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The segment is or was the log's head: the rules of order bind it until it is closed.
    Head,
    /// The cleaner fills the segment, or the segment was closed on all backups before.
    Side,
}

/// A replica of a segment on a backup, as its master knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Replica {
    /// The backup that holds the replica, generation 0 if none does.
    pub(super) backup: ServerId,
    /// True if the backup has confirmed that it opened the replica.
    pub(super) opened: bool,
    /// True if a write that has ended may have opened the replica.
    pub(super) maybe_opened: bool,
    /// True if the backup has confirmed that the replica is complete.
    pub(super) closed: bool,
    /// The number of bytes that the backup has confirmed.
    pub(super) acked: u32,
    /// The epoch that the backup has confirmed.
    pub(super) epoch: u32,
    /// True if a write to the replica is in progress.
    pub(super) calling: bool,
    /// True if the write in progress only asks whether the backup has what was posted. More can be
    /// posted meanwhile.
    pub(super) confirming: bool,
    /// The time at which the master asks the backup whether it has what was posted. Never if the
    /// backup has confirmed all of it. The default is that of a replica without posted writes.
    pub(super) confirm_at: Option<Instant>,
    /// The number of writes that failed since the last one that succeeded.
    pub(super) failures: u32,
    /// The time before which the master does not write to the replica.
    pub(super) not_before: Instant,
}

/// The reports of backups that a master has taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::master) struct Reported {
    /// The number of replicas that were lost.
    pub(in crate::master) lost: u64,
    /// The number of replicas in reports that the master does not have.
    pub(in crate::master) unknown: u64,
}

/// The replicas of a segment that are not all complete.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) kind: Kind,
    /// The length of the bytes that open a replica: the header, and the digest of a head.
    pub(super) front: u32,
    /// The length of the segment once it is closed in the log.
    pub(super) len: Option<u32>,
    /// The epoch of the replicas. It grows when a replica is given up.
    pub(super) epoch: u32,
    /// The number of bytes that all replicas had at some time. A replica that has fewer does not
    /// count in a recovery.
    pub(super) needed: u32,
    /// The replicas that were given up, and their epochs. They are freed once the segment has all
    /// its replicas again: until then a recovery may need them.
    pub(super) given_up: Vec<(ServerId, u32)>,
    pub(super) replicas: ArrayVec<Replica, MAX_REPLICAS>,
    /// The number of replicas that are no longer among `replicas`, since nothing has their bytes.
    pub(super) waived: usize,
}

impl Segment {
    pub(super) fn new(kind: Kind, front: u32, replicas: usize) -> Self {
        let replicas = core::iter::repeat_n(Replica::default(), replicas).collect();
        let (len, epoch, needed, given_up, waived) = (None, 0, 0, Vec::new(), 0);
        Self { kind, front, len, epoch, needed, given_up, replicas, waived }
    }

    /// Returns the number of writes to the replicas that are in progress.
    pub(super) fn calls(&self) -> usize {
        self.replicas.iter().filter(|replica| replica.calling).count()
    }

    /// Returns true if all backups have opened their replicas.
    pub(super) fn is_open(&self) -> bool {
        self.replicas.iter().all(|replica| replica.opened)
    }

    /// Returns true if all backups have all of the segment in this epoch and have closed it.
    pub(super) fn is_complete(&self) -> bool {
        let complete = |replica: &Replica| replica.closed && replica.epoch == self.epoch;
        self.len.is_some() && self.replicas.iter().all(complete)
    }

    /// Returns the number of bytes that all replicas have in this epoch.
    pub(super) fn acked(&self) -> u32 {
        let valid = |replica: &Replica| {
            if replica.opened && replica.epoch == self.epoch { replica.acked } else { 0 }
        };
        self.replicas.iter().map(valid).min().unwrap_or(0)
    }

    /// Returns true if `server` holds or may hold a replica of the segment.
    pub(super) fn is_on(&self, server: ServerId) -> bool {
        self.replicas.iter().any(|replica| replica.backup == server)
    }

    /// Returns the servers of all replicas but the one with this index.
    pub(super) fn others(&self, index: usize) -> ArrayVec<ServerId, MAX_REPLICAS> {
        let others = self.replicas.iter().enumerate().filter(|(i, _)| *i != index);
        others.map(|(_, replica)| replica.backup).collect()
    }

    /// Returns true if `server` has a replica of the segment that was given up.
    pub(super) fn had(&self, server: ServerId) -> bool {
        self.given_up.iter().any(|&(backup, _)| backup == server)
    }

    /// Takes the replica with this index off its backup, and returns that backup. If the backup may
    /// have opened the replica, the epoch grows, so that neither that replica nor a late write to
    /// it counts.
    pub(super) fn give_up(&mut self, index: usize) -> Option<ServerId> {
        let replica = self.replicas.get_mut(index).filter(|r| r.backup.generation > 0)?;
        let old = core::mem::take(replica);
        if old.maybe_opened || old.calling {
            self.given_up.retain(|&(backup, _)| backup != old.backup);
            self.given_up.push((old.backup, self.epoch));
            self.epoch += 1;
        }
        Some(old.backup)
    }

    /// Waives the replicas that lack bytes of a segment whose memory is free: the cleaner has moved
    /// what was live, and the log still names the segment until the replicas have that elsewhere.
    /// The other replicas must do until then. Returns true if there was one to waive.
    pub(super) fn waive(&mut self) -> bool {
        let needed = self.needed;
        let lacks = |replica: &Replica| {
            replica.backup.generation == 0 || !replica.calling && replica.acked < needed
        };
        let before = self.waived;
        while let Some(index) = self.replicas.iter().position(lacks) {
            self.give_up(index);
            self.replicas.remove(index);
            self.waived += 1;
        }
        self.waived > before
    }

    /// Returns true if all replicas have what any recovery needs, in this epoch.
    pub(super) fn is_sound(&self) -> bool {
        self.missing() == 0
    }

    /// Returns the number of replicas that lack what a recovery needs, or are of another epoch.
    pub(super) fn missing(&self) -> usize {
        let sound = |r: &&Replica| r.opened && r.epoch == self.epoch && r.acked >= self.needed;
        self.replicas.len() - self.replicas.iter().filter(sound).count()
    }
}

/// A replica to free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Free {
    pub(super) segment: SegmentId,
    pub(super) backup: ServerId,
    pub(super) epoch: u32,
    /// The time of the next call.
    pub(super) due: Instant,
}
