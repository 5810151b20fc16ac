//! Tests of a master's memory by random operations, compared with an oracle. The cleaner works in a
//! memory that is hardly large enough. A replay of the log, as in a recovery, must give the same
//! objects.

use alloc::collections::BTreeMap;
use alloc::vec;

use sprat_proto::Rng;

use super::*;
use crate::durability::TableDurability;
use crate::hash::KeyHasher;
use crate::message::data::{Amount, Once, RejectRules, Target};
use crate::message::list::{Listed, objects_head, objects_reply};
use crate::objects::cleaner::{Late, Worth};
use crate::objects::entry::{COMPLETION, RECORD};
use crate::objects::mutate::{Change, Mutation};
use crate::objects::segment::segment_bytes;
use crate::types::{HashKey, Lifetime, Version};

mod world;

pub(crate) use world::{LEASE, TABLE, World};

#[test]
fn random_operations_in_a_small_memory() {
    let mut helped = 0;
    for seed in 0..24 {
        let mut rng = Rng::seeded(seed);
        let mut world = World::new(8 + seed, 4096);
        let is_helped = seed % 2 > 0;
        if is_helped {
            world.cleaner.help(
                Box::new(Late::new(rng.fork(), [4, 30][seed as usize / 2 % 2])),
                Worth::default(),
            );
        }
        let keys = 20 + rng.below(150);
        let mut refused = 0;
        for n in 0..4000 {
            refused += u32::from(world.random(&mut rng, keys, 400).is_none());
            if rng.chance(100_000) {
                let outstanding = rng.below(30);
                world.acknowledge(outstanding);
            }
            world.wall.0 += rng.below(2);
            if rng.chance(100_000) {
                let work = rng.below(3000) as usize;
                world.step_expiry(work);
            }
            if world.rpc - world.ack > 500 {
                world.acknowledge(10);
            }
            if rng.chance(300_000) {
                let budget = rng.below(3000) as usize;
                world.cleaner.step(&mut world.memory, budget);
            }
            if n % 200 == 0 {
                world.check();
                world.replay();
            }
        }
        world.check();
        world.replay();
        assert!(world.cleaner.cleaned() > 20, "seed {seed}: {}", world.cleaner.cleaned());
        assert!(refused < 2000, "seed {seed}: {refused}");
        helped += world.cleaner.helped();
    }
    assert!(helped > 300, "{helped}");
}

#[test]
fn memory_that_is_full_refuses_new_data_and_can_be_emptied() {
    let mut world = World::new(64, 4096);
    let none = RejectRules::default();
    let mut n = 0u64;
    while world.mutate(&n.to_be_bytes(), none, Change::Write(&[1; 100], None)).is_some() {
        n += 1;
        world.acknowledge(0);
    }
    let full = world.memory.log.live_bytes() * 100 / world.memory.log.live_limit();
    assert!((97..=100).contains(&full), "refused at {full} % of the limit");
    world.check();
    // What does not grow may still be overwritten, over and over.
    for n in 0..n {
        world.acknowledge(0);
        assert!(world.mutate(&n.to_be_bytes(), none, Change::Write(&[2; 100], None)).is_some());
    }
    world.check();
    assert!(world.memory.log.live_bytes() <= world.memory.log.live_limit());
    for n in 0..n {
        world.acknowledge(0);
        assert!(world.mutate(&n.to_be_bytes(), none, Change::Remove).is_some(), "{n}");
    }
    world.check();
    world.replay();
    for n in 0..n * 9 / 10 {
        world.acknowledge(0);
        assert!(
            world.mutate(&n.to_be_bytes(), none, Change::Write(&[3; 100], None)).is_some(),
            "{n}"
        );
    }
    world.check();
}

