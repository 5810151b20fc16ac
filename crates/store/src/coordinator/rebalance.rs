//! The coordinator moves parts of tables by itself, so that all servers have equal shares.
//!
//! ```text
//!  each Config::rebalance_ns, if nothing moves or is recovered ─► the first move of a table's plan
//! ```
//!
//! Invariants: it begins one migration at a time, and none while a server has not renewed its lease
//! since the coordinator started. A move that fails is tried again, after the same time.

use alloc::vec::Vec;

use sprat_proto::Instant;

use super::durable::Stage;
use super::state::Coordinator;
use crate::balance::{self, Owned};
use crate::types::ServerId;

impl Coordinator {
    /// Returns the time of the next search for a move, if the options want any.
    pub(super) fn rebalance_deadline(&self) -> Option<Instant> {
        (self.config.rebalance_ns > 0).then_some(self.next_rebalance)
    }

    /// Begins a migration if a table is out of balance.
    pub(super) fn rebalance(&mut self, now: Instant) {
        if self.config.rebalance_ns == 0 || now < self.next_rebalance {
            return;
        }
        self.next_rebalance = now.after(self.config.rebalance_ns);
        let is_busy = self.migrations.counts().0 > 0 || self.recoveries.counts().0 > 0;
        if is_busy || self.refusal.is_some() || self.servers.masters().any(|(_, slot)| !slot.heard)
        {
            return;
        }
        if let Some((table, source, to)) = self.first_move() {
            self.open_migration(table, (to.first, to.last), (source, to.server));
        }
    }

    /// Returns the first move of the first table that is out of balance: the table, the owner, and
    /// the keys with the server that lacks them.
    fn first_move(&self) -> Option<(u64, ServerId, Owned)> {
        let servers: Vec<_> = self.servers.masters().map(|(id, _)| id).collect();
        let ready = self.tables.by_id.iter().filter(|(_, table)| table.stage == Stage::Ready);
        ready.into_iter().find_map(|(&id, table)| {
            let owned = table.tablets.iter();
            let owned = owned.map(|t| Owned { first: t.first, last: t.last, server: t.server });
            let owned: Vec<_> = owned.collect();
            if !owned.iter().all(|tablet| servers.contains(&tablet.server)) {
                return None;
            }
            let to = *balance::plan(&owned, &servers).first()?;
            let tablet = table.tablet((to.first, to.last))?;
            (!self.is_full_of_tablets(id, 2)).then_some((id, tablet.server, to))
        })
    }
}
