//! Frames over our own TCP: [`Framed`] on the connections of an IP stack of this process, over a
//! packet device. No byte passes the kernel's network stack: `utcp+packet`, `utcp+xdp`, `utcp+tap`,
//! `utcp+memif`, `utcp+shmnet`, `utcp+dpdk`, and `utcp+bond` of two of a kind.
//!
//! `input` receives a burst of frames, whose data the stack lends. `output` copies frames into the
//! send buffers of the connections, and the stack sends them straight from there.
//!
//! ```text
//!   small messages:  device's frame ─copy─► buffer (64 KiB, one for all) ─lent─► event
//!   long messages:   device's frame ─copy─► memory of the message       ─owned─► event
//! ```
//!
//! Always holds: what a connection does not take of its lent data goes to its receive buffer, and
//! is taken from there before any later data; a peer that does not read, or is not read, costs the
//! two buffers of its connection at most.
//!
//! Not here: links, requests and their numbers ([`crate::transport::framed`]), the interface and
//! its addresses ([`crate::interface`]), TCP itself (`sprat_proto::net::tcp`).

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use sprat_proto::net::Interface;
use sprat_proto::net::tcp::{TcpConfig, TcpHost, TcpId};
use sprat_proto::rpc::Slices;
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Device as _, Instant};

use crate::device::{AnyNic, Nic as _};
use crate::interface::{self, Opened, Ports};
use crate::locator::{DevicePort, HostPort, Kind, Locator, Over};
use crate::transport::framed::{Carrier, Framed, Link, Options, Shared};

mod connection;
mod input;
mod open;
#[cfg(test)]
mod tests;

use connection::{BUFFER_BYTES, Wire};

/// The most connections in their handshakes at one listener.
const BACKLOG: u32 = 1024;
/// The time by which an acknowledgement waits for a message that takes it along, in nanoseconds. An
/// answer of a server comes within microseconds; a request after an answer may take longer.
const DELAYED_ACK_NS: u64 = 10 * MS;
/// The shortest retransmission timeout in nanoseconds: above the time by which our peers delay an
/// acknowledgement, and Linux (40 ms), and a turn in which the scheduler of a full machine runs
/// others. Losses but those of a last segment are repaired sooner, by what arrives behind them.
const MIN_TIMEOUT_NS: u64 = 60 * MS;
/// The silence on a connection after which the peer is probed, in nanoseconds.
const KEEP_ALIVE_NS: u64 = 10 * SECOND;
/// The time for which data may stay unacknowledged, in nanoseconds, as that of kernel TCP.
const UNACKNOWLEDGED_NS: u64 = 16 * SECOND;
/// The time in TIME-WAIT in nanoseconds, and that for which a closed connection waits for the
/// peer's end. The ends of this transport reset each other, so that only a peer of another kind
/// has such a connection here; old segments of it fail the check of timestamps.
const TIME_WAIT_NS: u64 = SECOND;
/// The number of times that a SYN is sent again: more than [`CONNECT_NS`] has time for.
///
/// [`CONNECT_NS`]: crate::transport::framed::CONNECT_NS
const SYN_RETRIES: u8 = 3;
/// The most connections that are reset in a row before the resets are sent: the stack keeps no more
/// of them.
const RESETS: usize = 32;

/// The transport of frames on our own TCP.
pub(crate) type Utcp = Framed<Connections>;

/// The carrier of frames on the connections of our own TCP.
pub(crate) struct Connections {
    interface: Interface<AnyNic>,
    /// The protocol of the transport's locators, as in `utcp+packet`.
    protocol: String,
    /// The locator of the listener.
    locator: Option<String>,
    /// The slot of the link of each connection, by the connection's index.
    slots: Vec<Option<(TcpId, u16)>>,
    /// The number of the next piece of lent data of this turn.
    piece: usize,
    /// The number of the last burst of frames.
    burst: u64,
    /// Slots of the connections whose receive buffers have bytes, or whose ends are to be handled.
    ready: VecDeque<u16>,
    /// The number of resets that wait to be sent.
    resets: usize,
    /// Number of connections that were refused because the transport was full.
    accept_errors: u64,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections")
            .field("protocol", &self.protocol)
            .field("locator", &self.locator)
            .finish_non_exhaustive()
    }
}

