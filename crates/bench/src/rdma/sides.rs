//! The two sides of an RDMA measurement, this process and a peer process. They measure a latency or
//! a throughput in turns with raw TCP that moves the same bytes.
//!
//! The machine's speed changes from one moment to the next, for both alike. So the turns are short,
//! and the ratio of a figure to its floor is the median of the rounds' quotients, not the quotient
//! of medians.

use std::cell::Cell;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use sprat::verbs::{Completed, Device, SendOp, SendRequest};
use sprat_sys::clock::Clock;

use super::args::{Model, Op, Threads};
use super::endpoint::{CREDIT, DEPTH, End, Plan, RECEIVES, ended};
use super::under::{self, Network};
use crate::fail::{Fail, Named};
use crate::perf::lanes::{self, Exchange};
use crate::perf::measure::{Figures, Lane, Sample, median, samples_in_turns};
use crate::perf::procfs::processor_time;
use crate::process::{Process, START};

/// Bytes on the wire of a Read Request. `ATOMIC` has those of an Atomic Request and of its
/// Response.
const READ_REQUEST: usize = 52;
const ATOMIC: (usize, usize) = (76, 36);

/// Duration and number of rounds of a measurement.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// Number of rounds in which product and floor take turns.
    pub(super) rounds: u16,
    /// Time of the product over all rounds. The floor takes as long.
    pub(super) time: Duration,
    /// The most messages of one round of the measurement.
    pub(super) most: u64,
}

/// The outcome of an RDMA measurement. A latency is half of a round trip if both sides send alike;
/// the median of a throughput is the time of one message.
pub(super) struct Outcome {
    pub(super) figures: Figures,
    pub(super) floor_us: Option<f64>,
    pub(super) floor_avg_us: Option<f64>,
    /// The product's time divided by the floor's: the median over the rounds.
    pub(super) times_floor: Option<f64>,
    /// Processor time of client and server in percent of one processor.
    pub(super) cpu_percent: [Option<f64>; 2],
}

impl Outcome {
    /// Returns the sum of both sides' processor time, in percent of one processor.
    pub(super) fn cpu_percent(&self) -> Option<f64> {
        self.cpu_percent.into_iter().sum()
    }
}

/// The processor time of client and server, and the duration of their lane.
#[derive(Default)]
struct Usage {
    used: [Cell<Duration>; 2],
    elapsed: Cell<Duration>,
}

impl Usage {
    fn percent(&self) -> [Option<f64>; 2] {
        let elapsed = self.elapsed.get().as_secs_f64();
        let percent = |used: &Cell<Duration>| {
            (elapsed > 0.0).then(|| 100.0 * used.get().as_secs_f64() / elapsed)
        };
        [percent(&self.used[0]), percent(&self.used[1])]
    }

    /// Calls `run`, and adds the processor time of this process and of process `server`.
    fn around(
        &self,
        server: u32,
        run: impl FnOnce() -> Result<Sample, Fail>,
    ) -> Result<Sample, Fail> {
        let both = || Ok::<_, Fail>([processor_time(std::process::id())?, processor_time(server)?]);
        let (clock, before) = (Clock::new(), both()?);
        let begin = clock.now();
        let sample = run()?;
        let elapsed = Duration::from_nanos(clock.now().since(begin));
        for ((used, before), after) in self.used.iter().zip(before).zip(both()?) {
            used.set(used.get() + after.saturating_sub(before));
        }
        self.elapsed.set(self.elapsed.get() + elapsed);
        Ok(sample)
    }
}

/// Both sides of an RDMA measurement: this process's device, and the peer process.
pub(super) struct Sides {
    device: Device,
    peer: Process,
    at: String,
    events: bool,
    /// Cores that this process may use.
    cores: Vec<usize>,
    network: Network,
}

impl Sides {
    /// Starts the peer process and opens a device here. Each side has one half of `cores`, or one
    /// core of it where only the caller makes progress.
    pub(super) fn start(model: &Model, cores: &[usize]) -> Result<Self, Fail> {
        let network = Network::new(model.under)?;
        let (mine, theirs) = cores.split_at(cores.len().div_ceil(2));
        let theirs = if theirs.is_empty() { mine } else { theirs };
        let most = if model.threading == Threads::Caller { 1 } else { cores.len() };
        let few = |half: &[usize]| half[..half.len().min(most)].to_vec();
        let mut arguments = vec!["rdma".to_owned(), "peer".to_owned()];
        arguments.extend(model.arguments());
        arguments.push(format!("--at={}", network.place(1)));
        run_on(&few(theirs))?;
        let far = network.far()?;
        let started = Process::start("the other side", None, arguments);
        drop(far);
        run_on(&few(mine))?;
        let mut peer = started?;
        let at = peer.ready(START)?;
        let (device, _) = under::open(model, &network.place(0), false)?;
        Ok(Self { device, peer, at, events: model.events, cores: few(mine), network })
    }

    fn end(&self, bw: bool, op: Op, size: usize) -> Result<End, Fail> {
        let plan = Plan { bw, op, size, stag: 0 };
        End::call(&self.device, &self.at, plan, self.events)
    }

