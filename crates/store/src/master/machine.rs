//! The master as a machine: it takes requests and responses and returns outputs.

use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Link, Machine, Output, Replied};
use sprat_proto::rpc::{Message, Payload, RpcError, ServerRpc, Slice, Slices};

use super::burst::Burst;
use super::gather::Gather;
use super::leases::Suspended;
use super::links::COORDINATOR;
use super::state::Master;
use super::syncs::Waiting;
use crate::done::Task;
use crate::message::control::{self, Usage};
use crate::message::replica::written;
use crate::message::{Status, data};
use crate::objects::cleaner::{SMALL_STEP, STEP};
use crate::objects::memory::Memory;
use crate::ops::{self, Call};
use crate::types::TableId;

/// The number of lines of the hash table that one tick moves while the table grows.
const GROW_LINES: usize = 16;
/// The number of lines of the hash table that one tick searches for objects of dropped tablets.
const SWEEP_LINES: usize = 16;

/// The transport by which this server calls itself. No node has as many.
const HERE: u32 = u32::MAX;

impl Master {
    /// Continues the mutations that waited until the coordinator answered for their leases.
    fn resume(&mut self, now: Instant, result: Result<Payload<'_>, RpcError>) {
        let checked = {
            let Memory { log, results, .. } = &mut self.memory;
            self.leases.checked(result, results, |at| log.dead_record(at))
        };
        for (suspended, expired) in checked {
            let Suspended { caller, request, deadline, .. } = suspended;
            let call = Call { now, caller, request: &request, deadline };
            let mut message = Message::default();
            let replied = match expired {
                Some(true) => Err(Status::ExpiredLease),
                None => Err(Status::Retry),
                Some(false) if deadline < now => Err(Status::Retry),
                Some(false) => ops::execute(self, &call, &mut message),
            };
            if let Err(status) = replied {
                self.refuse(status, &mut message);
            }
            if replied != Ok(Replied::Later) {
                self.out.push_back(Output::Reply { caller, message });
            }
        }
    }
}

impl Master {
    /// Continues the recovery that is in progress. Returns true if there is more to do at once.
    fn recover(&mut self, now: Instant) -> bool {
        let Some(me) = self.membership.server() else { return false };
        let wall = self.wall(now);
        let Self { recovery, memory, backup, cleaner, expiry, replication, .. } = self;
        let mut make_room = |memory: &mut Memory| {
            replication.check(now, &memory.log).is_ok() && expiry.make_room(memory, now, wall)
        };
        let more = recovery.work(now, me, memory, backup, cleaner, &mut make_room);
        replication.look(&memory.log);
        more
    }
}

impl Master {
    /// Returns the next action of the replication for another server. Does at once what is for this
    /// server, which may hold a replica of its own log.
    fn replicate(&mut self, now: Instant) -> Option<Output> {
        self.done.task(now, Task::Replication);
        self.memory.log.change_digest();
        loop {
            let tag = self.tag();
            let output = self.replication.next(now, &mut self.memory.log, tag);
            let output = output.or_else(|| self.report(now, tag));
            if let Some(position) = self.replication.take_posted() {
                self.durable(position);
                self.recovery.look(&self.memory.log);
            }
            let Some(output) = output else {
                // What is durable here may have replies.
                return self.out.pop_front();
            };
            match output {
                Output::Connect { link, .. } | Output::Disconnect { link }
                    if self.replication.is_own(link) => {}
                Output::Call { link, tag, message, .. } if self.replication.is_own(link) => {
                    self.replicate_here(now, tag, message);
                }
                output => return Some(output),
            }
        }
    }

    /// Returns the next action of the reports about replicas that this server has lost.
    fn report(&mut self, now: Instant, tag: u64) -> Option<Output> {
        let me = (self.membership.cluster()?, self.membership.server()?);
        self.reports.next(now, &self.backup, &mut self.replication, me, tag)
    }

