//! The edits of leaves that go with a change of one object, as a server makes them that has all
//! nodes.
//!
//! ```text
//!  catalog ─► index keys of the object before and after ─► from each root to the leaves ─► edits
//! ```
//!
//! A leaf and an object are often not in the processor's cache, and the nodes above the leaves are.
//! So the ways end above the leaves, and all that is known to be needed is loaded at once.
//!
//! Invariant: bytes that are no nodes lead to a refusal, and never to a panic or to much work.

use alloc::vec::Vec;
use core::ops::Range;

use arrayvec::ArrayVec;

use super::catalog::{self, Row};
use super::edit::edit;
use super::node::{Node, Point};
use super::{NodeId, ROOT, node_key};
use crate::message::Status;
use crate::objects::cache;
use crate::types::{MAX_INDEX_KEY, MAX_INDEXES};

/// The most leaves of a change: an old entry and a new one in each index.
pub(crate) const MOST_LEAVES: usize = 2 * MAX_INDEXES;

/// The nodes of a table's indexes that a server has.
pub(crate) trait Nodes<'a> {
    /// The place of a node.
    type Place;

    /// Loads what [`Nodes::node`] needs for these nodes.
    fn expect(&self, keys: impl Iterator<Item = [u8; 10]>);

    /// Returns an object that should be a node: its place and its bytes.
    ///
    /// # Errors
    /// [`Status::OtherLeaf`]: it is not there.
    fn node(&self, key: &[u8]) -> Result<(Self::Place, &'a [u8]), Status>;

    /// Checks that a leaf may change.
    ///
    /// # Errors
    /// The refusal.
    fn check(&self, leaf: &Self::Place) -> Result<(), Status>;
}

/// A leaf after its edits.
pub(crate) struct Edited<P> {
    pub(crate) key: [u8; 10],
    pub(crate) place: P,
    /// The place of its bytes among those of all edited leaves.
    pub(crate) bytes: Range<usize>,
}

/// The points of an object in an index before and after a change, each with its leaf.
struct Move<'a> {
    row: Row<'a>,
    old: Option<(Point<'a>, NodeId)>,
    new: Option<(Point<'a>, NodeId)>,
}

/// The leaves that change with an object.
pub(crate) struct Plan<'a> {
    key: &'a [u8],
    moves: Vec<Move<'a>>,
}

/// A leaf and its edits.
struct Leaf<'a, P> {
    id: NodeId,
    place: P,
    bytes: &'a [u8],
    node_bytes: usize,
    edits: ArrayVec<(Point<'a>, bool), 2>,
}

impl<'a> Plan<'a> {
    /// Plans a change of the object `key`, which has the value `after` then, in the indexes of this
    /// catalog. `None`: the object is removed.
    ///
    /// # Errors
    /// [`Status::OtherLeaf`] if a node on the way to a leaf is not there or is none, if the catalog
    /// is malformed, or if an index key is too long.
    pub(crate) fn new(
        nodes: &impl Nodes<'a>,
        catalog: &'a [u8],
        key: &'a [u8],
        after: Option<&'a [u8]>,
    ) -> Result<Self, Status> {
        let (_, rows) = catalog::rows(catalog).ok_or(Status::OtherLeaf)?;
        let mut moves = Vec::new();
        for row in rows {
            let row = row.ok_or(Status::OtherLeaf)?;
            let new = after.and_then(|value| row.point(key, value));
            if new.is_some_and(|new| new.key.len() > MAX_INDEX_KEY) {
                return Err(Status::OtherLeaf);
            }
            let new = new.map(|new| lead(nodes, row.number, new)).transpose()?;
            if moves.len() == MAX_INDEXES {
                return Err(Status::OtherLeaf);
            }
            moves.push(Move { row, old: None, new });
        }
        Ok(Self { key, moves })
    }

    /// Returns the keys of the leaves that get entries, unless the object has them.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = [u8; 10]> {
        self.moves.iter().filter_map(|it| Some(node_key(it.new?.1)))
    }

    /// Appends the leaves that change to `out`. `before` is the value of the object before the
    /// change, `None` if it does not exist. Reads leaves of `most` bytes at most.
    ///
    /// # Errors
    /// [`Status::OtherLeaf`] as [`Plan::new`], and if a leaf would become too large or too small.
    /// Those of [`Nodes::check`].
    pub(crate) fn edit<N: Nodes<'a>>(
        mut self,
        nodes: &N,
        before: Option<&'a [u8]>,
        most: usize,
        out: &mut Vec<u8>,
    ) -> Result<Vec<Edited<N::Place>>, Status> {
        for Move { row, old, new } in &mut self.moves {
            let point = before.and_then(|value| row.point(self.key, value));
            // An object that was there before its index may have a key that is too long for it.
            let point = point.filter(|old| old.key.len() <= MAX_INDEX_KEY);
            if point == new.map(|(new, _)| new) {
                *new = new.filter(|_| !row.is_ready);
            } else {
                *old = point.map(|old| lead(nodes, row.number, old)).transpose()?;
            }
        }
        nodes.expect(self.moves.iter().filter_map(|it| Some(node_key(it.old?.1))));
        let mut leaves = Vec::<Leaf<'_, N::Place>>::with_capacity(2 * self.moves.len());
        for Move { row, old, new } in self.moves {
            let edits = old.into_iter().map(|old| (old, false));
            for ((point, id), add) in edits.chain(new.map(|new| (new, true))) {
                if let Some(leaf) = leaves.iter_mut().find(|leaf| leaf.id == id) {
                    leaf.edits.push((point, add));
                    continue;
                }
                let (place, bytes) = nodes.node(&node_key(id))?;
                nodes.check(&place)?;
                let (node_bytes, edits) = (row.node_bytes as usize, [(point, add)]);
                let edits = edits.into_iter().collect();
                leaves.push(Leaf { id, place, bytes, node_bytes, edits });
            }
        }
        if leaves.iter().map(|leaf| leaf.bytes.len()).sum::<usize>() > most {
            return Err(Status::OtherLeaf);
        }
        leaves.iter().for_each(|leaf| cache::load(leaf.bytes));
        let mut edited = Vec::with_capacity(leaves.len());
        for Leaf { id, place, bytes, node_bytes, mut edits } in leaves {
            let least = if id.1 == ROOT { 0 } else { node_bytes / 4 };
            let begin = out.len();
            if edit(bytes, &mut edits, (least, node_bytes), out)? {
                edited.push(Edited { key: node_key(id), place, bytes: begin..out.len() });
            }
        }
        Ok(edited)
    }
}

impl<'a> Row<'a> {
    /// Returns the point of an object in the index.
    fn point(&self, key: &'a [u8], value: &'a [u8]) -> Option<Point<'a>> {
        Some(Point { key: self.source.key_of(key, value)?, object: key })
    }
}

/// Goes from the root of an index to the leaf of a point, which is not read: it has its own range.
fn lead<'a>(
    nodes: &impl Nodes<'a>,
    index: u8,
    point: Point<'a>,
) -> Result<(Point<'a>, NodeId), Status> {
    let (mut id, mut above) = ((index, ROOT), u8::MAX);
    loop {
        let (_, bytes) = nodes.node(&node_key(id))?;
        let node = Node::known(bytes).ok_or(Status::OtherLeaf)?;
        if node.level == 0 {
            return Ok((point, id));
        }
        if node.level >= above || node.len() == 0 {
            return Err(Status::OtherLeaf);
        }
        (id.1, above) = (node.entry(node.child_of(point)).child, node.level);
        if above == 1 {
            return Ok((point, id));
        }
    }
}
