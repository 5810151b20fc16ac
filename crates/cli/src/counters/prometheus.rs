//! The counters in Prometheus's text format (exposition format 0.0.4).
//!
//! ```text
//! # HELP sprat_reads_total Reads that were executed or refused.
//! # TYPE sprat_reads_total counter
//! sprat_reads_total{server="1.1"} 7
//! sprat_transport_resent_total{server="1.1",transport="fast+udp"} 0
//! ```
//!
//! A total ends in `_total`, and a time is in seconds. The times of answers are a histogram. Levels
//! have the name of `sprat stats`. Many servers in one text have the label `server`, and `sprat_up`
//! is 0 for one that does not answer. A process that serves its own counters has no such label:
//! Prometheus adds one for the process. Its shards have the label `shard`, if there are several.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};
use sprat_proto::node::ANSWERED;
use sprat_store::counter::{Counter, Kind, Unit};
use sprat_store::master;

use super::answers::Answers;
use super::catalogue::{self, Part};

/// The media type of the text.
pub(crate) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One Prometheus metric.
struct Metric {
    kind: &'static str,
    help: &'static str,
    /// The samples after the metric's name: labels and a value.
    samples: Vec<String>,
}

type Metrics = BTreeMap<String, Metric>;

/// The counter `sprat_up`: 1 for a server that answered, else 0.
const UP: Counter = Counter {
    name: "up",
    kind: Kind::Level,
    unit: Unit::Servers,
    help: "1 if the server answered, or else 0.",
};

/// The counter `sprat_build_info`, whose labels describe the program.
const BUILD: Counter = Counter {
    name: "build_info",
    kind: Kind::Level,
    unit: Unit::Events,
    help: "1, with the version of the program as a label.",
};

/// Returns the counters of servers in Prometheus's text format. A server that did not answer has
/// none.
pub(crate) fn of_servers(servers: &[(String, Option<&Map<String, Value>>)]) -> String {
    let mut metrics = BTreeMap::new();
    for (server, counters) in servers {
        let labels = [("server", server.as_str())];
        add(&mut metrics, "sprat_", &UP, &labels, u64::from(counters.is_some()));
        if let Some(counters) = counters {
            add_all(&mut metrics, Part::Server, &labels, counters);
        }
    }
    text(metrics)
}

