//! The frames of a server's replicas in a file: they survive the process, also `kill -9`.
//!
//! ```text
//!  backup ── bytes, headers ─► mapped file ── fdatasync, by a thread ─► device
//!         ── batch ─► journal: direct write, by the same thread ──────► device
//!         ◄── condition of a replica ── direct reads, by another thread ─────┘
//! ```
//!
//! The journal is the file `journal` beside it. A server whose replies wait for the disk has one.
//!
//! Always holds:
//! - One process has the file, by a lock. That proves that the last process is dead.
//! - The file has the blocks of a frame before the frame is used, so that no write to it lacks
//!   room: a page of the mapping without a block would end the process with SIGBUS on a full disk.
//!   The file grows with its frames, since a new cluster would take its whole share of a disk else.
//! - After an error of the device no frame is used any more: the kernel forgets what it could not
//!   write.
//! - What an earlier process has written is read by system calls before it is read in the mapping,
//!   where an error of the device would be SIGBUS. A frame that cannot be read is not used.
//!
//! Not here: what the bytes mean ([`sprat_store::backup`]); when they are on the device ([`sync`]);
//! whether they still are ([`scrub`]).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, statfs};
use rustix::io::{Errno, retry_on_intr};
use sprat_store::backup::{
    Condition, FileHeader, FlatFrames, Found, FrameHeader, JournalContent, JournalWriter, Storage,
    Unusable, flat_bytes, flat_header, replay, set_journal,
};
use sprat_sys::crc::crc32c;
use sprat_sys::memory::file::{MappedFile, lock};

use self::journal::JournalFile;
use self::scrub::Scrubber;
use self::sync::{Functions, State, Syncs};
use crate::disk::sync_folder;
use crate::random::rng;

pub(crate) mod check;
mod journal;
mod scrub;
mod sync;
pub(crate) use self::journal::JOURNAL_BYTES;
pub(crate) use self::sync::FrameDisk;

/// The number of times that a lock is tried again, and the pause before each.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// The most bytes that are read at once to see whether the device delivers them.
const READ: usize = 128 << 10;

/// The frames of a server in a file.
pub(crate) type FileFrames = FlatFrames<FrameFile>;

/// A mapped file, and the thread that syncs it.
#[derive(Debug)]
pub(crate) struct FrameFile {
    /// The thread that syncs the file. It ends before the lock does.
    _syncs: Syncs,
    /// The thread that reads the device, once it was needed.
    scrubber: Option<Scrubber>,
    memory: MappedFile,
    /// The end of the bytes whose blocks the file has. Further bytes may have blocks too.
    reserved: u64,
    /// True if the last warning was that the disk is full.
    full: bool,
    name: String,
    functions: Functions,
    state: Arc<State>,
}

/// Opens the frames in the file at `path`, or makes the file with at least `count` frames of `size`
/// bytes. Frames of another size stay as they are. `warn` gets a text if the device fails later.
/// The disk brings what was written to the device. If `waits`, replies wait for it, and it has a
/// journal in the file at `journal`, unless the file system has no direct writes.
///
/// # Errors
/// A file cannot be read, written or locked, the device has no room, or the file holds something
/// else. The error names the file.
pub(crate) fn open(
    (path, journal): (&Path, &Path),
    size: u32,
    count: u32,
    waits: bool,
    warn: fn(&str),
) -> io::Result<(FileFrames, FrameDisk)> {
    let named =
        |path: &Path, e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    let (mut frames, disk, file) =
        open_or_make(path, size, count, warn).map_err(|e| named(path, e))?;
    let opened = open_journal(journal, (&mut frames, &disk), &file, waits);
    let opened = opened.map_err(|e| named(journal, e))?;
    match opened {
        Some(journal) => disk.set_journal(journal),
        None if waits => warn(&format!(
            "{}: the file system has no direct writes, which make changes faster",
            journal.display()
        )),
        None => {}
    }
    Ok((frames, disk))
}

