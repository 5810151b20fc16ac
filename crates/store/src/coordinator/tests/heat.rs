//! Tests of hot ranges that move by themselves, with masters whose keys have rates of accesses.

use alloc::collections::BTreeMap;

use super::*;
use crate::master::heat::hot_range;
use crate::message::migration::{Hot, HotRange, MigrationState};
use crate::message::recovery::{Ending, Range, RecoveryEnded};
use crate::objects::tablet::Tablet;

/// The locators of the servers.
const NAMES: [&str; 3] = ["x", "y", "z"];
/// The time of one step of a world.
const STEP_NS: u64 = 100 * MS;
/// The accesses of which one is in the sample.
const EVERY: u64 = 64;
/// The most entries of a sample.
const MOST: usize = 1024;

impl Master {
    /// Returns the reply to a question for a hot range.
    pub(super) fn hot_range(&self, request: &[u8]) -> Vec<u8> {
        let asked = HotRange::parse(request).unwrap();
        if asked.server != self.id {
            return failure(Status::NotInCluster, "");
        }
        let tablets = self.owns.iter().map(|&(table, first, last)| Tablet { table, first, last });
        hot_range(&self.sample, tablets, asked.wanted).emit()
    }
}

/// A world whose coordinator moves hot ranges, with a load.
struct Loaded {
    w: World,
    table: TableId,
    /// The accesses in a second to the object with this key hash.
    rates: BTreeMap<u64, u64>,
    rng: Rng,
    /// The accesses to each key that are not in the sample yet.
    rest: BTreeMap<u64, u64>,
    /// The moves so far: the time, the range and the ending.
    moves: Vec<(Instant, (u64, u64), ServerId)>,
    ending: Ending,
}

impl Loaded {
    fn new(rates: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut w = World::new(Config { rebalance_ns: SECOND, ..config() });
        for name in NAMES {
            w.enlist(name);
        }
        let table = w.create("a", NAMES.len() as u32).unwrap();
        Self {
            w,
            table,
            rates: rates.into_iter().collect(),
            rng: Rng::seeded(7),
            rest: BTreeMap::new(),
            moves: Vec::new(),
            ending: Ending::Done,
        }
    }

    fn owner(&self, hash: u64) -> &'static str {
        let table = &self.w.coordinator.tables.by_id[&self.table.0];
        let server = table.tablet((hash, hash)).unwrap().server;
        NAMES[server.index as usize]
    }

    /// Returns the true rates of the servers.
    fn loads(&self) -> [u64; NAMES.len()] {
        NAMES.map(|name| {
            let of_server = self.rates.iter().filter(|(hash, _)| self.owner(**hash) == name);
            of_server.map(|(_, rate)| rate).sum()
        })
    }

    /// Returns the highest load in percent of the average.
    fn highest(&self) -> u64 {
        let loads = self.loads();
        let sum: u64 = loads.iter().sum();
        loads.iter().max().unwrap() * 100 * NAMES.len() as u64 / sum
    }

    /// Lets the masters have the tablets of the map, and serve what arrives in one step.
    fn serve(&mut self) {
        let table = &self.w.coordinator.tables.by_id[&self.table.0];
        for name in NAMES {
            let master = self.w.masters.get_mut(name).unwrap();
            let own = table.tablets.iter().filter(|tablet| tablet.server == master.id);
            let own = own.map(|tablet| (self.table, tablet.first, tablet.last));
            master.owns = own.collect();
        }
        for (&hash, &rate) in &self.rates {
            // A load varies from step to step.
            let count = rate * STEP_NS / SECOND * (95 + self.rng.below(11)) / 100;
            let name = self.owner(hash);
            let master = self.w.masters.get_mut(name).unwrap();
            master.accesses += count;
            let rest = self.rest.entry(hash).or_default();
            *rest += count;
            let samples = *rest / EVERY + u64::from(self.rng.below(EVERY) < *rest % EVERY);
            *rest = 0;
            for _ in 0..samples {
                if master.sample.len() == MOST {
                    let at = self.rng.below(MOST as u64) as usize;
                    master.sample.swap_remove(at);
                }
                master.sample.push((self.table, KeyHash(hash)));
            }
        }
    }

    /// Ends the migration that runs, if one does.
    fn end_migration(&mut self) {
        let mut all = self.w.coordinator.migrations.all.values();
        let Some(running) = all.find(|m| m.state == MigrationState::Running) else { return };
        let (source, target, order, range) =
            (running.source, running.target, running.order, running.range);
        let report = RecoveryEnded {
            cluster: self.w.coordinator.cluster(),
            recovery: order,
            server: target,
            crashed: source,
            ending: self.ending,
            since: SegmentId(0),
            replayed: 9,
            tablets: vec![Range { table: self.table, first: range.0, last: range.1 }],
            damaged: Vec::new(),
        };
        assert_eq!(outcome(&self.w.answer(report.emit())).unwrap().0, Status::Ok);
        self.moves.push((self.w.now, range, target));
        let name = NAMES[target.index as usize];
        self.w.masters.get_mut(name).unwrap().sample.clear();
    }

    fn pass(&mut self, ns: u64) {
        for _ in 0..ns / STEP_NS {
            self.serve();
            self.w.pass(STEP_NS, &NAMES);
            self.end_migration();
        }
    }
}

/// Returns the rates of keys of which the first is the most popular one, in the manner of Zipf.
fn skewed(rng: &mut Rng, keys: u64, most: u64) -> Vec<(u64, u64)> {
    (1..=keys).map(|rank| (rng.u64(), most / rank)).collect()
}

