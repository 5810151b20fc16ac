//! The end of sessions at their server: closed by the client, lost with the peer, or expired.
//!
//! There is no timer for a session or a request: a step every 100 ms checks some of them.

use super::{Server, seconds};
use crate::Instant;
use crate::rpc::limits::CHANNELS;
use crate::rpc::session::{ServerChannel, State};
use crate::rpc::shared::Shared;
use crate::rpc::slot::{Role, Slot};
use crate::time::{MS, SECOND, US};
use crate::tracepoint::Probe;

/// The time between two steps of the search for expired sessions.
const STEP_NS: u64 = 100 * MS;
/// The number of sessions that one step of the search for expired ones checks.
const STEP_SESSIONS: u32 = 1024;
/// The number of slots that one step of the search for expired ones checks.
const STEP_SLOTS: u32 = 256;
/// The number of slots that one step checks under memory pressure: all requests that can be
/// incomplete are checked within two seconds.
const STEP_SLOTS_PRESSURE: u32 = 16 * 1024;
/// The duration of memory pressure after a long request was refused. The client tries again well
/// before its end.
const PRESSURE_NS: u64 = 2 * SECOND;
/// Under memory pressure, a request is dropped if its client could send and has sent nothing for
/// this long, or has not sent all of a grant this old.
const PRESSURE_STALE_NS: u64 = SECOND;
/// The time that a byte of a request may take under memory pressure on a lossless driver, which
/// grants all bytes at once: about 1 MiB a second, as over a byte stream.
const PRESSURE_BYTE_NS: u64 = US;

impl Server {
    /// Ends a session at its server: drops its requests and replies, and makes its name invalid.
    pub(super) fn end_session<P: Probe>(&mut self, shared: &mut Shared<P>, s: u32) {
        for channel in 0..CHANNELS {
            self.drop_slot(shared, s, channel);
        }
        let session = &mut self.sessions[s];
        let executing = session.channels.iter().filter(|last| last.state() == State::Exec).count();
        self.executing -= executing as u32;
        session.open = false;
        session.generation = session.generation.wrapping_add(1);
        session.channels = [ServerChannel::new(0, State::Empty); CHANNELS];
        let peer = session.peer;
        self.sessions.free(s);
        shared.peers.remove_session(peer);
        shared.stats.sessions_ended += 1;
    }

    /// Handles the driver's loss of a peer: the server's sessions with it end, some at each step.
    pub(in crate::rpc) fn peer_lost(&mut self) {
        self.expiry.urgent = self.sessions.len();
    }

    /// The time when the server's next step of the search for expired sessions is due.
    #[inline]
    pub(in crate::rpc) fn deadline<P: Probe>(&self, shared: &Shared<P>) -> Instant {
        if self.expiry.urgent > 0 {
            return shared.now;
        }
        let needed = self.assembling_bytes > 0
            || self.retained.has_unsent()
            || (!shared.lossless && self.sessions.used() > 0);
        if needed { self.expiry.next } else { Instant::NEVER }
    }

    /// Checks some of the server's sessions and slots: those that are idle, stale or belong to lost
    /// peers end.
    pub(in crate::rpc) fn tick<P: Probe>(&mut self, shared: &mut Shared<P>) {
        if shared.now < self.deadline(shared) {
            return;
        }
        self.expiry.next = shared.now.after(STEP_NS);
        let expiry_s = u16::try_from(shared.config.idle_expiry_ns / SECOND).unwrap_or(u16::MAX);
        for _ in 0..self.sessions.len().min(STEP_SESSIONS) {
            let s = self.expiry.session;
            self.expiry.session = (s + 1) % self.sessions.len();
            self.expiry.urgent = self.expiry.urgent.saturating_sub(1);
            let session = &self.sessions[s];
            if !session.open {
                continue;
            }
            let idle_s = seconds(shared.now).wrapping_sub(session.active_s);
            let is_expired = !shared.lossless
                && idle_s > expiry_s
                && session.channels.iter().all(|last| last.state() != State::Exec);
            if is_expired || shared.peers.slab[session.peer].gone {
                self.end_session(shared, s);
            }
        }
        let under_pressure = shared.now < self.expiry.pressure_until;
        let slots = if under_pressure { STEP_SLOTS_PRESSURE } else { STEP_SLOTS };
        for _ in 0..shared.slots.len().min(slots) {
            let i = self.expiry.slot;
            self.expiry.slot = (i + 1) % shared.slots.len();
            self.expire_slot(shared, i, under_pressure);
        }
    }

    /// Begins memory pressure, because a long request was refused for lack of room.
    pub(super) fn begin_pressure(&mut self, now: Instant) {
        self.expiry.pressure_until = now.after(PRESSURE_NS);
    }

    /// Drops the request or reply in slot `i` if no more packets of the request arrive, or if the
    /// client does not take the reply. A client that asks learns that the request was not executed,
    /// or that the reply is gone.
    fn expire_slot<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32, under_pressure: bool) {
        let slot = &shared.slots[i];
        let must_yield = slot.role == Role::Recv && under_pressure && is_slow(shared, slot);
        let mut progress = slot.progress;
        if slot.role == Role::Reply && shared.lossless {
            // The reply may wait behind others that the client takes.
            let peer = shared.peers.slab.get(slot.peer);
            progress = progress.max(peer.map_or(progress, |peer| peer.progress));
        }
        let is_stale = must_yield || shared.now.since(progress) > shared.config.stale_request_ns;
        let is_large = !slot.retained || !slot.out.message.slices.is_empty();
        let state = match slot.role {
            Role::Recv if is_stale => State::Empty,
            Role::Reply if is_large && (is_stale || slot.deadline <= shared.now) => State::Done,
            _ => return,
        };
        shared.stats.abandoned += 1;
        self.drop_rpc(shared, i, state);
    }
}

/// True if the client of an incomplete request could send more, and sends nothing or too slowly. A
/// client that has sent all that it was granted waits for the server.
fn is_slow<P: Probe>(shared: &Shared<P>, slot: &Slot) -> bool {
    let Some(incoming) = slot.incoming.as_ref().filter(|incoming| incoming.owes()) else {
        return false;
    };
    let granted_ns = shared.now.since(incoming.granted_at);
    if !shared.lossless {
        return granted_ns > PRESSURE_STALE_NS;
    }
    shared.now.since(slot.progress) > PRESSURE_STALE_NS
        || granted_ns > PRESSURE_STALE_NS + u64::from(incoming.received) * PRESSURE_BYTE_NS
}
