//! The test `ycsb`: YCSB's workloads on our store, in turns with Redis and memcached.
//!
//! ```text
//! thread 1 … N   connect · barrier · operations for the time of the round · samples of all threads
//! ```
//!
//! Every store gets the same: each client is a thread with a connection of its own, all threads
//! share the core of this process, the server has another core, and a client keeps the same number
//! of operations in progress. A record is one value, and an update replaces all of it (YCSB's
//! `writeallfields`), since neither our store nor memcached has fields.
//!
//! Workload E reads records in the order of their keys. Ours are in an index then, those of Redis
//! in a sorted set. With several operations in progress our client is the asynchronous one, whose
//! operations with an index are tasks of the client's thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use sprat::kv::TableId;

use super::basic::{FILLING_BYTES, FILLINGS, LARGE_SET};
use super::bench::{Bench, in_threads, one_of_many, one_of_many_async};
use super::local::free_ports;
use super::measure::{Figures, Lane, Sample, in_turns};
use super::row::{Distribution, Row};
use super::temporary::Temporary;
use crate::fail::Fail;
use crate::memory;
use crate::out::{self, Columns};
use crate::peers::server::{Peer, PeerServer};
use crate::process;
use crate::ycsb::workload::{Chooser, Records, Workload};

mod drive;
mod pipelined;
mod session;

use drive::{Client, Samples};
use pipelined::Pipelined;
use session::{Opened, OurConnection, Shape, TheirConnection};

/// The reason why a peer has no figures of workload E.
const NO_SCAN: &str = "no ordered scan";
/// Memory of a peer's server for an object beyond its value, in bytes, with room to spare.
const PEER_OVERHEAD: u64 = 200;
/// Least memory of a peer's server, in bytes. Records that a workload inserts find room in it.
const PEER_MEMORY: u64 = 1 << 30;

/// Runs the test `ycsb`: all workloads, each with each number of clients.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let options = bench.ycsb.clone();
    let (records, size) = (options.records, options.size);
    let mut loaded: Option<Stores> = None;
    for &workload in &options.workloads {
        let pipeline = options.pipeline;
        bench.report.begin(format!(
            "YCSB {}: {}; {records} records of {size} B, updates of whole records, {pipeline} in \
             progress from each client",
            workload.name().to_uppercase(),
            workload.words()
        ));
        let mut table = Table::new(workload, &options.beside);
        let chooser = Chooser::new(workload, records, 0);
        for count in bench.clients.clone() {
            let stores = match loaded.take() {
                Some(stores) if stores.shape.is_ordered == workload.scans() => stores,
                other => {
                    other.map_or(Ok(()), Stores::end)?;
                    Stores::load(bench, workload.scans())?
                }
            };
            let measured = stores.measure(bench, (&chooser, pipeline), count)?;
            table.add(bench, workload, count, &measured)?;
            // A table that has grown is made anew.
            if workload.inserts() {
                stores.end()?;
            } else {
                loaded = Some(stores);
            }
        }
        for peer in options.beside.iter().filter(|peer| workload.scans() && !peer.scans()) {
            let row = Row { unit: Some(NO_SCAN.to_owned()), ..Row::default() };
            let (test, transport) = ("ycsb.e".to_owned(), peer.name().to_owned());
            bench.report.row(Row { test, transport, ..row })?;
            table.columns.row(["", peer.name(), NO_SCAN]);
        }
        bench.report.end_with(&table.columns)?;
    }
    loaded.map_or(Ok(()), Stores::end)
}

/// The operations of a workload that a test reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Reads, those of read-modify-writes among them.
    Reads,
    /// Updates and inserts.
    Updates,
    /// All operations.
    All,
}

/// Runs the first workload of the options with each number of clients on our store, and reports one
/// part of its operations under the name `test`.
pub(crate) fn part(bench: &mut Bench, test: &str, part: Part) -> Result<(), Fail> {
    let options = bench.ycsb.clone();
    let workload = options.workloads.first().copied().unwrap_or(Workload::A);
    let (records, size, of) = (options.records, options.size, workload.words());
    bench.report.begin(format!(
        "{test}: YCSB {} ({of}), {records} records of {size} B, by the number of clients",
        workload.name().to_uppercase()
    ));
    let stores = Stores::load(bench, workload.scans())?;
    let chooser = Chooser::new(workload, records, 0);
    let pipeline = options.pipeline;
    for count in bench.clients.clone() {
        for one in stores.measure(bench, (&chooser, pipeline), count)? {
            let figures = match part {
                Part::Reads => &one.reads,
                Part::Updates => &one.updates,
                Part::All => &one.all,
            };
            let name = format!("{test}.{}.{count}", workload.name());
            let row = Row::new(name, one.store, Some(size), figures).under_load();
            bench.report.row_with(row, &Distribution::of(figures))?;
        }
    }
    stores.end()?;
    bench.report.end()
}

/// All stores of a run, with the records loaded.
struct Stores {
    coordinator: String,
    temporary: Temporary,
    table: TableId,
    records: Records,
    peers: Vec<(PeerServer, Records)>,
    shape: Shape,
}

