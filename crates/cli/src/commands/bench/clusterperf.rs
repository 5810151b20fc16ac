//! `sprat bench`: the tests of RAMCloud's ClusterPerf that have no other name here, with their
//! options.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use sprat_bench::perf::{ClusterPerf, Copies, Options, Test, Ycsb};
use sprat_bench::ycsb::workload::Workload;

use super::args::{Clients, Objects, Plain, ReadWrite, Replicas, Servers, Sizes, Target};
use super::spread::{IndexOnServers, ManyTransactions, RandomTransactions, Transfers};
use super::ycsb::workloads;

/// The tests of ClusterPerf, each with RAMCloud's name as an alias.
#[derive(Subcommand, Debug)]
pub(crate) enum Tests {
    /// Measure reads of an object that does not exist.
    #[command(
        alias = "readNotFound",
        after_help = "Example:
  sprat bench read-not-found --transport fast+shm"
    )]
    ReadNotFound(ReadWrite),
    /// Measure reads of an object by the length of its key (10 of ClusterPerf's 44 lengths).
    #[command(
        alias = "readVaryingKeyLength",
        after_help = "Example:
  sprat bench read-varying-key-length --size 100 --transport fast+shm"
    )]
    ReadVaryingKeyLength(ReadWrite),
    /// Measure writes of an object by the length of its key (10 of ClusterPerf's 44 lengths).
    #[command(
        alias = "writeVaryingKeyLength",
        after_help = "Example:
  sprat bench write-varying-key-length --size 100 --replicas 1"
    )]
    WriteVaryingKeyLength(ReadWrite),
    /// Measure the distribution of the times of reads of one object.
    #[command(
        alias = "readDist",
        after_help = "Example:
  sprat bench read-dist --transport fast+shm --json times.jsonl"
    )]
    ReadDist(ReadWrite),
    /// Measure the distribution of the times of reads of random objects.
    #[command(
        alias = "readDistRandom",
        after_help = "Example:
  sprat bench read-dist-random --objects 1000000 --transport fast+shm"
    )]
    ReadDistRandom(ReadWrite),
    /// Measure the distribution of the times of overwrites of random objects.
    #[command(
        alias = "writeDistRandom",
        after_help = "Example:
  sprat bench write-dist-random --objects 1000000 --replicas 2"
    )]
    WriteDistRandom(ReadWrite),
    /// Measure the distribution of the times of reads under a workload of YCSB.
    #[command(
        alias = "readDistWorkload",
        after_help = "Example:
  sprat bench read-dist-workload --workload b --clients 8"
    )]
    ReadDistWorkload(UnderLoad),
    /// Measure the distribution of the times of updates under a workload of YCSB.
    #[command(
        alias = "writeDistWorkload",
        after_help = "Example:
  sprat bench write-dist-workload --workload a --clients 8 --replicas 2"
    )]
    WriteDistWorkload(UnderLoad),
    /// Measure operations a second of a server under a workload of YCSB.
    #[command(
        alias = "workloadThroughput",
        after_help = "Example:
  sprat bench workload-throughput --workload a --clients 1,4,16"
    )]
    WorkloadThroughput(UnderLoad),
    /// Measure reads of several sizes, of each alone and of all at the same time.
    #[command(
        alias = "readInterference",
        after_help = "Example:
  sprat bench read-interference --size 100,1MB --transport fast+shm"
    )]
    ReadInterference(Sized),
    /// Measure overwrites of several sizes, of each alone and of all at the same time.
    #[command(
        alias = "writeInterference",
        after_help = "Example:
  sprat bench write-interference --size 100,1MB --replicas 1"
    )]
    WriteInterference(Sized),
    /// Measure a write that waits for its replicas, behind one that waits and one that does not.
    ///
    /// --size has the bytes of the first value, and the second one has 100 B. The first write goes
    /// to a table of durability async, or to the table of the second one, on the same server. A
    /// cluster that the test starts has one replica of each object, or as many as --replicas says.
    #[command(
        alias = "writeAsyncSync",
        after_help = "Example:
  sprat bench write-async-sync --size 100,1MB --replicas 2 --transport fast+shm"
    )]
    WriteAsyncSync(Sized),
    /// Measure reads of one object by several clients at the same time.
    #[command(
        alias = "readLoaded",
        after_help = "Example:
  sprat bench read-loaded --clients 1,2,4,8 --transport fast+shm"
    )]
    ReadLoaded(ManyClients),
    /// Measure reads by several clients of objects on several servers, at random.
    #[command(
        alias = "readRandom",
        after_help = "Example:
  sprat bench read-random --servers 4 --clients 1,4"
    )]
    ReadRandom(ManyServers),
    /// Measure reads of 80 objects in one operation by several clients.
    #[command(
        alias = "multiReadThroughput",
        after_help = "Example:
  sprat bench multi-read-throughput --clients 1,4 --transport fast+shm"
    )]
    MultiReadThroughput(ManyClients),
    /// Measure reads in one operation of one object from each of several servers.
    #[command(
        alias = "multiRead_oneObjectPerMaster",
        after_help = "Example:
  sprat bench multi-read-one-object-per-master --servers 4"
    )]
    MultiReadOneObjectPerMaster(ManyServers),
    /// Measure reads of 5,000 objects in one operation by the number of servers that have them.
    #[command(
        alias = "multiRead_general",
        after_help = "Example:
  sprat bench multi-read-general --servers 4 --transport fast+shm"
    )]
    MultiReadGeneral(ManyServers),
    /// Measure reads as multi-read-general does, in random order.
    #[command(
        alias = "multiRead_generalRandom",
        after_help = "Example:
  sprat bench multi-read-general-random --servers 4 --transport fast+shm"
    )]
    MultiReadGeneralRandom(ManyServers),
    /// Measure reads of 16 objects in one operation, of which more and more are on other servers.
    #[command(
        alias = "multiRead_colocation",
        after_help = "Example:
  sprat bench multi-read-colocation --servers 4 --clients 4"
    )]
    MultiReadColocation(ManyServers),
    /// Measure the bandwidth of clients that each read a large object from another server.
    #[command(
        alias = "netBandwidth",
        after_help = "Example:
  sprat bench net-bandwidth --servers 2 --clients 2"
    )]
    NetBandwidth(ManyServers),
    /// Measure reads of every client from every server, and that each of them succeeds.
    #[command(
        alias = "readAllToAll",
        after_help = "Example:
  sprat bench read-all-to-all --servers 4 --clients 4"
    )]
    ReadAllToAll(ManyServers),
    /// Measure echoes whose sizes follow a distribution, offered at a rate.
    #[command(
        alias = "echo_workload",
        after_help = "The file has ClusterPerf's format: the average, then pairs of a size in
