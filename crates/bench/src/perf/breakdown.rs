//! The test `breakdown`: the time of a read and of a write by layer (caller, transport, IP, driver,
//! wire, and back), from the tracepoints of client and server (`sprat::trace`).
//!
//! One operation is in progress at a time. After a batch, the client asks the server for its
//! tracepoints and joins both sides of each round trip. The figures are means over the middle half
//! of the round trips by duration: means add up, which medians do not, and the slow quarter is
//! disturbed by other work.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use sprat::kv::ServerInfo;
use sprat::trace::TraceRing;
use sprat::trace::sample::{Far, Joined, NAMES, PARTS, RoundTrip, ask, calls, round_trips};

use super::basic::{Objects, Set, key};
use super::bench::Bench;
use super::measure::median;
use super::report::{Report, Row};
use crate::fail::{Fail, Named as _};
use crate::out::{self, Columns};

/// Operations of a batch, after which the client asks the server for its tracepoints. The server's
/// ring holds the tracepoints of more operations.
const BATCH: usize = 200;
/// The width of the bars, in characters.
const WIDTH: usize = 40;

/// The times of one kind of operation over one transport, by layer.
#[derive(Clone, Debug)]
pub struct Breakdown {
    /// The name of the operation: `read`, `write` or `ping`.
    pub operation: String,
    /// The transport, by its name in locators.
    pub transport: String,
    /// Payload bytes of the operation.
    pub size: usize,
    joined: Joined,
    /// Number of round trips whose two sides were joined. The field `all` has the number of round
    /// trips made.
    count: usize,
    all: usize,
    /// Time of each part of the round trip in µs: the mean of the middle half.
    parts_us: [f64; PARTS],
    /// Mean time of a whole round trip of the middle half in µs, from its first tracepoint to its
    /// last one.
    whole_us: f64,
    /// Median time of all round trips in µs, by clock readings before and after each operation.
    clock_us: f64,
    /// The number of tracepoints on one round trip.
    tracepoints: f64,
    /// The time that recording one tracepoint takes, in µs.
    tracepoint_us: f64,
}

/// Fields of a breakdown's JSON line that a common result row does not have.
#[derive(Serialize)]
struct More<'b> {
    part: &'b str,
    share: f64,
    joined: &'b str,
    #[serde(rename = "marks")]
    tracepoints: f64,
    #[serde(rename = "mark_us")]
    tracepoint_us: f64,
}

impl Breakdown {
    /// Makes the breakdown of `trips`, which were joined from round trips that took `times_us`.
    /// `None` if there are no trips.
    pub fn of(
        (operation, transport, size): (&str, &str, usize),
        (joined, mut trips): (Joined, Vec<RoundTrip>),
        times_us: &[f64],
        trace: &TraceRing,
    ) -> Option<Self> {
        trips.sort_by(|a, b| a.whole_ns.total_cmp(&b.whole_ns));
        let count = trips.len();
        let middle = &trips[count / 4..count - count / 4];
        if middle.is_empty() {
            return None;
        }
        let mean = |of: &dyn Fn(&RoundTrip) -> f64| {
            middle.iter().map(of).sum::<f64>() / middle.len() as f64
        };
        Some(Self {
            operation: operation.to_owned(),
            transport: transport.to_owned(),
            size,
            joined,
            count,
            all: times_us.len(),
            parts_us: std::array::from_fn(|part| mean(&|trip| trip.parts_ns[part]) / 1e3),
            whole_us: mean(&|trip| trip.whole_ns) / 1e3,
            clock_us: median(times_us.iter().copied()).unwrap_or_default(),
            tracepoints: mean(&|trip| trip.tracepoints as f64),
            tracepoint_us: trace.cost() * trace.clock().tick_ns() / 1e3,
        })
    }

    /// Returns the breakdown as text: a table with bars, and the accuracy of its figures.
    pub fn text(&self) -> String {
        let sum: f64 = self.parts_us.iter().sum();
        let mut table = Columns::new(&["where", "layer", ">time", ">share", ""]);
        let mut before = 0.0;
        for (&us, (side, layer, _)) in self.parts_us.iter().zip(NAMES) {
            if us > 0.0 {
                let share = format!("{:.1} %", 100.0 * us / sum);
                table.row([
                    side.to_owned(),
                    layer.to_owned(),
                    out::micros(us),
                    share,
                    bar(before / sum, us / sum),
                ]);
            }
            before += us;
        }
        let traced_us = self.tracepoints * self.tracepoint_us;
        let mut text = format!("{}{}", self.title(), table.text());
        text += &format!(
            "  parts {}, round trip {} ({:.1} %); median of all by the caller's clock {}\n  of \
             this the tracepoints took {}: {:.0} of {} each\n",
            out::micros(sum),
            out::micros(self.whole_us),
            100.0 * sum / self.whole_us.max(f64::MIN_POSITIVE),
            out::micros(self.clock_us),
            out::micros(traced_us),
            self.tracepoints,
            out::micros(self.tracepoint_us),
        );
        text += match self.joined {
            Joined::OneClock => "",
            Joined::TwoClocks => {
                "  client and server have clocks of their own: what is neither's is the wire, \
                 half for each way\n"
            }
            Joined::NearOnly => {
                "  the far end records no tracepoints (a server of Sprat does with --tracepoints)\n"
            }
        };
        text
    }

