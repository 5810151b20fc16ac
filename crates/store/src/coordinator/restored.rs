//! Reads the coordinator's durable state into memory.

use alloc::vec::Vec;

use sprat_proto::{Instant, Rng};

use super::durable::{self, FORMAT, Key, Place, RestoreError};
use super::leases::Leases;
use super::recovery::MOST_LOSSES;
use super::servers::{MAX_PLACES, Servers, Slot};
use super::table::{Table, Tables};
use crate::durability::Durability;
use crate::objects::segment::SegmentId;
use crate::site::Site;

/// The coordinator's durable state after it was read into memory.
#[derive(Debug)]
pub(super) struct Restored {
    pub(super) cluster: Option<durable::Cluster>,
    pub(super) servers: Servers,
    pub(super) tables: Tables,
    pub(super) leases: Leases,
}

impl Restored {
    /// Reads all pairs of the durable state, in any order.
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

fn restored_cluster(value: &[u8]) -> Result<durable::Cluster, RestoreError> {
    match *value {
        // The format stands first, so that an error can name any other format.
        [a, b, ..] if u16::from_be_bytes([a, b]) != FORMAT => {
            Err(RestoreError::Format(u16::from_be_bytes([a, b])))
        }
        _ => durable::decode(value).map_err(|_| RestoreError::Damaged("cluster record")),
    }
}

/// Checks the invariants of a durable state that the coordinator's other code relies on.
fn check_restored(
    cluster: &durable::Cluster,
    tables: &Tables,
    leases: &Leases,
) -> Result<(), RestoreError> {
    let counters = [cluster.next_table, cluster.next_lease];
    // The incarnation is the upper half of the versions of the server list. With a start each
    // second it takes 136 years to get there.
    if cluster.id == 0
        || cluster.incarnation >= u64::from(u32::MAX)
        || cluster.losses > MOST_LOSSES
        || counters.iter().any(|&counter| counter >= 1 << 63)
    {
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
    // The list is indexed by this number. No coordinator ever had that many places.
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
            replicas: 0,
            durability: Durability::None,
            site: Site::default(),
            head_segment: SegmentId(0),
            head_epoch: 0,
            control: "",
            data: "",
            loss: 0,
            kept: Vec::new(),
        }));
    }
    servers.slots[index as usize] = Slot::restored(&record);
    Ok(())
}

/// Returns the durable record of a new cluster.
pub(super) fn new_cluster(rng: &mut Rng) -> durable::Cluster {
    durable::Cluster {
        format: FORMAT,
        id: rng.u64().max(1),
        incarnation: 0,
        next_table: 1,
        next_lease: 1,
        server_term_ns: 0,
        client_term_ns: 0,
        losses: 0,
    }
}
