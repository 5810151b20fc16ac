//! The client half of an endpoint: the sessions that this side opened and their requests.
//!
//! A request waits in its session's queue for a channel, is sent, and waits for its reply. When
//! the reply is overdue, the client probes, and the server's answer says what to do: resend the
//! request or some packets, wait, try again later, or fail.
//!
//! ```text
//!   call      requests from the caller to their slots      rx         packets from servers
//!   handshake OPEN and its answers                         timers     deadlines and probes
//!   ack       DONE
//! ```
//!
//! Always: a request of which the driver has not taken every byte under its present number fails
//! as not executed. Any other failure but a refusal says "maybe executed".

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::limits::CHANNELS;
use super::session::{Calls, ClientSession, Phase};
use super::shared::Shared;
use super::slab::{Chunks, NONE, Slab};
use super::slot::Role;
use super::types::{CloseReason, Event, RpcError, RpcId, SessionId};
use super::wheel::Wheel;
use crate::Instant;
use crate::tracepoint::Probe;

mod ack;
mod call;
mod handshake;
mod rx;
mod timers;

/// The number of client sessions that one tick checks after the driver lost a peer.
const LOST_BATCH: u32 = 4096;

/// The client half of an endpoint: the sessions that this side opened.
#[derive(Debug)]
pub(super) struct Client {
    sessions: Chunks<ClientSession>,
    calls: Slab<Calls>,
    wheel: Wheel,
    /// The timers that have fired in this tick. The vector is kept for its memory.
    fired: Vec<(Instant, u32)>,
    idle: IdleSessions,
    /// The number of sessions, from `next_check` on, that are still to be checked because the
    /// driver lost a peer.
    unchecked: u32,
    next_check: u32,
}

/// Idle sessions of the client whose last replies the server may still retain.
#[derive(Debug)]
struct IdleSessions {
    /// The idle sessions by index and epoch, the oldest first, with the time at which each was
    /// added: milliseconds modulo 2¹⁶.
    list: VecDeque<(u32, u32, u16)>,
    /// The time when the client next looks for idle sessions.
    check: Instant,
}

impl IdleSessions {
    /// Records that the server retains the last reply on the session's `channel` until the client
    /// acknowledges it.
    #[inline]
    fn owe_ack<P>(&mut self, session: &mut ClientSession, shared: &Shared<P>, c: u32, channel: u8) {
        session.unacked |= 1 << channel;
        session.mark_active(shared.now);
        if !session.listed {
            session.listed = true;
            self.list.push_back((c, session.epoch, session.active_ms));
            self.check = self.check.min(shared.now.after(shared.config.done_after_ns));
        }
    }
}

impl Client {
    pub(super) fn new() -> Self {
        Self {
            sessions: Chunks::new(),
            calls: Slab::new(),
            wheel: Wheel::new(),
            fired: Vec::new(),
            idle: IdleSessions { list: VecDeque::new(), check: Instant::NEVER },
            unchecked: 0,
            next_check: 0,
        }
    }

    /// True if the client's session `id` is open.
    pub(super) fn is_open(&self, id: SessionId) -> bool {
        self.find(id).is_some_and(|c| self.sessions[c].phase == Phase::Open)
    }

    /// True if a session has an idle channel, so that a request need not wait. A session that is
    /// being opened can take one request for each channel.
    #[inline]
    pub(super) fn has_idle_channel(&self, id: SessionId) -> bool {
        let Some(c) = self.find(id) else { return false };
        let session = &self.sessions[c];
        if session.phase == Phase::Open {
            return session.busy != u8::MAX && !has_queued(&self.calls, session);
        }
        let queued = self.calls.get(session.calls).map_or(0, |calls| calls.queued);
        (queued as usize) < CHANNELS
    }

    /// The index of the client session with this id, if the id is not stale.
    pub(super) fn find(&self, id: SessionId) -> Option<u32> {
        let c = id.place();
        let session = self.sessions.get(c)?;
        (session.phase != Phase::Free && session.id(c) == id).then_some(c)
    }

    /// The number of client sessions ever used. All their indexes are below it.
    #[inline]
    pub(super) const fn len(&self) -> u32 {
        self.sessions.len()
    }

    /// Reads a client session's cache line into the cache; returns an arbitrary number.
    #[inline]
    pub(super) fn prefetch(&self, c: u32) -> u32 {
        self.sessions.get(c).map_or(0, |session| session.peer)
    }

