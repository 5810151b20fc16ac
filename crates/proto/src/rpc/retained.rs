//! The replies that a server retains until their clients acknowledge them, and the replies that
//! wait to be sent.
//!
//! Always: a reply is in the list, or counted as unsent, while its slot has the role of a reply.

use super::config::Config;
use super::slab::NONE;
use super::slot::Slots;

/// The sent replies that a server retains, the oldest first, linked through their slots.
#[derive(Debug)]
pub(super) struct Retained {
    head: u32,
    tail: u32,
    count: u32,
    bytes: usize,
    /// The number of replies that are not wholly sent, and their bytes. The caller limits the bytes
    /// in slices.
    unsent: u32,
    unsent_bytes: usize,
}

impl Default for Retained {
    fn default() -> Self {
        Self { head: NONE, tail: NONE, count: 0, bytes: 0, unsent: 0, unsent_bytes: 0 }
    }
}

impl Retained {
    /// True if the server refuses requests because too many bytes of replies wait to be sent.
    #[inline]
    pub(super) const fn is_full(&self, max_bytes: usize) -> bool {
        self.unsent_bytes / 4 >= max_bytes
    }

    /// True if a reply waits to be sent.
    #[inline]
    pub(super) const fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// True if the retained replies nearly reach their limits.
    #[inline]
    pub(super) const fn is_near_limit(&self, config: &Config) -> bool {
        self.count > config.max_kept / 4 * 3 || self.bytes > config.max_kept_bytes / 4 * 3
    }

    /// True if the retained replies exceed their limits.
    pub(super) const fn exceeds_limit(&self, config: &Config) -> bool {
        self.count > config.max_kept || self.bytes > config.max_kept_bytes
    }

    /// The slot of the oldest retained reply.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Counts a reply that waits to be sent.
    pub(super) fn add_unsent(&mut self, bytes: usize) {
        self.unsent += 1;
        self.unsent_bytes += bytes;
    }

    /// Uncounts a reply that waited to be sent.
    pub(super) fn remove_unsent(&mut self, bytes: usize) {
        self.unsent -= 1;
        self.unsent_bytes -= bytes;
    }

    /// Adds a sent reply to the retained replies.
    #[inline]
    pub(super) fn add(&mut self, slots: &mut Slots, i: u32) {
        let slot = &mut slots[i];
        slot.retained = true;
        slot.prev = self.tail;
        slot.next = NONE;
        self.count += 1;
        self.bytes += slot.out.len as usize;
        if self.tail == NONE {
            self.head = i;
        } else {
            slots[self.tail].next = i;
        }
        self.tail = i;
    }

    /// Removes a reply from the retained or unsent replies.
    #[inline]
    pub(super) fn remove(&mut self, slots: &mut Slots, i: u32) {
        let slot = &mut slots[i];
        if !slot.retained {
            let bytes = slot.out.message.bytes.len();
            return self.remove_unsent(bytes);
        }
        slot.retained = false;
        let (prev, next) = (slot.prev, slot.next);
        self.count -= 1;
        self.bytes -= slot.out.len as usize;
        if prev == NONE {
            self.head = next;
        } else {
            slots[prev].next = next;
        }
        if next == NONE {
            self.tail = prev;
        } else {
            slots[next].prev = prev;
        }
    }
}
