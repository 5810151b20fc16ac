//! Tests of a tablet that moves from one memory to another while it changes.

use alloc::vec;

use sprat_proto::{Instant, Rng};

use super::*;
use crate::durability::TableDurability;
use crate::message::data::{Once, RejectRules};
use crate::message::migration::MOST_AHEAD;
use crate::objects::entry::Entries;
use crate::objects::memory::tests::{LEASE, TABLE, World};
use crate::objects::mutate::Change;
use crate::objects::partition::Partition;
use crate::objects::rifl::Verdict;
use crate::objects::segment::SegmentId;
use crate::types::{HashKey, Version};

const ME: (u64, ServerId) = (9, ServerId { index: 1, generation: 2 });
const ALL: Tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };
const HALF: Tablet = Tablet { table: TABLE, first: 1 << 63, last: u64::MAX };

/// A memory that takes over a tablet.
struct Target {
    world: World,
    partition: Partition,
    page: u64,
    attempt: u64,
}

impl Target {
    fn new(tablet: Tablet) -> Self {
        let mut world = World::new(60, 4096);
        world.memory.tablets.drop_tablet(ALL);
        while world.memory.sweep(16) {}
        let key = HashKey([1; 16]);
        let floor = Version(0);
        world.memory.tablets.prepare(tablet, key, TableDurability::Cluster, floor).unwrap();
        let since = world.memory.log.begin_side().unwrap();
        let tablets = vec![(tablet, SegmentId(0))];
        Self {
            world,
            partition: Partition::new(ME.1, 0, tablets, (since, false)),
            page: 1,
            attempt: 0,
        }
    }

    /// Pulls the next pages, some of them ahead. Some replies do not arrive, so that they are
    /// pulled again, and those behind them. `change` runs before each page.
    fn pull(
        &mut self,
        source: &mut World,
        rng: &mut Rng,
        change: impl Fn(&mut World, &mut Rng),
    ) -> Progress {
        let ahead = 1 + rng.below(MOST_AHEAD);
        self.attempt += 1;
        let (from, attempt) = (self.page, self.attempt);
        let asked = |n| Asked { page: from + n, attempt, from };
        let mut reply = |n| {
            change(source, rng);
            source.memory.page(ME, asked(n)).unwrap()
        };
        let replies: Vec<_> = (0..ahead).map(&mut reply).collect();
        let mut progress = Progress::Behind;
        for reply in &replies {
            if rng.chance(100_000) {
                return Progress::Behind;
            }
            self.page += 1;
            let page = Page::parse(reply).unwrap();
            let (memory, partition) = (&mut self.world.memory, &mut self.partition);
            let mut entries = Entries::default();
            while entries.at() < page.entries.len() {
                memory
                    .replay(partition, (PAGE, page.entries.len()), page.entries, &mut entries, 300)
                    .unwrap();
            }
            progress = page.progress;
        }
        progress
    }
}

/// Moves a tablet while it changes, and returns the memory that has it then.
fn migrate(source: &mut World, tablet: Tablet, rng: &mut Rng) -> World {
    let mut target = Target::new(tablet);
    source.memory.leaving = Some(Leaving::new(1, tablet).into());
    let change = |source: &mut World, rng: &mut Rng| {
        for _ in 0..rng.below(5) {
            source.random(rng, 120, 100);
        }
        source.acknowledge(rng.below(20));
        source.cleaner.step(&mut source.memory, 500);
        source.wall.0 += rng.below(3);
    };
    change(source, rng);
    while target.pull(source, rng, change) != Progress::Near {}
    change(source, rng);
    source.memory.close_leaving();
    assert!(!source.memory.tablets.owns(tablet));
    // The cleaner works on.
    let clean = |source: &mut World, _: &mut Rng| {
        source.cleaner.step(&mut source.memory, 500);
    };
    while target.pull(source, rng, clean) != Progress::Complete {}
    source.memory.end_leaving(false);
    while source.memory.sweep(16) {}
    target.world.memory.log.end_side();
    target.world.memory.tablets.open(tablet);
    (target.world.rpc, target.world.ack) = (source.rpc, source.ack);
    target.world
}

#[test]
fn a_tablet_that_changes_arrives_whole() {
    for seed in 0..60 {
        let mut rng = Rng::seeded(seed);
        let mut source = World::new(60, 4096);
        for _ in 0..rng.below(500) {
            source.random(&mut rng, 120, 100);
            source.acknowledge(20);
        }
        for _ in 0..3 {
            let target = migrate(&mut source, ALL, &mut rng);
            assert!(source.memory.table.is_empty(), "the objects are gone from the source");
            source.memory = target.memory;
            source.check();
            for _ in 0..50 {
                source.random(&mut rng, 120, 100);
            }
            source.check();
            source.replay();
        }
    }
}

