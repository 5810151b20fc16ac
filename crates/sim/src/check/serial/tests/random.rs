//! Random histories for the checker for strict serializability: those of a store that executes
//! transactions one after the other pass, and the verdict about small ones agrees with a search of
//! all orders.

use sprat_proto::Rng;

use super::*;

/// The state of an object in the store: the highest version so far, and the present version and
/// tag.
type Object = (u64, Option<(u64, u64)>);

/// The progress of a client with its transaction.
#[derive(Debug)]
enum Stage {
    /// The transaction reads objects: this number of them is left.
    Reads(u64),
    /// The commit is called.
    Called,
    /// The store has executed the commit: the versions, or none if it aborted.
    Executed(Option<Vec<(Name, u64)>>),
}

#[derive(Debug)]
struct Client {
    number: usize,
    parts: Vec<Part>,
    plain: bool,
    stage: Stage,
}

/// A store that executes the transactions of clients one after the other, and the history that the
/// clients record.
struct Store {
    rng: Rng,
    serial: Serial,
    objects: BTreeMap<Name, Object>,
    keys: u64,
    clients: Vec<Option<Client>>,
    /// The commits that may be executed although their clients gave up.
    late: Vec<Vec<Part>>,
    tag: u64,
}

impl Store {
    fn new(seed: u64, clients: usize, keys: u64) -> Self {
        Self {
            rng: Rng::seeded(seed),
            serial: Serial::default(),
            objects: BTreeMap::new(),
            keys,
            clients: (0..clients).map(|_| None).collect(),
            late: Vec::new(),
            tag: 0,
        }
    }

    fn name(&mut self) -> Name {
        (1 + self.rng.below(2), self.rng.below(self.keys))
    }

    fn seen(&self, name: Name) -> Option<(u64, u64)> {
        self.objects.get(&name).and_then(|object| object.1)
    }

    /// Executes transactions until the history has `len` of them, and ends most of the open ones.
    fn run(mut self, len: usize) -> Serial {
        while self.serial.len() < len {
            self.step(true);
        }
        for _ in 0..self.clients.len() * 4 {
            self.step(false);
        }
        self.serial
    }

    /// Has a random client do its next step.
    fn step(&mut self, begin: bool) {
        if !self.late.is_empty() && self.rng.chance(50_000) {
            let i = self.rng.below(self.late.len() as u64) as usize;
            let parts = self.late.swap_remove(i);
            self.execute(&parts);
        }
        let i = self.rng.below(self.clients.len() as u64) as usize;
        let Some(mut client) = self.clients[i].take() else {
            if begin {
                self.clients[i] = Some(self.begin());
            }
            return;
        };
        match &mut client.stage {
            Stage::Reads(0) => {
                self.call(&mut client);
                client.stage = Stage::Called;
            }
            Stage::Reads(left) => {
                *left -= 1;
                let name = self.name();
                let part = Part::Read { name, seen: self.seen(name) };
                self.serial.add(client.number, part);
                client.parts.push(part);
            }
            Stage::Called if self.rng.chance(100_000) => {
                self.serial.unknown(client.number);
                if self.rng.chance(500_000) {
                    self.late.push(client.parts);
                }
                return;
            }
            Stage::Called => client.stage = Stage::Executed(self.execute(&client.parts)),
            Stage::Executed(outcome) => {
                match outcome {
                    _ if self.rng.chance(100_000) => self.serial.unknown(client.number),
                    Some(versions) => {
                        let hide = if self.serial.len().is_multiple_of(3) { 300_000 } else { 0 };
                        versions.retain(|_| !self.rng.chance(hide));
                        self.serial.commit(client.number, versions);
                    }
                    None => self.serial.abort(client.number),
                }
                return;
            }
        }
        self.clients[i] = Some(client);
    }

    fn begin(&mut self) -> Client {
        let number = self.serial.begin();
        let plain = self.rng.chance(400_000);
        let reads = if plain { self.rng.below(2) } else { self.rng.below(4) };
        Client { number, parts: Vec::new(), plain, stage: Stage::Reads(reads) }
    }

