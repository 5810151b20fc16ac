//! Tests of a master's memory by random operations, compared with an oracle. The cleaner works in a
//! memory that is hardly large enough. A replay of the log, as in a recovery, must give the same
//! objects.

use alloc::collections::BTreeMap;
use alloc::string::ToString as _;
use alloc::vec;

use sprat_proto::wire::checksum::crc32c;
use sprat_proto::{Instant, Rng};

use super::*;
use crate::durability::TableDurability;
use crate::hash::KeyHasher;
use crate::message::data::RejectRules;
use crate::message::list::{objects_head, objects_reply};
use crate::objects::cleaner::Cleaner;
use crate::objects::entry::Entry;
use crate::objects::rifl::Verdict;
use crate::types::{HashKey, LeaseId, TableId};

const TABLE: TableId = TableId(7);
const LEASE: LeaseId = LeaseId(3);

/// A test's memory with its cleaner, an oracle of its contents, and a client that numbers its
/// mutations.
pub(crate) struct World {
    pub(crate) memory: Memory,
    pub(crate) cleaner: Cleaner,
    objects: BTreeMap<Vec<u8>, (Version, Vec<u8>)>,
    /// The highest version that a key ever had.
    highest: BTreeMap<Vec<u8>, Version>,
    outcomes: BTreeMap<u64, Outcome>,
    rpc: u64,
    ack: u64,
}

impl World {
    pub(crate) fn new(segments: u64, segment_bytes: u32) -> Self {
        let log = Log::new(segments * u64::from(segment_bytes), segment_bytes, crc32c, false);
        let mut memory = Memory::new(log);
        let all = Tablet { table: TABLE, first: 0, last: u64::MAX };
        memory.tablets.take(all, HashKey([1; 16]), TableDurability::Cluster).unwrap();
        memory.results.extend(LEASE, Instant::NEVER);
        Self {
            memory,
            cleaner: Cleaner::default(),
            objects: BTreeMap::new(),
            highest: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            rpc: 0,
            ack: 0,
        }
    }

    /// Executes a mutation exactly once, and cleans as the master does; `None` if memory is full.
    pub(crate) fn mutate(
        &mut self,
        key: &[u8],
        rules: RejectRules,
        change: Change<'_>,
    ) -> Option<Outcome> {
        self.rpc += 1;
        let once = Once { lease: LEASE, rpc: self.rpc, ack: self.ack };
        let verdict = {
            let Memory { results, log, .. } = &mut self.memory;
            results.check(Instant::ZERO, once, |at| log.dead_record(at))
        };
        assert_eq!(verdict, Verdict::New);
        let target = Target { cluster: 0, table: TABLE, rules };
        let hash = self.memory.tablets.locate(TABLE, key).unwrap();
        let mutation = Mutation { target, once, key, hash, change };
        let mut hope = true;
        for _ in 0..10_000 {
            match self.memory.mutate(&mutation) {
                Ok(outcome) => {
                    self.outcomes.insert(self.rpc, outcome);
                    self.expect(key, &rules, change, outcome);
                    return Some(outcome);
                }
                Err(Status::Retry) if hope => {
                    self.cleaner.step(&mut self.memory, 2000);
                    hope = self.cleaner.wanted(&self.memory);
                }
                Err(Status::Retry | Status::NoSpace) => return None,
                Err(status) => panic!("{status:?}"),
            }
        }
        panic!("the cleaner makes no progress");
    }

    /// Executes a mutation without cleaning and without the oracle.
    pub(crate) fn mutate_only(
        &mut self,
        key: &[u8],
        change: Change<'_>,
    ) -> Result<Outcome, Status> {
        self.rpc += 1;
        let once = Once { lease: LEASE, rpc: self.rpc, ack: self.ack };
        let Memory { results, log, .. } = &mut self.memory;
        results.check(Instant::ZERO, once, |at| log.dead_record(at));
        let target = Target { cluster: 0, table: TABLE, rules: RejectRules::default() };
        let hash = self.memory.tablets.locate(TABLE, key).unwrap();
        self.memory.mutate(&Mutation { target, once, key, hash, change })
    }