#[test]
fn half_of_the_objects_move_and_the_others_stay() {
    for seed in 0..40 {
        let mut rng = Rng::seeded(seed);
        let mut world = World::new(60, 4096);
        let none = RejectRules::default();
        for _ in 0..200 {
            world.random(&mut rng, 120, 100);
            world.acknowledge(20);
        }
        let mut target = migrate(&mut world, HALF, &mut rng);
        let (mut left, mut moved) = (0, 0);
        for (key, (version, value, expires)) in world.contents() {
            let hash = world.memory.tablets.hash(TABLE, &key).unwrap();
            let memory = match HALF.contains(TABLE, hash) {
                true => &target.memory,
                false => &world.memory,
            };
            let (_, at) = memory.find(TABLE, hash, &key).expect("the object is in its place");
            let object = memory.log.object(at);
            assert_eq!(
                (object.version, object.value, object.expires),
                (version, &value[..], expires)
            );
            if HALF.contains(TABLE, hash) { moved += 1 } else { left += 1 }
        }
        assert!(left > 0 && moved > 0);
        // Objects that have expired may be there too.
        let expired = world.objects.len() as u64 - moved - left;
        let arrived = target.memory.table.len();
        assert!((moved..=moved + expired).contains(&arrived), "nothing else has arrived");
        let stayed = world.memory.table.len();
        assert!((left..=left + expired).contains(&stayed), "nothing else is left");
        // A removed object that comes again has a version above all that the source gave.
        let highest = world.memory.log.safe_version();
        let key = (0..u64::MAX).map(u64::to_be_bytes).find(|key| {
            let hash = target.memory.tablets.hash(TABLE, key).unwrap();
            HALF.contains(TABLE, hash) && target.memory.find(TABLE, hash, key).is_none()
        });
        let outcome = target.mutate(&key.unwrap(), none, Change::Write(b"", None)).unwrap();
        assert!(outcome.version >= highest, "{outcome:?} {highest:?}");
    }
}

/// A mutation whose reply was lost is repeated at the new owner, which has its outcome.
#[test]
fn outcomes_go_with_their_objects() {
    let mut rng = Rng::seeded(1);
    let mut source = World::new(60, 4096);
    let none = RejectRules::default();
    let written = source.mutate(b"a", none, Change::Write(b"1", None)).unwrap();
    let removed = source.mutate(b"a", none, Change::Remove).unwrap();
    let refused = RejectRules { doesnt_exist: true, ..none };
    let refused = source.mutate(b"b", refused, Change::Write(b"1", None)).unwrap();
    let mut target = Target::new(ALL);
    source.memory.leaving = Some(Leaving::new(1, ALL).into());
    while target.pull(&mut source, &mut rng, |_, _| ()) != Progress::Near {}
    source.memory.close_leaving();
    while target.pull(&mut source, &mut rng, |_, _| ()) != Progress::Complete {}
    let results = &mut target.world.memory.results;
    results.extend(LEASE, Instant::NEVER);
    for (rpc, outcome) in [(1, written), (2, removed), (3, refused)] {
        let once = Once { lease: LEASE, rpc, ack: 0 };
        let verdict = results.check(Instant::ZERO, once, |_| ());
        assert!(matches!(verdict, Verdict::Done(same, _) if same == outcome), "{verdict:?}");
    }
}

#[test]
fn a_migration_that_is_given_up_leaves_everything_as_it_was() {
    let mut rng = Rng::seeded(2);
    let mut source = World::new(60, 4096);
    for _ in 0..100 {
        source.random(&mut rng, 120, 100);
    }
    for close in [false, true] {
        let mut target = Target::new(HALF);
        source.memory.leaving = Some(Leaving::new(1, HALF).into());
        target.pull(&mut source, &mut rng, |_, _| ());
        if close {
            source.memory.close_leaving();
            assert!(!source.memory.tablets.owns(HALF));
        }
        source.memory.end_leaving(true);
        assert!(source.memory.tablets.owns(ALL) && source.memory.tablets.dropped() == 0);
        source.check();
        for _ in 0..50 {
            source.random(&mut rng, 120, 100);
        }
        source.check();
    }
}

#[test]
fn pages_come_in_order() {
    let mut world = World::new(8, 4096);
    let first = Asked { page: 1, attempt: 1, from: 1 };
    assert_eq!(world.memory.page(ME, first), Err(NoPage::OutOfOrder), "no tablet leaves");
    world.memory.leaving = Some(Leaving::new(1, ALL).into());
    let mut page =
        |page, attempt, from| world.memory.page(ME, Asked { page, attempt, from }).map(|_| ());
    let refused = Err(NoPage::OutOfOrder);
    for number in 1..=MOST_AHEAD + 3 {
        assert_eq!(page(number + 1, 1, 1), refused);
        assert_eq!(page(number, 1, 1), Ok(()));
        assert_eq!(page(number, 1, 1), refused, "it was made, and may have arrived");
    }
    // The newest eight may not have arrived.
    assert_eq!(page(3, 2, 3), refused);
    assert_eq!(page(4, 2, 4), Ok(()));
    assert_eq!(page(6, 2, 4), refused, "page 5 comes first");
    assert_eq!(page(0, 3, 0), refused);
    assert_eq!(page(u64::MAX, 3, u64::MAX), refused);
    // The requests of an attempt may arrive in any order, and late ones of an earlier attempt.
    assert_eq!(page(5, 4, 4), refused, "the attempt begins with page 4");
    assert_eq!(page(5, 2, 4), refused, "that attempt is over");
    assert_eq!((page(4, 4, 4), page(5, 4, 4), page(4, 4, 4)), (Ok(()), Ok(()), refused));
}
