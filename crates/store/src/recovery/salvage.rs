//! The rest of a log whose head is lost, for a recovery that goes on without it.
//!
//! ```text
//!  highest segment with a digest: the base ─► what it names
//!  segments behind the base                ─► all that are listed
//! ```
//!
//! The base was the head before, or is a replica of a head that was given up. A segment before the
//! base that the base does not name was freed: its objects may have been removed since, so that it
//! stays out. Without any base no replica can be told from one that was freed.
//!
//! Invariant: a segment that may have been part of the log is in the result, with or without
//! servers that have it.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::inventory::{Found, Listed, ReadHead, of_digest};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// Returns the segments by id that are left of a log among the replicas that backups have listed.
/// `known` returns the result of a replica that was read before.
///
/// # Errors
/// The replica that must be read first: its backup and its segment.
pub fn salvage<'a>(
    replicas: &[Listed],
    known: impl Fn(ServerId, SegmentId) -> Option<&'a ReadHead>,
) -> Result<Vec<Found>, (ServerId, SegmentId)> {
    let mut of_segments: BTreeMap<SegmentId, Vec<&Listed>> = BTreeMap::new();
    for replica in replicas {
        of_segments.entry(replica.segment).or_default().push(replica);
    }
    let mut behind = Vec::new();
    for (&id, listed) in of_segments.iter().rev() {
        let mut base: Option<(Found, _)> = None;
        for replica in listed {
            let read = known(replica.backup, id).ok_or((replica.backup, id))?;
            let Some(named) = read.named() else { continue };
            match &mut base {
                Some((found, _)) if found.len > read.len() => {}
                Some((found, _)) if found.len == read.len() => found.backups.push(replica.backup),
                _ => {
                    let backups = Vec::from([replica.backup]);
                    base = Some((Found { segment: id, len: read.len(), backups }, named));
                }
            }
        }
        if let Some((base, named)) = base {
            let mut segments: Vec<_> = of_digest(named, &of_segments).collect();
            segments.push(base);
            segments.extend(behind);
            segments.sort_unstable_by_key(|found| found.segment);
            segments.dedup_by_key(|found| found.segment);
            return Ok(segments);
        }
        let len = listed.iter().map(|replica| replica.len).max().unwrap_or(0);
        let longest = listed.iter().filter(|replica| replica.len == len);
        let backups = longest.map(|replica| replica.backup).collect();
        behind.push(Found { segment: id, len, backups });
    }
    behind.reverse();
    Ok(behind)
}
