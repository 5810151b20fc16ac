//! What the machine allows: the same bytes with no software of ours in between, as a test of its own and as the lane that
//! takes turns with a product's figure.

use std::io;
use std::time::Duration;

use crate::baseline::{self, Flow, Kernel, Limits, Waiting};

use super::local::Local;
use super::measure::{Lane, Sample};
use crate::fail::Fail;
use crate::process;

/// The record size of the raw ring's stream, and of the product's own long messages on it.
const STREAM_RECORD: usize = 64_000;
/// Payload of one datagram in the raw UDP stream: what an Ethernet frame of 1,500 bytes carries.
const STREAM_SEGMENT: usize = 1472;
/// Messages longer than this are streamed: compared with bandwidth, not with a round trip.
const LONG: usize = 60_000;
/// Octets of a packet of `fast` besides the message: header and checksum.
pub(crate) const PACKET: usize = 36;
/// The longest payload of one frame on our wires.
pub(crate) const LONGEST_PACKET: usize = 1472;

/// What is exchanged in one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exchange {
    /// Bytes of the request.
    pub(crate) request: usize,
    /// Bytes of the reply.
    pub(crate) reply: usize,
}

impl Exchange {
    /// The same bytes both ways.
    pub(crate) fn both(size: usize) -> Self {
        Self { request: size, reply: size }
    }

    fn longer(self) -> usize {
        self.request.max(self.reply)
    }
}

/// A floor: its name in results, and the lane that measures it.
pub(crate) struct Floor<'l> {
    pub(crate) name: &'static str,
    pub(crate) lane: Lane<'l>,
}

/// The floor under `exchange` over `transport`. `None` for a transport that has no raw counterpart here.
pub(crate) fn under<'l>(
    local: &'l Local,
    transport: &str,
    exchange: Exchange,
) -> Option<Floor<'l>> {
    let size = exchange.longer();
    if let Some(ends) = local.device(transport) {
        let payload = size + PACKET;
        return Some(if payload > LONGEST_PACKET {
            let lane = flow(exchange, move |limits| baseline::device_stream(ends()?, limits));
            Floor { name: "floor.deviceStream", lane }
        } else {
            let lane = times(exchange, move |limits| baseline::device(ends()?, payload, limits));
            Floor { name: "floor.device", lane }
        });
    }
    let (name, lane): (_, Lane<'l>) = match transport {
        "fast+shm" if size > LONG => (
            "floor.ringStream",
            flow(exchange, |limits| baseline::ring_stream(STREAM_RECORD, limits)),
        ),
        "fast+shm" => ("floor.ring", times(exchange, move |limits| baseline::ring(size, limits))),
        "fast+udp" if size > LONG => (
            "floor.udpStream",
            flow(exchange, |limits| Kernel::loopback().udp_stream(STREAM_SEGMENT, limits)),
        ),
        "fast+udp" => (
            "floor.udp",
            times(exchange, move |limits| Kernel::loopback().udp(size, Waiting::Polling, limits)),
        ),
        "tcp" | "rdma" => return Some(tcp(exchange)),
        _ => return None,
    };
    Some(Floor { name, lane })
}

/// Kernel TCP, polling, moving the same bytes.
pub(crate) fn tcp<'l>(exchange: Exchange) -> Floor<'l> {
    tcp_over(Kernel::loopback(), exchange)
}

/// The same, over whatever `kernel` says.
pub(crate) fn tcp_over<'l>(kernel: Kernel<'l>, exchange: Exchange) -> Floor<'l> {
    let Exchange { request, reply } = exchange;
    let run = move |limits| kernel.tcp_exchange(request, reply, Waiting::Polling, limits);
    Floor { name: "floor.tcp", lane: times(exchange, run) }
}

/// Kernel TCP, polling, moving messages of `size` bytes one way. Its figure is the bandwidth.
pub(crate) fn tcp_stream<'l>(size: usize) -> Lane<'l> {
    flow(Exchange { request: size, reply: 0 }, move |limits| {
        Kernel::loopback().tcp_stream(size, limits)
    })
}

/// One dependent touch of a random place among so many bytes.
pub(crate) fn memory<'l>(footprint: usize) -> Lane<'l> {
    times(Exchange::both(0), move |limits| baseline::memory(footprint, limits))
}

/// A lane of single times.
pub(crate) fn times<'l>(
    exchange: Exchange,
    mut run: impl FnMut(Limits) -> io::Result<Vec<u32>> + 'l,
) -> Lane<'l> {
    Box::new(move |time| {
        let ns = on_all_cores(|| run(limits(time)))?;
        let mut sample = Sample::new();
        let mut elapsed = 0;
        for ns in ns {
            elapsed += u64::from(ns);
            sample.record(u64::from(ns), exchange.longer() as u64);
        }
        sample.elapsed = Duration::from_nanos(elapsed);
        Ok(sample)
    })
}

/// A lane of bandwidth, counted as the time that the request and then the reply take at it.
fn flow<'l>(exchange: Exchange, mut run: impl FnMut(Limits) -> io::Result<Flow> + 'l) -> Lane<'l> {
    Box::new(move |time| {
        let flow = on_all_cores(|| run(limits(time)))?;
        let mut sample = Sample::new();
        let both = (exchange.request + exchange.reply) as u64;
        if flow.bytes > 0 {
            sample.record((flow.ns as f64 * both as f64 / flow.bytes as f64) as u64, 0);
        }
        sample.bytes = flow.bytes;
        sample.operations = flow.bytes / both.max(1);
        sample.elapsed = Duration::from_nanos(flow.ns);
        Ok(sample)
    })
}

fn limits(time: Duration) -> Limits {
    Limits { count: 10_000_000, time_ns: time.as_nanos() as u64 }
}

/// Floors share the cores out by themselves.
fn on_all_cores<T>(run: impl FnOnce() -> io::Result<T>) -> Result<T, Fail> {
    process::unpinned(|| {
        run().map_err(|error| Fail::new(format!("cannot measure a floor: {error}")))
    })
}
