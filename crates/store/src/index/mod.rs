//! Secondary indexes and ordered scans: the objects of a table in the order of keys that are parts
//! of them.
//!
//! ```text
//!  catalog (some copies)          root              the table's objects
//!  "by city": field 2, 0 …      ╱      ╲             17 ─► Ada,Paris
//!                          node          node        23 ─► Bob,Oslo
//!                        ╱   │   ╲     ╱   │          …
//!                   leaf   leaf   leaf …
//!                    Oslo 23 · Paris 17 ──► objects
//! ```
//!
//! Each index is a B+ tree. Its nodes are objects of a table of their own, the node table, so that
//! they are spread over the servers, and kept in the log, replicated, recovered and moved as all
//! objects are. Transactions change an object together with its entries, and split a node together
//! with its parent. Where one server has an object and all nodes, it changes the object together
//! with its entries by one operation.
//!
//! A client keeps the nodes above the leaves, so that a look-up asks the master of one leaf, and
//! then reads the objects that this server does not have. A node has its own range: a client that
//! comes by an old way sees that, and goes again from the root.
//!
//! Invariants:
//! - At each moment, each point of an index is in the range of exactly one leaf that the root leads
//!   to, and an object that only [`Indexes`] change has exactly its entries.
//! - A change checks a copy of the catalog in its transaction, and a change of the indexes writes
//!   all copies. So no client leaves an index out that it does not know yet.
//! - A look-up returns only objects that have the key as they were read, and all that had it from
//!   the begin to the end. It may miss objects whose key changes meanwhile.

mod build;
mod change;
mod commit;
mod definition;
mod edits;
mod error;
mod fit;
mod look_up;
mod range;
mod state;
#[cfg(test)]
mod tests;
mod tree;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

pub use build::{Building, Cleaning};
pub use change::{Change, Changed, check};
pub use commit::{Part, commit};
pub use definition::{NODE_BYTES, pack};
pub use error::Error;
pub use look_up::{Found, Page};
pub use range::Range;
pub use state::State;

pub use crate::btree::catalog::{Definition, Source, unpack};

use crate::btree::catalog::Catalog;
use crate::btree::leaf::{Answer, Query};
use crate::btree::node::{Node, emit};
use crate::client::{self, Cursor, TransactionPart};
use crate::message::Status;
use crate::types::{TableId, Version};

/// Returns the name of the table of the nodes of the indexes of `table`. Ids of tables are never
/// used again, so that a table of the same name has other indexes.
#[must_use]
pub fn node_table(table: TableId) -> String {
    format!("indexes of table {}", table.0)
}

/// An object as a read has it: its version and value.
pub type Seen = (Version, Vec<u8>);

/// An object of a page of a scan: its key, version and value.
pub type Listed = (Vec<u8>, Version, Vec<u8>);

/// The operations of the store that indexes are made of. Each one ends by itself, at the latest at
/// a deadline of its own.
pub trait Objects {
    /// Reads objects, which may be of several tables: each one, or `None` if it does not exist.
    fn read(
        &self,
        keys: &[(TableId, &[u8])],
    ) -> impl Future<Output = Result<Vec<Option<Seen>>, client::Error>>;

    /// Looks up entries of leaves, each under a key and by a query of its own, with their objects.
    /// Returns the version of each leaf and the answer, `None` if there is no such leaf.
    fn look_up(
        &self,
        nodes: TableId,
        leaves: &[(&[u8], &[u8])],
    ) -> impl Future<Output = Result<Vec<Option<Seen>>, client::Error>>;

    /// Writes or removes an object together with its entries, by one operation of a server that has
    /// all nodes in `nodes`. [`Changed::of`] has the outcome of that.
    fn change(
        &self,
        nodes: TableId,
        part: &TransactionPart<'_>,
    ) -> impl Future<Output = Result<Changed, client::Error>>;

    /// Commits a transaction. Returns the versions of its objects.
    fn commit(
        &self,
        parts: &[TransactionPart<'_>],
    ) -> impl Future<Output = Result<Vec<Version>, client::Error>>;

    /// Reads a page of all objects of a table, and returns the position behind it.
    fn scan(
        &self,
        table: TableId,
        from: Cursor,
    ) -> impl Future<Output = Result<(Vec<Listed>, Option<Cursor>), client::Error>>;

    /// Waits for a random time that grows with the number of tries. Fails if the operation may take
    /// no longer.
    fn pause(&self, tries: u32) -> impl Future<Output = Result<(), client::Error>>;

    /// Returns a random number.
    fn random(&self) -> u64;

    /// Returns the index of the first of `among` that is on the server of an object, as far as the
    /// client knows. What it says costs time at worst.
    fn nearest(&self, of: (TableId, &[u8]), among: &[(TableId, &[u8])]) -> Option<usize>;

    /// Calls `f` with what the client keeps of the table's indexes. No operation runs meanwhile.
    fn state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R;
}

/// Returns true if these bytes are an intact catalog or node.
#[must_use]
pub fn is_intact(bytes: &[u8]) -> bool {
    let node = Node::parse(bytes);
    let same = |it: Node<'_>| emit(it.level, it.start, it.end, it.entries()) == bytes;
    node.is_some_and(same) || Catalog::parse(bytes).is_some_and(|it| it.bytes() == bytes)
}

/// Returns the objects in the answer to a look-up ([`Objects::look_up`]), for tests.
#[doc(hidden)]
#[must_use]
pub fn objects_of_answer(answer: &[u8]) -> Vec<Listed> {
    let entries = Answer::parse(answer).flatten().map_or(Vec::new(), |answer| answer.entries);
    let objects = entries.into_iter().filter_map(|(point, object)| Some((point.object, object?)));
    objects.map(|(key, (version, value))| (key.to_vec(), version, value.to_vec())).collect()
}

/// Returns true if these bytes are an intact answer to a look-up, for tests.
#[doc(hidden)]
#[must_use]
pub fn is_intact_answer(answer: &[u8]) -> bool {
    Answer::parse(answer).is_some()
}

/// Answers a look-up from the bytes of a leaf alone, for tests.
///
/// # Errors
/// [`Status::BadFormat`](crate::message::Status::BadFormat).
#[doc(hidden)]
pub fn answer_query(leaf: &[u8], query: &[u8]) -> Result<Vec<u8>, Status> {
    let Some(picked) = Query::parse(query)?.pick(leaf) else {
        return Ok(Answer::ELSEWHERE.to_vec());
    };
    let mut answer = Vec::new();
    picked.answer((0, Version(1)), |_| None, &mut answer);
    Ok(answer)
}

/// The indexes of one table.
#[derive(Debug)]
pub struct Indexes<'o, O> {
    objects: &'o O,
    table: TableId,
    nodes: TableId,
}

impl<'o, O: Objects> Indexes<'o, O> {
    /// Returns the indexes of `table`, whose nodes are in the table `nodes` (by the name
    /// [`node_table`]).
    #[must_use]
    pub fn new(objects: &'o O, table: TableId, nodes: TableId) -> Self {
        Self { objects, table, nodes }
    }

    /// Lists the indexes.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn list(&self) -> Result<Vec<Definition>, Error> {
        self.objects.state(State::forget_catalog);
        Ok(self.catalog().await?.indexes.clone())
    }
}
