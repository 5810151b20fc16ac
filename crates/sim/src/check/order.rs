//! The order of the changes of one object, and what it says about the order of transactions.
//!
//! ```text
//! absent   version 3   after 3   version 7   version 9
//!    ·────────W1─────────D2─────────W3──────────W4──────►
//!   gap 0                   gap 1
//! ```
//!
//! A transaction that saw version 3 comes after `W1` and before `D2`. A transaction that saw no
//! object happened in one of the gaps: at the beginning, or after a removal. If it may have been in
//! several of them, it comes only after the change before the first and before the change after the
//! last one.
//!
//! Always: each link holds in every serial order that explains the observations, for changes that
//! are not known (of transactions without an answer) only come in between.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The times at which a transaction began and ended; the end is [`u64::MAX`] without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The time at which the transaction began.
    pub begin: u64,
    /// The time at which the transaction's answer came.
    pub end: u64,
}

/// The place of a change in the order of the changes of an object.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Place {
    version: u64,
    /// True for the change that follows the version: a removal, or a write whose own version is not
    /// known.
    after: bool,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = if self.after { "the change after " } else { "" };
        write!(f, "{before}version {}", self.version)
    }
}

/// A reason for which one transaction comes before another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Link {
    /// The first transaction made a change, and the second one made a later change.
    Ww(Place, Place),
    /// The first transaction made a change that the second one saw.
    Wr(Place),
    /// The first transaction saw this version, or no object, before the second one made a change,
    /// whose place may be unknown.
    Rw(Option<u64>, Option<Place>),
}

/// The changes and the observations of one object.
#[derive(Clone, Debug)]
pub(super) struct Order {
    changes: BTreeMap<Place, Vec<usize>>,
    /// The versions that a committed transaction removed.
    removed: BTreeSet<u64>,
    /// The versions that a transaction without an answer removed, if it committed.
    perhaps_removed: BTreeSet<u64>,
    /// The first time after which a removal of an unknown version may have happened.
    removed_after: u64,
    /// The committed transactions that wrote the object at an unknown place.
    unplaced: Vec<usize>,
    readers: BTreeMap<u64, Vec<usize>>,
    absent: Vec<usize>,
}

/// A part of an object's order in which the object does not exist.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// The position of the last change before the gap.
    lower: Option<usize>,
    /// The position of the first change after the gap.
    upper: usize,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            changes: BTreeMap::new(),
            removed: BTreeSet::new(),
            perhaps_removed: BTreeSet::new(),
            removed_after: u64::MAX,
            unplaced: Vec::new(),
            readers: BTreeMap::new(),
            absent: Vec::new(),
        }
    }
}

impl Order {
    /// Records that a transaction wrote this version of the object.
    pub(super) fn write(&mut self, version: u64, number: usize) {
        self.changes.entry(Place { version, after: false }).or_default().push(number);
    }

    /// Records that a transaction, which saw this version of the object, wrote the next one, and
    /// that the number of the next version is unknown.
    pub(super) fn write_after(&mut self, version: u64, number: usize) {
        self.changes.entry(Place { version, after: true }).or_default().push(number);
        self.read(version, number);
    }

    /// Records that a committed transaction wrote the object, and that neither the new version nor
    /// the one before is known.
    pub(super) fn write_unknown(&mut self, number: usize) {
        self.unplaced.push(number);
    }

    /// Records that a transaction removed this version of the object.
    pub(super) fn remove(&mut self, version: u64, number: usize) {
        self.write_after(version, number);
        self.removed.insert(version);
    }

    /// Records that this version of the object was removed if a transaction committed of which that
    /// is unknown.
    pub(super) fn perhaps_remove(&mut self, version: u64) {
        self.perhaps_removed.insert(version);
    }

    /// Records that a transaction that began at `begin` may have removed the object at any time.
    pub(super) fn remove_unknown(&mut self, begin: u64) {
        self.removed_after = self.removed_after.min(begin);
    }

    /// Records that a transaction saw this version of the object.
    pub(super) fn read(&mut self, version: u64, number: usize) {
        self.readers.entry(version).or_default().push(number);
    }

    /// Records that a transaction saw that the object does not exist.
    pub(super) fn absent(&mut self, number: usize) {
        self.absent.push(number);
    }

