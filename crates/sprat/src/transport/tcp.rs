//! Frames over kernel TCP: [`Framed`] on non-blocking sockets. The reference that the other
//! transports are compared with, and the control path of a cluster.
//!
//! `input` finds out who has something, with few connections by reading each, else by asking the
//! epoll; they are read one after the other; `output` makes one gathering write for each connection
//! that has something to say.
//!
//! ```text
//!   small messages:  socket ─read─► buffer (64 KiB, one for all) ─lent─► event
//!   long ones:       socket ─read─► the message itself            ─owned─► event
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
use sprat_proto::rpc::budget::FREE;
use sprat_proto::rpc::{CloseReason, Slices};

use crate::locator::{HostPort, Kind, Locator};
use crate::transport::framed::{Around, CONNECT_NS, Carrier, Connecting, Framed, Link, Options};

mod accept;
mod connection;
mod listener;
#[cfg(test)]
mod tests;

use connection::{Read, Socket};
use listener::Listener;

/// Up to so many connections each is polled by reading it; more are polled through the epoll.
const DIRECT: usize = 8;
/// With few connections, how many turns pass between looks at the epoll (for new connections).
const EPOLL_EVERY: u32 = 32;
/// The most bytes that one connection writes in a turn while others wait to write.
const WORK: usize = 128 << 10;
/// The same while no other waits: the kernel moves a message of 1 MB in about half the time if it
/// gets it at once.
const WORK_ALONE: usize = 1 << 20;
/// What the epoll calls the listener.
const LISTENER: u64 = u64::MAX;

/// The transport.
pub(crate) type Tcp = Framed<Sockets>;

/// Kernel TCP, as what carries frames.
#[derive(Debug)]
pub(crate) struct Sockets {
    epoll: OwnedFd,
    listener: Option<Listener>,
    busy_poll_us: Option<u32>,
    /// How many wait until their socket is writable, which only the epoll knows.
    waiting: usize,
    turn: u32,
    /// The epoll may have something.
    look: bool,
    /// Who may have something to read.
    ready: VecDeque<u16>,
    /// Times that accepting failed or had to wait: no descriptor left, or at the limit.
    accept_errors: u64,
}

impl Tcp {
    /// A transport that listens at `at`, a locator of `tcp`, and may call others too.
    ///
    /// # Errors
    /// The locator is of another kind or names no address that is allowed, or the address cannot be
    /// bound.
    pub(crate) fn listen(at: &Locator, options: Options) -> io::Result<Self> {
        let mut tcp = Self::client(options)?;
        let mut last = io::ErrorKind::NotFound.into();
        for addr in Sockets::place(at)?.allowed(options.insecure_network)? {
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

    /// A transport that only calls others.
    ///
    /// # Errors
    /// `epoll` failed.
    pub(crate) fn client(options: Options) -> io::Result<Self> {
        let sockets = Sockets {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listener: None,
            busy_poll_us: options.busy_poll_us,
            waiting: 0,
            turn: 0,
            look: true,
            ready: VecDeque::new(),
            accept_errors: 0,
        };
        Ok(Self::over(sockets, options))
    }

    /// Reads from `slot` once; returns true if anything came.
    #[inline]
    fn read(&mut self, now: Instant, slot: u16) -> bool {
        let Some((link, around)) = self.around(slot) else { return false };
        let stream = &link.stream;
        if link.connecting.is_some() || stream.ended().is_some() || !stream.wants_input() {
            return false;
        }
        if !link.backlog.is_empty() {
            return false;
        }
        let most = if around.budget.is_crowded() { FREE } else { around.buffer.len() };
        match link.read(now, &mut around.buffer[..most], around.ids) {
            Read::Nothing => return false,
            Read::Bytes(n) => self.brought(slot, 0, n),
            Read::Body(event, n) => {
                around.budget.brought(now, u32::from(slot), n);
                link.silent_until = Instant::NEVER;
                self.found = event;
                self.settle(slot);
            }
            Read::End => self.end(slot, CloseReason::Reset),
        }
        true
    }

    /// Asks the epoll who has something; returns how many.
    fn look(&mut self, now: Instant) -> usize {
        self.carrier.look = false;
        let mut events = [const {
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }
        }; 64];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.carrier.epoll, &mut events, Some(&none)).unwrap_or(0);
        // There may be more than fit.
        self.carrier.look = count == events.len();
        for event in &events[..count] {
            let (flags, data) = (event.flags, event.data.u64());
            if data == LISTENER {
                self.accept(now);
                continue;
            }
            let slot = data as u16;
            let Some((link, around)) = self.around(slot) else { continue };
            if link.connecting.is_some() {
                self.connected(now, slot);
                continue;
            }
            let broken = flags.intersects(epoll::EventFlags::ERR | epoll::EventFlags::HUP);
            if broken || flags.contains(epoll::EventFlags::IN) {
                around.carrier.ready.push_back(slot);
            }
            if link.wire.blocked && (broken || flags.contains(epoll::EventFlags::OUT)) {
                link.wire.blocked = false;
                self.settle(slot);
                self.soil(slot);
            }
        }
        count
    }

