//! Sending packets: a message of one packet directly to the driver, and turns of what is queued.
//!
//! ```text
//!   single-packet message ─► emit_single ─┬─► emit ─► driver
//!   queued message ─────────► send_slot ──┤
//!   control packet ─────────► send_packet ┘
//! ```
//!
//! Always: every packet passes `emit`. A payload is copied from where it lies to the driver. Not
//! here: which message is sent next; see `queue`.

use super::{DIRECT_BYTES, DIRECT_MAX, PACKET_COST, Progress, RETRY_MIN_NS, Shared};
use crate::datagrams::{MAX_PARTS, MAX_SHORT_BODY, Sent};
use crate::rpc::outgoing::Piece;
use crate::rpc::path::stamp_us;
use crate::rpc::slot::is_windowed;
use crate::rpc::types::Slices;
use crate::time::MS;
use crate::tracepoint::Probe;
use crate::wire::checksum::Crc32c;
use crate::wire::rpc::{ASK, ECHO, Packet, RESENT, trailer};
use crate::{Addr, Datagrams, Instant};

/// The number of bytes that one long message sends before other messages have their turn.
const QUANTUM: u32 = 64 << 10;
/// The longest time before packets are offered to a full driver again.
const RETRY_MAX_NS: u64 = MS;

/// Gives the driver one packet with a header, a body of several parts, and a checksum.
#[inline(always)]
fn emit<D: Datagrams>(
    to: Addr,
    packet: &Packet,
    body: &[&[u8]],
    crc: Option<Crc32c>,
    driver: &mut D,
) -> Sent {
    let head = packet.head();
    if driver.intact()
        && let [only] = body
        && only.len() <= MAX_SHORT_BODY
    {
        return driver.send_short(to, &head, only);
    }
    let mut parts: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
    parts[0] = &head;
    parts[1..=body.len()].copy_from_slice(body);
    let mut count = 1 + body.len();
    let checksum;
    if let Some(crc) = crc {
        checksum = trailer(crc, &parts[..count]);
        parts[count] = &checksum;
        count += 1;
    }
    driver.send(to, &parts[..count])
}

/// A way to send a message of one packet: directly to a driver, or not at all, so that the endpoint
/// queues it.
pub(in crate::rpc) trait Emit<P> {
    /// Offers a message of one packet. Returns true if the driver took the packet.
    fn emit(self, shared: &mut Shared<P>, peer: u32, packet: &Packet, body: &[u8]) -> bool;
}

/// Takes no message, so that the endpoint queues each.
pub(in crate::rpc) struct Queued;

impl<P> Emit<P> for Queued {
    #[inline(always)]
    fn emit(self, _: &mut Shared<P>, _: u32, _: &Packet, _: &[u8]) -> bool {
        false
    }
}

/// Sends a single-packet message directly to the driver.
pub(in crate::rpc) struct Direct<'d, D> {
    pub(in crate::rpc) driver: &'d mut D,
    /// True if the driver is flushed at once, because no other packet follows soon.
    pub(in crate::rpc) flush: bool,
}

impl<P: Probe, D: Datagrams> Emit<P> for Direct<'_, D> {
    #[inline(always)]
    fn emit(self, shared: &mut Shared<P>, peer: u32, packet: &Packet, body: &[u8]) -> bool {
        let sent = shared.emit_single(peer, packet, body, self.driver);
        if self.flush {
            shared.flush_direct(self.driver);
        }
        sent
    }
}

