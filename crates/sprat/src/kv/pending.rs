//! Operations of the store's client that are in progress.

use std::fmt;

use sprat_store::client::Error;

use super::machine::Outcome;
use super::shared::Shared;
use crate::completions::{Delivery, EntryId};

/// The number of an operation whose outcome
/// [`Client::next_completed`](super::Client::next_completed) returns.
///
/// A client does not use a number again before 2³² other operations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OperationId(pub(super) EntryId);

impl OperationId {
    /// Returns a small number that no other operation has while this one is in progress or its
    /// outcome waits. A program can keep its own data in a table under this index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.tag() as u32 as usize
    }
}

/// The conversion of an operation's outcome to its result.
enum Convert<T> {
    Whole(fn(Outcome) -> Result<T, Error>),
    /// The conversion of the first results of a transaction, with their number.
    First(fn(Outcome, usize) -> Result<T, Error>, usize),
}

impl<T> Convert<T> {
    fn call(&self, outcome: Outcome) -> Result<T, Error> {
        match self {
            Self::Whole(convert) => convert(outcome),
            Self::First(convert, count) => convert(outcome, *count),
        }
    }
}

/// An operation in progress whose result is a `T`.
///
/// The operation goes out at once over memory, and with the client's next turn over sockets.
/// Dropping a `Pending` discards its result and does not cancel the operation.
#[must_use = "a result that nothing waits for is lost"]
pub struct Pending<'c, T> {
    shared: &'c Shared,
    id: EntryId,
    /// True if the result stays in the client until the program asks this value for it.
    held: bool,
    convert: Convert<T>,
}

impl<'c, T> Pending<'c, T> {
    pub(super) fn new(
        shared: &'c Shared,
        id: EntryId,
        convert: fn(Outcome) -> Result<T, Error>,
    ) -> Self {
        Self { shared, id, held: true, convert: Convert::Whole(convert) }
    }

    /// Makes a pending operation whose result is made of the first `count` results of its outcome.
    pub(super) fn of_first(
        shared: &'c Shared,
        id: EntryId,
        convert: fn(Outcome, usize) -> Result<T, Error>,
        count: usize,
    ) -> Self {
        Self { shared, id, held: true, convert: Convert::First(convert, count) }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// [`Error::NotInProgress`] if [`Pending::poll`] has returned the result, and the operation's
    /// own errors.
    pub fn wait(mut self) -> Result<T, Error> {
        self.held = false;
        self.convert.call(self.shared.wait(self.id))
    }

    /// Makes one turn of the client, then returns the result if there is one. After that it returns
    /// [`Error::NotInProgress`].
    pub fn poll(&mut self) -> Option<Result<T, Error>> {
        self.shared.inner().worker.turn();
        let outcome = self.shared.inner().worker.machine().take(self.id)?;
        self.held = false;
        Some(self.convert.call(outcome))
    }

    /// Gives the operation up. The cluster may have executed it.
    pub fn cancel(mut self) {
        self.held = false;
        self.shared.cancel(self.id);
    }

    /// Has [`Client::next_completed`](super::Client::next_completed) return the outcome, under the
    /// number returned here. An outcome that [`Pending::poll`] has returned does not come again.
    pub fn queue(mut self) -> OperationId {
        self.held = false;
        let mut inner = self.shared.inner();
        inner.worker.machine().completions.deliver(self.id, Delivery::Queued);
        OperationId(self.id)
    }
}

impl<T> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        if self.held {
            let mut inner = self.shared.inner();
            inner.worker.machine().completions.deliver(self.id, Delivery::Discarded);
        }
    }
}

impl<T> fmt::Debug for Pending<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("id", &self.id).finish_non_exhaustive()
    }
}