    fn title(&self) -> String {
        let (what, size, over) = (&self.operation, out::bytes(self.size as u64), &self.transport);
        let (count, all) = (self.count, self.all);
        format!(
            "{what} of {size} over {over}: the middle half of {count} round trips, of {all} made\n"
        )
    }

    /// Writes the times of the round trip and of its parts to the report, a row each.
    pub fn rows(&self, report: &mut Report) -> Result<(), Fail> {
        let sum: f64 = self.parts_us.iter().sum();
        let parts = self.parts_us.iter().zip(NAMES).map(|(us, (.., part))| (*us, part));
        for (us, part) in [(self.whole_us, "whole"), (sum, "sum")].into_iter().chain(parts) {
            let mut row = Row::value(
                format!("breakdown.{}", self.operation),
                self.transport.clone(),
                us,
                "us",
            );
            row.size_bytes = Some(self.size as u64);
            row.count = self.count as u64;
            row.avg_us = Some(us);
            row.p50_us = (part == "whole").then_some(self.clock_us);
            let more = More {
                part,
                share: us / sum,
                joined: match self.joined {
                    Joined::OneClock => "one clock",
                    Joined::TwoClocks => "two clocks",
                    Joined::NearOnly => "near only",
                },
                tracepoints: self.tracepoints,
                tracepoint_us: self.tracepoint_us,
            };
            report.json_row(&row, &more)?;
        }
        Ok(())
    }
}

/// Draws the part of a bar of [`WIDTH`] characters that begins at the fraction `begin` and is
/// `share` long, exact to an eighth of a character at its end.
fn bar(begin: f64, share: f64) -> String {
    let column = |x: f64| (x.clamp(0.0, 1.0) * WIDTH as f64 * 8.0).round() as usize;
    let (from, to) = (column(begin) / 8 * 8, column(begin + share));
    let eighths = to.saturating_sub(from).max(1);
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    format!("{}{}{rest}", " ".repeat(from / 8), "█".repeat(eighths / 8))
}

/// Runs the test `breakdown`.
pub(crate) fn run(bench: &mut Bench) -> Result<(), Fail> {
    bench.local.record_tracepoints(true);
    let mut all = Vec::new();
    for size in bench.sizes(&[100]) {
        let count = bench.objects(size);
        let set = Set::fill(bench, size, count)?;
        for transport in bench.transports.clone() {
            let mut side = Side::open(bench, &set, &transport, size)?;
            for operation in ["read", "write"] {
                let breakdown = side.measure(operation, bench.time)?;
                bench.report.print(&format!("\n{}", breakdown.text()))?;
                breakdown.rows(&mut bench.report)?;
                all.push(breakdown);
            }
        }
        set.end()?;
    }
    bench.local.record_tracepoints(false);
    bench.report.print(&beside_one_another(&all))?;
    bench.report.picture("breakdown: the time of each layer", svg(&all))?;
    match &bench.svg {
        Some(path) => write_svg(path, &all),
        None => Ok(()),
    }
}

/// The client of the breakdown over one transport, with its tracepoints.
struct Side {
    objects: Objects,
    servers: Vec<ServerInfo>,
    trace: TraceRing,
    transport: String,
    size: usize,
}

impl Side {
    fn open(bench: &mut Bench, set: &Set, transport: &str, size: usize) -> Result<Self, Fail> {
        let trace = TraceRing::new();
        let mut objects = set.over_traced(bench, transport, &trace)?;
        let servers = objects.store.servers()?;
        Ok(Self { objects, servers, trace, transport: transport.to_owned(), size })
    }

