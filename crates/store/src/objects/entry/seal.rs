//! The checksums of entries, and the replay of a sealed segment.

use sprat_proto::wire::checksum::Crc32c;

use super::{DEAD, Entry, HEAD, RECORD_DEAD, parse};

/// Returns the checksum of the entry that fills `entry`. It continues `seed`: 0 for the header of a
/// segment, the checksum of that header for the other entries.
#[must_use]
pub fn checksum(crc32c: Crc32c, seed: u32, entry: &[u8]) -> u32 {
    let kind = entry[0] & !(DEAD | RECORD_DEAD);
    crc32c(crc32c(crc32c(seed, &[kind]), &entry[1..4]), &entry[HEAD..])
}

/// Fills in the checksum of the entry at the start of `bytes`, which continues `seed`. Returns the
/// entry's length, or `None` if there is no entry.
pub fn seal(crc32c: Crc32c, seed: u32, bytes: &mut [u8]) -> Option<usize> {
    let (_, len) = parse(bytes)?;
    let crc = checksum(crc32c, seed, &bytes[..len]);
    bytes[4..8].copy_from_slice(&crc.to_be_bytes());
    Some(len)
}

/// Iterates over the entries of a sealed segment, which starts with a header. Ends at the end of
/// the bytes, or before the first entry that is malformed or has a wrong checksum. Each entry comes
/// with its offset in the segment.
pub fn replay(crc32c: Crc32c, segment: &[u8]) -> impl Iterator<Item = (usize, Entry<'_>)> {
    let (mut at, mut seed) = (0, 0);
    core::iter::from_fn(move || {
        let rest = segment.get(at..)?;
        let (entry, len) = parse(rest)?;
        let (is_first, is_header) = (at == 0, matches!(entry, Entry::Header(_)));
        let crc = checksum(crc32c, seed, &rest[..len]);
        if rest[4..8] != crc.to_be_bytes() || is_first != is_header {
            return None;
        }
        if is_first {
            seed = crc;
        }
        let offset = at;
        at += len;
        Some((offset, entry))
    })
}