    /// A connection that was being opened is open, or this address does not work.
    fn connected(&mut self, now: Instant, slot: u16) {
        let Some(link) = self.at_slot(slot) else { return };
        if let Err(e) | Ok(Err(e)) = sockopt::socket_error(&link.wire.socket) {
            return self.try_others(now, slot, e.into());
        }
        link.connecting = None;
        self.settle(slot);
        self.soil(slot);
    }

    /// Goes on to the next addresses for the connection in `slot`, whose socket has failed for this
    /// `cause`.
    fn try_others(&mut self, now: Instant, slot: u16, cause: io::Error) {
        let Some((link, around)) = self.around(slot) else { return };
        let mut left = link.connecting.take().map_or_else(VecDeque::new, |c| c.left);
        if left.is_empty() {
            return self.unreachable(slot, cause);
        }
        match connection::begin(&mut left, around.carrier.busy_poll_us) {
            Err(e) => self.unreachable(slot, e),
            Ok((socket, done)) => {
                // The old socket leaves the epoll by being closed.
                around.carrier.forget(&link.wire);
                link.wire = Socket::new(socket);
                self.opening(now, slot, done, left);
            }
        }
    }

    /// The connection in `slot` has been begun.
    fn opening(&mut self, now: Instant, slot: u16, done: bool, left: VecDeque<SocketAddr>) {
        let until = now.after(CONNECT_NS);
        if let Some(link) = self.at_slot(slot) {
            link.connecting = (!done).then_some(Connecting { left, until });
            self.first_deadline = self.first_deadline.min(until);
            self.settle(slot);
            self.soil(slot);
        }
    }
}

impl Sockets {
    /// A socket is about to be closed.
    fn forget(&mut self, wire: &Socket) {
        self.waiting -= usize::from(wire.interest.contains(epoll::EventFlags::OUT));
    }
}

impl Carrier for Sockets {
    type Wire = Socket;
    const BUFFER: usize = 64 << 10;

    fn place(to: &Locator) -> io::Result<HostPort> {
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
        let slot = tcp.place_opened(Socket::new(socket));
        tcp.opening(now, slot, done, left);
        Ok(slot)
    }

    #[inline]
    fn input(tcp: &mut Tcp, now: Instant) -> usize {
        let sockets = &mut tcp.carrier;
        sockets.turn = sockets.turn.wrapping_add(1);
        let waiting = tcp.live.len() > DIRECT || sockets.waiting > 0;
        let mut count = 0;
        if sockets.look || waiting || sockets.turn.is_multiple_of(EPOLL_EVERY) {
            count += tcp.look(now);
        }
        if !waiting {
            tcp.carrier.ready.clear();
            tcp.carrier.ready.extend(&tcp.live);
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

    fn untaken(_: &Socket) -> usize {
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
        _: Around<'_, Self>,
        memory: &dyn Slices,
        alone: bool,
    ) -> bool {
        link.write(now, memory, if alone { WORK_ALONE } else { WORK });
        link.stream.has_output()
    }

    /// Makes the epoll report what the connection waits for.
    #[inline]
    fn settled(&mut self, slot: u16, link: &mut Link<Socket>) {
        let (old, wanted) = (link.wire.interest, link.wanted_interest());
        if wanted == old {
            return;
        }
        let data = epoll::EventData::new_u64(u64::from(slot));
        // A socket that nothing is wanted of leaves the epoll, which would report its end again and
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

    fn late(tcp: &mut Tcp, now: Instant, slot: u16) {
        tcp.try_others(now, slot, io::ErrorKind::TimedOut.into());
    }

    fn removed(tcp: &mut Tcp, link: Link<Socket>) {
        tcp.carrier.forget(&link.wire);
        link.say_farewell();
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
        // The descriptor reports what is still in a socket, but not what has been taken out of one.
        self.look = true;
        self.ready.is_empty()
    }

    fn disarm(&mut self) {
        self.look = true;
    }

    fn locator(&self) -> Option<String> {
        let at = self.listener.as_ref()?.local;
        Some(format!("tcp:host={},port={}", at.ip(), at.port()))
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("accept_errors", self.accept_errors);
    }
}
