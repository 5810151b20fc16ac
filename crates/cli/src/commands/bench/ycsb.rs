//! `sprat bench ycsb`: its options.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use sprat_bench::peers::server::Peer;
use sprat_bench::perf::{self, Options, Test};
use sprat_bench::units::size;
use sprat_bench::ycsb::workload::Workload;

use super::args::{Plain, Replicas, Target};

/// Measure YCSB's workloads A to F, beside Redis and memcached if they are named.
///
/// Records, keys and distributions are those of YCSB: keys are "user" and a hash, the scrambled
/// Zipfian distribution has YCSB's constants (θ 0.99), D reads the latest records. A record is one
/// value of --field-count × --field-length bytes, and an update replaces all of it, as with YCSB's
/// writeallfields. An operation is timed from its start to its end; a read-modify-write counts as
/// one operation of the throughput, and its parts count as a read and as an update.
///
/// All stores get the same: each client is a thread with a connection of its own, all clients share
/// one core, each server has one working thread on another core, and each client has --pipeline
/// operations in progress. Redis (GET, SET) and memcached (mg, ms) run without persistence and
/// without replicas, also with --replicas. The client for them is our own: it pipelines, polls and
/// sleeps as ours does.
///
/// Workload E scans the records in the order of their keys. Ours have an index of the keys, Redis
/// has a sorted set of them (ZADD, ZRANGEBYLEX, then MGET), and memcached has no scan. With a
/// --pipeline above 1 our client is the asynchronous one, which has a thread of its own.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  sprat bench ycsb --workload a,b --clients 16 --beside redis,memcached
  sprat bench ycsb --workload c --pipeline 16 --transport fast+shm,tcp --size 100
  sprat bench ycsb --workload f --replicas 2 --records 10000

scripts/tools --stores installs Redis and memcached on Debian.")]
pub(crate) struct Ycsb {
    /// Workloads to measure: a (half updates), b (5 % updates), c (reads), d (latest records, 5 %
    /// inserts), e (scans), f (half read-modify-writes).
    #[arg(
        long,
        value_name = "W,W…",
        value_delimiter = ',',
        default_value = "a,b,c,d,e,f",
        hide_possible_values = true,
        ignore_case = true,
        value_parser = workloads(&Workload::ALL),
    )]
    workload: Vec<Workload>,
    /// Number of records to load.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
    )]
    records: u64,
    /// Number of fields of a record.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    field_count: u16,
    /// Bytes of a field (decimal KB and MB allowed).
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = size)]
    field_length: usize,
    /// Bytes of a record, instead of fields (decimal KB and MB allowed).
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = size,
        conflicts_with_all = ["field_count", "field_length"],
    )]
    size: Option<usize>,
    /// Numbers of clients to measure with, one after the other.
    #[arg(
        long,
        value_name = "N,N…",
        value_delimiter = ',',
        default_value = "1,16,64",
        value_parser = clap::value_parser!(u16).range(1..=1000),
    )]
    clients: Vec<u16>,
    /// Number of operations that each client has in progress. YCSB's own clients have 1.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    pipeline: u16,
    /// Other stores to measure in turns with ours: redis and memcached over loopback TCP,
    /// redis+unix and memcached+unix over a Unix socket.
    #[arg(
        long,
        value_name = "STORE,STORE…",
        value_delimiter = ',',
        hide_possible_values = true,
        value_parser = peers(),
    )]
    beside: Vec<Peer>,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

/// Returns the parser of the letters of these workloads.
pub(super) fn workloads(
    known: &'static [Workload],
) -> impl clap::builder::TypedValueParser<Value = Workload> {
    PossibleValuesParser::new(known.iter().map(|workload| workload.name())).map(|name| {
        let found = known.iter().find(|w| w.name().eq_ignore_ascii_case(&name));
        *found.expect("clap takes no other name")
    })
}

/// Returns the parser of a peer's name.
fn peers() -> impl clap::builder::TypedValueParser<Value = Peer> {
    PossibleValuesParser::new(Peer::ALL.map(Peer::name)).map(|name| {
        let found = Peer::ALL.into_iter().find(|peer| peer.name() == name);
        found.expect("clap takes no other name")
    })
}

impl Ycsb {
    /// Returns the options of the test.
    pub(super) fn options(&self) -> Options {
        let fields = usize::from(self.field_count) * self.field_length;
        Options {
            copies: self.copies.copies(),
            coordinator: self.target.coordinator(),
            clients: self.clients.iter().copied().map(usize::from).collect(),
            ycsb: perf::Ycsb {
                workloads: self.workload.clone(),
                records: self.records,
                size: self.size.unwrap_or(fields),
                pipeline: self.pipeline.into(),
                beside: self.beside.clone(),
            },
            ..self.plain.options(Test::Ycsb)
        }
    }
}
