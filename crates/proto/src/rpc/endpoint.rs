//! The endpoint: all sessions of one driver, as client and as server.
//!
//! ```text
//!   driver ─► input ─► event ─┬─► Client ─► events        Shared: peers, slots, transmit queues
//!                             └─► Server ─► events
//!   request, reply ─► Client, Server ─► driver, or Shared's queues ─► output ─► driver
//! ```
//!
//! Always: every request accepted ends with exactly one [`Event::Response`] or [`Event::Failed`];
//! every slice handed in comes back by [`Endpoint::released`] exactly once; nothing changes before
//! a packet's session, token and address agree. Not here: what packets mean; see `client` and
//! `server`.

use alloc::vec::Vec;

use super::body::{self, Body};
use super::client::Client;
use super::config::Config;
use super::server::Server;
use super::session::INDEX_MAX;
use super::shared::tx::{Direct, Queued};
use super::shared::{BUDGET, PACKET_COST, Progress, Shared};
use super::slot::Role;
use super::stats::Stats;
use super::types::{Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices};
use crate::tracepoint::{NoProbe, Probe};
use crate::wire::rpc::{self, Bad, RxPacket, TO_CLIENT};
use crate::{Addr, Datagrams, Instant, Rng};

/// The number of sessions, 64 bytes each, up to which they stay in the processor's second-level
/// cache.
const CACHED_SESSIONS: u32 = 4096;

/// An RPC endpoint: all sessions of one driver, as client and as server.
#[derive(Debug)]
pub struct Endpoint<P: Probe = NoProbe> {
    pub(super) shared: Shared<P>,
    client: Client,
    server: Server,
    /// The number of datagrams in the driver's burst, and the number of them that were handled.
    arrived: usize,
    handled: usize,
    /// The addresses of peers that the driver lost.
    gone: Vec<Addr>,
    /// A sum over the sessions that `input` prefetches, so that the compiler keeps the loads.
    prefetched: u32,
}

impl<P: Probe> Endpoint<P> {
    /// Makes an RPC endpoint without sessions.
    pub fn new(config: Config, mut rng: Rng, probe: P) -> Self {
        Self {
            client: Client::new(),
            server: Server::new(&mut rng),
            shared: Shared::new(config, rng, probe),
            arrived: 0,
            handled: 0,
            gone: Vec::new(),
            prefetched: 0,
        }
    }

    /// The counters of the RPC endpoint.
    pub const fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// The probe that records the endpoint's tracepoints.
    pub const fn probe(&mut self) -> &mut P {
        &mut self.shared.probe
    }

    // Input.

    /// Receives one burst from `driver`, unless datagrams of the last burst are not yet handled,
    /// and loads the sessions of its packets into the cache. Returns how much there is for
    /// [`Endpoint::event`] to handle; the caller need not call it for 0.
    #[inline]
    pub fn input<D: Datagrams>(&mut self, now: Instant, driver: &mut D) -> usize {
        self.shared.now = now;
        if self.handled == self.arrived {
            self.shared.set_driver(driver);
            self.arrived = driver.recv_burst();
            self.handled = 0;
            if driver.lossless() {
                while let Some(addr) = driver.gone() {
                    self.gone.push(addr);
                }
            }
            self.shared.stats.received += self.arrived as u64;
            if self.arrived > 1 && self.client.len().max(self.server.len()) > CACHED_SESSIONS {
                self.prefetch_sessions(driver);
            }
        }
        self.arrived - self.handled + self.shared.events.len() + self.gone.len()
    }

    /// Calls `each` with the unchecked bytes of each single-packet request in the burst.
    #[inline]
    pub fn peek_requests<D: Datagrams>(&self, driver: &D, each: &mut dyn FnMut(&[u8])) {
        for i in self.handled..self.arrived {
            if let Some(request) = rpc::peek_request(driver.datagram(i).1, !driver.intact()) {
                each(request);
            }
        }
    }

    /// True if a session that this side opened is open: the server has accepted it, and it has not
    /// ended.
    #[must_use]
    pub fn is_open(&self, session: SessionId) -> bool {
        self.client.is_open(session)
    }

    /// True if a session has an idle channel, so that a request need not wait. A session that is
    /// being opened can take one request for each channel.
    #[must_use]
    #[inline]
    pub fn has_idle_channel(&self, session: SessionId) -> bool {
        self.client.has_idle_channel(session)
    }

