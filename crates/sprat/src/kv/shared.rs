//! The worker that a client shares with its tables and its operations in progress.

use std::cell::{RefCell, RefMut};

use sprat_proto::time::MS;
use sprat_proto::{Instant, Rng};
use sprat_store::client::{Call, Client as Machine, Op, Part};

use super::machine::{Operations, Outcome};
use crate::completions::{Delivery, EntryId};
use crate::worker::Worker;

/// The number of parts of a multi-operation that the client starts before it sends them. More of
/// them fill the requests to several servers better, and the servers begin later.
const SENT_TOGETHER: usize = 128;
/// The longest time in nanoseconds that the end of a client takes to make decisions known.
const FAREWELL_NS: u64 = 100 * MS;

/// The worker of a store's client, and the settings that can change.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) worker: Worker<Operations>,
    pub(super) timeout_ns: u64,
    /// False if the client ends without making decisions known.
    pub(super) has_farewell: bool,
}

impl Inner {
    /// Returns the time now, and the deadline of an operation that starts now.
    #[inline]
    pub(super) fn times(&self) -> (Instant, Instant) {
        let now = self.worker.now();
        (now, now.after(self.timeout_ns))
    }

    /// Starts an operation of the store. It goes out at once if it can, and otherwise with the next
    /// turn.
    #[inline]
    fn start(&mut self, begin: impl FnOnce(&mut Machine, Instant) -> Op) -> (Instant, EntryId) {
        let (now, deadline) = self.times();
        let machine = self.worker.machine();
        let (op, id) = machine.start(|client| begin(client, deadline));
        self.send(now, op);
        (now, id)
    }

    /// Sends an operation that has just started, if it can go out at once.
    #[inline]
    pub(super) fn send(&mut self, now: Instant, op: Op) {
        if let Some(call) = self.worker.machine().client.direct(now, op) {
            let Call { link, tag, bytes, deadline } = call;
            self.worker.node().call_bytes(now, link, tag, &bytes, deadline);
            self.worker.machine().client.sent(op, bytes);
        }
        if self.worker.machine().client.has_output() {
            self.worker.node().mark_unsent();
        }
    }

    /// Waits for the outcome of an operation. `lent` is the value that the operation borrows.
    fn wait(&mut self, id: EntryId, lent: &[u8]) -> Outcome {
        loop {
            if let Some(outcome) = self.worker.machine().take(id) {
                return outcome;
            }
            self.worker.turn_and_rest_lending(lent);
        }
    }
}

/// Lends a client's worker to one method at a time.
#[derive(Debug)]
pub(super) struct Shared {
    /// The worker and its settings. It is borrowed only while a method runs, and never while a
    /// method calls code of the program.
    inner: RefCell<Inner>,
}

impl Shared {
    pub(super) fn new(worker: Worker<Operations>, timeout_ns: u64) -> Self {
        Self { inner: RefCell::new(Inner { worker, timeout_ns, has_farewell: true }) }
    }

    #[inline]
    pub(super) fn inner(&self) -> RefMut<'_, Inner> {
        self.inner.borrow_mut()
    }

    /// Starts an operation whose outcome the client keeps until the program asks for it.
    #[inline]
    pub(super) fn start(&self, begin: impl FnOnce(&mut Machine, Instant) -> Op) -> EntryId {
        self.inner().start(begin).1
    }

    /// Starts an operation whose outcome [`super::Client::next_completed`] returns.
    pub(super) fn start_queued(&self, begin: impl FnOnce(&mut Machine, Instant) -> Op) -> EntryId {
        let id = self.start(begin);
        self.inner().worker.machine().completions.deliver(id, Delivery::Queued);
        id
    }

    /// Starts an operation, sends it at once and waits for its outcome.
    pub(super) fn ask(&self, begin: impl FnOnce(&mut Machine, Instant) -> Op) -> Outcome {
        self.ask_lending(&[], begin)
    }

    /// Starts an operation that may borrow `value`, sends it at once and waits for it.
    pub(super) fn ask_lending(
        &self,
        value: &[u8],
        begin: impl FnOnce(&mut Machine, Instant) -> Op,
    ) -> Outcome {
        let mut inner = self.inner();
        let (now, id) = inner.start(begin);
        let is_lending = inner.worker.machine().client.is_lending();
        let lent = if is_lending { value } else { &[] };
        inner.worker.node().finish(now, lent);
        let outcome = inner.wait(id, lent);
        if is_lending {
            inner.worker.machine().client.give_back(lent);
        }
        outcome
    }

    /// Starts a multi-operation and waits for its outcome, until the deadline at most. The first
    /// parts are on their way while it starts the next ones.
    pub(super) fn ask_parts(&self, parts: &[Part<'_>], deadline: Instant) -> Outcome {
        let mut inner = self.inner();
        let (now, at) = inner.times();
        let begin = |client: &mut Machine| client.begin_multi(parts.len(), at.min(deadline));
        let (op, id) = inner.worker.machine().start(begin);
        for sent_together in parts.chunks(SENT_TOGETHER) {
            inner.worker.machine().client.add_parts(op, sent_together.iter().copied());
            inner.worker.node().mark_unsent();
            inner.worker.node().finish(now, &[]);
        }
        inner.worker.machine().client.end_multi(op);
        inner.worker.node().mark_unsent();
        inner.wait(id, &[])
    }

    /// Starts a pause behind this number of tries of a transaction, whose end
    /// [`super::Client::next_completed`] returns. `None`: it would end past the deadline.
    pub(super) fn start_pause(&self, tries: u32, deadline: Instant) -> Option<EntryId> {
        let mut inner = self.inner();
        let now = inner.worker.now();
        let machine = inner.worker.machine();
        let id = machine.start_pause(now, tries, deadline)?;
        machine.completions.deliver(id, Delivery::Queued);
        Some(id)
    }

    /// Returns a source of random numbers.
    pub(super) fn fork_rng(&self) -> Rng {
        self.inner().worker.machine().fork_rng()
    }

    pub(super) fn wait(&self, id: EntryId) -> Outcome {
        self.inner().wait(id, &[])
    }

    /// Pauses behind this number of tries of a transaction, while operations make progress. Returns
    /// false, without a pause, if that would end past the deadline.
    pub(super) fn pause(&self, tries: u32, deadline: Instant) -> bool {
        let mut inner = self.inner();
        let now = inner.worker.now();
        let pause = inner.worker.machine().start_pause(now, tries, deadline);
        pause.is_some_and(|id| inner.wait(id, &[]).is_ok())
    }

    pub(super) fn cancel(&self, id: EntryId) {
        let mut inner = self.inner();
        inner.worker.node().mark_unsent();
        inner.worker.machine().cancel(id);
    }
}

impl Drop for Shared {
    /// Waits until the decisions on committed transactions are known, a moment at most: their
    /// objects stay locked otherwise until the servers ask each other.
    fn drop(&mut self) {
        let Inner { worker, has_farewell, .. } = self.inner.get_mut();
        let is_sound = *has_farewell && !std::thread::panicking();
        if !is_sound || !worker.machine().client.is_deciding() {
            return;
        }
        let end = worker.now().after(FAREWELL_NS);
        let pause = worker.machine().pause_until(end);
        while worker.machine().client.is_deciding() && worker.machine().take(pause).is_none() {
            worker.turn_and_rest();
        }
    }
}
