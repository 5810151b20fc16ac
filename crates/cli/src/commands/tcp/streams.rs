//! Streams of our own TCP and of the kernel's behind one interface, as a locator names them.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat::locator::{HostPort, Kind, Locator, LocatorError, Over};
use sprat::tcp::{CongestionControl, Listener, Options, Stack, Stream, TcpInfo};
use sprat_bench::fail::Fail;
use sprat_bench::units;

use super::fields::Fields;

/// The most connections that wait to be accepted.
const BACKLOG: u16 = 1024;

/// Options of connections.
#[derive(Args, Clone, Debug)]
pub(super) struct Settings {
    /// Algorithm of the congestion window [default: cubic, or the kernel's].
    #[arg(long, value_enum)]
    congestion: Option<Congestion>,
    /// Offer explicit congestion notification (our own TCP; the kernel has a sysctl).
    #[arg(long)]
    ecn: bool,
    /// Send short segments at once, without Nagle's algorithm.
    #[arg(long)]
    no_delay: bool,
    /// Bytes of each connection's send buffer and receive buffer (our own TCP).
    #[arg(long, value_name = "BYTES", value_parser = units::data, default_value = "4MB")]
    buffer: u64,
    #[command(flatten)]
    fields: Fields,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Congestion {
    Reno,
    Cubic,
}

impl Settings {
    fn options(&self) -> Result<Options, Fail> {
        let congestion = match self.congestion {
            Some(Congestion::Reno) => CongestionControl::Reno,
            Some(Congestion::Cubic) | None => CongestionControl::Cubic,
        };
        let buffer = usize::try_from(self.buffer).unwrap_or(usize::MAX);
        let options = self.fields.add(Options::default());
        Ok(options
            .congestion(congestion)
            .ecn(self.ecn)
            .no_delay(self.no_delay)
            .send_buffer(buffer)
            .receive_buffer(buffer)
            .local(sprat_bench::store::local()?))
    }

    fn apply(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(self.no_delay)?;
        let name = match self.congestion {
            Some(Congestion::Reno) => "reno",
            Some(Congestion::Cubic) => "cubic",
            None => return Ok(()),
        };
        Ok(rustix::net::sockopt::set_tcp_congestion(stream, name)?)
    }
}

/// A server's place: the host and port of a locator, and the TCP that reaches it.
pub(super) struct Net {
    own: Option<Stack>,
    addr: SocketAddr,
    settings: Settings,
}

/// Returns the host and port that a locator names, and true if it is of the kernel's TCP.
fn parsed(text: &str) -> Result<(HostPort, bool), Fail> {
    let wrong = |error: LocatorError| Fail::usage(error.to_string());
    let locator: Locator = text.parse().map_err(wrong)?;
    match locator.kind().map_err(wrong)? {
        Kind::Tcp(at) => Ok((at, true)),
        Kind::Device(port) if port.over == Over::Tcp => Ok((port.at, false)),
        _ => Err(Fail::usage(format!("{locator}: that is no TCP")).next(
            "take utcp+packet:dev=D,host=H,port=P for our own TCP, or tcp:host=H,port=P for the \
             kernel's",
        )),
    }
}

fn address(at: &HostPort) -> Result<SocketAddr, Fail> {
    let found = at.resolve().map_err(|error| Fail::new(error.to_string()))?;
    found.first().copied().ok_or_else(|| Fail::new(format!("{}: no address", at.host)))
}

impl Net {
    /// Opens the TCP that reaches a server.
    pub(super) fn towards(text: &str, settings: &Settings) -> Result<Self, Fail> {
        let (at, is_kernel) = parsed(text)?;
        let failed = |error: io::Error| Fail::new(error.to_string());
        let own = if is_kernel {
            None
        } else {
            Some(Stack::towards(text, &settings.options()?).map_err(failed)?)
        };
        Ok(Self { own, addr: address(&at)?, settings: settings.clone() })
    }

    /// Returns the address of the server.
    pub(super) const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Connects to the server.
    pub(super) fn connect(&self) -> Result<Connected, Fail> {
        let connected = match &self.own {
            Some(stack) => stack.connect(self.addr).map(Connected::Own),
            None => self.settings.fields.connect(self.addr).and_then(|stream| {
                self.settings.apply(&stream)?;
                Ok(Connected::Kernel(stream))
            }),
        };
        connected.map_err(|error| {
            let error = error.to_string();
            let own = format!("connect {}", self.addr);
            Fail::new(if error.starts_with(&own) { error } else { format!("{own}: {error}") })
        })
    }
}

/// A listener of either TCP.
pub(super) enum Listening {
    Own(Listener),
    Kernel(TcpListener, Settings),
}

impl Listening {
    /// Opens a listener at a locator. Returns it with the locator that clients use.
    pub(super) fn open(text: &str, settings: &Settings) -> Result<(Self, String), Fail> {
        let (at, is_kernel) = parsed(text)?;
        let failed = |error: io::Error| Fail::new(error.to_string());
        let at = address(&at)?;
        if is_kernel {
            let listener = TcpListener::bind(at)
                .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
                .and_then(|listener| {
                    settings.fields.apply(&listener, at.is_ipv4())?;
                    Ok(listener)
                })
                .map_err(|error| Fail::new(format!("{text}: {error}")))?;
            let at = listener.local_addr().map_err(failed)?;
            let locator = format!("tcp:host={},port={}", at.ip(), at.port());
            return Ok((Self::Kernel(listener, settings.clone()), locator));
        }
        let stack = Stack::open(text, &settings.options()?).map_err(failed)?;
        let listener = stack.listen(at.port(), BACKLOG).map_err(failed)?;
        let locator = listener.locator();
        Ok((Self::Own(listener), locator))
    }

    /// Waits for a connection at most for `timeout`.
    pub(super) fn accept(&self, timeout: Duration) -> io::Result<Option<(Connected, SocketAddr)>> {
        match self {
            Self::Own(listener) => {
                let accepted = listener.accept_timeout(timeout)?;
                Ok(accepted.map(|(stream, peer)| (Connected::Own(stream), peer)))
            }
            Self::Kernel(listener, settings) => {
                let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
                let mut fds = [PollFd::new(listener, PollFlags::IN)];
                if poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 {
                    return Ok(None);
                }
                match listener.accept() {
                    Ok((stream, peer)) => {
                        stream.set_nonblocking(false)?;
                        settings.apply(&stream)?;
                        Ok(Some((Connected::Kernel(stream), peer)))
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

/// A stream of either TCP.
pub(super) enum Connected {
    Own(Stream),
    Kernel(TcpStream),
}

impl Connected {
    /// Ends the sending direction.
    pub(super) fn finish(&self) -> io::Result<()> {
        match self {
            Self::Own(stream) => stream.shutdown(Shutdown::Write),
            Self::Kernel(stream) => stream.shutdown(Shutdown::Write)?,
        }
        Ok(())
    }

    /// Returns what the connection has measured, if it is our own.
    pub(super) fn info(&self) -> Option<TcpInfo> {
        match self {
            Self::Own(stream) => stream.info(),
            Self::Kernel(_) => None,
        }
    }
}

impl Read for &Connected {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Connected::Own(stream) => (&mut &*stream).read(into),
            Connected::Kernel(stream) => (&mut &*stream).read(into),
        }
    }
}

impl Write for &Connected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Connected::Own(stream) => (&mut &*stream).write(bytes),
            Connected::Kernel(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
