//! The coordinator: which tables there are, which server owns which part of them, which servers and clients are alive.
//!
//! ```text
//!  request ─► change in memory ─► Persist { seq } ─► persisted(seq) ─► reply, calls to masters
//! ```
//! What always holds:
//! - Nothing is told to anybody, and no master is called, before everything that it rests on is durable: a reply waits
//!   for the last change issued before it, also the reply to a question.
//! - A tablet has one owner for its whole life, and that owner serves it only under a lease from here; a server is
//!   declared crashed only after its lease has surely ended. So no two servers ever answer for one key.
//! - Ids of tables, leases and servers' lives are never used twice in one cluster; a coordinator that lost its state is
//!   another cluster, whose random id everybody compares.
//! - What the disk does not take leaves no trace: memory goes back to what is durable ([`restore`]), and every request
//!   that rested on it is answered so.
//! - After its own restart the coordinator goes on with the servers and leases that it knew: each has a full term to be
//!   heard of. So it does after it has been stopped for a while itself.
//!
//! Not here: the disk ([`Output::Persist`] goes out, [`Machine::persisted`] comes back) and data of any object.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::rpc::{Message, Payload, RpcError, Slice, Slices};
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};

use self::durable::{Batch, Key, Place};
use self::leases::Leases;
use self::restore::{Refusal, Restored, new_cluster};
use self::servers::Servers;
use self::tables::Tables;
use crate::message::control::{
    self, CheckLease, CreateTable, DropTable, Enlist, GetTable, GetTablets, HintCrashed,
    ListServers, ListTables, RenewClient, RenewServer,
};
use crate::message::{Opcode, Status};
use sprat_proto::node::machine::{Caller, Machine, Output};

mod durable;
mod leases;
mod members;
mod restore;
mod servers;
pub mod statefile;
mod tables;
#[cfg(test)]
mod tests;

pub use durable::RestoreError;

/// What can be set.
#[derive(Clone, Debug)]
pub struct Config {
    /// For how long a server may serve without hearing from the coordinator, in nanoseconds.
    pub server_term_ns: u64,
    /// How much longer the coordinator waits before it declares a server crashed: for clocks that run apart, and for
    /// servers that are merely slow to renew.
    pub server_margin_ns: u64,
    /// For how long a client's lease is valid after the client was last heard of.
    pub client_term_ns: u64,
    /// How long a master has to answer.
    pub call_timeout_ns: u64,
    /// The pause before a failed call to a master is repeated the first time.
    pub call_retry_ns: u64,
    /// Most calls to masters at once.
    pub max_calls: usize,
    /// Most servers in the list.
    pub max_servers: u32,
    /// Most tables.
    pub max_tables: usize,
    /// Most tablets of all tables together.
    pub max_tablets: usize,
    /// Most clients with a lease.
    pub max_leases: usize,
    /// Most requests that wait for their reply.
    pub max_waiting: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server_term_ns: 2 * SECOND,
            server_margin_ns: 2 * SECOND,
            client_term_ns: 60 * SECOND,
            call_timeout_ns: SECOND,
            call_retry_ns: 20 * MS,
            max_calls: 64,
            max_servers: 4096,
            max_tables: 65_536,
            max_tablets: 1 << 20,
            max_leases: 1 << 20,
            max_waiting: 65_536,
        }
    }
}

/// What waits for a change to be durable.
#[derive(Debug)]
enum Effect {
    /// A reply.
    Reply {
        /// Whose request it answers.
        caller: Caller,
        /// Its bytes.
        reply: Vec<u8>,
        /// What it becomes if the change is not written.
        otherwise: Otherwise,
    },
    /// The servers of this table may be called.
    Begin(u64),
}

/// What becomes of a reply if the change that it waits for is not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Otherwise {
    /// The request asked for no change: it can be repeated at once.
    Retry,
    /// The request asked for the change, and there is none.
    Refused,
    /// An earlier part of what the request asked for is durable, and the rest follows when there is room.
    Unfinished,
}

/// Changes on their way to the disk, and what waits for them.
#[derive(Debug, Default)]
struct Journal {
    /// The last change that went out.
    issued: u64,
    /// The last one that is durable.
    safe: u64,
    /// In the order of the changes that they wait for.
    effects: VecDeque<(u64, Effect)>,
}

impl Journal {
    fn after(&mut self, seq: u64, effect: Effect) {
        debug_assert!(self.effects.back().is_none_or(|(last, _)| *last <= seq));
        self.effects.push_back((seq, effect));
    }
}

