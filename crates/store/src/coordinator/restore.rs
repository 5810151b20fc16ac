//! The return to the durable state: after a restart of the process, and after changes that the disk
//! did not take.
//!
//! Invariants: after [`Coordinator::roll_back`] the memory agrees with the disk. The times of
//! renewals, the requests that wait for a table, and the calls in progress are in memory alone and
//! stay.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;

use sprat_proto::node::machine::{Caller, Link, Output};
use sprat_proto::time::{MS, US};
use sprat_proto::{Instant, Rng};

use super::durable::{Batch, Key, Place, RestoreError};
use super::heat::{Heat, Moves};
use super::leases::Leases;
use super::migrations::Migrations;
use super::recovery::Recoveries;
use super::restored::{Restored, new_cluster};
use super::servers::{Pings, Servers, Slot};
use super::state::{Config, Coordinator, Effect, Journal, Otherwise, Refusal};
use super::table::Tables;
use crate::message::Status;
use crate::message::control;

/// The shortest time for which the coordinator refuses changes without trying the disk. A command
/// takes longer to start, so that the first command after the disk has room again succeeds.
const REFUSE_NS: u64 = 20 * MS;
/// The time by which the refusal of changes grows for each pair of the state. Every rollback reads
/// all pairs.
const REFUSE_PAIR_NS: u64 = 2 * US;

