//! The tablets of a table: `sprat table tablets`, `split`, `merge`, `move`, `rebalance` and
//! `migrations`.

use std::time::Duration;

use serde_json::json;
use sprat::kv::{MigrationInfo, MigrationState, ServerId, ServerInfo, TabletInfo, TabletState};
use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};
use sprat_bench::process;
use sprat_bench::store::Store;
use sprat_bench::text::bytes;
use sprat_store::balance::{self, Owned};

use crate::progress::Progress;

/// The number of key hashes.
const ALL: f64 = 18_446_744_073_709_551_616.0;

/// Prints the tablets of a table.
pub(super) fn list(store: &mut Store, name: &str, as_json: bool) -> Result<(), Fail> {
    let tablets = store.tablets(name)?;
    if as_json {
        let line = |(i, t): (usize, &TabletInfo)| {
            format!(
                "{}\n",
                json!({
                    "tablet": i, "first": hash(t.first), "last": hash(t.last),
                    "server": t.server.to_string(), "state": state_of(t.state),
                })
            )
        };
        return out::raw(tablets.iter().enumerate().map(line).collect::<String>());
    }
    let mut columns =
        Columns::new(&[">tablet", "first hash", "last hash", ">share", "server", "state"]);
    for (i, tablet) in tablets.iter().enumerate() {
        columns.row([
            i.to_string(),
            hash(tablet.first),
            hash(tablet.last),
            format!("{:.1} %", share(tablet) * 100.0),
            tablet.server.to_string(),
            state_of(tablet.state).to_owned(),
        ]);
    }
    out::print(columns.text())
}

fn hash(hash: u64) -> String {
    format!("{hash:016x}")
}

/// Returns the part of all key hashes that a tablet has.
fn share(tablet: &TabletInfo) -> f64 {
    ((tablet.last - tablet.first) as f64 + 1.0) / ALL
}

fn state_of(state: TabletState) -> &'static str {
    match state {
        TabletState::Normal => "served",
        TabletState::Lost => "lost",
        TabletState::Taking => "being created",
        TabletState::Recovering => "being recovered",
    }
}

/// Returns the tablet with this number, or all of them.
fn chosen(store: &mut Store, name: &str, number: Option<usize>) -> Result<Vec<TabletInfo>, Fail> {
    let tablets = store.tablets(name)?;
    let Some(number) = number else { return Ok(tablets) };
    let count = tablets.len();
    let chosen = tablets.into_iter().nth(number);
    chosen.map(|tablet| vec![tablet]).ok_or_else(|| {
        Fail::new(format!("{name} has the tablets 0 to {}", count - 1))
            .next(format!("sprat table tablets {name} lists them"))
    })
}

/// Divides a tablet, or each, in equal parts.
pub(super) fn split(
    store: &mut Store,
    name: &str,
    number: Option<usize>,
    into: u32,
) -> Result<(), Fail> {
    for TabletInfo { first, last, .. } in chosen(store, name, number)? {
        let len = u128::from(last - first) + 1;
        for part in 1..u128::from(into) {
            let at = first + (len * part / u128::from(into)) as u64;
            if at > first {
                store.split_tablet(name, at)?;
            }
        }
    }
    list(store, name, false)
}

/// Unites a tablet with the next one, or all that follow each other on one server.
pub(super) fn merge(store: &mut Store, name: &str, number: Option<usize>) -> Result<(), Fail> {
    let tablets = store.tablets(name)?;
    if let Some(number) = number {
        let Some(next) = tablets.get(number + 1) else {
            return Err(Fail::new(format!("no tablet follows tablet {number} of {name}"))
                .next(format!("sprat table tablets {name} lists them")));
        };
        store.merge_tablets(name, next.first)?;
        return list(store, name, false);
    }
    let mut first_failure = Ok(());
    for pair in tablets.windows(2) {
        if pair[0].server == pair[1].server {
            let merged = store.merge_tablets(name, pair[1].first);
            first_failure = first_failure.and(merged);
        }
    }
    list(store, name, false)?;
    first_failure
}

/// Moves a tablet, or all, to a server, and shows the progress.
pub(super) fn relocate(
    store: &mut Store,
    name: &str,
    number: Option<usize>,
    to: ServerId,
) -> Result<(), Fail> {
    if !store.servers()?.iter().any(|server| server.server == to) {
        return Err(Fail::new(format!("no server {to} is up")).next("sprat status names them"));
    }
    let tablets = chosen(store, name, number)?;
    let moves = tablets.iter().filter(|tablet| tablet.server != to);
    let moves = moves.map(|t| Owned { first: t.first, last: t.last, server: to });
    let moves: Vec<_> = moves.collect();
    run(store, name, &moves)
}

