//! `sprat ping`: echo requests of our own IP stack to any host on the wire of a packet device.
//!
//! Polls while it waits for an answer, as a server would, and sleeps between one request and the next.

use std::net::IpAddr;

use sprat::clock;
use sprat::driver::Driver as _;
use sprat::locator::{Kind, Locator};
use sprat::stack::Stack;
use sprat_proto::net::Event;
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Datagrams as _, Instant};

use crate::args::Ping;
use crate::fail::{Fail, Named as _};
use crate::out;

/// How long an answer is waited for.
const PATIENCE_NS: u64 = SECOND;

pub(crate) fn run(args: &Ping) -> Result<(), Fail> {
    let to: Locator = args.locator.parse().map_err(|error| Fail::usage(format!("{error}")))?;
    let Ok(Kind::Device(target)) = to.kind() else {
        let what = format!("{to} names no packet device");
        return Err(Fail::usage(what).next("as in fast+packet:dev=eth0,host=192.0.2.7,port=0"));
    };
    let host = target.at.resolve().named(&to)?.first().map(std::net::SocketAddr::ip);
    let host = host.ok_or_else(|| Fail::new(format!("{to}: the host has no address")))?;
    let mut stack =
        Stack::client(&to, &crate::store::local()?).map_err(|error| Fail::new(error.to_string()))?;
    if let Some(mac) = target.mac {
        stack.port().neighbour(host, mac);
    }
    let mut times = Vec::new();
    let mut at = clock::now();
    for number in 1..=args.count {
        while clock::now() < at {
            turn(&mut stack, clock::now());
            std::thread::yield_now();
        }
        at = clock::now().after(args.interval_ms * MS);
        match once(&mut stack, host, args.size)? {
            Some((len, ns)) => {
                times.push(ns);
                out::print(format!("{len} octets from {host}: number {number}, {} µs\n", micros(ns)))?;
            }
            None => out::print(format!("no answer from {host}: number {number}\n"))?,
        }
    }
    times.sort_unstable();
    let (Some(first), Some(last)) = (times.first(), times.last()) else {
        return Err(Fail::new(format!("{host} has not answered")).next(
            "SPRAT_LOCAL=LOCATOR names an address of ours that it can answer to, on the same network",
        ));
    };
    let median = times[times.len() / 2];
    out::print(format!(
        "{} sent, {} answered; least {}, median {}, most {} µs\n",
        args.count,
        times.len(),
        micros(*first),
        micros(median),
        micros(*last)
    ))
}

fn micros(ns: u64) -> String {
    format!("{}.{:02}", ns / 1000, ns % 1000 / 10)
}

/// One turn of the stack: what arrived, and what is due.
fn turn(stack: &mut Stack, now: Instant) {
    stack.turn(now);
    stack.recv_burst();
    if stack.deadline().is_some_and(|due| due <= now) {
        stack.tick(now);
    }
    stack.flush();
}

/// One echo: how many octets came back and after how many nanoseconds.
fn once(stack: &mut Stack, host: IpAddr, size: usize) -> Result<Option<(usize, u64)>, Fail> {
    let start = clock::now();
    turn(stack, start);
    let sent = stack.port().stack_mut().ping(clock::now(), host, size);
    let sent = sent.map_err(|error| Fail::new(format!("{host}: {error}")))?;
    loop {
        let now = clock::now();
        turn(stack, now);
        while let Some(event) = stack.event() {
            if let Event::Echo { seq, len, rtt_ns, .. } = event
                && seq == sent
            {
                return Ok(Some((len, rtt_ns)));
            }
        }
        if now.since(start) > PATIENCE_NS {
            return Ok(None);
        }
    }
}
