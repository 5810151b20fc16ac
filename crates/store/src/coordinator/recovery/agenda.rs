//! The steps of recoveries in their order: lists, the search, the plan, and the end.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::Output;
use sprat_proto::time::SECOND;

use super::lost::{Lost, TOO_LONG};
use super::state::{Job, Reading, Recovery, Step};
use crate::coordinator::durable::{Batch, Key, Place};
use crate::coordinator::state::Coordinator;
use crate::message::recovery::{FreeReplicas, ListReplicas, MOST_READ, ReadReplica};
use crate::objects::segment::{SEGMENT_BYTES, SegmentId};
use crate::recovery::{Crashed, Search};
use crate::types::ServerId;

/// The pause before a recovery tries again what was not possible.
const AGAIN_NS: u64 = SECOND;
/// The most segments of a log that a recovery can order masters to replay: the entries of a list.
const MOST_SEGMENTS: usize = u16::MAX as usize;

impl Coordinator {
    /// Begins the recoveries of all servers that are crashed. Those of other servers end.
    pub(in crate::coordinator) fn begin_recoveries(&mut self, after: u64) {
        let slots = self.servers.slots.iter().enumerate();
        let crashed: Vec<_> = slots
            .filter(|(_, slot)| slot.place == Place::Crashed && slot.replicas > 0)
            .map(|(index, slot)| ServerId { index: index as u32, generation: slot.generation })
            .collect();
        self.recoveries.only(&crashed);
        crashed.into_iter().for_each(|server| self.recoveries.begin(server, after));
    }

    /// Takes all steps of recoveries that are possible now.
    fn advance_recoveries(&mut self, now: Instant) {
        self.recoveries.dirty = false;
        let mut crashed: Vec<_> = self.recoveries.all.keys().copied().collect();
        // The recoveries take turns to read.
        let last = self.recoveries.last_reader;
        let turn = crashed.partition_point(|&id| Some(id) <= last);
        crashed.rotate_left(turn);
        for id in crashed {
            // The recovery leaves the map, so that it can change beside the servers and tables.
            let Some(mut recovery) = self.recoveries.all.remove(&id) else { continue };
            if !self.advance(now, id, &mut recovery) {
                self.recoveries.all.insert(id, recovery);
            }
        }
        self.assign_partitions(now);
    }

    /// Takes the steps of one recovery. Returns true if it has ended.
    fn advance(&mut self, now: Instant, id: ServerId, recovery: &mut Recovery) -> bool {
        if self.journal.safe < recovery.after {
            return false;
        }
        self.follow_servers(id, recovery);
        let tablets = self.servers.slots.get(id.index as usize).map_or(0, |slot| slot.tablets);
        if tablets == 0 {
            recovery.partitions.clear();
            recovery.unblock();
            self.recoveries.dirty |= recovery.reading.take().is_some();
            let after = *recovery.free_after.get_or_insert(self.journal.issued);
            return self.journal.safe >= after && self.free_replicas(id, recovery);
        }
        recovery.free_after = None;
        if recovery.unsearched && recovery.reading.is_none() {
            self.search_log(now, id, recovery);
        }
        if recovery.replan && recovery.log.is_some() {
            recovery.replan = false;
            self.plan_partitions(id, recovery);
        }
        false
    }

    /// Brings a recovery into line with the list of servers: new ones list their replicas, and
    /// those that are gone drop out.
    fn follow_servers(&mut self, id: ServerId, recovery: &mut Recovery) {
        let up: BTreeSet<_> = self.servers.all_up().map(|(id, _)| id).collect();
        let before = recovery.backups.len();
        recovery.backups.retain(|backup, _| up.contains(backup));
        if recovery.backups.len() < before {
            recovery.unsearched = true;
            recovery.heads.retain(|(backup, _), _| up.contains(backup));
        }
        let ended = recovery.reading.take_if(|reading| !up.contains(&reading.backup));
        // Another recovery may wait for the end of the read.
        self.recoveries.dirty |= ended.is_some();
        for partition in recovery.partitions.values_mut() {
            partition.master.take_if(|master| !up.contains(master));
        }
        for backup in up {
            let state = recovery.backups.entry(backup).or_default();
            if !state.listed && !state.busy {
                state.busy = true;
                self.recoveries.ready.push_back((id, Step::List(backup, state.last())));
            }
        }
    }

    /// Orders all backups to free the replicas of a log that no tablet needs. Frees the place of
    /// the crashed server when they have. Returns true then.
    fn free_replicas(&mut self, id: ServerId, recovery: &mut Recovery) -> bool {
        for (&backup, state) in &mut recovery.backups {
            if state.listed && !state.freed && !state.busy {
                state.busy = true;
                self.recoveries.ready.push_back((id, Step::Free(backup)));
            }
        }
        // While the disk takes no changes, the place stays.
        if self.refusal.is_some() || !recovery.backups.values().all(|backup| backup.freed) {
            return false;
        }
        if let Some(slot) = self.servers.free(id) {
            let mut batch = Batch::default();
            batch.put(Key::Server(id.index), &slot.record());
            self.persist(batch);
        }
        self.recoveries.done += 1;
        true
    }

