//! The long messages that wait for grants.
//!
//! Always: a message is in one of the three places at most, and its [`Scheduled`] says in which.
//! Not here: how much a message is granted; see `shared::grants`.

use arrayvec::ArrayVec;

use super::incoming::Scheduled;
use super::srpt_queue::SrptQueue;

/// Messages that are granted at a time.
pub(super) const ACTIVE: usize = 8;
/// Every 16th choice is the oldest message.
const OLDEST_EVERY: u8 = 16;

/// The scheduler of grants.
#[derive(Debug, Default)]
pub(super) struct Credit {
    /// Slots of the messages that are being granted.
    pub(super) active: ArrayVec<u32, ACTIVE>,
    waiting: SrptQueue,
    /// Messages whose sender makes no progress. They are chosen after all others.
    stalled: SrptQueue,
    next_ticket: u64,
    choices: u8,
    /// There may be something to grant.
    dirty: bool,
}

impl Credit {
    /// True if there may be something to grant.
    #[inline]
    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Records that there may be something to grant.
    pub(super) const fn mark_dirty(&mut self) {
        self.dirty = true;
    }

    /// Records that everything was granted that can be granted now.
    pub(super) const fn clear_dirty(&mut self) {
        self.dirty = false;
    }

    /// True if messages wait for a place.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.stalled.is_empty()
    }

    /// Adds a message that lacks `missing` bytes.
    pub(super) fn insert(&mut self, i: u32, missing: u32, is_stalled: bool) -> Scheduled {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.insert_at(ticket, i, missing, is_stalled)
    }

    fn insert_at(&mut self, ticket: u64, i: u32, missing: u32, is_stalled: bool) -> Scheduled {
        self.dirty = true;
        if is_stalled {
            self.stalled.insert(ticket, i, missing);
            return Scheduled::Stalled(ticket);
        }
        self.waiting.insert(ticket, i, missing);
        Scheduled::Waiting(ticket)
    }

    /// Records the progress of a waiting message; returns its place.
    pub(super) fn update(
        &mut self,
        i: u32,
        place: Scheduled,
        missing: u32,
        is_stalled: bool,
    ) -> Scheduled {
        match place {
            Scheduled::Waiting(ticket) if !is_stalled => {
                self.waiting.set_remaining(ticket, missing);
                place
            }
            Scheduled::Waiting(ticket) | Scheduled::Stalled(ticket) => {
                self.remove(i, place);
                self.insert_at(ticket, i, missing, is_stalled)
            }
            Scheduled::No | Scheduled::Active => place,
        }
    }

    /// Removes a message.
    pub(super) fn remove(&mut self, i: u32, place: Scheduled) {
        match place {
            Scheduled::No => return,
            Scheduled::Active => self.active.retain(|other| *other != i),
            Scheduled::Waiting(ticket) => _ = self.waiting.remove(ticket),
            Scheduled::Stalled(ticket) => _ = self.stalled.remove(ticket),
        }
        self.dirty = true;
    }

    /// The message that gets the next place, while there is a free one: the shortest that is not
    /// stalled, and every 16th time the oldest of all. It stays where it is.
    pub(super) fn choose(&mut self) -> Option<u32> {
        if self.active.is_full() || !self.has_waiting() {
            return None;
        }
        self.choices = (self.choices + 1) % OLDEST_EVERY;
        let chosen = if self.choices == 0 {
            [self.waiting.oldest(), self.stalled.oldest()].into_iter().flatten().min()
        } else {
            self.waiting.shortest().or_else(|| self.stalled.shortest())
        };
        chosen.map(|(_, slot)| slot)
    }

    /// Chooses anew, because the last choice was found to be stalled.
    pub(super) const fn undo_choice(&mut self) {
        self.choices = (self.choices + OLDEST_EVERY - 1) % OLDEST_EVERY;
    }
}