    /// Executes a call of the replication to this server itself.
    fn replicate_here(&mut self, now: Instant, tag: u64, message: Message) {
        let Message { bytes: mut request, slices, .. } = message;
        for slice in slices {
            request.extend_from_slice(self.memory.log.lent_bytes(slice));
            self.memory.log.give_back(slice);
        }
        let caller = Caller { transport: HERE, rpc: ServerRpc(tag), at: now };
        let call = Call { now, caller, request: &request, deadline: Instant::NEVER };
        let mut reply = Message::default();
        match ops::execute(self, &call, &mut reply) {
            Ok(Replied::Later) => return,
            Ok(_) => {}
            Err(status) => self.refuse(status, &mut reply),
        }
        self.replicated(now, tag, Ok(Payload::Owned(reply.bytes)));
    }

    /// Takes the result of a call of the replication, or of a report.
    fn replicated(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        if self.reports.is_mine(tag) {
            self.reports.response(now, &mut self.backup, result);
            return;
        }
        if let Some(position) = self.replication.response(now, &mut self.memory.log, tag, result) {
            let in_progress = self.gated.len();
            self.durable(position);
            self.recovery.look(&self.memory.log);
            if let Some(gather) = &mut self.gather {
                gather.confirmed(now, in_progress, self.gated.len());
            }
        }
    }

    /// Returns the end of the pause before the next write to the replicas, if there is one.
    fn pause(&self) -> Option<Instant> {
        self.gather.as_ref()?.pause(self.gated.len())
    }

    /// Returns true if the replication has to wait for the end of a pause.
    fn is_gathering(&mut self, now: Instant) -> bool {
        let Some(until) = self.pause() else { return false };
        if now >= until {
            self.gather.iter_mut().for_each(Gather::end);
        }
        now < until
    }

    /// Answers a write to a replica that has waited for the disk.
    fn answer_waiting(&mut self, now: Instant, write: Waiting, status: Status) {
        let Waiting { caller, len } = write;
        let mut message = Message::default();
        match status {
            Status::Ok => message.bytes.extend_from_slice(&written(len)),
            status => self.refuse(status, &mut message),
        }
        if caller.transport == HERE {
            self.replicated(now, caller.rpc.0, Ok(Payload::Owned(message.bytes)));
        } else {
            self.out.push_back(Output::Reply { caller, message });
        }
    }
}

impl Master {
    fn next_output(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        if self.membership.is_due(now) {
            let log = &self.memory.log;
            let usage = Usage {
                used_bytes: log.live_bytes(),
                capacity_bytes: log.capacity_bytes(),
                objects: self.memory.table.len(),
                accesses: self.counters.accesses,
            };
            let tag = self.tag();
            return self.membership.call(now, tag, usage);
        }
        if self.leases.is_due(now)
            && let Some(cluster) = self.membership.cluster()
        {
            let tag = self.tag();
            return self.leases.call(now, tag, cluster);
        }
        if self.departure.deadline() <= now {
            let tag = self.tag();
            let output = self.ask_for_fate(now, tag);
            if output.is_some() {
                return output;
            }
        }
        if self.resolving.pending {
            let output = self.next_for_transactions(now);
            if output.is_some() {
                return output;
            }
        }
        if self.recovery.pending
            && let (Some(cluster), Some(server)) =
                (self.membership.cluster(), self.membership.server())
        {
            let tag = self.tag();
            let output = self.recovery.next(now, (cluster, server), &self.memory, tag);
            if output.is_some() {
                return output;
            }
        }
        let is_due = self.memory.log.is_replicated() && !self.is_gathering(now);
        let output = if is_due { self.replicate(now) } else { None };
        // All writes to replicas that arrived in this turn are made: one sync carries them.
        output.or_else(|| {
            let seq = self.syncs.begin()?;
            let batch = self.backup.take_batch();
            let puts = batch.into_iter().map(|batch| (Vec::new(), batch)).collect();
            Some(Output::Persist { seq, puts, deletes: Vec::new() })
        })
    }

