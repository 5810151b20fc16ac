//! A message that an endpoint receives in several packets.
//!
//! ```text
//! 0 ······ contig ··(holes)·· bytes.len() ······ granted ······ len
//! ```
//!
//! Always: memory follows the bytes that arrived and the grants given, never the length that the
//! sender claims. Not here: when to grant more; see `shared::grants`.

use alloc::vec::Vec;

use super::body::Body;
use super::missing::Missing;
use crate::Instant;
use crate::wire::rpc::NACK_PACKETS;

/// The result of adding a packet to an incoming message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inserted {
    /// The packet was new; other packets of the message are still missing.
    New,
    /// The packet was new, and the message is complete.
    Complete,
    /// The message's packet had arrived before.
    Duplicate,
    /// The packet exceeds the grant, does not fit the packet grid, or claims another length.
    Misfit,
}

/// The number of arrived bytes up to which a message's buffer grows to twice their number.
const EARLY_BYTES: usize = 64 << 10;
/// The ratio of a message's buffer to the bytes that have arrived, once they are more than
/// [`EARLY_BYTES`]. Each growth may move all bytes, and steps of two moved those of a message of 1
/// MB more than once.
const LATER_GROWTH: usize = 16;

/// The number of bytes that an incomplete message counts besides its length. They exceed the memory
/// of its slot and its [`Incoming`], so the limit on bytes also limits the number of tiny messages.
const ENTRY: usize = 1 << 10;

/// The number of bytes that a message of `len` bytes counts against the limit while it is
/// incomplete.
pub(super) const fn claim(len: u32) -> usize {
    len as usize + ENTRY
}

/// The list in which the scheduler of grants has a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Scheduled {
    /// The scheduler of grants does not hold the message.
    #[default]
    No,
    /// The message is one of those that receive grants.
    Active,
    /// The message waits to receive grants, under this ticket.
    Waiting(u64),
    /// The message waits to receive grants, under this ticket, and its sender is stalled.
    Stalled(u64),
}

/// A message that an endpoint receives in several packets.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    pub(super) bytes: Vec<u8>,
    pub(super) len: u32,
    pub(super) mss: u32,
    /// The offset in the message before which every byte has arrived.
    pub(super) contig: u32,
    /// The number of the message's bytes that have arrived.
    pub(super) received: u32,
    pub(super) granted: u32,
    /// The time of the last grant to the sender, or of the message's first packet.
    pub(super) granted_at: Instant,
    /// The packets behind the message's first hole that have arrived, as a bitmap by number. Empty
    /// while there is no hole.
    holes: Vec<u64>,
    /// The time when the message's first hole appeared.
    pub(super) gap_since: Option<Instant>,
    pub(super) last_nack: Option<Instant>,
    /// The list in which [`Credit`](super::credit::Credit) has the message.
    pub(super) scheduled: Scheduled,
}

impl Incoming {
    /// Makes an incoming message of `len` bytes in packets of `mss`, of which the sender may send
    /// `granted` bytes now.
    pub(super) fn new(now: Instant, len: u32, mss: u32, granted: u32) -> Self {
        Self { len, mss, granted: granted.min(len), granted_at: now, ..Self::default() }
    }

    /// True if the message's sender may send bytes that have not arrived.
    pub(super) const fn owes(&self) -> bool {
        self.received < self.granted
    }

    /// The number of bytes that the message counts against the limit while it is incomplete.
    pub(super) const fn claim(&self) -> usize {
        claim(self.len)
    }

    /// Adds a packet's payload to the incoming message.
    pub(super) fn insert(&mut self, len: u32, offset: u32, payload: Body<'_>) -> Inserted {
        let end = offset + payload.len() as u32;
        let last = self.granted.div_ceil(self.mss).saturating_mul(self.mss).min(self.len);
        let whole_packet = payload.len() as u32 == self.mss.min(self.len - offset.min(self.len));
        if len != self.len || !offset.is_multiple_of(self.mss) || !whole_packet || end > last {
            return Inserted::Misfit;
        }
        if offset < self.contig || self.has_packet(offset / self.mss) {
            return Inserted::Duplicate;
        }
        let have = self.bytes.len();
        if offset as usize >= have {
            self.reserve(end as usize);
            self.bytes.resize(offset as usize, 0);
            payload.append_to(&mut self.bytes);
        } else {
            payload.copy_to(&mut self.bytes[offset as usize..end as usize]);
        }
        self.received += payload.len() as u32;
        if offset == self.contig {
            self.contig = end;
            if !self.holes.is_empty() {
                self.close_gap();
            }
        } else {
            self.record_behind_hole(offset / self.mss);
        }
        if self.contig == self.len { Inserted::Complete } else { Inserted::New }
    }

    /// The message's packets that are missing before byte `end`.
    pub(super) fn missing(&self, end: u32) -> Missing {
        let mut missing = Missing { base: self.contig, ..Missing::default() };
        let first = self.contig / self.mss;
        let packets =
            end.min(self.len).saturating_sub(self.contig).div_ceil(self.mss).min(NACK_PACKETS);
        (0..packets).filter(|i| !self.has_packet(first + i)).for_each(|i| missing.set(i));
        missing
    }

    /// The offset behind the last byte of the message that arrived.
    pub(super) fn seen(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// The number of the message's packets that have arrived behind the first hole.
    pub(super) fn packets_past_gap(&self) -> u32 {
        (self.received - self.contig) / self.mss
    }

    /// Grows the message's buffer to at most twice the bytes that have arrived, or to
    /// [`LATER_GROWTH`] times once they are more than [`EARLY_BYTES`].
    fn reserve(&mut self, end: usize) {
        if end > self.bytes.capacity() {
            let growth = if end > EARLY_BYTES { LATER_GROWTH } else { 2 };
            let wanted = (growth * end).min(self.len as usize);
            self.bytes.reserve_exact(wanted - self.bytes.len());
        }
    }

    fn has_packet(&self, packet: u32) -> bool {
        self.holes.get((packet / 64) as usize).is_some_and(|w| w & 1 << (packet % 64) != 0)
    }

    #[cold]
    fn record_behind_hole(&mut self, packet: u32) {
        let word = (packet / 64) as usize;
        if word >= self.holes.len() {
            self.holes.resize(word + 1, 0);
        }
        self.holes[word] |= 1 << (packet % 64);
    }

    #[cold]
    fn close_gap(&mut self) {
        while self.contig < self.len && self.has_packet(self.contig / self.mss) {
            self.contig = (self.contig + self.mss).min(self.len);
        }
        self.gap_since = None;
        if self.contig == self.received {
            self.holes.clear();
        }
    }
}
