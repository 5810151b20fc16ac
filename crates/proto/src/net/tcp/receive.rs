//! The receiving direction of a connection: the window, the data in order and behind gaps, and when
//! to acknowledge it.
//!
//! ```text
//!  read │ readable ── RCV.NXT │ gap │ ahead │ gap │ ahead … ── edge: RCV.NXT + RCV.WND
//! ```
//!
//! Always: the edge never moves back (RFC 9293 3.8.6.2.1).

use core::ops::Range;

use super::assembler::Assembler;
use super::ring::{Ring, SpareStorage};
use super::seq::Seq;
use crate::Instant;
use crate::time::SECOND;
use crate::wire::tcp::SackBlocks;

/// The seconds after which a timestamp of the peer is too old to compare (RFC 7323 5.5).
const TOO_OLD: u32 = 24 * 24 * 3600;
/// The number of full segments after which an acknowledgement is due (RFC 9293 MUST-59).
pub(super) const SEGMENTS: u8 = 2;
/// The bytes of the shortest data that counts as a full segment: the MSS that each peer takes.
const SHORT: u16 = 536;

/// The urgency of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) enum Due {
    /// The peer has an acknowledgement of everything.
    #[default]
    Nothing,
    /// An acknowledgement may wait for more data, or for the timer.
    Delayed,
    /// An acknowledgement may wait for a few more segments, or for a moment.
    Held,
    /// An acknowledgement is due now.
    Now,
}

/// The received data that a program uses where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Lends {
    /// All data is copied.
    #[default]
    Nothing,
    /// Data in order is lent to the program before it is copied.
    InOrder,
    /// Data in order is lent, and data behind a gap is shown to the program.
    All,
}

/// The receiving direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Receive {
    /// The peer's initial sequence number, and the next one that this end expects (IRS, RCV.NXT).
    initial: Seq,
    pub(super) next: Seq,
    /// The end of the window that the next segment tells the peer, and that the last one told.
    edge: Seq,
    told: Seq,
    /// The shift of this end's windows, and the size of its buffer, at most the largest
    /// window.
    shift: u8,
    capacity: u32,
    data: Ring,
    /// The data that the program uses where it lies, and the number of bytes that are lent now.
    pub(super) lends: Lends,
    lent: u32,
    /// The number of bytes at the beginning of `data` that were lent and not taken, while others
    /// behind them are lent still.
    kept: u32,
    ahead: Assembler,
    /// The sequence number of the peer's FIN, if it has arrived.
    fin: Option<Seq>,
    is_finished: bool,
    /// The peer's time to echo, and the second in which it came (TS.Recent).
    recent: (u32, u32),
    /// The acknowledgement number that was sent last (Last.ACK.sent).
    acknowledged: Seq,
    due: Due,
    /// The most data of a segment so far, and at least that of a short one.
    largest: u16,
    /// The segments behind a gap since the last acknowledgement: a peer without SACK counts the
    /// acknowledgements that answer to them (RFC 5681 4.2).
    unanswered: u8,
    /// True if a packet was marked on its way, and the peer has not answered to that yet (RFC 3168
    /// 6.1.3).
    is_marked: bool,
}

/// The effect of a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// The data is the next in order. The number of bytes that became readable.
    InOrder(usize),
    /// The data is the next in order, and lent: these bytes of the segment.
    Lent(usize, usize),
    /// The data is behind a gap. The number of bytes of the segment that were kept, from the first
    /// on: 0 if there was no place for them.
    Ahead(usize),
    /// There was no new data.
    Nothing,
}

impl Receive {
    /// Begins with the peer's SYN.
    pub(super) fn begin(&mut self, syn: Seq, capacity: u32, shift: u8) {
        let next = syn + 1;
        let capacity = capacity.min(u32::from(u16::MAX) << shift);
        let edge = next + capacity;
        *self = Self {
            lends: self.lends,
            initial: syn,
            next,
            edge,
            told: edge,
            shift,
            capacity,
            acknowledged: next,
            due: Due::Now,
            largest: SHORT,
            ..Self::default()
        };
    }

