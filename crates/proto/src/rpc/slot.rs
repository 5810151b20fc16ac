//! One RPC's whole state while it is under way on this side: a message going out, a message coming in, and at the client
//! who waits for it. Slots are recycled, the last freed first.
//!
//! ```text
//! outgoing   0 ······ acked ······ next ······ granted ······ len        missing: packets in acked..next to send again
//! incoming   0 ······ contig ··(holes)·· bytes.len() ······ granted ······ len
//! ```
//!
//! Always: `acked <= next <= granted <= len`; memory of an incoming message follows the bytes that arrived and the grants
//! given, never the length that the peer claims. Not here: who may send when; see `output`, `credit` and `server`.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use super::slab::{NONE, Slab};
use super::{Message, Slices};
use crate::Instant;
use crate::wire::rpc::NACK_PACKETS;

/// Packets to send again: bit `i` stands for the packet at `base + i · mss`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Missing {
    pub(super) base: u32,
    pub(super) bits: [u64; NACK_PACKETS as usize / 64],
}

impl Missing {
    pub(super) fn is_empty(&self) -> bool {
        self.bits == [0; 4]
    }

    pub(super) fn set(&mut self, packet: u32) {
        self.bits[(packet / 64) as usize] |= 1 << (packet % 64);
    }

    /// The first packet, and takes it out.
    fn pop(&mut self) -> Option<u32> {
        let word = self.bits.iter().position(|&w| w != 0)?;
        let bit = self.bits[word].trailing_zeros();
        self.bits[word] &= self.bits[word] - 1;
        Some(word as u32 * 64 + bit)
    }

    /// As it travels: big-endian words, bit 0 of the first word is the packet at `base`.
    pub(super) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (out, word) in bytes.chunks_exact_mut(8).zip(self.bits) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(base: u32, bytes: &[u8]) -> Self {
        let mut missing = Self { base, ..Self::default() };
        for (word, chunk) in missing.bits.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = chunk.iter().fold(0, |w, &b| w << 8 | u64::from(b));
        }
        missing
    }
}

/// A message on its way out.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) message: Message,
    pub(super) len: u32,
    /// The first byte never sent.
    pub(super) next: u32,
    /// Send no byte from here on.
    pub(super) granted: u32,
    /// The receiver has everything before this.
    pub(super) acked: u32,
    pub(super) missing: Option<Box<Missing>>,
    /// True once every byte was given to the driver.
    pub(super) sent: bool,
}

/// A packet to be sent: where it begins, its length, whether it was sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) again: bool,
}

impl Outgoing {
    /// A message that may be sent up to `granted` without asking.
    pub(super) fn new(message: Message, len: u32, granted: u32) -> Self {
        Self {
            message,
            len,
            next: 0,
            granted: granted.min(len),
            acked: 0,
            missing: None,
            sent: false,
        }
    }

