//! `sprat up`: runs a whole cluster on this machine, each part a process of its own, until Ctrl-C.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use sprat::locator::{Kind, Locator};
use sprat::server::{Durability, MAX_REPLICAS, MAX_SHARDS};
use sprat_bench::cluster::{Cluster, Plan};
use sprat_bench::fail::Fail;
use sprat_bench::process::StopSignals;
use sprat_bench::store::Store;
use sprat_bench::{memory, out};

use self::directory::Servers;

mod directory;

use crate::log::Format;
use crate::options::{
    COORDINATOR, Cores, DEFAULT_COORDINATOR, DEFAULT_NAME, DEFAULT_PORT, REBALANCE, Scrub,
    cluster_name, durability, durability_of, lease, rebalance, scrub, server_memory,
};

/// The most servers of a cluster on this machine.
pub(super) const MOST_SERVERS: u16 = 64;
/// The time between two checks whether processes of the cluster have ended.
const CHECK_EVERY: Duration = Duration::from_millis(200);
/// The time for which the cluster may not answer `sprat up`, which waits for Ctrl-C meanwhile.
const ANSWER: Duration = Duration::from_millis(500);

/// Start a cluster on this machine: a coordinator and its servers, each a process.
///
/// Clients reach each server over shared memory, UDP, TCP and RDMA (software iWARP), and take the
/// first of these that works. All users of this machine can reach loopback. The cluster keeps its
/// objects in a directory, and has them when it starts again; with --ephemeral they are in memory
/// only, and gone when it ends.
///
/// `sprat up` starts a process again when it ends, after a pause that grows from 0.1 s to 10 s
/// while the process keeps ending. The coordinator comes back with its state. The objects of a
/// server that ended are recovered from their replicas by the servers that are up; with --ephemeral
/// they have none unless --replicas says so. The other processes go on.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat up                                three servers, until Ctrl-C; again: with their objects
  sprat up --servers 1 --cores 4          one server that uses four cores
  sprat up --servers 1 --memory 4G        one server with 4 GiB; the disk has the only copy
  sprat up --dir books                    three servers that keep their objects in ./books
  sprat up --ephemeral                    three servers that keep nothing
  sprat up --rebalance                    hot ranges of keys move to servers with less load
  sprat up --name test --port 9000        a second cluster beside the first; then:
  export SPRAT_COORDINATOR=tcp:host=127.0.0.1,port=9000
  sprat up -L fast+packet:dev=eth0,host=192.0.2.50,port=7000
                                          servers at ports 7000, 7001, … of that address too")]
