//! The way back to what is durable: after a restart of the process, and after changes that the disk did not take.
//!
//! What always holds: after [`Coordinator::roll_back`] memory says what the disk says, and nothing that was not durable.
//! What no disk knows stays: when servers and clients were heard of, who waits for a table, which calls are under way.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::time::{MS, US};
use sprat_proto::{Instant, Rng};

use super::durable::{self, FORMAT, Key, Place, RestoreError};
use super::leases::Leases;
use super::servers::{Servers, Slot};
use super::tables::{Table, Tables};
use super::{Coordinator, Effect, Otherwise};
use crate::message::Status;
use crate::message::control;
use sprat_proto::node::machine::{Link, Output};

/// The most places of a server list that is believed.
const MAX_PLACES: u32 = 1 << 16;
/// How long changes are refused without asking the disk, at least: shorter than a command takes to start, so that the first
/// one after there is room again succeeds.
const REFUSE_NS: u64 = 20 * MS;
/// How much longer for each pair of the state, all of which every refusal of the disk costs a look at.
const REFUSE_PAIR_NS: u64 = 2 * US;

/// The disk takes no changes.
#[derive(Debug)]
pub(super) struct Refusal {
    /// Where, and why.
    reason: String,
    /// When the next change is tried.
    pub(super) until: Instant,
}

/// What a disk says.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) cluster: Option<durable::Cluster>,
    pub(super) servers: Servers,
    pub(super) tables: Tables,
    pub(super) leases: Leases,
}

impl Restored {
    /// Everything that was ever persisted, in any order.
    pub(super) fn from(
        pairs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Result<Self, RestoreError> {
        let (servers, tables, leases) = (Servers::default(), Tables::default(), Leases::default());
        let mut this = Self { cluster: None, servers, tables, leases };
        for (key, value) in pairs {
            match Key::parse(&key)? {
                Key::Cluster => this.cluster = Some(restored_cluster(&value)?),
                Key::Server(index) => restore_server(&mut this.servers, index, &value)?,
                Key::Table(id) => {
                    let record =
                        durable::decode(&value).map_err(|_| RestoreError::Damaged("table"))?;
                    if !this.tables.insert(id, Table::restored(&record)) {
                        return Err(RestoreError::Damaged("table"));
                    }
                }
                Key::Lease(id) => this.leases.set(id, Instant::ZERO),
            }
        }
        if let Some(cluster) = &this.cluster {
            check_restored(cluster, &this.tables, &this.leases)?;
        }
        let tablets = this.tables.by_id.values().flat_map(|table| &table.tablets);
        tablets.for_each(|tablet| this.servers.count(tablet.server, 1));
        Ok(this)
    }
}

impl Coordinator {
    /// Changes were not written: memory goes back to `durable`.
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
        self.journal.safe = self.journal.issued;
        match restored {
            Ok((cluster, servers, tables, leases)) if started => {
                self.cluster = cluster;
                self.take_back_servers(servers);
                self.take_back_leases(leases);
                self.refusal = Some(Refusal { reason: reason.into(), until });
                self.take_back_tables(tables);
                self.refuse_waiting();
            }
            // Without a durable start nothing could be said: the terms of leases, or the cluster's very id, are unknown.
            Ok(_) => self.out.push_back(Output::Stop { reason: reason.into() }),
            Err(e) => self.out.push_back(Output::Stop { reason: format!("{reason}; then {e}") }),
        }
    }

