//! Tables with indexes: the indexes, and changes of objects that keep them.
//!
//! A table has what the client keeps of its indexes. Each call makes a table of the store's client
//! with that.

use std::sync::Arc;

use sprat::kv;

use crate::abi;
use crate::client::{Client, Shared};
use crate::convert::{Call, key, lifetime, value, versioned};
use crate::entry::export;
use crate::pointer::{Array, Bytes, Handle, Memory, Out, OutHandle, OwnedHandle, Structure, Text};
use crate::status::Failure;

/// The most keys of a packed value.
const MAX_PACKED: usize = 255;

/// The table with indexes that C programs have, `sprat_indexed`.
pub(crate) struct Indexed {
    table: Arc<Opened>,
}

/// The part of a table that its scans keep.
pub(crate) struct Opened {
    client: Arc<Shared>,
    /// The state that the client keeps of the indexes.
    known: Arc<kv::KnownIndexes>,
}

impl Indexed {
    /// Returns the part that scans keep.
    pub(crate) fn table(&self) -> &Arc<Opened> {
        &self.table
    }
}

impl Opened {
    /// Returns the state that the client keeps of the indexes, if it is this client.
    pub(crate) fn known(&self, client: &Arc<Shared>) -> Result<&Arc<kv::KnownIndexes>, Failure> {
        if Arc::ptr_eq(&self.client, client) {
            return Ok(&self.known);
        }
        Err(Failure::invalid("the table with indexes is one of another client"))
    }