    /// Returns the number of bytes for which there is memory.
    #[cfg(test)]
    pub(super) const fn capacity(&self) -> usize {
        self.data.capacity()
    }

    /// Returns the number of bytes of the stream before a sequence number, modulo 2³².
    pub(super) const fn offset(&self, seq: u32) -> u32 {
        seq.wrapping_sub(self.initial.0).wrapping_sub(1)
    }

    pub(super) const fn initial(&self) -> Seq {
        self.initial
    }

    pub(super) const fn next(&self) -> Seq {
        self.next
    }

    /// Returns the shift of this end's windows.
    pub(super) const fn shift(&self) -> u8 {
        self.shift
    }

    /// Returns the size of the window that the peer knows (RCV.WND).
    pub(super) fn window(&self) -> u32 {
        self.edge.since(self.next)
    }

    /// Returns the value of the window field for a segment that is sent now.
    pub(super) fn window_field(&mut self) -> u16 {
        // Rounded down, the field would take back bytes that the peer knows of (RFC 7323 2.4).
        let units = self.window().div_ceil(1 << self.shift).min(u16::MAX.into());
        self.edge = self.edge.max(self.next + (units << self.shift));
        units as u16
    }

    pub(super) const fn readable(&self) -> usize {
        self.data.len()
    }

    pub(super) fn peek(&self, range: Range<usize>) -> (&[u8], &[u8]) {
        self.data.get(range)
    }

    /// Removes bytes that the program has read. If that opens the window by enough, an
    /// acknowledgement is due at once.
    pub(super) fn consume(&mut self, count: usize, mss: u32) {
        self.data.remove(count);
        if !self.ahead.has_gap() {
            self.data.free();
        }
        self.open_for_program(mss);
    }

    /// Gives back the memory that is kept for the next small message.
    pub(super) fn give_back(&mut self, spare: &mut SpareStorage) {
        if !self.ahead.has_gap() {
            self.data.give_back(spare);
        }
    }

    /// Takes spare memory for a small message.
    pub(super) fn take_spare(&mut self, spare: &mut SpareStorage) {
        self.data.take_spare(spare);
    }

    /// Returns the number of bytes that are lent.
    pub(super) const fn lent(&self) -> u32 {
        self.lent
    }

    /// Ends the lending of `count` bytes that the program has taken.
    pub(super) fn take_lent(&mut self, count: u32, mss: u32) {
        self.lent -= count;
        if self.lent == 0 {
            self.kept = 0;
        }
        self.open_for_program(mss);
    }

    /// Ends the lending of bytes that the program has not taken, and keeps them before all that
    /// arrived behind them.
    pub(super) fn keep_lent(&mut self, bytes: &[u8]) {
        let is_behind = self.data.len() > self.kept as usize || self.ahead.has_gap();
        let ahead = if is_behind { self.window() as usize } else { 0 };
        self.data.insert(self.kept as usize, bytes, ahead);
        self.lent -= bytes.len() as u32;
        self.kept = if self.lent == 0 { 0 } else { self.kept + bytes.len() as u32 };
    }

    fn open_for_program(&mut self, mss: u32) {
        self.open(mss);
        // An end that reads slowly would otherwise tell the peer of each byte. The peer sends
        // nothing into a window that is smaller than a segment.
        let (known, window) = (self.told.since(self.next), self.window());
        let half = self.capacity / 2;
        if window >= known.saturating_add(half)
            || known <= half && window > known && window / 2 >= known
        {
            self.due = Due::Now;
        }
    }

    /// Moves the edge of the window if that opens it by a segment or half of the buffer: silly
    /// window avoidance (RFC 9293 3.8.6.2.2).
    pub(super) fn open(&mut self, mss: u32) {
        let kept = self.data.len() + self.lent as usize;
        let free = (self.capacity as usize).saturating_sub(kept) as u32;
        // The window field has no room for a part of a unit.
        let free = free >> self.shift << self.shift;
        let gain = free.saturating_sub(self.window());
        if gain >= mss.min(self.capacity / 2) {
            self.edge = self.edge.max(self.next + free);
        }
    }

