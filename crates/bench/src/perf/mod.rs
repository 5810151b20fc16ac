//! `sprat bench`: latency and throughput, each figure beside the baseline of this machine.
//!
//! Each test has one file; [`measure`] takes times, [`report`] shows them, [`local`] starts the
//! processes that are measured. The client runs on one core and its server on another, if the
//! process may use two.

use std::time::Duration;

use crate::fail::Fail;
use crate::process;

mod baseline;
mod basic;
mod bench;
pub mod breakdown;
mod clients;
mod clusterperf;
mod disk;
pub mod echo;
mod failover;
mod html;
mod idle;
mod index;
pub(crate) mod lanes;
mod loaded;
pub mod local;
pub(crate) mod measure;
mod migration;
mod multi;
pub(crate) mod net;
mod options;
mod overwrite;
mod own_tcp;
mod plot;
pub(crate) mod procfs;
mod recovery;
pub mod report;
mod restart;
mod row;
mod sessions;
mod single_thread;
mod tasks;
mod temporary;
mod transaction;
mod ycsb;

use bench::Bench;
pub use clusterperf::Name as ClusterPerf;
pub use disk::Copies;
pub use options::{Options, Overwriting, Test, Transacting, Ycsb};
use report::{Context, Report};

/// Runs the tests of `sprat bench` that the options name.
pub fn run(args: &Options) -> Result<(), Fail> {
    let own = args.tests.iter().find(|test| test.starts_processes());
    if let (Some(test), Some(_)) = (own, &args.coordinator) {
        return Err(Fail::usage(format!("{} measures processes of its own", test.name()))
            .next("add --local"));
    }
    if args.coordinator.is_some() && args.copies != Copies::default() {
        return Err(Fail::usage("a running cluster has its own cores, replicas and durability")
            .next("add --local, or leave out --cores, --replicas, --durability and --dir"));
    }
    let context = Context::now(args.rounds, args.seconds);
    // Baselines and a single thread need no server.
    let only_floors = args.tests.iter().all(|test| matches!(test, Test::Baseline));
    let mut served = args.transports.clone();
    if args.tests.contains(&Test::Failover) && !served.iter().any(|t| t == net::BOND) {
        served.push(net::BOND.to_owned());
    }
    let mut bench = Bench {
        report: Report::new(args.json.as_deref(), &context)?
            .with_page(args.html.as_deref(), &context),
        transports: args.transports.clone(),
        time: Duration::from_secs_f64(args.seconds),
        rounds: args.rounds,
        sizes: args.sizes.clone(),
        outstanding: args.outstanding,
        overwrite: args.overwrite.clone(),
        sessions: args.sessions,
        clients: args.clients.clone(),
        message_sizes: args.message_sizes.clone(),
        gbps: args.gbps,
        servers: args.servers,
        ycsb: args.ycsb.clone(),
        transacting: args.transacting,
        objects: args.objects,
        bytes: args.bytes,
        coordinator: args.coordinator.clone(),
        local: local::Local::new(&served, args.coordinator.is_none() || only_floors)?
            .with_copies(args.copies.clone())?,
        svg: args.svg.clone(),
    };
    if let Some(core) = bench.local.client_core() {
        process::pin(core)?;
    }
    args.tests.iter().try_for_each(|test| run_one(&mut bench, test))
}

/// Runs one test.
fn run_one(bench: &mut Bench, test: &Test) -> Result<(), Fail> {
    match test {
        Test::Baseline => baseline::run(bench),
        Test::Echo => echo::run(bench),
        Test::Tcp => own_tcp::run(bench),
        Test::Sessions => sessions::run(bench),
        Test::ReadWrite => basic::run(bench),
        Test::ReadThroughput => basic::throughput(bench, basic::Kind::Reads),
        Test::WriteThroughput => basic::throughput(bench, basic::Kind::Writes),
        Test::MultiRead => multi::run(bench, basic::Kind::Reads),
        Test::MultiWrite => multi::run(bench, basic::Kind::Writes),
        Test::Transaction => transaction::run(bench),
        Test::Index => index::run(bench),
        Test::Loaded => loaded::run(bench),
        Test::Clients => clients::run(bench),
        Test::Ycsb => ycsb::run(bench),
        Test::ClusterPerf(name) => clusterperf::run(bench, *name),
        Test::Overwrite => overwrite::run(bench),
        Test::Idle => idle::run(bench),
        Test::Failover => failover::run(bench),
        Test::Recovery => recovery::run(bench),
        Test::Migration => migration::run(bench),
        Test::Restart => restart::run(bench),
        Test::SingleThread => single_thread::run(bench),
        Test::Breakdown => breakdown::run(bench),
    }
}

/// Measures and prints the table that ends `sprat demo`: the same few figures over every transport.
pub fn demo() -> Result<(), Fail> {
    let (rounds, seconds) = (3, 0.6);
    let context = Context::now(rounds, seconds);
    let transports: Vec<String> = ["fast+shm", "fast+udp", "tcp"].map(str::to_owned).to_vec();
    let mut bench = Bench {
        report: Report::brief(&context)?,
        local: local::Local::new(&transports, true)?,
        transports,
        time: Duration::from_secs_f64(seconds),
        rounds,
        sizes: Vec::new(),
        outstanding: 64,
        overwrite: Overwriting::default(),
        sessions: 0,
        clients: Vec::new(),
        message_sizes: None,
        gbps: 0.0,
        servers: 1,
        ycsb: Ycsb::default(),
        transacting: Transacting::default(),
        objects: Some(1000),
        bytes: 0,
        coordinator: None,
        svg: None,
    };
    if let Some(core) = bench.local.client_core() {
        process::pin(core)?;
    }
    bench.report.begin(
        "Each row was measured in turns with its floor and with kernel TCP. The floor moves the \
         same bytes between two\n\
         processes with no software of ours: a raw ring in shared memory, raw UDP, raw TCP. \
         Kernel TCP is what a program\n\
         has without us; times as fast = kernel TCP / median time.\n",
    );
    for transport in bench.transports.clone() {
        echo::round_trips(&mut bench, &transport, 100)?;
    }
    for (size, count) in [(100, 1000), (1_000_000, 50)] {
        basic::one_size(&mut bench, size, count)?;
    }
    bench.report.end()
}
