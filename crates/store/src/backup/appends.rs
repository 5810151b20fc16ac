//! The bytes that were appended to replicas since the last sync began: what the next one must bring
//! to the disk.
//!
//! A batch for the journal carries them, unless a replica was opened or closed, or has another
//! epoch, or they are many: then the frames are synced.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::journal::{Batch, Record};
use super::{Backup, Replica};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The appended bytes of replicas.
#[derive(Debug)]
pub(super) struct Appends {
    /// The most bytes of a batch.
    most: usize,
    /// True if the frames have to be synced.
    all: bool,
    /// The offsets of the first new byte of each replica.
    from: BTreeMap<(ServerId, SegmentId), u32>,
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
        before: Option<&Replica>,
        after: &Replica,
        sync: bool,
    ) {
        let state = |replica: &Replica| (replica.epoch, replica.committed, replica.closed);
        match before.filter(|before| before.committed && state(before) == state(after)) {
            Some(before) if before.len < after.len => {
                self.from.entry(id).or_insert(before.len);
            }
            Some(_) => {}
            // A replica that does not count need not be durable.
            None => self.all |= after.committed || sync,
        }
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

impl Backup {
    /// Returns the batch that brings all writes to replicas since the last call to the disk. `None`
    /// if the frames have to be synced for it.
    pub(crate) fn take_batch(&mut self) -> Option<Vec<u8>> {
        let appends = self.appends.as_mut()?;
        let from = core::mem::take(&mut appends.from);
        if core::mem::take(&mut appends.all) {
            return None;
        }
        let mut batch = Batch::new(appends.most);
        for ((master, segment), offset) in from {
            let Some(replica) = self.replicas.get(&(master, segment)) else { continue };
            let &Replica { frame, epoch, len: end, .. } = replica;
            let sequence = self.sequences.get(frame as usize).copied()?;
            let data = self.frames.bytes(frame).get(offset as usize..end as usize)?;
            let len = end - offset;
            let record = Record { frame, epoch, sequence, master, segment, offset, len };
            if !batch.push(&record, data) {
                return None;
            }
        }
        batch.finish()
    }
}
