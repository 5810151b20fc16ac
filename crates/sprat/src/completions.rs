//! Operations of a client, from their start until the program has their outcome.
//!
//! Each operation has an entry. An entry is free, in progress, or holds an outcome. An [`EntryId`]
//! names an entry and its generation, so that a stale one finds nothing.

use std::collections::VecDeque;
use std::mem;

/// An entry and its generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct EntryId {
    index: u32,
    generation: u32,
}

impl EntryId {
    /// The tag that a request of this entry carries.
    #[inline]
    pub(crate) fn tag(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The entry of a tag.
    #[inline]
    pub(crate) fn of_tag(tag: u64) -> Self {
        Self { index: tag as u32, generation: (tag >> 32) as u32 }
    }
}

/// Where an outcome goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// It stays in the entry until the program asks for it.
    Held,
    /// [`Completions::next`] returns it.
    Queued,
    /// It is dropped.
    Discarded,
}

#[derive(Debug)]
enum State<R, T> {
    Free,
    InProgress(R),
    Ended(T),
}

#[derive(Debug)]
struct Entry<R, T> {
    generation: u32,
    delivery: Delivery,
    state: State<R, T>,
}

/// Operations with outcome `T`; `R` is kept with an operation in progress.
#[derive(Debug)]
pub(crate) struct Completions<R, T> {
    entries: Vec<Entry<R, T>>,
    free: Vec<u32>,
    /// Entries with an outcome for [`Completions::next`], the oldest first. An entry whose outcome
    /// the program took otherwise may still stand here, with an old generation.
    ended: VecDeque<EntryId>,
}

impl<R, T> Default for Completions<R, T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), ended: VecDeque::new() }
    }
}

impl<R, T> Completions<R, T> {
    /// Makes an entry for an operation in progress.
    #[inline]
    pub(crate) fn begin(&mut self, request: R, delivery: Delivery) -> EntryId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, delivery, state: State::Free });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        (entry.delivery, entry.state) = (delivery, State::InProgress(request));
        EntryId { index, generation: entry.generation }
    }

    /// Returns what is kept with an operation in progress.
    #[inline]
    pub(crate) fn request(&mut self, id: EntryId) -> Option<&mut R> {
        match &mut self.entry(id)?.state {
            State::InProgress(request) => Some(request),
            _ => None,
        }
    }

    /// Ends an operation in progress with the outcome that `outcome` makes of its request.
    #[inline]
    pub(crate) fn end(&mut self, id: EntryId, outcome: impl FnOnce(R) -> T) {
        let Some(entry) = self.entry(id) else { return };
        match mem::replace(&mut entry.state, State::Free) {
            State::InProgress(request) => match entry.delivery {
                Delivery::Discarded => self.release(id.index),
                delivery => {
                    entry.state = State::Ended(outcome(request));
                    if delivery == Delivery::Queued {
                        self.ended.push_back(id);
                    }
                }
            },
            other => entry.state = other,
        }
    }

    /// Returns true if the operation is in progress, or has an outcome that was not taken.
    #[inline]
    pub(crate) fn is_known(&mut self, id: EntryId) -> bool {
        self.entry(id).is_some()
    }

    /// Takes the outcome of an operation that has ended.
    #[inline]
    pub(crate) fn take(&mut self, id: EntryId) -> Option<T> {
        let entry = self.entry(id)?;
        match mem::replace(&mut entry.state, State::Free) {
            State::Ended(outcome) => {
                self.release(id.index);
                Some(outcome)
            }
            other => {
                entry.state = other;
                None
            }
        }
    }

    /// Takes the oldest outcome of [`Delivery::Queued`].
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(EntryId, T)> {
        loop {
            let id = self.ended.pop_front()?;
            if let Some(outcome) = self.take(id) {
                return Some((id, outcome));
            }
        }
    }

    /// Changes where an operation's outcome goes.
    pub(crate) fn deliver(&mut self, id: EntryId, delivery: Delivery) {
        let Some(entry) = self.entry(id) else { return };
        entry.delivery = delivery;
        if matches!(entry.state, State::Ended(_)) {
            match delivery {
                Delivery::Held => {}
                Delivery::Queued => self.ended.push_back(id),
                Delivery::Discarded => self.release(id.index),
            }
        }
    }

    /// Forgets an operation. It has no outcome.
    pub(crate) fn forget(&mut self, id: EntryId) {
        if self.is_known(id) {
            self.release(id.index);
        }
    }

    #[inline]
    fn entry(&mut self, id: EntryId) -> Option<&mut Entry<R, T>> {
        let known =
            |e: &&mut Entry<R, T>| e.generation == id.generation && !matches!(e.state, State::Free);
        self.entries.get_mut(id.index as usize).filter(known)
    }

    #[inline]
    fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.state = State::Free;
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_goes_where_it_was_asked_for_and_once() {
        let mut all = Completions::<u8, u8>::default();
        let [held, queued, dropped] = [Delivery::Held, Delivery::Queued, Delivery::Discarded]
            .map(|delivery| all.begin(1, delivery));
        assert_eq!((all.take(held), all.next()), (None, None));
        for id in [held, queued, dropped] {
            all.end(id, |request| request + 1);
            all.end(id, |_| unreachable!("an operation ends once"));
        }
        assert_eq!((all.take(held), all.take(held)), (Some(2), None));
        assert_eq!((all.next(), all.next()), (Some((queued, 2)), None));
        assert!(![held, queued, dropped].into_iter().any(|id| all.is_known(id)));
    }

    #[test]
    fn an_old_number_finds_nothing() {
        let mut all = Completions::<(), u8>::default();
        let first = all.begin((), Delivery::Queued);
        all.end(first, |()| 1);
        assert_eq!(all.take(first), Some(1), "taken out of turn");
        let second = all.begin((), Delivery::Held);
        assert_eq!((first.tag() as u32, second.tag() as u32), (0, 0), "the same entry");
        assert_eq!(EntryId::of_tag(second.tag()), second);
        assert!(all.request(first).is_none() && all.request(second).is_some());
        all.end(second, |()| 2);
        assert_eq!(all.next(), None, "the queue still names the first");
        all.deliver(first, Delivery::Discarded);
        all.deliver(second, Delivery::Queued);
        assert_eq!(all.next(), Some((second, 2)));
    }
}
