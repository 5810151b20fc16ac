//! The test `index`: look-ups, indexed writes and ordered scans, each in turns with operations that
//! need no index, by the number of indexes and of servers; and the rate at which indexes are built.
//!
//! A look-up has two reads beside it, for the entry in a leaf and for the object. An indexed write
//! has two writes beside it, which are what a program without indexes would do: write the object
//! and an entry.

use std::cell::RefCell;

use serde::Serialize;

use super::basic::KEY;
use super::bench::Bench;
use super::measure::{Figures, Lane, in_turns, median};
use super::row::{Distribution, Row};
use super::temporary::Temporary;
use crate::fail::Fail;
use crate::out;
use crate::text::Columns;

mod objects;
pub(crate) mod scalability;

use objects::{Client, MOST, SCANNED, Shape, Work, least};

/// Numbers of servers that have the objects and the nodes of their indexes.
const SERVERS: [u16; 2] = [1, 3];
/// Numbers of indexes of the table.
const INDEXES: [usize; 3] = [0, 1, 3];
/// Number of index keys in each value.
const IN_VALUE: usize = 3;
/// Numbers of objects of a table of `indexBasic`, and of a scan of `indexRange`.
const COUNTS: [usize; 7] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000];
/// The most objects of a scan of `indexRange`.
const LONGEST: usize = 1000;

/// A measured operation, and the one beside it.
struct Line {
    /// The operation in the names of results.
    name: &'static str,
    about: &'static str,
    work: Work,
    /// The name of the operation beside it, and the operation.
    beside: (&'static str, Work),
    /// The time of the operation with one index, in times of the one beside it, that is the goal.
    goal: Option<f64>,
    /// The time that SLIK, RAMCloud's indexes, has published for InfiniBand, in µs.
    slik_us: Option<f64>,
}

const TWO_READS: (&str, Work) = ("two reads", Work::TwoReads);
const TWO_WRITES: (&str, Work) = ("two writes", Work::TwoWrites);
const MULTI_READ: (&str, Work) = ("multi-read", Work::MultiRead(SCANNED));

const LINES: [Line; 6] = [
    Line {
        name: "look_up",
        about: "look-up of one key",
        work: Work::LookUp,
        beside: TWO_READS,
        goal: Some(1.4),
        slik_us: Some(11.0),
    },
    Line {
        name: "change",
        about: "write, other index keys",
        work: Work::Change,
        beside: TWO_WRITES,
        goal: Some(1.6),
        slik_us: Some(30.0),
    },
    Line {
        name: "keep",
        about: "write, same index keys",
        work: Work::Keep,
        beside: TWO_WRITES,
        goal: Some(1.6),
        slik_us: None,
    },
    Line {
        name: "insert",
        about: "insert",
        work: Work::Insert,
        beside: TWO_WRITES,
        goal: Some(1.6),
        slik_us: None,
    },
    Line {
        name: "insert_absent",
        about: "insert, if absent",
        work: Work::InsertAbsent,
        beside: TWO_WRITES,
        goal: Some(1.6),
        slik_us: None,
    },
    Line {
        name: "scan",
        about: "scan of 100",
        work: Work::Scan(SCANNED),
        beside: MULTI_READ,
        goal: None,
        slik_us: None,
    },
];

impl Line {
    /// True if the operation means something with this number of indexes.
    fn is_for(&self, indexes: usize) -> bool {
        indexes > 0 || matches!(self.work, Work::Keep | Work::Insert | Work::InsertAbsent)
    }
}

/// The fields of a result's JSON that only this test has.
#[derive(Serialize)]
struct More {
    servers: u16,
    indexes: usize,
    objects: u64,
    /// The most that the time may be, in times of the one beside it. Null: there is no goal.
    goal: Option<f64>,
    /// The time that SLIK has published for InfiniBand.
    slik_us: Option<f64>,
}

/// Runs the test over all sizes and transports.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let sizes = sizes(bench, IN_VALUE)?;
    for servers in SERVERS {
        bench.local.serve(servers);
        for &size in &sizes {
            let objects = bench.objects(size);
            bench.report.begin(format!(
                "index: look-ups, indexed writes and ordered scans among {objects} objects of \
                 {size} B on {servers} servers,\nindex keys of 30 B; goals are for one index; \
                 SLIK's times are RAMCloud's over InfiniBand"
            ));
            let mut table = Table::new();
            let mut built = Vec::new();
            for transport in bench.transports.clone() {
                built.push(measure(bench, &mut table, (servers, size), &transport)?);
            }
            bench.report.end_with(&table.0)?;
            bench.report.begin(format!(
                "index: creation of an index of {objects} objects on {servers} servers"
            ));
            for (row, more) in built {
                bench.report.row_with(row, &more)?;
            }
            bench.report.end()?;
        }
    }
    Ok(())
}

