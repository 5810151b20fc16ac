//! The tables that a transaction can change, and what a client keeps of their indexes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sprat_proto::Rng;
use sprat_store::index::{Indexes, Objects, State};
use sprat_store::types::TableId;

/// The state that a client keeps of the indexes of a table, so that it need not read their upper
/// nodes again.
#[doc(hidden)]
#[derive(Debug)]
pub struct KnownIndexes {
    pub(super) table: TableId,
    pub(super) nodes: TableId,
    state: Mutex<(State, Rng)>,
}

impl KnownIndexes {
    pub(super) fn new(table: TableId, nodes: TableId, rng: Rng) -> Arc<Self> {
        Arc::new(Self { table, nodes, state: Mutex::new((State::default(), rng)) })
    }

    /// Returns the state, locked. No code of the program runs meanwhile.
    fn lock(&self) -> MutexGuard<'_, (State, Rng)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.lock().0)
    }

    pub(super) fn random(&self) -> u64 {
        self.lock().1.below(u64::MAX)
    }

    /// Returns the indexes for an operation by `objects`.
    pub(super) fn by<'o, O: Objects>(&self, objects: &'o O) -> Indexes<'o, O> {
        Indexes::new(objects, self.table, self.nodes)
    }
}

/// A table with or without indexes, as a transaction changes it: [`Table`](super::Table),
/// [`IndexedTable`](super::IndexedTable), [`AsyncTable`](super::AsyncTable) or
/// [`AsyncIndexedTable`](super::AsyncIndexedTable).
pub trait AnyTable: Sealed {}

/// The parts of [`AnyTable`] that only this module implements.
pub trait Sealed {
    /// Returns the id of the table.
    fn table_id(&self) -> TableId;

    /// Returns the indexes that each change keeps, if there may be some.
    fn known(&self) -> Option<&Arc<KnownIndexes>>;
}

impl<T: Sealed> AnyTable for T {}

impl<T: Sealed + ?Sized> Sealed for &T {
    fn table_id(&self) -> TableId {
        (**self).table_id()
    }

    fn known(&self) -> Option<&Arc<KnownIndexes>> {
        (**self).known()
    }
}
