//! `sprat bench`: a subcommand for each test, with the options of that test.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sprat::server::{MAX_REPLICAS, MAX_SHARDS};
use sprat_bench::fail::Fail;
use sprat_bench::perf::{self, Copies, Options, Overwriting, Test};
use sprat_bench::rdma;
use sprat_bench::units::{data, size};

mod args;
mod clusterperf;
mod spread;
mod ycsb;

use crate::options::server_memory;
use args::{Objects, Outstanding, Plain, ReadWrite, Replicas, Sizes, Target};

/// Measure latency and throughput, each figure beside what the machine allows.
///
/// Without -C the tests start processes of their own, the server on another core. Sizes are
/// decimal: 1KB is 1,000 bytes.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  sprat bench echo --size 100
  sprat bench read-write --size 100,1MB --transport fast+shm,tcp
  sprat bench read-write --full           ClusterPerf's sets: 200 MB of objects of each size
  sprat bench echo -C tcp:host=192.0.2.10,port=7740 --json results.jsonl

`floor` is the round trip of the same bytes with no software of ours in between (raw ring, raw UDP,
raw TCP), `kernel TCP` that of kernel TCP, both taken in turns with the figure beside them. All are
medians over the rounds. RAMCloud's names of tests are accepted too: basic, readThroughput,
multiRead_general. writeAsyncSync is left out, since the store has no asynchronous writes.")]
pub(crate) enum Bench {
    /// Measure what the machine allows: cache line, memory, raw ring, raw UDP, raw TCP.
    #[command(
        alias = "floor",
        after_help = "Example:
  sprat bench baseline --size 100,64KB"
    )]
    Baseline(Sized),
    /// Measure round trips of a request that the server answers with the same bytes.
    #[command(
        alias = "echo_basic",
        after_help = "Examples:
  sprat bench echo --size 100
  sprat bench echo --outstanding 256 --transport fast+udp"
    )]
    Echo(Loaded),
    /// Measure our own TCP by events (utcp+DEVICE): round trips of bytes, and a stream.
    #[command(after_help = "Example:
  sprat bench tcp --transport utcp+shmnet,utcp+packet,utcp+xdp")]
    Tcp(Sized),
    /// Measure many sessions with one server: memory, opening rate, echo rate.
    #[command(after_help = "Example:
  sprat bench sessions --sessions 1000000")]
    Sessions(Sessions),
    /// Measure random reads and writes of objects of 100 B to 1 MB, one at a time.
    #[command(
        alias = "basic",
        after_help = "Examples:
  sprat bench read-write --size 100
  sprat bench read-write --full"
    )]
    ReadWrite(ReadWrite),
    /// Measure reads a second with many in progress.
    #[command(
        alias = "readThroughput",
        after_help = "Example:
  sprat bench read-throughput --outstanding 256 --transport fast+shm"
    )]
    ReadThroughput(Throughput),
    /// Measure writes a second with many in progress.
    #[command(
        alias = "writeThroughput",
        after_help = "Example:
  sprat bench write-throughput --outstanding 256 --transport fast+shm"
    )]
    WriteThroughput(Throughput),
    /// Measure reads of 1 to 1,000 objects in one operation.
    #[command(
        alias = "multiRead_oneMaster",
        after_help = "Example:
  sprat bench multi-read --size 100 --transport fast+shm,tcp"
    )]
    MultiRead(ReadWrite),
    /// Measure writes of 1 to 1,000 objects in one operation.
    #[command(
        alias = "multiWrite_oneMaster",
        after_help = "Example:
  sprat bench multi-write --size 100 --transport fast+shm,tcp"
    )]
    MultiWrite(ReadWrite),
    /// Measure commits of 1 to 30 objects on one server and on three.
    #[command(
        alias = "transaction_oneMaster",
        after_help = "Example:
  sprat bench transaction --transport fast+shm,tcp"
    )]
    Transaction(Transactions),
    /// Measure look-ups, indexed writes and ordered scans on one server and on three.
    ///
    /// Also the creation of indexes. Objects have index keys of 30 bytes in their values. Each row
    /// has the same work without an index beside it, measured in turns: a look-up of one key has
    /// two reads, one after the other, an indexed write has two writes, and a scan of 100 objects a
    /// multi-read of 100 objects. The table has 0, 1 and 3 indexes, one after the other; a write
    /// with other index keys changes those of all indexes.
    #[command(after_help = "Examples:
  sprat bench index --transport fast+shm
  sprat bench index --objects 1000000 --seconds 3 --json index.jsonl

