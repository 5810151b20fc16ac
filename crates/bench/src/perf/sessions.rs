//! The test `sessions`: the memory of one session at both ends, the rate of opening, and the echo
//! rate with many sessions.
//!
//! Two servers take turns: one with 1,000 sessions, one with as many as the options say, each with
//! a client of its own. A session counts once a request has used it.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use sprat::locator::Protocol;
use sprat::rpc::{Client, Rpc, Session};
use sprat_proto::Rng;
use sprat_sys::clock::Clock;

use super::bench::Bench;
use super::echo::failure;
use super::local;
use super::measure::{Lane, Sample, in_turns};
use super::procfs::resident_bytes;
use super::report::Row;
use crate::fail::{Fail, Named};
use crate::process;

/// Number of sessions of the server that has few; the other server has as many as the options say.
const FEW: usize = 1000;
/// Most sessions over TCP, where each session is a connection with a port of its own.
const TCP_MOST: usize = 10_000;
/// Number of sessions that the client opens at a time.
const OPENING: usize = 64;
/// Time that one echo request may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Payload bytes of a request.
const SIZE: usize = 100;

/// Runs the test `sessions` over all transports.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    let many = bench.sessions;
    bench.report.begin(format!("sessions: {many} open on one server, against {FEW}"));
    // This process has the connections of both clients.
    let files = (process::allow_files() / 2).saturating_sub(FEW as u64 + 100);
    let transports = bench.transports.clone();
    for transport in &transports {
        if transports.len() > 1 {
            for row in in_fresh_process(bench, transport)? {
                bench.report.row(row)?;
            }
            continue;
        }
        let fit = if Protocol::named(transport).is_some_and(|protocol| protocol.tcp) {
            TCP_MOST.min(usize::try_from(files).unwrap_or(TCP_MOST))
        } else {
            many
        };
        one_transport(bench, transport, many.min(fit))?;
    }
    bench.report.end()
}

/// Measures one transport in a new process. Memory that this process freed with another transport's
/// sessions would make new sessions seem to cost nothing.
fn in_fresh_process(bench: &Bench, transport: &str) -> Result<Vec<Row>, Fail> {
    let numbers = [
        ("--sessions", bench.sessions.to_string()),
        ("--seconds", bench.time.as_secs_f64().to_string()),
        ("--rounds", bench.rounds.to_string()),
        ("--outstanding", bench.outstanding.to_string()),
        ("--parent", std::process::id().to_string()),
    ];
    let program = std::env::current_exe().named("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args(["perf", "--local", "--json", "-", "--transport", transport, "sessions"]);
    command.args(numbers.iter().flat_map(|(name, number)| [*name, number.as_str()]));
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = process::unpinned(|| command.output().named("cannot start a process"))?;
    if !output.status.success() {
        return Err(Fail::new(format!("the sessions over {transport} could not be measured")));
    }
    // The first line is the context, which is that of this process.
    let lines = output.stdout.split(|&byte| byte == b'\n').skip(1).filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).named("cannot read the results")).collect()
}

fn one_transport(bench: &mut Bench, transport: &str, many: usize) -> Result<(), Fail> {
    let few_server = bench.local.fresh_echo("few", transport)?;
    let many_server = bench.local.fresh_echo("many", transport)?;
    let mut few = Sessions::new(&few_server)?;
    few.open(FEW)?;
    let mut opened = Sessions::new(&many_server)?;
    opened.open(FEW)?;
    let memory = |opened: &Sessions| {
        Ok::<_, Fail>((resident_bytes(many_server.id())?, opened.clients_bytes()?))
    };
    let (server_before, client_before) = memory(&opened)?;
    let clock = Clock::new();
    let begin = clock.now();
    opened.open(many)?;
    let seconds = clock.now().since(begin) as f64 / 1e9;
    let (server_after, client_after) = memory(&opened)?;
    let added = (many - FEW).max(1) as f64;
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / added;
    let rows = [
        ("sessions.server", each(server_before, server_after), "B a session"),
        ("sessions.client", each(client_before, client_after), "B a session"),
        ("sessions.open", added / seconds, "sessions/s"),
    ];
    for (test, value, unit) in rows {
        bench.report.row(Row::value(test, transport, value, unit))?;
    }
    for outstanding in [1, bench.outstanding.max(16)] {
        let mut lanes: [Lane<'_>; 2] = [
            Box::new(|time| few.echo(outstanding, time)),
            Box::new(|time| opened.echo(outstanding, time)),
        ];
        let figures = in_turns(&mut lanes, bench.rounds, bench.time)?;
        let name = |sessions: usize| format!("sessions.echo.{outstanding}x{sessions}");
        bench.report.row(Row::new(name(FEW), transport, Some(SIZE), &figures[0]))?;
        let floor = name(FEW);
        bench.report.row(Row::new(name(many), transport, Some(SIZE), &figures[1]).beside(
            &floor,
            figures[0].p50_us,
            None,
        ))?;
        if let (Some(a), Some(b)) = (figures[0].ops_per_s, figures[1].ops_per_s) {
            let test = format!("sessions.kept.{outstanding}");
            bench.report.row(Row::value(
                test,
                transport,
                100.0 * b / a,
                "% of the rate with 1,000",
            ))?;
        }
    }
    Ok(())
}

