//! Frames over RDMA: requests and replies by Send, long messages by Read, on the queue pairs of
//! software iWARP.
//!
//! `input` lets the engine take in what came, `receive` looks at what it has completed, one thing
//! after the other, `send` posts what there is to say on one connection, and `flush` lets the
//! engine send it all.
//!
//! ```text
//!   frames:  receive ─copy─► buffer (16 KiB, one for all) ─lent─► event
//! ```
//!
//! Always holds: what a peer does wrong ends its own connection; the engine sends nothing before
//! `flush` has the memory that messages name.
//!
//! Not here: one connection's protocol (`pair`), links, requests and their numbers
//! ([`crate::transport::framed`]), the engine and its sockets (`sprat_rdma`).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::rdma::{Completed, Completion, Cq, Event as Happened, Qp, RnicOptions, Status};
use sprat_proto::rpc::notes::HEADER;
use sprat_proto::rpc::{CloseReason, Slice, Slices};
use sprat_proto::wire::rdmap::Cause;

use crate::count::counters;
use crate::locator::{HostPort, Kind, Locator};
use crate::transport::framed::{Around, Carrier, Framed, Link, Options};
use sprat_rdma::Copies;
use sprat_rdma::engine::{Core, Settings};
use sprat_sys::crc::crc32c;

mod connect;
mod pair;
#[cfg(test)]
mod tests;

use pair::{Brought, Pair, READ, SLOT, World};

/// The transport.
pub(crate) type Rdma = Framed<Pairs>;

