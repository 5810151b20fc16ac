//! Transactions that change objects of tables with indexes, together with their entries.
//!
//! ```text
//!  read the objects ─► one transaction: the objects, edits of the leaves of their old and new
//!                      keys, a check of the catalog of each table
//! ```
//!
//! An object that must not exist yet has no old keys, so that it is not read.
//!
//! The client keeps the nodes above the leaves, so that it knows the leaves without reading them. A
//! leaf that is another one by now, or full, refuses its edits. An index that is ready has the
//! entries of the objects, so that a point which stays needs no edit.
//!
//! Invariant: a transaction is made as a whole or not at all, and is exactly one of the store's
//! transactions.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::take;

use super::edits::LeafEdits;
use super::error::Error;
use super::fit::{Again, Loose};
use super::state::{Copied, State};
use super::tree::unchanged;
use super::{Indexes, Objects, Seen};
use crate::btree::catalog::{Catalog, Definition};
use crate::btree::node::Point;
use crate::btree::{NodeId, catalog_key};
use crate::client::{self, Change, TransactionPart};
use crate::message::Status;
use crate::types::{MAX_INDEX_KEY, MAX_VALUE, TableId, Version};

/// The number of indexes without a root that a transaction may meet, one after the other: they were
/// dropped. One more is damage.
const MOST_LOST: u32 = 8;

/// A part of a transaction, and its object as the program knows it.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The part. Its rules refuse every version but the one that was read.
    pub part: TransactionPart<'a>,
    /// The version and the value of the object as it was read, or `Some(None)` if it did not exist.
    /// `None` if the program has not read it.
    pub read: Option<Option<(Version, &'a [u8])>>,
}

impl<'a> Part<'a> {
    /// Returns the object as far as it is known without a read of it. One that must not exist has
    /// no entries: if it exists, the commit refuses its version.
    fn known(&self) -> Option<Object<'a>> {
        let TransactionPart { rules, change, .. } = self.part;
        let is_new = matches!(change, Change::Write(..)) && rules.exists && !rules.doesnt_exist;
        self.read.or_else(|| is_new.then_some(None))
    }
}

/// The end of a try to commit.
enum Tried {
    /// The transaction is committed: its objects have these versions.
    Done(Vec<Version>),
    Again(Again),
}

/// The changes of the objects of one table in a transaction.
struct Changes<'a> {
    /// The indices of the table, and of the parts that change its objects.
    table: usize,
    parts: Vec<usize>,
    /// The number of the copy of the catalog that the transaction checks, and what it has.
    copy: u8,
    copied: Copied,
    /// The new points: the index of the part, the number of the index and the point.
    new: Vec<(usize, u8, Point<'a>)>,
    edits: LeafEdits,
}

/// Returns the points of an object: the number of each index that has it, and its point there.
fn points<'a>(
    catalog: &Catalog,
    key: &'a [u8],
    value: &'a [u8],
) -> impl Iterator<Item = (u8, Point<'a>)> {
    catalog.indexes.iter().filter_map(move |index: &Definition| {
        let point = Point { key: index.source.key_of(key, value)?, object: key };
        Some((index.number, point))
    })
}

