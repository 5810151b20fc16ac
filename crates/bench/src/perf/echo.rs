//! The test `echo`: round trips of a request that the server answers with the same bytes, first one
//! in progress, then many.

use std::time::Duration;

use sprat::locator::Locator;
use sprat::rpc::{Call, Client, Options, Payload, Replied, Rpc, RpcError, Service, Session};
use sprat_store::ops::{Echo, Operation as _};
use sprat_sys::clock::Clock;

use super::bench::Bench;
use super::lanes::Exchange;
use super::measure::{Lane, Sample, in_turns};
use super::report::Row;
use crate::fail::Fail;

/// Time that one echo request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// One request in this number is timed; the others only load the server.
const TIMED_EVERY: u64 = 64;
/// Bytes of the header of a store's message.
const HEAD: usize = 4;
/// Requests that a session has in progress; further requests wait in the session's queue.
const CHANNELS: usize = sprat_proto::rpc::CHANNELS;

/// Runs the test `echo` over all transports and sizes.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    bench.report.begin("echo: a request answered with its own bytes, one in progress");
    for transport in bench.transports.clone() {
        for size in bench.sizes(&[100, 1000, 10_000, 100_000, 1_000_000]) {
            round_trips(bench, &transport, size)?;
        }
    }
    bench.report.end()?;
    let outstanding = bench.outstanding;
    bench.report.begin(format!("echo with {outstanding} in progress"));
    for transport in bench.transports.clone() {
        for size in bench.sizes(&[100]) {
            let mut echo = EchoClient::open(
                &bench.echo_at(&transport)?,
                bench.local.own()?,
                size,
                outstanding,
            )?;
            let mut lanes: [Lane<'_>; 1] = [Box::new(|time| echo.many(outstanding, time))];
            let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
            bench.report.row(Row::new("echo.throughput", &transport, Some(size), &figures[0]))?;
        }
    }
    bench.report.end()
}

/// Measures echoes of one size over one transport.
pub(crate) fn round_trips(bench: &mut Bench, transport: &str, size: usize) -> Result<(), Fail> {
    let mut echo = EchoClient::open(&bench.echo_at(transport)?, bench.local.own()?, size, 1)?;
    let product: Lane<'_> = Box::new(|time| echo.one_by_one(time));
    let compared = bench.compare(transport, Exchange::both(size), product)?;
    bench.report.row(compared.row("echo", transport, size))
}

/// A client of one echo server, with as many sessions as its requests in progress need.
pub(crate) struct EchoClient {
    client: Client,
    sessions: Vec<Session>,
    request: Vec<u8>,
    /// Bytes of the request's header.
    head: usize,
    clock: Clock,
}

impl EchoClient {
    /// Connects with `local` as our ends of packet devices, and checks that each session answers.
    pub(crate) fn open(
        (locator, framed): &(String, bool),
        local: Vec<Locator>,
        size: usize,
        outstanding: usize,
    ) -> Result<Self, Fail> {
        let failed = |error: std::io::Error| Fail::new(format!("cannot reach {locator}: {error}"));
        let options = Options::default().insecure_network(true).local(local);
        let mut client = Client::builder().options(options).build().map_err(failed)?;
        let sessions = (0..outstanding.div_ceil(CHANNELS))
            .map(|_| client.connect(locator))
            .collect::<Result<_, _>>();
        let sessions = sessions.map_err(failed)?;
        let payload: Vec<u8> = (0..size).map(|i| i as u8).collect();
        let request = if *framed { Echo(&payload).emit() } else { payload };
        let head = request.len() - size;
        let mut echo = Self { client, sessions, request, head, clock: Clock::new() };
        for index in 0..echo.sessions.len() {
            let session = echo.sessions[index];
            let reply = echo.client.call(session, &echo.request, TIMEOUT).map_err(failure)?;
            if !echo.answers(&reply) {
                return Err(Fail::new("the echo differs from the request"));
            }
        }
        Ok(echo)
    }

