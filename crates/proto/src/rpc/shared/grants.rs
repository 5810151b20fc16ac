//! Receiving long messages on a lossy driver: granting the packets of long messages, so that all
//! senders together send no more than the receiver takes, and asking for lost packets.
//!
//! Always: at most eight messages are granted at a time, the shortest first. A message is granted
//! no more than half of `Config::credit_bytes` that has not arrived, and all shorter ones with it
//! no more than `Config::credit_bytes`, stalled ones not counted. A sender that is stalled or very
//! slow loses its place. Not here: lossless drivers, which push back.

use super::Shared;
use crate::Instant;
use crate::rpc::control::ControlBody;
use crate::rpc::incoming::{Incoming, Scheduled};
use crate::rpc::slot::Slot;
use crate::time::{MS, US};
use crate::tracepoint::Probe;
use crate::wire::rpc::Kind;

/// The time after which a sender that sends nothing of its grant is stalled, and loses its place if
/// other messages wait.
const STALL_NS: u64 = 20 * MS;
/// The age of a grant after which a sender that has not sent all of it loses its place. A new grant
/// follows as soon as a sixteenth of the credit has arrived, so such a sender sends less than 128
/// KiB a second.
const SLOW_NS: u64 = 500 * MS;
/// The number of packets that arrive behind a hole in a message before the hole is a loss.
const REORDER_PACKETS: u32 = 3;
/// The least time between two NACKs of one message.
const NACK_MIN_NS: u64 = 200 * US;

impl<P: Probe> Shared<P> {
    /// Handles a packet of a long message of which others are missing: schedules grants, and asks
    /// for packets that are lost.
    pub(in crate::rpc) fn schedule_grants(&mut self, i: u32) {
        let now = self.now;
        let slot = &mut self.slots[i];
        let is_stalled = is_stalled(slot, now);
        let Some(incoming) = &mut slot.incoming else { return };
        if incoming.granted < incoming.len {
            let missing = incoming.len - incoming.received;
            incoming.scheduled = match incoming.scheduled {
                Scheduled::No => self.credit.insert(i, missing, is_stalled),
                place => self.credit.update(i, place, missing, is_stalled),
            };
            self.credit.mark_dirty();
        }
        if incoming.contig == incoming.received {
            return;
        }
        let since = *incoming.gap_since.get_or_insert(now);
        let past = incoming.packets_past_gap();
        let srtt_ns = self.peers.slab[slot.peer].path.srtt_ns;
        if past >= REORDER_PACKETS || now.since(since) > srtt_ns / 4 {
            let end = incoming.seen();
            self.send_nack(i, end);
        }
    }

    /// Sends a NACK for the packets of a slot's message that are missing before byte `end`, at most
    /// once a round trip.
    pub(in crate::rpc) fn send_nack(&mut self, i: u32, end: u32) {
        let srtt_ns = self.peers.slab[self.slots[i].peer].path.srtt_ns;
        let slot = &mut self.slots[i];
        let Some(incoming) = &mut slot.incoming else { return };
        if incoming.last_nack.is_some_and(|last| self.now.since(last) < srtt_ns.max(NACK_MIN_NS)) {
            return;
        }
        let missing = incoming.missing(end.min(incoming.granted));
        if missing.is_empty() {
            return;
        }
        incoming.last_nack = Some(self.now);
        let granted = incoming.granted;
        let mut packet = slot.packet(Kind::Nack);
        packet.offset = missing.base;
        packet.msg_len = granted;
        self.stats.nacks += 1;
        let peer = slot.peer;
        self.queue_control(peer, packet, ControlBody::small(&missing.to_bytes()));
    }

    /// Sends a GRANT for a slot's message: the bytes that have arrived, and how far the sender may
    /// send.
    pub(in crate::rpc) fn send_grant(&mut self, i: u32) {
        let slot = &self.slots[i];
        let Some(incoming) = &slot.incoming else { return };
        let mut packet = slot.packet(Kind::Grant);
        packet.offset = incoming.granted;
        packet.msg_len = incoming.contig;
        self.stats.grants += 1;
        let peer = slot.peer;
        self.queue_control(peer, packet, ControlBody::None);
    }

