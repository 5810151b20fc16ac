use super::*;
use crate::message::data::RejectRules;
use crate::objects::memory::Change;
use crate::objects::memory::tests::World;
use alloc::vec::Vec;

const NONE: RejectRules = RejectRules {
    given_version: crate::types::Version(0),
    doesnt_exist: false,
    exists: false,
    version_le_given: false,
    version_ne_given: false,
};

/// Writes objects `from..to`, each about a 25th of a segment.
fn write(world: &mut World, from: u64, to: u64) {
    for n in from..to {
        world.acknowledge(0);
        world.mutate(&n.to_be_bytes(), NONE, Change::Write(&[1; 40])).unwrap();
    }
}

fn promises(world: &World) -> Vec<(SegmentId, u128)> {
    let log = &world.memory.log;
    let promise =
        |(id, _)| (id, promise(&world.memory, log.slot(id).unwrap() as usize, world.stamp));
    log.segments().map(promise).collect()
}

#[test]
fn old_segments_are_worth_cleaning_earlier() {
    let mut world = World::new(20, 4096);
    world.stamp = 1000;
    write(&mut world, 0, 50);
    world.stamp = 2000;
    write(&mut world, 50, 100);
    let closed = promises(&world);
    let (first, last) = (closed[0].1, closed[closed.len() - 2].1);
    assert!(first > last && last > 0, "as dead, but older: {closed:?}");
    assert_eq!(closed[closed.len() - 1].1, 0, "the head is not to be cleaned");
    let slice = world.memory.log.lend(Location::new(0, 100), 1).unwrap();
    assert_eq!(promises(&world)[0].1, first, "who reads it is not asked");
    world.memory.log.give_back(slice);
}

#[test]
fn rests_while_there_is_room() {
    let mut world = World::new(40, 4096);
    write(&mut world, 0, 100);
    assert!(!world.cleaner.wanted(&world.memory));
    assert!(!world.cleaner.step(&mut world.memory, 0, STEP));
    assert_eq!(world.cleaner.cleaned(), 0);
}

/// What is overwritten over and over does not make the log grow to all that it may take.
#[test]
fn memory_follows_what_is_live() {
    let mut world = World::new(400, 4096);
    for _ in 0..400 {
        write(&mut world, 0, 20);
        while world.cleaner.step(&mut world.memory, world.stamp, STEP) {}
    }
    assert!(world.memory.log.appended_bytes() > 200 * 4096);
    assert!(world.memory.log.taken() <= TAKEN_FREELY + 2, "{}", world.memory.log.taken());
    world.check();
    world.replay();
}

/// With all that is dead cleaned away it rests, until something dies.
#[test]
fn rests_when_nothing_is_dead() {
    let mut world = World::new(8, 4096);
    let mut n = 0;
    while world.mutate(&[n; 30], NONE, Change::Write(&[1; 100])).is_some() {
        world.acknowledge(0);
        n += 1;
    }
    while world.cleaner.step(&mut world.memory, 0, STEP) {}
    let cleaned = world.cleaner.cleaned();
    for _ in 0..100 {
        assert!(!world.cleaner.step(&mut world.memory, 0, STEP));
    }
    assert_eq!(world.cleaner.cleaned(), cleaned);
    for n in 0..n / 2 {
        world.acknowledge(0);
        world.mutate(&[n; 30], NONE, Change::Remove).unwrap();
    }
    while world.cleaner.step(&mut world.memory, 0, STEP) {}
    assert!(world.cleaner.cleaned() > cleaned);
    world.check();
    world.replay();
}

/// Whatever is asked of one step, it does not do much more.
#[test]
fn a_step_is_bounded() {
    let mut world = World::new(8, 1 << 16);
    for n in 0..3000u64 {
        world.acknowledge(0);
        world.mutate(&(n % 700).to_be_bytes(), NONE, Change::Write(&[1; 100])).unwrap();
    }
    let mut steps = 0;
    loop {
        let before = world.memory.log.appended_bytes();
        let more = world.cleaner.step(&mut world.memory, 0, 2000);
        let copied = world.memory.log.appended_bytes() - before;
        assert!(copied < 2000, "{copied} bytes in one step");
        steps += 1;
        if !more {
            break;
        }
    }
    assert!(steps > 10);
    world.check();
}
