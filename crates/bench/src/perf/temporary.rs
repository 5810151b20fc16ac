//! A table of one measurement, which is dropped with it.

use sprat::kv::{TableId, TableOptions};
use sprat::locator::Locator;

use super::bench::Bench;
use crate::fail::Fail;
use crate::store::Store;

/// A table that exists as long as this value.
pub(crate) struct Temporary {
    coordinator: String,
    own: Vec<Locator>,
    /// Name of the table; empty once the table is dropped.
    name: String,
}

impl Temporary {
    /// Creates the table. `what` is a part of its name.
    pub(crate) fn create(bench: &mut Bench, what: &str) -> Result<(Self, Store, TableId), Fail> {
        Self::over(bench, what, 1)
    }

    /// Creates the table with these options, such as the number of its tablets. `what` is a part of
    /// its name.
    pub(crate) fn over(
        bench: &mut Bench,
        what: &str,
        options: impl Into<TableOptions>,
    ) -> Result<(Self, Store, TableId), Fail> {
        let name = format!("perf-{}-{what}", std::process::id());
        let (coordinator, own) = (bench.coordinator()?, bench.local.own()?);
        let mut store = bench.store(&[])?;
        let table = store.create_table(&name, options)?;
        Ok((Self { coordinator, own, name }, store, table))
    }

    /// Returns the name of the table.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Drops the table.
    pub(crate) fn end(mut self) -> Result<(), Fail> {
        let name = std::mem::take(&mut self.name);
        Store::from(&self.coordinator, &[], std::mem::take(&mut self.own), None)?.drop_table(&name)
    }
}

impl Drop for Temporary {
    /// Drops the table, so that a test that fails leaves no table behind.
    fn drop(&mut self) {
        if !self.name.is_empty()
            && let Ok(mut store) =
                Store::from(&self.coordinator, &[], std::mem::take(&mut self.own), None)
        {
            let _ = store.drop_table(&self.name);
        }
    }
}