    /// The time when the client's `tick` has work to do.
    pub(super) fn deadline<P: Probe>(&self, shared: &Shared<P>) -> Instant {
        if self.unchecked > 0 {
            return shared.now;
        }
        self.wheel.next().unwrap_or(Instant::NEVER).min(self.idle.check)
    }

    /// Fires the client's timers, acknowledges replies on idle sessions, and ends sessions with
    /// lost peers.
    pub(super) fn tick<P: Probe>(&mut self, shared: &mut Shared<P>) {
        let mut fired = core::mem::take(&mut self.fired);
        self.wheel.advance(shared.now, &mut fired);
        for (due, id) in fired.drain(..) {
            self.timer(shared, due, id);
        }
        self.fired = fired;
        if shared.now >= self.idle.check {
            self.send_acks(shared);
        }
        if self.unchecked > 0 {
            self.end_lost_sessions(shared);
        }
    }

    /// Cancels a request: it fails with [`RpcError::Cancelled`] unless it has ended.
    pub(super) fn cancel<P: Probe>(&mut self, shared: &mut Shared<P>, rpc: RpcId) {
        let Some(i) = shared.slots.find(rpc.0) else { return };
        if matches!(shared.slots[i].role, Role::Queued | Role::Call | Role::Backoff) {
            self.fail(shared, i, RpcError::Cancelled);
        }
    }

    /// Fails the client's request in slot `i` with `error`.
    pub(super) fn fail<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32, error: RpcError) {
        shared.stats.failures += 1;
        let (rpc, tag) = self.finish(shared, i);
        shared.events.push_back(Event::Failed { rpc, tag, error });
    }

    /// Ends a client session and fails its requests. The session's name is never used again.
    pub(super) fn end_session<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        c: u32,
        reason: CloseReason,
    ) {
        let session = &mut self.sessions[c];
        let id = session.id(c);
        let (peer, busy) = (session.peer, session.busy);
        // No queued request begins while the others fail.
        session.phase = Phase::Opening;
        for channel in (0..8).filter(|channel| busy & 1 << channel != 0) {
            let i = self.calls[self.sessions[c].calls].slots[channel];
            let maybe = shared.slots[i].exposed;
            let error = if maybe { RpcError::MaybeExecuted } else { RpcError::NotExecuted };
            self.fail(shared, i, error);
        }
        while let Some(i) = self.first_queued(c) {
            self.fail(shared, i, RpcError::NotExecuted);
        }
        let session = &mut self.sessions[c];
        session.phase = Phase::Free;
        session.listed = false;
        self.open_next(shared, peer);
        let session = &mut self.sessions[c];
        session.epoch = session.epoch.wrapping_add(1);
        if session.epoch != u32::MAX {
            self.sessions.free(c);
        }
        shared.peers.remove_session(peer);
        shared.events.push_back(Event::Closed { session: id, reason });
    }

    /// Handles the driver's loss of a peer: the client's sessions with it end, a batch at each
    /// tick.
    pub(super) fn peer_lost(&mut self) {
        self.unchecked = self.sessions.len();
    }

    fn end_lost_sessions<P: Probe>(&mut self, shared: &mut Shared<P>) {
        for _ in 0..LOST_BATCH.min(self.unchecked) {
            let c = self.next_check;
            self.next_check = (c + 1) % self.sessions.len();
            self.unchecked -= 1;
            let session = &self.sessions[c];
            if session.phase != Phase::Free && shared.peers.slab[session.peer].gone {
                self.end_session(shared, c, CloseReason::PeerGone);
            }
        }
    }

    /// The numbers of the client's sessions and blocks of calls in use.
    #[cfg(test)]
    pub(super) fn used(&self) -> (usize, usize) {
        (self.sessions.used(), self.calls.used())
    }
}

/// True if requests of the client session wait for a channel.
#[inline]
fn has_queued(calls: &Slab<Calls>, session: &ClientSession) -> bool {
    calls.get(session.calls).is_some_and(|calls| calls.queued > 0)
}

/// Frees a client session's channel whose request has ended. `owes_ack` is true if the server may
/// retain the reply. Returns true if requests wait for the channel.
#[inline(always)]
fn free_channel<P>(
    calls: &mut Slab<Calls>,
    idle: &mut IdleSessions,
    session: &mut ClientSession,
    shared: &Shared<P>,
    c: u32,
    channel: u8,
    owes_ack: bool,
) -> bool {
    session.busy &= !(1 << channel);
    if owes_ack {
        idle.owe_ack(session, shared, c, channel);
    }
    let has_queued = has_queued(calls, session);
    if session.busy == 0 && !has_queued {
        calls.free(session.calls);
        session.calls = NONE;
    }
    has_queued
}
