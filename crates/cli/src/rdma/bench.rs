//! `sprat rdma lat` and `sprat rdma bw`: each figure beside raw TCP that moves the same octets, measured in turns.

use std::cell::Cell;
use std::time::Duration;

use serde::Serialize;
use sprat::clock::Clock;
use sprat::verbs::{Completed, Device, SendOp, SendRequest};

use super::args::{Bw, CopyWays, Lat, Measured, Op, Switch, Threads};
use super::end::{CREDIT, DEPTH, End, Plan, RECEIVES, ended};
use crate::fail::{Fail, Named};
use crate::perf::floor::{self, Exchange};
use crate::perf::measure::{Figures, Lane, Sample, in_turns};
use crate::perf::procfs::processor_time;
use crate::perf::report::{Context, Report, Row};
use crate::process::{self, Process};

/// Octets on the wire of a Read Request, an Atomic Request and its Response.
const READ_REQUEST: usize = 52;
const ATOMIC: (usize, usize) = (76, 36);

/// What the JSON says besides.
#[derive(Serialize)]
struct More {
    op: Op,
    crc: bool,
    markers: bool,
    threading: Threads,
    copies: CopyWays,
    events: bool,
    /// The floor's mean time, as the row has its median.
    floor_avg_us: Option<f64>,
    /// Processor time of both sides, 100 being one processor all the time.
    cpu_percent: Option<f64>,
    cpu_percent_client: Option<f64>,
    cpu_percent_server: Option<f64>,
}

/// Processor time and time that went by while a lane ran.
#[derive(Default)]
struct Usage {
    client: Cell<Duration>,
    server: Cell<Duration>,
    elapsed: Cell<Duration>,
}

impl Usage {
    fn percent(&self, of: &Cell<Duration>) -> Option<f64> {
        let elapsed = self.elapsed.get().as_secs_f64();
        (elapsed > 0.0).then(|| 100.0 * of.get().as_secs_f64() / elapsed)
    }

    /// `run`, with what it and process `server` used meanwhile.
    fn around(&self, server: u32, run: impl FnOnce() -> Result<Sample, Fail>) -> Result<Sample, Fail> {
        let client = std::process::id();
        let before = (processor_time(client)?, processor_time(server)?);
        let sample = run()?;
        let after = (processor_time(client)?, processor_time(server)?);
        self.client.set(self.client.get() + after.0.saturating_sub(before.0));
        self.server.set(self.server.get() + after.1.saturating_sub(before.1));
        self.elapsed.set(self.elapsed.get() + sample.elapsed);
        Ok(sample)
    }
}

struct Bench<'a> {
    what: &'a Measured,
    device: Device,
    peer: Process,
    at: String,
    report: Report,
}

impl<'a> Bench<'a> {
    fn new(what: &'a Measured) -> Result<Self, Fail> {
        let context = Context::now(what.rounds, what.seconds);
        let report = Report::new(what.json.as_deref(), &context)?;
        let cores = process::cores();
        // Each side on a core of its own; with threads of their own they need what there is.
        let apart = cores.len() > 1 && what.model.threading == Threads::Caller;
        let mut arguments = vec!["rdma".to_owned(), "peer".to_owned()];
        arguments.extend(what.model.arguments());
        let mut peer = Process::start("the other side", apart.then(|| cores[1]), arguments)?;
        if apart {
            process::pin(cores[0])?;
        }
        let device = Device::open(what.model.options()).named("cannot open a device")?;
        let at = peer.ready()?;
        Ok(Self { what, device, peer, at, report })
    }

    fn sizes(&self, op: Op) -> Vec<usize> {
        if op == Op::Atomic { vec![8] } else { self.what.size.clone() }
    }

    fn begin(&mut self, what: &str, op: Op) {
        let model = &self.what.model;
        let crc = if model.wire.crc == Switch::On { "CRC" } else { "no CRC" };
        let markers = if model.wire.markers { ", markers" } else { "" };
        let events = if model.events { ", asleep" } else { "" };
        let title = format!(
            "{what} of {op:?}: {crc}{markers}, threading {:?}, copies {:?}{events}",
            model.threading, model.copies
        );
        self.report.begin(title);
    }