/// Brings what a journal has into the frames, whose file is `file`. Returns the journal to go on
/// with, if one is wanted and the file system has direct writes.
fn open_journal(
    path: &Path,
    (frames, disk): (&mut FileFrames, &FrameDisk),
    file: &File,
    wanted: bool,
) -> io::Result<Option<JournalFile>> {
    let FileHeader { journal: left, batches, .. } = frames.file_header();
    let region = if left == 0 { Vec::new() } else { journal::read(path)? };
    let content = JournalContent::parse(crc32c, left, batches, &region);
    let mut replayed = replay(crc32c, frames, &content);
    if let Some(e) = disk.failure() {
        return Err(io::Error::new(
            e.kind(),
            format!(
                "its records cannot be brought into the frames: {e}; make the disk work and start \
                 the server again, or name another directory: the cluster uses other replicas then"
            ),
        ));
    }
    let goes_on = wanted && region.len() as u64 == JOURNAL_BYTES;
    if left != 0 {
        // The records are not needed any more.
        file.sync_data()?;
        if !goes_on {
            set_journal(crc32c, frames, 0, 0);
            file.sync_data()?;
        }
    }
    let opened = match if wanted { journal::open(path)? } else { journal::remove(path)? } {
        Some(direct) if goes_on => Some((left, JournalFile::new(direct, left, &content))),
        Some(direct) => {
            let number = rng()?.u64() as u32 | 1;
            let mut opened = JournalFile::new(direct, number, &JournalContent::default());
            // With a batch that the frames name, the loss of the file is noticed.
            opened.turn()?;
            Some((number, opened))
        }
        None => None,
    };
    let opened = opened.map(|(number, opened)| {
        set_journal(crc32c, frames, number, opened.last());
        replayed.begin(JournalWriter::most(JOURNAL_BYTES));
        opened
    });
    if opened.is_some() {
        file.sync_data()?;
    }
    frames.set_journal(replayed);
    Ok(opened)
}

/// Returns the frames, their disk, and their file.
fn open_or_make(
    path: &Path,
    size: u32,
    count: u32,
    warn: fn(&str),
) -> io::Result<(FileFrames, FrameDisk, File)> {
    let mut options = OpenOptions::new();
    // The replicas hold the users' objects.
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NONBLOCK);
    let file = options.clone().create(true).truncate(false).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the frames must be a regular file",
        ));
    }
    lock_soon(&file)?;
    let len = file.metadata()?.len();
    // All bytes are zero if no process has finished making the file.
    let made = if len == 0 { Found::Nothing } else { first_header(&file)? };
    let (size, count) = match made {
        Found::Header(header) => {
            let needed = flat_bytes(header.frame_bytes, header.count);
            if len < needed {
                return Err(unusable(Unusable::Short(needed)));
            }
            (header.frame_bytes, header.count.max(count))
        }
        Found::Nothing => (size, count),
        Found::Damaged => return Err(unusable(Unusable::Foreign)),
    };
    can_reserve(&file)?;
    let bytes = flat_bytes(size, count);
    if bytes > len {
        file.set_len(bytes)?;
    }
    file.sync_all()?;
    sync_folder(path)?;
    let (is_new, same_file) = (made == Found::Nothing, file.try_clone()?);
    let (storage, disk) = FrameFile::start(
        MappedFile::map(file)?,
        path.display().to_string(),
        Functions { write: MappedFile::write, sync: File::sync_data, warn },
    )?;
    let frames = if is_new {
        FlatFrames::format(crc32c, storage, size, count)
    } else {
        FlatFrames::open(crc32c, storage, count)
    };
    frames.map(|frames| (frames, disk, same_file)).map_err(unusable)
}

/// Locks a file. A process that was killed keeps its lock until the kernel has freed its memory, so
/// that this waits for a while.
#[expect(clippy::disallowed_methods, reason = "the end of the other process gives no sign")]
fn lock_soon(file: &File) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match lock(file) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy && tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            locked => return locked,
        }
    }
}

/// Returns the header at the start of a file.
fn first_header(file: &File) -> io::Result<Found<FileHeader>> {
    let mut block = vec![0; 4096];
    let read = file.read_at(&mut block, 0)?;
    block.truncate(read);
    Ok(flat_header(crc32c, &block))
}

fn unusable(why: Unusable) -> io::Error {
    let text = match why {
        Unusable::Foreign => {
            "this is no file of frames, or one of another version; name another directory"
                .to_owned()
        }
        Unusable::Short(needed) => format!("the file was cut off: its frames need {needed} bytes"),
        Unusable::Size(size) => format!("frames of {size} bytes cannot be used"),
        Unusable::NoRoom => {
            let text = "the disk has no room for it";
            return io::Error::new(io::ErrorKind::StorageFull, text);
        }
    };
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// Checks that the file system can reserve room for a file.
fn can_reserve(file: &File) -> io::Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, 1) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the file system cannot reserve room (fallocate); name a directory on ext4 or XFS",
        )),
        // A full disk, among others, shows when the room is taken.
        _ => Ok(()),
    }
}