    /// The message, which has no slices, is on its way in one packet. Here is a copy of it, in the buffer of the last one, should
    /// it have to go out again.
    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let len = bytes.len() as u32;
        self.message.bytes.clear();
        self.message.bytes.extend_from_slice(bytes);
        self.len = len;
        self.next = len;
        self.granted = len;
        self.acked = 0;
        self.missing = None;
        self.sent = true;
    }

    /// The next packet to send, if any may be sent. It stays the next one until [`Outgoing::took`].
    #[inline]
    pub(super) fn piece(&mut self, mss: u32) -> Option<Piece> {
        if self.missing.is_some() {
            if let Some(piece) = self.piece_again(mss) {
                return Some(piece);
            }
            self.missing = None;
        }
        if self.next < self.granted || (self.len == 0 && !self.sent) {
            // A packet is whole or the message's last: a grant that ends within one lets all of it go.
            return Some(Piece {
                offset: self.next,
                len: mss.min(self.len - self.next),
                again: false,
            });
        }
        None
    }

    #[cold]
    fn piece_again(&mut self, mss: u32) -> Option<Piece> {
        let missing = self.missing.as_mut()?;
        loop {
            let packet = missing.pop()?;
            let offset = u64::from(missing.base) + u64::from(packet) * u64::from(mss);
            if offset < u64::from(self.next) || (offset == 0 && self.sent) {
                // Still the next one until the driver takes it.
                missing.set(packet);
                let offset = offset as u32;
                return Some(Piece { offset, len: mss.min(self.len - offset), again: true });
            }
        }
    }

    /// The driver took `piece`.
    #[inline]
    pub(super) fn took(&mut self, piece: Piece) {
        if piece.again {
            if let Some(missing) = &mut self.missing {
                missing.pop();
            }
            return;
        }
        self.next = piece.offset + piece.len;
        if self.next == self.len {
            self.sent = true;
        }
    }

    /// Bytes that may be sent now.
    pub(super) fn remaining(&self) -> u32 {
        self.len - self.acked.min(self.next)
    }

    /// The receiver has everything before `contig` and lets us send up to `granted`. Returns how many bytes that newly
    /// acknowledges.
    pub(super) fn acknowledge(&mut self, contig: u32, granted: u32) -> u32 {
        self.granted = self.granted.max(granted.min(self.len));
        let acked = contig.min(self.next).max(self.acked);
        let newly = acked - self.acked;
        self.acked = acked;
        newly
    }

    /// Bytes sent and not acknowledged.
    pub(super) fn in_flight(&self) -> u32 {
        self.next - self.acked
    }

    /// Sends everything again that was sent and is not acknowledged, as far as one bitmap reaches.
    pub(super) fn resend(&mut self, mss: u32) {
        let mut missing = Missing { base: self.acked / mss * mss, ..Missing::default() };
        let packets =
            (self.next - missing.base).div_ceil(mss).clamp(u32::from(self.sent), NACK_PACKETS);
        (0..packets).for_each(|i| missing.set(i));
        self.missing = (!missing.is_empty()).then(|| Box::new(missing));
    }

    /// Starts over, as if nothing had been sent yet.
    pub(super) fn restart(&mut self, granted: u32) {
        self.next = 0;
        self.acked = 0;
        self.granted = granted.min(self.len);
        self.missing = None;
        self.sent = false;
    }

    /// The bytes of `piece`, put into `parts`, which has room for all of [`super::MAX_SLICES`] and one more; returns how
    /// many it took.
    ///
    /// # Panics
    /// If `memory` gives a slice another length than it has.
    #[inline]
    pub(super) fn parts<'a>(
        &'a self,
        memory: &'a (impl Slices + ?Sized),
        piece: Piece,
        parts: &mut [&'a [u8]],
    ) -> usize {
        let (from, len) = (piece.offset as usize, piece.len as usize);
        let bytes = &self.message.bytes[..];
        if let Some(all) = bytes.get(from..from + len) {
            parts[0] = all;
            return 1;
        }
        self.parts_with_slices(memory, from, len, parts)
    }

    fn parts_with_slices<'a>(
        &'a self,
        memory: &'a (impl Slices + ?Sized),
        mut from: usize,
        mut len: usize,
        parts: &mut [&'a [u8]],
    ) -> usize {
        let mut count = 0;
        let slices = self.message.slices.iter().map(|&slice| memory.bytes(slice));
        for bytes in core::iter::once(&self.message.bytes[..]).chain(slices) {
            if len == 0 {
                break;
            }
            if from >= bytes.len() {
                from -= bytes.len();
                continue;
            }
            let n = len.min(bytes.len() - from);
            parts[count] = &bytes[from..from + n];
            count += 1;
            len -= n;
            from = 0;
        }
        count
    }
}

/// What became of a packet given to [`Incoming::place`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Placed {
    /// It was new; some are still missing.
    New,
    /// It was new, and the message is whole.
    Whole,
    /// It was here before.
    Duplicate,
    /// It goes beyond what was granted, is no full packet at a packet's place, or claims another length.
    Misfit,
}

/// What a half-received message counts besides its bytes, more than its slot and this module's entry
/// take: messages of two bytes must not come without end.
const ENTRY: usize = 1 << 10;

/// What a message of `len` bytes counts while it is half received.
pub(super) const fn claim(len: u32) -> usize {
    len as usize + ENTRY
}

/// A message on its way in.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    pub(super) bytes: Vec<u8>,
    pub(super) len: u32,
    pub(super) mss: u32,
    /// Everything before this is here.
    pub(super) contig: u32,
    /// Bytes that are here, holes not counted.
    pub(super) received: u32,
    pub(super) granted: u32,
    /// When the sender was last granted more, or the message began.
    pub(super) granted_at: Instant,
    /// Packets behind the first hole, by number; empty while there is no hole.
    holes: Vec<u64>,
    /// When the first hole was first seen.
    pub(super) gap_since: Option<Instant>,
    pub(super) last_nack: Option<Instant>,
    /// True while [`super::shared::grants::Credit`] has it.
    pub(super) scheduled: bool,
}

