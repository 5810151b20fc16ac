//! Frames over RDMA: Sends carry requests and replies, Reads fetch long messages, on the queue
//! pairs of software iWARP.
//!
//! `input` runs the engine on what arrived, `receive` handles one completion at a time, `send`
//! posts the work requests of one connection, and `flush` lets the engine send all of them.
//!
//! ```text
//!   frames:  receive ─copy─► buffer (16 KiB, one for all) ─lent─► event
//! ```
//!
//! Always holds: a peer that breaks a rule loses its own connection alone; the engine sends nothing
//! before `flush` gets the memory that messages name.
//!
//! Not here: one connection's protocol (`pair`), links, requests and their numbers
//! ([`crate::transport::framed`]), the engine and its sockets (`sprat_rdma`).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::rdma::{Completed, Completion, Cq, Event as Happened, Qp, RnicOptions, Status};
use sprat_proto::rpc::over_qp::HEADER;
use sprat_proto::rpc::{CloseReason, Slice, Slices};
use sprat_proto::wire::rdmap::Cause;

use crate::count::counters;
use crate::device::Nic;
use crate::interface::{self, Opened, Ports};
use crate::locator::{DevicePort, HostPort, Kind, Locator, Over};
use crate::transport::framed::{Carrier, Framed, Link, Options, Shared};
use sprat_rdma::engine::{Core, Settings};
use sprat_rdma::{Copies, Coupling, NativeInterface};
use sprat_sys::crc::crc32c;

mod connect;
mod pair;
#[cfg(test)]
mod tests;

use pair::{BUFFER_BYTES, Engine, Pair, READ_ID};

/// The RDMA transport: frames on queue pairs.
pub(crate) type Rdma = Framed<Pairs>;

counters! {
    /// Counters of the RDMA transport, besides those of every transport of frames.
    pub(crate) struct Counters {
        /// Connection requests that were refused because their private data is no hello of our
        /// version.
        bad_hello,
        /// Connection requests that were refused because the transport has its most connections.
        refused_full,
        /// Connections that ended because the peer sent no MPA start-up frame in time.
        bad_start,
        /// Connections that this side opened and the peer refused.
        rejected,
        /// RDMAP's Terminate messages sent.
        terminates_sent,
        /// RDMAP's Terminate messages received.
        terminates_received,
        /// Terminate messages of both directions that name a wrong CRC32C.
        bad_crc,
        /// Terminate messages of both directions that name another error of MPA.
        bad_fpdu,
        /// Terminate messages of both directions that name an error of DDP.
        bad_ddp,
        /// Terminate messages of both directions that name an error of RDMAP.
        bad_rdmap,
    }
}

/// The RDMA carrier's part of one connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pair: Pair,
    /// True if the connection requests a CRC when it opens.
    crc: bool,
    /// The number and length of received Sends that are handled only once more replies are sent.
    deferred: VecDeque<(u16, u32)>,
    /// True if the queue pair has ended. The connection ends once no receive is deferred.
    ended: bool,
    /// True if the list [`Pairs::resumed`] has the connection.
    resumed: bool,
}

/// The carrier of frames on RDMA queue pairs.
#[derive(Debug)]
pub(crate) struct Pairs {
    core: Core,
    cq: Cq,
    listener: Option<(u32, SocketAddr)>,
    /// The locator of a listener on a packet device.
    locator: Option<String>,
    /// True if accepted connections use a CRC even if their client requests none.
    crc: bool,
    /// The slot of the connection of each queue pair.
    by_qp: BTreeMap<Qp, u16>,
    /// A completion that `input` found and no call has handled yet.
    next: Option<Completion>,
    /// Slots of the connections whose deferred receives are handled next.
    resumed: VecDeque<u16>,
    counters: Counters,
}

impl Pairs {
    /// Lends a connection the parts of the engine that it works on.
    fn engine<'w>(&'w mut self, released: &'w mut VecDeque<Slice>) -> Engine<'w> {
        let (rnic, regions) = self.core.parts();
        Engine { rnic, regions, released }
    }

    /// Queues `slot` so that its deferred receives are handled.
    fn resume(&mut self, slot: u16, wire: &mut Wire) {
        if !wire.resumed {
            wire.resumed = true;
            self.resumed.push_back(slot);
        }
    }

