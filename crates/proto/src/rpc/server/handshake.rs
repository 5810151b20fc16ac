//! Opening sessions at the server: the cookie, the session, ACCEPT and RESET.
//!
//! Always: the server keeps nothing for an address that has not returned a cookie. An OPEN that
//! arrives again gets the session that it got before, or nothing.

use core::hash::{Hash as _, Hasher as _};

use siphasher::sip::SipHasher24;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{Server, seconds};
use crate::rpc::control::ControlBody;
use crate::rpc::limits::CHANNELS;
use crate::rpc::peer::{AcceptedOpen, OPEN_WINDOW};
use crate::rpc::session::{
    HALF, INDEX_BITS, INDEX_MAX, ServerChannel, ServerSession, State, ahead,
};
use crate::rpc::shared::Shared;
use crate::rpc::slab::NONE;
use crate::time::SECOND;
use crate::tracepoint::Probe;
use crate::wire::rpc::{
    AcceptBody, CookieBody, Kind, OpenBody, Packet, ResetReason, TO_CLIENT, VERSION,
};
use crate::{Addr, Instant};

/// The interval at which the secret of cookies changes. A cookie is valid for one to two intervals.
const COOKIE_EPOCH_NS: u64 = 8 * SECOND;
/// The number of RESETs that a server may send in one second.
const RESETS_PER_SECOND: u32 = 1000;

