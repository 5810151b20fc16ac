//! The state file in the file system: it is opened, locked and read, and then gets one record after
//! the other.
//!
//! What always holds:
//! - A record counts once `fdatasync` has returned. One that did not fit leaves no trace: the next
//!   one takes its place.
//! - The file's blocks are there before a record is written, and [`RESERVE`] bytes more, which only
//!   the first record of a process may use: so a coordinator can be started on a full disk.
//! - One process has the file: a lock of the open file, which ends with the process.
//! - A record counts only while the file is found at its path: what is written to a file that was
//!   removed or replaced ends with the process.
//!
//! Not here: what the bytes mean ([`sprat_store::coordinator::statefile`]), and the thread that
//! calls this.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use sprat_store::coordinator::statefile::{self, AREA, Body, Damage, Log, Opened, Pairs, Piece};
use sprat_sys::memory::file::lock_shared;

/// The number of bytes by which the state file grows: growing for each record would cost as much
/// time as the record.
const GROWTH: u64 = 64 << 10;
/// The number of bytes behind the log that the first record after a start may use.
const RESERVE: u64 = 4096;
/// The longest state file that is read, in bytes. The greatest state that the coordinator's limits
/// allow has some 100 MB.
const LONGEST: u64 = 1 << 30;
/// The log's bytes, beyond twice the last checkpoint, from which on a checkpoint is due.
const LOG_BYTES: u64 = 1 << 20;

/// The reason why a change was not written to the state file.
#[derive(Debug)]
pub(super) enum Failure {
    /// The change does not fit, or the file is not at its path any more. The file is unchanged.
    Refused(io::Error),
    /// A write or sync failed, so that the contents of the disk are unknown.
    Broken(io::Error),
}

/// An open state file with its log.
#[derive(Debug)]
pub(super) struct StateFile {
    file: File,
    path: PathBuf,
    log: Log,
    /// The offset up to which the file has blocks.
    allocated: u64,
    /// The length of the log at which the next checkpoint is due.
    checkpoint_at: u64,
    /// True if nothing was appended since the file was opened.
    untouched: bool,
    /// The offset behind which a simulated full disk gives the file no blocks.
    #[cfg(test)]
    pub(super) room: std::sync::Arc<std::sync::atomic::AtomicU64>,
    /// The number of writes and syncs that succeed before the simulated disk fails.
    #[cfg(test)]
    pub(super) sound: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

/// Reads the state file at `path` without a change. Returns the number of its entries.
///
/// # Errors
/// The file cannot be read, a process uses it (`ResourceBusy`), or it is damaged or no state file
/// (`InvalidData`).
pub fn check_state(path: &Path) -> io::Result<usize> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no regular file"));
    }
    lock_shared(&file)?;
    Ok(read(&file)?.pairs.len())
}

