//! The way from the root to the leaves, and the splits and merges of nodes on it.
//!
//! ```text
//!  split   parent   …│a│…  ─►  …│a│b│…         merge   parent   …│a│b│…  ─►  …│a│…
//!                     a         a, b                             a, b         a
//! ```
//!
//! Invariant: each split or merge is one transaction, which leaves a whole tree. It commits only if
//! the nodes that it changes are as they were read.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::array;

use super::error::Error;
use super::state::{Copied, State};
use super::{Indexes, Objects, Seen};
use crate::btree::catalog::Catalog;
use crate::btree::node::{Entry, Goal, Node, Point, emit};
use crate::btree::{COPIES, NodeId, ROOT, catalog_key, node_key};
use crate::client::{self, Change, TransactionPart};
use crate::message::data::RejectRules;
use crate::types::{TableId, Version};

/// The number of times that a client goes from the root again before it pauses in between.
const HASTY: u32 = 3;

/// The rule for an object that must not exist.
pub(super) const ABSENT: RejectRules = RejectRules {
    given_version: Version(0),
    doesnt_exist: false,
    exists: true,
    version_le_given: false,
    version_ne_given: false,
};

/// Returns the rules for an object that must have this version, 0 if it must not exist.
pub(super) fn unchanged(version: Version) -> RejectRules {
    if version == Version(0) {
        return ABSENT;
    }
    RejectRules {
        given_version: version,
        doesnt_exist: true,
        version_ne_given: true,
        ..RejectRules::default()
    }
}

/// Returns the error of an index that does not exist, by its name in the catalog that was kept.
fn no_index(kept: Option<Arc<Catalog>>, number: u8) -> Error {
    let name = kept.and_then(|catalog| Some(catalog.numbered(number)?.name.clone()));
    Error::NoIndex(name.unwrap_or_default())
}

/// A node that was read, and parsed then.
#[derive(Clone, Debug)]
pub(super) struct Read {
    pub(super) id: NodeId,
    pub(super) version: Version,
    pub(super) bytes: Arc<Vec<u8>>,
}

impl Read {
    pub(super) fn node(&self) -> Result<Node<'_>, Error> {
        Node::known(&self.bytes).ok_or(Error::DAMAGED)
    }
}

/// A node as a read has it, for all ways that lead to it.
type Shared = (Version, Arc<Vec<u8>>);

/// The way to the leaf that has a goal.
pub(super) struct Way<'p> {
    index: u8,
    goal: Goal<'p>,
    /// The nodes that the way has passed.
    passed: Vec<NodeId>,
    at: u64,
    /// The level of the last node. The next one is lower.
    level: u8,
    /// True if the last node is a leaf, as far as the client knows.
    is_at_leaf: bool,
    /// True if the way has come to its end.
    is_over: bool,
    leaf: Option<Read>,
}

impl<'p> Way<'p> {
    pub(super) fn new(index: u8, goal: Goal<'p>) -> Self {
        let (passed, level) = (Vec::new(), u8::MAX);
        let (is_at_leaf, is_over, leaf) = (false, false, None);
        Self { index, goal, passed, at: ROOT, level, is_at_leaf, is_over, leaf }
    }

    /// Returns the last node of the way: the leaf, as far as the client knows that.
    pub(super) fn id(&self) -> NodeId {
        (self.index, self.at)
    }

    /// Returns true if the last node is the leaf, as far as the client knows.
    pub(super) fn is_at_leaf(&self) -> bool {
        self.is_at_leaf
    }

    /// Returns the parent of the leaf, if the client keeps that.
    pub(super) fn parent(&self) -> Option<NodeId> {
        self.passed.last().copied().filter(|_| self.level == 1)
    }

    /// Goes past the nodes that the client keeps.
    fn descend(&mut self, state: &State) {
        while let Some(bytes) = state.node(self.id())
            && Node::known(bytes).is_some_and(|node| self.pass(&node))
        {}
        self.is_at_leaf = self.level == 1 || self.at == ROOT && state.is_lone(self.index);
    }

    /// Goes to the child of a node above the leaves. Returns false if the node is not on the way.
    fn pass(&mut self, node: &Node<'_>) -> bool {
        if !self.goal.is_in(node) || node.level >= self.level {
            return false;
        }
        self.passed.push(self.id());
        self.level = node.level;
        self.at = node.entry(self.goal.child_in(node)).child;
        true
    }

    /// Goes back to the root, and forgets the nodes that led elsewhere.
    fn again(&mut self, state: &mut State) {
        self.passed.iter().for_each(|&id| state.forget(id));
        state.forget(self.id());
        *self = Self::new(self.index, self.goal);
    }
}