pub(crate) struct Up {
    /// Number of servers.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_SERVERS)),
    )]
    servers: u16,
    /// Number of cores of each server. Each core has a shard: a part of --memory with objects of
    /// its own, to which clients go straight.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_SHARDS)),
    )]
    cores: u16,
    /// Name of the cluster, from which the shared-memory names derive.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME, value_parser = cluster_name)]
    name: String,
    /// Port of the coordinator. Server I takes this port + I on TCP and on UDP, and for RDMA the
    /// port that is the number of servers higher. With --cores each core counts as a server here.
    #[arg(
        long,
        short = 'p',
        value_name = "PORT",
        default_value_t = DEFAULT_PORT,
        value_parser = clap::value_parser!(u16).range(1..=65000),
    )]
    port: u16,
    /// Memory of each server for objects, in bytes (K, M and G are powers of 1024), at least 48M.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = server_memory)]
    memory: u64,
    /// Number of replicas of each object in the memory of other servers; less than the number of
    /// servers. A change is acknowledged when all of them have it. If as many servers crash at
    /// once, the others recover their objects. By default 1, and 0 with --ephemeral.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(..=MAX_REPLICAS as i64),
    )]
    replicas: Option<u16>,
    /// Time at which a change is acknowledged: when one server has it (none, without replicas;
    /// async, with replicas at most 10 ms later), when all replicas have it in memory, in files of
    /// --dir that survive the processes (process), or on disk [default: none without replicas,
    /// process with --dir, else memory].
    #[arg(long, value_name = "WHEN", value_parser = durability())]
    durability: Option<Durability>,
    /// Keep the objects in this directory, made if there is none. By default
    /// $XDG_DATA_HOME/sprat/NAME or ~/.local/share/sprat/NAME. They survive Ctrl-C and kill -9 of
    /// all processes. A loss of power may lose the last second, and if that was written to,
    /// objects may stay unavailable, unless --durability is disk. As it fills, it takes up to twice
    /// --memory of disk for each server and replica.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Keep the objects in memory only: they are gone when the cluster ends.
    #[arg(long, conflicts_with = "dir")]
    ephemeral: bool,
    /// Term of a server's lease, in seconds, 2 by default: other servers recover the objects of a
    /// silent server when its lease has ended, and a server that cannot renew it in time ends. With
    /// a shorter term a crash costs less time. A longer one survives longer pauses of a machine or
    /// a network without a recovery.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = lease)]
    lease: Duration,
    /// Let the coordinator move parts of tables by itself: a server that has joined gets an equal
    /// share of each table, and hot ranges of keys go from a server with much load to the one with
    /// the least. SECONDS is the time between two searches for a part, 2 by default.
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = REBALANCE,
        value_parser = rebalance,
    )]
    rebalance: Option<Duration>,
    /// Verify each replica in --dir once in this many days, or in a part of a day, on the disk
    /// itself. A damaged one is replaced. That takes at most 2 % of the disk's time. With off,
    /// damage is found when a server starts after a loss of power, and when a recovery reads it.
    #[arg(long, value_name = "DAYS|off", default_value_t = Scrub::default(), value_parser = scrub)]
    scrub: Scrub,
    /// With --ephemeral, keep the coordinator's state (tables, servers) in this file. Without it
    /// the state is in the memory of this process.
    #[arg(long, value_name = "FILE", requires = "ephemeral", conflicts_with = "dir")]
    state: Option<PathBuf>,
    /// More locators of the first server. The others take the next ports, or names and sockets
    /// with .1, .2, ….
    #[arg(short = 'L', long = "locators", value_name = "LOCATOR[;LOCATOR…]")]
    locators: Option<String>,
    /// Servers touch all of their memory at the start, for objects and for the replicas of others,
    /// so that they never wait for the kernel to find some. They take as much memory from then on.
    #[arg(long)]
    populate: bool,
    /// Servers record tracepoints of requests, for `sprat bench breakdown` and `sprat ping`. Each
    /// request takes some hundred nanoseconds longer.
    #[arg(long, alias = "marks")]
    tracepoints: bool,
    /// Serve the counters of the coordinator to Prometheus at http://127.0.0.1:PORT/metrics, and
    /// those of server I at this port + I.
    #[arg(
        long,
        value_name = "PORT",
        value_parser = clap::value_parser!(u16).range(1..=65000),
    )]
    metrics: Option<u16>,
    /// Let all processes write messages to standard error in this format, each with its time, its
    /// level and the process. By default they are lines for people.
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<Format>,
}

/// Returns the address of the socket by which `sprat down` finds the cluster `name`. It has no
/// file: the kernel removes it with the process.
pub(crate) fn address(name: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("sprat-up-{name}"))
}

/// Claims the name of the cluster by a socket, which fails if another `sprat up` has it.
fn claim(name: &str) -> Result<UnixListener, Fail> {
    match address(name).and_then(|at| UnixListener::bind_addr(&at)) {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            Err(Fail::new(format!("a cluster named {name} runs on this machine")).next(format!(
                "end it: sprat down --name {name}; or start another one with --name and --port"
            )))
        }
        Err(error) => Err(Fail::new(format!("cannot take the name {name}: {error}"))),
    }
}

