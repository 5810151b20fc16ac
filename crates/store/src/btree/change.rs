//! The changes of nodes that go with a change of one object, as a server makes them that has all
//! nodes.
//!
//! ```text
//!  catalog ─► index keys of the object before and after ─► from each root to the leaves ─► edits
//!         ─► a leaf that is too large: its halves, and its parent with a child more
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
use super::edit::{Size, edit};
use super::node::{Entry, Node, Point, Splice};
use super::{NodeId, ROOT, node_key};
use crate::message::Status;
use crate::objects::cache;
use crate::types::{MAX_INDEX_KEY, MAX_INDEXES};

/// The most leaves of a change: an old entry and a new one in each index.
pub(crate) const MOST_LEAVES: usize = 2 * MAX_INDEXES;
/// The most nodes that change: each leaf, its other half and its parent.
pub(crate) const MOST_NODES: usize = 3 * MOST_LEAVES;

/// The most levels of a tree. Clients make trees of more only with nodes of a few entries.
const MOST_LEVELS: u8 = 64;
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

    /// Returns the place of a node that does not exist.
    ///
    /// # Errors
    /// [`Status::OtherLeaf`]: it is elsewhere, or exists.
    fn absent(&self, key: &[u8]) -> Result<Self::Place, Status>;

    /// Checks that a node may change.
    ///
    /// # Errors
    /// The refusal.
    fn check(&self, node: &Self::Place) -> Result<(), Status>;

    /// Returns a random number, the same one for each try of a change.
    fn random(&self) -> u64;
}

/// A node after its edits.
pub(crate) struct Edited<P> {
    pub(crate) key: [u8; 10],
    pub(crate) place: P,
    /// The place of its bytes among those of all edited nodes.
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

/// An edit, with the way to its leaf and the size of a full node of the index.
type Led<'a> = (Edit<'a>, Way, usize);

/// A leaf, and its parent unless the leaf is the root.
#[derive(Clone, Copy, Debug)]
struct Way {
    leaf: NodeId,
    parent: Option<NodeId>,
}

/// A leaf and its edits.
struct Leaf<'a, P> {
    way: Way,
    place: P,
    bytes: &'a [u8],
    node_bytes: usize,
    edits: ArrayVec<Edit<'a>, 2>,
}

/// Appends the nodes to `out` that change with an object of a table with this catalog. Reads leaves
/// of `most` bytes at most.
///
/// # Errors
/// [`Status::OtherLeaf`] if a node on the way to a leaf is not there or is none, if the catalog is
/// malformed, if an index key is too long, if a leaf would become too small, or if one would become
/// too large whose split needs that of another node. Those of [`Nodes::check`].
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
        if edits.len() > MOST_LEAVES {
            return Err(Status::OtherLeaf);
        }
    }
    nodes.expect(edits.iter().map(|(_, way, _)| node_key(way.leaf)));
    let mut leaves = Vec::<Leaf<'_, N::Place>>::with_capacity(edits.len());
    for (edit, way, node_bytes) in edits {
        if let Some(leaf) = leaves.iter_mut().find(|leaf| leaf.way.leaf == way.leaf) {
            leaf.edits.try_push(edit).map_err(|_| Status::OtherLeaf)?;
            continue;
        }
        let (place, bytes) = nodes.node(&node_key(way.leaf))?;
        nodes.check(&place)?;
        leaves.push(Leaf { way, place, bytes, node_bytes, edits: [edit].into_iter().collect() });
    }
    if leaves.iter().map(|leaf| leaf.bytes.len()).sum::<usize>() > most {
        return Err(Status::OtherLeaf);
    }
    leaves.iter().for_each(|leaf| cache::load(leaf.bytes));
    let mut edited = Vec::with_capacity(leaves.len());
    for mut leaf in leaves {
        let least = if leaf.way.parent.is_none() { 0 } else { leaf.node_bytes / 4 };
        let begin = out.len();
        match edit(leaf.bytes, &mut leaf.edits, (least, leaf.node_bytes), out)? {
            Size::Same => {}
            Size::Fitting => {
                let (key, place) = (node_key(leaf.way.leaf), leaf.place);
                edited.push(Edited { key, place, bytes: begin..out.len() });
            }
            Size::TooLarge => split(nodes, leaf, begin, out, &mut edited)?,
        }
    }
    Ok(edited)
}