    fn end(&self, bw: bool, op: Op, size: usize) -> Result<End, Fail> {
        let plan = Plan { bw, op, size, stag: 0 };
        End::call(&self.device, &self.at, plan, self.what.model.events)
    }

    /// Measures `product` in turns with `floor`; returns the figures of both.
    fn run(&self, product: Lane<'_>, floor: Lane<'_>) -> Result<(Figures, Figures), Fail> {
        let time = Duration::from_secs_f64(self.what.seconds);
        let mut figures = in_turns(&mut [product, floor], self.what.rounds, time)?;
        let floor = figures.pop().unwrap_or_default();
        Ok((figures.pop().unwrap_or_default(), floor))
    }

    fn row(&mut self, op: Op, row: Row, floor: &Figures, usage: &Usage) -> Result<(), Fail> {
        let model = &self.what.model;
        let (client, server) = (usage.percent(&usage.client), usage.percent(&usage.server));
        let both = client.zip(server).map(|(a, b)| a + b);
        let more = More {
            op,
            crc: model.wire.crc == Switch::On,
            markers: model.wire.markers,
            threading: model.threading,
            copies: model.copies,
            events: model.events,
            floor_avg_us: floor.avg_us,
            cpu_percent: both,
            cpu_percent_client: client,
            cpu_percent_server: server,
        };
        self.report.row_with(Row { value: both, unit: Some("% CPU".to_owned()), ..row }, &more)
    }

    fn most(&self) -> u64 {
        self.what.iterations.div_ceil(u64::from(self.what.rounds)).max(1)
    }
}

/// Runs `sprat rdma lat`.
pub(crate) fn lat(args: &Lat) -> Result<(), Fail> {
    let mut bench = Bench::new(&args.what)?;
    for &op in &args.what.ops {
        bench.begin("latency", op);
        for size in bench.sizes(op) {
            latency(&mut bench, op, size)?;
        }
        bench.report.end()?;
    }
    Ok(())
}

fn latency(bench: &mut Bench<'_>, op: Op, size: usize) -> Result<(), Fail> {
    let end = bench.end(false, op, size)?;
    let (request, reply, parts) = match op {
        Op::Send | Op::Write => (size, size, 2.0),
        Op::Read => (READ_REQUEST, size, 1.0),
        Op::Atomic => (ATOMIC.0, ATOMIC.1, 1.0),
    };
    let (usage, clock, most) = (Usage::default(), Clock::new(), bench.most());
    let (mut n, server) = (0, bench.peer.id());
    let product: Lane<'_> = Box::new(|time| {
        usage.around(server, || {
            let mut sample = Sample::new();
            let begin = clock.now();
            let until = begin.after(time.as_nanos() as u64);
            let mut last = begin;
            while (last < until && sample.operations < most) || sample.operations == 0 {
                n += 1;
                end.exchange(n)?;
                let now = clock.now();
                sample.record(now.since(last), size as u64);
                last = now;
            }
            sample.elapsed = Duration::from_nanos(last.since(begin));
            Ok(sample)
        })
    });
    let (figures, floor) = bench.run(product, floor::tcp(Exchange { request, reply }).lane)?;
    let (figures, floor) = (figures.times_by(parts), floor.times_by(parts));
    let name = format!("rdma.lat.{}", word(op));
    let row = Row::new(name, "rdma", Some(size), &figures).beside("floor.tcp", floor.p50_us, floor.p50_us);
    bench.row(op, row, &floor, &usage)
}

/// Runs `sprat rdma bw`.
pub(crate) fn bw(args: &Bw) -> Result<(), Fail> {
    let mut bench = Bench::new(&args.what)?;
    for &op in &args.what.ops {
        bench.begin("throughput", op);
        for size in bench.sizes(op) {
            throughput(&mut bench, op, size, u64::from(args.outstanding))?;
        }
        bench.report.end()?;
    }
    Ok(())
}

