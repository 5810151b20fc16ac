//! The state of the coordinator, and the rules by which replies wait for the disk.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::node::machine::{Caller, Link, Output};
use sprat_proto::rpc::Message;
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};

use super::durable::{self, Batch, Place};
use super::heat::{HOT_RATE, Heat, Moves};
use super::leases::Leases;
use super::migrations::Migrations;
use super::recovery::Recoveries;
use super::servers::{Pings, Servers};
use super::table::Tables;
use crate::message::Status;
use crate::message::control;
use crate::objects::segment::SegmentId;
use crate::types::{LeaseId, ServerId, TableId};

/// The options of a coordinator.
#[derive(Clone, Debug)]
pub struct Config {
    /// The locators of the coordinator, with `;` between them, at most
    /// [`MAX_LOCATORS`](control::MAX_LOCATORS) bytes.
    pub locators: String,
    /// The term of a server's lease, in nanoseconds.
    pub server_term_ns: u64,
    /// The time after the end of a server's lease at which the coordinator declares it crashed, in
    /// nanoseconds. It allows for clocks that differ in rate.
    pub server_margin_ns: u64,
    /// The further time after which a server crashes whose log has no replicas, in nanoseconds. Its
    /// objects are lost then, so that the coordinator has patience with a server that renews late.
    pub server_grace_ns: u64,
    /// The term of a client's lease, in nanoseconds.
    pub client_term_ns: u64,
    /// The time that a master has to answer a call, in nanoseconds.
    pub call_timeout_ns: u64,
    /// The pause before a failed call to a master is repeated for the first time, in nanoseconds.
    pub call_retry_ns: u64,
    /// The most calls to masters at the same time.
    pub max_calls: usize,
    /// The most servers of the cluster that are up.
    pub max_servers: u32,
    /// The most tables of the cluster.
    pub max_tables: usize,
    /// The most tablets of all tables together.
    pub max_tablets: usize,
    /// The most clients that have a lease.
    pub max_leases: usize,
    /// The most requests that wait for their reply at the coordinator.
    pub max_waiting: usize,
    /// The bytes of a crashed server's log below which more masters do not make its recovery
    /// faster.
    pub min_share_bytes: u64,
    /// The most bytes of a crashed server's log that one master recovers at a time. A longer log
    /// is divided into several partitions for each master, which reads the log for each of them.
    pub max_share_bytes: u64,
    /// The time between two searches for a part of a table that has to move, in nanoseconds: so
    /// that a server that has joined gets its share, or no server has much more load than others.
    /// 0: nothing moves by itself.
    pub rebalance_ns: u64,
    /// The accesses to objects in a second from which on a server counts as hot, so that a part of
    /// its tables moves to a server with less load.
    pub hot_rate: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            locators: String::new(),
            server_term_ns: 2 * SECOND,
            server_margin_ns: 10 * MS,
            server_grace_ns: 2 * SECOND,
            client_term_ns: 60 * SECOND,
            call_timeout_ns: SECOND,
            call_retry_ns: 20 * MS,
            max_calls: 64,
            max_servers: 4096,
            max_tables: 65_536,
            max_tablets: 1 << 20,
            max_leases: 1 << 20,
            max_waiting: 65_536,
            min_share_bytes: 32 << 20,
            max_share_bytes: 4 << 30,
            rebalance_ns: 0,
            hot_rate: HOT_RATE,
        }
    }
}

/// An effect that waits for a change to be durable.
#[derive(Debug)]
pub(super) enum Effect {
    /// The effect is a reply to a request.
    Reply {
        /// The sender of the request that the reply answers.
        caller: Caller,
        /// The bytes of the reply to the request.
        reply: Vec<u8>,
        /// The reply to send instead if the change is not written.
        otherwise: Otherwise,
    },
    /// The effect is that the coordinator may call the servers of this table.
    Begin(u64),
}

/// The reply to send if the change that it waits for is not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Otherwise {
    /// The request asked for no change: the sender can repeat it at once.
    Retry,
    /// The request asked for the change, which was not made.
    Refused,
    /// The first part of the requested change is durable. The coordinator makes the rest when the
    /// disk has room.
    Unfinished,
}

/// The coordinator's changes that are being written, and the effects that wait for them.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// The number of the last change that was sent to the disk.
    pub(super) issued: u64,
    /// The number of the last change that is durable.
    pub(super) safe: u64,
    /// The waiting effects, in the order of the changes that they wait for.
    pub(super) effects: VecDeque<(u64, Effect)>,
}

impl Journal {
    pub(super) fn after(&mut self, seq: u64, effect: Effect) {
        debug_assert!(self.effects.back().is_none_or(|(last, _)| *last <= seq));
        self.effects.push_back((seq, effect));
    }
}

/// The state of the coordinator while the disk takes no changes.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The file that the disk refused, and the cause.
    pub(super) reason: String,
    /// The time at which the coordinator tries the next change.
    pub(super) until: Instant,
}

/// The coordinator of one cluster.
///
/// The [module](crate::coordinator) describes its invariants.
#[derive(Debug)]
pub struct Coordinator {
    pub(super) config: Config,
    pub(super) rng: Rng,
    pub(super) cluster: durable::Cluster,
    pub(super) servers: Servers,
    pub(super) tables: Tables,
    pub(super) recoveries: Recoveries,
    pub(super) migrations: Migrations,
    pub(super) pings: Pings,
    pub(super) leases: Leases,
    pub(super) journal: Journal,
    pub(super) out: VecDeque<Output>,
    /// The refusal of the disk, if it takes no changes now.
    pub(super) refusal: Option<Refusal>,
    /// The number of times that the disk took no changes.
    pub(super) refusals: u64,
    /// The time of the last call to the coordinator.
    pub(super) seen: Instant,
    /// The time of the next check of servers and leases.
    pub(super) next_check: Instant,
    /// The time of the next search for a part of a table that has to move.
    pub(super) next_rebalance: Instant,
    /// The table and the server that is getting its share of it.
    pub(super) filling: Option<(u64, ServerId)>,
    /// The moves of equal shares.
    pub(super) shares: Moves,
    pub(super) heat: Heat,
}

