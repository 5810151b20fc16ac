//! The nodes of the B+ trees that indexes are, the edits of leaves, and look-ups in them.
//!
//! Clients read and write nodes as objects, and know what the nodes mean ([`crate::index`]). A
//! master knows three things of them: it makes an edit of a leaf that is part of a transaction, it
//! answers a look-up with the entries of a leaf and their objects, and it changes an object
//! together with its entries if it has all nodes on the ways to them.

pub(crate) mod catalog;
pub(crate) mod change;
pub mod edit;
pub(crate) mod leaf;
pub(crate) mod node;
pub(crate) mod range;

/// The number of copies of the catalog. Each change checks one of them, so that they share the
/// load, and so that one is near: on the server of the object that changes, mostly.
pub(crate) const COPIES: u8 = 8;

/// Returns the key of a copy of the catalog.
pub(crate) fn catalog_key(copy: u8) -> [u8; 2] {
    [b'c', copy]
}

/// The id of the root of each index.
pub(crate) const ROOT: u64 = 0;

/// The place of a node: the number of its index, and its id.
pub(crate) type NodeId = (u8, u64);

/// Returns the key of a node in the table of the nodes.
pub(crate) fn node_key((index, id): NodeId) -> [u8; 10] {
    let mut key = [b'n'; 10];
    key[1] = index;
    key[2..].copy_from_slice(&id.to_be_bytes());
    key
}

/// Returns the index of the node that has this key.
pub(crate) fn index_of_node(key: &[u8]) -> Option<u8> {
    match key {
        [b'n', index, ..] if key.len() == 10 => Some(*index),
        _ => None,
    }
}
