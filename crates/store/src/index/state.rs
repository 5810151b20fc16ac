//! The state that a client keeps of the indexes of a table: the catalog, and the nodes above the
//! leaves.
//!
//! Invariant: all of it may be out of date. A read or a commit finds that out.

use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashMap;

use super::definition::Catalog;
use crate::types::Version;

/// The number of copies of the catalog. Each client checks one of them, so that they share the
/// load.
pub(super) const COPIES: u8 = 8;
/// The most nodes that a client keeps, of [`super::NODE_BYTES`] usually.
const MOST: usize = 4096;

/// The place of a node: the number of its index, and its id.
pub(super) type NodeId = (u8, u64);

/// The catalog, with its version in the copy that the client uses; version 0 if that does not
/// exist.
pub(super) type Copied = (Arc<Catalog>, Version);

/// The state that a client keeps of the indexes of a table.
#[derive(Debug, Default)]
pub struct State {
    /// The copy of the catalog that the client uses.
    pub(super) copy: Option<u8>,
    pub(super) catalog: Option<Copied>,
    nodes: HashMap<NodeId, Arc<Vec<u8>>>,
}

impl State {
    /// Forgets the catalog, so that it is read again.
    pub(super) fn forget_catalog(&mut self) {
        self.catalog = None;
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
}
