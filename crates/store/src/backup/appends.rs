//! The bytes that were appended to replicas since the last sync began: what the next one must bring
//! to the disk.
//!
//! A batch for the journal carries them, unless a replica was opened or closed, or has another
//! epoch, or they are many: then the frames are synced.

use alloc::collections::BTreeMap;

use super::journal::Batch;
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The offset of the first new byte of each replica.
pub(super) type Offsets = BTreeMap<(ServerId, SegmentId), u32>;

/// The state of a replica that a write may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stage {
    pub(super) len: u32,
    pub(super) epoch: u32,
    pub(super) committed: bool,
    pub(super) closed: bool,
}

/// The appended bytes of replicas.
#[derive(Debug)]
pub(super) struct Appends {
    /// The most bytes of a batch.
    most: usize,
    /// True if the frames have to be synced.
    all: bool,
    /// The replicas with new bytes.
    from: Offsets,
}

impl Appends {
    /// Returns that the frames have to be synced, since nothing is known of them.
    pub(super) fn new(most: usize) -> Self {
        Self { most, all: true, from: BTreeMap::new() }
    }

    /// Adds a write that changed a replica from `before` to `after`. `sync` is true if its reply
    /// waits for the disk.
    pub(super) fn add(
        &mut self,
        id: (ServerId, SegmentId),
        before: Option<Stage>,
        after: Stage,
        sync: bool,
    ) {
        let appends =
            |before: &Stage| before.committed && Stage { len: after.len, ..*before } == after;
        match before.filter(appends) {
            Some(before) if before.len < after.len => {
                self.from.entry(id).or_insert(before.len);
            }
            Some(_) => {}
            // A replica that does not count need not be durable.
            None => self.all |= after.committed || sync,
        }
    }

    /// Returns an empty batch, and the offset of the first new byte of each replica that it has to
    /// carry. `None` if the frames have to be synced. Then nothing has been appended.
    pub(super) fn take(&mut self) -> Option<(Batch, Offsets)> {
        let from = core::mem::take(&mut self.from);
        let all = core::mem::take(&mut self.all);
        (!all).then(|| (Batch::new(self.most), from))
    }

    #[cfg(test)]
    pub(super) fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Forgets a replica that is freed.
    pub(super) fn remove(&mut self, id: (ServerId, SegmentId)) {
        self.from.remove(&id);
    }
}
