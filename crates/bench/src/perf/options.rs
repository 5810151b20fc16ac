//! The tests, and the options that they share.

use std::path::PathBuf;

/// A test of `sprat bench`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// The baselines alone: a cache line, memory, a raw ring, raw UDP, raw TCP.
    Baseline,
    /// Round trips of a request that the server answers with the same bytes.
    Echo,
    /// Many sessions with one server: memory, opening rate, echo rate.
    Sessions,
    /// Random reads and writes of objects, one at a time.
    ReadWrite,
    /// Reads a second with many in progress.
    ReadThroughput,
    /// Latency of reads against the offered load.
    Loaded,
    /// Random overwrites, by the share of the server's memory that is live.
    Overwrite,
    /// The processor time of an idle cluster, and the latency of the first request after a pause.
    Idle,
    /// A bond of two devices (`fast+bond`), each removed once under load.
    Failover,
    /// An echo and a read with both ends in one thread.
    SingleThread,
    /// The time of a read and of a write, by layer.
    Breakdown,
}

impl Test {
    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Echo => "echo",
            Self::Sessions => "sessions",
            Self::ReadWrite => "read-write",
            Self::ReadThroughput => "read-throughput",
            Self::Loaded => "loaded",
            Self::Overwrite => "overwrite",
            Self::Idle => "idle",
            Self::Failover => "failover",
            Self::SingleThread => "single-thread",
            Self::Breakdown => "breakdown",
        }
    }

    /// True if the test measures only processes that it starts.
    #[must_use]
    pub const fn starts_processes(self) -> bool {
        matches!(self, Self::Sessions | Self::Idle | Self::Failover | Self::Overwrite)
    }
}

/// The tests of one run, and how they measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tests, in order.
    pub tests: Vec<Test>,
    /// The coordinator of the running cluster that is measured. `None`: the run starts processes.
    pub coordinator: Option<String>,
    /// Transports, by their names in locators.
    pub transports: Vec<String>,
    /// Time of each figure in seconds, over all rounds.
    pub seconds: f64,
    /// Rounds in which baseline, kernel TCP and product take turns.
    pub rounds: u16,
    /// Sizes in bytes. Empty: each test has its own.
    pub sizes: Vec<usize>,
    /// Objects of each size. `None`: as many as ClusterPerf has.
    pub objects: Option<u64>,
    /// Sessions to open.
    pub sessions: usize,
    /// Requests in progress in throughput tests.
    pub outstanding: usize,
    /// File that takes the results as JSON Lines; `-` is standard output, which then has no table.
    pub json: Option<PathBuf>,
    /// File that takes the picture of a breakdown.
    pub svg: Option<PathBuf>,
}

impl Options {
    /// Options of `tests` with the defaults of the command line, on processes of the run.
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
            sessions: 100_000,
            outstanding: 64,
            json: None,
            svg: None,
        }
    }
}