bytes and the share of messages that are not longer.

Example:
  sprat bench echo-workload --message-sizes sizes.txt --gbps 2"
    )]
    EchoWorkload(EchoWorkload),
    /// Measure the time until several clients have read an object that another one writes.
    #[command(after_help = "Example:
  sprat bench broadcast --clients 4 --transport fast+shm")]
    Broadcast(Broadcast),
    /// Measure inserts and look-ups with an index, by the number of objects.
    ///
    /// The numbers are 1, 10, 100 and so on up to --objects.
    #[command(
        alias = "indexBasic",
        after_help = "Example:
  sprat bench index-basic --objects 1000000 --transport fast+shm"
    )]
    IndexBasic(ReadWrite),
    /// Measure ordered scans of 1 to 1,000 objects.
    #[command(
        alias = "indexRange",
        after_help = "Example:
  sprat bench index-range --objects 1000000 --transport fast+shm"
    )]
    IndexRange(ReadWrite),
    /// Measure inserts and look-ups by the number of indexes, from none to 10.
    #[command(
        alias = "indexMultiple",
        after_help = "Example:
  sprat bench index-multiple --objects 100000 --transport fast+shm"
    )]
    IndexMultiple(ReadWrite),
    /// Measure look-ups a second by the number of servers that hold the index, and of clients.
    ///
    /// A table has a tablet on each server, and so have the nodes of its index.
    #[command(
        alias = "indexScalability",
        after_help = "Example:
  sprat bench index-scalability --servers 4 --clients 1,4,16 --transport fast+shm"
    )]
    IndexScalability(IndexOnServers),
    /// Measure the distribution of the times of look-ups of one key in an index.
    #[command(
        alias = "indexReadDist",
        after_help = "Example:
  sprat bench index-read-dist --objects 1000000 --transport fast+shm --json times.jsonl"
    )]
    IndexReadDist(ReadWrite),
    /// Measure the distribution of the times of overwrites of objects with an index.
    ///
    /// One row has overwrites that give the object another index key, so that its entry moves, and
    /// one has those that keep the index key.
    #[command(
        alias = "indexWriteDist",
        after_help = "Example:
  sprat bench index-write-dist --objects 1000000 --replicas 2"
    )]
    IndexWriteDist(ReadWrite),
    /// Measure transfers between the same few accounts, whose sum is checked.
    ///
    /// Several clients move amounts between random accounts on several servers, in transactions.
    /// After each round the sum of all accounts is as at first, or the test fails. Each row has the
    /// share of tries that ended in a conflict.
    #[command(
        alias = "transaction_collision",
        after_help = "Example:
  sprat bench transaction-collision --clients 4,16 --servers 5 --replicas 1"
    )]
    TransactionCollision(Transfers),
    /// Measure commits a second and aborts of clients that use the same popular objects.
    ///
    /// A transaction reads and overwrites objects that are drawn from YCSB's Zipfian distribution.
    /// After a conflict the client pauses and repeats it. Each row has the share of tries that
    /// ended in a conflict.
    #[command(
        alias = "transactionContention",
        after_help = "Example:
  sprat bench transaction-contention --clients 1,4,16 --objects 10000 --transport fast+shm"
    )]
    TransactionContention(ManyTransactions),
    /// Measure the distribution of the times of transactions on random objects.
    ///
    /// One client reads and overwrites random objects on several servers. The first row has the
    /// times of the commits alone, as ClusterPerf has, and the second those of the reads and the
    /// commits.
    #[command(
        alias = "transactionDistRandom",
        after_help = "Example:
  sprat bench transaction-dist-random --transaction-objects 5 --span 2 --transport fast+shm"
    )]
    TransactionDistRandom(RandomTransactions),
    /// Measure commits a second of clients that use objects of their own.
    #[command(
        alias = "transactionThroughput",
        after_help = "Example:
  sprat bench transaction-throughput --clients 1,4,16 --servers 2 --transport fast+shm"
    )]
    TransactionThroughput(ManyTransactions),
}