    /// Grants senders of long messages as much as the credit allows.
    #[cold]
    pub(in crate::rpc) fn grant(&mut self) {
        self.credit.clear_dirty();
        if self.credit.has_waiting() {
            self.displace_stalled();
        }
        self.fill_places();
        let mut active = self.credit.active.clone();
        active.sort_by_key(|&i| missing_bytes(&self.slots[i]));
        let mut taken = 0;
        for i in active {
            // Shorter messages come first: what longer ones have outstanding takes no credit from
            // them. Neither do bytes that a stalled sender owes.
            if !is_stalled(&self.slots[i], self.now) {
                taken += self.outstanding_bytes(i);
            }
            taken += self.grant_more(i, taken);
        }
    }

    /// Grants a long message more of the credit that is left beyond `taken`. Returns the number of
    /// bytes granted.
    fn grant_more(&mut self, i: u32, taken: u32) -> u32 {
        let credit_bytes = self.config.credit_bytes;
        let Some(incoming) = &mut self.slots[i].incoming else { return 0 };
        let wanted = incoming.received.saturating_add(credit_bytes / 2).min(incoming.len);
        let available = credit_bytes.saturating_sub(taken);
        let more = wanted.saturating_sub(incoming.granted).min(available);
        let step = (credit_bytes / 16).min(incoming.len - incoming.granted);
        if more == 0 || more < step {
            return 0;
        }
        incoming.granted += more;
        incoming.granted_at = self.now;
        if incoming.granted == incoming.len {
            incoming.scheduled = Scheduled::No;
            self.credit.active.retain(|other| *other != i);
            if self.credit.has_waiting() {
                self.credit.mark_dirty();
            }
        }
        self.send_grant(i);
        more
    }

    /// Takes the places of stalled senders among those that receive grants away.
    fn displace_stalled(&mut self) {
        for i in self.credit.active.clone() {
            let slot = &mut self.slots[i];
            if !is_stalled(slot, self.now) {
                continue;
            }
            let missing = missing_bytes(slot);
            self.credit.active.retain(|other| *other != i);
            if let Some(incoming) = &mut slot.incoming {
                incoming.scheduled = self.credit.insert(i, missing, true);
            }
        }
        self.credit.clear_dirty();
    }

    /// Gives free places among those that receive grants to waiting messages.
    fn fill_places(&mut self) {
        while let Some(i) = self.credit.choose() {
            let slot = &mut self.slots[i];
            let is_stalled = is_stalled(slot, self.now);
            let missing = missing_bytes(slot);
            let Some(incoming) = &mut slot.incoming else { break };
            if is_stalled && matches!(incoming.scheduled, Scheduled::Waiting(_)) {
                // It has stalled since it was added.
                incoming.scheduled = self.credit.update(i, incoming.scheduled, missing, is_stalled);
                self.credit.undo_choice();
                continue;
            }
            self.credit.remove(i, incoming.scheduled);
            incoming.scheduled = Scheduled::Active;
            self.credit.active.push(i);
        }
        self.credit.clear_dirty();
    }

    fn outstanding_bytes(&self, i: u32) -> u32 {
        self.slots[i].incoming.as_ref().map_or(0, |r| r.granted.saturating_sub(r.received))
    }
}

fn missing_bytes(slot: &Slot) -> u32 {
    slot.incoming.as_ref().map_or(0, |r| r.len - r.received)
}

/// True if the sender of a slot's message has not sent all that it was granted, and has sent
/// nothing for long, or too little.
fn is_stalled(slot: &Slot, now: Instant) -> bool {
    let is_late = |r: &Incoming| {
        now.since(slot.progress.max(r.granted_at)) > STALL_NS || now.since(r.granted_at) > SLOW_NS
    };
    slot.incoming.as_ref().is_some_and(|r| r.owes() && is_late(r))
}