/// Splits a leaf, whose bytes after its edits are in `out` from `begin` on. Its other half gets a
/// new id, and its parent gets the new child.
fn split<'a, N: Nodes<'a>>(
    nodes: &N,
    leaf: Leaf<'_, N::Place>,
    begin: usize,
    out: &mut Vec<u8>,
    edited: &mut Vec<Edited<N::Place>>,
) -> Result<(), Status> {
    let Leaf { way, place, node_bytes, edits, .. } = leaf;
    let whole = out.split_off(begin);
    let node = Node::known(&whole).ok_or(Status::OtherLeaf)?;
    // The parent of the root would be a new root.
    let parent = node_key(way.parent.ok_or(Status::OtherLeaf)?);
    let (above, bytes) = nodes.node(&parent)?;
    nodes.check(&above)?;
    let added = edits.iter().rfind(|(_, add)| *add).ok_or(Status::OtherLeaf)?;
    let (first, separator, second) = node.halves(added.0);
    let new = (way.leaf.0, nodes.random() | 1);
    let other = node_key(new);
    // An index has one leaf that grows. A catalog with an index twice is damaged.
    if edited.iter().any(|it| it.key == parent || it.key == other) {
        return Err(Status::OtherLeaf);
    }
    let halves = [(node_key(way.leaf), place, first), (other, nodes.absent(&other)?, second)];
    for (key, place, half) in halves {
        let has_few = Node::known(&half).is_some_and(|half| half.len() <= 2);
        if half.len() > node_bytes && !has_few {
            return Err(Status::OtherLeaf);
        }
        let begin = out.len();
        out.extend_from_slice(&half);
        edited.push(Edited { key, place, bytes: begin..out.len() });
    }
    let node = Node::known(bytes).filter(|node| node.level == 1 && node.contains(separator));
    // A parent that is full has to be split first.
    let node = node.filter(|_| bytes.len() <= node_bytes).ok_or(Status::OtherLeaf)?;
    let begin = out.len();
    let (at, replaces) = node.search(separator);
    let entry = Some(Entry { point: separator, child: new.1 });
    if replaces {
        return Err(Status::OtherLeaf);
    }
    node.splice(&[Splice { at, replaces, entry }], out).ok_or(Status::OtherLeaf)?;
    edited.push(Edited { key: parent, place: above, bytes: begin..out.len() });
    Ok(())
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
        let way = lead(nodes, row.number, edit.0)?;
        edits.push((edit, way, row.node_bytes as usize));
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
fn lead<'a>(nodes: &impl Nodes<'a>, index: u8, point: Point<'_>) -> Result<Way, Status> {
    let (mut id, mut above, mut parent) = ((index, ROOT), MOST_LEVELS, None);
    loop {
        let (_, bytes) = nodes.node(&node_key(id))?;
        let node = Node::known(bytes).ok_or(Status::OtherLeaf)?;
        if node.level == 0 {
            return Ok(Way { leaf: id, parent });
        }
        if node.level >= above || node.len() == 0 {
            return Err(Status::OtherLeaf);
        }
        // A search reads some lines of the cache, one after the other.
        cache::load(bytes.get(..MOST_LOADED).unwrap_or(bytes));
        parent = Some(id);
        (id.1, above) = (node.entry(node.child_of(point)).child, node.level);
        if above == 1 {
            return Ok(Way { leaf: id, parent });
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

    /// Nodes with the ids 0, 1 and so on, the same ones in each index.
    struct Few<'n>(&'n [Vec<u8>]);

    impl<'n> Nodes<'n> for Few<'n> {
        type Place = usize;

        fn expect(&self, keys: impl Iterator<Item = [u8; 10]>) {
            assert!(keys.count() <= MOST_LEAVES);
        }

        fn node(&self, key: &[u8]) -> Result<(usize, &'n [u8]), Status> {
            let place = usize::from(key[9]);
            let bytes = self.0.get(place).filter(|_| key[2..9] == [0; 7]);
            Ok((place, bytes.ok_or(Status::OtherLeaf)?))
        }

        fn absent(&self, key: &[u8]) -> Result<usize, Status> {
            if self.node(key).is_ok() { Err(Status::OtherLeaf) } else { Ok(usize::MAX) }
        }

        fn check(&self, _: &usize) -> Result<(), Status> {
            Ok(())
        }

        fn random(&self) -> u64 {
            256
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
    fn a_leaf_without_room_is_split_with_its_parent() {
        let point = |key: &'static [u8]| Point { key, object: b"o" };
        let leaf = |keys: &[&'static [u8]], start, end| {
            emit(0, start, end, keys.iter().map(|key| Entry::leaf(point(key))))
        };
        let child = |point, child| Entry { point, child };
        let above = |entries: &[Entry<'_>]| emit(1, Point::FIRST, None, entries.iter().copied());
        let nodes = [
            above(&[child(Point::FIRST, 1), child(point(b"mmmm"), 2)]),
            leaf(&[b"aaaa", b"bbbb", b"gggg"], Point::FIRST, Some(point(b"mmmm"))),
            leaf(&[b"mmmm"], point(b"mmmm"), None),
        ];
        let catalog = |node_bytes| {
            let source = Source::Bytes { at: 0, len: 4 };
            let (name, number) = ("index".into(), 0);
            let index = Definition { name, source, node_bytes, is_ready: true, number };
            Catalog { indexes: vec![index], next: 1 }.bytes()
        };
        let object = Object { key: b"o", before: Some(b"mmmm"), after: Some(b"cccc") };
        let changed = |nodes: &[Vec<u8>], node_bytes| {
            let mut out = vec![];
            let edited = change(&Few(nodes), &catalog(node_bytes), object, 1000, &mut out)?;
            let bytes = |it: &Edited<usize>| (it.key, out[it.bytes.clone()].to_vec());
            Ok::<_, Status>(edited.iter().map(bytes).collect::<Vec<_>>())
        };
        // Nothing would stay in the other leaf.
        assert_eq!(changed(&nodes, 100), Err(Status::OtherLeaf));
        let mut more = nodes.clone();
        more[2] = leaf(&[b"mmmm", b"nnnn", b"oooo", b"pppp"], point(b"mmmm"), None);
        let fits = nodes[1].len() + 15;
        let other = leaf(&[b"nnnn", b"oooo", b"pppp"], point(b"mmmm"), None);
        let whole = leaf(&[b"aaaa", b"bbbb", b"cccc", b"gggg"], Point::FIRST, Some(point(b"mmmm")));
        let expected = vec![(node_key((0, 2)), other.clone()), (node_key((0, 1)), whole)];
        assert_eq!(changed(&more, fits as u32), Ok(expected));
        let [first, second] = [&[&b"aaaa"[..], b"bbbb"][..], &[b"cccc", b"gggg"]];
        // The separator is as short as it can be.
        let middle = Point { key: b"c", object: b"" };
        let first = leaf(first, Point::FIRST, Some(middle));
        let second = leaf(second, middle, Some(point(b"mmmm")));
        let entries = [child(Point::FIRST, 1), child(middle, 257), child(point(b"mmmm"), 2)];
        let expected = vec![
            (node_key((0, 2)), other),
            (node_key((0, 1)), first),
            (node_key((0, 257)), second),
            (node_key((0, 0)), above(&entries)),
        ];
        assert_eq!(changed(&more, fits as u32 - 1), Ok(expected));
        // A full parent has to be split first, and a root gets a new one above it.
        let full = more[0].len() as u32 - 1;
        assert!(full < fits as u32);
        assert_eq!(changed(&more, full), Err(Status::OtherLeaf));
        let root = [leaf(&[b"aaaa", b"bbbb", b"mmmm", b"nnnn"], Point::FIRST, None)];
        let grown = Object { before: None, ..object };
        let refused = change(&Few(&root), &catalog(64), grown, 1000, &mut vec![]).err();
        assert_eq!(refused, Some(Status::OtherLeaf));
    }

    #[test]
    fn a_catalog_with_too_many_indexes_is_refused() {
        let nodes = [emit(0, Point::FIRST, None, [].into_iter())];
        let with = |count| {
            let catalog = catalog(&vec![Source::Key; count]);
            let object = Object { key: b"o", before: None, after: Some(b"v") };
            change(&Few(&nodes), &catalog, object, 1000, &mut vec![]).err()
        };
        assert_eq!((with(MOST_LEAVES), with(MOST_LEAVES + 1)), (None, Some(Status::OtherLeaf)));
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
