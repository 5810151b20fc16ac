//! `sprat ping`: measures the round trip to a server or a host, and the time of each layer.
//!
//! A locator with a port names an RPC server, which gets an echo through all layers. A packet
//! device's locator with port 0 names a host, which gets echo requests of our own IP stack.
//!
//! The command polls while it waits for an answer, and yields between two requests.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sprat::internals::driver::ip::Stack;
use sprat::locator::{DevicePort, Kind, Locator};
use sprat::rpc::{Client, Options};
use sprat::trace::TraceRing;
use sprat::trace::sample::{Far, ask, calls, round_trips};
use sprat_proto::net::StackEvent;
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Datagrams as _, Instant, TimedDatagrams as _};
use sprat_store::ops::{Echo, Operation as _};
use sprat_sys::clock;

use sprat_bench::fail::{Fail, Named as _};
use sprat_bench::perf::breakdown::{Breakdown, write_svg};
use sprat_bench::perf::report::{Context, Report};

/// The time in nanoseconds that `sprat ping` waits for an answer.
const PATIENCE_NS: u64 = SECOND;
/// The number of requests whose tracepoints the ring holds. Of more requests, the breakdown has the
/// last ones.
const HELD: usize = 200;

/// Measure the round trip to a server or a host, and show the time of each layer.
///
/// A locator with a port names a server, which gets an echo through all layers; a server that
/// records tracepoints (--tracepoints) adds its side. A packet device's locator with port 0 names a
/// host, which gets an echo request of our own IP stack, as from ping(8).
///
/// On a packet device our own end is another host on that network. SPRAT_LOCAL names its device and
/// address, as a locator of the same protocol. Without it, the device is that of LOCATOR and the
/// address is link-local (169.254.0.0/16), to which hosts with routes of their own may not answer.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  export SPRAT_LOCAL=fast+packet:dev=eth0,host=192.0.2.99,port=0     an unused address
  sprat ping fast+packet:dev=eth0,host=192.0.2.7,port=0
  sprat ping fast+shm:name=sprat.1        a server of `sprat up`, or any other of ours
  sprat ping --count 1000 --interval 0 --size 1400 fast+xdp:dev=eth0,host=192.0.2.7,port=0")]
pub(crate) struct Ping {
    /// The server; or the device and the host, with port 0.
    #[arg(value_name = "LOCATOR")]
    locator: String,
    /// Number of requests.
    #[arg(
        long,
        short = 'c',
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    count: u32,
    /// Bytes in each request, 8 to 65507.
    #[arg(
        long,
        short = 's',
        value_name = "BYTES",
        default_value_t = 56,
        value_parser = clap::value_parser!(u16).range(8..=65_507),
    )]
    size: u16,
    /// Milliseconds between two requests, at most an hour.
    #[arg(
        long = "interval",
        short = 'i',
        value_name = "MS",
        default_value_t = 200,
        value_parser = clap::value_parser!(u64).range(..=3_600_000),
    )]
    interval_ms: u64,
    /// Also write the time of each layer to this file as JSON Lines, as `sprat bench breakdown`
    /// does; `-` is standard output, which then has nothing else.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a picture of the layers to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs `sprat ping`.
pub(crate) fn run(args: &Ping) -> Result<(), Fail> {
    let to: Locator = args.locator.parse().map_err(|error| Fail::usage(format!("{error}")))?;
    match to.kind().map_err(|error| Fail::usage(format!("{error}")))? {
        Kind::Device(target) if target.at.port == 0 => host(args, &to, &target),
        _ => server(args, &to),
    }
}

/// The round-trip times of a run of `sprat ping`, and its report.
struct Times {
    ns: Vec<u64>,
    sent: u32,
    report: Report,
}

impl Times {
    fn new(args: &Ping) -> Result<Self, Fail> {
        let report = Report::without_context(args.json.as_deref(), &Context::now(1, 0.0))?;
        Ok(Self { ns: Vec::new(), sent: 0, report })
    }

    /// Adds one request to the report. `answer` has the bytes of its answer and the round-trip time
    /// in nanoseconds; none if no answer came.
    fn add(&mut self, answer: Option<(usize, u64)>, from: &str) -> Result<(), Fail> {
        self.sent += 1;
        let number = self.sent;
        match answer {
            Some((len, ns)) => {
                self.ns.push(ns);
                self.report.print(&format!(
                    "{len} octets from {from}: number {number}, {} µs\n",
                    micros(ns)
                ))
            }
            None => self.report.print(&format!("no answer from {from}: number {number}\n")),
        }
    }

    /// Prints the round-trip times, and the time of each layer.
    fn end(
        mut self,
        args: &Ping,
        trace: &TraceRing,
        transport: &str,
        far: Option<&Far>,
    ) -> Result<(), Fail> {
        let mut times = self.ns.clone();
        times.sort_unstable();
        let (Some(first), Some(last)) = (times.first(), times.last()) else { return Ok(()) };
        let (sent, answered, median) = (self.sent, times.len(), times[times.len() / 2]);
        let [first, median, last] = [*first, median, *last].map(micros);
        self.report.print(&format!(
            "{sent} sent, {answered} answered; least {first}, median {median}, most {last} µs\n"
        ))?;
        let mut all = calls(&trace.since(0));
        // The first request opens the session or resolves the address, so it is left out.
        let most = HELD.min(all.len().saturating_sub(1).max(1));
        let all = all.split_off(all.len().saturating_sub(most));
        let times: Vec<f64> = self.ns.iter().map(|&ns| ns as f64 / 1e3).collect();
        let what = ("ping", transport, usize::from(args.size));
        let Some(breakdown) = Breakdown::of(what, round_trips(&all, far, trace), &times, trace)
        else {
            return self
                .report
                .print("the time of each layer is unknown: no round trip could be joined\n");
        };
        self.report.print(&format!("\n{}", breakdown.text()))?;
        breakdown.rows(&mut self.report)?;
        args.svg.as_deref().map_or(Ok(()), |path| write_svg(path, std::slice::from_ref(&breakdown)))
    }
}

