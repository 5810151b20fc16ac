//! The inventory of a log: which segments it has, and which replicas have them.
//!
//! ```text
//!  valid open replicas ─► head: the lowest segment with header and digest, its longest replica
//!  digest and changes of the head ─► the other segments, and the least length of each
//!  each has a replica with that many intact bytes ─► found
//! ```
//!
//! The log ends in a segment that is open on all its backups: the master opens the next one
//! everywhere before it closes the last, and writes no entry to the next one before the last is
//! closed everywhere. So of several open segments the lowest has the end. Survivors are open too,
//! but have no digest.
//!
//! Invariants:
//! - The log is found whole, or not at all. An entry that is not intact is never skipped.
//! - A replica whose bytes are not intact up to its length does not end the log: what is behind
//!   the damage may have been acknowledged. Each write to a replica ends with an entry.
//! - An open replica of an epoch that its master has given up says nothing about the end of the
//!   log. The bytes of any replica are those of the segment, so that it may serve for a segment
//!   whose length the digest has.
//! - A segment that the digest does not name is never part of the log: its replica may be one that
//!   was freed and came back.
//!
//! A master that fills a new replica of its head gives it the epoch that makes it valid by the
//! write that completes it, or a recovery could take the beginning for the whole.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::Crc32c;

use crate::objects::entry::{self, Entry};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The log to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Crashed {
    /// The id of the cluster that the crashed master belonged to.
    pub cluster: u64,
    /// The crashed master, which owned the log.
    pub master: ServerId,
    /// The segment before which no open replica is valid.
    pub head_segment: SegmentId,
    /// The lowest epoch of a valid open replica of that segment.
    pub head_epoch: u32,
}

/// A replica that a backup has listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The server that holds the replica.
    pub backup: ServerId,
    /// The segment of which this is a replica.
    pub segment: SegmentId,
    /// The epoch of the last write to the replica.
    pub epoch: u32,
    /// The length of the replica in bytes.
    pub len: u32,
    /// True if the replica is complete.
    pub closed: bool,
}

/// The result of a search for a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inventory {
    /// There are intact replicas of all segments of the log.
    Found {
        /// The segment in which the log ends.
        head: SegmentId,
        /// Each segment of the log once, the head included, by id: the backup with an intact
        /// replica, and the number of bytes to replay.
        segments: Vec<(SegmentId, ServerId, u32)>,
    },
    /// The log cannot be recovered from these replicas.
    Missing {
        /// True if there is no head, so that nothing is known about the log.
        head: bool,
        /// The segments of the log without an intact replica.
        segments: Vec<SegmentId>,
    },
}

/// The parsed bytes of a replica: how much of it is intact, and what a digest there names.
///
/// The default is that of a replica that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadHead {
    /// The number of intact bytes at the start of the replica.
    len: u32,
    /// True if an entry behind them is damaged.
    damaged: bool,
    /// The other segments of the log with their lengths, if the replica is intact up to a digest.
    named: Option<BTreeMap<SegmentId, u32>>,
}

impl ReadHead {
    /// Parses the first `bytes` of a replica of the segment `id`.
    #[must_use]
    pub fn parse(crc32c: Crc32c, crashed: &Crashed, id: SegmentId, bytes: &[u8]) -> Self {
        let len = intact(crc32c, crashed, id, bytes);
        Self {
            len: len as u32,
            damaged: len < bytes.len(),
            named: named(crc32c, id, &bytes[..len]),
        }
    }

    /// Returns this result for the first bytes of a longer replica, which may end within an entry.
    #[must_use]
    pub fn of_a_part(self) -> Self {
        Self { damaged: false, ..self }
    }

