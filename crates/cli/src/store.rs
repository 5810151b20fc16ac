//! The store as the commands see it: the client library, with errors that say what to do next.

use std::time::Duration;

use sprat::kv::{
    self, Answer, Cursor, Error, Op, RejectRules, ServerInfo, TableId, TableInfo, Version,
    WaitedFor,
};

use sprat::locator::Locator;
use sprat::trace::Marks;
use sprat_store::message::control::ServerState;

use crate::args::Cluster;
use crate::export::Source;
use crate::fail::Fail;
use crate::import::{Input, Sink};
use crate::out::name;
use crate::records::Record;

/// How long a command waits for one operation.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long it waits for a coordinator that has not answered yet: it is not there, most likely.
const FIRST_TIMEOUT: Duration = Duration::from_secs(2);

/// A client of one cluster.
pub(crate) struct Store {
    store: kv::Store,
    coordinator: String,
    /// The coordinator has answered.
    answers: bool,
}

impl Store {
    /// A client of this cluster. Whether it is there shows with the first operation.
    pub(crate) fn connect(cluster: &Cluster) -> Result<Self, Fail> {
        Self::over(&cluster.at.coordinator, &cluster.transport)
    }

    /// A client of the cluster whose coordinator is there, which reaches the servers over these transports only.
    pub(crate) fn over(coordinator: &str, transports: &[String]) -> Result<Self, Fail> {
        Self::from(coordinator, transports, local()?, None)
    }

    /// As [`Store::over`], with our own ends of packet devices being those, and with marks.
    pub(crate) fn from(
        coordinator: &str,
        transports: &[String],
        local: Vec<Locator>,
        marks: Option<Marks>,
    ) -> Result<Self, Fail> {
        let mut config = kv::Config::new(coordinator);
        config.transports = transports.to_vec();
        // A locator that somebody typed is as good as their word; nothing is listened at.
        let options = kv::Options { insecure_network: true, local, marks };
        let mut store = kv::Store::with(config, options).map_err(|error| {
            Fail::usage(format!("cannot use {coordinator}: {error}"))
                .next("name the coordinator as in -C tcp:host=127.0.0.1,port=7740")
        })?;
        store.set_timeout(FIRST_TIMEOUT);
        Ok(Self { store, coordinator: coordinator.to_owned(), answers: false })
    }

    /// The client library's own, for operations that need no words.
    pub(crate) fn raw(&mut self) -> &mut kv::Store {
        &mut self.store
    }

    /// Asks the coordinator about `what`. Once it has answered, operations get all the time that they may need.
    fn ask<T>(
        &mut self,
        what: &str,
        ask: impl FnOnce(&mut kv::Store) -> Result<T, Error>,
    ) -> Result<T, Fail> {
        let answer =
            ask(&mut self.store).map_err(|error| self.explain(error, &name(what.as_bytes())))?;
        self.store.set_timeout(TIMEOUT);
        self.answers = true;
        Ok(answer)
    }

    /// As [`Store::ask`], for what the coordinator does with servers and answers when that is done.
    fn order<T>(
        &mut self,
        what: &str,
        order: impl FnOnce(&mut kv::Store) -> Result<T, Error>,
    ) -> Result<T, Fail> {
        self.ask(what, |store| store.echo(None, &[]))?;
        self.ask(what, order)
    }

    /// The servers that live.
    pub(crate) fn servers(&mut self) -> Result<Vec<ServerInfo>, Fail> {
        let servers = self.ask("the server list", |store| store.servers())?;
        Ok(servers.into_iter().filter(|server| server.state == ServerState::Up).collect())
    }

    /// What a server has counted: a JSON object.
    pub(crate) fn counters(&mut self, server: &ServerInfo) -> Result<Vec<u8>, Fail> {
        let what = format!("server {}", server.server);
        self.store.stats(Some(&server.data)).map_err(|error| self.explain(error, &what))
    }

    pub(crate) fn create_table(&mut self, name: &str, span: u32) -> Result<TableId, Fail> {
        self.order(name, |store| store.create_table(name, span))
    }

    pub(crate) fn drop_table(&mut self, name: &str) -> Result<(), Fail> {
        self.order(name, |store| store.drop_table(name))
    }

    pub(crate) fn tables(&mut self) -> Result<Vec<TableInfo>, Fail> {
        self.ask("the list of tables", |store| store.tables())
    }

    /// The table of that name.
    pub(crate) fn table(&mut self, name: &str) -> Result<TableId, Fail> {
        self.ask(name, |store| store.table(name))
    }