/// Cold objects fill old segments that are never worth cleaning; tombstones must not fill the rest.
#[test]
fn tombstones_do_not_pile_up_behind_cold_segments() {
    let mut world = World::new(16, 4096);
    let none = RejectRules::default();
    for n in 0..20_000u64 {
        world.acknowledge(0);
        // Every 100th object stays for long, the others are overwritten once and removed.
        let key = n.to_be_bytes();
        assert!(world.mutate(&key, none, Change::Write(&[1; 20], None)).is_some(), "{n}");
        if let Some(older) = n.checked_sub(50).filter(|older| older % 100 != 0) {
            assert!(
                world.mutate(&older.to_be_bytes(), none, Change::Write(&[2; 20], None)).is_some(),
                "{n}"
            );
        }
        if let Some(older) = n.checked_sub(90).filter(|older| older % 100 != 0) {
            assert!(world.mutate(&older.to_be_bytes(), none, Change::Remove).is_some(), "{n}");
        }
        if let Some(older) = n.checked_sub(30_000).filter(|older| older % 100 == 0) {
            assert!(world.mutate(&older.to_be_bytes(), none, Change::Remove).is_some(), "{n}");
        }
        world.cleaner.step(&mut world.memory, 2000);
    }
    world.check();
    world.replay();
    let share = world.memory.log.tombstone_bytes() * 100 / world.memory.log.capacity_bytes();
    assert!(share < 25, "tombstones take {share} %");
}

#[test]
fn a_removed_key_gets_a_higher_version() {
    let mut world = World::new(8, 4096);
    let none = RejectRules::default();
    for n in 0..20 {
        world.mutate(b"a", none, Change::Write(&[n], None)).unwrap();
    }
    let removed = world.mutate(b"a", none, Change::Remove).unwrap();
    assert_eq!(removed.version, Version(20));
    let other = world.mutate(b"b", none, Change::Write(b"", None)).unwrap();
    assert_eq!(other.version, Version(21), "new objects share one counter");
    let again = world.mutate(b"a", none, Change::Write(b"", None)).unwrap();
    assert_eq!(again.version, Version(22));
    let nothing = world.mutate(b"c", none, Change::Remove).unwrap();
    assert_eq!((nothing.status, nothing.version), (Status::Ok, Version(0)));
    world.replay();
}

#[test]
fn increments() {
    let mut world = World::new(8, 4096);
    let none = RejectRules::default();
    let add = |amount| Change::Add(Amount::Integer(amount));
    let sum = world.mutate(b"n", none, add(i64::MAX)).unwrap().sum;
    assert_eq!(sum, Some(i64::MAX.to_be_bytes()));
    assert_eq!(world.mutate(b"n", none, add(1)).unwrap().status, Status::Overflow);
    let sum = world.mutate(b"n", none, add(-1)).unwrap().sum;
    assert_eq!(sum, Some((i64::MAX - 1).to_be_bytes()), "a refusal changes nothing");
    world.mutate(b"text", none, Change::Write(b"seven", None)).unwrap();
    assert_eq!(world.mutate(b"text", none, add(1)).unwrap().status, Status::NotANumber);
    let double = world.mutate(b"d", none, Change::Add(Amount::Double(0.5))).unwrap().sum;
    assert_eq!(double, Some(0.5f64.to_be_bytes()));
}

#[test]
fn the_limits_on_keys_and_values() {
    assert_eq!(check_sizes(&[0; MAX_KEY], &[0; MAX_VALUE]), Ok(()));
    assert_eq!(check_sizes(&[0; MAX_KEY + 1], &[]), Err(Status::KeyTooLong));
    assert_eq!(check_sizes(&[], &[0; MAX_VALUE + 1]), Err(Status::ValueTooLong));
    // The longest object fits into a segment, with a record that has as long an old value.
    let least = segment_bytes(0) as usize;
    assert!(OBJECT + MAX_KEY + 2 * MAX_VALUE + RECORD + 64 < least * 3 / 5);
    assert!(OBJECT + MAX_KEY + MAX_VALUE + RECORD < least / 2);
    let mut world = World::new(8, 4096);
    let once = Once { lease: LEASE, rpc: 1, ack: 0 };
    let change = Change::Write(&[0; 4096], None);
    let target = Target { table: TABLE, ..Target::default() };
    let mutation = Mutation { target, once, key: b"", hash: KeyHash(0), change, wall: WallTime(0) };
    assert_eq!(world.memory.mutate(&mutation), Err(Status::ValueTooLong));
}

