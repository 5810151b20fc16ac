//! The state that both halves of an endpoint use: options, counters, the properties of the driver,
//! peers, slots and transmit queues.
//!
//! The client half and the server half own their sessions and take `&mut Shared` as an argument.
//! This module knows neither half.

use alloc::collections::VecDeque;

use super::config::Config;
use super::control::Control;
use super::credit::Credit;
use super::peer::{Peer, Peers};
use super::slot::{BUFFER_MAX, Role, Slots};
use super::stats::Stats;
use super::types::{Event, Message, ServerRpc, Slice};
use crate::time::{SECOND, US};
use crate::tracepoint::{Probe, Tracepoint};
use crate::wire::checksum::Crc32c;
use crate::wire::rpc::{CRC, HEAD_MAX, RxPacket};
use crate::{Addr, Datagrams, Instant, Rng};

mod grants;
mod queue;
pub(super) mod tx;

/// The number of bytes, without headers, that one turn of an endpoint sends.
pub(super) const BUDGET: u32 = 256 << 10;
/// The least number of bytes that a packet counts, so that the budget also limits the packets of a
/// turn.
pub(super) const PACKET_COST: u32 = 512;
/// The maximum of packets that one turn sends directly, besides those that are queued.
pub(super) const DIRECT_MAX: u32 = BUDGET / PACKET_COST;
/// The longest single-packet message in bytes that is sent directly on a driver that loses packets.
/// What is sent directly is copied in case the packet is lost; a longer message is queued, which
/// keeps the message itself.
pub(super) const DIRECT_BYTES: usize = 8 << 10;
/// The time in nanoseconds after which an endpoint offers packets to a full driver again. It
/// doubles while the driver stays full.
const RETRY_MIN_NS: u64 = 20 * US;
/// The probe timeout on a lossless driver, in nanoseconds. It only detects a server that does not
/// answer.
const PTO_LOSSLESS_NS: u64 = SECOND;

/// The progress of sending to a peer, or of sending a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// Nothing more to the peer, or of the slot, may be sent now.
    Idle,
    /// The peer, or the slot, has more to send.
    More,
    /// The driver takes no more packets to this peer for now.
    Full,
    /// The driver has taken every byte of the slot's message.
    Sent,
    /// The peer is gone, and the message was not sent.
    Gone,
}

/// The state that both halves of an endpoint use.
#[derive(Debug)]
pub(super) struct Shared<P> {
    pub(super) config: Config,
    pub(super) stats: Stats,
    pub(super) probe: P,
    pub(super) rng: Rng,
    /// The incarnation of the endpoint, drawn at random when it starts: peers distinguish processes
    /// by it.
    pub(super) incarnation: u64,
    /// True if the driver loses nothing.
    pub(super) lossless: bool,
    /// True if packets that the driver carries have a checksum.
    pub(super) checked: bool,
    /// The length of the driver's largest datagram to every peer, in bytes.
    pub(super) max_payload: usize,
    /// The length of the driver's largest datagram to a loopback address, in bytes.
    max_loopback_payload: usize,
    /// The time that the caller last gave to the endpoint.
    pub(super) now: Instant,

    pub(super) peers: Peers,
    pub(super) slots: Slots,
    pub(super) credit: Credit,
    /// The peers that have packets to be sent to them.
    pub(super) active: VecDeque<u32>,
    /// Control packets that wait to be sent.
    pub(super) control: VecDeque<Control>,
    /// The number of packets that the driver has taken since it was last flushed.
    pub(super) unflushed: u32,
    /// The time when the endpoint offers packets to a full driver again.
    pub(super) retry_at: Instant,
    pub(super) retry_ns: u64,
    /// The endpoint's events that the caller has not taken.
    pub(super) events: VecDeque<Event<'static>>,
    /// The slices that the caller has not taken back.
    pub(super) released: VecDeque<Slice>,
    /// The last single-packet request that the endpoint gave to the caller.
    pub(super) last_request: ServerRpc,
}

