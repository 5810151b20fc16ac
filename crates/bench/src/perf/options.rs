//! The tests, and the options that they share.

use std::path::PathBuf;

use super::clusterperf::Name;
use super::disk::Copies;
use crate::peers::server::Peer;
use crate::ycsb::workload::Workload;

/// A test of `sprat bench`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// Measures the baselines alone: a cache line, memory, a raw ring, raw UDP, raw TCP.
    Baseline,
    /// Measures round trips of a request that the server answers with the same bytes.
    Echo,
    /// Measures our own TCP by events: round trips of bytes, and a stream.
    Tcp,
    /// Measures many sessions with one server: memory, opening rate, echo rate.
    Sessions,
    /// Measures random reads and writes of objects, one at a time.
    ReadWrite,
    /// Measures reads a second of one client that has many in progress.
    ReadThroughput,
    /// Measures writes a second of one client that has many in progress.
    WriteThroughput,
    /// Measures reads of several objects in one operation.
    MultiRead,
    /// Measures writes of several objects in one operation.
    MultiWrite,
    /// Measures commits of transactions, by the number of objects and of servers.
    Transaction,
    /// Measures look-ups, indexed writes and ordered scans, and the creation of indexes.
    Index,
    /// Measures the latency of reads at several offered loads.
    Loaded,
    /// Measures reads and writes from many clients at the same time.
    Clients,
    /// Measures YCSB's workloads, beside other stores if the options name some.
    Ycsb,
    /// Measures a test of RAMCloud's ClusterPerf that has no file of its own.
    ClusterPerf(Name),
    /// Measures random overwrites of objects, for several shares of live bytes in the server's
    /// memory.
    Overwrite,
    /// Measures the processor time of an idle cluster, and the latency of the first request after a
    /// pause.
    Idle,
    /// Measures the longest time without an answer over a bond of two devices (`fast+bond`), each
    /// of which is set down once a round under load.
    Failover,
    /// Measures the time until the objects of a killed server can be read again.
    Recovery,
    /// Measures the time in which a table moves to another server while a client reads it.
    Migration,
    /// Measures the stop and start of a cluster, and the restart of its servers one after the other
    /// under load.
    Restart,
    /// Measures an echo and a read with client and server in one thread.
    SingleThread,
    /// Measures the time of a read and of a write, layer by layer.
    Breakdown,
}

impl Test {
    /// Returns the test's name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Echo => "echo",
            Self::Tcp => "tcp",
            Self::Sessions => "sessions",
            Self::ReadWrite => "read-write",
            Self::ReadThroughput => "read-throughput",
            Self::WriteThroughput => "write-throughput",
            Self::MultiRead => "multi-read",
            Self::MultiWrite => "multi-write",
            Self::Transaction => "transaction",
            Self::Index => "index",
            Self::Loaded => "loaded",
            Self::Clients => "clients",
            Self::Ycsb => "ycsb",
            Self::ClusterPerf(name) => name.name(),
            Self::Overwrite => "overwrite",
            Self::Idle => "idle",
            Self::Failover => "failover",
            Self::Recovery => "recovery",
            Self::Migration => "migration",
            Self::Restart => "restart",
            Self::SingleThread => "single-thread",
            Self::Breakdown => "breakdown",
        }
    }

    /// True if the test measures only processes that it starts itself.
    #[must_use]
    pub const fn starts_processes(self) -> bool {
        if let Self::ClusterPerf(name) = self {
            return name.starts_servers();
        }
        matches!(
            self,
            Self::Sessions
                | Self::Idle
                | Self::Failover
                | Self::Overwrite
                | Self::Transaction
                | Self::Index
                | Self::Recovery
                | Self::Migration
                | Self::Restart
        )
    }
}

/// The options of the test `ycsb`, of which ClusterPerf's tests under a workload use some.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ycsb {
    /// The workloads to run, in order.
    pub workloads: Vec<Workload>,
    /// Number of records to load.
    pub records: u64,
    /// Bytes of a record's value.
    pub size: usize,
    /// Number of operations that each client has in progress.
    pub pipeline: usize,
    /// The stores that are measured in turns with ours.
    pub beside: Vec<Peer>,
}

