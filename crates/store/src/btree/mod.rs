//! The nodes of the B+ trees that indexes are, the edits of leaves, and look-ups in them.
//!
//! Clients read and write nodes as objects, and know what the nodes mean ([`crate::index`]). A
//! master knows two things of them: it makes an edit of a leaf that is part of a transaction, and
//! it answers a look-up with the entries of a leaf and their objects.

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
