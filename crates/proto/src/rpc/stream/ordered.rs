//! What waits under a growing number: a queue of entries that are mostly taken from near its front.
//!
//! Always holds: keys grow; the first entry is there unless there is none; of the places at most
//! half and a few are empty, so that one entry which stays for long does not make the queue grow.

use alloc::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Ordered<T> {
    places: VecDeque<(u64, Option<T>)>,
    len: usize,
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self { places: VecDeque::new(), len: 0 }
    }
}

impl<T> Ordered<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn oldest(&self) -> Option<u64> {
        self.places.front().map(|(key, _)| *key)
    }

    /// Adds an entry; `key` exceeds all keys before.
    pub(super) fn push(&mut self, key: u64, value: T) {
        debug_assert!(self.places.back().is_none_or(|(last, _)| *last < key), "keys grow");
        self.places.push_back((key, Some(value)));
        self.len += 1;
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let i = self.find(key)?;
        self.places[i].1.as_mut()
    }

    pub(super) fn take(&mut self, key: u64) -> Option<T> {
        let i = self.find(key)?;
        let value = self.places[i].1.take()?;
        self.len -= 1;
        while self.places.front().is_some_and(|(_, value)| value.is_none()) {
            self.places.pop_front();
        }
        if self.places.len() > 2 * self.len + 64 {
            self.places.retain(|(_, value)| value.is_some());
        }
        Some(value)
    }

    /// The entries, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places.iter().filter_map(|(key, value)| value.as_ref().map(|v| (*key, v)))
    }

    /// Takes all entries, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (u64, T)> {
        self.len = 0;
        self.places.drain(..).filter_map(|(key, value)| value.map(|v| (key, v)))
    }

    fn find(&self, key: u64) -> Option<usize> {
        // Mostly it is the first.
        if self.oldest() == Some(key) {
            return Some(0);
        }
        self.places.binary_search_by_key(&key, |(k, _)| *k).ok()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use super::Ordered;
    use crate::Rng;

    #[test]
    fn agrees_with_a_map_and_stays_small() {
        let mut rng = Rng::seeded(5);
        let (mut queue, mut map) = (Ordered::default(), BTreeMap::new());
        let mut key = 0;
        queue.push(0, 0);
        map.insert(0, 0);
        for step in 1..20_000_u64 {
            key += 1 + rng.below(3);
            queue.push(key, step);
            map.insert(key, step);
            // The first entry stays for good.
            while map.len() as u64 > 1 + rng.below(40) {
                let wanted = 1 + rng.below(key);
                assert_eq!(queue.get_mut(wanted), map.get_mut(&wanted));
                let nearest = map.range(wanted..).next().map_or(key, |(k, _)| *k);
                assert_eq!(queue.take(nearest), map.remove(&nearest));
                assert_eq!(queue.take(nearest), None);
            }
            assert_eq!((queue.len(), queue.oldest()), (map.len(), Some(0)));
            assert!(queue.places.len() <= 2 * map.len() + 65, "{} places", queue.places.len());
        }
        assert!(queue.iter().map(|(k, v)| (k, *v)).eq(map.iter().map(|(k, v)| (*k, *v))));
        assert_eq!(queue.drain().collect::<Vec<_>>(), map.into_iter().collect::<Vec<_>>());
        assert_eq!((queue.len(), queue.oldest()), (0, None));
    }
}