    /// Counts the errors that the RDMA engine has reported.
    fn count_failures(&mut self) {
        let counters = &mut self.counters;
        for notice in self.core.events().async_events.drain(..) {
            let (cause, ours) = match notice {
                Happened::QpFailed { cause, ours, .. } => (cause, ours),
                Happened::Failed { .. } => {
                    counters.bad_start += 1;
                    continue;
                }
                _ => continue,
            };
            counters.terminates_sent += u64::from(ours);
            counters.terminates_received += u64::from(!ours);
            *match cause {
                Cause::MPA_CRC => &mut counters.bad_crc,
                Cause { layer: Cause::MPA, .. } => &mut counters.bad_fpdu,
                Cause { layer: Cause::DDP, .. } => &mut counters.bad_ddp,
                _ => &mut counters.bad_rdmap,
            } += 1;
        }
    }
}

impl Rdma {
    /// Opens an RDMA transport that listens at `at`, a locator of `rdma`, and that can connect too.
    ///
    /// # Errors
    /// The locator is of another protocol or names no address that is allowed, or the system cannot
    /// bind the address.
    pub(crate) fn listen(at: &Locator, options: Options) -> io::Result<Self> {
        let (host_port, crc) = parse_locator(at)?;
        if let Kind::Device(port) = at.kind()? {
            let opened = interface::listen(at, &port, Ports::All)?;
            let own = opened.own;
            let mut rdma = Self::new(options, crc, Some(boxed(opened)))?;
            let (number, local) = rdma.carrier.core.listen(own)?;
            rdma.carrier.listener = Some((number, local));
            rdma.carrier.locator = Some(interface::locator(at, own, local.port()));
            return Ok(rdma);
        }
        let mut rdma = Self::new(options, crc, None)?;
        let mut last = io::ErrorKind::NotFound.into();
        for addr in host_port.allowed(options.insecure_network)? {
            match rdma.carrier.core.listen(addr) {
                Ok(listener) => {
                    rdma.carrier.listener = Some(listener);
                    return Ok(rdma);
                }
                Err(e) => last = io::Error::new(e.kind(), format!("{at}: {e}")),
            }
        }
        Err(last)
    }

    /// Opens an RDMA transport that only connects to servers such as `to`.
    ///
    /// # Errors
    /// The system gives no file descriptor or no random numbers, or the device cannot be opened.
    pub(crate) fn client(to: &Locator, local: &[Locator], options: Options) -> io::Result<Self> {
        let interface = match to.kind()? {
            Kind::Device(_) => Some(boxed(interface::towards(to, local, Ports::All, device_port)?)),
            _ => None,
        };
        Self::new(options, true, interface)
    }

    /// Opens an RDMA transport. Its accepted connections use a CRC if `crc`, or else if the client
    /// requests one.
    fn new(options: Options, crc: bool, interface: Option<NativeInterface>) -> io::Result<Self> {
        let connections = options.connection_limit.min(1 << 16);
        // Every host that reaches a packet device may connect.
        let insecure_network = options.insecure_network || interface.is_some();
        let options = Options { insecure_network, ..options };
        // A connection has only a few completions, so the limit on connections is enough.
        let config = RnicOptions {
            crc32c,
            crc,
            max_conns: connections,
            max_cqe: u32::MAX,
            ..RnicOptions::default()
        };
        // This server accepts a request in the turn in which it arrives, so a reply that is later
        // than a start-up frame may be means that the peer is no such server.
        let config = RnicOptions { reply_timeout_ns: config.start_timeout_ns, ..config };
        let mut core = Core::new(
            Settings {
                config,
                copies: Copies::DirectReads,
                coupling: Coupling::Tight,
                connections,
                fitted: false,
                on_failure: None,
            },
            interface,
        )?;
        core.events().changed = Some(VecDeque::new());
        let cq = core.rnic().create_cq(u32::MAX).map_err(io::Error::other)?;
        let pairs = Pairs {
            core,
            cq,
            listener: None,
            locator: None,
            crc,
            by_qp: BTreeMap::new(),
            next: None,
            resumed: VecDeque::new(),
            counters: Counters::default(),
        };
        Ok(Self::with_carrier(pairs, options))
    }

