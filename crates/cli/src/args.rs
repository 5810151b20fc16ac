//! What can be typed: every command, option and example of `sprat`.
//!
//! Only shapes and texts stand here, and the small parsers of sizes; what a command does is in the module of its name.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sprat_bench::memory;
use sprat_bench::units::{scaled, seconds, size};
use sprat_store::message::control::MAX_SPAN;

/// The name that `sprat up` gives its cluster, from which every shared-memory name derives.
pub(crate) const DEFAULT_NAME: &str = "sprat";
/// The coordinator's TCP port under `sprat up`; server `i` (from 1) listens on this port + `i`.
pub(crate) const DEFAULT_PORT: u16 = 7740;
/// How many servers a table may be spread over.
const SPANS: RangeInclusive<i64> = 1..=MAX_SPAN as i64;
/// Where clients look for the coordinator unless told: where `sprat up` puts it.
pub(crate) const DEFAULT_COORDINATOR: &str = "tcp:host=127.0.0.1,port=7740";

/// Microsecond key-value storage and RPC.
///
/// Sprat keeps objects in the memory of servers and reads them in microseconds: over shared memory on one machine, over
/// UDP or TCP between machines.
#[derive(Parser, Debug)]
#[command(
    name = "sprat",
    version,
    arg_required_else_help = true,
    after_help = "A first walk, in two terminals:
  sprat up                          a cluster of three servers on this machine; Ctrl-C ends it
  sprat table create books
  sprat put books dune 'Frank Herbert'
  sprat get books dune
  sprat perf --local echo           how fast it is here, beside what the machine allows

Exit codes: 0 done; 1 failed (the message says what to do next); 2 wrong usage;
3 there is no such object; 4 the object is not in the state that an --if-… option demands."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// The process that started this one: end when it does, so that nothing is left behind.
    #[arg(long, global = true, hide = true, value_name = "PID")]
    pub(crate) parent: Option<u32>,

    /// Run on this core only.
    #[arg(long, global = true, hide = true, value_name = "CORE")]
    pub(crate) core: Option<usize>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Up(Up),
    Coordinator(Coordinator),
    Server(Server),
    #[command(subcommand)]
    Table(Table),
    Get(Get),
    Put(Put),
    Del(Del),
    Incr(Incr),
    Import(Import),
    Export(Export),
    Stats(Stats),
    Perf(Perf),
    #[command(subcommand)]
    Rdma(crate::rdma::Rdma),
    Exec(Exec),
    Ping(Ping),
    Trace(Trace),
    Doctor(Doctor),
    Demo(Demo),
    /// An RPC server that answers every request with its own bytes.
    #[command(hide = true)]
    Echo(Echo),
    /// The client that the demonstration kills in the middle of its increments.
    #[command(hide = true)]
    Count(Count),
}

/// Where the cluster is.
#[derive(Args, Clone, Debug)]
pub(crate) struct Where {
    /// The coordinator's locator; several with `;`, the best first: the first that answers is taken.
    #[arg(
        short = 'C',
        long = "coordinator",
        value_name = "LOCATOR",
        env = "SPRAT_COORDINATOR",
        hide_env_values = true,
        default_value = DEFAULT_COORDINATOR
    )]
    pub(crate) coordinator: String,
}

/// The transports that a client can be told to use, by the names that locators have.
const TRANSPORTS: [&str; 11] = [
    "fast+shm",
    "fast+shmnet",
    "fast+memif",
    "fast+packet",
    "fast+xdp",
    "fast+tap",
    "fast+bond",
    "fast+dpdk",
    "fast+udp",
    "tcp",
    "rdma",
];

/// Where the cluster is, and how its servers are reached.
#[derive(Args, Clone, Debug)]
pub(crate) struct Cluster {
    #[command(flatten)]
    pub(crate) at: Where,
    /// Reach servers by these transports only, the best first; without it by all that they have, in
    /// their order. What fails is passed over, what does not answer is raced by the next one.
    #[arg(long, value_name = "T,T…", value_delimiter = ',', value_parser = TRANSPORTS)]
    pub(crate) transport: Vec<String>,
}

