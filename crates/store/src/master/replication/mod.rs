//! The replication of a master's log to backups (RAMCloud's replica manager).
//!
//! ```text
//!  head s1   open on all ─► data ─► acknowledged: durable ─► full ─► s2 open on all ─► close
//!  head s2                          open (header, digest)  ─────────►  s1 closed on all ─► data
//!  survivor                         open, data, close without order
//! ```
//!
//! One write to each replica is in progress at a time and carries the entries that were appended
//! since the last one, up to a mebibyte, or 8 if the disk confirms it. A mutation is durable when
//! all replicas of the head have it and all earlier heads are closed on all backups.
//!
//! If a backup fails or is slow, another one takes its place: the segment's epoch grows, the other
//! replicas take the new epoch, the new one gets all bytes, and then the coordinator makes the pair
//! (segment, epoch) durable. Until then nothing more becomes durable. So the replica that was given
//! up never counts in a recovery, although it is still open.
//!
//! Invariants:
//! - A head is opened on all backups before the head before it is closed on any, so that a recovery
//!   always finds the end of the log.
//! - A head has no data before the head before it is closed on all backups, so that a recovery
//!   notices when all replicas of the last head are lost.
//! - Two replicas of one segment are on different servers. None of them is its master, unless no
//!   other server was up when it was opened, and the master keeps it when its process ends.
//! - A closed segment that loses a replica gets another one while its memory is in the log.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError};
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};

use super::links::{self, COORDINATOR};
use super::membership::CALL_NS;
use crate::message::Status;
use crate::message::control::{self, SetHead};
use crate::message::replica::written_len;
use crate::objects::log::Log;
use crate::objects::segment::{Position, SegmentId};
use crate::site::OwnedSite;
use crate::types::ServerId;

mod backups;
mod freeing;
mod lost;
mod posts;
mod segment;
#[cfg(test)]
mod tests;
mod writes;

use backups::{Backups, Posts};
pub use segment::MAX_REPLICAS;
use segment::{Free, Kind, Reported, Segment};

/// The pause after a failed write to a replica that has no other backup.
const AGAIN_NS: u64 = 5 * MS;
/// The pause before the master repeats a failed call.
const LATER_NS: u64 = 100 * MS;
/// The time for which the log's head may lack a backup before the master refuses mutations.
const LACKING_NS: u64 = SECOND;
/// The most heads that are not complete when the master takes a mutation.
const MOST_HEADS: usize = 3;
/// A call of the replication that is in progress.
#[derive(Clone, Copy, Debug)]
enum Call {
    Write {
        segment: SegmentId,
        backup: ServerId,
        /// The length of the replica after the write.
        end: u32,
        epoch: Option<u32>,
        close: bool,
    },
    Free(Free),
    /// This backup has to free the replicas that an earlier life of it has left.
    FreeLeft(ServerId),
    SetHead(SegmentId, u32),
    /// This backup may share a ring.
    OpenRing(ServerId),
}

/// The backups of a segment whose replicas are all complete.
#[derive(Debug)]
struct Complete {
    epoch: u32,
    backups: ArrayVec<ServerId, MAX_REPLICAS>,
}

/// The replicas of a master's log.
#[derive(Debug)]
pub(crate) struct Replication {
    replicas: usize,
    me: Option<(u64, ServerId)>,
    backups: Backups,
    /// True if a replica has what its disk has.
    sync: bool,
    /// The time after which a write to a replica counts as failed, without its data.
    slow_ns: u64,
    /// The segments with replicas that are not all complete.
    active: BTreeMap<SegmentId, Segment>,
    /// The heads among them that were never complete, in the order of the log.
    heads: VecDeque<SegmentId>,
    complete: BTreeMap<SegmentId, Complete>,
    /// The replicas to free.
    frees: VecDeque<Free>,
    freeing: usize,
    calls: HashMap<u64, Call>,
    /// The pair of segment and epoch that the coordinator has made durable.
    recorded: (SegmentId, u32),
    /// True while a call that records another pair is in progress.
    recording: bool,
    record_at: Instant,
    rng: Rng,
    /// True if there may be something to do at once.
    pub(super) pending: bool,
    due: Instant,
    /// The time since which a replica of a head has no backup, for want of servers.
    lacking_since: Option<Instant>,
    /// [`Log::changes`] when there was nothing more to do.
    seen: u64,
    posts: Posts,
    reported: Reported,
}

