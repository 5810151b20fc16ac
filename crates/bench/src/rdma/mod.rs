//! The measurements of `sprat rdma`, and the programs that speak rping's and perftest's exchanges.

use std::net::SocketAddr;

use sprat::verbs::{ConnectError, ConnectOptions, Connected, Device, QueuePair};

use crate::fail::{Fail, Named as _};

mod accept;
pub mod args;
mod bench;
mod connections;
mod endpoint;
mod perftest;
mod ping;
mod schemes;
mod sides;
mod table;
mod under;

pub use bench::{bw, lat};
pub use connections::{host, run as connections};
pub use endpoint::peer;
pub use perftest::run as perftest;
pub use ping::run as ping;
pub use schemes::run as schemes;
pub use table::run as table;

/// Opens an RDMA device that may use the address `at`.
fn device_for(wire: &args::Wire, at: SocketAddr) -> Result<Device, Fail> {
    let device = Device::open(wire.options()).named("cannot open a device")?;
    device.allows(at).map_err(|error| {
        Fail::new(error.to_string())
            .next("allow it with --insecure-network, or choose an address of loopback")
    })?;
    Ok(device)
}

/// Connects the queue pair `pair` to the address `at`.
fn connect(pair: &QueuePair, at: SocketAddr, options: ConnectOptions) -> Result<Connected, Fail> {
    let failed = format!("cannot connect with {at}");
    pair.begin_connect(at, options).named(&failed)?;
    pair.connected(endpoint::PATIENCE).map_err(|error| {
        Fail::new(format!("{failed}: {error}")).next(match error {
            ConnectError::Rejected { .. } => "see what the server says about it",
            _ => "see whether a server is there, and of which kind",
        })
    })
}
