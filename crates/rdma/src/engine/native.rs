//! Our own TCP below the engine, in place of the kernel's: an interface with its IP stack and its
//! device. No byte of a stream passes the kernel's network stack.
//!
//! ```text
//!   device ─► Interface ─┬─► lent data ─► Rnic::input: placed from the frame that brought it
//!                        └─► events: opened, readable, writable, ended
//!   Rnic::output ─► one record, one segment ─► Interface ─► device
//! ```
//!
//! Always holds: a record is one FPDU and begins a segment, so that the peer finds a header at the
//! beginning of each segment (RFC 5044 5.1).
//!
//! Not here: received data and events on their way to the engine (`native_input`), and what a
//! connection means for it (`streams`, `listen`, `connect`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use sprat_proto::Instant;
use sprat_proto::net::Interface;
use sprat_proto::net::tcp::{TcpChanges, TcpConfig, TcpFlow, TcpId, TcpOpenError};
use sprat_proto::rdma::{Memory as _, Part, Record};
use sprat_proto::rpc::Slices;
use sprat_proto::time::{MS, SECOND, US};
use sprat_sys::interfaces;
use sprat_sys::nic::Nic;

use super::regions::{Reach, Regions};
use super::reserved::Reserved;

/// An interface of this process with our own TCP.
pub type NativeInterface = Interface<Box<dyn Nic>>;

/// The size of a connection's buffer for each direction in bytes: more than a round trip of a fast
/// link holds. A buffer takes memory for the bytes in it.
const BUFFER_BYTES: u32 = 4 << 20;
/// The most connections in their handshakes at one listener.
const BACKLOG: u32 = 1024;
/// The silence after which a peer is probed.
const KEEP_ALIVE_NS: u64 = 10 * SECOND;
/// The time for which data may stay unacknowledged.
const UNACKNOWLEDGED_NS: u64 = 16 * SECOND;
/// The segments after which an acknowledgement leaves at once, and the time by which that of fewer
/// waits for more. A packet costs more than placing what it brought, and an answer takes the
/// acknowledgement along.
const ACK_SEGMENTS: u8 = 8;
const ACK_HOLD_NS: u64 = 10 * US;
/// The time by which an acknowledgement waits for an answer of the program that takes it along.
const DELAYED_ACK_NS: u64 = 10 * MS;

/// The coupling of the engine with our own TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Coupling {
    /// Each FPDU is a segment of its own, and received payload is placed from the frame that
    /// brought it.
    #[default]
    Tight,
    /// The engine writes and reads a stream of bytes, as it does with the kernel's TCP: FPDUs have
    /// MPA's full length, and received bytes are copied to the connection's buffer first.
    Loose,
}

/// The name of the interface. No kernel's interface need lie below its device.
const NAME: &str = "sprat0";

/// The interface of an RDMA device, and the slots of its connections.
pub(super) struct Native {
    pub(super) interface: NativeInterface,
    coupling: Coupling,
    /// The ports that bound sockets reserve, as long as the sockets exist.
    reserved: Vec<Weak<u16>>,
    /// The slot of each connection's stream, by the connection's index.
    slots: Vec<u32>,
    /// True if the device announces frames on its descriptor.
    is_armed: bool,
    /// True if the device had no room for all that was to be sent.
    is_full: bool,
}

impl std::fmt::Debug for Native {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Native").field("is_armed", &self.is_armed).finish_non_exhaustive()
    }
}

impl Native {
    /// Takes an interface for at most `connections` connections.
    pub(super) fn new(
        mut interface: NativeInterface,
        coupling: Coupling,
        connections: usize,
    ) -> Self {
        let config = TcpConfig {
            receive_bytes: BUFFER_BYTES,
            send_bytes: BUFFER_BYTES,
            no_delay: true,
            delayed_ack_ns: DELAYED_ACK_NS,
            ack_segments: ACK_SEGMENTS,
            ack_hold_ns: ACK_HOLD_NS,
            keep_alive_ns: Some(KEEP_ALIVE_NS),
            user_timeout_ns: UNACKNOWLEDGED_NS,
            ..TcpConfig::default()
        };
        interface.stack_mut().enable_tcp(config, connections);
        Self {
            interface,
            coupling,
            reserved: Vec::new(),
            slots: Vec::new(),
            is_armed: false,
            is_full: false,
        }
    }

    /// True if each record is a segment of its own.
    pub(super) fn is_tight(&self) -> bool {
        self.coupling == Coupling::Tight
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.interface.device().fd()
    }

    /// Makes the device announce frames on its descriptor. Returns false if there is something to
    /// do first.
    pub(super) fn arm(&mut self) -> bool {
        if self.has_output() {
            return false;
        }
        self.is_armed = self.interface.device_mut().arm();
        self.is_armed
    }

    pub(super) fn deadline(&self) -> Instant {
        self.interface.deadline().unwrap_or(Instant::NEVER)
    }

    pub(super) fn tick(&mut self, now: Instant) {
        if self.deadline() <= now {
            self.interface.tick(now);
        }
    }