    /// Runs batches of one operation until `time` is over. The first batch does not count.
    fn measure(&mut self, operation: &str, time: Duration) -> Result<Breakdown, Fail> {
        self.batch(operation)?;
        let (mut joined, mut trips, mut times) = (Joined::NearOnly, Vec::new(), Vec::new());
        let end = self.objects.clock.now().after(time.as_nanos() as u64);
        while times.is_empty() || self.objects.clock.now() < end {
            let before = self.trace.count();
            times.extend(self.batch(operation)?);
            let calls = calls(&self.trace.since(before));
            let far = self.ask()?;
            let more = round_trips(&calls, far.as_ref(), &self.trace);
            joined = more.0;
            trips.extend(more.1);
        }
        let what = (operation, self.transport.as_str(), self.size);
        Breakdown::of(what, (joined, trips), &times, &self.trace).ok_or_else(|| {
            Fail::new(format!(
                "none of {} round trips over {} could be put together",
                times.len(),
                what.1
            ))
            .next("others may be using the server")
        })
    }

    /// Runs [`BATCH`] operations, and returns the time of each in µs.
    fn batch(&mut self, operation: &str) -> Result<Vec<f64>, Fail> {
        let mut times = Vec::with_capacity(BATCH);
        for _ in 0..BATCH {
            let objects = &mut self.objects;
            let key = key(objects.rng.below(objects.count));
            let begin = objects.clock.now();
            self.trace.start();
            if operation == "read" {
                let read = objects.table().get_with(&key, |_, value| value.len());
                self.trace.end();
                read.map_err(|error| objects.store.explain(error, "a read"))?;
            } else {
                let written = objects.table().put(&key, &objects.value);
                self.trace.end();
                written.map_err(|error| objects.store.explain(error, "a write"))?;
            }
            times.push(objects.clock.now().since(begin) as f64 / 1e3);
        }
        Ok(times)
    }

    /// Asks the servers for their tracepoints and returns them. `None` if no server records any.
    fn ask(&self) -> Result<Option<Far>, Fail> {
        let mut all: Option<Far> = None;
        for server in &self.servers {
            let echoed = self.objects.store.raw().echo(Some(&server.data), ask());
            let echoed =
                echoed.map_err(|error| self.objects.store.explain(error, "a server's trace"))?;
            match (&mut all, Far::parse(&echoed)) {
                (Some(all), Some(more)) => all.extend(more),
                (all, more) => *all = all.take().or(more),
            }
        }
        Ok(all)
    }
}

/// Returns one table of all breakdowns, with a column for each.
fn beside_one_another(all: &[Breakdown]) -> String {
    if all.len() < 3 {
        return String::new();
    }
    let mut text = String::new();
    for operation in ["read", "write"] {
        let these: Vec<&Breakdown> = all.iter().filter(|b| b.operation == operation).collect();
        if these.is_empty() {
            continue;
        }
        let heads: Vec<String> = these
            .iter()
            .map(|b| format!(">{} {}", b.transport, out::bytes(b.size as u64)))
            .collect();
        let heads: Vec<&str> =
            ["where", "layer"].into_iter().chain(heads.iter().map(String::as_str)).collect();
        let mut table = Columns::new(&heads);
        let shown = |us: f64| if us > 0.0 { out::micros(us) } else { String::new() };
        for (part, (side, layer, _)) in NAMES.iter().enumerate() {
            if these.iter().any(|b| b.parts_us[part] > 0.0) {
                let times = these.iter().map(|b| shown(b.parts_us[part]));
                table.row([(*side).to_owned(), (*layer).to_owned()].into_iter().chain(times));
            }
        }
        let sums = these.iter().map(|b| shown(b.parts_us.iter().sum()));
        table.row(["".to_owned(), "all".to_owned()].into_iter().chain(sums));
        text += &format!("\n{operation}: its parts over each transport\n{}", table.text());
    }
    text
}

/// Colours of the layers in the breakdown's picture.
const COLOURS: [(&str, &str); 6] = [
    ("caller, service", "#4e79a7"),
    ("transport", "#59a14f"),
    ("IP", "#edc948"),
    ("driver", "#f28e2b"),
    ("wire", "#bab0ac"),
    ("wire and far end", "#d7d2cf"),
];

fn colour(layer: &str) -> &'static str {
    let layer = if matches!(layer, "caller" | "service") { COLOURS[0].0 } else { layer };
    COLOURS.iter().find(|(name, _)| *name == layer).map_or("#000000", |(_, colour)| colour)
}

