//! `sprat table`: create, drop and list tables.

use serde_json::json;

use crate::args::Table;
use crate::client;
use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};
use sprat_bench::store::Store;

/// Runs the command.
pub(crate) fn run(command: &Table) -> Result<(), Fail> {
    match command {
        Table::Create { at, name, span } => {
            let mut store = client::connect(at)?;
            let table = store.create_table(name, *span)?;
            if store.tables()?.iter().any(|info| info.table == table && info.unheard > 0) {
                out::note(format_args!(
                    "{name} exists, and the coordinator waits to hear of {UNHEARD}"
                ));
            }
            Ok(())
        }
        Table::Drop { at, name } => client::connect(at)?.drop_table(name),
        Table::List { at, json } => list(&mut client::connect(at)?, *json),
    }
}

/// Whom a coordinator that has just started does not know.
const UNHEARD: &str =
    "a server of it: perhaps its data is lost (sprat table list tells in a few seconds)";

fn list(store: &mut Store, as_json: bool) -> Result<(), Fail> {
    let tables = store.tables()?;
    if as_json {
        let line = |t: &sprat::kv::TableInfo| {
            format!(
                "{}\n",
                json!({ "name": t.name, "id": t.table.0, "tablets": t.tablets, "lost": t.lost, "unheard": t.unheard })
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
            (0, n) => format!("{n} not heard of yet"),
            (n, _) => format!("{n} lost: their server died"),
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
