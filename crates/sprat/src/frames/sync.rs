//! The thread that brings what was written to the frames to the disk: at once for a write that is
//! answered when it is on disk, and each second for the rest.
//!
//! ```text
//!  worker ── Sync(seq) ─► thread: fdatasync of all that was written before ── outcome ─► worker
//!                           └ also a second after the last one, and at the end
//! ```
//!
//! Invariant: after a failed sync no later one counts. The kernel marks the pages that it could not
//! write as clean, so that the next `fdatasync` would succeed without them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use sprat_proto::node::{Pairs, Written};
use sprat_proto::time::US;
use sprat_sys::clock::Clock;

use crate::disk::Disk;

/// The time after which the device has what was written, if it can.
const SYNC: Duration = Duration::from_secs(1);

/// The time after a sync in which the thread looks for the next order without sleep.
const SOON_NS: u64 = 60 * US;

/// The functions by which a file is synced, and by which an error is reported.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    pub(super) sync: fn(&File) -> io::Result<()>,
    pub(super) warn: fn(&str),
}

/// The state that the server and the thread share.
#[derive(Debug, Default)]
pub(super) struct State {
    /// True if the file was written to since the last sync.
    pub(super) written: AtomicBool,
    pub(super) failed: AtomicBool,
}

enum Order {
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

/// The disk of the frames, as the worker of their server sees it. What the server persists is empty
/// and means: all that was written to the frames before.
#[derive(Debug)]
pub(crate) struct FrameDisk {
    orders: Sender<Order>,
    done: Receiver<Written>,
    ready: Arc<OwnedFd>,
}

/// The part that runs in the thread.
struct Syncer {
    file: File,
    name: String,
    state: Arc<State>,
    functions: Functions,
    report: Sender<Written>,
    bell: Arc<OwnedFd>,
    /// True if the file had been written to when the last sync began.
    was_written: bool,
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
    let syncer = Syncer { file, name, state, functions, report, bell, was_written: false };
    let thread = std::thread::Builder::new()
        .name("sprat-frames".to_owned())
        .spawn(move || syncer.run(&ordered))?;
    let disk = FrameDisk { orders: orders.clone(), done, ready };
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
            soon = matches!(order, Ok(Order::Sync(_)));
            if let Ok(Order::Sync(seq)) = order {
                let outcome = match self.sync() {
                    Ok(()) => Written::Durable(seq),
                    Err(reason) => Written::Refused { reason, durable: Pairs::new() },
                };
                // If the worker is gone, nothing depends on the outcome.
                let _ = self.report.send(outcome);
                let _ = rustix::io::write(&*self.bell, &[0, 0, 0, 0, 0, 0, 0, 1]);
                continue;
            }
            // A write may have found the mark of the one before it, and the last sync may have
            // come between that look and the write.
            if self.was_written || self.state.written.load(Ordering::Acquire) {
                let _ = self.sync();
            }
            if !matches!(order, Err(RecvTimeoutError::Timeout)) {
                return;
            }
        }
    }

    /// Brings what was written to the disk. Warns of the first error.
    fn sync(&mut self) -> Result<(), String> {
        let Functions { sync, warn } = self.functions;
        let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", self.name);
        if self.state.failed.load(Ordering::Acquire) {
            return Err(failed(&"the disk has failed"));
        }
        self.was_written = self.state.written.swap(false, Ordering::AcqRel);
        sync(&self.file).map_err(|e| {
            self.state.failed.store(true, Ordering::Release);
            let reason = failed(&e);
            warn(&format!("{reason}; the server holds no replicas any more"));
            reason
        })
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

impl Disk for FrameDisk {
    fn persist(&mut self, seq: u64, puts: Pairs, deletes: Vec<Vec<u8>>) {
        debug_assert!(puts.is_empty() && deletes.is_empty(), "frames have no keys");
        // If the thread is gone, the server ends, and nothing waits for the outcome.
        let _ = self.orders.send(Order::Sync(seq));
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
