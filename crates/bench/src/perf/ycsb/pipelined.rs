//! A session with our store whose operations with an index are in progress at the same time.
//!
//! The operations are tasks of an asynchronous client. The client's thread makes them ready to go
//! on, and the session's thread polls those that are: in [`Session::turn`], which waits until there
//! is one.

use std::collections::VecDeque;
use std::future::Future;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use sprat::kv::{AsyncClient, AsyncIndexedTable, TableId};

use super::session::{ORDER, Opened, Scan, Session, wrong};
use crate::fail::Fail;
use crate::store::Store;

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
fn block_on<T>(future: impl Future<Output = T>) -> T {
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

/// An operation in progress: the number of its records to come.
type Task<'o> = Pin<Box<dyn Future<Output = Result<u64, Fail>> + 'o>>;

/// The operations in progress of one thread, by their tags.
struct Tasks<'o> {
    woken: Arc<Woken>,
    all: Vec<(Option<Task<'o>>, Waker)>,
    running: usize,
    ready: VecDeque<(u32, Result<u64, Fail>)>,
}

impl<'o> Tasks<'o> {
    fn new() -> Self {
        let (woken, ready) = (Woken::of_this_thread(), VecDeque::new());
        Self { woken, all: Vec::new(), running: 0, ready }
    }

    /// Adds a task, and polls it for the first time.
    fn start(&mut self, tag: u32, task: impl Future<Output = Result<u64, Fail>> + 'o) {
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
    fn turn(&mut self) {
        if self.running > 0 && self.ready.is_empty() {
            self.woken.wait().into_iter().for_each(|tag| self.poll(tag));
        }
    }
}

/// A connection to our store by an asynchronous client.
pub(super) struct Pipelined {
    /// The store that explains errors.
    store: Store,
    table: AsyncIndexedTable,
    /// Bytes of a record's value.
    size: usize,
}

impl Pipelined {
    /// Opens a table that has the records in the order of their keys.
    pub(super) fn open(
        store: Store,
        client: &AsyncClient,
        table: TableId,
        size: usize,
    ) -> Result<Self, Fail> {
        let indexed = block_on(client.indexed(&client.table_by_id(table)));
        let explain = |error| store.explain_index(error, "the table of the records");
        let table = indexed.map_err(explain)?;
        Ok(Self { store, table, size })
    }
}

impl Opened for Pipelined {
    type Session<'o> = Tagged<'o>;

    fn session(&mut self) -> Result<Tagged<'_>, Fail> {
        Ok(Tagged { opened: self, tasks: Tasks::new() })
    }
}

/// A session of an asynchronous client.
pub(super) struct Tagged<'o> {
    opened: &'o Pipelined,
    tasks: Tasks<'o>,
}

impl Session for Tagged<'_> {
    fn read(&mut self, key: &[u8], tag: u32) {
        let Pipelined { store, table, size } = self.opened;
        let read = table.table().get(key);
        self.tasks.start(tag, async move {
            let object = read.await.map_err(|error| store.explain(error, "a read"))?;
            match object.map_or(0, |object| object.value.len()) {
                found if found == *size => Ok(1),
                found => Err(wrong(found, *size)),
            }
        });
    }

    fn write(&mut self, key: &[u8], value: &[u8], tag: u32) {
        let store = &self.opened.store;
        let written = self.opened.table.table().put(key, value);
        self.tasks.start(tag, async move {
            written.await.map(|_| 1).map_err(|error| store.explain(error, "a write"))
        });
    }

    fn insert(&mut self, key: &[u8], value: &[u8], tag: u32) -> Result<(), Fail> {
        let Pipelined { store, table, .. } = self.opened;
        let (key, value) = (key.to_vec(), value.to_vec());
        self.tasks.start(tag, async move {
            let written = table.put(&key, &value).await;
            written.map(|_| 1).map_err(|error| store.explain_index(error, "an insert"))
        });
        Ok(())
    }

    fn scan(&mut self, key: &[u8], count: u64, tag: u32) -> Result<(), Fail> {
        let Pipelined { store, table, size } = self.opened;
        let mut scan = Scan::new(key, count, *size);
        self.tasks.start(tag, async move {
            while let Some((range, most)) = scan.next() {
                let page = table.page(ORDER, range, most).await;
                scan.add(page.map_err(|error| store.explain_index(error, "a scan"))?)?;
            }
            Ok(scan.found)
        });
        Ok(())
    }

    fn turn(&mut self) -> Result<(), Fail> {
        self.tasks.turn();
        Ok(())
    }

    fn completed(&mut self) -> Result<Option<(u32, u64)>, Fail> {
        let ended = self.tasks.ready.pop_front();
        ended.map(|(tag, found)| found.map(|found| (tag, found))).transpose()
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
        assert!(matches!(tasks.ready.pop_front(), Some((4, Ok(7)))), "it waits for nothing");
        for (number, tag) in [2, 0, 3, 1].into_iter().enumerate() {
            send.send(Arc::clone(&cells[tag])).expect("the thread lives");
            while tasks.ready.is_empty() {
                tasks.turn();
            }
            let (ended, found) = tasks.ready.pop_front().expect("one has ended");
            assert_eq!((ended as usize, found.ok()), (tag, Some(number as u64)));
        }
        assert_eq!(tasks.running, 0);
        tasks.turn();
        drop(send);
        giver.join().expect("no thread panics");
    }
}
