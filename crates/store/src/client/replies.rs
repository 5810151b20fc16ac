//! Replies of servers to a client: each ends an operation, or leads to its next step.

use alloc::string::ToString;

use sprat_proto::Instant;
use sprat_proto::rpc::Payload;

use super::answer::{Answer, Done, LeaderInfo, MigrationInfo, ServerInfo, TableInfo, TabletInfo};
use super::cursor::Cursor;
use super::error::{Error, WaitedFor};
use super::rifl::Rifl;
use super::state::{Client, Kind, State};
use crate::message::Status;
use crate::message::control::{self, Leader, Leased, ServerPage, TableKey, TablePage, Tablets};
use crate::message::data::Refusal;
use crate::message::migration::{MigrationPage, Moving};
use crate::message::recovery::Loss;
use crate::ops::{Reply, Request};
use crate::types::{LeaseId, TableId};

impl Client {
    /// Handles the reply to an operation's call.
    #[inline(always)]
    pub(super) fn answered<'b>(
        &mut self,
        now: Instant,
        index: u32,
        reply: Payload<'b>,
    ) -> Option<Done<'b>> {
        let request = match self.slots[index as usize].kind {
            Kind::Server(request) => request,
            kind => return self.coordinator_answered(now, index, kind, &reply),
        };
        match request.completion(&reply) {
            Ok(parsed) => {
                let cursor = match parsed {
                    Reply::Objects { next } => self.next_cursor(index, next),
                    _ => None,
                };
                self.close(index, Ok(Answer::new(parsed, reply, cursor)))
            }
            Err(refusal) => self.refused(now, index, &refusal),
        }
    }

    /// Returns the position behind a page of an enumeration.
    #[cold]
    fn next_cursor(&mut self, index: u32, within: Option<u64>) -> Option<Cursor> {
        let slot = &mut self.slots[index as usize];
        let Kind::Server(Request::Enumerate(scan)) = slot.kind else { return None };
        core::mem::take(&mut slot.extra().cursor).after(scan.last, within)
    }

    fn coordinator_answered(
        &mut self,
        now: Instant,
        index: u32,
        kind: Kind,
        reply: &[u8],
    ) -> Option<Done<'static>> {
        match self.coordinator_said(now, index, kind, reply) {
            Ok(answer) => self.close(index, Ok(answer?)),
            Err(status) => {
                let text = control::failure_text(reply);
                self.refused(now, index, &Refusal { status, version: Default::default(), text })
            }
        }
    }

    /// Handles the coordinator's reply. Returns `None` if the operation has a next step, or if the
    /// client made the request for itself.
    fn coordinator_said(
        &mut self,
        now: Instant,
        index: u32,
        kind: Kind,
        reply: &[u8],
    ) -> Result<Option<Answer<'static>>, Status> {
        match kind {
            Kind::Create(_) | Kind::Lookup => {
                let key = TableKey::parse(reply)?;
                return Ok(self.learn_cluster(key.cluster).then_some(Answer::Table(key.table)));
            }
            Kind::Drop(TableId(0)) => {
                let key = TableKey::parse(reply)?;
                if self.learn_cluster(key.cluster) {
                    self.slots[index as usize].kind = Kind::Drop(key.table);
                    self.go_on(index);
                }
            }
            Kind::Drop(table) => {
                let (status, _) = control::outcome(reply)?;
                if status != Status::Ok {
                    return Err(status);
                }
                let table = self.routes.table(table);
                self.routes.tables[table as usize].tablets.clear();
                return Ok(Some(Answer::Dropped));
            }
            Kind::Split { .. }
            | Kind::Merge { .. }
            | Kind::Move { .. }
            | Kind::ListTablets(_)
            | Kind::ListMigrations => return self.arrangement_said(index, kind, reply),
            Kind::ListTables => return self.add_tables(index, &TablePage::parse(reply)?),
            Kind::Leader => {
                let Leader { term, locators } = Leader::parse(reply)?;
                let locators = locators.to_string();
                return Ok(Some(Answer::Leader(LeaderInfo { term, locators })));
            }
            Kind::AcceptLoss { .. } => return Ok(Some(Answer::Loss(Loss::parse(reply)?))),
            Kind::ListServers => return self.add_servers(index, &ServerPage::parse(reply)?),
            Kind::Tablets => {
                let tablets = Tablets::parse(reply)?;
                if self.learn_cluster(tablets.cluster) {
                    let table = self.slots[index as usize].place;
                    self.routes.learn(table, &tablets)?;
                    let max_ns = self.config.max_pause_ns;
                    self.routes.tables[table as usize].set_refresh(now, &mut self.rng, max_ns);
                    self.own_request_answered(index, WaitedFor::Coordinator);
                }
            }
            Kind::Lease => {
                let leased = Leased::parse(reply)?;
                if leased.lease == LeaseId(0) {
                    return Err(Status::BadFormat);
                }
                if self.learn_cluster(leased.cluster) {
                    self.rifl.granted(leased.lease, leased.term_ns);
                    // A lease that is over already must not be renewed in a loop without pauses.
                    if !self.rifl.valid(now) {
                        self.pause(now, index, 0);
                        return Ok(None);
                    }
                    self.own_request_answered(index, WaitedFor::Lease);
                }
            }
            _ => {}
        }
        Ok(None)
    }

    /// Handles the coordinator's reply to a change or a listing of tablets.
    fn arrangement_said(
        &mut self,
        index: u32,
        kind: Kind,
        reply: &[u8],
    ) -> Result<Option<Answer<'static>>, Status> {
        match kind {
            Kind::Split { .. } | Kind::Merge { .. } => {
                let (status, _) = control::outcome(reply)?;
                if status == Status::Ok { Ok(Some(Answer::Arranged)) } else { Err(status) }
            }
            Kind::Move { .. } => {
                let number = Moving::parse(reply)?.migration;
                let number = (number != 0).then_some(number);
                Ok(Some(Answer::Migration(number)))
            }
            Kind::ListTablets(_) => {
                let listed = Tablets::parse(reply)?;
                let tablets = listed.tablets.iter().map(TabletInfo::of).collect();
                let is_known = self.learn_cluster(listed.cluster);
                Ok(is_known.then_some(Answer::Tablets(tablets)))
            }
            _ => self.add_migrations(index, &MigrationPage::parse(reply)?),
        }
    }

    fn add_tables(
        &mut self,
        index: u32,
        page: &TablePage<'_>,
    ) -> Result<Option<Answer<'static>>, Status> {
        let rows = &mut self.slots[index as usize].extra().rows;
        rows.tables.extend(page.tables.iter().map(|row| TableInfo {
            table: row.table,
            name: row.name.to_string(),
            tablets: row.tablets,
            lost: row.lost,
            unheard: row.unheard,
            recovering: row.recovering,
            durability: row.durability,
        }));
        if !page.more || page.tables.is_empty() {
            return Ok(Some(Answer::Tables(core::mem::take(&mut rows.tables))));
        }
        self.go_on(index);
        Ok(None)
    }

    fn add_migrations(
        &mut self,
        index: u32,
        page: &MigrationPage<'_>,
    ) -> Result<Option<Answer<'static>>, Status> {
        let rows = &mut self.slots[index as usize].extra().rows;
        rows.migrations.extend(page.migrations.iter().map(MigrationInfo::of));
        if !page.more || page.migrations.is_empty() {
            return Ok(Some(Answer::Migrations(core::mem::take(&mut rows.migrations))));
        }
        self.go_on(index);
        Ok(None)
    }

    fn add_servers(
        &mut self,
        index: u32,
        page: &ServerPage<'_>,
    ) -> Result<Option<Answer<'static>>, Status> {
        let rows = &mut self.slots[index as usize].extra().rows;
        rows.servers.extend(page.servers.iter().map(|row| ServerInfo {
            server: row.server,
            state: row.state,
            tablets: row.tablets,
            usage: row.usage.clone(),
            rate: row.rate,
            replicas: row.replicas,
            durability: row.durability,
            site: row.site.to_owned(),
            control: row.control.to_string(),
            data: row.data.to_string(),
            blocked: row.blocked.to_string(),
        }));
        if page.next == 0 || page.servers.is_empty() {
            return Ok(Some(Answer::Servers(core::mem::take(&mut rows.servers))));
        }
        self.go_on(index);
        Ok(None)
    }

    /// Queues the next step of an operation for sending.
    pub(super) fn go_on(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.state = State::Ready;
        if let Some(extra) = &mut slot.extra {
            extra.failures = 0;
        }
        self.ready.push_back(index);
    }

    /// Records the cluster that the coordinator names. Returns false if the coordinator belongs to
    /// another cluster than before: then all operations have ended.
    fn learn_cluster(&mut self, cluster: u64) -> bool {
        if self.cluster == 0 {
            self.cluster = cluster;
        }
        if cluster == self.cluster {
            return true;
        }
        self.replaced = true;
        self.bundles.clear();
        for index in 0..self.slots.len() as u32 {
            let slot = &self.slots[index as usize];
            match slot.kind {
                _ if slot.state == State::Free => {}
                kind if kind.is_own() => drop(self.end(index)),
                // It ends with its last part.
                Kind::Multi => {}
                _ => self.refuse(index, Error::ClusterReplaced),
            }
        }
        self.rifl = Rifl::new();
        false
    }

    /// Ends one of the client's own requests and continues the operations that waited for its
    /// reply.
    fn own_request_answered(&mut self, index: u32, what: WaitedFor) {
        for waiting in self.close_own_request(index) {
            self.unpark(waiting, what);
        }
    }
}