    /// The endpoint's next event: call until `None` after each `input` and `tick`. Borrowed
    /// payloads live in the driver's burst.
    #[inline(always)]
    pub fn event<'b, D: Datagrams>(&mut self, now: Instant, driver: &'b D) -> Option<Event<'b>> {
        if self.handled == self.arrived && self.shared.events.is_empty() && self.gone.is_empty() {
            return None;
        }
        self.next_event(now, driver)
    }

    #[inline(always)]
    fn next_event<'b, D: Datagrams>(&mut self, now: Instant, driver: &'b D) -> Option<Event<'b>> {
        self.shared.now = now;
        let crc = (!driver.intact()).then_some(self.shared.config.crc32c);
        loop {
            if let Some(event) = self.shared.events.pop_front() {
                return Some(event);
            }
            if self.handled == self.arrived {
                if self.gone.is_empty() {
                    return None;
                }
                self.end_gone_peers();
                continue;
            }
            let (from, datagram) = driver.datagram(self.handled);
            self.handled += 1;
            let packet = match RxPacket::parse(datagram, crc) {
                Ok(packet) => packet,
                Err(bad) => {
                    if let Some(event) = self.left_packet(driver, bad) {
                        return Some(event);
                    }
                    continue;
                }
            };
            // Other events that a packet caused follow from the queue.
            let (shared, lossless) = (&mut self.shared, driver.lossless());
            if packet.flags() & TO_CLIENT != 0 {
                if let Some(event) = self.client.packet(shared, from, packet, None, lossless) {
                    return Some(event);
                }
            } else if let Some(event) = self.server.packet(shared, from, packet, None, lossless) {
                return Some(event);
            }
        }
    }

    /// Handles a datagram that is no packet as it stands: the driver may have left its bytes in
    /// memory that the peer can write. The header is checked on a private copy.
    #[cold]
    #[inline(never)]
    fn left_packet<'b, D: Datagrams>(&mut self, driver: &'b D, bad: Bad) -> Option<Event<'b>> {
        let datagram = self.handled - 1;
        let Some(left) = driver.left(datagram) else {
            self.drop_bad(bad);
            return None;
        };
        match body::parse_head(left.head, left.len) {
            Ok((packet, start)) => {
                let len = left.len - start;
                let bytes = Body::Left { driver, datagram, start, len };
                let from = driver.datagram(datagram).0;
                let (shared, lossless) = (&mut self.shared, driver.lossless());
                if packet.flags() & TO_CLIENT != 0 {
                    self.client.packet(shared, from, packet, Some(bytes), lossless)
                } else {
                    self.server.packet(shared, from, packet, Some(bytes), lossless)
                }
            }
            Err(bad) => {
                self.drop_bad(bad);
                None
            }
        }
    }

    // Output.

    /// Sends the packets that wait, up to the work budget of one turn, and flushes the driver.
    /// Returns true if more packets wait for nothing but the next turn.
    #[inline(always)]
    pub fn output<D: Datagrams>(
        &mut self,
        now: Instant,
        memory: &(impl Slices + ?Sized),
        driver: &mut D,
    ) -> bool {
        if !self.shared.is_queued() {
            self.shared.flush_direct(driver);
            return false;
        }
        self.shared.now = now;
        self.shared.set_driver(driver);
        self.send_queued(memory, driver)
    }

    /// True if [`Endpoint::output`] has packets to send, or [`Endpoint::released`] a slice to
    /// return.
    #[inline(always)]
    #[must_use]
    pub fn has_output(&self) -> bool {
        let shared = &self.shared;
        shared.unflushed > 0 || !shared.released.is_empty() || shared.is_queued()
    }

    /// Sends the queued packets of the endpoint, up to the work budget.
    #[inline(never)]
    fn send_queued<D: Datagrams>(
        &mut self,
        memory: &(impl Slices + ?Sized),
        driver: &mut D,
    ) -> bool {
        let Self { shared, client, server, .. } = self;
        if shared.credit.is_dirty() {
            shared.grant();
        }
        let pushed_back = !shared.control.is_empty() && shared.send_control(driver);
        let direct = core::mem::take(&mut shared.unflushed) * PACKET_COST;
        let mut budget = BUDGET.saturating_sub(direct);
        let mut full = 0;
        while full < shared.active.len() && budget > 0 {
            let Some(peer) = shared.active.pop_front() else { break };
            let opens_full = !shared.peers.slab[peer].to_open.is_empty()
                && !client.send_opens(shared, peer, driver);
            let progress = if opens_full {
                Progress::Full
            } else {
                shared.send_messages(peer, &mut budget, memory, driver, |shared, i, progress| {
                    let is_call = shared.slots[i].role == Role::Call;
                    match progress {
                        Progress::Sent if is_call => shared.call_sent(i),
                        Progress::Sent => server.reply_sent(shared, i),
                        // A call ends with its session.
                        _ if is_call => {}
                        _ => server.reply_undeliverable(shared, i),
                    }
                })
            };
            let entry = &mut shared.peers.slab[peer];
            entry.blocked = progress == Progress::Full;
            match progress {
                Progress::Full => {
                    shared.active.push_back(peer);
                    full += 1;
                }
                Progress::More => {
                    shared.active.push_back(peer);
                    full = 0;
                }
                _ => {
                    entry.active = false;
                    shared.peers.free_if_unused(peer);
                }
            }
        }
        driver.flush();
        if pushed_back || full > 0 {
            shared.back_off();
        } else {
            shared.end_back_off();
        }
        shared.active.len() > full || shared.credit.is_dirty()
    }

    /// A slice of a message that the endpoint no longer needs; call until `None` after `output`,
    /// `event` and `tick`.
    #[inline]
    pub fn released(&mut self) -> Option<Slice> {
        self.shared.released.pop_front()
    }

    // Time.

    /// The time to call `tick`, and `output` after it, if no packet arrives and the caller starts
    /// nothing before.
    pub fn deadline(&self) -> Option<Instant> {
        let Self { shared, client, server, .. } = self;
        let next = client.deadline(shared).min(server.deadline(shared)).min(shared.retry_at);
        (next < Instant::NEVER).then_some(next)
    }

    /// Does the endpoint's work that is due: fires the timers of requests, and ends expired
    /// sessions.
    pub fn tick(&mut self, now: Instant) {
        self.shared.now = now;
        self.client.tick(&mut self.shared);
        self.server.tick(&mut self.shared);
    }

    // Sessions.

    /// Begins a session with the server at `to`. Requests may follow at once; they wait until the
    /// session is open.
    ///
    /// # Panics
    /// If this endpoint has 2²⁴ sessions as a client.
    pub fn connect(&mut self, now: Instant, to: Addr) -> SessionId {
        self.shared.now = now;
        self.client.connect(&mut self.shared, to)
    }

    /// Ends a client's session: its requests fail, and the server gets a CLOSE.
    pub fn close(&mut self, now: Instant, session: SessionId) {
        self.shared.now = now;
        self.client.close(&mut self.shared, session);
    }

    /// Loads the memory that requests on `sessions` will use into the cache. It pays before several
    /// requests, because cache misses that are independent overlap.
    pub fn warm(&mut self, sessions: impl IntoIterator<Item = SessionId>) {
        for id in sessions {
            self.prefetched = self.prefetched.wrapping_add(self.client.prefetch(id.place()));
        }
    }

    // Requests.

    /// Accepts a request, which the next [`Endpoint::output`] sends. `tag` comes back with exactly
    /// one [`Event::Response`] or [`Event::Failed`]. `deadline` may be [`Instant::NEVER`].
    ///
    /// # Errors
    /// [`RequestError`]: nothing was sent; the message's slices count as never handed in.
    pub fn request(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        mut message: Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        self.shared.now = now;
        let shared = &mut self.shared;
        self.client.begin_message(shared, session, tag, &mut message, deadline, Queued)
    }

    /// Accepts a request and sends it before this returns if it can. A driver that sends several
    /// packets together may hold it until the next [`Endpoint::output`]. A buffer that is left in
    /// `message` is the caller's.
    ///
    /// # Errors
    /// Those of [`Endpoint::request`].
    #[inline(always)]
    pub fn request_over<D: Datagrams>(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
        driver: &mut D,
    ) -> Result<RpcId, RequestError> {
        self.shared.now = now;
        let (shared, emit) = (&mut self.shared, Direct { driver, flush: false });
        self.client.begin_message(shared, session, tag, message, deadline, emit)
    }

    /// Accepts a request of bytes that stay the caller's, if a channel of its session is free, and
    /// sends it before this returns if it can. A driver that sends several packets together may
    /// hold it until the next [`Endpoint::output`]. Returns `None` if no channel is free, or if
    /// [`Endpoint::request`] would refuse the request: nothing was sent.
    #[inline(always)]
    pub fn request_bytes_over<D: Datagrams>(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
        driver: &mut D,
    ) -> Option<RpcId> {
        self.shared.now = now;
        let (shared, emit) = (&mut self.shared, Direct { driver, flush: false });
        self.client.begin_bytes(shared, session, tag, bytes, deadline, emit)
    }

    /// Cancels a request: it ends with [`RpcError::Cancelled`](super::RpcError::Cancelled) unless
    /// it has ended already.
    pub fn cancel(&mut self, now: Instant, rpc: RpcId) {
        self.shared.now = now;
        self.client.cancel(&mut self.shared, rpc);
    }

    // Replies.

    /// Answers a received request; the next [`Endpoint::output`] sends the reply. If the session
    /// has ended or the client has given the request up, the message is dropped and its slices come
    /// back.
    ///
    /// # Panics
    /// If the message exceeds [`MAX_MESSAGE`](super::MAX_MESSAGE).
    pub fn reply(&mut self, now: Instant, rpc: ServerRpc, mut message: Message) {
        self.shared.now = now;
        self.server.reply(&mut self.shared, rpc, &mut message, false, Queued);
    }

    /// Answers a received request and sends the reply before this returns if it can. A driver that
    /// sends several packets together may hold it until the next [`Endpoint::output`]. A buffer
    /// that is left in `message` is the caller's.
    ///
    /// If the request is `idempotent`, the endpoint need not retain the reply: if the reply is
    /// lost, the request may arrive as a new one, with the same bytes.
    ///
    /// # Panics
    /// If the message exceeds [`MAX_MESSAGE`](super::MAX_MESSAGE).
    #[inline(always)]
    pub fn reply_over<D: Datagrams>(
        &mut self,
        now: Instant,
        rpc: ServerRpc,
        message: &mut Message,
        idempotent: bool,
        driver: &mut D,
    ) {
        self.shared.now = now;
        // Few replies follow the one to the last request of the burst.
        let flush = self.handled == self.arrived && self.shared.last_request == rpc;
        let emit = Direct { driver, flush };
        self.server.reply(&mut self.shared, rpc, message, idempotent, emit);
    }

    /// Refuses a received request that was not executed: its client waits for `retry_after_ns` and
    /// tries again, within its deadline.
    pub fn refuse(&mut self, now: Instant, rpc: ServerRpc, retry_after_ns: u64) {
        self.shared.now = now;
        self.server.refuse(&mut self.shared, rpc, retry_after_ns);
    }

    // Private.

    /// Loads the session of each packet of the burst. The loads are independent, so they overlap.
    #[inline(never)]
    fn prefetch_sessions<D: Datagrams>(&mut self, driver: &D) {
        let mut sum = 0u32;
        for i in 0..self.arrived {
            let Some((to_client, name)) = rpc::peek(driver.datagram(i).1) else { continue };
            let index = name & INDEX_MAX;
            sum = sum.wrapping_add(if to_client {
                self.client.prefetch(index)
            } else {
                self.server.prefetch(index)
            });
        }
        self.prefetched = self.prefetched.wrapping_add(sum);
    }

    #[cold]
    fn drop_bad(&mut self, bad: Bad) {
        let stats = &mut self.shared.stats;
        *match bad {
            Bad::Short => &mut stats.drop_short,
            Bad::Checksum => &mut stats.drop_checksum,
            Bad::Version => &mut stats.drop_version,
            Bad::Field => &mut stats.drop_field,
        } += 1;
    }

    /// Ends the sessions with the peers that the driver lost, some at each `tick`.
    #[cold]
    fn end_gone_peers(&mut self) {
        for addr in core::mem::take(&mut self.gone) {
            if self.shared.peers.set_gone(addr) {
                self.client.peer_lost();
                self.server.peer_lost();
            }
        }
    }

    /// The number of entries in use in every table of the endpoint.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> Sizes {
        let (clients, calls) = self.client.used();
        let (sessions, blocks, executing, assembling_bytes) = self.server.used();
        Sizes {
            sessions,
            clients,
            slots: self.shared.slots.used(),
            blocks: blocks + calls,
            peers: self.shared.peers.slab.used(),
            executing,
            assembling_bytes,
        }
    }
}

/// The number of entries that an endpoint uses in every table, for tests to compare.
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
