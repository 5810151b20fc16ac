//! Opening and naming sessions: OPEN, COOKIE, OPEN with the cookie, ACCEPT. On a lossless driver, where the kernel vouches
//! for the peer, OPEN and ACCEPT alone.
//!
//! Always: the server keeps nothing for an address that has not answered a cookie; an OPEN that arrives again gets the
//! session it got before, or nothing. A client numbers its OPENs and has at most [`OPEN_WINDOW`] unanswered towards one
//! peer, counted from the oldest: what is older than that is a ghost, and the server remembers no more than that.

use core::hash::Hasher;

use arrayvec::ArrayVec;
use siphasher::sip::SipHasher24;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::datagrams::Sent;
use crate::probe::Probe;
use crate::rpc::endpoint::Endpoint;
use crate::rpc::peer::{OPEN_WINDOW, Recent};
use crate::rpc::session::{
    ClientSession, HALF, INDEX_BITS, INDEX_MAX, Phase, ServerSession, State, Word, ahead,
};
use crate::rpc::shared::tx::ControlBody;
use crate::rpc::slab::NONE;
use crate::rpc::{CHANNELS, CloseReason, SessionId};
use crate::time::{MS, SECOND};
use crate::tracepoint::Probe;
use crate::wire::rpc::{
    AcceptBody, CRC, CookieBody, HEAD_MAX, Kind, OpenBody, Packet, ResetReason, SEQ_MAX, TO_CLIENT,
    VERSION,
};
use crate::{Addr, Datagrams, Instant, Rng};

/// Marks a peer among the entries of the timing wheel; the others are slots.
pub(in crate::rpc) const OPENING: u32 = 1 << 31;
/// The first wait for an answer to an OPEN; it doubles.
const OPEN_RTO_NS: u64 = 20 * MS;
/// The longest.
const OPEN_RTO_MAX_NS: u64 = 400 * MS;
/// A lossless driver loses no OPEN: this only finds a server that swallowed it.
const OPEN_RTO_LOSSLESS_NS: u64 = SECOND;
/// How long a cookie is good: between one and two of these.
const COOKIE_EPOCH_NS: u64 = 8 * SECOND;
/// RESETs to strangers in one second.
const RESETS_PER_SECOND: u32 = 1000;

/// What a server needs to open sessions.
#[derive(Debug)]
pub(in crate::rpc) struct Opener {
    secret: (u64, u64),
    /// Drawn anew at each start.
    incarnation: u64,
    reset_second: u64,
    resets: u32,
}

impl Opener {
    pub(in crate::rpc) fn new(rng: &mut Rng) -> Self {
        Self { secret: (rng.u64(), rng.u64()), incarnation: rng.u64(), reset_second: 0, resets: 0 }
    }

    fn cookie(&self, epoch: u32, from: Addr, client: u32, nonce: u64) -> u64 {
        let mut hash = SipHasher24::new_with_keys(self.secret.0, self.secret.1);
        hash.write_u32(epoch);
        hash.write_u32(client);
        hash.write_u64(nonce);
        core::hash::Hash::hash(&from, &mut hash);
        hash.finish()
    }

    /// True if another RESET may be sent in this second.
    fn may_reset(&mut self, now: Instant) -> bool {
        let second = now.as_ns() / SECOND;
        if second != self.reset_second {
            self.reset_second = second;
            self.resets = 0;
        }
        self.resets += 1;
        self.resets <= RESETS_PER_SECOND
    }
}

fn cookie_epoch(now: Instant) -> u32 {
    (now.as_ns() / COOKIE_EPOCH_NS) as u32
}

impl<P: Probe> Endpoint<P> {
    // Client.

    pub(in crate::rpc) fn open_session(&mut self, to: Addr) -> SessionId {
        let peer = self.peers.join(to);
        let i = self.clients.alloc(ClientSession::fresh);
        assert!(i <= INDEX_MAX, "no more than 2^24 sessions");
        let epoch = self.clients[i].epoch;
        let token = self.rng.u64();
        self.clients[i] =
            ClientSession { token, epoch, peer, phase: Phase::Opening, ..ClientSession::fresh() };
        self.peers.slab[peer].to_open.push_back((i, epoch));
        self.activate(peer);
        self.clients[i].id(i)
    }