/// Returns the counters of one process in Prometheus's text format: those of its only worker, or
/// of each of its shards.
pub(crate) fn of_process(part: Part, workers: &[Map<String, Value>]) -> String {
    let mut metrics = BTreeMap::new();
    add(&mut metrics, "sprat_", &BUILD, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    if let [counters] = workers {
        add_all(&mut metrics, part, &[], counters);
        return text(metrics);
    }
    for (shard, counters) in workers.iter().enumerate() {
        add_all(&mut metrics, part, &[("shard", &shard.to_string())], counters);
    }
    text(metrics)
}

/// Adds all counters that are in the catalogue.
fn add_all(
    metrics: &mut Metrics,
    part: Part,
    labels: &[(&str, &str)],
    counters: &Map<String, Value>,
) {
    let store = match part {
        Part::Coordinator => "sprat_coordinator_",
        Part::Server => "sprat_",
    };
    add_answers(metrics, labels, counters);
    let others = counters.iter().filter(|(name, _)| !name.starts_with(ANSWERED));
    for (name, value) in others {
        if let Value::Object(inner) = value {
            let labels = [labels, &[("transport", name.as_str())]].concat();
            for (name, value) in inner {
                if let (Some(counter), Some(value)) =
                    (catalogue::of_transport(name), value.as_u64())
                {
                    add(metrics, "sprat_transport_", counter, &labels, value);
                }
            }
            continue;
        }
        let Some(value) = value.as_u64() else { continue };
        if let Some(counter) = catalogue::of_store(part, name) {
            let status = name.strip_prefix(master::REFUSED).filter(|_| part == Part::Server);
            let status = status.map(|status| ("status", status));
            let labels: Vec<_> = labels.iter().copied().chain(status).collect();
            add(metrics, store, counter, &labels, value);
        } else if let Some(counter) = catalogue::of_process(name) {
            add(metrics, "sprat_", counter, labels, value);
        }
    }
}

fn add(
    metrics: &mut Metrics,
    prefix: &str,
    counter: &Counter,
    labels: &[(&str, &str)],
    value: u64,
) {
    let mut name = format!("{prefix}{}", counter.name.trim_end_matches('_'));
    if counter.unit == Unit::Nanoseconds {
        name = format!("{}_seconds", name.trim_end_matches("_ns"));
    }
    if counter.kind == Kind::Total {
        name += "_total";
    }
    let value = match counter.unit {
        Unit::Nanoseconds => (value as f64 / 1e9).to_string(),
        _ => value.to_string(),
    };
    let kind = if counter.kind == Kind::Total { "counter" } else { "gauge" };
    let metric = metrics.entry(name).or_insert_with(|| Metric::new(kind, counter));
    metric.samples.push(format!("{} {value}", listed(labels)));
}

/// Adds the times in which a process answered requests.
fn add_answers(metrics: &mut Metrics, labels: &[(&str, &str)], counters: &Map<String, Value>) {
    let answers = Answers::of(counters);
    if answers.is_empty() {
        return;
    }
    let metric = metrics
        .entry("sprat_answer_seconds".to_owned())
        .or_insert_with(|| Metric::new("histogram", &catalogue::ANSWERS));
    for (suffix, bound, value) in answers.histogram() {
        let bound = bound.as_deref().map(|bound| ("le", bound));
        let labels: Vec<_> = labels.iter().copied().chain(bound).collect();
        metric.samples.push(format!("{suffix}{} {value}", listed(&labels)));
    }
}

impl Metric {
    fn new(kind: &'static str, counter: &Counter) -> Self {
        Self { kind, help: counter.help, samples: Vec::new() }
    }
}

/// Returns labels as Prometheus writes them.
fn listed(labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let labels = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    format!("{{{}}}", labels.collect::<Vec<_>>().join(","))
}

/// Returns metrics in the text format, in the order of their names.
fn text(metrics: Metrics) -> String {
    let mut text = String::new();
    for (name, Metric { kind, help, samples }) in metrics {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string cannot fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for sample in samples {
            let _ = writeln!(text, "{name}{sample}");
        }
    }
    text
}

/// Returns the value of a Prometheus label, with escapes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn golden_text() {
        let counters = json!({
            "reads": 7, "live_bytes": 5, "refused_Retry": 2, "unheard_of": 1,
            "answered_1024ns": 5, "answered_512ns": 2, "answered_longer": 1, "answered_ns": 9_000,
            "fast+udp": { "resent": 3, "unheard_of": 1 }, "tcp": { "requests": 4 },
        });
        let servers = [("1.1".to_owned(), counters.as_object()), ("2.\"1".to_owned(), None)];
        assert_eq!(
            of_servers(&servers).replace(catalogue::ANSWERS.help, "HELP"),
            r#"# HELP sprat_answer_seconds HELP
# TYPE sprat_answer_seconds histogram
sprat_answer_seconds_bucket{server="1.1",le="0.000000512"} 2
sprat_answer_seconds_bucket{server="1.1",le="0.000001024"} 7
sprat_answer_seconds_bucket{server="1.1",le="+Inf"} 8
sprat_answer_seconds_sum{server="1.1"} 0.000009
sprat_answer_seconds_count{server="1.1"} 8
# HELP sprat_live_bytes Live entries in the log.
# TYPE sprat_live_bytes gauge
sprat_live_bytes{server="1.1"} 5
# HELP sprat_reads_total Reads that were executed or refused.
# TYPE sprat_reads_total counter
sprat_reads_total{server="1.1"} 7
# HELP sprat_refused_total Requests refused with this status.
# TYPE sprat_refused_total counter
sprat_refused_total{server="1.1",status="Retry"} 2
# HELP sprat_transport_requests_total Server: requests handed up.
# TYPE sprat_transport_requests_total counter
sprat_transport_requests_total{server="1.1",transport="tcp"} 4
# HELP sprat_transport_resent_total Packets sent again.
# TYPE sprat_transport_resent_total counter
sprat_transport_resent_total{server="1.1",transport="fast+udp"} 3
# HELP sprat_up 1 if the server answered, or else 0.
# TYPE sprat_up gauge
sprat_up{server="1.1"} 1
sprat_up{server="2.\"1"} 0
"#
        );
    }

    #[test]
    fn a_process_has_no_label_of_its_own() {
        let counters = json!({
            "tablets": 3, "uptime_seconds": 9, "stalls_ns": 1_500_000, "refused_Retry": 1,
            "tcp": { "requests": 4 },
        });
        let counters = counters.as_object().expect("an object");
        let text = of_process(Part::Coordinator, std::slice::from_ref(counters));
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let version = concat!("sprat_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"} 1");
        let expected = [
            version,
            "sprat_coordinator_tablets 3",
            "sprat_stalls_seconds_total 0.0015",
            "sprat_transport_requests_total{transport=\"tcp\"} 4",
            "sprat_uptime_seconds 9",
        ];
        assert_eq!(samples, expected);
        let text = of_process(Part::Server, std::slice::from_ref(counters));
        assert!(text.contains("\nsprat_tablets 3\n"), "{text}");
        assert!(text.contains("\nsprat_refused_total{status=\"Retry\"} 1\n"), "{text}");
        let text = of_process(Part::Server, &[counters.clone(), counters.clone()]);
        assert!(text.contains("\nsprat_tablets{shard=\"1\"} 3\n"), "{text}");
    }
}