/// Returns the packet device and port that a locator of `utcp+DEVICE` names.
fn device_port(locator: &Locator) -> io::Result<DevicePort> {
    match locator.kind()? {
        Kind::Device(port) if port.over == Over::Tcp => Ok(port),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{locator} is no locator of our own TCP"),
        )),
    }
}

impl Utcp {
    /// Opens a transport of our own TCP that listens at `at`, a locator of `utcp+DEVICE`, and that
    /// can connect too. No other machine or process may have its address.
    ///
    /// # Errors
    /// The locator is of another protocol, its host does not resolve, is the kernel's own or no
    /// host's, or the device cannot be opened: the error says what is missing.
    pub(crate) fn listen(at: &Locator, options: Options) -> io::Result<Self> {
        let opened = interface::listen(at, &device_port(at)?, Ports::All)?;
        let own = opened.own;
        let mut utcp = Self::over(at, opened, options);
        let listened = utcp.carrier.tcp().listen(own.port(), BACKLOG);
        let port =
            listened.map_err(|e| io::Error::new(io::ErrorKind::AddrInUse, format!("{at}: {e}")))?;
        utcp.carrier.locator = Some(interface::locator(at, own, port));
        Ok(utcp)
    }

    /// Opens a transport of our own TCP that only connects to servers such as `to`: at the address
    /// and on the device that one of `local` names for this protocol, otherwise on the device that
    /// `to` names.
    ///
    /// # Errors
    /// The errors of [`Utcp::listen`].
    pub(crate) fn client(to: &Locator, local: &[Locator], options: Options) -> io::Result<Self> {
        let opened = interface::towards(to, local, Ports::All, device_port)?;
        Ok(Self::over(to, opened, options))
    }

    fn over(at: &Locator, opened: Opened, options: Options) -> Self {
        let mut interface = opened.interface;
        let config = TcpConfig {
            receive_bytes: BUFFER_BYTES,
            send_bytes: BUFFER_BYTES,
            no_delay: true,
            delayed_ack_ns: DELAYED_ACK_NS,
            min_timeout_ns: MIN_TIMEOUT_NS,
            syn_retries: SYN_RETRIES,
            user_timeout_ns: UNACKNOWLEDGED_NS,
            time_wait_ns: TIME_WAIT_NS,
            keep_alive_ns: Some(KEEP_ALIVE_NS),
            ..TcpConfig::default()
        };
        interface.stack_mut().enable_tcp(config, options.connection_limit.min(1 << 16));
        let connections = Connections {
            interface,
            protocol: at.protocol().to_owned(),
            locator: None,
            slots: Vec::new(),
            piece: 0,
            burst: 0,
            ready: VecDeque::new(),
            resets: 0,
            accept_errors: 0,
        };
        // Every host that reaches a packet device may connect.
        Self::with_carrier(connections, Options { insecure_network: true, ..options })
    }
}

impl Connections {
    fn tcp(&mut self) -> &mut TcpHost {
        self.interface.tcp().expect("the stack was opened with TCP")
    }

    #[inline]
    fn slot(&self, id: TcpId) -> Option<u16> {
        let (of, slot) = self.slots.get(id.index()).copied().flatten()?;
        (of == id).then_some(slot)
    }

    /// Records the slot of a connection's link, and lets its data be lent.
    fn set_slot(&mut self, id: TcpId, slot: u16) {
        if self.slots.len() <= id.index() {
            self.slots.resize(id.index() + 1, None);
        }
        self.slots[id.index()] = Some((id, slot));
        self.tcp().lend(id, true);
    }

    fn clear_slot(&mut self, id: TcpId) {
        if let Some(place) = self.slots.get_mut(id.index()) {
            place.take_if(|(of, _)| *of == id);
        }
    }

    /// Resets a connection, and forgets it.
    fn reset(&mut self, id: TcpId) {
        self.clear_slot(id);
        self.tcp().abort(id);
        self.resets += 1;
        if self.resets == RESETS {
            self.output();
        }
    }

