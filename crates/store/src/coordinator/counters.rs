//! The counters of a coordinator, in one list from which all formats and the documents are made.

use alloc::borrow::ToOwned as _;
use alloc::string::String;
use alloc::vec::Vec;

use super::durable::Place;
use super::state::Coordinator;
use crate::counter::{Counter, Kind, Unit};

/// Makes the list of a coordinator's counters, and the function that returns their values.
macro_rules! catalogue {
    ($coordinator:ident, $recoveries:ident, $migrations:ident;
     $($name:ident $kind:ident $unit:ident = $value:expr, $help:literal;)*) => {
        /// All counters of a coordinator that leads.
        pub const COUNTERS: &[Counter] = &[$(Counter {
            name: stringify!($name),
            kind: Kind::$kind,
            unit: Unit::$unit,
            help: $help,
        }),*];

        /// Returns the names and values of all counters of a coordinator.
        pub(super) fn list($coordinator: &Coordinator) -> Vec<(String, u64)> {
            let $recoveries = $coordinator.recoveries.counts();
            let $migrations = $coordinator.migrations.counts();
            let values = [$($value as u64),*];
            COUNTERS.iter().zip(values).map(|(of, value)| (of.name.to_owned(), value)).collect()
        }
    };
}

catalogue! {
    coordinator, recoveries, migrations;
    leads Level Servers = 1, "Whether this coordinator leads: 1, or 0 without the other counters.";
    incarnation Level Events = coordinator.cluster.incarnation,
        "Starts of coordinators with the state of this cluster.";
    servers_up Level Servers = at(coordinator, Place::Up), "Servers that are up.";
    servers_crashed Level Servers = at(coordinator, Place::Crashed),
        "Servers that have crashed and are not recovered yet.";
    servers_ended Total Servers = coordinator.pings.ended,
        "Servers whose process has ended, as the kernel of this machine has reported.";
    tables Level Tables = coordinator.tables.by_id.len(), "Tables.";
    tablets Level Tablets = coordinator.tables.tablets, "Tablets of all tables.";
    client_leases Level Clients = coordinator.leases.len(), "Clients that have a lease.";
    changes Total Events = coordinator.journal.issued, "Changes of the durable state.";
    refusals Total Events = coordinator.refusals,
        "Times that the place of the durable state has refused changes.";
    recoveries Level Servers = recoveries.0, "Crashed servers whose objects are being recovered.";
    recoveries_blocked Level Servers = recoveries.1,
        "Crashed servers whose recovery lacks replicas.";
    recoveries_done Total Servers = recoveries.2, "Servers that were recovered.";
    migrations Level Tablets = migrations.0,
        "Parts of tables that move to another server, or wait for that.";
    migrations_done Total Tablets = migrations.1,
        "Parts of tables that have moved to another server.";
    migrations_failed Total Tablets = migrations.2, "Migrations that were given up.";
    hot_ranges_moved Total Tablets = coordinator.heat.moves,
        "Parts of tables that began to move because their server had much more load than others.";
}

/// Returns the number of servers in this place.
fn at(coordinator: &Coordinator, place: Place) -> usize {
    coordinator.servers.slots.iter().filter(|slot| slot.place == place).count()
}