impl<P: Probe> Shared<P> {
    /// Gives the driver a message of one packet directly, unless messages to the peer wait for the
    /// driver, this turn has sent many packets, or the message is long. Returns false if the driver
    /// did not take it.
    #[inline(always)]
    pub(in crate::rpc) fn emit_single<D: Datagrams>(
        &mut self,
        peer: u32,
        packet: &Packet,
        body: &[u8],
        driver: &mut D,
    ) -> bool {
        let lossless = driver.lossless();
        let entry = &mut self.peers.slab[peer];
        let is_much = self.unflushed >= DIRECT_MAX || body.len() > DIRECT_BYTES;
        if entry.blocked || (!lossless && is_much) {
            return false;
        }
        let mut packet = *packet;
        let crc = (!driver.intact()).then_some(self.config.crc32c);
        if !lossless {
            entry.path.stamp(self.now, &mut packet);
        }
        if emit(entry.addr, &packet, &[body], crc, driver) != Sent::Yes {
            // Later messages wait behind this one.
            entry.blocked = true;
            return false;
        }
        if lossless {
            driver.flush();
        } else {
            self.unflushed += 1;
        }
        self.stats.sent += 1;
        true
    }

    /// Flushes the driver if it holds packets that were sent directly.
    #[inline(always)]
    pub(in crate::rpc) fn flush_direct<D: Datagrams>(&mut self, driver: &mut D) {
        if !driver.lossless() && self.unflushed > 0 {
            self.unflushed = 0;
            driver.flush();
        }
    }

    /// Sends the control packets that wait. Returns true if the driver was full for some.
    #[cold]
    pub(in crate::rpc) fn send_control<D: Datagrams>(&mut self, driver: &mut D) -> bool {
        let mut full = None;
        for _ in 0..self.control.len() {
            let Some(mut control) = self.control.pop_front() else { break };
            if full == Some(control.to) {
                self.control.push_back(control);
                continue;
            }
            self.stamp(control.peer, &mut control.packet);
            let body = control.body.bytes();
            if self.send_packet(control.to, &control.packet, body, driver) == Sent::Full {
                full = Some(control.to);
                self.control.push_back(control);
            }
        }
        !self.control.is_empty()
    }

    /// Sends the peer's single-packet messages while the budget lasts, then a piece of one long
    /// message. `sent` is called for each slot whose message the driver has taken, or whose peer
    /// is gone.
    pub(in crate::rpc) fn send_messages<D: Datagrams>(
        &mut self,
        peer: u32,
        budget: &mut u32,
        memory: &(impl Slices + ?Sized),
        driver: &mut D,
        mut sent: impl FnMut(&mut Self, u32, Progress),
    ) -> Progress {
        let addr = self.peers.slab[peer].addr;
        while let Some(i) = self.first_short(peer) {
            if *budget == 0 {
                return Progress::More;
            }
            match self.send_slot(i, addr, &mut { u32::MAX }, memory, driver) {
                Progress::Full => return Progress::Full,
                Progress::Idle | Progress::More => {}
                done => sent(self, i, done),
            }
            *budget = budget.saturating_sub(PACKET_COST);
        }
        if self.peers.slab[peer].long.is_empty() {
            return Progress::Idle;
        }
        let Some(i) = self.pick_long(peer) else { return Progress::Idle };
        let allowed = QUANTUM.min(*budget);
        let mut left = allowed;
        let progress = self.send_slot(i, addr, &mut left, memory, driver);
        *budget = budget.saturating_sub((allowed - left).max(PACKET_COST));
        match progress {
            Progress::Full => return Progress::Full,
            Progress::Idle | Progress::More => {}
            done => sent(self, i, done),
        }
        Progress::More
    }

