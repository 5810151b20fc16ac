//! The segments that were sent and are not acknowledged yet, and what is known of each: the
//! scoreboard of RFC 6675, with the times of RFC 8985.
//!
//! ```text
//!  SND.UNA ─┤ sacked │ lost │ in flight │ sacked │ in flight ├─ SND.NXT
//!             pipe = in flight
//! ```
//!
//! Always: the segments are in the order of their sequence numbers, follow each other without gaps,
//! and none is empty. A segment is lost or sacked, never both.

use alloc::collections::VecDeque;

use super::seq::Seq;
use super::spare::Kept;
use crate::Instant;

/// The most segments for which memory is kept while none is in flight.
const KEPT: usize = 8;

/// A segment that was sent and is not acknowledged yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sent {
    pub(super) seq: Seq,
    /// The number of sequence numbers that the segment takes: its bytes, and one for SYN or FIN.
    pub(super) len: u32,
    /// The time of the segment's last transmission.
    pub(super) at: Instant,
    /// True if the segment was sent more than once.
    pub(super) is_again: bool,
    /// True if the peer has reported the segment by SACK.
    pub(super) is_sacked: bool,
    /// True if the segment counts as lost, and was not sent again since.
    pub(super) is_lost: bool,
}

impl Sent {
    /// Returns a segment that is sent for the first time.
    pub(super) const fn new(seq: Seq, len: u32, at: Instant) -> Self {
        Self { seq, len, at, is_again: false, is_sacked: false, is_lost: false }
    }

    /// Returns the sequence number behind the segment.
    pub(super) fn end(&self) -> Seq {
        self.seq + self.len
    }
}

/// The memory of empty scoreboards.
pub(super) type SpareBoards = Kept<VecDeque<Sent>>;

/// The segments of a connection that were sent and are not acknowledged yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Scoreboard {
    sent: VecDeque<Sent>,
    /// The sequence numbers of all segments, of those that are sacked, and of those that are lost.
    total: u32,
    sacked: u32,
    lost: u32,
    /// The number of segments that are sacked, and of those that were sent more than once.
    sacked_segments: u32,
    again: u32,
    /// No segment before this one is lost.
    lost_from: Seq,
}

impl Scoreboard {
    /// Records a segment that was sent for the first time.
    pub(super) fn push(&mut self, segment: Sent) {
        debug_assert!(segment.len > 0);
        debug_assert!(self.sent.back().is_none_or(|last| last.end() == segment.seq));
        if self.sent.is_empty() {
            self.lost_from = segment.seq;
        }
        self.total += segment.len;
        self.sent.push_back(segment);
    }

    /// Gives the memory back, if it is not in use.
    pub(super) fn give_back(&mut self, spare: &mut SpareBoards) {
        if self.sent.is_empty() && self.sent.capacity() > 0 {
            let sent = core::mem::take(&mut self.sent);
            if sent.capacity() <= KEPT {
                spare.give(sent);
            }
        }
    }

    /// Takes memory, if there is none and some is spare.
    pub(super) fn take_spare(&mut self, spare: &mut SpareBoards) {
        if self.sent.capacity() == 0
            && let Some(sent) = spare.take()
        {
            self.sent = sent;
        }
    }