    /// True if something waits to be sent: an acknowledgement, or what had no room in the device.
    pub(super) fn has_output(&self) -> bool {
        !self.interface.stack().is_idle()
    }

    /// True if something to send waits for room in the device.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Sends what connections have to send.
    pub(super) fn output(&mut self, now: Instant) {
        self.interface.set_now(now);
        self.is_full = self.interface.output();
    }

    /// Receives a burst of frames. Returns the number of pieces of lent data.
    pub(super) fn input(&mut self, now: Instant) -> usize {
        if std::mem::take(&mut self.is_armed) {
            self.interface.device_mut().disarm();
        }
        self.interface.set_now(now);
        self.interface.input();
        self.interface.stack().lent_tcp()
    }

    /// Describes the interface as the system does its own.
    pub(super) fn describe(&mut self) -> interfaces::Interface {
        let up = self.interface.device_mut().carries();
        let info = self.interface.device().info();
        let stack = self.interface.stack();
        interfaces::Interface {
            name: NAME.to_owned(),
            index: 0,
            up,
            loopback: false,
            mtu: info.mtu as u32,
            mbps: None,
            mac: info.mac.0,
            addresses: [true, false].iter().filter_map(|v4| stack.address(*v4)).collect(),
        }
    }

    /// Returns the address from which packets to `to` leave.
    ///
    /// # Errors
    /// `NetworkUnreachable`: no host on the link or behind a gateway has that address.
    pub(super) fn route(&self, to: IpAddr) -> io::Result<IpAddr> {
        let source = self.interface.stack().source(to).filter(|_| !to.is_loopback());
        source.ok_or_else(|| {
            let why = format!("no route from this interface to {to}");
            io::Error::new(io::ErrorKind::NetworkUnreachable, why)
        })
    }