/// A client and its sessions with one server.
struct Sessions {
    client: Client,
    locator: String,
    sessions: Vec<Session>,
    request: Vec<u8>,
    rng: Rng,
    clock: Clock,
}

impl Sessions {
    fn new(server: &local::Echo) -> Result<Self, Fail> {
        let locator = server.only();
        let client = Client::builder()
            .insecure_network(true)
            .build()
            .map_err(|error| Fail::new(format!("cannot reach {locator}: {error}")))?;
        Ok(Self {
            client,
            locator,
            sessions: Vec::new(),
            request: vec![7; SIZE],
            rng: Rng::seeded(1),
            clock: Clock::new(),
        })
    }

    /// Opens sessions with the server until there are `total`.
    fn open(&mut self, total: usize) -> Result<(), Fail> {
        let mut opening = 0;
        self.sessions.reserve_exact(total - self.sessions.len());
        while self.sessions.len() < total || opening > 0 {
            while self.sessions.len() < total && opening < OPENING {
                let session = self.client.connect(&self.locator);
                let session = session.map_err(|error| {
                    Fail::new(format!("cannot reach {}: {error}", self.locator))
                })?;
                self.client.start(session, &self.request, TIMEOUT);
                self.sessions.push(session);
                opening += 1;
            }
            self.client.turn_and_rest();
            while let Some((_, outcome)) = self.client.completed() {
                outcome.map_err(failure)?;
                opening -= 1;
            }
        }
        Ok(())
    }

    /// Returns the resident bytes of this process, which include 4 bytes for each session's handle.
    fn clients_bytes(&self) -> Result<u64, Fail> {
        resident_bytes(std::process::id())
    }

    /// Echoes over randomly chosen sessions for `time`, with `outstanding` requests in progress.
    fn echo(&mut self, outstanding: usize, time: Duration) -> Result<Sample, Fail> {
        let mut sample = Sample::new();
        let mut started: HashMap<Rpc, sprat_proto::Instant> = HashMap::with_capacity(outstanding);
        let mut picked = Vec::with_capacity(outstanding);
        let begin = self.clock.now();
        let end = begin.after(time.as_nanos() as u64);
        let mut now = begin;
        while now < end || !started.is_empty() {
            if now < end {
                // All sessions are chosen before the first is used, so that the cache misses of
                // this table overlap.
                let pick = |_| self.sessions[self.rng.below(self.sessions.len() as u64) as usize];
                picked.extend((started.len()..outstanding).map(pick));
            }
            self.client.prefetch(picked.iter().copied());
            for session in picked.drain(..) {
                let rpc = self.client.start(session, &self.request, TIMEOUT);
                started.insert(rpc, self.clock.now());
            }
            self.client.turn_and_rest();
            now = self.clock.now();
            while let Some((rpc, outcome)) = self.client.completed() {
                outcome.map_err(failure)?;
                if let Some(since) = started.remove(&rpc) {
                    sample.record(now.since(since), SIZE as u64);
                }
            }
        }
        sample.elapsed = Duration::from_nanos(now.since(begin));
        Ok(sample)
    }
}