/// The coordinator of one cluster.
#[derive(Debug)]
pub struct Coordinator {
    config: Config,
    rng: Rng,
    cluster: durable::Cluster,
    servers: Servers,
    tables: Tables,
    leases: Leases,
    journal: Journal,
    out: VecDeque<Output>,
    /// The disk takes no changes.
    refusal: Option<Refusal>,
    /// How often it took none.
    refusals: u64,
    /// When anything was called last.
    seen: Instant,
    /// When servers and leases are looked over next.
    beat: Instant,
}

impl Coordinator {
    /// A coordinator that goes on from the durable state `pairs`: everything that was ever persisted, in any order; a
    /// new cluster if there is nothing.
    ///
    /// # Errors
    /// [`RestoreError`] if the state makes no sense.
    pub fn restore(
        now: Instant,
        config: Config,
        mut rng: Rng,
        pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<Self, RestoreError> {
        let Restored { cluster, mut servers, tables, mut leases } = Restored::from(pairs)?;
        let fresh = servers.slots.is_empty() && tables.by_id.is_empty() && leases.len() == 0;
        let mut cluster = match cluster {
            Some(cluster) => cluster,
            None if fresh => new_cluster(&mut rng),
            None => return Err(RestoreError::NoCluster),
        };
        // Whoever holds a lease has it from an earlier life, perhaps not the last one and perhaps with a longer term.
        cluster.server_term_ns = cluster.server_term_ns.max(config.server_term_ns);
        cluster.client_term_ns = cluster.client_term_ns.max(config.client_term_ns);
        servers.floor = now.after(cluster.server_term_ns).after(config.server_margin_ns);
        leases.floor = now.after(cluster.client_term_ns);
        cluster.incarnation += 1;

        let mut this = Self {
            config,
            rng,
            cluster,
            servers,
            tables,
            leases,
            journal: Journal::default(),
            out: VecDeque::new(),
            refusal: None,
            refusals: 0,
            seen: now,
            beat: now,
        };
        let mut batch = Batch::default();
        batch.put(Key::Cluster, &this.cluster);
        let seq = this.persist(batch);
        for id in this.unsettled_tables() {
            this.journal.after(seq, Effect::Begin(id));
        }
        for id in this.unsettled_tables() {
            this.without_server(id);
        }
        Ok(this)
    }

    /// The cluster's random id, never 0.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        self.cluster.id
    }

    /// How often the coordinator of this cluster has started.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.cluster.incarnation
    }

    /// Sends a change on its way to the disk.
    fn persist(&mut self, batch: Batch) -> u64 {
        self.journal.issued += 1;
        let seq = self.journal.issued;
        self.out.push_back(Output::Persist { seq, puts: batch.puts, deletes: batch.deletes });
        seq
    }

    /// Answers a question with what holds now: at once if that is durable, else as soon as it is.
    fn answer(&mut self, caller: Caller, reply: Vec<u8>) -> Option<Message> {
        self.answer_or(caller, reply, Otherwise::Retry)
    }

    /// Answers a request with what came of it, as soon as that is durable.
    fn answer_or(
        &mut self,
        caller: Caller,
        reply: Vec<u8>,
        otherwise: Otherwise,
    ) -> Option<Message> {
        if self.journal.issued == self.journal.safe {
            return Some(reply.into());
        }
        if self.journal.effects.len() >= self.config.max_waiting {
            return Some(control::failure(Status::Retry, "too many requests wait").into());
        }
        self.journal.after(self.journal.issued, Effect::Reply { caller, reply, otherwise });
        None
    }

    fn fail(&mut self, caller: Caller, status: Status, text: &str) -> Option<Message> {
        self.answer(caller, control::failure(status, text))
    }

    /// Called with the time of everything that happens. If this process did not run for a while, renewals are probably
    /// waiting at its door: servers and clients get another full term to be heard of.
    fn notice(&mut self, now: Instant) {
        if now.since(self.seen) > 2 * self.beat_ns() {
            self.servers.floor = self.servers.floor.max(now.after(self.config.server_term_ns));
            self.leases.floor = self.leases.floor.max(now.after(self.config.client_term_ns));
        }
        self.seen = self.seen.max(now);
    }

    fn beat_ns(&self) -> u64 {
        self.config.server_term_ns.min(self.config.client_term_ns) / 8
    }

    /// What there is, as a JSON object.
    fn stats(&self) -> String {
        let place = |wanted| self.servers.slots.iter().filter(|slot| slot.place == wanted).count();
        format!(
            "{{\"incarnation\":{},\"servers_up\":{},\"servers_crashed\":{},\"tables\":{},\"tablets\":{},\
             \"client_leases\":{},\"changes\":{},\"refusals\":{}}}",
            self.cluster.incarnation,
            place(Place::Up),
            place(Place::Crashed),
            self.tables.by_id.len(),
            self.tables.tablets,
            self.leases.len(),
            self.journal.issued,
            self.refusals,
        )
    }

    fn dispatch(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: &[u8],
    ) -> Result<Option<Message>, Status> {
        Ok(match control::opcode(payload)? {
            Opcode::Echo => Some(said(&payload[4..])),
            Opcode::Stats => Some(said(self.stats().as_bytes())),
            Opcode::Enlist => self.enlist(now, caller, &Enlist::parse(payload)?),
            Opcode::RenewServer => self.renew_server(now, caller, RenewServer::parse(payload)?),
            Opcode::RenewClient => self.renew_client(now, caller, &RenewClient::parse(payload)?),
            Opcode::CheckLease => self.check_lease(now, caller, &CheckLease::parse(payload)?),
            Opcode::CreateTable => self.create_table(caller, &CreateTable::parse(payload)?),
            Opcode::DropTable => self.drop_table(caller, &DropTable::parse(payload)?),
            Opcode::GetTable => self.get_table(caller, &GetTable::parse(payload)?),
            Opcode::ListTables => self.list_tables(caller, &ListTables::parse(payload)?),
            Opcode::GetTablets => self.tablets(caller, &GetTablets::parse(payload)?),
            Opcode::ListServers => self.list_servers(caller, &ListServers::parse(payload)?),
            Opcode::HintCrashed => self.hint_crashed(caller, &HintCrashed::parse(payload)?),
            _ => return Err(Status::UnknownOpcode),
        })
    }
}

