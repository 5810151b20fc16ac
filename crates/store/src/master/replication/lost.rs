//! Replicas that their backups have lost: each segment gets another one.
//!
//! A backup reports what it finds damaged, or what its device has lost. A report counts if it names
//! a replica as the master knows it, with its epoch: one that was sent before the replica was
//! replaced changes nothing.
//!
//! A replica that comes to be after it was freed is freed again.
//!
//! The replica that is lost is freed once the segment has all its replicas again, so that the
//! backup still has it if the master crashes before.

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError};

use super::segment::{Kind, Reported, Segment};
use super::{Complete, Replication};
use crate::master::links;
use crate::message::Status;
use crate::message::damage::LostReplica;
use crate::objects::log::Log;
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The effect of a report about one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    /// The replica counts as lost from now on.
    Lost,
    /// The master had given the replica up before.
    Known,
    /// The master has no such replica.
    Unknown,
    /// The report comes at the wrong time, and has to be repeated.
    Later,
}

impl Replication {
    /// Counts replicas on `backup` as lost.
    ///
    /// # Errors
    /// [`Status::Retry`] if the backup has to report some of them again.
    pub(crate) fn take_report(
        &mut self,
        log: &Log,
        backup: ServerId,
        replicas: &[LostReplica],
    ) -> Result<(), Status> {
        let mut outcome = Ok(());
        for &LostReplica { segment, epoch } in replicas {
            match self.lose(log, backup, segment, epoch) {
                Effect::Lost => self.reported.lost += 1,
                Effect::Unknown => self.reported.unknown += 1,
                Effect::Known => {}
                Effect::Later => outcome = Err(Status::Retry),
            }
        }
        self.pending = true;
        outcome
    }

    fn lose(&mut self, log: &Log, backup: ServerId, id: SegmentId, epoch: u32) -> Effect {
        if let Some(complete) = self.complete.get(&id) {
            if complete.epoch != epoch || !complete.backups.contains(&backup) {
                return Effect::Unknown;
            }
            // Without memory the segment leaves the log soon, and nothing has its bytes.
            if !self.reopen(log, id, backup) {
                return Effect::Later;
            }
            if let Some(segment) = self.active.get_mut(&id) {
                segment.given_up.push((backup, epoch));
            }
            self.backups.lost(backup);
            return Effect::Lost;
        }
        let Some(segment) = self.active.get(&id) else { return Effect::Unknown };
        if segment.given_up.iter().any(|&(server, last)| server == backup && epoch <= last) {
            return Effect::Known;
        }
        let on_it = |replica: &super::segment::Replica| replica.backup == backup;
        let Some(index) = segment.replicas.iter().position(on_it) else { return Effect::Unknown };
        let replica = &segment.replicas[index];
        // The reply to a write that gave the replica its epoch may be lost.
        if !(replica.epoch..=segment.epoch).contains(&epoch) {
            return Effect::Unknown;
        }
        if replica.calling {
            // Its reply would count for the next replica on the same server.
            return Effect::Later;
        }
        self.give_up(id, index, Instant::ZERO);
        Effect::Lost
    }

    /// Makes a complete segment one that lacks its replica on `server`. Returns false if the log
    /// has freed its memory.
    pub(super) fn reopen(&mut self, log: &Log, id: SegmentId, server: ServerId) -> bool {
        let Some(slot) = log.slot(id) else { return false };
        let Some(Complete { epoch, backups }) = self.complete.remove(&id) else { return false };
        let len = log.slots()[slot as usize].written;
        let mut segment = Segment::new(Kind::Side, len, backups.len());
        (segment.len, segment.needed, segment.epoch) = (Some(len), len, epoch + 1);
        for (replica, backup) in segment.replicas.iter_mut().zip(backups) {
            if backup != server {
                (replica.backup, replica.acked, replica.epoch) = (backup, len, epoch);
                (replica.opened, replica.maybe_opened, replica.closed) = (true, true, true);
            }
        }
        self.active.insert(id, segment);
        true
    }

    /// Frees a replica that a write in this epoch may have made after the order to free it: while
    /// the write was on its way, the segment has left the log, or the replica its backup.
    pub(super) fn free_late(
        &mut self,
        (id, backup): (SegmentId, ServerId),
        epoch: Option<u32>,
        result: &Result<Payload<'_>, RpcError>,
    ) {
        let is_known = match (self.active.get(&id), self.complete.get(&id)) {
            (Some(segment), _) => segment.is_on(backup) || segment.had(backup),
            (None, complete) => complete.is_some_and(|it| it.backups.contains(&backup)),
        };
        let executed = result.as_ref().map_or_else(|error| error.maybe_executed(), |_| true);
        // An append makes no replica.
        if let Some(epoch) = epoch
            && !is_known
            && executed
        {
            self.free_on(id, backup, epoch);
            self.pending = true;
        }
    }

    /// Returns true if `server` is in the coordinator's list.
    pub(in crate::master) fn knows(&self, server: ServerId) -> bool {
        self.backups.has(server)
    }

    /// Returns the link to a server of the coordinator's list, or the order to bind it.
    pub(in crate::master) fn reach(&mut self, server: ServerId) -> Option<Result<Link, Output>> {
        if !self.backups.has(server) {
            return None;
        }
        Some(self.backups.connect(server).map_or(Ok(links::backup(server)), Err))
    }

    /// Returns the number of replicas that backups have reported.
    pub(in crate::master) fn reported(&self) -> Reported {
        self.reported
    }

    /// Takes a replica off its backup, which may still have it. Another one is opened from
    /// `not_before` on.
    pub(super) fn give_up(&mut self, id: SegmentId, index: usize, not_before: Instant) {
        let Some(segment) = self.active.get_mut(&id) else { return };
        if let Some(backup) = segment.give_up(index) {
            segment.replicas[index].not_before = not_before;
            self.backups.lost(backup);
            self.pending = true;
        }
    }
}