/// Commits a transaction on objects of any tables by the client of `objects`. It keeps the indexes
/// of `tables`, each of which is there once. Waits for objects that other transactions have locked.
/// Returns the versions of the objects, in the order of the parts: of one that is removed the
/// version that it had, 0 if it did not exist.
///
/// # Errors
/// [`client::Error::Conflict`] if the rules of a part refuse its object,
/// [`client::Error::IndexKeyTooLong`], and those of a commit. The leaves that change, and one
/// object for each table, count among the objects of the transaction, and entries among its bytes.
pub async fn commit<O: Objects>(
    objects: &O,
    tables: &[Indexes<'_, O>],
    parts: &[Part<'_>],
) -> Result<Vec<Version>, client::Error> {
    let (mut conflicts, mut lost, mut has_read_catalog) = (0, 0, false);
    let mut loose: Vec<Loose> = tables.iter().map(|_| Loose::default()).collect();
    let mut read = Vec::new();
    loop {
        match try_to_commit(objects, tables, parts, &mut loose, &mut read).await {
            // The index may have been dropped since the catalog was read.
            Err(Error::Store(client::Error::IndexKeyTooLong(_))) if !has_read_catalog => {
                has_read_catalog = true;
                tables.iter().for_each(|table| table.objects.state(State::forget_catalog));
                continue;
            }
            Ok(Tried::Done(versions)) => {
                for (table, loose) in tables.iter().zip(&loose) {
                    table.mend(loose).await;
                }
                return Ok(versions);
            }
            Ok(Tried::Again(Again::Changed)) => continue,
            Ok(Tried::Again(Again::Conflict)) => {}
            // The catalog was out of date, unless it is so again and again.
            Err(Error::NoIndex(_)) if lost < MOST_LOST => lost += 1,
            Err(Error::Store(error)) => return Err(error),
            Err(_) => return Err(client::Error::DamagedIndex),
        }
        conflicts += 1;
        read.clear();
        objects.pause(conflicts).await?;
    }
}

/// Tries to commit a transaction once. `read` has the objects that the last try has read, if they
/// are good for this one: the commit checks their versions.
async fn try_to_commit<O: Objects>(
    objects: &O,
    tables: &[Indexes<'_, O>],
    parts: &[Part<'_>],
    loose: &mut [Loose],
    read: &mut Vec<Option<Seen>>,
) -> Result<Tried, Error> {
    let mut changes = Vec::with_capacity(tables.len());
    for number in 0..tables.len() {
        changes.extend(begin(tables, number, parts).await?);
    }
    let seen = plan(tables, parts, &mut changes, loose, read).await?;
    let more: usize = changes.iter().map(|it| it.edits.len() + 1).sum();
    let mut planned: Vec<TransactionPart<'_>> = Vec::with_capacity(parts.len() + more);
    planned.extend(parts.iter().map(|it| it.part));
    for &(part, version) in &seen {
        let TransactionPart { rules, .. } = planned[part];
        if let Err(why) = rules.check(version) {
            return Err(client::Error::Conflict { part, why, version }.into());
        }
        planned[part].rules = unchanged(version);
    }
    if let ([TransactionPart { change: Change::Remove, .. }], [(_, Version(0))]) =
        (&planned[..], &seen[..])
    {
        return Ok(Tried::Done([Version(0)].into()));
    }
    for it in &changes {
        planned.extend(it.edits.parts(tables[it.table].nodes));
    }
    let keys: Vec<[u8; 2]> = changes.iter().map(|it| catalog_key(it.copy)).collect();
    planned.extend(changes.iter().zip(&keys).map(|(it, key)| TransactionPart {
        table: tables[it.table].nodes,
        key,
        rules: unchanged(it.copied.1),
        change: Change::Check,
    }));
    match objects.commit(&planned).await {
        Ok(mut versions) => {
            versions.truncate(parts.len());
            for (part, version) in seen {
                if planned[part].change == Change::Remove {
                    versions[part] = version;
                }
            }
            Ok(Tried::Done(versions))
        }
        Err(client::Error::Conflict { part, why, version }) => {
            let again = after(tables, parts, &changes, loose, (part, why, version)).await;
            again.map(Tried::Again)
        }
        // The edits of a leaf are longer than a value may be, unless it is one of the program's.
        Err(client::Error::ValueTooLong(len))
            if parts.iter().all(|it| has_short_value(&it.part)) =>
        {
            Err(client::Error::TransactionTooLong(len).into())
        }
        Err(error) => Err(error.into()),
    }
}

fn has_short_value(part: &TransactionPart<'_>) -> bool {
    if let Change::Write(value, _) = part.change { value.len() <= MAX_VALUE } else { true }
}

/// Does what a conflict needs before the next try.
///
/// # Errors
/// The conflict, if it is one with the rules of a part.
async fn after<O: Objects>(
    tables: &[Indexes<'_, O>],
    parts: &[Part<'_>],
    changes: &[Changes<'_>],
    loose: &mut [Loose],
    (part, why, version): (usize, Status, Version),
) -> Result<Again, Error> {
    let Some(mut place) = part.checked_sub(parts.len()) else {
        let is_verdict = !matches!(why, Status::Locked | Status::Aborted);
        return match parts[part].part.rules.check(version) {
            Err(why) if is_verdict => Err(client::Error::Conflict { part, why, version }.into()),
            _ => Ok(Again::Conflict),
        };
    };
    for it in changes {
        if place < it.edits.len() {
            let Some((id, edits)) = it.edits.leaf(place).filter(|_| why == Status::OtherLeaf)
            else {
                return Ok(Again::Conflict);
            };
            let most = it.copied.0.node_bytes(id.0);
            return tables[it.table].refit((id, most), edits, &mut loose[it.table]).await;
        }
        place -= it.edits.len();
    }
    if why == Status::Locked {
        return Ok(Again::Conflict);
    }
    if let Some(it) = changes.get(place) {
        tables[it.table].objects.state(State::forget_catalog);
    }
    Ok(Again::Changed)
}

/// Begins the changes of the objects of a table: gets its catalog and the new points. Returns
/// `None` if the transaction changes none of its objects.
async fn begin<'a, O: Objects>(
    tables: &[Indexes<'_, O>],
    table: usize,
    parts: &[Part<'a>],
) -> Result<Option<Changes<'a>>, Error> {
    let it = &tables[table];
    let of_table = parts.iter().enumerate().filter(|(_, part)| part.part.table == it.table);
    let changed: Vec<usize> = of_table
        .filter(|(_, part)| matches!(part.part.change, Change::Write(..) | Change::Remove))
        .map(|(index, _)| index)
        .collect();
    let Some(&first) = changed.first() else { return Ok(None) };
    let copy = it.copy_near(it.table, parts[first].part.key);
    let copied = it.copied(copy).await?;
    let mut new = Vec::new();
    for &index in &changed {
        let TransactionPart { key, change: Change::Write(value, _), .. } = parts[index].part else {
            continue;
        };
        for (number, point) in points(&copied.0, key, value) {
            if point.key.len() > MAX_INDEX_KEY {
                return Err(client::Error::IndexKeyTooLong(point.key.len()).into());
            }
            new.push((index, number, point));
        }
    }
    let edits = LeafEdits::default();
    Ok(Some(Changes { table, parts: changed, copy, copied, new, edits }))
}

/// An object as it was read: its version and value, if it exists.
type Object<'a> = Option<(Version, &'a [u8])>;

/// Plans the edits of leaves. Returns the versions of the objects that change, by the indices of
/// their parts.
async fn plan<O: Objects>(
    tables: &[Indexes<'_, O>],
    parts: &[Part<'_>],
    changes: &mut [Changes<'_>],
    loose: &[Loose],
    seen: &mut Vec<Option<Seen>>,
) -> Result<Vec<(usize, Version)>, Error> {
    let changed = changes.iter().flat_map(|it| &it.parts).copied();
    let unread: Vec<usize> = changed.filter(|part| parts[*part].known().is_none()).collect();
    let name = |part: &usize| (parts[*part].part.table, parts[*part].part.key);
    let mut others: Vec<(TableId, &[u8])> = unread.iter().map(name).collect();
    if !seen.is_empty() {
        others.clear();
    }
    let mut places = Vec::new();
    for it in &*changes {
        let points: Vec<_> = it.new.iter().map(|&(_, index, point)| (index, point)).collect();
        // With the first table all objects are read.
        let (found, read) = tables[it.table].find(&points, &others).await?;
        seen.extend(read);
        places.push(found);
        others.clear();
    }
    let read: Vec<(usize, Object<'_>)> = unread
        .into_iter()
        .zip(seen.iter().map(|seen| seen.as_ref().map(|(version, value)| (*version, &value[..]))))
        .collect();
    let object = |part: usize| {
        let of_part = read.iter().find(|(of, _)| *of == part);
        parts[part].known().unwrap_or_else(|| of_part.and_then(|(_, object)| *object))
    };
    let mut versions = Vec::new();
    for (it, places) in changes.iter_mut().zip(places) {
        let objects: Vec<_> = it.parts.iter().map(|&part| (part, object(part))).collect();
        let version = |object: Object<'_>| object.map_or(Version(0), |(version, _)| version);
        versions.extend(objects.iter().map(|&(part, object)| (part, version(object))));
        let objects =
            objects.into_iter().map(|(part, object)| (part, parts[part].part.key, object));
        let gone = it.add(objects, places, &loose[it.table]);
        let (places, _) = tables[it.table].find(&gone, &[]).await?;
        for ((_, point), id) in gone.into_iter().zip(places) {
            it.edit(id, point, false, &loose[it.table]);
        }
    }
    Ok(versions)
}

impl Changes<'_> {
    /// Plans to add the entries of the new points, which have these leaves. Returns the old points
    /// of the objects that are to be removed.
    fn add<'o>(
        &mut self,
        objects: impl Iterator<Item = (usize, &'o [u8], Object<'o>)>,
        leaves: Vec<NodeId>,
        loose: &Loose,
    ) -> Vec<(u8, Point<'o>)> {
        let catalog = Arc::clone(&self.copied.0);
        let mut gone = Vec::new();
        let mut new = take(&mut self.new).into_iter().zip(leaves).peekable();
        for (part, key, object) in objects {
            let of_object = object.map(|(_, value)| points(&catalog, key, value));
            // An object that was there before its index may have a key that is too long for it.
            let mut old: Vec<(u8, Point<'_>)> = of_object
                .into_iter()
                .flatten()
                .filter(|(_, point)| point.key.len() <= MAX_INDEX_KEY)
                .collect();
            while let Some(((_, index, point), id)) = new.next_if(|((of, ..), _)| *of == part) {
                let stays = old.iter().position(|it| *it == (index, point));
                if let Some(place) = stays {
                    old.swap_remove(place);
                }
                let is_ready = catalog.numbered(index).is_some_and(|index| index.is_ready);
                if stays.is_none() || !is_ready {
                    self.edit(id, point, true, loose);
                }
            }
            gone.extend(old);
        }
        gone
    }

    fn edit(&mut self, id: NodeId, point: Point<'_>, add: bool, loose: &Loose) {
        let bounds = loose.bounds(id.0, point, self.copied.0.node_bytes(id.0));
        self.edits.edit(id, point, add, bounds);
    }
}
