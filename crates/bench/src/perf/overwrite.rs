//! The test `overwrite`: random overwrites of 100-byte objects, by the share of the server's memory
//! that is live.
//!
//! ```text
//! live %            25      50      80
//! one client, many in progress      writes alone · seven writes and a read, of which reads count
//! ```
//!
//! The table grows from level to level. Before each level is measured, as many bytes are written as
//! the server has memory, so that the cleaner is at work as it is after hours of the same load. At
//! 25 % the log takes new memory instead of cleaning for most of the time.
//!
//! The server counts turns of its loop by the processor time that they took. The test prints how
//! many of them there were a second at each level, beside those of a loop that only touches memory
//! ([`long_turns`]).
//!
//! Before that, objects of 1 MB are written one after the other to a fresh server, whose log grows
//! with them.

use std::time::Duration;

use sprat::kv::OperationId;
use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND, US};
use sprat_store::objects::entry::{OBJECT, Record};
use sprat_sys::clock;

use super::basic::{Objects, Set, key};
use super::bench::Bench;
use super::measure::{Figures, Lane, Sample, in_turns};
use super::options::Overwriting;
use super::report::Row;
use crate::baseline::long_turns;
use crate::fail::Fail;
use crate::store::Store;
use crate::{memory, out};

/// Bytes of an object's value.
const SIZE: usize = 100;
/// Bytes of a value that the test writes to a fresh server, so that its log grows.
const LARGE: usize = 1_000_000;
/// In the mixed load one of this number of operations is a read.
const MIX: u64 = 8;

/// Runs the test `overwrite` over all transports.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let Overwriting { memory, levels } = bench.overwrite.clone();
    // The client and the processes need some memory besides.
    let needed = memory + (memory / 2).min(1 << 30);
    if needed > memory::available() {
        let (needed, there) = (out::bytes(needed), out::bytes(memory::available()));
        return Err(Fail::new(format!(
            "overwrite needs {needed} of memory, and there are {there}"
        )));
    }
    for transport in bench.transports.clone() {
        growing(bench, &transport)?;
    }
    bench.local.resize(memory);
    let outstanding = bench.outstanding;
    bench.report.begin(format!(
        "overwrite: random overwrites of {SIZE} B, {outstanding} in progress, by the share of {} \
         that is live; reads: one of {MIX} operations",
        out::bytes(memory)
    ));
    let set = Set::fill(bench, SIZE, 1)?;
    let live = (OBJECT + key(0).len() + SIZE) as u64;
    let appended = live + Record::size(false) as u64;
    let floor_ns = FLOOR_NS.min(bench.time.as_nanos() as u64);
    let floor = long_turns((memory / 2) as usize, floor_ns, TURNS.map(|(.., ns)| ns));
    let floor = Turns { counts: floor, at: Instant::ZERO.after(floor_ns) };
    let mut notes = vec![format!("a loop that only touches memory: {}", floor.since(&NONE))];
    let mut filled = 0;
    for level in levels {
        let count = memory / 100 * level / live;
        let mut objects = set.over(bench, &bench.transports[0].clone())?;
        load(&mut objects, outstanding, |_, _| {
            filled += 1;
            (filled <= count).then_some(Step::Write(filled - 1))
        })?;
        filled = count;
        let mut left = memory / appended;
        load(&mut objects, outstanding, |objects, _| {
            left = left.checked_sub(1)?;
            Some(Step::Write(objects.rng.below(count)))
        })?;
        let mut turns = Turns::read(&mut objects.store)?;
        for transport in bench.transports.clone() {
            let mut objects = set.over(bench, &transport)?;
            objects.count = count;
            let objects = std::cell::RefCell::new(objects);
            let timed =
                |read_in, time| timed(&mut objects.borrow_mut(), outstanding, read_in, time);
            let writes = |time| timed(None, time).map(|[_, writes]| writes);
            let mixed = |time| timed(Some(MIX), time).map(|[reads, _]| reads);
            let mut lanes: [Lane<'_>; 2] = [Box::new(writes), Box::new(mixed)];
            let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
            for (name, figures) in ["write", "read"].iter().zip(&figures) {
                let name = format!("overwrite.{name}.{level}");
                bench.report.row(Row::new(name, &transport, Some(SIZE), figures))?;
            }
            let after = Turns::read(&mut objects.borrow_mut().store)?;
            notes.push(format!("{level} %, {transport}: {}", after.since(&turns)));
            turns = after;
        }
    }
    set.end()?;
    bench.report.end()?;
    bench.report.print("\nturns of the server's loop a second, by their processor time:\n")?;
    notes.iter().try_for_each(|note| bench.report.print(&format!("  {note}\n")))
}

/// The most time in nanoseconds for which the loop runs that only touches memory.
const FLOOR_NS: u64 = 10 * SECOND;

/// The turns of a loop up to a time, by the processor time that they took.
struct Turns {
    counts: [u64; TURNS.len()],
    at: Instant,
}

/// No turns yet.
const NONE: Turns = Turns { counts: [0; TURNS.len()], at: Instant::ZERO };

