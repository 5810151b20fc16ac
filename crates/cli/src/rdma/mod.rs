//! `sprat rdma`: verbs from the command line.

use crate::fail::Fail;

pub(crate) mod args;
mod bench;
mod crowd;
mod devices;
mod end;
mod perftest;
mod ping;
mod sides;
mod table;

/// Runs the command.
pub(crate) fn run(command: &args::Rdma) -> Result<(), Fail> {
    match command {
        args::Rdma::Ping(args) => ping::run(args),
        args::Rdma::Lat(args) => bench::lat(args),
        args::Rdma::Bw(args) => bench::bw(args),
        args::Rdma::Table(args) => table::run(args),
        args::Rdma::Crowd(args) => crowd::run(args),
        args::Rdma::Devices(args) => devices::run(args),
        args::Rdma::Perftest(args) => perftest::run(args),
        args::Rdma::Peer(model) => end::peer(model),
        args::Rdma::Host(model) => crowd::host(model),
    }
}
