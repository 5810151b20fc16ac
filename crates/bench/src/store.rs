//! The store's client for commands and tests. Its errors say what the user can do next.

use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use sprat::kv::{
    AsyncClient, Builder, Client, Condition, Error, IndexError, LeaderInfo, Loss, MigrationInfo,
    Number, Object, ServerId, ServerInfo, ServerState, TableId, TableInfo, TableOptions,
    TabletInfo, Version, WaitedFor, node_table,
};

use sprat::internals::transports::Options;
use sprat::locator::Locator;
use sprat::trace::TraceRing;

use crate::fail::Fail;
use crate::text::name;

/// Time that a command waits for one operation.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time that a command waits for a coordinator that has not answered yet.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);

/// A client of one cluster, whose errors say what the user can do next.
pub struct Store {
    client: Client,
    coordinator: String,
    /// The time limit of one operation, once the coordinator has answered.
    timeout: Duration,
    /// True once the coordinator has answered.
    answers: bool,
}

impl Store {
    /// Opens a client of the cluster with this coordinator. It reaches the servers over
    /// `transports` only, or over all that they have if there are none.
    pub fn over(coordinator: &str, transports: &[String]) -> Result<Self, Fail> {
        Self::from(coordinator, transports, local()?, None)
    }

    /// Opens a client of a cluster. `local` names this process's ends of packet devices; the client
    /// records tracepoints if `trace` is given.
    pub fn from(
        coordinator: &str,
        transports: &[String],
        local: Vec<Locator>,
        trace: Option<TraceRing>,
    ) -> Result<Self, Fail> {
        let builder = builder(coordinator, transports, local, trace).timeout(FIRST_TIMEOUT);
        let client = builder.connect().map_err(|error| unusable(coordinator, &error))?;
        Ok(Self { client, coordinator: coordinator.to_owned(), timeout: TIMEOUT, answers: false })
    }

    /// Opens an asynchronous client of the cluster with this coordinator, as [`Store::over`] does.
    /// It waits for each operation as long as `timeout`.
    pub fn asynchronous(
        coordinator: &str,
        transports: &[String],
        timeout: Duration,
    ) -> Result<AsyncClient, Fail> {
        let builder = builder(coordinator, transports, local()?, None).timeout(timeout);
        builder.connect_async().map_err(|error| unusable(coordinator, &error))
    }

