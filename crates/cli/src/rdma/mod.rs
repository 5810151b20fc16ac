//! `sprat rdma`: verbs from the command line.

use std::net::SocketAddr;

use sprat::verbs::{ConnectError, ConnectOptions, Connected, Device, QueuePair};

use crate::fail::{Fail, Named as _};

pub(crate) mod args;
mod bench;
mod crowd;
mod devices;
mod end;
mod perftest;
mod ping;
mod sides;
mod strays;
mod table;

/// A device that may listen at `at` and connect with it.
fn device_for(wire: &args::Wire, at: SocketAddr) -> Result<Device, Fail> {
    let device = Device::open(wire.options()).named("cannot open a device")?;
    device.allows(at).map_err(|error| {
        Fail::new(error.to_string())
            .next("allow it with --insecure-network, or choose an address of loopback")
    })?;
    Ok(device)
}

/// Connects `pair` with `at`; what goes wrong here is said as the system says it.
fn connect(pair: &QueuePair, at: SocketAddr, options: ConnectOptions) -> Result<Connected, Fail> {
    let failed = format!("cannot connect with {at}");
    pair.begin_connect(at, options).named(&failed)?;
    pair.connected(end::PATIENCE).map_err(|error| {
        Fail::new(format!("{failed}: {error}")).next(match error {
            ConnectError::Rejected { .. } => "see what the server says about it",
            _ => "see whether a server is there, and of which kind",
        })
    })
}

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