#[test]
fn hot_ranges_move_until_loads_are_even() {
    let mut moved = 0;
    for seed in 0..30 {
        let mut rng = Rng::seeded(seed);
        let (keys, most) = (20 + rng.below(200), 20_000 + rng.below(200_000));
        let rates = skewed(&mut rng, keys, most);
        let hottest = rates[0].1;
        let mut l = Loaded::new(rates);
        let before = l.highest();
        l.pass(60 * SECOND);
        let count = l.moves.len();
        assert!(count <= 12, "seed {seed}: {:?}", l.moves);
        // A single key may have more than its server's share.
        let mean = l.loads().iter().sum::<u64>() / NAMES.len() as u64;
        let least = (hottest * 100 / mean).max(125);
        assert!(l.highest() <= least + 15, "seed {seed}: {before}, {:?}", l.loads());
        assert!(before <= 125 || l.highest() < before || count == 0, "seed {seed}");
        l.pass(60 * SECOND);
        assert_eq!(l.moves.len(), count, "seed {seed}: it has settled: {:?}", l.moves);
        let hot_moves = l.w.coordinator.counters();
        let hot_moves = hot_moves.iter().find(|(name, _)| name == "hot_ranges_moved").unwrap();
        assert_eq!(hot_moves.1, count as u64);
        moved += count;
    }
    assert!(moved > 20, "{moved}");
}

#[test]
fn one_hot_key_does_not_wander() {
    let alone = [(5, 200_000)];
    let mut l = Loaded::new(alone);
    l.pass(60 * SECOND);
    assert!(l.moves.is_empty(), "alone: {:?}", l.moves);
    // Each server has a few keys besides.
    let others = (0..50).map(|i| (i << 58 | 77, 1_000));
    let mut l = Loaded::new(others.chain(alone));
    l.pass(60 * SECOND);
    assert!(l.moves.is_empty(), "{:?}", l.moves);
    // Its server has many others: it leaves them once, or they leave it.
    let others = (0..50).map(|i| (i << 56 | 77, 3_000));
    let mut l = Loaded::new(others.chain(alone));
    l.pass(60 * SECOND);
    let count = l.moves.len();
    assert!((1..6).contains(&count), "{:?}", l.moves);
    let of_key = l.moves.iter().filter(|(_, (first, last), _)| (first..=last).contains(&&5));
    assert!(of_key.count() <= 1, "{:?}", l.moves);
    l.pass(60 * SECOND);
    assert_eq!(l.moves.len(), count);
}

#[test]
fn little_load_and_short_bursts_move_nothing() {
    let mut l = Loaded::new([(5, 10_000), (6, 8_000)]);
    l.pass(20 * SECOND);
    assert!(l.moves.is_empty(), "a load below the least rate");
    // Each burst is over before the second search.
    let mut l = Loaded::new([]);
    for burst in 0..20 {
        let hash = u64::MAX / 3 * (burst % 3) + 1;
        l.rates = [(hash, 50_000), (hash + 9, 50_000)].into();
        l.pass(SECOND);
    }
    assert!(l.moves.is_empty(), "{:?}", l.moves);
}

/// A move waits until the rates and the samples are of the tablets as they are now.
#[test]
fn a_move_waits_for_rates_of_the_new_tablets() {
    // All load is on one server: it takes several moves.
    let mut l = Loaded::new((0..200).map(|i| (i << 54 | 77, 1_000)));
    l.pass(60 * SECOND);
    assert!(l.moves.len() > 1, "{:?}", l.moves);
    for pair in l.moves.windows(2) {
        assert!(pair[1].0.since(pair[0].0) >= SECOND, "{:?}", l.moves);
    }
}

#[test]
fn a_move_that_fails_is_not_tried_again_at_once() {
    let mut rng = Rng::seeded(4);
    let mut l = Loaded::new(skewed(&mut rng, 100, 100_000));
    l.ending = Ending::Full;
    l.pass(25 * SECOND);
    assert_eq!(l.moves.len(), 1);
    l.pass(30 * SECOND);
    assert_eq!(l.moves.len(), 2);
}

/// An equal share that a server has got is not given back to it when a hot range has left it.
#[test]
fn equal_shares_leave_hot_ranges_where_they_are() {
    let mut rng = Rng::seeded(4);
    let mut l = Loaded::new(skewed(&mut rng, 100, 100_000));
    l.pass(60 * SECOND);
    let counters = l.w.coordinator.counters();
    let of = |name: &str| counters.iter().find(|(n, _)| n == name).unwrap().1;
    assert!(of("hot_ranges_moved") > 0);
    assert_eq!(of("hot_ranges_moved"), of("migrations_done"));
}

/// The answer to a question comes when the range has another owner, or from a server that is gone.
#[test]
fn a_late_or_wrong_answer_moves_nothing() {
    let mut rng = Rng::seeded(4);
    let mut l = Loaded::new(skewed(&mut rng, 100, 100_000));
    l.w.holds = |request| opcode(request) == Ok(Opcode::HotRange);
    l.pass(5 * SECOND);
    let held = l.w.held.len();
    assert_eq!(held, 1, "one question at a time");
    for wrong in [
        Some(failure(Status::StaleTerm, "")),
        None,
        Some(Vec::new()),
        Some(Hot { table: TableId(99), first: 0, last: 1, part: 300 }.emit()),
        Some(Hot { table: l.table, first: 9, last: 1, part: 300 }.emit()),
        Some(Hot { table: l.table, first: 0, last: u64::MAX, part: 300 }.emit()),
        Some(Hot::default().emit()),
    ] {
        l.w.held[0].1 = wrong;
        l.w.release();
        assert!(l.w.coordinator.migrations.all.is_empty());
        l.pass(3 * SECOND);
        assert_eq!(l.w.held.len(), 1, "it asks again");
    }
    l.w.holds = |_| false;
    l.w.release();
    l.pass(5 * SECOND);
    assert!(!l.moves.is_empty());
}
