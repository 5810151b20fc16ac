//! A queue of entries under growing keys. Callers look entries up by key, and take most of them
//! from near the front.
//!
//! Always holds: keys grow; the first place has an entry, unless the queue is empty; at most half
//! of the places and 64 more are empty, so that one entry that stays does not make the queue grow.

use alloc::collections::VecDeque;
use core::cmp::Ordering;

#[derive(Debug)]
pub(super) struct Ordered<K, T> {
    places: VecDeque<(K, Option<T>)>,
    len: usize,
}

impl<K, T> Default for Ordered<K, T> {
    fn default() -> Self {
        Self { places: VecDeque::new(), len: 0 }
    }
}

impl<K: Ord + Copy, T> Ordered<K, T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The key of the queue's first entry.
    pub(super) fn oldest(&self) -> Option<K> {
        self.places.front().map(|(key, _)| *key)
    }

    /// Adds an entry to the end of the queue; `key` exceeds all keys before.
    pub(super) fn push(&mut self, key: K, value: T) {
        debug_assert!(self.places.back().is_none_or(|(last, _)| *last < key), "keys grow");
        self.places.push_back((key, Some(value)));
        self.len += 1;
    }

    /// The key of the queue's entry for which `order` returns `Equal`. `order` compares a key with
    /// the one wanted, and agrees with the order of the keys.
    pub(super) fn find(&self, order: impl Fn(&K) -> Ordering) -> Option<K> {
        let (key, value) = &self.places[self.position(order)?];
        value.is_some().then_some(*key)
    }

    /// The queue's entry for whose key `order` returns `Equal`; see [`Ordered::find`].
    pub(super) fn get_mut(&mut self, order: impl Fn(&K) -> Ordering) -> Option<&mut T> {
        let i = self.position(order)?;
        self.places[i].1.as_mut()
    }

    /// Removes the queue's entry for whose key `order` returns `Equal`, and returns it with its
    /// key; see [`Ordered::find`].
    pub(super) fn take(&mut self, order: impl Fn(&K) -> Ordering) -> Option<(K, T)> {
        let i = self.position(order)?;
        let (key, value) = &mut self.places[i];
        let entry = (*key, value.take()?);
        self.len -= 1;
        self.drop_empty_front();
        if self.places.len() > 2 * self.len + 64 {
            self.places.retain(|(_, value)| value.is_some());
        }
        Some(entry)
    }

    /// The first entry of the queue.
    pub(super) fn front_mut(&mut self) -> Option<&mut T> {
        self.places.front_mut()?.1.as_mut()
    }

    /// Removes the first entry of the queue and returns it with its key.
    pub(super) fn pop_front(&mut self) -> Option<(K, T)> {
        let (key, value) = self.places.pop_front()?;
        self.len -= 1;
        self.drop_empty_front();
        Some((key, value?))
    }

    /// The queue's entries with their keys, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.places.iter().filter_map(|(key, value)| value.as_ref().map(|v| (*key, v)))
    }

    /// The queue's entries, oldest first.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|(_, value)| value.as_mut())
    }

    /// Removes all entries of the queue and returns them with their keys, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (K, T)> {
        self.len = 0;
        self.places.drain(..).filter_map(|(key, value)| value.map(|v| (key, v)))
    }

    fn drop_empty_front(&mut self) {
        while self.places.front().is_some_and(|(_, value)| value.is_none()) {
            self.places.pop_front();
        }
    }

    fn position(&self, order: impl Fn(&K) -> Ordering) -> Option<usize> {
        // Most lookups name the first entry.
        if order(&self.places.front()?.0) == Ordering::Equal {
            return Some(0);
        }
        self.places.binary_search_by(|(key, _)| order(key)).ok()
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;
    use core::cell::Cell;

    use super::Ordered;
    use crate::Rng;

    #[test]
    fn a_lookup_compares_a_logarithm_of_keys() {
        let mut queue = Ordered::default();
        (0..4096).for_each(|key| queue.push(key, ()));
        for key in 0..4096 {
            let compared = Cell::new(0);
            let order = |k: &u32| {
                compared.set(compared.get() + 1);
                k.cmp(&key)
            };
            assert!(queue.find(order).is_some() && compared.get() <= 15, "{compared:?}");
        }
    }

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
                assert_eq!(queue.get_mut(|k| k.cmp(&wanted)), map.get_mut(&wanted));
                let nearest = map.range(wanted..).next().map_or(key, |(k, _)| *k);
                let found = map.contains_key(&nearest).then_some(nearest);
                assert_eq!(queue.find(|k| k.cmp(&nearest)), found);
                assert_eq!(queue.take(|k| k.cmp(&nearest)), map.remove_entry(&nearest));
                assert_eq!(queue.take(|k| k.cmp(&nearest)), None);
                assert_eq!(queue.find(|k| k.cmp(&nearest)), None);
            }
            assert_eq!((queue.len(), queue.oldest()), (map.len(), Some(0)));
            assert!(queue.places.len() <= 2 * map.len() + 65, "{} places", queue.places.len());
        }
        assert!(queue.iter().map(|(k, v)| (k, *v)).eq(map.iter().map(|(k, v)| (*k, *v))));
        assert!(queue.values_mut().map(|v| *v).eq(map.values().copied()));
        assert_eq!(queue.front_mut().copied(), map.values().next().copied());
        assert_eq!(queue.pop_front(), map.pop_first());
        assert_eq!(queue.oldest(), map.keys().next().copied());
        assert_eq!(queue.drain().collect::<Vec<_>>(), map.into_iter().collect::<Vec<_>>());
        assert_eq!((queue.len(), queue.oldest()), (0, None));
    }
}
