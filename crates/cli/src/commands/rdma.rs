//! `sprat rdma`: tries and measures software RDMA from the command line.

use clap::{Args, Subcommand};
use sprat_bench::fail::Fail;
use sprat_bench::rdma;
use sprat_bench::rdma::args::{Bw, Connections, Lat, Model, Perftest, Ping, Table};

mod devices;

/// Try and measure software RDMA (iWARP) over TCP.
#[derive(Subcommand, Debug)]
pub(crate) enum Rdma {
    #[command(alias = "ping")]
    Rping(Ping),
    Lat(Lat),
    Bw(Bw),
    Table(Table),
    #[command(alias = "crowd")]
    Connections(Connections),
    Perftest(Perftest),
    Devices(Devices),
    /// Run the other side of lat and bw.
    #[command(hide = true)]
    Peer(Model),
    /// Run the other side of connections.
    #[command(hide = true)]
    Host(Model),
}

/// List the devices that a program sees under `sprat exec`: one for each IP interface.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  sprat rdma devices --json")]
pub(crate) struct Devices {
    /// Write the devices as JSON Lines, one object for each device.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `sprat rdma`.
pub(crate) fn run(command: &Rdma) -> Result<(), Fail> {
    match command {
        Rdma::Rping(args) => rdma::ping(args),
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
