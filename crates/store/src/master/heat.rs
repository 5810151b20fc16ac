//! A sample of the accesses to the objects of a master, and the range of a tablet that is as hot as
//! the coordinator wants it.
//!
//! ```text
//!  accesses ─► one in 64 on average ─► ring of the last 1,024: (table, key hash)
//!  HotRange ─► the samples in the tablets, sorted ─► windows of them ─► the nearest one
//! ```
//!
//! Invariants: an access costs a count and a comparison, and no memory is allocated for it. The
//! gaps between samples are random, so that no pattern of requests hides from them. All samples are
//! younger than the last tablet that came to the master: they tell of the tablets that it has. A
//! range never cuts a key: its ends lie between key hashes.

use alloc::vec::Vec;
use core::cmp::Ordering;

use sprat_proto::Rng;

use crate::message::migration::{Hot, WHOLE};
use crate::objects::tablet::{Tablet, Tablets};
use crate::types::{KeyHash, TableId};

/// The average number of accesses from one sample to the next. A sample takes some ten times the
/// instructions of the count, so that it adds little to 64 of them.
const EVERY: u64 = 64;
/// The most samples that the master keeps. A part of an eighth of them has an error of a tenth.
const MOST: usize = 1024;
/// The fewest samples in the master's tablets that tell anything about them.
pub(crate) const LEAST: usize = 128;

/// An access in the sample: the table and the key hash of its object.
type Sample = (TableId, KeyHash);

/// The sample of the accesses to a master's objects.
#[derive(Debug)]
pub(crate) struct Heat {
    /// The number of accesses at which the next one is put into the sample.
    pub(super) due: u64,
    rng: Rng,
    /// A ring whose oldest entry, once it is full, is at `oldest`.
    samples: Vec<Sample>,
    oldest: usize,
    /// The number of tablets that had come to the master before the first of the samples.
    arrivals: u64,
}

impl Heat {
    pub(super) fn new(rng: Rng) -> Self {
        Self { due: EVERY, rng, samples: Vec::with_capacity(MOST), oldest: 0, arrivals: 0 }
    }

    /// Puts an access into the sample, and draws the number of the next one. Forgets the samples
    /// from before the last tablet that came to the master.
    #[cold]
    pub(super) fn sample(&mut self, tablets: &Tablets, table: TableId, hash: KeyHash) {
        self.due += 1 + self.rng.below(2 * EVERY - 1);
        if self.arrivals != tablets.arrivals() {
            self.arrivals = tablets.arrivals();
            self.samples.clear();
            self.oldest = 0;
        }
        if self.samples.len() < MOST {
            self.samples.push((table, hash));
        } else {
            self.samples[self.oldest] = (table, hash);
            self.oldest = (self.oldest + 1) % MOST;
        }
    }

    /// Returns the range within one of `tablets` whose part of the samples is nearest to `wanted`
    /// of [`WHOLE`], or a range without any heat if the samples are too few.
    pub(crate) fn hottest(&self, tablets: &Tablets, wanted: u16) -> Hot {
        let is_young = self.arrivals == tablets.arrivals();
        let samples = if is_young { &self.samples[..] } else { &[] };
        hot_range(samples, tablets.iter(), wanted)
    }
}

/// Returns the range within one of `tablets`, which are sorted, whose part of the samples is
/// nearest to `wanted` of [`WHOLE`]. Of ranges that are as near as samples can tell, one that is
/// much narrower is better, for it has less to move, then one that leaves fewer tablets. The part
/// is 0 if fewer than [`LEAST`] of the samples are in the tablets.
pub(crate) fn hot_range(
    samples: &[Sample],
    tablets: impl Iterator<Item = Tablet>,
    wanted: u16,
) -> Hot {
    let mut samples = samples.to_vec();
    samples.sort_unstable();
    let (mut rest, mut hot) = (&samples[..], Vec::new());
    for tablet in tablets {
        let before = rest.iter().position(|&sample| side(sample, tablet) != Ordering::Less);
        rest = &rest[before.unwrap_or(rest.len())..];
        let within = rest.iter().position(|&sample| side(sample, tablet) != Ordering::Equal);
        let within = within.unwrap_or(rest.len());
        if within > 0 {
            hot.push((tablet, &rest[..within]));
        }
        rest = &rest[within..];
    }
    let all: usize = hot.iter().map(|(_, samples)| samples.len()).sum();
    if all < LEAST {
        return Hot::default();
    }
    let wanted = (all * usize::from(wanted) / usize::from(WHOLE)).max(1);
    let best = hot.into_iter().map(|(tablet, samples)| {
        let window = nearest(tablet, samples, wanted);
        (window.cost(tablet, wanted), tablet.table, window)
    });
    best.min_by_key(|(cost, ..)| *cost).map_or_else(Hot::default, |(_, table, window)| Hot {
        table,
        first: window.first,
        last: window.last,
        part: (window.count * usize::from(WHOLE) / all) as u16,
    })
}

/// Returns the side of a tablet on which a sample is.
fn side((table, hash): Sample, tablet: Tablet) -> Ordering {
    match (table, hash.0) {
        at if at < (tablet.table, tablet.first) => Ordering::Less,
        at if at > (tablet.table, tablet.last) => Ordering::Greater,
        _ => Ordering::Equal,
    }
}

/// A range of key hashes and the number of samples in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Window {
    first: u64,
    last: u64,
    count: usize,
}

impl Window {
    /// Returns a number of the window that is lower for a better one: its distance from the wanted
    /// count, the class of its width, the tablets that it makes, its width.
    fn cost(&self, tablet: Tablet, wanted: usize) -> (usize, u32, u8, u64) {
        // A count of samples has an error of its root. Smaller differences tell nothing.
        let error = wanted.isqrt();
        let width = self.last - self.first;
        // One class is sixteen times as wide as the one before.
        let class = width.checked_ilog2().map_or(0, |log| 1 + log / 4);
        let cuts = u8::from(self.first > tablet.first) + u8::from(self.last < tablet.last);
        (self.count.abs_diff(wanted) / error, class, cuts, width)
    }
}

/// Returns the best window of a tablet with these samples, which are sorted and at least one.
fn nearest(tablet: Tablet, samples: &[Sample], wanted: usize) -> Window {
    // A key's samples stay together.
    let keys = samples.chunk_by(|a, b| a.1 == b.1).map(|of_key| (of_key[0].1.0, of_key.len()));
    let keys: Vec<_> = keys.collect();
    let mut best = Window { first: tablet.first, last: tablet.last, count: samples.len() };
    let mut consider = |start: usize, end: usize, count: usize| {
        // At the ends of the tablet, the window with the hashes that have no samples as well.
        let firsts = [Some(keys[start].0), (start == 0).then_some(tablet.first)];
        let lasts = [Some(keys[end - 1].0), (end == keys.len()).then_some(tablet.last)];
        for first in firsts.into_iter().flatten() {
            for last in lasts.into_iter().flatten() {
                let window = Window { first, last, count };
                if window.cost(tablet, wanted) < best.cost(tablet, wanted) {
                    best = window;
                }
            }
        }
    };
    // From each key on, the shortest window that has enough, and the one before it.
    let (mut end, mut count) = (0, 0);
    for (start, &(_, of_key)) in keys.iter().enumerate() {
        while end < keys.len() && (count < wanted || end == start) {
            count += keys[end].1;
            end += 1;
        }
        consider(start, end, count);
        if end > start + 1 {
            consider(start, end - 1, count - keys[end - 1].1);
        }
        count -= of_key;
    }
    best
}

#[cfg(test)]
mod tests;