impl<P: Probe> Shared<P> {
    pub(super) fn new(config: Config, mut rng: Rng, probe: P) -> Self {
        Self {
            stats: Stats::default(),
            probe,
            incarnation: rng.u64(),
            lossless: false,
            checked: true,
            max_payload: 0,
            max_loopback_payload: 0,
            now: Instant::ZERO,
            peers: Peers::new(&mut rng),
            slots: Slots::new(),
            credit: Credit::default(),
            active: VecDeque::new(),
            control: VecDeque::new(),
            unflushed: 0,
            retry_at: Instant::NEVER,
            retry_ns: RETRY_MIN_NS,
            events: VecDeque::new(),
            released: VecDeque::new(),
            last_request: ServerRpc(0),
            config,
            rng,
        }
    }

    /// Records the properties of the driver.
    #[inline]
    pub(super) fn set_driver<D: Datagrams>(&mut self, driver: &D) {
        self.lossless = driver.lossless();
        self.checked = !driver.intact();
        self.max_payload = driver.max_payload();
        self.max_loopback_payload = driver.max_loopback_payload();
    }

    /// True if packets or grants wait to be sent.
    #[inline(always)]
    pub(super) fn is_queued(&self) -> bool {
        !self.active.is_empty() || !self.control.is_empty() || self.credit.is_dirty()
    }

    /// The checksum function of packets, if they have a checksum.
    #[inline]
    pub(super) fn crc(&self) -> Option<Crc32c> {
        self.checked.then_some(self.config.crc32c)
    }

    /// The length in bytes of the driver's largest datagram to the address `to`.
    pub(super) fn max_payload_to(&self, to: Addr) -> usize {
        match to {
            Addr::Net(to) if to.ip().to_canonical().is_loopback() => self.max_loopback_payload,
            _ => self.max_payload,
        }
    }

    /// The number of payload bytes in a packet that fits a datagram of `max_payload` bytes and one
    /// to the address `to`.
    pub(super) fn mss_for(&self, to: Addr, max_payload: usize) -> usize {
        let trailer = if self.checked { CRC } else { 0 };
        max_payload
            .min(self.max_payload_to(to))
            .saturating_sub(HEAD_MAX + trailer)
            .min(usize::from(u16::MAX))
    }

    /// The probe timeout towards the peer with index `peer`, in nanoseconds.
    #[inline]
    pub(super) fn pto_ns(&self, peer: u32) -> u64 {
        self.pto_of(&self.peers.slab[peer])
    }

    /// The probe timeout towards `peer`, in nanoseconds.
    #[inline(always)]
    pub(super) fn pto_of(&self, peer: &Peer) -> u64 {
        if self.lossless {
            return PTO_LOSSLESS_NS;
        }
        peer.path.pto_ns(self.config.min_pto_ns)
    }

    /// The number of bytes of a new message of `len` bytes that may be sent to a peer without a
    /// grant.
    #[inline]
    pub(super) fn unscheduled(&self, peer: u32, len: u32) -> u32 {
        if self.lossless { len } else { self.peers.slab[peer].unscheduled.max(1).min(len) }
    }

    /// The number of bytes of a new message of `len` bytes that a sender may send to this endpoint
    /// without a grant.
    pub(super) fn first_grant(&self, len: u32) -> u32 {
        if self.lossless { len } else { self.config.unscheduled_bytes }
    }

    /// Records the arrival of an authentic packet from a peer. Returns false if the packet came
    /// from another address than the peer's.
    #[inline(always)]
    pub(super) fn record_activity(
        &mut self,
        peer: u32,
        from: Addr,
        packet: RxPacket<'_>,
        lossless: bool,
    ) -> bool {
        let entry = &mut self.peers.slab[peer];
        if entry.addr != from {
            self.stats.drop_address += 1;
            return false;
        }
        entry.record_activity();
        if !lossless {
            let (ts_us, echo_us) = packet.timestamps();
            let target_ns = self.config.target_delay_ns;
            entry.path.record_timestamps(self.now, ts_us, echo_us, target_ns);
        }
        true
    }

    /// Records that bytes of long messages to a peer are no longer in flight.
    pub(super) fn acked(&mut self, peer: u32, bytes: u32) {
        let entry = &mut self.peers.slab[peer];
        entry.path.record_acked(self.now, bytes);
        if !entry.long.is_empty() {
            self.activate(peer);
        }
    }

    /// Records that a message to a peer makes no progress. If no other message makes progress
    /// either, no bytes to the peer count as in flight any more.
    pub(super) fn expire_in_flight(&mut self, peer: u32) {
        let pto_ns = self.pto_ns(peer);
        if self.peers.slab[peer].path.is_stalled(self.now, pto_ns) {
            self.acked(peer, u32::MAX);
        }
    }

