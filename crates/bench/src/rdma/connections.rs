//! `sprat rdma connections`: many connections with one server process, a ping on each, and the cost
//! of an idle one.

use std::collections::HashMap;
use std::time::Duration;

use sprat::verbs::{
    AcceptOptions, Access, Completed, ConnectOptions, Device, PairOptions, Qp, QueuePair,
    RecvRequest, SendOp, SendRequest,
};
use sprat_sys::clock::Clock;

use super::args::{Connections, Model};
use super::connect;
use super::endpoint::PATIENCE;
use crate::fail::{Fail, Named};
use crate::out;
use crate::perf::procfs::resident_bytes;
use crate::process::{self, Process, START};

/// Bytes of a ping.
const PING: usize = 64;
/// Number of completions that fit into the completion queue of each side.
const ROOM: u32 = 1 << 15;
/// Number of pings in progress.
const AT_ONCE: usize = 256;

/// Runs `sprat rdma connections`.
pub fn run(args: &Connections) -> Result<(), Fail> {
    process::allow_files();
    let mut arguments = vec!["rdma".to_owned(), "host".to_owned()];
    arguments.extend(args.model.arguments());
    let mut peer = Process::start("the other side", None, arguments)?;
    let at = peer.ready(START)?.parse().named("the other side's address")?;
    let device = Device::open(args.model.options()).named("cannot open a device")?;
    let failed = "cannot make a queue pair";
    let domain = device.protection_domain().named(failed)?;
    let queue = device.completion_queue(ROOM).named(failed)?;
    let memory = domain.register(2 * PING, Access::LOCAL).named(failed)?;
    let small = PairOptions { send_depth: 2, recv_depth: 2, ..PairOptions::new(&queue) };
    let clock = Clock::new();
    let before = (resident_bytes(std::process::id())?, resident_bytes(peer.id())?);

    let begin = clock.now();
    let mut pairs = HashMap::new();
    for _ in 0..args.connections {
        let pair = domain.queue_pair(&small).named(failed)?;
        pair.post_recv(RecvRequest::new(0, memory.sge(PING..2 * PING))).named(failed)?;
        connect(&pair, at, ConnectOptions::default())?;
        pairs.insert(pair.number(), pair);
    }
    let connected_ns = clock.now().since(begin);
    let after = (resident_bytes(std::process::id())?, resident_bytes(peer.id())?);

    let begin = clock.now();
    let (mut waiting, mut done) = (pairs.values(), 0);
    for pair in waiting.by_ref().take(AT_ONCE) {
        pair.post_send(ping(&memory)).named("cannot post")?;
    }
    while done < pairs.len() {
        let completion = queue.wait(PATIENCE).ok_or_else(|| Fail::new("a ping is not answered"))?;
        let completion = completion.result().named("a ping failed")?;
        if completion.completed == Completed::Recv {
            done += 1;
            if let Some(pair) = waiting.next() {
                pair.post_send(ping(&memory)).named("cannot post")?;
            }
        }
    }
    let pinged_ns = clock.now().since(begin);
    let n = pairs.len() as f64;
    let each =
        |after: u64, before: u64| out::bytes((after.saturating_sub(before) as f64 / n) as u64);
    out::print(format!(
        "{} connections at once on one server: {} each to open, a ping on every one of them at \
         {}.\n\
         Resident memory of an idle connection with its queue pair: {} at the server, {} at the \
         client.\n",
        pairs.len(),
        out::micros(connected_ns as f64 / n / 1e3),
        out::rate(n * 1e9 / pinged_ns as f64, "ping"),
        each(after.1, before.1),
        each(after.0, before.0),
    ))
}

fn ping(memory: &sprat::verbs::MemoryRegion) -> SendRequest {
    SendRequest::new(1, SendOp::Send, memory.sge(0..PING)).unsignaled()
}

/// Runs the server of `sprat rdma connections`, which accepts every connection and answers every
/// Send with a Send.
pub fn host(model: &Model) -> Result<(), Fail> {
    process::allow_files();
    let device = Device::open(model.options()).named("cannot open a device")?;
    let failed = "cannot make a queue pair";
    let domain = device.protection_domain().named(failed)?;
    let queue = device.completion_queue(ROOM).named(failed)?;
    let memory = domain.register(2 * PING, Access::LOCAL).named(failed)?;
    let listener =
        device.listen("127.0.0.1:0".parse().named("loopback")?).named("cannot listen")?;
    process::print_ready(&listener.local_addr().to_string())?;
    let small = PairOptions { send_depth: 2, recv_depth: 2, ..PairOptions::new(&queue) };
    let into = || RecvRequest::new(0, memory.sge(PING..2 * PING));
    let mut pairs: HashMap<Qp, QueuePair> = HashMap::new();
    loop {
        let found = if model.events {
            queue.sleep(Some(Duration::from_millis(1)))
        } else {
            queue.wait(Some(Duration::from_micros(20)))
        };
        if let Some(completion) = found
            && let Some(pair) = pairs.get(&completion.qp)
        {
            match completion.result() {
                // A client that disconnects does not end the server.
                Ok(_)
                    if pair.post_send(ping(&memory)).is_ok() && pair.post_recv(into()).is_ok() => {}
                _ => drop(pairs.remove(&completion.qp)),
            }
        }
        while let Some(request) = listener.poll() {
            let pair = domain.queue_pair(&small).named(failed)?;
            pair.post_recv(into()).named("cannot post a receive")?;
            // A client that has disconnected meanwhile does not end the server.
            if request.accept(&pair, AcceptOptions::default()).is_ok() {
                pairs.insert(pair.number(), pair);
            }
        }
    }
}
