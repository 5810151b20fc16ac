//! The counters in Prometheus's text format (exposition format 0.0.4).
//!
//! ```text
//! # HELP sprat_reads_total Reads that were executed or refused.
//! # TYPE sprat_reads_total counter
//! sprat_reads_total{server="1.1"} 7
//! sprat_transport_resent_total{server="1.1",transport="fast+udp"} 0
//! ```
//!
//! A total ends in `_total`. Levels have the name of `sprat stats`. `sprat_up` is 0 for a server
//! that does not answer.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sprat_store::counter::{Counter, Kind};
use sprat_store::master;

use super::catalogue;

/// The samples of one Prometheus metric: its labels and values.
struct Metric<'c> {
    counter: &'c Counter,
    samples: Vec<(String, u64)>,
}

/// The counter `sprat_up`: 1 for a server that answered, else 0.
const UP: Counter = Counter {
    name: "up",
    kind: Kind::Level,
    unit: sprat_store::counter::Unit::Servers,
    help: "1 if the server answered, or else 0.",
};

/// Returns the counters of servers in Prometheus's text format. A server that did not answer has
/// none.
pub(super) fn text(servers: &[(String, Option<&Map<String, Value>>)]) -> String {
    let mut metrics = BTreeMap::new();
    for (server, counters) in servers {
        let label = format!("server=\"{}\"", escaped(server));
        let is_up = u64::from(counters.is_some());
        add(&mut metrics, "sprat_".to_owned(), &UP, label.clone(), is_up);
        for (name, value) in counters.iter().flat_map(|counters| counters.iter()) {
            match value {
                Value::Object(inner) => {
                    let label = format!("{label},transport=\"{}\"", escaped(name));
                    for (name, value) in inner {
                        if let (Some(counter), Some(value)) =
                            (catalogue::of_transport(name), value.as_u64())
                        {
                            let prefix = "sprat_transport_".to_owned();
                            add(&mut metrics, prefix, counter, label.clone(), value);
                        }
                    }
                }
                value => {
                    if let (Some(counter), Some(value)) =
                        (catalogue::of_store(name), value.as_u64())
                    {
                        let label = match name.strip_prefix(master::REFUSED) {
                            Some(status) => format!("{label},status=\"{}\"", escaped(status)),
                            None => label.clone(),
                        };
                        add(&mut metrics, "sprat_".to_owned(), counter, label, value);
                    }
                }
            }
        }
    }
    let mut text = String::new();
    for (name, Metric { counter, samples }) in metrics {
        let kind = if counter.kind == Kind::Total { "counter" } else { "gauge" };
        text += &format!("# HELP {name} {}\n# TYPE {name} {kind}\n", counter.help);
        for (labels, value) in samples {
            text += &format!("{name}{{{labels}}} {value}\n");
        }
    }
    text
}

fn add<'c>(
    metrics: &mut BTreeMap<String, Metric<'c>>,
    prefix: String,
    counter: &'c Counter,
    labels: String,
    value: u64,
) {
    let suffix = if counter.kind == Kind::Total { "_total" } else { "" };
    let name = prefix + counter.name.trim_end_matches('_') + suffix;
    let metric = metrics.entry(name).or_insert(Metric { counter, samples: Vec::new() });
    metric.samples.push((labels, value));
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
            "fast+udp": { "resent": 3, "unheard_of": 1 }, "tcp": { "requests": 4 },
        });
        let servers = [("1.1".to_owned(), counters.as_object()), ("2.\"1".to_owned(), None)];
        assert_eq!(
            text(&servers),
            r#"# HELP sprat_live_bytes Live entries in the log.
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
}
