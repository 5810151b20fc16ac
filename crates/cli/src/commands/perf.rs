//! `sprat perf`: the spelling of earlier versions for `sprat bench`. It takes several tests and the
//! options of all of them, some of which a test ignores.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sprat_bench::fail::Fail;
use sprat_bench::perf::{self, Options, Test};
use sprat_bench::rdma;
use sprat_bench::rdma::args::{CopyWays, Schemes, Switch, Threads, Under};
use sprat_bench::units::{seconds, size};

use crate::options::{Place, transports};

/// The sizes of messages of `sprat perf schemes`.
const SCHEMES: [usize; 5] = [64, 1_000, 10_000, 100_000, 500_000];

/// The tests of `sprat perf`, by their names in RAMCloud's ClusterPerf or in earlier versions.
#[derive(ValueEnum, Clone, Copy, Debug)]
#[value(rename_all = "camelCase")]
enum Name {
    Floor,
    Echo,
    Sessions,
    Basic,
    ReadThroughput,
    Loaded,
    Idle,
    Failover,
    Turns,
    Breakdown,
    Schemes,
}

impl Name {
    /// Returns the test of `sprat bench`; that of `schemes` is a command of its own.
    fn test(self) -> Option<Test> {
        Some(match self {
            Self::Schemes => return None,
            Self::Floor => Test::Baseline,
            Self::Echo => Test::Echo,
            Self::Sessions => Test::Sessions,
            Self::Basic => Test::ReadWrite,
            Self::ReadThroughput => Test::ReadThroughput,
            Self::Loaded => Test::Loaded,
            Self::Idle => Test::Idle,
            Self::Failover => Test::Failover,
            Self::Turns => Test::SingleThread,
            Self::Breakdown => Test::Breakdown,
        })
    }
}

/// Run tests of `sprat bench`, by the options of earlier versions.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sprat perf --local --size 100 echo basic      now: sprat bench echo, sprat bench read-write")]
pub(crate) struct Perf {
    #[command(flatten)]
    at: Place,
    /// Tests to run, in order.
    #[arg(value_enum, required = true, value_name = "TEST")]
    tests: Vec<Name>,
    /// Start processes instead of measuring a running cluster.
    #[arg(long)]
    local: bool,
    /// Transports to measure.
    #[arg(
        long,
        value_name = "T,T…",
        value_delimiter = ',',
        default_value = "fast+shm,fast+udp,tcp",
        value_parser = transports(),
    )]
    transport: Vec<String>,
    /// Seconds to measure each figure for, over all rounds.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Number of rounds in which floor, kernel TCP and product take turns.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    rounds: u16,
    /// Sizes of messages or objects in bytes (decimal KB and MB allowed).
    #[arg(long, value_name = "SIZE,SIZE…", value_delimiter = ',', value_parser = size)]
    size: Vec<usize>,
    /// Number of objects to write of each size.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
    )]
    objects: u64,
    /// Write as many objects as ClusterPerf does: 2e8 / (size + 50) of each size.
    #[arg(long, conflicts_with = "objects")]
    full: bool,
    /// Number of sessions to open with the server.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(1000..=1_000_000),
    )]
    sessions: u32,
    /// Number of requests in progress at the same time.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = clap::value_parser!(u16).range(1..=4096),
    )]
    outstanding: u16,
    /// Also write the results to this file as JSON Lines; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a picture of the layers to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs `sprat perf`.
pub(crate) fn run(args: &Perf) -> Result<(), Fail> {
    if args.tests.iter().any(|name| name.test().is_none()) {
        rdma::schemes(&Schemes {
            device: Under::Xdp,
            size: if args.size.is_empty() { SCHEMES.to_vec() } else { args.size.clone() },
            crc: vec![Switch::On],
            threading: vec![Threads::Caller],
            copies: vec![CopyWays::One],
            outstanding: args.outstanding.min(1024),
            seconds: args.seconds,
            rounds: args.rounds,
            json: args.json.clone(),
        })?;
    }
    perf::run(&Options {
        tests: args.tests.iter().filter_map(|name| name.test()).collect(),
        coordinator: (!args.local).then(|| args.at.coordinator.clone()),
        transports: args.transport.clone(),
        seconds: args.seconds,
        rounds: args.rounds,
        sizes: args.size.clone(),
        objects: (!args.full).then_some(args.objects),
        sessions: args.sessions as usize,
        outstanding: args.outstanding.into(),
        json: args.json.clone(),
        svg: args.svg.clone(),
        ..Options::new(Vec::new())
    })
}