impl Replication {
    /// Makes the replication of a master at a site. It may hold its own replicas if `own` is true.
    pub(super) fn new(
        (replicas, site, own): (usize, OwnedSite, bool),
        (sync, slow_ns): (bool, u64),
        rng: Rng,
    ) -> Self {
        Self {
            replicas: replicas.min(MAX_REPLICAS),
            me: None,
            backups: Backups::new(site, own),
            sync,
            slow_ns,
            active: BTreeMap::new(),
            heads: VecDeque::new(),
            complete: BTreeMap::new(),
            frees: VecDeque::new(),
            freeing: 0,
            calls: HashMap::new(),
            recorded: (SegmentId(0), 0),
            recording: false,
            record_at: Instant::ZERO,
            rng,
            pending: false,
            due: Instant::NEVER,
            lacking_since: None,
            seen: 0,
            posts: Posts::default(),
            reported: Reported::default(),
        }
    }

    /// Records this master's identity and the version of the coordinator's server list.
    pub(super) fn member(&mut self, cluster: u64, server: ServerId, list_version: u64) {
        if self.replicas > 0 {
            self.me = Some((cluster, server));
            self.backups.announce(list_version);
            self.pending = true;
        }
    }

    /// Returns all servers of the coordinator's list, crashed ones included, if it was read since
    /// the last call, and the masters with replicas here that it showed as given up.
    pub(super) fn take_news(&mut self) -> Option<(&BTreeSet<ServerId>, Vec<ServerId>)> {
        self.backups.take_news()
    }

    /// Records that `master` has opened a replica on this server.
    pub(crate) fn meet(&mut self, master: ServerId) {
        if self.replicas > 0 {
            self.backups.meet(master);
            self.wake(true);
        }
    }

    /// Lets [`Replication::next`] look again if there may be something to do. Before the server is
    /// a member, and without replicas, there is nothing.
    #[inline]
    fn wake(&mut self, may_be_due: bool) {
        self.pending |= may_be_due && self.me.is_some();
    }

    /// Announces that the log has new entries.
    #[inline]
    pub(crate) fn appended(&mut self) {
        self.wake(true);
    }

    /// Lets [`Replication::next`] look again if the log has grown since.
    pub(super) fn look(&mut self, log: &Log) {
        self.wake(log.changes() != self.seen);
    }

    /// Lets [`Replication::next`] look again if its time has come.
    pub(super) fn tick(&mut self, now: Instant) {
        self.wake(self.due.min(self.backups.deadline()) <= now);
    }

    /// Returns the time at which [`Replication::next`] may have something to do.
    pub(super) fn deadline(&self) -> Instant {
        match self.me {
            None => Instant::NEVER,
            Some(_) if self.pending => Instant::ZERO,
            Some(_) => self.due.min(self.backups.deadline()),
        }
    }

    /// Returns true if a link is that to this server itself, which holds a replica of its own log.
    pub(super) fn is_own(&self, to: Link) -> bool {
        self.me.is_some_and(|(_, me)| links::backup(me) == to)
    }

    pub(super) fn is_mine(&self, tag: u64) -> bool {
        self.calls.contains_key(&tag) || self.backups.is_asked(tag)
    }

    // What to do next.

    /// Returns the next action: a call to a backup or to the coordinator. A call has this tag.
    pub(super) fn next(&mut self, now: Instant, log: &mut Log, tag: u64) -> Option<Output> {
        let (cluster, me) = self.me?;
        while let Some(opened) = log.take_opened() {
            let kind = if opened.survivor { Kind::Side } else { Kind::Head };
            self.active.insert(opened.id, Segment::new(kind, opened.front, self.replicas));
            if kind == Kind::Head {
                self.heads.push_back(opened.id);
            }
        }
        while let Some(id) = log.take_freed() {
            self.free(id);
        }
        self.due = Instant::NEVER;
        let output = self
            .backups
            .unlink()
            .or_else(|| self.backups.call(now, tag))
            .or_else(|| self.next_write(now, log, (cluster, me), tag))
            .or_else(|| self.next_record(now, (cluster, me), tag))
            .or_else(|| self.next_free(now, (cluster, me), tag))
            .or_else(|| self.next_free_left(now, (cluster, me), tag))
            .or_else(|| self.next_ring(now, (cluster, me), tag));
        self.pending = output.is_some();
        if output.is_none() {
            self.seen = log.changes();
        }
        output
    }

