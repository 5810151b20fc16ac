//! The results of an asynchronous client. The client's thread promises a task its result and gives
//! it later.
//!
//! Always holds: a task is woken if nothing can give its result any more. If a [`Promise`] is
//! dropped without a result, because the thread ended or panicked, its [`Promised`] says so.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker as TaskWaker};

use crate::worker::Waker;

/// The cell that both ends of a promised result share.
struct Cell<T>(Mutex<State<T>>);

enum State<T> {
    /// There is no result yet. The task is the one to wake, if one waits.
    Waiting(Option<TaskWaker>),
    Given(T),
    /// The result was taken, or it never comes.
    Over,
}

impl<T> Cell<T> {
    /// Locks the cell of a result. No code of the program runs while it is locked, so that it is
    /// never poisoned.
    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, state: State<T>) {
        let before = std::mem::replace(&mut *self.state(), state);
        if let State::Waiting(Some(task)) = before {
            task.wake();
        }
    }
}

/// The client thread's end of a promised result.
pub(crate) struct Promise<T>(Option<Arc<Cell<T>>>);

/// The task's end of a promised result.
pub(crate) struct Promised<T>(Arc<Cell<T>>);

/// Makes the two ends of a promised result.
pub(crate) fn promise<T>() -> (Promise<T>, Promised<T>) {
    let cell = Arc::new(Cell(Mutex::new(State::Waiting(None))));
    (Promise(Some(Arc::clone(&cell))), Promised(cell))
}

impl<T> Promise<T> {
    /// Gives the task its result.
    pub(crate) fn give(mut self, result: T) {
        if let Some(cell) = self.0.take() {
            cell.put(State::Given(result));
        }
    }

    /// Returns true if the task has dropped its end of the result.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.as_ref().is_none_or(|cell| Arc::strong_count(cell) == 1)
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            cell.put(State::Over);
        }
    }
}

impl<T> Promised<T> {
    /// Returns the promised result, or `None` if it was taken before or never comes.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.state();
        match std::mem::replace(&mut *state, State::Over) {
            State::Waiting(_) => {
                *state = State::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Given(result) => Poll::Ready(Some(result)),
            State::Over => Poll::Ready(None),
        }
    }
}

/// The tasks' end of a queue of requests to a client's thread. The thread learns when no task can
/// send to it any more.
pub(crate) struct Requests<R> {
    // Dropped before the waker: the thread wakes once the last sender is gone.
    sender: Sender<R>,
    waker: Arc<WakeOnDrop>,
    shared: Arc<Shared>,
}

/// Wakes the client's thread when the last sender is dropped, so that the thread ends.
struct WakeOnDrop(Waker);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

struct Shared {
    /// Number of requests in the queue that the thread has not taken.
    waiting: AtomicUsize,
    /// The most requests that the queue holds.
    most: usize,
}

/// The client thread's end of a queue of requests.
pub(crate) struct Queue<R> {
    receiver: Receiver<R>,
    shared: Arc<Shared>,
}

/// Makes a queue of at most `most` requests to the thread that `waker` wakes.
pub(crate) fn requests<R>(waker: Waker, most: usize) -> (Requests<R>, Queue<R>) {
    let (sender, receiver) = channel();
    let shared = Arc::new(Shared { waiting: AtomicUsize::new(0), most });
    let waker = Arc::new(WakeOnDrop(waker));
    (Requests { sender, waker, shared: Arc::clone(&shared) }, Queue { receiver, shared })
}

