//! `sprat bench`: the options of ClusterPerf's tests of transactions on several servers, and of an
//! index on several servers.

use clap::Args;
use sprat::kv::MAX_TRANSACTION;
use sprat_bench::perf::{Options, Test, Transacting};

use super::args::{Clients, Objects, Plain, Replicas, Servers, Sizes};

/// Options for the objects that a test of `sprat bench` writes to several servers.
#[derive(Args, Debug)]
struct Stored {
    #[command(flatten)]
    servers: Servers,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    objects: Objects,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

impl Stored {
    fn options(&self, test: Test) -> Options {
        Options {
            servers: self.servers.servers,
            sizes: self.sizes.size.clone(),
            objects: self.objects.count(),
            copies: self.copies.copies(),
            ..self.plain.options(test)
        }
    }
}

/// Options for the objects of each transaction of a test of `sprat bench`.
#[derive(Args, Debug)]
struct EachTransaction {
    /// Number of objects that each transaction reads and writes.
    #[arg(
        long,
        alias = "numObjects",
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u16).range(1..=MAX_TRANSACTION as i64),
    )]
    transaction_objects: u16,
    /// Number of servers that have the objects of one transaction. The default is all servers.
    #[arg(
        long,
        alias = "txSpan",
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=32),
    )]
    span: Option<u16>,
}

impl EachTransaction {
    fn transacting(&self) -> Transacting {
        Transacting { objects: self.transaction_objects.into(), span: self.span }
    }
}

/// Options of `sprat bench index-scalability`.
#[derive(Args, Debug)]
pub(crate) struct IndexOnServers {
    #[command(flatten)]
    clients: Clients,
    /// Number of look-ups that each client has in progress. With 1 it is a blocking client, with
    /// more an asynchronous one, which has a thread of its own.
    #[arg(
        long,
        alias = "count",
        value_name = "N",
        default_value_t = 20,
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    outstanding: u16,
    #[command(flatten)]
    stored: Stored,
}

impl IndexOnServers {
    pub(super) fn options(&self, test: Test) -> Options {
        Options {
            clients: self.clients.counts(),
            outstanding: self.outstanding.into(),
            ..self.stored.options(test)
        }
    }
}

/// Options of `sprat bench transaction-dist-random`.
#[derive(Args, Debug)]
pub(crate) struct RandomTransactions {
    #[command(flatten)]
    each: EachTransaction,
    #[command(flatten)]
    stored: Stored,
}

impl RandomTransactions {
    pub(super) fn options(&self, test: Test) -> Options {
        Options { transacting: self.each.transacting(), ..self.stored.options(test) }
    }
}

/// Options of `sprat bench transaction-throughput` and `transaction-contention`.
#[derive(Args, Debug)]
pub(crate) struct ManyTransactions {
    #[command(flatten)]
    clients: Clients,
    #[command(flatten)]
    each: EachTransaction,
    #[command(flatten)]
    stored: Stored,
}

impl ManyTransactions {
    pub(super) fn options(&self, test: Test) -> Options {
        Options {
            clients: self.clients.counts(),
            transacting: self.each.transacting(),
            ..self.stored.options(test)
        }
    }
}

/// Options of `sprat bench transaction-collision`.
#[derive(Args, Debug)]
pub(crate) struct Transfers {
    #[command(flatten)]
    clients: Clients,
    #[command(flatten)]
    servers: Servers,
    /// Number of accounts on each server.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        value_parser = clap::value_parser!(u64).range(1..=1_000_000),
    )]
    objects: u64,
    #[command(flatten)]
    each: EachTransaction,
    #[command(flatten)]
    copies: Replicas,
    #[command(flatten)]
    plain: Plain,
}

impl Transfers {
    pub(super) fn options(&self, test: Test) -> Options {
        Options {
            clients: self.clients.counts(),
            servers: self.servers.servers,
            objects: Some(self.objects),
            transacting: self.each.transacting(),
            copies: self.copies.copies(),
            ..self.plain.options(test)
        }
    }
}