    /// Releases the outgoing message of slot `i`, which is not sent any more: its place in the
    /// transmit queue, its slices, a large buffer, and its share of the window.
    #[inline(always)]
    pub(super) fn release_outgoing(&mut self, i: u32, lossless: bool) {
        if self.slots[i].ready {
            self.dequeue_tx(i);
        }
        let slot = &mut self.slots[i];
        let message = &mut slot.out.message;
        if !message.slices.is_empty() {
            self.released.extend(message.slices.drain(..));
        }
        if message.bytes.capacity() > BUFFER_MAX {
            message.bytes = alloc::vec::Vec::new();
        }
        if !lossless && slot.is_windowed() && slot.role != Role::Queued {
            let bytes = slot.window_bytes();
            slot.out.acked = slot.out.next;
            let peer = slot.peer;
            self.acked(peer, bytes);
        }
    }

    /// Frees slot `i` with the messages that it holds.
    #[inline(always)]
    pub(super) fn release_slot(&mut self, i: u32, lossless: bool) {
        let slot = &self.slots[i];
        let holds_more = slot.ready
            || slot.incoming.is_some()
            || !slot.out.message.slices.is_empty()
            || slot.out.message.bytes.capacity() > BUFFER_MAX
            || (!lossless && slot.is_windowed());
        if holds_more {
            self.release_messages(i);
        }
        self.slots.free(i);
    }

    #[inline(never)]
    fn release_messages(&mut self, i: u32) {
        self.release_outgoing(i, self.lossless);
        self.release_incoming(i);
    }

    /// Records that the driver has taken a single-packet request, and keeps a copy of its bytes.
    #[inline(always)]
    pub(super) fn call_sent_single(&mut self, i: u32, bytes: &[u8]) {
        let slot = &mut self.slots[i];
        slot.out.set_sent(bytes);
        slot.exposed = true;
        self.probe.hit(Tracepoint::ClientSent, slot.trace());
    }

    /// Releases the incoming message of slot `i`, if it has one.
    #[inline(always)]
    pub(super) fn release_incoming(&mut self, i: u32) {
        if self.slots[i].incoming.is_some() {
            self.drop_incoming(i);
        }
    }

    fn drop_incoming(&mut self, i: u32) {
        if let Some(incoming) = self.slots[i].incoming.take() {
            self.credit.remove(i, incoming.scheduled);
        }
    }

    /// Records that the driver has taken every byte of the request in slot `i`.
    #[inline(always)]
    pub(super) fn call_sent(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        slot.exposed = true;
        self.probe.hit(Tracepoint::ClientSent, slot.trace());
    }

    /// Gives the slices of a message back to the caller.
    #[inline]
    pub(super) fn release(&mut self, message: Message) {
        self.released.extend(message.slices);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracepoint::NoProbe;

    /// A client that may reach the network once used its short datagrams over loopback, too.
    #[test]
    fn packets_to_loopback_have_a_length_of_their_own() {
        let mut shared = Shared::new(Config::default(), Rng::seeded(1), NoProbe);
        (shared.max_payload, shared.max_loopback_payload) = (1452, 65_488);
        let near = ["127.0.0.1:7", "[::1]:7", "[::ffff:127.0.0.9]:7"];
        let far = ["192.0.2.1:7", "[2001:db8::1]:7", "0.0.0.0:7"];
        let net = |text: &str| Addr::Net(text.parse().expect("an address"));
        assert!(near.iter().all(|at| shared.max_payload_to(net(at)) == 65_488));
        assert!(far.iter().all(|at| shared.max_payload_to(net(at)) == 1452));
        assert_eq!(shared.max_payload_to(Addr::Local(1)), 1452);
        // Expect: the shorter one of both ends counts.
        assert_eq!(shared.mss_for(net(near[0]), 9000), 9000 - HEAD_MAX - CRC);
        assert_eq!(shared.mss_for(net(near[0]), usize::MAX), 65_488 - HEAD_MAX - CRC);
        assert_eq!(shared.mss_for(net(far[0]), 65_488), 1452 - HEAD_MAX - CRC);
    }
}
