//! `sprat stats`: the servers, and what they have counted.

use serde_json::{Map, Value};

use crate::args;
use crate::fail::Fail;
use crate::out::{self, Columns};
use crate::store::Store;

/// Runs the command.
pub(crate) fn run(args: &args::Stats) -> Result<(), Fail> {
    let mut store = Store::connect(&args.at.coordinator)?;
    let servers = store.servers()?;
    let mut counted = Vec::new();
    for server in &servers {
        counted.push(store.counters(server));
    }
    if args.json {
        let mut text = String::new();
        for (server, counters) in servers.iter().zip(&counted) {
            let mut object = Map::new();
            object.insert("server".into(), server.id.to_string().into());
            object.insert("locators".into(), server.locators.clone().into());
            let numbers = counters
                .as_ref()
                .map(|c| c.iter().map(|(name, n)| (name.clone(), Value::from(*n))).collect());
            object.insert("counters".into(), numbers.map_or(Value::Null, Value::Object));
            text.push_str(&format!("{}\n", Value::Object(object)));
        }
        return out::print(text);
    }
    if servers.is_empty() {
        return out::print("The cluster has no servers yet; start one with: sprat server -L LOCATOR\n");
    }
    out::print(table(&servers, &counted))
}

/// A column for each server, a line for each counter.
fn table(servers: &[crate::store::ServerInfo], counted: &[Result<Vec<(String, u64)>, Fail>]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in counted.iter().flatten().flatten().map(|(name, _)| name.as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let heads: Vec<String> = servers.iter().map(|s| format!(">server {}", s.id)).collect();
    let mut headings = vec!["counter"];
    headings.extend(heads.iter().map(String::as_str));
    let mut columns = Columns::new(&headings);
    for name in names {
        let cell = |counters: &Result<Vec<(String, u64)>, Fail>| match counters {
            Ok(counters) => {
                counters.iter().find(|(n, _)| n == name).map_or_else(String::new, |(_, n)| n.to_string())
            }
            Err(_) => "no answer".to_owned(),
        };
        columns.row(std::iter::once(name.to_owned()).chain(counted.iter().map(cell)));
    }
    let mut text = columns.text();
    for server in servers {
        text.push_str(&format!(
            "\n  server {}: {}",
            server.id,
            server.locators.replace(';', "\n            ")
        ));
    }
    text.push('\n');
    text
}
