//! Changes of objects together with their entries.
//!
//! ```text
//!  read the object and the leaves of its new keys ─► leaves of its old keys ─► one transaction:
//!  the object, the leaves whose entries change, a check of the catalog
//! ```
//!
//! Invariant: a change is made as a whole or not at all, and is exactly one of the store's
//! transactions.

use alloc::vec::Vec;

use super::definition::{Catalog, Definition};
use super::error::Error;
use super::node::{OwnedPoint, Point};
use super::state::State;
use super::tree::{Edits, catalog_key, unchanged};
use super::{Indexes, Objects};
use crate::client::{self, TransactionPart};
use crate::message::Status;
use crate::message::data::RejectRules;
use crate::types::{Lifetime, MAX_INDEX_KEY, Version};

/// The number of indexes without a root that a change may meet, one after the other: they were
/// dropped. One more is damage.
const MOST_LOST: u32 = 8;

/// The change of an object of a table with indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// The object gets this value, and expires after this lifetime. Its entries stay until a
    /// look-up meets them.
    Write(&'a [u8], Option<Lifetime>),
    /// The object is removed.
    Remove,
}

/// The end of a try to make a change.
enum Tried {
    /// The change is made. The object has this version, or had it before its removal.
    Done(Version),
    /// Another client was faster.
    Conflict,
    /// A node was split, or the catalog is to be read again.
    Again,
}

/// Returns the error of a verdict on an object of this version.
fn refused(why: Status, version: Version) -> client::Error {
    match why {
        Status::ObjectDoesntExist => client::Error::ObjectDoesntExist,
        Status::ObjectExists => client::Error::ObjectExists(version),
        _ => client::Error::WrongVersion(version),
    }
}

/// Returns the points of an object: the number of each index that has it, and its point there.
fn points<'a>(catalog: &Catalog, key: &'a [u8], value: &'a [u8]) -> Vec<(u8, Point<'a>)> {
    let of_index = |index: &Definition| {
        let point = Point { key: index.source.key_of(key, value)?, object: key };
        Some((index.number, point))
    };
    catalog.indexes.iter().filter_map(of_index).collect()
}

