//! A client's connection to one of the measured stores: requests with tags go out, tags of
//! completed requests come back.

use sprat::kv::{Answer, TableId};

use crate::fail::Fail;
use crate::peers::connection::Connection;
use crate::peers::reply::Reply;
use crate::store::Store;

/// A connection to a store, with many requests in progress. Tags are small numbers, and no two
/// requests in progress share one.
pub(super) trait Session {
    /// Starts a read of an object.
    fn read(&mut self, key: &[u8], tag: u32);

    /// Starts a write of an object.
    fn write(&mut self, key: &[u8], value: &[u8], tag: u32);

    /// Sends and receives what there is. Rests if there is nothing.
    fn turn(&mut self) -> Result<(), Fail>;

    /// Returns the tag of a completed request. `None`: there is none. Fails if the request failed,
    /// or if a read found no object of the records' size.
    fn completed(&mut self) -> Result<Option<u32>, Fail>;
}

/// A connection to our store over one transport.
pub(super) struct Ours {
    store: Store,
    table: TableId,
    /// Bytes of a record's value.
    size: usize,
    /// The tag of each operation in progress, by the operation's index.
    tags: Vec<u32>,
}

impl Ours {
    /// Makes a connection for records of `size` bytes in `table`.
    pub(super) fn new(store: Store, table: TableId, size: usize) -> Self {
        Self { store, table, size, tags: Vec::new() }
    }

    fn note(&mut self, index: usize, tag: u32) {
        if index >= self.tags.len() {
            self.tags.resize(index + 1, 0);
        }
        self.tags[index] = tag;
    }
}

impl Session for Ours {
    fn read(&mut self, key: &[u8], tag: u32) {
        let id = self.store.raw().table_by_id(self.table).start_get(key).queue();
        self.note(id.index(), tag);
    }

    fn write(&mut self, key: &[u8], value: &[u8], tag: u32) {
        let id = self.store.raw().table_by_id(self.table).start_put(key, value).queue();
        self.note(id.index(), tag);
    }

    fn turn(&mut self) -> Result<(), Fail> {
        self.store.raw().turn_and_rest();
        Ok(())
    }

    fn completed(&mut self) -> Result<Option<u32>, Fail> {
        let (tags, size) = (&self.tags, self.size);
        let next = self.store.raw().next_completed_with(|id, outcome| {
            let found = match outcome? {
                Answer::Object { value, .. } => value.len(),
                _ => size,
            };
            Ok((tags[id.index()], found))
        });
        match next {
            None => Ok(None),
            Some(Ok((tag, found))) if found == size => Ok(Some(tag)),
            Some(Ok((_, found))) => Err(wrong(found, size)),
            Some(Err(error)) => Err(self.store.explain(error, "an operation on a record")),
        }
    }
}

/// A connection to the server of a peer.
pub(super) struct Theirs {
    connection: Connection,
    /// Bytes of a record's value.
    size: usize,
}

impl Theirs {
    /// Makes a connection for records of `size` bytes.
    pub(super) fn new(connection: Connection, size: usize) -> Self {
        Self { connection, size }
    }
}

impl Session for Theirs {
    fn read(&mut self, key: &[u8], tag: u32) {
        self.connection.get(key, tag);
    }

    fn write(&mut self, key: &[u8], value: &[u8], tag: u32) {
        self.connection.set(key, value, tag);
    }

    fn turn(&mut self) -> Result<(), Fail> {
        self.connection.turn()
    }

    fn completed(&mut self) -> Result<Option<u32>, Fail> {
        match self.connection.reply()? {
            None => Ok(None),
            Some((tag, Reply::Done)) => Ok(Some(tag)),
            Some((tag, Reply::Value(found))) if found == self.size => Ok(Some(tag)),
            Some((_, Reply::Value(found))) => Err(wrong(found, self.size)),
            Some((_, Reply::Absent)) => Err(Fail::new("a record is absent")),
        }
    }
}

fn wrong(found: usize, size: usize) -> Fail {
    Fail::new(format!("a record has {found} bytes instead of {size}"))
}
