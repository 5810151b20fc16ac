//! A TCP stack that threads share: it listens and connects.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use sprat_proto::net::tcp::{TcpOpenError, TcpState};
use sprat_sys::clock;

use super::core::{Core, Key};
use super::error;
use super::handle::Handle;
use super::listener::Listener;
use super::native::Interface;
use super::options::Options;
use super::stream::Stream;

/// The longest time that a connection waits until the stack's own address is in use.
const ADDRESS: Duration = Duration::from_secs(15);

/// A TCP stack on a packet device. Clones share it.
///
/// The stack lives as long as it or one of its listeners and streams does. The drop of the last of
/// them waits until peers have acknowledged all data and the end of each stream, at most for
/// [`Options::linger`]; then the stack resets the connections that are left.
#[derive(Clone)]
pub struct Stack {
    handle: Arc<Handle>,
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stack").field("local_addr", &self.local_addr()).finish_non_exhaustive()
    }
}

impl Stack {
    /// Opens a stack at the address and on the device that `locator` names, as in
    /// `utcp+packet:dev=eth0,host=192.0.2.7`. No other machine, and no kernel's interface, may have
    /// the address. The locator needs no port.
    ///
    /// # Errors
    /// The locator is no `utcp+…`, its host does not resolve or is the kernel's own, or the device
    /// cannot be opened: the error says what is missing.
    pub fn open(locator: &str, options: &Options) -> io::Result<Self> {
        Self::over(Interface::open(locator, options)?, options)
    }

    /// Opens a stack that reaches servers such as `locator`: at the address and on the device that
    /// one of [`Options::local`] names for this protocol, otherwise on the device that `locator`
    /// names, with a random address for the link alone.
    ///
    /// # Errors
    /// The errors of [`Stack::open`].
    pub fn towards(locator: &str, options: &Options) -> io::Result<Self> {
        Self::over(Interface::towards(locator, options)?, options)
    }

    pub(super) fn over(interface: Interface, options: &Options) -> io::Result<Self> {
        Ok(Self { handle: Arc::new(Handle::new(interface, options.linger)?) })
    }

    /// Returns the IP address of the stack, with port 0. It is unspecified until an address that
    /// the stack chooses itself is in use.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.handle.shared.with(|core| core.interface.local_addr())
    }

    /// Listens at a port, or at a free one if it is 0. `backlog` limits the connections in their
    /// handshakes, and those that the program has not accepted: beyond it peers try again.
    ///
    /// # Errors
    /// `AddrInUse` if the port has a listener.
    pub fn listen(&self, port: u16, backlog: u16) -> io::Result<Listener> {
        Listener::new(&self.handle, port, backlog.max(1))
    }

    /// Connects to a peer, and waits until the connection is open. It tries the addresses of a name
    /// one after another.
    ///
    /// # Errors
    /// A [`StreamError`](super::StreamError): the peer refuses, does not answer, or there is no
    /// route to it.
    pub fn connect(&self, peer: impl ToSocketAddrs) -> io::Result<Stream> {
        self.connect_any(peer, None)
    }

    /// Connects to a peer as [`Stack::connect`] does, and waits at most for `timeout` for each
    /// address.
    ///
    /// # Errors
    /// The errors of [`Stack::connect`].
    pub fn connect_timeout(
        &self,
        peer: impl ToSocketAddrs,
        timeout: Duration,
    ) -> io::Result<Stream> {
        self.connect_any(peer, Some(timeout))
    }

    fn connect_any(
        &self,
        peer: impl ToSocketAddrs,
        timeout: Option<Duration>,
    ) -> io::Result<Stream> {
        let mut error = io::Error::new(io::ErrorKind::InvalidInput, "the peer has no address");
        for addr in peer.to_socket_addrs()? {
            match self.connect_to(addr, timeout) {
                Ok(stream) => return Ok(stream),
                Err(why) => error = why,
            }
        }
        Err(error)
    }

    fn connect_to(&self, peer: SocketAddr, timeout: Option<Duration>) -> io::Result<Stream> {
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let shared = &self.handle.shared;
        let now = clock::now();
        let until = timeout.map(|timeout| now.after(timeout.as_nanos() as u64));
        let usable =
            now.after(ADDRESS.as_nanos() as u64).min(until.unwrap_or_else(|| now.after(u64::MAX)));
        let begun = shared.wait(Key::Address, Some(usable), |core: &mut Core| {
            match core.interface.connect(peer) {
                Err(TcpOpenError::NoRoute) if !core.interface.has_address(peer.is_ipv4()) => None,
                result => Some(result.inspect(|id| core.add(*id))),
            }
        });
        let no_route = || error::not_open(peer, TcpOpenError::NoRoute);
        let id = begun.ok_or_else(no_route)?.map_err(|e| error::not_open(peer, e))?;
        let stream = Stream::new(&self.handle, id)?;
        let opened = shared.wait(Key::Connection(id), until, |core| {
            let connection = core.interface.host().connection(id)?;
            match (connection.state(), error::ended("connect", peer, connection)) {
                (_, Some(error)) => Some(Err(error)),
                (TcpState::SynSent | TcpState::SynReceived, None) => None,
                (_, None) => Some(Ok(())),
            }
        });
        match opened {
            Some(result) => result.map(|()| stream),
            None => {
                let report = shared.with(|core| core.interface.host().soft_error(id));
                stream.abort();
                Err(error::late("connect", peer, report))
            }
        }
    }

    /// Returns the number of connections, those in TIME-WAIT included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.handle.shared.with(|core| core.interface.host().connections())
    }

    /// Reports each counter of the IP stack and of the device by its name.
    pub fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.handle.shared.with(|core| core.interface.counters(each));
    }
}
