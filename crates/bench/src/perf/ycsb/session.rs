//! A client's connection to one of the measured stores: requests with tags go out, tags of
//! completed requests come back.

use std::collections::VecDeque;

use sprat::kv::{Answer, IndexPage, IndexRange, IndexedTable, Source, TableId};

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

    /// Starts a write of a new object, which scans find if the store has an order of keys.
    fn insert(&mut self, key: &[u8], value: &[u8], tag: u32) -> Result<(), Fail>;

    /// Starts a read of `count` objects in the order of their keys, from `key` on.
    fn scan(&mut self, key: &[u8], count: u64, tag: u32) -> Result<(), Fail>;

    /// Sends and receives what there is. Rests if there is nothing.
    fn turn(&mut self) -> Result<(), Fail>;

    /// Returns the tag of a completed request, and the number of its records. `None`: there is
    /// none. Fails if the request failed, or if a read found no object of the records' size.
    fn completed(&mut self) -> Result<Option<(u32, u64)>, Fail>;
}

/// The records of a run, as sessions need to know them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Bytes of a record's value.
    pub(super) size: usize,
    /// True if the store has an order of keys, which inserts keep.
    pub(super) is_ordered: bool,
}

/// A connection, of which a session is made.
pub(super) trait Opened {
    /// The session on the connection.
    type Session<'o>: Session
    where
        Self: 'o;

    /// Returns the session.
    fn session(&mut self) -> Result<Self::Session<'_>, Fail>;
}

/// A read of records in the order of their keys, which comes in pages.
pub(super) struct Scan {
    rest: Option<IndexRange>,
    /// Number of records to read.
    count: u64,
    /// Number of records so far.
    pub(super) found: u64,
    /// Bytes of each record.
    size: usize,
}

impl Scan {
    /// Makes a scan of `count` records of `size` bytes, from `key` on.
    pub(super) fn new(key: &[u8], count: u64, size: usize) -> Self {
        Self { rest: Some(IndexRange::new(key..)), count, found: 0, size }
    }

    /// Returns the range and the most records of the next page. `None`: the scan has ended.
    pub(super) fn next(&mut self) -> Option<(IndexRange, usize)> {
        let most = self.count - self.found;
        self.rest.take().filter(|_| most > 0).map(|range| (range, most as usize))
    }

    /// Takes a page. Fails if a record has another size.
    pub(super) fn add(&mut self, page: IndexPage) -> Result<(), Fail> {
        if let Some(other) = page.found.iter().find(|it| it.value.len() != self.size) {
            return Err(wrong(other.value.len(), self.size));
        }
        self.found += page.found.len() as u64;
        self.rest = page.rest;
        Ok(())
    }
}

/// The name of the index that has the records in the order of their keys.
pub(super) const ORDER: &str = "by key";

/// A connection to our store over one transport.
pub(super) struct OurConnection {
    pub(super) store: Store,
    pub(super) table: TableId,
    pub(super) shape: Shape,
}

impl OurConnection {
    /// Creates the index of the records' keys, which has the loaded records too.
    pub(super) fn create_order(&self) -> Result<(), Fail> {
        let table = self.indexed()?;
        let created = table.create_index(ORDER, Source::Key);
        created.map(drop).map_err(|error| self.store.explain_index(error, "the index of keys"))
    }

    fn indexed(&self) -> Result<IndexedTable<'_>, Fail> {
        let client = self.store.raw();
        let indexed = client.indexed(&client.table_by_id(self.table));
        indexed.map_err(|error| self.store.explain_index(error, "the table of the records"))
    }
}

impl Opened for OurConnection {
    type Session<'o> = Ours<'o>;

    fn session(&mut self) -> Result<Ours<'_>, Fail> {
        let connection = &*self;
        let Self { store, table, shape: Shape { size, is_ordered } } = connection;
        let indexed = if *is_ordered { Some(connection.indexed()?) } else { None };
        let (tags, ready) = (Vec::new(), VecDeque::new());
        Ok(Ours { store, table: *table, size: *size, indexed, tags, ready })
    }
}

/// A session with our store. Operations with an index end before they return.
pub(super) struct Ours<'o> {
    store: &'o Store,
    table: TableId,
    size: usize,
    /// The table with its order of keys, if it has one.
    indexed: Option<IndexedTable<'o>>,
    /// The tag of each operation in progress, by the operation's index.
    tags: Vec<u32>,
    /// The operations that ended as they returned: the tag, and the number of records.
    ready: VecDeque<(u32, u64)>,
}

impl Ours<'_> {
    fn note(&mut self, index: usize, tag: u32) {
        if index >= self.tags.len() {
            self.tags.resize(index + 1, 0);
        }
        self.tags[index] = tag;
    }
}

