//! Look-ups and ordered scans: the objects whose index keys are in a range.
//!
//! ```text
//!  a leaf ─► its entries in the range ─► their objects, all at once ─► those that have the key
//! ```
//!
//! A look-up that wants more objects than a leaf has reads the next leaves at the same time, as far
//! as the client keeps their parent.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter;
use core::ops::{Bound, RangeBounds};

use super::definition::Catalog;
use super::error::Error;
use super::node::{Node, OwnedPoint, Point};
use super::state::State;
use super::tree::{Read, catalog_key};
use super::{Indexes, Objects, Seen};
use crate::types::{TableId, Version};

/// The most objects of a page.
const MOST: usize = 1024;

/// The most entries without objects that one look-up removes.
const MOST_STALE: usize = 16;

/// A range of index keys, and the position of a scan in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Range {
    from: OwnedPoint,
    /// The first point behind the range. `None`: there is none.
    to: Option<OwnedPoint>,
}

impl Range {
    /// Returns the range of these index keys, at its start.
    #[must_use]
    pub fn new<K: AsRef<[u8]>>(keys: impl RangeBounds<K>) -> Self {
        let at = |key: &K| OwnedPoint { key: key.as_ref().to_vec(), object: Vec::new() };
        let behind = |key: &K| OwnedPoint::behind(key.as_ref().to_vec());
        let from = match keys.start_bound() {
            Bound::Included(key) => at(key),
            Bound::Excluded(key) => behind(key),
            Bound::Unbounded => OwnedPoint::default(),
        };
        let to = match keys.end_bound() {
            Bound::Included(key) => Some(behind(key)),
            Bound::Excluded(key) => Some(at(key)),
            Bound::Unbounded => None,
        };
        Self { from, to }
    }

    /// Returns the range of the index keys that begin with these bytes.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        let from = OwnedPoint { key: prefix.to_vec(), object: Vec::new() };
        let mut end = prefix.to_vec();
        while end.pop_if(|byte| *byte == u8::MAX).is_some() {}
        let to = end.last_mut().map(|byte| *byte += 1);
        let to = to.map(|()| OwnedPoint { key: end, object: Vec::new() });
        Self { from, to }
    }

    fn is_behind(&self, point: Point<'_>) -> bool {
        self.to.as_ref().is_some_and(|to| to.point() <= point)
    }

    /// Adds the points of leaves in the range to `points`, at most `most` in all. The leaves follow
    /// each other, unless one was split or merged while they were read. Returns the point where the
    /// rest of the range begins.
    fn points<'a>(
        &self,
        nodes: impl Iterator<Item = Node<'a>>,
        points: &mut Vec<Point<'a>>,
        most: usize,
    ) -> Option<OwnedPoint> {
        let mut at = None;
        for node in nodes {
            if at.is_some_and(|at| at != node.start) {
                break;
            }
            let first = node.before(self.from.point());
            let behind = (first..node.len()).find(|&i| self.is_behind(node.entry(i).point));
            let last = behind.unwrap_or(node.len());
            let end = last.min(first + most - points.len());
            points.extend((first..end).map(|i| node.entry(i).point));
            if end < last {
                return points.last().map(|last| last.to_owned().next());
            }
            at = node.end.filter(|end| behind.is_none() && !self.is_behind(*end));
            if at.is_none() || points.len() == most {
                break;
            }
        }
        at.map(Point::to_owned)
    }
}

/// An object that a look-up has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The object's key in the index.
    pub index_key: Vec<u8>,
    /// The object's own key.
    pub key: Vec<u8>,
    /// The version of the object.
    pub version: Version,
    /// The value of the object.
    pub value: Vec<u8>,
}

/// A page of a look-up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    /// The objects, in the order of their index keys, and those with the same one in the order of
    /// their own keys.
    pub found: Vec<Found>,
    /// The rest of the range. `None`: there is nothing more.
    pub rest: Option<Range>,
}

