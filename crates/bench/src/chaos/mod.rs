//! `sprat chaos`: a real cluster of processes under load and under attack, and the verdict whether
//! all that its clients saw is linearizable.
//!
//! ```text
//! seed ──► plan: rounds of faults ──► faults ──► cluster ◄── load: client threads
//!                                                              │ records
//!                     report ◄── verdict: sim's checker ◄──────┴──► history: lines of JSON
//! ```
//!
//! After each round of faults the cluster must become whole by itself. After the last one all
//! objects are read. The plan and the checker are pure; docs/chaos.md has the faults and the form
//! of the history.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use sprat::kv::ServerState;
use sprat::server::{ServerOptions, disk_bytes};
use sprat_proto::Rng;
use sprat_sys::tmpfs::Tmpfs;

use self::bonds::{Bonds, Counts};
use self::faults::{Attacked, Faults, Injected, Leaders};
use self::load::{Load, Shared, Target};
use self::network::Network;
use self::plan::{Fault, Kind, Plan, Shape};
use self::verdict::{MOST_MESSAGES, Message, Summary, Verdict};
use crate::cluster::{self, Cluster, OnEtcd, Part, etcd, ports};
use crate::fail::{Fail, Named as _};
use crate::folder::Folder;
use crate::perf::local::free_ports;
use crate::store::Store;
use crate::{memory, out};

pub mod bonds;
mod disks;
pub mod expiry;
mod faults;
pub mod history;
mod load;
mod network;
pub mod plan;
pub mod verdict;

/// Beginning of the name of a run's folder, which has the cluster's directory.
const FOLDER: &str = "sprat-chaos-";
/// Name of the directory of etcd's data in a run's folder.
const ETCD: &str = "etcd";
/// The room that etcd takes on a disk in bytes: it reserves 64 MiB for each of two logs, and this
/// cluster's state is small beside them.
const ETCD_BYTES: u64 = 256 << 20;
/// The number of tables that the load uses.
const TABLES: u16 = 3;
/// The first coordinator's port in a network of the run's own.
const PORT: u16 = 7740;
/// The time between two checks of the cluster's processes and faults.
const STEP: Duration = Duration::from_millis(5);
/// The time between two questions whether the cluster is whole.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// The time that the cluster may take to become whole after a round of faults.
const PATIENCE: Duration = Duration::from_secs(90);
/// The time that a question to the cluster may take while faults last.
const QUESTION: Duration = Duration::from_secs(1);
/// The number of operations of a written history that are checked at once.
const CHECK_AT_ONCE: u64 = 10_000;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed of the plan and of the load.
    pub seed: u64,
    /// The time of load and faults.
    pub time: Duration,
    /// The number of servers.
    pub servers: u16,
    /// The number of cores of each server.
    pub cores: u16,
    /// The number of coordinators. Several have their state in an etcd that the run starts.
    pub coordinators: u16,
    /// The number of replicas of each object, at least 1.
    pub replicas: u16,
    /// The number of client threads.
    pub clients: u16,
    /// The memory of each server for objects, in bytes.
    pub memory: u64,
    /// The term of the servers' leases.
    pub lease: Duration,
    /// The directory in which the run makes a folder of its own, for replicas in files. `None`
    /// keeps the replicas in memory.
    pub directory: Option<PathBuf>,
    /// True if the folder is on a file system in memory that can be full.
    pub small_disk: bool,
    /// True if the clients and each process have a network of their own.
    pub network: bool,
    /// The kinds of faults.
    pub kinds: Vec<Kind>,
    /// The file for the history.
    pub history: Option<PathBuf>,
}

impl Options {
    /// True if the coordinators have their state in etcd.
    fn has_etcd(&self) -> bool {
        self.coordinators > 1
    }

