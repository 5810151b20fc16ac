//! Look-ups and ordered scans: the objects whose index keys are in a range.
//!
//! ```text
//!  a leaf ─► its entries in the range ─► their objects, all at once ─► those that have the key
//! ```
//!
//! A look-up that wants more objects than a leaf has reads the next leaves at the same time, as far
//! as the client keeps their parent.
//!
//! A scan takes objects from either end of a range. No leaf names its neighbours, so each way
//! begins at the root: up, it leads to the leaf that has the first point of the rest; down, to the
//! leaf that has the last points before its end. Each leaf has its own range, and the rest of the
//! scan is what lies beyond that. So an object that keeps its key comes exactly once, whatever
//! leaves are split or merged meanwhile.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::iter;
use core::ops::{Bound, RangeBounds};

use super::definition::{Catalog, Definition};
use super::error::Error;
use super::state::State;
use super::tree::{Read, Way, catalog_key, node_key};
use super::{Indexes, Objects, Seen};
use crate::btree::node::{Goal, Node, OwnedPoint, Point};
use crate::types::{TableId, Version};

/// The most objects of a page.
const MOST: usize = 1024;

/// The most entries without objects that one look-up removes.
const MOST_STALE: usize = 16;

/// The end of a range at which a look-up begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Ascending,
    Descending,
}

/// A range of index keys: what a scan has not passed yet, which takes objects from both ends.
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
        let behind = |key: &K| OwnedPoint::behind(key.as_ref());
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

    fn is_empty(&self) -> bool {
        self.is_behind(self.from.point())
    }

    /// Returns the goal of the way to the leaf at which a look-up begins.
    fn goal(&self, order: Order) -> Goal<'_> {
        match order {
            Order::Ascending => Goal::At(self.from.point()),
            Order::Descending => Goal::Before(self.to.as_ref().map(OwnedPoint::point)),
        }
    }

    /// Returns the range without what a look-up has passed up to a point. `None`: that was no step.
    fn beyond(&self, order: Order, point: OwnedPoint) -> Option<Self> {
        let (from, to) = (&self.from, &self.to);
        match order {
            Order::Ascending => {
                (from.point() < point.point()).then(|| Self { from: point, to: to.clone() })
            }
            Order::Descending if self.is_behind(point.point()) => None,
            Order::Descending => Some(Self { from: from.clone(), to: Some(point) }),
        }
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

    /// Adds the points of leaves in the range to `points` in descending order, as
    /// [`Range::points`] does. Each leaf is the one before the last. Returns the point where the
    /// rest of the range ends.
    fn points_back<'a>(
        &self,
        nodes: impl Iterator<Item = Node<'a>>,
        points: &mut Vec<Point<'a>>,
        most: usize,
    ) -> Option<OwnedPoint> {
        let mut at = None;
        for node in nodes {
            if at.is_some_and(|at| Some(at) != node.end) {
                break;
            }
            let first = node.before(self.from.point());
            let last = self.to.as_ref().map_or(node.len(), |to| node.before(to.point()));
            let begin = first.max(last.saturating_sub(most - points.len()));
            points.extend((begin..last).rev().map(|i| node.entry(i).point));
            if begin > first {
                return points.last().map(|last| last.to_owned());
            }
            at = Some(node.start).filter(|start| self.from.point() < *start);
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
    /// their own keys. A look-up from the end of the range returns them in the opposite order.
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
        self.look_up_in(Order::Ascending, name, &range, most).await
    }

    /// Returns the last objects of a range in descending order, as [`Indexes::look_up`] returns the
    /// first ones. The rest of the range is what lies before them.
    ///
    /// # Errors
    /// Those of [`Indexes::look_up`].
    pub async fn look_up_back(&self, name: &str, range: Range, most: usize) -> Result<Page, Error> {
        self.look_up_in(Order::Descending, name, &range, most).await
    }

    async fn look_up_in(
        &self,
        order: Order,
        name: &str,
        range: &Range,
        most: usize,
    ) -> Result<Page, Error> {
        match self.try_to_look_up(order, name, range, most).await {
            // The index was dropped, and perhaps created anew.
            Err(Error::NoIndex(_)) => self.try_to_look_up(order, name, range, most).await,
            outcome => outcome,
        }
    }

    async fn try_to_look_up(
        &self,
        order: Order,
        name: &str,
        range: &Range,
        most: usize,
    ) -> Result<Page, Error> {
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
        if most == 0 || range.is_empty() {
            return Ok(Page { found: Vec::new(), rest: Some(range.clone()).filter(|_| most == 0) });
        }
        let goal = range.goal(order);
        let way = self.way(index.number, goal);
        let copy = self.copy_near(self.nodes, &node_key(way.id()));
        let bounds = match way.parent().filter(|_| ahead > 0) {
            Some(parent) => {
                self.objects.state(|state| state.leaves_beside(index, (goal, parent), ahead))
            }
            None => Vec::new(),
        };
        let next = bounds.iter().map(OwnedPoint::point).filter_map(|bound| match order {
            Order::Ascending => (!range.is_behind(bound)).then_some(Goal::At(bound)),
            Order::Descending => (range.from.point() < bound).then_some(Goal::Before(Some(bound))),
        });
        let next = next.map(|goal| Way::new(index.number, goal));
        let ways: Vec<Way<'_>> = iter::once(way).chain(next).collect();
        let (leaves, seen) = self.leaves_of(ways, &[(self.nodes, &catalog_key(copy))]).await?;
        let seen = seen.into_iter().next().flatten();
        if !self.has_index(index.number, (&catalog, copy), seen)? {
            return Err(Error::NoIndex(name.into()));
        }
        let nodes = leaves.iter().map(Read::node).collect::<Result<Vec<_>, Error>>()?;
        let mut points: Vec<Point<'_>> = Vec::new();
        let passed = match order {
            Order::Ascending => range.points(nodes.into_iter(), &mut points, most),
            Order::Descending => range.points_back(nodes.into_iter(), &mut points, most),
        };
        // Entries that have no order lead nowhere.
        let rest = passed.map(|point| range.beyond(order, point).ok_or(Error::DAMAGED));
        let rest = rest.transpose()?;
        Ok(Page { found: self.found(index, &points).await?, rest })
    }

    /// Reads the objects of some entries of an index, and returns those that have the index keys.
    /// Removes some of the other entries.
    async fn found(&self, index: &Definition, points: &[Point<'_>]) -> Result<Vec<Found>, Error> {
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
        let _ = self.forget_entries(index, &stale).await;
        Ok(found)
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
        let catalog = Catalog::parse(&bytes).ok_or(Error::DAMAGED)?;
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
