//! Look-ups and ordered scans: the objects whose index keys are in a range.
//!
//! ```text
//!  the master of a leaf ─► its entries in the range, with objects that it has
//!                       ─► the other objects, all at once ─► those that have the key
//! ```
//!
//! A client that does not know the leaf reads the nodes on the way to it, and the leaf itself. A
//! look-up that wants more objects than a leaf has reads the next leaves at the same time, as far
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

use super::error::Error;
use super::range::Range;
use super::state::State;
use super::tree::{Read, Way};
use super::{Indexes, Objects, Seen};
use crate::btree::catalog::{Catalog, Definition};
use crate::btree::leaf::{Answer, Entry, MOST_ENTRIES, Query};
use crate::btree::node::{OwnedPoint, Point};
use crate::btree::range::{Order, Span};
use crate::btree::{NodeId, catalog_key, node_key};
use crate::types::{TableId, Version};

/// The most objects of a page.
const MOST: usize = MOST_ENTRIES;

/// The most entries without objects that one look-up removes.
const MOST_STALE: usize = 16;

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
        let (most, span) = (most.min(MOST), range.span());
        if most == 0 || span.is_empty() {
            return Ok(Page { found: Vec::new(), rest: Some(range.clone()).filter(|_| most == 0) });
        }
        let goal = span.goal(order);
        let way = self.way(index.number, goal);
        let bounds = match way.parent().filter(|_| ahead > 0) {
            Some(parent) => {
                self.objects.state(|state| state.leaves_beside(index, (goal, parent), ahead))
            }
            None => Vec::new(),
        };
        let beside = bounds.iter().map(OwnedPoint::point).map(|bound| span.beyond(order, bound));
        let beside = beside.take_while(|span| !span.is_empty());
        let beside: Vec<(Way<'_>, Span<'_>)> =
            beside.map(|span| (self.way(index.number, span.goal(order)), span)).collect();
        if way.is_at_leaf() {
            let known = beside.iter().take_while(|(way, _)| way.is_at_leaf());
            let leaves =
                iter::once((way.id(), span)).chain(known.map(|(way, span)| (way.id(), *span)));
            let page = self.ask(&catalog, index, leaves, (order, range, most)).await?;
            if let Some(page) = page {
                return Ok(page);
            }
        }
        let copy = self.copy_near(self.nodes, &node_key(way.id()));
        let ways = iter::once(way).chain(beside.into_iter().map(|(way, _)| way)).collect();
        let (leaves, seen) = self.leaves_of(ways, &[(self.nodes, &catalog_key(copy))]).await?;
        let seen = seen.into_iter().next().flatten();
        if !self.has_index(index.number, (&catalog, copy), seen)? {
            return Err(Error::NoIndex(name.into()));
        }
        let nodes = leaves.iter().map(Read::node).collect::<Result<Vec<_>, Error>>()?;
        let mut points: Vec<Point<'_>> = Vec::new();
        let rest = span.points(order, nodes.into_iter(), &mut points, most);
        if let Some(last) = points.last() {
            self.objects.state(|state| state.keep_entry(index.number, *last));
        }
        let rest = behind(range, order, rest)?;
        let entries: Vec<Entry<'_>> = points.into_iter().map(|point| (point, None)).collect();
        Ok(Page { found: self.found(index, &entries).await?, rest })
    }

    /// Asks the servers of leaves for their entries in the range of a look-up, with their objects
    /// as far as the server of the leaf has them. `None`: the first leaf or the catalog has
    /// changed.
    async fn ask(
        &self,
        catalog: &Arc<Catalog>,
        index: &Definition,
        leaves: impl Iterator<Item = (NodeId, Span<'_>)>,
        (order, range, most): (Order, &Range, usize),
    ) -> Result<Option<Page>, Error> {
        let (table, copy) = (self.table, self.copy());
        let query = |span| Query { table, order, most: most as u16, copy, span };
        let asked = leaves.map(|(id, span)| (node_key(id), query(span).emit(), span.begin(order)));
        let asked: Vec<([u8; 10], Vec<u8>, Option<Point<'_>>)> = asked.collect();
        let queries: Vec<(&[u8], &[u8])> =
            asked.iter().map(|(key, query, _)| (&key[..], &query[..])).collect();
        let answers = self.objects.look_up(self.nodes, &queries).await?;
        let mut entries: Vec<Entry<'_>> = Vec::new();
        // What the leaves so far have left of the range.
        let mut passed: Option<Option<OwnedPoint>> = None;
        for (answer, (.., begin)) in answers.iter().zip(&asked) {
            let Some((_, bytes)) = answer else { break };
            let Some(answer) = Answer::parse(bytes).ok_or(Error::DAMAGED)? else { break };
            let is_next = match &passed {
                None => self.is_current(catalog, index, answer.catalog).await?,
                // A leaf that was split or merged meanwhile would leave a gap.
                Some(rest) => {
                    let at = rest.as_ref().map(OwnedPoint::point);
                    at.is_some() && at == *begin && self.is_kept(catalog, answer.catalog)
                }
            };
            if !is_next {
                break;
            }
            if entries.is_empty() {
                entries = answer.entries;
            } else {
                entries.extend(answer.entries);
            }
            passed = Some(answer.rest);
            if entries.len() >= most {
                break;
            }
        }
        let Some(mut rest) = passed else { return Ok(None) };
        if entries.len() > most {
            entries.truncate(most);
            rest = entries.last().map(|(last, _)| order.behind(*last));
        }
        if let [_, .., (last, _)] = &entries[..] {
            self.objects.state(|state| state.keep_entry(index.number, *last));
        }
        let rest = behind(range, order, rest)?;
        Ok(Some(Page { found: self.found(index, &entries).await?, rest }))
    }

    /// Returns true if the client has this catalog as that of a copy with this version.
    fn is_kept(&self, catalog: &Arc<Catalog>, (copy, version): (u8, Version)) -> bool {
        self.objects.state(|state| {
            let kept = state.copied(copy);
            kept.is_some_and(|(kept, of)| of == version && Arc::ptr_eq(&kept, catalog))
        })
    }

    /// Returns true if the index is that of a copy of the catalog with this version, which the
    /// client reads if it has not done so.
    async fn is_current(
        &self,
        catalog: &Arc<Catalog>,
        index: &Definition,
        (copy, version): (u8, Version),
    ) -> Result<bool, Error> {
        if self.is_kept(catalog, (copy, version)) {
            return Ok(true);
        }
        let read = self.objects.read(&[(self.nodes, &catalog_key(copy))]).await?;
        let read = read.into_iter().next().flatten().filter(|read| read.0 == version);
        self.has_index(index.number, (catalog, copy), read)
    }

    /// Returns the objects of some entries of an index that have the index keys. Reads those that
    /// no entry has, and removes some of the entries without objects.
    async fn found(&self, index: &Definition, entries: &[Entry<'_>]) -> Result<Vec<Found>, Error> {
        let missing = entries.iter().filter(|(_, object)| object.is_none());
        let keys: Vec<(TableId, &[u8])> =
            missing.map(|(point, _)| (self.table, point.object)).collect();
        let read = if keys.is_empty() { Vec::new() } else { self.objects.read(&keys).await? };
        let mut read = read.into_iter();
        let (mut found, mut stale) = (Vec::with_capacity(entries.len()), Vec::new());
        for (point, object) in entries {
            let object = match object {
                Some((version, value)) => Some((*version, value.to_vec())),
                None => read.next().flatten(),
            };
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
        if self.is_kept(known, (copy, version)) {
            return Ok(true);
        }
        let catalog = Catalog::parse(&bytes).ok_or(Error::DAMAGED)?;
        let has_index = catalog.numbered(number).is_some();
        self.objects.state(|state| state.learn(copy, catalog, version));
        Ok(has_index)
    }
}

/// Returns the rest of a range behind what a look-up has passed.
fn behind(range: &Range, order: Order, passed: Option<OwnedPoint>) -> Result<Option<Range>, Error> {
    // Entries that have no order lead nowhere.
    passed.map(|point| range.beyond(order, point).ok_or(Error::DAMAGED)).transpose()
}
