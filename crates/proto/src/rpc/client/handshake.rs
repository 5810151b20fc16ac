//! Opening sessions at the client: OPEN, COOKIE, OPEN with the cookie, ACCEPT. A lossless driver,
//! on which the kernel vouches for the peer, needs OPEN and ACCEPT only.
//!
//! Always: a client numbers its OPENs and has at most [`OPEN_WINDOW`] unanswered towards one peer,
//! counted from the oldest. The server treats older numbers as ghosts.

use arrayvec::ArrayVec;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::Client;
use crate::datagrams::Sent;
use crate::rpc::control::ControlBody;
use crate::rpc::limits::CHANNELS;
use crate::rpc::peer::OPEN_WINDOW;
use crate::rpc::session::{ClientSession, INDEX_MAX, Phase};
use crate::rpc::shared::Shared;
use crate::rpc::slab::NONE;
use crate::rpc::types::{CloseReason, SessionId};
use crate::time::{MS, SECOND};
use crate::tracepoint::Probe;
use crate::wire::rpc::{AcceptBody, CookieBody, Kind, OpenBody, Packet, SEQ_MAX};
use crate::{Addr, Datagrams, Instant};

/// The flag of an entry of the timing wheel that is about a peer whose sessions open; other entries
/// are about slots.
pub(super) const OPENING: u32 = 1 << 31;
/// The time that a client waits for an answer to a session's first OPEN; each following wait is
/// twice as long.
const OPEN_RTO_NS: u64 = 20 * MS;
/// The longest time that a client waits for an answer to an OPEN.
const OPEN_RTO_MAX_NS: u64 = 400 * MS;
/// The time that a client waits for an answer to an OPEN on a lossless driver, which loses no OPEN.
/// It only detects a server that does not answer.
const OPEN_RTO_LOSSLESS_NS: u64 = SECOND;