/// Start a whole cluster on this machine: a coordinator and its servers, each a process of its own.
///
/// Every server can be reached over shared memory, UDP, TCP and RDMA (software iWARP); clients take the first of these
/// that reaches it. Loopback is open to all users of this machine. Nothing is stored on disk unless --state is given:
/// when the cluster ends, its objects are gone.
///
/// A process that dies is started again, after a pause that grows from 0.1 s to 10 s as long as it keeps dying, and no other one ends
/// for it: the coordinator comes back with what it knew, a server without its objects.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat up                                three servers, until Ctrl-C
  sprat up --servers 1 --memory 4G        one server with 4 GiB for its objects
  sprat up --name test --port 9000        a second cluster beside the first; then:
  export SPRAT_COORDINATOR=tcp:host=127.0.0.1,port=9000
  sprat up -L fast+packet:dev=eth0,host=192.0.2.50,port=7000
                                          servers at ports 7000, 7001, … of that address too")]
pub(crate) struct Up {
    /// How many servers.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) servers: u16,
    /// The cluster's name, from which the shared-memory names derive.
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME, value_parser = cluster_name)]
    pub(crate) name: String,
    /// The coordinator's port; server I takes this port + I, on TCP and on UDP, and for RDMA the
    /// port that is the number of servers higher.
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..=65000))]
    pub(crate) port: u16,
    /// Memory of each server for objects, in bytes (K, M and G are powers of 1024): 48M at least.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = memory)]
    pub(crate) memory: u64,
    /// Keep the coordinator's state (tables, servers) in this file; without it the state is in memory of this process.
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
    /// Where the first server listens besides; the others have the ports behind it, or names and sockets with .1, .2, ….
    #[arg(short = 'L', long = "locators", value_name = "LOCATOR[;LOCATOR…]")]
    pub(crate) locators: Option<String>,
    /// Servers keep marks of where the time of requests goes, for `sprat perf breakdown` and `sprat ping`; each request takes some
    /// hundred nanoseconds longer.
    #[arg(long)]
    pub(crate) marks: bool,
}

/// Run a program that was built for RDMA hardware on software RDMA: with our libibverbs.so.1 and librdmacm.so.1.
///
/// No root and no kernel module are needed. The libraries are in the folder `verbs` beside this program (`make verbs`), in
/// `../lib/sprat` (`make install`), or where SPRAT_VERBS says. What the program starts gets them too. Programs that are set-user-id
/// or linked statically cannot be run so. What programs read of devices in /sys/class/infiniband a library says that is loaded before
/// all others (LD_PRELOAD).
///
/// With SPRAT_LOG=error, info or debug the libraries tell on standard error what they decide and which calls fail;
/// SPRAT_LOG=info,FILE appends that to a file (%p in its name is the process id).
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat exec ibv_devinfo -v               the devices, one for each IP interface
  sprat exec -- rping -s -a 127.0.0.1     a server; in another terminal its client:
  sprat exec -- rping -c -a 127.0.0.1 -C 10 -v
  SPRAT_LOG=info sprat exec --insecure-network -- ib_write_bw -R 192.0.2.7")]
