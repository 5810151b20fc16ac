//! The tests of RAMCloud's ClusterPerf by their names, beside `basic`, the throughputs and the
//! multi-operations on one server, which have files of their own.
//!
//! [`plan`] has the tests as data, [`work`] the clients that run them, [`tables`] the objects.
//! Tests under a workload of YCSB are measured as `ycsb` is, those of indexes as `index` is;
//! [`interference`], [`async_sync`], [`broadcast`], [`echo_workload`] and [`transactions`] have
//! loops of their own.
//!
//! Not here: `transaction_oneMaster`, which has a file of its own.

use std::cell::RefCell;

use super::bench::Bench;
use super::measure::{Figures, Lane, Sample, in_turns};
use super::row::{Distribution, Row};
use super::{index, ycsb};
use crate::fail::Fail;

mod async_sync;
mod broadcast;
mod draw;
mod echo_workload;
mod interference;
mod names;
mod plan;
mod tables;
mod transactions;
mod work;

pub use names::Name;
use plan::{Case, Plan, Settings};
use tables::Filled;
use work::Work;

/// Runs a test over all transports.
pub(crate) fn run(bench: &mut Bench, name: Name) -> Result<(), Fail> {
    if name.starts_servers() {
        bench.local.serve(bench.servers);
    }
    match name {
        Name::ReadDistWorkload => ycsb::part(bench, name.name(), ycsb::Part::Reads),
        Name::WriteDistWorkload => ycsb::part(bench, name.name(), ycsb::Part::Updates),
        Name::WorkloadThroughput => ycsb::part(bench, name.name(), ycsb::Part::All),
        Name::ReadInterference => interference::run(bench, name.name(), true),
        Name::WriteInterference => interference::run(bench, name.name(), false),
        Name::WriteAsyncSync => async_sync::run(bench, name.name()),
        Name::EchoWorkload => {
            let (file, gbps) = (bench.message_sizes.clone(), bench.gbps);
            echo_workload::run(bench, file.as_deref(), gbps)
        }
        Name::Broadcast => broadcast::run(bench),
        Name::IndexBasic => index::basic(bench, name.name()),
        Name::IndexRange => index::range(bench, name.name()),
        Name::IndexMultiple => index::multiple(bench, name.name()),
        Name::IndexReadDist => index::read_dist(bench, name.name()),
        Name::IndexWriteDist => index::write_dist(bench, name.name()),
        Name::IndexScalability => index::scalability::run(bench, name.name()),
        Name::TransactionCollision => transactions::collision(bench, name.name()),
        Name::TransactionContention => transactions::contention(bench, name.name()),
        Name::TransactionDistRandom => transactions::dist_random(bench, name.name()),
        Name::TransactionThroughput => transactions::throughput(bench, name.name()),
        _ => planned(bench, name),
    }
}

/// Runs a test that is data.
fn planned(bench: &mut Bench, name: Name) -> Result<(), Fail> {
    let sizes: Vec<_> = match &bench.sizes[..] {
        [] => vec![None],
        sizes => sizes.iter().copied().map(Some).collect(),
    };
    for size in sizes {
        let settings = Settings {
            size,
            objects: bench.objects(size.unwrap_or(100)),
            clients: bench.clients.clone(),
            servers: bench.servers.into(),
        };
        let Some(plan) = plan::plan(name, &settings) else { return Ok(()) };
        bench.report.begin(format!("{}: {}", name.name(), plan.about));
        let filled = plan.tables.iter().enumerate();
        let tables = filled
            .map(|(number, shape)| Filled::fill(bench, number, *shape))
            .collect::<Result<Vec<_>, Fail>>()?;
        for transport in bench.transports.clone() {
            for case in &plan.cases {
                measure(bench, (name, &plan, case), &tables, &transport)?;
            }
        }
        bench.report.end()?;
        tables.into_iter().try_for_each(Filled::end)?;
    }
    Ok(())
}

/// Measures one case of a test over one transport, and adds its rows to the report.
fn measure(
    bench: &mut Bench,
    (name, plan, case): (Name, &Plan, &Case),
    tables: &[Filled],
    transport: &str,
) -> Result<(), Fail> {
    let coordinator = bench.coordinator()?;
    let of_clients = RefCell::new(Vec::new());
    let lane: Lane<'_> = Box::new(|time| {
        let tables = &tables[case.tables.clone()];
        let samples = work::run((&coordinator, transport), tables, &case.load, time)?;
        let all = Sample::of_all(&samples);
        of_clients.borrow_mut().push(samples);
        Ok(all)
    });
    let test = format!("{}{}", name.name(), case.name);
    let floors = bench.local.copies().floors(plan.tables[case.tables.start].key + case.size, 1);
    if let Some(floors) = floors.filter(|_| case.load.work == Work::Write) {
        let durable = floors.compare(lane, bench.rounds, bench.time)?;
        return durable.report(&mut bench.report, (&test, transport), case.size);
    }
    if let Some(exchange) = case.floor {
        let compared = bench.compare(transport, exchange, lane)?;
        let row = compared.row(&test, transport, case.size);
        return bench.report.row_with(row, &Distribution::of(&compared.product));
    }
    let figures = in_turns(&mut [lane], bench.rounds, bench.time)?;
    let mut row = Row::new(&test, transport, Some(case.size), &figures[0]);
    // Several cases with other numbers of clients are several loads.
    row.under_load = plan.cases.iter().any(|other| other.load.clients != case.load.clients);
    bench.report.row_with(row, &Distribution::of(&figures[0]))?;
    if plan.each_client {
        let rounds = of_clients.into_inner();
        // The first round warms up.
        for (end, figures) in ends(&rounds[1..]) {
            let test = format!("{test}.{end}");
            bench.report.row(Row::new(test, transport, Some(case.size), &figures))?;
        }
    }
    Ok(())
}

/// Returns the figures of the fastest and of the slowest client of each round, by bytes a second.
fn ends(rounds: &[Vec<Sample>]) -> [(&'static str, Figures); 2] {
    let rate = |sample: &&Sample| sample.bytes_per_s().unwrap_or_default();
    let by = |a: &&Sample, b: &&Sample| rate(a).total_cmp(&rate(b));
    let of = |pick: &dyn Fn(&Vec<Sample>) -> Option<Sample>| {
        Figures::of(&rounds.iter().filter_map(pick).collect::<Vec<_>>())
    };
    [
        ("max", of(&|clients| clients.iter().max_by(by).cloned())),
        ("min", of(&|clients| clients.iter().min_by(by).cloned())),
    ]
}