/// An object that does not change during an enumeration is listed once, and no other object is
/// listed.
#[test]
fn enumeration_while_the_table_changes() {
    for seed in 0..10 {
        let mut rng = Rng::seeded(seed);
        let mut world = World::new(40, 4096);
        let none = RejectRules::default();
        let count = 100 + rng.below(200);
        for n in 0..count {
            world.mutate(&n.to_be_bytes(), none, Change::Write(&[n as u8; 30], None)).unwrap();
            world.acknowledge(0);
        }
        let half = u64::MAX / 2;
        let mut listed = BTreeMap::new();
        let mut changed = Vec::new();
        for (first, last) in [(0, half), (half + 1, u64::MAX)] {
            let mut cursor = 0;
            loop {
                let tablet = Tablet { table: TABLE, first, last };
                let listing =
                    world.memory.enumerate(tablet, cursor, rng.below(500) as usize, WallTime(0));
                let reply = [&objects_head(listing.count, listing.next), &listing.bytes[..]];
                let reply = reply.concat();
                for Listed { key, version, value, .. } in objects_reply(&reply).unwrap() {
                    assert!(
                        (first..=last).contains(&world.memory.tablets.hash(TABLE, key).unwrap().0)
                    );
                    let twice = listed.insert(key.to_vec(), (version, value.to_vec()));
                    assert!(twice.is_none() || changed.contains(&key.to_vec()));
                }
                cursor = listing.next;
                if cursor == 0 {
                    break;
                }
                for _ in 0..rng.below(4) {
                    let key = (count + rng.below(300)).to_be_bytes();
                    world.mutate(&key, none, Change::Write(&[7; 30], None)).unwrap();
                    changed.push(key.to_vec());
                    world.acknowledge(0);
                    world.cleaner.step(&mut world.memory, 500);
                }
            }
        }
        listed.retain(|key, _| !changed.contains(key));
        world.objects.retain(|key, _| !changed.contains(key));
        let there = world.objects.iter().map(|(key, o)| (key.clone(), (o.0, o.1.clone())));
        assert_eq!(listed, there.collect());
    }
}

/// An enumeration lists no object that has expired, and says which ones it left out.
#[test]
fn an_enumeration_leaves_out_what_has_expired() {
    let mut world = World::new(20, 4096);
    for n in 0..60u32 {
        let lifetime = (n % 3 == 0).then_some(Lifetime(10));
        let change = Change::Write(b"value", lifetime);
        world.mutate(&n.to_be_bytes(), RejectRules::default(), change).unwrap();
    }
    let all = Tablet { table: TABLE, first: 0, last: u64::MAX };
    let list = |wall| {
        let (mut cursor, mut listed, mut expired) = (0, 0, Vec::new());
        loop {
            let listing = world.memory.enumerate(all, cursor, 100, WallTime(wall));
            listed += listing.count;
            expired.extend(listing.expired);
            cursor = listing.next;
            if cursor == 0 {
                return (listed, expired);
            }
        }
    };
    assert_eq!(list(9), (60, Vec::new()));
    let (listed, expired) = list(10);
    assert_eq!((listed, expired.len()), (40, 20));
    for (hash, at) in expired {
        let place = world.memory.table.place(hash, at).unwrap();
        world.memory.expire(place, at).unwrap();
    }
    world.wall = WallTime(10);
    world.check();
    assert_eq!(world.memory.table.len(), 40);
}

#[test]
fn an_enumeration_ends_after_a_large_value() {
    let mut world = World::new(40, 1 << 16);
    let none = RejectRules::default();
    for n in 0..20u64 {
        world.mutate(&n.to_be_bytes(), none, Change::Write(&[n as u8; LARGE_VALUE], None)).unwrap();
    }
    let tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };
    let mut cursor = 0;
    let mut listed = 0;
    loop {
        let listing = world.memory.enumerate(tablet, cursor, 1 << 20, WallTime(0));
        listed += listing.count;
        match listing.large {
            Some((at, len)) => {
                assert_eq!((listing.count, listing.bytes.len(), len), (1, 16 + 8, LARGE_VALUE));
                assert_eq!(world.memory.log.bytes(at)[..len], [listing.bytes[23]; LARGE_VALUE]);
            }
            None => assert_eq!(listing.count, 0, "a search that found nothing ends as well"),
        }
        cursor = listing.next;
        if listing.next == 0 {
            break;
        }
    }
    assert_eq!(listed, 20);
}

