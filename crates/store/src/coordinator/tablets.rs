//! Splitting and merging tablets: changes of the map alone, since both parts keep their owner.
//!
//! A master serves by ranges of hashes that it was given, and asks nothing about their borders. A
//! later migration or recovery moves tablets by the borders of the map.

use sprat_proto::node::machine::Caller;
use sprat_proto::rpc::Message;

use super::durable::{Batch, Key, Stage};
use super::state::{Coordinator, Otherwise};
use super::table::{MOST_TABLETS, Table, Tablet};
use crate::message::Status;
use crate::message::control;
use crate::message::migration::{MergeTablets, SplitTablet};
use crate::message::transaction::{FindOwner, Owner};

/// A refusal: its status, and a text for people.
type Refusal = (Status, &'static str);

impl Coordinator {
    /// Returns the table in use with this name, and its id.
    pub(super) fn ready_table(&self, name: &str) -> Result<(u64, &Table), Refusal> {
        let id = self.tables.by_name.get(name).copied();
        let table = id.and_then(|id| Some((id, self.tables.by_id.get(&id)?)));
        match table {
            None => Err((Status::TableDoesntExist, "there is no such table")),
            Some((_, table)) if table.stage != Stage::Ready => {
                Err((Status::Retry, "the table is being created or dropped"))
            }
            Some(table) => Ok(table),
        }
    }

    /// Returns true if the table, or the coordinator, can have no `more` tablets.
    pub(super) fn is_full_of_tablets(&self, table: u64, more: usize) -> bool {
        let of_table = self.tables.by_id.get(&table).map_or(0, |table| table.tablets.len());
        self.tables.tablets + more > self.config.max_tablets || of_table + more > MOST_TABLETS
    }

    /// Tells a server which server has an object.
    pub(super) fn find_owner(&mut self, caller: Caller, request: &FindOwner) -> Option<Message> {
        if request.cluster != self.cluster.id {
            let text = "this server is not in the cluster";
            return self.fail(caller, Status::NotInCluster, text);
        }
        let table = self.tables.by_id.get(&request.table.0);
        let table = table.filter(|table| table.stage != Stage::Dropping);
        let mut tablets = table.into_iter().flat_map(|table| &table.tablets);
        let tablet = tablets.find(|t| (t.first..=t.last).contains(&request.hash));
        let slot = tablet.and_then(|tablet| Some((tablet.server, self.servers.up(tablet.server)?)));
        let (server, data) =
            slot.map_or_else(Default::default, |(server, slot)| (server, slot.data.as_str()));
        let is_lost = |tablet: &Tablet| self.servers.is_lost(tablet.server);
        let is_ready = table.is_some_and(|table| table.stage == Stage::Ready);
        let gone = table.is_none() || is_ready && tablet.is_some_and(is_lost);
        let reply = Owner { server, gone, data }.emit();
        self.answer(caller, reply)
    }

    /// Divides a tablet in two.
    pub(super) fn split_tablet(
        &mut self,
        caller: Caller,
        request: &SplitTablet<'_>,
    ) -> Option<Message> {
        self.change_tablets(caller, request.name, |this, id| {
            if this.migrations.cuts(id, request.at) {
                return Err((Status::Retry, "the tablet moves to another server"));
            }
            if this.is_full_of_tablets(id, 1) {
                return Err((Status::NoSpace, "the limit of tablets is reached"));
            }
            let table = this.tables.by_id.get_mut(&id);
            let owner = table.and_then(|table| table.split(request.at));
            if let Some(owner) = owner {
                this.servers.count(owner, 1);
                this.tables.tablets += 1;
            }
            Ok(owner.is_some())
        })
    }

    /// Unites two tablets that follow each other.
    pub(super) fn merge_tablets(
        &mut self,
        caller: Caller,
        request: &MergeTablets<'_>,
    ) -> Option<Message> {
        self.change_tablets(caller, request.name, |this, id| {
            let Some(table) = this.tables.by_id.get_mut(&id) else { return Ok(false) };
            let merged = table.merge(request.at)?;
            if let Some(owner) = merged {
                this.servers.count(owner, -1);
                this.tables.tablets -= 1;
            }
            Ok(merged.is_some())
        })
    }

    /// Makes a change of a table's tablets durable. `change` returns true if it has changed any.
    fn change_tablets(
        &mut self,
        caller: Caller,
        name: &str,
        change: impl FnOnce(&mut Self, u64) -> Result<bool, Refusal>,
    ) -> Option<Message> {
        let id = match self.ready_table(name) {
            Ok((id, _)) => id,
            Err((status, text)) => return self.fail(caller, status, text),
        };
        // The requests that wait limit the changes.
        if let Some(reply) = self.full().or_else(|| self.unwritable(Otherwise::Refused)) {
            return Some(reply.into());
        }
        match change(self, id) {
            Err((status, text)) => self.fail(caller, status, text),
            Ok(false) => self.answer(caller, control::done()),
            Ok(true) => {
                let mut batch = Batch::default();
                if let Some(table) = self.tables.by_id.get(&id) {
                    batch.put(Key::Table(id), &table.record());
                }
                self.persist(batch);
                // Recoveries plan by the tablets.
                self.recoveries.replan();
                self.answer_or(caller, control::done(), Otherwise::Refused)
            }
        }
    }
}