    /// Returns the number of segments for which there is memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.sent.capacity()
    }

    /// Returns true if everything that was sent is acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// Returns the segments that are not acknowledged, by sequence number.
    pub(super) const fn segments(&self) -> &VecDeque<Sent> {
        &self.sent
    }

    /// Returns the number of bytes that the network is believed to hold (pipe in RFC 6675).
    pub(super) const fn pipe(&self) -> u32 {
        self.total - self.sacked - self.lost
    }

    /// Returns the number of bytes that count as lost and were not sent again.
    pub(super) const fn lost(&self) -> u32 {
        self.lost
    }

    /// Returns the number of segments that the peer has reported by SACK.
    pub(super) const fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    /// Returns true if some segment was sent more than once.
    pub(super) const fn has_again(&self) -> bool {
        self.again > 0
    }

    /// Removes what the peer has acknowledged up to `una`, and calls `delivered` with each segment
    /// of it that it had not reported by SACK.
    pub(super) fn acknowledge(&mut self, una: Seq, mut delivered: impl FnMut(&Sent)) {
        while let Some(&first) = self.sent.front() {
            if una.reaches(first.end()) {
                self.sent.pop_front();
                self.forget(&first);
                if !first.is_sacked {
                    delivered(&first);
                }
                continue;
            }
            let part = una.since(first.seq);
            if part > 0 {
                // The peer, or something before it, has cut the segment.
                self.split(0, part);
                continue;
            }
            break;
        }
        self.lost_from = self.lost_from.max(una);
        if self.sent.is_empty() && self.sent.capacity() > KEPT {
            self.sent = VecDeque::new();
        }
    }

    /// Records that the peer has everything from `left` up to `right`, and calls `delivered` with
    /// each segment of which that is news. A segment of which the peer has a part does not count.
    pub(super) fn sack(&mut self, left: Seq, right: Seq, mut delivered: impl FnMut(&Sent)) {
        let first = self.sent.partition_point(|segment| segment.seq.is_before(left));
        for segment in self.sent.range_mut(first..) {
            if !right.reaches(segment.end()) {
                break;
            }
            if segment.is_sacked {
                continue;
            }
            if segment.is_lost {
                self.lost -= segment.len;
            }
            (segment.is_sacked, segment.is_lost) = (true, false);
            self.sacked += segment.len;
            self.sacked_segments += 1;
            delivered(segment);
        }
    }

    /// Declares lost each segment that `is_lost` picks among those in flight, up to the first for
    /// which it returns `None`. Returns the number of bytes.
    pub(super) fn declare(&mut self, mut is_lost: impl FnMut(&Sent) -> Option<bool>) -> u32 {
        let before = self.lost;
        for segment in self.sent.iter_mut().filter(|segment| !segment.is_sacked) {
            let Some(picked) = is_lost(segment) else { break };
            if picked && !segment.is_lost {
                segment.is_lost = true;
                self.lost += segment.len;
                self.lost_from = self.lost_from.min(segment.seq);
            }
        }
        self.lost - before
    }

    /// Forgets all SACKs: the peer may have dropped what it had reported (RFC 2018 section 8).
    pub(super) fn forget_sacks(&mut self) {
        self.sent.iter_mut().for_each(|segment| segment.is_sacked = false);
        (self.sacked, self.sacked_segments) = (0, 0);
    }

    /// Returns the first segment that is lost.
    pub(super) fn first_lost(&mut self) -> Option<Sent> {
        if self.lost == 0 {
            return None;
        }
        let from = self.sent.partition_point(|segment| segment.seq.is_before(self.lost_from));
        let found = self.sent.range(from..).find(|segment| segment.is_lost).copied();
        if let Some(segment) = found {
            self.lost_from = segment.seq;
        }
        found
    }

    /// Records that the segment at `seq` was sent again, at most its first `len` bytes: the rest is
    /// a segment of its own then. Returns false if no segment begins there.
    pub(super) fn sent_again(&mut self, seq: Seq, len: u32, now: Instant) -> bool {
        let index = self.sent.partition_point(|segment| segment.seq.is_before(seq));
        if self.sent.get(index).is_none_or(|segment| segment.seq != seq) {
            return false;
        }
        if len < self.sent[index].len {
            self.split(index, len);
        }
        let segment = &mut self.sent[index];
        if segment.is_lost {
            self.lost -= segment.len;
        }
        self.again += u32::from(!segment.is_again);
        (segment.at, segment.is_again, segment.is_lost) = (now, true, false);
        true
    }

    /// Cuts a segment in two after `len` bytes.
    fn split(&mut self, index: usize, len: u32) {
        let segment = &mut self.sent[index];
        let rest = Sent { seq: segment.seq + len, len: segment.len - len, ..*segment };
        segment.len = len;
        self.again += u32::from(rest.is_again);
        self.sacked_segments += u32::from(rest.is_sacked);
        self.sent.insert(index + 1, rest);
    }

    fn forget(&mut self, segment: &Sent) {
        self.total -= segment.len;
        self.again -= u32::from(segment.is_again);
        if segment.is_sacked {
            self.sacked -= segment.len;
            self.sacked_segments -= 1;
        }
        if segment.is_lost {
            self.lost -= segment.len;
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const START: Seq = Seq(u32::MAX - 25);

    fn board(lens: &[u32]) -> Scoreboard {
        let mut board = Scoreboard::default();
        let mut seq = START;
        for &len in lens {
            board.push(Sent::new(seq, len, Instant::ZERO));
            seq = seq + len;
        }
        board
    }

    #[test]
    fn segments_are_acknowledged_sacked_lost_and_sent_again() {
        let mut board = board(&[10; 5]);
        let mut seen = Vec::new();
        board.sack(START + 20, START + 30, |s| seen.push(s.seq));
        board.sack(START + 15, START + 45, |s| seen.push(s.seq));
        assert_eq!(seen, [START + 20, START + 30], "whole segments, once each");
        assert_eq!((board.pipe(), board.sacked_segments()), (30, 2));
        assert_eq!(board.declare(|s| Some(s.end().is_before(START + 30))), 20);
        assert_eq!((board.pipe(), board.lost()), (10, 20));
        assert_eq!(board.first_lost().map(|s| s.seq), Some(START));
        assert!(board.sent_again(START, 10, Instant::from_ns(5)));
        assert_eq!(board.first_lost().map(|s| s.seq), Some(START + 10));
        assert_eq!((board.pipe(), board.has_again()), (20, true));
        seen.clear();
        board.acknowledge(START + 45, |s| seen.push(s.seq));
        assert_eq!(seen, [START, START + 10, START + 40]);
        assert_eq!((board.pipe(), board.lost(), board.has_again()), (5, 0, false));
        assert_eq!((board.sacked_segments(), board.segments()[0].seq), (0, START + 45));
    }

    #[test]
    fn a_segment_that_became_too_long_is_sent_again_in_parts() {
        let mut board = board(&[30]);
        board.declare(|_| Some(true));
        assert!(board.sent_again(START, 10, Instant::from_ns(1)));
        let rest = board.first_lost().unwrap();
        assert_eq!((rest.seq, rest.len, board.pipe()), (START + 10, 20, 10));
        assert!(!board.sent_again(START + 5, 1, Instant::ZERO), "no segment begins there");
    }

    proptest! {
        /// The sums are those of the segments, whatever happens to them.
        #[test]
        fn sums_are_right(
            lens in proptest::collection::vec(1..50u32, 1..40),
            steps in proptest::collection::vec((0..5u8, 0..1500u32, 0..1500u32), 0..60),
        ) {
            let mut board = board(&lens);
            let mut delivered = 0;
            for (kind, a, b) in steps {
                let mut count = |s: &Sent| delivered += s.len;
                match kind {
                    0 => board.acknowledge(START + a / 20, &mut count),
                    1 => board.sack(START + a, START + b, &mut count),
                    2 => drop(board.declare(|s| Some(s.end().since(START) <= a))),
                    3 => if let Some(lost) = board.first_lost() {
                        prop_assert!(board.sent_again(lost.seq, 1 + b % lost.len, Instant::ZERO));
                    }
                    _ => if a < 50 {
                        delivered -= board.sent.iter().filter(|s| s.is_sacked)
                            .map(|s| s.len).sum::<u32>();
                        board.forget_sacks();
                    }
                }
                let sum = |of: fn(&Sent) -> bool| -> u32 {
                    board.sent.iter().filter(|s| of(s)).map(|s| s.len).sum()
                };
                let count = |of: fn(&Sent) -> bool| board.sent.iter().filter(|s| of(s)).count();
                prop_assert_eq!(board.pipe(), sum(|s| !s.is_sacked && !s.is_lost));
                prop_assert_eq!(board.lost(), sum(|s| s.is_lost));
                prop_assert_eq!(board.sacked_segments() as usize, count(|s| s.is_sacked));
                prop_assert_eq!(board.has_again(), count(|s| s.is_again) > 0);
                prop_assert_eq!(count(|s| s.is_lost && s.is_sacked), 0);
                let total: u32 = lens.iter().sum();
                prop_assert_eq!(delivered, total - sum(|s| !s.is_sacked));
                prop_assert_eq!(board.lost > 0, board.clone().first_lost().is_some());
            }
        }
    }
}