    /// The session, if the caller's name for it is not stale.
    pub(in crate::rpc) fn own_session(&self, id: SessionId) -> Option<u32> {
        let i = id.place();
        let session = self.clients.get(i)?;
        (session.phase != Phase::Free && session.id(i) == id).then_some(i)
    }

    /// Sends the OPENs that may be sent to this peer; false if the driver was full.
    pub(in crate::rpc) fn send_opens<D: Datagrams>(&mut self, peer: u32, driver: &mut D) -> bool {
        while self.peers.slab[peer].may_open() {
            let Some((i, epoch)) = self.peers.slab[peer].to_open.pop_front() else { break };
            if self.clients[i].epoch != epoch || self.clients[i].phase != Phase::Opening {
                continue;
            }
            // While a session is opening, its number takes the place of the server's name for it.
            self.clients[i].server = (self.peers.slab[peer].opens + 1) & SEQ_MAX;
            if self.send_open(i, (0, 0), driver) == Sent::Full {
                self.peers.slab[peer].to_open.push_front((i, epoch));
                return false;
            }
            self.peers.slab[peer].opens = self.clients[i].server;
            self.peers.slab[peer].opening.push_back((i, epoch));
            self.clients[i].touch(self.now);
            self.clients[i].tries = 1;
            let rto_ns = self.open_rto_ns(1);
            self.arm_open(peer, self.now.after(rto_ns));
        }
        if self.peers.slab[peer].to_open.is_empty() {
            // A million entries are not kept for nothing.
            self.peers.slab[peer].to_open.shrink_to_fit();
        }
        true
    }

    fn send_open<D: Datagrams>(&mut self, i: u32, cookie: (u32, u64), driver: &mut D) -> Sent {
        let addr = self.peers.slab[self.clients[i].peer].addr;
        let (mut packet, body) = self.open_packet(i, cookie);
        self.stamp(self.clients[i].peer, &mut packet);
        self.send_packet(addr, &packet, body.as_bytes(), driver)
    }

    fn open_packet(&self, i: u32, (epoch, cookie): (u32, u64)) -> (Packet, OpenBody) {
        let session = &self.clients[i];
        let mut packet = Packet::new(Kind::Open);
        packet.token = session.token;
        packet.offset = session.name(i);
        packet.seq = session.server;
        let body = OpenBody {
            features: 0.into(),
            max_payload: u32::try_from(self.max_payload).unwrap_or(u32::MAX).into(),
            unscheduled: self.config.unscheduled_bytes.into(),
            epoch: epoch.into(),
            cookie: cookie.into(),
            incarnation: self.opener.incarnation.into(),
        };
        (packet, body)
    }

    /// How long to wait for an answer to the OPEN number `tries` of a session.
    fn open_rto_ns(&self, tries: u8) -> u64 {
        if self.lossless {
            return OPEN_RTO_LOSSLESS_NS;
        }
        (OPEN_RTO_NS << tries.saturating_sub(1).min(16)).min(OPEN_RTO_MAX_NS)
    }

    /// Makes the wheel look at the sessions that are being opened with a peer; one entry serves all of them.
    fn arm_open(&mut self, peer: u32, due: Instant) {
        let entry = &mut self.peers.slab[peer];
        if due < entry.open_due {
            entry.open_due = due;
            self.wheel.insert(due, peer | OPENING);
        }
    }

    /// The wheel says that sessions with a peer have been opening for a while.
    pub(in crate::rpc) fn open_timer(&mut self, due: Instant, peer: u32) {
        if self.peers.slab.get(peer).is_none_or(|p| p.open_due != due) {
            return;
        }
        self.peers.slab[peer].open_due = Instant::NEVER;
        let opening: ArrayVec<_, OPEN_WINDOW> =
            self.peers.slab[peer].opening.iter().copied().collect();
        for (c, epoch) in opening {
            let session = &self.clients[c];
            if session.epoch != epoch || session.phase != Phase::Opening {
                continue;
            }
            let rto_ns = self.open_rto_ns(session.tries);
            let idle_ns = session.idle_ns(self.now);
            if idle_ns < rto_ns {
                self.arm_open(peer, self.now.after(rto_ns - idle_ns));
                continue;
            }
            if session.tries >= self.config.max_silent {
                self.end_session(c, CloseReason::Unreachable);
                continue;
            }
            let session = &mut self.clients[c];
            session.tries += 1;
            session.touch(self.now);
            let again = self.now.after(self.open_rto_ns(self.clients[c].tries));
            let (packet, body) = self.open_packet(c, (0, 0));
            self.answer_with(peer, packet, ControlBody::small(body.as_bytes()));
            self.arm_open(peer, again);
        }
    }