/// Options of `sprat bench read-interference` and `write-interference`.
#[derive(Args, Debug)]
pub(crate) struct Sized {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

/// Options of `sprat bench echo-workload`.
#[derive(Args, Debug)]
pub(crate) struct EchoWorkload {
    /// File with the distribution of the messages' sizes.
    #[arg(long, alias = "messageSizeCDF", value_name = "FILE")]
    message_sizes: PathBuf,
    /// Rate of the messages' bytes each way, in 10⁹ bits a second.
    #[arg(
        long,
        alias = "targetTput",
        value_name = "RATE",
        default_value_t = 1.0,
        value_parser = gbps,
    )]
    gbps: f64,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    plain: Plain,
}

/// Parses a rate in 10⁹ bits a second.
fn gbps(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.000_001..=1000.0).contains(rate));
    rate.ok_or_else(|| "expected a rate such as 0.5 or 10, at most 1000".to_owned())
}

/// Options of `sprat bench broadcast`.
#[derive(Args, Debug)]
pub(crate) struct Broadcast {
    #[command(flatten)]
    clients: Clients,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

/// Options of the tests of `sprat bench` with several clients of one server.
#[derive(Args, Debug)]
pub(crate) struct ManyClients {
    #[command(flatten)]
    clients: Clients,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    objects: Objects,
    #[command(flatten)]
    plain: Plain,
}

/// Options of the tests of `sprat bench` that start several servers.
#[derive(Args, Debug)]
pub(crate) struct ManyServers {
    #[command(flatten)]
    servers: Servers,
    #[command(flatten)]
    clients: Clients,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    plain: Plain,
}

/// The workloads without scans.
const WORKLOADS: [Workload; 5] = [Workload::A, Workload::B, Workload::C, Workload::D, Workload::F];

/// Options of the tests of `sprat bench` under a workload of YCSB.
#[derive(Args, Debug)]
pub(crate) struct UnderLoad {
    /// Workload of all clients: a (half updates), b (5 % updates), c (reads), d (latest records,
    /// 5 % inserts), f (half read-modify-writes).
    #[arg(
        long,
        value_name = "W",
        default_value = "a",
        hide_possible_values = true,
        ignore_case = true,
        value_parser = workloads(&WORKLOADS),
    )]
    workload: Workload,
    /// Number of records to load, of 1,000 bytes.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100_000,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
    )]
    records: u64,
    #[command(flatten)]
    clients: Clients,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