/// Returns the sizes of objects that the run measures, which have room for `keys` index keys.
fn sizes(bench: &Bench, keys: usize) -> Result<Vec<usize>, Fail> {
    let sizes = bench.sizes(&[100]);
    match sizes.iter().find(|&&size| size < least(keys)) {
        Some(size) => {
            Err(Fail::usage(format!("objects of {size} B have no room for {keys} index keys"))
                .next(format!("choose {} B or more with --size", least(keys))))
        }
        None => Ok(sizes),
    }
}

/// Measures over one transport. Returns the row of the creation of indexes.
fn measure(
    bench: &mut Bench,
    table: &mut Table,
    (servers, size): (u16, usize),
    transport: &str,
) -> Result<(Row, More), Fail> {
    let objects = bench.objects(size);
    let (temporary, _, id) = Temporary::over(bench, "indexed", u32::from(servers))?;
    let store = bench.store(&[transport.to_owned()])?;
    let shape = Shape { objects, size, keys: IN_VALUE };
    let client = RefCell::new(Client::fill(&store, id, shape)?);
    let mut rates = Vec::new();
    for indexes in INDEXES {
        while rates.len() < indexes {
            let (time, objects) = client.borrow_mut().create_index()?;
            rates.push(objects as f64 / time.as_secs_f64());
        }
        let lines: Vec<&Line> = LINES.iter().filter(|line| line.is_for(indexes)).collect();
        let mut works: Vec<Work> = Vec::new();
        for work in lines.iter().flat_map(|line| [line.work, line.beside.1]) {
            if !works.contains(&work) {
                works.push(work);
            }
        }
        let lane = |&work: &Work| -> Lane<'_> {
            let client = &client;
            Box::new(move |time| client.borrow_mut().repeat(work, time))
        };
        let mut lanes: Vec<Lane<'_>> = works.iter().map(lane).collect();
        let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
        let of = |work: Work| works.iter().zip(&figures).find(|(it, _)| **it == work);
        for line in lines {
            let (Some((_, own)), Some((_, beside))) = (of(line.work), of(line.beside.1)) else {
                continue;
            };
            let (goal, slik_us) =
                if indexes == 1 { (line.goal, line.slik_us) } else { (None, None) };
            let more = More { servers, indexes, objects, goal, slik_us };
            table.add(bench, (line, transport), (own, beside), more, size)?;
        }
    }
    drop(client);
    drop(store);
    temporary.end()?;
    let row = Row {
        test: format!("index.create.{servers}"),
        transport: transport.to_owned(),
        size_bytes: Some(size as u64),
        count: objects * rates.len() as u64,
        ops_per_s: median(rates),
        ..Row::default()
    };
    Ok((row, More { servers, indexes: 1, objects, goal: None, slik_us: None }))
}

/// Runs ClusterPerf's `indexBasic`: writes and look-ups by the number of objects.
pub(crate) fn basic(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    for size in sizes(bench, 1)? {
        let most = bench.objects(size);
        bench.report.begin(format!(
            "{name}: inserts and look-ups of objects of {size} B with an index, by the number of \
             objects"
        ));
        for transport in bench.transports.clone() {
            for count in COUNTS.into_iter().filter(|&count| count as u64 <= most) {
                let shape = Shape { objects: count as u64, size, keys: 1 };
                alone(bench, (&transport, shape), &mut |bench, client| {
                    client.create_index()?;
                    for (what, work) in [("write", Work::Insert), ("lookup", Work::LookUp)] {
                        let test = format!("{name}.{what}.{count}");
                        one(bench, client, (&test, &transport, size), work)?;
                    }
                    Ok(())
                })?;
            }
        }
        bench.report.end()?;
    }
    Ok(())
}

/// Runs ClusterPerf's `indexRange`: scans by the number of their objects.
pub(crate) fn range(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    for size in sizes(bench, 1)? {
        let objects = bench.objects(size);
        bench.report.begin(format!(
            "{name}: ordered scans among {objects} objects of {size} B, by their number in a scan"
        ));
        for transport in bench.transports.clone() {
            let shape = Shape { objects, size, keys: 1 };
            alone(bench, (&transport, shape), &mut |bench, client| {
                client.create_index()?;
                let most = LONGEST.min(objects as usize);
                for count in COUNTS.into_iter().filter(|&count| count <= most) {
                    let test = format!("{name}.{count}");
                    one(bench, client, (&test, &transport, count * size), Work::Scan(count))?;
                }
                Ok(())
            })?;
        }
        bench.report.end()?;
    }
    Ok(())
}

