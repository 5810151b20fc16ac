use super::*;
use crate::message::data::RejectRules;
use crate::objects::cleaner::reserve::TAKEN_FREELY;
use crate::objects::entry::OBJECT;
use crate::objects::memory::tests::World;
use crate::objects::mutate::Change;
use alloc::boxed::Box;
use alloc::vec::Vec;

use sprat_proto::Rng;

const NONE: RejectRules = RejectRules {
    given_version: Version(0),
    doesnt_exist: false,
    exists: false,
    version_le_given: false,
    version_ne_given: false,
};

/// Writes the objects with the numbers `from..to`, each about a 43rd of a segment.
fn write(world: &mut World, from: u64, to: u64) {
    for n in from..to {
        world.acknowledge(0);
        world.mutate(&n.to_be_bytes(), NONE, Change::Write(&[1; 40], None)).unwrap();
    }
}

fn benefits(world: &World) -> Vec<(SegmentId, u128)> {
    let log = &world.memory.log;
    let benefit = |(id, _)| (id, benefit(&world.memory, log.slot(id).unwrap() as usize));
    log.segments().map(benefit).collect()
}

#[test]
fn old_segments_are_worth_cleaning_earlier() {
    let mut world = World::new(20, 4096);
    write(&mut world, 0, 100);
    let closed = benefits(&world);
    let (first, last) = (closed[0].1, closed[closed.len() - 2].1);
    assert!(
        first > last && last > 0,
        "as much is dead in both, and the first is older: {closed:?}"
    );
    assert_eq!(closed[closed.len() - 1].1, 0, "the head is never cleaned");
    let slice = world.memory.log.lend(Location::new(0, 100), 1).unwrap();
    assert_eq!(benefits(&world)[0].1, first, "a slice that is lent does not matter");
    world.memory.log.give_back(slice);
}

#[test]
fn rests_while_there_is_room() {
    let mut world = World::new(40, 4096);
    write(&mut world, 0, 100);
    assert!(!world.cleaner.wanted(&world.memory));
    assert!(!world.cleaner.step(&mut world.memory, STEP));
    assert_eq!(world.cleaner.cleaned(), 0);
}

/// Overwriting the same objects does not make the log grow to its limit.
#[test]
fn memory_follows_what_is_live() {
    let mut world = World::new(400, 4096);
    for _ in 0..500 {
        write(&mut world, 0, 20);
        while world.cleaner.step(&mut world.memory, STEP) {}
    }
    assert!(world.memory.log.appended_bytes() > 200 * 4096);
    assert!(world.memory.log.taken() <= TAKEN_FREELY + 2, "{}", world.memory.log.taken());
    world.check();
    world.replay();
}

/// The cleaner rests without dead entries, until an entry dies.
#[test]
fn rests_when_nothing_is_dead() {
    let mut world = World::new(8, 4096);
    let mut n = 0;
    while world.mutate(&[n; 30], NONE, Change::Write(&[1; 100], None)).is_some() {
        world.acknowledge(0);
        n += 1;
    }
    while world.cleaner.step(&mut world.memory, STEP) {}
    let cleaned = world.cleaner.cleaned();
    for _ in 0..100 {
        assert!(!world.cleaner.step(&mut world.memory, STEP));
    }
    assert_eq!(world.cleaner.cleaned(), cleaned);
    for n in 0..n / 2 {
        world.acknowledge(0);
        world.mutate(&[n; 30], NONE, Change::Remove).unwrap();
    }
    while world.cleaner.step(&mut world.memory, STEP) {}
    assert!(world.cleaner.cleaned() > cleaned);
    world.check();
    world.replay();
}