impl Coordinator {
    /// Returns the cluster's random id, which is never 0.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        self.cluster.id
    }

    /// Returns the term of the coordinator: a number that grows each time that a coordinator of the
    /// cluster starts to lead.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.cluster.incarnation
    }

    /// Returns the lowest segment and epoch of a valid open replica of the log of `server`, if that
    /// log is needed: the server is up, or owns tablets that have to be recovered. The replicas of
    /// any other log are being freed.
    #[must_use]
    pub fn head(&self, server: ServerId) -> Option<(SegmentId, u32)> {
        let slot = self.servers.slots.get(server.index as usize)?;
        let is_needed = match slot.place {
            Place::Up => true,
            Place::Crashed => slot.tablets > 0,
            Place::Free => false,
        };
        (slot.generation == server.generation && is_needed).then_some(slot.head)
    }

    /// Returns the segment up to which entries of the log of `server` do not count for the tablet
    /// of `table` with this key hash, if the server owns that tablet.
    #[must_use]
    pub fn since(&self, server: ServerId, table: TableId, hash: u64) -> Option<SegmentId> {
        let tablets = &self.tables.by_id.get(&table.0)?.tablets;
        let tablet = tablets.iter().find(|tablet| (tablet.first..=tablet.last).contains(&hash))?;
        (tablet.server == server).then_some(tablet.since)
    }

    /// Returns true if the lease of a client has not expired.
    #[must_use]
    pub fn has_lease(&self, lease: LeaseId) -> bool {
        self.leases.has(lease.0)
    }

    /// Returns the number of calls to masters that are in progress, apart from pings.
    pub(super) fn calls_in_progress(&self) -> usize {
        let of_balance = self.heat.calls();
        self.tables.calls.len() + self.recoveries.calls() + self.migrations.calls() + of_balance
    }

    /// Sends a change to the disk and returns its number.
    pub(super) fn persist(&mut self, batch: Batch) -> u64 {
        self.journal.issued += 1;
        let seq = self.journal.issued;
        self.out.push_back(Output::Persist { seq, puts: batch.puts, deletes: batch.deletes });
        seq
    }

    /// Returns a call to a server whose link is bound, and its tag.
    pub(super) fn call(
        &mut self,
        now: Instant,
        server: ServerId,
        message: Vec<u8>,
    ) -> (u64, Output) {
        let tag = self.tables.next_tag;
        self.tables.next_tag += 1;
        let deadline = now.after(self.config.call_timeout_ns);
        let link = Link(server.index);
        (tag, Output::Call { link, tag, message: message.into(), deadline })
    }

    /// Replies to a query: at once if the state is durable, else as soon as it is.
    pub(super) fn answer(&mut self, caller: Caller, reply: Vec<u8>) -> Option<Message> {
        self.answer_or(caller, reply, Otherwise::Retry)
    }

    /// Replies to a request for a change as soon as the change is durable. Sends `otherwise` if it
    /// is not written.
    pub(super) fn answer_or(
        &mut self,
        caller: Caller,
        reply: Vec<u8>,
        otherwise: Otherwise,
    ) -> Option<Message> {
        if self.journal.issued == self.journal.safe {
            return Some(reply.into());
        }
        if let Some(reply) = self.full() {
            return Some(reply.into());
        }
        self.journal.after(self.journal.issued, Effect::Reply { caller, reply, otherwise });
        None
    }

    /// Returns the reply to a request if too many others wait for the disk.
    pub(super) fn full(&self) -> Option<Vec<u8>> {
        let full = self.journal.effects.len() >= self.config.max_waiting;
        full.then(|| control::failure(Status::Retry, "too many requests wait"))
    }

    pub(super) fn fail(&mut self, caller: Caller, status: Status, text: &str) -> Option<Message> {
        self.answer(caller, control::failure(status, text))
    }

    /// Records the time of an event. If this process did not run for a while, renewals may still
    /// wait in its sockets, so that servers and clients get another full term to renew.
    pub(super) fn notice(&mut self, now: Instant) {
        if now.since(self.seen) > 2 * self.check_ns() {
            self.excuse(now);
        }
        self.seen = self.seen.max(now);
    }

    /// Gives all servers and clients another full term to renew.
    pub(super) fn excuse(&mut self, now: Instant) {
        self.servers.floor = self.servers.floor.max(now.after(self.config.server_term_ns));
        self.leases.floor = self.leases.floor.max(now.after(self.config.client_term_ns));
    }

    /// Returns the pause before a call is repeated that has failed `failures` times before.
    pub(super) fn retry_ns(&self, failures: u32) -> u64 {
        (self.config.call_retry_ns << failures.min(6)).min(self.config.call_timeout_ns)
    }

    /// Returns the time from a renewal after which the coordinator declares a server crashed whose
    /// log has this many replicas.
    pub(super) fn patience_ns(&self, replicas: u8) -> u64 {
        let Config { server_term_ns, server_margin_ns, server_grace_ns, .. } = self.config;
        server_term_ns + server_margin_ns + if replicas == 0 { server_grace_ns } else { 0 }
    }

    pub(super) fn check_ns(&self) -> u64 {
        self.config.server_term_ns.min(self.config.client_term_ns) / 8
    }
}