    /// Measures the latency of an operation.
    pub(super) fn latency(&self, op: Op, size: usize, pace: Pace) -> Result<Outcome, Fail> {
        let end = self.end(false, op, size)?;
        let (request, reply, parts) = match op {
            Op::Send | Op::Write => (size, size, 2.0),
            Op::Read => (READ_REQUEST, size, 1.0),
            Op::Atomic => (ATOMIC.0, ATOMIC.1, 1.0),
        };
        let (clock, mut n) = (Clock::new(), 0);
        let product = |time: Duration| {
            let mut sample = Sample::new();
            let begin = clock.now();
            let until = begin.after(time.as_nanos() as u64);
            let mut last = begin;
            while (last < until && sample.operations < pace.most) || sample.operations == 0 {
                n += 1;
                end.exchange(n)?;
                let now = clock.now();
                sample.record(now.since(last), size as u64);
                last = now;
            }
            sample.elapsed = Duration::from_nanos(last.since(begin));
            Ok(sample)
        };
        let mut outcome = self.run(
            product,
            lanes::tcp_over(self.network.kernel(), Exchange { request, reply }).lane,
            pace,
            Sample::p50_us,
        )?;
        outcome.figures = outcome.figures.times_by(parts);
        for us in [&mut outcome.floor_us, &mut outcome.floor_avg_us] {
            *us = us.map(|us| us / parts);
        }
        Ok(outcome)
    }

    /// Measures the throughput of an operation in one direction, with `outstanding` messages in
    /// progress.
    pub(super) fn throughput(
        &self,
        op: Op,
        size: usize,
        outstanding: u64,
        pace: Pace,
    ) -> Result<Outcome, Fail> {
        let mut flood = Flood::new(self.end(true, op, size)?, outstanding);
        // The comparison takes the time of one message, so that less is better here too.
        let each = |sample: &Sample| sample.bytes_per_s().map(|rate| size as f64 * 1e6 / rate);
        let mut outcome = self.run(
            |time| flood.run(time, pace.most),
            lanes::tcp_stream(self.network.kernel(), size),
            pace,
            each,
        )?;
        outcome.figures.p50_us = outcome.figures.bytes_per_s.map(|rate| size as f64 * 1e6 / rate);
        Ok(outcome)
    }

    /// Measures `product` in turns with `floor`. `figure` returns the value of a sample that is
    /// compared.
    fn run<'l>(
        &'l self,
        mut product: impl FnMut(Duration) -> Result<Sample, Fail> + 'l,
        mut floor: Lane<'l>,
        pace: Pace,
        figure: impl Fn(&Sample) -> Option<f64>,
    ) -> Result<Outcome, Fail> {
        let usage = Usage::default();
        let product: Lane<'_> = Box::new(|time| usage.around(self.peer.id(), || product(time)));
        // A baseline takes its cores from all of the process's cores.
        let floor: Lane<'_> = Box::new(|time| {
            let sample = floor(time);
            run_on(&self.cores)?;
            sample
        });
        let mut samples = samples_in_turns(&mut [product, floor], pace.rounds, pace.time)?;
        let (floor, product) =
            (samples.pop().unwrap_or_default(), samples.pop().unwrap_or_default());
        let quotients =
            product.iter().zip(&floor).filter_map(|(p, f)| Some(figure(p)? / figure(f)?));
        Ok(Outcome {
            figures: Figures::of(&product),
            floor_avg_us: Figures::of(&floor).avg_us,
            floor_us: median(floor.iter().filter_map(&figure)),
            times_floor: median(quotients),
            cpu_percent: usage.percent(),
        })
    }
}

/// Binds the calling thread, and the threads that it starts later, to these cores.
fn run_on(cores: &[usize]) -> Result<(), Fail> {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    let list = || cores.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    sched_setaffinity(None, &set)
        .map_err(|error| Fail::new(format!("cannot run on the cores {}: {error}", list())))
}

/// The sending end of a throughput measurement, which keeps many messages in progress.
struct Flood {
    end: End,
    outstanding: u64,
    /// Number of messages posted. The field `done` has the number completed.
    posted: u64,
    done: u64,
    /// Number of Sends that the receiver has allowed so far, counted from the first one.
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
        Self {
            end,
            outstanding,
            posted: 0,
            done: 0,
            credit: RECEIVES as u64 - CREDIT,
            synced: false,
        }
    }

    /// Returns the number of messages that may be posted now.
    fn room(&self) -> u64 {
        let room = self.outstanding - (self.posted - self.done);
        if self.end.plan.op == Op::Send {
            room.min(self.credit.saturating_sub(self.posted))
        } else {
            room
        }
    }

    fn run(&mut self, time: Duration, most: u64) -> Result<Sample, Fail> {
        let clock = Clock::new();
        let (mut sample, from) = (Sample::new(), self.done);
        let begin = clock.now();
        let until = begin.after(time.as_nanos() as u64);
        while clock.now() < until && self.posted - from < most {
            let room = self.room();
            // Requests are posted in groups, so that many small ones share one write.
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

    /// Waits for one completion, and handles all completions that are there.
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
            // More completions, without a system call.
            match self.end.queue.poll_ready() {
                Some(next) => completion = next.result().map_err(|_| ended())?,
                None => return Ok(()),
            }
        }
    }

    /// Waits until the peer has received every message: the peer answers a Read after it has placed
    /// the messages sent before.
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

/// Id of the RDMA Read that ends a round.
const SYNC: u64 = 7;
