//! `sprat tcp`: tries and measures our own TCP, and the kernel's beside it.

use clap::Subcommand;
use sprat_bench::fail::Fail;

mod bridge;
mod echo;
mod fetch;
mod fields;
mod http;
mod report;
mod send;
mod serve;
mod streams;

/// Try and measure our own TCP, and the kernel's beside it.
///
/// A locator `utcp+DEVICE:…,host=H,port=P` is our own TCP on a packet device; `tcp:host=H,port=P`
/// is the kernel's. The peer may be either, or any other TCP. SPRAT_LOCAL names the device and the
/// address of this end, as a locator of the same protocol; without it, a client takes the device of
/// LOCATOR and an address for the link alone.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  sprat tcp serve utcp+packet:dev=eth0,host=192.0.2.7,port=80 --http /srv/www
  curl http://192.0.2.7/ from another host
  export SPRAT_LOCAL=utcp+packet:dev=eth0,host=192.0.2.8,port=0     an unused address
  sprat tcp send utcp+packet:dev=eth0,host=192.0.2.9,port=5001 --seconds 10")]
pub(crate) enum Tcp {
    Serve(serve::Serve),
    Fetch(fetch::Fetch),
    Send(send::Send),
    Echo(echo::Echo),
    Bridge(bridge::Bridge),
}

/// Runs `sprat tcp`.
pub(crate) fn run(command: &Tcp) -> Result<(), Fail> {
    match command {
        Tcp::Serve(args) => serve::run(args),
        Tcp::Fetch(args) => fetch::run(args),
        Tcp::Send(args) => send::run(args),
        Tcp::Echo(args) => echo::run(args),
        Tcp::Bridge(args) => bridge::run(args),
    }
}