impl<O: Objects> Indexes<'_, O> {
    /// Returns the first objects of a range of the index `name`, at most `most` of them. There may
    /// be less, and even none, although there is a rest.
    ///
    /// # Errors
    /// [`Error::NoIndex`], [`Error::Unready`], and those of reads.
    pub async fn look_up(&self, name: &str, range: Range, most: usize) -> Result<Page, Error> {
        match self.try_to_look_up(name, &range, most).await {
            // The index was dropped, and perhaps created anew.
            Err(Error::NoIndex(_)) => self.try_to_look_up(name, &range, most).await,
            outcome => outcome,
        }
    }

    async fn try_to_look_up(&self, name: &str, range: &Range, most: usize) -> Result<Page, Error> {
        let mut catalog = self.catalog().await?;
        if !catalog.find(name).is_ok_and(|index| index.is_ready) {
            self.objects.state(State::forget_catalog);
            catalog = self.catalog().await?;
        }
        let index = catalog.find(name)?;
        if !index.is_ready {
            return Err(Error::Unready(name.into()));
        }
        // A caller that names no number takes a leaf at a time.
        let ahead = if most <= MOST { most } else { 0 };
        let most = most.min(MOST);
        if most == 0 || range.is_behind(range.from.point()) {
            return Ok(Page { found: Vec::new(), rest: Some(range.clone()).filter(|_| most == 0) });
        }
        let from = range.from.point();
        let mut starts = self.objects.state(|state| state.leaves_behind(index, from, ahead));
        starts.retain(|start| !range.is_behind(start.point()));
        let starts = starts.iter().map(OwnedPoint::point);
        let starts: Vec<_> =
            iter::once(from).chain(starts).map(|point| (index.number, point)).collect();
        let copy = self.copy_near_leaf(index.number, from);
        let (leaves, seen) = self.leaves(&starts, &[(self.nodes, &catalog_key(copy))]).await?;
        let seen = seen.into_iter().next().flatten();
        if !self.has_index(index.number, (&catalog, copy), seen)? {
            return Err(Error::NoIndex(name.into()));
        }
        let nodes = leaves.iter().map(Read::node).collect::<Result<Vec<_>, Error>>()?;
        let mut points: Vec<Point<'_>> = Vec::new();
        let rest = range.points(nodes.into_iter(), &mut points, most);
        if rest.as_ref().is_some_and(|rest| rest.point() <= from) {
            // The entries have no order.
            return Err(Error::Damaged);
        }
        let rest = rest.map(|from| Range { from, to: range.to.clone() });
        let keys: Vec<(TableId, &[u8])> =
            points.iter().map(|point| (self.table, point.object)).collect();
        let objects = if keys.is_empty() { Vec::new() } else { self.objects.read(&keys).await? };
        let (mut found, mut stale) = (Vec::with_capacity(points.len()), Vec::new());
        for (point, object) in points.iter().zip(objects) {
            let Some((version, value)) = object else {
                stale.push((Version(0), point.to_owned()));
                continue;
            };
            if index.source.key_of(point.object, &value) == Some(point.key) {
                let (index_key, key) = (point.key.to_vec(), point.object.to_vec());
                found.push(Found { index_key, key, version, value });
            } else {
                stale.push((version, point.to_owned()));
            }
        }
        stale.truncate(MOST_STALE);
        // The answer is there. What is not removed now, another look-up will meet.
        let _ = self.forget_entries((index.number, index.node_bytes as usize), &stale).await;
        Ok(Page { found, rest })
    }

    /// Returns true if a catalog that has an index is still that of a copy, or the copy has the
    /// index too. It was read with a leaf: no change keeps the nodes of an index that was dropped.
    fn has_index(
        &self,
        number: u8,
        (known, copy): (&Arc<Catalog>, u8),
        read: Option<Seen>,
    ) -> Result<bool, Error> {
        let Some((version, bytes)) = read else { return Ok(false) };
        let kept = self.objects.state(|state| state.copied(copy));
        if kept.is_some_and(|(catalog, of)| of == version && Arc::ptr_eq(&catalog, known)) {
            return Ok(true);
        }
        let catalog = Catalog::parse(&bytes).ok_or(Error::Damaged)?;
        let has_index = catalog.numbered(number).is_some();
        self.objects.state(|state| state.learn(copy, catalog, version));
        Ok(has_index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(key: &[u8]) -> OwnedPoint {
        OwnedPoint { key: key.to_vec(), object: Vec::new() }
    }

    #[test]
    fn ranges_have_their_bounds() {
        let range = |from, to| Range { from: point(from), to };
        assert_eq!(Range::new::<&[u8]>(..), range(b"", None));
        assert_eq!(Range::new(&b"a"[..]..), range(b"a", None));
        assert_eq!(Range::new("a".."c"), range(b"a", Some(point(b"c"))));
        assert_eq!(Range::new("a"..="a"), range(b"a", Some(point(b"a\0"))));
        let open = (Bound::Excluded("a"), Bound::Unbounded);
        assert_eq!(Range::new::<&str>(open), range(b"a\0", None));
        assert_eq!(Range::prefix(b"ab"), range(b"ab", Some(point(b"ac"))));
        assert_eq!(Range::prefix(b"a\xff\xff"), range(b"a\xff\xff", Some(point(b"b"))));
        assert_eq!(Range::prefix(b"\xff"), range(b"\xff", None));
        assert_eq!(Range::prefix(b""), range(b"", None));
    }
}
