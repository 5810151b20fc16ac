//! `sprat table`: creates, drops and lists tables.

use clap::Subcommand;
use serde_json::json;
use sprat::kv::TableInfo;

use crate::options::{Cluster, SPANS};
use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};
use sprat_bench::store::Store;

/// Create, drop and list tables.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  sprat table create books --span 3
  sprat table list
  sprat table drop books")]
pub(crate) enum Table {
    /// Create a table. An existing table stays as it is.
    #[command(after_help = "Example:
  sprat table create books --span 3       its keys are spread over three servers")]
    Create {
        #[command(flatten)]
        at: Cluster,
        /// Name of the table.
        #[arg(value_name = "TABLE")]
        name: String,
        /// Number of servers that share its keys, 1 to 256.
        #[arg(
            long,
            value_name = "N",
            default_value_t = 1,
            value_parser = clap::value_parser!(u32).range(SPANS),
        )]
        span: u32,
    },
    /// Drop a table with all its objects.
    #[command(after_help = "Example:
  sprat table drop books")]
    Drop {
        #[command(flatten)]
        at: Cluster,
        /// Name of the table.
        #[arg(value_name = "TABLE")]
        name: String,
    },
    /// List the tables and the state of their tablets.
    #[command(after_help = "Example:
  sprat table list --json")]
    List {
        #[command(flatten)]
        at: Cluster,
        /// Write one JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

/// Runs `sprat table`.
pub(crate) fn run(command: &Table) -> Result<(), Fail> {
    match command {
        Table::Create { at, name, span } => {
            let mut store = at.connect()?;
            let table = store.create_table(name, *span)?;
            if store.tables()?.iter().any(|info| info.table == table && info.unheard > 0) {
                out::note(format_args!("{name} exists, and the coordinator waits for {UNHEARD}"));
            }
            Ok(())
        }
        Table::Drop { at, name } => at.connect()?.drop_table(name),
        Table::List { at, json } => list(&mut at.connect()?, *json),
    }
}

/// The text for a tablet whose server has not reported since the coordinator started.
const UNHEARD: &str = "a report of one of its servers: see sprat table list in a few seconds";

fn list(store: &mut Store, as_json: bool) -> Result<(), Fail> {
    let tables = store.tables()?;
    if as_json {
        let line = |t: &TableInfo| {
            format!(
                "{}\n",
                json!({
                    "name": t.name, "id": t.table.0, "tablets": t.tablets,
                    "lost": t.lost, "unheard": t.unheard, "recovering": t.recovering,
                })
            )
        };
        return out::raw(tables.iter().map(line).collect::<String>());
    }
    if tables.is_empty() {
        return out::print("There are no tables yet; create one with: sprat table create NAME\n");
    }
    let mut columns = Columns::new(&["table", ">id", ">tablets", "state"]);
    for table in &tables {
        columns.row([
            table.name.clone(),
            table.table.0.to_string(),
            table.tablets.to_string(),
            state_of(table),
        ]);
    }
    out::print(columns.text())
}

/// Returns the state of a table's tablets as text.
fn state_of(table: &TableInfo) -> String {
    let states = [
        (table.lost, "lost: their server ended"),
        (table.recovering, "being recovered: their server ended"),
        (table.unheard, "without a report yet"),
    ];
    let texts =
        states.iter().filter(|(count, _)| *count > 0).map(|(n, text)| format!("{n} {text}"));
    let text = texts.collect::<Vec<_>>().join("; ");
    if text.is_empty() { "complete".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use sprat::kv::TableId;

    use super::*;

    #[test]
    fn every_state_of_a_tablet_is_shown() {
        let name = "t".to_owned();
        let (table, tablets, lost, unheard, recovering) = (TableId(1), 9, 0, 0, 0);
        let mut info = TableInfo { table, name, tablets, lost, unheard, recovering };
        assert_eq!(state_of(&info), "complete");
        info.recovering = 2;
        assert_eq!(state_of(&info), "2 being recovered: their server ended");
        (info.lost, info.unheard) = (1, 3);
        let text = "1 lost: their server ended; 2 being recovered: their server ended; \
                    3 without a report yet";
        assert_eq!(state_of(&info), text);
    }
}