    /// True if `reply` equals the request behind its header. The reply of a store's server has a
    /// header of its own.
    fn answers(&self, reply: &[u8]) -> bool {
        reply.len() == self.request.len() && reply.get(HEAD..) == self.request.get(HEAD..)
    }

    /// Sends one echo request after the other for `time`.
    pub(crate) fn one_by_one(&mut self, time: Duration) -> Result<Sample, Fail> {
        let mut sample = Sample::new();
        let mut reply = Vec::with_capacity(self.request.len());
        let bytes = self.request.len() as u64;
        let begin = self.clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let mut last = begin;
        while last < end || sample.operations == 0 {
            self.client
                .call_into(self.sessions[0], &self.request, TIMEOUT, &mut reply)
                .map_err(failure)?;
            let now = self.clock.now();
            sample.record(now.since(last), bytes);
            last = now;
        }
        if !self.answers(&reply) {
            return Err(Fail::new("the echo differs from the request"));
        }
        sample.elapsed = Duration::from_nanos(last.since(begin));
        Ok(sample)
    }

    /// Starts the echo of a part of the request, its first `size` bytes behind the header. The
    /// sessions take turns by `number`. [`EchoClient::completed`] returns the outcome.
    pub(crate) fn start(&mut self, number: u64, size: usize) -> Rpc {
        let session = self.sessions[number as usize % self.sessions.len()];
        let length = (self.head + size).min(self.request.len());
        self.client.start(session, &self.request[..length], TIMEOUT)
    }

    /// Sends and receives what there is, and never waits.
    pub(crate) fn turn(&mut self) {
        self.client.turn();
    }

    /// Returns the outcome of a request that [`EchoClient::start`] started. `None`: there is none.
    pub(crate) fn completed(&mut self) -> Option<(Rpc, Result<&[u8], RpcError>)> {
        self.client.completed()
    }

    /// Keeps `outstanding` echo requests in progress for `time`, and times one of [`TIMED_EVERY`].
    pub(crate) fn many(&mut self, outstanding: usize, time: Duration) -> Result<Sample, Fail> {
        let mut sample = Sample::new();
        let begin = self.clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let (mut started, mut finished) = (0_u64, 0_u64);
        let mut timed: Option<(Rpc, sprat_proto::Instant)> = None;
        let mut now = begin;
        loop {
            while now < end && started - finished < outstanding as u64 {
                let session = self.sessions[started as usize % self.sessions.len()];
                let rpc = self.client.start(session, &self.request, TIMEOUT);
                if timed.is_none() && started.is_multiple_of(TIMED_EVERY) {
                    timed = Some((rpc, self.clock.now()));
                }
                started += 1;
            }
            if started == finished {
                break;
            }
            self.client.turn_and_rest();
            now = self.clock.now();
            while let Some((rpc, outcome)) = self.client.completed() {
                outcome.map_err(failure)?;
                finished += 1;
                if let Some((_, since)) = timed.take_if(|(timed, _)| *timed == rpc) {
                    sample.record(now.since(since), 0);
                }
            }
        }
        sample.operations = finished;
        sample.bytes = finished * self.request.len() as u64;
        sample.elapsed = Duration::from_nanos(now.since(begin));
        Ok(sample)
    }
}

/// Returns the failure of a test whose request failed.
pub(crate) fn failure(error: RpcError) -> Fail {
    Fail::new(format!("a request failed: {error}")).next("see whether the server still runs")
}

/// A service that answers each request with the request's bytes.
#[derive(Clone, Copy, Debug)]
pub struct EchoService;

impl Service for EchoService {
    #[inline]
    fn request(&mut self, call: Call<'_>, reply: &mut Vec<u8>) -> Replied {
        match call.payload {
            Payload::Borrowed(bytes) => reply.extend_from_slice(bytes),
            Payload::Owned(bytes) => *reply = bytes,
        }
        Replied::Idempotent
    }
}
