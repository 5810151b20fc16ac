//! Receiving long messages on a lossy driver: grants, so that senders together never send more than fits, the shortest
//! remaining message first; and asking for what was lost, by bitmap.
//!
//! Always: at most eight messages are being granted at a time, each no more than half of `Config::credit_bytes` that has not
//! arrived, and all of it with what shorter ones have been granted, but for those that stand still. Every 16th choice takes
//! the oldest message, so that none starves. A sender that stands still, or brings a packet now and then, loses its place.
//! Not here: lossless drivers, which push back by themselves.

use alloc::vec::Vec;

use arrayvec::ArrayVec;

use crate::Instant;
use crate::probe::Probe;
use crate::rpc::endpoint::Endpoint;
use crate::rpc::session::INDEX_MAX;
use crate::rpc::shared::tx::ControlBody;
use crate::rpc::slot::{Incoming, Role, Slot};
use crate::time::{MS, US};
use crate::tracepoint::Probe;
use crate::wire::rpc::{Kind, Packet, TO_CLIENT};

/// Messages granted at a time.
const ACTIVE: usize = 8;
/// A message whose sender sends nothing for this long, while others wait, gives its place up.
const STALL_NS: u64 = 20 * MS;
/// So does one whose sender still owes bytes of a grant that is this old: a new one follows as soon as a sixteenth of the
/// credit has arrived, so it brings less than 128 KiB a second.
const SLOW_NS: u64 = 500 * MS;
/// Packets behind a hole that make it a loss.
const REORDER_PACKETS: u32 = 3;
/// The least time between two requests for missing packets of one message.
const NACK_MIN_NS: u64 = 200 * US;

/// Long messages that want grants.
#[derive(Debug, Default)]
pub(in crate::rpc) struct Credit {
    active: ArrayVec<u32, ACTIVE>,
    /// Oldest first.
    waiting: Vec<u32>,
    picks: u8,
    dirty: bool,
}

impl Credit {
    /// True if there may be something to grant.
    pub(in crate::rpc) const fn wanted(&self) -> bool {
        self.dirty
    }

    /// A sender asked: see whether it can be granted more.
    pub(in crate::rpc) const fn wake(&mut self) {
        self.dirty = true;
    }

    /// A slot's message is whole or given up.
    pub(in crate::rpc) fn remove(&mut self, i: u32) {
        self.active.retain(|other| *other != i);
        self.waiting.retain(|other| *other != i);
        self.dirty = true;
    }

    /// The message that gets the next place: the one with the smallest `rank`, of equal ones the oldest, and every 16th time
    /// the oldest of all.
    fn pick<R: Ord>(&mut self, rank: impl Fn(u32) -> R) -> Option<u32> {
        self.picks = (self.picks + 1) % 16;
        let oldest = self.picks == 0;
        let at = if oldest {
            0
        } else {
            self.waiting.iter().enumerate().min_by_key(|(_, i)| rank(**i)).map(|(at, _)| at)?
        };
        (at < self.waiting.len()).then(|| self.waiting.remove(at))
    }
}

impl<P: Probe> Endpoint<P> {
    /// A packet of a long message arrived, and more are missing: they may have to be granted or asked for.
    pub(in crate::rpc) fn more_wanted(&mut self, i: u32) {
        let now = self.now;
        let slot = &mut self.slots[i];
        let Some(incoming) = &mut slot.incoming else { return };
        if incoming.granted < incoming.len {
            if !incoming.scheduled {
                incoming.scheduled = true;
                self.credit.waiting.push(i);
            }
            self.credit.dirty = true;
        }
        if incoming.contig == incoming.received {
            return;
        }
        let since = *incoming.gap_since.get_or_insert(now);
        let past = incoming.packets_past_gap();
        let srtt_ns = self.peers.slab[slot.peer].path.srtt_ns;
        if past >= REORDER_PACKETS || now.since(since) > srtt_ns / 4 {
            let end = incoming.seen();
            self.nack(i, end);
        }
    }

    /// Asks for what is missing of a slot's message before byte `end`, at most once a round trip.
    pub(in crate::rpc) fn nack(&mut self, i: u32, end: u32) {
        let srtt_ns = self.peers.slab[self.slots[i].peer].path.srtt_ns;
        let Some(incoming) = &mut self.slots[i].incoming else { return };
        if incoming.last_nack.is_some_and(|last| self.now.since(last) < srtt_ns.max(NACK_MIN_NS)) {
            return;
        }
        let missing = incoming.missing(end.min(incoming.granted));
        if missing.is_empty() {
            return;
        }
        incoming.last_nack = Some(self.now);
        let granted = incoming.granted;
        let (peer, mut packet) = self.receiver_packet(i, Kind::Nack);
        packet.offset = missing.base;
        packet.msg_len = granted;
        self.stats.nacks += 1;
        self.answer_with(peer, packet, ControlBody::small(&missing.to_bytes()));
    }