    /// The session that an answer to an OPEN is about.
    fn opening_session(&mut self, from: Addr, packet: &Packet) -> Option<u32> {
        let i = packet.session & INDEX_MAX;
        let Some(session) = self.clients.get(i) else {
            self.stats.drop_session += 1;
            return None;
        };
        if session.phase != Phase::Opening || session.name(i) != packet.session {
            self.stats.drop_stale += 1;
        } else if session.token != packet.token {
            self.stats.drop_token += 1;
        } else if self.peers.slab[session.peer].addr != from {
            self.stats.drop_address += 1;
        } else {
            return Some(i);
        }
        None
    }

    pub(in crate::rpc) fn cookie_arrived(&mut self, from: Addr, packet: &Packet, body: &[u8]) {
        let Some(i) = self.opening_session(from, packet) else { return };
        let Ok((cookie, _)) = CookieBody::ref_from_prefix(body) else { return };
        let (packet, body) = self.open_packet(i, (cookie.epoch.get(), cookie.cookie.get()));
        let peer = self.clients[i].peer;
        self.answer_with(peer, packet, ControlBody::small(body.as_bytes()));
    }

    pub(in crate::rpc) fn accept_arrived(&mut self, from: Addr, packet: &Packet, body: &[u8]) {
        let Ok((accept, _)) = AcceptBody::ref_from_prefix(body) else { return };
        let Some(i) = self.opening_session(from, packet) else {
            if self.lossless {
                self.decline(from, packet, accept);
            }
            return;
        };
        let Ok(mss) = u16::try_from(accept.mss.get()) else { return };
        if mss == 0 || usize::from(mss) > self.mss_for(self.max_payload) {
            self.stats.drop_field += 1;
            return;
        }
        let session = &mut self.clients[i];
        session.phase = Phase::Open;
        session.touch(self.now);
        session.token = accept.token.get();
        session.server = accept.session.get();
        let peer = session.peer;
        self.peers.slab[peer].mss = mss;
        self.peers.slab[peer].unscheduled = accept.unscheduled.get();
        self.opened(peer);
        for _ in 0..CHANNELS {
            self.start_next(i);
        }
    }

    /// A session was given up before the server accepted it. On a lossless driver, where a session never
    /// expires, the server has to be told.
    fn decline(&mut self, to: Addr, about: &Packet, accept: &AcceptBody) {
        let i = about.session & INDEX_MAX;
        let is_in_use = self.clients.get(i).is_some_and(|s| {
            s.phase == Phase::Open && s.name(i) == about.session && s.server == accept.session.get()
        });
        if is_in_use {
            // The answer to an OPEN that was sent again.
            return;
        }
        let mut packet = Packet::new(Kind::Close);
        packet.session = accept.session.get();
        packet.token = accept.token.get();
        self.answer_to(to, NONE, packet, ControlBody::None);
    }

    /// An OPEN is answered or given up: later ones may follow.
    pub(in crate::rpc) fn opened(&mut self, peer: u32) {
        let entry = &mut self.peers.slab[peer];
        while let Some(&(i, epoch)) = entry.opening.front() {
            let session = &self.clients[i];
            if session.epoch == epoch && session.phase == Phase::Opening {
                break;
            }
            entry.opening.pop_front();
        }
        if entry.may_open() {
            self.activate(peer);
        }
    }

    // Server.

    /// Payload bytes of a packet that fits `max_payload`.
    pub(in crate::rpc) fn mss_for(&self, max_payload: usize) -> usize {
        let trailer = if self.checked { CRC } else { 0 };
        max_payload
            .min(self.max_payload)
            .saturating_sub(HEAD_MAX + trailer)
            .min(usize::from(u16::MAX))
    }

