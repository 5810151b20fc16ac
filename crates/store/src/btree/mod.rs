//! The nodes of the B+ trees that indexes are, and the edits of leaves.
//!
//! Clients read and write nodes as objects, and know what the nodes mean ([`crate::index`]). A
//! master knows one thing of them: it makes an edit of a leaf that is part of a transaction.

pub mod edit;
pub(crate) mod node;