    /// Waits at most this long for each operation, the first one included.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.client.set_timeout(timeout);
    }

    /// Returns the library's client, for operations whose errors the caller explains itself.
    pub fn raw(&self) -> &Client {
        &self.client
    }

    /// Runs a request to the coordinator about `what`. After the coordinator's first answer,
    /// operations get the whole timeout.
    fn ask<T>(
        &mut self,
        what: &str,
        ask: impl FnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, Fail> {
        let answer =
            ask(&self.client).map_err(|error| self.explain(error, &name(what.as_bytes())))?;
        self.client.set_timeout(self.timeout);
        self.answers = true;
        Ok(answer)
    }

    /// Sends the coordinator a request that it answers after servers have acted. An echo precedes
    /// it, so that the short timeout detects a coordinator that does not run.
    fn order<T>(
        &mut self,
        what: &str,
        order: impl FnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, Fail> {
        self.ask(what, |client| client.echo(None, &[]))?;
        self.ask(what, order)
    }

    /// Returns the servers of the cluster that are up.
    pub fn servers(&mut self) -> Result<Vec<ServerInfo>, Fail> {
        let servers = self.all_servers()?;
        Ok(servers.into_iter().filter(|server| server.state == ServerState::Up).collect())
    }

    /// Returns the servers that are up, and crashed ones that have tablets or are being recovered.
    pub fn all_servers(&mut self) -> Result<Vec<ServerInfo>, Fail> {
        self.ask("the server list", |client| client.servers())
    }

    /// Returns the coordinator that leads, and its term.
    pub fn leader(&mut self) -> Result<LeaderInfo, Fail> {
        self.ask("the coordinator that leads", |client| client.leader())
    }

    /// Returns what the blocked recovery of a server loses, and accepts that if `accept` is true.
    pub fn accept_loss(&mut self, server: ServerId, accept: bool) -> Result<Loss, Fail> {
        match self.client.accept_loss(server, accept) {
            Err(Error::Refused { text, .. }) => {
                Err(Fail::new(text).next("sprat status shows the state of each server"))
            }
            Err(error) => Err(self.explain(error, &format!("server {server}"))),
            Ok(loss) => Ok(loss),
        }
    }

    /// Returns the counters of a server: a JSON object.
    pub fn counters(&mut self, server: &ServerInfo) -> Result<Vec<u8>, Fail> {
        let what = format!("server {}", server.server);
        self.client.stats(Some(&server.data)).map_err(|error| self.explain(error, &what))
    }

    /// Returns the counters of the coordinator: a JSON object.
    pub fn coordinator_counters(&mut self) -> Result<Vec<u8>, Fail> {
        self.ask("the coordinator's counters", |client| client.stats(None))
    }

    /// Returns the number of replicas that a server's log lacks now.
    pub fn missing_replicas(&mut self, server: &ServerInfo) -> Result<u64, Fail> {
        self.counter(server, "replicas_missing")
    }

    /// Returns the value of one counter of a server, 0 if it has no counter of this name.
    pub fn counter(&mut self, server: &ServerInfo, name: &str) -> Result<u64, Fail> {
        let counters = self.counters(server)?;
        let counters: serde_json::Value = serde_json::from_slice(&counters)
            .map_err(|error| Fail::new(format!("counters of {}: {error}", server.server)))?;
        Ok(counters[name].as_u64().unwrap_or(0))
    }

    /// Returns true if all of `servers` servers are up, no other one is being recovered, and no
    /// table and no log lacks anything.
    pub fn is_whole(&mut self, servers: usize) -> Result<bool, Fail> {
        let all = self.all_servers()?;
        if all.len() != servers || all.iter().any(|server| server.state != ServerState::Up) {
            return Ok(false);
        }
        if self.tables()?.iter().any(|table| table.lost + table.recovering + table.unheard > 0) {
            return Ok(false);
        }
        all.iter().try_fold(true, |whole, server| Ok(whole && self.missing_replicas(server)? == 0))
    }

    /// Creates a table, or returns the existing one of that name.
    pub fn create_table(
        &mut self,
        name: &str,
        options: impl Into<TableOptions>,
    ) -> Result<TableId, Fail> {
        let options = options.into();
        self.order(name, |client| Ok(client.create_table(name, options)?.id()))
    }

    /// Drops a table with all its objects.
    pub fn drop_table(&mut self, name: &str) -> Result<(), Fail> {
        let nodes = self.ask(name, |client| Ok(node_table(client.table(name)?.id())));
        self.order(name, |client| client.drop_table(name))?;
        let Ok(nodes) = nodes else { return Ok(()) };
        self.ask(&nodes, |client| match client.drop_table(&nodes) {
            Err(Error::TableDoesntExist) => Ok(()),
            outcome => outcome,
        })
    }

    /// Returns the tablets of a table.
    pub fn tablets(&mut self, name: &str) -> Result<Vec<TabletInfo>, Fail> {
        self.ask(name, |client| client.table(name)?.tablets())
    }

    /// Divides a tablet of a table.
    pub fn split_tablet(&mut self, name: &str, at: u64) -> Result<(), Fail> {
        self.ask(name, |client| client.split_tablet(name, at))
    }

    /// Unites two tablets of a table.
    pub fn merge_tablets(&mut self, name: &str, at: u64) -> Result<(), Fail> {
        self.ask(name, |client| client.merge_tablets(name, at))
    }

    /// Begins to move keys of a table to another server. Returns the number of the migration.
    pub fn move_tablet(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
        server: u32,
    ) -> Result<Option<u64>, Fail> {
        self.ask(name, |client| client.move_tablet(name, range, server))
    }

    /// Returns the migrations that are in progress or have ended a short while ago.
    pub fn migrations(&mut self) -> Result<Vec<MigrationInfo>, Fail> {
        self.ask("the migrations", |client| client.migrations())
    }

    /// Returns all tables of the cluster.
    pub fn tables(&mut self) -> Result<Vec<TableInfo>, Fail> {
        self.ask("the list of tables", |client| client.tables())
    }

    /// Returns the table of that name.
    pub fn table(&mut self, name: &str) -> Result<TableId, Fail> {
        self.ask(name, |client| Ok(client.table(name)?.id()))
    }

    /// Reads an object.
    pub fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        condition: Condition,
    ) -> Result<(Vec<u8>, Version), Fail> {
        let object = self.client.table_by_id(table).get_if(key, condition);
        let object = object.and_then(|object| object.ok_or(Error::ObjectDoesntExist));
        let object = object.map_err(|error| self.explain(error, &name(key)))?;
        Ok((object.value, object.version))
    }

    /// Reads an object and the rest of its lifetime, `None` if it does not expire.
    pub fn read_expiring(
        &mut self,
        table: TableId,
        key: &[u8],
        condition: Condition,
    ) -> Result<(Vec<u8>, Version, Option<Duration>), Fail> {
        let object = self.client.table_by_id(table).start_read_expiring_if(key, condition).wait();
        let object = object.and_then(|object| object.ok_or(Error::ObjectDoesntExist));
        let (object, rest) = object.map_err(|error| self.explain(error, &name(key)))?;
        Ok((object.value, object.version, rest))
    }

    /// Writes an object.
    pub fn write(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        condition: Condition,
    ) -> Result<Version, Fail> {
        self.client
            .table_by_id(table)
            .put_if(key, value, condition)
            .map_err(|error| self.explain(error, &name(key)))
    }

    /// Writes an object that expires after this time.
    pub fn write_expiring(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        lifetime: Duration,
        condition: Condition,
    ) -> Result<Version, Fail> {
        self.client
            .table_by_id(table)
            .put_expiring_if(key, value, lifetime, condition)
            .map_err(|error| self.explain(error, &name(key)))
    }

    /// Writes an object, which expires after this time if it has one. Returns its new version, and
    /// the object before, if there was one.
    pub fn swap(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        lifetime: Option<Duration>,
        condition: Condition,
    ) -> Result<(Version, Option<Object>), Fail> {
        self.client
            .table_by_id(table)
            .swap_if(key, value, lifetime, condition)
            .map_err(|error| self.explain(error, &name(key)))
    }

    /// Gives an object another lifetime, or lets it exist without end, and returns its new version.
    pub fn touch(
        &mut self,
        table: TableId,
        key: &[u8],
        lifetime: Option<Duration>,
        condition: Condition,
    ) -> Result<Version, Fail> {
        self.client
            .table_by_id(table)
            .touch_if(key, lifetime, condition)
            .map_err(|error| self.explain(error, &name(key)))
    }

    /// Removes an object and returns its last version.
    pub fn remove(
        &mut self,
        table: TableId,
        key: &[u8],
        condition: Condition,
    ) -> Result<Option<Version>, Fail> {
        self.client
            .table_by_id(table)
            .remove_if(key, condition)
            .map_err(|error| self.explain(error, &name(key)))
    }

    /// Adds bytes to the end of an object, and returns its new length.
    pub fn append(
        &mut self,
        table: TableId,
        key: &[u8],
        bytes: &[u8],
        condition: Condition,
    ) -> Result<Number<u64>, Fail> {
        self.client
            .table_by_id(table)
            .append_if(key, bytes, condition)
            .map_err(|error| self.explain(error, &name(key)))
    }

    /// Adds to an object that is a whole number, and returns the sum.
    pub fn increment(
        &mut self,
        table: TableId,
        key: &[u8],
        by: i64,
        condition: Condition,
    ) -> Result<Number<i64>, Fail> {
        self.client
            .table_by_id(table)
            .increment_if(key, by, condition)
            .map_err(|error| self.explain(error, &name(key)))
    }

    /// Adds to an object that is a floating-point number, and returns the sum.
    pub fn increment_double(
        &mut self,
        table: TableId,
        key: &[u8],
        by: f64,
        condition: Condition,
    ) -> Result<Number<f64>, Fail> {
        self.client
            .table_by_id(table)
            .increment_double_if(key, by, condition)
            .map_err(|error| self.explain(error, &name(key)))
    }

    /// Turns an error of a table with indexes about `what` into a failure.
    pub fn explain_index(&self, error: IndexError, what: &str) -> Fail {
        match error {
            IndexError::Store(error) => self.explain(error, what),
            IndexError::NoIndex(_) => Fail::new(format!("{what}: {error}"))
                .next("sprat index list TABLE shows those that exist"),
            other => Fail::new(format!("{what}: {other}")),
        }
    }

    /// Turns an error of the library about `what` into a failure that says what to do next.
    pub fn explain(&self, error: Error, what: &str) -> Fail {
        let about = format!("{what}: {error}");
        match error {
            Error::ObjectDoesntExist => Fail::missing(format!("{what}: there is no such object")),
            Error::ObjectExists(_) | Error::WrongVersion(_) => {
                Fail::refused(about).next("nothing was changed; read it, then decide anew")
            }
            Error::Conflict { .. } => Fail::refused(about)
                .next("nothing was changed; read the objects again, then repeat the transaction"),
            Error::TableDoesntExist => Fail::new(format!("{what}: there is no such table"))
                .next("sprat table list shows those that exist; sprat table create NAME makes one"),
            Error::Deadline { waited_for: WaitedFor::Coordinator, why: None, .. }
                if self.answers =>
            {
                Fail::new(about).next(
                    "see which servers live (sprat stats), then repeat the \
                                       command",
                )
            }
            Error::Deadline {
                waited_for: WaitedFor::Coordinator | WaitedFor::Lease, why, ..
            } => {
                let what = match why {
                    None => format!("no coordinator answers at {}", self.coordinator),
                    Some(why) => format!("the coordinator cannot be used: {why}"),
                };
                Fail::new(what).next(
                    "start a cluster with `sprat up`, or name yours with -C or \
                           SPRAT_COORDINATOR",
                )
            }
            Error::Deadline { waited_for: WaitedFor::Leader, why, .. } => {
                let why = why.unwrap_or_else(|| "no coordinator leads".into());
                Fail::new(format!("the coordinators at {} answer, but {why}", self.coordinator))
                    .next(
                        "see whether etcd works (etcdctl endpoint health), and what the \
                         coordinators write: one of them leads soon after etcd answers them",
                    )
            }
            Error::Deadline { waited_for: WaitedFor::Recovery, .. } => {
                Fail::new(about).next("sprat status shows whether the recovery is blocked")
            }
            Error::Deadline { .. } => Fail::new(about).next("see which servers live: sprat stats"),
            Error::TabletLost => {
                Fail::new(about).next("sprat table drop NAME, then create and import it anew")
            }
            Error::NotDurable { .. } => Fail::new(about).next(
                "mend that and repeat the command: nothing has to be started anew after a \
                       full disk",
            ),
            Error::TooFewServers => Fail::new(about).next("start one: sprat server -L LOCATOR"),
            Error::NoSpace => Fail::new(about).next(
                "remove objects, or start servers with more \
                                                     --memory",
            ),
            Error::NotANumber(_) => Fail::new(about)
                .next("get shows what it is; put gives it a number, like 42 (or 0.5, for --float)"),
            Error::Overflow(_) => Fail::new(about).next("put gives it another number"),
            Error::NoTransport(_) => Fail::new(about).next("choose another transport"),
            Error::Unknown => Fail::new(about).next("read it to see whether it was changed"),
            _ => Fail::new(about),
        }
    }
}

