//! The server half of an endpoint: the sessions that clients opened with this side, their requests
//! and replies.
//!
//! For each channel, the server keeps the number of the last request and its state. A later number
//! begins a new request and acknowledges the reply before it; an earlier one is stale. The server
//! sends only in answer to packets.
//!
//! ```text
//!   rx        packets from clients                   reply     replies from the caller
//!   handshake OPEN and its answers                   expiry    the end of sessions
//! ```
//!
//! Always: a channel changes only after session, token and address agreed, and its number only
//! increases, except by [`ServerChannel::forget`] of an idempotent request.

use super::limits::CHANNELS;
use super::retained::Retained;
use super::session::{INDEX_MAX, ServerChannel, ServerSession, State};
use super::shared::Shared;
use super::slab::{Chunks, NONE, Slab};
use super::slot::Role;
use super::types::ServerRpc;
use crate::time::SECOND;
use crate::tracepoint::Probe;
use crate::{Instant, Rng};

mod expiry;
mod handshake;
mod reply;
mod rx;

/// The server half of an endpoint: the sessions that clients opened with this side.
#[derive(Debug)]
pub(super) struct Server {
    sessions: Chunks<ServerSession>,
    /// The slots of each session's channels, one block for a session that has slots.
    blocks: Slab<[u32; CHANNELS]>,
    /// The number of requests that the caller has received and not answered.
    executing: u32,
    /// The number of bytes that incomplete requests count against their limit.
    assembling_bytes: usize,
    retained: Retained,
    /// The secret key of the cookies that the server gives to clients.
    cookie_key: (u64, u64),
    resets: ResetLimit,
    expiry: ExpiryState,
}

/// The limit of the RESETs that the server sends in a second.
#[derive(Debug, Default)]
struct ResetLimit {
    second: u64,
    sent: u32,
}

/// The server's progress in the search for sessions and slots that have expired.
#[derive(Debug, Default)]
struct ExpiryState {
    /// The time when the next step of the search for expired sessions is due.
    next: Instant,
    /// The session and the slot at which the next step of the search for expired ones begins.
    session: u32,
    slot: u32,
    /// The number of sessions still to be checked at once, because the driver lost a peer.
    urgent: u32,
    /// The end of memory pressure: until this time, incomplete requests that are stalled or slow
    /// are dropped, because another one was refused for lack of room.
    pressure_until: Instant,
}

impl Server {
    pub(super) fn new(rng: &mut Rng) -> Self {
        Self {
            sessions: Chunks::new(),
            blocks: Slab::new(),
            executing: 0,
            assembling_bytes: 0,
            retained: Retained::default(),
            cookie_key: (rng.u64(), rng.u64()),
            resets: ResetLimit::default(),
            expiry: ExpiryState::default(),
        }
    }

    /// The number of server sessions ever used. All their indexes are below it.
    #[inline]
    pub(super) const fn len(&self) -> u32 {
        self.sessions.len()
    }

    /// Reads a server session's cache line into the cache; returns an arbitrary number.
    #[inline]
    pub(super) fn prefetch(&self, s: u32) -> u32 {
        self.sessions.get(s).map_or(0, |session| session.peer)
    }

    /// Gives slot `i` to a channel of a server session.
    #[inline]
    fn put_slot(&mut self, s: u32, channel: usize, i: u32) {
        let session = &mut self.sessions[s];
        if session.live == 0 {
            session.block = self.blocks.alloc(|_| [NONE; CHANNELS]);
        }
        session.live |= 1 << channel;
        self.blocks[session.block][channel] = i;
    }

    /// The slot of a server session's channel, if it has one.
    #[inline]
    fn slot_of(&self, s: u32, channel: usize) -> Option<u32> {
        let session = &self.sessions[s];
        (session.live & 1 << channel != 0).then(|| self.blocks[session.block][channel])
    }

    /// Takes the slot away from a server session's channel, if it has one, and frees the slot with
    /// its messages.
    #[inline]
    fn drop_slot<P: Probe>(&mut self, shared: &mut Shared<P>, s: u32, channel: usize) {
        let Some(i) = self.slot_of(s, channel) else { return };
        let session = &mut self.sessions[s];
        session.live &= !(1 << channel);
        if session.live == 0 {
            self.blocks.free(session.block);
            session.block = NONE;
        }
        if let Some(incoming) = &shared.slots[i].incoming {
            self.assembling_bytes -= incoming.claim();
            shared.release_incoming(i);
        }
        if shared.slots[i].role == Role::Reply {
            self.retained.remove(&mut shared.slots, i);
            shared.release_outgoing(i, shared.lossless);
        }
        shared.slots.free(i);
    }

    /// Drops the request or reply in slot `i` of the server, and sets the state of its channel.
    fn drop_rpc<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32, state: State) {
        let slot = &shared.slots[i];
        let (s, channel, seq) = (slot.session & INDEX_MAX, usize::from(slot.channel), slot.seq);
        self.drop_slot(shared, s, channel);
        self.sessions[s].channels[channel] = ServerChannel::new(seq, state);
    }

    /// The server's numbers of sessions, blocks and executing requests, and the bytes of incomplete
    /// requests.
    #[cfg(test)]
    pub(super) fn used(&self) -> (usize, usize, u32, usize) {
        (self.sessions.used(), self.blocks.used(), self.executing, self.assembling_bytes)
    }
}

/// The seconds of `now`, modulo 2¹⁶.
#[inline(always)]
fn seconds(now: Instant) -> u16 {
    (now.as_ns() / SECOND) as u16
}

/// Makes the handle of a request from its session's name, its channel and its number.
#[inline]
fn server_rpc(name: u32, channel: u8, seq: u32) -> ServerRpc {
    ServerRpc(u64::from(name) << 32 | u64::from(seq << 3) | u64::from(channel))
}

/// The session of a request that the caller executes: the session's index, the channel, and the
/// session.
#[inline(always)]
fn executing_request(
    sessions: &mut Chunks<ServerSession>,
    rpc: ServerRpc,
) -> Option<(u32, usize, &mut ServerSession)> {
    let (name, channel, seq) = ((rpc.0 >> 32) as u32, (rpc.0 & 7) as usize, rpc.0 as u32 >> 3);
    let s = name & INDEX_MAX;
    let session = sessions.get_mut(s)?;
    let is_current = session.open
        && session.name(s) == name
        && session.channels[channel] == ServerChannel::new(seq, State::Exec);
    is_current.then_some((s, channel, session))
}
