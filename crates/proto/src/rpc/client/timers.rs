//! The client's timers, the only ones that the transport keeps for an RPC: deadlines, probe
//! timeouts, and the next attempts of refused requests.
//!
//! One entry of the timing wheel serves a slot. An entry that fires early is armed again.

use zerocopy::IntoBytes as _;

use super::Client;
use super::handshake::OPENING;
use crate::Instant;
use crate::rpc::control::ControlBody;
use crate::rpc::shared::Shared;
use crate::rpc::slot::Role;
use crate::rpc::types::{CloseReason, RpcError};
use crate::time::{MS, US};
use crate::tracepoint::Probe;
use crate::wire::rpc::{Kind, ProbeBody};

/// The longest wait between two probes about one request.
const PTO_MAX_NS: u64 = 400 * MS;
/// The longest time between two probes about a request that the server executes.
const HEARTBEAT_NS: u64 = 50 * MS;
/// The least time in which the server may answer a probe. The probes of other overdue requests wait
/// that long.
const PROBE_GAP_NS: u64 = 100 * US;

impl Client {
    /// Handles an entry of the client's timing wheel that fired.
    pub(super) fn timer<P: Probe>(&mut self, shared: &mut Shared<P>, due: Instant, id: u32) {
        if id & OPENING != 0 {
            return self.open_timer(shared, due, id & !OPENING);
        }
        let slot = &mut shared.slots[id];
        if slot.armed != due {
            return;
        }
        slot.armed = Instant::NEVER;
        let (progress, deadline) = (slot.progress, slot.deadline);
        match slot.role {
            Role::Free | Role::Recv | Role::Reply => {}
            _ if deadline <= shared.now => self.deadline_passed(shared, id),
            Role::Queued => self.arm(shared, id, deadline),
            Role::Backoff if progress > shared.now => {
                self.arm(shared, id, progress.min(deadline));
            }
            Role::Backoff => self.retry(shared, id),
            Role::Call => self.pto_expired(shared, id),
        }
    }

