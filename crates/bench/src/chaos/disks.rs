//! Damage to the files of a server that is down: bits that change, files that vanish or come back.
//!
//! docs/formats.md has the layout of the file of frames. Only this file knows it outside of the
//! library, since what damages it must find the bytes in use.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use sprat_proto::Rng;

/// The name of the file of replicas in a server's directory.
const FRAMES: &str = "frames";
/// The bytes of a header of the file or of a frame.
const HEADER: u64 = 4096;
/// The two places of a header's slot.
const SLOTS: [u64; 2] = [0, 2048];
/// The bytes of a slot.
const SLOT: usize = 64;
/// The most frames that one fault damages.
const MOST_DAMAGED: usize = 3;
/// The bytes that are copied at once. Those that are all zero stay a hole.
const CHUNK: usize = 64 << 10;

/// A replica in a file of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Replica {
    /// The offset of the newest slot of the frame's header.
    slot: u64,
    /// The offset and the length of the replica's bytes.
    at: u64,
    len: u64,
}

/// Changes a bit in each of some replicas in a server's directory, or in their headers. Returns the
/// number of changed bits.
///
/// # Errors
/// The file cannot be read or written.
pub(super) fn flip(directory: &Path, rng: &mut Rng) -> io::Result<usize> {
    let file = OpenOptions::new().read(true).write(true).open(directory.join(FRAMES))?;
    let mut replicas = replicas(&file)?;
    let count = replicas.len().min(MOST_DAMAGED);
    for _ in 0..count {
        let replica = replicas.swap_remove(rng.below(replicas.len() as u64) as usize);
        let at = if rng.chance(250_000) {
            replica.slot + rng.below(SLOT as u64)
        } else {
            replica.at + rng.below(replica.len)
        };
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        byte[0] ^= 1 << rng.below(8);
        file.write_all_at(&byte, at)?;
    }
    Ok(count)
}

/// Deletes the replicas in a server's directory.
///
/// # Errors
/// The file cannot be removed.
pub(super) fn delete(directory: &Path) -> io::Result<()> {
    fs::remove_file(directory.join(FRAMES))
}

/// Copies the replicas in a server's directory to the file `copy`.
///
/// # Errors
/// A file cannot be read or written.
pub(super) fn keep(directory: &Path, copy: &Path) -> io::Result<()> {
    sparse_copy(&directory.join(FRAMES), copy)
}

/// Puts a file that [`keep`] has made in the place of a server's replicas.
///
/// # Errors
/// The file cannot be renamed.
pub(super) fn put_back(directory: &Path, copy: &Path) -> io::Result<()> {
    fs::rename(copy, directory.join(FRAMES))
}

/// Returns the replicas in a file of frames.
fn replicas(file: &File) -> io::Result<Vec<Replica>> {
    let mut found = Vec::new();
    let Some((_, header)) = newest(file, 0, b"SPRTBAK2")? else { return Ok(found) };
    let size = u64::from(u32_at(&header, 8));
    let len = file.metadata()?.len();
    let mut frame = HEADER;
    while size > 0 && frame + HEADER + size <= len {
        if let Some((slot, header)) = newest(file, frame, b"SPRTFRM1")? {
            let (used, len) = (header[48] != 0, u64::from(u32_at(&header, 44)).min(size));
            if used && len > 0 {
                found.push(Replica { slot, at: frame + HEADER, len });
            }
        }
        frame += HEADER + size;
    }
    Ok(found)
}

/// Returns the slot of a header with the highest sequence, and its offset.
fn newest(file: &File, header: u64, magic: &[u8; 8]) -> io::Result<Option<(u64, [u8; SLOT])>> {
    let mut found: Option<(u64, [u8; SLOT])> = None;
    for at in SLOTS {
        let mut slot = [0; SLOT];
        file.read_exact_at(&mut slot, header + at)?;
        let is_newer = found.is_none_or(|(_, other)| other[16..24] < slot[16..24]);
        if slot.starts_with(magic) && is_newer {
            found = Some((header + at, slot));
        }
    }
    Ok(found)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn sparse_copy(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (File::open(from)?, File::create(to)?);
    let len = from.metadata()?.len();
    to.set_len(len)?;
    let mut bytes = vec![0; CHUNK];
    let mut at = 0;
    while at < len {
        let read = from.read_at(&mut bytes, at)?;
        if read == 0 {
            break;
        }
        if bytes[..read].iter().any(|byte| *byte != 0) {
            to.write_all_at(&bytes[..read], at)?;
        }
        at += read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u32 = 8192;

    fn slot(magic: &[u8; 8], sequence: u64, number: u32, len: u32, state: u8) -> Vec<u8> {
        let mut slot = vec![0; SLOT];
        slot[..8].copy_from_slice(magic);
        slot[8..12].copy_from_slice(&number.to_be_bytes());
        slot[16..24].copy_from_slice(&sequence.to_be_bytes());
        slot[44..48].copy_from_slice(&len.to_be_bytes());
        slot[48] = state;
        slot
    }

    /// Writes a file of four frames, of which the second one has been freed and the third one has
    /// never been used.
    fn file(directory: &Path) {
        let file = File::create(directory.join(FRAMES)).expect("it is ours");
        let frame = |n: u64| HEADER + n * (HEADER + u64::from(SIZE));
        file.set_len(frame(4)).expect("it is ours");
        let put = |at: u64, slot: &[u8]| file.write_all_at(slot, at).expect("it is ours");
        put(2048, &slot(b"SPRTBAK2", 1, SIZE, 0, 0));
        put(frame(0), &slot(b"SPRTFRM1", 2, 0, 300, 2));
        put(frame(0) + 2048, &slot(b"SPRTFRM1", 1, 0, 100, 1));
        put(frame(1), &slot(b"SPRTFRM1", 2, 1, 300, 1));
        put(frame(1) + 2048, &slot(b"SPRTFRM1", 3, 1, 0, 0));
        put(frame(3) + 2048, &slot(b"SPRTFRM1", 1, 3, SIZE, 1));
    }

    #[test]
    fn replicas_in_use_are_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        file(folder.path());
        let file = File::open(folder.path().join(FRAMES)).expect("it is there");
        let last = HEADER + 3 * (HEADER + u64::from(SIZE));
        let expected = [
            Replica { slot: HEADER, at: 2 * HEADER, len: 300 },
            Replica { slot: last + 2048, at: last + HEADER, len: SIZE.into() },
        ];
        assert_eq!(replicas(&file).expect("it can be read"), expected);
    }

    #[test]
    fn a_flip_changes_a_bit_of_each_replica_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(FRAMES);
        for seed in 0..20 {
            file(folder.path());
            let before = fs::read(&path).expect("it is there");
            let count = flip(folder.path(), &mut Rng::seeded(seed)).expect("it is ours");
            let after = fs::read(&path).expect("it is there");
            let bits = before.iter().zip(&after).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
            assert_eq!((count, bits), (2, 2));
        }
    }

    #[test]
    fn an_old_copy_takes_the_place_of_the_replicas() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let copy = folder.path().join("copy");
        file(folder.path());
        let path = folder.path().join(FRAMES);
        let before = fs::read(&path).expect("it is there");
        keep(folder.path(), &copy).expect("it is ours");
        delete(folder.path()).expect("it is there");
        put_back(folder.path(), &copy).expect("it is ours");
        assert!(fs::read(&path).expect("it is there") == before && !copy.exists());
    }
}
