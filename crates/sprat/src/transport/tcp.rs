//! Frames over kernel TCP: [`Framed`] on non-blocking sockets. It is the baseline of the other
//! transports, and the control path of a cluster.
//!
//! `input` finds the connections with input: it reads each of a few, and polls epoll for many. They
//! are read one after the other. `output` makes one gathering write for each connection with
//! output.
//!
//! ```text
//!   small messages:  socket ─read─► buffer (64 KiB, one for all) ─lent─► event
//!   long messages:   socket ─read─► memory of the message       ─owned─► event
//! ```
//!
//! Not here: links, requests and their numbers ([`crate::transport::framed`]).

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::net::sockopt;
use sprat_proto::Instant;
use sprat_proto::rpc::budget::EXEMPT_BYTES;
use sprat_proto::rpc::{CloseReason, Slices};

use crate::locator::{HostPort, Kind, Locator};
use crate::transport::framed::{CONNECT_NS, Carrier, Connecting, Framed, Link, Options, Shared};

mod accept;
mod connection;
mod listener;
#[cfg(test)]
mod tests;

use connection::{Read, Socket};
use listener::Listener;

/// The most connections that a turn reads one by one. With more, the transport polls epoll.
const DIRECT: usize = 8;
/// Number of turns for each poll of epoll, with few connections. Only that poll finds new
/// connections.
const EPOLL_EVERY: u32 = 32;
/// The most bytes that one connection writes in a turn while others wait to write.
const WORK: usize = 128 << 10;
/// The most bytes that one connection writes in a turn while no other waits to write: the kernel
/// moves a message of 1 MB in about half the time if it gets all of it in one call.
const WORK_ALONE: usize = 1 << 20;
/// The number by which epoll reports the listener. A connection's number is its slot.
const LISTENER: u64 = u64::MAX;

/// The TCP transport: frames on kernel sockets.
pub(crate) type Tcp = Framed<Sockets>;

/// The carrier of frames on kernel TCP.
#[derive(Debug)]
pub(crate) struct Sockets {
    epoll: OwnedFd,
    listener: Option<Listener>,
    busy_poll_us: Option<u32>,
    /// Number of sockets that wait until they are writable, which only epoll reports.
    waiting: usize,
    turn: u32,
    /// True if epoll may have events.
    poll_epoll: bool,
    /// Slots of the connections whose sockets may have input.
    ready: VecDeque<u16>,
    /// Number of times that accepting failed or had to wait: no descriptor was left, or the
    /// transport was full.
    accept_errors: u64,
}

impl Tcp {
    /// Opens a TCP transport that listens at `at`, a locator of `tcp`, and that can connect too.
    ///
    /// # Errors
    /// The locator is of another protocol or names no address that is allowed, or the system cannot
    /// bind the address.
    pub(crate) fn listen(at: &Locator, options: Options) -> io::Result<Self> {
        let mut tcp = Self::client(options)?;
        let mut last = io::ErrorKind::NotFound.into();
        for addr in Sockets::host_port(at)?.allowed(options.insecure_network)? {
            match Listener::bind(addr) {
                Ok(listener) => {
                    let data = epoll::EventData::new_u64(LISTENER);
                    epoll::add(&tcp.carrier.epoll, &listener.socket, data, epoll::EventFlags::IN)?;
                    tcp.carrier.listener = Some(listener);
                    return Ok(tcp);
                }
                Err(e) => last = io::Error::new(e.kind(), format!("{at}: {e}")),
            }
        }
        Err(last)
    }

    /// Opens a TCP transport that only connects.
    ///
    /// # Errors
    /// The system gives no epoll.
    pub(crate) fn client(options: Options) -> io::Result<Self> {
        let sockets = Sockets {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listener: None,
            busy_poll_us: options.busy_poll_us,
            waiting: 0,
            turn: 0,
            poll_epoll: true,
            ready: VecDeque::new(),
            accept_errors: 0,
        };
        Ok(Self::with_carrier(sockets, options))
    }

