//! The coordinator moves parts of tables by itself: first so that a server that has joined gets an
//! equal share of each table, then hot ranges, so that no server has much more load than others.
//!
//! ```text
//!  each Config::rebalance_ns, if nothing moves or is recovered:
//!    a server lacks more than half of its share of a table ─► the first move of a plan for it
//!    else the rates of all masters ─► a gap ─► HotRange to the hottest ─► Hot: a range and its
//!      part of the load ─► a migration to the least loaded, if that narrows the gap
//! ```
//!
//! Invariants: it begins one migration at a time, and none while a server has not renewed its lease
//! since the coordinator started. A move that fails is tried again after a pause. Only rates and
//! samples count that are of the present tablets. A hot range moves only if the higher load of both
//! servers becomes clearly lower, and if no equal share takes it back: no move undoes another one.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::Output;
use sprat_proto::rpc::{Payload, RpcError};

use super::durable::Stage;
use super::state::Coordinator;
use super::table::{MANY_TABLETS, Table};
use crate::balance::{self, Gap, Load, Owned};
use crate::message::migration::{Hot, HotRange};
use crate::types::ServerId;

impl Coordinator {
    /// Returns the time of the next search for a move, if the options want any.
    pub(super) fn rebalance_deadline(&self) -> Option<Instant> {
        (self.config.rebalance_ns > 0).then_some(self.next_rebalance)
    }

    /// Begins a migration if a server lacks its share of a table, or asks for a hot range.
    pub(super) fn rebalance(&mut self, now: Instant) {
        if self.config.rebalance_ns == 0 || now < self.next_rebalance {
            return;
        }
        self.next_rebalance = now.after(self.config.rebalance_ns);
        if !self.is_at_rest() {
            return;
        }
        let share_is_due = self.shares.are_due(now, &self.migrations);
        if share_is_due && let Some((table, source, to)) = self.first_move() {
            let share = self.open_migration(table, (to.first, to.last), (source, to.server));
            self.shares.begin(share);
        } else if self.heat.is_search_due(now, &self.migrations) {
            self.search_gap(now);
        }
    }

    /// Returns true if nothing moves or is recovered, and all masters are known to be there.
    fn is_at_rest(&self) -> bool {
        let is_busy = self.migrations.counts().0 > 0 || self.recoveries.counts().0 > 0;
        let mut masters = self.servers.masters();
        !is_busy && self.refusal.is_none() && masters.all(|(_, slot)| slot.heard)
    }

    /// Returns the ids of the servers that may own tablets.
    fn owners(&self) -> Vec<ServerId> {
        self.servers.masters().map(|(id, _)| id).collect()
    }

    // Equal shares.

    /// Returns the first move of a table to a server that lacks its share: the table, the owner,
    /// and the keys with the server that lacks them.
    fn first_move(&mut self) -> Option<(u64, ServerId, Owned)> {
        let servers = self.owners();
        // A server that has got more than half of its share gets the rest.
        let going_on = self.filling.and_then(|(id, server)| self.move_to(id, server, &servers));
        if going_on.is_some() {
            return going_on;
        }
        self.filling = None;
        let found = self.tables.by_id.iter().find_map(|(&id, table)| {
            let server = balance::needy(&owned(table), &servers)?;
            Some((server, self.move_to(id, server, &servers)?))
        });
        let (server, to) = found?;
        self.filling = Some((to.0, server));
        Some(to)
    }

    /// Returns the first move by which a server gets its share of a table.
    fn move_to(
        &self,
        id: u64,
        server: ServerId,
        servers: &[ServerId],
    ) -> Option<(u64, ServerId, Owned)> {
        let table = self.tables.by_id.get(&id).filter(|table| table.stage == Stage::Ready)?;
        let owned = owned(table);
        if !owned.iter().all(|tablet| servers.contains(&tablet.server)) {
            return None;
        }
        let to = *balance::plan_for(&owned, servers, server).first()?;
        let tablet = table.tablet((to.first, to.last))?;
        (!self.is_full_of_tablets(id, 2)).then_some((id, tablet.server, to))
    }

    // Hot ranges.

    /// Searches for a server with clearly more load than another one.
    fn search_gap(&mut self, now: Instant) {
        let loads = self.servers.masters().map(|(server, slot)| {
            let rate = slot.rate.since(self.heat.settled)?;
            // The length of a range is unknown here.
            let has_room = slot.usage.used_bytes <= slot.usage.capacity_bytes / 4 * 3;
            Some(Load { server, rate, has_room })
        });
        if let Some(loads) = loads.collect::<Option<Vec<_>>>() {
            let gap = balance::gap(&loads, self.config.hot_rate);
            let began = gap.and_then(|gap| self.servers.up(gap.hot.server)?.rate.began());
            self.heat.found(now, gap.zip(began));
        }
    }

    /// Returns the question to the hottest server that is due.
    pub(super) fn next_heat_call(&mut self, now: Instant) -> Option<Output> {
        let gap = self.heat.ready()?;
        let server = gap.hot.server;
        let connect = self.servers.connect(server);
        if connect.is_some() {
            return connect;
        }
        if self.servers.up(server).is_none() {
            self.heat.sent(None);
            return None;
        }
        let (cluster, term) = (self.cluster.id, self.cluster.incarnation);
        let message = HotRange { cluster, term, server, wanted: gap.wanted() }.emit();
        let (tag, output) = self.call(now, server, message);
        self.heat.sent(Some(tag));
        Some(output)
    }

    /// Handles the result of a question for a hot range. Returns false if the call was none.
    pub(super) fn heat_called(&mut self, tag: u64, result: &Result<Payload<'_>, RpcError>) -> bool {
        let Some((gap, is_of_now)) = self.heat.answered(tag) else { return false };
        let hot = result.as_ref().ok().and_then(|reply| Hot::parse(reply).ok());
        if let Some(hot) = hot
            && is_of_now
            && gap.narrows(hot.part)
            && self.is_at_rest()
            && self.can_move(gap, &hot)
        {
            let (table, range) = (hot.table.0, (hot.first, hot.last));
            let migration = self.open_migration(table, range, (gap.hot.server, gap.cold.server));
            self.heat.moved(migration);
        }
        true
    }

    /// Returns true if the hottest server owns this range, the least loaded one can have it, and
    /// no equal share takes it back.
    fn can_move(&self, gap: Gap, hot: &Hot) -> bool {
        let (source, target) = (gap.hot.server, gap.cold.server);
        let (id, range, servers) = (hot.table.0, (hot.first, hot.last), self.owners());
        let table = self.tables.by_id.get(&id).filter(|table| table.stage == Stage::Ready);
        table.is_some_and(|table| {
            let is_full = table.tablets.len() + 2 > MANY_TABLETS || self.is_full_of_tablets(id, 2);
            let moved = Owned { first: hot.first, last: hot.last, server: source };
            !is_full
                && servers.contains(&target)
                && table.tablet(range).is_some_and(|tablet| tablet.server == source)
                && balance::can_spare(&owned(table), &servers, moved)
        })
    }
}

/// Returns the tablets of a table with their owners.
fn owned(table: &Table) -> Vec<Owned> {
    let tablets = table.tablets.iter();
    tablets.map(|t| Owned { first: t.first, last: t.last, server: t.server }).collect()
}
