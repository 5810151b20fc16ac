//! The client's timers, which are the only ones of the transport: deadlines, answers that are overdue, refused requests
//! that are due again.
//!
//! One entry in the wheel looks after a slot, whatever it waits for; an entry that comes too early looks again later. A
//! request whose answer is overdue is asked about (PROBE), and a server that stays silent for long is unreachable.

use zerocopy::IntoBytes as _;

use crate::Instant;
use crate::probe::Probe;
use crate::rpc::client::handshake::OPENING;
use crate::rpc::endpoint::Endpoint;
use crate::rpc::shared::tx::ControlBody;
use crate::rpc::slot::Role;
use crate::rpc::{CloseReason, RpcError};
use crate::time::{MS, SECOND, US};
use crate::tracepoint::Probe;
use crate::wire::rpc::{Kind, Packet, ProbeBody};

/// The longest wait between two probes of one request.
const PTO_MAX_NS: u64 = 400 * MS;
/// A lossless driver loses nothing: this only finds a server that swallowed a request.
const PTO_LOSSLESS_NS: u64 = SECOND;
/// How often at least a request is probed that the server is executing.
const HEARTBEAT_NS: u64 = 50 * MS;

/// The least time in which a probe may be answered: what is overdue beside it looks again after that.
const SOON_NS: u64 = 100 * US;

impl<P: Probe> Endpoint<P> {
    pub(in crate::rpc) fn timer(&mut self, due: Instant, id: u32) {
        if id & OPENING != 0 {
            return self.open_timer(due, id & !OPENING);
        }
        let slot = &mut self.slots[id];
        if slot.armed != due {
            return;
        }
        slot.armed = Instant::NEVER;
        match slot.role {
            Role::Free | Role::Recv | Role::Reply => {}
            _ if slot.deadline <= self.now => self.too_late(id),
            Role::Queued => self.arm(id, self.slots[id].deadline),
            Role::Backoff if slot.progress > self.now => {
                let due = slot.progress.min(slot.deadline);
                self.arm(id, due);
            }
            Role::Backoff => self.try_again(id),
            Role::Call => self.overdue(id),
        }
    }

    /// A request's time is over. The server is asked about it all the same: a caller whose deadlines are shorter than
    /// the wait for an overdue answer would otherwise never learn that its session is no more.
    #[cold]
    fn too_late(&mut self, i: u32) {
        let slot = &self.slots[i];
        let (c, peer, maybe_executed) = (slot.session, slot.peer, slot.exposed);
        let sent = slot.role == Role::Call && slot.exposed && !self.lossless;
        let mut unreachable = false;
        if sent && self.peers.slab[peer].probing_until <= self.now {
            unreachable = self.peers.slab[peer].silent >= self.config.max_silent;
            self.wait_longer(peer);
            self.ask(i);
        }
        self.fail(i, RpcError::Deadline { maybe_executed });
        if unreachable {
            self.end_session(c, CloseReason::Unreachable);
        }
    }

    /// Notes that the server is asked, and how long it may take to answer: twice as long each time.
    fn wait_longer(&mut self, peer: u32) {
        let pto_ns = self.pto_ns(peer);
        let entry = &mut self.peers.slab[peer];
        entry.probed_at = self.now;
        let wait_ns = (pto_ns << entry.silent.min(16)).min(PTO_MAX_NS.max(pto_ns));
        entry.silent = entry.silent.saturating_add(1);
        entry.probing_until = self.now.after(wait_ns + self.rng.below(wait_ns / 8 + 1));
    }

    /// Makes the wheel look at a slot at `due`, if it does not do so earlier.
    #[inline]
    pub(in crate::rpc) fn arm(&mut self, i: u32, due: Instant) {
        let slot = &mut self.slots[i];
        if due < slot.armed {
            slot.armed = due;
            self.wheel.insert(due, i);
        }
    }

