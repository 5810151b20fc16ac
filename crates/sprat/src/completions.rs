//! Operations of a client, from their start until the program has their outcome.
//!
//! Each operation has an entry. An entry is free, in progress, or holds an outcome. An [`EntryId`]
//! names an entry and its generation, so that a stale one finds nothing. The bytes of an outcome
//! stay in the entry's buffer, which the next operation of the entry uses again: they are lent to
//! the program, or moved to it with the buffer.

use std::mem;

/// The most bytes of a buffer that a free entry keeps.
const KEPT_MOST: usize = 4096;
/// The entries up to which a queue keeps the places of those that were taken.
const COMPACTED: usize = 256;

/// The id of an operation's entry: its index, and its generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct EntryId {
    index: u32,
    generation: u32,
}

impl EntryId {
    /// Returns the tag that a request of this entry carries.
    #[inline]
    pub(crate) fn tag(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Returns the id of the entry that a request with this tag belongs to.
    #[inline]
    pub(crate) fn of_tag(tag: u64) -> Self {
        Self { index: tag as u32, generation: (tag >> 32) as u32 }
    }
}

/// The destination of an operation's outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// The outcome stays in the entry until the program asks for it.
    Held,
    /// [`Completions::next`] returns it.
    Queued,
    /// The outcome of the operation is dropped.
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
    /// The bytes of the operation's outcome.
    bytes: Vec<u8>,
}

/// The operations of a client, with their outcomes. `T` is an outcome; an `R` belongs to each
/// operation in progress.
#[derive(Debug)]
pub(crate) struct Completions<R, T> {
    entries: Vec<Entry<R, T>>,
    free: Vec<u32>,
    /// Entries with an outcome for [`Completions::next`]. An entry whose outcome the program took
    /// otherwise may still stand here, with an old generation.
    ended: Queue,
    /// The free entry whose long buffer is lent to the program. The next call that needs the
    /// entries drops the buffer.
    lent: Option<u32>,
}

/// Entries in the order in which they came. A program takes all of them again and again, so that a
/// vector costs less than a ring buffer.
#[derive(Debug, Default)]
struct Queue {
    ids: Vec<EntryId>,
    /// Entries at the start of `ids` that were taken.
    taken: usize,
}

impl Queue {
    #[inline]
    fn push(&mut self, id: EntryId) {
        // A queue that is never empty must not grow for ever.
        if self.taken > COMPACTED && self.taken > self.ids.len() / 2 {
            self.ids.drain(..mem::take(&mut self.taken));
        }
        self.ids.push(id);
    }

    #[inline]
    fn pop(&mut self) -> Option<EntryId> {
        let id = *self.ids.get(self.taken)?;
        self.taken += 1;
        if self.taken == self.ids.len() {
            self.ids.clear();
            self.taken = 0;
        }
        Some(id)
    }
}

impl<R, T> Default for Completions<R, T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new(), ended: Queue::default(), lent: None }
    }
}

impl<R, T> Completions<R, T> {
    /// Makes an entry for an operation in progress.
    #[inline]
    pub(crate) fn begin(&mut self, request: R, delivery: Delivery) -> EntryId {
        self.drop_long();
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let entry = &mut self.entries[index as usize];
        (entry.delivery, entry.state) = (delivery, State::InProgress(request));
        EntryId { index, generation: entry.generation }
    }

    #[cold]
    fn grow(&mut self) -> u32 {
        let (delivery, state) = (Delivery::Held, State::Free);
        self.entries.push(Entry { generation: 0, delivery, state, bytes: Vec::new() });
        (self.entries.len() - 1) as u32
    }

    /// Returns the request data of an operation in progress.
    #[inline]
    pub(crate) fn request(&mut self, id: EntryId) -> Option<&mut R> {
        match self.entries.get_mut(id.index as usize) {
            Some(Entry { generation, state: State::InProgress(request), .. })
                if *generation == id.generation =>
            {
                Some(request)
            }
            _ => None,
        }
    }

    /// Exchanges `bytes` for the outcome buffer of an operation in progress.
    #[inline]
    pub(crate) fn swap_bytes(&mut self, id: EntryId, bytes: &mut Vec<u8>) {
        if let Some(entry) = self.entry(id) {
            mem::swap(&mut entry.bytes, bytes);
        }
    }

