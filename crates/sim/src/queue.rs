//! A queue of future events of a simulation, by time. Events at one time keep the order of their
//! insertion, so a simulation is deterministic.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use sprat_proto::Instant;

/// A queue of future events of a simulation, by time.
#[derive(Debug)]
pub struct Queue<T> {
    heap: BinaryHeap<Entry<T>>,
    seq: u64,
}

#[derive(Debug)]
struct Entry<T> {
    at: Instant,
    seq: u64,
    event: T,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), seq: 0 }
    }
}

impl<T> Queue<T> {
    /// Adds an event to the simulation's queue at the time `at`.
    pub fn push(&mut self, at: Instant, event: T) {
        self.seq += 1;
        self.heap.push(Entry { at, seq: self.seq, event });
    }

    /// Returns the time of the next event in the simulation's queue.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|e| e.at)
    }

    /// Removes the next event from the simulation's queue and returns it with its time.
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        self.heap.pop().map(|e| (e.at, e.event))
    }

    /// Returns the number of events in the simulation's queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns true if the simulation's queue has no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Removes from the simulation's queue the events for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.heap.retain(|e| keep(&e.event));
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
    /// Compares two entries of the queue by their times in reverse, because the heap returns the
    /// greatest entry first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_order_of_time_then_of_insertion() {
        let mut queue = Queue::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b'), (5, 'e')] {
            queue.push(Instant::from_ns(at), event);
        }
        assert_eq!(queue.next(), Some(Instant::from_ns(1)));
        let order: String = std::iter::from_fn(|| queue.pop().map(|(_, event)| event)).collect();
        assert_eq!(order, "abcde");
    }
}