    /// Reads from the socket of `slot` once. Returns true if the read brought bytes or the end.
    #[inline]
    fn read(&mut self, now: Instant, slot: u16) -> bool {
        let Some((link, shared)) = self.link_and_shared(slot) else { return false };
        let stream = &link.stream;
        if link.connecting.is_some() || stream.ended().is_some() || !stream.wants_input() {
            return false;
        }
        if !link.backlog.is_empty() {
            return false;
        }
        let most = if shared.budget.has_waiting() { EXEMPT_BYTES } else { shared.buffer.len() };
        match link.read(now, &mut shared.buffer[..most], shared.ids) {
            Read::Nothing => return false,
            Read::Bytes(n) => self.buffer_filled(slot, 0, n),
            Read::Body(event, n) => {
                shared.budget.brought(now, u32::from(slot), n);
                link.silent_until = Instant::NEVER;
                self.found = event;
                self.stream_changed(slot);
            }
            Read::End => self.end(slot, CloseReason::Reset),
        }
        true
    }

    /// Polls epoll: accepts connections, records which sockets are readable or writable, and
    /// returns the number of events.
    fn poll_epoll(&mut self, now: Instant) -> usize {
        self.carrier.poll_epoll = false;
        let mut events = [const {
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }
        }; 64];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.carrier.epoll, &mut events, Some(&none)).unwrap_or(0);
        // If the array is full, epoll may have more events.
        self.carrier.poll_epoll = count == events.len();
        for event in &events[..count] {
            let (flags, data) = (event.flags, event.data.u64());
            if data == LISTENER {
                self.accept(now);
                continue;
            }
            let slot = data as u16;
            let Some((link, shared)) = self.link_and_shared(slot) else { continue };
            if link.connecting.is_some() {
                self.connected(now, slot);
                continue;
            }
            let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            if broken || flags.contains(epoll::EventFlags::IN) {
                shared.carrier.ready.push_back(slot);
            }
            if link.wire.blocked && (broken || flags.contains(epoll::EventFlags::OUT)) {
                link.wire.blocked = false;
                self.stream_changed(slot);
                self.mark_dirty(slot);
            }
        }
        count
    }

    /// Notes that the connection in `slot` is open, or tries the next address if this one failed.
    fn connected(&mut self, now: Instant, slot: u16) {
        let Some(link) = self.link(slot) else { return };
        if let Err(e) | Ok(Err(e)) = sockopt::socket_error(&link.wire.socket) {
            return self.try_others(now, slot, e.into());
        }
        link.connecting = None;
        self.stream_changed(slot);
        self.mark_dirty(slot);
    }

    /// Tries the next addresses for the connection in `slot`, after one failed with `cause`.
    fn try_others(&mut self, now: Instant, slot: u16, cause: io::Error) {
        let Some((link, shared)) = self.link_and_shared(slot) else { return };
        let mut left = link.connecting.take().map_or_else(VecDeque::new, |c| c.left);
        if left.is_empty() {
            return self.open_failed(slot, cause);
        }
        match connection::begin(&mut left, shared.carrier.busy_poll_us) {
            Err(e) => self.open_failed(slot, e),
            Ok((socket, done)) => {
                // Closing the old socket takes it out of epoll.
                shared.carrier.forget(&link.wire);
                link.wire = Socket::new(socket);
                self.opening(now, slot, done, left);
            }
        }
    }

    /// Begins the state of the connection in `slot`, whose socket connects, or is connected if
    /// `done`.
    fn opening(&mut self, now: Instant, slot: u16, done: bool, left: VecDeque<SocketAddr>) {
        let until = now.after(CONNECT_NS);
        if let Some(link) = self.link(slot) {
            link.connecting = (!done).then_some(Connecting { left, until });
            self.due_by(slot, until);
            self.stream_changed(slot);
            self.mark_dirty(slot);
        }
    }
}

impl Sockets {
    /// Removes a socket that is about to be closed from the counts.
    fn forget(&mut self, wire: &Socket) {
        self.waiting -= usize::from(wire.interest.contains(epoll::EventFlags::OUT));
    }
}

impl Carrier for Sockets {
    type Wire = Socket;
    const BUFFER: usize = 64 << 10;

