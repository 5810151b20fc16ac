//! The way out of all that cannot take the short one (`express`): answers first, then for every peer with something to send its short messages in order, then a piece of
//! its long ones, the one with the least left first, every 16th time the oldest.
//!
//! Always: no message sends more than [`QUANTUM`] before others have their turn, and no turn more than [`BUDGET`], so that
//! a 100-byte reply never waits behind a megabyte. A peer that pushes back stops nobody else. Payload goes from where it
//! lies to the driver. Not here: who is allowed to send what; see `slot` and `credit`.

use alloc::boxed::Box;

use arrayvec::ArrayVec;

use crate::datagrams::{MAX_PARTS, Sent};
use crate::probe::Probe;
use crate::rpc::Slices;
use crate::rpc::endpoint::Endpoint;
use crate::rpc::peer::stamp_us;
use crate::rpc::session::{INDEX_BITS, INDEX_MAX, State, Word};
use crate::rpc::slot::{Outgoing, Piece, Role};
use crate::time::{MS, US};
use crate::tracepoint::Probe;
use crate::wire::checksum::Crc32c;
use crate::wire::rpc::{ASK, ECHO, HEAD_MAX, Kind, Packet, RESENT, TO_CLIENT, TTL, trailer};
use crate::{Addr, Datagrams, Instant};

/// Bytes that one long message sends before others have their turn.
const QUANTUM: u32 = 64 << 10;
/// Bytes, headers not counted, that one turn sends.
const BUDGET: u32 = 256 << 10;
/// What a packet counts for at least, so that a turn's packets are limited too.
const PACKET_COST: u32 = 512;
/// Packets that go past the queues in one turn.
pub(in crate::rpc) const PASS_MOST: u32 = BUDGET / PACKET_COST;
/// How soon a driver that was full is tried again at the latest; doubles while it stays full.
pub(in crate::rpc) const RETRY_MIN_NS: u64 = 20 * US;
/// The longest such wait.
const RETRY_MAX_NS: u64 = MS;
/// Answers that may wait to be sent.
const CONTROL_LIMIT: usize = 4096;

/// A packet without a message: its header and what follows.
#[derive(Debug)]
pub(in crate::rpc) struct Control {
    pub(in crate::rpc) to: Addr,
    pub(in crate::rpc) peer: u32,
    pub(in crate::rpc) packet: Packet,
    pub(in crate::rpc) body: ControlBody,
}

/// What follows the header of an answer.
#[derive(Debug)]
pub(in crate::rpc) enum ControlBody {
    None,
    Small(ArrayVec<u8, 32>),
    Large(Box<[u8]>),
}

impl ControlBody {
    pub(in crate::rpc) fn small(bytes: &[u8]) -> Self {
        Self::Small(bytes.iter().copied().collect())
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Small(bytes) => bytes,
            Self::Large(bytes) => bytes,
        }
    }
}

/// How far sending to a peer came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    /// There is nothing more that may be sent now.
    Idle,
    /// There is more.
    More,
    /// The driver is full towards this peer.
    Full,
}

impl<P: Probe> Endpoint<P> {
    /// Queues an answer; if too many wait, the oldest is dropped.
    pub(in crate::rpc) fn answer_with(&mut self, peer: u32, packet: Packet, body: ControlBody) {
        let to = self.peers.slab[peer].addr;
        self.answer_to(to, peer, packet, body);
    }

    /// The same, to someone who need not be a peer.
    pub(in crate::rpc) fn answer_to(
        &mut self,
        to: Addr,
        peer: u32,
        packet: Packet,
        body: ControlBody,
    ) {
        if self.control.len() >= CONTROL_LIMIT {
            // The oldest makes room: it was offered to a driver that is full towards its peer. A peer that takes nothing
            // must not keep the answers of others out.
            self.stats.drop_control += 1;
            self.control.pop_front();
        }
        self.control.push_back(Control { to, peer, packet, body });
    }