    /// Compares `outcome` with the oracle, and applies the change to the oracle.
    fn expect(&mut self, key: &[u8], rules: &RejectRules, change: Change<'_>, outcome: Outcome) {
        let (version, value) = self.objects.get(key).cloned().unwrap_or_default();
        let missing = version == Version(0);
        if let Err(status) = rules.check(version) {
            assert_eq!(outcome, Outcome { status, version, sum: None });
            return;
        }
        let number = core::str::from_utf8(if missing { b"0" } else { &value }).unwrap_or("");
        let (new, sum) = match change {
            Change::Remove => {
                assert_eq!(outcome, Outcome { status: Status::Ok, version, sum: None });
                self.objects.remove(key);
                return;
            }
            Change::Write(value) => (value.to_vec(), None),
            Change::Append(bytes) => {
                let new = if missing { bytes.to_vec() } else { [&value[..], bytes].concat() };
                let length = (new.len() as u64).to_be_bytes();
                (new, Some(length))
            }
            Change::Add(Amount::Integer(amount)) => {
                // No oracle for what is a number: that is the tests' of `number`. But text of one
                // is always written plainly.
                let number: Option<i64> =
                    number.parse().ok().filter(|n: &i64| n.to_string() == number);
                match number
                    .ok_or(Status::NotANumber)
                    .and_then(|n| n.checked_add(amount).ok_or(Status::Overflow))
                {
                    Ok(sum) => (sum.to_string().into_bytes(), Some(sum.to_be_bytes())),
                    Err(status) => {
                        return assert_eq!(outcome, Outcome { status, version, sum: None });
                    }
                }
            }
            Change::Add(Amount::Double(amount)) => {
                let Some(number) = number::double(number.as_bytes()) else {
                    return assert_eq!(
                        outcome,
                        Outcome { status: Status::NotANumber, version, sum: None }
                    );
                };
                let sum = number + amount;
                (number::double_text(sum).into_bytes(), Some(sum.to_be_bytes()))
            }
        };
        assert_eq!((outcome.status, outcome.sum), (Status::Ok, sum));
        let highest = self.highest.entry(key.to_vec()).or_default();
        assert!(outcome.version > *highest, "versions of a key never go back");
        if !missing {
            assert_eq!(outcome.version, Version(version.0 + 1));
        }
        *highest = outcome.version;
        self.objects.insert(key.to_vec(), (outcome.version, new));
    }

    /// Sets the client's acknowledgement: it has all replies but the last `outstanding`.
    pub(crate) fn acknowledge(&mut self, outstanding: u64) {
        self.ack = self.ack.max(self.rpc.saturating_sub(outstanding));
        self.outcomes = self.outcomes.split_off(&(self.ack + 1));
    }

    /// Checks that all objects can be read and no others exist, that unacknowledged outcomes are
    /// remembered, and that the accounts of the log are right.
    pub(crate) fn check(&mut self) {
        let target = Target { cluster: 0, table: TABLE, ..Target::default() };
        assert_eq!(self.memory.table.len(), self.objects.len() as u64);
        for (key, (version, value)) in &self.objects {
            let hash = self.memory.tablets.locate(TABLE, key).unwrap();
            let (_, at) = self.memory.find(target.table, hash, key).expect("it is there");
            let object = self.memory.log.object(at);
            assert_eq!((object.version, object.value), (*version, &value[..]));
        }
        for (&rpc, &outcome) in &self.outcomes {
            let once = Once { lease: LEASE, rpc, ack: 0 };
            let verdict = self.memory.results.check(Instant::ZERO, once, |_| ());
            assert!(
                matches!(verdict, Verdict::Done(same, _) if same == outcome),
                "{rpc} {verdict:?}"
            );
        }
        let live: u64 = self.memory.log.slots().iter().map(|segment| u64::from(segment.live)).sum();
        assert_eq!(live, self.memory.log.live_bytes());
    }