    /// Returns all processes of the cluster.
    fn parts(&self) -> Vec<Part> {
        let coordinators = (1..=self.coordinators).map(Part::Coordinator);
        let etcd = self.has_etcd().then_some(Part::Etcd);
        coordinators.chain(etcd).chain((1..=self.servers).map(Part::Server)).collect()
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The counts and times of the run.
    pub summary: Summary,
    /// The longest time in which no operation was answered, in nanoseconds.
    pub longest_gap_ns: u64,
    /// The number of rounds of faults.
    pub rounds: u64,
    /// The longest time that the cluster took to become whole after a round.
    pub slowest_whole: Duration,
    /// The number of coordinators that led and were killed.
    pub leaders_killed: u64,
    /// The number of times that etcd was started again.
    pub etcd_restarts: u64,
    /// The counts of transactions, and of operations on a table with indexes.
    pub bonds: Counts,
    /// The reason why the run ended early, if it did, or what was wrong with these.
    pub failed: Option<Fail>,
}

impl Report {
    /// True if the history is linearizable and the cluster was whole after each round.
    pub fn is_good(&self) -> bool {
        self.summary.violation.is_none() && self.failed.is_none()
    }
}

/// Runs a cluster under load and faults. `stopped` gets a message if the user wants the run to end.
///
/// # Errors
/// The cluster cannot start, or the history cannot be written. What the cluster does wrong later is
/// in the report.
pub fn run(options: &Options, stopped: &Receiver<()>) -> Result<Report, Fail> {
    let in_memory = if options.directory.is_none() { u64::from(options.replicas) } else { 0 };
    memory::check(options.memory.saturating_mul(1 + in_memory), options.servers)?;
    let file = options.history.as_deref().map(create).transpose()?;
    // Declared before the cluster, so that it is removed after the end of the processes.
    let folder = folder(options)?;
    let disk = folder.as_ref().filter(|_| options.small_disk);
    let disk = disk.map(|folder| small_disk(options, folder)).transpose()?;
    let network = options.network.then(|| network(&options.parts())).transpose()?;
    // This thread, and the clients that it starts, are on the clients' host.
    let _inside = network.as_ref().map(|network| network.enter()).transpose();
    let _inside = _inside.named("cannot enter a network namespace")?;
    let cluster = start(options, folder.as_ref(), network.as_ref())?;
    let target = target(&cluster, options)?;
    // One more client reads all objects at the end.
    let shared = Arc::new(Shared::new(options.clients + 1));
    let (records, messages) = sync_channel(MOST_MESSAGES);
    let verdict = {
        let shared = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("verdict".to_owned())
            .spawn(move || Verdict::new(file).follow(&messages, || shared.bound()))
            .named("cannot start a thread")?
    };
    let store = Store::over(&target.coordinator, &[])?;
    let asks = options.has_etcd().then(|| Store::over(&target.coordinator, &[])).transpose()?;
    let attacked = Attacked {
        cluster,
        parts: options.parts(),
        leaders: Leaders::new(asks),
        network,
        disk,
        directory: folder.as_ref().map(|folder| folder.path().to_owned()),
        rng: Rng::seeded(options.seed),
    };
    let mut run = Run {
        options,
        attacked,
        store,
        target,
        shared,
        records,
        stopped,
        rounds: 0,
        slowest_whole: Duration::ZERO,
    };
    let loaded = run.load();
    let bonds = loaded.as_ref().copied().unwrap_or_default();
    let failed = loaded.err();
    let (rounds, slowest_whole) = (run.rounds, run.slowest_whole);
    let longest_gap_ns = run.shared.longest_gap_ns();
    let leaders_killed = run.attacked.leaders.killed;
    let etcd_restarts = run.attacked.cluster.etcd_restarts();
    run.attacked.cluster.end();
    // The verdict ends when nothing can send any more.
    drop(run);
    let summary =
        verdict.join().map_err(|_| Fail::new("the verdict has ended by a panic")).flatten()?;
    Ok(Report {
        summary,
        longest_gap_ns,
        rounds,
        slowest_whole,
        leaders_killed,
        etcd_restarts,
        bonds,
        failed,
    })
}

/// Checks a history that a run has written. It reads the file twice, so that it can forget each
/// part once it is checked.
///
/// # Errors
/// The file cannot be read, or is no history; the failure names the line.
pub fn check(path: &Path) -> Result<Summary, Fail> {
    // The lines of each client that follow, and a moment that its next call is not before.
    let mut clients: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
    each_record(path, |record| {
        clients.entry(record.client).or_insert((0, record.moments[0])).0 += 1;
    })?;
    let mut verdict = Verdict::new(None);
    let mut count = 0_u64;
    each_record(path, |record| {
        verdict.read(record);
        if let Some((left, bound)) = clients.get_mut(&record.client) {
            (*left, *bound) = (left.saturating_sub(1), record.moments[1]);
        }
        count += 1;
        if count.is_multiple_of(CHECK_AT_ONCE) {
            let bounds = clients.values().filter(|(left, _)| *left > 0).map(|(_, bound)| *bound);
            verdict.advance(bounds.min().unwrap_or(u64::MAX));
        }
    })?;
    verdict.end()
}

/// Calls `each` with every operation of a written history.
fn each_record(path: &Path, mut each: impl FnMut(&history::Record)) -> Result<(), Fail> {
    let shown = path.display();
    let file = File::open(path).named(format_args!("cannot read {shown}"))?;
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let at = format!("{shown}:{}", number + 1);
        if let Some(record) = history::record(&line.named(&at)?).named(&at)? {
            each(&record);
        }
    }
    Ok(())
}

fn create(path: &Path) -> Result<File, Fail> {
    File::create(path).named(format_args!("cannot write {}", path.display()))
}

