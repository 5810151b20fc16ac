//! A simulated disk: it completes writes in order after a delay, refuses them while it is full, and
//! may fail.
//!
//! Always: a completed write survives every crash. Of the pending writes a crash keeps some prefix,
//! because a medium may have stored a write before it acknowledged it.

use std::collections::{BTreeMap, VecDeque};

use sprat_proto::{Instant, Rng};

use crate::frames::Kept;

/// An atomic write to a simulated disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// The sequence number of the write, consecutive while the process lives.
    pub seq: u64,
    /// The keys and values that the write stores.
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    /// The keys that the write removes.
    pub deletes: Vec<Vec<u8>>,
}

/// The contents of a simulated disk: keys and their values.
pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// The outcome of writes to a simulated disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The write to the simulated disk with this sequence number is durable.
    Safe(u64),
    /// The simulated disk is full and refused all pending writes. These contents are durable.
    Refused(Contents),
    /// The simulated disk has failed. The process must stop; the next one finds what a crash
    /// leaves.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Health {
    #[default]
    Sound,
    /// The simulated disk's next write fails.
    Failing,
    /// A write to the simulated disk has failed. The disk completes no writes until the process
    /// ends.
    Failed,
}

/// A simulated disk of one host.
#[derive(Debug, Default)]
pub struct Disk {
    contents: Contents,
    pending: VecDeque<(Instant, Write)>,
    full: bool,
    health: Health,
    /// The frames of replicas that a write syncs, if the host has any.
    frames: Option<Kept>,
}

impl Disk {
    /// Returns the durable contents of the disk, which a process that starts now finds.
    #[must_use]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the frames that a write syncs.
    pub(crate) fn frames(&self) -> Option<&Kept> {
        self.frames.as_ref()
    }

    /// Lets each write sync the frames of the host's replicas.
    pub(crate) fn set_frames(&mut self, frames: Kept) {
        self.frames = Some(frames);
    }

    /// Starts a write to the simulated disk that completes at `at`, but not before earlier writes.
    /// Returns the time of completion.
    pub fn write(&mut self, at: Instant, mut write: Write) -> Instant {
        if let Some(frames) = &self.frames {
            let batch = write.puts.pop().map(|(_, batch)| batch);
            frames.begin_sync(write.seq, batch);
        }
        let at = self.pending.back().map_or(at, |(last, _)| at.max(*last));
        self.pending.push_back((at, write));
        at
    }

    /// Sets whether the disk is full and refuses writes.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// Makes the disk's next write fail, and all further writes until the process ends.
    pub fn fail(&mut self) {
        self.health = Health::Failing;
    }

    /// Reverts `fail` if no write to the disk has failed since.
    pub fn mend(&mut self) {
        if self.health == Health::Failing {
            self.health = Health::Sound;
        }
    }

    /// Completes the disk's next write if it is due by `now`, and returns its outcome.
    pub fn completed(&mut self, now: Instant) -> Option<Outcome> {
        if self.pending.front().is_none_or(|(at, _)| *at > now) {
            return None;
        }
        match self.health {
            Health::Sound => {}
            Health::Failing => {
                self.health = Health::Failed;
                return Some(Outcome::Failed);
            }
            Health::Failed => return None,
        }
        if self.full {
            self.pending.clear();
            self.frames.iter().for_each(Kept::fail_syncs);
            return Some(Outcome::Refused(self.contents.clone()));
        }
        let (_, write) = self.pending.pop_front()?;
        let seq = write.seq;
        self.frames.iter().for_each(|frames| frames.end_sync(seq));
        self.apply(write);
        Some(Outcome::Safe(seq))
    }

    /// Handles a crash of the process: a random prefix of the disk's pending writes is durable
    /// unless the disk is full, and the other writes are lost.
    pub fn crash(&mut self, rng: &mut Rng) {
        self.health = Health::Sound;
        if let Some(frames) = &self.frames {
            // The next process finds frames that work.
            frames.kill(rng);
            self.full = false;
        }
        let most = if self.full { 0 } else { self.pending.len() as u64 };
        let keep = rng.below(most + 1) as usize;
        for (_, write) in std::mem::take(&mut self.pending).into_iter().take(keep) {
            self.apply(write);
        }
    }