    /// Tells the sender of a slot's message what is here and how far it may send.
    pub(in crate::rpc) fn send_grant(&mut self, i: u32) {
        let Some(incoming) = &self.slots[i].incoming else { return };
        let (granted, contig) = (incoming.granted, incoming.contig);
        let (peer, mut packet) = self.receiver_packet(i, Kind::Grant);
        packet.offset = granted;
        packet.msg_len = contig;
        self.stats.grants += 1;
        self.answer_with(peer, packet, ControlBody::None);
    }

    /// Grants what there is to grant.
    pub(in crate::rpc) fn grant(&mut self) {
        self.credit.dirty = false;
        self.rotate();
        while !self.credit.active.is_full() {
            let (slots, now) = (&self.slots, self.now);
            let Some(i) =
                self.credit.pick(|i| (stands_still(&slots[i], now), missing_bytes(&slots[i])))
            else {
                break;
            };
            self.credit.active.push(i);
        }
        let mut active = self.credit.active.clone();
        active.sort_by_key(|&i| missing_bytes(&self.slots[i]));
        let mut taken = 0;
        for i in active {
            // What longer ones owe takes no credit from a shorter one, nor does what is not on its way.
            if !stands_still(&self.slots[i], self.now) {
                taken += self.outstanding_bytes(i);
            }
            let Some(incoming) = &mut self.slots[i].incoming else { continue };
            let wanted =
                incoming.received.saturating_add(self.config.credit_bytes / 2).min(incoming.len);
            let available = self.config.credit_bytes.saturating_sub(taken);
            let more = wanted.saturating_sub(incoming.granted).min(available);
            let step = (self.config.credit_bytes / 16).min(incoming.len - incoming.granted);
            if more == 0 || more < step {
                continue;
            }
            incoming.granted += more;
            incoming.granted_at = self.now;
            taken += more;
            let all = incoming.granted == incoming.len;
            if all {
                incoming.scheduled = false;
                self.credit.active.retain(|other| *other != i);
                self.credit.dirty |= !self.credit.waiting.is_empty();
            }
            self.send_grant(i);
        }
    }

    /// Takes the place of messages that stand still, if others wait.
    fn rotate(&mut self) {
        if self.credit.waiting.is_empty() {
            return;
        }
        let (now, slots) = (self.now, &self.slots);
        let (active, waiting) = (&mut self.credit.active, &mut self.credit.waiting);
        active.retain(|i| {
            let stays = !stands_still(&slots[*i], now);
            if !stays {
                waiting.push(*i);
            }
            stays
        });
    }

    fn outstanding_bytes(&self, i: u32) -> u32 {
        self.slots[i].incoming.as_ref().map_or(0, |r| r.granted.saturating_sub(r.received))
    }

    /// A packet to the sender of a slot's incoming message.
    fn receiver_packet(&self, i: u32, kind: Kind) -> (u32, Packet) {
        let slot = &self.slots[i];
        let mut packet = Packet::new(kind);
        packet.channel = slot.channel;
        packet.seq = slot.seq;
        if slot.role == Role::Recv {
            let session = &self.sessions[slot.session & INDEX_MAX];
            packet.flags = TO_CLIENT;
            packet.session = session.client;
            packet.token = session.token;
        } else {
            let session = &self.clients[slot.session];
            packet.session = session.server;
            packet.token = session.token;
        }
        (slot.peer, packet)
    }
}

fn missing_bytes(slot: &Slot) -> u32 {
    slot.incoming.as_ref().map_or(0, |r| r.len - r.received)
}

/// True if the sender of a slot's message was granted bytes and has sent nothing, or too little, for long. One that has
/// sent all that it may send waits for us.
fn stands_still(slot: &Slot, now: Instant) -> bool {
    let is_late = |r: &Incoming| {
        now.since(slot.progress.max(r.granted_at)) > STALL_NS || now.since(r.granted_at) > SLOW_NS
    };
    slot.incoming.as_ref().is_some_and(|r| r.owes() && is_late(r))
}