    /// Returns true if an entry of the replica is damaged.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.damaged
    }

    /// Returns true if the bytes begin with the header and the digest of a head.
    #[must_use]
    pub fn has_digest(&self) -> bool {
        self.named.is_some()
    }

    /// Returns the number of intact bytes at the start of the replica.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the other segments of the log with their lengths, if the replica is intact up to a
    /// digest.
    pub(super) fn named(&self) -> Option<&BTreeMap<SegmentId, u32>> {
        self.named.as_ref()
    }
}

/// A segment of a log, and the servers that have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The id of the segment.
    pub segment: SegmentId,
    /// The number of bytes of the segment to replay.
    pub len: u32,
    /// The servers whose replicas have at least that many bytes. If there is none, the segment is
    /// missing. The bytes of the head are intact, and those of other segments may not be.
    pub backups: Vec<ServerId>,
}

/// The state of a search for a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Search {
    /// The search continues after this replica of this segment is read.
    Read(ServerId, SegmentId),
    /// None of the replicas is a head, so that nothing is known about the log.
    NoHead,
    /// The segments of the log are known.
    Log {
        /// The segment in which the log ends.
        head: SegmentId,
        /// The segments of the log by id, each once, the head included.
        segments: Vec<Found>,
    },
}

/// Searches for the log of `crashed` among the replicas that backups have listed. `known` returns
/// the result of a replica that was read before.
pub fn search<'a>(
    crashed: &Crashed,
    replicas: &[Listed],
    known: impl Fn(ServerId, SegmentId) -> Option<&'a ReadHead>,
) -> Search {
    let mut of_segments: BTreeMap<SegmentId, Vec<&Listed>> = BTreeMap::new();
    for replica in replicas {
        of_segments.entry(replica.segment).or_default().push(replica);
    }
    for (&id, replicas) in &of_segments {
        let has_open = |replica: &&Listed| is_valid_open(crashed, replica);
        if !replicas.iter().any(has_open) {
            continue;
        }
        let (head, named) = match find_head(crashed, id, replicas, &known) {
            Ok(Some(head)) => head,
            Ok(None) => continue,
            Err(backup) => return Search::Read(backup, id),
        };
        let mut segments: Vec<_> = of_digest(named, &of_segments).collect();
        let at = segments.partition_point(|other| other.segment < id);
        segments.insert(at, head);
        return Search::Log { head: id, segments };
    }
    Search::NoHead
}

/// Returns the segments that a digest names, with the servers of those replicas that are long
/// enough.
pub(super) fn of_digest(
    named: &BTreeMap<SegmentId, u32>,
    of_segments: &BTreeMap<SegmentId, Vec<&Listed>>,
) -> impl Iterator<Item = Found> {
    named.iter().map(|(&segment, &len)| {
        let listed = of_segments.get(&segment).map_or(&[][..], |replicas| replicas);
        let long_enough = listed.iter().filter(|replica| replica.len >= len);
        Found { segment, len, backups: long_enough.map(|replica| replica.backup).collect() }
    })
}

/// Finds the log of `crashed` among the replicas that backups have listed. `read` returns the bytes
/// of a replica, or `None` if the backup cannot. It is called at most twice for each replica.
pub fn inventory<B: AsRef<[u8]>>(
    crc32c: Crc32c,
    crashed: &Crashed,
    replicas: &[Listed],
    mut read: impl FnMut(ServerId, SegmentId) -> Option<B>,
) -> Inventory {
    let mut known = BTreeMap::new();
    let (head, log) = loop {
        match search(crashed, replicas, |backup, id| known.get(&(backup, id))) {
            Search::Read(backup, id) => {
                let is_it = |listed: &&Listed| (listed.backup, listed.segment) == (backup, id);
                let len = replicas.iter().find(is_it).map_or(0, |listed| listed.len as usize);
                let bytes = read(backup, id);
                let bytes = bytes.as_ref().map_or(&[][..], AsRef::as_ref);
                let bytes = &bytes[..bytes.len().min(len)];
                known.insert((backup, id), ReadHead::parse(crc32c, crashed, id, bytes));
            }
            Search::NoHead => return Inventory::Missing { head: true, segments: Vec::new() },
            Search::Log { head, segments } => break (head, segments),
        }
    };
    let mut segments = Vec::new();
    let mut missing = Vec::new();
    for Found { segment, len, backups } in log {
        let intact = backups.into_iter().find(|&backup| {
            segment == head
                || read(backup, segment).is_some_and(|bytes| {
                    let bytes = bytes.as_ref().get(..len as usize);
                    bytes.is_some_and(|b| intact(crc32c, crashed, segment, b) == b.len())
                })
        });
        match intact {
            Some(backup) => segments.push((segment, backup, len)),
            None => missing.push(segment),
        }
    }
    if missing.is_empty() {
        Inventory::Found { head, segments }
    } else {
        Inventory::Missing { head: false, segments: missing }
    }
}

