//! Opens the transport that a locator names. No other module knows all transports.

use std::io;

use sprat_proto::node::Fast;
use sprat_proto::rpc::Config;
use sprat_proto::tracepoint::{NoProbe, Probe};

use crate::driver::Driver;
use crate::driver::ip::Stack;
use crate::driver::shm::{self, Shm};
use crate::driver::udp::{self, Udp};
use crate::locator::{Kind, Locator, Over};
use crate::random::rng;
use crate::trace::TraceRing;
use crate::trace::watch::{Traced, TracedTransport};
use crate::transport::SystemTransport;
use crate::transport::any::AnyTransport;
use crate::transport::framed;
use crate::transport::qp::Rdma;
use crate::transport::tcp::Tcp;
use crate::transport::utcp::Utcp;
use sprat_sys::crc::crc32c;

/// The options of the transports that a worker opens. The default allows loopback addresses only,
/// and traces nothing.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// Allow addresses other than loopback, for listening and for calls. Nothing is encrypted.
    pub insecure_network: bool,
    /// This process's own ends of packet devices: for each protocol a locator with the device and
    /// the address. Without one, the device is the one that the server's locator names, and the
    /// address is random.
    pub local: Vec<Locator>,
    /// The ring that records tracepoints where the time of requests goes; peers may ask for their
    /// samples. `None`: nothing is traced.
    pub trace: Option<TraceRing>,
}

impl Options {
    /// Allows addresses other than loopback, although nothing is encrypted.
    #[must_use]
    pub fn insecure_network(mut self, allowed: bool) -> Self {
        self.insecure_network = allowed;
        self
    }

    /// Adds ends of packet devices: for each protocol a locator with the device and the address.
    #[must_use]
    pub fn local(mut self, locators: impl IntoIterator<Item = Locator>) -> Self {
        self.local.extend(locators);
        self
    }

    /// Sets the ring that records tracepoints. `None` traces nothing.
    #[must_use]
    pub fn trace(mut self, trace: impl Into<Option<TraceRing>>) -> Self {
        self.trace = trace.into();
        self
    }
}

/// The most requests that wait on one session beyond its channels. They belong to the program and
/// lie in its memory. So the limit only has to exist; below it no request is refused and tried
/// again.
const QUEUE_LIMIT: usize = 1 << 20;

/// Opens a transport that listens at `locator`.
pub(crate) fn listen(locator: &Locator, options: &Options) -> io::Result<AnyTransport> {
    match locator.kind()? {
        Kind::Shm { .. } => ring(Shm::listen(locator, shm::Options::default())?, true, options),
        Kind::Udp { .. } => datagrams(Udp::listen(locator, udp_options(options))?, true, options),
        Kind::Device(port) => match port.over {
            Over::Datagrams => stack(Stack::listen(locator)?, true, options),
            Over::Tcp => Ok(frames(Utcp::listen(locator, framed_options(options))?, options)),
            Over::Rdma => Ok(frames(Rdma::listen(locator, framed_options(options))?, options)),
        },
        Kind::Tcp(_) => Ok(frames(Tcp::listen(locator, framed_options(options))?, options)),
        Kind::Rdma { .. } => Ok(frames(Rdma::listen(locator, framed_options(options))?, options)),
    }
}

/// Opens a transport without a listener, which can call servers such as `to`.
pub(crate) fn towards(to: &Locator, options: &Options) -> io::Result<AnyTransport> {
    match to.kind()? {
        Kind::Shm { .. } => ring(Shm::client(shm::Options::default())?, false, options),
        Kind::Udp { .. } => datagrams(Udp::client(udp_options(options))?, false, options),
        Kind::Device(port) => match port.over {
            Over::Datagrams => stack(Stack::client(to, &options.local)?, false, options),
            Over::Tcp => utcp(to, options),
            Over::Rdma => rdma(to, options),
        },
        Kind::Tcp(_) => Ok(frames(Tcp::client(framed_options(options))?, options)),
        Kind::Rdma { .. } => rdma(to, options),
    }
}

/// Returns true if no process listens at `locator` any more, so that the server with which a
/// session by this locator was open has ended. Only shared memory tells: the kernel of this machine
/// has both processes, while what says that a port is closed may be another machine.
pub(crate) fn has_ended(locator: &Locator) -> bool {
    matches!(locator.kind(), Ok(Kind::Shm { name }) if shm::is_deserted(&name))
}

fn rdma(to: &Locator, options: &Options) -> io::Result<AnyTransport> {
    Ok(frames(Rdma::client(to, &options.local, framed_options(options))?, options))
}

fn utcp(to: &Locator, options: &Options) -> io::Result<AnyTransport> {
    Ok(frames(Utcp::client(to, &options.local, framed_options(options))?, options))
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

// Wrappers are around driver and transport only if the process traces.

fn ring(driver: Shm, serve: bool, options: &Options) -> io::Result<AnyTransport> {
    match &options.trace {
        None => Ok(AnyTransport::Shm(Box::new(fast(driver, serve, NoProbe)?))),
        Some(_) => datagrams(driver, serve, options),
    }
}

fn datagrams<D: Driver + 'static>(
    driver: D,
    serve: bool,
    options: &Options,
) -> io::Result<AnyTransport> {
    marked(driver, serve, false, options)
}

fn stack(stack: Stack, serve: bool, options: &Options) -> io::Result<AnyTransport> {
    let stack = match &options.trace {
        None => stack,
        Some(trace) => stack.traced(trace),
    };
    marked(stack, serve, true, options)
}

fn marked<D: Driver + 'static>(
    driver: D,
    serve: bool,
    over_ip: bool,
    options: &Options,
) -> io::Result<AnyTransport> {
    let Some(trace) = &options.trace else { return Ok(other(fast(driver, serve, NoProbe)?)) };
    let watched = Traced::new(driver, trace.clone(), over_ip);
    Ok(other(TracedTransport::new(fast(watched, serve, trace.clone())?, trace.clone(), false)))
}

fn frames(transport: impl SystemTransport + 'static, options: &Options) -> AnyTransport {
    match &options.trace {
        None => other(transport),
        Some(trace) => other(TracedTransport::new(transport, trace.clone(), true)),
    }
}

fn fast<D: Driver, P: Probe>(driver: D, serve: bool, probe: P) -> io::Result<Fast<D, P>> {
    let config = Config { crc32c, serve, queue_limit: QUEUE_LIMIT, ..Config::default() };
    Ok(Fast::new(driver, config, rng()?, probe))
}

fn other(transport: impl SystemTransport + 'static) -> AnyTransport {
    AnyTransport::Other(Box::new(transport))
}
