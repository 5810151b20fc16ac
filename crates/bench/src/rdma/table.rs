//! `sprat rdma table`: what CRC, markers, threads, copies and sleep cost, in one table. Each group
//! of rows changes one of them against the first rows, and each row stands beside raw TCP in turns
//! with it.

use std::fmt::Write as _;
use std::time::Duration;

use super::args::{CopyWays, CouplingWay, Model, Op, Switch, Table, Threads, Under, Wire, word};
use super::bench::{row, words};
use super::sides::{Outcome, Pace, Sides};
use crate::fail::Fail;
use crate::out;
use crate::perf::report::{Context, Report};
use crate::process;

/// Number of rounds over which each figure is measured.
const ROUNDS: u16 = 10;
/// Number of RDMA Writes in progress in the measurement of throughput.
const OUTSTANDING: u64 = 64;

/// Returns the setups of the table's rows, each of which changes one setting of the first.
fn models() -> [Model; 8] {
    let wire = Wire { crc: Switch::On, markers: false, insecure_network: false };
    let base = Model {
        wire,
        threading: Threads::Caller,
        copies: CopyWays::One,
        events: false,
        under: Under::Tcp,
        coupling: CouplingWay::Tight,
        at: None,
    };
    let plain = Wire { crc: Switch::Off, ..base.wire };
    [
        base.clone(),
        Model { wire: plain.clone(), ..base.clone() },
        Model { wire: plain, copies: CopyWays::Direct, ..base.clone() },
        Model { copies: CopyWays::Two, ..base.clone() },
        Model { wire: Wire { markers: true, ..base.wire.clone() }, ..base.clone() },
        Model { threading: Threads::Io, ..base.clone() },
        Model { threading: Threads::Receive, ..base.clone() },
        Model { events: true, ..base },
    ]
}

/// Runs `sprat rdma table`.
pub fn run(args: &Table) -> Result<(), Fail> {
    let mut report = Report::new(args.json.as_deref(), &Context::now(ROUNDS, args.seconds))?;
    let cores = process::cores();
    let pace = Pace { rounds: ROUNDS, time: Duration::from_secs_f64(args.seconds), most: u64::MAX };
    let mut text = String::from(HEAD);
    for model in models() {
        out::note(words(&model));
        let sides = Sides::start(&model, &cores)?;
        for &size in &args.size {
            let time = sides.latency(Op::Write, size, pace)?;
            row(&mut report, &model, "latency", Op::Write, size, &time)?;
            let rate = sides.throughput(Op::Write, size, OUTSTANDING, pace)?;
            row(&mut report, &model, "throughput", Op::Write, size, &rate)?;
            line(&mut text, &model, size, &time, &rate);
        }
    }
    report.print(&text)
}

const HEAD: &str = "
Writes: half of a round trip, and one way with 64 in progress. The floor is raw polling TCP with the
same bytes, in turns; × floor is the median of the rounds' quotients. Bytes a second in percent of
raw TCP. CPU: client + server, in percent of one processor.

| CRC | markers | threads | copies | waiting | size | time | × floor | CPU | B/s | % floor | CPU |
| --- | --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
";

fn line(text: &mut String, model: &Model, size: usize, time: &Outcome, rate: &Outcome) {
    let switch = |on: bool| if on { "on" } else { "off" };
    let cpu = |outcome: &Outcome| {
        let percent = outcome
            .cpu_percent
            .map(|percent| percent.map_or_else(String::new, |p| format!("{p:.0}")));
        percent.join(" + ")
    };
    let number = |value: Option<f64>, places: usize| {
        value.map_or_else(String::new, |v| format!("{v:.places$}"))
    };
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
        switch(model.wire.crc == Switch::On),
        switch(model.wire.markers),
        word(&model.threading),
        word(&model.copies),
        if model.events { "asleep" } else { "polling" },
        out::bytes(size as u64),
        time.figures.p50_us.map(out::micros).unwrap_or_default(),
        number(time.times_floor, 2),
        cpu(time),
        rate.figures.bytes_per_s.map(|b| out::rate(b, "B")).unwrap_or_default(),
        number(rate.times_floor.map(|times| 100.0 / times), 0),
        cpu(rate),
    );
}
