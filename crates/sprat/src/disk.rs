//! [`Disk`], the durable state of one machine as its worker sees it, and [`StateDisk`], a state
//! file, written by a thread of its own so that a slow disk never stops the worker.
//!
//! [`Disk::persist`] hands a write in, and [`Disk::completed`] returns its outcome. Writes that
//! wait together are committed together, in order.
//!
//! Always holds: if a write does not fit, all writes that were handed in before [`Disk::completed`]
//! reports it are refused too, since each may depend on the one before.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use sprat_proto::node::{Pairs, Written};
use sprat_store::coordinator::statefile::Body;

use self::file::{Failure, StateFile};

mod address;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
pub use self::address::{EtcdError, EtcdOptions, State};
#[cfg(feature = "etcd")]
pub(crate) use self::etcd::EtcdDisk;
pub use self::file::check_state;
pub(crate) use self::file::sync_folder;
#[cfg(test)]
mod tests;

/// The most bytes, about, of writes that the disk's thread commits together.
const TOGETHER: usize = 256 << 10;

struct Write {
    /// The number of refused writes that the machine knew of when it handed this one in.
    refusals: u64,
    seq: u64,
    puts: Pairs,
    deletes: Vec<Vec<u8>>,
}

/// The durable state of a machine. Its writes take place outside the worker's thread.
pub trait Disk: Debug + Send {
    /// Begins a write, all or nothing, after all writes before it. [`Disk::completed`] returns its
    /// outcome.
    fn persist(&mut self, seq: u64, puts: Pairs, deletes: Vec<Vec<u8>>);

    /// Returns the outcome of writes. `None` if there is no new outcome.
    fn completed(&mut self) -> Option<Written>;

    /// The descriptor that is readable when [`Disk::completed`] has something new since
    /// [`Disk::clear`].
    fn fd(&self) -> BorrowedFd<'_>;

    /// Makes [`Disk::fd`] unreadable until there is a new outcome. Call it before the last call of
    /// [`Disk::completed`].
    fn clear(&self);
}

/// A state file, and the thread that writes it.
#[derive(Debug)]
pub struct StateDisk {
    writes: Option<Sender<Write>>,
    refusals: u64,
    done: Receiver<Written>,
    ready: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    name: String,
}

impl StateDisk {
    /// Opens the state file at `path` and reads its pairs. Makes the file if there is none.
    ///
    /// # Errors
    /// The file cannot be read or written, is damaged or no state file, or another process has it
    /// open.
    pub fn open(path: &Path) -> io::Result<(Self, Pairs)> {
        let name = path.display().to_string();
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{name}: {e}"));
        let (file, pairs) = StateFile::open(path).map_err(named)?;
        Ok((Self::over(file, name)?, pairs.into_iter().collect()))
    }

    /// Makes a disk over an open state file, and starts the thread that writes to it.
    fn over(file: StateFile, name: String) -> io::Result<Self> {
        let ready = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (writes, queue) = channel();
        let (report, done) = channel();
        let writer =
            Writer { file, report, bell: Arc::clone(&ready), name: name.clone(), refusals: 0 };
        let thread = std::thread::Builder::new()
            .name("sprat-disk".to_owned())
            .spawn(move || writer.run(&queue))?;
        Ok(Self { writes: Some(writes), refusals: 0, done, ready, thread: Some(thread), name })
    }

    /// Makes an empty file a state file without pairs. A file without a name needs this, since
    /// [`StateDisk::open`] cannot make it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn prepare(file: &File) -> io::Result<()> {
        file::prepare(file)
    }
}

impl Disk for StateDisk {
    fn persist(&mut self, seq: u64, puts: Pairs, deletes: Vec<Vec<u8>>) {
        if let Some(writes) = &self.writes {
            // If the thread is gone, `completed` says why.
            let _ = writes.send(Write { refusals: self.refusals, seq, puts, deletes });
        }
    }

    fn completed(&mut self) -> Option<Written> {
        match self.done.try_recv() {
            Ok(outcome) => {
                self.refusals += u64::from(matches!(outcome, Written::Refused { .. }));
                if let Written::Failed(_) = outcome {
                    // The thread ends, which must not count as another failure.
                    self.writes = None;
                }
                Some(outcome)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => self
                .writes
                .take()
                .map(|_| Written::Failed(format!("{}: it is written no more", self.name))),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.ready, &mut count);
    }
}

impl Drop for StateDisk {
    /// Waits until all writes are finished.
    fn drop(&mut self) {
        self.writes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The part of a disk that runs in the thread that writes.
struct Writer {
    file: StateFile,
    report: Sender<Written>,
    bell: Arc<OwnedFd>,
    name: String,
    /// The number of writes that were refused because they did not fit.
    refusals: u64,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Write>) {
        while let Ok(first) = queue.recv() {
            let mut body = Body::default();
            let (mut last, mut next) = (None, Some(first));
            while let Some(write) = next.take() {
                // Written before the machine knew of the last refusal: it may rest on what was
                // refused.
                if write.refusals == self.refusals {
                    if !add(&mut body, &write) {
                        return self.fail("a key or value is too long");
                    }
                    last = Some(write.seq);
                }
                next = if body.len() < TOGETHER { queue.try_recv().ok() } else { None };
            }
            let Some(seq) = last else { continue };
            let outcome = match self.file.append(&body) {
                Ok(()) => Written::Durable(seq),
                Err(Failure::Refused(why)) => match self.file.pairs() {
                    Ok(durable) => {
                        self.refusals += 1;
                        let reason = format!("{}: {why}", self.name);
                        Written::Refused { reason, durable: durable.into_iter().collect() }
                    }
                    Err(e) => return self.fail(e),
                },
                Err(Failure::Broken(e)) => return self.fail(e),
            };
            self.tell(outcome);
        }
    }

    fn fail(&self, why: impl std::fmt::Display) {
        self.tell(Written::Failed(format!("{}: {why}", self.name)));
    }

    fn tell(&self, outcome: Written) {
        // If the disk is dropped, nothing depends on the outcome.
        let _ = self.report.send(outcome);
        let _ = rustix::io::write(&*self.bell, &[0, 0, 0, 0, 0, 0, 0, 1]);
    }
}

/// Adds the changes of a write to the record `body`. Returns false if one is too long for the
/// format.
fn add(body: &mut Body, write: &Write) -> bool {
    write.puts.iter().all(|(key, value)| body.put(key, value))
        && write.deletes.iter().all(|key| body.delete(key))
}
