//! A seeded run in which servers crash and join, tables come and go, calls fail, replies come late
//! and twice, the disk is full at times, and the coordinator restarts.

use super::*;
use crate::coordinator::durable::Stage;
use crate::durability::TableDurability;

/// The most servers of a run.
const SERVERS: usize = 16;

/// Each hash has one owner at any time. A server that got OK for tablets is their owner as long as
/// it is up. At the end all tablets have an owner that is up.
#[test]
fn recoveries_end_whatever_fails() {
    for seed in 0..80 {
        Run::new(seed).run();
    }
}

/// A range of a table: the table, the first hash and the last one.
type Hashes = (TableId, u64, u64);

struct Run {
    seed: u64,
    rng: Rng,
    w: World,
    /// The servers that are alive.
    up: BTreeSet<ServerId>,
    /// The owners of ranges that were told so.
    told: BTreeMap<Hashes, ServerId>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let (rng, w) = (Rng::seeded(seed), World::new(config()));
        let mut this = Self { seed, rng, w, up: BTreeSet::new(), told: BTreeMap::new() };
        (0..3).for_each(|_| this.join());
        this.w.create("a", 3).unwrap();
        this
    }

    /// A server joins. All logs are on the first server, which stays.
    fn join(&mut self) {
        let id = self.w.join(&self.w.masters.len().to_string());
        self.w.put_log("0", id);
        self.up.insert(id);
    }

    fn run(mut self) {
        for _ in 0..60 {
            self.w.failing = self.rng.below(500_000) as u32;
            self.w.late = self.rng.below(300_000) as u32;
            self.w.seed = Rng::seeded(self.rng.u64());
            match self.rng.below(16) {
                0 | 1 if self.may_join() => self.join(),
                2 => self.w.restart(),
                3..6 => {
                    self.w.disk_full = true;
                    self.change();
                    self.w.disk_full = false;
                }
                _ => self.change(),
            }
            if self.rng.chance(500_000) {
                self.w.release();
            }
            let ns = self.rng.below(SECOND);
            self.pass(ns);
            self.check();
        }
        (self.w.failing, self.w.late) = (0, 0);
        self.w.release();
        for _ in 0..60 {
            self.end_one();
            self.pass(SECOND / 2);
            self.check();
        }
        let seed = self.seed;
        for (id, table) in tables(&self.w) {
            let all_up =
                table.values().all(|owner| self.w.coordinator.servers.up(*owner).is_some());
            assert!(all_up, "seed {seed}: {id:?} {table:?}");
        }
        assert_eq!(self.w.coordinator.unsettled_tables(), [0; 0], "seed {seed}");
        let (running, blocked, _) = self.w.coordinator.recoveries.counts();
        assert_eq!((running, blocked), (0, 0), "seed {seed}");
    }

    fn may_join(&self) -> bool {
        let writable = self.w.coordinator.refusal.is_none();
        self.up.len() < 4 && self.w.masters.len() < SERVERS && writable
    }

    /// Asks for one change of the durable state.
    fn change(&mut self) {
        let name = ["b", "c"][self.rng.below(2) as usize];
        match self.rng.below(12) {
            0 | 1 if self.up.len() > 1 => {
                let other = 1 + self.rng.below(self.up.len() as u64 - 1) as usize;
                let gone = *self.up.iter().nth(other).unwrap();
                self.up.remove(&gone);
                self.told.retain(|_, owner| *owner != gone);
                if self.rng.chance(500_000) {
                    self.w.leave(gone);
                } else {
                    // Its lease expires.
                    let masters = self.w.masters.values_mut();
                    masters.filter(|m| m.id == gone).for_each(|m| m.alive = false);
                }
            }
            2 | 3 => {
                let span = 1 + self.rng.below(4) as u32;
                self.w.ask(CreateTable { span, durability: TableDurability::Cluster, name }.emit());
            }
            4 => {
                self.w.ask(DropTable { table: TableId(0), name }.emit());
            }
            _ => self.end_one(),
        }
    }

    fn pass(&mut self, ns: u64) {
        let live = self.w.masters.iter().filter(|(_, m)| self.up.contains(&m.id));
        let live: Vec<_> = live.map(|(name, _)| name.clone()).collect();
        let live: Vec<_> = live.iter().map(String::as_str).collect();
        self.w.pass(ns, &live);
    }

    /// Checks the owners of all tablets in use.
    fn check(&self) {
        let tables = tables(&self.w);
        let seed = self.seed;
        assert!(!tables.is_empty(), "seed {seed}: the first table is gone");
        for ((table, first, last), owner) in &self.told {
            let Some(owners) = tables.get(table) else { continue };
            let found = owners.get(&(*first, *last));
            assert_eq!(found, Some(owner), "seed {seed}: {table:?} {first} in {owners:?}");
        }
    }

    /// A random server that has an order reports its end, perhaps twice.
    fn end_one(&mut self) {
        let (w, rng) = (&mut self.w, &mut self.rng);
        let with_order = w.masters.iter().filter(|(_, m)| m.alive && m.recoverer.order.is_some());
        let names: Vec<_> = with_order.map(|(name, _)| name.clone()).collect();
        if names.is_empty() {
            return;
        }
        let name = &names[rng.below(names.len() as u64) as usize];
        let ending = [Ending::Done, Ending::Done, Ending::Full, Ending::Lacking];
        let ending = ending[rng.below(4) as usize];
        let (number, ended) = w.order(name).unwrap();
        for _ in 0..1 + rng.below(2) {
            let request = w.end_request(name, ending, number as u32);
            let asked = w.ask(request);
            let reply = w.replies.get(&asked).map(|reply| outcome(reply).unwrap().0);
            if ending == Ending::Done && reply == Some(Status::Ok) {
                for range in &ended.tablets {
                    let hashes = (range.table, range.first, range.last);
                    self.told.insert(hashes, w.masters[name].id);
                }
            }
        }
    }
}

/// Returns the owners of all tables in use on the disk. Their tablets must cover each hash once.
fn tables(w: &World) -> BTreeMap<TableId, BTreeMap<(u64, u64), ServerId>> {
    let mut tables = BTreeMap::new();
    for (key, record) in &w.disk {
        let Ok(Key::Table(id)) = Key::parse(key) else { continue };
        let table: durable::Table<'_> = durable::decode(record).unwrap();
        let mut next = Some(0);
        for tablet in &table.tablets {
            assert_eq!(next, Some(tablet.first));
            next = tablet.last.checked_add(1);
        }
        assert_eq!(next, None);
        if table.stage == Stage::Ready {
            let owners = table.tablets.iter().map(|t| ((t.first, t.last), t.server));
            tables.insert(TableId(id), owners.collect());
        }
    }
    tables
}