    /// Searches for the log in the lists so far, and begins to read the replica that is needed.
    fn search_log(&mut self, now: Instant, id: ServerId, recovery: &mut Recovery) {
        let found = match self.accepted(id) {
            Some(kept) => Search::Log { head: SegmentId(0), segments: recovery.find(kept) },
            None => recovery.search(&self.crashed(id)),
        };
        let lost = match found {
            Search::Read(backup, segment) => return self.begin_read(id, recovery, backup, segment),
            Search::NoHead if !recovery.all_listed() => None,
            Search::NoHead => match recovery.salvage() {
                Ok(segments) => Some(Lost::new(true, segments, &recovery.all_damaged())),
                Err((backup, segment)) => return self.begin_read(id, recovery, backup, segment),
            },
            Search::Log { segments, .. } => {
                let fits = segments.len() <= MOST_SEGMENTS && self.order_fits(&segments);
                if fits && segments.iter().all(|found| !found.backups.is_empty()) {
                    recovery.replan |= recovery.log.is_none();
                    recovery.log = Some(segments);
                    recovery.unblock();
                    recovery.suspect = false;
                    recovery.unsearched = false;
                    return;
                }
                fits.then(|| Lost::new(false, segments, &recovery.damaged))
            }
        };
        recovery.unsearched = false;
        if recovery.all_listed() {
            recovery.blocked = lost.as_ref().map_or_else(|| TOO_LONG.into(), Lost::text);
            recovery.lost = lost;
            self.again(now, id, recovery);
        }
    }

    /// Begins to read a replica that a search needs.
    fn begin_read(
        &mut self,
        id: ServerId,
        recovery: &mut Recovery,
        backup: ServerId,
        segment: SegmentId,
    ) {
        // All recoveries together hold the bytes of one replica.
        if self.recoveries.all.values().any(|other| other.reading.is_some()) {
            return;
        }
        let listed = recovery.backups.get(&backup).map(|backup| &backup.replicas);
        let listed = listed.and_then(|all| all.iter().find(|r| r.segment == segment));
        let len = listed.map_or(0, |replica| replica.len.min(SEGMENT_BYTES));
        let bytes = Vec::new();
        self.recoveries.last_reader = Some(id);
        recovery.reading = Some(Reading { backup, segment, len, bytes, failures: 0 });
        self.recoveries.ready.push_back((id, Step::Read(segment, 0)));
    }

    /// Lets a recovery try again, after a pause, what is not possible now.
    pub(super) fn again(&mut self, now: Instant, id: ServerId, recovery: &mut Recovery) {
        if !recovery.again {
            recovery.again = true;
            self.recoveries.later.insert((now.after(AGAIN_NS), (id, Step::Again)));
        }
    }

    /// Returns the log of a crashed server, as its search needs it.
    pub(super) fn crashed(&self, id: ServerId) -> Crashed {
        let head = self.servers.slots.get(id.index as usize).map(|slot| slot.head);
        let (head_segment, head_epoch) = head.unwrap_or((SegmentId(0), 0));
        Crashed { cluster: self.cluster.id, master: id, head_segment, head_epoch }
    }

    /// Returns the next call of a recovery.
    pub(in crate::coordinator) fn next_recovery_call(&mut self, now: Instant) -> Option<Output> {
        while self.calls_in_progress() < self.config.max_calls {
            if self.recoveries.dirty {
                self.advance_recoveries(now);
            }
            let job = self.recoveries.ready.pop_front()?;
            let Some((server, message)) = self.step(job) else { continue };
            if self.servers.up(server).is_none() {
                continue;
            }
            if let Some(connect) = self.servers.connect(server) {
                self.recoveries.ready.push_front(job);
                return Some(connect);
            }
            let (tag, output) = self.call(now, server, message);
            self.recoveries.calls.insert(tag, (job, server));
            return Some(output);
        }
        None
    }

    /// Returns the server and the message of a step, unless the step is over.
    fn step(&mut self, (master, step): Job) -> Option<(ServerId, Vec<u8>)> {
        let (cluster, term) = (self.cluster.id, self.cluster.incarnation);
        let recovery = self.recoveries.all.get_mut(&master)?;
        match step {
            Step::List(backup, after) => {
                let state = recovery.backups.get_mut(&backup)?;
                if state.listed || state.last() != after {
                    (state.busy, self.recoveries.dirty) = (false, true);
                    return None;
                }
                Some((backup, ListReplicas { cluster, term, backup, master, after }.emit()))
            }
            Step::Read(segment, offset) => {
                let reading = recovery.reading.as_ref()?;
                if (reading.segment, reading.bytes.len()) != (segment, offset as usize) {
                    return None;
                }
                let (backup, len) = (reading.backup, (reading.len - offset).min(MOST_READ));
                let read = ReadReplica { cluster, backup, master, segment, offset, len };
                Some((backup, read.emit()))
            }
            Step::Recover(key) => self.order(master, key),
            Step::Free(backup) => {
                recovery.backups.get(&backup)?;
                Some((backup, FreeReplicas { cluster, term, backup, master }.emit()))
            }
            Step::Again => {
                recovery.again = false;
                recovery.partitions.values_mut().for_each(|partition| partition.avoid.clear());
                if !recovery.blocked.is_empty() || recovery.suspect {
                    recovery.forget_lists();
                }
                self.recoveries.dirty = true;
                None
            }
        }
    }

    /// Queues the steps of recoveries that are due.
    pub(in crate::coordinator) fn repeat_steps(&mut self, now: Instant) {
        while let Some(&(at, job)) = self.recoveries.later.first()
            && at <= now
        {
            self.recoveries.later.pop_first();
            self.recoveries.ready.push_back(job);
        }
    }
}
