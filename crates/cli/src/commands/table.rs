//! `sprat table`: creates, drops and lists tables.

use clap::Subcommand;
use serde_json::json;

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
        let line = |t: &sprat::kv::TableInfo| {
            format!(
                "{}\n",
                json!({
                    "name": t.name, "id": t.table.0, "tablets": t.tablets,
                    "lost": t.lost, "unheard": t.unheard,
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
        let state = match (table.lost, table.unheard) {
            (0, 0) => "complete".to_owned(),
            (0, n) => format!("{n} without a report yet"),
            (n, _) => format!("{n} lost: their server ended"),
        };
        columns.row([
            table.name.clone(),
            table.table.0.to_string(),
            table.tablets.to_string(),
            state,
        ]);
    }
    out::print(columns.text())
}
