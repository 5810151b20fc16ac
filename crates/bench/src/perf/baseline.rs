//! The test `baseline`: the bare exchanges of this machine as figures of their own.

use super::bench::Bench;
use super::lanes::{Exchange, Floor, LONGEST_PACKET, PACKET, memory, tcp_over, times, under};
use super::measure::{Lane, in_turns};
use super::net;
use super::report::Row;
use crate::baseline::{self, Kernel, Waiting};
use crate::fail::Fail;

/// Bytes that the test accesses at random: a set that fits in the cache, and ClusterPerf's full
/// set.
const FOOTPRINTS: [usize; 2] = [150_000, 200_000_000];

/// Runs the test `baseline`: every floor that needs no root.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    bench.report.begin("floor: what the machine allows, with no software of ours");
    let none = Exchange::both(0);
    row(bench, "cacheLine", "memory", None, times(none, baseline::cache_line))?;
    for footprint in FOOTPRINTS {
        row(bench, "memory", "memory", Some(footprint), memory(footprint))?;
    }
    for size in bench.sizes(&[64, 100, 1000, 10_000]) {
        let both = Exchange::both(size);
        row(
            bench,
            "ring",
            "fast+shm",
            Some(size),
            times(both, move |limits| baseline::ring(size, limits)),
        )?;
    }
    for size in bench.sizes(&[100]) {
        let both = Exchange::both(size);
        for (name, waiting) in [("", Waiting::Polling), (".blocking", Waiting::Blocking)] {
            let udp = times(both, move |limits| Kernel::loopback().udp(size, waiting, limits));
            row(bench, &format!("udp{name}"), "fast+udp", Some(size), udp)?;
            let tcp = times(both, move |limits| Kernel::loopback().tcp(size, waiting, limits));
            row(bench, &format!("tcp{name}"), "tcp", Some(size), tcp)?;
        }
    }
    let long = Exchange { request: 64, reply: 1_000_000 };
    for transport in ["fast+shm", "fast+udp", "tcp"] {
        stream(bench, transport, long)?;
    }
    for transport in bench.transports.clone().iter().filter(|t| net::is_device(t)) {
        devices(bench, transport)?;
        stream(bench, transport, long)?;
    }
    if bench.local.wire().is_some() {
        wire(bench, long)?;
    }
    bench.report.end()
}

/// Measures frames that a packet device carries there and back, for each size.
fn devices(bench: &mut Bench, transport: &str) -> Result<(), Fail> {
    for size in bench.sizes(&[100, 1000]) {
        let Some(ends) = bench.local.device(transport) else { continue };
        let run =
            move |limits| baseline::device(ends()?, (size + PACKET).min(LONGEST_PACKET), limits);
        row(bench, "device", transport, Some(size), times(Exchange::both(size), run))?;
    }
    Ok(())
}

/// Measures the bandwidth of a long message over the baseline of `transport`.
fn stream(bench: &mut Bench, transport: &str, long: Exchange) -> Result<(), Fail> {
    let figures = match under(&bench.local, transport, long) {
        Some(Floor { name, lane }) => (name, in_turns(&mut [lane], bench.rounds, bench.time)?),
        None => return Ok(()),
    };
    let name = figures.0;
    bench.report.row(Row::new(name, transport, Some(long.reply), &figures.1[0]))
}

/// Measures the kernel's UDP and TCP over the wire that the packet devices use.
fn wire(bench: &mut Bench, long: Exchange) -> Result<(), Fail> {
    for size in bench.sizes(&[100]) {
        let Some(over) = bench.local.wire() else { return Ok(()) };
        let kernel = Kernel::over(&over);
        let both = Exchange::both(size);
        let udp = times(both, |limits| kernel.udp(size, Waiting::Polling, limits));
        row(bench, "wire.udp", "fast+udp", Some(size), udp)?;
        row(bench, "wire.tcp", "tcp", Some(size), tcp_over(kernel, both).lane)?;
        row(bench, "wire.tcp", "tcp", Some(long.reply), tcp_over(kernel, long).lane)?;
    }
    Ok(())
}

fn row(
    bench: &mut Bench,
    name: &str,
    transport: &str,
    size: Option<usize>,
    lane: Lane<'_>,
) -> Result<(), Fail> {
    let figures = in_turns(&mut [lane], bench.rounds, bench.time)?;
    bench.report.row(Row::new(format!("floor.{name}"), transport, size, &figures[0]))
}
