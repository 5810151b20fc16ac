//! The test `failover`: a bond of two devices under an RPC load, of which each is set down once a
//! round. No request may be lost or executed twice. The figure is the longest time without an
//! answer.
//!
//! ```text
//! time    calm · first down · both · second down · both      a fifth of a round each
//! clients four, each a flow of its own, so that flows use both devices
//! server  answers with the number of requests executed: each number returns once
//! ```

use std::time::Duration;

use sprat::rpc::{Client, Options, Session};
use sprat_proto::Instant;
use sprat_sys::clock::Clock;
use sprat_sys::netns::link;

use super::bench::Bench;
use super::net;
use super::report::Row;
use crate::fail::{Fail, Named as _};

/// Number of clients that load the server.
const CLIENTS: usize = 4;
/// Time after which a request counts as lost.
const LOST: Duration = Duration::from_secs(20);
/// Shortest phase of a round: longer than a flow takes to move to the bond's other device.
const PHASE: Duration = Duration::from_millis(100);
/// Payload bytes of a request.
const SIZE: usize = 100;

/// A client of the test, and its requests in progress.
struct Caller {
    client: Client,
    session: Session,
    in_progress: usize,
    /// Time of the client's last answer. The field `gap_ns` has the longest time between two
    /// answers of this phase.
    answered: Instant,
    gap_ns: u64,
}

/// The outcome of all requests: the numbers that the server returned, and the count of lost
/// requests.
#[derive(Default)]
struct Outcome {
    /// Numbers in the server's answers. No number may appear twice.
    numbers: Vec<u64>,
    lost: u64,
}

/// Runs the test `failover`.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    bench.report.begin(
        "failover: four clients of one server over a bond, whose devices are set down in turn",
    );
    let each = (bench.outstanding / CLIENTS).max(1);
    let phase = (bench.time / u32::from(bench.rounds) / 5).max(PHASE);
    let at = bench.local.tally()?;
    let clock = Clock::new();
    let mut callers =
        (0..CLIENTS).map(|_| Caller::new(&at, &clock)).collect::<Result<Vec<_>, _>>()?;
    let (mut outcome, mut calm, mut down) = (Outcome::default(), Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        calm.push(ask(&mut callers, &clock, phase, each, &mut outcome));
        let mut worst = 0;
        for dev in net::cables(net::BOND) {
            // Setting a device down takes the kernel some milliseconds, in which requests go on.
            let gap_ns = std::thread::scope(|scope| {
                let hand = scope.spawn(|| link::switch(dev, false));
                let gap_ns = ask(&mut callers, &clock, phase, each, &mut outcome);
                hand.join()
                    .expect("it panics nowhere")
                    .named("cannot set a device down")
                    .map(|()| gap_ns)
            })?;
            worst = worst.max(gap_ns);
            link::switch(dev, true).named("cannot set a device up")?;
            ask(&mut callers, &clock, phase, each, &mut outcome);
        }
        down.push(worst);
    }
    // The test waits for the answers in progress, and sends no new request.
    while callers.iter().any(|caller| caller.in_progress > 0) {
        for caller in &mut callers {
            caller.turn(&clock, 0, &mut outcome);
        }
    }
    bench.local.end_tally();
    rows(bench, outcome, calm, down)?;
    bench.report.end()
}

fn rows(
    bench: &mut Bench,
    mut outcome: Outcome,
    calm: Vec<u64>,
    down: Vec<u64>,
) -> Result<(), Fail> {
    let median = |mut ns: Vec<u64>| {
        ns.sort_unstable();
        ns.get(ns.len() / 2).copied().unwrap_or(0) as f64 / 1e6
    };
    let most = down.iter().copied().max().unwrap_or(0) as f64 / 1e6;
    let answered = outcome.numbers.len() as u64;
    outcome.numbers.sort_unstable();
    // A request that was executed and not answered is lost. Other executions beyond the number of
    // answers are second ones.
    let executed = outcome.numbers.last().copied().unwrap_or(0);
    let twice = executed.saturating_sub(answered + outcome.lost);
    for (name, value, unit) in [
        ("answered", answered as f64, "requests"),
        ("lost", outcome.lost as f64, "requests"),
        ("twice", twice as f64, "requests"),
        ("calm", median(calm), "ms"),
        ("gap", median(down), "ms"),
        ("gap.most", most, "ms"),
    ] {
        bench.report.row(Row::value(format!("failover.{name}"), net::BOND, value, unit))?;
    }
    outcome.numbers.dedup();
    if outcome.lost > 0 || twice > 0 || outcome.numbers.len() as u64 != answered {
        return Err(Fail::new("requests were lost, or executed twice"));
    }
    bench.report.print(
        "lost and twice are counted by the server. calm is the longest wait for an answer while \
         both devices carry,\n\
         gap the longest while one is down: medians over the rounds, and gap.most the longest \
         of all.\n",
    )
}

/// Sends requests for the time `phase`. Returns the longest time, in ns, in which one client got no
/// answer.
fn ask(
    callers: &mut [Caller],
    clock: &Clock,
    phase: Duration,
    each: usize,
    outcome: &mut Outcome,
) -> u64 {
    let begin = clock.now();
    for caller in callers.iter_mut() {
        (caller.answered, caller.gap_ns) = (begin, 0);
    }
    let end = begin.after(phase.as_nanos() as u64);
    while clock.now() < end {
        for caller in callers.iter_mut() {
            caller.turn(clock, each, outcome);
        }
    }
    // The time since the last answer counts, too.
    let now = clock.now();
    callers.iter().map(|a| a.gap_ns.max(now.since(a.answered))).max().unwrap_or(0)
}

impl Caller {
    fn new(at: &str, clock: &Clock) -> Result<Self, Fail> {
        let failed = |error: std::io::Error| Fail::new(format!("cannot reach {at}: {error}"));
        let options = Options::default().insecure_network(true).local(crate::store::local()?);
        let mut client = Client::builder().options(options).build().map_err(failed)?;
        let session = client.connect(at).map_err(failed)?;
        Ok(Self { client, session, in_progress: 0, answered: clock.now(), gap_ns: 0 })
    }

    /// Runs one turn of the client, which keeps `each` requests in progress.
    fn turn(&mut self, clock: &Clock, each: usize, outcome: &mut Outcome) {
        while self.in_progress < each {
            self.client.start(self.session, &[0; SIZE][..], LOST);
            self.in_progress += 1;
        }
        self.client.turn();
        while let Some((_, answer)) = self.client.completed() {
            self.in_progress -= 1;
            let now = clock.now();
            self.gap_ns = self.gap_ns.max(now.since(self.answered));
            self.answered = now;
            match answer.ok().and_then(|bytes| bytes.try_into().ok()) {
                Some(number) => outcome.numbers.push(u64::from_be_bytes(number)),
                None => outcome.lost += 1,
            }
        }
    }
}