/// The counters of turns, each with the least time of its turns, as a text and in nanoseconds.
const TURNS: [(&str, &str, u64); 6] = [
    ("turns_from_100us", "100 µs", 100 * US),
    ("turns_from_200us", "200 µs", 200 * US),
    ("turns_from_500us", "500 µs", 500 * US),
    ("stalls", "1 ms", MS),
    ("stalls_from_4ms", "4 ms", 4 * MS),
    ("stalls_from_16ms", "16 ms", 16 * MS),
];

impl Turns {
    /// Reads the counters of the cluster's first server.
    fn read(store: &mut Store) -> Result<Self, Fail> {
        let servers = store.servers()?;
        let server = servers.first().ok_or_else(|| Fail::new("the cluster has no server"))?;
        let mut counts = [0; TURNS.len()];
        for (count, (name, ..)) in counts.iter_mut().zip(TURNS) {
            *count = store.counter(server, name)?;
        }
        Ok(Self { counts, at: clock::now() })
    }

    /// Describes the turns since `before`.
    fn since(&self, before: &Self) -> String {
        let seconds = self.at.since(before.at).max(1) as f64 / SECOND as f64;
        let counts = self.counts.iter().zip(&before.counts).zip(TURNS);
        let text: Vec<_> = counts
            .map(|((after, before), (_, least, _))| {
                format!("{:.1} from {least}", (after - before) as f64 / seconds)
            })
            .collect();
        text.join(", ")
    }
}

/// Writes objects of 1 MB to a fresh server until half of its memory is full.
fn growing(bench: &mut Bench, transport: &str) -> Result<(), Fail> {
    let memory = bench.overwrite.memory;
    bench.local.resize(memory);
    bench.report.begin(format!("growing: writes of new objects of 1 MB, {transport}"));
    let set = Set::fill(bench, LARGE, 1)?;
    let mut objects = set.over(bench, transport)?;
    let mut left = 0..memory / 2 / LARGE as u64;
    let [_, writes] = load(&mut objects, 1, |_, _| left.next().map(Step::Write))?;
    let figures = Figures::of(&[writes]);
    bench.report.row(Row::new("growing.write", transport, Some(LARGE), &figures))?;
    set.end()?;
    bench.report.end()
}

/// A read or a write of the object of this number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Read(u64),
    Write(u64),
}

/// Runs overwrites of random objects for `time`, and at least one operation of each kind. One of
/// `read_in` operations is a read; `None`: none is. Returns a sample with the times of reads, and
/// one with those of writes.
pub(super) fn timed(
    objects: &mut Objects,
    outstanding: usize,
    read_in: Option<u64>,
    time: Duration,
) -> Result<[Sample; 2], Fail> {
    let end = objects.clock.now().after(time.as_nanos() as u64);
    let mut number = 0;
    load(objects, outstanding, |objects, now| {
        number += 1;
        let object = objects.rng.below(objects.count);
        let step = match read_in.is_some_and(|one_in| number % one_in == 0) {
            true => Step::Read(object),
            false => Step::Write(object),
        };
        (now < end || number <= read_in.unwrap_or(1)).then_some(step)
    })
}

/// Makes the reads and writes that `next` returns, with `outstanding` in progress. `next` gets the
/// time. Returns a sample with the times of reads, and one with those of writes.
fn load(
    objects: &mut Objects,
    outstanding: usize,
    mut next: impl FnMut(&mut Objects, Instant) -> Option<Step>,
) -> Result<[Sample; 2], Fail> {
    let mut samples = [Sample::new(), Sample::new()];
    let mut since: Vec<Option<(OperationId, Step, Instant)>> = Vec::new();
    let bytes = objects.value.len() as u64;
    let begin = objects.clock.now();
    let (mut now, mut in_flight, mut more) = (begin, 0, true);
    while more || in_flight > 0 {
        while more && in_flight < outstanding {
            let Some(step) = next(objects, now) else {
                more = false;
                break;
            };
            let table = objects.table();
            let op = match step {
                Step::Read(object) => table.start_get(&key(object)).queue(),
                Step::Write(object) => table.start_put(&key(object), &objects.value).queue(),
            };
            if op.index() >= since.len() {
                since.resize(op.index() + 1, None);
            }
            since[op.index()] = Some((op, step, now));
            in_flight += 1;
        }
        objects.store.raw().turn_and_rest();
        now = objects.clock.now();
        while let Some((op, outcome)) = objects.store.raw().next_completed() {
            outcome.map_err(|error| objects.store.explain(error, "an operation"))?;
            in_flight -= 1;
            if let Some((_, step, since)) = since.get_mut(op.index()).and_then(Option::take) {
                let [reads, writes] = &mut samples;
                let sample = if matches!(step, Step::Read(_)) { reads } else { writes };
                sample.record(now.since(since), bytes);
            }
        }
    }
    for sample in &mut samples {
        sample.elapsed = Duration::from_nanos(now.since(begin));
    }
    Ok(samples)
}
