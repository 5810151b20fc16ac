//! The creation of an index, also for objects that exist, and its end.
//!
//! ```text
//!  catalog: new, not ready ─► each page of a scan: entries of its objects ─► catalog: ready
//! ```
//!
//! From the first step on, each change of an object keeps the index: its transaction would fail
//! otherwise. So the scan needs to add only entries of objects that have not changed since it read
//! them, and checks that.
//!
//! Invariant: each step may be repeated, by any client, also after this one has ended.

use alloc::string::String;
use alloc::vec::Vec;

use super::edits::{Bounds, LeafEdits};
use super::error::Error;
use super::state::{Copied, State};
use super::tree::{ABSENT, unchanged};
use super::{Indexes, Listed, Objects};
use crate::btree::catalog::{Catalog, Source};
use crate::btree::node::{OwnedPoint, Point, emit};
use crate::btree::{COPIES, ROOT, catalog_key, index_of_node, node_key};
use crate::client::{self, Change, Cursor, TransactionPart};
use crate::message::data::RejectRules;
use crate::types::{MAX_INDEX_KEY, TableId, Version};

/// The most objects whose entries one transaction adds.
const BATCH: usize = 64;
/// The most bytes of the keys of these objects, but for one.
const BATCH_BYTES: usize = 1 << 20;

/// The number of conflicts of these objects after which those are left out that change still:
/// programs that do not know the index write them.
const MOST_AGAIN: u32 = 8;

/// The creation of an index in progress.
#[derive(Debug)]
pub struct Building {
    name: String,
    number: u8,
    source: Source,
    node_bytes: usize,
    /// The position in the scan of the table. `None`: all objects are in the index.
    next: Option<Cursor>,
    /// The position behind the page whose objects are added now, and those that are left of it.
    behind: Option<Cursor>,
    old: Option<Vec<Old>>,
    objects: u64,
    skipped: u64,
}

/// The removal of the nodes of dropped indexes in progress.
#[derive(Debug, Default)]
pub struct Cleaning {
    /// The position in the scan of the node table.
    next: Cursor,
    /// True if this scan has met such nodes.
    found: bool,
}

impl Building {
    /// Returns the number of objects that the scan has met.
    #[must_use]
    pub fn objects(&self) -> u64 {
        self.objects
    }

    /// Returns the number of objects that are not in the index since their index key is too long.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Returns the points of the objects of a page, the first one last: neighbours share a leaf.
    fn points_of(&mut self, page: Vec<Listed>) -> Vec<Old> {
        let mut old = Vec::with_capacity(page.len());
        for (key, version, value) in &page {
            match self.source.key_of(key, value) {
                Some(index_key) if index_key.len() > MAX_INDEX_KEY => self.skipped += 1,
                Some(index_key) => {
                    let point = Point { key: index_key, object: key };
                    old.push((*version, point.to_owned()));
                }
                None => {}
            }
        }
        old.sort_unstable_by(|(_, a), (_, b)| b.point().cmp(&a.point()));
        old
    }
}

/// An object that existed before its index: its version, and its point there.
type Old = (Version, OwnedPoint);