    /// Calls the commit: adds the changes. A plain operation has one part.
    fn call(&mut self, client: &mut Client) {
        let changes = match client.plain {
            true => 1 - client.parts.len() as u64,
            false => self.rng.below(4),
        };
        for _ in 0..changes {
            let name = match client.parts.first() {
                // Most transactions change something that they read.
                Some(Part::Read { name, .. }) if self.rng.chance(500_000) => *name,
                _ => self.name(),
            };
            if client.parts.iter().any(|part| part.changes() == Some(name)) {
                continue;
            }
            self.tag += 1;
            let write = Part::Write { name, tag: self.tag };
            let part = if self.rng.chance(250_000) { Part::Remove { name } } else { write };
            self.serial.add(client.number, part);
            client.parts.push(part);
        }
    }

    /// Executes a commit, or returns none if an object has changed since its read.
    fn execute(&mut self, parts: &[Part]) -> Option<Vec<(Name, u64)>> {
        let stale = |part: &Part| match part {
            Part::Read { name, seen } => self.seen(*name) != *seen,
            _ => false,
        };
        if parts.iter().any(stale) {
            return None;
        }
        let mut versions = Vec::new();
        for part in parts {
            match *part {
                Part::Read { .. } => {}
                Part::Write { name, tag } => {
                    let object = self.objects.entry(name).or_default();
                    object.0 += 1 + self.rng.below(3);
                    object.1 = Some((object.0, tag));
                    versions.push((name, object.0));
                }
                Part::Remove { name } => {
                    let object = self.objects.entry(name).or_default();
                    versions.push((name, object.1.take().map_or(0, |(version, _)| version)));
                }
            }
        }
        Some(versions)
    }
}

#[test]
fn histories_of_a_serial_store_pass() {
    let mut aborted = 0;
    let mut late = 0;
    for seed in 0..4_000 {
        let serial = Store::new(seed, 2 + seed as usize % 6, 1 + seed % 4).run(60);
        if let Err(fault) = serial.check() {
            panic!("seed {seed}: {fault}");
        }
        let count = |outcome| serial.transactions.iter().filter(|t| t.outcome == outcome).count();
        aborted += count(Outcome::Aborted);
        let facts = serial.facts().expect("there is no fault");
        late += serial
            .transactions
            .iter()
            .zip(&facts.committed)
            .filter(|(t, committed)| t.outcome == Outcome::Unknown && **committed)
            .count();
    }
    assert!(aborted > 10_000 && late > 3_000, "{aborted} aborted, {late} committed unanswered");
    let serial = Store::new(1, 20, 10).run(20_000);
    good(&serial);
}

/// Changes one observation of a committed transaction: a version that was read becomes an older one
/// of the object. Returns false if the drawn observation has no older version.
fn make_older(serial: &mut Serial, rng: &mut Rng) -> bool {
    let facts = serial.facts().expect("there is no fault");
    let number = rng.below(serial.len() as u64) as usize;
    let transaction = &mut serial.transactions[number];
    if transaction.outcome != Outcome::Committed {
        return false;
    }
    for part in &mut transaction.parts {
        if let Part::Read { name, seen: Some((version, tag)) } = part {
            let older: Vec<_> = facts
                .tags
                .range((*name, 0)..(*name, *version))
                .map(|((_, v), t)| (*v, *t))
                .collect();
            if !older.is_empty() {
                (*version, *tag) = older[rng.below(older.len() as u64) as usize];
                return true;
            }
        }
    }
    false
}

#[test]
fn most_reads_of_older_versions_are_found() {
    let mut rng = Rng::seeded(5);
    let (mut changed, mut found) = (0, 0);
    for seed in 0..3_000 {
        let mut serial = Store::new(seed, 4, 2).run(60);
        if make_older(&mut serial, &mut rng) {
            changed += 1;
            found += u32::from(serial.check().is_err());
        }
    }
    assert!(changed > 500 && found * 100 > changed * 90, "{found} of {changed} are found");
}

/// The state of an object in the search of all orders: no version is above the first number, as far
/// as that is known, and the present version, if it is known, and tag.
type Guess = (u64, Option<(Option<u64>, Option<u64>)>);

/// A search of all orders of a small history, with every choice of the unanswered transactions.
struct Search<'a> {
    serial: &'a Serial,
    facts: Facts,
    done: Vec<bool>,
}

