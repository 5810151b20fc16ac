//! The endpoint: one owner of all sessions, client and server side, of one driver. This file is its door and what both
//! sides share; the sides are in `client` and `server`, the way out is in `output`.
//!
//! Always: every request taken ends with exactly one [`Event::Response`] or [`Event::Failed`]; every slice handed in comes
//! back by [`Endpoint::released`] exactly once; nothing changes before a packet's session, token and address agree.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::peer::Peers;
use super::server::Kept;
use super::session::{Calls, ClientSession, INDEX_MAX, Phase, ServerSession};
use super::shared::grants::Credit;
use super::slab::{Chunks, Slab};
use super::slot::Slots;
use super::stats::Stats;
use super::wheel::Wheel;
use super::{Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices};
use crate::time::{MS, SECOND};
use crate::tracepoint::{NoProbe, Probe};
use crate::wire::checksum::{Crc32c, crc32c};
use crate::wire::rpc::{self, Bad, TO_CLIENT};
use crate::{Addr, Datagrams, Instant, Rng};

/// What can be set; the default suits a driver of kernel UDP.
#[derive(Clone, Debug)]
pub struct Config {
    /// Continues a CRC32C; `wire::checksum::crc32c` is the portable one.
    pub crc32c: Crc32c,
    /// Whether to accept sessions: false for a pure client.
    pub serve: bool,
    /// Most requests waiting on one session beyond its eight channels.
    pub queue_limit: usize,
    /// Server: most sessions, at most 2²⁴.
    pub max_sessions: u32,
    /// Server: most requests that the application may have; further ones are refused with BUSY.
    pub max_executing: u32,
    /// Server: most bytes that half-received requests may come to; further long requests are refused with BUSY. One is
    /// always taken.
    pub max_assembling_bytes: usize,
    /// Server: most bytes of replies kept for clients that have not acknowledged them. With four times as many waiting to
    /// be sent, new requests are refused with BUSY.
    pub max_kept_bytes: usize,
    /// Server: most replies kept.
    pub max_kept: u32,
    /// Server: how long a refused client waits before it tries again, in nanoseconds.
    pub retry_after_ns: u64,
    /// Server: sessions idle for longer are forgotten. In nanoseconds, in steps of a second, at most 18 hours.
    pub idle_expiry_ns: u64,
    /// Server: a half-received request, or a reply half sent, is given up after this long without a
    /// sign of the client; so is a reply that names slices and that the client has not
    /// acknowledged.
    pub stale_request_ns: u64,
    /// Server: a reply that the client has not taken by then is given up, whatever signs there are
    /// of it.
    pub stale_reply_ns: u64,
    /// Client: the least time that an answer may take, beyond the round trip, before the server is asked.
    pub min_pto_ns: u64,
    /// Client: unanswered probes after which the server counts as unreachable.
    pub max_silent: u8,
    /// Client: refusals after which a request fails as busy.
    pub max_refusals: u8,
    /// Client: a session idle for this long tells the server which replies it has.
    pub done_after_ns: u64,
    /// Bytes of a message that may come to us without a grant.
    pub unscheduled_bytes: u32,
    /// Bytes granted to all senders together and not yet received.
    pub credit_bytes: u32,
    /// Queueing delay beyond which a sender slows down.
    pub target_delay_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            crc32c,
            serve: true,
            queue_limit: 1024,
            max_sessions: INDEX_MAX,
            max_executing: 8 * 1024,
            max_assembling_bytes: 256 << 20,
            max_kept_bytes: 64 << 20,
            max_kept: 16 * 1024,
            retry_after_ns: MS,
            idle_expiry_ns: 600 * SECOND,
            stale_request_ns: 5 * SECOND,
            stale_reply_ns: 30 * SECOND,
            min_pto_ns: 5 * MS,
            max_silent: 10,
            max_refusals: 8,
            done_after_ns: 5 * MS,
            unscheduled_bytes: 64 << 10,
            credit_bytes: 1 << 20,
            target_delay_ns: MS,
        }
    }
}

/// All sessions of one driver, client and server side alike.
#[derive(Debug)]
pub struct Endpoint<P: Probe = NoProbe> {
    pub(super) config: Config,
    pub(super) stats: Stats,
    pub(super) probe: P,
    pub(super) rng: Rng,
    pub(super) lossless: bool,
    /// Packets have a checksum.
    pub(super) checked: bool,
    pub(super) max_payload: usize,
    /// The last time handed in.
    pub(super) now: Instant,

