//! Baselines of a disk: group commits by a program that does nothing else.
//!
//! A batch has the records of all writers, which wait for its commit and then write the next one at
//! once. One committer copies the batch into a file and syncs it, in one of two ways:
//!
//! ```text
//!  mapped   copy into a mapped file, or pwrite of a long record · a header that counts it ·
//!           fdatasync
//!  direct   copy into a buffer of whole blocks · pwrite with O_DIRECT and O_DSYNC
//!           more than a mebibyte: several pwrites with O_DIRECT · fdatasync
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use sprat_sys::memory::file::MappedFile;

use super::{Limits, sample};

/// The bytes of a block: direct writes have whole ones.
const BLOCK: usize = 4096;
/// The bytes of the file that a measurement writes again and again, at least: the disk finds no
/// room for new ones then.
const FILE: usize = 64 << 20;
/// The most bytes of one direct write.
const MOST: usize = 1 << 20;
/// The offsets of a header's slots, which take turns.
const SLOT: usize = 2048;
const SLOT_BYTES: usize = 64;

/// The records that are committed together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch {
    /// The number of records.
    pub records: usize,
    /// The bytes of one record.
    pub bytes: usize,
}

impl Batch {
    fn all(self) -> usize {
        self.records * self.bytes
    }

    fn blocks(self) -> usize {
        self.all().next_multiple_of(BLOCK)
    }
}

/// Measures group commits through a mapped file in `folder`. Returns the nanoseconds of each.
///
/// # Errors
/// A system call failed.
pub fn commit_mapped(folder: &Path, batch: Batch, limits: Limits) -> io::Result<Vec<u32>> {
    let file = tempfile_in(folder, 0)?;
    let len = FILE.max(BLOCK + 2 * batch.blocks());
    fallocate(&file, FallocateFlags::empty(), 0, len as u64)?;
    file.sync_all()?;
    let mut memory = MappedFile::map(file)?;
    let record = vec![1; batch.bytes];
    let (mut at, mut slot) = (BLOCK, 0);
    sample(limits, || {
        if at + batch.all() > memory.bytes().len() {
            at = BLOCK;
        }
        for n in 0..batch.records {
            memory.write(at + n * batch.bytes, &record)?;
        }
        memory.write(slot, &[at as u8; SLOT_BYTES])?;
        (at, slot) = (at + batch.all(), SLOT - slot);
        memory.file().sync_data()
    })
}

/// Measures group commits by direct writes to a file in `folder`. Returns the nanoseconds of each.
///
/// # Errors
/// A system call failed, or the file system has no direct writes.
pub fn commit_direct(folder: &Path, batch: Batch, limits: Limits) -> io::Result<Vec<u32>> {
    let is_one = batch.blocks() <= MOST;
    let sync = if is_one { libc::O_DSYNC } else { 0 };
    let file = tempfile_in(folder, libc::O_DIRECT | sync)?;
    let len = FILE.max(2 * batch.blocks()) as u64;
    let record = vec![1; batch.bytes];
    let mut memory = vec![0; batch.blocks().max(MOST) + BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    fallocate(&file, FallocateFlags::empty(), 0, len)?;
    // The first write to a block that was only reserved takes longer. Few long writes: each waits
    // for the disk.
    let mut at = 0;
    while at < len {
        at += file.write_at(&memory[start..start + MOST], at)? as u64;
    }
    file.sync_all()?;
    at = 0;
    sample(limits, || {
        if at + batch.blocks() as u64 > len {
            at = 0;
        }
        let bytes = &mut memory[start..start + batch.blocks()];
        for to in bytes.chunks_exact_mut(batch.bytes).take(batch.records) {
            to.copy_from_slice(&record);
        }
        for part in bytes.chunks(MOST) {
            file.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        if is_one { Ok(()) } else { file.sync_data() }
    })
}

/// Opens a file in `folder` that has no name and ends with this process.
fn tempfile_in(folder: &Path, flags: i32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE | flags).open(folder)
}
