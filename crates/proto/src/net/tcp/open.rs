//! Listeners, and connections that this end begins: the choice of ports and numbers.

use core::hash::BuildHasher as _;
use core::net::SocketAddr;

use super::connection::Connection;
use super::flow::TcpFlow;
use super::host::{Room, TcpHost};
use super::id::{TcpId, TcpOpenError};
use crate::Instant;
use crate::time::US;

/// The first port that the stack chooses for a connection of its own (RFC 6335).
const FIRST_DYNAMIC: u16 = 49_152;
/// The time in which the clock of initial sequence numbers advances by one (RFC 6528).
const CLOCK_NS: u64 = 4 * US;
/// The distance of an initial sequence number from the last one of an earlier connection, if the
/// clock has not gone so far: a window without scaling.
const BEYOND: u32 = 1 << 16;

impl TcpHost {
    /// Accepts connections to a port, or to a free dynamic port if it is 0. Returns the port. At
    /// most `backlog` connections may be in their handshakes: beyond that the host answers with SYN
    /// cookies (RFC 4987). And at most `backlog` may be open before [`TcpHost::event`] has reported
    /// them: beyond that the peers have to try again.
    ///
    /// # Errors
    /// [`TcpOpenError`] if the port is in use, or no port is free.
    pub fn listen(&mut self, port: u16, backlog: u32) -> Result<u16, TcpOpenError> {
        let port = match port {
            0 => self.dynamic_ports().next().ok_or(TcpOpenError::NoPort)?,
            port => port,
        };
        self.listeners.add(port, backlog).then_some(port).ok_or(TcpOpenError::InUse)
    }

    /// Returns the dynamic ports without a listener, from a random one on.
    pub fn dynamic_ports(&mut self) -> impl Iterator<Item = u16> {
        self.all_ports().filter(|port| !self.listeners.has(*port))
    }

    /// Accepts no more connections to a port. Those that there are stay.
    pub fn unlisten(&mut self, port: u16) {
        self.listeners.remove(port);
    }

    /// Begins a connection from the address `from` to a peer. The port 0 stands for any free
    /// dynamic port. A port whose connection to the peer is in TIME-WAIT is taken only if no other
    /// is free, and if both connections have timestamps.
    ///
    /// # Errors
    /// [`TcpOpenError`].
    pub fn connect(
        &mut self,
        now: Instant,
        from: SocketAddr,
        peer: SocketAddr,
    ) -> Result<TcpId, TcpOpenError> {
        let ports = self.all_ports();
        // Segments have no scope, by which an address of IPv6 would not be found.
        let peer = SocketAddr::new(peer.ip(), peer.port());
        let flow = |port| TcpFlow { local: SocketAddr::new(from.ip(), port), peer };
        let is_unused = |flow: &TcpFlow| self.find(flow).is_none();
        let is_free = |flow: &TcpFlow| is_unused(flow) && !self.time_waits.contains(flow);
        let may_reuse = |flow: &TcpFlow| {
            let is_later = self.config.timestamps && self.time_waits.may_reuse(now, flow);
            is_unused(flow) && is_later
        };
        let flow = if from.port() == 0 {
            let free = ports.clone().map(flow).find(is_free);
            free.or_else(|| ports.map(flow).find(may_reuse)).ok_or(TcpOpenError::NoPort)?
        } else {
            let flow = Some(flow(from.port()));
            flow.filter(|flow| is_free(flow) || may_reuse(flow)).ok_or(TcpOpenError::InUse)?
        };
        if self.room() == Room::Nothing {
            return Err(TcpOpenError::TooMany);
        }
        let last = self.time_waits.remove(&flow);
        let (initial, clock_offset) = (self.initial(now, &flow, last), self.clock_offset(&flow));
        let ports = (flow.local.port(), peer.port());
        let connection = Connection::connect(now, &self.config, ports, initial, clock_offset);
        self.insert(flow, connection, None).ok_or(TcpOpenError::TooMany)
    }

    /// Returns all dynamic ports, from a random one on.
    pub(super) fn all_ports(&mut self) -> impl Iterator<Item = u16> + Clone + use<> {
        let ports = u32::from(u16::MAX - FIRST_DYNAMIC) + 1;
        let first = self.rng.below(ports.into()) as u32;
        (0..ports).map(move |n| FIRST_DYNAMIC + ((first + n) % ports) as u16)
    }

    /// Returns the initial sequence number of a connection: a clock, and a hash of its addresses
    /// and ports (RFC 6528). It is beyond `last`, the number behind an earlier connection's.
    pub(super) fn initial(&self, now: Instant, flow: &TcpFlow, last: Option<u32>) -> u32 {
        let hash = self.secret.hash_one(flow) as u32;
        let initial = hash.wrapping_add((now.as_ns() / CLOCK_NS) as u32);
        match last {
            Some(last) if initial.wrapping_sub(last) as i32 <= 0 => last.wrapping_add(BEYOND),
            _ => initial,
        }
    }

    /// Returns the distance of the timestamps of a connection from the time. It is the same for all
    /// connections of two hosts, so that their times never go back (RFC 6191 3).
    pub(super) fn clock_offset(&self, flow: &TcpFlow) -> u32 {
        self.secret.hash_one((flow.local.ip(), flow.peer.ip())) as u32
    }
}
