//! The file of a journal: direct writes of whole blocks, each durable when it returns.
//!
//! Always holds: the file has its full length and no block of it is a hole, so that no write
//! changes anything but bytes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use sprat_store::backup::{BLOCK, JournalContent, JournalWriter};
use sprat_sys::crc::crc32c;

use crate::disk::sync_folder;

/// The bytes of a journal. When it is full, the frames are synced: a busy server writes as much
/// within a second or two.
pub(crate) const JOURNAL_BYTES: u64 = 64 << 20;
/// The bytes of a read or a write of the whole file, and at least those of a batch.
const PART: usize = 1 << 20;

/// Memory for direct writes.
#[derive(Debug)]
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// Makes `len` bytes, all zero, that begin at a block of memory.
    fn new(len: usize) -> Self {
        let bytes = vec![0; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start }
    }

    fn first(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

/// The file of a journal, and the place of the next batch in it.
#[derive(Debug)]
pub(super) struct JournalFile {
    file: File,
    writer: JournalWriter,
    buffer: Aligned,
}

/// Returns the bytes of the journal at `path`, as far as the device delivers them. They are empty
/// if there is no file.
///
/// # Errors
/// The file cannot be opened.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the journal is no regular file"));
    }
    let mut bytes = vec![0; meta.len().min(JOURNAL_BYTES) as usize];
    for (part, bytes) in bytes.chunks_mut(PART).enumerate() {
        // What cannot be read counts as lost, like what is not intact.
        let _ = file.read_exact_at(bytes, (part * PART) as u64);
    }
    Ok(bytes)
}

/// Opens the file of a journal for direct writes, and makes it if there is none of the full length.
/// `None` if the file system has no direct writes.
///
/// # Errors
/// The file cannot be opened, or the device has no room or fails.
pub(super) fn open(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options.custom_flags(libc::O_NONBLOCK | libc::O_DIRECT | libc::O_DSYNC);
    let file = match options.clone().create(true).truncate(false).open(path) {
        Ok(file) => file,
        // The kernel makes the file before it refuses direct writes to it.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) => return remove(path),
        Err(e) => return Err(e),
    };
    if file.metadata()?.len() < JOURNAL_BYTES {
        fallocate(&file, FallocateFlags::empty(), 0, JOURNAL_BYTES)?;
        // The first write to a block that was only reserved would take longer.
        let mut zeros = Aligned::new(PART);
        for part in 0..JOURNAL_BYTES / PART as u64 {
            file.write_all_at(zeros.first(PART), part * PART as u64)?;
        }
        file.sync_all()?;
        sync_folder(path)?;
    }
    Ok(Some(file))
}

/// Removes the file of a journal that is not needed any more, if there is one. Returns no file.
///
/// # Errors
/// The file cannot be removed.
pub(super) fn remove(path: &Path) -> io::Result<Option<File>> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(None),
    }
}

impl JournalFile {
    /// Goes on behind the content of a file. The frames have been synced since it was written.
    pub(super) fn new(file: File, journal: u32, content: &JournalContent<'_>) -> Self {
        let writer = JournalWriter::new(crc32c, journal, JOURNAL_BYTES, content);
        let buffer = Aligned::new(JournalWriter::most(JOURNAL_BYTES).next_multiple_of(BLOCK));
        Self { file, writer, buffer }
    }

    /// Records that everything in earlier batches is durable in the frames.
    pub(super) fn synced(&mut self) {
        self.writer.synced();
    }

    /// Returns the number of the last batch.
    pub(super) fn last(&self) -> u64 {
        self.writer.last()
    }

    pub(super) fn has_room(&self, batch: &[u8]) -> bool {
        self.writer.has_room(batch.len())
    }

    /// Begins at the start of the file again. The frames have been synced since the last batch.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) fn turn(&mut self) -> io::Result<()> {
        let block = self.buffer.first(BLOCK);
        let at = self.writer.turn(block);
        self.file.write_all_at(block, at)
    }

    /// Writes a batch. It is durable when this returns.
    ///
    /// # Errors
    /// The device has failed.
    pub(super) fn append(&mut self, batch: &[u8]) -> io::Result<()> {
        let buffer = self.buffer.first(batch.len().next_multiple_of(BLOCK));
        buffer[..batch.len()].copy_from_slice(batch);
        buffer[batch.len()..].fill(0);
        let at = self.writer.seal(buffer, batch.len());
        self.file.write_all_at(buffer, at)
    }
}
