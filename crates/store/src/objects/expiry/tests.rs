//! Tests of the search for objects that have expired.

use alloc::vec::Vec;

use super::*;
use crate::durability::TableDurability;
use crate::message::data::{Amount, RejectRules};
use crate::objects::memory::tests::{TABLE, World};
use crate::objects::mutate::Change;
use crate::objects::tablet::Tablet;
use crate::types::{HashKey, Lifetime, Version};

const NONE: RejectRules = RejectRules {
    given_version: Version(0),
    doesnt_exist: false,
    exists: false,
    version_le_given: false,
    version_ne_given: false,
};

fn write(world: &mut World, n: u32, lifetime: Option<u64>) {
    let lifetime = lifetime.map(Lifetime);
    world.mutate(&n.to_be_bytes(), NONE, Change::Write(&[1; 40], lifetime)).expect("there is room");
}

/// One pass removes the objects that have expired and no others, and notes when the next ones do.
#[test]
fn a_pass_removes_what_has_expired() {
    let mut world = World::new(20, 4096);
    for n in 0..100 {
        write(&mut world, n, Some(100 + u64::from(n % 2) * 5000));
    }
    for n in 100..200 {
        write(&mut world, n, None);
    }
    assert!(!world.step_expiry(1 << 20));
    assert_eq!((world.memory.expired, world.memory.table.len()), (0, 200));
    world.wall = WallTime(2000);
    while world.step_expiry(300) {}
    assert_eq!((world.memory.expired, world.memory.table.len()), (50, 150));
    let earliest = |world: &World| {
        let log = &world.memory.log;
        (0..log.slots().len()).map(|slot| log.earliest_expiry(slot)).min().unwrap()
    };
    assert_eq!(earliest(&world), WallTime(5100));
    world.check();
    world.replay();
    world.wall = WallTime(6000);
    while world.step_expiry(300) {}
    assert_eq!((world.memory.expired, world.memory.table.len()), (100, 100));
    assert!(!world.memory.log.has_expiring());
    assert_eq!(world.expiry.deadline(&world.memory), Instant::NEVER);
    world.check();
    world.replay();
}

/// Between two passes there is a pause, unless a write lacks memory.
#[test]
fn passes_pause() {
    let mut world = World::new(20, 4096);
    write(&mut world, 1, Some(10));
    world.wall = WallTime(5);
    assert!(!world.step_expiry(1 << 20));
    world.wall = WallTime(20);
    assert!(!world.step_expiry(1 << 20));
    assert_eq!(world.memory.expired, 0);
    let next = world.expiry.deadline(&world.memory);
    assert_eq!(next, Instant::from_ns(5 * MS + PAUSE_NS));
    let now = Instant::from_ns(20 * MS);
    assert!(world.expiry.hurry(&world.memory, now, world.wall));
    assert!(!world.step_expiry(1 << 20));
    assert_eq!(world.memory.expired, 1);
    assert!(!world.expiry.hurry(&world.memory, now, world.wall), "nothing is left to find");
}

/// Memory full of objects that have expired takes new ones, and what has not expired stays.
#[test]
fn expired_objects_make_room() {
    let mut world = World::new(20, 4096);
    let mut n = 0;
    while world
        .mutate(&u32::to_be_bytes(n), NONE, Change::Write(&[1; 40], Some(Lifetime(100))))
        .is_some()
    {
        world.acknowledge(0);
        n += 1;
    }
    assert!(n > 400, "{n}");
    world.wall = WallTime(200);
    for more in 0..n * 8 / 10 {
        write(&mut world, n + more, None);
        world.acknowledge(0);
    }
    world.check();
    world.replay();
}

/// A mutation of an object that has expired finds none, and the object stays gone.
#[test]
fn mutations_do_not_see_what_has_expired() {
    let changes: Vec<(Change<'_>, u64)> = alloc::vec![
        (Change::Write(b"w", None), 1),
        (Change::Append(b"a"), 1),
        (Change::Remove, 0),
        (Change::Touch(None), 0),
    ];
    for (change, left) in changes {
        for rules in [NONE, RejectRules { doesnt_exist: true, ..NONE }] {
            let mut world = World::new(20, 4096);
            write(&mut world, 1, Some(10));
            world.wall = WallTime(10);
            world.mutate(&1u32.to_be_bytes(), rules, change).unwrap();
            let left = if rules.doesnt_exist { 0 } else { left };
            assert_eq!(world.memory.table.len(), left, "{change:?}");
            // The clock of another server may be behind.
            world.wall = WallTime(9);
            world.check();
            world.replay();
        }
    }
}

/// An increment and an append leave the lifetime as it is. A write and a touch set it.
#[test]
fn lifetimes_of_changed_objects() {
    let mut world = World::new(20, 4096);
    let key = 1u32.to_be_bytes();
    let mut expires = |wall, change| {
        world.wall = WallTime(wall);
        world.mutate(&key, NONE, change).unwrap();
        let hash = world.memory.tablets.locate(TABLE, &key).unwrap();
        let (_, at) = world.memory.find(TABLE, hash, &key).unwrap();
        world.memory.log.object(at).expires
    };
    assert_eq!(expires(1, Change::Write(b"7", Some(Lifetime(100)))), WallTime(101));
    assert_eq!(expires(2, Change::Add(Amount::Integer(1))), WallTime(101));
    assert_eq!(expires(3, Change::Append(b"more")), WallTime(101));
    assert_eq!(expires(4, Change::Touch(Some(Lifetime(100)))), WallTime(104));
    assert_eq!(expires(5, Change::Touch(Some(Lifetime(10)))), WallTime(15));
    assert_eq!(expires(6, Change::Touch(None)), WallTime::NEVER);
    assert_eq!(expires(7, Change::Write(b"", Some(Lifetime::MAX))).0, 7 + Lifetime::MAX.0);
    assert_eq!(expires(WallTime::MAX.0 - 1, Change::Write(b"", Some(Lifetime(5)))), WallTime::MAX);
    assert_eq!(expires(8, Change::Write(b"", None)), WallTime::NEVER);
}

/// An object of a tablet that is not served stays: a replay that goes on would put an older version
/// of it back. A later pass removes it.
#[test]
fn objects_that_are_not_served_stay() {
    let mut world = World::new(20, 4096);
    write(&mut world, 1, Some(10));
    let all = Tablet { table: TABLE, first: 0, last: u64::MAX };
    let key = HashKey([1; 16]);
    world.memory.tablets.drop_tablet(all);
    world.wall = WallTime(2000);
    assert!(!world.step_expiry(1 << 20));
    assert_eq!((world.memory.expired, world.memory.table.len()), (0, 1));
    let now = Instant::from_ns(2001 * MS);
    assert!(!world.expiry.hurry(&world.memory, now, world.wall), "it would find the same again");
    world.memory.tablets.swept(1);
    world.memory.tablets.take(all, key, TableDurability::Cluster).unwrap();
    world.wall = WallTime(4000);
    assert!(!world.step_expiry(1 << 20));
    assert_eq!((world.memory.expired, world.memory.table.len()), (1, 0));
}