/// Makes the folder of a run that has files of its own: replicas, or the data of etcd.
fn folder(options: &Options) -> Result<Option<Folder>, Fail> {
    let mut parent = options.directory.clone();
    if options.has_etcd() {
        etcd::check()?;
        parent = parent.or_else(|| Some(std::env::temp_dir()));
    }
    parent.map(|parent| Folder::new(&parent, FOLDER)).transpose()
}

/// Starts the cluster of a run.
fn start(
    options: &Options,
    folder: Option<&Folder>,
    network: Option<&Network>,
) -> Result<Cluster, Fail> {
    let data = folder.map(|folder| folder.path().join(ETCD)).filter(|_| options.has_etcd());
    let coordinators = options.coordinators;
    let more = if options.has_etcd() { OnEtcd::ports(coordinators) } else { 0 };
    let count = ports(options.servers * options.cores) + more;
    let name = format!("chaos-{}", std::process::id());
    let port = network.map_or_else(|| free_ports(count), |_| Ok(PORT))?;
    Cluster::start(&cluster::Plan {
        memory: options.memory,
        replicas: options.replicas,
        lease: options.lease,
        directory: folder.filter(|_| options.directory.is_some()).map(Folder::path),
        etcd: data.as_deref().map(|directory| OnEtcd { coordinators, directory }),
        hosts: network.map(Network::hosts).unwrap_or_default(),
        cores: options.cores,
        ..cluster::Plan::new(&name, port, options.servers)
    })
}

/// Mounts a file system on the folder of a run that has room for all replicas and copies of them.
fn small_disk(options: &Options, folder: &Folder) -> Result<(Tmpfs, u64), Fail> {
    let mut server = ServerOptions::new("", "");
    let cores = u64::from(options.cores);
    (server.memory_bytes, server.replicas) = (options.memory / cores, options.replicas.into());
    let state = if options.has_etcd() { ETCD_BYTES } else { 0 };
    let shards = u64::from(options.servers) * cores;
    let size = (2 * shards + 1) * disk_bytes(&server) + state;
    let disk = Tmpfs::mount(folder.path(), size).map_err(|error| {
        Fail::new(format!("cannot mount a file system: {error}"))
            .next("run it as root; or without --small-disk")
    })?;
    Ok((disk, size))
}

/// Makes the network of a run.
fn network(parts: &[Part]) -> Result<Network, Fail> {
    Network::new(parts).map_err(|error| {
        Fail::new(format!("cannot make a network: {error}"))
            .next("run it as root; or without --network, and without the faults of a network")
    })
}

/// Creates the tables of the load.
fn target(cluster: &Cluster, options: &Options) -> Result<Target, Fail> {
    let mut store = Store::over(cluster.coordinator(), &[])?;
    let tables = (0..TABLES)
        .map(|table| store.create_table(&format!("table{table}"), u32::from(options.servers)))
        .collect::<Result<_, _>>()?;
    Ok(Target { coordinator: cluster.coordinator().to_owned(), tables, remote: options.network })
}

/// A run in progress.
struct Run<'r> {
    options: &'r Options,
    attacked: Attacked,
    store: Store,
    target: Target,
    shared: Arc<Shared>,
    records: SyncSender<Message>,
    stopped: &'r Receiver<()>,
    rounds: u64,
    slowest_whole: Duration,
}

/// The reason why a wait has ended.
#[derive(PartialEq, Eq)]
enum Ended {
    Over,
    ByUser,
}

