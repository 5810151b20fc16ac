//! The state that a client keeps of the indexes of a table: the catalog, and the nodes above the
//! leaves.
//!
//! Invariant: all of it may be out of date. A read or a commit finds that out.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::btree::catalog::{Catalog, Definition};
use crate::btree::node::{Goal, Node, OwnedPoint, Point};
use crate::btree::{COPIES, NodeId, ROOT};
use crate::types::Version;

/// The most nodes that a client keeps, of [`super::NODE_BYTES`] usually.
const MOST: usize = 4096;

/// The usual length of an entry in bytes, until the client has seen one of an index.
const ENTRY: usize = 48;

/// The most leaves that a look-up reads ahead.
const MOST_AHEAD: usize = 31;

/// The number of changes behind one that no server could make alone, until one is tried again.
const APART: u8 = 32;

/// The catalog, with its version in one of the copies; version 0 if that does not exist.
pub(super) type Copied = (Arc<Catalog>, Version);

/// The state that a client keeps of the indexes of a table.
#[derive(Debug, Default)]
pub struct State {
    /// The copy of the catalog that the client uses if none is near.
    pub(super) copy: Option<u8>,
    catalog: Option<Arc<Catalog>>,
    /// The versions of the copies that had this catalog when the client has read them.
    versions: [Option<Version>; COPIES as usize],
    nodes: HashMap<NodeId, Arc<Vec<u8>>>,
    /// The indexes whose root is a leaf.
    lone: BTreeSet<u8>,
    /// The length of an entry that the client has seen last, by index.
    entries: BTreeMap<u8, usize>,
    /// The number of changes that are not tried as one operation.
    apart: u8,
}

impl State {
    /// Counts a change. Returns false if it takes several servers, as far as the client knows.
    pub(super) fn may_be_whole(&mut self) -> bool {
        let is_known_apart = self.apart > 0;
        self.apart = self.apart.saturating_sub(1);
        !is_known_apart
    }

    /// Keeps the knowledge that the nodes are on several servers, for some changes.
    pub(super) fn keep_apart(&mut self) {
        self.apart = APART;
    }

    /// Returns the catalog, if the client keeps it.
    pub(super) fn catalog(&self) -> Option<Arc<Catalog>> {
        self.catalog.clone()
    }

    /// Returns the catalog with its version in this copy, if the client has read that.
    pub(super) fn copied(&self, copy: u8) -> Option<Copied> {
        Some((self.catalog()?, self.versions[usize::from(copy)]?))
    }

    /// Keeps a catalog that has this version in a copy. The versions of other copies count only if
    /// they had the same.
    pub(super) fn learn(&mut self, copy: u8, catalog: Catalog, version: Version) -> Copied {
        if self.catalog.as_deref() != Some(&catalog) {
            self.forget_catalog();
        }
        self.versions[usize::from(copy)] = Some(version);
        (Arc::clone(self.catalog.get_or_insert_with(|| catalog.into())), version)
    }

    /// Forgets the catalog, so that it is read again.
    pub(super) fn forget_catalog(&mut self) {
        self.take_catalog();
    }

    /// Forgets the catalog, and returns it.
    pub(super) fn take_catalog(&mut self) -> Option<Arc<Catalog>> {
        self.versions = [None; COPIES as usize];
        self.catalog.take()
    }

    pub(super) fn node(&self, id: NodeId) -> Option<&[u8]> {
        Some(self.nodes.get(&id)?)
    }

    /// Keeps a node above the leaves.
    pub(super) fn keep(&mut self, id: NodeId, bytes: Arc<Vec<u8>>) {
        if self.nodes.len() >= MOST {
            self.nodes.clear();
        }
        self.nodes.insert(id, bytes);
        if id.1 == ROOT {
            self.lone.remove(&id.0);
        }
    }

    pub(super) fn forget(&mut self, id: NodeId) {
        self.nodes.remove(&id);
        if id.1 == ROOT {
            self.lone.remove(&id.0);
        }
    }

    /// Keeps the knowledge that the root of an index is a leaf.
    pub(super) fn keep_lone(&mut self, index: u8) {
        self.lone.insert(index);
    }

    /// Returns true if the root of an index is a leaf, as far as the client knows.
    pub(super) fn is_lone(&self, index: u8) -> bool {
        self.lone.contains(&index)
    }

    /// Keeps the length of an entry of an index.
    pub(super) fn keep_entry(&mut self, index: u8, entry: Point<'_>) {
        self.entries.insert(index, entry.entry_len());
    }

    /// Returns the bounds of the leaves beside the one that has a goal, below the same `parent`, if
    /// the client keeps that: the starts of those behind a point, or the ends of those before the
    /// leaf that ends with a bound. Together they have about `most` entries.
    pub(super) fn leaves_beside(
        &self,
        index: &Definition,
        (goal, parent): (Goal<'_>, NodeId),
        most: usize,
    ) -> Vec<OwnedPoint> {
        let mut bounds = Vec::new();
        let Some(parent) = self.node(parent).and_then(Node::known) else { return bounds };
        let at = goal.child_in(&parent);
        // Leaves are about two thirds full.
        let entry = self.entries.get(&index.number).copied().unwrap_or(ENTRY);
        let of_leaf = (index.node_bytes as usize * 2 / 3 / entry).max(1);
        // The range begins somewhere in the first one.
        let mut entries = of_leaf / 2;
        for ahead in 0..MOST_AHEAD {
            let i = match goal {
                Goal::At(_) => at + 1 + ahead,
                Goal::Before(_) if ahead < at => at - ahead,
                Goal::Before(_) => break,
            };
            if i >= parent.len() || entries >= most {
                break;
            }
            bounds.push(parent.entry(i).point.to_owned());
            entries += of_leaf;
        }
        bounds
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::btree::catalog::Source;
    use crate::btree::node::{Entry, emit};

    /// The separators in the parent are shorter than the entries of the leaves.
    #[test]
    fn as_many_leaves_are_read_ahead_as_have_the_entries() {
        let point = |key| Point { key, object: b"" };
        let keys: Vec<[u8; 1]> = (0..100).map(|key| [key]).collect();
        let entries = keys.iter().map(|key| Entry { point: point(key), child: 1 });
        let parent = emit(1, point(&keys[0]), None, entries);
        let mut state = State::default();
        state.keep((7, ROOT), parent.into());
        let (name, source, number) = ("index".into(), Source::Key, 7);
        let index = Definition { name, source, node_bytes: 1200, is_ready: true, number };
        let beside = |state: &State, most| {
            let goal = Goal::At(point(&keys[3]));
            state.leaves_beside(&index, (goal, (7, ROOT)), most)
        };
        let usual = beside(&state, 100).len();
        // A leaf has 40 entries of 20 bytes or 8 of 100: half of those of the first one count too.
        state.keep_entry(7, Point { key: &[0; 10], object: b"" });
        assert_eq!(beside(&state, 100).len(), 2);
        state.keep_entry(7, Point { key: &[0; 90], object: b"" });
        assert_eq!(beside(&state, 100).len(), 12);
        assert!((2..12).contains(&usual));
        assert_eq!(
            beside(&state, 20),
            vec![point(&keys[4]).to_owned(), point(&keys[5]).to_owned()]
        );
    }
}
