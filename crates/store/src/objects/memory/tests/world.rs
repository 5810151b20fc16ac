//! A memory for tests, with an oracle of its contents.

use alloc::collections::BTreeMap;
use alloc::string::ToString as _;
use alloc::vec;
use alloc::vec::Vec;

use sprat_proto::time::MS;
use sprat_proto::wire::checksum::crc32c;
use sprat_proto::{Instant, Rng};

use crate::durability::TableDurability;
use crate::message::Status;
use crate::message::data::{Amount, Once, RejectRules, Target};
use crate::objects::cleaner::Cleaner;
use crate::objects::entry::{self, Entry, Outcome, Record};
use crate::objects::expiry::Expiry;
use crate::objects::log::Log;
use crate::objects::memory::Memory;
use crate::objects::mutate::{Change, Mutation};
use crate::objects::number;
use crate::objects::rifl::Verdict;
use crate::objects::tablet::Tablet;
use crate::types::{HashKey, LeaseId, Lifetime, TableId, Version, WallTime};

pub(crate) const TABLE: TableId = TableId(7);
pub(crate) const LEASE: LeaseId = LeaseId(3);

/// A test's memory with its cleaner, an oracle of its contents, and a client that numbers its
/// mutations.
pub(crate) struct World {
    pub(crate) memory: Memory,
    pub(crate) cleaner: Cleaner,
    pub(crate) expiry: Expiry,
    /// The time. Objects that have expired stay in the oracle until something reports them as gone.
    pub(crate) wall: WallTime,
    pub(crate) objects: BTreeMap<Vec<u8>, (Version, Vec<u8>, WallTime)>,
    /// The highest version that a key ever had.
    highest: BTreeMap<Vec<u8>, Version>,
    /// The outcomes of mutations by number, with the old values for the replies.
    outcomes: BTreeMap<u64, (Outcome, Vec<u8>)>,
    pub(crate) rpc: u64,
    pub(crate) ack: u64,
}

