//! `sprat bench schemes`: iWARP by four ways to a wire, side by side: the kernel's TCP, our own TCP
//! as a stream, our own TCP with a segment for each FPDU, and the raw device as the limit.
//!
//! The ways take turns of one figure after the other, each beside raw TCP. The raw device sends
//! what one frame holds as a frame, and its rate gives the time of more.

use std::time::Duration;

use super::args::{CouplingWay, Model, Op, Schemes, Switch, Under, Wire};
use super::bench::{row, words};
use super::sides::{Pace, Sides};
use super::under::Network;
use crate::fail::Fail;
use crate::out;
use crate::perf::lanes;
use crate::perf::measure::{Sample, median, samples_in_turns};
use crate::perf::report::{Context, Report};
use crate::process;
use crate::text::{Columns, bytes, micros, rate};

/// The bytes of a frame besides the payload of an FPDU: the headers of UDP, which the raw device
/// sends, are shorter than these by what the difference of its headers is.
const LONGEST_FRAME: usize = 1400;

/// The figures of one way for one size.
#[derive(Clone, Copy, Default)]
struct Figure {
    us: Option<f64>,
    bytes_per_s: Option<f64>,
    /// The time of raw kernel TCP in turns with it.
    tcp_us: Option<f64>,
}

/// Runs `sprat bench schemes`.
pub fn run(args: &Schemes) -> Result<(), Fail> {
    if args.device.is_kernel() {
        return Err(Fail::usage("--device takes a packet device: shmnet, memif, packet, xdp, tap"));
    }
    let mut report = Report::new(args.json.as_deref(), &Context::now(args.rounds, args.seconds))?;
    let raw = raw(args)?;
    // Each way binds this process to one of them.
    let cores = process::cores();
    for &threading in &args.threading {
        for &copies in &args.copies {
            for &crc in &args.crc {
                let wire = Wire { crc, markers: false, insecure_network: true };
                let (events, at, coupling) = (false, None, CouplingWay::Tight);
                let under = args.device;
                let model = Model { wire, threading, copies, events, under, coupling, at };
                let figures = ways(args, &model, &cores, &mut report)?;
                print(args, &model, &figures, &raw, &report)?;
            }
        }
    }
    Ok(())
}

/// Measures the raw device with each size.
fn raw(args: &Schemes) -> Result<Vec<Figure>, Fail> {
    let network = Network::new(args.device)?;
    let time = Duration::from_secs_f64(args.seconds);
    let opened = || network.ends().ok_or_else(|| std::io::ErrorKind::Unsupported.into());
    let longest = if matches!(args.device, Under::Shmnet | Under::Memif) {
        6 * LONGEST_FRAME
    } else {
        LONGEST_FRAME
    };
    let one = |lane: lanes::Floor<'_>, of: fn(&Sample) -> Option<f64>| -> Result<_, Fail> {
        let samples = samples_in_turns(&mut [lane.lane], args.rounds, time)?;
        Ok(median(samples.iter().flatten().filter_map(of)))
    };
    let stream = one(lanes::device_stream(opened), Sample::bytes_per_s)?;
    let figure = |&size: &usize| {
        let us = if size <= longest {
            one(lanes::device(opened, size), Sample::p50_us)?.map(|us| us / 2.0)
        } else {
            stream.map(|rate| size as f64 * 1e6 / rate)
        };
        Ok(Figure { us, bytes_per_s: stream, tcp_us: None })
    };
    args.size.iter().map(figure).collect()
}

/// Measures the three ways of iWARP in one setup.
fn ways(
    args: &Schemes,
    model: &Model,
    cores: &[usize],
    report: &mut Report,
) -> Result<[Vec<Figure>; 3], Fail> {
    let kernel = match args.device {
        Under::Shmnet | Under::Memif => Under::Tcp,
        _ => Under::Veth,
    };
    let ways = [
        (kernel, CouplingWay::Tight),
        (args.device, CouplingWay::Loose),
        (args.device, CouplingWay::Tight),
    ];
    let time = Duration::from_secs_f64(args.seconds);
    let pace = Pace { rounds: args.rounds, time, most: u64::MAX };
    let mut figures = [const { Vec::new() }; 3];
    for ((under, coupling), column) in ways.into_iter().zip(&mut figures) {
        let model = Model { under, coupling, ..model.clone() };
        out::note(words(&model));
        let sides = Sides::start(&model, cores)?;
        for &size in &args.size {
            let latency = sides.latency(Op::Write, size, pace)?;
            row(report, &model, "latency", Op::Write, size, &latency)?;
            let outstanding = u64::from(args.outstanding);
            let throughput = sides.throughput(Op::Write, size, outstanding, pace)?;
            row(report, &model, "throughput", Op::Write, size, &throughput)?;
            column.push(Figure {
                us: latency.figures.p50_us,
                bytes_per_s: throughput.figures.bytes_per_s,
                tcp_us: latency.floor_us,
            });
        }
    }
    Ok(figures)
}

/// Prints the figures of the ways of iWARP in one setup, beside those of the raw device.
fn print(
    args: &Schemes,
    model: &Model,
    [sockets, loose, tight]: &[Vec<Figure>; 3],
    raw: &[Figure],
    report: &Report,
) -> Result<(), Fail> {
    let headings = [
        ">size",
        ">kernel sockets",
        ">our TCP, loose",
        ">our TCP, tight",
        ">raw device",
        ">kernel TCP",
    ];
    let mut times = Columns::new(&[&headings[..], &[">tight faster ×"]].concat());
    let mut rates = Columns::new(&[&headings[..5], &[">tight faster ×"]].concat());
    let us = |figure: &Figure| figure.us.map(micros).unwrap_or_default();
    let bw = |f: &Figure| f.bytes_per_s.map(|b| rate(b, "B")).unwrap_or_default();
    let quotient = |a: Option<f64>, b: Option<f64>| {
        a.zip(b).map_or_else(String::new, |(a, b)| format!("{:.2}", a / b))
    };
    for (i, &size) in args.size.iter().enumerate() {
        let columns = [&sockets[i], &loose[i], &tight[i], &raw[i]];
        let mut cells = vec![bytes(size as u64)];
        cells.extend(columns.map(us));
        cells.push(tight[i].tcp_us.map(micros).unwrap_or_default());
        cells.push(quotient(sockets[i].us, tight[i].us));
        times.row(cells);
        let mut cells = vec![bytes(size as u64)];
        cells.extend(columns.map(bw));
        cells.push(quotient(tight[i].bytes_per_s, sockets[i].bytes_per_s));
        rates.row(cells);
    }
    let crc = if model.wire.crc == Switch::On { "CRC" } else { "no CRC" };
    let setup = format!("{crc}, {}", words(model).split_once(", ").map_or("", |(_, rest)| rest));
    report.print(&format!(
        "\nWrites, half of a round trip: {setup}\n{}\nWrites one way, {} in progress: {setup}\n{}",
        times.text(),
        args.outstanding,
        rates.text()
    ))
}
