//! Scans over the objects of an index.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use sprat::kv;

use crate::abi;
use crate::convert::{Call, key};
use crate::entry::export;
use crate::indexes::{Indexed, Opened};
use crate::pointer::{Array, Bytes, Handle, Out, OutHandle, OwnedHandle, Text};
use crate::status::{Failure, Status};

/// The scan of an index that C programs have, `sprat_index_scan`.
pub(crate) struct IndexScan {
    table: Arc<Opened>,
    index: String,
    position: Mutex<Position>,
}

/// The position of a scan, which takes objects from both ends of its range.
struct Position {
    /// The range between the pages, or `None` if these are the last ones.
    rest: Option<kv::IndexRange>,
    /// The objects before the rest, in ascending order.
    first: VecDeque<kv::Found>,
    /// The objects behind the rest, in descending order.
    last: VecDeque<kv::Found>,
    /// The object that the program has, which borrows its memory until the next call.
    taken: Option<kv::Found>,
}

/// The end of its range at which a call takes an object.
#[derive(Clone, Copy)]
enum End {
    First,
    Last,
}

impl Position {
    /// Returns the next object from an end. Its memory stays until the next call.
    fn next(&mut self, scan: &IndexScan, end: End) -> Result<abi::IndexEntry, Failure> {
        let kv::Found { index_key, key, version, value } = loop {
            let found = match end {
                End::First => self.first.pop_front(),
                End::Last => self.last.pop_front(),
            };
            if let Some(found) = found {
                break self.taken.insert(found);
            }
            let Some(range) = self.rest.clone() else {
                let found = match end {
                    End::First => self.last.pop_back(),
                    End::Last => self.first.pop_back(),
                };
                break self.taken.insert(found.ok_or_else(|| Failure::of(Status::End))?);
            };
            let page = scan.table.with(&Call::of_client(), |table| match end {
                End::First => table.page(&scan.index, range, usize::MAX),
                End::Last => table.page_back(&scan.index, range, usize::MAX),
            })?;
            self.rest = page.rest;
            match end {
                End::First => self.first.extend(page.found),
                End::Last => self.last.extend(page.found),
            }
        };
        Ok(abi::IndexEntry {
            index_key: index_key.as_ptr().cast(),
            index_key_length: index_key.len(),
            key: key.as_ptr().cast(),
            key_length: key.len(),
            value: value.as_ptr().cast(),
            value_length: value.len(),
            version: version.0,
        })
    }
}

/// Takes the next object of a scan from an end of its range.
fn take(scan: &Handle<IndexScan>, entry: &Out<abi::IndexEntry>, end: End) -> Result<(), Failure> {
    entry.require("the place for the object")?;
    let scan = scan.required("the scan")?;
    // A second thread must not take the memory away that this call returns.
    let position = scan.position.try_lock();
    let mut position = position.map_err(|_| Failure::of(Status::InUse))?;
    entry.set(position.next(scan, end)?);
    Ok(())
}

/// Converts an end of a range.
fn bound(kind: i32, bytes: &Bytes, length: usize) -> Result<Bound<&[u8]>, Failure> {
    Ok(match kind {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(bytes, length)?),
        2 => Bound::Excluded(key(bytes, length)?),
        other => return Err(Failure::invalid(format!("no bound has the kind {other}"))),
    })
}

/// Begins a scan over a range, which `range` makes.
fn open(
    indexed: &Handle<Indexed>,
    index: &Text,
    scan: &OutHandle<IndexScan>,
    range: impl FnOnce() -> Result<kv::IndexRange, Failure>,
) -> Result<(), Failure> {
    scan.clear("the place for the scan")?;
    let table = Arc::clone(indexed.required("the table")?.table());
    let index = index.required("the index's name")?.to_owned();
    let (first, last) = (VecDeque::new(), VecDeque::new());
    let position = Position { rest: Some(range()?), first, last, taken: None };
    scan.give(IndexScan { table, index, position: Mutex::new(position) });
    Ok(())
}

export! {
    /// Begins a scan over the objects that have an index key.
    fn sprat_index_look_up(
        indexed: Handle<Indexed>,
        index: Text,
        name: Bytes,
        name_length: usize,
        scan: OutHandle<IndexScan>,
    ) {
        open(&indexed, &index, &scan, || {
            let key = key(&name, name_length)?;
            Ok(kv::IndexRange::new(key..=key))
        })
    }

    /// Begins a scan over the objects of a range of index keys.
    fn sprat_index_range(
        indexed: Handle<Indexed>,
        index: Text,
        keys: Array<abi::IndexKeys>,
        scan: OutHandle<IndexScan>,
    ) {
        open(&indexed, &index, &scan, || {
            let keys = &keys.slice(1, "the range")?[0];
            if keys.reserved != [0; 2] {
                return Err(Failure::invalid("a reserved field of the range is not 0"));
            }
            let from = bound(keys.from_bound, &keys.from, keys.from_length)?;
            let to = bound(keys.to_bound, &keys.to, keys.to_length)?;
            Ok(kv::IndexRange::new::<&[u8]>((from, to)))
        })
    }

    /// Begins a scan over the objects whose index keys begin with some bytes.
    fn sprat_index_prefix(
        indexed: Handle<Indexed>,
        index: Text,
        prefix: Bytes,
        prefix_length: usize,
        scan: OutHandle<IndexScan>,
    ) {
        open(&indexed, &index, &scan, || {
            Ok(kv::IndexRange::prefix(key(&prefix, prefix_length)?))
        })
    }

    /// Returns the next object of a scan.
    fn sprat_index_scan_next(scan: Handle<IndexScan>, entry: Out<abi::IndexEntry>) {
        take(&scan, &entry, End::First)
    }

    /// Returns the next object from the end of a scan.
    fn sprat_index_scan_next_back(scan: Handle<IndexScan>, entry: Out<abi::IndexEntry>) {
        take(&scan, &entry, End::Last)
    }
}

export! {
    /// Ends a scan and frees it.
    plain(()) fn sprat_index_scan_close(scan: OwnedHandle<IndexScan>) -> () {
        drop(scan.take());
    }
}
