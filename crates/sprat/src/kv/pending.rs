//! Operations in progress.

use std::fmt;

use sprat_store::client::Error;

use super::client::Client;
use super::machine::Outcome;
use crate::completions::{Delivery, EntryId};

/// The number of an operation whose outcome [`Client::next_completed`] returns.
///
/// A client does not use a number again before 2³² other operations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OperationId(pub(super) EntryId);

/// An operation in progress whose result is a `T`.
///
/// The operation goes out with the client's next turn. Dropping a `Pending` discards its result
/// and does not cancel the operation.
#[must_use = "a result that nothing waits for is lost"]
pub struct Pending<'c, T> {
    client: &'c Client,
    /// `None` once the program has taken the result or given the operation another destination.
    id: Option<EntryId>,
    convert: fn(Outcome) -> Result<T, Error>,
}

impl<'c, T> Pending<'c, T> {
    pub(super) fn new(
        client: &'c Client,
        id: EntryId,
        convert: fn(Outcome) -> Result<T, Error>,
    ) -> Self {
        Self { client, id: Some(id), convert }
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// [`Error::NotInProgress`] if [`Pending::poll`] has returned the result, and the operation's
    /// own errors.
    pub fn wait(mut self) -> Result<T, Error> {
        let id = self.id.take().ok_or(Error::NotInProgress)?;
        (self.convert)(self.client.wait(id))
    }

    /// Makes one turn of the client, then returns the result if there is one. After that it returns
    /// [`Error::NotInProgress`].
    pub fn poll(&mut self) -> Option<Result<T, Error>> {
        let Some(id) = self.id else { return Some(Err(Error::NotInProgress)) };
        self.client.turn();
        let outcome = self.client.inner().worker.machine().take(id)?;
        self.id = None;
        Some((self.convert)(outcome))
    }

    /// Gives the operation up. The cluster may have executed it.
    pub fn cancel(mut self) {
        if let Some(id) = self.id.take() {
            self.client.cancel(id);
        }
    }

    /// Has [`Client::next_completed`] return the outcome, under the number returned here. `None` if
    /// [`Pending::poll`] has returned the result.
    pub fn queue(mut self) -> Option<OperationId> {
        let id = self.id.take()?;
        self.client.inner().worker.machine().completions.deliver(id, Delivery::Queued);
        Some(OperationId(id))
    }
}

impl<T> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.client.inner().worker.machine().completions.deliver(id, Delivery::Discarded);
        }
    }
}

impl<T> fmt::Debug for Pending<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("id", &self.id).finish_non_exhaustive()
    }
}
