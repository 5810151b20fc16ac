//! The transmit queues: control packets, and for each peer its single-packet messages in order and
//! its long messages.

use super::Shared;
use crate::Addr;
use crate::rpc::control::{Control, ControlBody};
use crate::rpc::missing::Missing;
use crate::tracepoint::Probe;
use crate::wire::rpc::Packet;

/// The maximum of control packets that wait to be sent.
const CONTROL_LIMIT: usize = 4096;
/// The least number of stale entries at which a queue of single-packet messages is compacted.
const STALE_MIN: usize = 64;

impl<P: Probe> Shared<P> {
    /// Queues a control packet to a peer.
    #[cold]
    pub(in crate::rpc) fn queue_control(&mut self, peer: u32, packet: Packet, body: ControlBody) {
        let to = self.peers.slab[peer].addr;
        self.queue_control_to(to, peer, packet, body);
    }

    /// Queues a control packet to an address; `peer` may be `NONE`.
    #[cold]
    pub(in crate::rpc) fn queue_control_to(
        &mut self,
        to: Addr,
        peer: u32,
        packet: Packet,
        body: ControlBody,
    ) {
        if self.control.len() >= CONTROL_LIMIT {
            // The oldest packet was offered to a driver that is full towards its peer. It is
            // dropped, so that such a peer does not block the control packets of others.
            self.stats.drop_control += 1;
            self.control.pop_front();
        }
        self.control.push_back(Control { to, peer, packet, body });
    }

    /// Puts a slot into its peer's transmit queue unless the queue holds it.
    #[inline]
    pub(in crate::rpc) fn queue_tx(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        let peer = slot.peer;
        if slot.ready {
            // A message that waits for room in the window may have packets to resend, which need
            // no room.
            return self.activate(peer);
        }
        slot.ready = true;
        let queue = &mut self.peers.slab[peer];
        slot.ticket = queue.next_ticket;
        queue.next_ticket += 1;
        if slot.out.len <= u32::from(slot.mss) {
            queue.short.push_back((i, slot.ticket));
        } else {
            queue.long.insert(slot.ticket, i, slot.out.remaining());
        }
        self.activate(peer);
    }

    /// Adds a peer to the list of peers with something to send.
    #[inline]
    pub(in crate::rpc) fn activate(&mut self, peer: u32) {
        let entry = &mut self.peers.slab[peer];
        if !entry.active {
            entry.active = true;
            self.active.push_back(peer);
        }
    }

    /// Removes a slot from its peer's transmit queue. The entry of a single-packet message stays
    /// behind as a stale one.
    pub(in crate::rpc) fn dequeue_tx(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        if !slot.ready {
            return;
        }
        slot.ready = false;
        let peer = &mut self.peers.slab[slot.peer];
        if slot.out.len > u32::from(slot.mss) {
            peer.long.remove(slot.ticket);
            return;
        }
        peer.stale += 1;
        if peer.stale >= STALE_MIN && 2 * peer.stale >= peer.short.len() {
            let slots = &self.slots;
            peer.short.retain(|&(i, ticket)| slots[i].ready && slots[i].ticket == ticket);
            peer.stale = 0;
        }
    }

    /// The slot of the peer's next single-packet message.
    #[inline]
    pub(super) fn first_short(&mut self, peer: u32) -> Option<u32> {
        let peer = &mut self.peers.slab[peer];
        while let Some(&(i, ticket)) = peer.short.front() {
            let slot = &self.slots[i];
            if slot.ready && slot.ticket == ticket {
                return Some(i);
            }
            peer.short.pop_front();
            peer.stale = peer.stale.saturating_sub(1);
        }
        None
    }

    /// The slot of the peer's long message whose turn it is; `None` if all wait for
    /// acknowledgements.
    pub(super) fn pick_long(&mut self, peer: u32) -> Option<u32> {
        let lossless = self.lossless;
        let peer = &mut self.peers.slab[peer];
        if !lossless && !peer.path.has_room() {
            // Packets that are resent need no room: the first copy is not in flight any more.
            let may_send =
                |&i: &u32| self.slots[i].out.missing.is_some() || !self.slots[i].is_windowed();
            return peer.long.slots().find(may_send);
        }
        peer.long.choose()
    }

    /// Records a grant: the receiver has everything before `contig` of a slot's message and takes
    /// bytes up to `granted`.
    pub(in crate::rpc) fn granted(&mut self, i: u32, contig: u32, granted: u32) {
        let slot = &mut self.slots[i];
        let newly = slot.out.acknowledge(contig, granted);
        let (peer, windowed) = (slot.peer, slot.is_windowed());
        if slot.out.next < slot.out.granted {
            self.queue_tx(i);
        }
        if windowed {
            self.acked(peer, newly);
        }
    }

    /// Records a NACK: the receiver misses some packets of a slot's message.
    pub(in crate::rpc) fn nacked(&mut self, i: u32, granted: u32, missing: Missing) {
        self.granted(i, missing.base, granted);
        if missing.is_empty() {
            return;
        }
        let slot = &mut self.slots[i];
        slot.out.missing = Some(alloc::boxed::Box::new(missing));
        let peer = slot.peer;
        self.peers.slab[peer].path.record_loss(self.now);
        self.queue_tx(i);
    }
}
