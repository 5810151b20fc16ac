use alloc::collections::BTreeMap;

use sprat_proto::Rng;

use super::*;

/// A hash table under test, and its expected entries: the hash of each location.
struct Checked {
    table: HashTable,
    hashes: BTreeMap<u64, u64>,
    next: u64,
}

impl Checked {
    fn new() -> Self {
        Self { table: HashTable::new(0), hashes: BTreeMap::new(), next: 1 }
    }

    fn insert(&mut self, hash: u64) -> Location {
        let at = Location::from_bits(self.next);
        self.next += 1;
        self.hashes.insert(at.bits(), hash);
        let hashes = &self.hashes;
        self.table.insert(hash, at, |at| hashes[&at.bits()]);
        at
    }

    fn remove(&mut self, at: Location) {
        let hash = self.hashes.remove(&at.bits()).unwrap();
        let place = self.table.place(hash, at).unwrap();
        self.table.remove(place);
    }

    fn check(&self) {
        assert_eq!(self.table.len(), self.hashes.len() as u64);
        for (&bits, &hash) in &self.hashes {
            let place =
                self.table.find(hash, |at| at.bits() == bits).expect("every entry is found");
            assert_eq!(self.table.location(place).bits(), bits);
            assert_eq!(self.table.place(hash, Location::from_bits(bits)), Some(place));
        }
        let mut seen = self.walk();
        seen.sort_unstable();
        assert_eq!(seen, self.hashes.keys().copied().collect::<Vec<_>>());
    }

    fn walk(&self) -> Vec<u64> {
        let (mut seen, mut line, mut next) = (Vec::new(), Vec::new(), Some(0));
        while let Some(hash) = next {
            line.clear();
            next = self.table.walk(hash, &mut line);
            for at in &line {
                let theirs = self.hashes[&at.bits()];
                assert!(
                    theirs >= hash && next.is_none_or(|next| theirs < next),
                    "lines are in order"
                );
            }
            seen.extend(line.iter().map(|at| at.bits()));
        }
        seen
    }
}

#[test]
fn grows_by_quarters_and_loses_nothing() {
    let mut rng = Rng::seeded(1);
    let mut checked = Checked::new();
    for n in 0..3000 {
        checked.insert(rng.u64());
        if n % 100 == 0 {
            checked.check();
        }
    }
    checked.check();
    assert!(checked.table.new.count() >= 400);
    let all: Vec<u64> = checked.hashes.keys().copied().collect();
    for (n, bits) in all.into_iter().enumerate() {
        checked.remove(Location::from_bits(bits));
        if n % 100 == 0 {
            checked.check();
        }
    }
    assert!(checked.table.is_empty());
    assert_eq!(checked.table.spill.len(), checked.table.free.1, "no line is lost");
}

#[test]
fn one_line_may_overflow_many_times() {
    let mut checked = Checked::new();
    // All in the first line, some with the tag zero, some with the very same hash.
    let all: Vec<_> = (0..40).map(|n| checked.insert(n % 3)).collect();
    checked.check();
    for &at in all.iter().step_by(2) {
        checked.remove(at);
    }
    checked.check();
    for n in 0..40 {
        checked.insert(n % 3);
    }
    checked.check();
    let place = checked.table.find(1, |_| true).unwrap();
    let at = checked.table.location(place);
    checked.table.set(place, Location::from_bits((1 << 47) - 1));
    assert_eq!(checked.table.location(place).bits(), (1 << 47) - 1);
    assert!(checked.table.find(1, |other| other == at).is_none());
    assert!(checked.table.find(1, |other| other.bits() == (1 << 47) - 1).is_some());
}

#[test]
fn what_is_not_there_is_not_found() {
    let mut checked = Checked::new();
    assert!(checked.table.find(0, |_| true).is_none());
    checked.insert(1 << 63);
    assert!(checked.table.find(0, |_| true).is_none());
    assert!(checked.table.find(1, |_| true).is_none());
    assert!(checked.table.find(1 << 63, |_| false).is_none());
}