impl<O: Objects> Indexes<'_, O> {
    /// Changes an object and its entries, if the rules do not refuse its version. Returns the new
    /// version of a written object, or the version of a removed one: 0 if it did not exist.
    ///
    /// # Errors
    /// [`client::Error::ObjectExists`], [`client::Error::ObjectDoesntExist`] and
    /// [`client::Error::WrongVersion`] by the rules, [`Error::KeyTooLong`], and those of a commit.
    pub async fn change(
        &self,
        key: &[u8],
        change: Change<'_>,
        rules: RejectRules,
    ) -> Result<Version, Error> {
        let (mut conflicts, mut lost, mut is_known) = (0, 0, false);
        loop {
            match self.try_to_change(key, change, rules).await {
                // The index may have been dropped since the catalog was read.
                Err(Error::KeyTooLong(_)) if !is_known => {
                    is_known = true;
                    self.objects.state(State::forget_catalog);
                    continue;
                }
                Ok(Tried::Done(version)) => return Ok(version),
                Ok(Tried::Again) => continue,
                Ok(Tried::Conflict) => {}
                // The catalog was out of date, unless it is so again and again.
                Err(Error::NoIndex(_)) if lost < MOST_LOST => lost += 1,
                Err(Error::NoIndex(_)) => return Err(Error::Damaged),
                Err(error) => return Err(error),
            }
            conflicts += 1;
            self.objects.pause(conflicts).await?;
        }
    }

    async fn try_to_change(
        &self,
        key: &[u8],
        change: Change<'_>,
        rules: RejectRules,
    ) -> Result<Tried, Error> {
        let copy = self.copy_near(self.table, key);
        let copied = self.copied(copy).await?;
        let catalog = &*copied.0;
        let new = match change {
            Change::Write(value, _) => points(catalog, key, value),
            Change::Remove => Vec::new(),
        };
        if let Some((_, long)) = new.iter().find(|(_, point)| point.key.len() > MAX_INDEX_KEY) {
            return Err(Error::KeyTooLong(long.key.len()));
        }
        let (leaves, seen) = self.leaves(&new, &[(self.table, key)]).await?;
        let seen = seen.into_iter().next().flatten();
        let version = seen.as_ref().map_or(Version(0), |(version, _)| *version);
        if let Err(why) = rules.check(version) {
            return Err(refused(why, version).into());
        }
        if change == Change::Remove && seen.is_none() {
            return Ok(Tried::Done(version));
        }
        let mut old = match &seen {
            Some((_, value)) => points(catalog, key, value),
            None => Vec::new(),
        };
        // An object that was there before its index may have a key that is too long for it.
        old.retain(|(_, point)| point.key.len() <= MAX_INDEX_KEY);
        let gone: Vec<_> = old.iter().copied().filter(|point| !new.contains(point)).collect();
        let mut edits = Edits::default();
        let mut fresh = Vec::with_capacity(new.len());
        for (point, leaf) in new.iter().zip(leaves) {
            // The entry of an old point may be missing: the index is built, or the object was
            // written without it.
            if !old.contains(point) || !leaf.node()?.has(point.1) {
                fresh.push(*point);
                edits.add([leaf]);
            }
        }
        edits.add(self.leaves(&gone, &[]).await?.0);
        let all = fresh.iter().map(|point| (point, true)).chain(gone.iter().map(|p| (p, false)));
        for (&(index, point), add) in all {
            if !edits.edit(index, point, add)? {
                // Two reads of a leaf had different ranges.
                return Ok(Tried::Conflict);
            }
        }
        let most = |index| catalog.numbered(index).map_or(0, |index| index.node_bytes as usize);
        if let Some((index, _)) = edits.too_large(most) {
            let points = fresh.iter().filter(|(of, _)| *of == index).map(|(_, point)| *point);
            return self.make_room(index, points, most(index)).await;
        }
        let planned = match change {
            Change::Write(value, lifetime) => client::Change::Write(value, lifetime),
            Change::Remove => client::Change::Remove,
        };
        let changed = (key, planned, version);
        let tried = self.commit_change(changed, &edits, (copy, copied.1)).await?;
        if let Tried::Done(_) = tried {
            for (index, start) in edits.small(most) {
                // The change is made: a small leaf takes a little memory at worst.
                let _ = self.merge(index, start.point(), most(index)).await;
            }
        }
        Ok(tried)
    }

    /// Splits the leaves of some points.
    async fn make_room(
        &self,
        index: u8,
        points: impl Iterator<Item = Point<'_>>,
        most: usize,
    ) -> Result<Tried, Error> {
        for point in points {
            match self.split(index, point, most).await {
                // The split may have happened, and the change has not.
                Err(Error::Store(error)) if error.maybe_executed() => return Ok(Tried::Conflict),
                split => split?,
            }
        }
        Ok(Tried::Again)
    }

    /// Commits a change of an object of this version, with the leaves that change with it, if the
    /// catalog still has this version in a copy.
    async fn commit_change(
        &self,
        (key, change, version): (&[u8], client::Change<'_>, Version),
        edits: &Edits,
        (copy, catalog): (u8, Version),
    ) -> Result<Tried, Error> {
        let checked = catalog_key(copy);
        let object = TransactionPart { table: self.table, key, rules: unchanged(version), change };
        let parts: Vec<TransactionPart<'_>> = [object]
            .into_iter()
            .chain(edits.parts(self.nodes))
            .chain([TransactionPart {
                table: self.nodes,
                key: &checked,
                rules: unchanged(catalog),
                change: client::Change::Check,
            }])
            .collect();
        match self.objects.commit(&parts).await {
            Ok(_) if change == client::Change::Remove => Ok(Tried::Done(version)),
            Ok(versions) => Ok(Tried::Done(versions.first().copied().unwrap_or_default())),
            Err(client::Error::Conflict { part, why, .. }) => {
                if part == parts.len() - 1 && why != Status::Locked {
                    self.objects.state(State::forget_catalog);
                    return Ok(Tried::Again);
                }
                Ok(Tried::Conflict)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the entries of objects of which a version was read that does not have them, 0 if the
    /// object did not exist: it has expired, or was written without its indexes. Failures leave
    /// the entries for another time.
    pub(super) async fn forget_entries(
        &self,
        (index, most): (u8, usize),
        stale: &[(Version, OwnedPoint)],
    ) -> Result<(), Error> {
        for (version, point) in stale {
            let leaves = self.leaves(&[(index, point.point())], &[]).await?.0;
            let mut edits = Edits::default();
            edits.add(leaves);
            if !edits.has(index, point.point())? {
                // A change was in progress at the time of the two reads.
                continue;
            }
            edits.edit(index, point.point(), false)?;
            let (key, rules) = (&point.object[..], unchanged(*version));
            let object =
                TransactionPart { table: self.table, key, rules, change: client::Change::Check };
            let parts: Vec<TransactionPart<'_>> = edits.parts(self.nodes).chain([object]).collect();
            self.objects.commit(&parts).await?;
            for (_, start) in edits.small(|_| most) {
                self.merge(index, start.point(), most).await?;
            }
        }
        Ok(())
    }
}