impl Session for Ours<'_> {
    fn read(&mut self, key: &[u8], tag: u32) {
        let id = self.store.raw().table_by_id(self.table).start_get(key).queue();
        self.note(id.index(), tag);
    }

    fn write(&mut self, key: &[u8], value: &[u8], tag: u32) {
        let id = self.store.raw().table_by_id(self.table).start_put(key, value).queue();
        self.note(id.index(), tag);
    }

    fn insert(&mut self, key: &[u8], value: &[u8], tag: u32) -> Result<(), Fail> {
        let Some(indexed) = &self.indexed else {
            self.write(key, value, tag);
            return Ok(());
        };
        let written = indexed.put(key, value);
        written.map_err(|error| self.store.explain_index(error, "an insert"))?;
        self.ready.push_back((tag, 1));
        Ok(())
    }

    fn scan(&mut self, key: &[u8], count: u64, tag: u32) -> Result<(), Fail> {
        let Some(indexed) = &self.indexed else { return Err(unordered()) };
        let mut scan = Scan::new(key, count, self.size);
        while let Some((range, most)) = scan.next() {
            let page = indexed.page(ORDER, range, most);
            scan.add(page.map_err(|error| self.store.explain_index(error, "a scan"))?)?;
        }
        self.ready.push_back((tag, scan.found));
        Ok(())
    }

    fn turn(&mut self) -> Result<(), Fail> {
        if self.ready.is_empty() {
            self.store.raw().turn_and_rest();
        }
        Ok(())
    }

    fn completed(&mut self) -> Result<Option<(u32, u64)>, Fail> {
        if let Some(ready) = self.ready.pop_front() {
            return Ok(Some(ready));
        }
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
            Some(Ok((tag, found))) if found == size => Ok(Some((tag, 1))),
            Some(Ok((_, found))) => Err(wrong(found, size)),
            Some(Err(error)) => Err(self.store.explain(error, "an operation on a record")),
        }
    }
}

/// A connection to the server of a peer.
pub(super) struct TheirConnection {
    pub(super) connection: Connection,
    pub(super) shape: Shape,
}

impl Opened for TheirConnection {
    type Session<'o> = Theirs<'o>;

    fn session(&mut self) -> Result<Theirs<'_>, Fail> {
        let Self { connection, shape } = self;
        Ok(Theirs { connection, shape: *shape, waiting: Vec::new() })
    }
}

/// The replies that an operation waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiting {
    /// The last reply is to come.
    Last,
    /// Two replies are to come.
    Two,
    /// The keys of a scan are to come, and then its objects.
    Keys,
}

/// A session with the server of a peer.
pub(super) struct Theirs<'o> {
    connection: &'o mut Connection,
    shape: Shape,
    /// The state of each operation in progress, by its tag.
    waiting: Vec<Waiting>,
}

impl Theirs<'_> {
    fn wait(&mut self, tag: u32, what: Waiting) {
        let at = tag as usize;
        if at >= self.waiting.len() {
            self.waiting.resize(at + 1, Waiting::Last);
        }
        self.waiting[at] = what;
    }

    /// Returns the number of objects of a list, each of which has the records' size.
    fn listed(&self) -> Result<u64, Fail> {
        let mut count = 0;
        for element in self.connection.elements() {
            match element {
                Some(value) if value.len() == self.shape.size => count += 1,
                Some(value) => return Err(wrong(value.len(), self.shape.size)),
                None => return Err(Fail::new("a record is absent")),
            }
        }
        Ok(count)
    }
}

impl Session for Theirs<'_> {
    fn read(&mut self, key: &[u8], tag: u32) {
        self.wait(tag, Waiting::Last);
        self.connection.get(key, tag);
    }

    fn write(&mut self, key: &[u8], value: &[u8], tag: u32) {
        self.wait(tag, Waiting::Last);
        self.connection.set(key, value, tag);
    }

    fn insert(&mut self, key: &[u8], value: &[u8], tag: u32) -> Result<(), Fail> {
        if self.shape.is_ordered {
            self.wait(tag, Waiting::Two);
            self.connection.insert_ordered(key, value, tag);
        } else {
            self.write(key, value, tag);
        }
        Ok(())
    }

    fn scan(&mut self, key: &[u8], count: u64, tag: u32) -> Result<(), Fail> {
        if !self.shape.is_ordered {
            return Err(unordered());
        }
        self.wait(tag, Waiting::Keys);
        self.connection.keys_from(key, count, tag);
        Ok(())
    }

    fn turn(&mut self) -> Result<(), Fail> {
        self.connection.turn()
    }

    fn completed(&mut self) -> Result<Option<(u32, u64)>, Fail> {
        let size = self.shape.size;
        while let Some((tag, reply)) = self.connection.reply()? {
            let waiting = self.waiting[tag as usize];
            self.wait(tag, Waiting::Last);
            match reply {
                Reply::Done if waiting == Waiting::Two => {}
                Reply::Done => return Ok(Some((tag, 1))),
                Reply::Value(found) if found == size => return Ok(Some((tag, 1))),
                Reply::Value(found) => return Err(wrong(found, size)),
                Reply::List(1..) if waiting == Waiting::Keys => self.connection.read_listed(tag),
                Reply::List(_) if waiting == Waiting::Last => {
                    return Ok(Some((tag, self.listed()?)));
                }
                Reply::Absent | Reply::List(_) => return Err(Fail::new("a record is absent")),
            }
        }
        Ok(None)
    }
}

fn unordered() -> Fail {
    Fail::new("the store has no order of keys")
}

/// Returns the failure of a read that found a record of another size.
pub(super) fn wrong(found: usize, size: usize) -> Fail {
    Fail::new(format!("a record has {found} bytes instead of {size}"))
}