/// A walk through the hash table that ignores entries before its cursor sees every entry once, even
/// if the table grows meanwhile.
#[test]
fn a_walk_while_the_table_grows() {
    for seed in 0..20 {
        let mut rng = Rng::seeded(seed);
        let mut checked = Checked::new();
        for _ in 0..100 + rng.below(300) {
            checked.insert(rng.u64());
        }
        let before: Vec<u64> = checked.hashes.keys().copied().collect();
        let (mut seen, mut line, mut next) = (Vec::new(), Vec::new(), Some(0));
        while let Some(hash) = next {
            line.clear();
            next = checked.table.walk(hash, &mut line);
            let taken =
                line.iter().filter(|at| checked.hashes[&at.bits()] >= hash).map(|at| at.bits());
            seen.extend(taken.filter(|bits| before.contains(bits)));
            for _ in 0..rng.below(20) {
                checked.insert(rng.u64());
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, before);
    }
}

#[test]
fn lines_begin_cache_lines() {
    for count in [16, 1000, 1024, 1025, 5000] {
        let mut lines = Lines::new(count, 4);
        lines.blocks.line_mut(count as usize - 1)[7] = 1;
        let line = lines.blocks.line(count as usize - 1);
        assert_eq!((core::ptr::from_ref(line).addr() % 64, line[7]), (0, 1));
        lines.blocks.free_below(count as usize);
    }
}

/// Growth finds the new line of an entry by its old line and its tag, nearly always without a look
/// into the log, and always the right one.
#[test]
fn growth_rarely_looks_into_the_log() {
    let mut rng = Rng::seeded(3);
    let mut checked = Checked::new();
    let looks = core::cell::Cell::new(0);
    let mut inserted = 0;
    // From 16 lines on, new tags are due at 4,096.
    for n in 0..19_000u64 {
        let (hash, at) = (rng.u64(), Location::from_bits(n + 1));
        checked.hashes.insert(at.bits(), hash);
        let hashes = &checked.hashes;
        checked.table.insert(hash, at, |at| {
            looks.set(looks.get() + 1);
            hashes[&at.bits()]
        });
        inserted += 1;
    }
    checked.check();
    assert!(looks.get() < inserted / 100, "{} looks", looks.get());
    // All get new tags.
    for n in 19_000..60_000 {
        let (hash, at) = (rng.u64(), Location::from_bits(n + 1));
        checked.hashes.insert(at.bits(), hash);
        let hashes = &checked.hashes;
        checked.table.insert(hash, at, |at| {
            looks.set(looks.get() + 1);
            hashes[&at.bits()]
        });
    }
    checked.check();
    assert!((19_000..26_000).contains(&looks.get()), "{} looks", looks.get());
    assert_eq!(checked.table.new.before_tag, 12);
}

/// Memory is given back while growth goes on, so that the table never takes much more than its
/// entries need.
#[test]
fn growth_takes_little_memory() {
    let mut rng = Rng::seeded(4);
    let mut checked = Checked::new();
    for n in 0..100_000u64 {
        checked.insert(rng.u64());
        if n > 30_000 {
            let bytes = checked.table.memory_bytes();
            assert!(bytes < (n + 1) * 17 + (256 << 10), "{n}: {bytes}");
        }
    }
}

#[test]
fn hashes_of_any_range_spread_evenly() {
    // A third of the hash range of each of two tables: every 1/16 of the table gets its share.
    let mut counts = [0u32; 16];
    let mut rng = Rng::seeded(2);
    for n in 0..16_000 {
        let hash = KeyHash(rng.below(u64::MAX / 3));
        counts[(spread(TableId(n % 2), hash) >> 60) as usize] += 1;
    }
    assert!(counts.iter().all(|&count| (850..1150).contains(&count)), "{counts:?}");
}
