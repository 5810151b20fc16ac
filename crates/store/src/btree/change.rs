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

/// The most bytes of a node above the leaves that are loaded before a search in it.
const MOST_LOADED: usize = 4096;

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

/// An object that changes: its key, and its value before and after. `None`: it does not exist then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) before: Option<&'a [u8]>,
    pub(crate) after: Option<&'a [u8]>,
}

/// An edit of a leaf: the point of an entry, and true if it is added.
type Edit<'a> = (Point<'a>, bool);

/// An edit, with its leaf and the size of a full node of the index.
type Led<'a> = (Edit<'a>, NodeId, usize);

/// A leaf and its edits.
struct Leaf<'a, P> {
    id: NodeId,
    place: P,
    bytes: &'a [u8],
    node_bytes: usize,
    edits: ArrayVec<Edit<'a>, 2>,
}

/// Appends the leaves to `out` that change with an object of a table with this catalog. Reads leaves
/// of `most` bytes at most.
///
/// # Errors
/// [`Status::OtherLeaf`] if a node on the way to a leaf is not there or is none, if the catalog is
/// malformed, if an index key is too long, or if a leaf would become too large or too small. Those
/// of [`Nodes::check`].
pub(crate) fn change<'a, N: Nodes<'a>>(
    nodes: &N,
    catalog: &[u8],
    object: Object<'a>,
    most: usize,
    out: &mut Vec<u8>,
) -> Result<Vec<Edited<N::Place>>, Status> {
    let (_, rows) = catalog::rows(catalog).ok_or(Status::OtherLeaf)?;
    let mut edits = Vec::new();
    for row in rows {
        plan(nodes, &row.ok_or(Status::OtherLeaf)?, object, &mut edits)?;
    }
    if edits.len() > MOST_LEAVES {
        return Err(Status::OtherLeaf);
    }
    nodes.expect(edits.iter().map(|(_, id, _)| node_key(*id)));
    let mut leaves = Vec::<Leaf<'_, N::Place>>::with_capacity(edits.len());
    for (edit, id, node_bytes) in edits {
        if let Some(leaf) = leaves.iter_mut().find(|leaf| leaf.id == id) {
            leaf.edits.try_push(edit).map_err(|_| Status::OtherLeaf)?;
            continue;
        }
        let (place, bytes) = nodes.node(&node_key(id))?;
        nodes.check(&place)?;
        leaves.push(Leaf { id, place, bytes, node_bytes, edits: [edit].into_iter().collect() });
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

/// Plans the edits in one index, and finds their leaves.
fn plan<'a, N: Nodes<'a>>(
    nodes: &N,
    row: &Row<'_>,
    Object { key, before, after }: Object<'a>,
    edits: &mut Vec<Led<'a>>,
) -> Result<(), Status> {
    let new = after.and_then(|value| row.point(key, value));
    if new.is_some_and(|new| new.key.len() > MAX_INDEX_KEY) {
        return Err(Status::OtherLeaf);
    }
    let old = before.and_then(|value| row.point(key, value));
    // An object that was there before its index may have a key that is too long for it.
    let old = old.filter(|old| old.key.len() <= MAX_INDEX_KEY);
    if old == new && row.is_ready {
        return Ok(());
    }
    let gone = old.filter(|old| Some(*old) != new).map(|old| (old, false));
    for edit in gone.into_iter().chain(new.map(|new| (new, true))) {
        let id = lead(nodes, row.number, edit.0)?;
        edits.push((edit, id, row.node_bytes as usize));
    }
    Ok(())
}

impl Row<'_> {
    /// Returns the point of an object in the index.
    fn point<'a>(&self, key: &'a [u8], value: &'a [u8]) -> Option<Point<'a>> {
        Some(Point { key: self.source.key_of(key, value)?, object: key })
    }
}

/// Goes from the root of an index to the leaf of a point. Reads no leaf but the root: leaves have
/// their own ranges.
fn lead<'a>(nodes: &impl Nodes<'a>, index: u8, point: Point<'_>) -> Result<NodeId, Status> {
    let (mut id, mut above) = ((index, ROOT), u8::MAX);
    loop {
        let (_, bytes) = nodes.node(&node_key(id))?;
        let node = Node::known(bytes).ok_or(Status::OtherLeaf)?;
        if node.level == 0 {
            return Ok(id);
        }
        if node.level >= above || node.len() == 0 {
            return Err(Status::OtherLeaf);
        }
        // A search reads some lines of the cache, one after the other.
        cache::load(bytes.get(..MOST_LOADED).unwrap_or(bytes));
        (id.1, above) = (node.entry(node.child_of(point)).child, node.level);
        if above == 1 {
            return Ok(id);
        }
    }
}
