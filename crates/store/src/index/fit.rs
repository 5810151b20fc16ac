//! Leaves that refuse the edits of a transaction: the client splits them before, or lets them
//! become too large or too small and mends that afterwards.

use alloc::vec::Vec;

use super::edits::Bounds;
use super::error::Error;
use super::{Indexes, Objects};
use crate::btree::NodeId;
use crate::btree::edit::Edits;
use crate::btree::node::{OwnedPoint, Point};

/// The most tries to split a leaf for each of its points that made it too large.
const MOST_SPLITS: usize = 4;

/// The points whose leaves may become too small or too large by a transaction.
#[derive(Debug, Default)]
pub(super) struct Loose {
    small: Vec<(u8, OwnedPoint)>,
    large: Vec<(u8, OwnedPoint)>,
}

impl Loose {
    /// Returns the bounds of a leaf by an edit of this point.
    pub(super) fn bounds(&self, of: u8, point: Point<'_>, most: usize) -> Bounds {
        let has = |among: &[(u8, OwnedPoint)]| {
            among.iter().any(|(index, it)| (*index, it.point()) == (of, point))
        };
        Bounds { most, may_be_small: has(&self.small), may_be_large: has(&self.large) }
    }
}

/// Adds a point of an index to others. Returns true if it is new.
fn push(points: &mut Vec<(u8, OwnedPoint)>, index: u8, point: Point<'_>) -> bool {
    let is_new = !points.iter().any(|(of, it)| (*of, it.point()) == (index, point));
    if is_new {
        points.push((index, point.to_owned()));
    }
    is_new
}

/// The reason why a transaction has to be tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Again {
    /// Another client was faster: a pause helps.
    Conflict,
    /// A node was split, or the client knows more of the indexes now.
    Changed,
}

impl<O: Objects> Indexes<'_, O> {
    /// Finds out why a leaf refuses edits. Splits it if one of them has no room. Otherwise adds
    /// their points to `loose`: the removed ones may make the leaf small, and the added ones make
    /// it too large together. If the leaf is another one, the client knows the way to it now.
    pub(super) async fn refit(
        &self,
        (id, most): (NodeId, usize),
        edits: Edits<'_>,
        loose: &mut Loose,
    ) -> Result<Again, Error> {
        let index = id.0;
        let points: Vec<_> = edits.iter().map(|(point, _)| (index, point)).collect();
        let leaves = self.leaves(&points).await?;
        for ((point, add), leaf) in edits.iter().zip(&leaves) {
            let node = leaf.node()?;
            let is_full = leaf.bytes.len() + point.entry_len() > most && node.len() > 1;
            if add && is_full && !node.has(point) {
                return self.make_room(index, point, most).await;
            }
        }
        let Some(leaf) = leaves.iter().find(|leaf| leaf.id == id) else {
            return Ok(Again::Changed);
        };
        let node = leaf.node()?;
        let of_leaf = || edits.iter().zip(&leaves).filter(|(_, of)| of.id == id).map(|it| it.0);
        let added: Vec<_> = of_leaf().filter(|(point, add)| *add && !node.has(*point)).collect();
        let grown: usize = added.iter().map(|(point, _)| point.entry_len()).sum();
        let mut is_new = leaves.iter().any(|of| of.id != id);
        // One point lets the leaf become small, and leads to it afterwards.
        if let Some((point, _)) = of_leaf().find(|(_, add)| !add) {
            is_new |= push(&mut loose.small, index, point);
        }
        // Each one that makes it large may be in another part of it afterwards.
        if leaf.bytes.len() + grown > most {
            for (point, _) in added {
                is_new |= push(&mut loose.large, index, point);
            }
        }
        // Without anything new, another client has changed the leaf meanwhile.
        Ok(if is_new { Again::Changed } else { Again::Conflict })
    }

    /// Splits the leaf of a point.
    async fn make_room(&self, index: u8, point: Point<'_>, most: usize) -> Result<Again, Error> {
        match self.split(index, point, most).await {
            // The split may have happened, and the change has not.
            Err(Error::Store(error)) if error.maybe_executed() => Ok(Again::Conflict),
            split => split.map(|()| Again::Changed),
        }
    }

    /// Mends the leaves that have become too small or too large by a transaction, which is
    /// committed. A failure leaves them to the next client that changes them.
    pub(super) async fn mend(&self, loose: &Loose) {
        if loose.small.is_empty() && loose.large.is_empty() {
            return;
        }
        let Ok(catalog) = self.catalog().await else { return };
        // An index may have been dropped meanwhile.
        let is_there = |(index, _): &&(u8, OwnedPoint)| catalog.numbered(*index).is_some();
        for (index, point) in loose.small.iter().filter(is_there) {
            // A small leaf takes a little memory at worst.
            let _ = self.merge(*index, point.point(), catalog.node_bytes(*index)).await;
        }
        let large = loose.large.iter().filter(is_there).map(|(index, it)| (*index, it.point()));
        let large: Vec<_> = large.collect();
        let _ = self.split_large(&large, |index| catalog.node_bytes(index)).await;
    }

    /// Splits the leaves of these points that are too large.
    async fn split_large(
        &self,
        points: &[(u8, Point<'_>)],
        most: impl Fn(u8) -> usize,
    ) -> Result<(), Error> {
        for _ in 0..MOST_SPLITS * points.len() {
            let leaves = self.leaves(points).await?;
            let mut large = None;
            // Splits in the middle keep the tree flat, those at the end are for ascending keys.
            for (&(index, point), leaf) in points.iter().zip(&leaves).rev() {
                if leaf.bytes.len() > most(index) && leaf.node()?.len() > 1 {
                    large = Some((index, point));
                }
            }
            let Some((index, point)) = large else { break };
            self.split(index, point, most(index)).await?;
        }
        Ok(())
    }
}