    /// Returns true if the peer has ended its direction, and everything before has arrived.
    pub(super) const fn is_finished(&self) -> bool {
        self.is_finished
    }

    // Segments.

    /// Returns true if a segment of `len` sequence numbers from `seq` on is in the window (RFC 9293
    /// table 6).
    pub(super) fn is_acceptable(&self, seq: Seq, len: u32) -> bool {
        let is_in = |seq: Seq| seq.reaches(self.next) && seq.is_before(self.edge);
        match (len, self.window()) {
            (0, 0) => seq == self.next,
            (0, _) => is_in(seq),
            (_, 0) => false,
            _ => is_in(seq) || is_in(seq + (len - 1)),
        }
    }

    /// Takes the data of a segment, and its FIN.
    pub(super) fn take(
        &mut self,
        seq: Seq,
        data: &[u8],
        has_fin: bool,
        mss: u32,
        ack_segments: u8,
    ) -> Taken {
        let end = seq + data.len() as u32;
        if has_fin {
            self.fin = self.fin.or_else(|| self.edge.reaches(end).then_some(end));
        }
        // What was received before, and what the window has no room for, does not count.
        let skip = self.next.since(seq).min(data.len() as u32);
        let over = end.since(self.edge).min(data.len() as u32 - skip);
        let new = &data[skip as usize..data.len() - over as usize];
        if skip > 0 {
            self.ahead.duplicate(seq, seq + skip);
        }
        let mut taken = self.place(seq + skip, new, mss, ack_segments);
        if let Taken::Lent(start, end) = &mut taken {
            (*start, *end) = (*start + skip as usize, *end + skip as usize);
        }
        if self.fin == Some(self.next) && !self.is_finished {
            self.is_finished = true;
            self.next = self.next + 1;
            self.edge = self.edge.max(self.next);
            self.due = Due::Now;
        } else if has_fin {
            self.due = Due::Now;
        }
        taken
    }

    fn place(&mut self, seq: Seq, new: &[u8], mss: u32, ack_segments: u8) -> Taken {
        if new.is_empty() || self.is_finished {
            // A duplicate is acknowledged at once (RFC 5681 4.2).
            self.due = Due::Now;
            return Taken::Nothing;
        }
        let end = seq + new.len() as u32;
        if self.next.is_before(seq) {
            self.due = Due::Now;
            self.unanswered = self.unanswered.saturating_add(1);
            if !self.ahead.add(seq, end) {
                return Taken::Ahead(0);
            }
            self.data.write_ahead(seq.since(self.next) as usize, new);
            return Taken::Ahead(new.len());
        }
        let had_gap = self.ahead.has_gap();
        // Bytes that wait to be read come before those that may be lent.
        let is_lent = self.lends != Lends::Nothing && !had_gap && self.data.len() == 0;
        let reached = if had_gap { self.ahead.advance(end) } else { end };
        let count = reached.since(self.next) as usize;
        if is_lent {
            self.lent += new.len() as u32;
        } else {
            self.data.write_ahead(0, new);
            self.data.extend(count);
        }
        self.next = reached;
        self.open(mss);
        let waiting = self.next.since(self.acknowledged);
        // RFC 5681 4.2: data that fills a gap is acknowledged at once.
        // RFC 9293 MUST-59 by the peer's segments, which may be shorter than this end's: a peer
        // whose window is two segments would wait for the timer.
        self.largest = self.largest.max(new.len().min(u16::MAX.into()) as u16);
        let has_two = waiting > self.largest.into() || waiting >= u32::from(SEGMENTS) * mss;
        let has_all = waiting >= u32::from(ack_segments) * mss;
        self.due = if had_gap || has_all || has_two && ack_segments <= SEGMENTS {
            Due::Now
        } else if has_two {
            self.due.max(Due::Held)
        } else {
            self.due.max(Due::Delayed)
        };
        if is_lent { Taken::Lent(0, count) } else { Taken::InOrder(count) }
    }

