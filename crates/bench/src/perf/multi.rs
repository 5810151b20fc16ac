//! The tests `multi-read` and `multi-write` (ClusterPerf's `multiRead_oneMaster` and
//! `multiWrite_oneMaster`): multi-operations on objects of one server.

use std::time::Duration;

use sprat::kv::Part;

use super::basic::{Kind, Objects, Set, key};
use super::bench::Bench;
use super::lanes::Exchange;
use super::measure::{Lane, Sample};
use crate::fail::Fail;

/// Numbers of objects of one multi-operation.
const COUNTS: [usize; 4] = [1, 10, 100, 1000];
/// Bytes of a part's request and reply, besides key and value, of reads and of writes: 4 for its
/// length, and those of the operation.
const READ_HEADS: [usize; 2] = [4 + 32, 4 + 12];
const WRITE_HEADS: [usize; 2] = [4 + 60, 4 + 12];

/// Returns the number of bytes that a multi-operation on `count` objects of `size` bytes moves in
/// each direction.
fn exchange(kind: Kind, count: usize, size: usize) -> Exchange {
    let key = key(0).len();
    match kind {
        Kind::Reads => Exchange {
            request: count * (READ_HEADS[0] + key),
            reply: count * (READ_HEADS[1] + size),
        },
        Kind::Writes => Exchange {
            request: count * (WRITE_HEADS[0] + key + size),
            reply: count * WRITE_HEADS[1],
        },
    }
}

/// Runs one of the tests over all sizes and transports.
pub(crate) fn run(bench: &mut Bench, kind: Kind) -> Result<(), Fail> {
    let (name, what) = match kind {
        Kind::Reads => ("multiRead", "reads"),
        Kind::Writes => ("multiWrite", "overwrites"),
    };
    for size in bench.sizes(&[100]) {
        let objects = bench.objects(size);
        bench.report.begin(format!(
            "{name}_oneMaster: {what} of several of {objects} objects of {size} B in one operation"
        ));
        let set = Set::fill(bench, size, objects)?;
        for transport in bench.transports.clone() {
            for count in COUNTS {
                let mut objects = set.over(bench, &transport)?;
                let lane: Lane<'_> = Box::new(|time| together(&mut objects, kind, count, time));
                let compared = bench.compare(&transport, exchange(kind, count, size), lane)?;
                let test = format!("{name}_oneMaster.{count}");
                bench.report.row(compared.row(&test, &transport, count * size))?;
            }
        }
        set.end()?;
        bench.report.end()?;
    }
    Ok(())
}

/// Makes multi-operations on `count` random objects, one after the other, for `time`.
fn together(
    objects: &mut Objects,
    kind: Kind,
    count: usize,
    time: Duration,
) -> Result<Sample, Fail> {
    let mut sample = Sample::new();
    let bytes = (count * objects.value.len()) as u64;
    let begin = objects.clock.now();
    let end = begin.after(time.as_nanos() as u64);
    let mut now = begin;
    while now < end || sample.operations == 0 {
        let keys: Vec<_> = (0..count).map(|_| key(objects.rng.below(objects.count))).collect();
        let before = objects.clock.now();
        let part = |key| match kind {
            Kind::Reads => Part::get(objects.table, key),
            Kind::Writes => Part::put(objects.table, key, &objects.value),
        };
        let parts = objects.store.raw().multi(keys.iter().map(|key| part(key)));
        now = objects.clock.now();
        let parts = parts.map_err(|error| objects.store.explain(error, "a multi-operation"))?;
        if let Some(Err(error)) = parts.iter().find(Result::is_err) {
            return Err(objects.store.explain(error.clone(), "a part of a multi-operation"));
        }
        sample.record(now.since(before), bytes);
    }
    sample.elapsed = Duration::from_nanos(now.since(begin));
    Ok(sample)
}