    /// Sends packets of one slot until `left` bytes are used up or nothing more may be sent. When
    /// nothing more may be sent, it removes the slot from the transmit queue.
    #[inline]
    fn send_slot<D: Datagrams>(
        &mut self,
        i: u32,
        addr: Addr,
        left: &mut u32,
        memory: &(impl Slices + ?Sized),
        driver: &mut D,
    ) -> Progress {
        let mut packet = self.slots[i].data_packet(self.now);
        let crc = self.crc();
        loop {
            let slot = &mut self.slots[i];
            let mss = u32::from(slot.mss);
            let Some(piece) = slot.out.piece(mss) else { return self.finish_slot(i) };
            if !self.lossless {
                let path = &self.peers.slab[slot.peer].path;
                let waits = !piece.again && slot.is_windowed() && !path.has_room();
                if *left == 0 || waits {
                    return self.requeue(i);
                }
                let asks = slot.is_windowed()
                    && if piece.again { !path.has_room() } else { path.asks(piece.len) };
                packet.flags &= !(RESENT | ECHO | ASK);
                packet.flags |= if piece.again { RESENT } else { 0 } | if asks { ASK } else { 0 };
                path.stamp(self.now, &mut packet);
            } else if *left == 0 {
                return self.requeue(i);
            }
            packet.offset = piece.offset;
            let mut parts: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
            let count = self.slots[i].out.parts(memory, piece, &mut parts);
            match emit(addr, &packet, &parts[..count], crc, driver) {
                Sent::Yes => {}
                Sent::Full => return Progress::Full,
                Sent::Gone => {
                    self.dequeue_tx(i);
                    return Progress::Gone;
                }
            }
            self.record_sent(i, piece);
            *left = left.saturating_sub(piece.len.max(1));
            if packet.msg_len <= mss {
                return self.finish_slot(i);
            }
        }
    }

    /// Records that the driver took a packet of the message in slot `i`.
    #[inline]
    fn record_sent(&mut self, i: u32, piece: Piece) {
        let slot = &mut self.slots[i];
        slot.out.record_sent(piece);
        slot.progress = self.now;
        let peer = &mut self.peers.slab[slot.peer];
        peer.progress = self.now;
        self.stats.sent += 1;
        if piece.again {
            self.stats.resent += 1;
        } else if !self.lossless && is_windowed(slot.out.len, slot.mss) {
            peer.path.record_sent(piece.len);
        }
    }

    /// Records how many bytes a long message has left, for the next choice of a message to send.
    fn requeue(&mut self, i: u32) -> Progress {
        let slot = &self.slots[i];
        let remaining = slot.out.len - slot.out.next;
        self.peers.slab[slot.peer].long.set_remaining(slot.ticket, remaining);
        Progress::More
    }

    /// Removes slot `i` from the transmit queue, because nothing more of its message may be sent
    /// now.
    #[inline]
    fn finish_slot(&mut self, i: u32) -> Progress {
        let slot = &mut self.slots[i];
        slot.ready = false;
        let queue = &mut self.peers.slab[slot.peer];
        if slot.out.len > u32::from(slot.mss) {
            queue.long.remove(slot.ticket);
        } else {
            debug_assert!(queue.short.front() == Some(&(i, slot.ticket)));
            queue.short.pop_front();
        }
        if slot.out.sent { Progress::Sent } else { Progress::Idle }
    }

    /// Sends one control packet, which carries no bytes of a message.
    pub(in crate::rpc) fn send_packet<D: Datagrams>(
        &mut self,
        to: Addr,
        packet: &Packet,
        body: &[u8],
        driver: &mut D,
    ) -> Sent {
        let sent = emit(to, packet, &[body], self.crc(), driver);
        self.stats.sent += u64::from(sent == Sent::Yes);
        sent
    }

    /// Sets the timestamps of a packet; `peer` may be `NONE`.
    pub(in crate::rpc) fn stamp(&self, peer: u32, packet: &mut Packet) {
        if self.lossless {
            return;
        }
        match self.peers.slab.get(peer) {
            Some(peer) => peer.path.stamp(self.now, packet),
            None => packet.ts_us = stamp_us(self.now),
        }
    }

    /// Decides when packets are offered to the driver again, after a turn in which the driver was
    /// full for some.
    #[cold]
    pub(in crate::rpc) fn back_off(&mut self) {
        if self.now >= self.retry_at || self.retry_at == Instant::NEVER {
            self.retry_at = self.now.after(self.retry_ns);
            self.retry_ns = (2 * self.retry_ns).min(RETRY_MAX_NS);
        }
    }

    /// Records a turn in which the driver was full for no packet.
    #[inline]
    pub(in crate::rpc) fn end_back_off(&mut self) {
        self.retry_at = Instant::NEVER;
        self.retry_ns = RETRY_MIN_NS;
    }
}
