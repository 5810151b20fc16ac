//! `sprat perf`: how fast it is here, each figure beside what the machine allows.
//!
//! One file a test; [`measure`] takes times, [`report`] shows them, [`local`] starts the processes that are measured.
//! The client runs on one core and what it calls on another, where there are two.

use std::time::Duration;

use crate::args::{self, Test};
use crate::fail::Fail;
use crate::process;

mod echo;
mod floor;
mod local;
mod measure;
mod procfs;
mod report;
mod sessions;

use floor::Exchange;
use measure::{Figures, Lane};
use report::{Context, Report, Row};

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
    local: local::Local,
}

/// Runs the tests that were asked for.
pub(crate) fn run(args: &args::Perf) -> Result<(), Fail> {
    let context = Context::now(args.rounds, args.seconds);
    let mut bench = Bench {
        report: Report::new(args.json.as_deref(), &context)?,
        transports: args.transport.clone(),
        time: Duration::from_secs_f64(args.seconds),
        rounds: args.rounds,
        sizes: args.size.clone(),
        outstanding: usize::from(args.outstanding),
        sessions: args.sessions as usize,
        local: local::Local::new(&args.transport),
    };
    if let Some(core) = bench.local.client_core() {
        process::pin(core)?;
    }
    for test in &args.tests {
        match test {
            Test::Floor => floor::run(&mut bench)?,
            Test::Echo => echo::run(&mut bench)?,
            Test::Sessions => sessions::run(&mut bench)?,
            other => return Err(Fail::new(format!("{other:?} is not built yet"))),
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
        Row::new(test, transport, Some(size), &self.product).beside(self.floor, self.floor_us, self.tcp_us)
    }
}

impl Bench {
    /// Measures `product` in turns with the floor of `exchange` over `transport` and with kernel TCP.
    fn compare(&self, transport: &str, exchange: Exchange, product: Lane<'_>) -> Result<Compared, Fail> {
        let mut lanes = vec![product, floor::tcp(exchange).lane];
        let mut name = "floor.tcp";
        // Over TCP the two are one.
        if transport != "tcp"
            && let Some(floor) = floor::under(transport, exchange)
        {
            name = floor.name;
            lanes.push(floor.lane);
        }
        let figures = measure::in_turns(&mut lanes, self.rounds, self.time)?;
        let tcp_us = figures[1].p50_us;
        let floor_us = if transport == "tcp" { tcp_us } else { figures.get(2).and_then(|f| f.p50_us) };
        Ok(Compared { product: figures[0].clone(), floor: name, floor_us, tcp_us })
    }

    /// The sizes that were asked for, or the test's own.
    fn sizes(&self, own: &[usize]) -> Vec<usize> {
        if self.sizes.is_empty() { own.to_vec() } else { self.sizes.clone() }
    }
}
