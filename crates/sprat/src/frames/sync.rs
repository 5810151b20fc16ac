//! The thread that brings what was written to the frames to the disk: at once for a write that is
//! answered when it is on disk, and after a second without orders for the rest.
//!
//! ```text
//!  worker ── Append(seq, batch) ─► thread: direct write to the journal ────── outcome ─► worker
//!         ── Sync(seq) ─► thread: fdatasync of all that was written before ── outcome ─► worker
//!                           └ also when the journal is full, after a second, and at the end
//! ```
//!
//! Invariant: after a failed sync or write no later one counts. The kernel marks the pages that it
//! could not write as clean, so that the next `fdatasync` would succeed without them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use sprat_proto::node::{Pairs, Written};
use sprat_proto::time::US;
use sprat_sys::clock::Clock;
use sprat_sys::memory::file::MappedFile;

use super::journal::JournalFile;
use crate::disk::Disk;

/// The time after which the device has what was written, if it can.
const SYNC: Duration = Duration::from_secs(1);

/// The time after a sync in which the thread looks for the next order without sleep.
const SOON_NS: u64 = 60 * US;

/// The functions by which a file is written to and synced, and by which an error is reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Functions {
    pub(super) write: fn(&mut MappedFile, usize, &[u8]) -> io::Result<()>,
    pub(super) sync: fn(&File) -> io::Result<()>,
    pub(super) warn: fn(&str),
}

/// The state that the server and the thread share.
#[derive(Debug, Default)]
pub(super) struct State {
    /// True if the file was written to since the last sync.
    pub(super) written: AtomicBool,
    pub(super) failed: AtomicBool,
    /// The kind and the text of the first error.
    cause: OnceLock<(io::ErrorKind, String)>,
}

impl State {
    /// Records that the device has failed. Warns of the first error. Returns its text.
    pub(super) fn fail(&self, name: &str, warn: fn(&str), error: &io::Error) -> String {
        let reason = format!("{name}: {error}");
        self.cause.get_or_init(|| (error.kind(), reason.clone()));
        if !self.failed.swap(true, Ordering::AcqRel) {
            warn(&format!("{reason}; the server holds no replicas any more"));
        }
        reason
    }
}

enum Order {
    /// Use this journal from now on.
    Journal(JournalFile),
    /// Write a batch to the journal, for the write to the durable state with this number.
    Append(u64, Vec<u8>),
    /// Sync the file, for the write to the durable state with this number.
    Sync(u64),
    /// Sync the file a last time.
    End,
}

/// The thread, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Syncs {
    orders: Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

/// The disk of the frames, as the worker of their server sees it. What the server persists is a
/// batch for the journal, or is empty and means: all that was written to the frames before.
#[derive(Debug)]
pub(crate) struct FrameDisk {
    orders: Sender<Order>,
    done: Receiver<Written>,
    ready: Arc<OwnedFd>,
    state: Arc<State>,
}

/// The part that runs in the thread.
struct Syncer {
    file: File,
    journal: Option<JournalFile>,
    name: String,
    state: Arc<State>,
    functions: Functions,
    report: Sender<Written>,
    bell: Arc<OwnedFd>,
    /// True if the file had been written to when the last sync began.
    was_written: bool,
    /// True if the worker knows that the disk has failed.
    told: bool,
}

/// Starts the thread that syncs the file with this name.
///
/// # Errors
/// No thread or file descriptor is left.
pub(super) fn start(
    file: File,
    name: String,
    state: Arc<State>,
    functions: Functions,
) -> io::Result<(Syncs, FrameDisk)> {
    let ready = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let (orders, ordered) = channel();
    let (report, done) = channel();
    let bell = Arc::clone(&ready);
    let (journal, was_written, told) = (None, false, false);
    let shared = Arc::clone(&state);
    let syncer = Syncer { file, journal, name, state, functions, report, bell, was_written, told };
    let thread = std::thread::Builder::new()
        .name("sprat-frames".to_owned())
        .spawn(move || syncer.run(&ordered))?;
    let disk = FrameDisk { orders: orders.clone(), done, ready, state: shared };
    Ok((Syncs { orders, thread: Some(thread) }, disk))
}

/// Waits a short time for the next order: while clients write one change after the other, it
/// comes soon, and the thread need not be woken. It yields, for the next order may come from a
/// thread on this processor.
fn next_soon(clock: &Clock, orders: &Receiver<Order>) -> Option<Order> {
    let end = clock.now().after(SOON_NS);
    while clock.now() < end {
        if let Ok(order) = orders.try_recv() {
            return Some(order);
        }
        std::thread::yield_now();
    }
    None
}

