//! The test `single-thread`: echoes and reads with client and server in one thread, which run one
//! after the other, first one in progress, then many. No side waits. The time of such an operation
//! says little, its number of instructions is the same on every machine: `make instructions` counts
//! them by the names of functions in `one` and `many`. Over memif and shmnet, frames, IP and the
//! lossy half of the transport come on top, over UDP system calls: what they take in the kernel is
//! in the times and not in the instructions. With `--replicas` the objects that are read have
//! replicas on other servers of the same thread, whose turns are not counted. With `--cores` the
//! server has a shard for each. The one that has an object takes the turns that are counted for it:
//! the others would run on cores of their own.

use super::bench::Bench;
use super::measure::{Lane, in_turns};
use super::report::Row;
use crate::fail::Fail;

mod ends;
mod many;
mod one;

/// Transports that move bytes between two ends in one thread, without another thread or process.
/// Loopback delivers a datagram before the sender's system call returns.
const IN_ONE_THREAD: [&str; 6] =
    ["fast+shm", "fast+memif", "fast+shmnet", "utcp+memif", "utcp+shmnet", "fast+udp"];

/// Runs the test `single-thread`.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    bench
        .report
        .begin("single-thread: client and server in one thread, their turns one after the other");
    let copies = bench.local.copies().clone();
    for size in bench.sizes(&[100]) {
        let transports = bench.transports.clone();
        for transport in transports.iter().filter(|t| IN_ONE_THREAD.contains(&t.as_str())) {
            let mut echo = one::Echoes::open(size, transport)?;
            measure(bench, "singleThread.echo", transport, size, Box::new(move |_| echo.run()))?;
            let mut reads = one::Reads::open(size, transport, &copies)?;
            measure(bench, "singleThread.read", transport, size, Box::new(move |_| reads.run()))?;
            let mut echo = many::Echoes::open(size, transport)?;
            measure(bench, "singleThread.echoes", transport, size, Box::new(move |_| echo.run()))?;
            let mut reads = many::Reads::open(size, transport, &copies)?;
            measure(bench, "singleThread.reads", transport, size, Box::new(move |_| reads.run()))?;
        }
    }
    bench.report.end()
}

fn measure(
    bench: &mut Bench,
    test: &str,
    transport: &str,
    size: usize,
    lane: Lane<'_>,
) -> Result<(), Fail> {
    let figures = in_turns(&mut [lane], bench.rounds, bench.time)?;
    bench.report.row(Row::new(test, transport, Some(size), &figures[0]))
}