    /// Datagrams of the driver's burst, and how many of them are processed.
    arrived: usize,
    processed: usize,
    /// Sums up what `input` loads, so that it is loaded.
    warmth: u32,
    gone: Vec<Addr>,

    pub(super) peers: Peers,
    pub(super) slots: Slots,
    pub(super) credit: Credit,
    /// Peers with something to send.
    pub(super) active: VecDeque<u32>,
    /// Packets that a lossy driver took past the queues in this turn; what it sends at all, it sends by the end of it.
    pub(super) unflushed: u32,
    /// The last request that came past all queues.
    pub(super) last_passed: ServerRpc,
    pub(super) control: VecDeque<super::shared::tx::Control>,
    /// When to try a driver again that was full, and how long to wait after that.
    pub(super) retry_at: Instant,
    pub(super) retry_ns: u64,
    pub(super) events: VecDeque<Event<'static>>,
    pub(super) released: VecDeque<Slice>,

    pub(super) clients: Chunks<ClientSession>,
    pub(super) calls: Slab<Calls>,
    pub(super) wheel: Wheel,
    pub(super) fired: Vec<(Instant, u32)>,
    /// Client sessions whose last replies the server may still keep, by index and epoch, with the time (as in
    /// `active_ms`) at which each was put here: the oldest first.
    pub(super) idle: VecDeque<(u32, u32, u16)>,
    pub(super) idle_check: Instant,

    pub(super) sessions: Chunks<ServerSession>,
    pub(super) blocks: Slab<[u32; super::CHANNELS]>,
    pub(super) opener: super::client::handshake::Opener,
    pub(super) executing: u32,
    pub(super) assembling_bytes: usize,
    pub(super) kept: Kept,
    pub(super) sweep: super::server::expiry::Sweep,
}

impl<P: Probe> Endpoint<P> {
    /// An endpoint with no sessions.
    pub fn new(config: Config, mut rng: Rng, probe: P) -> Self {
        Self {
            stats: Stats::default(),
            probe,
            lossless: false,
            checked: true,
            max_payload: 0,
            now: Instant::ZERO,
            arrived: 0,
            processed: 0,
            warmth: 0,
            gone: Vec::new(),
            peers: Peers::new(&mut rng),
            slots: Slots::new(),
            credit: Credit::default(),
            active: VecDeque::new(),
            unflushed: 0,
            last_passed: ServerRpc(0),
            control: VecDeque::new(),
            retry_at: Instant::NEVER,
            retry_ns: super::shared::tx::RETRY_MIN_NS,
            events: VecDeque::new(),
            released: VecDeque::new(),
            clients: Chunks::new(),
            calls: Slab::new(),
            wheel: Wheel::new(),
            fired: Vec::new(),
            idle: VecDeque::new(),
            idle_check: Instant::NEVER,
            sessions: Chunks::new(),
            blocks: Slab::new(),
            opener: super::client::handshake::Opener::new(&mut rng),
            executing: 0,
            assembling_bytes: 0,
            kept: Kept::default(),
            sweep: super::server::expiry::Sweep::default(),
            config,
            rng,
        }
    }

    /// What has happened so far.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The probe, to read what it noted.
    pub const fn probe(&mut self) -> &mut P {
        &mut self.probe
    }

    // Input.

    /// Receives one burst from `driver` and loads the line of each packet's session; while some of the last burst are not
    /// yet processed it receives nothing. Returns how much there is for [`Endpoint::event`] to look at, datagrams above
    /// all: if nothing, it need not be called.
    #[inline]
    pub fn input<D: Datagrams>(&mut self, now: Instant, driver: &mut D) -> usize {
        self.now = now;
        if self.processed == self.arrived {
            self.know(driver);
            self.arrived = driver.recv_burst();
            self.processed = 0;
            if self.lossless {
                while let Some(addr) = driver.gone() {
                    self.gone.push(addr);
                }
            }
            self.stats.received += self.arrived as u64;
            if self.arrived > 1 {
                self.load_lines(driver);
            }
        }
        self.arrived - self.processed + self.events.len() + self.gone.len()
    }

    /// True while a session of ours is open: the server has accepted it, and it has not ended.
    #[must_use]
    pub fn is_open(&self, session: SessionId) -> bool {
        self.own_session(session).is_some_and(|c| self.clients[c].phase == Phase::Open)
    }

