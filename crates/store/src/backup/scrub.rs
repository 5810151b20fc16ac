//! Scrubbing: the backup verifies its closed replicas on the device, one after the other.
//!
//! ```text
//!  tick ─► next closed replica ─► Frames::verify: header and bytes, from the device ─► outcome
//!    header damaged: written anew          bytes damaged, unreadable: another replica is made
//! ```
//!
//! A bit that changes on a disk shows when something reads it, which may be when the other replicas
//! are gone. What is in the memory of the kernel hides what the device has. So the host of the
//! frames reads the device.
//!
//! Invariants: one replica is verified at a time. An outcome counts for the change of the header
//! that was to be verified: the frame may have another replica since.

use core::ops::Bound;

use sprat_proto::Instant;
use sprat_proto::time::{MS, SECOND};

use super::round::Scrubbed;
use super::{Backup, Condition, FrameHeader, SLOTS};
use crate::objects::segment::SegmentId;
use crate::types::ServerId;

/// The pause between two looks for the outcome of a verification.
const POLL_NS: u64 = 20 * MS;

/// The longest pause before the backup looks again for a replica to verify, if there was none.
const MOST_IDLE_NS: u64 = 60 * SECOND;

impl Backup {
    /// Lets the backup verify each closed replica once in `round_ns`, if the frames outlive the
    /// process.
    pub(crate) fn scrub_each(&mut self, round_ns: u64) {
        if self.file.is_some() {
            (self.round.ns, self.round.due) = (Some(round_ns), Instant::ZERO);
        }
    }

    /// Returns the time of the next call to [`Backup::scrub`].
    pub(crate) fn scrub_deadline(&self) -> Instant {
        self.round.due
    }

    /// Takes the outcome of a verification, and begins the next one if its time has come. Returns
    /// true if a replica is damaged, so that its master has to learn it.
    pub(crate) fn scrub(&mut self, now: Instant) -> bool {
        if now < self.round.due {
            return false;
        }
        let Some(round_ns) = self.round.ns.filter(|_| !self.frames.has_failed()) else {
            self.round.due = Instant::NEVER;
            return false;
        };
        let mut found = false;
        if let Some((id, header)) = self.round.running {
            let Some(condition) = self.frames.verified() else {
                self.round.due = now.after(POLL_NS);
                return false;
            };
            self.round.running = None;
            found = self.verified(id, &header, condition);
            self.round.due = now.after(round_ns / self.replicas.len().max(1) as u64);
            if now < self.round.due {
                return found;
            }
        }
        self.round.running = self.next_to_verify();
        self.round.due = match &self.round.running {
            Some((id, _)) => {
                self.round.last = *id;
                now.after(POLL_NS)
            }
            None => now.after(round_ns.clamp(POLL_NS, MOST_IDLE_NS)),
        };
        found
    }

    /// Begins to verify the next closed replica behind the last one, or else the first one.
    fn next_to_verify(&mut self) -> Option<((ServerId, SegmentId), FrameHeader)> {
        let behind = (Bound::Excluded(self.round.last), Bound::Unbounded);
        let all = self.replicas.range(behind).chain(&self.replicas);
        // What an earlier life has left is freed, or read by a recovery, soon.
        let mut all = all.filter(|(_, r)| r.closed && r.committed && !r.damaged && !r.left);
        let (&id, replica) = all.next()?;
        let header = self.header_of(id, replica)?;
        self.frames.verify(&header).then_some((id, header))
    }

    /// Takes the condition of a replica whose frame had to have this header. Returns true if the
    /// replica is damaged.
    fn verified(
        &mut self,
        id: (ServerId, SegmentId),
        header: &FrameHeader,
        condition: Condition,
    ) -> bool {
        let Some(replica) = self.replicas.get(&id).copied() else { return false };
        if self.header_of(id, &replica) != Some(*header) || replica.damaged {
            return false;
        }
        self.round.counts.bytes += u64::from(replica.len);
        self.round.counts.damaged += u64::from(condition.is_damaged());
        match condition {
            Condition::Sound | Condition::Cut(_) => false,
            // The bytes are sound, and this process knows what the header has to say.
            Condition::Slot | Condition::Header => {
                (0..SLOTS).for_each(|_| self.record(replica.frame, Some((id, &replica))));
                false
            }
            Condition::Bytes(_) => {
                self.mark_damaged(id);
                true
            }
            Condition::Unreadable => {
                // A write to a part of a page of a mapped file reads the page first, and ends the
                // process if the device does not deliver it.
                self.retired.insert(replica.frame);
                self.mark_damaged(id);
                true
            }
        }
    }

    /// Returns the numbers of what was verified.
    pub(crate) fn scrubbed(&self) -> Scrubbed {
        self.round.counts
    }
}