impl Incoming {
    /// A message of `len` bytes in packets of `mss`, of which the sender may send `granted` now.
    pub(super) fn new(now: Instant, len: u32, mss: u32, granted: u32) -> Self {
        Self { len, mss, granted: granted.min(len), granted_at: now, ..Self::default() }
    }

    /// True if the sender may send bytes that have not arrived.
    pub(super) const fn owes(&self) -> bool {
        self.received < self.granted
    }

    /// What the message counts among those half received: its length, and what its entry takes.
    pub(super) const fn claim(&self) -> usize {
        claim(self.len)
    }

    /// Puts a packet in its place.
    pub(super) fn place(&mut self, len: u32, offset: u32, payload: &[u8]) -> Placed {
        let end = offset + payload.len() as u32;
        let last = self.granted.div_ceil(self.mss).saturating_mul(self.mss).min(self.len);
        let whole_packet = payload.len() as u32 == self.mss.min(self.len - offset.min(self.len));
        if len != self.len || !offset.is_multiple_of(self.mss) || !whole_packet || end > last {
            return Placed::Misfit;
        }
        if offset < self.contig || self.is_here(offset / self.mss) {
            return Placed::Duplicate;
        }
        let have = self.bytes.len();
        if offset as usize >= have {
            self.reserve(end as usize);
            self.bytes.resize(offset as usize, 0);
            self.bytes.extend_from_slice(payload);
        } else {
            self.bytes[offset as usize..end as usize].copy_from_slice(payload);
        }
        self.received += payload.len() as u32;
        if offset == self.contig {
            self.contig = end;
            if !self.holes.is_empty() {
                self.close_gap();
            }
        } else {
            self.note(offset / self.mss);
        }
        if self.contig == self.len { Placed::Whole } else { Placed::New }
    }

    /// The packets missing before byte `end`, from the first missing one on.
    pub(super) fn missing(&self, end: u32) -> Missing {
        let mut missing = Missing { base: self.contig, ..Missing::default() };
        let first = self.contig / self.mss;
        let packets =
            end.min(self.len).saturating_sub(self.contig).div_ceil(self.mss).min(NACK_PACKETS);
        (0..packets).filter(|i| !self.is_here(first + i)).for_each(|i| missing.set(i));
        missing
    }

    /// The end of the last packet that arrived.
    pub(super) fn seen(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Packets that arrived behind the first hole.
    pub(super) fn packets_past_gap(&self) -> u32 {
        (self.received - self.contig) / self.mss
    }

    /// Room grows with what has arrived: at most twice that.
    fn reserve(&mut self, end: usize) {
        if end > self.bytes.capacity() {
            let wanted = (2 * end).min(self.len as usize);
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
    }

    fn is_here(&self, packet: u32) -> bool {
        self.holes.get((packet / 64) as usize).is_some_and(|w| w & 1 << (packet % 64) != 0)
    }

    #[cold]
    fn note(&mut self, packet: u32) {
        let word = (packet / 64) as usize;
        if word >= self.holes.len() {
            self.holes.resize(word + 1, 0);
        }
        self.holes[word] |= 1 << (packet % 64);
    }

    #[cold]
    fn close_gap(&mut self) {
        while self.contig < self.len && self.is_here(self.contig / self.mss) {
            self.contig = (self.contig + self.mss).min(self.len);
        }
        self.gap_since = None;
        if self.contig == self.received {
            self.holes.clear();
        }
    }
}

/// The longest buffer, in bytes, that a slot keeps for the message that uses it next.
pub(super) const BUFFER_MOST: usize = 512;

/// Messages of more packets than this count against the window of a path.
pub(super) const WINDOWED_PACKETS: u32 = 16;

/// What a slot is in use for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Nothing.
    Free,
    /// A client's request that waits for a channel.
    Queued,
    /// A client's request in progress.
    Call,
    /// A client's request that was refused, waiting for its next try.
    Backoff,
    /// A request coming in at the server.
    Recv,
    /// A reply at the server: going out, or kept.
    Reply,
}

/// See the file.
#[derive(Debug)]
pub(super) struct Slot {
    /// Its index (24 bits) and, above, how often it was used: the caller's name for a request.
    pub(super) id: u64,
    pub(super) out: Outgoing,
    pub(super) incoming: Option<Box<Incoming>>,
    /// The caller's number.
    pub(super) tag: u64,
    pub(super) deadline: Instant,
    /// When something last happened: packets sent or received.
    pub(super) progress: Instant,
    /// Client: when the wheel looks at this slot; [`Instant::NEVER`] if it does not. Outlives the use of the slot.
    pub(super) armed: Instant,
    /// The session's token, for the probe.
    pub(super) token: u64,
    /// Client: index of the session. Server: name of the session, generation included.
    pub(super) session: u32,
    pub(super) peer: u32,
    pub(super) seq: u32,
    /// Links of the list that the slot is in: the session's queue, or the kept replies.
    pub(super) next: u32,
    pub(super) prev: u32,
    pub(super) mss: u16,
    pub(super) role: Role,
    pub(super) channel: u8,
    /// Probes since the last sign of life; refusals in [`Role::Backoff`].
    pub(super) tries: u8,
    pub(super) refusals: u8,
    /// True while the peer's send queue has it.
    pub(super) ready: bool,
    /// Client: every byte of the request was once given to the driver under the present number, so that it may have been
    /// executed. Server: the client was asked for an acknowledgement.
    pub(super) exposed: bool,
    /// Client: the server said that it executes the request.
    pub(super) executing: bool,
    /// Server: in the list of kept replies.
    pub(super) kept: bool,
}

const ID_BITS: u32 = 24;
const ID_MASK: u64 = (1 << ID_BITS) - 1;

impl Slot {
    fn fresh(index: u32) -> Self {
        Self {
            id: u64::from(index),
            out: Outgoing::default(),
            incoming: None,
            tag: 0,
            deadline: Instant::NEVER,
            progress: Instant::ZERO,
            armed: Instant::NEVER,
            token: 0,
            session: NONE,
            peer: NONE,
            seq: 0,
            next: NONE,
            prev: NONE,
            mss: 0,
            role: Role::Free,
            channel: 0,
            tries: 0,
            refusals: 0,
            ready: false,
            exposed: false,
            executing: false,
            kept: false,
        }
    }