impl Server {
    pub(super) fn open_arrived<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        from: Addr,
        packet: &Packet,
        body: &[u8],
    ) {
        if !shared.config.serve {
            shared.stats.drop_not_serving += 1;
            return;
        }
        if packet.version != VERSION {
            let (client, token) = (packet.offset, packet.token);
            self.send_reset(shared, from, client, token, ResetReason::Version);
            return;
        }
        let Ok((open, _)) = OpenBody::ref_from_prefix(body) else { return };
        if !shared.lossless && !self.has_cookie(shared, from, packet, open) {
            return;
        }
        if self.is_repeated(shared, from, packet, open.incarnation.get()) {
            return;
        }
        let client = packet.offset;
        let mss = shared.mss_for(from, open.max_payload.get() as usize);
        let max_sessions = shared.config.max_sessions.min(INDEX_MAX) as usize;
        if mss == 0 || self.sessions.used() >= max_sessions {
            self.send_reset(shared, from, client, packet.token, ResetReason::Refused);
            return;
        }
        let name = self.add_session(shared, from, client, mss as u16, open.unscheduled.get());
        let peer = self.sessions[name & INDEX_MAX].peer;
        let peer = &mut shared.peers.slab[peer];
        if peer.incarnation != open.incarnation.get() {
            peer.incarnation = open.incarnation.get();
            peer.recent.clear();
        }
        if peer.recent.is_empty() || ahead(packet.seq, peer.newest) < HALF {
            peer.newest = packet.seq;
        }
        let newest = peer.newest;
        while peer.recent.front().is_some_and(|r| ahead(newest, r.number) >= OPEN_WINDOW as u32) {
            peer.recent.pop_front();
        }
        let open = AcceptedOpen { number: packet.seq, nonce: packet.token, server: name };
        peer.recent.push_back(open);
        self.send_accept(shared, name, packet.token);
    }

    /// True if the server has received the OPEN before. If the OPEN can still matter to its client,
    /// the server sends its ACCEPT again.
    fn is_repeated<P: Probe>(
        &self,
        shared: &mut Shared<P>,
        from: Addr,
        packet: &Packet,
        incarnation: u64,
    ) -> bool {
        let Some(peer) = shared.peers.find(from).map(|peer| &shared.peers.slab[peer]) else {
            return false;
        };
        if peer.incarnation != incarnation || peer.recent.is_empty() {
            return false;
        }
        if let Some(&recent) = peer.recent.iter().find(|r| r.number == packet.seq) {
            shared.stats.opens_repeated += 1;
            if recent.nonce == packet.token {
                self.send_accept(shared, recent.server, packet.token);
            }
            return true;
        }
        let behind = ahead(peer.newest, packet.seq);
        let is_ghost = behind < HALF && behind >= OPEN_WINDOW as u32;
        shared.stats.drop_stale += u64::from(is_ghost);
        is_ghost
    }

    /// True if the OPEN carries this server's cookie for the client's address. If not, a COOKIE is
    /// sent.
    fn has_cookie<P: Probe>(
        &self,
        shared: &mut Shared<P>,
        from: Addr,
        packet: &Packet,
        open: &OpenBody,
    ) -> bool {
        let (epoch, now_epoch) = (open.epoch.get(), cookie_epoch(shared.now));
        let is_fresh = now_epoch.wrapping_sub(epoch) <= 1;
        let (client, nonce) = (packet.offset, packet.token);
        if open.cookie.get() != 0 {
            if is_fresh && open.cookie.get() == self.cookie(epoch, from, client, nonce) {
                return true;
            }
            shared.stats.drop_cookie += 1;
        }
        let cookie = self.cookie(now_epoch, from, client, nonce);
        let mut answer = Packet::new(Kind::Cookie);
        answer.flags = TO_CLIENT;
        answer.session = client;
        answer.token = nonce;
        let body = CookieBody { epoch: now_epoch.into(), padding: 0.into(), cookie: cookie.into() };
        shared.stats.cookies += 1;
        shared.queue_control_to(from, NONE, answer, ControlBody::small(body.as_bytes()));
        false
    }

    fn cookie(&self, epoch: u32, from: Addr, client: u32, nonce: u64) -> u64 {
        let mut hash = SipHasher24::new_with_keys(self.cookie_key.0, self.cookie_key.1);
        hash.write_u32(epoch);
        hash.write_u32(client);
        hash.write_u64(nonce);
        from.hash(&mut hash);
        hash.finish()
    }

    fn add_session<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        from: Addr,
        client: u32,
        mss: u16,
        unscheduled: u32,
    ) -> u32 {
        let peer = shared.peers.add_session(from);
        shared.peers.slab[peer].unscheduled = unscheduled;
        let s = self.sessions.alloc(ServerSession::fresh);
        let token = shared.rng.u64();
        let session = &mut self.sessions[s];
        *session = ServerSession {
            token,
            channels: [ServerChannel::new(0, State::Empty); CHANNELS],
            peer,
            client,
            mss,
            active_s: seconds(shared.now),
            generation: session.generation,
            open: true,
            ..ServerSession::fresh()
        };
        shared.stats.sessions_opened += 1;
        session.name(s)
    }

    /// Sends the ACCEPT of an OPEN, with the session `name`.
    fn send_accept<P: Probe>(&self, shared: &mut Shared<P>, name: u32, nonce: u64) {
        let session = &self.sessions[name & INDEX_MAX];
        if !session.open || u32::from(session.generation) != name >> INDEX_BITS {
            return;
        }
        let mut packet = Packet::new(Kind::Accept);
        packet.flags = TO_CLIENT;
        packet.session = session.client;
        packet.token = nonce;
        let body = AcceptBody {
            session: name.into(),
            mss: u32::from(session.mss).into(),
            unscheduled: shared.config.unscheduled_bytes.into(),
            padding: 0.into(),
            token: session.token.into(),
            incarnation: shared.incarnation.into(),
        };
        shared.queue_control(session.peer, packet, ControlBody::small(body.as_bytes()));
    }

    /// Sends a RESET to the sender of a packet whose session does not exist. The RESET echoes the
    /// token, which only a packet of that session can carry, and is not longer than the packet.
    pub(super) fn send_reset<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        to: Addr,
        client: u32,
        token: u64,
        reason: ResetReason,
    ) {
        if !self.may_reset(shared.now) {
            shared.stats.drop_control += 1;
            return;
        }
        let mut packet = Packet::new(Kind::Reset);
        packet.flags = TO_CLIENT;
        packet.session = client;
        packet.token = token;
        packet.offset = reason as u32;
        shared.stats.resets += 1;
        shared.queue_control_to(to, NONE, packet, ControlBody::None);
    }

    /// True if another RESET may be sent in this second.
    fn may_reset(&mut self, now: Instant) -> bool {
        let second = now.as_ns() / SECOND;
        if second != self.resets.second {
            self.resets.second = second;
            self.resets.sent = 0;
        }
        self.resets.sent += 1;
        self.resets.sent <= RESETS_PER_SECOND
    }
}

fn cookie_epoch(now: Instant) -> u32 {
    (now.as_ns() / COOKIE_EPOCH_NS) as u32
}
