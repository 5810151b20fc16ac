//! `sprat stats`: shows the counters of the servers.

use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value};
use sprat::kv::ServerInfo;

use crate::counters::prometheus;
use crate::options::Cluster;
use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};

use self::sample::Sample;

mod sample;
mod summary;
mod watch;

/// Show the counters of the servers: first what matters most, then those that are not 0.
///
/// Rates are averages since the start of each server. With --watch they are those of each interval.
/// Writes are all changes of objects. A request is answered from the begin of the turn of the
/// server's loop that receives it to the end of the one that replies: without the network.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat stats
  sprat stats --watch              a table each second, until Ctrl-C
  sprat stats --watch 10 >> log    lines each 10 seconds
  sprat stats --watch --json       one JSON object a server and second
  sprat stats --all
  sprat stats --prometheus")]
pub(crate) struct Stats {
    #[command(flatten)]
    at: Cluster,
    /// Show counters that are 0, too.
    #[arg(long, conflicts_with = "watch")]
    all: bool,
    /// Show what matters most each second, or each time this many seconds have passed, until
    /// Ctrl-C: a table that changes on a terminal, and further lines elsewhere.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "1",
        value_parser = interval,
    )]
    watch: Option<Duration>,
    /// Write one JSON object a server, with all counters; with --watch also with rates per second.
    #[arg(long)]
    json: bool,
    /// Write all counters in Prometheus's text format.
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    prometheus: bool,
}

/// Parses the time between two tables, in seconds.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|s| (0.1..=86_400.0).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected seconds from 0.1 to 86400".to_owned())
}

/// Runs `sprat stats`.
pub(crate) fn run(args: &Stats) -> Result<(), Fail> {
    if let Some(interval) = args.watch {
        return watch::run(&args.at, interval, args.json);
    }
    let mut store = args.at.connect()?;
    let sample = Sample::take(&mut store)?;
    if args.json {
        return out::raw(sample.json(None));
    }
    let (servers, counted) = (&sample.servers, &sample.counters);
    if args.prometheus {
        let named = |server: &ServerInfo| server.server.to_string();
        let servers = servers.iter().map(named).zip(counted.iter().map(Option::as_ref));
        return out::raw(prometheus::of_servers(&servers.collect::<Vec<_>>()));
    }
    if servers.is_empty() {
        return out::print(
            "The cluster has no servers yet; start one with: sprat server -L LOCATOR\n",
        );
    }
    out::print(format!(
        "{}{}\nRates are averages since the start of each server; those of now: sprat stats \
         --watch\n\n{}",
        summary::coordinator(&sample),
        summary::columns(&sample, None).text(),
        table(servers, counted, args.all)
    ))
}

/// Returns a table with a column for each server and a line for each counter that is not 0
/// everywhere, or for each counter if `all`.
fn table(servers: &[ServerInfo], counted: &[Option<Map<String, Value>>], all: bool) -> String {
    let mut flat: Vec<Option<Vec<(String, String)>>> = Vec::new();
    for counters in counted {
        flat.push(counters.as_ref().map(|counters| {
            let mut lines = Vec::new();
            flatten("", counters, &mut lines);
            lines
        }));
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, count) in flat.iter().flatten().flatten() {
        if (all || count != "0") && !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let heads: Vec<String> = servers.iter().map(|s| format!(">server {}", s.server)).collect();
    let mut headings = vec!["counter"];
    headings.extend(heads.iter().map(String::as_str));
    let mut columns = Columns::new(&headings);
    for name in names {
        let cell = |counters: &Option<Vec<(String, String)>>| match counters {
            Some(counters) => counters
                .iter()
                .find(|(n, _)| n == name)
                .map_or_else(String::new, |(_, n)| n.clone()),
            None => "no answer".to_owned(),
        };
        columns.row(std::iter::once(name.to_owned()).chain(flat.iter().map(cell)));
    }
    let mut text = columns.text();
    for server in servers {
        let name = format!("\n  server {}: ", server.server);
        let indent = " ".repeat(name.len() - 1);
        text.push_str(&name);
        text.push_str(&out::plain(&server.data).replace(';', &format!("\n{indent}")));
    }
    text.push('\n');
    text
}

/// Adds counters with their full names to `lines`. Counters inside an object get the object's name
/// and a dot in front.
fn flatten(prefix: &str, counters: &Map<String, Value>, lines: &mut Vec<(String, String)>) {
    for (name, value) in counters {
        match value {
            Value::Object(inner) => flatten(&format!("{prefix}{name}."), inner, lines),
            Value::String(text) => lines.push((format!("{prefix}{name}"), text.clone())),
            other => lines.push((format!("{prefix}{name}"), other.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_counters_are_flat_lines() {
        let counters =
            json!({ "reads": 7, "rpc": { "dropped": { "malformed": 1 } }, "build": "x" });
        let mut lines = Vec::new();
        flatten("", counters.as_object().expect("an object"), &mut lines);
        lines.sort();
        let expected = [("build", "x"), ("reads", "7"), ("rpc.dropped.malformed", "1")];
        assert_eq!(lines, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }
}
