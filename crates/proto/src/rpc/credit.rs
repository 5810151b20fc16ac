//! The scheduler of grants: the long messages that wait for grants.
//!
//! Always: a message is in one of the three places at most, and its [`Scheduled`] says in which.
//! Not here: how much a message is granted; see `shared::grants`.

use arrayvec::ArrayVec;

use super::incoming::Scheduled;
use super::srpt_queue::SrptQueue;

/// The maximum of messages that receive grants at a time.
pub(super) const ACTIVE: usize = 8;
/// Every 16th choice of a message to grant is the oldest message.
const OLDEST_EVERY: u8 = 16;

/// The scheduler of grants for long messages.
#[derive(Debug, Default)]
pub(super) struct Credit {
    /// The slots of the messages that receive grants now.
    pub(super) active: ArrayVec<u32, ACTIVE>,
    waiting: SrptQueue,
    /// The incoming messages whose sender makes no progress. They are chosen for grants after all
    /// others.
    stalled: SrptQueue,
    next_ticket: u64,
    choices: u8,
    /// True if there may be credit to grant.
    dirty: bool,
}

impl Credit {
    /// True if there may be credit to grant.
    #[inline]
    pub(super) const fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// Records that there may be credit to grant.
    pub(super) const fn mark_dirty(&mut self) {
        self.dirty = true;
    }

    /// Records that all credit was granted that can be granted now.
    pub(super) const fn clear_dirty(&mut self) {
        self.dirty = false;
    }

    /// True if messages wait to be among those that receive grants.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.stalled.is_empty()
    }

    /// Adds an incoming message that lacks `missing` bytes to those that wait for grants.
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

    /// Records the progress of an incoming message that waits for grants; returns the list that it
    /// waits in.
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

    /// Removes an incoming message from the scheduler of grants.
    pub(super) fn remove(&mut self, i: u32, place: Scheduled) {
        match place {
            Scheduled::No => return,
            Scheduled::Active => self.active.retain(|other| *other != i),
            Scheduled::Waiting(ticket) => _ = self.waiting.remove(ticket),
            Scheduled::Stalled(ticket) => _ = self.stalled.remove(ticket),
        }
        self.dirty = true;
    }

    /// The next message to receive grants, while fewer than eight do: the shortest that is not
    /// stalled, and every 16th time the oldest of all. The message stays in its list.
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

    /// Takes back the last choice of a message to grant, because its sender was found to be
    /// stalled.
    pub(super) const fn undo_choice(&mut self) {
        self.choices = (self.choices + OLDEST_EVERY - 1) % OLDEST_EVERY;
    }
}