impl Coordinator {
    /// Returns a coordinator that continues from the durable state `pairs`, in any order, or starts
    /// a new cluster if there are none.
    ///
    /// # Errors
    /// [`RestoreError`] if the state is malformed.
    pub fn restore(
        now: Instant,
        config: Config,
        rng: Rng,
        pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<Self, RestoreError> {
        Self::lead(now, config, rng, pairs, 0)
    }

    /// Returns a coordinator as [`Coordinator::restore`], whose term is at least `term`.
    ///
    /// # Errors
    /// [`RestoreError`] if the state is malformed.
    pub fn lead(
        now: Instant,
        config: Config,
        mut rng: Rng,
        pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
        term: u64,
    ) -> Result<Self, RestoreError> {
        let Restored { cluster, mut servers, tables, mut leases } = Restored::from(pairs)?;
        let fresh = servers.slots.is_empty() && tables.by_id.is_empty() && leases.len() == 0;
        let mut cluster = match cluster {
            Some(cluster) => cluster,
            None if fresh => new_cluster(&mut rng),
            None => return Err(RestoreError::NoCluster),
        };
        // A lease may be from an earlier life of the coordinator, with a longer term.
        cluster.server_term_ns = cluster.server_term_ns.max(config.server_term_ns);
        cluster.client_term_ns = cluster.client_term_ns.max(config.client_term_ns);
        servers.floor = now.after(cluster.server_term_ns).after(config.server_margin_ns);
        let grace = servers.floor.after(config.server_grace_ns);
        let unreplicated = servers.slots.iter_mut().filter(|slot| slot.replicas == 0);
        unreplicated.for_each(|slot| slot.until = grace);
        leases.floor = now.after(cluster.client_term_ns);
        cluster.incarnation = term.max(cluster.incarnation + 1);
        servers.start_versions(cluster.incarnation);

        let mut this = Self {
            config,
            rng,
            cluster,
            servers,
            tables,
            recoveries: Recoveries::default(),
            migrations: Migrations::default(),
            pings: Pings::default(),
            leases,
            journal: Journal::default(),
            out: VecDeque::new(),
            refusal: None,
            refusals: 0,
            seen: now,
            next_check: now,
            next_rebalance: now,
            filling: None,
            shares: Moves::default(),
            heat: Heat::default(),
        };
        let mut batch = Batch::default();
        batch.put(Key::Cluster, &this.cluster);
        let seq = this.persist(batch);
        this.begin_recoveries(seq);
        for id in this.unsettled_tables() {
            this.journal.after(seq, Effect::Begin(id));
        }
        for id in this.unsettled_tables() {
            this.without_server(id);
        }
        Ok(this)
    }

    /// Ends the coordinator. Returns the requests that have no reply yet.
    pub(super) fn abandon(self) -> Vec<Caller> {
        let tables = self.tables.by_id.into_values().flat_map(|table| table.waiters);
        let effects = self.journal.effects.into_iter().filter_map(|(_, effect)| match effect {
            Effect::Reply { caller, .. } => Some(caller),
            Effect::Begin(_) => None,
        });
        let replies = self.out.into_iter().filter_map(|output| match output {
            Output::Reply { caller, .. } => Some(caller),
            _ => None,
        });
        tables.chain(effects).chain(replies).collect()
    }

    /// Returns the coordinator's memory to the state `durable`, since changes were not written.
    pub(super) fn roll_back(
        &mut self,
        now: Instant,
        reason: &str,
        durable: Vec<(Vec<u8>, Vec<u8>)>,
    ) {
        self.refusals += 1;
        self.out.retain(|output| !matches!(output, Output::Persist { .. }));
        let started = self.journal.safe > 0;
        let until = now.after(REFUSE_NS + REFUSE_PAIR_NS * durable.len() as u64);
        let restored = Restored::from(durable).and_then(|restored| match restored.cluster {
            Some(cluster) => Ok((cluster, restored.servers, restored.tables, restored.leases)),
            None => Err(RestoreError::NoCluster),
        });
        self.migrations.roll_back(self.journal.safe);
        self.journal.safe = self.journal.issued;
        match restored {
            Ok((cluster, servers, tables, leases)) if started => {
                self.cluster = cluster;
                self.take_back_servers(servers);
                self.take_back_leases(leases);
                self.refusal = Some(Refusal { reason: reason.into(), until });
                self.take_back_tables(tables);
                self.refuse_waiting();
                self.begin_recoveries(0);
            }
            // Before the first durable change, no reply has gone out, and the cluster's id is
            // unknown. The process must stop.
            Ok(_) => self.out.push_back(Output::Stop { reason: reason.into() }),
            Err(e) => self.out.push_back(Output::Stop { reason: format!("{reason}; then {e}") }),
        }
    }

    /// Takes the servers from the durable state, and the times of their renewals from memory.
    fn take_back_servers(&mut self, restored: Servers) {
        let old = core::mem::replace(&mut self.servers, restored);
        self.servers.continue_from(&old);
        for (index, old) in old.slots.into_iter().enumerate() {
            let same = |slot: &&mut Slot| slot.generation == old.generation;
            match self.servers.slots.get_mut(index).filter(same) {
                Some(slot) => {
                    // A server that was given up will be again once that can be written: its lease
                    // has ended, or it has stopped.
                    if old.place == Place::Up {
                        slot.until = old.until;
                    }
                    (slot.usage, slot.linked, slot.heard) = (old.usage, old.linked, old.heard);
                }
                None if old.linked => {
                    self.out.push_back(Output::Disconnect { link: Link(index as u32) })
                }
                None => {}
            }
        }
    }

    /// Takes the client leases from the durable state, and the times of their renewals from memory.
    fn take_back_leases(&mut self, restored: Leases) {
        let old = core::mem::replace(&mut self.leases, restored);
        self.leases.heard_as(&old);
    }

    /// Takes the tables from the durable state. A request continues to wait for a table whose stage
    /// is the same. A call in progress continues.
    fn take_back_tables(&mut self, restored: Tables) {
        let mut old = core::mem::replace(&mut self.tables, restored);
        let mut refused = Vec::new();
        for (id, table) in &mut old.by_id {
            let waiters = core::mem::take(&mut table.waiters);
            match self.tables.by_id.get_mut(id) {
                Some(now) if now.stage == table.stage => {
                    self.tables.waiting += waiters.len();
                    now.waiters = waiters;
                }
                _ => refused.extend(waiters),
            }
        }
        self.tables.take_calls(old);
        for caller in refused {
            let message = self.refused(Otherwise::Refused).into();
            self.out.push_back(Output::Reply { caller, message });
        }
    }

    /// Fails all requests that wait for a change to become durable.
    fn refuse_waiting(&mut self) {
        for (_, effect) in core::mem::take(&mut self.journal.effects) {
            // `resume` starts the work on tables again.
            if let Effect::Reply { caller, otherwise, .. } = effect {
                let message = self.refused(otherwise).into();
                self.out.push_back(Output::Reply { caller, message });
            }
        }
    }

    /// Returns the reply to a request whose change is not written.
    fn refused(&self, otherwise: Otherwise) -> Vec<u8> {
        let reason = self.refusal.as_ref().map_or("", |refusal| &refusal.reason);
        match otherwise {
            Otherwise::Retry => control::failure(Status::Retry, reason),
            Otherwise::Refused => control::failure(Status::NotDurable, reason),
            Otherwise::Unfinished => control::failure(Status::Unfinished, reason),
        }
    }

    /// Returns the reply to a request for a change while the disk takes none.
    pub(super) fn unwritable(&self, otherwise: Otherwise) -> Option<Vec<u8>> {
        self.refusal.as_ref().map(|_| self.refused(otherwise))
    }

    /// Continues the work on tables, since changes can be tried again.
    pub(super) fn resume(&mut self) {
        self.recoveries.notice();
        for id in self.unsettled_tables() {
            self.begin(id);
            self.without_server(id);
        }
    }
}
