//! `sprat rdma lat` and `sprat rdma bw`: each figure beside raw TCP that moves the same bytes,
//! measured in turns.

use std::time::Duration;

use serde::Serialize;

use super::args::{
    Bw, CopyWays, CouplingWay, Lat, Measured, Model, Op, Switch, Threads, Under, word,
};
use super::sides::{Outcome, Pace, Sides};
use crate::fail::Fail;
use crate::perf::report::{Context, Report, Row};
use crate::process;

/// Fields of an RDMA measurement's JSON line that a common result row does not have.
#[derive(Serialize)]
struct More {
    op: Op,
    crc: bool,
    markers: bool,
    threading: Threads,
    copies: CopyWays,
    events: bool,
    under: Under,
    /// The coupling with our own TCP, if it carries the connection.
    coupling: Option<CouplingWay>,
    /// Mean time of the floor in µs. The result row has the floor's median.
    floor_avg_us: Option<f64>,
    /// The product's time divided by the floor's: the median over the rounds.
    times_floor: Option<f64>,
    /// Processor time of client and server together, in percent of one processor.
    cpu_percent: Option<f64>,
    cpu_percent_client: Option<f64>,
    cpu_percent_server: Option<f64>,
}

/// Runs `sprat rdma lat`.
pub fn lat(args: &Lat) -> Result<(), Fail> {
    let what = &args.what;
    each(what, "latency", |sides, op, size| sides.latency(op, size, pace(what)))
}

/// Runs `sprat rdma bw`.
pub fn bw(args: &Bw) -> Result<(), Fail> {
    let (what, outstanding) = (&args.what, u64::from(args.outstanding));
    each(what, "throughput", |sides, op, size| sides.throughput(op, size, outstanding, pace(what)))
}

fn pace(what: &Measured) -> Pace {
    let most = (what.iterations / u64::from(what.rounds)).max(1);
    Pace { rounds: what.rounds, time: Duration::from_secs_f64(what.seconds), most }
}

/// Measures each of the operations with each size, and reports the results.
fn each(
    what: &Measured,
    name: &str,
    measure: impl Fn(&Sides, Op, usize) -> Result<Outcome, Fail>,
) -> Result<(), Fail> {
    let mut report = Report::new(what.json.as_deref(), &Context::now(what.rounds, what.seconds))?;
    let sides = Sides::start(&what.model, &process::cores())?;
    for &op in &what.ops {
        report.begin(format!("{name} of {}: {}", word(&op), words(&what.model)));
        let sizes = if op == Op::Atomic { &[8][..] } else { &what.size };
        for &size in sizes {
            let outcome = measure(&sides, op, size)?;
            row(&mut report, &what.model, name, op, size, &outcome)?;
        }
        report.end()?;
    }
    Ok(())
}

/// Describes the setup of both RDMA devices in words.
pub(super) fn words(model: &Model) -> String {
    let crc = if model.wire.crc == Switch::On { "CRC" } else { "no CRC" };
    let markers = if model.wire.markers { ", markers" } else { "" };
    let events = if model.events { ", asleep" } else { "" };
    let (threading, copies) = (word(&model.threading), word(&model.copies));
    let under = match (model.under, model.under.is_kernel()) {
        (Under::Tcp, _) => String::new(),
        (under, true) => format!(", over {}", word(&under)),
        (under, false) => format!(", over {}, {} coupling", word(&under), word(&model.coupling)),
    };
    format!("{crc}{markers}, threading {threading}, copies {copies}{events}{under}")
}

/// Reports the result of one measured operation.
pub(super) fn row(
    report: &mut Report,
    model: &Model,
    what: &str,
    op: Op,
    size: usize,
    outcome: &Outcome,
) -> Result<(), Fail> {
    let (short, floor) =
        if what == "latency" { ("lat", "floor.tcp") } else { ("bw", "floor.tcpStream") };
    let cpu_percent = outcome.cpu_percent();
    let more = More {
        op,
        crc: model.wire.crc == Switch::On,
        markers: model.wire.markers,
        threading: model.threading,
        copies: model.copies,
        events: model.events,
        under: model.under,
        coupling: (!model.under.is_kernel()).then_some(model.coupling),
        floor_avg_us: outcome.floor_avg_us,
        times_floor: outcome.times_floor,
        cpu_percent,
        cpu_percent_client: outcome.cpu_percent[0],
        cpu_percent_server: outcome.cpu_percent[1],
    };
    let name = format!("rdma.{short}.{}", word(&op));
    let row = Row::new(name, "rdma", Some(size), &outcome.figures);
    let row = row.beside(floor, outcome.floor_us, outcome.floor_us);
    report.row_with(Row { value: cpu_percent, unit: Some("% CPU".to_owned()), ..row }, &more)
}
