//! The tasks of a simulated program that uses indexes, and the checks of what its look-ups find.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use sprat_proto::Instant;
use sprat_store::client::{Answer, Client, Error};
use sprat_store::index::{
    Change, Cleaning, Error as IndexError, Found, Objects as _, Range, Source,
};
use sprat_store::message::data::RejectRules;
use sprat_store::types::Version;

use super::task::{ANY, Task, key_bytes, key_of, name_of, value};
use crate::user::arranged;

/// The name of the table that has indexes.
const NAME: &str = "indexed";
/// The number of objects that all programs change by the indexes.
pub(super) const KEYS: u64 = 40;
/// The number of objects besides that are also changed without the indexes.
const PLAIN: u64 = 6;
/// The indexes. The first one is never dropped.
pub(super) const INDEXES: [(&str, Source); 3] = [
    ("by field", Source::Field { number: 1, separator: b',' }),
    ("by number", Source::Field { number: 2, separator: b',' }),
    ("by key", Source::Key),
];

/// The numbers of changes that were made, of objects that were found, and of those that had to be
/// found, in all worlds.
pub(super) static CHANGED: AtomicU64 = AtomicU64::new(0);
pub(super) static FOUND: AtomicU64 = AtomicU64::new(0);
pub(super) static PROVEN: AtomicU64 = AtomicU64::new(0);

/// A range of index keys: from the first one on, up to the second one, if there is one.
#[derive(Debug)]
pub(super) struct Keys(pub(super) Vec<u8>, pub(super) Option<Vec<u8>>);

impl Keys {
    fn contains(&self, key: &[u8]) -> bool {
        self.0[..] <= *key && self.1.as_ref().is_none_or(|end| key < &end[..])
    }

    fn range(&self) -> Range {
        let end = self.1.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        Range::new::<Vec<u8>>((Bound::Included(self.0.clone()), end.cloned()))
    }
}

/// Returns the index key of an object in the range.
fn key_in(keys: &Keys, source: Source, key: u64, bytes: &[u8]) -> Option<Vec<u8>> {
    let own = key_bytes(key);
    source.key_of(&own, bytes).filter(|key| keys.contains(key)).map(<[u8]>::to_vec)
}

/// Checks an error of an operation by the indexes: it may fail, but not in any way.
pub(super) fn expected(error: &IndexError) {
    let is_expected = matches!(
        error,
        IndexError::Store(
            Error::Unknown | Error::NoSpace | Error::TooFewServers | Error::Deadline { .. }
        )
    );
    assert!(is_expected, "{error:?}");
}

impl Task {
    /// Creates the tables, unless they exist.
    pub(super) async fn set_up(self, span: u32) {
        let mut tables = Vec::new();
        while tables.len() < 2 {
            let name = match tables.first() {
                None => NAME.into(),
                Some(&table) => sprat_store::index::node_table(table),
            };
            let create =
                move |client: &mut Client| client.create_table(&name, span, Instant::NEVER);
            match self.ask(create).await {
                Ok(Answer::Table(table)) => tables.push(table),
                // No master has joined the cluster yet.
                Err(_) => _ = self.pause(10).await,
                Ok(other) => panic!("{other:?}"),
            }
        }
        self.shared.tables.set(Some((tables[0], tables[1])));
    }

    /// Makes a change of an object by the indexes.
    pub(super) async fn change(self) {
        let key = self.below(KEYS + PLAIN);
        let (name, own, removes) = (name_of(key), key_bytes(key), self.chance(300_000));
        let rules = match self.below(10) {
            0 => RejectRules { exists: true, ..ANY },
            1 => RejectRules { doesnt_exist: true, ..ANY },
            _ => ANY,
        };
        let (number, tag) = self.score(|score| {
            score.known.begin(key);
            let tag = score.tag();
            let number = match removes {
                true => score.serial.remove(name),
                false => score.serial.write(name, tag),
            };
            (number, (!removes).then_some(tag))
        });
        let bytes = tag.map(value);
        let change = bytes.as_ref().map_or(Change::Remove, |bytes| Change::Write(bytes, None));
        let outcome = self.indexes().change(&own, change, rules).await;
        self.score(|score| match outcome {
            Ok(Version(version)) => {
                CHANGED.fetch_add(1, Ordering::Relaxed);
                score.serial.commit(number, &[(name, version)]);
                score.known.end(key, Some((version, tag)));
            }
            Err(IndexError::Store(error)) if error.maybe_executed() => {
                score.serial.unknown(number);
            }
            Err(IndexError::Store(Error::ObjectExists(_) | Error::ObjectDoesntExist))
                if rules != ANY =>
            {
                score.serial.abort(number);
                score.known.end(key, None);
            }
            Err(error) => {
                expected(&error);
                score.serial.abort(number);
                score.known.end(key, None);
            }
        });
    }