fn throughput(bench: &mut Bench<'_>, op: Op, size: usize, outstanding: u64) -> Result<(), Fail> {
    let mut flood = Flood::new(bench.end(true, op, size)?, outstanding);
    let (usage, most, server) = (Usage::default(), bench.most(), bench.peer.id());
    let product: Lane<'_> = Box::new(|time| usage.around(server, || flood.run(time, most)));
    let (figures, floor) = bench.run(product, floor::tcp_stream(size))?;
    // As times of one message, so that a ratio below 1 is one of bandwidth too.
    let each = |f: &Figures| f.bytes_per_s.filter(|rate| *rate > 0.0).map(|rate| size as f64 * 1e6 / rate);
    let (product_us, floor_us) = (each(&figures), each(&floor));
    let figures = Figures { p50_us: product_us, ..figures };
    let name = format!("rdma.bw.{}", word(op));
    let row = Row::new(name, "rdma", Some(size), &figures).beside("floor.tcpStream", floor_us, floor_us);
    bench.row(op, row, &floor, &usage)
}

fn word(op: Op) -> &'static str {
    match op {
        Op::Send => "send",
        Op::Write => "write",
        Op::Read => "read",
        Op::Atomic => "atomic",
    }
}

/// A sender that keeps many messages in progress.
struct Flood {
    end: End,
    outstanding: u64,
    /// Posted and completed.
    posted: u64,
    done: u64,
    /// Sends that the receiver has made room for again.
    credit: u64,
    synced: bool,
}

impl Flood {
    fn new(end: End, outstanding: u64) -> Self {
        let most = match end.plan.op {
            Op::Read | Op::Atomic => u64::from(DEPTH),
            Op::Send | Op::Write => 1024,
        };
        let outstanding = outstanding.min(most);
        Self { end, outstanding, posted: 0, done: 0, credit: RECEIVES as u64 - CREDIT, synced: false }
    }

    /// How many may be posted now.
    fn room(&self) -> u64 {
        let room = self.outstanding - (self.posted - self.done);
        if self.end.plan.op == Op::Send { room.min(self.credit.saturating_sub(self.posted)) } else { room }
    }

    fn run(&mut self, time: Duration, most: u64) -> Result<Sample, Fail> {
        let clock = Clock::new();
        let (mut sample, from) = (Sample::new(), self.done);
        let begin = clock.now();
        let until = begin.after(time.as_nanos() as u64);
        while clock.now() < until && self.posted - from < most {
            let room = self.room();
            // In pieces: many small requests leave in one write.
            if room > 0 && (room >= self.outstanding / 4 || self.posted == self.done) {
                let op = self.end.one_sided();
                let requests = (0..room).map(|_| self.end.request(op));
                self.end.pair.post_sends(requests).map_err(|(_, e)| e).named("cannot post")?;
                self.posted += room;
            }
            self.take()?;
        }
        while self.done < self.posted {
            self.take()?;
        }
        self.sync()?;
        sample.operations = self.done - from;
        sample.bytes = sample.operations * self.end.plan.size as u64;
        sample.elapsed = Duration::from_nanos(clock.now().since(begin));
        Ok(sample)
    }

    /// Takes completions: waits for one, then all that are there.
    fn take(&mut self) -> Result<(), Fail> {
        let mut completion = self.end.next().ok_or_else(ended)?;
        loop {
            match (completion.completed, completion.id) {
                (Completed::Recv, _) => {
                    self.credit += CREDIT;
                    self.end.post_receives(1)?;
                }
                (_, SYNC) => self.synced = true,
                _ => self.done += 1,
            }
            // What is there without asking the kernel again.
            match self.end.queue.poll_ready() {
                Some(next) => completion = next.result().map_err(|_| ended())?,
                None => return Ok(()),
            }
        }
    }

    /// Waits until the peer has everything: a Read is answered after what was sent before has been placed.
    fn sync(&mut self) -> Result<(), Fail> {
        self.synced = false;
        let to = self.end.remote();
        let read = SendRequest::new(SYNC, SendOp::Read(to), self.end.memory.sge(0..1));
        self.end.pair.post_send(read).named("cannot post")?;
        while !self.synced {
            self.take()?;
        }
        Ok(())
    }
}

/// The number of the request that ends a round.
const SYNC: u64 = 7;
