//! The connections whose messages wait for room, by age and by length.
//!
//! Always holds: the three maps have the same connections; each operation takes a number of steps
//! that grows with the logarithm of their number, since a transport has up to 65,536 connections.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::Instant;

/// A connection whose message waits for room. `L` is the type of a length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter<L = usize> {
    pub(super) name: u32,
    pub(super) len: L,
    pub(super) since: Instant,
}

/// The connections whose messages wait for room, at most one message of each.
#[derive(Debug)]
pub(super) struct Waiting<L> {
    /// The connections by a number that grows with each message that begins to wait.
    by_age: BTreeMap<u64, Waiter<L>>,
    by_len: BTreeSet<(L, u64)>,
    ages: BTreeMap<u32, u64>,
    next_age: u64,
}

impl<L: Copy + Ord> Waiting<L> {
    pub(super) const fn new() -> Self {
        Self {
            by_age: BTreeMap::new(),
            by_len: BTreeSet::new(),
            ages: BTreeMap::new(),
            next_age: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_age.len()
    }

    /// Adds the connection `name`, whose message of length `len` waits from now on. It replaces an
    /// earlier message of that connection.
    pub(super) fn push(&mut self, name: u32, len: L, now: Instant) {
        self.remove(name);
        let age = self.next_age;
        self.next_age += 1;
        self.by_age.insert(age, Waiter { name, len, since: now });
        self.by_len.insert((len, age));
        self.ages.insert(name, age);
    }

    /// Removes the connection `name`, if its message waits.
    pub(super) fn remove(&mut self, name: u32) {
        if let Some(age) = self.ages.remove(&name)
            && let Some(waiter) = self.by_age.remove(&age)
        {
            self.by_len.remove(&(waiter.len, age));
        }
    }

    /// Returns the connection with the shortest message, of equal ones the oldest.
    pub(super) fn shortest(&self) -> Option<&Waiter<L>> {
        self.by_age.get(&self.by_len.first()?.1)
    }

    /// Returns the connections, the one that has waited longest first.
    pub(super) fn by_age(&self) -> impl Iterator<Item = &Waiter<L>> {
        self.by_age.values()
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::cmp::Ordering;

    use alloc::vec::Vec;

    use super::*;
    use crate::Rng;

    /// Random operations agree with a search of a list.
    #[test]
    fn the_shortest_and_the_oldest_agree_with_a_list() {
        let (mut rng, mut waiting, mut list) = (Rng::seeded(3), Waiting::new(), Vec::new());
        for _ in 0..10_000 {
            let (name, len) = (rng.below(30) as u32, rng.below(20));
            list.retain(|(other, _)| *other != name);
            if rng.chance(500_000) {
                waiting.push(name, len, Instant::ZERO);
                list.push((name, len));
            } else {
                waiting.remove(name);
            }
            let pair = |waiter: &Waiter<u64>| (waiter.name, waiter.len);
            assert!(waiting.by_age().map(pair).eq(list.iter().copied()));
            // `min_by_key` takes the first of equal ones, which is the oldest.
            let shortest = list.iter().copied().min_by_key(|(_, len)| *len);
            assert_eq!(waiting.shortest().map(pair), shortest);
            assert_eq!((waiting.len(), waiting.is_empty()), (list.len(), list.is_empty()));
        }
    }

    /// A length that counts how often it is compared.
    #[derive(Clone, Copy)]
    struct Counted<'c>(u64, &'c Cell<u64>);

    impl Ord for Counted<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            self.1.set(self.1.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.cmp(other) == Ordering::Equal
        }
    }

    impl Eq for Counted<'_> {}

    /// As many messages wait as a transport has connections. Each grant once compared the lengths
    /// of all of them: 2 billion steps until the last one had room.
    #[test]
    fn a_grant_among_65_536_takes_few_steps() {
        let (steps, mut rng, mut waiting) = (Cell::new(0), Rng::seeded(4), Waiting::new());
        let most = |steps: &Cell<u64>, what: &str| {
            assert!(steps.take() < 200, "{what} takes too many steps");
        };
        for name in 0..1 << 16 {
            waiting.push(name, Counted(rng.below(1000), &steps), Instant::ZERO);
            most(&steps, "a push");
        }
        while let Some(name) = waiting.shortest().map(|waiter| waiter.name) {
            waiting.remove(name);
            most(&steps, "a grant");
        }
        assert!(waiting.is_empty());
    }
}