impl Tests {
    /// Returns the test that the command runs, with its options.
    pub(super) fn options(&self) -> Options {
        let (name, options) = match self {
            Self::ReadNotFound(args) => (ClusterPerf::ReadNotFound, Given::One(args)),
            Self::ReadVaryingKeyLength(args) => {
                (ClusterPerf::ReadVaryingKeyLength, Given::One(args))
            }
            Self::WriteVaryingKeyLength(args) => {
                (ClusterPerf::WriteVaryingKeyLength, Given::One(args))
            }
            Self::ReadDist(args) => (ClusterPerf::ReadDist, Given::One(args)),
            Self::ReadDistRandom(args) => (ClusterPerf::ReadDistRandom, Given::One(args)),
            Self::WriteDistRandom(args) => (ClusterPerf::WriteDistRandom, Given::One(args)),
            Self::ReadDistWorkload(args) => (ClusterPerf::ReadDistWorkload, Given::Load(args)),
            Self::WriteDistWorkload(args) => (ClusterPerf::WriteDistWorkload, Given::Load(args)),
            Self::WorkloadThroughput(args) => (ClusterPerf::WorkloadThroughput, Given::Load(args)),
            Self::ReadInterference(args) => (ClusterPerf::ReadInterference, Given::Sizes(args)),
            Self::WriteInterference(args) => (ClusterPerf::WriteInterference, Given::Sizes(args)),
            Self::WriteAsyncSync(args) => (ClusterPerf::WriteAsyncSync, Given::Replicated(args)),
            Self::ReadLoaded(args) => (ClusterPerf::ReadLoaded, Given::Clients(args)),
            Self::ReadRandom(args) => (ClusterPerf::ReadRandom, Given::Servers(args)),
            Self::MultiReadThroughput(args) => {
                (ClusterPerf::MultiReadThroughput, Given::Clients(args))
            }
            Self::MultiReadOneObjectPerMaster(args) => {
                (ClusterPerf::MultiReadOneObjectPerMaster, Given::Servers(args))
            }
            Self::MultiReadGeneral(args) => (ClusterPerf::MultiReadGeneral, Given::Servers(args)),
            Self::MultiReadGeneralRandom(args) => {
                (ClusterPerf::MultiReadGeneralRandom, Given::Servers(args))
            }
            Self::MultiReadColocation(args) => {
                (ClusterPerf::MultiReadColocation, Given::Servers(args))
            }
            Self::NetBandwidth(args) => (ClusterPerf::NetBandwidth, Given::Servers(args)),
            Self::ReadAllToAll(args) => (ClusterPerf::ReadAllToAll, Given::Servers(args)),
            Self::EchoWorkload(args) => (ClusterPerf::EchoWorkload, Given::Echo(args)),
            Self::Broadcast(args) => (ClusterPerf::Broadcast, Given::Broadcast(args)),
            Self::IndexBasic(args) => (ClusterPerf::IndexBasic, Given::One(args)),
            Self::IndexRange(args) => (ClusterPerf::IndexRange, Given::One(args)),
            Self::IndexMultiple(args) => (ClusterPerf::IndexMultiple, Given::One(args)),
            Self::IndexReadDist(args) => (ClusterPerf::IndexReadDist, Given::One(args)),
            Self::IndexWriteDist(args) => (ClusterPerf::IndexWriteDist, Given::One(args)),
            Self::IndexScalability(args) => (ClusterPerf::IndexScalability, Given::Index(args)),
            Self::TransactionCollision(args) => {
                (ClusterPerf::TransactionCollision, Given::Transfers(args))
            }
            Self::TransactionContention(args) => {
                (ClusterPerf::TransactionContention, Given::Transactions(args))
            }
            Self::TransactionDistRandom(args) => {
                (ClusterPerf::TransactionDistRandom, Given::Random(args))
            }
            Self::TransactionThroughput(args) => {
                (ClusterPerf::TransactionThroughput, Given::Transactions(args))
            }
        };
        options.options(Test::ClusterPerf(name))
    }
}