    /// Calls `link` with all pairs of transactions that the order of the object determines. With
    /// `real_time`, the times of the transactions narrow the places at which an observation that
    /// the object does not exist, or a write of an unknown version, may have happened.
    pub(super) fn links(
        &self,
        spans: &[Span],
        real_time: bool,
        mut link: impl FnMut(usize, usize, Link),
    ) {
        let changes = self.changes.iter();
        let chain: Vec<(Place, usize)> =
            changes.flat_map(|(place, numbers)| numbers.iter().map(|n| (*place, *n))).collect();
        for pair in chain.windows(2) {
            link(pair[0].1, pair[1].1, Link::Ww(pair[0].0, pair[1].0));
        }
        for (&version, readers) in &self.readers {
            let place = Place { version, after: false };
            let next = chain.get(position_after(&chain, place));
            for &number in readers {
                for &writer in self.changes.get(&place).into_iter().flatten() {
                    link(writer, number, Link::Wr(place));
                }
                if let Some(next) = next {
                    link(number, next.1, Link::Rw(Some(version), Some(next.0)));
                }
            }
        }
        // The first end of all changes from a position on.
        let mut ends = vec![u64::MAX; chain.len() + 1];
        for (i, change) in chain.iter().enumerate().rev() {
            ends[i] = ends[i + 1].min(spans[change.1].end);
        }
        if real_time {
            self.unplaced_links(&chain, &ends, spans, &mut link);
        }
        if !self.absent.is_empty() {
            self.absent_links(&chain, &ends, spans, real_time, link);
        }
    }

    /// Calls `link` for the writes at unknown places. Each comes after the changes that ended
    /// before it began, and so after all transactions that saw the last of these.
    fn unplaced_links(
        &self,
        chain: &[(Place, usize)],
        ends: &[u64],
        spans: &[Span],
        link: &mut impl FnMut(usize, usize, Link),
    ) {
        for &number in &self.unplaced {
            let past = ends.partition_point(|end| *end < spans[number].begin);
            let Some((place, _)) = chain[..past].last().filter(|(place, _)| !place.after) else {
                continue;
            };
            for &reader in self.readers.get(&place.version).into_iter().flatten() {
                link(reader, number, Link::Rw(Some(place.version), None));
            }
        }
    }

    /// Calls `link` for the transactions that saw that the object does not exist.
    fn absent_links(
        &self,
        chain: &[(Place, usize)],
        ends: &[u64],
        spans: &[Span],
        real_time: bool,
        mut link: impl FnMut(usize, usize, Link),
    ) {
        let gaps = self.gaps(chain);
        let positions: BTreeMap<usize, usize> = (0..).zip(chain).map(|(i, c)| (c.1, i)).collect();
        // The last begin of all changes up to a position.
        let mut last = 0;
        let begins: Vec<u64> = chain
            .iter()
            .map(|change| {
                last = spans[change.1].begin.max(last);
                last
            })
            .collect();
        for &number in &self.absent {
            let Span { begin, end } = spans[number];
            if self.removed_after < end {
                continue;
            }
            if let Some(&own) = positions.get(&number) {
                // The observation comes directly before the transaction's own change.
                let gap = gaps[..gaps.partition_point(|gap| gap.upper <= own)].last();
                if let Some(next) = gap.and_then(|gap| chain.get(gap.upper)) {
                    link(number, next.1, Link::Rw(None, Some(next.0)));
                }
                continue;
            }
            let (mut first, mut past) = (0, gaps.len());
            if real_time {
                first = gaps.partition_point(|gap| ends[gap.upper] < begin);
                past = gaps.partition_point(|gap| gap.lower.is_none_or(|i| begins[i] < end));
            }
            if let Some(before) = gaps.get(first).and_then(|gap| gap.lower) {
                link(chain[before].1, number, Link::Wr(chain[before].0));
            }
            let upper = gaps[..past].last().and_then(|gap| chain.get(gap.upper));
            if let Some(next) = upper {
                link(number, next.1, Link::Rw(None, Some(next.0)));
            }
            if gaps.len() == 1 {
                // Without a removal, the transaction comes before every write.
                self.unplaced.iter().for_each(|&next| link(number, next, Link::Rw(None, None)));
            }
        }
    }

    /// Returns the gaps of the chain of changes, in its order.
    fn gaps(&self, chain: &[(Place, usize)]) -> Vec<Gap> {
        let mut gaps = vec![Gap { lower: None, upper: 0 }];
        for (i, (place, _)) in chain.iter().enumerate() {
            if place.after && self.removed.contains(&place.version) {
                gaps.push(Gap { lower: Some(i), upper: i + 1 });
            }
        }
        for &version in &self.perhaps_removed {
            let upper = position_after(chain, Place { version, after: false });
            let other = chain.get(upper).is_some_and(|(place, _)| place.version == version);
            if !other {
                gaps.push(Gap { lower: upper.checked_sub(1), upper });
            }
        }
        gaps.sort_by_key(|gap| gap.upper);
        gaps
    }
}

/// Returns the position of the first change of the chain that comes after `place`.
fn position_after(chain: &[(Place, usize)], place: Place) -> usize {
    chain.partition_point(|(other, _)| *other <= place)
}