/// Returns the picture of all breakdowns, as SVG: a bar each, on one scale.
fn svg(all: &[Breakdown]) -> String {
    const LEFT: f64 = 220.0;
    const SCALE: f64 = 700.0;
    const LINE: f64 = 34.0;
    let longest =
        all.iter().map(|b| b.parts_us.iter().sum::<f64>()).fold(f64::MIN_POSITIVE, f64::max);
    let height = 50.0 + LINE * all.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1000\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"1000\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (i, (name, colour)) in COLOURS.iter().enumerate() {
        let x = 10 + 160 * i;
        text += &format!(
            "<rect x=\"{x}\" y=\"12\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text \
             x=\"{}\" y=\"22\">{name}</text>\n",
            x + 17
        );
    }
    for (line, breakdown) in all.iter().enumerate() {
        let y = 40.0 + LINE * line as f64;
        let Breakdown { operation, transport, size, .. } = breakdown;
        let label = format!("{operation} {} {transport}", out::bytes(*size as u64));
        text += &format!("<text x=\"10\" y=\"{}\">{label}</text>\n", y + 15.0);
        let mut x = LEFT;
        for (&us, (side, layer, _)) in breakdown.parts_us.iter().zip(NAMES) {
            let width = us / longest * SCALE;
            if us > 0.0 {
                let (fill, time) = (colour(layer), out::micros(us));
                text += &format!(
                    "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"22\" \
                     fill=\"{fill}\" stroke=\"white\" \
                     stroke-width=\"0.5\"><title>{side} {layer}: {time}</title></rect>\n"
                );
            }
            x += width;
        }
        let sum = out::micros(breakdown.parts_us.iter().sum());
        text += &format!("<text x=\"{:.2}\" y=\"{}\">{sum}</text>\n", x + 5.0, y + 15.0);
    }
    text + "</svg>\n"
}

/// Writes the picture of all breakdowns to an SVG file.
pub fn write_svg(path: &Path, all: &[Breakdown]) -> Result<(), Fail> {
    std::fs::write(path, svg(all)).named(format_args!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trip(n: u32) -> RoundTrip {
        let parts_ns =
            std::array::from_fn(
                |part| if part == 17 { 0.0 } else { f64::from(n) * (part + 1) as f64 },
            );
        RoundTrip { parts_ns, whole_ns: parts_ns.iter().sum(), tracepoints: 20 }
    }

    fn breakdown() -> Breakdown {
        // The two shortest and the two longest of eight do not count.
        let trips = [90, 7, 10, 10, 14, 10, 1, 100].map(trip).to_vec();
        let times: Vec<f64> = (1..=9).map(f64::from).collect();
        let what = ("read", "fast+shm", 100);
        Breakdown::of(what, (Joined::OneClock, trips), &times, &TraceRing::new())
            .expect("there are some")
    }

    #[test]
    fn the_middle_half_is_shown_and_its_parts_add_up() {
        let b = breakdown();
        assert!(
            (b.parts_us[0] - 0.011).abs() < 1e-9 && (b.parts_us[8] - 0.099).abs() < 1e-9,
            "{b:?}"
        );
        assert!((b.parts_us.iter().sum::<f64>() - b.whole_us).abs() < 1e-9);
        assert_eq!((b.count, b.all, b.clock_us, b.tracepoints), (8, 9, 5.0, 20.0));
        let text = b.text();
        assert!(
            text.contains("(100.0 %)") && text.contains("service") && !text.contains("far end"),
            "{text}"
        );
        assert!(text.contains("the tracepoints took") && text.contains("20 of"), "{text}");
        let none = Breakdown::of(
            ("read", "x", 1),
            (Joined::OneClock, Vec::new()),
            &[1.0],
            &TraceRing::new(),
        );
        assert!(none.is_none());
    }

    #[test]
    fn a_bar_begins_where_the_one_before_ends() {
        assert_eq!(bar(0.0, 0.5), "█".repeat(20));
        assert_eq!(bar(0.5, 0.025), format!("{}█", " ".repeat(20)));
        assert_eq!(bar(0.25, 0.0125), format!("{}▌", " ".repeat(10)));
        // What takes next to nothing is still there, and nothing is beyond the end.
        assert_eq!(bar(0.0, 0.0001), "▏");
        assert_eq!(bar(0.99, 0.5).chars().count(), WIDTH);
    }

    #[test]
    fn the_picture_has_every_part_of_every_bar() {
        let picture = svg(&[breakdown(), breakdown()]);
        assert_eq!(picture.matches("<title>").count(), 2 * 17);
        assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
        assert_eq!(
            picture.matches("<rect").count(),
            picture.matches("</rect>").count() + 1 + COLOURS.len()
        );
        let table = beside_one_another(&[breakdown(), breakdown(), breakdown()]);
        assert_eq!(table.lines().filter(|line| line.contains("transport")).count(), 5, "{table}");
    }
}