/// Runs ClusterPerf's `indexMultiple`: writes and look-ups by the number of indexes.
pub(crate) fn multiple(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    for size in sizes(bench, 1)? {
        // The keys come before as many bytes as an object of the other tests has.
        let (objects, size) = (bench.objects(size), size + MOST * KEY);
        bench.report.begin(format!(
            "{name}: inserts and look-ups among {objects} objects of {size} B, by the number of \
             indexes"
        ));
        for transport in bench.transports.clone() {
            let shape = Shape { objects, size, keys: MOST };
            alone(bench, (&transport, shape), &mut |bench, client| {
                for indexes in 0..=MOST {
                    let of = |what: &str| format!("{name}.{what}.{indexes}");
                    one(bench, client, (&of("write"), &transport, size), Work::Insert)?;
                    if indexes > 0 {
                        one(bench, client, (&of("lookup"), &transport, size), Work::LookUp)?;
                    }
                    if indexes < MOST {
                        client.create_index()?;
                    }
                }
                Ok(())
            })?;
        }
        bench.report.end()?;
    }
    Ok(())
}

/// Runs ClusterPerf's `indexReadDist`: the distribution of the times of look-ups.
pub(crate) fn read_dist(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    dist(bench, name, "look-ups of one key", &[("", Work::LookUp)])
}

/// Runs ClusterPerf's `indexWriteDist`: the distribution of the times of writes that move the
/// object's entry in the index, and of those that do not.
pub(crate) fn write_dist(bench: &mut Bench, name: &str) -> Result<(), Fail> {
    let works = [(".change", Work::Change), (".keep", Work::Keep)];
    dist(bench, name, "overwrites with another index key and with the same one,", &works)
}

/// Measures operations on a table with one index. `works` has the end of the name of each.
fn dist(bench: &mut Bench, name: &str, what: &str, works: &[(&str, Work)]) -> Result<(), Fail> {
    for size in sizes(bench, 1)? {
        let objects = bench.objects(size);
        bench.report.begin(format!(
            "{name}: times of {what} among {objects} objects of {size} B with an index"
        ));
        for transport in bench.transports.clone() {
            let shape = Shape { objects, size, keys: 1 };
            alone(bench, (&transport, shape), &mut |bench, client| {
                client.create_index()?;
                works.iter().try_for_each(|(end, work)| {
                    one(bench, client, (&format!("{name}{end}"), &transport, size), *work)
                })
            })?;
        }
        bench.report.end()?;
    }
    Ok(())
}

/// Runs a measurement with a table of its own, and a client over one transport.
fn alone(
    bench: &mut Bench,
    (transport, shape): (&str, Shape),
    measure: &mut dyn FnMut(&mut Bench, &mut Client<'_>) -> Result<(), Fail>,
) -> Result<(), Fail> {
    let (temporary, _, id) = Temporary::over(bench, "indexed", 1)?;
    let store = bench.store(&[transport.to_owned()])?;
    let mut client = Client::fill(&store, id, shape)?;
    measure(bench, &mut client)?;
    drop(client);
    temporary.end()
}

/// Measures one operation, and adds its row to the report.
fn one(
    bench: &mut Bench,
    client: &mut Client<'_>,
    (test, transport, bytes): (&str, &str, usize),
    work: Work,
) -> Result<(), Fail> {
    let mut lanes: [Lane<'_>; 1] = [Box::new(|time| client.repeat(work, time))];
    let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
    let row = Row::new(test, transport, Some(bytes), &figures[0]);
    bench.report.row_with(row, &Distribution::of(&figures[0]))
}

/// The table of one number of servers.
struct Table(Columns);

impl Table {
    fn new() -> Self {
        Self(Columns::new(&[
            "operation",
            ">indexes",
            "over",
            ">p50",
            ">avg",
            ">99 %",
            "beside",
            ">its p50",
            ">×",
            ">goal",
            ">SLIK",
        ]))
    }

    /// Adds the row of an operation to the table, and to the report's JSON.
    fn add(
        &mut self,
        bench: &mut Bench,
        (line, transport): (&Line, &str),
        (own, beside): (&Figures, &Figures),
        more: More,
        size: usize,
    ) -> Result<(), Fail> {
        let test = format!("index.{}.{}.{}", line.name, more.servers, more.indexes);
        let name = line.beside.0;
        let us = |us: Option<f64>| us.map(out::micros).unwrap_or_default();
        let times = own.p50_us.zip(beside.p50_us).map(|(own, beside)| own / beside);
        let two_places = |n: Option<f64>| n.map(|n| format!("{n:.2}")).unwrap_or_default();
        self.0.row([
            line.about.to_owned(),
            more.indexes.to_string(),
            transport.to_owned(),
            us(own.p50_us),
            us(own.avg_us),
            us(own.p99_us),
            name.to_owned(),
            us(beside.p50_us),
            two_places(times),
            more.goal.map(|goal| format!("≤ {goal}")).unwrap_or_default(),
            us(more.slik_us),
        ]);
        let row = Row::new(test, transport, Some(size), own).beside(name, beside.p50_us, None);
        bench.report.row_with(row, &more)
    }
}
