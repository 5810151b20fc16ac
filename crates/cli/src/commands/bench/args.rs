//! The options that several tests of `sprat bench` share.

use std::path::PathBuf;

use clap::Args;
use sprat::server::{Durability, MAX_REPLICAS, MAX_SHARDS};
use sprat_bench::perf::{Copies, Options, Test};
use sprat_bench::units::{seconds, size};

use crate::options::{COORDINATOR, durability, transports};

/// Options that every test of `sprat bench` has.
#[derive(Args, Debug)]
pub(crate) struct Plain {
    /// Transports to measure.
    #[arg(
        long,
        value_name = "T,T…",
        value_delimiter = ',',
        default_value = "fast+shm,fast+udp,tcp",
        value_parser = transports(),
    )]
    pub(super) transport: Vec<String>,
    /// Seconds to measure each figure for, over all rounds.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub(super) seconds: f64,
    /// Number of rounds in which floor, kernel TCP and product take turns.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    pub(super) rounds: u16,
    /// Also write the results to this file as JSON Lines; `-` is standard output, which then has no
    /// table.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Also write the tables, and plots of them, to this file as one page of HTML.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

/// Options for the cluster that a test of `sprat bench` measures.
#[derive(Args, Debug)]
pub(super) struct Target {
    /// Measure the running cluster with this coordinator, instead of processes of the test.
    #[arg(
        short = 'C',
        long = "coordinator",
        value_name = "LOCATOR",
        env = COORDINATOR,
        hide_env_values = true,
    )]
    pub(super) coordinator: Option<String>,
    /// Measure processes of the test even where SPRAT_COORDINATOR names a cluster.
    #[arg(long)]
    pub(super) local: bool,
}

/// Options for the sizes of messages and objects that a test of `sprat bench` measures.
#[derive(Args, Debug)]
pub(super) struct Sizes {
    /// Sizes of messages or objects in bytes (decimal KB and MB allowed); each test has its own
    /// defaults.
    #[arg(long, value_name = "SIZE,SIZE…", value_delimiter = ',', value_parser = size)]
    pub(super) size: Vec<usize>,
}

/// Options for the number of objects that a test of `sprat bench` writes.
#[derive(Args, Debug)]
pub(super) struct Objects {
    /// Number of objects to write of each size.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
    )]
    pub(super) objects: u64,
    /// Write as many objects as ClusterPerf does: 2e8 / (size + 50) of each size.
    #[arg(long, conflicts_with = "objects")]
    pub(super) full: bool,
}

/// Options for the numbers of clients of a test of `sprat bench`.
#[derive(Args, Debug)]
pub(super) struct Clients {
    /// Numbers of clients to measure with, one after the other.
    #[arg(
        long,
        value_name = "N,N…",
        value_delimiter = ',',
        default_value = "1,4",
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    pub(super) clients: Vec<u16>,
}

/// Options for the number of servers that a test of `sprat bench` starts.
#[derive(Args, Debug)]
pub(super) struct Servers {
    /// Number of servers, each with its objects. All of them share a core.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..=32),
    )]
    pub(super) servers: u16,
}

/// Options for the cores and the replicas of the cluster that a test of `sprat bench` starts.
#[derive(Args, Debug)]
pub(super) struct Replicas {
    /// Number of cores of each server of the cluster that the test starts. With several, servers
    /// and clients share all cores of the machine; with one, each has a core of its own.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_SHARDS)),
    )]
    pub(super) cores: u16,
    /// Number of replicas of each object in the cluster that the test starts, which has one server
    /// more.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(..=MAX_REPLICAS as i64),
    )]
    pub(super) replicas: Option<u16>,
    /// Time at which a change is acknowledged, as of `sprat up`. With disk the floor of writes is
    /// the disk's own group commit, with as many in progress.
    #[arg(long, value_name = "WHEN", value_parser = durability())]
    pub(super) durability: Option<Durability>,
    /// Make the cluster's directory in this one, and remove it afterwards. The default with
    /// --durability process or disk is the directory of temporary files.
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
}

/// Options for the number of requests that a test of `sprat bench` has in progress.
#[derive(Args, Debug)]
pub(super) struct Outstanding {
    /// Number of requests in progress at the same time.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=4096),
    )]
    pub(super) outstanding: u16,
}

/// Options of `sprat bench read-write`, `multi-read` and `multi-write`.
#[derive(Args, Debug)]
pub(crate) struct ReadWrite {
    #[command(flatten)]
    pub(super) target: Target,
    #[command(flatten)]
    pub(super) sizes: Sizes,
    #[command(flatten)]
    pub(super) objects: Objects,
    #[command(flatten)]
    pub(super) copies: Replicas,
    #[command(flatten)]
    pub(super) plain: Plain,
}

impl ReadWrite {
    pub(super) fn options(&self, test: Test) -> Options {
        Options {
            copies: self.copies.copies(),
            coordinator: self.target.coordinator(),
            sizes: self.sizes.size.clone(),
            objects: self.objects.count(),
            ..self.plain.options(test)
        }
    }
}

impl Plain {
    pub(super) fn options(&self, test: Test) -> Options {
        Options {
            transports: self.transport.clone(),
            seconds: self.seconds,
            rounds: self.rounds,
            json: self.json.clone(),
            html: self.html.clone(),
            ..Options::new(vec![test])
        }
    }
}

impl Target {
    pub(super) fn coordinator(&self) -> Option<String> {
        self.coordinator.clone().filter(|_| !self.local)
    }
}

impl Objects {
    pub(super) fn count(&self) -> Option<u64> {
        (!self.full).then_some(self.objects)
    }
}

impl Clients {
    pub(super) fn counts(&self) -> Vec<usize> {
        self.clients.iter().copied().map(usize::from).collect()
    }
}

impl Replicas {
    pub(super) fn copies(&self) -> Copies {
        let needs_one =
            self.durability.is_some_and(|d| d != Durability::None) || self.dir.is_some();
        Copies {
            cores: self.cores,
            replicas: self.replicas.unwrap_or_else(|| needs_one.into()),
            durability: self.durability,
            directory: self.dir.clone(),
        }
    }
}