    /// Handles a loss of power after the crash of the process.
    pub(crate) fn lose_power(&self, rng: &mut Rng) {
        self.frames.iter().for_each(|frames| frames.lose_power(rng));
    }

    fn apply(&mut self, write: Write) {
        for key in write.deletes {
            self.contents.remove(&key);
        }
        self.contents.extend(write.puts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(seq: u64) -> Write {
        Write { seq, puts: vec![(vec![seq as u8], vec![1])], deletes: vec![vec![seq as u8 - 1]] }
    }

    #[test]
    fn writes_complete_in_order() {
        let mut disk = Disk::default();
        assert_eq!(disk.write(Instant::from_ns(10), put(1)), Instant::from_ns(10));
        assert_eq!(disk.write(Instant::from_ns(5), put(2)), Instant::from_ns(10));
        assert_eq!(disk.completed(Instant::from_ns(9)), None);
        assert_eq!(disk.completed(Instant::from_ns(10)), Some(Outcome::Safe(1)));
        assert!(disk.contents().contains_key(&vec![1]));
        assert_eq!(disk.completed(Instant::from_ns(10)), Some(Outcome::Safe(2)));
        assert_eq!(disk.contents().keys().collect::<Vec<_>>(), [&vec![2]]);
    }

    #[test]
    fn a_full_disk_refuses_all_pending_writes() {
        let mut disk = Disk::default();
        for seq in 1..=3 {
            disk.write(Instant::from_ns(seq), put(seq));
        }
        assert_eq!(disk.completed(Instant::from_ns(1)), Some(Outcome::Safe(1)));
        disk.set_full(true);
        let refused = disk.completed(Instant::from_ns(2));
        assert_eq!(refused, Some(Outcome::Refused(Contents::from([(vec![1], vec![1])]))));
        disk.set_full(false);
        assert_eq!(disk.completed(Instant::NEVER), None);
        disk.write(Instant::from_ns(9), put(4));
        assert_eq!(disk.completed(Instant::from_ns(9)), Some(Outcome::Safe(4)));
    }

    #[test]
    fn a_failed_disk_reports_it_once_and_works_for_the_next_process() {
        let mut disk = Disk::default();
        for seq in 1..=3 {
            disk.write(Instant::from_ns(seq), put(seq));
        }
        assert_eq!(disk.completed(Instant::from_ns(1)), Some(Outcome::Safe(1)));
        disk.fail();
        assert_eq!(disk.completed(Instant::from_ns(3)), Some(Outcome::Failed));
        disk.mend();
        assert_eq!(disk.completed(Instant::from_ns(3)), None);
        disk.crash(&mut Rng::seeded(1));
        disk.write(Instant::from_ns(4), put(1));
        assert_eq!(disk.completed(Instant::from_ns(4)), Some(Outcome::Safe(1)));
    }

    #[test]
    fn a_crash_keeps_a_prefix_and_all_completed_writes() {
        let mut kept = [0; 4];
        for seed in 0..200 {
            let mut disk = Disk::default();
            for seq in 1..=4 {
                disk.write(Instant::from_ns(seq), Write { deletes: vec![], ..put(seq) });
            }
            assert_eq!(disk.completed(Instant::from_ns(1)), Some(Outcome::Safe(1)));
            disk.crash(&mut Rng::seeded(seed));
            let keys: Vec<u8> = disk.contents().keys().map(|k| k[0]).collect();
            assert_eq!(keys, (1..=keys.len() as u8).collect::<Vec<_>>());
            kept[keys.len() - 1] += 1;
            assert_eq!(disk.completed(Instant::NEVER), None);
        }
        assert!(kept.iter().all(|&n| n > 20), "{kept:?}");
    }
}
