//! The test `indexScalability`: look-ups a second by the number of servers that hold the index, and
//! by the number of clients.
//!
//! ```text
//! servers 1 … N   a table with a tablet on each, and its index with as many
//! clients         connect · start · look-ups for the time of the round · one sample each
//! ```
//!
//! ClusterPerf divides the index into indexlets, whose number it is given, by the index keys. Ours
//! spreads the nodes of an index over as many tablets as the table has, by the hash of a node's
//! key, so that the tablets take the place of the indexlets. Each client is a thread with a
//! connection of its own and one look-up in progress, where ClusterPerf's have 20.

use std::time::Duration;

use super::super::bench::{Bench, in_threads, one_of_many};
use super::super::measure::{Lane, Sample, in_turns};
use super::super::row::{Distribution, Row};
use super::super::temporary::Temporary;
use super::objects::{Client, Shape, Work};
use super::sizes;
use crate::fail::Fail;

/// Runs the test with each number of servers and of clients, over all transports.
pub(crate) fn run(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    for size in sizes(bench, 1)? {
        let objects = bench.objects(size);
        bench.report.begin(format!(
            "{name}: look-ups among {objects} objects of {size} B, by the number of servers that \
             hold the index and of clients"
        ));
        let shape = Shape { objects, size, keys: 1 };
        for servers in 1..=bench.servers {
            bench.local.serve(servers);
            for transport in bench.transports.clone() {
                measure(bench, (name, servers), shape, &transport)?;
            }
        }
        bench.report.end()?;
    }
    Ok(())
}

/// Measures one number of servers with each number of clients, over one transport.
fn measure(
    bench: &mut Bench,
    (name, servers): (&str, u16),
    shape: Shape,
    transport: &str,
) -> Result<(), Fail> {
    let coordinator = bench.coordinator()?;
    let (temporary, _, table) = Temporary::over(bench, "indexed", servers.into())?;
    let store = bench.store(&[transport.to_owned()])?;
    let mut owner = Client::fill(&store, table, shape)?;
    owner.create_index()?;
    let keys = owner.keys();
    for count in bench.clients.clone() {
        let lane: Lane<'_> = Box::new(|time| {
            let samples = in_threads(count, |number, start| {
                let store = one_of_many(&coordinator, transport)?;
                let mut client = Client::reader(&store, table, shape, keys, number)?;
                client.repeat(Work::LookUp, Duration::ZERO)?;
                start.wait();
                client.repeat(Work::LookUp, time)
            })?;
            Ok(Sample::of_all(&samples))
        });
        let figures = in_turns(&mut [lane], bench.rounds, bench.time)?;
        let test = format!("{name}.{servers}.{count}");
        let row = Row::new(test, transport, Some(shape.size), &figures[0]).under_load();
        bench.report.row_with(row, &Distribution::of(&figures[0]))?;
    }
    drop(owner);
    drop(store);
    temporary.end()
}