    /// Returns the call that records the epoch of the first head, once all replicas have it.
    fn next_record(
        &mut self,
        now: Instant,
        (cluster, server): (u64, ServerId),
        tag: u64,
    ) -> Option<Output> {
        let &id = self.heads.front()?;
        let segment = self.active.get(&id)?;
        let epoch = segment.epoch;
        if self.recording || !self.must_record(id, segment) || !segment.is_sound() {
            return None;
        }
        // Without a replica in the new epoch, those that were given up are the end of the log until
        // the next head is on its backups.
        let next = self.heads.get(1).and_then(|next| self.active.get(next));
        if segment.replicas.is_empty() && !next.is_some_and(Segment::is_sound) {
            return None;
        }
        if now < self.record_at {
            self.due = self.due.min(self.record_at);
            return None;
        }
        self.recording = true;
        self.calls.insert(tag, Call::SetHead(id, epoch));
        let message = SetHead { cluster, server, segment: id, epoch }.emit().into();
        Some(Output::Call { link: COORDINATOR, tag, message, deadline: now.after(CALL_NS) })
    }

    fn must_record(&self, id: SegmentId, segment: &Segment) -> bool {
        segment.epoch > 0 && self.recorded < (id, segment.epoch)
    }

    // What has happened.

    /// Takes the result of a call. Returns the new end of the durable part of the log.
    pub(super) fn response(
        &mut self,
        now: Instant,
        log: &mut Log,
        tag: u64,
        result: Result<Payload<'_>, RpcError>,
    ) -> Option<Position> {
        self.pending = true;
        if self.backups.is_asked(tag) {
            let me = self.me.map_or_else(ServerId::default, |(_, me)| me);
            for server in self.backups.page(now, me, result) {
                self.without(log, server);
            }
            return None;
        }
        match self.calls.remove(&tag)? {
            Call::Write { segment, backup, end, epoch, close } => {
                self.written(now, log, (segment, backup), (end, epoch, close), result)
            }
            Call::OpenRing(backup) => {
                let outcome = result.as_deref().map(control::outcome);
                let is_early = matches!(outcome, Ok(Ok((Status::Retry, _))));
                match result {
                    Ok(reply) if !is_early => self.posts.offer(backup, &reply),
                    // A backup that is gone refuses at once, again and again. One that has just
                    // joined does not know itself yet.
                    _ => self.backups.want_ring(backup, now.after(LATER_NS)),
                }
                None
            }
            Call::Free(free) => {
                self.freeing -= 1;
                let answered = result.is_ok_and(|reply| control::outcome(&reply).is_ok());
                if !answered && self.backups.has(free.backup) {
                    self.frees.push_back(Free { due: now.after(LATER_NS), ..free });
                }
                None
            }
            Call::FreeLeft(backup) => {
                let outcome = result.as_deref().map(control::outcome);
                if !matches!(outcome, Ok(Ok((Status::Ok, _)))) {
                    self.backups.clean_again(backup, now.after(LATER_NS));
                }
                None
            }
            Call::SetHead(segment, epoch) => {
                self.recording = false;
                let reply = result.as_deref().map(control::outcome);
                if matches!(reply, Ok(Ok((Status::Ok, _)))) {
                    self.recorded = self.recorded.max((segment, epoch));
                    return self.durable();
                }
                self.record_at = now.after(LATER_NS);
                None
            }
        }
    }

    /// Takes the result of a write to a replica.
    fn written(
        &mut self,
        now: Instant,
        log: &mut Log,
        (id, backup): (SegmentId, ServerId),
        (end, epoch, close): (u32, Option<u32>, bool),
        result: Result<Payload<'_>, RpcError>,
    ) -> Option<Position> {
        self.free_late((id, backup), epoch, &result);
        let segment = self.active.get_mut(&id)?;
        let index = segment.replicas.iter().position(|replica| replica.backup == backup)?;
        let replica = &mut segment.replicas[index];
        let confirmed = core::mem::take(&mut replica.confirming);
        replica.calling = false;
        match result.as_deref().map(written_len) {
            Ok(Ok(len)) if len >= end => {
                (replica.opened, replica.maybe_opened) = (true, true);
                replica.failures = 0;
                replica.acked = end.max(replica.acked);
                replica.epoch = epoch.unwrap_or_default().max(replica.epoch);
                replica.closed |= close && len == end;
            }
            Ok(reply) => {
                // The same server may be the only choice, and refuse at once, again and again.
                let mut pause_ns = AGAIN_NS;
                if reply == Err(Status::NoSpace) {
                    // The backup has changed nothing.
                    self.backups.avoid(now, backup);
                    pause_ns = 0;
                } else {
                    replica.maybe_opened = true;
                }
                self.give_up(id, index, now.after(pause_ns));
            }
            Err(error) => {
                replica.failures += 1;
                replica.maybe_opened |= error.maybe_executed();
                let wait_ns = AGAIN_NS << replica.failures.min(5);
                replica.not_before = now.after(wait_ns);
                if confirmed {
                    replica.confirm_at = Some(replica.not_before);
                }
                // It gets no more posted writes until it answers.
                self.backups.want_ring(backup, now);
                let suits = |server: ServerId| !segment.is_on(server);
                if self.backups.can_choose(now, &segment.others(index), suits) {
                    // It may have the fewest replicas, and would be the next choice again.
                    self.backups.avoid(now, backup);
                    self.give_up(id, index, now);
                }
            }
        }
        self.settle(log, id)
    }

