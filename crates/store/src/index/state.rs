//! The state that a client keeps of the indexes of a table: the catalog, and the nodes above the
//! leaves.
//!
//! Invariant: all of it may be out of date. A read or a commit finds that out.

use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashMap;

use super::definition::{Catalog, Definition};
use super::node::{Node, OwnedPoint, Point};
use crate::types::Version;

/// The number of copies of the catalog. Each change checks one of them, so that they share the
/// load, and so that one is near: on the server of the object that changes, mostly.
pub(super) const COPIES: u8 = 8;
/// The most nodes that a client keeps, of [`super::NODE_BYTES`] usually.
const MOST: usize = 4096;

/// The most leaves that a look-up reads ahead.
const MOST_AHEAD: usize = 31;

/// The id of the root of each index.
pub(super) const ROOT: u64 = 0;

/// The place of a node: the number of its index, and its id.
pub(super) type NodeId = (u8, u64);

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
}

impl State {
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

    pub(super) fn node(&self, id: NodeId) -> Option<Arc<Vec<u8>>> {
        self.nodes.get(&id).cloned()
    }

    /// Keeps a node above the leaves.
    pub(super) fn keep(&mut self, id: NodeId, bytes: &[u8]) {
        if self.nodes.len() >= MOST {
            self.nodes.clear();
        }
        self.nodes.insert(id, Arc::new(bytes.to_vec()));
    }

    pub(super) fn forget(&mut self, id: NodeId) {
        self.nodes.remove(&id);
    }

    /// Returns the starts of the leaves behind that of a point, below the same parent, if the
    /// client keeps that. Together they have about `most` entries.
    pub(super) fn leaves_behind(
        &self,
        index: &Definition,
        point: Point<'_>,
        most: usize,
    ) -> Vec<OwnedPoint> {
        let (mut starts, mut id, mut level) = (Vec::new(), ROOT, u8::MAX);
        while most > 0
            && let Some(bytes) = self.nodes.get(&(index.number, id))
            && let Some(node) = Node::known(bytes)
            && node.level < level
        {
            level = node.level;
            let at = node.child_of(point);
            if level > 1 {
                id = node.entry(at).child;
                continue;
            }
            let points = (at + 1..node.len()).map(|i| node.entry(i).point);
            // Leaves are about two thirds full.
            let mut entries = 0;
            for start in points.take(MOST_AHEAD) {
                entries += (index.node_bytes as usize * 2 / 3 / start.entry_len()).max(1);
                if entries >= most {
                    break;
                }
                starts.push(start.to_owned());
            }
            break;
        }
        starts
    }
}