impl Default for Ycsb {
    fn default() -> Self {
        let (records, size, pipeline) = (100_000, 1000, 1);
        Self { workloads: Workload::ALL.to_vec(), records, size, pipeline, beside: Vec::new() }
    }
}

/// The options of ClusterPerf's tests of transactions on several servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transacting {
    /// Number of objects that each transaction reads and writes.
    pub objects: usize,
    /// Number of servers that have the objects of a transaction. `None`: all.
    pub span: Option<u16>,
}

impl Default for Transacting {
    fn default() -> Self {
        Self { objects: 3, span: None }
    }
}

/// The options of the test `overwrite`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overwriting {
    /// Memory of the measured server, in bytes.
    pub memory: u64,
    /// The shares of the server's memory that are live, in percent, from the least on.
    pub levels: Vec<u64>,
}

impl Default for Overwriting {
    fn default() -> Self {
        Self { memory: 1 << 30, levels: vec![25, 50, 80] }
    }
}

/// The tests of one benchmark run, and the options of their measurements.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tests to run, in order.
    pub tests: Vec<Test>,
    /// The coordinator of the running cluster that the run measures. `None`: the run starts
    /// processes.
    pub coordinator: Option<String>,
    /// Transports to measure, by their names in locators.
    pub transports: Vec<String>,
    /// Time of each figure in seconds, over all rounds.
    pub seconds: f64,
    /// Rounds in which baseline, kernel TCP and product take turns.
    pub rounds: u16,
    /// Payload sizes in bytes. Empty: each test has sizes of its own.
    pub sizes: Vec<usize>,
    /// Number of objects of each size. `None`: as many as ClusterPerf has.
    pub objects: Option<u64>,
    /// Bytes of the objects of the tests `recovery` and `restart`.
    pub bytes: u64,
    /// Number of sessions that the test `sessions` opens.
    pub sessions: usize,
    /// Numbers of clients that tests with several clients measure, one after the other.
    pub clients: Vec<usize>,
    /// The file of the sizes of the test `echo_workload`.
    pub message_sizes: Option<PathBuf>,
    /// Bits a second that the test `echo_workload` offers each way, in 10⁹.
    pub gbps: f64,
    /// Number of servers of the tests of ClusterPerf that need several.
    pub servers: u16,
    /// The options of the test `ycsb`, and of ClusterPerf's tests under a workload.
    pub ycsb: Ycsb,
    /// The options of ClusterPerf's tests of transactions on several servers.
    pub transacting: Transacting,
    /// Number of requests in progress in throughput tests.
    pub outstanding: usize,
    /// The options of the test `overwrite`.
    pub overwrite: Overwriting,
    /// The replicas of the cluster that the run starts.
    pub copies: Copies,
    /// File that takes the results as JSON Lines; `-` is standard output, which then has no table.
    pub json: Option<PathBuf>,
    /// File that takes the tables and plots of them, as one page of HTML.
    pub html: Option<PathBuf>,
    /// File that the run writes a breakdown's picture to, as SVG.
    pub svg: Option<PathBuf>,
}

impl Options {
    /// Makes the options for `tests` with the defaults of the command line. The run starts the
    /// processes that it measures.
    #[must_use]
    pub fn new(tests: Vec<Test>) -> Self {
        Self {
            tests,
            coordinator: None,
            transports: ["fast+shm", "fast+udp", "tcp"].map(str::to_owned).to_vec(),
            seconds: 1.0,
            rounds: 5,
            sizes: Vec::new(),
            objects: Some(1000),
            bytes: 256_000_000,
            sessions: 100_000,
            clients: vec![16],
            message_sizes: None,
            gbps: 1.0,
            servers: 3,
            ycsb: Ycsb::default(),
            transacting: Transacting::default(),
            outstanding: 64,
            overwrite: Overwriting::default(),
            copies: Copies::default(),
            json: None,
            html: None,
            svg: None,
        }
    }
}