impl Search<'_> {
    /// Returns true if the rest of the transactions has an order from these states on.
    fn has_order(&mut self, objects: &BTreeMap<Name, Guess>) -> bool {
        let transactions = &self.serial.transactions;
        if (0..transactions.len()).all(|i| self.done[i] || !self.facts.committed[i]) {
            return true;
        }
        for i in 0..transactions.len() {
            let late = |j: usize| !self.done[j] && transactions[j].end < transactions[i].begin;
            let never = self.done[i] || transactions[i].outcome == Outcome::Aborted;
            if never || (0..transactions.len()).any(late) {
                continue;
            }
            let mut next = objects.clone();
            if !self.happens(&transactions[i], &mut next) {
                continue;
            }
            self.done[i] = true;
            let found = self.has_order(&next);
            self.done[i] = false;
            if found {
                return true;
            }
        }
        false
    }

    /// Changes the objects as the transaction does; returns false if its observations and versions
    /// are impossible there.
    fn happens(&self, transaction: &Transaction, objects: &mut BTreeMap<Name, Guess>) -> bool {
        let reads = transaction.parts.iter().all(|part| match *part {
            Part::Read { name, seen } => {
                let present = objects.get(&name).and_then(|object| object.1);
                present.map(|(_, tag)| tag) == seen.map(|(_, tag)| Some(tag))
            }
            _ => true,
        });
        reads
            && transaction.parts.iter().all(|part| match *part {
                Part::Read { .. } => true,
                Part::Write { name, tag } => {
                    let object = objects.entry(name).or_default();
                    let known = self.facts.versions.get(&tag).copied();
                    let version = known.unwrap_or(object.0 + 1);
                    let grows = version > object.0;
                    *object = (version, Some((known, Some(tag))));
                    grows
                }
                Part::Remove { name } => {
                    let object = objects.entry(name).or_default();
                    let answer = transaction.versions.get(&name).copied();
                    let fits = match (answer, object.1) {
                        (None, _) | (Some(0), None) => true,
                        (Some(version), Some((Some(known), _))) => version == known,
                        (Some(version), Some((None, _))) => {
                            let fits = version >= object.0;
                            object.0 = version;
                            fits
                        }
                        (Some(_), None) => false,
                    };
                    object.1 = None;
                    fits
                }
            })
    }
}

/// Returns true if a small history has an order.
fn has_order(serial: &Serial) -> bool {
    let Ok(facts) = serial.facts() else { return false };
    let done = vec![false; serial.len()];
    Search { serial, facts, done }.has_order(&BTreeMap::new())
}

/// Changes one observation or one version of a transaction into anything that the history has.
fn damage(serial: &mut Serial, rng: &mut Rng) {
    let facts = serial.facts().expect("there is no fault");
    let number = rng.below(serial.len() as u64) as usize;
    let transaction = &mut serial.transactions[number];
    for part in &mut transaction.parts {
        if let Part::Read { name, seen } = part {
            let mut choices: Vec<_> = facts
                .tags
                .range((*name, 0)..=(*name, u64::MAX))
                .map(|((_, version), tag)| Some((*version, *tag)))
                .collect();
            choices.push(None);
            *seen = choices[rng.below(choices.len() as u64) as usize];
            if rng.chance(500_000) {
                return;
            }
        }
    }
    for version in transaction.versions.values_mut() {
        *version = (*version + rng.below(3)).saturating_sub(1);
    }
}

/// The checker reports a fault only if a search finds no order, and it misses few faults.
#[test]
fn the_verdict_agrees_with_a_search_of_all_orders() {
    let mut rng = Rng::seeded(6);
    let (mut broken, mut missed) = (0, 0);
    for seed in 0..12_000 {
        let mut serial = Store::new(seed, 2 + seed as usize % 3, 1).run(3 + seed as usize % 6);
        if seed % 4 != 0 {
            damage(&mut serial, &mut rng);
        }
        let found = serial.check();
        match has_order(&serial) {
            true => assert!(found.is_ok(), "seed {seed}: {}\n{serial:#?}", found.unwrap_err()),
            false => {
                assert!(seed % 4 != 0, "seed {seed}: {serial:#?}");
                broken += 1;
                missed += u32::from(found.is_ok());
            }
        }
    }
    assert!(broken > 1_000 && missed * 50 < broken, "{missed} of {broken} faults are missed");
}