impl Client {
    /// Begins a client session with the server at `to`.
    pub(in crate::rpc) fn connect<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        to: Addr,
    ) -> SessionId {
        let peer = shared.peers.add_session(to);
        let c = self.sessions.alloc(ClientSession::fresh);
        assert!(c <= INDEX_MAX, "no more than 2^24 sessions");
        let epoch = self.sessions[c].epoch;
        let token = shared.rng.u64();
        self.sessions[c] =
            ClientSession { token, epoch, peer, phase: Phase::Opening, ..ClientSession::fresh() };
        shared.peers.slab[peer].to_open.push_back((c, epoch));
        shared.activate(peer);
        self.sessions[c].id(c)
    }

    /// Sends the OPENs that may be sent to a peer. Returns false if the driver was full.
    pub(in crate::rpc) fn send_opens<P: Probe, D: Datagrams>(
        &mut self,
        shared: &mut Shared<P>,
        peer: u32,
        driver: &mut D,
    ) -> bool {
        while shared.peers.slab[peer].may_open() {
            let entry = &mut shared.peers.slab[peer];
            let Some((c, epoch)) = entry.to_open.pop_front() else { break };
            let session = &mut self.sessions[c];
            if session.epoch != epoch || session.phase != Phase::Opening {
                continue;
            }
            // While a session is opening, `server` holds the number of its OPEN.
            session.server = (entry.opens + 1) & SEQ_MAX;
            if self.send_open(shared, c, driver) == Sent::Full {
                shared.peers.slab[peer].to_open.push_front((c, epoch));
                return false;
            }
            let session = &mut self.sessions[c];
            session.mark_active(shared.now);
            session.tries = 1;
            let entry = &mut shared.peers.slab[peer];
            entry.opens = session.server;
            entry.opening.push_back((c, epoch));
            let due = shared.now.after(open_rto_ns(shared, 1));
            self.arm_open(shared, peer, due);
        }
        let to_open = &mut shared.peers.slab[peer].to_open;
        if to_open.is_empty() {
            // The memory of a million entries is not kept.
            to_open.shrink_to_fit();
        }
        true
    }

    fn send_open<P: Probe, D: Datagrams>(
        &self,
        shared: &mut Shared<P>,
        c: u32,
        driver: &mut D,
    ) -> Sent {
        let peer = self.sessions[c].peer;
        let addr = shared.peers.slab[peer].addr;
        let (mut packet, body) = self.open_packet(shared, c, (0, 0));
        shared.stamp(peer, &mut packet);
        shared.send_packet(addr, &packet, body.as_bytes(), driver)
    }

    fn open_packet<P: Probe>(
        &self,
        shared: &Shared<P>,
        c: u32,
        (epoch, cookie): (u32, u64),
    ) -> (Packet, OpenBody) {
        let session = &self.sessions[c];
        let max_payload = shared.max_payload_to(shared.peers.slab[session.peer].addr);
        let mut packet = Packet::new(Kind::Open);
        packet.token = session.token;
        packet.offset = session.name(c);
        packet.seq = session.server;
        let body = OpenBody {
            features: 0.into(),
            max_payload: u32::try_from(max_payload).unwrap_or(u32::MAX).into(),
            unscheduled: shared.config.unscheduled_bytes.into(),
            epoch: epoch.into(),
            cookie: cookie.into(),
            incarnation: shared.incarnation.into(),
        };
        (packet, body)
    }

    /// Arms the timing wheel for the sessions that are opening with a peer. One entry serves all of
    /// them.
    fn arm_open<P: Probe>(&mut self, shared: &mut Shared<P>, peer: u32, due: Instant) {
        let entry = &mut shared.peers.slab[peer];
        if due < entry.open_due {
            entry.open_due = due;
            self.wheel.insert(due, peer | OPENING);
        }
    }

    /// Handles the timer of the sessions that are opening with a peer: sends OPENs again.
    pub(super) fn open_timer<P: Probe>(&mut self, shared: &mut Shared<P>, due: Instant, peer: u32) {
        if shared.peers.slab.get(peer).is_none_or(|p| p.open_due != due) {
            return;
        }
        shared.peers.slab[peer].open_due = Instant::NEVER;
        let opening: ArrayVec<_, OPEN_WINDOW> =
            shared.peers.slab[peer].opening.iter().copied().collect();
        for (c, epoch) in opening {
            let session = &mut self.sessions[c];
            if session.epoch != epoch || session.phase != Phase::Opening {
                continue;
            }
            let rto_ns = open_rto_ns(shared, session.tries);
            let idle_ns = session.idle_ns(shared.now);
            if idle_ns < rto_ns {
                self.arm_open(shared, peer, shared.now.after(rto_ns - idle_ns));
                continue;
            }
            if session.tries >= shared.config.max_silent {
                self.end_session(shared, c, CloseReason::Unreachable);
                continue;
            }
            session.tries += 1;
            session.mark_active(shared.now);
            let again = shared.now.after(open_rto_ns(shared, session.tries));
            let (packet, body) = self.open_packet(shared, c, (0, 0));
            shared.queue_control(peer, packet, ControlBody::small(body.as_bytes()));
            self.arm_open(shared, peer, again);
        }
    }

    /// The index of the opening session that an answer to an OPEN is about.
    fn opening_session<P: Probe>(
        &self,
        shared: &mut Shared<P>,
        from: Addr,
        packet: &Packet,
    ) -> Option<u32> {
        let c = packet.session & INDEX_MAX;
        let Some(session) = self.sessions.get(c) else {
            shared.stats.drop_session += 1;
            return None;
        };
        if session.phase != Phase::Opening || session.name(c) != packet.session {
            shared.stats.drop_stale += 1;
        } else if session.token != packet.token {
            shared.stats.drop_token += 1;
        } else if shared.peers.slab[session.peer].addr != from {
            shared.stats.drop_address += 1;
        } else {
            return Some(c);
        }
        None
    }

    /// Handles a COOKIE: sends the session's OPEN again with the server's cookie.
    pub(super) fn cookie_arrived<P: Probe>(
        &self,
        shared: &mut Shared<P>,
        from: Addr,
        packet: &Packet,
        body: &[u8],
    ) {
        let Some(c) = self.opening_session(shared, from, packet) else { return };
        let Ok((cookie, _)) = CookieBody::ref_from_prefix(body) else { return };
        let cookie = (cookie.epoch.get(), cookie.cookie.get());
        let (packet, body) = self.open_packet(shared, c, cookie);
        let peer = self.sessions[c].peer;
        shared.queue_control(peer, packet, ControlBody::small(body.as_bytes()));
    }

    /// Handles an ACCEPT: the session is open, and its requests are sent.
    pub(super) fn accept_arrived<P: Probe>(
        &mut self,
        shared: &mut Shared<P>,
        from: Addr,
        packet: &Packet,
        body: &[u8],
    ) {
        let Ok((accept, _)) = AcceptBody::ref_from_prefix(body) else { return };
        let Some(c) = self.opening_session(shared, from, packet) else {
            if shared.lossless {
                self.decline(shared, from, packet, accept);
            }
            return;
        };
        let Ok(mss) = u16::try_from(accept.mss.get()) else { return };
        if mss == 0 || usize::from(mss) > shared.mss_for(from, usize::MAX) {
            shared.stats.drop_field += 1;
            return;
        }
        let session = &mut self.sessions[c];
        session.phase = Phase::Open;
        session.mark_active(shared.now);
        session.token = accept.token.get();
        session.server = accept.session.get();
        let peer = session.peer;
        shared.peers.slab[peer].mss = mss;
        shared.peers.slab[peer].unscheduled = accept.unscheduled.get();
        self.open_next(shared, peer);
        for _ in 0..CHANNELS {
            self.start_next(shared, c);
        }
    }

    /// Closes a session at the server if the client gave the session up before the server accepted
    /// it. On a lossless driver, sessions never expire, so the server needs this CLOSE.
    fn decline<P: Probe>(
        &self,
        shared: &mut Shared<P>,
        to: Addr,
        about: &Packet,
        accept: &AcceptBody,
    ) {
        let c = about.session & INDEX_MAX;
        let is_in_use = self.sessions.get(c).is_some_and(|s| {
            s.phase == Phase::Open && s.name(c) == about.session && s.server == accept.session.get()
        });
        if is_in_use {
            // The packet answers an OPEN that was sent twice.
            return;
        }
        let mut packet = Packet::new(Kind::Close);
        packet.session = accept.session.get();
        packet.token = accept.token.get();
        shared.queue_control_to(to, NONE, packet, ControlBody::None);
    }

    /// Removes sessions from the head of the peer's list of opening sessions while they no longer
    /// open. Further OPENs may follow.
    pub(super) fn open_next<P: Probe>(&self, shared: &mut Shared<P>, peer: u32) {
        let entry = &mut shared.peers.slab[peer];
        while let Some(&(c, epoch)) = entry.opening.front() {
            let session = &self.sessions[c];
            if session.epoch == epoch && session.phase == Phase::Opening {
                break;
            }
            entry.opening.pop_front();
        }
        if entry.may_open() {
            shared.activate(peer);
        }
    }
}

/// The time to wait for an answer to a session's OPEN number `tries`, in nanoseconds.
fn open_rto_ns<P: Probe>(shared: &Shared<P>, tries: u8) -> u64 {
    if shared.lossless {
        return OPEN_RTO_LOSSLESS_NS;
    }
    (OPEN_RTO_NS << tries.saturating_sub(1).min(16)).min(OPEN_RTO_MAX_NS)
}
