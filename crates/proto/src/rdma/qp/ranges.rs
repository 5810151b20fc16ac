//! The received bytes of a message whose segments may arrive in any order.
//!
//! Invariant: while segments arrive in order, one number suffices. Bytes behind a hole are kept as
//! at most [`MOST`] ranges.

use alloc::vec::Vec;

/// The most byte ranges of a message behind holes. No honest peer leaves more.
const MOST: usize = 64;

/// The set of received byte ranges of a message.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    /// The offset up to which all bytes of the message have arrived.
    upto: u32,
    /// The received ranges behind a hole, in rising order; no two of them touch.
    apart: Vec<(u32, u32)>,
}

impl Ranges {
    /// Adds the bytes `from..to` to the received ranges. Returns false if there are too many holes.
    #[inline]
    pub(crate) fn add(&mut self, from: u32, to: u32) -> bool {
        if self.apart.is_empty() && from <= self.upto {
            self.upto = self.upto.max(to);
            return true;
        }
        self.add_apart(from, to)
    }

    #[cold]
    fn add_apart(&mut self, from: u32, to: u32) -> bool {
        if from <= self.upto {
            self.upto = self.upto.max(to);
        } else if from < to {
            let (mut from, mut to) = (from, to);
            let start = self.apart.partition_point(|&(_, end)| end < from);
            let end = self.apart.partition_point(|&(start, _)| start <= to);
            if let Some(&(first, _)) = self.apart[..end].get(start) {
                from = from.min(first);
                to = to.max(self.apart[end - 1].1);
            } else if self.apart.len() == MOST {
                return false;
            }
            self.apart.splice(start..end, [(from, to)]);
        }
        let reached = self.apart.partition_point(|&(start, _)| start <= self.upto);
        for (_, end) in self.apart.drain(..reached) {
            self.upto = self.upto.max(end);
        }
        true
    }

    /// True if the first `total` bytes of the message have arrived.
    #[inline]
    pub(crate) const fn complete(&self, total: u32) -> bool {
        self.upto >= total
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Ranges};
    use crate::Rng;

    /// The ranges of pieces added in any order are complete exactly when every byte was added.
    #[test]
    fn pieces_in_any_order() {
        let mut rng = Rng::seeded(7);
        for _ in 0..300 {
            let total = 1 + rng.below(200) as u32;
            let (mut ranges, mut there) = (Ranges::default(), [false; 200]);
            while !ranges.complete(total) {
                let from = rng.below(u64::from(total)) as u32;
                let to = from + rng.below(20).min(u64::from(total - from)) as u32;
                assert!(ranges.add(from, to));
                there[from as usize..to as usize].fill(true);
                let all = there[..total as usize].iter().all(|&t| t);
                assert_eq!(ranges.complete(total), all);
                let first = there.iter().position(|t| !t).unwrap_or(200);
                assert_eq!(ranges.upto as usize, first);
            }
        }
    }

    #[test]
    fn holes_are_limited() {
        let mut ranges = Ranges::default();
        for i in 1..=MOST as u32 {
            assert!(ranges.add(10 * i, 10 * i + 5));
        }
        assert!(!ranges.add(5, 6));
        assert!(ranges.add(0, 641), "filling holes is always possible");
        assert!(ranges.complete(645) && ranges.apart.is_empty());
    }
}
