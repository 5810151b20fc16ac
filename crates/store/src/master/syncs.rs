//! The writes to replicas that are answered when they are on disk.
//!
//! ```text
//!  write ─► frame, header ─► waits ─► a sync begins ─► carried ─► it ends ─► reply
//! ```
//!
//! One sync is in progress at a time. It carries all writes that were made before it began. The
//! next one begins at once if writes wait (group commit).
//!
//! Invariants: no write is answered by a sync that began before its bytes were in the frame. The
//! number of writes that wait is bounded.

use alloc::vec::Vec;

use sprat_proto::node::machine::Caller;

/// The most writes that wait for the disk. Each master has at most one for each of its replicas
/// here, and a repetition of it.
const MAX_WAITING: usize = 1 << 12;

/// A write to a replica that is answered when it is on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiting {
    pub(crate) caller: Caller,
    /// The length of the replica, for the reply.
    pub(crate) len: u32,
}

/// The writes that wait for the disk, and the sync that is in progress.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    /// The number of the last sync, which is that of its write to the durable state.
    last: u64,
    in_progress: bool,
    /// The writes that the sync in progress carries.
    carried: Vec<Waiting>,
    /// The writes that the next sync will carry.
    waiting: Vec<Waiting>,
}

impl Syncs {
    /// Returns true if no further write can wait.
    pub(crate) fn is_full(&self) -> bool {
        self.carried.len() + self.waiting.len() >= MAX_WAITING
    }

    /// Adds a write whose bytes are in their frame.
    pub(crate) fn add(&mut self, write: Waiting) {
        self.waiting.push(write);
    }

    /// Returns the number of syncs that have begun.
    pub(super) fn begun(&self) -> u64 {
        self.last
    }

    /// Returns true if [`Syncs::begin`] has a sync to begin.
    pub(super) fn is_due(&self) -> bool {
        !self.in_progress && !self.waiting.is_empty()
    }

    /// Returns the number of the sync to begin now, if writes wait and none is in progress.
    pub(super) fn begin(&mut self) -> Option<u64> {
        if !self.is_due() {
            return None;
        }
        self.in_progress = true;
        self.last += 1;
        core::mem::swap(&mut self.carried, &mut self.waiting);
        Some(self.last)
    }

    /// Ends the sync with this number. Returns the writes that it carried.
    pub(super) fn synced(&mut self, seq: u64) -> Vec<Waiting> {
        if !self.in_progress || seq < self.last {
            return Vec::new();
        }
        self.in_progress = false;
        core::mem::take(&mut self.carried)
    }

    /// Ends all syncs: the disk has failed. Returns all writes that wait.
    pub(super) fn failed(&mut self) -> Vec<Waiting> {
        self.in_progress = false;
        let mut all = core::mem::take(&mut self.carried);
        all.append(&mut self.waiting);
        all
    }
}

#[cfg(test)]
mod tests {
    use sprat_proto::Instant;
    use sprat_proto::rpc::ServerRpc;

    use super::*;

    fn write(rpc: u64) -> Waiting {
        Waiting { caller: Caller { transport: 0, rpc: ServerRpc(rpc), at: Instant::ZERO }, len: 7 }
    }

    #[test]
    fn a_sync_carries_the_writes_before_it_and_no_others() {
        let mut syncs = Syncs::default();
        assert_eq!(syncs.begin(), None);
        syncs.add(write(1));
        syncs.add(write(2));
        assert_eq!(syncs.begin(), Some(1));
        syncs.add(write(3));
        assert_eq!((syncs.begin(), syncs.is_due()), (None, false), "one at a time");
        assert_eq!(syncs.synced(1), [write(1), write(2)]);
        assert_eq!(syncs.synced(1), [], "it has ended");
        assert_eq!(syncs.begin(), Some(2));
        assert_eq!(syncs.synced(1), [], "an earlier one does not count");
        assert_eq!(syncs.synced(2), [write(3)]);
        assert!(!syncs.is_due());
    }

    #[test]
    fn after_a_failure_nothing_waits() {
        let mut syncs = Syncs::default();
        syncs.add(write(1));
        syncs.begin();
        syncs.add(write(2));
        assert_eq!(syncs.failed(), [write(1), write(2)]);
        assert_eq!((syncs.begin(), syncs.synced(1)), (None, Vec::new()));
    }

    #[test]
    fn the_number_of_writes_that_wait_is_bounded() {
        let mut syncs = Syncs::default();
        (0..MAX_WAITING as u64 / 2).for_each(|rpc| syncs.add(write(rpc)));
        syncs.begin();
        assert!(!syncs.is_full());
        (0..MAX_WAITING as u64 / 2).for_each(|rpc| syncs.add(write(rpc)));
        assert!(syncs.is_full(), "those that a sync carries count");
    }
}
