//! The edits of leaves that go with a change of one object, as a server makes them that has all
//! nodes.
//!
//! ```text
//!  catalog ─► index keys of the object before and after ─► from each root to the leaves ─► edits
//! ```
//!
//! Invariant: bytes that are no nodes lead to a refusal, and never to a panic or to much work.

use alloc::vec::Vec;

use super::catalog::{self, Row};
use super::edit::edited;
use super::node::{Node, Point};
use super::{NodeId, ROOT, node_key};
use crate::message::Status;
use crate::objects::cache;
use crate::types::{MAX_INDEX_KEY, MAX_INDEXES};

/// The most leaves of a change: an old entry and a new one in each index.
pub(crate) const MOST_LEAVES: usize = 2 * MAX_INDEXES;

/// The nodes of a table's indexes that a server has. Their status [`Status::OtherLeaf`] means that
/// a node is not there.
pub(crate) trait Nodes<'a> {
    /// The place of a node.
    type Place;

    /// Returns a node, which is not known to be one: its place and its bytes.
    fn node(&self, key: &[u8]) -> Result<(Self::Place, &'a [u8]), Status>;

    /// Checks that a leaf may change.
    fn check(&self, leaf: &Self::Place) -> Result<(), Status>;
}

/// An object that changes: its key, and its value before and after. `None`: it does not exist then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) before: Option<&'a [u8]>,
    pub(crate) after: Option<&'a [u8]>,
}

/// A leaf after its edits.
pub(crate) struct Edited<P> {
    pub(crate) key: [u8; 10],
    pub(crate) place: P,
    pub(crate) bytes: Vec<u8>,
}

/// A leaf and its edits.
struct Leaf<'a, P> {
    id: NodeId,
    place: P,
    bytes: &'a [u8],
    node_bytes: usize,
    edits: Vec<(Point<'a>, bool)>,
}

/// Returns the leaves that change with an object of a table with this catalog. Reads leaves of
/// `most_bytes` at most.
///
/// # Errors
/// [`Status::OtherLeaf`] if a node on the way to a leaf is not there or is none, if the catalog is
/// malformed, if an index key is too long, or if a leaf would become too large or too small. Those
/// of `nodes`.
pub(crate) fn changed<'a, N: Nodes<'a>>(
    nodes: &N,
    catalog: &[u8],
    object: Object<'a>,
    most_bytes: usize,
) -> Result<Vec<Edited<N::Place>>, Status> {
    let (_, rows) = catalog::rows(catalog).ok_or(Status::OtherLeaf)?;
    let mut leaves = Vec::new();
    for row in rows {
        plan(nodes, &row.ok_or(Status::OtherLeaf)?, object, &mut leaves)?;
    }
    let sum: usize = leaves.iter().map(|leaf| leaf.bytes.len()).sum();
    if leaves.len() > MOST_LEAVES || sum > most_bytes {
        return Err(Status::OtherLeaf);
    }
    leaves.iter().for_each(|leaf| cache::load(leaf.bytes));
    let mut changed = Vec::with_capacity(leaves.len());
    for Leaf { id, place, bytes, node_bytes, edits } in leaves {
        let least = if id.1 == ROOT { 0 } else { node_bytes / 4 };
        if let Some(bytes) = edited(bytes, edits, least, node_bytes)? {
            changed.push(Edited { key: node_key(id), place, bytes });
        }
    }
    Ok(changed)
}

/// Plans the edits in one index.
fn plan<'a, N: Nodes<'a>>(
    nodes: &N,
    row: &Row<'_>,
    object: Object<'a>,
    leaves: &mut Vec<Leaf<'a, N::Place>>,
) -> Result<(), Status> {
    let Object { key, before, after } = object;
    let point = |value: &'a [u8]| {
        row.source.key_of(key, value).map(|index_key| Point { key: index_key, object: key })
    };
    let new = after.and_then(point);
    if new.is_some_and(|new| new.key.len() > MAX_INDEX_KEY) {
        return Err(Status::OtherLeaf);
    }
    // An object that was there before its index may have a key that is too long for it.
    let old = before.and_then(point).filter(|old| old.key.len() <= MAX_INDEX_KEY);
    if old == new && row.is_ready {
        return Ok(());
    }
    let gone = old.filter(|old| Some(*old) != new).map(|old| (old, false));
    for (point, add) in gone.into_iter().chain(new.map(|new| (new, true))) {
        let (id, place, bytes) = leaf(nodes, row.number, point)?;
        match leaves.iter_mut().find(|leaf| leaf.id == id) {
            Some(leaf) => leaf.edits.push((point, add)),
            None => {
                let (node_bytes, edits) = (row.node_bytes as usize, Vec::from([(point, add)]));
                leaves.push(Leaf { id, place, bytes, node_bytes, edits });
            }
        }
    }
    Ok(())
}

/// Goes from the root of an index to the leaf of a point.
fn leaf<'a, N: Nodes<'a>>(
    nodes: &N,
    index: u8,
    point: Point<'_>,
) -> Result<(NodeId, N::Place, &'a [u8]), Status> {
    let (mut id, mut above) = ((index, ROOT), u8::MAX);
    loop {
        let (place, bytes) = nodes.node(&node_key(id))?;
        let node = Node::known(bytes).filter(|node| node.contains(point));
        let node = node.ok_or(Status::OtherLeaf)?;
        if node.level == 0 {
            nodes.check(&place)?;
            return Ok((id, place, bytes));
        }
        if node.level >= above || node.len() == 0 {
            return Err(Status::OtherLeaf);
        }
        (id.1, above) = (node.entry(node.child_of(point)).child, node.level);
    }
}
