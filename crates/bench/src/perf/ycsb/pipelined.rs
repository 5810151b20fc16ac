//! A session with our store whose operations with an index are in progress at the same time, as
//! tasks of an asynchronous client.

use sprat::kv::{AsyncClient, AsyncIndexedTable, TableId};

use super::super::tasks::{Tasks, block_on};
use super::session::{ORDER, Opened, Scan, Session, wrong};
use crate::fail::Fail;
use crate::store::Store;

/// A connection to our store by an asynchronous client.
pub(super) struct Pipelined {
    /// The store that explains errors.
    store: Store,
    table: AsyncIndexedTable,
    /// Bytes of a record's value.
    size: usize,
}

impl Pipelined {
    /// Opens a table that has the records in the order of their keys.
    pub(super) fn open(
        store: Store,
        client: &AsyncClient,
        table: TableId,
        size: usize,
    ) -> Result<Self, Fail> {
        let indexed = block_on(client.indexed(&client.table_by_id(table)));
        let explain = |error| store.explain_index(error, "the table of the records");
        let table = indexed.map_err(explain)?;
        Ok(Self { store, table, size })
    }
}

impl Opened for Pipelined {
    type Session<'o> = Tagged<'o>;

    fn session(&mut self) -> Result<Tagged<'_>, Fail> {
        Ok(Tagged { opened: self, tasks: Tasks::new() })
    }
}

/// A session of an asynchronous client.
pub(super) struct Tagged<'o> {
    opened: &'o Pipelined,
    tasks: Tasks<'o>,
}

impl Session for Tagged<'_> {
    fn read(&mut self, key: &[u8], tag: u32) {
        let Pipelined { store, table, size } = self.opened;
        let read = table.table().get(key);
        self.tasks.start(tag, async move {
            let object = read.await.map_err(|error| store.explain(error, "a read"))?;
            match object.map_or(0, |object| object.value.len()) {
                found if found == *size => Ok(1),
                found => Err(wrong(found, *size)),
            }
        });
    }

    fn write(&mut self, key: &[u8], value: &[u8], tag: u32) {
        let store = &self.opened.store;
        let written = self.opened.table.table().put(key, value);
        self.tasks.start(tag, async move {
            written.await.map(|_| 1).map_err(|error| store.explain(error, "a write"))
        });
    }

    fn insert(&mut self, key: &[u8], value: &[u8], tag: u32) -> Result<(), Fail> {
        let Pipelined { store, table, .. } = self.opened;
        let (key, value) = (key.to_vec(), value.to_vec());
        self.tasks.start(tag, async move {
            let written = table.put(&key, &value).await;
            written.map(|_| 1).map_err(|error| store.explain_index(error, "an insert"))
        });
        Ok(())
    }

    fn scan(&mut self, key: &[u8], count: u64, tag: u32) -> Result<(), Fail> {
        let Pipelined { store, table, size } = self.opened;
        let mut scan = Scan::new(key, count, *size);
        self.tasks.start(tag, async move {
            while let Some((range, most)) = scan.next() {
                let page = table.page(ORDER, range, most).await;
                scan.add(page.map_err(|error| store.explain_index(error, "a scan"))?)?;
            }
            Ok(scan.found)
        });
        Ok(())
    }

    fn turn(&mut self) -> Result<(), Fail> {
        self.tasks.turn();
        Ok(())
    }

    fn completed(&mut self) -> Result<Option<(u32, u64)>, Fail> {
        self.tasks.ended().map(|(tag, found)| found.map(|found| (tag, found))).transpose()
    }
}
