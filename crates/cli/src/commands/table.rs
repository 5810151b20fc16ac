//! `sprat table`: creates, drops, lists, divides and moves tables.

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;
use sprat::kv::{ServerId, TableDurability, TableInfo, TableOptions};

use crate::options::{Cluster, SPANS, server_id};
use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};
use sprat_bench::store::Store;

mod tablets;

/// Create, drop, list, divide and move tables.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  sprat table create books --span 3
  sprat table list
  sprat table rebalance books             after a server has joined
  sprat table drop books")]
pub(crate) enum Table {
    /// Create a table. An existing table stays as it is.
    #[command(after_help = "Examples:
  sprat table create books --span 3             its keys are spread over three servers
  sprat table create log --durability async     its changes do not wait for replicas")]
    Create {
        #[command(flatten)]
        at: Cluster,
        /// Name of the table.
        #[arg(value_name = "TABLE")]
        name: String,
        /// Number of servers that share its keys, 1 to 256, each with all of its cores.
        #[arg(
            long,
            value_name = "N",
            default_value_t = 1,
            value_parser = clap::value_parser!(u32).range(SPANS),
        )]
        span: u32,
        /// Time at which a change is acknowledged: as the cluster's --durability says, or before
        /// the replicas have it (docs/durability.md).
        #[arg(
            long,
            value_name = "WHEN",
            default_value = "cluster",
            value_parser = table_durability(),
        )]
        durability: TableDurability,
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
    /// List the tablets of a table and their servers.
    ///
    /// A tablet is the part of a table whose key hashes are in a range. One server owns it.
    #[command(after_help = "Example:
  sprat table tablets books")]
    Tablets {
        #[command(flatten)]
        at: Cluster,
        /// Name of the table.
        #[arg(value_name = "TABLE")]
        name: String,
        /// Write one JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Split tablets of a table in equal parts. No object moves.
    #[command(after_help = "Examples:
  sprat table split books                       each tablet in two
  sprat table split books --tablet 0 --into 4")]
    Split {
        #[command(flatten)]
        at: Cluster,
        /// Name of the table.
        #[arg(value_name = "TABLE")]
        name: String,
        /// Number of the tablet to split, as sprat table tablets lists it; all by default.
        #[arg(long, value_name = "N")]
        tablet: Option<usize>,
        /// Number of parts, 2 to 256.
        #[arg(
            long,
            value_name = "K",
            default_value_t = 2,
            value_parser = clap::value_parser!(u32).range(2..=256),
        )]
        into: u32,
    },
    /// Merge tablets of a table that follow each other on one server. No object moves.
    #[command(after_help = "Examples:
  sprat table merge books                       all that one server owns
  sprat table merge books --tablet 2            tablets 2 and 3")]
    Merge {
        #[command(flatten)]
        at: Cluster,
        /// Name of the table.
        #[arg(value_name = "TABLE")]
        name: String,
        /// Number of the tablet to merge with the next one; all by default.
        #[arg(long, value_name = "N")]
        tablet: Option<usize>,
    },
    /// Move tablets of a table to another server, while clients use them.
    ///
    /// The owner serves a tablet until the other server has its objects. Operations wait for the
    /// last step, which takes milliseconds. If a server crashes meanwhile, the tablet stays where
    /// it was, or is recovered, and nothing is lost that replicas have.
    #[command(after_help = "Examples:
  sprat table move books --to 2.1               all of it
  sprat table move books --tablet 0 --to 2.1")]
    Move {
        #[command(flatten)]
        at: Cluster,
        /// Name of the table.
        #[arg(value_name = "TABLE")]
        name: String,
        /// Server to move to, as sprat status names it.
        #[arg(long, value_name = "SERVER", value_parser = server_id)]
        to: ServerId,
        /// Number of the tablet to move, as sprat table tablets lists it; all by default.
        #[arg(long, value_name = "N")]
        tablet: Option<usize>,
    },
    /// Move parts of tables so that all servers have equal shares of each.
    ///
    /// The command moves as few keys as possible, one part after the other, while clients use them.
    #[command(after_help = "Examples:
  sprat table rebalance                         all tables
  sprat table rebalance books
  sprat table rebalance --without 2.1           before server 2.1 ends")]
    Rebalance {
        #[command(flatten)]
        at: Cluster,
        /// Move everything away from this server, before it ends for good: from all of its shards,
        /// if it has several cores.
        #[arg(long, value_name = "SERVER", value_parser = server_id)]
        without: Option<ServerId>,
        /// Names of the tables; all by default.
        #[arg(value_name = "TABLE")]
        names: Vec<String>,
    },
    /// List the migrations of tablets that are in progress or have ended a short while ago.
    #[command(after_help = "Example:
  sprat table migrations")]
    Migrations {
        #[command(flatten)]
        at: Cluster,
        /// Write one JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

fn table_durability() -> impl TypedValueParser<Value = TableDurability> {
    PossibleValuesParser::new(TableDurability::ALL.map(TableDurability::name))
        .try_map(|name| name.parse::<TableDurability>())
}

/// Runs `sprat table`.
pub(crate) fn run(command: &Table) -> Result<(), Fail> {
    match command {
        Table::Create { at, name, span, durability } => {
            let options = TableOptions { span: *span, durability: *durability };
            create(&mut at.connect()?, name, options)
        }
        Table::Drop { at, name } => at.connect()?.drop_table(name),
        Table::List { at, json } => list(&mut at.connect()?, *json),
        Table::Tablets { at, name, json } => tablets::list(&mut at.connect()?, name, *json),
        Table::Split { at, name, tablet, into } => {
            tablets::split(&mut at.connect()?, name, *tablet, *into)
        }
        Table::Merge { at, name, tablet } => tablets::merge(&mut at.connect()?, name, *tablet),
        Table::Move { at, name, to, tablet } => {
            tablets::relocate(&mut at.connect()?, name, *tablet, *to)
        }
        Table::Rebalance { at, without, names } => {
            tablets::rebalance(&mut at.connect()?, *without, names)
        }
        Table::Migrations { at, json } => tablets::migrations(&mut at.connect()?, *json),
    }
}

fn create(store: &mut Store, name: &str, options: TableOptions) -> Result<(), Fail> {
    let table = store.create_table(name, options)?;
    let Some(info) = store.tables()?.into_iter().find(|info| info.table == table) else {
        return Ok(());
    };
    if info.unheard > 0 {
        out::note(format_args!("{name} exists, and the coordinator waits for {UNHEARD}"));
    }
    if info.durability != options.durability {
        let durability = info.durability.name();
        out::note(format_args!("{name} exists, and has durability {durability}"));
    }
    Ok(())
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
                    "durability": t.durability.name(),
                })
            )
        };
        return out::raw(tables.iter().map(line).collect::<String>());
    }
    if tables.is_empty() {
        return out::print("There are no tables yet; create one with: sprat table create NAME\n");
    }
    let mut columns = Columns::new(&["table", ">id", ">tablets", "durability", "state"]);
    for table in &tables {
        columns.row([
            table.name.clone(),
            table.table.0.to_string(),
            table.tablets.to_string(),
            table.durability.name().to_owned(),
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
        let durability = TableDurability::Cluster;
        let mut info = TableInfo { table, name, tablets, lost, unheard, recovering, durability };
        assert_eq!(state_of(&info), "complete");
        info.recovering = 2;
        assert_eq!(state_of(&info), "2 being recovered: their server ended");
        (info.lost, info.unheard) = (1, 3);
        let text = "1 lost: their server ended; 2 being recovered: their server ended; \
                    3 without a report yet";
        assert_eq!(state_of(&info), text);
    }
}