    /// Checks that a replay of the log gives the same objects and outcomes.
    pub(crate) fn replay(&mut self) {
        let mut objects: BTreeMap<Vec<u8>, (Version, Vec<u8>)> = BTreeMap::new();
        let mut removed: BTreeMap<Vec<u8>, Version> = BTreeMap::new();
        let mut outcomes = BTreeMap::new();
        let mut safe_version = Version(0);
        let log = &mut self.memory.log;
        let slots: Vec<u32> =
            log.segments().map(|(id, _)| id).filter_map(|id| log.slot(id)).collect();
        for slot in slots {
            log.seal(slot);
            let segment = &log.slots()[slot as usize];
            assert_eq!(segment.sealed, segment.written);
            let outcome = |record: Option<Record>, version| {
                let outcome = |sum| Outcome { status: Status::Ok, version, sum };
                record.map(|Record { once, sum }| (once.rpc, outcome(sum)))
            };
            for (_, entry) in entry::replay(crc32c, &segment.bytes[..segment.written as usize]) {
                match entry {
                    Entry::Header(header) => safe_version = safe_version.max(header.safe_version),
                    Entry::Object(object, record) => {
                        let newest = objects.entry(object.key.to_vec()).or_default();
                        if object.version > newest.0 {
                            *newest = (object.version, object.value.to_vec());
                        }
                        outcomes.extend(outcome(record, object.version));
                    }
                    Entry::Tombstone(tombstone, record) => {
                        let newest = removed.entry(tombstone.key.to_vec()).or_default();
                        *newest = tombstone.version.max(*newest);
                        outcomes.extend(outcome(record, tombstone.version));
                    }
                    Entry::Completion(completion) => {
                        outcomes.insert(completion.once.rpc, completion.outcome);
                    }
                    Entry::Digest(_) | Entry::Change(_) => {}
                }
            }
        }
        for version in objects.values().map(|object| object.0).chain(removed.values().copied()) {
            safe_version = safe_version.max(Version(version.0 + 1));
        }
        outcomes.retain(|&rpc, _| rpc > self.ack);
        objects.retain(|key, object| removed.get(key).is_none_or(|&version| version < object.0));
        assert_eq!(objects, self.objects, "a replay brings back what is there and nothing else");
        assert_eq!(outcomes, self.outcomes);
        for (key, &highest) in &self.highest {
            assert!(self.objects.contains_key(key) || safe_version > highest, "{key:?}");
        }
    }

    fn random(&mut self, rng: &mut Rng, keys: u64, max_value: u64) -> Option<Outcome> {
        let n = rng.below(keys);
        let key = vec![n as u8; 1 + (n % 40) as usize];
        let key = [&n.to_be_bytes()[7 - (n % 8) as usize..], &key].concat();
        let current = self.objects.get(&key).map_or(Version(0), |object| object.0);
        let mut rules = RejectRules::default();
        if rng.chance(300_000) {
            let given_version = Version((current.0 + rng.below(3)).saturating_sub(1));
            rules = RejectRules {
                given_version,
                doesnt_exist: rng.chance(250_000),
                exists: rng.chance(250_000),
                version_le_given: rng.chance(250_000),
                version_ne_given: rng.chance(250_000),
            };
        }
        let mut value = vec![0; rng.below(max_value) as usize];
        rng.fill(&mut value);
        let change = match rng.below(10) {
            0..5 => Change::Write(&value),
            5..7 => Change::Remove,
            7 => Change::Append(&value[..value.len().min(20)]),
            8 => Change::Add(Amount::Integer(rng.u64() as i64)),
            _ => Change::Add(Amount::Double(f64::from(rng.u32()) / 8.0)),
        };
        self.mutate(&key, rules, change)
    }
}