The goals, with one index: a look-up takes no longer than 1.4 times two reads, an indexed write no
longer than 1.6 times two writes. SLIK, the indexes of RAMCloud, has published 11 µs for a look-up
and 30 µs for an indexed write, over InfiniBand.")]
    Index(Indexes),
    /// Measure the latency of reads against the offered load.
    #[command(after_help = "Example:
  sprat bench loaded --transport fast+shm")]
    Loaded(LoadedReads),
    /// Measure reads and writes from many clients at the same time.
    #[command(after_help = "Example:
  sprat bench clients --clients 16,64 --transport fast+udp,tcp")]
    Clients(Clients),
    Ycsb(ycsb::Ycsb),
    #[command(flatten)]
    ClusterPerf(clusterperf::Tests),
    /// Measure random overwrites by the share of a server's memory that is live (takes 1.5 GiB by
    /// default).
    #[command(after_help = "Example:
  sprat bench overwrite --transport fast+shm --seconds 5")]
    Overwrite(Overwrites),
    /// Measure the processor time of an idle cluster, and the first request after a pause.
    #[command(after_help = "Example:
  sprat bench idle --transport fast+shm")]
    Idle(Idle),
    /// Measure a bond (fast+bond) whose devices are removed in turn under load. It needs root.
    #[command(after_help = "Example:
  sprat bench failover --outstanding 16")]
    Failover(Failover),
    /// Measure the time until the objects of a killed server can be read again.
    #[command(after_help = "Example:
  sprat bench recovery --bytes 1GB --rounds 1")]
    Recovery(Recovery),
    /// Measure the time in which a table moves to another server while a client reads it.
    #[command(after_help = "Example:
  sprat bench migration --bytes 1GB --size 1000 --rounds 1")]
    Migration(Recovery),
    /// Measure the restart of a cluster, and of its servers in turn under load.
    #[command(after_help = "Example:
  sprat bench restart --bytes 1GB --rounds 1")]
    Restart(Recovery),
    /// Run an echo and a read with both ends in one thread, for counting instructions.
    #[command(
        alias = "turns",
        after_help = "Example:
  sprat bench single-thread --transport fast+shm,fast+memif"
    )]
    SingleThread(SingleThread),
    /// Measure the time of a read and of a write by layer.
    #[command(after_help = "Example:
  sprat bench breakdown --transport fast+shm,fast+udp --svg layers.svg")]
    Breakdown(Breakdown),
    Schemes(rdma::args::Schemes),
}

