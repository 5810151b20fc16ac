//! Scans over the objects of a table.

use std::sync::{Arc, Mutex};

use sprat::kv;

use crate::abi;
use crate::client::{Client, Shared};
use crate::entry::export;
use crate::pointer::{Handle, Out, OutHandle, OwnedHandle};
use crate::status::{Failure, Status};

/// The scan that C programs have, `sprat_scan`.
pub(crate) struct Scan {
    client: Arc<Shared>,
    table: kv::TableId,
    position: Mutex<Position>,
}

/// The position of a scan.
struct Position {
    /// The cursor of the next page, or `None` behind the last one.
    next: Option<kv::Cursor>,
    /// The objects of the page: key, version and value.
    page: Vec<(Vec<u8>, u64, Vec<u8>)>,
    /// The index of the next object in the page.
    at: usize,
}

impl Position {
    /// Returns the next object. Its memory stays until the next call.
    fn next(&mut self, client: &Shared, table: kv::TableId) -> Result<abi::Entry, Failure> {
        while self.at == self.page.len() {
            let cursor = self.next.clone().ok_or_else(|| Failure::of(Status::End))?;
            let page =
                client.with(|state| Ok(state.client()?.table_by_id(table).page(cursor)?))?;
            let objects = page.objects();
            self.page =
                objects.map(|it| (it.key.to_vec(), it.version.0, it.value.to_vec())).collect();
            (self.next, self.at) = (page.next, 0);
        }
        let (key, version, value) = &self.page[self.at];
        self.at += 1;
        Ok(abi::Entry {
            key: key.as_ptr().cast(),
            key_length: key.len(),
            value: value.as_ptr().cast(),
            value_length: value.len(),
            version: *version,
        })
    }
}

export! {
    /// Begins a scan.
    fn sprat_scan_open(client: Handle<Client>, table: u64, scan: OutHandle<Scan>) {
        scan.clear("the place for the scan")?;
        let client = client.required("the client")?.shared();
        let position = Position { next: Some(kv::Cursor::default()), page: Vec::new(), at: 0 };
        let position = Mutex::new(position);
        scan.give(Scan { client: Arc::clone(client), table: kv::TableId(table), position });
        Ok(())
    }

    /// Returns the next object of a scan.
    fn sprat_scan_next(scan: Handle<Scan>, entry: Out<abi::Entry>) {
        entry.require("the place for the object")?;
        let scan = scan.required("the scan")?;
        // A second thread must not take the memory away that this call returns.
        let position = scan.position.try_lock();
        let mut position = position.map_err(|_| Failure::of(Status::InUse))?;
        entry.set(position.next(&scan.client, scan.table)?);
        Ok(())
    }
}

export! {
    /// Ends a scan and frees it.
    plain(()) fn sprat_scan_close(scan: OwnedHandle<Scan>) -> () {
        drop(scan.take());
    }
}