impl World {
    pub(crate) fn new(segments: u64, segment_bytes: u32) -> Self {
        let mut log = Log::new(segments * u64::from(segment_bytes), segment_bytes, crc32c, false);
        log.sort_from(12);
        let mut memory = Memory::new(log);
        let all = Tablet { table: TABLE, first: 0, last: u64::MAX };
        memory.tablets.take(all, HashKey([1; 16]), TableDurability::Cluster).unwrap();
        memory.results.extend(LEASE, Instant::NEVER);
        Self {
            memory,
            cleaner: Cleaner::default(),
            expiry: Expiry::default(),
            wall: WallTime(0),
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
        let target = Target { table: TABLE, rules, ..Target::default() };
        let hash = self.memory.tablets.locate(TABLE, key).unwrap();
        let mutation = Mutation { target, once, key, hash, change, wall: self.wall };
        let mut hope = true;
        for _ in 0..10_000 {
            match self.memory.mutate(&mutation) {
                Ok(outcome) => {
                    let old = match change {
                        Change::Swap(..) if outcome.status == Status::Ok => self.current(key).1,
                        _ => Vec::new(),
                    };
                    self.outcomes.insert(self.rpc, (outcome, old));
                    self.expect(key, &rules, change, outcome);
                    return Some(outcome);
                }
                Err(Status::Retry) if hope => {
                    self.cleaner.step(&mut self.memory, 2000);
                    hope = self.cleaner.wanted(&self.memory);
                }
                Err(Status::NoSpace)
                    if {
                        let now = Instant::from_ns(self.wall.0 * MS);
                        self.expiry.hurry(&self.memory, now, self.wall)
                    } =>
                {
                    self.cleaner.step(&mut self.memory, 2000);
                    self.step_expiry(2000);
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
        let target = Target { table: TABLE, ..Target::default() };
        let hash = self.memory.tablets.locate(TABLE, key).unwrap();
        self.memory.mutate(&Mutation { target, once, key, hash, change, wall: self.wall })
    }

    /// Searches for objects that have expired, as the master does.
    pub(crate) fn step_expiry(&mut self, work: usize) -> bool {
        let now = Instant::from_ns(self.wall.0 * MS);
        self.expiry.step(&mut self.memory, now, self.wall, work)
    }

    /// Returns version, value and end of the object that a mutation finds. Forgets one that has
    /// expired: whatever the outcome, it says that there is none.
    fn current(&mut self, key: &[u8]) -> (Version, Vec<u8>, WallTime) {
        if self.objects.get(key).is_some_and(|object| object.2 <= self.wall) {
            self.objects.remove(key);
        }
        let none = (Version(0), Vec::new(), WallTime::NEVER);
        self.objects.get(key).cloned().unwrap_or(none)
    }

    /// Compares `outcome` with the oracle, and applies the change to the oracle.
    fn expect(&mut self, key: &[u8], rules: &RejectRules, change: Change<'_>, outcome: Outcome) {
        let (version, value, expires) = self.current(key);
        let missing = version == Version(0);
        if let Err(status) = rules.check(version) {
            assert_eq!(outcome, Outcome { status, version, sum: None });
            return;
        }
        let number = core::str::from_utf8(if missing { b"0" } else { &value }).unwrap_or("");
        let mut new_expires = expires;
        let (new, sum) = match change {
            Change::Remove => {
                assert_eq!(outcome, Outcome { status: Status::Ok, version, sum: None });
                self.objects.remove(key);
                return;
            }
            Change::Write(value, lifetime) => {
                new_expires = self.wall.after(lifetime);
                (value.to_vec(), None)
            }
            Change::Swap(value, lifetime) => {
                new_expires = self.wall.after(lifetime);
                (value.to_vec(), Some(version.0.to_be_bytes()))
            }
            Change::Touch(_) if missing => {
                let status = Status::ObjectDoesntExist;
                return assert_eq!(outcome, Outcome { status, version, sum: None });
            }
            Change::Touch(lifetime) => {
                new_expires = self.wall.after(lifetime);
                (value.clone(), None)
            }
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
                let number = number.ok_or(Status::NotANumber);
                match number.and_then(|n| n.checked_add(amount).ok_or(Status::Overflow)) {
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
        self.objects.insert(key.to_vec(), (outcome.version, new, new_expires));
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
        let exist = self.objects.values().filter(|object| self.wall < object.2).count();
        assert!((exist..=self.objects.len()).contains(&(self.memory.table.len() as usize)));
        for (key, (version, value, expires)) in &self.objects {
            if *expires <= self.wall {
                continue;
            }
            let hash = self.memory.tablets.locate(TABLE, key).unwrap();
            let (_, at) = self.memory.find(target.table, hash, key).expect("it is there");
            let object = self.memory.log.object(at);
            let found = (object.version, object.value, object.expires);
            assert_eq!(found, (*version, &value[..], *expires));
        }
        for (&rpc, (outcome, old)) in &self.outcomes {
            let once = Once { lease: LEASE, rpc, ack: 0 };
            let verdict = self.memory.results.check(Instant::ZERO, once, |_| ());
            assert!(
                matches!(verdict, Verdict::Done(same, _) if same == *outcome),
                "{rpc} {verdict:?}"
            );
            let at = self.memory.results.location(once).unwrap();
            assert_eq!(entry::old(self.memory.log.bytes(at)), old, "{rpc}");
        }
        let live: u64 = self.memory.log.slots().iter().map(|segment| u64::from(segment.live)).sum();
        assert_eq!(live, self.memory.log.live_bytes());
        // A helper keeps the sources of a job and the rest of one.
        let twins = self.memory.log.slots().iter().filter(|segment| segment.twin.0 > 0).count();
        assert!(twins <= 5, "{twins} segments have a twin");
    }

    /// Checks that a replay of the log gives the same objects and outcomes.
    pub(crate) fn replay(&self) {
        let mut objects: BTreeMap<Vec<u8>, (Version, Vec<u8>, WallTime)> = BTreeMap::new();
        let mut removed: BTreeMap<Vec<u8>, Version> = BTreeMap::new();
        let mut outcomes = BTreeMap::new();
        let mut safe_version = Version(0);
        let log = &self.memory.log;
        let slots: Vec<u32> =
            log.segments().map(|(id, _)| id).filter_map(|id| log.slot(id)).collect();
        for slot in slots {
            let segment = &log.slots()[slot as usize];
            // A segment that a helper reads cannot be sealed.
            let sealed = sealed(&segment.bytes[..segment.written as usize]);
            let outcome = |record: Option<Record<'_>>, version| {
                let outcome = |sum| Outcome { status: Status::Ok, version, sum };
                record.map(|Record { once, sum, old }| (once.rpc, (outcome(sum), old.to_vec())))
            };
            for (_, entry) in entry::replay(crc32c, &sealed) {
                match entry {
                    Entry::Header(header) => safe_version = safe_version.max(header.safe_version),
                    Entry::Object(object, record) => {
                        let newest = objects.entry(object.key.to_vec()).or_default();
                        if object.version > newest.0 {
                            *newest = (object.version, object.value.to_vec(), object.expires);
                        }
                        outcomes.extend(outcome(record, object.version));
                    }
                    Entry::Tombstone(tombstone, record) => {
                        let newest = removed.entry(tombstone.key.to_vec()).or_default();
                        *newest = tombstone.version.max(*newest);
                        outcomes.extend(outcome(record, tombstone.version));
                    }
                    Entry::Completion(completion) => {
                        let outcome = (completion.outcome, completion.old.to_vec());
                        outcomes.insert(completion.once.rpc, outcome);
                    }
                    Entry::Digest(_) | Entry::Change(_) | Entry::Group(_) => {}
                }
            }
        }
        for version in objects.values().map(|object| object.0).chain(removed.values().copied()) {
            safe_version = safe_version.max(Version(version.0 + 1));
        }
        outcomes.retain(|&rpc, _| rpc > self.ack);
        objects.retain(|key, object| removed.get(key).is_none_or(|&version| version < object.0));
        let mut expected = self.objects.clone();
        expected.retain(|key, object| objects.contains_key(key) || self.wall < object.2);
        assert_eq!(objects, expected, "a replay brings back what is there and nothing else");
        assert_eq!(outcomes, self.outcomes);
        for (key, &highest) in &self.highest {
            assert!(self.objects.contains_key(key) || safe_version > highest, "{key:?}");
        }
    }

    /// Returns the objects that have not expired: version, value and end of each.
    pub(crate) fn contents(&self) -> BTreeMap<Vec<u8>, (Version, Vec<u8>, WallTime)> {
        let mut contents = self.objects.clone();
        contents.retain(|_, object| self.wall < object.2);
        contents
    }

    pub(crate) fn random(&mut self, rng: &mut Rng, keys: u64, max_value: u64) -> Option<Outcome> {
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
        let lifetime = rng.chance(300_000).then(|| Lifetime(rng.below(300)));
        let change = match rng.below(13) {
            11.. => Change::Swap(&value, lifetime),
            0..5 => Change::Write(&value, lifetime),
            5..7 => Change::Remove,
            10 => Change::Touch(lifetime),
            7 => Change::Append(&value[..value.len().min(20)]),
            8 => Change::Add(Amount::Integer(rng.u64() as i64)),
            _ => Change::Add(Amount::Double(f64::from(rng.u32()) / 8.0)),
        };
        self.mutate(&key, rules, change)
    }
}

/// Returns the entries of a segment with their checksums.
fn sealed(entries: &[u8]) -> Vec<u8> {
    let mut sealed = entries.to_vec();
    let (mut at, mut seed) = (0, 0);
    while let Some(len) = entry::seal(crc32c, seed, &mut sealed[at..]) {
        if at == 0 {
            seed = u32::from_be_bytes(sealed[4..8].try_into().unwrap());
        }
        at += len;
    }
    assert_eq!(at, sealed.len());
    sealed
}