    fn host_port(to: &Locator) -> io::Result<HostPort> {
        match to.kind()? {
            Kind::Tcp(host_port) => Ok(host_port),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{to} is no locator of tcp"),
            )),
        }
    }

    fn open(
        tcp: &mut Tcp,
        now: Instant,
        _: &Locator,
        mut left: VecDeque<SocketAddr>,
    ) -> io::Result<u16> {
        let (socket, done) = connection::begin(&mut left, tcp.carrier.busy_poll_us)?;
        let slot = tcp.insert_opened(Socket::new(socket));
        tcp.opening(now, slot, done, left);
        Ok(slot)
    }

    #[inline]
    fn input(tcp: &mut Tcp, now: Instant) -> usize {
        let Framed { carrier: sockets, links, .. } = &mut *tcp;
        sockets.turn = sockets.turn.wrapping_add(1);
        let waiting = links.live().len() > DIRECT || sockets.waiting > 0;
        let mut count = 0;
        if sockets.poll_epoll || waiting || sockets.turn.is_multiple_of(EPOLL_EVERY) {
            count += tcp.poll_epoll(now);
        }
        if !waiting {
            tcp.carrier.ready.clear();
            let Framed { carrier, links, .. } = tcp;
            carrier.ready.extend(links.live());
        }
        while let Some(slot) = tcp.carrier.ready.pop_front() {
            if tcp.read(now, slot) {
                return count + 1;
            }
        }
        count
    }

    #[inline]
    fn receive(tcp: &mut Tcp, now: Instant) -> bool {
        let Some(slot) = tcp.carrier.ready.pop_front() else { return false };
        tcp.read(now, slot);
        true
    }

    #[inline]
    fn buffer_consumed(_: &mut Link<Socket>) {}

    fn room_granted(_: &mut Link<Socket>) {}

    #[inline]
    fn unread_by_peer(_: &Socket) -> usize {
        0
    }

    #[inline]
    fn may_send(wire: &Socket) -> bool {
        !wire.blocked
    }

    #[inline]
    fn send(
        now: Instant,
        _: u16,
        link: &mut Link<Socket>,
        _: Shared<'_, Self>,
        memory: &dyn Slices,
        alone: bool,
    ) -> bool {
        link.write(now, memory, if alone { WORK_ALONE } else { WORK });
        link.stream.has_output()
    }

    #[inline]
    fn flush(&mut self, _: Instant, _: &dyn Slices) -> bool {
        false
    }

    /// Makes epoll report the events that the connection waits for.
    #[inline]
    fn stream_changed(&mut self, slot: u16, link: &mut Link<Socket>) {
        let (old, wanted) = (link.wire.interest, link.wanted_interest());
        if wanted == old {
            return;
        }
        let data = epoll::EventData::new_u64(u64::from(slot));
        // A socket without interest leaves epoll, which would otherwise report its end again and
        // again.
        let result = match (old.is_empty(), wanted.is_empty()) {
            (true, _) => epoll::add(&self.epoll, &link.wire.socket, data, wanted),
            (false, true) => epoll::delete(&self.epoll, &link.wire.socket),
            (false, false) => epoll::modify(&self.epoll, &link.wire.socket, data, wanted),
        };
        self.forget(&link.wire);
        link.wire.interest = wanted;
        self.waiting += usize::from(wanted.contains(epoll::EventFlags::OUT));
        if result.is_err() {
            link.stream.end(CloseReason::Unreachable);
        }
    }

    fn connect_timed_out(tcp: &mut Tcp, now: Instant, slot: u16) {
        tcp.try_others(now, slot, io::ErrorKind::TimedOut.into());
    }

    fn removed(tcp: &mut Tcp, link: Link<Socket>) {
        tcp.carrier.forget(&link.wire);
        link.send_reset();
        if !tcp.is_full() {
            tcp.carrier.resume_accepting();
        }
    }

    fn deadline(&self) -> Instant {
        self.listener.as_ref().and_then(|l| l.paused_until).unwrap_or(Instant::NEVER)
    }

    fn tick(tcp: &mut Tcp, _: Instant) {
        tcp.carrier.resume_accepting();
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn arm(&mut self) -> bool {
        // The descriptor reports bytes in sockets, but not the slots that `ready` has.

        self.poll_epoll = true;
        self.ready.is_empty()
    }

    fn disarm(&mut self) {
        self.poll_epoll = true;
    }

    fn locator(&self) -> Option<String> {
        let at = self.listener.as_ref()?.local;
        Some(format!("tcp:host={},port={}", at.ip(), at.port()))
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("accept_errors", self.accept_errors);
    }
}