impl StateFile {
    /// Opens the state file at `path` and reads its pairs. Makes the file if there is none.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Pairs)> {
        let mut options = OpenOptions::new();
        // The file holds the secrets under which tables hash their keys.
        options.read(true).write(true).mode(0o600).custom_flags(libc::O_NONBLOCK);
        match options.clone().create_new(true).open(path) {
            Ok(file) => {
                let made = prepare(&file)
                    .and_then(|()| sync_folder(path))
                    .and_then(|()| Self::take(file, path));
                // Half a file would be taken for a damaged one.
                made.inspect_err(|_| drop(std::fs::remove_file(path)))
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                Self::take(options.open(path)?, path)
            }
            Err(e) => Err(e),
        }
    }

    /// Locks an open state file and reads its pairs.
    fn take(file: File, path: &Path) -> io::Result<(Self, Pairs)> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the state must be a regular file",
            ));
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
            Errno::WOULDBLOCK => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another process has it open")
            }
            e => e.into(),
        })?;
        let Opened { pairs, log, unsealed } = read(&file)?;
        let mut this = Self {
            allocated: file.metadata()?.len(),
            checkpoint_at: next_checkpoint(log.len()),
            file,
            path: path.to_owned(),
            log,
            untouched: true,
            #[cfg(test)]
            room: std::sync::Arc::new(u64::MAX.into()),
            #[cfg(test)]
            sound: std::sync::Arc::new(u64::MAX.into()),
        };
        // Perhaps the last process was killed between a write and its sync.
        if let Some(piece) = unsealed {
            this.write(&piece)?;
            this.sync()?;
        }
        this.seal()?;
        this.sync()?;
        Ok((this, pairs))
    }

    /// Writes changes to the state file, all or nothing. They are on the disk when this returns.
    pub(super) fn append(&mut self, body: &Body) -> Result<(), Failure> {
        if body.is_empty() {
            return Ok(());
        }
        let Some(record) = self.log.record(body) else {
            let text = "the change is longer than a record may be";
            return Err(Failure::Refused(io::Error::new(io::ErrorKind::FileTooLarge, text)));
        };
        self.in_place().map_err(Failure::Refused)?;
        let reserve = if self.untouched { 0 } else { RESERVE };
        self.grow(record.end() + reserve)
            .and_then(|()| self.write(&record))
            .map_err(|e| if no_room(&e) { Failure::Refused(e) } else { Failure::Broken(e) })?;
        // The kernel forgets what it could not write: a second try would succeed and prove nothing.
        self.sync().map_err(Failure::Broken)?;
        self.log.wrote(&record);
        self.untouched = false;
        self.seal_if_room().map_err(Failure::Broken)?;
        if self.log.len() >= self.checkpoint_at {
            self.checkpoint().map_err(Failure::Broken)?;
        }
        Ok(())
    }

    /// Reads the pairs of the file again.
    pub(super) fn pairs(&self) -> io::Result<Pairs> {
        Ok(read(&self.file)?.pairs)
    }

    /// Writes the length of the log into both superblocks. They are on the disk at the latest with
    /// the next record.
    fn seal(&mut self) -> io::Result<()> {
        for _ in 0..2 {
            let piece = self.log.seal();
            self.write(&piece)?;
        }
        Ok(())
    }

    /// Writes the log's length into the superblocks, or leaves that for later if the disk has no
    /// room (on file systems that never write in place): the records are valid without it.
    fn seal_if_room(&mut self) -> io::Result<()> {
        self.seal().or_else(|e| if no_room(&e) { Ok(()) } else { Err(e) })
    }

    /// Writes a checkpoint, which begins a new generation of the log. Leaves that for later if
    /// there is no room.
    fn checkpoint(&mut self) -> io::Result<()> {
        let (mut log, pieces) = self.log.checkpoint(&self.pairs()?);
        let end = log.end().max(AREA);
        let written =
            self.grow(end + RESERVE).and_then(|()| pieces.iter().try_for_each(|p| self.write(p)));
        match written {
            Err(e) if no_room(&e) => {
                self.checkpoint_at = self.log.len() + LOG_BYTES;
                return Ok(());
            }
            written => written?,
        }
        self.sync()?;
        for _ in 0..2 {
            let piece = log.seal();
            self.write(&piece)?;
            self.sync()?;
        }
        self.log = log;
        self.checkpoint_at = next_checkpoint(self.log.len());
        // A checkpoint at the front leaves the generation before it behind.
        self.allocated = self.allocated.min(end + GROWTH);
        self.file.set_len(self.allocated)
    }

    /// Allocates blocks of the file up to the offset `end`.
    fn grow(&mut self, end: u64) -> io::Result<()> {
        if end <= self.allocated {
            return Ok(());
        }
        let plenty = (end + GROWTH).next_multiple_of(RESERVE);
        let taken = self.take_blocks(plenty);
        if taken.as_ref().is_err_and(no_room) {
            return self.take_blocks(end);
        }
        taken
    }

    fn take_blocks(&mut self, end: u64) -> io::Result<()> {
        #[cfg(test)]
        if end > self.room.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(Errno::NOSPC.into());
        }
        match fallocate(&self.file, FallocateFlags::empty(), self.allocated, end - self.allocated) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                let zeros = vec![0; (end - self.allocated) as usize];
                self.file.write_all_at(&zeros, self.allocated)?;
            }
            Err(e) => return Err(e.into()),
        }
        self.allocated = end;
        Ok(())
    }

    fn write(&self, piece: &Piece) -> io::Result<()> {
        #[cfg(test)]
        self.fault()?;
        self.file.write_all_at(&piece.bytes, piece.at)
    }

    fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        self.fault()?;
        self.file.sync_data()
    }

    /// Fails if the test's simulated disk has failed.
    #[cfg(test)]
    fn fault(&self) -> io::Result<()> {
        use std::sync::atomic::Ordering::SeqCst;
        let left = self.sound.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| Errno::IO.into())
    }

    /// Checks that the path still names this file. The error says that the file was removed or
    /// replaced.
    fn in_place(&self) -> io::Result<()> {
        let own = self.file.metadata()?;
        let what = match std::fs::metadata(&self.path) {
            Ok(there) if (there.dev(), there.ino()) == (own.dev(), own.ino()) => return Ok(()),
            Ok(_) => "replaced",
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                "removed"
            }
            // The file may be there. The next start says what is wrong with the path.
            Err(_) => return Ok(()),
        };
        let (process, file) = (std::process::id(), self.file.as_raw_fd());
        Err(io::Error::other(format!(
            "the file was {what} while in use; put it back, or copy /proc/{process}/fd/{file} \
             there and start the coordinator anew"
        )))
    }
}

impl Drop for StateFile {
    /// Unlocks the file: a child that is about to run another program has a copy of the descriptor,
    /// and the lock is the open file's.
    fn drop(&mut self) {
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

/// Makes an empty file a state file without pairs.
///
/// # Errors
/// It cannot be written.
pub(super) fn prepare(file: &File) -> io::Result<()> {
    let mut log = Log::new();
    file.write_all_at(&[0; AREA as usize], 0)?;
    for _ in 0..2 {
        let piece = log.seal();
        file.write_all_at(&piece.bytes, piece.at)?;
    }
    file.sync_all()
}

fn read(file: &File) -> io::Result<Opened> {
    let len = file.metadata()?.len();
    if len > LONGEST {
        return Err(damaged(format_args!(
            "the file has {len} bytes, and no state has more than {LONGEST}"
        )));
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    statefile::read(&bytes).map_err(|damage: Damage| damaged(damage))
}

/// Syncs the folder of `path`, so that the file's new name is on the disk.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new("."))).and_then(|folder| folder.sync_all())
}

fn next_checkpoint(len: u64) -> u64 {
    2 * len + LOG_BYTES
}

/// True if the error says that there is no room, or that the file system is read-only. The file is
/// then unchanged.
fn no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge | ReadOnlyFilesystem)
}

fn damaged(what: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}