    /// How long an answer from this peer may take.
    #[inline]
    pub(in crate::rpc) fn pto_ns(&self, peer: u32) -> u64 {
        if self.lossless {
            return PTO_LOSSLESS_NS;
        }
        self.peers.slab[peer].path.pto_ns(self.config.min_pto_ns)
    }

    /// When this request's answer is overdue.
    fn overdue_at(&self, i: u32) -> Instant {
        let slot = &self.slots[i];
        let pto_ns = self.pto_ns(slot.peer);
        let wait_ns = if self.lossless {
            pto_ns
        } else if slot.executing {
            (8 * pto_ns).max(HEARTBEAT_NS)
        } else {
            (pto_ns << slot.tries.min(16)).min(PTO_MAX_NS.max(pto_ns))
        };
        slot.progress.after(wait_ns)
    }

    pub(in crate::rpc) fn arm_pto(&mut self, i: u32) {
        let due = self.overdue_at(i).min(self.slots[i].deadline);
        self.arm(i, due);
    }

    fn try_again(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        slot.role = Role::Call;
        slot.progress = self.now;
        slot.tries = 0;
        let peer = slot.peer;
        slot.out.granted = if self.lossless {
            slot.out.len
        } else {
            self.peers.slab[peer].unscheduled.max(1).min(slot.out.len)
        };
        self.make_ready(i);
        self.arm_pto(i);
    }

    /// The wheel looks at a request in progress: asks the server about it, if its answer is overdue.
    fn overdue(&mut self, i: u32) {
        let slot = &self.slots[i];
        let (c, peer) = (slot.session, slot.peer);
        // Unless it waits for room on the path: what is on the path may be lost, and then nobody else says so.
        let waits_to_be_sent = slot.ready && self.peers.slab[peer].active;
        let due = self.overdue_at(i);
        if due > self.now {
            return self.arm_pto(i);
        }
        let pto_ns = self.pto_ns(peer);
        let again = self.now.after(pto_ns).min(self.slots[i].deadline);
        if waits_to_be_sent {
            return self.arm(i, again);
        }
        let max = self.config.max_silent;
        let entry = &mut self.peers.slab[peer];
        if entry.silent >= max && entry.probing_until <= self.now
            || self.slots[i].tries >= max.saturating_mul(2)
        {
            return self.end_session(c, CloseReason::Unreachable);
        }
        if entry.probing_until > self.now {
            // The server may answer soon, and then it is this request's turn: one look after that, before the long wait.
            let soon = entry.probed_at.after((2 * entry.path.srtt_ns).max(SOON_NS));
            let turn = if soon > self.now { soon } else { entry.probing_until.after(1) };
            let due = turn.min(self.slots[i].deadline);
            return self.arm(i, due);
        }
        self.wait_longer(peer);
        // Nothing was heard for so long that what was on the way has arrived or is lost.
        self.drained(peer);
        let slot = &mut self.slots[i];
        slot.tries += 1;
        slot.progress = self.now;
        self.ask(i);
        self.arm_pto(i);
    }

    /// Asks the server about a request: for the missing packets of its reply, or where it is.
    fn ask(&mut self, i: u32) {
        let slot = &self.slots[i];
        let session = &self.clients[slot.session];
        let mut packet = Packet::new(Kind::Probe);
        packet.channel = slot.channel;
        packet.seq = slot.seq;
        packet.session = session.server;
        packet.token = session.token;
        packet.msg_len = slot.out.len;
        packet.offset = slot.out.next;
        let (received, granted) = slot
            .incoming
            .as_ref()
            .map_or((0, self.config.unscheduled_bytes), |r| (r.contig, r.granted));
        let body = ProbeBody {
            client: session.name(slot.session).into(),
            received: received.into(),
            granted: granted.into(),
        };
        self.stats.probes += 1;
        let peer = slot.peer;
        if slot.incoming.is_some() {
            self.credit.wake();
            self.nack(i, u32::MAX);
        }
        self.answer_with(peer, packet, ControlBody::small(body.as_bytes()));
    }
}