    /// Returns the result of a call. A coordinator that does not lead has not answered it: the
    /// master binds its link to the one that does.
    fn of_leader<'p>(
        &mut self,
        tag: u64,
        result: Result<Payload<'p>, RpcError>,
    ) -> Result<Payload<'p>, RpcError> {
        if self.asked.is_empty() {
            return result;
        }
        let Some(sent) = self.asked.remove(&tag) else { return result };
        let reply = result.as_ref().ok().map(|reply| &reply[..]);
        self.out.extend(self.coordinators.replied(sent, reply));
        result.and_then(|reply| match control::outcome(&reply) {
            Ok((Status::NotLeader, _)) => Err(RpcError::NotExecuted),
            _ => Ok(reply),
        })
    }
}

impl Master {
    /// Loads the memory of several objects that are executed next.
    pub(crate) fn expect_all<'a>(&mut self, keys: impl Iterator<Item = (TableId, &'a [u8])>) {
        if Burst::pays(&self.memory) {
            for (table, key) in keys {
                self.burst.expect(&self.memory, table, key);
            }
            self.burst.prefetch(&self.memory);
        }
    }
}

impl Slices for Master {
    fn bytes(&self, slice: Slice) -> &[u8] {
        self.memory.log.lent_bytes(slice)
    }
}

impl Machine for Master {
    fn request(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: Payload<'_>,
        deadline: Instant,
        reply: &mut Message,
    ) -> Replied {
        self.requested = true;
        self.work.request(payload.len());
        self.done.operation(now, &payload);
        if deadline < now {
            // No client waits for the reply. A short one lets the transport forget the request.
            self.counters.late += 1;
            reply.bytes.extend_from_slice(&data::head(Status::Retry));
            return Replied::Now;
        }
        let call = Call { now, caller, request: &payload, deadline };
        ops::execute(self, &call, reply).unwrap_or_else(|status| {
            self.refuse(status, reply);
            Replied::Now
        })
    }

    #[inline]
    fn fills_turn(&mut self) -> bool {
        self.work.is_full(self.cleaner.worked())
    }

    #[inline]
    fn expects(&self) -> bool {
        Burst::pays(&self.memory)
    }

    #[inline]
    fn expect(&mut self, request: &[u8]) {
        if let Some((table, key)) = ops::key(request) {
            self.burst.expect(&self.memory, table, key);
        }
    }

