//! `sprat rdma`: verbs from the command line.

use clap::{Args, Subcommand};
use sprat_bench::fail::Fail;
use sprat_bench::rdma;
use sprat_bench::rdma::args::{Bw, Connections, Lat, Model, Perftest, Ping, Table};

mod devices;

/// Software RDMA (iWARP) over TCP: try it with any peer, measure it.
#[derive(Subcommand, Debug)]
pub(crate) enum Rdma {
    Ping(Ping),
    Lat(Lat),
    Bw(Bw),
    Table(Table),
    #[command(alias = "crowd")]
    Connections(Connections),
    Perftest(Perftest),
    Devices(Devices),
    /// The other side of lat and bw.
    #[command(hide = true)]
    Peer(Model),
    /// The other side of connections.
    #[command(hide = true)]
    Host(Model),
}

/// List the devices that a program sees under `sprat exec`: one for each IP interface.
#[derive(Args, Debug)]
pub(crate) struct Devices {
    /// Write JSON, one line a device.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs the command.
pub(crate) fn run(command: &Rdma) -> Result<(), Fail> {
    match command {
        Rdma::Ping(args) => rdma::ping(args),
        Rdma::Lat(args) => rdma::lat(args),
        Rdma::Bw(args) => rdma::bw(args),
        Rdma::Table(args) => rdma::table(args),
        Rdma::Connections(args) => rdma::connections(args),
        Rdma::Devices(args) => devices::run(args),
        Rdma::Perftest(args) => rdma::perftest(args),
        Rdma::Peer(model) => rdma::peer(model),
        Rdma::Host(model) => rdma::host(model),
    }
}