/// The options of a test, by the kind of test.
enum Given<'a> {
    One(&'a ReadWrite),
    Load(&'a UnderLoad),
    Sizes(&'a Sized),
    Replicated(&'a Sized),
    Clients(&'a ManyClients),
    Servers(&'a ManyServers),
    Echo(&'a EchoWorkload),
    Broadcast(&'a Broadcast),
    Index(&'a IndexOnServers),
    Transfers(&'a Transfers),
    Transactions(&'a ManyTransactions),
    Random(&'a RandomTransactions),
}

impl Given<'_> {
    fn options(&self, test: Test) -> Options {
        match self {
            Self::One(args) => args.options(test),
            Self::Index(args) => args.options(test),
            Self::Transfers(args) => args.options(test),
            Self::Transactions(args) => args.options(test),
            Self::Random(args) => args.options(test),
            Self::Load(args) => Options {
                clients: args.clients.counts(),
                coordinator: args.target.coordinator(),
                copies: args.copies.copies(),
                ycsb: Ycsb {
                    workloads: vec![args.workload],
                    records: args.records,
                    ..Ycsb::default()
                },
                ..args.plain.options(test)
            },
            Self::Sizes(args) => Options {
                coordinator: args.target.coordinator(),
                copies: args.copies.copies(),
                sizes: args.sizes.size.clone(),
                ..args.plain.options(test)
            },
            Self::Replicated(args) => {
                let options = Self::Sizes(args).options(test);
                let is_default = args.copies.replicas.is_none() && options.coordinator.is_none();
                let replicas = if is_default { 1 } else { options.copies.replicas };
                Options { copies: Copies { replicas, ..options.copies }, ..options }
            }
            Self::Clients(args) => Options {
                clients: args.clients.counts(),
                coordinator: args.target.coordinator(),
                sizes: args.sizes.size.clone(),
                objects: args.objects.count(),
                ..args.plain.options(test)
            },
            Self::Servers(args) => Options {
                clients: args.clients.counts(),
                servers: args.servers.servers,
                sizes: args.sizes.size.clone(),
                ..args.plain.options(test)
            },
            Self::Echo(args) => Options {
                coordinator: args.target.coordinator(),
                message_sizes: Some(args.message_sizes.clone()),
                gbps: args.gbps,
                ..args.plain.options(test)
            },
            Self::Broadcast(args) => Options {
                clients: args.clients.counts(),
                coordinator: args.target.coordinator(),
                copies: args.copies.copies(),
                ..args.plain.options(test)
            },
        }
    }
}