    pub(in crate::rpc) fn open_arrived(&mut self, from: Addr, packet: &Packet, body: &[u8]) {
        if !self.config.serve {
            self.stats.drop_not_serving += 1;
            return;
        }
        if packet.version != VERSION {
            self.reset(from, packet.offset, packet.token, ResetReason::Version);
            return;
        }
        let Ok((open, _)) = OpenBody::ref_from_prefix(body) else { return };
        if !self.lossless && !self.cookie_holds(from, packet, open) {
            return;
        }
        if self.opened_before(from, packet, open.incarnation.get()) {
            return;
        }
        let client = packet.offset;
        let mss = self.mss_for(open.max_payload.get() as usize);
        if mss == 0 || self.sessions.used() >= self.config.max_sessions.min(INDEX_MAX) as usize {
            self.reset(from, client, packet.token, ResetReason::Refused);
            return;
        }
        let name = self.new_server_session(from, client, mss as u16, open.unscheduled.get());
        let peer = self.sessions[name & INDEX_MAX].peer;
        let peer = &mut self.peers.slab[peer];
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
        peer.recent.push_back(Recent { number: packet.seq, nonce: packet.token, server: name });
        self.accept(name, packet.token);
    }

    /// True if the OPEN was here before: then its answer is repeated, if it can matter to anyone.
    fn opened_before(&mut self, from: Addr, packet: &Packet, incarnation: u64) -> bool {
        let Some(peer) = self.peers.find(from).map(|peer| &self.peers.slab[peer]) else {
            return false;
        };
        if peer.incarnation != incarnation || peer.recent.is_empty() {
            return false;
        }
        if let Some(&recent) = peer.recent.iter().find(|r| r.number == packet.seq) {
            self.stats.opens_repeated += 1;
            if recent.nonce == packet.token {
                self.accept(recent.server, packet.token);
            }
            return true;
        }
        let behind = ahead(peer.newest, packet.seq);
        let is_ghost = behind < HALF && behind >= OPEN_WINDOW as u32;
        self.stats.drop_stale += u64::from(is_ghost);
        is_ghost
    }

    /// True if the OPEN carries our cookie for its address; else answers with one, if it carries none.
    fn cookie_holds(&mut self, from: Addr, packet: &Packet, open: &OpenBody) -> bool {
        let (epoch, now_epoch) = (open.epoch.get(), cookie_epoch(self.now));
        let fresh = now_epoch.wrapping_sub(epoch) <= 1;
        let (client, nonce) = (packet.offset, packet.token);
        if open.cookie.get() != 0 {
            if fresh && open.cookie.get() == self.opener.cookie(epoch, from, client, nonce) {
                return true;
            }
            self.stats.drop_cookie += 1;
        }
        let cookie = self.opener.cookie(now_epoch, from, client, nonce);
        let mut answer = Packet::new(Kind::Cookie);
        answer.flags = TO_CLIENT;
        answer.session = client;
        answer.token = nonce;
        let body = CookieBody { epoch: now_epoch.into(), padding: 0.into(), cookie: cookie.into() };
        self.stats.cookies += 1;
        self.answer_to(from, NONE, answer, ControlBody::small(body.as_bytes()));
        false
    }

    fn new_server_session(&mut self, from: Addr, client: u32, mss: u16, unscheduled: u32) -> u32 {
        let peer = self.peers.join(from);
        self.peers.slab[peer].unscheduled = unscheduled;
        let i = self.sessions.alloc(ServerSession::fresh);
        let token = self.rng.u64();
        let session = &mut self.sessions[i];
        *session = ServerSession {
            token,
            channels: [Word::new(0, State::Empty); CHANNELS],
            peer,
            client,
            mss,
            active_s: crate::rpc::server::seconds(self.now),
            generation: session.generation,
            open: true,
            ..ServerSession::fresh()
        };
        self.stats.sessions_opened += 1;
        session.name(i)
    }

    /// Answers an OPEN by the session of that name.
    fn accept(&mut self, name: u32, nonce: u64) {
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
            unscheduled: self.config.unscheduled_bytes.into(),
            padding: 0.into(),
            token: session.token.into(),
            incarnation: self.opener.incarnation.into(),
        };
        let peer = session.peer;
        self.answer_with(peer, packet, ControlBody::small(body.as_bytes()));
    }

    /// Tells someone that we know no such session, echoing what only a packet of that session can carry. Never longer
    /// than the packet that asked.
    pub(in crate::rpc) fn reset(&mut self, to: Addr, client: u32, token: u64, reason: ResetReason) {
        if !self.opener.may_reset(self.now) {
            self.stats.drop_control += 1;
            return;
        }
        let mut packet = Packet::new(Kind::Reset);
        packet.flags = TO_CLIENT;
        packet.session = client;
        packet.token = token;
        packet.offset = reason as u32;
        self.stats.resets += 1;
        self.answer_to(to, NONE, packet, ControlBody::None);
    }
}