/// A step of the cleaner does not much more work than it was asked for.
#[test]
fn a_step_is_bounded() {
    let mut world = World::new(8, 1 << 16);
    let mut rng = Rng::seeded(1);
    while !world.cleaner.wanted(&world.memory) {
        world.acknowledge(0);
        let key = rng.below(700).to_be_bytes();
        world.mutate(&key, NONE, Change::Write(&[1; 100], None)).unwrap();
    }
    let mut steps = 0;
    loop {
        let before = world.memory.log.appended_bytes();
        let more = world.cleaner.step(&mut world.memory, 2000);
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

/// Overwrites objects that `draw` chooses in a log that is live to four fifths. Returns the bytes
/// moved for a hundred bytes written, and the most bytes moved behind one write and behind 32.
fn overwrite(draw: impl Fn(&mut Rng, u64) -> u64) -> (u64, u64, u64) {
    overwrite_in(World::new(128, 1 << 15), draw).0
}

/// Overwrites objects in this world as [`overwrite`] does. Returns the world too.
fn overwrite_in(mut world: World, draw: impl Fn(&mut Rng, u64) -> u64) -> ((u64, u64, u64), World) {
    let log = &world.memory.log;
    let bytes = u64::from(log.limit()) * u64::from(log.segment_bytes());
    let objects = bytes * 8 / 10 / (OBJECT as u64 + 108);
    let mut rng = Rng::seeded(1);
    let moved =
        |world: &World| world.memory.log.appended_bytes() - world.memory.log.written_bytes();
    let (mut written, mut first, mut burst) = (0, 0, 0);
    let (mut most, mut most_in_burst) = (0, 0);
    for round in 0..8 * objects {
        let n = if round < objects { round } else { draw(&mut rng, objects) };
        world.acknowledge(0);
        world.mutate_only(&n.to_be_bytes(), Change::Write(&[1; 100], None)).expect("there is room");
        let before = moved(&world);
        world.cleaner.pay(&mut world.memory);
        if round == 4 * objects {
            (written, first) = (world.memory.log.written_bytes(), before);
            burst = before;
        }
        if round > 4 * objects {
            most = most.max(moved(&world) - before);
            if round % 32 == 0 {
                most_in_burst = most_in_burst.max(moved(&world) - burst);
                burst = moved(&world);
            }
        }
    }
    let written = world.memory.log.written_bytes() - written;
    (((moved(&world) - first) * 100 / written, most, most_in_burst), world)
}

/// Writes pay for the cleaning that they cause: no write finds the log full, a write is followed by
/// little work, a burst of them by hardly more than another one, and the bytes moved stay close to
/// the theory (u / (1 - u) for the share u of live entries in cleaned segments, about 2 here).
#[test]
fn writes_pay_for_cleaning() {
    let (hundredths, most, in_burst) = overwrite(|rng, objects| rng.below(objects));
    assert!((180..270).contains(&hundredths), "{hundredths}");
    assert!(most <= SMALL_STEP as u64, "{most}");
    let mean = 32 * (OBJECT as u64 + 121) * hundredths / 100;
    assert!(in_burst < mean * 9 / 5, "{in_burst} bytes in a burst, {mean} in the mean");
}

/// Objects that are seldom overwritten lie together after some time, and are moved less. With one
/// survivor for all, 1.35 bytes are moved for each byte written.
#[test]
fn cold_objects_are_moved_less() {
    let (hundredths, ..) = overwrite(|rng, objects| {
        let hot = rng.below(10) > 0;
        // The hot ones lie anywhere among the others.
        if hot { rng.below(objects / 10) * 10 } else { rng.below(objects) }
    });
    assert!(hundredths < 100, "{hundredths}");
}

/// A helper with a core copies nearly all that is moved, and one with half of a core a part of it.
/// One that is slow, or never gets a core, is soon left alone. No write finds the log full, and the
/// memory of jobs costs little: without one, 213 bytes are moved for a hundred bytes written.
#[test]
fn a_helper_copies_most_entries() {
    const SEGMENT: u32 = 128 << 10;
    for (looks, shares) in
        [(0, 90..101), (300, 90..101), (1000, 20..80), (20_000, 0..10), (u64::MAX, 0..1)]
    {
        let mut world = World::new(Worth::SERVER.segments.into(), SEGMENT);
        world.cleaner.help(Box::new(Late::new(Rng::seeded(1), looks)), Worth::SERVER);
        let ((hundredths, ..), world) = overwrite_in(world, |rng, objects| rng.below(objects));
        let log = &world.memory.log;
        let moved = log.appended_bytes() - log.written_bytes();
        let share = world.cleaner.helped() * u64::from(SEGMENT) * 100 / moved;
        assert!(shares.contains(&share), "{looks} looks: {share} % by the helper");
        assert!((180..240).contains(&hundredths), "{looks} looks: {hundredths}");
    }
}

/// A helper changes nothing in a log that is too small for one.
#[test]
fn a_small_log_has_no_helper() {
    let draw = |rng: &mut Rng, objects| rng.below(objects);
    let mut helped = World::new(128, 1 << 15);
    helped.cleaner.help(Box::new(Late::new(Rng::seeded(1), 0)), Worth::SERVER);
    assert_eq!(overwrite_in(helped, draw).0, overwrite(draw));
}

/// The tombstone of an object that is removed while a helper may copy it names the survivor of the
/// copy: it stays as long as that does, or the object would return from the survivor's replicas.
#[test]
fn a_tombstone_outlives_the_copies_of_a_helper() {
    let mut world = World::new(32, 4096);
    world.cleaner.help(Box::new(Late::new(Rng::seeded(1), u64::MAX)), Worth::default());
    let mut rng = Rng::seeded(1);
    while !world.cleaner.help.is_away() {
        world.acknowledge(0);
        let key = rng.below(500).to_be_bytes();
        world.mutate_only(&key, Change::Write(&[1; 100], None)).unwrap();
        world.cleaner.pay(&mut world.memory);
    }
    let copied = |world: &mut World, key: u64| {
        let (key, table) = (key.to_be_bytes(), crate::objects::memory::tests::TABLE);
        let hash = world.memory.tablets.locate(table, &key)?;
        let (_, at) = world.memory.find(table, hash, &key)?;
        Some(world.memory.log.slots()[at.slot()].twin).filter(|twin| twin.0 > 0)
    };
    let (key, twin) = (0..500).find_map(|n| Some((n, copied(&mut world, n)?))).unwrap();
    let tail = world.memory.log.tail();
    world.mutate_only(&key.to_be_bytes(), Change::Remove).unwrap();
    let slot = world.memory.log.slot(tail.segment).unwrap();
    let bytes = world.memory.log.bytes(Location::new(slot, tail.offset));
    let Some((Entry::Tombstone(tombstone, _), _)) = entry::parse(bytes) else { panic!("{tail:?}") };
    assert!(tombstone.older.last >= twin, "{:?} and {twin:?}", tombstone.older);
}
