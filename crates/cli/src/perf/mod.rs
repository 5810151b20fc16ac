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

use report::{Context, Report};

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
            Test::Echo => echo::run(&mut bench)?,
            Test::Sessions => sessions::run(&mut bench)?,
            other => return Err(Fail::new(format!("{other:?} is not built yet"))),
        }
    }
    Ok(())
}

impl Bench {
    /// The sizes that were asked for, or the test's own.
    fn sizes(&self, own: &[usize]) -> Vec<usize> {
        if self.sizes.is_empty() { own.to_vec() } else { self.sizes.clone() }
    }
}