    /// True if the outgoing message is long enough to count against the path's window and to be acknowledged of itself.
    #[inline]
    pub(super) fn is_windowed(&self) -> bool {
        self.out.len > WINDOWED_PACKETS * u32::from(self.mss)
    }

    /// Bytes of it that count against the window.
    pub(super) fn window_bytes(&self) -> u32 {
        if self.is_windowed() { self.out.in_flight() } else { 0 }
    }

    /// The number under which both sides mark the points of this RPC.
    #[inline]
    pub(super) const fn trace(&self) -> u64 {
        super::trace_id(self.token, self.channel, self.seq)
    }
}

/// All slots.
#[derive(Debug)]
pub(super) struct Slots(Slab<Slot>);

impl Slots {
    pub(super) const fn new() -> Self {
        Self(Slab::new())
    }

    /// Numbers ever given out: all of them are below this.
    pub(super) const fn len(&self) -> u32 {
        self.0.len()
    }

    #[cfg(test)]
    pub(super) const fn used(&self) -> usize {
        self.0.used()
    }

    pub(super) fn get(&self, i: u32) -> Option<&Slot> {
        self.0.get(i)
    }

    /// A free slot with its role set, a new id, and nothing else reset; `None` when 2²⁴ are in use.
    #[inline]
    pub(super) fn alloc(&mut self, role: Role) -> Option<u32> {
        if self.0.used() as u64 > ID_MASK {
            return None;
        }
        let i = self.0.alloc(Slot::fresh);
        let slot = &mut self.0[i];
        slot.id += 1 << ID_BITS;
        slot.role = role;
        slot.tries = 0;
        slot.refusals = 0;
        slot.exposed = false;
        slot.executing = false;
        slot.deadline = Instant::NEVER;
        Some(i)
    }

    /// Gives a slot back. A slot whose ids are used up is never used again.
    #[inline]
    pub(super) fn free(&mut self, i: u32) {
        let slot = &mut self.0[i];
        debug_assert!(slot.role != Role::Free && !slot.ready && !slot.kept);
        slot.role = Role::Free;
        if slot.id >> ID_BITS < (1 << (64 - ID_BITS)) - 1 {
            self.0.free(i);
        }
    }

    /// The slot with this id, if it is still in use under it.
    pub(super) fn find(&self, id: u64) -> Option<u32> {
        let i = (id & ID_MASK) as u32;
        self.0.get(i).filter(|s| s.id == id && s.role != Role::Free).map(|_| i)
    }
}

impl Index<u32> for Slots {
    type Output = Slot;

    #[inline]
    fn index(&self, i: u32) -> &Slot {
        &self.0[i]
    }
}

impl IndexMut<u32> for Slots {
    #[inline]
    fn index_mut(&mut self, i: u32) -> &mut Slot {
        &mut self.0[i]
    }
}
