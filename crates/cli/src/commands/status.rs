//! `sprat status`: shows whether a cluster serves, in one screen.

use clap::Args;
use serde_json::json;
use sprat::kv::{ServerInfo, TableInfo};
use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};

use crate::options::Cluster;

/// Show whether the cluster serves: its servers, and the tables that lack data.
///
/// The exit code is 0 if the coordinator answers, a server is up and no table lacks data; else 1.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat status
  sprat status --json                     one JSON object
  sprat status --timeout 0.5 && sprat get books dune")]
pub(crate) struct Status {
    #[command(flatten)]
    at: Cluster,
    /// Write one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `sprat status`.
pub(crate) fn run(args: &Status) -> Result<(), Fail> {
    let mut store = args.at.connect()?;
    let (servers, tables) = (store.servers()?, store.tables()?);
    let coordinator = &args.at.at.coordinator;
    out::raw(if args.json {
        machine_text(coordinator, &servers, &tables)
    } else {
        out::lines(&human_text(coordinator, &servers, &tables)).into_owned()
    })?;
    let fail = |what| Err(Fail::new(what));
    match incomplete(&tables).len() {
        _ if servers.is_empty() => fail("the cluster has no server".to_owned())
            .map_err(|fail| fail.next("start one: sprat server -L LOCATOR")),
        0 => Ok(()),
        n => fail(format!("{n} of {} tables lack data", tables.len())).map_err(|fail| {
            fail.next("sprat table list has details; sprat table drop NAME gives up a lost table")
        }),
    }
}

/// Returns the tables of which a tablet is lost, or has no server that is known.
fn incomplete(tables: &[TableInfo]) -> Vec<&TableInfo> {
    tables.iter().filter(|table| table.lost + table.unheard > 0).collect()
}

fn machine_text(coordinator: &str, servers: &[ServerInfo], tables: &[TableInfo]) -> String {
    let server = |server: &ServerInfo| {
        json!({
            "server": server.server.to_string(), "tablets": server.tablets,
            "control": server.control, "locators": server.data,
        })
    };
    let serves = !servers.is_empty() && incomplete(tables).is_empty();
    let object = json!({
        "serves": serves, "coordinator": coordinator,
        "servers": servers.iter().map(server).collect::<Vec<_>>(), "tables": tables.len(),
        "incomplete": incomplete(tables).iter().map(|table| &table.name).collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

fn human_text(coordinator: &str, servers: &[ServerInfo], tables: &[TableInfo]) -> String {
    let mut text = format!(
        "coordinator {coordinator}: {}, {}\n",
        number_of(servers.len(), "server"),
        number_of(tables.len(), "table")
    );
    if !servers.is_empty() {
        let mut columns = Columns::new(&["server", ">tablets", "locator"]);
        for server in servers {
            let mut cells = [server.server.to_string(), server.tablets.to_string()];
            for locator in server.data.split(';') {
                // Only the first line of a server has its number.
                let [id, tablets] = std::mem::take(&mut cells);
                columns.row([id, tablets, locator.to_owned()]);
            }
        }
        text += &columns.text();
    }
    for table in incomplete(tables) {
        text += &format!("table {} lacks data\n", out::name(table.name.as_bytes()));
    }
    text
}

/// Returns a number and its noun: `1 table`, `2 tables`.
fn number_of(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_without_servers_does_not_serve() {
        let text = machine_text("tcp:host=h,port=1", &[], &[]);
        let object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(object["serves"], false);
        assert_eq!(
            human_text("tcp:host=h,port=1", &[], &[]),
            "coordinator tcp:host=h,port=1: 0 servers, 0 tables\n"
        );
        assert_eq!(number_of(1, "table"), "1 table");
    }
}
