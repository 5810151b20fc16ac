//! Tasks of one thread: operations of an asynchronous client that are in progress at the same time.
//!
//! The client's thread makes tasks ready to go on, and the thread that has started them polls those
//! that are: in [`Tasks::turn`], which waits until there is one.

use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::fail::Fail;

/// The tasks that can go on, by their tags, and the thread that polls them.
struct Woken {
    tags: Mutex<Vec<u32>>,
    thread: Thread,
}

impl Woken {
    fn of_this_thread() -> Arc<Self> {
        Arc::new(Self { tags: Mutex::default(), thread: thread::current() })
    }

    fn tags(&self) -> MutexGuard<'_, Vec<u32>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a task can go on. Returns the tags of all that can.
    fn wait(&self) -> Vec<u32> {
        loop {
            let tags = mem::take(&mut *self.tags());
            if !tags.is_empty() {
                return tags;
            }
            thread::park();
        }
    }
}

/// The wake-up of one task.
struct Alarm {
    tag: u32,
    woken: Arc<Woken>,
}

impl Alarm {
    fn waker(tag: u32, woken: &Arc<Woken>) -> Waker {
        Waker::from(Arc::new(Self { tag, woken: Arc::clone(woken) }))
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.woken.tags().push(self.tag);
        self.woken.thread.unpark();
    }
}

/// Runs a future to its end in this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let woken = Woken::of_this_thread();
    let waker = Alarm::waker(0, &woken);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => drop(woken.wait()),
        }
    }
}

/// A task: a number to come, of the caller's meaning.
type Task<'o> = Pin<Box<dyn Future<Output = Result<u64, Fail>> + 'o>>;

/// The tasks of one thread, by their tags: small numbers, which no two tasks in progress share.
pub(crate) struct Tasks<'o> {
    woken: Arc<Woken>,
    all: Vec<(Option<Task<'o>>, Waker)>,
    running: usize,
    ready: VecDeque<(u32, Result<u64, Fail>)>,
}

impl<'o> Tasks<'o> {
    /// Makes the tasks of this thread, of which there are none yet.
    pub(crate) fn new() -> Self {
        let (woken, ready) = (Woken::of_this_thread(), VecDeque::new());
        Self { woken, all: Vec::new(), running: 0, ready }
    }

    /// Adds a task, and polls it for the first time.
    pub(crate) fn start(&mut self, tag: u32, task: impl Future<Output = Result<u64, Fail>> + 'o) {
        for tag in self.all.len() as u32..=tag {
            self.all.push((None, Alarm::waker(tag, &self.woken)));
        }
        self.all[tag as usize].0 = Some(Box::pin(task));
        self.running += 1;
        self.poll(tag);
    }

    /// Polls a task. Does nothing if it has ended, since a task may be woken more than once.
    fn poll(&mut self, tag: u32) {
        let (slot, waker) = &mut self.all[tag as usize];
        let Some(task) = slot else { return };
        if let Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(waker)) {
            *slot = None;
            self.running -= 1;
            self.ready.push_back((tag, result));
        }
    }

    /// Polls the tasks that can go on. Waits for one, unless a task has ended or none is left.
    pub(crate) fn turn(&mut self) {
        if self.running > 0 && self.ready.is_empty() {
            self.woken.wait().into_iter().for_each(|tag| self.poll(tag));
        }
    }

    /// Returns the tag and the result of a task that has ended. `None`: there is none.
    pub(crate) fn ended(&mut self) -> Option<(u32, Result<u64, Fail>)> {
        self.ready.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// A future that is ready once another thread has given it a number.
    struct Given(Arc<Mutex<(Option<u64>, Option<Waker>)>>);

    impl Future for Given {
        type Output = Result<u64, Fail>;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
            let mut given = self.0.lock().expect("no thread panics");
            given.1 = Some(context.waker().clone());
            given.0.map_or(Poll::Pending, |number| Poll::Ready(Ok(number)))
        }
    }

    #[test]
    fn tasks_end_in_the_order_in_which_they_are_woken() {
        let (send, receive) = channel::<Arc<Mutex<(Option<u64>, Option<Waker>)>>>();
        let giver = thread::spawn(move || {
            for (number, cell) in receive.into_iter().enumerate() {
                let mut given = cell.lock().expect("no thread panics");
                given.0 = Some(number as u64);
                let waker = given.1.take();
                drop(given);
                waker.into_iter().for_each(Waker::wake);
            }
        });
        let mut tasks = Tasks::new();
        let cells: Vec<_> = (0..4).map(|_| Arc::new(Mutex::new((None, None)))).collect();
        for (tag, cell) in (0..).zip(&cells) {
            tasks.start(tag, Given(Arc::clone(cell)));
        }
        tasks.start(4, async { Ok(7) });
        assert!(matches!(tasks.ended(), Some((4, Ok(7)))), "it waits for nothing");
        for (number, tag) in [2, 0, 3, 1].into_iter().enumerate() {
            send.send(Arc::clone(&cells[tag])).expect("the thread lives");
            while tasks.ready.is_empty() {
                tasks.turn();
            }
            let (ended, found) = tasks.ended().expect("one has ended");
            assert_eq!((ended as usize, found.ok()), (tag, Some(number as u64)));
        }
        assert_eq!(tasks.running, 0);
        tasks.turn();
        drop(send);
        giver.join().expect("no thread panics");
    }
}
