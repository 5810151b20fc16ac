//! `sprat status`: shows whether a cluster serves, in one screen.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::json;
use sprat::kv::{LeaderInfo, Role, ServerInfo, ServerState, TableInfo};
use sprat::server::Durability;
use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};

use crate::options::Cluster;

/// Show whether the cluster serves: its servers, and the tables that lack data.
///
/// A crashed server is `recovering` while other servers restore its data from their replicas. It is
/// `blocked` while replicas are missing: the servers that have them must come back, or `sprat
/// recover` gives them up. The exit code is 0 if the coordinator answers, a server is up and no
/// table lacks data; else 1.
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
    let (servers, tables) = (store.all_servers()?, store.tables()?);
    let up = servers.iter().filter(|server| server.state == ServerState::Up);
    // A server that does not answer is about to be given up.
    let missing = up.filter_map(|server| store.missing_replicas(server).ok()).sum();
    let leader = store.leader()?;
    let coordinator = &args.at.at.coordinator;
    out::raw(if args.json {
        machine_text(coordinator, &leader, &servers, &tables, missing)
    } else {
        out::lines(&human_text(coordinator, &leader, &servers, &tables, missing)).into_owned()
    })?;
    let fail = |what| Err(Fail::new(what));
    match incomplete(&tables).len() {
        _ if number_up(&servers) == 0 => fail("the cluster has no server".to_owned())
            .map_err(|fail| fail.next("start one: sprat server -L LOCATOR")),
        0 => Ok(()),
        n => fail(format!("{n} of {} tables lack data", tables.len())).map_err(|fail| {
            fail.next(match servers.iter().find(|server| server.state == ServerState::Blocked) {
                Some(blocked) => format!(
                    "start the servers that have the missing replicas; if they are gone for good, \
                     sprat recover {} says what is lost, and goes on without it",
                    blocked.server
                ),
                None => "sprat table list has details; sprat table drop NAME gives up a lost table"
                    .to_owned(),
            })
        }),
    }
}

/// Returns the number of shards that are up: of members of the cluster.
fn number_up(servers: &[ServerInfo]) -> usize {
    servers.iter().filter(|server| server.state == ServerState::Up).count()
}

/// Returns a text with the number of servers that are up, and that of their shards if some have
/// several.
fn servers_up(servers: &[ServerInfo]) -> String {
    let up = servers.iter().zip(processes(servers));
    let up = up.filter(|(server, _)| server.state == ServerState::Up).map(|(_, process)| process);
    let (count, shards) = (up.collect::<BTreeSet<_>>().len(), number_up(servers));
    let text = number_of(count, "server");
    if count == shards { text } else { format!("{text} with {}", number_of(shards, "shard")) }
}

/// Returns for each server the number of its process, from 1 on. The shards of a process have one
/// number.
fn processes(servers: &[ServerInfo]) -> Vec<usize> {
    let mut known = Vec::new();
    let numbers = servers.iter().map(|ServerInfo { server, site, .. }| {
        let process = (site.process, if site.process == 0 { Some(*server) } else { None });
        let at = known.iter().position(|one| *one == process);
        at.unwrap_or_else(|| {
            known.push(process);
            known.len() - 1
        }) + 1
    });
    numbers.collect()
}

/// Returns the state of a server as one word.
fn state_of(server: &ServerInfo) -> &'static str {
    match server.state {
        ServerState::Up => "up",
        ServerState::Crashed => "crashed",
        ServerState::Recovering => "recovering",
        ServerState::Blocked => "blocked",
    }
}

/// Returns the tables of which a tablet is lost, is being recovered, or has no server that is
/// known.
fn incomplete(tables: &[TableInfo]) -> Vec<&TableInfo> {
    tables.iter().filter(|table| table.lost + table.recovering + table.unheard > 0).collect()
}

