//! How sessions end at their server: closed by their client, with their peer, or forgotten because nothing came for long.
//!
//! There is no timer for a session or a request: a sweep looks at a few of them every now and then.

use crate::Instant;
use crate::probe::Probe;
use crate::rpc::CHANNELS;
use crate::rpc::endpoint::Endpoint;
use crate::rpc::server::seconds;
use crate::rpc::session::{INDEX_MAX, State, Word};
use crate::rpc::slot::{Role, Slot};
use crate::time::{MS, SECOND, US};
use crate::tracepoint::Probe;

/// Where the sweep is.
#[derive(Debug, Default)]
pub(in crate::rpc) struct Sweep {
    next: Instant,
    session: u32,
    slot: u32,
    /// Sessions yet to be looked at because a peer is gone.
    urgent: u32,
    /// Until then half-received requests that stand still or are slow have to make room: one was refused for lack of it.
    crowded_until: Instant,
}

impl Sweep {
    /// A long request found no room among those half received.
    pub(in crate::rpc) fn crowded(&mut self, now: Instant) {
        self.crowded_until = now.after(CROWDED_NS);
    }
}

const SWEEP_NS: u64 = 100 * MS;
const SWEEP_SESSIONS: u32 = 1024;
const SWEEP_SLOTS: u32 = 256;
/// Slots that one sweep visits while requests are refused for lack of room: as many as can be half
/// received, within less than two seconds.
const SWEEP_SLOTS_CROWDED: u32 = 16 * 1024;
/// How long after a long request was refused half-received ones that stand still or are slow have
/// to make room. Clients come again well within that.
const CROWDED_NS: u64 = 2 * SECOND;
/// How long a request may stand still then, whose client could send more; and how long its client
/// may owe bytes of one grant.
const CROWDED_STALE_NS: u64 = SECOND;
/// What a byte of a request may take then on a lossless driver, which grants all at once: about
/// 1 MiB a second, as over a byte stream.
const CROWDED_BYTE_NS: u64 = US;

impl<P: Probe> Endpoint<P> {
    /// Forgets a session: its requests' replies will go nowhere, its name is not valid any more.
    pub(in crate::rpc) fn end_server_session(&mut self, s: u32) {
        for channel in 0..CHANNELS {
            self.drop_slot(s, channel);
        }
        let session = &mut self.sessions[s];
        let executing = session.channels.iter().filter(|word| word.state() == State::Exec).count();
        self.executing -= executing as u32;
        session.open = false;
        session.generation = session.generation.wrapping_add(1);
        session.channels = [Word::new(0, State::Empty); CHANNELS];
        let peer = session.peer;
        self.sessions.free(s);
        self.peers.leave(peer);
        self.stats.sessions_ended += 1;
    }

    /// A peer is gone: its sessions end, a piece at a time.
    pub(in crate::rpc) fn forget_sessions_of(&mut self, _peer: u32) {
        self.sweep.urgent = self.sessions.len();
    }

    /// When the sweep wants to go on.
    #[inline]
    pub(in crate::rpc) fn next_sweep(&self) -> Instant {
        if self.sweep.urgent > 0 {
            return self.now;
        }
        let needed = self.assembling_bytes > 0
            || self.kept.is_waiting()
            || (!self.lossless && self.sessions.used() > 0);
        if needed { self.sweep.next } else { Instant::NEVER }
    }

    /// Looks at a few sessions and slots: the idle, the stale and those of gone peers end.
    pub(in crate::rpc) fn sweep(&mut self) {
        self.sweep.next = self.now.after(SWEEP_NS);
        let expiry_s = u16::try_from(self.config.idle_expiry_ns / SECOND).unwrap_or(u16::MAX);
        for _ in 0..self.sessions.len().min(SWEEP_SESSIONS) {
            let s = self.sweep.session;
            self.sweep.session = (s + 1) % self.sessions.len();
            self.sweep.urgent = self.sweep.urgent.saturating_sub(1);
            let session = &self.sessions[s];
            if !session.open {
                continue;
            }
            let idle_s = seconds(self.now).wrapping_sub(session.active_s);
            let is_expired = !self.lossless
                && idle_s > expiry_s
                && session.channels.iter().all(|word| word.state() != State::Exec);
            if is_expired || self.peers.slab[session.peer].gone {
                self.end_server_session(s);
            }
        }
        let slots = if self.is_crowded() { SWEEP_SLOTS_CROWDED } else { SWEEP_SLOTS };
        for _ in 0..self.slots.len().min(slots) {
            let i = self.sweep.slot;
            self.sweep.slot = (i + 1) % self.slots.len();
            self.sweep_slot(i);
        }
    }

    /// True if a request was refused lately for lack of room.
    fn is_crowded(&self) -> bool {
        self.now < self.sweep.crowded_until
    }

    /// True if the client of a half-received request could send more, and does not, or too slowly.
    /// One that has sent all that it was granted waits for us.
    fn crowds(&self, slot: &Slot) -> bool {
        let Some(incoming) = slot.incoming.as_ref().filter(|incoming| incoming.owes()) else {
            return false;
        };
        let granted_ns = self.now.since(incoming.granted_at);
        if !self.lossless {
            return granted_ns > CROWDED_STALE_NS;
        }
        self.now.since(slot.progress) > CROWDED_STALE_NS
            || granted_ns > CROWDED_STALE_NS + u64::from(incoming.received) * CROWDED_BYTE_NS
    }

    /// Gives up a request that stopped coming in, or a reply that its client does not take. If the
    /// client asks, it learns that the request was never executed, or that its reply is gone.
    fn sweep_slot(&mut self, i: u32) {
        let slot = &self.slots[i];
        let crowds = slot.role == Role::Recv && self.is_crowded() && self.crowds(slot);
        let mut progress = slot.progress;
        if slot.role == Role::Reply && self.lossless {
            // It may wait behind others that the client takes.
            progress =
                progress.max(self.peers.slab.get(slot.peer).map_or(progress, |peer| peer.progress));
        }
        let is_stale = crowds || self.now.since(progress) > self.config.stale_request_ns;
        let is_large = !slot.kept || !slot.out.message.slices.is_empty();
        let state = match slot.role {
            Role::Recv if is_stale => State::Empty,
            Role::Reply if is_large && (is_stale || slot.deadline <= self.now) => State::Done,
            _ => return,
        };
        let (s, channel, seq) = (slot.session & INDEX_MAX, usize::from(slot.channel), slot.seq);
        let is_queued_only = slot.role == Role::Reply && self.lossless;
        let is_past = slot.role == Role::Reply && self.packet_of(i).is_none();
        self.stats.abandoned += 1;
        if is_queued_only {
            self.free_slot(i);
        } else {
            self.drop_slot(s, channel);
        }
        if !is_past {
            self.sessions[s].channels[channel] = Word::new(seq, state);
        }
    }
}
