//! The sleep and wake handshake in every interleaving: two processors with store buffers (as x86
//! has them), the steps of `Producer::push` and of a consumer that goes to sleep, and a search of
//! all states for one in which a record waits and no step is left.

use std::collections::HashSet;

/// The means by which the sides of a ring order their publishing store before they read the other
/// side's flag.
#[derive(Clone, Copy)]
enum Order {
    /// No side orders its stores: the mistake that the search must find.
    None,
    /// The consumer's barrier empties the store buffers of both sides.
    Barrier,
    /// Each side executes its own fence between its store and its load.
    Fences,
    /// Only the consumer executes a fence, which is as wrong as no fence.
    ConsumerFence,
}

const RECORDS: u8 = 3;

/// A store that is still in one side's store buffer, where the other side cannot see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Store {
    Word(u8),
    Sleeping(bool),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct World {
    // Memory.
    word: u8,
    sleeping: bool,
    bells: u8,
    // The producer: records published, the step it is at, its store buffer.
    made: u8,
    producer_at: u8,
    producer_buffer: Vec<Store>,
    // The consumer: records read, the step it is at, its store buffer.
    read: u8,
    consumer_at: u8,
    consumer_buffer: Vec<Store>,
}

impl World {
    fn apply(&mut self, store: Store) {
        match store {
            Store::Word(n) => self.word = n,
            Store::Sleeping(up) => self.sleeping = up,
        }
    }

    fn empty_producer(&mut self) {
        for store in std::mem::take(&mut self.producer_buffer) {
            self.apply(store);
        }
    }

    fn empty_consumer(&mut self) {
        for store in std::mem::take(&mut self.consumer_buffer) {
            self.apply(store);
        }
    }

    /// Returns the states that one step of either side leads to.
    fn next(&self, order: Order) -> Vec<Self> {
        let mut worlds = Vec::new();
        for buffer in [0, 1] {
            let mut w = self.clone();
            let queue = if buffer == 0 { &mut w.producer_buffer } else { &mut w.consumer_buffer };
            if !queue.is_empty() {
                let store = queue.remove(0);
                w.apply(store);
                worlds.push(w);
            }
        }
        worlds.extend(self.producer_step(order));
        worlds.extend(self.consumer_step(order));
        worlds
    }

    fn producer_step(&self, order: Order) -> Option<Self> {
        let mut w = self.clone();
        match self.producer_at {
            0 if self.made < RECORDS => {
                w.made += 1;
                w.producer_buffer.push(Store::Word(w.made));
                w.producer_at = 1;
            }
            1 => {
                if matches!(order, Order::Fences) {
                    w.empty_producer();
                }
                w.producer_at = 2;
            }
            2 => w.producer_at = if self.sleeping { 3 } else { 0 },
            // The swap: atomic, and a fence.
            3 => {
                w.empty_producer();
                w.bells += u8::from(w.sleeping);
                w.sleeping = false;
                w.producer_at = 0;
            }
            _ => return None,
        }
        Some(w)
    }

    fn consumer_step(&self, order: Order) -> Option<Self> {
        let mut w = self.clone();
        match self.consumer_at {
            0 if self.word > self.read => w.read += 1,
            0 if self.read < RECORDS => {
                w.consumer_buffer.push(Store::Sleeping(true));
                w.consumer_at = 1;
            }
            1 => {
                match order {
                    Order::None => {}
                    Order::Barrier => {
                        w.empty_consumer();
                        w.empty_producer();
                    }
                    Order::Fences | Order::ConsumerFence => w.empty_consumer(),
                }
                w.consumer_at = 2;
            }
            2 => w.consumer_at = if self.word > self.read { 4 } else { 3 },
            3 if self.bells > 0 => {
                w.bells -= 1;
                w.consumer_at = 4;
            }
            4 => {
                w.consumer_buffer.push(Store::Sleeping(false));
                w.consumer_at = 0;
            }
            _ => return None,
        }
        Some(w)
    }
}

/// True if some order of steps ends with a record that is never read.
fn can_hang(order: Order) -> bool {
    let mut seen = HashSet::new();
    let mut open = vec![World::default()];
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        let next = world.next(order);
        if next.is_empty() && world.read < RECORDS {
            return true;
        }
        open.extend(next);
    }
    assert!(seen.len() > 100, "the search saw {} states only", seen.len());
    false
}

#[test]
fn no_wake_is_lost_with_the_barrier_or_with_fences() {
    assert!(!can_hang(Order::Barrier));
    assert!(!can_hang(Order::Fences));
}

#[test]
fn a_wake_is_lost_without_them() {
    assert!(can_hang(Order::None));
    assert!(can_hang(Order::ConsumerFence));
}
