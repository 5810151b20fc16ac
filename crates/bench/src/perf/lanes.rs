//! Baselines as lanes: each moves the bytes of an operation without our software, and takes turns
//! with the product's figure.

use std::io;
use std::time::Duration;

use crate::baseline::{self, Flow, Kernel, Limits, Open, Waiting};

use super::local::Local;
use super::measure::{Lane, Sample};
use crate::fail::Fail;
use crate::process;

/// Record size of the stream through a raw ring: as large as a record of the product's long
/// messages.
const STREAM_RECORD: usize = 64_000;
/// Payload of one datagram in the raw UDP stream: that of an Ethernet frame of 1,500 bytes.
const STREAM_SEGMENT: usize = 1472;
/// Messages longer than this are compared with bandwidth instead of a round trip.
const LONG: usize = 60_000;
/// Bytes that a packet of `fast` has besides the message: header and checksum.
pub(crate) const PACKET: usize = 36;
/// Longest UDP payload of one frame on the wires of a run.
pub(crate) const LONGEST_PACKET: usize = 1472;

/// The number of bytes that one operation moves in each direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Exchange {
    /// Bytes of the request, from the client to the server.
    pub(crate) request: usize,
    /// Bytes of the reply, from the server to the client.
    pub(crate) reply: usize,
}

impl Exchange {
    /// Returns an exchange of `size` bytes each way.
    pub(crate) fn both(size: usize) -> Self {
        Self { request: size, reply: size }
    }

    fn longer(self) -> usize {
        self.request.max(self.reply)
    }
}

/// A baseline: its name in results, and its lane.
pub(crate) struct Floor<'l> {
    pub(crate) name: &'static str,
    pub(crate) lane: Lane<'l>,
}

/// Returns the baseline of `exchange` over `transport`. `None` if the transport has no raw
/// counterpart here.
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

/// Returns the lane of polling kernel TCP over loopback that moves the bytes of `exchange`.
pub(crate) fn tcp<'l>(exchange: Exchange) -> Floor<'l> {
    tcp_over(Kernel::loopback(), exchange)
}

/// Returns the lane of polling kernel TCP over `kernel` that moves the bytes of `exchange`.
pub(crate) fn tcp_over<'l>(kernel: Kernel<'l>, exchange: Exchange) -> Floor<'l> {
    let Exchange { request, reply } = exchange;
    let run = move |limits| kernel.tcp_exchange(request, reply, Waiting::Polling, limits);
    Floor { name: "floor.tcp", lane: times(exchange, run) }
}

/// Returns the lane of polling kernel TCP with messages of `size` bytes one way. Its figure is the
/// bandwidth.
pub(crate) fn tcp_stream<'l>(kernel: Kernel<'l>, size: usize) -> Lane<'l> {
    flow(Exchange { request: size, reply: 0 }, move |limits| kernel.tcp_stream(size, limits))
}

/// Returns the lane of a frame with a datagram of `payload` bytes each way between two raw devices.
pub(crate) fn device<'l>(
    ends: impl Fn() -> io::Result<[Open<'static>; 2]> + 'l,
    payload: usize,
) -> Floor<'l> {
    let run = move |limits| baseline::device(ends()?, payload, limits);
    Floor { name: "floor.device", lane: times(Exchange::both(payload), run) }
}

/// Returns the lane of frames one way between two raw devices.
pub(crate) fn device_stream<'l>(
    ends: impl Fn() -> io::Result<[Open<'static>; 2]> + 'l,
) -> Floor<'l> {
    let run = move |limits| baseline::device_stream(ends()?, limits);
    Floor { name: "floor.deviceStream", lane: flow(Exchange { request: 1, reply: 0 }, run) }
}

/// Returns the lane of one dependent access to a random cache line among `footprint` bytes.
pub(crate) fn memory<'l>(footprint: usize) -> Lane<'l> {
    times(Exchange::both(0), move |limits| baseline::memory(footprint, limits))
}

/// Makes a lane from a baseline that returns the time of each exchange.
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

/// Makes a lane from a baseline that returns a bandwidth. The time of the lane's operation is that
/// of its request and reply at this bandwidth.
pub(crate) fn flow<'l>(
    exchange: Exchange,
    mut run: impl FnMut(Limits) -> io::Result<Flow> + 'l,
) -> Lane<'l> {
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

/// Runs a baseline while this thread may use all of the process's cores: the baseline chooses its
/// cores among them.
fn on_all_cores<T>(run: impl FnOnce() -> io::Result<T>) -> Result<T, Fail> {
    process::unpinned(|| {
        run().map_err(|error| Fail::new(format!("cannot measure a floor: {error}")))
    })
}