#[test]
fn random_operations_in_a_small_memory() {
    for seed in 0..12 {
        let mut rng = Rng::seeded(seed);
        let mut world = World::new(8 + seed, 4096);
        let keys = 20 + rng.below(150);
        let mut refused = 0;
        for n in 0..4000 {
            refused += u32::from(world.random(&mut rng, keys, 400).is_none());
            if rng.chance(100_000) {
                let outstanding = rng.below(30);
                world.acknowledge(outstanding);
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
    }
}

#[test]
fn memory_that_is_full_refuses_new_data_and_can_be_emptied() {
    let mut world = World::new(64, 4096);
    let none = RejectRules::default();
    let mut n = 0u64;
    while world.mutate(&n.to_be_bytes(), none, Change::Write(&[1; 100])).is_some() {
        n += 1;
        world.acknowledge(0);
    }
    let full = world.memory.log.live_bytes() * 100 / world.memory.log.live_limit();
    assert!((97..=100).contains(&full), "refused at {full} % of the limit");
    world.check();
    // What does not grow may still be overwritten, over and over.
    for n in 0..n {
        world.acknowledge(0);
        assert!(world.mutate(&n.to_be_bytes(), none, Change::Write(&[2; 100])).is_some());
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
        assert!(world.mutate(&n.to_be_bytes(), none, Change::Write(&[3; 100])).is_some(), "{n}");
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
        assert!(world.mutate(&key, none, Change::Write(&[1; 20])).is_some(), "{n}");
        if let Some(older) = n.checked_sub(50).filter(|older| older % 100 != 0) {
            assert!(
                world.mutate(&older.to_be_bytes(), none, Change::Write(&[2; 20])).is_some(),
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
        world.mutate(b"a", none, Change::Write(&[n])).unwrap();
    }
    let removed = world.mutate(b"a", none, Change::Remove).unwrap();
    assert_eq!(removed.version, Version(20));
    let other = world.mutate(b"b", none, Change::Write(b"")).unwrap();
    assert_eq!(other.version, Version(21), "new objects share one counter");
    let again = world.mutate(b"a", none, Change::Write(b"")).unwrap();
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
    world.mutate(b"text", none, Change::Write(b"seven")).unwrap();
    assert_eq!(world.mutate(b"text", none, add(1)).unwrap().status, Status::NotANumber);
    let double = world.mutate(b"d", none, Change::Add(Amount::Double(0.5))).unwrap().sum;
    assert_eq!(double, Some(0.5f64.to_be_bytes()));
}

#[test]
fn the_limits_on_keys_and_values() {
    assert_eq!(check_sizes(&[0; MAX_KEY], &[0; MAX_VALUE]), Ok(()));
    assert_eq!(check_sizes(&[0; MAX_KEY + 1], &[]), Err(Status::KeyTooLong));
    assert_eq!(check_sizes(&[], &[0; MAX_VALUE + 1]), Err(Status::ValueTooLong));
    // The longest object fits into a segment.
    assert!(
        OBJECT + MAX_KEY + MAX_VALUE + RECORD < crate::objects::segment::SEGMENT_BYTES as usize / 2
    );
    let mut world = World::new(8, 4096);
    let once = Once { lease: LEASE, rpc: 1, ack: 0 };
    let change = Change::Write(&[0; 4096]);
    let target = Target { table: TABLE, ..Target::default() };
    let mutation = Mutation { target, once, key: b"", hash: KeyHash(0), change };
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
            world.mutate(&n.to_be_bytes(), none, Change::Write(&[n as u8; 30])).unwrap();
            world.acknowledge(0);
        }
        let half = u64::MAX / 2;
        let mut listed = BTreeMap::new();
        let mut changed = Vec::new();
        for (first, last) in [(0, half), (half + 1, u64::MAX)] {
            let mut cursor = 0;
            loop {
                let tablet = Tablet { table: TABLE, first, last };
                let listing = world.memory.enumerate(tablet, cursor, rng.below(500) as usize);
                let reply = [&objects_head(listing.count, listing.next), &listing.bytes[..]];
                let reply = reply.concat();
                for (key, version, value) in objects_reply(&reply).unwrap() {
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
                    world.mutate(&key, none, Change::Write(&[7; 30])).unwrap();
                    changed.push(key.to_vec());
                    world.acknowledge(0);
                    world.cleaner.step(&mut world.memory, 500);
                }
            }
        }
        listed.retain(|key, _| !changed.contains(key));
        world.objects.retain(|key, _| !changed.contains(key));
        assert_eq!(listed, world.objects);
    }
}

#[test]
fn an_enumeration_ends_after_a_large_value() {
    let mut world = World::new(40, 1 << 16);
    let none = RejectRules::default();
    for n in 0..20u64 {
        world.mutate(&n.to_be_bytes(), none, Change::Write(&[n as u8; LARGE_VALUE])).unwrap();
    }
    let tablet = Tablet { table: TABLE, first: 0, last: u64::MAX };
    let mut cursor = 0;
    let mut listed = 0;
    loop {
        let listing = world.memory.enumerate(tablet, cursor, 1 << 20);
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
        world.mutate(&n.to_be_bytes(), none, Change::Write(&[1; 100])).unwrap();
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
            let written = world.mutate(&key, none, Change::Write(&vec![n as u8; len as usize]));
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
