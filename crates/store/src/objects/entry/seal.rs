//! The checksums of entries, and the replay of a sealed segment.

use sprat_proto::wire::checksum::Crc32c;

use super::{DEAD, Entry, HEAD, RECORD_DEAD, parse};

/// Returns the checksum of the entry that fills `entry`. It continues `seed`: 0 for the header of a
/// segment, the checksum of that header for the other entries.
#[must_use]
pub fn checksum(crc32c: Crc32c, seed: u32, entry: &[u8]) -> u32 {
    // One call for the kind and the length, since most of a call on a few bytes is overhead.
    let head = [entry[0] & !(DEAD | RECORD_DEAD), entry[1], entry[2], entry[3]];
    crc32c(crc32c(seed, &head), &entry[HEAD..])
}

/// Fills in the checksum of the entry at the start of `bytes`, which continues `seed`. Returns the
/// entry's length, or `None` if there is no entry.
pub fn seal(crc32c: Crc32c, seed: u32, bytes: &mut [u8]) -> Option<usize> {
    let (_, len) = parse(bytes)?;
    let crc = checksum(crc32c, seed, &bytes[..len]);
    bytes[4..8].copy_from_slice(&crc.to_be_bytes());
    Some(len)
}

/// A position in a sealed segment, from which its entries are read one by one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Entries {
    at: usize,
    seed: u32,
}

impl Entries {
    /// Returns the offset in the segment of the next entry.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// Skips the entries up to the offset `at`.
    pub(in crate::objects) fn end_at(&mut self, at: usize) {
        self.at = at;
    }

    /// Returns the next entry of `segment` and its offset. Returns `None`, and stays, at the end of
    /// the bytes, or before an entry that is malformed or has a wrong checksum.
    pub fn next<'a>(&mut self, crc32c: Crc32c, segment: &'a [u8]) -> Option<(usize, Entry<'a>)> {
        let rest = segment.get(self.at..)?;
        let (entry, len) = parse(rest)?;
        let (is_first, is_header) = (self.at == 0, matches!(entry, Entry::Header(_)));
        let crc = checksum(crc32c, self.seed, &rest[..len]);
        if rest[4..8] != crc.to_be_bytes() || is_first != is_header {
            return None;
        }
        if is_first {
            self.seed = crc;
        }
        let offset = self.at;
        self.at += len;
        Some((offset, entry))
    }
}

/// Iterates over the entries of a sealed segment, which starts with a header. Ends at the end of
/// the bytes, or before the first entry that is malformed or has a wrong checksum. Each entry comes
/// with its offset in the segment.
pub fn replay(crc32c: Crc32c, segment: &[u8]) -> impl Iterator<Item = (usize, Entry<'_>)> {
    let mut entries = Entries::default();
    core::iter::from_fn(move || entries.next(crc32c, segment))
}