impl Slices for Coordinator {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

impl Machine for Coordinator {
    fn request(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: Payload<'_>,
        _deadline: Instant,
    ) -> Option<Message> {
        self.notice(now);
        match self.dispatch(now, caller, &payload) {
            Ok(reply) => reply,
            Err(status) => {
                Some(control::failure(status, "the coordinator cannot read this request").into())
            }
        }
    }

    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        self.notice(now);
        self.called(now, tag, result);
    }

    fn output(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        let call = self.next_call(now);
        // Looking for the next call can have moved a tablet, which must become durable.
        call.or_else(|| self.out.pop_front())
    }

    fn persisted(&mut self, now: Instant, seq: u64) {
        self.notice(now);
        if self.refusal.take().is_some() {
            self.resume();
        }
        self.journal.safe = self.journal.safe.max(seq);
        while let Some((wanted, _)) = self.journal.effects.front()
            && *wanted <= self.journal.safe
            && let Some((_, effect)) = self.journal.effects.pop_front()
        {
            match effect {
                Effect::Reply { caller, reply, .. } => {
                    self.out.push_back(Output::Reply { caller, message: reply.into() });
                }
                Effect::Begin(id) => self.begin(id),
            }
        }
    }

    fn rollback(&mut self, now: Instant, reason: &str, durable: Vec<(Vec<u8>, Vec<u8>)>) {
        self.notice(now);
        self.roll_back(now, reason, durable);
    }

    fn deadline(&self) -> Option<Instant> {
        let idle = self.leases.len() == 0 && self.servers.all_up().next().is_none();
        let beat = (!idle).then_some(self.beat);
        let again = self.refusal.as_ref().map(|refusal| refusal.until);
        beat.into_iter().chain(again).chain(self.tables.deadline()).min()
    }

    fn tick(&mut self, now: Instant) -> bool {
        self.notice(now);
        self.repeat_calls(now);
        if self.refusal.as_ref().is_some_and(|refusal| refusal.until <= now) {
            self.refusal = None;
            self.resume();
        }
        // What only time has changed waits as long as changes are not written.
        if now < self.beat || self.refusal.is_some() {
            return false;
        }
        self.expire_servers(now);
        if self.expire_leases(now) {
            return true;
        }
        self.beat = now.after(self.beat_ns());
        false
    }
}

/// An OK followed by `bytes`.
fn said(bytes: &[u8]) -> Message {
    let mut reply = control::done();
    reply.extend_from_slice(bytes);
    reply.into()
}
