//! The counters of a cluster that matter most: a line about the coordinator, and a table with one
//! line for each server.

use serde_json::{Map, Value};
use sprat_bench::out::{self, Columns};
use sprat_bench::text;

use super::sample::Sample;
use crate::counters::answers::Answers;

/// The counters of operations that change objects.
const CHANGES: [&str; 7] =
    ["writes", "removes", "increments", "appends", "touches", "swaps", "commits"];
/// The beginning of the names of refusals.
const REFUSED: &str = "refused_";

/// The headings of the table.
pub(super) const HEADINGS: [&str; 13] = [
    "server",
    ">objects",
    ">live",
    ">limit",
    ">reads/s",
    ">writes/s",
    ">refused/s",
    ">answered p50",
    ">p99",
    ">cleaned",
    ">segments free",
    "replicas",
    ">stalls",
];

/// The numbers of a line of the table.
#[derive(Clone, Default)]
struct Line {
    objects: u64,
    live: u64,
    limit: u64,
    /// Operations a second.
    reads: f64,
    changes: f64,
    refused: f64,
    /// The times of answers, those of the network not included.
    answers: Answers,
    cleaned: u64,
    free: u64,
    segments: u64,
    /// Replicas of the log that a crash now would need and not find.
    missing: u64,
    stalls: u64,
}

impl Line {
    /// Returns the numbers of a server: its rates since its start, or since the time of its earlier
    /// counters. What is counted besides is counted over the same time.
    fn of(counters: &Map<String, Value>, earlier: Option<(&Map<String, Value>, f64)>) -> Self {
        let number =
            |of: &Map<String, Value>, name: &str| of.get(name).and_then(Value::as_u64).unwrap_or(0);
        let level = |name: &str| number(counters, name);
        let passed = |name: &str| {
            let before = earlier.map_or(0, |(before, _)| number(before, name));
            level(name).saturating_sub(before)
        };
        let seconds = match earlier {
            Some((_, seconds)) => seconds,
            None => level("uptime_seconds").max(1) as f64,
        };
        let answers = Answers::of(counters);
        let before = earlier.map(|(before, _)| Answers::of(before));
        let refusals = counters.keys().filter(|name| name.starts_with(REFUSED));
        Self {
            objects: level("objects"),
            live: level("live_bytes"),
            limit: level("live_limit_bytes"),
            reads: passed("reads") as f64 / seconds,
            changes: CHANGES.map(passed).iter().sum::<u64>() as f64 / seconds,
            refused: refusals.map(|name| passed(name)).sum::<u64>() as f64 / seconds,
            answers: before.map_or_else(|| answers.clone(), |before| answers.since(&before)),
            cleaned: passed("segments_cleaned"),
            free: level("segments_free"),
            segments: level("segments"),
            missing: level("replicas_missing"),
            stalls: passed("stalls"),
        }
    }

    fn plus(mut self, other: Self) -> Self {
        self.answers.add(&other.answers);
        Self {
            objects: self.objects + other.objects,
            live: self.live + other.live,
            limit: self.limit + other.limit,
            reads: self.reads + other.reads,
            changes: self.changes + other.changes,
            refused: self.refused + other.refused,
            answers: self.answers,
            cleaned: self.cleaned + other.cleaned,
            free: self.free + other.free,
            segments: self.segments + other.segments,
            missing: self.missing + other.missing,
            stalls: self.stalls + other.stalls,
        }
    }

    fn cells(self, name: String) -> Vec<String> {
        let replicas = match self.missing {
            0 => "whole".to_owned(),
            missing => format!("{missing} missing"),
        };
        vec![
            name,
            self.objects.to_string(),
            out::bytes(self.live),
            out::bytes(self.limit),
            rate(self.reads),
            rate(self.changes),
            rate(self.refused),
            time(self.answers.quantile(0.5)),
            time(self.answers.quantile(0.99)),
            self.cleaned.to_string(),
            format!("{} of {}", self.free, self.segments),
            replicas,
            self.stalls.to_string(),
        ]
    }
}

/// Formats a time in nanoseconds, if there is one.
fn time(ns: Option<f64>) -> String {
    ns.map_or_else(|| "–".to_owned(), |ns| text::micros(ns / 1e3))
}

/// Formats a number of operations a second.
fn rate(per_second: f64) -> String {
    if per_second == 0.0 {
        return "0".to_owned();
    }
    out::rate(per_second, "").trim_end_matches("/s").trim_end().to_owned()
}

