//! Things that will happen, in the order in which they happen: by time, and at one time in the order in which they
//! were put in. Nothing else decides the order, so a world repeats itself exactly.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use sprat_proto::Instant;

/// A queue of `T` by time.
#[derive(Debug)]
pub struct Queue<T> {
    heap: BinaryHeap<Entry<T>>,
    seq: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Instant,
    seq: u64,
    what: T,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), seq: 0 }
    }
}

impl<T> Queue<T> {
    /// Puts `what` in, to happen at `at`.
    pub fn push(&mut self, at: Instant, what: T) {
        self.seq += 1;
        self.heap.push(Entry { at, seq: self.seq, what });
    }

    /// When the next thing happens.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|e| e.at)
    }

    /// Takes the next thing out.
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        self.heap.pop().map(|e| (e.at, e.what))
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Forgets those that `keep` refuses.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.heap.retain(|e| keep(&e.what));
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    /// Reversed, because the heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_of_time_then_of_insertion() {
        let mut queue = Queue::default();
        for (at, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b'), (5, 'e')] {
            queue.push(Instant::from_ns(at), what);
        }
        assert_eq!(queue.next(), Some(Instant::from_ns(1)));
        let order: String = std::iter::from_fn(|| queue.pop().map(|(_, what)| what)).collect();
        assert_eq!(order, "abcde");
    }
}