impl FrameFile {
    /// Starts the thread that syncs the file with this name.
    fn start(
        memory: MappedFile,
        name: String,
        functions: Functions,
    ) -> io::Result<(Self, FrameDisk)> {
        let state = Arc::new(State::default());
        let file = memory.file().try_clone()?;
        let (syncs, disk) = sync::start(file, name.clone(), Arc::clone(&state), functions)?;
        let (reserved, full, _syncs, scrubber) = (0, false, syncs, None);
        Ok((Self { _syncs, scrubber, memory, reserved, full, name, functions, state }, disk))
    }
}

impl Storage for FrameFile {
    fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    fn delivers(&self, at: usize, len: usize) -> bool {
        let read = read_through(self.memory.file(), at as u64, len);
        let warn = |e: &io::Error| {
            (self.functions.warn)(&format!(
                "{}: the {len} bytes at {at} cannot be read: {e}; the server goes on without this \
                 frame",
                self.name
            ));
        };
        read.inspect_err(warn).is_ok()
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> bool {
        if !self.state.written.load(Ordering::Relaxed) {
            self.state.written.store(true, Ordering::Release);
        }
        let written = (self.functions.write)(&mut self.memory, at, bytes);
        written.map_err(|e| self.state.fail(&self.name, self.functions.warn, &e)).is_ok()
    }

    fn reserve(&mut self, end: usize) -> bool {
        let end = end as u64;
        if end <= self.reserved {
            return true;
        }
        let (from, flags) = (self.reserved, FallocateFlags::empty());
        let taken = retry_on_intr(|| fallocate(self.memory.file(), flags, from, end - from));
        match taken {
            Ok(()) => (self.reserved, self.full) = (end, false),
            Err(e) if !self.full => {
                self.full = true;
                let e = io::Error::from(e);
                (self.functions.warn)(&format!(
                    "{}: {e}; the server takes no more replicas",
                    self.name
                ));
            }
            Err(_) => {}
        }
        taken.is_ok()
    }

    fn verify(&mut self, at: u64, header: &FrameHeader) -> bool {
        if self.scrubber.is_none() {
            self.scrubber =
                Scrubber::start(self.memory.file(), &self.name, self.functions.warn).ok();
        }
        self.scrubber.as_ref().is_some_and(|scrubber| scrubber.verify(at, header))
    }

    fn verified(&mut self) -> Option<Condition> {
        self.scrubber.as_ref()?.verified()
    }

    fn has_failed(&self) -> bool {
        self.state.failed.load(Ordering::Relaxed)
    }
}

/// Reads bytes of a file by system calls, whose errors end no process. A read of the mapping finds
/// them in the kernel's memory then.
fn read_through(file: &File, at: u64, len: usize) -> io::Result<()> {
    let mut bytes = vec![0; len.min(READ)];
    let end = at + len as u64;
    (at..end).step_by(READ).try_for_each(|from| {
        let len = bytes.len().min((end - from) as usize);
        file.read_exact_at(&mut bytes[..len], from)
    })
}

/// Returns a number of this run of the machine, which differs from those of earlier runs.
///
/// # Errors
/// The kernel does not tell the id of this run.
pub(crate) fn boot() -> io::Result<u64> {
    let path = "/proc/sys/kernel/random/boot_id";
    let id = std::fs::read_to_string(path)
        .map_err(|e| io::Error::new(e.kind(), format!("{path}: {e}")))?;
    let digits = id.chars().filter_map(|digit| digit.to_digit(16));
    Ok(digits.fold(0, |number: u64, digit| number.rotate_left(4) ^ u64::from(digit)))
}

/// Returns a warning about the file system of a directory, if it keeps data less well than a local
/// disk, or is not tested.
///
/// # Errors
/// The directory cannot be examined.
pub(crate) fn warning(directory: &Path) -> io::Result<Option<&'static str>> {
    Ok(warning_for(statfs(directory)?.f_type as u64))
}

fn warning_for(file_system: u64) -> Option<&'static str> {
    // `statfs(2)` has the numbers.
    match file_system {
        0x0102_1994 => Some("it lies in memory (tmpfs): a reboot loses the data"),
        0x9123_683E => Some("btrfs copies what is rewritten: a full disk can end the servers"),
        0x6969 => Some("it lies on NFS, with which Sprat is not tested"),
        0x794C_7630 => Some("it lies on overlayfs: removing the container loses the data"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
