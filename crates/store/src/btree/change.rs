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

#[cfg(test)]
mod tests {
    use alloc::vec;

    use proptest::prelude::*;

    use super::*;
    use crate::btree::catalog::{Catalog, Definition, Source};
    use crate::btree::node::{Entry, emit};

    /// Nodes with the ids 0, 1 and so on.
    struct Few<'n>(&'n [Vec<u8>]);

    impl<'n> Nodes<'n> for Few<'n> {
        type Place = usize;

        fn expect(&self, keys: impl Iterator<Item = [u8; 10]>) {
            assert!(keys.count() <= MOST_LEAVES);
        }

        fn node(&self, key: &[u8]) -> Result<(usize, &'n [u8]), Status> {
            let place = usize::from(key[9]);
            let bytes = self.0.get(place).filter(|_| key[1..9] == [0; 8]);
            Ok((place, bytes.ok_or(Status::OtherLeaf)?))
        }

        fn check(&self, _: &usize) -> Result<(), Status> {
            Ok(())
        }
    }

    fn catalog(sources: &[Source]) -> Vec<u8> {
        let index = |(number, &source): (usize, &Source)| Definition {
            name: "index".into(),
            source,
            node_bytes: 300,
            is_ready: true,
            number: number as u8,
        };
        let indexes = sources.iter().enumerate().map(index).collect();
        Catalog { indexes, next: sources.len() as u8 }.bytes()
    }

    fn keys(leaf: &[u8]) -> Vec<&[u8]> {
        Node::parse(leaf).expect("an intact leaf").entries().map(|it| it.point.key).collect()
    }

    /// Both entries of an object are in one leaf, which is copied once.
    #[test]
    fn a_leaf_gets_all_edits_of_an_index_at_once() {
        let entries = [b"b", b"d"].map(|key| Entry::leaf(Point { key, object: b"o" }));
        let nodes = [emit(0, Point::FIRST, None, entries.into_iter())];
        let catalog = catalog(&[Source::Bytes { at: 0, len: 1 }]);
        let object = Object { key: b"o", before: Some(b"b"), after: Some(b"c") };
        let mut out = vec![7];
        let edited = change(&Few(&nodes), &catalog, object, 1000, &mut out).unwrap();
        assert_eq!((edited.len(), edited[0].place), (1, 0));
        assert_eq!(keys(&out[edited[0].bytes.clone()]), [b"c", b"d"]);
        // Leaves that are too long in sum are not read.
        let most = nodes[0].len();
        assert!(change(&Few(&nodes), &catalog, object, most, &mut out).is_ok());
        let refused = change(&Few(&nodes), &catalog, object, most - 1, &mut out).err();
        assert_eq!(refused, Some(Status::OtherLeaf));
    }

    #[test]
    fn a_catalog_with_too_many_indexes_is_refused() {
        let nodes = [emit(0, Point::FIRST, None, [].into_iter())];
        let with = |count| {
            let catalog = catalog(&vec![Source::Key; count]);
            // All of one number: a leaf has an entry of an object and loses one.
            let object = Object { key: b"o", before: None, after: Some(b"v") };
            change(&Few(&nodes), &catalog, object, 1000, &mut vec![]).err()
        };
        assert_eq!((with(1), with(MOST_LEAVES + 1)), (None, Some(Status::OtherLeaf)));
    }

    proptest! {
        /// No bytes of nodes or of a catalog make a change panic.
        #[test]
        fn arbitrary_nodes(
            mut nodes in proptest::collection::vec(proptest::collection::vec(0u8..4, 0..60), 1..4),
            bytes in proptest::collection::vec(any::<u8>(), 0..40),
            is_damaged: bool,
        ) {
            let leaf = emit(0, Point::FIRST, None, [].into_iter());
            nodes.push(leaf);
            let intact = catalog(&[Source::Key, Source::Bytes { at: 1, len: 2 }]);
            let catalog = if is_damaged { &bytes } else { &intact };
            for (before, after) in [(None, Some(&bytes[..])), (Some(&bytes[..]), None)] {
                let object = Object { key: b"key", before, after };
                let _ = change(&Few(&nodes), catalog, object, 1 << 20, &mut vec![]);
            }
        }
    }
}