    /// Fails a request whose deadline has passed. The client probes the server anyway: a caller
    /// with deadlines shorter than the probe timeout would otherwise never learn that its session
    /// has ended.
    #[cold]
    fn deadline_passed<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32) {
        let slot = &shared.slots[i];
        let (c, peer, maybe_executed) = (slot.session, slot.peer, slot.exposed);
        let sent = slot.role == Role::Call && slot.exposed && !shared.lossless;
        let mut unreachable = false;
        if sent && shared.peers.slab[peer].probing_until <= shared.now {
            unreachable = shared.peers.slab[peer].silent >= shared.config.max_silent;
            back_off_probes(shared, peer);
            self.probe(shared, i);
        }
        self.fail(shared, i, RpcError::Deadline { maybe_executed });
        if unreachable {
            self.end_session(shared, c, CloseReason::Unreachable);
        }
    }

    /// Arms the timing wheel for the request in slot `i` at `due`, unless it is armed for an
    /// earlier time.
    #[inline(always)]
    pub(super) fn arm<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32, due: Instant) {
        let slot = &mut shared.slots[i];
        if due < slot.armed {
            slot.armed = due;
            self.wheel.insert(due, i);
        }
    }

    /// Arms the timing wheel for the time at which the reply to the request in slot `i` is overdue.
    pub(super) fn arm_pto<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32) {
        let due = pto_due(shared, i).min(shared.slots[i].deadline);
        self.arm(shared, i, due);
    }

    /// Sends a request again that the server had refused.
    fn retry<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32) {
        let (peer, len) = (shared.slots[i].peer, shared.slots[i].out.len);
        let granted = shared.unscheduled(peer, len);
        let slot = &mut shared.slots[i];
        slot.role = Role::Call;
        slot.progress = shared.now;
        slot.tries = 0;
        slot.out.granted = granted;
        shared.queue_tx(i);
        self.arm_pto(shared, i);
    }

    /// Handles the probe timer of a request in progress: the client probes if the reply is overdue.
    fn pto_expired<P: Probe>(&mut self, shared: &mut Shared<P>, i: u32) {
        let now = shared.now;
        let slot = &shared.slots[i];
        let (c, peer, deadline, tries) = (slot.session, slot.peer, slot.deadline, slot.tries);
        // A message that waits for room in the window is probed: the packets in flight may be
        // lost, and then nothing else says so.
        let waits_to_be_sent = slot.ready && shared.peers.slab[peer].active;
        if pto_due(shared, i) > now {
            return self.arm_pto(shared, i);
        }
        if waits_to_be_sent {
            let again = now.after(shared.pto_ns(peer)).min(deadline);
            return self.arm(shared, i, again);
        }
        let max = shared.config.max_silent;
        let entry = &shared.peers.slab[peer];
        if entry.silent >= max && entry.probing_until <= now || tries >= max.saturating_mul(2) {
            return self.end_session(shared, c, CloseReason::Unreachable);
        }
        if entry.probing_until > now {
            // Another request's probe is unanswered. The timer fires once after the time in which
            // the answer may come, then after the long wait.
            let soon = entry.probed_at.after((2 * entry.path.srtt_ns).max(PROBE_GAP_NS));
            let turn = if soon > now { soon } else { entry.probing_until.after(1) };
            return self.arm(shared, i, turn.min(deadline));
        }
        back_off_probes(shared, peer);
        // After this silence, the packets in flight have arrived or are lost.
        shared.expire_in_flight(peer);
        let slot = &mut shared.slots[i];
        slot.tries += 1;
        slot.progress = now;
        self.probe(shared, i);
        self.arm_pto(shared, i);
    }

    /// Sends a PROBE about the request in slot `i`: asks for the missing packets of its reply, or
    /// for the state of the request.
    fn probe<P: Probe>(&self, shared: &mut Shared<P>, i: u32) {
        let slot = &shared.slots[i];
        let mut packet = slot.packet(Kind::Probe);
        packet.msg_len = slot.out.len;
        packet.offset = slot.out.next;
        let (received, granted) = slot
            .incoming
            .as_ref()
            .map_or((0, shared.config.unscheduled_bytes), |r| (r.contig, r.granted));
        let body = ProbeBody {
            client: self.sessions[slot.session].name(slot.session).into(),
            received: received.into(),
            granted: granted.into(),
        };
        shared.stats.probes += 1;
        let peer = slot.peer;
        if slot.incoming.is_some() {
            shared.credit.mark_dirty();
            shared.send_nack(i, u32::MAX);
        }
        shared.queue_control(peer, packet, ControlBody::small(body.as_bytes()));
    }
}

/// Records that the client probes a peer, and when it may probe again. The interval doubles with
/// each unanswered probe.
fn back_off_probes<P: Probe>(shared: &mut Shared<P>, peer: u32) {
    let pto_ns = shared.pto_ns(peer);
    let entry = &mut shared.peers.slab[peer];
    entry.probed_at = shared.now;
    let wait_ns = (pto_ns << entry.silent.min(16)).min(PTO_MAX_NS.max(pto_ns));
    entry.silent = entry.silent.saturating_add(1);
    entry.probing_until = shared.now.after(wait_ns + shared.rng.below(wait_ns / 8 + 1));
}

/// The time when the reply to the request in slot `i` is overdue.
fn pto_due<P: Probe>(shared: &Shared<P>, i: u32) -> Instant {
    let slot = &shared.slots[i];
    let pto_ns = shared.pto_ns(slot.peer);
    let wait_ns = if shared.lossless {
        pto_ns
    } else if slot.executing {
        (8 * pto_ns).max(HEARTBEAT_NS)
    } else {
        (pto_ns << slot.tries.min(16)).min(PTO_MAX_NS.max(pto_ns))
    };
    slot.progress.after(wait_ns)
}