    /// True if the session can take a request that does not wait for one of its channels. A session
    /// that is being opened can take one for each channel.
    #[must_use]
    #[inline]
    pub fn has_idle_channel(&self, session: SessionId) -> bool {
        let Some(c) = self.own_session(session) else { return false };
        let session = &self.clients[c];
        match session.phase {
            Phase::Open => session.busy != u8::MAX,
            _ => {
                let queued = self.calls.get(session.calls).map_or(0, |calls| calls.queued);
                (queued as usize) < super::CHANNELS
            }
        }
    }

    /// What happened: call until `None` after each `input` and `tick`. Borrowed payloads live in the driver's burst.
    #[inline(always)]
    pub fn event<'b, D: Datagrams>(&mut self, now: Instant, driver: &'b D) -> Option<Event<'b>> {
        if self.processed == self.arrived && self.events.is_empty() && self.gone.is_empty() {
            return None;
        }
        self.some_event(now, driver)
    }

    /// The same, if there is something to look at.
    #[inline]
    fn some_event<'b, D: Datagrams>(&mut self, now: Instant, driver: &'b D) -> Option<Event<'b>> {
        self.now = now;
        if self.processed < self.arrived && self.events.is_empty() {
            let (from, datagram) = driver.datagram(self.processed);
            if let Some(event) = self.event_at_once(from, datagram, driver) {
                self.processed += 1;
                return Some(event);
            }
        }
        self.next_event(driver)
    }

    /// The same by the ordinary way.
    #[inline(never)]
    fn next_event<'b, D: Datagrams>(&mut self, driver: &'b D) -> Option<Event<'b>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if self.processed == self.arrived {
                if self.gone.is_empty() {
                    return None;
                }
                self.peers_gone();
                continue;
            }
            let (from, datagram) = driver.datagram(self.processed);
            self.processed += 1;
            let packet = match rpc::parse(datagram, self.crc()) {
                Ok(packet) => packet,
                Err(bad) => {
                    self.drop_bad(bad);
                    continue;
                }
            };
            let body = packet.body(datagram);
            let event = if packet.flags & TO_CLIENT != 0 {
                self.client_input(from, &packet, body)
            } else {
                self.server_input(from, &packet, body)
            };
            if event.is_some() {
                // Whatever else this packet caused waits in the queue, behind it.
                return event;
            }
        }
    }

    /// True if the last datagram of the burst brought this request, by the short way.
    #[inline]
    pub(super) fn is_last_of_burst(&self, rpc: ServerRpc) -> bool {
        self.processed == self.arrived && self.last_passed == rpc
    }

    // Output.

    /// Sends what there is to send, up to the work budget of one turn, and flushes the driver. Returns true if more is
    /// waiting for nothing but the next turn.
    #[inline(always)]
    pub fn output<D: Datagrams>(
        &mut self,
        now: Instant,
        memory: &(impl Slices + ?Sized),
        driver: &mut D,
    ) -> bool {
        if self.control.is_empty() && self.active.is_empty() && !self.credit.wanted() {
            self.flush_passed(driver);
            return false;
        }
        self.now = now;
        self.know(driver);
        self.send_queued(memory, driver)
    }

    /// A slice that is no longer needed; call until `None` after `output`, `event` and `tick`.
    #[inline]
    pub fn released(&mut self) -> Option<Slice> {
        self.released.pop_front()
    }

    // Time.

    /// When `tick` wants to be called, if nothing happens before, and `output` after it.
    pub fn deadline(&self) -> Option<Instant> {
        let wheel = self.wheel.next().unwrap_or(Instant::NEVER);
        let next = wheel.min(self.idle_check).min(self.next_sweep()).min(self.retry_at);
        (next < Instant::NEVER).then_some(next)
    }

    /// It is `now`: timers that are due fire.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        let mut fired = core::mem::take(&mut self.fired);
        self.wheel.advance(now, &mut fired);
        for (due, id) in fired.drain(..) {
            self.timer(due, id);
        }
        self.fired = fired;
        if now >= self.idle_check {
            self.send_dones();
        }
        if now >= self.next_sweep() {
            self.sweep();
        }
    }

    // Commands.

    /// Begins a session with the server at `to`. Requests may follow at once; they wait until it is open.
    ///
    /// # Panics
    /// If this endpoint has 2²⁴ sessions as a client.
    pub fn connect(&mut self, now: Instant, to: Addr) -> SessionId {
        self.now = now;
        self.open_session(to)
    }

    /// Ends a session: its requests fail, the server is told.
    pub fn close(&mut self, now: Instant, session: SessionId) {
        self.now = now;
        self.close_local(session);
    }

    /// Sends a request. `tag` comes back with its [`Event::Response`] or [`Event::Failed`]: exactly one of the two,
    /// always. `deadline` may be [`Instant::NEVER`].
    ///
    /// # Errors
    /// [`RequestError`], and nothing was sent; the message's slices count as never handed in.
    pub fn request(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        self.now = now;
        let (rpc, begun) = self.call(session, tag, message, deadline)?;
        if let Some(i) = begun {
            self.make_ready(i);
        }
        Ok(rpc)
    }

    /// Loads what requests on `sessions` will touch: worth it before several requests, since misses of the cache that
    /// are independent overlap.
    pub fn warm(&mut self, sessions: impl IntoIterator<Item = SessionId>) {
        let lines = sessions.into_iter().filter_map(|id| self.clients.get(id.place()));
        let sum = lines.fold(0, |sum: u32, session| sum.wrapping_add(session.peer));
        self.warmth = self.warmth.wrapping_add(sum);
    }

    /// Gives a request up: it ends with [`super::RpcError::Cancelled`] unless it has ended already.
    pub fn cancel(&mut self, now: Instant, rpc: RpcId) {
        self.now = now;
        self.cancel_call(rpc);
    }

    /// Answers a request. If its session is gone or its client gave it up, the message is dropped and its slices come
    /// back.
    ///
    /// # Panics
    /// If the message exceeds [`super::MAX_MESSAGE`].
    pub fn reply(&mut self, now: Instant, rpc: ServerRpc, message: Message) {
        self.now = now;
        match self.answered(rpc, &message) {
            Some((s, channel, seq)) => self.queue_reply(s, channel, seq, message),
            None => self.release(message),
        }
    }

    /// Refuses a request that was not executed: its client waits that long and tries again, within its deadline.
    pub fn refuse(&mut self, now: Instant, rpc: ServerRpc, retry_after_ns: u64) {
        self.now = now;
        self.refuse_request(rpc, retry_after_ns);
    }

    // Private.

    /// Notes what the driver is like.
    #[inline]
    pub(super) fn know<D: Datagrams>(&mut self, driver: &D) {
        self.lossless = driver.lossless();
        self.checked = !driver.intact();
        self.max_payload = driver.max_payload();
    }

    /// Loads the session of every packet of the burst, independent loads that overlap, so that `event` finds them in the
    /// cache.
    fn load_lines<D: Datagrams>(&mut self, driver: &D) {
        let mut sum = 0u32;
        for i in 0..self.arrived {
            let Some((to_client, name)) = rpc::peek(driver.datagram(i).1) else { continue };
            let index = name & INDEX_MAX;
            sum = sum.wrapping_add(if to_client {
                self.clients.get(index).map_or(0, |s| s.peer)
            } else {
                self.sessions.get(index).map_or(0, |s| s.peer)
            });
        }
        self.warmth = self.warmth.wrapping_add(sum);
    }

    #[cold]
    fn drop_bad(&mut self, bad: Bad) {
        let stats = &mut self.stats;
        *match bad {
            Bad::Short => &mut stats.drop_short,
            Bad::Checksum => &mut stats.drop_checksum,
            Bad::Version => &mut stats.drop_version,
            Bad::Field => &mut stats.drop_field,
        } += 1;
    }

    #[cold]
    fn peers_gone(&mut self) {
        for addr in core::mem::take(&mut self.gone) {
            if let Some(peer) = self.peers.lose(addr) {
                self.lose_peer(peer);
            }
        }
    }

    /// How much of everything is in use.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            sessions: self.sessions.used(),
            clients: self.clients.used(),
            slots: self.slots.used(),
            blocks: self.blocks.used() + self.calls.used(),
            peers: self.peers.slab.used(),
            executing: self.executing,
            assembling_bytes: self.assembling_bytes,
        }
    }

    /// Gives back the slices of a message.
    #[inline]
    pub(super) fn release(&mut self, message: Message) {
        for &slice in &message.slices {
            self.released.push_back(slice);
        }
    }
}

/// How much of everything an endpoint has in use: what tests compare.
#[cfg(test)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sizes {
    pub(super) sessions: usize,
    pub(super) clients: usize,
    pub(super) slots: usize,
    pub(super) blocks: usize,
    pub(super) peers: usize,
    pub(super) executing: u32,
    pub(super) assembling_bytes: usize,
}