impl Stores {
    /// Creates a table and starts the peers' servers, and loads the records into all of them. If
    /// `is_ordered`, the records are in the order of their keys too, and peers that have none are
    /// left out.
    fn load(bench: &mut Bench, is_ordered: bool) -> Result<Self, Fail> {
        let options = bench.ycsb.clone();
        let (count, size) = (options.records, options.size);
        let bytes = count * (size as u64 + PEER_OVERHEAD);
        // The log takes up to twice the live bytes.
        let needed = bytes * (2 + options.beside.len() as u64);
        if needed > memory::available() {
            let (needed, there) = (out::bytes(needed), out::bytes(memory::available()));
            return Err(Fail::usage(format!("the records take {needed}, and there are {there}"))
                .next("choose fewer with --records"));
        }
        let window = (FILLING_BYTES / (size + 200)).clamp(1, 64);
        let coordinator = bench.coordinator()?;
        let (temporary, store, table) = Temporary::create(bench, "ycsb")?;
        let records = Records::new(count);
        let shape = Shape { size, is_ordered };
        // The index gets the loaded records at its creation.
        let mut ours = OurConnection { store, table, shape: Shape { size, is_ordered: false } };
        let mut client = Client::new(ours.session()?, &records, size, window);
        let large = count * size as u64 >= LARGE_SET;
        for _ in 0..if large { FILLINGS } else { 1 } {
            client.load(0..count)?;
        }
        drop(client);
        if is_ordered {
            ours.create_order()?;
        }
        let mut peers = Vec::new();
        for &peer in options.beside.iter().filter(|peer| !is_ordered || peer.scans()) {
            let server = start(bench, peer, (2 * bytes).max(PEER_MEMORY))?;
            let mut theirs = TheirConnection { connection: server.connect()?, shape };
            let records = Records::new(count);
            Client::new(theirs.session()?, &records, size, window).load(0..count)?;
            peers.push((server, records));
        }
        Ok(Self { coordinator, temporary, table, records, peers, shape })
    }

    /// Measures a workload with `count` clients on all stores, in turns.
    fn measure(
        &self,
        bench: &Bench,
        (chooser, pipeline): (&Chooser, usize),
        count: usize,
    ) -> Result<Vec<Measured>, Fail> {
        let chosen = (chooser, pipeline, count);
        let transports = bench.transports.clone();
        let names = transports.iter().map(String::as_str);
        let names: Vec<&str> =
            names.chain(self.peers.iter().map(|(server, _)| server.peer().name())).collect();
        let kept: Vec<_> = names.iter().map(|_| RefCell::new(Vec::new())).collect();
        let keep = |at: usize, samples: Samples| -> Sample {
            let all = samples.all.clone();
            kept[at].borrow_mut().push(samples);
            all
        };
        let keep = &keep;
        let mut lanes: Vec<Lane<'_>> = Vec::new();
        for (at, transport) in transports.iter().enumerate() {
            lanes
                .push(Box::new(move |time| Ok(keep(at, self.our_round(transport, chosen, time)?))));
        }
        for (at, (server, records)) in self.peers.iter().enumerate() {
            let at = transports.len() + at;
            lanes.push(Box::new(move |time| {
                let shape = self.shape;
                let open = || Ok(TheirConnection { connection: server.connect()?, shape });
                let samples = self.round(open, records, chosen, time);
                Ok(keep(at, samples.map_err(|fail| fail.at(server.peer().name()))?))
            }));
        }
        let all = in_turns(&mut lanes, bench.rounds, bench.time)?;
        drop(lanes);
        let measured = names.iter().zip(all).zip(&kept).map(|((name, all), kept)| {
            // The first round warms up.
            let rounds = &kept.borrow()[1..];
            let of = |part: fn(&Samples) -> &Sample| {
                Figures::of(&rounds.iter().map(|samples| part(samples).clone()).collect::<Vec<_>>())
            };
            Measured {
                store: (*name).to_owned(),
                all,
                reads: of(|samples| &samples.reads),
                updates: of(|samples| &samples.updates),
            }
        });
        Ok(measured.collect())
    }

    /// Runs one round with clients of our store over one transport.
    fn our_round(
        &self,
        transport: &str,
        chosen: (&Chooser, usize, usize),
        time: Duration,
    ) -> Result<Samples, Fail> {
        let (table, shape) = (self.table, self.shape);
        let store = || one_of_many(&self.coordinator, transport);
        let (_, pipeline, _) = chosen;
        if shape.is_ordered && pipeline > 1 {
            let open = || {
                let client = one_of_many_async(&self.coordinator, transport)?;
                Pipelined::open(store()?, &client, table, shape.size)
            };
            return self.round(open, &self.records, chosen, time);
        }
        let open = || Ok(OurConnection { store: store()?, table, shape });
        self.round(open, &self.records, chosen, time)
    }