fn machine_text(
    coordinator: &str,
    leader: &LeaderInfo,
    servers: &[ServerInfo],
    tables: &[TableInfo],
    missing: u64,
) -> String {
    let server = |(server, process): (&ServerInfo, usize)| {
        json!({
            "server": server.server.to_string(), "state": state_of(server),
            "tablets": server.tablets, "rate": server.rate,
            "control": server.control, "locators": server.data,
            "role": server.site.role.name(), "rack": server.site.rack, "blocked": server.blocked,
            "process": process, "shard": server.site.shard,
        })
    };
    let all = servers.iter().zip(processes(servers));
    let serves = number_up(servers) > 0 && incomplete(tables).is_empty();
    let object = json!({
        "serves": serves, "coordinator": coordinator, "leader": leader.locators,
        "term": leader.term,
        "replicas": mode(servers).map(|(replicas, _)| replicas),
        "durability": mode(servers).map(|(_, durability)| durability.name()),
        "servers": all.map(server).collect::<Vec<_>>(), "tables": tables.len(),
        "replicas_missing": missing,
        "recovering": tables.iter().map(|table| u32::from(table.recovering)).sum::<u32>(),
        "incomplete": incomplete(tables).iter().map(|table| &table.name).collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

/// Returns the number of replicas and the durability of a cluster: those of its servers that are
/// up. All of them have the same.
fn mode(servers: &[ServerInfo]) -> Option<(u8, Durability)> {
    let mut up = servers.iter().filter(|server| server.state == ServerState::Up);
    up.next().map(|server| (server.replicas, server.durability))
}

fn human_text(
    coordinator: &str,
    leader: &LeaderInfo,
    servers: &[ServerInfo],
    tables: &[TableInfo],
    missing: u64,
) -> String {
    let mut text = format!(
        "coordinator {coordinator}: {}, {}",
        servers_up(servers),
        number_of(tables.len(), "table")
    );
    if let Some((replicas, durability)) = mode(servers) {
        text += &format!(", {}, durability {durability}", number_of(replicas.into(), "replica"));
    }
    text.push('\n');
    if leader.locators != coordinator {
        text += &format!("led by {}, in term {}\n", leader.locators, leader.term);
    }
    if !servers.is_empty() {
        let has_roles = servers.iter().any(|server| server.site.role != Role::Both);
        let has_racks = servers.iter().any(|server| !server.site.rack.is_empty());
        let has_shards = servers.iter().any(|server| server.site.process != 0);
        let mut headings = vec!["server", "state", ">tablets", ">accesses/s"];
        headings.extend(has_shards.then_some([">process", ">shard"]).into_iter().flatten());
        headings.extend(has_roles.then_some("role"));
        headings.extend(has_racks.then_some("rack"));
        headings.push("locator");
        let mut columns = Columns::new(&headings);
        let mut all: Vec<_> = processes(servers).into_iter().zip(servers).collect();
        all.sort_by_key(|(process, server)| (*process, server.site.shard));
        for (process, server) in all {
            let (id, state) = (server.server.to_string(), state_of(server).to_owned());
            let mut cells = vec![id, state, server.tablets.to_string(), server.rate.to_string()];
            let shard = [process.to_string(), server.site.shard.to_string()];
            cells.extend(has_shards.then_some(shard).into_iter().flatten());
            cells.extend(has_roles.then(|| server.site.role.name().to_owned()));
            cells.extend(has_racks.then(|| server.site.rack.clone()));
            for locator in server.data.split(';') {
                cells.push(locator.to_owned());
                columns.row(&cells);
                // Only the first line of a server has its number.
                cells.pop();
                cells.fill(String::new());
            }
        }
        text += &columns.text();
    }
    for server in servers.iter().filter(|server| server.state == ServerState::Blocked) {
        text += &format!("server {} is blocked: {}\n", server.server, server.blocked);
    }
    if missing > 0 {
        let missing = number_of(missing as usize, "replica");
        text += &format!("{missing} missing: the servers make them anew\n");
    }
    for table in incomplete(tables) {
        let state = match table.recovering {
            0 => "lacks data".to_owned(),
            n => format!("has {} being recovered", number_of(n.into(), "tablet")),
        };
        text += &format!("table {} {state}\n", out::name(table.name.as_bytes()));
    }
    text
}

/// Returns a number and its noun: `1 table`, `2 tables`.
pub(super) fn number_of(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use sprat::kv::{OwnedSite, TableDurability, TableId};
    use sprat_store::message::control::Usage;
    use sprat_store::types::ServerId;

    use super::*;

    fn leader(locators: &str) -> LeaderInfo {
        LeaderInfo { term: 3, locators: locators.to_owned() }
    }

    #[test]
    fn a_cluster_without_servers_does_not_serve() {
        let at = "tcp:host=h,port=1";
        let text = machine_text(at, &leader(at), &[], &[], 0);
        let object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&object["serves"], &object["term"]), (&false.into(), &3.into()));
        assert_eq!(
            human_text(at, &leader(at), &[], &[], 0),
            "coordinator tcp:host=h,port=1: 0 servers, 0 tables\n"
        );
        assert_eq!(
            human_text("a:;b:", &leader("b:"), &[], &[], 0),
            "coordinator a:;b:: 0 servers, 0 tables\nled by b:, in term 3\n"
        );
        assert_eq!(number_of(1, "table"), "1 table");
    }

    fn server(index: u32, state: ServerState) -> ServerInfo {
        ServerInfo {
            server: ServerId { index, generation: 1 },
            state,
            tablets: 2,
            usage: Usage::default(),
            rate: 1200,
            replicas: 2,
            durability: Durability::Disk,
            site: OwnedSite::default(),
            control: "c".to_owned(),
            data: "d".to_owned(),
            blocked: if state == ServerState::Blocked { "no head" } else { "" }.to_owned(),
        }
    }

    #[test]
    fn the_shards_of_a_process_are_one_server() {
        let of = |index, process, shard| ServerInfo {
            site: OwnedSite { process, shard, ..OwnedSite::default() },
            ..server(index, ServerState::Up)
        };
        let servers = [of(1, 7, 1), of(2, 0, 0), of(3, 7, 0), of(4, 0, 0)];
        assert_eq!(processes(&servers), [1, 2, 1, 3]);
        let text = human_text("c", &leader("c"), &servers, &[], 0);
        assert!(text.contains("3 servers with 4 shards, 0 tables"), "{text}");
        let rows: Vec<_> = text.lines().skip(2).map(|line| line.split_whitespace()).collect();
        let ids: Vec<_> = rows.into_iter().filter_map(|mut cells| cells.next()).collect();
        assert_eq!(ids, ["3.1", "1.1", "2.1", "4.1"], "{text}");
    }

    #[test]
    fn a_recovery_is_shown() {
        let servers = [server(1, ServerState::Up), server(2, ServerState::Blocked)];
        let name = "t".to_owned();
        let (table, tablets, lost, unheard, recovering) = (TableId(1), 4, 0, 0, 2);
        let durability = TableDurability::Cluster;
        let tables = [TableInfo { table, name, tablets, lost, unheard, recovering, durability }];
        let object: serde_json::Value =
            serde_json::from_str(&machine_text("c", &leader("c"), &servers, &tables, 0))
                .expect("JSON");
        assert_eq!((&object["serves"], &object["recovering"]), (&false.into(), &2.into()));
        assert_eq!(object["servers"][1]["state"], "blocked");
        assert_eq!(object["servers"][0]["blocked"], "");
        assert_eq!(object["servers"][0]["rate"], 1200);
        assert_eq!((&object["replicas"], &object["durability"]), (&2.into(), &"disk".into()));
        assert_eq!(object["servers"][1]["blocked"], "no head");
        let text = human_text("c", &leader("c"), &servers, &tables, 2);
        assert!(
            text.starts_with("coordinator c: 1 server, 1 table, 2 replicas, durability disk\n"),
            "{text}"
        );
        assert!(text.contains("blocked") && text.contains("t has 2 tablets being"), "{text}");
        assert!(text.contains("2.1 is blocked: no head\n"), "{text}");
        assert!(text.contains("2 replicas missing"), "{text}");
    }
}