    /// Puts a slot in its peer's queue, if it is not there, and sees that the queue is looked at.
    #[inline]
    pub(in crate::rpc) fn make_ready(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        let peer = slot.peer;
        if slot.ready {
            // It may be there and wait for room on the path, which what it has to send now does not need.
            return self.activate(peer);
        }
        slot.ready = true;
        let queue = &mut self.peers.slab[peer];
        if slot.out.len <= u32::from(slot.mss) {
            queue.short.push_back(i);
        } else {
            queue.long.push((i, slot.out.remaining()));
        }
        self.activate(peer);
    }

    /// Puts a peer among those with something to send.
    #[inline]
    pub(in crate::rpc) fn activate(&mut self, peer: u32) {
        let entry = &mut self.peers.slab[peer];
        if !entry.active {
            entry.active = true;
            self.active.push_back(peer);
        }
    }

    /// Takes a slot out of its peer's queue.
    pub(in crate::rpc) fn unready(&mut self, i: u32) {
        let slot = &mut self.slots[i];
        if !slot.ready {
            return;
        }
        slot.ready = false;
        let peer = &mut self.peers.slab[slot.peer];
        peer.short.retain(|&other| other != i);
        peer.long.retain(|&(other, _)| other != i);
    }

    /// One turn of sending what is queued; true if more waits for nothing but the next turn.
    pub(in crate::rpc) fn send_queued<D: Datagrams>(
        &mut self,
        memory: &(impl Slices + ?Sized),
        driver: &mut D,
    ) -> bool {
        if self.credit.wanted() {
            self.grant();
        }
        let pushed_back = !self.control.is_empty() && self.send_control(driver);
        let mut budget = BUDGET.saturating_sub(core::mem::take(&mut self.unflushed) * PACKET_COST);
        let mut full = 0;
        while full < self.active.len() && budget > 0 {
            let Some(peer) = self.active.pop_front() else { break };
            match self.send_to_peer(peer, &mut budget, memory, driver) {
                Progress::Idle => {
                    self.peers.slab[peer].active = false;
                    self.peers.sweep(peer);
                }
                Progress::More => {
                    self.active.push_back(peer);
                    full = 0;
                }
                Progress::Full => {
                    self.active.push_back(peer);
                    full += 1;
                }
            }
        }
        driver.flush();
        if pushed_back || full > 0 {
            self.back_off();
        } else {
            self.retry_at = Instant::NEVER;
            self.retry_ns = RETRY_MIN_NS;
        }
        self.active.len() > full || self.credit.wanted()
    }

    /// The driver is full towards someone, who alone can change that: a caller that sleeps comes back before long.
    #[cold]
    fn back_off(&mut self) {
        if self.now >= self.retry_at || self.retry_at == Instant::NEVER {
            self.retry_at = self.now.after(self.retry_ns);
            self.retry_ns = (2 * self.retry_ns).min(RETRY_MAX_NS);
        }
    }