fn micros(ns: u64) -> String {
    format!("{}.{:02}", ns / 1000, ns % 1000 / 10)
}

// RPC.

fn server(args: &Ping, to: &Locator) -> Result<(), Fail> {
    let failed = |error: std::io::Error| Fail::new(format!("cannot reach {to}: {error}"));
    let trace = TraceRing::new();
    let local = sprat_bench::store::local()?;
    let options = Options::default().insecure_network(true).local(local).trace(trace.clone());
    let mut client = Client::builder().options(options).build().map_err(failed)?;
    let session = client.connect(&args.locator).map_err(failed)?;
    let patience = Duration::from_nanos(PATIENCE_NS);
    let (mut times, mut reply) = (Times::new(args)?, Vec::new());
    let payload: Vec<u8> = (0..usize::from(args.size)).map(|i| i as u8).collect();
    let request = Echo(&payload).emit();
    let mut error = None;
    for _ in 0..args.count {
        let begin = clock::now();
        trace.start();
        let outcome = client.call_into(session, &request, patience, &mut reply);
        trace.end();
        let ns = clock::now().since(begin);
        error = outcome.err();
        times
            .add(error.is_none().then_some((reply.len().saturating_sub(4), ns)), &to.to_string())?;
        let next = begin.after(args.interval_ms * MS);
        while clock::now() < next {
            client.turn();
            std::thread::yield_now();
        }
    }
    if times.ns.is_empty() {
        let cause = client.why(session).map(str::to_owned);
        let why = cause.or_else(|| error.map(|error| error.to_string()));
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        let fail = Fail::new(format!("{to} has not answered{why}"));
        return Err(fail.next(match to.kind() {
            Ok(Kind::Device(_)) => {
                "see whether a server of Sprat is there; with port=0 the host itself is asked"
            }
            _ => "see whether a server of Sprat is there",
        }));
    }
    let asked = client.call(session, &Echo(ask()).emit(), patience);
    let far = asked.ok().and_then(|reply| reply.get(4..).and_then(Far::parse));
    times.end(args, &trace, to.protocol(), far.as_ref())
}

// IP.

fn host(args: &Ping, to: &Locator, target: &DevicePort) -> Result<(), Fail> {
    let host = target.at.resolve().named(to)?.first().map(std::net::SocketAddr::ip);
    let host = host.ok_or_else(|| Fail::new(format!("{to}: the host has no address")))?;
    let trace = TraceRing::new();
    let stack = Stack::client(to, &sprat_bench::store::local()?)
        .map_err(|error| Fail::new(error.to_string()))?;
    let mut stack = stack.traced(&trace);
    if let Some(mac) = target.mac {
        stack.port().interface_mut().set_neighbour(host, mac);
    }
    let mut times = Times::new(args)?;
    let mut at = clock::now();
    for _ in 1..=args.count {
        while clock::now() < at {
            turn(&mut stack, clock::now());
            std::thread::yield_now();
        }
        at = clock::now().after(args.interval_ms * MS);
        let answer = once(&mut stack, host, args.size.into(), &trace)?;
        times.add(answer, &host.to_string())?;
    }
    if times.ns.is_empty() {
        return Err(Fail::new(format!("{host} has not answered")).next(
            "SPRAT_LOCAL=LOCATOR names an address of ours that it can answer to, on the same \
             network",
        ));
    }
    times.end(args, &trace, to.protocol(), None)
}

/// Runs one turn of the IP stack: handles received frames and due timers.
fn turn(stack: &mut Stack, now: Instant) {
    stack.set_now(now);
    stack.recv_burst();
    if stack.deadline().is_some_and(|due| due <= now) {
        stack.tick(now);
    }
    stack.flush();
}

/// Sends one echo request. Returns the bytes of its answer and the round-trip time in nanoseconds.
fn once(
    stack: &mut Stack,
    host: IpAddr,
    size: usize,
    trace: &TraceRing,
) -> Result<Option<(usize, u64)>, Fail> {
    let start = clock::now();
    turn(stack, start);
    trace.begin_echo();
    let sent = stack.port().interface_mut().stack_mut().ping(clock::now(), host, size);
    let sent = sent.map_err(|error| Fail::new(format!("{host}: {error}")))?;
    loop {
        let now = clock::now();
        turn(stack, now);
        while let Some(event) = stack.event() {
            if let StackEvent::EchoReply { seq, len, rtt_ns, .. } = event
                && seq == sent
            {
                trace.end();
                return Ok(Some((len, rtt_ns)));
            }
        }
        if now.since(start) > PATIENCE_NS {
            return Ok(None);
        }
    }
}
