//! Reads the headers of the rings in a server's directory without a change, to see what the next
//! start of the server does with them.
//!
//! A server that is killed leaves its rings, and the writes in them count. The bytes are read by
//! system calls, not in a mapping. Not here: the records, which the next start reads.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use sprat_sys::ring::may_resume;

use super::{BOOT_AT, BYTES, MAGIC, MAGIC_AT, rings_in};
use crate::frames::boot;

/// The bytes that say what a file is: the control block's position and the ring's header.
const HEADER: usize = BOOT_AT + 8;

/// The condition of a ring that an earlier process has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingCondition {
    /// The next start of the server takes what is in the ring.
    Sound,
    /// The ring is of an earlier run of the machine. The next start removes it unread.
    Earlier,
    /// The process ended before it had offered the ring to anyone. The next start removes it.
    Unfinished,
    /// The file is too short or too long, or its header is damaged. The next start removes it, and
    /// what was posted there is lost.
    Damaged,
}

/// The file of a ring, its length in bytes, and its condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedRing {
    /// The path of the file.
    pub path: PathBuf,
    /// The length of the file in bytes.
    pub bytes: u64,
    /// The condition of the ring.
    pub condition: RingCondition,
}

/// Examines the rings in a server's directory, in the order of their names.
///
/// # Errors
/// The directory cannot be read, or the kernel does not tell what run of the machine this is.
pub fn check(directory: &Path) -> io::Result<Vec<CheckedRing>> {
    let (boot, mut paths) = (boot()?, rings_in(directory)?);
    paths.sort();
    Ok(paths.into_iter().map(|path| examine(path, boot)).collect())
}

#[expect(clippy::host_endian_bytes, reason = "a ring is memory of this machine")]
fn examine(path: PathBuf, boot: u64) -> CheckedRing {
    let mut header = [0; HEADER];
    let read = File::open(&path).and_then(|file| {
        let bytes = file.metadata()?.len();
        let whole = bytes == BYTES as u64 && file.read_exact_at(&mut header, 0).is_ok();
        Ok((bytes, whole))
    });
    let word = |at: usize| header[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
    let condition = match read {
        Ok((0, _)) => RingCondition::Unfinished,
        Ok((_, true)) => match (word(MAGIC_AT), word(BOOT_AT)) {
            // The magic number is written last.
            (0, _) => RingCondition::Unfinished,
            (MAGIC, own) if own != boot => RingCondition::Earlier,
            (MAGIC, _) if may_resume(word(0)) => RingCondition::Sound,
            _ => RingCondition::Damaged,
        },
        _ => RingCondition::Damaged,
    };
    CheckedRing { path, bytes: read.map_or(0, |(bytes, _)| bytes), condition }
}