impl<O: Objects> Indexes<'_, O> {
    /// Returns the catalog, as the client keeps it or as it is.
    pub(super) async fn catalog(&self) -> Result<Arc<Catalog>, Error> {
        match self.objects.state(|state| state.catalog()) {
            Some(catalog) => Ok(catalog),
            None => Ok(self.copied(self.copy()).await?.0),
        }
    }

    /// Returns the catalog with its version in a copy, as the client keeps them or as they are.
    pub(super) async fn copied(&self, copy: u8) -> Result<Copied, Error> {
        if let Some(copied) = self.objects.state(|state| state.copied(copy)) {
            return Ok(copied);
        }
        let read = self.objects.read(&[(self.nodes, &catalog_key(copy))]).await?;
        let (catalog, version) = match read.first() {
            Some(Some((version, bytes))) => {
                (Catalog::parse(bytes).ok_or(Error::DAMAGED)?, *version)
            }
            _ => (Catalog::default(), Version(0)),
        };
        Ok(self.objects.state(|state| state.learn(copy, catalog, version)))
    }

    /// Returns a copy of the catalog on the server that has an object, or the one that the client
    /// uses otherwise.
    pub(super) fn copy_near(&self, table: TableId, key: &[u8]) -> u8 {
        // Clients begin with different copies, so that those of a server share the load.
        let first = self.copy();
        let copy = |i: usize| (first + i as u8) % COPIES;
        let keys: [[u8; 2]; COPIES as usize] = array::from_fn(|i| catalog_key(copy(i)));
        let all = keys.each_ref().map(|key| (self.nodes, &key[..]));
        self.objects.nearest((table, key), &all).map_or(first, copy)
    }

    /// Returns the way to a goal, as far as the client keeps the nodes on it.
    pub(super) fn way<'g>(&self, index: u8, goal: Goal<'g>) -> Way<'g> {
        let mut way = Way::new(index, goal);
        self.objects.state(|state| way.descend(state));
        way
    }

    /// Returns the copy of the catalog that the client uses if none is near.
    pub(super) fn copy(&self) -> u8 {
        if let Some(copy) = self.objects.state(|state| state.copy) {
            return copy;
        }
        let random = (self.objects.random() % u64::from(COPIES)) as u8;
        self.objects.state(|state| *state.copy.get_or_insert(random))
    }

    /// Reads the leaves of some points, each with the number of its index.
    pub(super) async fn leaves(&self, points: &[(u8, Point<'_>)]) -> Result<Vec<Read>, Error> {
        let ways = points.iter().map(|&(index, point)| Way::new(index, Goal::At(point)));
        Ok(self.leaves_of(ways.collect(), &[]).await?.0)
    }

    /// Reads the leaves of some ways, and other objects at the same time.
    pub(super) async fn leaves_of(
        &self,
        mut ways: Vec<Way<'_>>,
        others: &[(TableId, &[u8])],
    ) -> Result<(Vec<Read>, Vec<Option<Seen>>), Error> {
        let seen = self.go(&mut ways, others, true).await?;
        Ok((ways.into_iter().filter_map(|way| way.leaf).collect(), seen))
    }

    /// Finds the leaves of some points, each with the number of its index, without reading them: a
    /// leaf may have lost its point since. Reads other objects at the same time as the nodes that
    /// the client does not keep.
    pub(super) async fn find(
        &self,
        points: &[(u8, Point<'_>)],
        others: &[(TableId, &[u8])],
    ) -> Result<(Vec<NodeId>, Vec<Option<Seen>>), Error> {
        let ways = points.iter().map(|&(index, point)| Way::new(index, Goal::At(point)));
        let mut ways: Vec<Way<'_>> = ways.collect();
        let seen = self.go(&mut ways, others, false).await?;
        Ok((ways.iter().map(Way::id).collect(), seen))
    }

    /// Goes some ways to their leaves, and reads these if `reads_leaves`.
    async fn go(
        &self,
        ways: &mut [Way<'_>],
        others: &[(TableId, &[u8])],
        reads_leaves: bool,
    ) -> Result<Vec<Option<Seen>>, Error> {
        let mut seen = Vec::new();
        let mut tries = 0;
        loop {
            self.objects.state(|state| {
                let open = ways.iter_mut().filter(|way| !way.is_over);
                open.for_each(|way| way.descend(state));
            });
            for way in ways.iter_mut().filter(|way| way.is_at_leaf) {
                way.is_over |= !reads_leaves;
            }
            let open = ways.iter().filter(|way| !way.is_over);
            let mut ids: Vec<NodeId> = open.map(Way::id).collect();
            ids.sort_unstable();
            ids.dedup();
            let others = if tries == 0 { others } else { &[] };
            if ids.is_empty() && others.is_empty() {
                break;
            }
            let keys: Vec<[u8; 10]> = ids.iter().map(|&id| node_key(id)).collect();
            let keys = keys.iter().map(|key| (self.nodes, &key[..]));
            let reads: Vec<(TableId, &[u8])> = keys.chain(others.iter().copied()).collect();
            let mut nodes = self.objects.read(&reads).await?;
            seen.extend(nodes.split_off(ids.len().min(nodes.len())));
            let share = |(version, bytes)| (version, Arc::new(bytes));
            let nodes: Vec<Option<Shared>> =
                nodes.into_iter().map(|node| node.map(share)).collect();
            let mut lost = false;
            for way in ways.iter_mut().filter(|way| !way.is_over) {
                let node = ids.binary_search(&way.id()).ok().and_then(|place| nodes.get(place));
                lost |= !self.step(way, node.and_then(Option::as_ref))?;
            }
            tries += 1;
            if lost && tries > HASTY {
                self.check_indexes(ways).await?;
                self.objects.pause(tries).await?;
            }
        }
        Ok(seen)
    }

    /// Checks that the indexes of ways that have no leaf yet exist. The root of a dropped index may
    /// be left when nodes below it are gone.
    async fn check_indexes(&self, ways: &[Way<'_>]) -> Result<(), Error> {
        let kept = self.objects.state(State::take_catalog);
        let catalog = self.catalog().await?;
        let mut numbers = ways.iter().filter(|way| !way.is_over).map(|way| way.index);
        let Some(gone) = numbers.find(|&number| catalog.numbered(number).is_none()) else {
            return Ok(());
        };
        Err(no_index(kept, gone))
    }

    /// Takes the next node of a way. Returns false if it is not on the way any more.
    fn step(&self, way: &mut Way<'_>, read: Option<&Shared>) -> Result<bool, Error> {
        let Some((version, bytes)) = read else {
            if way.at == ROOT {
                // The index was dropped, unless the catalog is out of date.
                let kept = self.objects.state(State::take_catalog);
                return Err(no_index(kept, way.index));
            }
            self.objects.state(|state| way.again(state));
            return Ok(false);
        };
        let node = Node::parse(bytes).ok_or(Error::DAMAGED)?;
        if node.level > 0 {
            let id = way.id();
            if way.pass(&node) {
                self.objects.state(|state| state.keep(id, Arc::clone(bytes)));
                return Ok(true);
            }
        } else if way.goal.is_in(&node) {
            if way.at == ROOT {
                self.objects.state(|state| state.keep_lone(way.index));
            }
            way.leaf = Some(Read { id: way.id(), version: *version, bytes: Arc::clone(bytes) });
            way.is_over = true;
            return Ok(true);
        }
        self.objects.state(|state| way.again(state));
        Ok(false)
    }

    /// Reads all nodes from the root to the leaf of a point. `None`: they have changed meanwhile.
    async fn path(&self, index: u8, point: Point<'_>) -> Result<Option<Vec<Read>>, Error> {
        let mut path = Vec::new();
        let mut way = Way::new(index, Goal::At(point));
        loop {
            let id = way.id();
            let read = self.objects.read(&[(self.nodes, &node_key(id))]).await?;
            // Also if it is gone: another way would lead through it again.
            self.objects.state(|state| state.forget(id));
            let Some(Some((version, bytes))) = read.into_iter().next() else { return Ok(None) };
            let node = Node::parse(&bytes).ok_or(Error::DAMAGED)?;
            let is_leaf = node.level == 0;
            if !(if is_leaf { node.contains(point) } else { way.pass(&node) }) {
                return Ok(None);
            }
            path.push(Read { id, version, bytes: bytes.into() });
            if is_leaf {
                return Ok(Some(path));
            }
        }
    }

    /// Commits changes of nodes. Returns false after a conflict: the tree has changed.
    async fn commit_nodes(
        &self,
        changes: &[(NodeId, Version, Option<Vec<u8>>)],
    ) -> Result<bool, Error> {
        let keys: Vec<[u8; 10]> = changes.iter().map(|change| node_key(change.0)).collect();
        let parts: Vec<TransactionPart<'_>> = changes
            .iter()
            .zip(&keys)
            .map(|((_, version, bytes), key)| {
                let change = bytes.as_ref().map_or(Change::Remove, |b| Change::Write(b, None));
                TransactionPart { table: self.nodes, key, rules: unchanged(*version), change }
            })
            .collect();
        match self.objects.commit(&parts).await {
            Ok(_) => Ok(true),
            Err(client::Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Splits a node on the way to a point: the leaf if its parent has room for one more child, or
    /// the lowest node above whose parent has. The next tries split those below.
    pub(super) async fn split(
        &self,
        index: u8,
        point: Point<'_>,
        most: usize,
    ) -> Result<(), Error> {
        let Some(path) = self.path(index, point).await? else { return Ok(()) };
        let mut nodes = Vec::with_capacity(path.len());
        for read in &path {
            nodes.push(read.node()?);
        }
        let mut place = nodes.len() - 1;
        // What the middle of a node adds to its parent is not known yet: its longest entry may be.
        while place > 0 && path[place - 1].bytes.len() > most && nodes[place - 1].len() > 3 {
            place -= 1;
        }
        let node = nodes[place];
        // Another client may have split it meanwhile.
        let has_room = node.level == 0 && path[place].bytes.len() + point.entry_len() <= most;
        if node.len() < 2 || has_room {
            return Ok(());
        }
        let (first, separator, second) = node.halves(point);
        let new = (index, self.objects.random() | 1);
        let Read { id, version, .. } = path[place];
        let entry = |point, child| Entry { point, child };
        let absent = Version(0);
        if place == 0 {
            let other = (index, self.objects.random() & !1 | 2);
            let entries = [entry(node.start, other.1), entry(separator, new.1)];
            let root = emit(node.level + 1, node.start, node.end, entries.into_iter());
            let (root, first) = ((id, version, Some(root)), (other, absent, Some(first)));
            self.commit_nodes(&[root, first, (new, absent, Some(second))]).await?;
            return Ok(());
        }
        let parent = nodes[place - 1].with(entry(separator, new.1)).ok_or(Error::DAMAGED)?;
        let Read { id: above, version: above_version, .. } = path[place - 1];
        self.commit_nodes(&[
            (id, version, Some(first)),
            (new, absent, Some(second)),
            (above, above_version, Some(parent)),
        ])
        .await?;
        Ok(())
    }

    /// Merges nodes on the way to a point that have become small, as far as that is possible.
    pub(super) async fn merge(
        &self,
        index: u8,
        point: Point<'_>,
        most: usize,
    ) -> Result<(), Error> {
        while self.merge_one(index, point, most).await? {}
        Ok(())
    }

    /// Merges the lowest node on the way to a point that is small, with a neighbour of the same
    /// parent: the first of them takes the range of both. A root with one child takes its place.
    /// Returns false if there was nothing to do.
    async fn merge_one(&self, index: u8, point: Point<'_>, most: usize) -> Result<bool, Error> {
        let Some(path) = self.path(index, point).await? else { return Ok(false) };
        for place in (1..path.len()).rev() {
            let (above, read) = (&path[place - 1], &path[place]);
            let (parent, node) = (above.node()?, read.node()?);
            if read.bytes.len() > most / 4 && node.len() > 1 {
                return Ok(false);
            }
            let changed = (above.id, above.version);
            if parent.len() == 1 && place == 1 {
                let root = (changed.0, changed.1, Some(read.bytes.to_vec()));
                return self.commit_nodes(&[root, (read.id, read.version, None)]).await;
            }
            if parent.len() == 1 {
                continue;
            }
            let at = parent.child_of(point);
            let beside = if at > 0 { at - 1 } else { 1 };
            let id = (index, parent.entry(beside).child);
            let other = self.objects.read(&[(self.nodes, &node_key(id))]).await?;
            let Some(Some((version, bytes))) = other.into_iter().next() else { return Ok(false) };
            if bytes.len() + read.bytes.len() > most && node.len() > 0 {
                return Ok(false);
            }
            Node::parse(&bytes).ok_or(Error::DAMAGED)?;
            let other = Read { id, version, bytes: bytes.into() };
            let (first, second) = if at > 0 { (&other, read) } else { (read, &other) };
            let (left, right) = (first.node()?, second.node()?);
            if (left.level, left.end) != (right.level, Some(right.start)) {
                // One of them has changed since the other was read.
                return Ok(false);
            }
            let entries = left.entries().chain(right.entries());
            let merged = emit(left.level, left.start, right.end, entries);
            let gone = parent.entry(at.max(beside)).point;
            let parent = parent.without(gone).ok_or(Error::DAMAGED)?;
            return self
                .commit_nodes(&[
                    (first.id, first.version, Some(merged)),
                    (second.id, second.version, None),
                    (changed.0, changed.1, Some(parent)),
                ])
                .await;
        }
        Ok(false)
    }
}
