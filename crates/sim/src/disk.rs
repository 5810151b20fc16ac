//! A disk: writes are safe after a while, in order, and only then acknowledged; a full one refuses them, and one that fails
//! tells nothing of them any more.
//!
//! What always holds: what was acknowledged survives every crash; of what was not, a crash keeps some first part,
//! because the medium may have been faster than the acknowledgement.

use std::collections::{BTreeMap, VecDeque};

use sprat_proto::{Instant, Rng};

/// One write, all or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// Its number; consecutive within one life of the process.
    pub seq: u64,
    /// Keys to set.
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Keys to remove.
    pub deletes: Vec<Vec<u8>>,
}

/// What is on a disk.
pub type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// What became of writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The write with this number is safe.
    Safe(u64),
    /// The disk is full: the first write that is not safe was refused, and with it all that began after it. What is safe
    /// is this.
    Refused(Contents),
    /// The disk has failed: the process must stop, and finds what a crash leaves.
    Failed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Health {
    #[default]
    Sound,
    /// The next write fails.
    Failing,
    /// One has failed: there are no outcomes before the process ends.
    Failed,
}

/// A disk.
#[derive(Debug, Default)]
pub struct Disk {
    contents: Contents,
    pending: VecDeque<(Instant, Write)>,
    full: bool,
    health: Health,
}

impl Disk {
    /// What a process that starts now finds.
    #[must_use]
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// A write, safe at `at` or when those before it are, if that is later; when that is.
    pub fn write(&mut self, at: Instant, write: Write) -> Instant {
        let at = self.pending.back().map_or(at, |(last, _)| at.max(*last));
        self.pending.push_back((at, write));
        at
    }

    /// From now on it has room for what is written, or none.
    pub fn set_full(&mut self, full: bool) {
        self.full = full;
    }

    /// The next write fails, and none that follows is done before the process has ended.
    pub fn fail(&mut self) {
        self.health = Health::Failing;
    }

    /// No write fails that has not failed yet.
    pub fn mend(&mut self) {
        if self.health == Health::Failing {
            self.health = Health::Sound;
        }
    }

    /// Makes what is due by `now` safe; what became of the next write.
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
            return Some(Outcome::Refused(self.contents.clone()));
        }
        let (_, write) = self.pending.pop_front()?;
        let seq = write.seq;
        self.apply(write);
        Some(Outcome::Safe(seq))
    }

    /// The process dies: a first part of what is pending, as long as `rng` says, is on the disk if there is room; the rest
    /// never was.
    pub fn crash(&mut self, rng: &mut Rng) {
        self.health = Health::Sound;
        let most = if self.full { 0 } else { self.pending.len() as u64 };
        let keep = rng.below(most + 1) as usize;
        for (_, write) in std::mem::take(&mut self.pending).into_iter().take(keep) {
            self.apply(write);
        }
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
    fn writes_become_safe_in_order() {
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
    fn a_full_disk_refuses_all_that_waits() {
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
    fn a_disk_that_fails_says_so_once_and_is_sound_for_the_next_process() {
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
    fn a_crash_keeps_a_first_part_and_all_that_was_safe() {
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