    /// Sends `bytes` and closes a connection. It is forgotten once the peer has closed it, too.
    fn close(&mut self, id: TcpId, bytes: &[u8]) {
        self.clear_slot(id);
        let tcp = self.tcp();
        tcp.write(id, bytes);
        tcp.close(id);
        tcp.release(id);
    }

    /// Sends what waits, as far as the device has room.
    #[inline]
    fn output(&mut self) {
        self.resets = 0;
        self.interface.output();
    }
}

impl Drop for Connections {
    /// Tells the peers that the connections end with this process.
    fn drop(&mut self) {
        for (id, _) in std::mem::take(&mut self.slots).into_iter().flatten() {
            self.reset(id);
        }
        self.output();
    }
}

impl Carrier for Connections {
    type Wire = Wire;
    const BUFFER: usize = 64 << 10;

    fn host_port(to: &Locator) -> io::Result<HostPort> {
        Ok(device_port(to)?.at)
    }

    fn open(
        utcp: &mut Utcp,
        now: Instant,
        to: &Locator,
        left: VecDeque<SocketAddr>,
    ) -> io::Result<u16> {
        utcp.open(now, to, left)
    }

    #[inline]
    fn input(utcp: &mut Utcp, now: Instant) -> usize {
        utcp.input_burst(now)
    }

    #[inline]
    fn receive(utcp: &mut Utcp, now: Instant) -> bool {
        utcp.receive_lent(now) || utcp.receive_kept(now)
    }

    #[inline]
    fn buffer_consumed(_: &mut Link<Wire>) {}

    fn room_granted(_: &mut Link<Wire>) {}

    #[inline]
    fn unread_by_peer(_: &Wire) -> usize {
        0
    }

    #[inline]
    fn may_send(wire: &Wire) -> bool {
        !wire.blocked
    }

    #[inline]
    fn send(
        now: Instant,
        _: u16,
        link: &mut Link<Wire>,
        shared: Shared<'_, Self>,
        memory: &dyn Slices,
        _: bool,
    ) -> bool {
        link.write(now, memory, shared.carrier.tcp());
        link.stream.has_output() && !link.wire.blocked
    }

    #[inline]
    fn flush(&mut self, now: Instant, _: &dyn Slices) -> bool {
        self.interface.set_now(now);
        self.output();
        !self.interface.stack().is_idle()
    }

    /// Queues the connection to be read if its buffer has bytes and the stream wants them.
    #[inline]
    fn stream_changed(&mut self, slot: u16, link: &mut Link<Wire>) {
        if link.wire.unread && !link.wire.queued && link.goes_on() {
            link.wire.queued = true;
            self.ready.push_back(slot);
        }
    }

    fn connect_timed_out(utcp: &mut Utcp, now: Instant, slot: u16) {
        utcp.try_others(now, slot, io::ErrorKind::TimedOut.into());
    }

    fn removed(utcp: &mut Utcp, link: Link<Wire>) {
        let id = link.wire.id;
        let has_closed = utcp.carrier.tcp().connection(id).is_some_and(|c| c.is_finished());
        match link.stream.reset_frame() {
            Some(bytes) => utcp.carrier.close(id, &bytes),
            None if has_closed => utcp.carrier.close(id, &[]),
            None => utcp.carrier.reset(id),
        }
    }

    #[inline]
    fn deadline(&self) -> Instant {
        self.interface.deadline().unwrap_or(Instant::NEVER)
    }

    fn tick(utcp: &mut Utcp, now: Instant) {
        utcp.carrier.interface.tick(now);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.interface.device().fd()
    }

    fn arm(&mut self) -> bool {
        self.output();
        let is_read = self.ready.is_empty() && self.piece >= self.interface.stack().lent_tcp();
        is_read
            && self.interface.stack().is_idle()
            && !self.tcp().has_event()
            && self.interface.device_mut().arm()
    }

    fn disarm(&mut self) {
        self.interface.device_mut().disarm();
    }

    fn locator(&self) -> Option<String> {
        self.locator.clone()
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("accept_errors", self.accept_errors);
        self.interface.stack().counters().each(each);
        self.interface.device().counters(each);
    }
}
