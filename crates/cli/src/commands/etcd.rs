//! `sprat etcd`: the process that becomes the etcd of a cluster. `sprat chaos` starts it.

use clap::Args;
use sprat_bench::cluster::etcd;
use sprat_bench::fail::Fail;

/// Run etcd, which ends with the process that started it.
#[derive(Args, Debug)]
pub(crate) struct Etcd {
    /// Address at which etcd listens for clients.
    #[arg(value_name = "HOST:PORT")]
    at: String,
    /// Options of etcd.
    #[arg(last = true)]
    options: Vec<String>,
}

/// Runs `sprat etcd`.
pub(crate) fn run(args: &Etcd) -> Result<(), Fail> {
    Err(etcd::become_etcd(&args.at, &args.options))
}
