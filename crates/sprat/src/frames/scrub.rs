//! The thread that verifies replicas on the device.
//!
//! ```text
//!  server ── header of a replica ─► thread: reads header and bytes, with pauses ── outcome ─►
//! ```
//!
//! What the kernel has in memory hides what the device has. So the thread reads with `O_DIRECT`:
//! the kernel first writes what it has changed there, and then asks the device. A file system
//! without `O_DIRECT` is asked to drop its copy first, which it does not do for pages that the
//! server has mapped.
//!
//! Invariants: the thread never touches the mapping, so that an error of the device is an outcome
//! and not the end of the process. It has at most one replica in memory, and only while it verifies
//! one. It reads for at most a 50th of the time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{Advice, fadvise};
use sprat_proto::time::MS;
use sprat_store::backup::{BLOCK, Condition, FrameHeader, flat_slots, verify};
use sprat_sys::clock::Clock;
use sprat_sys::crc::crc32c;

/// The bytes that the thread reads at a time. A disk delivers them in less than a millisecond, so
/// that a sync waits for no more than that.
const CHUNK: usize = 256 << 10;
/// The pause after a read, as a multiple of its time: the thread takes 2 % of the device.
const PAUSES: u64 = 49;
/// The longest pause after a read. A disk that takes longer has other troubles.
const MOST_PAUSE_NS: u64 = 1000 * MS;

/// A replica to verify: the offset in the file of its header, and what has to be there.
struct Order {
    at: u64,
    header: FrameHeader,
}

/// The thread, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Scrubber {
    orders: Option<Sender<Order>>,
    done: Receiver<Condition>,
    thread: Option<JoinHandle<()>>,
}

/// The part that runs in the thread.
struct Reader {
    file: File,
    direct: bool,
    clock: Clock,
    orders: Receiver<Order>,
}

/// The server has ended.
struct Ended;

impl Scrubber {
    /// Starts the thread for a file. `warn` gets a text if the thread cannot read the device.
    ///
    /// # Errors
    /// No thread or file descriptor is left.
    pub(super) fn start(file: &File, name: &str, warn: fn(&str)) -> io::Result<Self> {
        let (file, direct) = reopen(file)?;
        if !direct {
            warn(&format!(
                "{name}: the file system has no direct reads (O_DIRECT); scrubbing may see the \
                 kernel's memory instead of the disk"
            ));
        }
        let (orders, ordered) = channel();
        let (report, done) = channel();
        let reader = Reader { file, direct, clock: Clock::new(), orders: ordered };
        let thread =
            std::thread::Builder::new().name("sprat-scrub".to_owned()).spawn(move || {
                while let Ok(order) = reader.orders.recv() {
                    let Ok(condition) = reader.verify(&order) else { return };
                    if report.send(condition).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { orders: Some(orders), done, thread: Some(thread) })
    }

    /// Begins to verify the replica whose header is at the offset `at` of the file. Returns false
    /// if the thread has ended.
    pub(super) fn verify(&self, at: u64, header: &FrameHeader) -> bool {
        let order = Order { at, header: *header };
        self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok())
    }

    /// Returns the outcome of a verification that has ended.
    pub(super) fn verified(&self) -> Option<Condition> {
        self.done.try_recv().ok()
    }
}

impl Drop for Scrubber {
    /// Waits for the read that is in progress.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens a file anew for reads. Returns true if they are direct. The file may have no name any
/// more.
fn reopen(file: &File) -> io::Result<(File, bool)> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = OpenOptions::new();
    options.read(true);
    match options.clone().custom_flags(libc::O_DIRECT).open(&path) {
        Ok(direct) => Ok((direct, true)),
        Err(_) => Ok((options.open(&path)?, false)),
    }
}

impl Reader {
    /// Verifies a replica.
    fn verify(&self, order: &Order) -> Result<Condition, Ended> {
        let Order { at, header } = order;
        let len = header.replica.map_or(0, |held| held.len as usize);
        let mut memory = vec![0; BLOCK + len.next_multiple_of(BLOCK) + BLOCK];
        // A direct read needs memory whose address is a multiple of the device's block.
        let skipped = memory.as_ptr().align_offset(BLOCK).min(BLOCK);
        let (block, bytes) = memory[skipped..].split_at_mut(BLOCK);
        let header_is_there = self.read(*at, block)?;
        let bytes = &mut bytes[..len.next_multiple_of(BLOCK)];
        let mut are_there = true;
        for (n, chunk) in bytes.chunks_mut(CHUNK).enumerate() {
            are_there &= self.read(at + (BLOCK + n * CHUNK) as u64, chunk)?;
        }
        let slots = flat_slots(block, 0).filter(|_| header_is_there);
        let bytes = bytes.get(..len).filter(|_| are_there);
        Ok(verify(crc32c, header, slots, bytes))
    }

    /// Fills `into`, and pauses. Returns false if the device does not deliver the bytes. Those
    /// behind the end of the file stay as they are.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<bool, Ended> {
        let begun = self.clock.now();
        if !self.direct {
            let len = std::num::NonZeroU64::new(into.len() as u64);
            let _ = fadvise(&self.file, at, len, Advice::DontNeed);
        }
        let mut done = 0;
        let is_there = loop {
            match self.file.read_at(&mut into[done..], at + done as u64) {
                Ok(0) => break true,
                Ok(read) => done += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break false,
            }
            // A direct read goes on at a block only, and ends within one at the end of the file.
            if done == into.len() || !done.is_multiple_of(BLOCK) {
                break true;
            }
        };
        let pause_ns = (self.clock.now().since(begun) * PAUSES).min(MOST_PAUSE_NS);
        match self.orders.recv_timeout(Duration::from_nanos(pause_ns)) {
            Err(RecvTimeoutError::Timeout) => Ok(is_there),
            _ => Err(Ended),
        }
    }
}