/// Returns the builder of a client.
fn builder(
    coordinator: &str,
    transports: &[String],
    local: Vec<Locator>,
    trace: Option<TraceRing>,
) -> Builder {
    // The user named the locator, and the client listens nowhere.
    let options = Options::default().insecure_network(true).local(local).trace(trace);
    Client::builder(coordinator).transports(transports).options(options)
}

/// Returns the failure of a client that cannot use this locator of a coordinator.
fn unusable(coordinator: &str, error: &io::Error) -> Fail {
    Fail::usage(format!("cannot use {coordinator}: {error}"))
        .next("name the coordinator as in -C tcp:host=127.0.0.1,port=7740")
}

/// Returns this process's ends of packet devices, which the environment variable SPRAT_LOCAL names.
pub fn local() -> Result<Vec<Locator>, Fail> {
    match std::env::var("SPRAT_LOCAL") {
        Ok(text) if !text.is_empty() => {
            Locator::list(&text).map_err(|error| Fail::usage(format!("SPRAT_LOCAL: {error}")))
        }
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Coordinators that answer without a leader are no cluster that has to be started.
    #[test]
    fn a_cluster_without_a_leader_needs_its_etcd() {
        let store = Store::over("tcp:host=127.0.0.1,port=1", &[]).expect("a locator");
        let said = |waited_for, why: Option<&str>| {
            let why = why.map(Into::into);
            let error = Error::Deadline { maybe_executed: false, waited_for, why };
            store.explain(error, "x").to_string()
        };
        let why = "no coordinator leads: etcd does not answer";
        let leader = said(WaitedFor::Leader, Some(why));
        assert!(leader.contains(why) && leader.contains("etcdctl"), "{leader}");
        assert!(!leader.contains("sprat up"), "{leader}");
        for waited_for in [WaitedFor::Coordinator, WaitedFor::Lease] {
            assert!(said(waited_for, Some("refused")).contains("sprat up"));
        }
    }
}