    /// Binds a socket to an address of the interface. The port 0 stands for any, which is chosen at
    /// once unless the socket `connects`.
    ///
    /// # Errors
    /// The address is not one of the interface, or no port is free.
    pub(super) fn bind(&mut self, at: SocketAddr, connects: bool) -> io::Result<Reserved> {
        if !at.ip().is_unspecified() && !self.interface.stack().has_address(at.ip()) {
            let why = format!("{} is not the address of this interface", at.ip());
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, why));
        }
        if connects && at.port() == 0 {
            return Ok(Reserved::any(at.ip()));
        }
        self.reserved.retain(|port| port.strong_count() > 0);
        let is_reserved = |port: u16| {
            self.reserved.iter().any(|reserved| reserved.upgrade().is_some_and(|r| *r == port))
        };
        let mut port = at.port();
        if port == 0 {
            let tcp = self.interface.tcp().ok_or(io::ErrorKind::Unsupported)?;
            let free = tcp.dynamic_ports().find(|port| !is_reserved(*port));
            port = free.ok_or(io::ErrorKind::AddrInUse)?;
        }
        let port = Arc::new(port);
        self.reserved.push(Arc::downgrade(&port));
        Ok(Reserved { ip: at.ip(), port: Some(port) })
    }

    pub(super) fn event(&mut self) -> Option<(TcpId, TcpChanges)> {
        self.interface.tcp()?.event()
    }

    pub(super) fn slot(&self, id: TcpId) -> Option<u32> {
        self.slots.get(id.index()).copied().filter(|slot| *slot != u32::MAX)
    }

    /// Records the slot of a connection's stream, and lets its data be lent, also behind gaps.
    pub(super) fn set_slot(&mut self, id: TcpId, slot: u32) {
        if self.slots.len() <= id.index() {
            self.slots.resize(id.index() + 1, u32::MAX);
        }
        self.slots[id.index()] = slot;
        if self.is_tight() {
            self.interface.tcp().into_iter().for_each(|tcp| tcp.lend_ahead(id));
        }
    }

    /// Listens at a port. Returns the address with the port filled in.
    pub(super) fn listen(&mut self, at: SocketAddr) -> io::Result<SocketAddr> {
        let tcp = self.interface.tcp().ok_or(io::ErrorKind::Unsupported)?;
        let port = tcp.listen(at.port(), BACKLOG).map_err(|e| open_error(at, e))?;
        let own = self.interface.stack().address(at.is_ipv4()).unwrap_or_else(|| at.ip());
        let ip = if at.ip().is_unspecified() { own } else { at.ip() };
        Ok(SocketAddr::new(ip, port))
    }

    pub(super) fn unlisten(&mut self, port: u16) {
        self.interface.tcp().into_iter().for_each(|tcp| tcp.unlisten(port));
    }

    /// Begins a connection from the port of `from`.
    pub(super) fn connect(
        &mut self,
        now: Instant,
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<TcpId> {
        self.interface.set_now(now);
        self.interface.connect_tcp(from.port(), to).map_err(|e| open_error(to, e))
    }

    /// Begins a refused connection again, from the same port.
    pub(super) fn reconnect(
        &mut self,
        now: Instant,
        id: &mut TcpId,
        to: SocketAddr,
        slot: u32,
    ) -> io::Result<bool> {
        let from = self.flow(*id).map(|flow| flow.local);
        let from = from.unwrap_or_else(|| SocketAddr::new(to.ip(), 0));
        self.remove(*id, true);
        // The connection's port is free once its end was handled.
        self.output(now);
        *id = self.connect(now, from, to)?;
        self.set_slot(*id, slot);
        Ok(false)
    }

    pub(super) fn flow(&mut self, id: TcpId) -> Option<TcpFlow> {
        self.interface.tcp()?.flow(id)
    }

    /// Returns the most bytes of a segment to the peer.
    pub(super) fn mss(&mut self, id: TcpId) -> Option<u32> {
        Some(self.interface.tcp()?.connection(id)?.mss())
    }

    /// Reads bytes that were not lent. Returns as a socket does: none if there is nothing, and 0 at
    /// the end of the stream.
    pub(super) fn read(&mut self, id: TcpId, room: &mut [u8]) -> Option<Result<usize, Errno>> {
        let Some(tcp) = self.interface.tcp() else { return Some(Err(Errno::CONNRESET)) };
        let count = tcp.read(id, room);
        if count > 0 {
            return Some(Ok(count));
        }
        match tcp.connection(id) {
            Some(connection) if connection.is_finished() => Some(Ok(0)),
            Some(connection) if connection.error().is_none() => None,
            _ => Some(Err(Errno::CONNRESET)),
        }
    }

    /// True if a connection has `count` bytes to read.
    pub(super) fn has_readable(&mut self, id: TcpId, count: usize) -> bool {
        let connection = self.interface.tcp().and_then(|tcp| tcp.connection(id));
        connection.is_some_and(|connection| connection.readable() >= count)
    }

    /// Drops the next bytes that a connection has to read.
    pub(super) fn skip(&mut self, id: TcpId, count: usize) {
        self.interface.tcp().into_iter().for_each(|tcp| _ = tcp.skip(id, count));
    }

    /// Takes a record to send: with tight coupling as one segment, all of it or nothing, otherwise
    /// as many of its bytes behind the first `skip` as there is room for.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection has ended. `InvalidInput` if memory of the record is
    /// unmapped.
    pub(super) fn send(
        &mut self,
        id: TcpId,
        record: &Record,
        skip: usize,
        regions: &mut Regions,
        slices: &dyn Slices,
    ) -> io::Result<usize> {
        let is_tight = self.is_tight();
        let tcp = self.interface.tcp().ok_or(io::ErrorKind::ConnectionReset)?;
        let connection = tcp.connection(id).ok_or(io::ErrorKind::ConnectionReset)?;
        if !connection.may_send() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let copy;
        let bytes = match &record.parts[..] {
            [Part::Bytes(range)] => &record.bytes[range.clone()],
            parts => {
                // Memory that peers may write meanwhile is copied once, before it is summed.
                let mut bytes = Vec::with_capacity(record.len());
                let mut reach = Reach { regions, slices };
                for part in parts {
                    match part {
                        Part::Bytes(range) => bytes.extend_from_slice(&record.bytes[range.clone()]),
                        Part::Memory(span) => reach
                            .append(*span, &mut bytes)
                            .map_err(|_| io::ErrorKind::InvalidInput)?,
                    }
                }
                copy = bytes;
                &copy[..]
            }
        };
        let taken = if !is_tight {
            tcp.write(id, &bytes[skip..])
        } else if tcp.write_record(id, &[bytes]) {
            bytes.len()
        } else {
            0
        };
        if taken > 0 { Ok(taken) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Closes the sending half of a connection.
    pub(super) fn shut(&mut self, id: TcpId) {
        self.interface.tcp().into_iter().for_each(|tcp| tcp.close(id));
    }

    /// Closes all connections, or resets them. Data of the program is lost, data to the peers is
    /// not, unless the connections are reset.
    pub(super) fn leave(&mut self, now: Instant, aborts: bool) {
        self.slots.clear();
        let Some(tcp) = self.interface.tcp() else { return };
        if aborts {
            tcp.abort_all();
        } else {
            tcp.release_all();
        }
        self.output(now);
    }

    /// True if a connection has not ended.
    pub(super) fn has_connections(&mut self) -> bool {
        self.interface.tcp().is_some_and(|tcp| tcp.connections() > 0)
    }

    /// Forgets a connection: at once and by a reset, or when both ends have closed it.
    pub(super) fn remove(&mut self, id: TcpId, aborts: bool) {
        if let Some(slot) = self.slots.get_mut(id.index()) {
            *slot = u32::MAX;
        }
        let Some(tcp) = self.interface.tcp() else { return };
        if aborts {
            tcp.abort(id);
        } else {
            tcp.close(id);
            tcp.release(id);
        }
    }
}

/// Returns the error of an interface that opens no connection or listener.
fn open_error(at: SocketAddr, error: TcpOpenError) -> io::Error {
    let kind = match error {
        TcpOpenError::InUse | TcpOpenError::NoPort => io::ErrorKind::AddrInUse,
        TcpOpenError::NoRoute => io::ErrorKind::NetworkUnreachable,
        TcpOpenError::TooMany => io::ErrorKind::QuotaExceeded,
    };
    io::Error::new(kind, format!("{at}: {error}"))
}