#[test]
fn a_dropped_tablets_objects_go() {
    let mut world = World::new(12, 4096);
    let none = RejectRules::default();
    for n in 0..100u64 {
        world.mutate(&n.to_be_bytes(), none, Change::Write(&[1; 100], None)).unwrap();
        world.acknowledge(0);
    }
    let half = Tablet { table: TABLE, first: 0, last: u64::MAX / 2 };
    assert!(world.memory.tablets.drop_tablet(half));
    // The cleaner, growth and the sweep meet in the middle.
    while world.memory.sweep(1) {
        world.cleaner.step(&mut world.memory, 1000);
        world.memory.grow(1);
    }
    let hash_key = HashKey([1; 16]);
    world.objects.retain(|key, _| KeyHasher::from(hash_key).hash(key).0 > u64::MAX / 2);
    assert!((30..70).contains(&world.objects.len()));
    world.check();
    assert_eq!(world.memory.tablets.take(half, hash_key, TableDurability::Cluster), Ok(()));
    world.check();
    let rest = Tablet { first: 0, last: u64::MAX, ..half };
    assert!(world.memory.tablets.drop_tablet(rest));
    while world.memory.sweep(5) {}
    assert!(world.memory.table.is_empty());
    // The last mutation is not acknowledged yet.
    assert_eq!(world.memory.log.live_bytes(), COMPLETION as u64);
}

/// Memory is filled and then overwritten for long, with replies that are never taken. A new object
/// is refused only if live bytes would pass the limit, and an existing object can always be written
/// anew, however large objects are beside a segment.
///
/// Segments that readers have pinned are cleaned too, or the cleaner would rest for ever.
#[test]
fn writes_are_refused_only_at_the_limit() {
    const SEGMENT: u64 = 16 << 10;
    let none = RejectRules::default();
    let lens = [
        (100, 100),
        (1950, 1950),
        (2048, 2048),
        (4000, 4000),
        (5000, 7000),
        (50, 2100),
        (8100, 8100),
    ];
    for (segments, (least, most)) in
        [6, 8, 9, 16, 32, 128].into_iter().flat_map(|n| lens.map(|len| (n, len)))
    {
        let mut rng = Rng::seeded(segments * 31 + most);
        let mut world = World::new(segments, SEGMENT as u32);
        let (mut keys, mut full, mut lent) = (0, false, Vec::new());
        for n in 0..segments * 200 {
            world.acknowledge(0);
            let number = if full { rng.below(keys) } else { keys };
            let key = number.to_be_bytes();
            let len = least + number * 7919 % (most - least + 1);
            if full && rng.chance(300_000) {
                world.mutate(&key, none, Change::Remove).unwrap();
                world.acknowledge(0);
            }
            let there = world.objects.contains_key(&key[..]);
            let before = world.memory.log.live_bytes();
            let written =
                world.mutate(&key, none, Change::Write(&vec![n as u8; len as usize], None));
            match written {
                None => {
                    let log = &world.memory.log;
                    let at = (before, log.live_limit(), log.tombstone_bytes());
                    let sizes = (segments, least, most);
                    assert!(!there, "{sizes:?}: {len} bytes replace as many at {at:?}");
                    let counted = OBJECT + key.len() + len as usize + COMPLETION;
                    let limit = world.memory.log.live_limit_with(counted - COMPLETION + RECORD);
                    assert!(
                        before + counted as u64 > limit,
                        "refused {len} at {before} of {limit} bytes"
                    );
                    full = true;
                }
                Some(_) if !full => keys += 1,
                Some(_) => {
                    let target = Target { table: TABLE, ..Target::default() };
                    let hash = world.memory.tablets.locate(TABLE, &key).unwrap();
                    let (_, at) = world.memory.find(target.table, hash, &key).unwrap();
                    lent.extend(world.memory.log.lend(at, OBJECT));
                }
            }
        }
        assert!(full && !lent.is_empty());
        world.check();
        for slice in lent {
            world.memory.log.give_back(slice);
        }
        assert_eq!((world.memory.log.pinned(), world.memory.log.copied_bytes()), (0, 0));
        world.check();
    }
}