/// Runs `sprat up`.
pub(crate) fn run(args: &Up) -> Result<(), Fail> {
    let (stop, stopped) = channel();
    StopSignals::catch()?.then(move || {
        // The receiver lives until this process ends.
        let _ = stop.send(());
    })?;
    let besides = args.locators.as_deref().map_or_else(|| Ok(Vec::new()), Locator::list);
    let besides = besides.map_err(|error| Fail::usage(error.to_string()))?;
    besides.iter().try_for_each(on_loopback)?;
    Cores::any(args.cores).check(args.memory)?;
    // Held until the cluster has ended: `sprat down` finds this process by it.
    let _found_by_down = claim(&args.name)?;
    let directory = directory_of(args)?;
    let replicas = args.replicas.unwrap_or_else(|| directory.is_some().into());
    // A single server with a directory holds its replica itself.
    let is_alone = directory.is_some() && (args.servers, replicas) == (1, 1);
    if replicas >= args.servers && !is_alone {
        let text = format!("{replicas} replicas of each object need {} servers", replicas + 1);
        return Err(Fail::usage(text).next("start more with --servers, or fewer --replicas"));
    }
    let durability = durability_of(args.durability, replicas, directory.is_some())?;
    let in_memory = if directory.is_some() { 0 } else { replicas.into() };
    memory::check(args.memory.saturating_mul(1 + in_memory), args.servers)?;
    let mut leaving = 0;
    if let Some(directory) = &directory {
        let (count, most, memory, cores) = (args.servers, MOST_SERVERS, args.memory, args.cores);
        let prepared = directory::prepare(
            directory,
            Servers { count, most, cores, memory, replicas, durability },
        )?;
        out::print(prepared.text + "\n")?;
        leaving = prepared.further;
    }
    check_ports(args, args.servers + leaving)?;
    let plan = Plan {
        leaving,
        memory: args.memory,
        replicas,
        durability: Some(durability),
        lease: args.lease,
        rebalance: args.rebalance,
        directory: directory.as_deref(),
        state: args.state.as_deref(),
        besides,
        tracepoints: args.tracepoints,
        populate: args.populate,
        scrub: Some(args.scrub.to_string()),
        metrics: args.metrics,
        log_format: args.log_format.map(|format| format.name().to_owned()),
        cores: args.cores,
        ..Plan::new(&args.name, args.port, args.servers)
    };
    let mut cluster = Cluster::start(&plan)?;
    out::print(introduction(&cluster, directory.is_some()))?;
    watch(&mut cluster, &stopped)?;
    cluster.end();
    out::print("The cluster has ended.\n")
}

/// Refuses more servers and cores than there are ports for.
fn check_ports(args: &Up, servers: u16) -> Result<(), Fail> {
    let shards = u32::from(servers) * u32::from(args.cores);
    if u32::from(args.port) + 2 * shards > u16::MAX.into() {
        let fail = Fail::usage(format!("the ports from {} on do not suffice", args.port));
        return Err(fail.next("give a lower --port, or fewer --servers or --cores"));
    }
    Ok(())
}

/// Refuses a locator of kernel UDP, TCP or RDMA at an address other than loopback: only `sprat
/// server` may listen there.
fn on_loopback(besides: &Locator) -> Result<(), Fail> {
    let (Kind::Tcp(at) | Kind::Udp { at, .. } | Kind::Rdma { at, .. }) =
        besides.kind().map_err(|error| Fail::usage(error.to_string()))?
    else {
        return Ok(());
    };
    match at.allowed(false) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(Fail::usage(
            format!("{besides}: {} is not on loopback, and nothing is encrypted", at.host),
        )
        .next("start servers of the network one by one: sprat server --insecure-network")),
        // The server reports any other error when it listens.
        _ => Ok(()),
    }
}

/// Waits for Ctrl-C. Reports each process of the cluster that ends, and starts it again. Servers
/// that are more than the cluster is to have leave meanwhile.
fn watch(cluster: &mut Cluster, stopped: &Receiver<()>) -> Result<(), Fail> {
    let mut store = Store::over(cluster.coordinator(), &[])?;
    store.set_timeout(ANSWER);
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(CHECK_EVERY) {
        let now = Instant::now();
        cluster.restart(now).iter().for_each(out::note);
        cluster.shrink(&mut store, now).iter().for_each(out::note);
    }
    Ok(())
}

/// Returns the directory that keeps the cluster's data, if any does.
fn directory_of(args: &Up) -> Result<Option<PathBuf>, Fail> {
    match &args.dir {
        _ if args.ephemeral => Ok(None),
        Some(dir) => Ok(Some(dir.clone())),
        None => {
            let [data, home] = ["XDG_DATA_HOME", "HOME"].map(std::env::var_os);
            directory::of_user(&args.name, data, home).map(Some)
        }
    }
}

fn introduction(cluster: &Cluster, keeps: bool) -> String {
    let at = cluster.coordinator();
    let hint = if at == DEFAULT_COORDINATOR {
        "Other commands find it by themselves".to_owned()
    } else {
        format!("In other terminals: export {COORDINATOR}='{at}'")
    };
    let table = cluster.table();
    let end = if keeps { "" } else { " and forgets its objects" };
    format!(
        "{table}\n{hint}; try: sprat table create books\nCtrl-C ends the cluster{end}; so does: \
         sprat down\n"
    )
}
