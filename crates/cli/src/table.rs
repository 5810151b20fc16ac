//! `sprat table`: create, drop and list tables.

use serde_json::json;

use crate::args::Table;
use crate::fail::Fail;
use crate::out::{self, Columns};
use crate::store::Store;

/// Runs the command.
pub(crate) fn run(command: &Table) -> Result<(), Fail> {
    match command {
        Table::Create { at, name, span } => Store::connect(at)?.create_table(name, *span).map(|_| ()),
        Table::Drop { at, name } => Store::connect(at)?.drop_table(name),
        Table::List { at, json } => list(&mut Store::connect(at)?, *json),
    }
}

fn list(store: &mut Store, as_json: bool) -> Result<(), Fail> {
    let tables = store.tables()?;
    if as_json {
        let line = |t: &sprat::kv::TableInfo| {
            format!("{}\n", json!({ "name": t.name, "id": t.table.0, "tablets": t.tablets, "lost": t.lost }))
        };
        return out::raw(tables.iter().map(line).collect::<String>());
    }
    if tables.is_empty() {
        return out::print("There are no tables yet; create one with: sprat table create NAME\n");
    }
    let mut columns = Columns::new(&["table", ">id", ">tablets", "state"]);
    for table in &tables {
        let state = match table.lost {
            0 => "complete".to_owned(),
            n => format!("{n} lost: their server died"),
        };
        columns.row([table.name.clone(), table.table.0.to_string(), table.tablets.to_string(), state]);
    }
    out::print(columns.text())
}
