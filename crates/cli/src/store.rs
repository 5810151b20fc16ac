//! The store as the commands see it: the client library with errors that say what to do next.

use sprat_store::message::data::RejectRules;
use sprat_store::types::{ServerId, TableId, Version};

use crate::fail::Fail;

/// A client of one cluster.
pub(crate) struct Store {}

/// A table.
pub(crate) struct TableInfo {
    pub(crate) name: String,
    pub(crate) id: u64,
    pub(crate) tablets: usize,
    /// Tablets whose server died.
    pub(crate) lost: usize,
}

/// A server.
pub(crate) struct ServerInfo {
    pub(crate) id: ServerId,
    pub(crate) locators: String,
}

fn not_yet() -> Fail {
    Fail::new("the store is not built yet")
}

impl Store {
    /// Finds the coordinator.
    pub(crate) fn connect(_coordinator: &str) -> Result<Self, Fail> {
        Err(not_yet())
    }
    pub(crate) fn servers(&mut self) -> Result<Vec<ServerInfo>, Fail> {
        Err(not_yet())
    }
    pub(crate) fn counters(&mut self, _server: &ServerInfo) -> Result<Vec<(String, u64)>, Fail> {
        Err(not_yet())
    }
    pub(crate) fn create_table(&mut self, _name: &str, _span: u32) -> Result<TableId, Fail> {
        Err(not_yet())
    }
    pub(crate) fn drop_table(&mut self, _name: &str) -> Result<(), Fail> {
        Err(not_yet())
    }
    pub(crate) fn tables(&mut self) -> Result<Vec<TableInfo>, Fail> {
        Err(not_yet())
    }
    pub(crate) fn table(&mut self, _name: &str) -> Result<TableId, Fail> {
        Err(not_yet())
    }
    pub(crate) fn read(
        &mut self,
        _table: TableId,
        _key: &[u8],
        _rules: RejectRules,
    ) -> Result<(Vec<u8>, Version), Fail> {
        Err(not_yet())
    }
    pub(crate) fn write(&mut self, _: TableId, _: &[u8], _: &[u8], _: RejectRules) -> Result<Version, Fail> {
        Err(not_yet())
    }
    pub(crate) fn remove(&mut self, _: TableId, _: &[u8], _: RejectRules) -> Result<Version, Fail> {
        Err(not_yet())
    }
    pub(crate) fn increment(
        &mut self,
        _: TableId,
        _: &[u8],
        _: i64,
        _: RejectRules,
    ) -> Result<(i64, Version), Fail> {
        Err(not_yet())
    }
    pub(crate) fn increment_float(
        &mut self,
        _: TableId,
        _: &[u8],
        _: f64,
        _: RejectRules,
    ) -> Result<(f64, Version), Fail> {
        Err(not_yet())
    }
}