    #[inline]
    fn prefetch(&mut self) {
        self.burst.prefetch(&self.memory);
    }

    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        let result = self.of_leader(tag, result);
        if self.leases.is_asked(tag) {
            self.resume(now, result);
        } else if self.replication.is_mine(tag) || self.reports.is_mine(tag) {
            self.done.task(now, Task::Replication);
            self.replicated(now, tag, result);
            if let Some((backup, offer)) = self.replication.take_offer() {
                self.replication.set_ring(backup, self.backup.accept_ring(&offer));
            }
            if let Some((known, given_up)) = self.replication.take_news() {
                self.backup.free_unknown(known);
                given_up.into_iter().for_each(|master| self.backup.expel(master));
                self.reports.look();
            }
            return;
        } else if self.recovery.is_mine(tag) {
            self.done.task(now, Task::Recovery);
            self.recovery.response(now, &mut self.memory, tag, result);
            // There may be bytes to replay, or objects to sweep.
            self.busy = true;
            return;
        } else if self.resolving.is_mine(tag) {
            self.done.task(now, Task::Transactions);
            self.take_for_transaction(now, tag, result);
            return;
        } else if self.departure.is_mine(tag) {
            self.take_fate(now, result);
            return;
        } else {
            self.done.task(now, Task::Membership);
            if let Some(stop) = self.membership.response(now, tag, result) {
                self.out.push_back(stop);
            }
        }
        self.follow_membership();
    }

    fn unreachable(&mut self, link: Link, _: &str) {
        self.replication.unreachable(link);
    }

    #[inline]
    fn has_output(&self) -> bool {
        !self.out.is_empty()
            || self.replication.pending && self.pause().is_none()
            || self.recovery.pending
            || self.resolving.pending
            || self.syncs.is_due()
    }

    fn output(&mut self, now: Instant) -> Option<Output> {
        let output = self.next_output(now);
        if let Some(Output::Call { link: COORDINATOR, tag, .. }) = &output {
            self.asked.insert(*tag, self.coordinators.binding());
        }
        output
    }

    fn persisted(&mut self, now: Instant, seq: u64) {
        for write in self.syncs.synced(seq) {
            self.answer_waiting(now, write, Status::Ok);
        }
    }

    /// The disk has failed, and so have the frames. The server goes on as a master.
    fn rollback(&mut self, now: Instant, _: &str, _: Vec<(Vec<u8>, Vec<u8>)>) {
        for write in self.syncs.failed() {
            self.answer_waiting(now, write, Status::NoReplica);
        }
        self.backup.lose_all();
        self.reports.look();
    }

    fn released(&mut self, slice: Slice) {
        if self.memory.log.give_back(slice) {
            self.busy |= self.cleaner.wanted(&self.memory);
        }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        self.list_counters()
    }

    fn done(&self, now: Instant, names: &mut Vec<String>) {
        self.done.names(now, names);
    }

    fn deadline(&self) -> Option<Instant> {
        if self.busy {
            return Some(Instant::ZERO);
        }
        let next = self.membership.deadline().min(self.leases.deadline());
        let mut replication = self.replication.deadline();
        let mut recovery = Instant::NEVER;
        if self.membership.server().is_some() {
            recovery = self.recovery.deadline();
            if self.memory.log.is_replicated() {
                replication = replication.min(self.reports.deadline());
            }
        }
        let replication = replication.max(self.pause().unwrap_or(Instant::ZERO));
        let next = next.min(replication).min(recovery).min(self.departure.deadline());
        let next = if self.resolving.pending || !self.memory.transactions.is_quiet() {
            next.min(self.resolving_deadline())
        } else {
            next
        };
        let next = next.min(self.backup.scrub_deadline()).min(self.expiry.deadline(&self.memory));
        (next != Instant::NEVER).then_some(next)
    }

    fn tick(&mut self, now: Instant) -> bool {
        if self.membership.cluster().is_some() {
            self.leases.check_silent(now, &mut self.memory.results);
        }
        self.replication.tick(now);
        self.take_posted();
        if self.backup.scrub(now) {
            self.reports.look();
        }
        self.begin_resolving(now);
        let growing = self.memory.grow(GROW_LINES);
        let sweeping = self.memory.sweep(SWEEP_LINES);
        // While requests arrive, writes pay for cleaning, and a tick adds little.
        let work = if core::mem::take(&mut self.requested) { SMALL_STEP / 2 } else { STEP };
        let wall = self.wall(now);
        let expiring = match self.replication.check(now, &self.memory.log) {
            Ok(()) => self.expiry.step(&mut self.memory, now, wall, work),
            // What is removed now would only wait for replicas.
            Err(_) => {
                self.expiry.postpone(now);
                false
            }
        };
        let cleaning = self.cleaner.step(&mut self.memory, work);
        self.memory.log.prepare_next(now);
        let recovering = self.recover(now);
        let leaving = self.answer_pull(now);
        self.replication.look(&self.memory.log);
        self.done.ticked(
            now,
            [
                (Task::Growth, growing),
                (Task::Sweep, sweeping),
                (Task::Expiry, expiring),
                (Task::Cleaning, cleaning),
                (Task::Recovery, recovering),
            ],
        );
        self.busy = growing || sweeping || cleaning || expiring || recovering || leaving;
        self.busy
    }
}
