//! The interface of a host to its TCP world, and the addresses of all hosts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use sprat_proto::Instant;
use sprat_proto::device::Mac;
use sprat_proto::net::tcp::{TcpChanges, TcpError};

/// The addresses of the router between the hosts.
pub(crate) const ROUTER: Mac = Mac([2, 0, 0, 0, 0, 254]);
pub(crate) const ROUTER4: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 254);
pub(crate) const ROUTER6: Ipv6Addr = Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, 254);

/// Returns the MAC address of a host.
pub(crate) const fn mac(host: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, host as u8 + 1])
}

/// Returns the IPv4 address of a host.
pub(crate) const fn v4(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 7, 0, host as u8 + 1)
}

/// Returns the IPv6 address of a host.
pub(crate) const fn v6(host: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, host as u16 + 1)
}

/// Returns the number of the host with an address.
pub(crate) fn number(addr: IpAddr) -> Option<usize> {
    let last = match addr {
        IpAddr::V4(addr) => addr.octets()[3],
        IpAddr::V6(addr) => addr.octets()[15],
    };
    let host = usize::from(last).checked_sub(1)?;
    (addr == IpAddr::from(v4(host)) || addr == IpAddr::from(v6(host))).then_some(host)
}

/// The number of a connection at its host, which is never used again.
pub(crate) type Conn = usize;

/// The condition of a connection at a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    /// True if the peer's direction has ended, and all of it was read.
    pub(crate) is_finished: bool,
    pub(crate) has_ended: bool,
    pub(crate) error: Option<TcpError>,
}

/// A host with an IP stack and TCP.
pub(crate) trait Host {
    /// Puts a frame into the inbox of the host's device.
    fn deliver(&mut self, frame: Vec<u8>);

    /// Handles the frames of the inbox, and expired timers.
    fn input(&mut self, now: Instant);

    /// Sends what can be sent now. Returns the frames.
    fn output(&mut self, now: Instant) -> Vec<Vec<u8>>;

    /// Returns true if something has changed at a connection since its program has run.
    fn has_news(&self) -> bool;

    /// Returns the time at which to call `input`.
    fn deadline(&self) -> Option<Instant>;

    fn listen(&mut self, port: u16, backlog: u32);

    /// Begins a connection, unless the host has too many.
    fn connect(&mut self, now: Instant, to: SocketAddr) -> Option<Conn>;

    /// Returns a connection that another host has begun, if its handshake is over.
    fn accept(&mut self) -> Option<Conn>;

    /// Returns the address and port of this host and of the peer.
    fn ends(&self, conn: Conn) -> (SocketAddr, SocketAddr);

    /// Returns the changes at a connection since the last call.
    fn changes(&mut self, conn: Conn) -> TcpChanges;

    fn status(&mut self, conn: Conn) -> Status;

    fn write(&mut self, conn: Conn, bytes: &[u8]) -> usize;

    fn read(&mut self, conn: Conn, into: &mut [u8]) -> usize;

    fn close(&mut self, conn: Conn);

    fn abort(&mut self, conn: Conn);

    /// Lets the host forget a connection as soon as it has ended.
    fn release(&mut self, conn: Conn);

    /// Returns the number of connections that the host has.
    fn connections(&mut self) -> usize;

    /// Returns what is not as it should be at a host without connections, or is too large.
    fn complaint(&mut self) -> Option<String>;

    /// Returns the condition of the host, as text.
    fn describe(&mut self) -> String;
}