/// Moves parts of tables so that each server has an equal share of each. The server `without` gives
/// everything, with the other shards of its process.
pub(super) fn rebalance(
    store: &mut Store,
    without: Option<ServerId>,
    names: &[String],
) -> Result<(), Fail> {
    let servers = store.servers()?;
    let leaving = servers.iter().filter(|s| Some(s.server) == without);
    let leaving = leaving.map(|s| s.site.process).next();
    if let (Some(server), None) = (without, leaving) {
        return Err(Fail::new(format!("no server {server} is up")).next("sprat status names them"));
    }
    let stays = |s: &&ServerInfo| {
        let process = s.site.process;
        Some(s.server) != without && (process == 0 || Some(process) != leaving)
    };
    let masters = || servers.iter().filter(|s| owns_tablets(s));
    let up: Vec<_> = masters().map(|s| s.server).collect();
    let staying: Vec<_> = masters().filter(stays).map(|s| s.server).collect();
    if staying.is_empty() {
        return Err(Fail::new("no other server is up").next("start one: sprat server"));
    }
    let names = match names {
        [] => store.tables()?.into_iter().map(|table| table.name).collect(),
        names => names.to_vec(),
    };
    for name in names {
        let owned = store.tablets(&name)?;
        if let Some(tablet) = owned.iter().find(|tablet| !up.contains(&tablet.server)) {
            let server = tablet.server;
            return Err(Fail::new(format!("{name}: server {server} has keys of it and is not up"))
                .next("wait until they are recovered: sprat status"));
        }
        let owned = owned.iter().map(|t| Owned { first: t.first, last: t.last, server: t.server });
        let moves = balance::plan(&owned.collect::<Vec<_>>(), &staying);
        run(store, &name, &moves)?;
    }
    Ok(())
}

fn owns_tablets(server: &ServerInfo) -> bool {
    server.site.role.is_master()
}

/// Makes moves one after the other.
fn run(store: &mut Store, name: &str, moves: &[Owned]) -> Result<(), Fail> {
    if moves.is_empty() {
        return out::print(format!("{name}: every key is where it should be\n"));
    }
    for (i, to) in moves.iter().enumerate() {
        let Some(number) = store.move_tablet(name, to.first..=to.last, to.server.index)? else {
            continue;
        };
        let done = wait(store, number)?;
        let moved = format!("{}-{} to server {}", hash(to.first), hash(to.last), to.server);
        if done.state != MigrationState::Done {
            return Err(Fail::new(format!("{name}: {moved}: {}", done.reason)).next(
                "nothing is lost, the keys are where they were; repeat the command when the \
                 servers are well (sprat status)",
            ));
        }
        let of = format!("{}/{}", i + 1, moves.len());
        out::print(format!("{name} {of}: {moved}, {}\n", bytes(done.bytes)))?;
    }
    Ok(())
}

/// Waits for the end of a migration and shows its progress.
fn wait(store: &mut Store, number: u64) -> Result<MigrationInfo, Fail> {
    let progress = Progress::new("moved", None);
    let mut found = Ok(None);
    // The coordinator gives up a migration without progress.
    process::wait_until(Duration::MAX, || {
        found = store
            .migrations()
            .map(|all| all.into_iter().find(|migration| migration.number == number));
        match &found {
            Ok(Some(one))
                if matches!(one.state, MigrationState::Waiting | MigrationState::Running) =>
            {
                progress.say(&format!("{} moved", bytes(one.bytes)));
                false
            }
            _ => true,
        }
    });
    progress.end();
    found?.ok_or_else(|| {
        Fail::new("the coordinator does not know the migration any more")
            .next("another one leads now: sprat table tablets NAME shows the owners")
    })
}

/// Prints the migrations that are in progress or have ended a short while ago.
pub(super) fn migrations(store: &mut Store, as_json: bool) -> Result<(), Fail> {
    let migrations = store.migrations()?;
    let tables = store.tables()?;
    let name_of = |migration: &MigrationInfo| {
        let known = tables.iter().find(|table| table.table == migration.table);
        known.map_or_else(|| format!("table {}", migration.table.0), |table| table.name.clone())
    };
    if as_json {
        let line = |m: &MigrationInfo| {
            format!(
                "{}\n",
                json!({
                    "number": m.number, "table": name_of(m), "first": hash(m.first),
                    "last": hash(m.last), "from": m.source.to_string(),
                    "to": m.target.to_string(), "bytes": m.bytes,
                    "state": progress_of(m.state), "reason": m.reason,
                })
            )
        };
        return out::raw(migrations.iter().map(line).collect::<String>());
    }
    if migrations.is_empty() {
        return out::print("No keys have moved since the coordinator started\n");
    }
    let mut columns =
        Columns::new(&["table", "first hash", "last hash", "from", "to", ">bytes", "state"]);
    for migration in &migrations {
        let state = match &migration.reason[..] {
            "" => progress_of(migration.state).to_owned(),
            reason => format!("{}: {reason}", progress_of(migration.state)),
        };
        columns.row([
            name_of(migration),
            hash(migration.first),
            hash(migration.last),
            migration.source.to_string(),
            migration.target.to_string(),
            bytes(migration.bytes),
            state,
        ]);
    }
    out::print(columns.text())
}

fn progress_of(state: MigrationState) -> &'static str {
    match state {
        MigrationState::Waiting => "waiting",
        MigrationState::Running => "moving",
        MigrationState::Done => "done",
        MigrationState::Failed => "failed",
    }
}