    /// Sends the answers that wait; true if the driver was full for some.
    #[cold]
    fn send_control<D: Datagrams>(&mut self, driver: &mut D) -> bool {
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

    fn send_to_peer<D: Datagrams>(
        &mut self,
        peer: u32,
        budget: &mut u32,
        memory: &(impl Slices + ?Sized),
        driver: &mut D,
    ) -> Progress {
        let addr = self.peers.slab[peer].addr;
        if !self.peers.slab[peer].to_open.is_empty() && !self.send_opens(peer, driver) {
            return Progress::Full;
        }
        while let Some(&i) = self.peers.slab[peer].short.front() {
            if *budget == 0 {
                return Progress::More;
            }
            let mut left = u32::MAX;
            if self.send_slot(i, addr, &mut left, memory, driver) == Progress::Full {
                return Progress::Full;
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
        if progress == Progress::Full { Progress::Full } else { Progress::More }
    }

    /// The long message whose turn it is; `None` if all wait for acknowledgements.
    fn pick_long(&mut self, peer: u32) -> Option<u32> {
        let lossless = self.lossless;
        let peer = &mut self.peers.slab[peer];
        if !lossless && !peer.path.has_room() {
            // Only what was sent before may be sent now: it is not on the way any more.
            let may =
                |&i: &u32| self.slots[i].out.missing.is_some() || !self.slots[i].is_windowed();
            return peer.long.iter().map(|e| e.0).find(may);
        }
        peer.turns = (peer.turns + 1) % 16;
        if peer.turns == 0 {
            return peer.long.first().map(|e| e.0);
        }
        peer.long.iter().min_by_key(|e| e.1).map(|e| e.0)
    }

    /// Sends packets of one slot until `left` bytes are used up or nothing more may be sent; takes it out of the queue
    /// in the latter case.
    #[inline]
    fn send_slot<D: Datagrams>(
        &mut self,
        i: u32,
        addr: Addr,
        left: &mut u32,
        memory: &(impl Slices + ?Sized),
        driver: &mut D,
    ) -> Progress {
        let Some(mut packet) = self.packet_of(i) else {
            self.abandon_reply(i);
            return Progress::Idle;
        };
        let crc = self.crc();
        loop {
            let slot = &mut self.slots[i];
            let mss = u32::from(slot.mss);
            let long = slot.out.len > mss;
            let Some(piece) = slot.out.piece(mss) else { return self.sent_all(i, long) };
            if !self.lossless {
                let path = &self.peers.slab[slot.peer].path;
                let waits = !piece.again && slot.is_windowed() && !path.has_room();
                if *left == 0 || waits {
                    self.requeue(i);
                    return Progress::More;
                }
                let asks = slot.is_windowed()
                    && if piece.again { !path.has_room() } else { path.asks(piece.len) };
                packet.flags &= !(RESENT | ECHO | ASK);
                packet.flags |= if piece.again { RESENT } else { 0 } | if asks { ASK } else { 0 };
                path.stamp(self.now, &mut packet);
            } else if *left == 0 {
                self.requeue(i);
                return Progress::More;
            }
            packet.offset = piece.offset;
            match send_piece(&packet, &slot.out, piece, memory, crc, addr, driver) {
                Sent::Yes => {}
                Sent::Full => return Progress::Full,
                Sent::Gone => return self.never_sent(i, long),
            }
            self.took(i, long, piece);
            *left = left.saturating_sub(piece.len.max(1));
            if !long {
                return self.sent_all(i, long);
            }
        }
    }

    /// How to check packets, if they have to be.
    #[inline]
    pub(in crate::rpc) fn crc(&self) -> Option<Crc32c> {
        self.checked.then_some(self.config.crc32c)
    }

    /// The driver took a packet of the slot.
    #[inline]
    fn took(&mut self, i: u32, long: bool, piece: Piece) {
        let slot = &mut self.slots[i];
        slot.out.took(piece);
        slot.progress = self.now;
        self.peers.slab[slot.peer].progress = self.now;
        self.stats.sent += 1;
        if piece.again {
            self.stats.resent += 1;
        } else if long && !self.lossless && slot.is_windowed() {
            self.peers.slab[slot.peer].path.sent(piece.len);
        }
    }

    /// Notes how much a long message has left, for the next choice.
    fn requeue(&mut self, i: u32) {
        let slot = &self.slots[i];
        let remaining = slot.out.len - slot.out.next;
        if let Some(entry) = self.peers.slab[slot.peer].long.iter_mut().find(|e| e.0 == i) {
            entry.1 = remaining;
        }
    }

    /// Nothing more of this slot may be sent now.
    #[inline]
    fn sent_all(&mut self, i: u32, long: bool) -> Progress {
        let slot = &mut self.slots[i];
        slot.ready = false;
        let queue = &mut self.peers.slab[slot.peer];
        if long {
            queue.long.retain(|e| e.0 != i);
        } else {
            debug_assert!(queue.short.front() == Some(&i));
            queue.short.pop_front();
        }
        if slot.out.sent {
            if slot.role == Role::Call {
                self.call_sent(i);
            } else {
                self.reply_sent(i);
            }
        }
        Progress::Idle
    }

    /// The peer is gone. Calls end with their sessions; a reply on a lossless driver is in no session's hands, only in
    /// this queue's.
    #[cold]
    fn never_sent(&mut self, i: u32, long: bool) -> Progress {
        if self.lossless && self.slots[i].role == Role::Reply {
            self.abandon_reply(i);
            return Progress::Idle;
        }
        self.sent_all(i, long)
    }

    /// The header of this slot's packets; `None` if it is a reply whose request is past.
    #[inline]
    pub(in crate::rpc) fn packet_of(&self, i: u32) -> Option<Packet> {
        let slot = &self.slots[i];
        let mut packet = Packet::new(Kind::Data);
        packet.channel = slot.channel;
        packet.seq = slot.seq;
        packet.msg_len = slot.out.len;
        if slot.role == Role::Call {
            let session = &self.clients[slot.session];
            packet.session = session.server;
            packet.token = session.token;
            if slot.deadline < Instant::NEVER {
                packet.flags |= TTL;
                let left_us = slot.deadline.since(self.now) / US;
                packet.ttl_us = u32::try_from(left_us).unwrap_or(u32::MAX);
            }
            return Some(packet);
        }
        let session = &self.sessions[slot.session & INDEX_MAX];
        let is_current = u32::from(session.generation) == slot.session >> INDEX_BITS
            && session.channels[usize::from(slot.channel)] == Word::new(slot.seq, State::Reply);
        if !is_current {
            return None;
        }
        packet.flags |= TO_CLIENT;
        packet.session = session.client;
        packet.token = session.token;
        Some(packet)
    }

    /// Sends one packet that is not of a message.
    pub(in crate::rpc) fn send_packet<D: Datagrams>(
        &mut self,
        to: Addr,
        packet: &Packet,
        body: &[u8],
        driver: &mut D,
    ) -> Sent {
        let mut head = [0; HEAD_MAX];
        let n = packet.head(&mut head);
        let mut parts: [&[u8]; 3] = [&head[..n], body, &[]];
        let checksum;
        if let Some(crc) = self.crc() {
            checksum = trailer(crc, &parts);
            parts[2] = &checksum;
        }
        let sent = driver.send(to, &parts);
        self.stats.sent += u64::from(sent == Sent::Yes);
        sent
    }

    /// Puts our clock into a packet, and the peer's back.
    pub(in crate::rpc) fn stamp(&self, peer: u32, packet: &mut Packet) {
        if self.lossless {
            return;
        }
        match self.peers.slab.get(peer) {
            Some(peer) => peer.path.stamp(self.now, packet),
            None => packet.ts_us = stamp_us(self.now),
        }
    }
}

/// Gives the driver one packet of a message: its header, the payload from where it lies, the checksum.
#[inline]
fn send_piece<D: Datagrams>(
    packet: &Packet,
    out: &Outgoing,
    piece: Piece,
    memory: &(impl Slices + ?Sized),
    crc: Option<Crc32c>,
    addr: Addr,
    driver: &mut D,
) -> Sent {
    let mut head = [0; HEAD_MAX];
    let n = packet.head(&mut head);
    let mut parts: [&[u8]; MAX_PARTS] = [&[]; MAX_PARTS];
    parts[0] = &head[..n];
    let mut count = 1 + out.parts(memory, piece, &mut parts[1..]);
    let checksum;
    if let Some(crc) = crc {
        checksum = trailer(crc, &parts[..count]);
        parts[count] = &checksum;
        count += 1;
    }
    driver.send(addr, &parts[..count])
}