/// Options of `sprat bench baseline`.
#[derive(Args, Debug)]
pub(crate) struct Sized {
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench single-thread`.
#[derive(Args, Debug)]
pub(crate) struct SingleThread {
    #[command(flatten)]
    sizes: Sizes,
    /// Number of cores of the server, each with a shard that the same thread runs.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_SHARDS)),
    )]
    cores: u16,
    /// Number of replicas of each object, in servers that the same thread runs.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(..=MAX_REPLICAS as i64),
    )]
    replicas: u16,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench idle`.
#[derive(Args, Debug)]
pub(crate) struct Idle {
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench echo`.
#[derive(Args, Debug)]
pub(crate) struct Loaded {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    outstanding: Outstanding,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench sessions`.
#[derive(Args, Debug)]
pub(crate) struct Sessions {
    /// Number of sessions to open with the server.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u32).range(1000..=1_000_000),
    )]
    sessions: u32,
    #[command(flatten)]
    outstanding: Outstanding,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench read-throughput` and `write-throughput`.
#[derive(Args, Debug)]
pub(crate) struct Throughput {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    objects: Objects,
    #[command(flatten)]
    outstanding: Outstanding,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

impl Sized {
    fn options(&self, test: Test) -> Options {
        Options { sizes: self.sizes.size.clone(), ..self.plain.options(test) }
    }
}

impl Throughput {
    fn options(&self, test: Test) -> Options {
        Options {
            copies: self.copies.copies(),
            coordinator: self.target.coordinator(),
            sizes: self.sizes.size.clone(),
            objects: self.objects.count(),
            outstanding: self.outstanding.outstanding.into(),
            ..self.plain.options(test)
        }
    }
}

/// Options of `sprat bench loaded`.
#[derive(Args, Debug)]
pub(crate) struct LoadedReads {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    objects: Objects,
    #[command(flatten)]
    outstanding: Outstanding,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench clients`.
#[derive(Args, Debug)]
pub(crate) struct Clients {
    /// Numbers of clients to measure with, one after the other.
    #[arg(
        long,
        value_name = "N,N…",
        value_delimiter = ',',
        default_value = "16,64",
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    clients: Vec<u16>,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    objects: Objects,
    #[command(flatten)]
    outstanding: Outstanding,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench transaction`.
#[derive(Args, Debug)]
pub(crate) struct Transactions {
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench index`.
#[derive(Args, Debug)]
pub(crate) struct Indexes {
    #[command(flatten)]
    sizes: Sizes,
    /// Number of objects to write before the measurement.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(2000..=100_000_000),
    )]
    objects: u64,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench overwrite`.
#[derive(Args, Debug)]
pub(crate) struct Overwrites {
    /// Give the measured server this much memory.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = server_memory)]
    memory: u64,

    /// Measure with these shares of the memory live, in percent, the least first.
    #[arg(
        long,
        value_name = "P,P…",
        value_delimiter = ',',
        default_value = "25,50,80",
        value_parser = clap::value_parser!(u64).range(1..=95)
    )]
    live: Vec<u64>,

    #[command(flatten)]
    outstanding: Outstanding,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench failover`.
#[derive(Args, Debug)]
pub(crate) struct Failover {
    #[command(flatten)]
    outstanding: Outstanding,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench recovery`, `sprat bench migration` and `sprat bench restart`.
#[derive(Args, Debug)]
pub(crate) struct Recovery {
    /// Bytes of objects of the server that is killed, of the table that moves, or of the cluster
    /// that restarts (decimal KB, MB and GB allowed).
    #[arg(long, value_name = "SIZE", default_value = "256MB", value_parser = data)]
    bytes: u64,
    /// Bytes of an object (decimal KB and MB allowed).
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = size)]
    size: usize,
    /// Number of rounds, each with a cluster of its own.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    rounds: u16,
    /// Also write the results to this file as JSON Lines; `-` is standard output, which then has no
    /// table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Options of `sprat bench breakdown`.
#[derive(Args, Debug)]
pub(crate) struct Breakdown {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    objects: Objects,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
    /// Write a picture of the layers to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Recovery {
    fn options(&self, test: Test) -> Options {
        Options {
            bytes: self.bytes,
            sizes: vec![self.size],
            transports: vec!["fast+shm".to_owned()],
            rounds: self.rounds,
            json: self.json.clone(),
            ..Options::new(vec![test])
        }
    }
}

impl Transactions {
    fn options(&self) -> Options {
        Options {
            copies: self.copies.copies(),
            sizes: self.sizes.size.clone(),
            ..self.plain.options(Test::Transaction)
        }
    }
}

impl Indexes {
    fn options(&self) -> Options {
        Options {
            copies: self.copies.copies(),
            sizes: self.sizes.size.clone(),
            objects: Some(self.objects),
            ..self.plain.options(Test::Index)
        }
    }
}

impl Overwrites {
    fn options(&self) -> Options {
        Options {
            overwrite: Overwriting { memory: self.memory, levels: self.live.clone() },
            outstanding: self.outstanding.outstanding.into(),
            ..self.plain.options(Test::Overwrite)
        }
    }
}

impl Bench {
    /// Returns the test that a `sprat bench` command runs, with its options.
    fn options(&self) -> Options {
        match self {
            Self::Baseline(args) => args.options(Test::Baseline),
            Self::Echo(args) => Options {
                coordinator: args.target.coordinator(),
                sizes: args.sizes.size.clone(),
                outstanding: args.outstanding.outstanding.into(),
                ..args.plain.options(Test::Echo)
            },
            Self::Tcp(args) => args.options(Test::Tcp),
            Self::Sessions(args) => Options {
                sessions: args.sessions as usize,
                outstanding: args.outstanding.outstanding.into(),
                ..args.plain.options(Test::Sessions)
            },
            Self::ReadWrite(args) => args.options(Test::ReadWrite),
            Self::MultiRead(args) => args.options(Test::MultiRead),
            Self::MultiWrite(args) => args.options(Test::MultiWrite),
            Self::ReadThroughput(args) => args.options(Test::ReadThroughput),
            Self::WriteThroughput(args) => args.options(Test::WriteThroughput),
            Self::Loaded(args) => Options {
                copies: args.copies.copies(),
                coordinator: args.target.coordinator(),
                objects: args.objects.count(),
                outstanding: args.outstanding.outstanding.into(),
                ..args.plain.options(Test::Loaded)
            },
            Self::Clients(args) => Options {
                copies: args.copies.copies(),
                clients: args.clients.iter().copied().map(usize::from).collect(),
                coordinator: args.target.coordinator(),
                objects: args.objects.count(),
                outstanding: args.outstanding.outstanding.into(),
                ..args.plain.options(Test::Clients)
            },
            Self::Ycsb(args) => args.options(),
            Self::ClusterPerf(test) => test.options(),
            Self::Transaction(args) => args.options(),
            Self::Index(args) => args.options(),
            Self::Overwrite(args) => args.options(),
            Self::Idle(args) => {
                Options { copies: args.copies.copies(), ..args.plain.options(Test::Idle) }
            }
            Self::Failover(args) => Options {
                outstanding: args.outstanding.outstanding.into(),
                ..args.plain.options(Test::Failover)
            },
            Self::Recovery(args) => args.options(Test::Recovery),
            Self::Migration(args) => args.options(Test::Migration),
            Self::Restart(args) => args.options(Test::Restart),
            Self::SingleThread(args) => Options {
                copies: Copies { cores: args.cores, replicas: args.replicas, ..Copies::default() },
                sizes: args.sizes.size.clone(),
                ..args.plain.options(Test::SingleThread)
            },
            Self::Breakdown(args) => Options {
                copies: args.copies.copies(),
                coordinator: args.target.coordinator(),
                sizes: args.sizes.size.clone(),
                objects: args.objects.count(),
                svg: args.svg.clone(),
                ..args.plain.options(Test::Breakdown)
            },
            // Its measurement is no test of `perf`.
            Self::Schemes(_) => Options::new(Vec::new()),
        }
    }
}

/// Runs `sprat bench`.
pub(crate) fn run(command: &Bench) -> Result<(), Fail> {
    match command {
        Bench::Schemes(args) => rdma::schemes(args),
        test => perf::run(&test.options()),
    }
}
