//! The edits of leaves that belong to one transaction, as a client plans them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::btree::edit::{self, Edits};
use crate::btree::node::Point;
use crate::btree::{NodeId, ROOT, node_key};
use crate::client::{Change, TransactionPart};
use crate::message::data::RejectRules;
use crate::types::TableId;

/// The sizes that a leaf may have after an edit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The size of a full leaf in bytes.
    pub(super) most: usize,
    /// True if the leaf may become small. Otherwise such an edit is refused, so that the client
    /// knows of it and merges the leaf afterwards.
    pub(super) may_be_small: bool,
    /// True if the leaf may become larger than a full one. The client splits it afterwards.
    pub(super) may_be_large: bool,
}

/// The edits of some leaves.
#[derive(Debug, Default)]
pub(super) struct LeafEdits {
    leaves: BTreeMap<NodeId, ([u8; 10], Vec<u8>)>,
}

impl LeafEdits {
    /// Adds an edit of a leaf: an entry at the point is added or removed.
    pub(super) fn edit(&mut self, id: NodeId, point: Point<'_>, add: bool, bounds: Bounds) {
        let may_be_small = bounds.may_be_small || id.1 == ROOT;
        let least = if may_be_small { 0 } else { bounds.most / 4 };
        let begin = || (node_key(id), edit::begin(least, bounds.most));
        let edits = &mut self.leaves.entry(id).or_insert_with(begin).1;
        if may_be_small {
            edit::allow_small(edits);
        }
        if bounds.may_be_large {
            edit::allow_large(edits);
        }
        edit::push(edits, point, add);
    }

    /// Returns the number of leaves.
    pub(super) fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Returns the leaf at this place among the parts, with its edits.
    pub(super) fn leaf(&self, place: usize) -> Option<(NodeId, Edits<'_>)> {
        let (id, (_, edits)) = self.leaves.iter().nth(place)?;
        Some((*id, Edits::parse(edits).ok()?))
    }

    /// Returns the parts of a transaction that edit the leaves, one for each.
    pub(super) fn parts(&self, nodes: TableId) -> impl Iterator<Item = TransactionPart<'_>> {
        self.leaves.values().map(move |(key, edits)| TransactionPart {
            table: nodes,
            key,
            rules: RejectRules::default(),
            change: Change::Edit(edits),
        })
    }
}