impl Syncer {
    fn run(mut self, orders: &Receiver<Order>) {
        let (clock, mut soon) = (Clock::new(), false);
        loop {
            let next = if soon { next_soon(&clock, orders) } else { None };
            let order = next.map_or_else(|| orders.recv_timeout(SYNC), Ok);
            soon = matches!(order, Ok(Order::Sync(_) | Order::Append(..)));
            match order {
                Ok(Order::Sync(seq)) => {
                    let outcome = self.sync();
                    self.report(seq, outcome);
                    continue;
                }
                Ok(Order::Append(seq, batch)) => {
                    let outcome = self.append(&batch);
                    self.report(seq, outcome);
                    continue;
                }
                Ok(Order::Journal(journal)) => {
                    self.journal = Some(journal);
                    continue;
                }
                Ok(Order::End) | Err(_) => {}
            }
            // A write may have found the mark of the one before it, and the last sync may have
            // come between that look and the write.
            if (self.was_written || self.state.written.load(Ordering::Acquire))
                && let Err(reason) = self.sync()
                && !self.told
            {
                // The masters of the replicas have to learn it.
                self.refuse(reason);
            }
            if !matches!(order, Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    /// Reports the outcome of a write to the durable state.
    fn report(&mut self, seq: u64, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.notify(Written::Durable(seq)),
            Err(reason) => self.refuse(reason),
        }
    }

    /// Reports that the disk has failed.
    fn refuse(&mut self, reason: String) {
        self.told = true;
        self.notify(Written::Refused { reason, durable: Pairs::new() });
    }

    /// Hands an outcome to the worker. If the worker is gone, nothing depends on it.
    fn notify(&self, outcome: Written) {
        let _ = self.report.send(outcome);
        let _ = rustix::io::write(&*self.bell, &[0, 0, 0, 0, 0, 0, 0, 1]);
    }

    /// Brings what was written to the disk.
    fn sync(&mut self) -> Result<(), String> {
        self.check()?;
        self.was_written = self.state.written.swap(false, Ordering::AcqRel);
        let synced = (self.functions.sync)(&self.file);
        self.done(synced)?;
        self.journal.iter_mut().for_each(JournalFile::synced);
        Ok(())
    }

    /// Writes a batch to the journal.
    fn append(&mut self, batch: &[u8]) -> Result<(), String> {
        self.check()?;
        if self.journal.as_ref().is_some_and(|journal| !journal.has_room(batch)) {
            self.sync()?;
            let turned = self.journal.as_mut().map_or(Ok(()), JournalFile::turn);
            self.done(turned)?;
        }
        match &mut self.journal {
            Some(journal) => {
                let written = journal.append(batch);
                self.done(written)
            }
            // No batch is made without a journal. The frames have its bytes, too.
            None => self.sync(),
        }
    }

    /// Returns an error if the disk has failed.
    fn check(&self) -> Result<(), String> {
        match self.state.failed.load(Ordering::Acquire) {
            true => Err(format!("{}: the disk has failed", self.name)),
            false => Ok(()),
        }
    }

    /// Handles the result of a system call.
    fn done(&self, result: io::Result<()>) -> Result<(), String> {
        result.map_err(|e| self.state.fail(&self.name, self.functions.warn, &e))
    }
}

impl Drop for Syncs {
    /// Waits for the last sync.
    fn drop(&mut self) {
        let _ = self.orders.send(Order::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl FrameDisk {
    /// Lets batches go to this journal.
    pub(super) fn set_journal(&self, journal: JournalFile) {
        let _ = self.orders.send(Order::Journal(journal));
    }

    /// Returns the error by which the disk has failed, if it has.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.state.cause.get().map(|(kind, text)| io::Error::new(*kind, text.clone()))
    }
}

impl Disk for FrameDisk {
    fn persist(&mut self, seq: u64, mut puts: Pairs, deletes: Vec<Vec<u8>>) {
        debug_assert!(puts.len() <= 1 && deletes.is_empty(), "frames have no keys");
        let batch = puts.pop().map(|(_, batch)| batch);
        // If the thread is gone, the server ends, and nothing waits for the outcome.
        let _ = self.orders.send(match batch {
            Some(batch) => Order::Append(seq, batch),
            None => Order::Sync(seq),
        });
    }

    fn completed(&mut self) -> Option<Written> {
        self.done.try_recv().ok()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.ready, &mut count);
    }
}
