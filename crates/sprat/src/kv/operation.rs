//! Operations of the asynchronous client, as futures.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sprat_store::client::Error;

use super::machine::Outcome;
use crate::promise::{Promised, promise};

/// The result of an operation of an [`AsyncClient`](super::AsyncClient).
///
/// The operation starts without a poll. After the future is dropped, the cluster may still execute
/// the operation. If more operations wait for the client's thread than
/// [`Builder::max_operations`](super::Builder::max_operations) allows, it ends with
/// [`Error::TooManyOps`].
#[must_use = "a result that nothing awaits is lost"]
pub struct Operation<T> {
    promised: Promised<Outcome>,
    convert: Box<dyn FnOnce(Outcome) -> Result<T, Error> + Send>,
    finished: bool,
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operation").field("finished", &self.finished).finish_non_exhaustive()
    }
}

impl<T> Operation<T> {
    pub(super) fn new(
        promised: Promised<Outcome>,
        convert: impl FnOnce(Outcome) -> Result<T, Error> + Send + 'static,
    ) -> Self {
        Self { promised, convert: Box::new(convert), finished: false }
    }

    /// Makes an operation that has its result already.
    pub(super) fn ended(result: Result<T, Error>) -> Self
    where
        T: Send + 'static,
    {
        let (promise, promised) = promise();
        promise.give(Err(Error::NotInProgress));
        Self::new(promised, |_| result)
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.finished {
            return Poll::Ready(Err(Error::NotInProgress));
        }
        // The thread ends only without clients, or by a panic.
        let outcome = ready!(self.promised.poll(context)).unwrap_or(Err(Error::ClientEnded));
        self.finished = true;
        let none = Box::new(|_| Err(Error::NotInProgress));
        let convert = mem::replace(&mut self.convert, none);
        Poll::Ready(convert(outcome))
    }
}
