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
/// The operation starts without a poll, but for a commit that keeps indexes. After the future is
/// dropped, the cluster may still execute the operation. If more operations wait for the client's
/// thread than [`Builder::max_operations`](super::Builder::max_operations) allows, it ends with
/// [`Error::TooManyOps`].
#[must_use = "a result that nothing awaits is lost"]
pub struct Operation<T>(Progress<T>);

/// The conversion of an operation's outcome to its result.
type Convert<T> = Box<dyn FnOnce(Outcome) -> Result<T, Error> + Send>;

enum Progress<T> {
    /// The client's thread gives the outcome.
    Promised(Promised<Outcome>, Convert<T>),
    /// Several operations follow each other.
    Steps(Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>),
    Finished,
}

impl<T> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_finished = matches!(self.0, Progress::Finished);
        f.debug_struct("Operation").field("finished", &is_finished).finish_non_exhaustive()
    }
}

impl<T> Operation<T> {
    pub(super) fn new(
        promised: Promised<Outcome>,
        convert: impl FnOnce(Outcome) -> Result<T, Error> + Send + 'static,
    ) -> Self {
        Self(Progress::Promised(promised, Box::new(convert)))
    }

    /// Makes an operation of several others, which begins with its first poll.
    pub(super) fn of_steps(steps: impl Future<Output = Result<T, Error>> + Send + 'static) -> Self {
        Self(Progress::Steps(Box::pin(steps)))
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
        let result = match &mut self.0 {
            Progress::Finished => return Poll::Ready(Err(Error::NotInProgress)),
            Progress::Steps(steps) => ready!(steps.as_mut().poll(context)),
            // The thread ends only without clients, or by a panic.
            Progress::Promised(promised, convert) => {
                let outcome = ready!(promised.poll(context)).unwrap_or(Err(Error::ClientEnded));
                mem::replace(convert, Box::new(|_| Err(Error::NotInProgress)))(outcome)
            }
        };
        self.0 = Progress::Finished;
        Poll::Ready(result)
    }
}
