//! A disk: writes are safe after a while, in order, and only then acknowledged.
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

/// A disk.
#[derive(Debug, Default)]
pub struct Disk {
    contents: Contents,
    pending: VecDeque<(Instant, Write)>,
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

    /// Makes what is due by `now` safe; the number of the next write to acknowledge.
    pub fn safe(&mut self, now: Instant) -> Option<u64> {
        if self.pending.front().is_none_or(|(at, _)| *at > now) {
            return None;
        }
        let (_, write) = self.pending.pop_front()?;
        let seq = write.seq;
        self.apply(write);
        Some(seq)
    }

    /// The process dies: a first part of what is pending, as long as `rng` says, is on the disk; the rest never was.
    pub fn crash(&mut self, rng: &mut Rng) {
        let keep = rng.below(self.pending.len() as u64 + 1) as usize;
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
        assert_eq!(disk.safe(Instant::from_ns(9)), None);
        assert_eq!(disk.safe(Instant::from_ns(10)), Some(1));
        assert!(disk.contents().contains_key(&vec![1]));
        assert_eq!(disk.safe(Instant::from_ns(10)), Some(2));
        assert_eq!(disk.contents().keys().collect::<Vec<_>>(), [&vec![2]]);
    }

    #[test]
    fn a_crash_keeps_a_first_part_and_all_that_was_safe() {
        let mut kept = [0; 4];
        for seed in 0..200 {
            let mut disk = Disk::default();
            for seq in 1..=4 {
                disk.write(Instant::from_ns(seq), Write { deletes: vec![], ..put(seq) });
            }
            assert_eq!(disk.safe(Instant::from_ns(1)), Some(1));
            disk.crash(&mut Rng::seeded(seed));
            let keys: Vec<u8> = disk.contents().keys().map(|k| k[0]).collect();
            assert_eq!(keys, (1..=keys.len() as u8).collect::<Vec<_>>());
            kept[keys.len() - 1] += 1;
            assert_eq!(disk.safe(Instant::NEVER), None);
        }
        assert!(kept.iter().all(|&n| n > 20), "{kept:?}");
    }
}
