//! The test `clients`: reads and writes of 100-byte objects, half each, from many clients of one
//! server at the same time, each with many operations in progress.
//!
//! ```text
//! thread 1 … N   connect · barrier · load for the time of the round · one sample of all threads
//! ```
//!
//! Each client is a thread with a connection of its own. All of them share the core of this
//! process, so that a figure shows how the work of server and clients falls with the size of the
//! groups in which requests and replies travel.

use std::time::Duration;

use super::basic::Set;
use super::bench::{Bench, in_threads};
use super::measure::{Lane, Sample, in_turns};
use super::overwrite::timed;
use super::report::Row;
use crate::fail::Fail;
use crate::store::Store;

/// The length of each object's value in bytes.
const SIZE: usize = 100;

/// Runs the test `clients` for each number of clients and over all transports.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let outstanding = bench.outstanding;
    bench.report.begin(format!(
        "clients: reads and writes of {SIZE} B, half each, from several clients at the same time, \
         {outstanding} in progress from each"
    ));
    let set = Set::fill(bench, SIZE, bench.objects(SIZE))?;
    let coordinator = bench.coordinator()?;
    for count in bench.clients.clone() {
        let transports = bench.transports.clone();
        let mut lanes: Vec<Lane<'_>> = Vec::new();
        for transport in &transports {
            let (set, coordinator) = (&set, &coordinator);
            lanes.push(Box::new(move |time| {
                round(set, coordinator, transport, count, outstanding, time)
            }));
        }
        let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
        drop(lanes);
        for (transport, figures) in transports.iter().zip(&figures) {
            let name = format!("clients.{count}");
            bench.report.row(Row::new(name, transport, Some(SIZE), figures).under_load())?;
        }
    }
    set.end()?;
    bench.report.end()
}

/// Runs one round with `count` clients over `transport` and returns one sample of all operations.
fn round(
    set: &Set,
    coordinator: &str,
    transport: &str,
    count: usize,
    outstanding: usize,
    time: Duration,
) -> Result<Sample, Fail> {
    let samples = in_threads(count, |seed, start| {
        let store = Store::over(coordinator, &[transport.to_owned()])?;
        let mut objects = set.client(store, seed as u64)?;
        timed(&mut objects, 1, Some(2), Duration::ZERO)?;
        start.wait();
        timed(&mut objects, outstanding, Some(2), time)
    })?;
    Ok(Sample::of_all(samples.iter().flatten()))
}
