//! `sprat chaos`: attacks a cluster of its own under load, and says whether it kept its promises.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use sprat::server::MAX_REPLICAS;
use sprat_bench::chaos::plan::{Kind, Need};
use sprat_bench::chaos::verdict::Summary;
use sprat_bench::chaos::{self, Options, Report};
use sprat_bench::fail::Fail;
use sprat_bench::out::{self, Columns};
use sprat_bench::process::StopSignals;

use crate::options::{Cores, lease, server_memory};

/// The most servers of the attacked cluster.
const MOST_SERVERS: i64 = 16;
/// The most cores of an attacked server.
const MOST_CORES: i64 = 8;
/// The most coordinators of the attacked cluster.
const MOST_COORDINATORS: i64 = 7;
/// The most clients of a run.
const MOST_CLIENTS: i64 = 64;

/// Try a cluster of its own under load and faults, and check that clients saw no wrong answer.
///
/// Clients read, write, remove and increment objects while servers and coordinators are killed,
/// stopped and cut off, and files are damaged. At the end the command says whether the answers are
/// linearizable: each operation happened once, at one moment between its call and its answer. A
/// seed repeats the faults; their timing within the load differs. The exit code is 0 if all answers
/// were right and the cluster became whole after each round of faults; else 1.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat chaos                                  a minute, with a seed that it prints
  sprat chaos --seed 7 --seconds 600 --dir .   replicas in files of this directory
  sudo sprat chaos --network                   servers whose network can be cut
  sudo sprat chaos --dir . --small-disk        a disk that can be full
  sprat chaos --coordinators 3                 coordinators whose state is in an etcd of the run
  sprat chaos --faults kill,coordinator-kill --history chaos.jsonl
  sprat chaos --check chaos.jsonl              the verdict about a written history")]
pub(crate) struct Chaos {
    /// Number from which the faults follow. By default a random one.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Time of load and faults, in seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    seconds: u64,
    /// Number of servers, more than --replicas.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4,
        value_parser = clap::value_parser!(u16).range(2..=MOST_SERVERS),
    )]
    servers: u16,
    /// Number of cores of each server. Each has a part of --memory, and all end with their server.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=MOST_CORES),
    )]
    cores: u16,
    /// Number of coordinators. Several keep their state in an etcd, which the command starts and
    /// which faults hit too. It needs the program etcd, and a build with the feature etcd.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=MOST_COORDINATORS),
    )]
    coordinators: u16,
    /// Number of replicas of each object. Faults cost at most as many servers at a time.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=MAX_REPLICAS as i64),
    )]
    replicas: u16,
    /// Number of clients, each a thread.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = clap::value_parser!(u16).range(1..=MOST_CLIENTS),
    )]
    clients: u16,
    /// Memory of each server for objects, in bytes (K, M and G are powers of 1024), at least 48M.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = server_memory)]
    memory: u64,
    /// Term of a server's lease, in seconds, 2 by default. Others recover the objects of a silent
    /// server when it has ended. A longer term means later recoveries, a shorter one recoveries
    /// after short pauses, too.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = lease)]
    lease: Duration,
    /// Keep the replicas in files of a temporary folder in this directory.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Give the clients and each process a network of their own, which faults can cut. Servers then
    /// talk over UDP and TCP. It needs root.
    #[arg(long)]
    network: bool,
    /// Put a file system in memory on the folder of --dir, so that the disk can be full. It needs
    /// root.
    #[arg(long, requires = "dir")]
    small_disk: bool,
    /// Kinds of faults, with commas between them. By default all that this cluster can have.
    #[arg(long, value_name = "KIND[,KIND…]", value_delimiter = ',', value_parser = kind)]
    faults: Vec<Kind>,
    /// Write the history to this file: a line of JSON for each operation and each fault.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Check a history that was written before. Starts no cluster.
    #[arg(long, value_name = "FILE", exclusive = true)]
    check: Option<PathBuf>,
    /// Write the result as one JSON object.
    #[arg(long)]
    json: bool,
}

/// Runs `sprat chaos`.
pub(crate) fn run(args: &Chaos) -> Result<(), Fail> {
    if let Some(path) = &args.check {
        let summary = chaos::check(path)?;
        out::print(operations(&summary))?;
        return verdict(&summary);
    }
    if args.replicas >= args.servers {
        let text = format!("{} replicas need {} servers", args.replicas, args.replicas + 1);
        return Err(Fail::usage(text).next("give more --servers, or fewer --replicas"));
    }
    if args.coordinators > 1 && !cfg!(feature = "etcd") {
        let text = "several coordinators need etcd, which this program was built without";
        return Err(Fail::usage(text).next(
            "build it with the feature: cargo build --release -p sprat-cli --features etcd",
        ));
    }
    Cores::any(args.cores).check(args.memory)?;
    let (kinds, left_out) = kinds(args)?;
    let seed = args.seed.unwrap_or_else(random_seed);
    out::note(format_args!("seed {seed}"));
    let (stop, stopped) = channel();
    StopSignals::catch()?.then(move || {
        // The receiver lives until this process ends.
        let _ = stop.send(());
    })?;
    let options = Options {
        seed,
        time: Duration::from_secs(args.seconds),
        servers: args.servers,
        cores: args.cores,
        coordinators: args.coordinators,
        replicas: args.replicas,
        clients: args.clients,
        memory: args.memory,
        lease: args.lease,
        directory: args.dir.clone(),
        small_disk: args.small_disk,
        network: args.network,
        kinds,
        history: args.history.clone(),
    };
    let report = chaos::run(&options, &stopped)?;
    if args.json {
        out::raw(machine_text(&options, &report, &left_out))?;
    } else {
        out::print(human_text(&options, &report, &left_out))?;
    }
    let repeat = format!("the seed repeats the faults: --seed {seed}");
    verdict(&report.summary).map_err(|fail| fail.next(repeat.clone()))?;
    report.failed.map_or(Ok(()), |fail| Err(fail.next(repeat)))
}