    /// Records what all replicas of a segment have. Returns the new end of the durable part of the
    /// log.
    fn settle(&mut self, log: &mut Log, id: SegmentId) -> Option<Position> {
        let segment = self.active.get_mut(&id)?;
        segment.needed = segment.needed.max(segment.acked());
        if let Some(slot) = log.slot(id) {
            log.set_replicated(slot, segment.acked());
        }
        self.durable()
    }

    /// Moves the segments that are complete, and returns the end of the durable part of the log.
    fn durable(&mut self) -> Option<Position> {
        let mut durable = None;
        while let Some(&id) = self.heads.front()
            && let Some(segment) = self.active.get(&id)
            && !self.must_record(id, segment)
        {
            let offset = segment.acked();
            durable = (offset > 0).then_some(Position { segment: id, offset }).or(durable);
            if !segment.is_complete() {
                break;
            }
            self.heads.pop_front();
        }
        self.free_given_up();
        let heads = &self.heads;
        // What was given up of a segment with waived replicas may be needed until it leaves the
        // log.
        let done = |id: &SegmentId, segment: &Segment| {
            segment.is_complete() && segment.waived == 0 && !heads.contains(id)
        };
        let complete: Vec<_> =
            self.active.iter().filter(|(id, s)| done(id, s)).map(|(&id, _)| id).collect();
        for id in complete {
            if let Some(Segment { epoch, replicas, given_up, .. }) = self.active.remove(&id) {
                debug_assert!(given_up.is_empty(), "a complete segment has all its replicas");
                let backups = replicas.iter().map(|replica| replica.backup).collect();
                self.complete.insert(id, Complete { epoch, backups });
            }
        }
        durable
    }

    /// Replaces the replicas on a server that has left the cluster.
    fn without(&mut self, log: &Log, server: ServerId) {
        self.frees.retain(|free| free.backup != server);
        for segment in self.active.values_mut() {
            for index in 0..segment.replicas.len() {
                if segment.replicas[index].backup == server {
                    segment.give_up(index);
                }
            }
            segment.given_up.retain(|&(backup, _)| backup != server);
        }
        let lost = self.complete.iter().filter(|(_, complete)| complete.backups.contains(&server));
        for id in lost.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.reopen(log, id, server);
        }
    }

    /// Returns the number of replicas that are missing or not complete, open segments included.
    pub(crate) fn incomplete(&self) -> u64 {
        let open = |segment: &Segment| segment.replicas.iter().filter(|r| !r.closed).count();
        self.active.values().map(|segment| open(segment) as u64).sum()
    }

    /// Returns the number of replicas that a recovery would need and not find. A replica of an open
    /// segment that follows the log is not among them.
    pub(crate) fn missing(&self) -> u64 {
        self.active.values().map(|segment| segment.missing() as u64).sum()
    }

    /// Checks that the log may grow.
    ///
    /// # Errors
    /// [`Status::TooFewServers`] if the log's head lacks a backup for some time,
    /// [`Status::Retry`] if the replicas are too far behind.
    #[inline]
    pub(crate) fn check(&self, now: Instant, log: &Log) -> Result<(), Status> {
        if self.lacking_since.is_some_and(|since| now.since(since) > LACKING_NS) {
            return Err(Status::TooFewServers);
        }
        if self.replicas > 0 && self.heads.len() > MOST_HEADS && !log.is_all_durable() {
            return Err(Status::Retry);
        }
        Ok(())
    }
}
