//! The client's state machine with the outcomes that the program has not taken yet.
//!
//! Each operation has an entry. An entry is free, in progress, or holds an outcome. An
//! [`EntryId`] names an entry together with its generation, so that a stale one finds nothing.

use std::collections::VecDeque;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Link, Machine, Output};
use sprat_proto::rpc::{Message, Payload, RpcError, Slice, Slices};
use sprat_store::client::{Answer, Client, Done, Error, Op};
use sprat_store::types::Version;

/// The result of an operation. Its bytes belong to the program.
pub type Outcome = Result<Answer<'static>, Error>;

/// An entry and its generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct EntryId {
    index: u32,
    generation: u32,
}

/// Where an outcome goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Delivery {
    /// It stays in the entry until the program asks for it.
    Held,
    /// [`Operations::next_completed`] returns it.
    Queued,
    /// It is dropped.
    Discarded,
}

#[derive(Debug)]
enum State {
    Free,
    InProgress,
    Ended(Outcome),
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    op: Op,
    delivery: Delivery,
    state: State,
}

/// The read that [`super::Table::get_with`] waits for, and the buffer for its value.
#[derive(Debug, Default)]
pub(super) struct Direct {
    op: Option<Op>,
    pub(super) bytes: Vec<u8>,
    pub(super) skip: usize,
    pub(super) outcome: Option<Result<Version, Error>>,
}

/// The store's client as a [`Machine`].
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) client: Client,
    pub(super) direct: Direct,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The entry of an operation in progress, by [`Op::index`].
    by_op: Vec<u32>,
    /// Entries with an outcome for [`Operations::next_completed`], oldest first. An entry whose
    /// outcome the program took otherwise may still stand here, with an old generation.
    completed: VecDeque<EntryId>,
}

impl Operations {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            direct: Direct::default(),
            entries: Vec::new(),
            free: Vec::new(),
            by_op: Vec::new(),
            completed: VecDeque::new(),
        }
    }

    /// Starts an operation.
    #[inline]
    pub(super) fn start(
        &mut self,
        begin: impl FnOnce(&mut Client) -> Op,
        delivery: Delivery,
    ) -> EntryId {
        // An operation that has ended may have the index that the new one gets.
        self.collect();
        let op = begin(&mut self.client);
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, op, delivery, state: State::Free });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        (entry.op, entry.delivery, entry.state) = (op, delivery, State::InProgress);
        let generation = entry.generation;
        if op.index() >= self.by_op.len() {
            self.by_op.resize(op.index() + 1, 0);
        }
        self.by_op[op.index()] = index;
        EntryId { index, generation }
    }

    /// Starts the read that [`Direct`] is for.
    #[inline]
    pub(super) fn start_direct(&mut self, begin: impl FnOnce(&mut Client) -> Op) {
        self.collect();
        self.direct.op = Some(begin(&mut self.client));
    }

    /// The outcome of an operation that has ended. `Err(NotInProgress)` if the program took it
    /// before or cancelled the operation.
    #[inline]
    pub(super) fn take(&mut self, id: EntryId) -> Option<Outcome> {
        let Some(entry) = self.entry(id) else { return Some(Err(Error::NotInProgress)) };
        match std::mem::replace(&mut entry.state, State::InProgress) {
            State::Ended(outcome) => {
                self.release(id.index);
                Some(outcome)
            }
            _ => None,
        }
    }

    /// The next outcome of an operation that was started for a completion queue.
    #[inline]
    pub(super) fn next_completed(&mut self) -> Option<(EntryId, Outcome)> {
        loop {
            let id = self.completed.pop_front()?;
            if self.entry(id).is_some() {
                return self.take(id).map(|outcome| (id, outcome));
            }
        }
    }

    /// Changes where an operation's outcome goes.
    pub(super) fn deliver(&mut self, id: EntryId, delivery: Delivery) {
        let Some(entry) = self.entry(id) else { return };
        entry.delivery = delivery;
        if matches!(entry.state, State::Ended(_)) {
            match delivery {
                Delivery::Held => {}
                Delivery::Queued => self.completed.push_back(id),
                Delivery::Discarded => self.release(id.index),
            }
        }
    }

    /// Gives an operation up. It has no outcome.
    pub(super) fn cancel(&mut self, id: EntryId) {
        self.collect();
        let Some(entry) = self.entry(id) else { return };
        let op = entry.op;
        if matches!(entry.state, State::InProgress) {
            self.client.cancel(op);
        }
        self.release(id.index);
    }

    #[inline]
    fn entry(&mut self, id: EntryId) -> Option<&mut Entry> {
        self.entries
            .get_mut(id.index as usize)
            .filter(|e| e.generation == id.generation && !matches!(e.state, State::Free))
    }

    fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.state = State::Free;
        self.free.push(index);
    }

    /// Takes what ended otherwise than by a response.
    #[inline]
    fn collect(&mut self) {
        while let Some(done) = self.client.event() {
            self.ended(done);
        }
    }

    #[inline]
    fn ended(&mut self, done: Done<'_>) {
        if self.direct.op == Some(done.op) {
            self.direct.ended(done.outcome);
            return;
        }
        let Some(&index) = self.by_op.get(done.op.index()) else { return };
        let entry = &mut self.entries[index as usize];
        if entry.op != done.op || !matches!(entry.state, State::InProgress) {
            return;
        }
        if entry.delivery == Delivery::Discarded {
            self.release(index);
            return;
        }
        entry.state = State::Ended(done.outcome.map(Answer::into_owned));
        if entry.delivery == Delivery::Queued {
            let generation = entry.generation;
            self.completed.push_back(EntryId { index, generation });
        }
    }
}

impl Direct {
    fn ended(&mut self, outcome: Result<Answer<'_>, Error>) {
        self.op = None;
        self.outcome = Some(match outcome {
            Ok(Answer::Object { version, value }) => {
                self.skip = value.keep_in(&mut self.bytes);
                Ok(version)
            }
            Ok(other) => unexpected(&other),
            Err(error) => Err(error),
        });
    }
}

/// The client pairs every operation with one kind of answer.
pub(super) fn unexpected(answer: &Answer<'_>) -> ! {
    unreachable!("the operation is not answered by {answer:?}")
}

impl Slices for Operations {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

impl Machine for Operations {
    fn request(&mut self, _: Instant, _: Caller, _: Payload<'_>, _: Instant) -> Option<Message> {
        None
    }

    fn response(&mut self, now: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        if let Some(done) = self.client.response(now, tag, result) {
            self.ended(done);
        }
    }

    fn unreachable(&mut self, link: Link, why: &str) {
        self.client.unreachable(link, why);
    }

    fn output(&mut self, now: Instant) -> Option<Output> {
        let output = self.client.output(now);
        self.collect();
        output
    }

    fn spare(&mut self, buffer: Vec<u8>) {
        self.client.spare(buffer);
    }

    fn deadline(&self) -> Option<Instant> {
        self.client.deadline()
    }

    fn tick(&mut self, now: Instant) -> bool {
        self.client.tick(now);
        false
    }
}