    /// Servers as they are on the disk; those that live on were heard of when they were.
    fn take_back_servers(&mut self, restored: Servers) {
        let floor = self.servers.floor;
        let old = core::mem::replace(&mut self.servers, Servers { floor, ..restored });
        for (index, old) in old.slots.into_iter().enumerate() {
            let same = |slot: &&mut Slot| slot.generation == old.generation;
            match self.servers.slots.get_mut(index).filter(same) {
                Some(slot) => {
                    // One that was given up is so again as soon as that can be written: its time is over, or it left.
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

    /// Leases as they are on the disk; those that had not ended were heard of when they were.
    fn take_back_leases(&mut self, restored: Leases) {
        let old = core::mem::replace(&mut self.leases, restored);
        self.leases.heard_as(&old);
    }

    /// Tables as they are on the disk. A caller goes on waiting for a table that is as far as it was; a call that is under
    /// way comes to its end.
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

    /// Answers everyone that waits for a change.
    fn refuse_waiting(&mut self) {
        for (_, effect) in core::mem::take(&mut self.journal.effects) {
            // Work on tables begins again by `resume`.
            if let Effect::Reply { caller, otherwise, .. } = effect {
                let message = self.refused(otherwise).into();
                self.out.push_back(Output::Reply { caller, message });
            }
        }
    }

    /// The answer to a request whose change is not written.
    fn refused(&self, otherwise: Otherwise) -> Vec<u8> {
        let reason = self.refusal.as_ref().map_or("", |refusal| &refusal.reason);
        match otherwise {
            Otherwise::Retry => control::failure(Status::Retry, reason),
            Otherwise::Refused => control::failure(Status::NotDurable, reason),
            Otherwise::Unfinished => control::failure(Status::Unfinished, reason),
        }
    }

    /// The answer to a request for a change, as long as the disk takes none.
    pub(super) fn unwritable(&self, otherwise: Otherwise) -> Option<Vec<u8>> {
        self.refusal.as_ref().map(|_| self.refused(otherwise))
    }

    /// Changes can be tried again: so work on tables goes on.
    pub(super) fn resume(&mut self) {
        for id in self.unsettled_tables() {
            self.begin(id);
            self.without_server(id);
        }
    }
}

fn restored_cluster(value: &[u8]) -> Result<durable::Cluster, RestoreError> {
    match *value {
        // The format stands first, so that another one can be named whatever follows.
        [a, b, ..] if u16::from_be_bytes([a, b]) != FORMAT => {
            Err(RestoreError::Format(u16::from_be_bytes([a, b])))
        }
        _ => durable::decode(value).map_err(|_| RestoreError::Damaged("cluster record")),
    }
}

/// What the rest of the code relies on.
fn check_restored(
    cluster: &durable::Cluster,
    tables: &Tables,
    leases: &Leases,
) -> Result<(), RestoreError> {
    let counters = [cluster.incarnation, cluster.next_table, cluster.next_lease];
    if cluster.id == 0 || counters.iter().any(|&counter| counter >= 1 << 63) {
        return Err(RestoreError::Damaged("cluster record"));
    }
    if tables.by_id.last_key_value().is_some_and(|(&id, _)| id >= cluster.next_table)
        || !tables.by_id.values().all(Table::makes_sense)
    {
        return Err(RestoreError::Damaged("table"));
    }
    if leases.last().is_some_and(|id| id >= cluster.next_lease) {
        return Err(RestoreError::Damaged("lease"));
    }
    Ok(())
}

fn restore_server(servers: &mut Servers, index: u32, value: &[u8]) -> Result<(), RestoreError> {
    let damaged = RestoreError::Damaged("server record");
    // No coordinator ever had so many; the list is indexed by this number.
    if index >= MAX_PLACES {
        return Err(damaged);
    }
    let record = durable::decode(value).map_err(|_| damaged)?;
    while servers.slots.len() <= index as usize {
        servers.slots.push(Slot::restored(&durable::Server {
            generation: 0,
            place: Place::Free,
            nonce: 0,
            capacity_bytes: 0,
            control: "",
            data: "",
        }));
    }
    servers.slots[index as usize] = Slot::restored(&record);
    Ok(())
}

/// The record of a cluster that begins.
pub(super) fn new_cluster(rng: &mut Rng) -> durable::Cluster {
    durable::Cluster {
        format: FORMAT,
        id: rng.u64().max(1),
        incarnation: 0,
        next_table: 1,
        next_lease: 1,
        server_term_ns: 0,
        client_term_ns: 0,
    }
}