    /// Ends the connection in `slot`, whose peer broke a rule.
    fn protocol_error(&mut self, slot: u16) {
        if let Some(link) = self.link(slot) {
            link.stream.carrier_error();
        }
        self.stream_changed(slot);
    }

    /// Returns the next completion to handle; deferred ones come first.
    fn completion(&mut self) -> Option<Completion> {
        while let Some(&slot) = self.carrier.resumed.front() {
            let Some(link) = self.link(slot) else {
                self.carrier.resumed.pop_front();
                continue;
            };
            if link.backlog.is_empty()
                && (link.stream.wants_input() || link.wire.ended)
                && let Some((receive, len)) = link.wire.deferred.pop_front()
            {
                let id = u64::from(slot) << 32 | u64::from(receive);
                let (status, completed, qp) = (Status::Success, Completed::Recv, link.wire.pair.qp);
                return Some(Completion {
                    id,
                    status,
                    completed,
                    len,
                    qp,
                    immediate: None,
                    invalidated: None,
                    at: Instant::ZERO,
                });
            }
            link.wire.resumed = false;
            let over =
                link.wire.ended && (link.wire.deferred.is_empty() || !link.backlog.is_empty());
            self.carrier.resumed.pop_front();
            if over {
                self.end(slot, CloseReason::Reset);
            }
        }
        let pairs = &mut self.carrier;
        pairs.next.take().or_else(|| pairs.core.rnic().poll(pairs.cq))
    }

    /// Handles a completion of a queue pair.
    fn completed(&mut self, now: Instant, done: Completion) {
        let slot = (done.id >> 32) as u16;
        let Some((link, shared)) = self.link_and_shared(slot) else { return };
        let Link { stream, wire, backlog, .. } = link;
        if wire.pair.qp != done.qp || stream.ended().is_some() {
            return;
        }
        if done.status != Status::Success {
            return self.pair_ended(slot);
        }
        let mut engine = shared.carrier.engine(shared.released);
        if done.id & READ_ID != 0 {
            match wire.pair.read_completed(now, stream, shared.ids, &mut engine, shared.budget) {
                Ok(event) => self.found = event,
                Err(_) => return self.protocol_error(slot),
            }
            self.resume_granted();
            self.mark_dirty(slot);
            return self.stream_changed(slot);
        }
        let receive = done.id as u16;
        let goes_on = stream.wants_input() && backlog.is_empty();
        // A Send without frames is never deferred: the peer needs its receive to report the
        // messages that it finished.
        let has_frames = done.len as usize > HEADER;
        if has_frames && !wire.resumed && (!wire.deferred.is_empty() || !goes_on) {
            if wire.pair.receive_header(receive, done.len as usize, &mut engine).is_err() {
                return self.protocol_error(slot);
            }
            wire.deferred.push_back((receive, done.len));
            return self.mark_dirty(slot);
        }
        match wire.pair.receive(receive, done.len as usize, shared.buffer, stream, &mut engine) {
            Ok(None) => self.stream_changed(slot),
            Ok(Some(at)) => self.buffer_filled(slot, at, done.len as usize),
            Err(_) => return self.protocol_error(slot),
        }
        // The Send may have brought credits, or announced a message to read.
        self.mark_dirty(slot);
    }

    /// Ends the connection in `slot` with its queue pair, after its deferred receives.
    fn pair_ended(&mut self, slot: u16) {
        let Some((link, shared)) = self.link_and_shared(slot) else { return };
        link.wire.ended = true;
        if link.wire.deferred.is_empty() {
            return self.end(slot, CloseReason::Reset);
        }
        shared.carrier.resume(slot, &mut link.wire);
    }
}

/// Returns the packet device and port that a locator of `rdma+DEVICE` names.
pub(crate) fn device_port(locator: &Locator) -> io::Result<DevicePort> {
    match locator.kind()? {
        Kind::Device(port) if port.over == Over::Rdma => Ok(port),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{locator} is no locator of queue pairs over a packet device"),
        )),
    }
}

/// Parses a locator of `rdma` or `rdma+DEVICE`: host and port, and true if the connection requests
/// a CRC.
fn parse_locator(locator: &Locator) -> io::Result<(HostPort, bool)> {
    match locator.kind()? {
        Kind::Rdma { at, crc } => Ok((at, crc)),
        Kind::Device(DevicePort { over: Over::Rdma, at, crc, .. }) => Ok((at, crc)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{locator} is no locator of rdma"),
        )),
    }
}