impl Run<'_> {
    /// Runs load and faults to their end, and reads all objects.
    fn load(&mut self) -> Result<Counts, Fail> {
        let begin = Instant::now();
        let mut load = Load::start(self.options.seed, &self.target, &self.shared, &self.records)?;
        let span = self.options.servers.into();
        let mut bonds = Bonds::start(self.options.seed, &self.target, span)?;
        let mut plan = Plan::new(
            self.options.seed,
            Shape {
                servers: self.options.servers,
                replicas: self.options.replicas,
                coordinators: self.options.coordinators,
                kinds: self.options.kinds.clone(),
            },
        );
        let mut result = Ok(Ended::Over);
        while matches!(result, Ok(Ended::Over)) && begin.elapsed() < self.options.time {
            self.rounds += 1;
            result = self.round(plan.round(), begin);
        }
        load.end()?;
        let bonds = bonds.end();
        match result? {
            Ended::ByUser => Err(Fail::new("the run was interrupted")),
            Ended::Over => {
                self.say(format_args!("calm: reading all objects"));
                let read = load::read_all(&self.target, &self.shared, &self.records)?;
                self.say(format_args!("{read} objects read"));
                bonds
            }
        }
    }

    /// Injects the faults of a round, mends them, and waits until the cluster is whole.
    fn round(&mut self, round: Vec<Fault>, begin: Instant) -> Result<Ended, Fail> {
        let mut faults = Faults::new(round);
        let started = Instant::now();
        while !faults.is_over() {
            if self.wait() == Ended::ByUser {
                return Ok(Ended::ByUser);
            }
            let now = Instant::now();
            if begin.elapsed() > self.options.time {
                faults.end(&mut self.attacked, now)?;
            }
            let since = started.elapsed();
            for injected in faults.advance(&mut self.attacked, since, now)? {
                self.say(shown(&injected));
                let message = Message::Fault(injected.fault, self.shared.now_ns());
                // The verdict ends after this sender, unless it has ended by a panic.
                let _ = self.records.send(message);
            }
            self.restart(now);
        }
        self.become_whole()
    }

    /// Waits until the cluster is whole, and stays so for as long as servers may take to hear that
    /// another one is gone.
    fn become_whole(&mut self) -> Result<Ended, Fail> {
        let mended = Instant::now();
        let (mut asked, mut whole, mut lacks) = (mended, None, String::new());
        while mended.elapsed() < PATIENCE {
            if self.wait() == Ended::ByUser {
                return Ok(Ended::ByUser);
            }
            self.restart(Instant::now());
            if asked.elapsed() < ASK_EVERY {
                continue;
            }
            asked = Instant::now();
            lacks = self.lacks()?;
            let since = *whole.get_or_insert(asked);
            if !lacks.is_empty() {
                whole = None;
            } else if since.elapsed() > self.options.lease / 2 {
                let took = since - mended;
                self.slowest_whole = self.slowest_whole.max(took);
                self.say(format_args!("whole after {:.1} s", took.as_secs_f64()));
                return Ok(Ended::Over);
            }
        }
        Err(Fail::new(format!(
            "the cluster is not whole {} s after the faults of round {}: {lacks}",
            PATIENCE.as_secs(),
            self.rounds
        )))
    }

    /// Waits for a moment.
    fn wait(&self) -> Ended {
        match self.stopped.recv_timeout(STEP) {
            Err(RecvTimeoutError::Timeout) => Ended::Over,
            _ => Ended::ByUser,
        }
    }

    /// Starts processes again that have ended by themselves, as `sprat up` does.
    fn restart(&mut self, now: Instant) {
        for text in self.attacked.cluster.restart(now) {
            self.say(text);
        }
    }

    /// Returns a text that says what the cluster lacks to be whole. Empty if it is whole.
    fn lacks(&mut self) -> Result<String, Fail> {
        if !self.attacked.cluster.serves() {
            return Ok("a process does not serve".to_owned());
        }
        self.store.set_timeout(QUESTION);
        match self.missing() {
            Ok(missing) => Ok(missing),
            Err(fail) => Ok(fail.to_string()),
        }
    }

    fn missing(&mut self) -> Result<String, Fail> {
        let servers = self.store.all_servers()?;
        if let Some(server) = servers.iter().find(|server| server.state != ServerState::Up) {
            let (id, state, why) = (server.server, server.state, &server.blocked);
            return Ok(format!("server {id} is {state:?} {why}"));
        }
        if servers.len() != usize::from(self.options.servers * self.options.cores) {
            return Ok(format!("{} servers are up", servers.len()));
        }
        for table in self.store.tables()? {
            if table.lost + table.recovering + table.unheard > 0 {
                return Ok(format!("{table:?}"));
            }
        }
        for server in servers {
            let counters = self.store.counters(&server)?;
            let counters: serde_json::Value = serde_json::from_slice(&counters)
                .named(format_args!("counters of {}", server.server))?;
            // Not `replicas_incomplete`: an open segment has replicas too, and a closed one that
            // lacks some must not pass for it.
            let missing = counters["replicas_missing"].as_u64();
            if missing != Some(0) {
                return Ok(format!("server {} lacks replicas: {missing:?}", server.server));
            }
        }
        Ok(String::new())
    }

    /// Prints a line with the time since the start of the run.
    fn say(&self, text: impl std::fmt::Display) {
        out::note(format_args!("{:8.3} s  {text}", self.shared.now_ns() as f64 / 1e9));
    }
}

/// Returns a fault as text, with the numbers of its coordinators or servers.
fn shown(Injected { fault, parts }: &Injected) -> String {
    let numbers: Vec<_> = match parts[..] {
        [Part::Coordinator(number)] => vec![number.to_string()],
        _ => fault.servers.iter().map(ToString::to_string).collect(),
    };
    let space = if numbers.is_empty() { "" } else { " " };
    let lasts = fault.lasts.as_secs_f64();
    format!("{}{space}{} for {lasts:.3} s", fault.kind.name(), numbers.join(", "))
}