/// Returns a line for each server, and one for all if there are several. The rates are those since
/// `before`, or since the start of each server.
pub(super) fn columns(sample: &Sample, before: Option<&Sample>) -> Columns {
    let mut columns = Columns::new(&HEADINGS);
    rows(sample, before).into_iter().for_each(|row| columns.row(row));
    columns
}

/// Returns the cells of the table, without its headings.
pub(super) fn rows(sample: &Sample, before: Option<&Sample>) -> Vec<Vec<String>> {
    let (mut rows, mut all, mut answered) = (Vec::new(), Line::default(), 0);
    for (index, (server, counters)) in sample.servers.iter().zip(&sample.counters).enumerate() {
        let name = server.server.to_string();
        let Some(counters) = counters else {
            rows.push(vec![name, "no answer".to_owned()]);
            continue;
        };
        let earlier = before.and_then(|before| {
            Some((sample.earlier(index, before)?, sample.seconds_since(before)))
        });
        let line = Line::of(counters, earlier);
        rows.push(line.clone().cells(name));
        all = all.plus(line);
        answered += 1;
    }
    if answered > 1 {
        rows.push(all.cells("all".to_owned()));
    }
    rows
}

/// Returns a line about the coordinator and the recoveries.
pub(super) fn coordinator(sample: &Sample) -> String {
    let Some(counters) = &sample.coordinator else {
        return "The coordinator gives no counters.\n".to_owned();
    };
    let number = |name| counters.get(name).and_then(Value::as_u64).unwrap_or(0);
    let counted = |name, one: &str| match number(name) {
        1 => format!("1 {one}"),
        many => format!("{many} {one}s"),
    };
    let mut line = format!(
        "{} up, {}, {}, {} with a lease",
        counted("servers_up", "server"),
        counted("tables", "table"),
        counted("tablets", "tablet"),
        counted("client_leases", "client")
    );
    let (running, blocked) = (number("recoveries"), number("recoveries_blocked"));
    if running > 0 {
        line += &format!(", {running} being recovered");
    }
    if blocked > 0 {
        line += &format!(", {blocked} blocked");
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn counters(value: &Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn rates_are_those_since_the_start_or_since_the_last_sample() {
        let before = counters(
            &json!({ "reads": 1_000, "writes": 10, "uptime_seconds": 10, "answered_1024ns": 10 }),
        );
        let after = counters(&json!({
            "reads": 3_001_000, "writes": 20, "removes": 20, "refused_Retry": 3,
            "refused_NoReplica": 1, "uptime_seconds": 12, "objects": 7, "live_bytes": 2_500_000,
            "live_limit_bytes": 1_000_000_000, "segments": 8, "segments_free": 5,
            "segments_cleaned": 2, "replicas_missing": 1, "stalls": 4,
            "answered_1024ns": 60, "answered_2048ns": 50,
        }));
        let cells = Line::of(&after, Some((&before, 2.0))).cells("1.1".to_owned());
        let expected = [
            "1.1",
            "7",
            "2.50 MB",
            "1 GB",
            "1.50 M",
            "15.0",
            "2.00",
            "1.02 µs",
            "2.03 µs",
            "2",
            "5 of 8",
            "1 missing",
            "4",
        ];
        assert_eq!(cells, expected);
        let line = Line::of(&before, None);
        assert!((line.reads - 100.0).abs() < 1e-9 && (line.changes - 1.0).abs() < 1e-9);
        assert_eq!(line.clone().cells(String::new())[11], "whole");
        let both = line.plus(Line::of(&after, Some((&before, 2.0))));
        assert_eq!((both.objects, both.missing), (7, 1));
    }

    #[test]
    fn the_line_about_the_coordinator_names_recoveries_if_there_are_any() {
        let mut sample = Sample::default();
        assert!(coordinator(&sample).contains("no counters"));
        let mut all = json!({ "servers_up": 3, "tables": 1, "tablets": 3, "client_leases": 0 });
        sample.coordinator = Some(counters(&all));
        let line = "3 servers up, 1 table, 3 tablets, 0 clients with a lease\n";
        assert_eq!(coordinator(&sample), line);
        all["recoveries"] = 1.into();
        all["recoveries_blocked"] = 2.into();
        sample.coordinator = Some(counters(&all));
        assert!(coordinator(&sample).contains("lease, 1 being recovered, 2 blocked"));
    }
}