/// Returns an opened interface as the RDMA engine takes it.
pub(crate) fn boxed(opened: Opened) -> NativeInterface {
    opened.interface.map(|nic| Box::new(nic) as Box<dyn Nic>)
}

impl Carrier for Pairs {
    type Wire = Wire;
    const BUFFER: usize = BUFFER_BYTES;

    fn host_port(to: &Locator) -> io::Result<HostPort> {
        parse_locator(to).map(|(at, _)| at)
    }

    fn open(
        rdma: &mut Rdma,
        now: Instant,
        to: &Locator,
        left: VecDeque<SocketAddr>,
    ) -> io::Result<u16> {
        rdma.open(now, parse_locator(to)?.1, left)
    }

    fn input(rdma: &mut Rdma, now: Instant) -> usize {
        let worked = rdma.carrier.core.input(now);
        if worked {
            rdma.carrier.count_failures();
            rdma.accept_requests(now);
        }
        let pairs = &mut rdma.carrier;
        if pairs.next.is_none() {
            pairs.next = pairs.core.rnic().poll(pairs.cq);
        }
        // A connection's last completions are handled before its end is.
        if pairs.next.is_none() {
            rdma.connection_events(now);
        }
        usize::from(worked || rdma.carrier.next.is_some()) + rdma.carrier.resumed.len()
    }

    fn receive(rdma: &mut Rdma, now: Instant) -> bool {
        let Some(done) = rdma.completion() else { return false };
        rdma.completed(now, done);
        true
    }

    fn buffer_consumed(link: &mut Link<Wire>) {
        // A Send holds whole frames.
        if !link.stream.is_between() {
            link.stream.carrier_error();
        }
    }

    fn room_granted(link: &mut Link<Wire>) {
        link.wire.pair.room_granted();
    }

    fn unread_by_peer(wire: &Wire) -> usize {
        wire.pair.unfinished()
    }

    fn may_send(_: &Wire) -> bool {
        true
    }

    fn send(
        now: Instant,
        slot: u16,
        link: &mut Link<Wire>,
        shared: Shared<'_, Self>,
        memory: &dyn Slices,
        _: bool,
    ) -> bool {
        let mut engine = shared.carrier.engine(shared.released);
        if link.wire.pair.output(now, &mut link.stream, memory, &mut engine, shared.budget).is_err()
        {
            link.stream.end(CloseReason::Reset);
        }
        if !link.wire.deferred.is_empty() && link.stream.wants_input() {
            shared.carrier.resume(slot, &mut link.wire);
        }
        // What is left waits for the peer.

        false
    }

    fn flush(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        self.core.flush_with(now, memory);
        self.core.has_output() || !self.resumed.is_empty()
    }

    fn stream_changed(&mut self, _: u16, _: &mut Link<Wire>) {}

    /// Does nothing: the RDMA engine limits the time of connecting itself and reports a failure.
    fn connect_timed_out(_: &mut Rdma, _: Instant, _: u16) {}

    fn removed(rdma: &mut Rdma, link: Link<Wire>) {
        rdma.free_pair(link.wire);
    }

    fn deadline(&self) -> Instant {
        self.core.deadline()
    }

    fn tick(rdma: &mut Rdma, now: Instant) {
        rdma.carrier.core.input(now);
        rdma.carrier.count_failures();
        rdma.connection_events(now);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.core.fd()
    }

    fn arm(&mut self) -> bool {
        self.core.arm() && self.next.is_none() && self.resumed.is_empty()
    }

    fn disarm(&mut self) {
        self.core.wake();
    }

    fn locator(&self) -> Option<String> {
        if self.locator.is_some() {
            return self.locator.clone();
        }
        let (_, at) = self.listener?;
        let crc = if self.crc { "" } else { ",crc=off" };
        Some(format!("rdma:host={},port={}{crc}", at.ip(), at.port()))
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counters.each(each);
        let core = self.core.counters();
        for (name, count) in [
            ("streams_accepted", core.accepted),
            ("accept_errors", core.accept_errors),
            ("octets_received", core.received),
            ("octets_sent", core.sent),
            ("octets_direct", core.direct),
        ] {
            each(name, count);
        }
    }
}
