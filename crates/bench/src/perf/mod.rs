//! `sprat perf`: how fast it is here, each figure beside what the machine allows.
//!
//! One file a test; [`measure`] takes times, [`report`] shows them, [`local`] starts the processes that are measured.
//! The client runs on one core and what it calls on another, where there are two.

use std::path::PathBuf;
use std::time::Duration;

use crate::baseline::Kernel;
use clap::ValueEnum;
use sprat::trace::Marks;

use crate::fail::Fail;
use crate::process;
use crate::store::Store;

mod basic;
pub mod breakdown;
pub mod echo;
mod failover;
pub(crate) mod floor;
mod idle;
mod loaded;
pub mod local;
pub(crate) mod measure;
mod net;
pub(crate) mod procfs;
pub mod report;
mod sessions;
mod turns;

use floor::Exchange;
use measure::{Figures, Lane};
use report::{Context, Report, Row};

/// What can be measured.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[value(rename_all = "camelCase")]
pub enum Test {
    /// What the machine allows: cache line, memory, raw ring, raw UDP, raw TCP.
    Floor,
    /// Round trips of a request that is answered with its own bytes.
    Echo,
    /// Many sessions on one server: memory, opening rate, echo rate.
    Sessions,
    /// Random reads and writes of 100 B to 1 MB.
    Basic,
    /// Reads a second with many outstanding.
    ReadThroughput,
    /// Latency of reads against offered load.
    Loaded,
    /// What an idle cluster costs, and the first request after idling.
    Idle,
    /// A bond of two devices (fast+bond), each pulled once under load: what is lost, and for how long nothing is answered.
    Failover,
    /// An echo and a read with both ends in one thread, by turns.
    Turns,
    /// Where the time of a read and of a write goes, by layer.
    Breakdown,
}

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tests, in order.
    pub tests: Vec<Test>,
    /// Start processes of its own instead of measuring a running cluster.
    pub local: bool,
    /// The running cluster's coordinator.
    pub coordinator: String,
    /// Transports, by their names in locators.
    pub transports: Vec<String>,
    /// How long each figure is measured, in seconds, over all rounds.
    pub seconds: f64,
    /// Rounds in which floor, kernel TCP and product take turns.
    pub rounds: u16,
    /// Sizes in bytes; each test has its own defaults.
    pub sizes: Vec<usize>,
    /// Objects of each size; ClusterPerf's own number if unset.
    pub objects: Option<u64>,
    /// Sessions to open.
    pub sessions: usize,
    /// Requests in progress in throughput tests.
    pub outstanding: usize,
    /// Where the results go as JSON Lines besides; `-` is standard output, then without the table.
    pub json: Option<PathBuf>,
    /// Where the picture of a breakdown goes.
    pub svg: Option<PathBuf>,
}

/// What all tests need.
pub(crate) struct Bench {
    /// Where results go.
    report: Report,
    /// In the order that was asked for.
    transports: Vec<String>,
    /// Of one figure, over all rounds.
    time: Duration,
    rounds: u16,
    sizes: Vec<usize>,
    outstanding: usize,
    sessions: usize,
    /// Of each set; ClusterPerf's own number if unset.
    objects: Option<u64>,
    /// The running cluster that is measured; one of our own if unset.
    coordinator: Option<String>,
    local: local::Local,
    /// Where the picture of a breakdown goes.
    svg: Option<PathBuf>,
}

/// Runs the tests that were asked for.
pub fn run(args: &Options) -> Result<(), Fail> {
    let own =
        args.tests.iter().find(|test| matches!(test, Test::Sessions | Test::Idle | Test::Failover));
    if let (Some(test), false) = (own, args.local) {
        let name =
            test.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        return Err(
            Fail::usage(format!("{name} measures processes of its own")).next("add --local")
        );
    }
    let context = Context::now(args.rounds, args.seconds);
    // Floors need nobody to answer.
    let only_floors = args.tests.iter().all(|test| matches!(test, Test::Floor));
    let mut served = args.transports.clone();
    if args.tests.contains(&Test::Failover) && !served.iter().any(|t| t == failover::BOND) {
        served.push(failover::BOND.to_owned());
    }
    let mut bench = Bench {
        report: Report::new(args.json.as_deref(), &context)?,
        transports: args.transports.clone(),
        time: Duration::from_secs_f64(args.seconds),
        rounds: args.rounds,
        sizes: args.sizes.clone(),
        outstanding: args.outstanding,
        sessions: args.sessions,
        objects: args.objects,
        coordinator: (!args.local).then(|| args.coordinator.clone()),
        local: local::Local::new(&served, args.local || only_floors)?,
        svg: args.svg.clone(),
    };
    if let Some(core) = bench.local.client_core() {
        process::pin(core)?;
    }
    for test in &args.tests {
        match test {
            Test::Floor => floor::run(&mut bench)?,
            Test::Echo => echo::run(&mut bench)?,
            Test::Sessions => sessions::run(&mut bench)?,
            Test::Basic => basic::run(&mut bench)?,
            Test::ReadThroughput => basic::throughput(&mut bench)?,
            Test::Loaded => loaded::run(&mut bench)?,
            Test::Idle => idle::run(&mut bench)?,
            Test::Failover => failover::run(&mut bench)?,
            Test::Turns => turns::run(&mut bench)?,
            Test::Breakdown => breakdown::run(&mut bench)?,
        }
    }
    Ok(())
}

