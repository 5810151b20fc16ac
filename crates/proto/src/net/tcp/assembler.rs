//! The ranges of data that a connection has received ahead of a gap, and the SACK blocks that
//! report them (RFC 2018, RFC 2883).

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::seq::Seq;
use crate::wire::tcp::{MAX_SACK, SackBlocks};

/// The most ranges that are kept. Data that would make another one is dropped.
const MAX_RANGES: usize = 64;

/// A range of sequence numbers: from the first up to, and without, the second.
type Range = (Seq, Seq);

/// The ranges of received data behind the first gap. Most connections have none, so that it is
/// small then.
#[derive(Debug, Default)]
pub(super) struct Assembler(Option<Box<Ranges>>);

#[derive(Debug, Default)]
struct Ranges {
    /// The ranges, which neither overlap nor touch, the latest first: SACK reports them in this
    /// order.
    all: Vec<Range>,
    /// A range that was received twice, which the next acknowledgement reports (RFC 2883).
    duplicate: Option<Range>,
}

impl Assembler {
    /// Returns true if there is no data behind a gap, nor anything to report.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns true if there is data behind a gap.
    pub(super) fn has_gap(&self) -> bool {
        self.0.as_ref().is_some_and(|ranges| !ranges.all.is_empty())
    }

    /// Adds a range behind the first gap. Returns false if there are too many ranges and nothing
    /// was added.
    pub(super) fn add(&mut self, left: Seq, right: Seq) -> bool {
        let Ranges { all, duplicate } = &mut **self.0.get_or_insert_default();
        let known = |range: &Range| left.reaches(range.0) && range.1.reaches(right);
        if all.iter().any(known) {
            *duplicate = Some((left, right));
        }
        let touches = |range: &Range| range.1.reaches(left) && right.reaches(range.0);
        if all.len() >= MAX_RANGES && !all.iter().any(touches) {
            return false;
        }
        let mut merged = (left, right);
        all.retain(|range| {
            if touches(range) {
                merged = (merged.0.min(range.0), merged.1.max(range.1));
            }
            !touches(range)
        });
        all.insert(0, merged);
        true
    }

    /// Removes the range that begins at or before `next`, and returns its end: the data up to there
    /// has no gap any more.
    pub(super) fn advance(&mut self, next: Seq) -> Seq {
        let mut end = next;
        let Some(ranges) = &mut self.0 else { return end };
        ranges.all.retain(|range| {
            let is_reached = next.reaches(range.0);
            if is_reached {
                end = end.max(range.1);
            }
            !is_reached
        });
        self.free();
        end
    }

    /// Records that the peer sent a range again that had been received.
    pub(super) fn duplicate(&mut self, left: Seq, right: Seq) {
        self.0.get_or_insert_default().duplicate = Some((left, right));
    }

    /// Returns the blocks to report, and forgets the duplicate. A duplicate comes first, and if it
    /// lies behind a gap, the range around it comes next.
    pub(super) fn blocks(&mut self) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        let Some(Ranges { all, duplicate }) = self.0.as_deref_mut() else { return blocks };
        let mut push = |(left, right): Range| blocks.push((left.0, right.0));
        let around = duplicate.take().and_then(|duplicate| {
            push(duplicate);
            let contains = |r: &Range| duplicate.0.reaches(r.0) && r.1.reaches(duplicate.1);
            all.iter().copied().find(contains)
        });
        around.into_iter().for_each(&mut push);
        let rest = all.iter().copied().filter(|range| Some(*range) != around);
        rest.take(MAX_SACK).for_each(push);
        self.free();
        blocks
    }

    /// Frees the memory, if there is nothing in it.
    fn free(&mut self) {
        self.0.take_if(|ranges| ranges.all.is_empty() && ranges.duplicate.is_none());
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const S: Seq = Seq(u32::MAX - 3000);

    fn blocks(assembler: &mut Assembler) -> Vec<(u32, u32)> {
        let blocks = assembler.blocks();
        blocks.as_slice().iter().map(|&(a, b)| (Seq(a).since(S), Seq(b).since(S))).collect()
    }

    fn all(assembler: &Assembler) -> Vec<Range> {
        assembler.0.as_ref().map_or_else(Vec::new, |ranges| ranges.all.clone())
    }

    /// The example of RFC 2018 section 4, case 3: every second of eight segments is lost.
    #[test]
    fn the_latest_range_is_reported_first() {
        let mut a = Assembler::default();
        for left in [5500, 6500, 7500, 8500] {
            assert!(a.add(S + left, S + left + 500));
        }
        let wanted = [(8500, 9000), (7500, 8000), (6500, 7000), (5500, 6000)];
        assert_eq!(blocks(&mut a), wanted);
        a.add(S + 7000, S + 7500);
        assert_eq!(blocks(&mut a), [(6500, 8000), (8500, 9000), (5500, 6000)]);
        assert_eq!(a.advance(S + 5500), S + 6000);
        assert_eq!(blocks(&mut a), [(6500, 8000), (8500, 9000)]);
    }

    /// RFC 2883 section 4: a duplicate is the first block, once; one behind a gap is followed by
    /// its range.
    #[test]
    fn a_duplicate_is_reported_once_before_all_others() {
        let mut a = Assembler::default();
        a.duplicate(S + 10, S + 20);
        assert_eq!(blocks(&mut a), [(10, 20)]);
        assert!(a.is_empty() && blocks(&mut a).is_empty());
        a.add(S + 100, S + 200);
        a.add(S + 300, S + 400);
        a.add(S + 120, S + 150);
        assert_eq!(blocks(&mut a)[..2], [(120, 150), (100, 200)]);
        assert_eq!(blocks(&mut a), [(100, 200), (300, 400)]);
    }

    #[test]
    fn the_number_of_ranges_is_limited() {
        let mut a = Assembler::default();
        for n in 0..MAX_RANGES as u32 {
            assert!(a.add(S + 10 * n, S + 10 * n + 1));
        }
        assert!(!a.add(S + 5000, S + 5001) && all(&a).len() == MAX_RANGES);
        assert!(a.add(S + 11, S + 12), "it makes a range longer");
    }

    proptest! {
        /// The ranges are those of a set of bytes.
        #[test]
        fn ranges_are_a_set(adds in proptest::collection::vec((0..200u32, 1..30u32), 0..40)) {
            let (mut a, mut set, mut next) = (Assembler::default(), BTreeSet::new(), 0);
            for (left, len) in adds {
                let left = left.max(next + 1);
                a.add(S + left, S + left + len);
                set.extend(left..left + len);
                // Sometimes the gap is filled up to the left end.
                if len % 5 == 0 {
                    next = a.advance(S + left).since(S);
                    let mut end = left;
                    while set.contains(&end) {
                        end += 1;
                    }
                    prop_assert_eq!(next, end);
                    set.retain(|byte| *byte >= next);
                }
                let held: BTreeSet<u32> =
                    all(&a).iter().flat_map(|r| r.0.since(S)..r.1.since(S)).collect();
                prop_assert_eq!(&held, &set);
                let lens: u32 = all(&a).iter().map(|r| r.1.since(r.0)).sum();
                prop_assert_eq!(lens as usize, set.len());
            }
        }
    }
}
