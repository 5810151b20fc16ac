//! `sprat stats`: shows the counters of the servers.

use clap::Args;
use serde_json::{Map, Value, json};
use sprat::kv::ServerInfo;

use crate::options::Cluster;
use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};

mod catalogue;
mod prometheus;

/// Show the counters of the servers.
///
/// Counters that are 0 on all servers are left out.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat stats
  sprat stats --all
  sprat stats --json
  sprat stats --prometheus")]
pub(crate) struct Stats {
    #[command(flatten)]
    at: Cluster,
    /// Show counters that are 0, too.
    #[arg(long)]
    all: bool,
    /// Write one JSON object a server, with all counters.
    #[arg(long)]
    json: bool,
    /// Write all counters in Prometheus's text format.
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

/// Runs `sprat stats`.
pub(crate) fn run(args: &Stats) -> Result<(), Fail> {
    let mut store = args.at.connect()?;
    let servers = store.servers()?;
    let mut counted = Vec::new();
    for server in &servers {
        // A server that does not answer has no counters; the others are still shown.
        let counters = store.counters(server).ok();
        counted.push(
            counters.and_then(|bytes| serde_json::from_slice::<Map<String, Value>>(&bytes).ok()),
        );
    }
    if args.json {
        let line = |(server, counters): (&ServerInfo, &Option<Map<String, Value>>)| {
            let about = json!({
                "server": server.server.to_string(), "tablets": server.tablets,
                "control": server.control, "locators": server.data, "counters": counters,
            });
            format!("{about}\n")
        };
        return out::raw(servers.iter().zip(&counted).map(line).collect::<String>());
    }
    if args.prometheus {
        let named = |server: &ServerInfo| server.server.to_string();
        let servers = servers.iter().map(named).zip(counted.iter().map(Option::as_ref));
        return out::raw(prometheus::text(&servers.collect::<Vec<_>>()));
    }
    if servers.is_empty() {
        return out::print(
            "The cluster has no servers yet; start one with: sprat server -L LOCATOR\n",
        );
    }
    out::print(table(&servers, &counted, args.all))
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