impl<R> Requests<R> {
    /// Queues a request and wakes the thread. Returns false if the queue is full. If the thread has
    /// ended, it drops the request.
    pub(crate) fn send(&self, request: R) -> bool {
        let Shared { waiting, most } = &*self.shared;
        if waiting.fetch_add(1, Ordering::Relaxed) >= *most {
            waiting.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.queue(request);
        true
    }

    /// Queues a request as [`Requests::send`] does, even if the queue is full. The caller limits
    /// the number of such requests otherwise.
    pub(crate) fn send_beyond_limit(&self, request: R) {
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.queue(request);
    }

    /// Sends the thread a request that is already counted, and wakes the thread.
    fn queue(&self, request: R) {
        if self.sender.send(request).is_err() {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        self.waker.0.wake();
    }
}

impl<R> Clone for Requests<R> {
    fn clone(&self) -> Self {
        let (waker, shared) = (Arc::clone(&self.waker), Arc::clone(&self.shared));
        Self { sender: self.sender.clone(), waker, shared }
    }
}

impl<R> fmt::Debug for Requests<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").finish_non_exhaustive()
    }
}

impl<R> Queue<R> {
    /// Takes the next request of the queue. `Ok(None)`: there is none now.
    ///
    /// # Errors
    /// There is none, and none will come.
    pub(crate) fn take(&self) -> Result<Option<R>, Ended> {
        match self.receiver.try_recv() {
            Ok(request) => {
                self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                Ok(Some(request))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Ended),
        }
    }
}

/// The error of an empty queue to which no task can send requests any more.
#[derive(Debug)]
pub(crate) struct Ended;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls a promised result. Returns it with the number of wake-ups so far.
    fn poll<T>(promised: &Promised<T>, woken: &Arc<Woken>) -> (Poll<Option<T>>, u32) {
        let waker = TaskWaker::from(Arc::clone(woken));
        let result = promised.poll(&Context::from_waker(&waker));
        (result, woken.0.load(Ordering::SeqCst))
    }

    #[test]
    fn a_result_wakes_its_task_and_comes_once() {
        let ((promise, promised), woken) = (promise(), Arc::<Woken>::default());
        assert_eq!(poll(&promised, &woken), (Poll::Pending, 0));
        assert!(!promise.is_abandoned());
        promise.give(7);
        assert_eq!(poll(&promised, &woken), (Poll::Ready(Some(7)), 1));
        assert_eq!(poll(&promised, &woken), (Poll::Ready(None), 1));
    }

    /// Drops the promises of a thread that panics, as it unwinds. Its tasks used to wait for ever.
    #[test]
    fn a_thread_that_panics_ends_what_it_has_promised() {
        let ((promise, promised), woken) = (promise::<u8>(), Arc::<Woken>::default());
        assert_eq!(poll(&promised, &woken), (Poll::Pending, 0));
        let thread = std::thread::spawn(move || {
            let _promise = promise;
            std::panic::resume_unwind(Box::new("a planted panic"));
        });
        assert!(thread.join().is_err());
        assert_eq!(poll(&promised, &woken), (Poll::Ready(None), 1));
    }

    #[test]
    fn a_queue_has_a_limit_and_an_end() {
        let waker = Waker::new().expect("a descriptor is left");
        let (requests, queue) = requests(waker, 2);
        assert_eq!([1, 2, 3].map(|i| requests.send(i)), [true, true, false]);
        assert_eq!(queue.take().expect("open"), Some(1));
        let other = requests.clone();
        drop(requests);
        assert!(other.send(4), "there is room again");
        other.send_beyond_limit(5);
        assert_eq!(queue.take().expect("open"), Some(2));
        assert!(!other.send(6), "what went beyond the limit counts too");
        drop(other);
        assert_eq!([(); 2].map(|()| queue.take().expect("requests are left")), [Some(4), Some(5)]);
        queue.take().expect_err("no sender is left");
    }

    #[test]
    fn requests_that_a_dead_thread_leaves_end() {
        let waker = Waker::new().expect("a descriptor is left");
        let (requests, queue) = requests(waker, 2);
        let woken = Arc::<Woken>::default();
        let (left, after) = (promise::<u8>(), promise::<u8>());
        assert!(requests.send(left.0));
        drop(queue);
        assert!(requests.send(after.0));
        for promised in [left.1, after.1] {
            assert_eq!(poll(&promised, &woken).0, Poll::Ready(None));
        }
    }
}
