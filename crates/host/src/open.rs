//! From a locator to the transport that serves it: the one place that knows them all.

use std::io;

use sprat_proto::Rng;
use sprat_proto::probe::NoProbe;
use sprat_proto::rpc::Config;

use crate::crc::crc32c;
use crate::doors::{Options, Way};
use crate::driver::Driver;
use crate::fast::Fast;
use crate::framed;
use crate::locator::{Kind, Locator};
use crate::rdma::rpc::Rdma;
use crate::shm::{self, Shm};
use crate::socket::tcp::Tcp;
use crate::socket::udp::{self, Udp};
use crate::stack::Stack;
use crate::transport::Transport;

/// Most requests that wait on one session beyond its channels. They are the program's own, in its own memory: the limit
/// only has to be one, and below it nothing is refused and tried again.
const QUEUE_LIMIT: usize = 1 << 20;

/// A generator with entropy of the kernel.
///
/// # Errors
/// The kernel has none to give.
pub(crate) fn rng() -> io::Result<Rng> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    Ok(Rng::new(seed))
}

/// The transport that listens at `locator`.
pub(crate) fn listen(locator: &Locator, options: &Options) -> io::Result<Way> {
    match locator.kind()? {
        Kind::Shm { .. } => ring(Shm::listen(locator, shm::Options::default())?, true),
        Kind::Udp(_) => Ok(other(fast(Udp::listen(locator, udp_options(options))?, true)?)),
        Kind::Device(_) => Ok(other(fast(Stack::listen(locator)?, true)?)),
        Kind::Tcp(_) => Ok(other(Tcp::listen(locator, framed_options(options))?)),
        Kind::Rdma { .. } => Ok(other(Rdma::listen(locator, framed_options(options))?)),
    }
}

/// A transport without listener that can call servers such as `to`.
pub(crate) fn towards(to: &Locator, options: &Options) -> io::Result<Way> {
    match to.kind()? {
        Kind::Shm { .. } => ring(Shm::client(shm::Options::default())?, false),
        Kind::Udp(_) => Ok(other(fast(Udp::client(udp_options(options))?, false)?)),
        Kind::Device(_) => Ok(other(fast(Stack::client(to, &options.local)?, false)?)),
        Kind::Tcp(_) => Ok(other(Tcp::client(framed_options(options))?)),
        Kind::Rdma { .. } => Ok(other(Rdma::client(framed_options(options))?)),
    }
}

fn framed_options(options: &Options) -> framed::Options {
    framed::Options {
        insecure_network: options.insecure_network,
        queue_limit: QUEUE_LIMIT,
        ..framed::Options::default()
    }
}

fn udp_options(options: &Options) -> udp::Options {
    udp::Options { insecure_network: options.insecure_network, ..udp::Options::default() }
}

fn ring(driver: Shm, serve: bool) -> io::Result<Way> {
    Ok(Way::Ring(Box::new(fast(driver, serve)?)))
}

fn fast<D: Driver>(driver: D, serve: bool) -> io::Result<Fast<D>> {
    let config = Config { crc32c, serve, queue_limit: QUEUE_LIMIT, ..Config::default() };
    Ok(Fast::new(driver, config, rng()?, NoProbe))
}

fn other(transport: impl Transport + 'static) -> Way {
    Way::Other(Box::new(transport))
}