    pub(crate) fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        rules: RejectRules,
    ) -> Result<(Vec<u8>, Version), Fail> {
        let object =
            self.store.read_with(table, key, rules, |version, value| (value.to_vec(), version));
        object.map_err(|error| self.explain(error, &name(key)))
    }

    pub(crate) fn write(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        rules: RejectRules,
    ) -> Result<Version, Fail> {
        self.store
            .write_if(table, key, value, rules)
            .map_err(|error| self.explain(error, &name(key)))
    }

    pub(crate) fn remove(
        &mut self,
        table: TableId,
        key: &[u8],
        rules: RejectRules,
    ) -> Result<Version, Fail> {
        self.store.remove_if(table, key, rules).map_err(|error| self.explain(error, &name(key)))
    }

    pub(crate) fn increment(
        &mut self,
        table: TableId,
        key: &[u8],
        by: i64,
        rules: RejectRules,
    ) -> Result<(i64, Version), Fail> {
        self.store
            .increment_if(table, key, by, rules)
            .map_err(|error| self.explain(error, &name(key)))
    }

    pub(crate) fn increment_double(
        &mut self,
        table: TableId,
        key: &[u8],
        by: f64,
        rules: RejectRules,
    ) -> Result<(f64, Version), Fail> {
        self.store
            .increment_double(table, key, by, rules)
            .map_err(|error| self.explain(error, &name(key)))
    }

    /// Where imported records go.
    pub(crate) fn sink(&mut self, table: TableId) -> Writes<'_> {
        Writes { store: self, table, lines: Vec::new() }
    }

    /// All objects of a table, in no particular order.
    pub(crate) fn objects(
        &mut self,
        table: TableId,
    ) -> impl FnMut() -> Result<Option<Record>, Fail> {
        let mut cursor = Some(Cursor::default());
        let mut ready = Vec::new().into_iter();
        move || loop {
            if let Some(record) = ready.next() {
                return Ok(Some(record));
            }
            let Some(from) = cursor else { return Ok(None) };
            let page = self
                .store
                .page(table, from)
                .map_err(|error| self.explain(error, "the table's objects"))?;
            let record = |(key, _, value): (&[u8], Version, &[u8])| Record {
                key: key.to_vec(),
                value: value.to_vec(),
            };
            ready = page.objects().map(record).collect::<Vec<_>>().into_iter();
            cursor = page.next;
        }
    }

    /// An error of the library about `what`, and what can be done about it.
    pub(crate) fn explain(&self, error: Error, what: &str) -> Fail {
        let about = format!("{what}: {error}");
        match error {
            Error::ObjectDoesntExist => Fail::missing(format!("{what}: there is no such object")),
            Error::ObjectExists(_) | Error::WrongVersion(_) => {
                Fail::refused(about).next("nothing was changed; read it, then decide anew")
            }
            Error::TableDoesntExist => Fail::new(format!("{what}: there is no such table"))
                .next("sprat table list shows those that exist; sprat table create NAME makes one"),
            Error::Deadline { waited_for: WaitedFor::Coordinator, why: None, .. } if self.answers => {
                Fail::new(about).next("see which servers live (sprat stats), then repeat the command")
            }
            Error::Deadline { waited_for: WaitedFor::Coordinator | WaitedFor::Lease, why, .. } => {
                let what = match why {
                    None => format!("no coordinator answers at {}", self.coordinator),
                    Some(why) => format!("the coordinator cannot be used: {why}"),
                };
                Fail::new(what)
                    .next("start a cluster with `sprat up`, or name yours with -C or SPRAT_COORDINATOR")
            }
            Error::Deadline { .. } => Fail::new(about).next("see which servers live: sprat stats"),
            Error::TabletLost => {
                Fail::new(about).next("sprat table drop NAME, then create and import it anew")
            }
            Error::NotDurable { .. } => Fail::new(about)
                .next("mend that and repeat the command: nothing has to be started anew after a full disk"),
            Error::TooFewServers => Fail::new(about).next("start one: sprat server -L LOCATOR"),
            Error::NoSpace => Fail::new(about).next("remove objects, or start servers with more --memory"),
            Error::NotANumber(_) => Fail::new(about)
                .next("get shows what it is; put gives it a number, like 42 (or 0.5, for --float)"),
            Error::Overflow(_) => Fail::new(about).next("put gives it another number"),
            Error::NoTransport(_) => Fail::new(about).next("choose another transport"),
            Error::Unknown => Fail::new(about).next("read it to see whether it was changed"),
            _ => Fail::new(about),
        }
    }
}

/// Writes in progress, with their lines.
pub(crate) struct Writes<'s> {
    store: &'s mut Store,
    table: TableId,
    lines: Vec<(Op, u64)>,
}

impl Sink for Writes<'_> {
    fn start(&mut self, line: u64, record: Record) -> Result<(), Fail> {
        let op = self.store.store.start_write(
            self.table,
            &record.key,
            &record.value,
            RejectRules::default(),
        );
        self.lines.push((op, line));
        Ok(())
    }

    fn finished(&mut self) -> (u64, Result<(), Fail>) {
        loop {
            if let Some((op, outcome)) = self.store.store.completed() {
                let Some(at) = self.lines.iter().position(|(o, _)| *o == op) else { continue };
                let (_, line) = self.lines.swap_remove(at);
                let result = outcome
                    .map(|_: Answer<'_>| ())
                    .map_err(|error| self.store.explain(error, "the record"));
                return (line, result);
            }
            self.store.store.turn_and_rest();
        }
    }
}

/// `sprat import`.
pub(crate) fn import(args: &crate::args::Import) -> Result<(), Fail> {
    let input = Input::open(&args.file)?;
    let mut store = Store::connect(&args.at)?;
    let to = &args.file.table;
    let table = if args.create { store.create_table(to, args.span)? } else { store.table(to)? };
    let counts = crate::import::file(&args.file, input, args.skip_bad, &mut store.sink(table))?;
    crate::import::say(counts, to)
}

/// `sprat export`.
pub(crate) fn export(args: &crate::args::Export) -> Result<(), Fail> {
    let mut store = Store::connect(&args.at)?;
    let table = store.table(&args.file.table)?;
    let mut objects = store.objects(table);
    let source: &mut Source<'_> = &mut objects;
    crate::export::file(&args.file, source)
}

/// Our own ends of packet devices, as SPRAT_LOCAL names them.
pub(crate) fn local() -> Result<Vec<Locator>, Fail> {
    match std::env::var("SPRAT_LOCAL") {
        Ok(text) if !text.is_empty() => {
            Locator::list(&text).map_err(|error| Fail::usage(format!("SPRAT_LOCAL: {error}")))
        }
        _ => Ok(Vec::new()),
    }
}