    /// Changes an object without the indexes.
    pub(super) async fn change_plainly(self) {
        let (key, table, deadline) = (KEYS + self.below(PLAIN), self.tables().0, self.deadline);
        let (name, own, tag) = (name_of(key), key_bytes(key), self.score(|score| score.tag()));
        let (number, outcome) = if self.chance(500_000) {
            let number = self.score(|score| score.serial.remove(name));
            (number, self.ask(move |client| client.remove(table, &own, ANY, deadline)).await)
        } else {
            let number = self.score(|score| score.serial.write(name, tag));
            let write =
                move |client: &mut Client| client.write(table, &own, &value(tag), ANY, deadline);
            (number, self.ask(write).await)
        };
        self.score(|score| match outcome {
            Ok(Answer::Version(version)) => score.serial.commit(number, &[(name, version.0)]),
            Err(error) if error.maybe_executed() => score.serial.unknown(number),
            Err(error) => {
                expected(&error.into());
                score.serial.abort(number);
            }
            Ok(other) => panic!("{other:?}"),
        });
    }

    /// Creates one of the indexes. Returns false if another program has dropped it meanwhile.
    pub(super) async fn create(&self, index: usize) -> Result<bool, IndexError> {
        let (name, source) = INDEXES[index];
        let indexes = self.indexes();
        let mut building = indexes.create(name, source, self.shared.node_bytes).await?;
        loop {
            match indexes.build(&mut building).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(IndexError::NoIndex(_)) if index > 0 => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Drops an index, and then removes its nodes unless the task `breaks_off`.
    async fn drop_index(&self, index: usize, breaks_off: bool) -> Result<(), IndexError> {
        match self.indexes().drop_index(INDEXES[index].0).await {
            Ok(()) if breaks_off => Ok(()),
            Ok(()) | Err(IndexError::NoIndex(_)) => self.clean().await,
            Err(error) => Err(error),
        }
    }

    /// Removes the nodes of dropped indexes.
    pub(super) async fn clean(&self) -> Result<(), IndexError> {
        let mut cleaning = Cleaning::default();
        while !self.indexes().clean(&mut cleaning).await? {}
        Ok(())
    }

    /// Creates or drops an index, or removes what is left of dropped ones.
    pub(super) async fn change_indexes(self, first: bool) {
        let index = if first { 0 } else { self.below(3) as usize };
        let outcome = match self.below(5) {
            0 if index > 0 => self.drop_index(index, true).await,
            1 if index > 0 => self.drop_index(index, false).await,
            2 if !first => self.clean().await,
            _ => self.create(index).await.map(|_| ()),
        };
        if let Err(error) = outcome {
            expected(&error);
        }
    }

    /// Changes the tablets of one of the two tables.
    pub(super) async fn arrange(self, servers: u64) {
        let (objects, nodes) = self.tables();
        let (table, name) = match self.chance(500_000) {
            true => (objects, NAME.into()),
            false => (nodes, sprat_store::index::node_table(objects)),
        };
        let tablets = match self.ask(move |client| client.list_tablets(table, Instant::NEVER)).await
        {
            Ok(Answer::Tablets(tablets)) => tablets,
            outcome => return arranged(&outcome),
        };
        let tablet = &tablets[self.below(tablets.len() as u64) as usize];
        let (first, last, never) = (tablet.first, tablet.last, Instant::NEVER);
        let at = first + self.below((last - first).max(1));
        let kind = if tablets.len() > 5 { self.below(3) + 1 } else { self.below(4) };
        // The tablets gather at the first server.
        let target = if self.chance(500_000) { 0 } else { self.below(servers) as u32 };
        let range = if self.chance(500_000) { (first, at) } else { (first, last) };
        let outcome = self.ask(move |client| match kind {
            0 => client.split_tablet(&name, at, never),
            1 => client.merge_tablets(&name, first, never),
            _ => client.move_tablet(&name, range, target, never),
        });
        arranged(&outcome.await);
    }

    /// Reads all objects that only the indexes change: their versions and values.
    pub(super) async fn read_all(&self) -> Result<Vec<Option<(Version, Vec<u8>)>>, Error> {
        let (table, _) = self.tables();
        let keys: Vec<Vec<u8>> = (0..KEYS).map(key_bytes).collect();
        let keys: Vec<_> = keys.iter().map(|key| (table, &key[..])).collect();
        self.read(&keys).await
    }

    /// Looks up all objects of a range, page by page from both of its ends, and checks each one.
    pub(super) async fn find(
        &self,
        index: usize,
        keys: &Keys,
        most: usize,
    ) -> Result<Vec<Found>, IndexError> {
        let (name, source) = INDEXES[index];
        let (mut found, mut last) = (Vec::<Found>::new(), Vec::new());
        let (mut rest, back_ppm) =
            (Some(keys.range()), [0, 500_000, 1_000_000][self.below(3) as usize]);
        while let Some(range) = rest {
            let is_back = self.chance(back_ppm);
            let page = match is_back {
                true => self.indexes().look_up_back(name, range, most).await?,
                false => self.indexes().look_up(name, range, most).await?,
            };
            assert!(page.found.len() <= most, "{} of {most}", page.found.len());
            if is_back { &mut last } else { &mut found }.extend(page.found);
            rest = page.rest;
        }
        found.extend(last.into_iter().rev());
        let points = found.iter().map(|it| (&it.index_key, &it.key));
        assert!(points.is_sorted_by(|a, b| a < b), "not in order: {found:?}");
        for it in &found {
            let key = key_of(&it.key);
            let own = key_in(keys, source, key, &it.value);
            assert_eq!(own.as_ref(), Some(&it.index_key), "{it:?} of {keys:?}");
            let read = (key, it.version, it.value.clone());
            assert!(self.seen.borrow().contains(&read), "{it:?} was not read");
        }
        FOUND.fetch_add(found.len() as u64, Ordering::Relaxed);
        Ok(found)
    }

    fn keys(&self, index: usize) -> Keys {
        let bound = || match index {
            0 => format!("{:02}", self.below(18)),
            1 => format!("{}", self.below(50)),
            _ => format!("key {:02}", self.below(5)),
        };
        let (a, b) = (bound(), bound());
        let end = (!self.chance(100_000)).then(|| a.clone().max(b.clone()).into_bytes());
        if self.chance(200_000) { Keys(Vec::new(), None) } else { Keys(a.min(b).into(), end) }
    }

    /// Looks up a range, and checks that all objects are found that did not change meanwhile.
    pub(super) async fn look_up(self) {
        let index = [0, 0, 1, 2][self.below(4) as usize];
        let (keys, most) = (self.keys(index), [1, 3, 10, 1000][self.below(4) as usize]);
        if let Err(error) = self.look_up_all(index, &keys, most).await {
            match error {
                IndexError::NoIndex(_) | IndexError::Unready(_) => {}
                error => expected(&error),
            }
        }
    }

    /// Looks up a range of an index, and checks that exactly those objects are found that have an
    /// index key there, as far as they do not change meanwhile. Returns true if none changed.
    async fn look_up_all(
        &self,
        index: usize,
        keys: &Keys,
        most: usize,
    ) -> Result<bool, IndexError> {
        let reads = self.chance(500_000);
        let before = if reads { self.read_all().await? } else { Vec::new() };
        let settled = self.score(|score| score.known.settled(KEYS));
        let found = self.find(index, keys, most).await?;
        let later = self.score(|score| score.known.settled(KEYS));
        let after = if reads { self.read_all().await? } else { Vec::new() };
        // The version and the value of each object that was the same from the begin to the end.
        let mut stayed: BTreeMap<u64, Option<(Version, Vec<u8>)>> = BTreeMap::new();
        for (key, object) in settled.iter().filter(|(key, object)| later.get(key) == Some(object)) {
            let state = object.state();
            stayed.insert(*key, state.map(|(version, tag)| (Version(version), value(tag))));
        }
        for (key, (old, new)) in before.iter().zip(&after).enumerate() {
            if old == new && old.is_some() {
                stayed.insert(key as u64, old.clone());
            }
        }
        PROVEN.fetch_add(stayed.len() as u64, Ordering::Relaxed);
        let (name, source) = INDEXES[index];
        for (key, state) in &stayed {
            let own = state.as_ref().and_then(|(_, bytes)| key_in(keys, source, *key, bytes));
            let expected: Vec<_> = own.and(state.as_ref()).map(|it| it.0).into_iter().collect();
            let of_key = found.iter().filter(|it| key_of(&it.key) == *key);
            let versions: Vec<Version> = of_key.map(|it| it.version).collect();
            assert_eq!(versions, expected, "{key} in {keys:?} of {name}, {state:?}");
        }
        Ok(reads && before == after)
    }
}