impl<O: Objects> Indexes<'_, O> {
    /// Begins to create an index. If there is one with this definition, which is not ready, goes on
    /// with it; if it is ready, there is nothing to do.
    ///
    /// # Errors
    /// [`Error::Exists`] for another index of this name, [`Error::BadName`],
    /// [`Error::BadNodeBytes`], [`Error::TooManyIndexes`], and those of a commit.
    pub async fn create(
        &self,
        name: &str,
        source: Source,
        node_bytes: u32,
    ) -> Result<Building, Error> {
        let mut tries = 0;
        loop {
            let copies = self.all_copies().await?;
            let mut catalog = first_of(&copies);
            if let Ok(index) = catalog.find(name) {
                if (index.source, index.node_bytes) != (source, node_bytes) {
                    return Err(Error::Exists(name.into()));
                }
                let next = (!index.is_ready).then(Cursor::default);
                return Ok(building(name, (index.number, source, node_bytes), next));
            }
            let number = catalog.add(name, source, node_bytes)?;
            let root = emit(0, Point::FIRST, None, [].into_iter());
            let key = node_key((number, ROOT));
            let change = Change::Write(&root, None);
            let root = TransactionPart { table: self.nodes, key: &key, rules: ABSENT, change };
            if self.write_catalog(&copies, &catalog, Some(root)).await? {
                let next = Some(Cursor::default());
                return Ok(building(name, (number, source, node_bytes), next));
            }
            tries += 1;
            self.objects.pause(tries).await?;
        }
    }

    /// Adds the entries of some objects that existed before the index. Returns true if it is ready.
    ///
    /// # Errors
    /// Those of a commit, after which this may be called again.
    pub async fn build(&self, building: &mut Building) -> Result<bool, Error> {
        let Some(from) = building.next.clone() else { return Ok(true) };
        let mut old = match building.old.take() {
            Some(old) => old,
            None => {
                let (page, behind) = self.objects.scan(self.table, from).await?;
                building.behind = behind;
                building.objects += page.len() as u64;
                building.points_of(page)
            }
        };
        let added = self.add_old(building, &mut old).await;
        if added.is_err() || building.behind.is_none() {
            // Another call goes on from there.
            building.old = Some(old);
        }
        match added {
            Err(Error::NoIndex(_)) => return Err(Error::NoIndex(building.name.clone())),
            added => added?,
        }
        if building.behind.is_none() {
            self.finish(building).await?;
        }
        building.next = building.behind.take();
        Ok(building.next.is_none())
    }

    /// Adds entries of objects that have these versions, and takes those out of `old` that are
    /// done. The last ones come first.
    async fn add_old(&self, building: &Building, old: &mut Vec<Old>) -> Result<(), Error> {
        let (number, most, mut tries) = (building.number, building.node_bytes, 0);
        while let Some((_, last)) = old.last() {
            let leaves = self.leaves(&[(number, last.point())]).await?;
            let leaf = leaves.first().ok_or(Error::DAMAGED)?;
            let node = leaf.node()?;
            if node.has(last.point()) {
                old.pop();
                continue;
            }
            let (mut size, mut entries) = (leaf.bytes.len(), node.len());
            let (mut edits, mut count, mut keys) = (LeafEdits::default(), 0, 0);
            for (_, point) in old.iter().rev().take(BATCH) {
                size += point.point().entry_len();
                keys += point.object.len();
                let has_room = (size <= most || entries < 2) && (keys <= BATCH_BYTES || count == 0);
                if !has_room || !node.contains(point.point()) {
                    break;
                }
                let bounds = Bounds { most, may_be_small: true, may_be_large: false };
                edits.edit(leaf.id, point.point(), true, bounds);
                (count, entries) = (count + 1, entries + 1);
            }
            if count == 0 {
                self.split(number, last.point(), most).await?;
                continue;
            }
            let batch = old.len() - count;
            let checks = old[batch..].iter().map(|(version, point)| TransactionPart {
                table: self.table,
                key: &point.object,
                rules: unchanged(*version),
                change: Change::Check,
            });
            let parts: Vec<TransactionPart<'_>> = edits.parts(self.nodes).chain(checks).collect();
            match self.objects.commit(&parts).await {
                Ok(_) => {
                    old.truncate(batch);
                    tries = 0;
                }
                Err(client::Error::Conflict { .. }) => {
                    self.read_again(building, old, batch, tries < MOST_AGAIN).await?;
                    tries += 1;
                    self.objects.pause(tries).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads the objects from `batch` on again. Takes those out of `old` that are gone or have
    /// changed. If it `follows` changes, it gives these their new versions and points instead: most
    /// changes have kept the index, but a touch gives an object only another version.
    async fn read_again(
        &self,
        building: &Building,
        old: &mut Vec<Old>,
        batch: usize,
        follows: bool,
    ) -> Result<(), Error> {
        let keys: Vec<(TableId, &[u8])> =
            old[batch..].iter().map(|(_, point)| (self.table, &point.object[..])).collect();
        let seen = self.objects.read(&keys).await?;
        let mut again = Vec::new();
        for ((before, point), seen) in old.drain(batch..).zip(seen) {
            let Some((version, value)) = seen else { continue };
            if version != before && !follows {
                continue;
            }
            let index_key = building.source.key_of(&point.object, &value);
            let Some(key) = index_key.filter(|key| key.len() <= MAX_INDEX_KEY) else { continue };
            again.push((version, Point { key, object: &point.object }.to_owned()));
        }
        again.sort_unstable_by(|(_, a), (_, b)| b.point().cmp(&a.point()));
        old.extend(again);
        Ok(())
    }

    /// Makes an index ready that has all objects.
    async fn finish(&self, building: &Building) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let copies = self.all_copies().await?;
            let mut catalog = first_of(&copies);
            let number = building.number;
            let index = catalog.indexes.iter_mut().find(|index| index.number == number);
            let index = index.ok_or_else(|| Error::NoIndex(building.name.clone()))?;
            if core::mem::replace(&mut index.is_ready, true)
                || self.write_catalog(&copies, &catalog, None).await?
            {
                return Ok(());
            }
            tries += 1;
            self.objects.pause(tries).await?;
        }
    }

    /// Drops an index: no change keeps it from now on. [`Indexes::clean`] removes its nodes.
    ///
    /// # Errors
    /// [`Error::NoIndex`], and those of a commit.
    pub async fn drop_index(&self, name: &str) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let copies = self.all_copies().await?;
            let mut catalog = first_of(&copies);
            catalog.find(name)?;
            catalog.indexes.retain(|index| index.name != name);
            if self.write_catalog(&copies, &catalog, None).await? {
                return Ok(());
            }
            tries += 1;
            self.objects.pause(tries).await?;
        }
    }

    /// Removes some of the nodes of dropped indexes, also of those that another client has dropped.
    /// Returns true if none is left.
    ///
    /// # Errors
    /// Those of scans and commits, after which this may be called again.
    pub async fn clean(&self, cleaning: &mut Cleaning) -> Result<bool, Error> {
        let (page, behind) = self.objects.scan(self.nodes, cleaning.next.clone()).await?;
        let catalog = first_of(&self.all_copies().await?);
        // A number that the catalog does not have yet is not that of a dropped index.
        let is_dropped = |(key, ..): &&Listed| {
            index_of_node(key).is_some_and(|index| catalog.has_dropped(index))
        };
        let keys: Vec<&[u8]> = page.iter().filter(is_dropped).map(|(key, ..)| &key[..]).collect();
        cleaning.found |= !keys.is_empty();
        for keys in keys.chunks(BATCH) {
            self.remove_nodes(keys).await?;
        }
        // A split in progress may add nodes to those that a scan has met.
        let is_done = behind.is_none() && !cleaning.found;
        *cleaning = match behind {
            Some(next) => Cleaning { next, found: cleaning.found },
            None => Cleaning::default(),
        };
        Ok(is_done)
    }

    /// Removes nodes, as they are now.
    async fn remove_nodes(&self, keys: &[&[u8]]) -> Result<(), Error> {
        let (table, rules, change) = (self.nodes, RejectRules::default(), Change::Remove);
        let parts: Vec<TransactionPart<'_>> =
            keys.iter().map(|key| TransactionPart { table, key, rules, change }).collect();
        let mut tries = 0;
        while let Err(error) = self.objects.commit(&parts).await {
            if !matches!(error, client::Error::Conflict { .. }) {
                return Err(error.into());
            }
            tries += 1;
            self.objects.pause(tries).await?;
        }
        Ok(())
    }

    /// Reads all copies of the catalog.
    async fn all_copies(&self) -> Result<Vec<Copied>, Error> {
        let keys: Vec<[u8; 2]> = (0..COPIES).map(catalog_key).collect();
        let keys: Vec<(TableId, &[u8])> = keys.iter().map(|key| (self.nodes, &key[..])).collect();
        let mut copies = Vec::new();
        for seen in self.objects.read(&keys).await? {
            copies.push(match seen {
                Some((version, bytes)) => {
                    (Catalog::parse(&bytes).ok_or(Error::DAMAGED)?.into(), version)
                }
                None => Copied::default(),
            });
        }
        if copies.len() == usize::from(COPIES) { Ok(copies) } else { Err(Error::DAMAGED) }
    }

    /// Writes all copies of the catalog, if they are as they were read, with another object.
    /// Returns false after a conflict.
    async fn write_catalog(
        &self,
        copies: &[Copied],
        catalog: &Catalog,
        other: Option<TransactionPart<'_>>,
    ) -> Result<bool, Error> {
        let bytes = catalog.bytes();
        let keys: Vec<[u8; 2]> = (0..COPIES).map(catalog_key).collect();
        let write = |(key, (_, version)): (&'_ [u8; 2], &Copied)| (*key, *version);
        let written: Vec<([u8; 2], Version)> = keys.iter().zip(copies).map(write).collect();
        let parts: Vec<TransactionPart<'_>> = written
            .iter()
            .map(|(key, version)| TransactionPart {
                table: self.nodes,
                key,
                rules: unchanged(*version),
                change: Change::Write(&bytes, None),
            })
            .chain(other)
            .collect();
        let committed = self.objects.commit(&parts).await;
        // Another task of this client may have read the catalog meanwhile.
        self.objects.state(State::forget_catalog);
        match committed {
            Ok(_) => Ok(true),
            Err(client::Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the catalog of the first copy. If the copies differ, a commit will find it out.
fn first_of(copies: &[Copied]) -> Catalog {
    copies.first().map_or_else(Catalog::default, |(catalog, _)| (**catalog).clone())
}

fn building(
    name: &str,
    (number, source, node_bytes): (u8, Source, u32),
    next: Option<Cursor>,
) -> Building {
    let node_bytes = node_bytes as usize;
    let (behind, old) = (None, None);
    let name = name.into();
    Building { name, number, source, node_bytes, next, behind, old, objects: 0, skipped: 0 }
}