counters! {
    /// What has been counted besides what every transport counts.
    pub(crate) struct Counters {
        /// Peers refused because they speak another version of the hello, or none,
        strangers,
        /// because there was no room for them,
        crowded,
        /// or because they began with no proper start-up frame of MPA, or too late.
        bad_start,
        /// Connections of ours that the peer refused.
        rejected,
        /// Terminates that we sent,
        terminates_sent,
        /// and that came.
        terminates_received,
        /// Of both: for a wrong CRC32C,
        bad_crc,
        /// for another fault of MPA,
        bad_fpdu,
        /// of DDP,
        bad_ddp,
        /// of RDMAP.
        bad_rdmap,
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pair: Pair,
    /// Ask for a CRC.
    crc: bool,
    /// Receives that have come and wait until replies have gone: which, and how many bytes.
    held: VecDeque<(u16, u32)>,
    /// Its queue pair has ended; so will it, once nothing is held.
    gone: bool,
    /// It is in the list of those that take what they held.
    resumed: bool,
}

/// Queue pairs, as what carries frames.
#[derive(Debug)]
pub(crate) struct Pairs {
    core: Core,
    cq: Cq,
    listener: Option<(u32, SocketAddr)>,
    /// Connections that are accepted have a CRC.
    crc: bool,
    by_qp: BTreeMap<Qp, u16>,
    /// A completion that `input` found.
    next: Option<Completion>,
    /// Who takes what it held.
    resumed: VecDeque<u16>,
    counters: Counters,
}

impl Pairs {
    /// The engine's objects, as one connection reaches them.
    fn world<'w>(&'w mut self, released: &'w mut VecDeque<Slice>) -> World<'w> {
        let (rnic, regions) = self.core.parts();
        World { rnic, regions, released }
    }

    /// What the connection in `slot` held is taken now.
    fn resume(&mut self, slot: u16, wire: &mut Wire) {
        if !wire.resumed {
            wire.resumed = true;
            self.resumed.push_back(slot);
        }
    }

    /// Counts what went wrong.
    fn note(&mut self) {
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
    /// A transport that listens at `at`, a locator of `rdma`, and may call others too.
    ///
    /// # Errors
    /// The locator is of another kind or names no address that is allowed, or the address cannot be
    /// bound.
    pub(crate) fn listen(at: &Locator, options: Options) -> io::Result<Self> {
        let (host_port, crc) = meaning(at)?;
        let mut rdma = Self::new(options, crc)?;
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

    /// A transport that only calls others.
    ///
    /// # Errors
    /// No descriptor, or no random numbers.
    pub(crate) fn client(options: Options) -> io::Result<Self> {
        Self::new(options, true)
    }

    /// A transport that asks those who call it for a CRC, or not.
    fn new(options: Options, crc: bool) -> io::Result<Self> {
        let connections = options.connection_limit.min(1 << 16);
        // Each connection has a few completions at most, so it is the connections that are limited.
        let config = RnicOptions {
            crc32c,
            crc,
            max_conns: connections,
            max_cqe: u32::MAX,
            ..RnicOptions::default()
        };
        // A server answers as soon as a request comes, without a program that may take its time.
        let config = RnicOptions { reply_timeout_ns: config.start_timeout_ns, ..config };
        let mut core = Core::new(Settings {
            config,
            copies: Copies::DirectReads,
            connections,
            fitted: false,
            on_failure: None,
        })?;
        core.events().changed = Some(VecDeque::new());
        let cq = core.rnic().create_cq(u32::MAX).map_err(io::Error::other)?;
        let pairs = Pairs {
            core,
            cq,
            listener: None,
            crc,
            by_qp: BTreeMap::new(),
            next: None,
            resumed: VecDeque::new(),
            counters: Counters::default(),
        };
        Ok(Self::over(pairs, options))
    }

    /// The peer in `slot` broke a rule.
    fn blame(&mut self, slot: u16) {
        if let Some(link) = self.at_slot(slot) {
            link.stream.blame();
        }
        self.settle(slot);
    }

    /// The next completion that is to be looked at, held ones first.
    fn completion(&mut self) -> Option<Completion> {
        while let Some(&slot) = self.carrier.resumed.front() {
            let Some(link) = self.at_slot(slot) else {
                self.carrier.resumed.pop_front();
                continue;
            };
            if link.backlog.is_empty()
                && (link.stream.wants_input() || link.wire.gone)
                && let Some((receive, len)) = link.wire.held.pop_front()
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
            let over = link.wire.gone && (link.wire.held.is_empty() || !link.backlog.is_empty());
            self.carrier.resumed.pop_front();
            if over {
                self.end(slot, CloseReason::Reset);
            }
        }
        let pairs = &mut self.carrier;
        pairs.next.take().or_else(|| pairs.core.rnic().poll(pairs.cq))
    }

    /// Looks at a completion.
    fn completed(&mut self, now: Instant, done: Completion) {
        let slot = (done.id >> 32) as u16;
        let Some((link, around)) = self.around(slot) else { return };
        let Link { stream, wire, backlog, .. } = link;
        if wire.pair.qp != done.qp || stream.ended().is_some() {
            return;
        }
        if done.status != Status::Success {
            return self.gone(slot);
        }
        let mut world = around.carrier.world(around.released);
        if done.id & READ != 0 {
            match wire.pair.read(now, stream, around.ids, &mut world, around.budget) {
                Ok(event) => self.found = event,
                Err(_) => return self.blame(slot),
            }
            self.admit();
            self.soil(slot);
            return self.settle(slot);
        }
        let receive = done.id as u16;
        let goes_on = stream.wants_input() && backlog.is_empty();
        // A note without frames is taken at once: the peer needs its receive to say what it has
        // finished.
        let has_frames = done.len as usize > HEADER;
        if has_frames && !wire.resumed && (!wire.held.is_empty() || !goes_on) {
            if wire.pair.hear_first(receive, done.len as usize, &mut world).is_err() {
                return self.blame(slot);
            }
            wire.held.push_back((receive, done.len));
            return self.soil(slot);
        }
        match wire.pair.take(receive, done.len as usize, around.buffer, stream, &mut world) {
            Ok(Brought::Nothing) => self.settle(slot),
            Ok(Brought::Frames(at)) => self.brought(slot, at, done.len as usize),
            Err(_) => return self.blame(slot),
        }
        // There may be more to say now, or to read.
        self.soil(slot);
    }

    /// The queue pair of the connection in `slot` has ended.
    fn gone(&mut self, slot: u16) {
        let Some((link, around)) = self.around(slot) else { return };
        link.wire.gone = true;
        if link.wire.held.is_empty() {
            return self.end(slot, CloseReason::Reset);
        }
        around.carrier.resume(slot, &mut link.wire);
    }
}

/// The place, and whether to ask for a CRC.
fn meaning(locator: &Locator) -> io::Result<(HostPort, bool)> {
    match locator.kind()? {
        Kind::Rdma { at, crc } => Ok((at, crc)),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{locator} is no locator of rdma"),
        )),
    }
}

impl Carrier for Pairs {
    type Wire = Wire;
    const BUFFER: usize = SLOT;

    fn place(to: &Locator) -> io::Result<HostPort> {
        meaning(to).map(|(at, _)| at)
    }

    fn open(
        rdma: &mut Rdma,
        now: Instant,
        to: &Locator,
        left: VecDeque<SocketAddr>,
    ) -> io::Result<u16> {
        rdma.open(now, meaning(to)?.1, left)
    }

    fn input(rdma: &mut Rdma, now: Instant) -> usize {
        let worked = rdma.carrier.core.input(now);
        if worked {
            rdma.carrier.note();
            rdma.welcome(now);
        }
        let pairs = &mut rdma.carrier;
        if pairs.next.is_none() {
            pairs.next = pairs.core.rnic().poll(pairs.cq);
        }
        // How connections stand is looked at behind what they have completed.
        if pairs.next.is_none() {
            rdma.moved(now);
        }
        usize::from(worked || rdma.carrier.next.is_some()) + rdma.carrier.resumed.len()
    }

    fn receive(rdma: &mut Rdma, now: Instant) -> bool {
        let Some(done) = rdma.completion() else { return false };
        rdma.completed(now, done);
        true
    }

    fn taken(link: &mut Link<Wire>) {
        // Frames are whole in each Send.
        if !link.stream.is_between() {
            link.stream.blame();
        }
    }

    fn admitted(link: &mut Link<Wire>) {
        link.wire.pair.admitted();
    }

    fn untaken(wire: &Wire) -> usize {
        wire.pair.unread()
    }

    fn may_send(_: &Wire) -> bool {
        true
    }

    fn send(
        now: Instant,
        slot: u16,
        link: &mut Link<Wire>,
        around: Around<'_, Self>,
        memory: &dyn Slices,
        _: bool,
    ) -> bool {
        let mut world = around.carrier.world(around.released);
        if link.wire.pair.output(now, &mut link.stream, memory, &mut world, around.budget).is_err()
        {
            link.stream.end(CloseReason::Reset);
        }
        if !link.wire.held.is_empty() && link.stream.wants_input() {
            around.carrier.resume(slot, &mut link.wire);
        }
        // What waits does so for the peer.
        false
    }

    fn flush(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        self.core.flush_with(now, memory);
        self.core.has_output() || !self.resumed.is_empty()
    }

    fn removed(rdma: &mut Rdma, link: Link<Wire>) {
        rdma.dropped(link.wire);
    }

    fn deadline(&self) -> Instant {
        self.core.deadline()
    }

    fn tick(rdma: &mut Rdma, now: Instant) {
        rdma.carrier.core.input(now);
        rdma.carrier.note();
        rdma.moved(now);
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