/// Returns the kind of fault with this name.
fn kind(name: &str) -> Result<Kind, String> {
    let names = || Kind::all().map(Kind::name).collect::<Vec<_>>().join(", ");
    Kind::named(name).ok_or_else(|| format!("expected one of {}", names()))
}

/// Returns the kinds of faults of the run, and those that the cluster cannot have.
fn kinds(args: &Chaos) -> Result<(Vec<Kind>, Vec<Kind>), Fail> {
    let lacks = |kind: &Kind| match kind.needs()? {
        Need::Directory => args.dir.is_none().then_some("--dir DIR"),
        Need::SecondReplica => {
            (args.dir.is_none() || args.replicas < 2).then_some("--dir DIR and --replicas 2")
        }
        Need::SmallDisk => (!args.small_disk).then_some("--dir DIR and --small-disk, as root"),
        Need::Network => (!args.network).then_some("--network, as root"),
        Need::Coordinators => (args.coordinators < 2).then_some("--coordinators 3"),
        Need::CoordinatorNetwork => (args.coordinators < 2 || !args.network)
            .then_some("--coordinators 3 and --network, as root"),
    };
    if let Some((kind, lacks)) = args.faults.iter().find_map(|kind| Some((kind, lacks(kind)?))) {
        let text = format!("the fault {} needs {lacks}", kind.name());
        return Err(Fail::usage(text).next("add these options, or leave the fault out"));
    }
    let wanted: Vec<_> =
        if args.faults.is_empty() { Kind::all().collect() } else { args.faults.clone() };
    Ok(wanted.into_iter().partition(|kind| lacks(kind).is_none()))
}

/// Returns a seed that differs from run to run, of at most nine digits.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish() % 1_000_000_000
}

/// Returns the failure of a run whose history is not linearizable.
fn verdict(summary: &Summary) -> Result<(), Fail> {
    match &summary.violation {
        None => Ok(()),
        Some(text) => {
            out::note(text);
            Err(Fail::new("the history is not linearizable"))
        }
    }
}

/// Returns the counts of operations as text.
fn operations(summary: &Summary) -> String {
    let [ok, failed, unknown] = summary.operations;
    let mut text = format!(
        "{} operations on {} objects: {ok} ok, {failed} failed, {unknown} unknown\n",
        ok + failed + unknown,
        summary.objects
    );
    for (cause, count) in &summary.causes {
        text += &format!("  {count} × {cause}\n");
    }
    if summary.violation.is_none() {
        text += "linearizable\n";
    }
    text
}

fn human_text(options: &Options, report: &Report, left_out: &[Kind]) -> String {
    let summary = &report.summary;
    let mut columns = Columns::new(&["fault", ">count"]);
    for (name, count) in &summary.faults {
        columns.row([(*name).to_owned(), count.to_string()]);
    }
    for kind in left_out {
        columns.row([kind.name().to_owned(), "left out".to_owned()]);
    }
    let coordinators = match options.coordinators {
        1 => String::new(),
        count => format!(
            "{count} coordinators: leaders killed {}, etcd started again {}\n",
            times(report.leaders_killed),
            times(report.etcd_restarts)
        ),
    };
    let ms = |ns: u64| out::micros(ns as f64 / 1e3);
    let next = &summary.to_answer_ns;
    let bonds = report.bonds;
    format!(
        "{}{coordinators}{}{} transfers and {} audits of a bank, {} changes and {} look-ups by \
         indexes, {} of them without an answer\n\
         longest time without any answer: {}; slowest answer: {}\n\
         from a fault to the next answer: median {}, at most {}\n\
         {} rounds of faults; whole again after at most {:.1} s\n",
        columns.text(),
        operations(summary),
        bonds.transfers,
        bonds.audits,
        bonds.changes,
        bonds.look_ups,
        bonds.unanswered,
        ms(report.longest_gap_ns),
        ms(summary.slowest_ns),
        ms(next.get(next.len() / 2).copied().unwrap_or(0)),
        ms(next.last().copied().unwrap_or(0)),
        report.rounds,
        report.slowest_whole.as_secs_f64(),
    )
}

/// Returns a number of times as text.
fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn machine_text(options: &Options, report: &Report, left_out: &[Kind]) -> String {
    let summary = &report.summary;
    let [ok, failed, unknown] = summary.operations;
    let (next, bonds) = (&summary.to_answer_ns, report.bonds);
    let object = json!({
        "seed": options.seed, "good": report.is_good(), "linearizable": summary.violation.is_none(),
        "violation": summary.violation, "failed": report.failed.as_ref().map(ToString::to_string),
        "operations": {"ok": ok, "failed": failed, "unknown": unknown},
        "objects": summary.objects, "causes": summary.causes, "faults": summary.faults,
        "transfers": bonds.transfers, "audits": bonds.audits, "changes": bonds.changes,
        "look_ups": bonds.look_ups, "bonds_unanswered": bonds.unanswered,
        "left_out": left_out.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
        "rounds": report.rounds, "coordinators": options.coordinators,
        "leaders_killed": report.leaders_killed, "etcd_restarts": report.etcd_restarts,
        "longest_gap_ns": report.longest_gap_ns, "slowest_ns": summary.slowest_ns,
        "to_answer_median_ns": next.get(next.len() / 2), "to_answer_max_ns": next.last(),
        "slowest_whole_s": report.slowest_whole.as_secs_f64(),
        "checker_s": summary.checked.as_secs_f64(),
    });
    format!("{object}\n")
}