/// A figure of the product, and beside it, measured in turns, its floor and kernel TCP moving the same bytes.
struct Compared {
    product: Figures,
    floor: &'static str,
    floor_us: Option<f64>,
    tcp_us: Option<f64>,
}

impl Compared {
    /// The row of these figures.
    fn row(&self, test: &str, transport: &str, size: usize) -> Row {
        Row::new(test, transport, Some(size), &self.product).beside(
            self.floor,
            self.floor_us,
            self.tcp_us,
        )
    }
}

impl Bench {
    /// Measures `product` in turns with the floor of `exchange` over `transport` and with kernel TCP.
    fn compare(
        &self,
        transport: &str,
        exchange: Exchange,
        product: Lane<'_>,
    ) -> Result<Compared, Fail> {
        let wire = self.local.wire().filter(|_| net::wanted(transport));
        let kernel = wire.as_deref().map_or_else(Kernel::loopback, Kernel::over);
        let mut lanes = vec![product, floor::tcp_over(kernel, exchange).lane];
        let mut name = "floor.tcp";
        // Over TCP the two are one, also for RDMA, which goes over it.
        let over_tcp = matches!(transport, "tcp" | "rdma");
        if !over_tcp && let Some(floor) = floor::under(&self.local, transport, exchange) {
            name = floor.name;
            lanes.push(floor.lane);
        }
        let figures = measure::in_turns(&mut lanes, self.rounds, self.time)?;
        let tcp_us = figures[1].p50_us;
        let floor_us = if over_tcp { tcp_us } else { figures.get(2).and_then(|f| f.p50_us) };
        Ok(Compared { product: figures[0].clone(), floor: name, floor_us, tcp_us })
    }

    /// Where the cluster that is measured has its coordinator.
    fn coordinator(&mut self) -> Result<String, Fail> {
        match &self.coordinator {
            Some(at) => Ok(at.clone()),
            None => self.local.cluster().map(|cluster| cluster.coordinator().to_owned()),
        }
    }

    /// A client of the cluster that is measured, over these transports; over whatever the servers name first, if none.
    fn store(&mut self, transports: &[String]) -> Result<Store, Fail> {
        let coordinator = self.coordinator()?;
        Store::from(&coordinator, transports, self.local.own()?, None)
    }

    /// The same over one transport, with marks.
    fn marked_store(&mut self, transport: &str, marks: &Marks) -> Result<Store, Fail> {
        let coordinator = self.coordinator()?;
        Store::from(&coordinator, &[transport.to_owned()], self.local.own()?, Some(marks.clone()))
    }

    /// Who echoes over `transport`, and whether it is a server of a store, which wants the store's own message.
    fn echo_at(&mut self, transport: &str) -> Result<(String, bool), Fail> {
        let Some(coordinator) = &self.coordinator else {
            return Ok((self.local.echo()?.at(transport)?, false));
        };
        let servers = Store::over(coordinator, &[])?.servers()?;
        let Some(server) = servers.first() else {
            return Err(
                Fail::new("the cluster has no server").next("start one: sprat server -L LOCATOR")
            );
        };
        Ok((local::pick(&server.data, transport)?, true))
    }

    /// How many objects of `size` bytes a set has.
    fn objects(&self, size: usize) -> u64 {
        self.objects.unwrap_or(200_000_000 / (size as u64 + 50))
    }

    /// The sizes that were asked for, or the test's own.
    fn sizes(&self, own: &[usize]) -> Vec<usize> {
        if self.sizes.is_empty() { own.to_vec() } else { self.sizes.clone() }
    }
}

/// The one table that the demonstration ends with: the same few figures over every transport.
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
        sessions: 0,
        objects: Some(1000),
        coordinator: None,
        svg: None,
    };
    if let Some(core) = bench.local.client_core() {
        process::pin(core)?;
    }
    bench.report.begin(
        "Each row was measured in turns with its floor and with kernel TCP. The floor moves the same bytes between two\n\
         processes with no software of ours: a raw ring in shared memory, raw UDP, raw TCP. Kernel TCP is what a program\n\
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