    /// Runs one call. It may take the time that `call` allows.
    pub(crate) fn with<T>(
        &self,
        call: &Call,
        body: impl FnOnce(&kv::IndexedTable<'_>) -> Result<T, kv::IndexError>,
    ) -> Result<T, Failure> {
        self.client.with(|state| {
            state.ask(call, |client| Ok(body(&client.with_known(Arc::clone(&self.known)))?))
        })
    }
}

/// Runs a change of an object, and writes its result.
fn change(
    indexed: &Handle<Indexed>,
    options: &Structure<abi::OperationOptions>,
    result: &Out<abi::Result>,
    body: impl FnOnce(&kv::IndexedTable<'_>, kv::Condition) -> Result<kv::Version, kv::IndexError>,
) -> Result<(), Failure> {
    let call = Call::new(options)?;
    let table = &indexed.required("the table")?.table;
    result.set(versioned(table.with(&call, |table| body(table, call.condition))?));
    Ok(())
}

/// Converts the part of an object that is its key in an index.
fn source(source: &abi::IndexSource) -> Result<kv::Source, Failure> {
    let &abi::IndexSource { kind, number, separator, at, length, reserved } = source;
    if reserved != [0; 3] {
        return Err(Failure::invalid("a reserved field of the index's source is not 0"));
    }
    Ok(match kind {
        1 => kv::Source::Key,
        2 => kv::Source::Bytes { at, len: length },
        3 => {
            let separator = u8::try_from(separator);
            let separator = separator.map_err(|_| Failure::invalid("the separator is no byte"))?;
            kv::Source::Field { number, separator }
        }
        4 => kv::Source::Packed { number },
        other => return Err(Failure::invalid(format!("no source has the kind {other}"))),
    })
}

/// Converts an index of a list.
fn info(index: &kv::Definition) -> abi::IndexInfo {
    let mut name = [0; abi::INDEX_NAME_SIZE];
    let length = index.name.len().min(abi::INDEX_NAME_SIZE - 1);
    name[..length].copy_from_slice(&index.name.as_bytes()[..length]);
    let source = abi::IndexSource::default();
    let source = match index.source {
        kv::Source::Key => abi::IndexSource { kind: 1, ..source },
        kv::Source::Bytes { at, len } => abi::IndexSource { kind: 2, at, length: len, ..source },
        kv::Source::Field { number, separator } => {
            abi::IndexSource { kind: 3, number, separator: separator.into(), ..source }
        }
        kv::Source::Packed { number } => abi::IndexSource { kind: 4, number, ..source },
        _ => source,
    };
    let (ready, node_bytes) = (index.is_ready.into(), index.node_bytes);
    abi::IndexInfo { source, ready, node_bytes, reserved: [0; 2], name }
}

/// Returns the place of bytes that the caller lends.
fn piece(bytes: &[u8]) -> abi::Piece {
    abi::Piece { bytes: bytes.as_ptr().cast(), length: bytes.len() }
}

export! {
    /// Opens a table as one with indexes.
    fn sprat_indexed_open(client: Handle<Client>, table: u64, indexed: OutHandle<Indexed>) {
        indexed.clear("the place for the table")?;
        let client = client.required("the client")?;
        let known = client.with(|state| {
            let client = state.client()?;
            Ok(Arc::clone(client.indexed(&client.table_by_id(kv::TableId(table)))?.known()))
        })?;
        let client = Arc::clone(client.shared());
        indexed.give(Indexed { table: Arc::new(Opened { client, known }) });
        Ok(())
    }

    /// Creates an index.
    fn sprat_create_index(
        indexed: Handle<Indexed>,
        name: Text,
        of: Array<abi::IndexSource>,
        objects: Out<u64>,
        skipped: Out<u64>,
    ) {
        let name = name.required("the index's name")?;
        let source = source(&of.slice(1, "the source")?[0])?;
        let table = &indexed.required("the table")?.table;
        let counts = table.with(&Call::of_client(), |table| table.create_index(name, source))?;
        objects.set(counts.0);
        skipped.set(counts.1);
        Ok(())
    }

    /// Drops an index.
    fn sprat_drop_index(indexed: Handle<Indexed>, name: Text) {
        let name = name.required("the index's name")?;
        let table = &indexed.required("the table")?.table;
        table.with(&Call::of_client(), |table| table.drop_index(name))
    }

    /// Lists the indexes of a table.
    fn sprat_list_indexes(indexed: Handle<Indexed>, indexes: Out<Memory>, count: Out<usize>) {
        indexes.require("the place for the indexes")?;
        count.require("the place for their number")?;
        let table = &indexed.required("the table")?.table;
        let list = table.with(&Call::of_client(), |table| table.list_indexes())?;
        let list: Vec<abi::IndexInfo> = list.iter().map(info).collect();
        indexes.set(Memory::copy_all(&list)?);
        count.set(list.len());
        Ok(())
    }

    /// Writes an object and its entries.
    fn sprat_indexed_write(
        indexed: Handle<Indexed>,
        name: Bytes,
        name_length: usize,
        bytes: Bytes,
        bytes_length: usize,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        let (key, value) = (key(&name, name_length)?, value(&bytes, bytes_length)?);
        change(&indexed, &options, &result, |table, condition| table.put_if(key, value, condition))
    }

    /// Writes an object that expires, and its entries.
    fn sprat_indexed_write_expiring(
        indexed: Handle<Indexed>,
        name: Bytes,
        name_length: usize,
        bytes: Bytes,
        bytes_length: usize,
        lifetime_ms: u64,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        let (key, value) = (key(&name, name_length)?, value(&bytes, bytes_length)?);
        let lifetime = lifetime(lifetime_ms)?;
        change(&indexed, &options, &result, |table, condition| {
            table.put_expiring_if(key, value, lifetime, condition)
        })
    }

    /// Removes an object and its entries.
    fn sprat_indexed_remove(
        indexed: Handle<Indexed>,
        name: Bytes,
        name_length: usize,
        options: Structure<abi::OperationOptions>,
        result: Out<abi::Result>,
    ) {
        let key = key(&name, name_length)?;
        change(&indexed, &options, &result, |table, condition| {
            Ok(table.remove_if(key, condition)?.unwrap_or(kv::Version(0)))
        })
    }

    /// Unites index keys and a value.
    fn sprat_pack(
        keys: Array<abi::Lent>,
        count: usize,
        bytes: Bytes,
        bytes_length: usize,
        packed: Out<Memory>,
        packed_length: Out<usize>,
    ) {
        packed.require("the place for the packed value")?;
        packed_length.require("the place for its length")?;
        if count > MAX_PACKED {
            return Err(kv::IndexError::TooManyKeys(count).into());
        }
        let mut all = Vec::with_capacity(count);
        for lent in keys.slice(count, "the index keys")? {
            let too_long = |length| kv::Error::IndexKeyTooLong(length).into();
            all.push(lent.bytes.of(lent.length, kv::MAX_INDEX_KEY, too_long)?);
        }
        let bytes = kv::pack(&all, value(&bytes, bytes_length)?)?;
        if bytes.len() > kv::MAX_VALUE {
            return Err(kv::Error::ValueTooLong(bytes.len()).into());
        }
        packed.set(Memory::copy(&bytes)?);
        packed_length.set(bytes.len());
        Ok(())
    }

    /// Divides a packed value.
    fn sprat_unpack(
        packed: Bytes,
        packed_length: usize,
        keys: Array<abi::Piece>,
        room: usize,
        count: Out<usize>,
        rest: Out<abi::Piece>,
    ) {
        let mut keys = keys;
        let places = keys.slice_mut(room, "the index keys")?;
        let packed = value(&packed, packed_length)?;
        let (keys, value) =
            kv::unpack(packed).ok_or_else(|| Failure::invalid("the value is not packed"))?;
        for (place, key) in places.iter_mut().zip(&keys) {
            *place = piece(key);
        }
        count.set(keys.len());
        rest.set(piece(value));
        Ok(())
    }
}

export! {
    /// Frees a table with indexes.
    plain(()) fn sprat_indexed_close(indexed: OwnedHandle<Indexed>) -> () {
        drop(indexed.take());
    }
}
