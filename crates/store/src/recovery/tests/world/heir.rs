//! A master that recovers the tablet of another one: whatever the order of the segments, and
//! although some come twice and some tries are given up, it has what the log says, and so has its
//! own log.

use super::*;
use crate::durability::TableDurability;
use crate::objects::entry::{self, Entries};
use crate::objects::partition::{Partition, Stopped};

const ALL: Tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };
const KEY: HashKey = HashKey([1; 16]);

impl World {
    /// Returns the world of a master that recovers this log, which has `contents`.
    fn heir(&mut self, mut log: Vec<Bytes>, contents: &Contents) -> Self {
        let seed = self.rng.u64();
        let mut heir = Self::new(seed, 12 + seed % 8);
        heir.memory.tablets.drop_tablet(ALL);
        while heir.memory.sweep(16) {}
        (heir.rpc, heir.ack) = (self.rpc, self.ack);
        while heir.rng.chance(400_000) {
            let mut some = log.clone();
            some.retain(|_| heir.rng.chance(500_000));
            let partition = heir.inherit(some, self.since);
            partition.tablets().for_each(|tablet| heir.memory.abandon(tablet));
            assert_eq!(heir.memory.results.records(), 0, "they may be of no other try");
            while heir.memory.sweep(16) {}
            assert!(heir.memory.table.is_empty());
        }
        let twice: Vec<_> = log.iter().filter(|_| heir.rng.chance(200_000)).cloned().collect();
        log.extend(twice);
        let partition = heir.inherit(log, self.since);
        heir.memory.log.end_side();
        while !heir.memory.log.is_side_durable() {
            heir.replicate_all();
            heir.memory.log.change_digest();
        }
        heir.memory.tablets.open(ALL);
        heir.since = partition.counts_from();
        heir.durable = contents.clone();
        heir.check_objects(contents);
        heir
    }

    /// Replays segments in a random order, while the cleaner works and replicas are written.
    fn inherit(&mut self, mut log: Vec<Bytes>, since: SegmentId) -> Partition {
        self.memory.tablets.prepare(ALL, KEY, TableDurability::Cluster, Version(0)).unwrap();
        let mut begun = self.memory.log.begin_side();
        while begun.is_err() {
            self.make_room();
            begun = self.memory.log.begin_side();
        }
        let before = begun.unwrap();
        let len: usize = log.iter().map(|(_, bytes)| bytes.len()).sum();
        let mut partition = Partition::new(MASTER, len as u64, vec![(ALL, since)], (before, true));
        while !log.is_empty() {
            let (id, bytes) = log.swap_remove(self.rng.below(log.len() as u64) as usize);
            let mut entries = Entries::default();
            while entries.at() < bytes.len() {
                let most = 1 + self.rng.below(1000) as usize;
                match self.memory.replay(
                    &mut partition,
                    (id, bytes.len()),
                    &bytes,
                    &mut entries,
                    most,
                ) {
                    Ok(()) => {}
                    Err(Stopped::Full) => self.make_room(),
                    Err(Stopped::Damaged) => panic!("{id:?} {entries:?}"),
                }
                if self.rng.chance(300_000) {
                    self.cleaner.step(&mut self.memory, 500);
                }
                if self.rng.chance(300_000) {
                    self.replicate();
                }
            }
            assert_eq!(entries.at(), bytes.len());
        }
        partition
    }

    fn make_room(&mut self) {
        self.replicate_all();
        self.memory.log.change_digest();
        self.replicate_all();
        assert!(self.cleaner.wanted(&self.memory), "the log has room");
        self.cleaner.step(&mut self.memory, 2000);
    }

    /// Checks that the memory has exactly these objects, and the outcomes that count.
    fn check_objects(&self, contents: &Contents) {
        let Memory { log, table, tablets, results, .. } = &self.memory;
        assert_eq!(table.len(), contents.objects.len() as u64);
        for (key, (version, value)) in &contents.objects {
            let hash = tablets.hash(TABLE, key).unwrap();
            let (_, at) = self.memory.find(TABLE, hash, key).expect("the object is there");
            let object = log.object(at);
            assert_eq!((object.version, object.value), (*version, &value[..]));
        }
        for rpc in self.ack + 1..=self.rpc {
            let at = results.location(Once { lease: LEASE, rpc, ack: self.ack });
            let old = at.map(|at| entry::old(log.bytes(at)));
            let expected = contents.outcomes.get(&rpc).map(|(_, old)| &old[..]);
            assert_eq!(old, expected, "{rpc}");
        }
        for (key, &highest) in &contents.highest {
            let exists = contents.objects.contains_key(key);
            assert!(exists || log.safe_version() > highest, "{key:?}");
        }
    }
}

#[test]
fn an_heir_has_what_the_log_says() {
    for seed in 0..100 {
        let mut world = World::new(seed, 10 + seed % 10);
        let keys = 5 + world.rng.below(40);
        for life in 0..5 {
            for _ in 0..world.rng.below(600) {
                world.random_mutation(keys, 300);
                if world.rng.chance(100_000) {
                    world.ack = world.rpc.saturating_sub(world.rng.below(30)).max(world.ack);
                }
                (0..world.rng.below(6)).for_each(|_| world.replicate());
                if world.rng.chance(300_000) {
                    world.memory.log.change_digest();
                    world.cleaner.step(&mut world.memory, 3000);
                }
            }
            let Some((log, contents)) = world.recover(&[[0, 1][seed as usize % 2]]) else { break };
            let mut heir = world.heir(log, &contents);
            assert!(heir.memory.log.is_all_durable(), "seed {seed}, life {life}");
            heir.recover_all();
            world = heir;
        }
    }
}

/// The oracle and a master agree on a log whose segments are damaged nowhere.
#[test]
fn a_damaged_segment_is_not_replayed_to_its_end() {
    let mut world = World::new(1, 10);
    while world.rpc < 10 {
        world.random_mutation(5, 100);
    }
    world.replicate_all();
    let mut bytes = world.bytes(SegmentId(1)).unwrap();
    let last = Replay::new(crc32c).segment(&bytes);
    assert_eq!(last, Ok(()));
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let mut entries = Entries::default();
    while entries.next(crc32c, &bytes).is_some() {}
    assert!(entries.at() <= middle);
}