/// Returns true if `replica` can be the end of the log.
fn is_valid_open(crashed: &Crashed, replica: &Listed) -> bool {
    let least = (crashed.head_segment, crashed.head_epoch);
    !replica.closed && (replica.segment, replica.epoch) >= least
}

/// A head, and the other segments of the log with their lengths.
type Head<'a> = (Found, &'a BTreeMap<SegmentId, u32>);

/// Returns the head with the id `id` as its longest intact replicas have it, and the other segments
/// of the log, if a valid open replica of it is intact up to the digest.
///
/// # Errors
/// The backup whose replica must be read first.
fn find_head<'a>(
    crashed: &Crashed,
    id: SegmentId,
    replicas: &[&Listed],
    known: &impl Fn(ServerId, SegmentId) -> Option<&'a ReadHead>,
) -> Result<Option<Head<'a>>, ServerId> {
    let mut longest: Option<Head<'_>> = None;
    let mut is_head = false;
    for &&replica in replicas {
        let is_open = is_valid_open(crashed, &replica);
        if !is_open && !replica.closed {
            continue;
        }
        let read = known(replica.backup, id).ok_or(replica.backup)?;
        let (len, Some(named), false) = (read.len, &read.named, read.damaged) else { continue };
        is_head |= is_open;
        match &mut longest {
            Some((found, _)) if found.len > len => {}
            Some((found, _)) if found.len == len => found.backups.push(replica.backup),
            _ => {
                let backups = Vec::from([replica.backup]);
                longest = Some((Found { segment: id, len, backups }, named));
            }
        }
    }
    Ok(longest.filter(|_| is_head))
}

/// Returns the number of bytes of whole entries with correct checksums at the start of a replica of
/// the segment `id`; 0 if they are another segment's.
fn intact(crc32c: Crc32c, crashed: &Crashed, id: SegmentId, bytes: &[u8]) -> usize {
    let mut end = 0;
    for (at, entry) in entry::replay(crc32c, bytes) {
        if let Entry::Header(header) = entry
            && (header.cluster, header.server, header.segment)
                != (crashed.cluster, crashed.master, id)
        {
            return 0;
        }
        end = at + entry::parse(&bytes[at..]).map_or(0, |(_, len)| len);
    }
    end
}

/// Returns the segments that the head `id` names by its digest and its changes, with their least
/// lengths; `None` if no digest follows the header.
fn named(crc32c: Crc32c, id: SegmentId, bytes: &[u8]) -> Option<BTreeMap<SegmentId, u32>> {
    let mut entries = entry::replay(crc32c, bytes).map(|(_, entry)| entry).skip(1);
    let Some(Entry::Digest(digest)) = entries.next() else { return None };
    let mut named: BTreeMap<_, _> = digest.segments().collect();
    for entry in entries {
        let Entry::Change(change) = entry else { continue };
        for (segment, len) in change.segments() {
            match len {
                0 => named.remove(&segment),
                _ => named.insert(segment, len),
            };
        }
    }
    named.remove(&id);
    Some(named)
}