    // Acknowledgements.

    pub(super) const fn due(&self) -> Due {
        self.due
    }

    /// Makes an acknowledgement due now.
    pub(super) fn acknowledge_now(&mut self) {
        self.due = Due::Now;
    }

    /// Returns true if the next acknowledgement has SACK blocks.
    pub(super) fn has_blocks(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Returns the SACK blocks for an acknowledgement that is sent now.
    pub(super) fn blocks(&mut self) -> SackBlocks {
        self.ahead.blocks()
    }

    /// Records that the peer was sent an acknowledgement of everything.
    pub(super) fn acknowledge(&mut self) {
        self.due = Due::Nothing;
        self.acknowledged = self.next;
        self.told = self.edge;
        self.unanswered = 0;
    }

    /// Records that a peer without SACK was sent an acknowledgement that answers to one segment.
    /// More are due if more segments behind a gap have arrived.
    pub(super) fn acknowledge_one(&mut self) {
        let left = self.unanswered.saturating_sub(1);
        self.acknowledge();
        if left > 0 {
            (self.due, self.unanswered) = (Due::Now, left);
        }
    }

    /// Records that `len` sequence numbers from `seq` on came again, if all of them had come.
    pub(super) fn duplicate(&mut self, seq: Seq, len: u32) {
        if self.next.reaches(seq + len) {
            self.ahead.duplicate(seq, seq + len);
        }
    }

    // Timestamps (RFC 7323) and congestion marks (RFC 3168).

    /// Returns the time of the peer to echo.
    pub(super) const fn echoed(&self) -> u32 {
        self.recent.0
    }

    /// Echoes this time of the peer from now on.
    pub(super) fn echo(&mut self, now: Instant, value: u32) {
        self.recent = (value, second(now));
    }

    /// Echoes the time of a segment from `seq` on, if it is not older than the one before and the
    /// segment is not ahead of what was acknowledged (RFC 7323 4.3).
    pub(super) fn echo_segment(&mut self, now: Instant, value: u32, seq: Seq) {
        if value.wrapping_sub(self.recent.0) as i32 >= 0 && self.acknowledged.reaches(seq) {
            self.recent = (value, second(now));
        }
    }

    /// Returns true if a segment with this time is an old duplicate (PAWS, RFC 7323 5.3).
    pub(super) fn is_old(&self, now: Instant, value: u32) -> bool {
        (value.wrapping_sub(self.recent.0) as i32) < 0
            && second(now).wrapping_sub(self.recent.1) < TOO_OLD
    }

    /// Records whether a segment's packet was marked, and whether the peer has answered to an
    /// earlier mark.
    pub(super) fn mark(&mut self, is_marked: bool, is_answered: bool) {
        self.is_marked = is_marked || self.is_marked && !is_answered;
    }

    /// Records that a packet was marked after one that was not, or the other way around, and that
    /// what came before is acknowledged now (DCTCP.CE in RFC 8257 3.2).
    pub(super) fn mark_change(&mut self, is_marked: bool) {
        self.is_marked = is_marked;
        self.acknowledge();
        self.due = Due::Now;
    }

    /// Returns true if data was received that the peer has no acknowledgement of.
    pub(super) fn is_unacknowledged(&self) -> bool {
        self.acknowledged.is_before(self.next)
    }

    /// Returns the memory of the data and its ranges in bytes, as far as an idle end has some.
    #[cfg(test)]
    pub(super) fn kept_bytes(&self) -> usize {
        self.data.capacity() + if self.ahead.is_empty() { 0 } else { 64 }
    }

    pub(super) const fn is_marked(&self) -> bool {
        self.is_marked
    }
}

fn second(now: Instant) -> u32 {
    (now.as_ns() / SECOND) as u32
}