pub(crate) struct Exec {
    /// Allow other machines: nothing is encrypted, and whoever reaches the program may do what RDMA lets him. Without it, listeners
    /// accept peers of this machine only, and addresses of other machines are refused (EACCES).
    #[arg(long)]
    pub(crate) insecure_network: bool,
    /// Preload no library for /sys/class/infiniband: for programs that mind any (AddressSanitizer's).
    #[arg(long)]
    pub(crate) no_sysfs: bool,
    /// The program, by its path or as the shell would find it.
    #[arg(value_name = "PROGRAM")]
    pub(crate) program: OsString,
    /// What it is given.
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// Ask a server for an echo, or a host, and tell how long it took and where that time went.
///
/// A locator with a port names a server, which is asked through all layers; if it keeps marks (--marks), its side is shown too. A
/// packet device's locator with port 0 names a host, which our own IP stack asks, as ping(8) does.
///
/// On a packet device our own end is another host on that network: SPRAT_LOCAL names its device and address, as a locator of the same protocol; where it
/// says nothing, the device is that of LOCATOR and the address one of the link alone (169.254.0.0/16), to which hosts with routes of
/// their own may not answer.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  export SPRAT_LOCAL=fast+packet:dev=eth0,host=192.0.2.99,port=0     an address that nobody has
  sprat ping fast+packet:dev=eth0,host=192.0.2.7,port=0
  sprat ping fast+shm:name=sprat.1        a server of `sprat up`, or any other of ours
  sprat ping --count 1000 --interval 0 --size 1400 fast+xdp:dev=eth0,host=192.0.2.7,port=0")]
pub(crate) struct Ping {
    /// The server; or the device and the host, with port 0.
    #[arg(value_name = "LOCATOR")]
    pub(crate) locator: String,
    /// How many requests.
    #[arg(long, short = 'c', default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Octets in each, 8 to 65507.
    #[arg(long, short = 's', default_value_t = 56, value_parser = clap::value_parser!(u16).range(8..=65_507))]
    pub(crate) size: u16,
    /// Milliseconds from one to the next, an hour at the most.
    #[arg(long = "interval", short = 'i', value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(..=3_600_000))]
    pub(crate) interval_ms: u64,
    /// Also write where the time went to this file as JSON Lines, as perf breakdown does; `-` for standard output, then alone.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the picture of where the time went to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// Run a command and capture what its packet devices send and receive, for Wireshark, tshark and tcpdump.
///
/// Each device that the command or a process of it opens has a file of its own: FILE with the process's id and a number before its
/// ending. To capture one device alone, give its locator the key pcap=FILE. Shared memory has no frames; those of kernel UDP and TCP
/// are the kernel's to capture.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat trace -o wire.pcap -- ping fast+packet:dev=eth0,host=192.0.2.7,port=0
  sprat trace -o wire.pcap -- perf --local --transport fast+packet echo
  sprat trace -o wire.pcap -- ./program-of-mine
  tshark -r wire.4711-1.pcap")]
pub(crate) struct Trace {
    /// Where to.
    #[arg(long, short = 'o', value_name = "FILE", default_value = "sprat.pcap")]
    pub(crate) output: PathBuf,
    /// One of our commands with its arguments, or another program.
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<OsString>,
}

/// Run a coordinator: it knows the tables and the servers.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat coordinator -C tcp:host=127.0.0.1,port=7740
  sprat coordinator -C 'fast+shm:name=lab;tcp:host=127.0.0.1,port=7740' --state lab.state")]
pub(crate) struct Coordinator {
    /// Where it listens; several locators with `;`
    #[arg(short = 'C', long = "coordinator", value_name = "LOCATOR", env = "SPRAT_COORDINATOR", hide_env_values = true, default_value = DEFAULT_COORDINATOR)]
    pub(crate) locators: String,
    /// Keep its state in this file, so that it survives a restart; without it the state is in memory only. What cannot be written
    /// there is refused, and written again when there is room.
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
    /// Allow an address other than loopback: nothing is encrypted yet, so anyone who reaches it may read and write.
    #[arg(long)]
    pub(crate) insecure_network: bool,
}

/// Run a server: it keeps objects in memory and serves them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat server -C tcp:host=127.0.0.1,port=7740 -L fast+shm:name=lab.1
  sprat server -C tcp:host=127.0.0.1,port=7740 -L fast+shm:name=lab.2 \\
      --control tcp:host=127.0.0.1,port=7802

The two paths are independent: with --control the coordinator talks to a server over TCP, say,
while clients reach it over shared memory.")]
pub(crate) struct Server {
    #[command(flatten)]
    pub(crate) at: Where,
    /// Where it listens; several locators with `;`
    #[arg(short = 'L', long = "locators", value_name = "LOCATOR[;LOCATOR…]")]
    pub(crate) locators: String,
    /// Where the coordinator reaches it, if not there.
    #[arg(long, value_name = "LOCATOR")]
    pub(crate) control: Option<String>,
    /// Memory for objects, in bytes (K, M and G are powers of 1024): 48M at least.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = memory)]
    pub(crate) memory: u64,
    /// Keep marks of where the time of requests goes, for `sprat perf breakdown` and `sprat ping`; each request takes some hundred
    /// nanoseconds longer.
    #[arg(long)]
    pub(crate) marks: bool,
    /// Allow an address other than loopback: nothing is encrypted yet, so anyone who reaches it may read and write.
    #[arg(long)]
    pub(crate) insecure_network: bool,
}

/// Create, drop and list tables.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  sprat table create books --span 3
  sprat table list
  sprat table drop books")]
pub(crate) enum Table {
    /// Create a table; one that exists already stays as it is.
    #[command(after_help = "Example:
  sprat table create books --span 3       its keys are spread over three servers")]
    Create {
        #[command(flatten)]
        at: Cluster,
        /// The table's name.
        name: String,
        /// How many servers share its keys, 1 to 256.
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(SPANS))]
        span: u32,
    },
    /// Drop a table with all its objects.
    #[command(after_help = "Example:
  sprat table drop books")]
    Drop {
        #[command(flatten)]
        at: Cluster,
        /// The table's name.
        name: String,
    },
    /// List the tables and where their parts are.
    #[command(after_help = "Example:
  sprat table list --json")]
    List {
        #[command(flatten)]
        at: Cluster,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
}

/// Read an object: its bytes, as they are, to standard output.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat get books dune
  sprat get books cover > cover.png
  sprat get books dune --json             {\"key\":\"dune\",\"value\":\"Frank Herbert\",\"version\":1}

Exit code 3 means that there is no such object.")]
pub(crate) struct Get {
    #[command(flatten)]
    pub(crate) at: Cluster,
    /// The table's name.
    pub(crate) table: String,
    /// The object's key.
    pub(crate) key: OsString,
    /// Only if the object has this version.
    #[arg(long, value_name = "V")]
    pub(crate) if_version: Option<u64>,
    /// A JSON object with key, value and version.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write an object.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat put books dune 'Frank Herbert'
  sprat put books cover - < cover.png
  sprat put books dune 'F. Herbert' --if-version 1
  sprat put locks leader me --if-absent

Exit code 4 means that the object is not in the state that was demanded; nothing was written.")]
pub(crate) struct Put {
    #[command(flatten)]
    pub(crate) at: Cluster,
    /// The table's name.
    pub(crate) table: String,
    /// The object's key.
    pub(crate) key: OsString,
    /// The value; `-` reads it from standard input.
    #[arg(allow_hyphen_values = true)]
    pub(crate) value: OsString,
    #[command(flatten)]
    pub(crate) only: Condition,
    /// A JSON object with the new version.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove an object.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat del books dune
  sprat del books dune --if-version 7

Exit code 3 means that there was no such object, 4 that it has another version.")]
pub(crate) struct Del {
    #[command(flatten)]
    pub(crate) at: Cluster,
    /// The table's name.
    pub(crate) table: String,
    /// The object's key.
    pub(crate) key: OsString,
    /// Only if the object has this version.
    #[arg(long, value_name = "V")]
    pub(crate) if_version: Option<u64>,
    /// A JSON object with the version that was removed.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number that can be added.
fn finite(text: &str) -> Result<f64, String> {
    let number: f64 =
        text.parse().map_err(|_| "it must be a number, like 0.5 or -2e3".to_owned())?;
    if number.is_finite() { Ok(number) } else { Err("it must be finite".to_owned()) }
}

/// Add to an object that is a number in decimal text, and print the sum.
///
/// The object becomes the sum's text, which `get` prints and `put` can set. A missing object counts
/// as 0. One that is no number is left as it is, and so is one whose sum would not fit into 64
/// bits. Each increment takes effect exactly once, however often the network made it be sent.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat incr hits /index.html
  sprat incr hits /index.html -5
  sprat incr temperature berlin --float 0.5")]
pub(crate) struct Incr {
    #[command(flatten)]
    pub(crate) at: Cluster,
    /// The table's name.
    pub(crate) table: String,
    /// The object's key.
    pub(crate) key: OsString,
    /// How much to add.
    #[arg(value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(crate) by: i64,
    /// Take the object for a double, and add this.
    #[arg(long, value_name = "X", allow_hyphen_values = true, conflicts_with = "by", value_parser = finite)]
    pub(crate) float: Option<f64>,
    #[command(flatten)]
    pub(crate) only: Condition,
    /// A JSON object with the sum and the new version.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Under which condition an object is changed.
#[derive(Args, Clone, Debug, Default)]
#[group(multiple = false)]
pub(crate) struct Condition {
    /// Only if the object has this version.
    #[arg(long, value_name = "V")]
    pub(crate) if_version: Option<u64>,
    /// Only if there is no such object yet.
    #[arg(long, conflicts_with_all = ["if_version", "if_exists"])]
    pub(crate) if_absent: bool,
    /// Only if there is such an object.
    #[arg(long)]
    pub(crate) if_exists: bool,
}

/// How records stand in a file.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// JSON Lines: one object a line.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
}

/// Which file, and how it is written.
#[derive(Args, Clone, Debug)]
pub(crate) struct File {
    /// The file; `-` is standard input or output.
    #[arg(value_name = "FILE")]
    pub(crate) path: PathBuf,
    /// The table's name.
    #[arg(long, value_name = "TABLE")]
    pub(crate) table: String,
    /// The format; by the file's extension (.jsonl, .ndjson, .json, .csv) unless given.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) format: Option<Format>,
    /// How many operations to have in progress.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) outstanding: u16,
}

/// Write the records of a file into a table, each under its key.
#[derive(Args, Debug)]
#[command(
    after_help = "JSON Lines: {\"key\":\"dune\",\"value\":\"Frank Herbert\"}; \"key64\" and \"value64\" hold base64 where bytes are no text.
CSV: a header that names the columns key or key64, value or value64; others are ignored.

Examples:
  sprat import books.jsonl --table books
  sprat import books.csv --table books --create --span 3
  zcat big.jsonl.gz | sprat import - --format jsonl --table big --skip-bad

A malformed line is named with its number. Nothing after it is read, but the lines before it are written."
)]
pub(crate) struct Import {
    #[command(flatten)]
    pub(crate) at: Cluster,
    #[command(flatten)]
    pub(crate) file: File,
    /// Create the table if there is none.
    #[arg(long)]
    pub(crate) create: bool,
    /// With --create: how many servers share its keys, 1 to 256.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "create", value_parser = clap::value_parser!(u32).range(SPANS))]
    pub(crate) span: u32,
    /// Skip malformed lines, name and count them, and end well.
    #[arg(long)]
    pub(crate) skip_bad: bool,
}

/// Write all objects of a table to a file, in no particular order.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat export books.jsonl --table books
  sprat export - --format csv --table books | head

The file appears when it is complete: until then the records go to a temporary file beside it,
which an error or Ctrl-C removes. Symbolic links are followed. A file that is replaced keeps its
mode and its owner; other names of it (hard links) keep the old content. A device, a FIFO or
/dev/fd/N is written in place.")]
pub(crate) struct Export {
    #[command(flatten)]
    pub(crate) at: Cluster,
    #[command(flatten)]
    pub(crate) file: File,
}

/// Show the servers and what they have counted.
///
/// Counters that are 0 on all servers are left out.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat stats
  sprat stats --all
  sprat stats --json")]
pub(crate) struct Stats {
    #[command(flatten)]
    pub(crate) at: Cluster,
    /// Show counters that are 0, too.
    #[arg(long)]
    pub(crate) all: bool,
    /// One JSON object a server, with all counters.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measure latency and throughput, each figure beside what the machine allows.
///
/// Without --local the cluster at -C is measured; with it, perf starts processes of its own, the server on another core.
/// Sizes are decimal: 1KB is 1,000 bytes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat perf --local echo
  sprat perf --local --transport fast+shm,tcp --size 100,1MB basic
  sprat perf --local --full basic         ClusterPerf's sets: 200 MB of objects of each size
  sprat perf --local --sessions 1000000 sessions
  sprat perf --json results.jsonl echo basic readThroughput
  sprat perf --local --transport fast+shm,fast+udp --svg parts.svg breakdown

floor is the round trip of the same bytes with no software of ours in between (raw ring, raw UDP,
raw TCP), tcp that of kernel TCP, both taken in turns with the figure beside them. All are medians
over the rounds.")]
pub(crate) struct Perf {
    #[command(flatten)]
    pub(crate) at: Where,
    /// What to measure.
    #[arg(value_enum, required = true, value_name = "TEST")]
    pub(crate) tests: Vec<sprat_bench::perf::Test>,
    /// Start processes of its own instead of measuring a running cluster.
    #[arg(long)]
    pub(crate) local: bool,
    /// Transports to measure.
    #[arg(long, value_name = "T,T…", value_delimiter = ',', default_value = "fast+shm,fast+udp,tcp", value_parser = TRANSPORTS)]
    pub(crate) transport: Vec<String>,
    /// How long each figure is measured, in seconds, over all rounds.
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Rounds in which floor, kernel TCP and product take turns.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) rounds: u16,
    /// Sizes in bytes (decimal KB and MB allowed); each test has its own defaults.
    #[arg(long, value_name = "SIZE,SIZE…", value_delimiter = ',', value_parser = size)]
    pub(crate) size: Vec<usize>,
    /// Objects of each size in basic and readThroughput.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) objects: u64,
    /// ClusterPerf's own number of objects: 2e8 / (size + 50).
    #[arg(long, conflicts_with = "objects")]
    pub(crate) full: bool,
    /// Sessions to open in sessions.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    pub(crate) sessions: u32,
    /// Requests in progress in throughput tests.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) outstanding: u16,
    /// Also write the results to this file as JSON Lines; `-` for standard output, then without the table.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the picture of breakdown to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

impl Perf {
    /// What is measured then, and how.
    pub(crate) fn options(&self) -> sprat_bench::perf::Options {
        sprat_bench::perf::Options {
            tests: self.tests.clone(),
            local: self.local,
            coordinator: self.at.coordinator.clone(),
            transports: self.transport.clone(),
            seconds: self.seconds,
            rounds: self.rounds,
            sizes: self.size.clone(),
            objects: (!self.full).then_some(self.objects),
            sessions: self.sessions as usize,
            outstanding: usize::from(self.outstanding),
            json: self.json.clone(),
            svg: self.svg.clone(),
        }
    }
}

/// Show it all in two minutes: a cluster of processes, real data, a killed client, and how fast it is here.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sprat demo")]
pub(crate) struct Demo {
    /// The real data: a file of stanzas such as dpkg's.
    #[arg(long, value_name = "FILE", default_value = "/var/lib/dpkg/status")]
    pub(crate) data: PathBuf,
}

/// Tell which packet devices work here, what is missing, and what mends it.
///
/// Each is opened and closed again: in a network of its own, which needs root, or on the interface that is named.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat doctor
  sprat doctor --dev eth0                 the program for xdp is on eth0 for a moment")]
pub(crate) struct Doctor {
    /// Look on this interface.
    #[arg(long, value_name = "DEV")]
    pub(crate) dev: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Echo {
    #[arg(short = 'L', long = "locators")]
    pub(crate) locators: String,
    #[arg(long)]
    pub(crate) insecure_network: bool,
    #[arg(long)]
    pub(crate) marks: bool,
    /// Answer with how many requests were executed, this one among them, instead.
    #[arg(long)]
    pub(crate) tally: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Count {
    #[command(flatten)]
    pub(crate) at: Cluster,
    pub(crate) table: String,
    pub(crate) key: String,
    /// Where each acknowledged sum is recorded before the next increment begins.
    pub(crate) record: PathBuf,
}

/// Memory of a server: a limit that its log can work with.
fn memory(text: &str) -> Result<u64, String> {
    let bytes = limit(text)?;
    if bytes < memory::LEAST {
        return Err(format!("a server needs at least {}M for objects", memory::LEAST >> 20));
    }
    Ok(bytes)
}

/// A limit in bytes: K, M, G (also KiB, MiB, GiB) are powers of 1024.
fn limit(text: &str) -> Result<u64, String> {
    let unit = [("", 1), ("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30)];
    scaled(text, &unit, &["", "ib", "b"])
        .ok_or_else(|| "expected bytes such as 500000000, 512M or 4G".to_owned())
}

fn cluster_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if (1..=32).contains(&text.len()) && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("expected 1 to 32 letters, digits, - or _".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_commands_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn limits_are_binary() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64K", 65536),
            ("512M", 512 << 20),
            ("4g", 4 << 30),
            ("1GiB", 1 << 30),
            ("10b", 10),
        ] {
            assert_eq!(limit(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1T", "1.5G", "99999999999999999G", "1 2"] {
            assert!(limit(text).is_err(), "{text}");
        }
        assert_eq!(memory("48M"), Ok(memory::LEAST), "as the help says");
        for text in ["0", "47M", "50331647"] {
            assert!(memory(text).expect_err(text).contains("at least 48M"), "{text}");
        }
    }

    #[test]
    fn a_name_is_plain() {
        assert!(cluster_name("lab-2_b").is_ok());
        for bad in ["", "a/b", "..", "a b", &"x".repeat(33)] {
            assert!(cluster_name(bad).is_err(), "{bad}");
        }
    }
}
