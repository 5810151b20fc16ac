//! `sprat server`: runs the process that keeps objects in memory and serves them.

use std::path::PathBuf;

use clap::Args;
use sprat::internals::transports::Options;
use sprat::server::{self, Durability, Role, ServerOptions};
use sprat::trace::TraceRing;
use sprat_bench::fail::Fail;
use sprat_bench::memory;
use sprat_bench::process::{self, StopSignals};

use super::serve::{self, apart, listening};
use crate::counters::catalogue::Part;
use crate::log::{self, Level, Message};
use crate::options::{
    Cores, Place, Scrub, Served, cores, durability, durability_of, role, scrub, server_memory,
};

/// Run a server, which keeps objects in memory.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat server -C tcp:host=127.0.0.1,port=7740 -L fast+shm:name=lab.1
  sprat server -C tcp:host=127.0.0.1,port=7740 -L fast+shm:name=lab.2 \\
      --control tcp:host=127.0.0.1,port=7802
  sprat server -L fast+udp:host=127.0.0.1,port=7741 --cores 4 --memory 8G
                                          four cores, at the ports 7741 to 7744

The two paths are independent: with --control the coordinator reaches a server over TCP, say, and
clients reach it over shared memory.")]
pub(crate) struct Server {
    #[command(flatten)]
    at: Place,
    /// Locator to listen at; several with `;`.
    #[arg(short = 'L', long = "locators", value_name = "LOCATOR[;LOCATOR…]")]
    locators: String,
    /// Locator at which the coordinator reaches the server, if it is not among those of -L.
    #[arg(long, value_name = "LOCATOR")]
    control: Option<String>,
    /// Memory for objects, in bytes (K, M and G are powers of 1024), at least 48M.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = server_memory)]
    memory: u64,
    /// Number of cores that serve requests, or a list of cores such as 0-3,8, each for one thread
    /// that runs on no other. Each core has a shard: a part of --memory with objects of its own,
    /// and further locators, with the next ports, or names and sockets with .1, .2, …. Clients go
    /// straight to the shard that has an object.
    #[arg(long, value_name = "N|LIST", default_value = "1", value_parser = cores)]
    cores: Cores,
    /// Number of replicas of each object on other servers. If as many servers crash at once, the
    /// others recover their objects. Servers of one cluster have the same number.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(..=server::MAX_REPLICAS as i64),
    )]
    replicas: u16,
    /// Time at which a change is acknowledged: when this server has it (none, without replicas;
    /// async, with replicas at most 10 ms later), when all replicas have it in memory, in files of
    /// --dir that survive the processes (process), or on disk. Servers of one cluster have the
    /// same [default: none without replicas, process with --dir, else memory].
    #[arg(long, value_name = "WHEN", value_parser = durability())]
    durability: Option<Durability>,
    /// Roles of the server: a master owns tablets, a backup holds replicas of other servers.
    #[arg(long, value_name = "ROLE", default_value = "both", value_parser = role())]
    role: Role,
    /// Rack of this machine, by a name of your choice. The replicas of an object are on different
    /// machines, and in different racks, as far as there are servers for that.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    rack: String,
    /// Keep the replicas of other servers in this directory, so that they survive the process, also
    /// kill -9. The next server with this directory has them. As it fills, it takes up to twice
    /// --memory of disk for each of --replicas.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Hold the replicas of this server's own objects in --dir while no other server is up. They
    /// survive the process, and not the disk.
    #[arg(long, requires = "dir")]
    allow_local_backup: bool,
    /// Verify each replica in --dir once in this many days, or in a part of a day, on the disk
    /// itself. A damaged one is replaced. That takes at most 2 % of the disk's time. With off,
    /// damage is found when a server starts after a loss of power, and when a recovery reads it.
    #[arg(long, value_name = "DAYS|off", default_value_t = Scrub::default(), value_parser = scrub)]
    scrub: Scrub,
    /// Touch all of the memory at the start, for objects and for the replicas of others, so that
    /// the server never waits for the kernel to find some. It takes as much memory from then on.
    #[arg(long)]
    populate: bool,
    /// Record tracepoints of requests, for `sprat bench breakdown` and `sprat ping`. Each request
    /// takes some hundred nanoseconds longer.
    #[arg(long, alias = "marks")]
    tracepoints: bool,
    #[command(flatten)]
    served: Served,
}

/// Runs `sprat server`.
pub(crate) fn run(args: &Server) -> Result<(), Fail> {
    log::begin(args.served.log_format, "server", &args.locators)?;
    apart(&[("-L", &args.locators), ("--control", args.control.as_deref().unwrap_or_default())])?;
    // A master alone keeps nothing, whatever the others do.
    let durability = match args.role {
        Role::Master => args.durability,
        _ => Some(durability_of(args.durability, args.replicas, args.dir.is_some())?),
    };
    // The kernel can write back and drop the pages of a file.
    let holds = args.dir.is_none() && args.role.is_backup();
    let replicas = if holds { args.replicas.into() } else { 0 };
    let memory = args.memory.saturating_mul(1 + replicas);
    memory::check(memory, 1)?;
    args.cores.check(args.memory)?;
    if args.populate {
        memory::populate(memory)?;
    }
    let mut options = ServerOptions::new(&args.at.coordinator, &args.locators);
    options.control = args.control.clone();
    options.memory_bytes = args.memory;
    options.replicas = args.replicas.into();
    options.durability = durability;
    options.role = args.role;
    options.rack.clone_from(&args.rack);
    options.own_replica = args.allow_local_backup;
    options.directory.clone_from(&args.dir);
    options.scrub = args.scrub.round();
    options.warn = |warning| log::queue(Message::new(Level::Warning, warning));
    let trace = args.tracepoints.then(TraceRing::new);
    options.transports =
        Options::default().insecure_network(args.served.insecure_network).trace(trace);
    let signals = StopSignals::catch()?;
    process::survive_file_limit()?;
    let metrics = serve::metrics(&args.served)?;
    let mut shards =
        server::shards(&options, args.cores.count()).map_err(|error| listening(&error))?;
    serve::counters(metrics, Part::Server, &shards)?;
    shards.iter_mut().for_each(serve::report_stalls);
    let next = "start it anew: it joins the cluster as a new server";
    serve::run(signals, shards, next, |shards| server::run(shards, args.cores.list()))
}