    /// Ends an operation in progress with the outcome that `outcome` makes. That function puts the
    /// outcome's bytes into the empty buffer that it gets.
    #[inline(always)]
    pub(crate) fn end(&mut self, id: EntryId, outcome: impl FnOnce(&mut Vec<u8>) -> T) {
        let Some(entry) = self.entries.get_mut(id.index as usize) else { return };
        if entry.generation != id.generation || !matches!(entry.state, State::InProgress(_)) {
            return;
        }
        if entry.delivery == Delivery::Discarded {
            return self.release(id.index);
        }
        entry.bytes.clear();
        entry.state = State::Ended(outcome(&mut entry.bytes));
        if entry.delivery == Delivery::Queued {
            self.ended.push(id);
        }
    }

    /// Returns true if the operation is in progress, or has an outcome that was not taken.
    #[inline]
    pub(crate) fn is_known(&mut self, id: EntryId) -> bool {
        self.entry(id).is_some()
    }

    /// Takes the outcome of an operation that has ended, and lends its bytes.
    #[inline]
    pub(crate) fn lend(&mut self, id: EntryId) -> Option<(T, &mut Vec<u8>)> {
        let outcome = self.take(id)?;
        Some((outcome, &mut self.entries[id.index as usize].bytes))
    }

    /// Takes the outcome of an operation that has ended. Its bytes stay until the next operation.
    #[inline]
    fn take(&mut self, id: EntryId) -> Option<T> {
        self.drop_long();
        let entry = self.entries.get_mut(id.index as usize)?;
        if entry.generation != id.generation || !matches!(entry.state, State::Ended(_)) {
            return None;
        }
        let State::Ended(outcome) = mem::replace(&mut entry.state, State::Free) else {
            return None;
        };
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.index);
        if entry.bytes.capacity() > KEPT_MOST {
            self.lent = Some(id.index);
        }
        Some(outcome)
    }

    /// Takes the oldest outcome of [`Delivery::Queued`], and lends its bytes.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(EntryId, T, &mut Vec<u8>)> {
        loop {
            let id = self.ended.pop()?;
            if let Some(outcome) = self.take(id) {
                return Some((id, outcome, &mut self.entries[id.index as usize].bytes));
            }
        }
    }

    /// Gives a buffer that [`Completions::next`] lent, and that the program moved out, to the next
    /// operation of the entry, unless that has one.
    #[inline]
    pub(crate) fn give_back(&mut self, id: EntryId, bytes: Vec<u8>) {
        if let Some(entry) = self.entries.get_mut(id.index as usize)
            && entry.bytes.capacity() == 0
            && matches!(entry.state, State::Free)
            && bytes.capacity() <= KEPT_MOST
        {
            entry.bytes = bytes;
        }
    }

    /// Changes where an operation's outcome goes.
    pub(crate) fn deliver(&mut self, id: EntryId, delivery: Delivery) {
        let Some(entry) = self.entry(id) else { return };
        entry.delivery = delivery;
        if matches!(entry.state, State::Ended(_)) {
            match delivery {
                Delivery::Held => {}
                Delivery::Queued => self.ended.push(id),
                Delivery::Discarded => self.release(id.index),
            }
        }
    }

    /// Forgets an operation, which then gets no outcome.
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

    /// Drops the long buffer that was lent to the program last.
    #[inline]
    fn drop_long(&mut self) {
        if let Some(index) = self.lent {
            self.lent = None;
            let bytes = &mut self.entries[index as usize].bytes;
            if bytes.capacity() > KEPT_MOST {
                *bytes = Vec::new();
            }
        }
    }

    fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.state = State::Free;
        if entry.bytes.capacity() > KEPT_MOST {
            entry.bytes = Vec::new();
        }
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the oldest outcome that [`Completions::next`] has, with a copy of its bytes.
    fn next(all: &mut Completions<u8, u8>) -> Option<(EntryId, u8, Vec<u8>)> {
        all.next().map(|(id, outcome, bytes)| (id, outcome, bytes.clone()))
    }

    fn take(all: &mut Completions<u8, u8>, id: EntryId) -> Option<(u8, Vec<u8>)> {
        all.lend(id).map(|(outcome, bytes)| (outcome, mem::take(bytes)))
    }

    #[test]
    fn an_outcome_goes_where_it_was_asked_for_and_once() {
        let mut all = Completions::<u8, u8>::default();
        let [held, queued, dropped] = [Delivery::Held, Delivery::Queued, Delivery::Discarded]
            .map(|delivery| all.begin(1, delivery));
        assert_eq!((take(&mut all, held), next(&mut all)), (None, None));
        for id in [held, queued, dropped] {
            all.end(id, |bytes| {
                bytes.push(7);
                2
            });
            all.end(id, |_| unreachable!("an operation ends once"));
        }
        assert_eq!((take(&mut all, held), take(&mut all, held)), (Some((2, vec![7])), None));
        assert_eq!((next(&mut all), next(&mut all)), (Some((queued, 2, vec![7])), None));
        assert!(![held, queued, dropped].into_iter().any(|id| all.is_known(id)));
    }

    #[test]
    fn an_old_number_finds_nothing() {
        let mut all = Completions::<u8, u8>::default();
        let first = all.begin(0, Delivery::Queued);
        all.end(first, |_| 1);
        assert_eq!(take(&mut all, first), Some((1, Vec::new())), "taken out of turn");
        let second = all.begin(0, Delivery::Held);
        assert_eq!((first.tag() as u32, second.tag() as u32), (0, 0), "the same entry");
        assert_eq!(EntryId::of_tag(second.tag()), second);
        assert!(all.request(first).is_none() && all.request(second).is_some());
        all.end(second, |_| 2);
        assert_eq!(next(&mut all), None, "the queue still names the first");
        all.deliver(first, Delivery::Discarded);
        all.deliver(second, Delivery::Queued);
        assert_eq!(next(&mut all), Some((second, 2, Vec::new())));
    }

    #[test]
    fn a_queue_that_is_never_empty_stays_small() {
        let mut queue = Queue::default();
        let id = |index| EntryId { index, generation: 0 };
        (0..3).for_each(|index| queue.push(id(index)));
        for index in 3..10_000 {
            queue.push(id(index));
            assert_eq!(queue.pop(), Some(id(index - 3)));
            assert!(queue.ids.len() <= COMPACTED + 5);
        }
        assert_eq!(
            [queue.pop(), queue.pop(), queue.pop()],
            [9_997, 9_998, 9_999].map(|i| Some(id(i)))
        );
        assert!(queue.pop().is_none() && queue.ids.is_empty());
    }

    #[test]
    fn a_lent_buffer_serves_the_next_operation_unless_it_is_long() {
        let mut all = Completions::<u8, u8>::default();
        for (len, kept) in [(100, true), (KEPT_MOST + 1, false)] {
            let first = all.begin(0, Delivery::Queued);
            all.end(first, |bytes| {
                bytes.resize(len, 7);
                1
            });
            let lent = all.next().map(|(_, _, bytes)| (bytes.len(), bytes.as_ptr()));
            let (was, at) = lent.expect("an outcome");
            assert_eq!((was, all.next().is_none()), (len, true));
            let second = all.begin(0, Delivery::Held);
            all.end(second, |bytes| {
                assert!(bytes.is_empty(), "nothing of the first is left");
                assert_eq!((bytes.capacity() >= len, bytes.as_ptr() == at), (kept, kept));
                1
            });
            take(&mut all, second).expect("an outcome");
        }
    }

    #[test]
    fn a_buffer_comes_back_only_to_a_free_entry_without_one() {
        let mut all = Completions::<u8, u8>::default();
        let first = all.begin(0, Delivery::Held);
        all.end(first, |bytes| {
            bytes.push(1);
            1
        });
        let (_, bytes) = take(&mut all, first).expect("an outcome");
        let second = all.begin(0, Delivery::Held);
        all.give_back(first, bytes);
        let mut own = vec![2];
        all.swap_bytes(second, &mut own);
        assert!(own.is_empty(), "an entry in progress gets no buffer");
        all.end(second, |bytes| {
            bytes.push(3);
            1
        });
        let (_, bytes) = take(&mut all, second).expect("an outcome");
        all.give_back(second, bytes);
        let third = all.begin(0, Delivery::Held);
        all.swap_bytes(third, &mut own);
        assert_eq!(own, [3], "the buffer that came back");
    }
}