    /// Runs one round with `count` clients of one store, each with the connection that `open`
    /// makes. Returns the samples of all clients.
    fn round<O: Opened>(
        &self,
        open: impl Fn() -> Result<O, Fail> + Sync,
        records: &Records,
        (chooser, pipeline, count): (&Chooser, usize, usize),
        time: Duration,
    ) -> Result<Samples, Fail> {
        let samples = in_threads(count, |seed, start| {
            let mut chooser = chooser.for_client(seed as u64);
            let mut opened = open()?;
            let session = opened.session()?;
            let mut client = Client::new(session, records, self.shape.size, pipeline);
            client.work(&mut chooser, Duration::ZERO)?;
            start.wait();
            client.work(&mut chooser, time)
        })?;
        let mut all = Samples::new();
        samples.iter().for_each(|samples| all.add(samples));
        Ok(all)
    }

    /// Drops the table, and ends the peers' servers.
    fn end(self) -> Result<(), Fail> {
        self.temporary.end()
    }
}

/// Starts a peer's server on the servers' core.
fn start(bench: &Bench, peer: Peer, memory: u64) -> Result<PeerServer, Fail> {
    let port = free_ports(1)?;
    if let Some(core) = bench.local.server_core() {
        process::pin(core)?;
    }
    let server = PeerServer::start(peer, port, memory);
    if let Some(core) = bench.local.client_core() {
        process::pin(core)?;
    }
    server
}

/// The figures of one store.
struct Measured {
    /// The transport of ours, or the name of the peer.
    store: String,
    all: Figures,
    reads: Figures,
    updates: Figures,
}

/// The fields of a result's JSON that only this test has.
#[derive(Serialize)]
struct More<'m> {
    workload: &'m str,
    clients: usize,
    pipeline: usize,
    records: u64,
    read_p50_us: Option<f64>,
    read_p99_us: Option<f64>,
    read_p999_us: Option<f64>,
    update_p50_us: Option<f64>,
    update_p99_us: Option<f64>,
    update_p999_us: Option<f64>,
    /// The throughput of each peer, by its name with `_ops_per_s` behind it.
    #[serde(flatten)]
    peers: BTreeMap<String, f64>,
}

/// Returns the name of the field with a peer's throughput.
fn rate_field(peer: Peer) -> String {
    format!("{}_ops_per_s", peer.name())
}

/// The table of one workload.
struct Table {
    peers: Vec<Peer>,
    columns: Columns,
}

impl Table {
    fn new(workload: Workload, peers: &[Peer]) -> Self {
        let (read, update) = match workload {
            Workload::E => (">scan p50", ">insert p50"),
            _ => (">read p50", ">update p50"),
        };
        let mut headings: Vec<String> = [
            ">clients",
            "store",
            ">throughput",
            read,
            ">99 %",
            ">99.9 %",
            update,
            ">99 %",
            ">99.9 %",
        ]
        .map(str::to_owned)
        .to_vec();
        headings.extend(peers.iter().map(|peer| format!(">× {}", peer.name())));
        let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
        Self { peers: peers.to_vec(), columns: Columns::new(&headings) }
    }

    /// Adds the rows of one number of clients to the table, and to the report's JSON.
    fn add(
        &mut self,
        bench: &mut Bench,
        workload: Workload,
        clients: usize,
        measured: &[Measured],
    ) -> Result<(), Fail> {
        let rate_of = |name: &str| {
            measured.iter().find(|one| one.store == name).and_then(|one| one.all.ops_per_s)
        };
        let named = |peer: &Peer| Some((rate_field(*peer), rate_of(peer.name())?));
        let peers: BTreeMap<String, f64> = self.peers.iter().filter_map(named).collect();
        for one in measured {
            let more = More {
                workload: workload.name(),
                clients,
                pipeline: bench.ycsb.pipeline,
                records: bench.ycsb.records,
                read_p50_us: one.reads.p50_us,
                read_p99_us: one.reads.p99_us,
                read_p999_us: one.reads.p999_us,
                update_p50_us: one.updates.p50_us,
                update_p99_us: one.updates.p99_us,
                update_p999_us: one.updates.p999_us,
                peers: peers.clone(),
            };
            let name = format!("ycsb.{}.{clients}", workload.name());
            let row =
                Row::new(name, one.store.clone(), Some(bench.ycsb.size), &one.all).under_load();
            bench.report.row_with(row, &more)?;
            let us = |us: Option<f64>| us.map(out::micros).unwrap_or_default();
            let mut cells = vec![
                clients.to_string(),
                one.store.clone(),
                one.all.ops_per_s.map(|rate| out::rate(rate, "op")).unwrap_or_default(),
                us(more.read_p50_us),
                us(more.read_p99_us),
                us(more.read_p999_us),
                us(more.update_p50_us),
                us(more.update_p99_us),
                us(more.update_p999_us),
            ];
            cells.extend(self.peers.iter().map(|peer| {
                let ratio = one.all.ops_per_s.zip(more.peers.get(&rate_field(*peer)));
                ratio.map(|(ours, theirs)| format!("{:.2}", ours / theirs)).unwrap_or_default()
            }));
            self.columns.row(cells);
        }
        Ok(())
    }
}
