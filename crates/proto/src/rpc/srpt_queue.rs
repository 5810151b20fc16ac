//! Messages ordered by the bytes that they have left, for scheduling by shortest remaining
//! processing time (SRPT). Every 16th choice is the oldest message, so that none starves.
//!
//! Always: both indexes hold the same messages. Not here: what a message may send.

use alloc::collections::{BTreeMap, BTreeSet};

/// Every 16th choice of the queue is the oldest message.
const OLDEST_EVERY: u8 = 16;

/// A queue of slots by bytes left and by age. A ticket names an entry; larger tickets are younger.
#[derive(Debug, Default)]
pub(super) struct SrptQueue {
    /// The slot and the bytes left of each queued message, by ticket.
    by_age: BTreeMap<u64, (u32, u32)>,
    /// The bytes left and the ticket of each queued message, the fewest bytes first.
    by_remaining: BTreeSet<(u32, u64)>,
    choices: u8,
}

impl SrptQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    pub(super) fn insert(&mut self, ticket: u64, slot: u32, remaining: u32) {
        self.by_age.insert(ticket, (slot, remaining));
        self.by_remaining.insert((remaining, ticket));
    }

    /// Removes the entry of `ticket` from the queue of messages. Returns true if it was there.
    pub(super) fn remove(&mut self, ticket: u64) -> bool {
        let Some((_, remaining)) = self.by_age.remove(&ticket) else { return false };
        self.by_remaining.remove(&(remaining, ticket))
    }

    /// Records that the queued message of `ticket` has `remaining` bytes left.
    pub(super) fn set_remaining(&mut self, ticket: u64, remaining: u32) {
        let Some((_, entry)) = self.by_age.get_mut(&ticket) else { return };
        if *entry != remaining {
            self.by_remaining.remove(&(*entry, ticket));
            *entry = remaining;
            self.by_remaining.insert((remaining, ticket));
        }
    }

    /// The ticket and the slot of the queued message with the fewest bytes left.
    pub(super) fn shortest(&self) -> Option<(u64, u32)> {
        let (_, ticket) = self.by_remaining.first()?;
        self.by_age.get(ticket).map(|entry| (*ticket, entry.0))
    }

    /// The ticket and the slot of the oldest queued message.
    pub(super) fn oldest(&self) -> Option<(u64, u32)> {
        self.by_age.first_key_value().map(|(ticket, entry)| (*ticket, entry.0))
    }

    /// The slot of the queued message whose turn it is: the shortest, and every 16th time the
    /// oldest.
    pub(super) fn choose(&mut self) -> Option<u32> {
        self.choices = (self.choices + 1) % OLDEST_EVERY;
        let chosen = if self.choices == 0 { self.oldest() } else { self.shortest() };
        chosen.map(|(_, slot)| slot)
    }

    /// The slots of all queued messages, the oldest first.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.by_age.values().map(|entry| entry.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{OLDEST_EVERY, SrptQueue};

    #[test]
    fn the_shortest_is_chosen_and_the_oldest_every_sixteenth_time() {
        let mut queue = SrptQueue::default();
        assert_eq!((queue.shortest(), queue.oldest()), (None, None));
        for (ticket, slot, left) in [(1, 7, 300), (2, 8, 100), (3, 9, 200)] {
            queue.insert(ticket, slot, left);
        }
        let chosen = [0; OLDEST_EVERY as usize].map(|_| queue.choose());
        assert!(chosen[..15].iter().all(|slot| *slot == Some(8)) && chosen[15] == Some(7));
        queue.set_remaining(1, 50);
        assert_eq!(queue.choose(), Some(7));
        assert_eq!((queue.remove(1), queue.remove(1)), (true, false));
        assert_eq!((queue.choose(), queue.slots().collect()), (Some(8), alloc::vec![8, 9]));
    }
}
