//! The operations that a program can start with a client. Each ends exactly once, by an answer or
//! an error; none fails here.

use alloc::vec::Vec;
use core::ops::Deref;

use sprat_proto::Instant;

use super::cursor::Cursor;
use super::error::Error;
use super::op::{Op, PeerId};
use super::state::{Client, Kind, State, TableOptions, op};
use super::transaction::TransactionPart;
use super::values::LONG;
use crate::message::Status;
use crate::message::control::MAX_NAME;
use crate::message::data::{Amount, Once, RejectRules, Target};
use crate::message::transaction::Change;
use crate::ops::{Kind as IndexedKind, Parts, Request, Scan, Write};
use crate::types::{Lifetime, MAX_KEY, MAX_VALUE, ServerId, TableId};

/// The value of an operation that starts: copied, owned or lent.
enum NewValue<'v> {
    Copied(&'v [u8]),
    Owned(Vec<u8>),
    Lent(&'v [u8]),
}

impl NewValue<'_> {
    fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Copied(bytes) | Self::Lent(bytes) => bytes.to_vec(),
        }
    }
}

impl Deref for NewValue<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Copied(bytes) | Self::Lent(bytes) => bytes,
        }
    }
}

impl Client {
    /// Reads an object. The answer is [`Answer::Object`](super::Answer::Object).
    #[inline]
    pub fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        self.object(Request::Read(()), table, key, &[], rules, deadline)
    }

    /// Reads an object and the rest of its lifetime. The answer is
    /// [`Answer::Expiring`](super::Answer::Expiring).
    pub fn read_expiring(
        &mut self,
        table: TableId,
        key: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        self.object(Request::ReadExpiring(()), table, key, &[], rules, deadline)
    }

    /// Looks up entries of the leaf of an index under `key`, with their objects. The answer is
    /// [`Answer::Object`](super::Answer::Object) with the version of the leaf.
    pub fn look_up(&mut self, nodes: TableId, key: &[u8], query: &[u8], deadline: Instant) -> Op {
        self.object(Request::LookUp(()), nodes, key, query, RejectRules::default(), deadline)
    }

    /// Writes an object. The answer is [`Answer::Version`](super::Answer::Version).
    pub fn write(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        if value.len() > LONG {
            return self.write_long(table, key, NewValue::Copied(value), None, rules, deadline);
        }
        self.object(Request::Write(None), table, key, value, rules, deadline)
    }

    /// Writes an object as [`Client::write`] does. It expires after this lifetime.
    pub fn write_expiring(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        lifetime: Lifetime,
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        if lifetime > Lifetime::MAX {
            return self.unsent(Request::Write(None), Error::LifetimeTooLong(lifetime), deadline);
        }
        let lifetime = Some(lifetime);
        if value.len() > LONG {
            return self.write_long(table, key, NewValue::Copied(value), lifetime, rules, deadline);
        }
        self.object(Request::Write(lifetime), table, key, value, rules, deadline)
    }

    /// Writes or removes an object together with its entries in the indexes of its table, whose
    /// nodes are in the table `nodes`. The answer is [`Answer::Version`](super::Answer::Version).
    ///
    /// The operation ends at once with the status [`Status::UnknownTablet`] if several servers have
    /// the object and the nodes, and with [`Status::Retry`] if the client does not know yet which
    /// servers have them. With [`Status::OtherLeaf`], nothing has changed, and the operation will
    /// never be executed: leaves have to be merged, a node above them has to be split, the value is
    /// long, or the nodes are on several servers.
    pub fn change_indexed(
        &mut self,
        nodes: TableId,
        part: &TransactionPart<'_>,
        deadline: Instant,
    ) -> Op {
        let &TransactionPart { table, key, rules, change } = part;
        let (kind, value) = match change {
            Change::Write(value, lifetime) => (IndexedKind::Write(lifetime), value),
            _ => (IndexedKind::Remove, &[][..]),
        };
        let request = Request::ChangeIndexed((nodes, kind));
        let is_whole = matches!(change, Change::Write(..) | Change::Remove) && value.len() <= LONG;
        let refused = match kind {
            IndexedKind::Write(Some(lifetime)) if lifetime > Lifetime::MAX => {
                Some(Error::LifetimeTooLong(lifetime))
            }
            _ if !is_whole => Some(Error::refused(Status::OtherLeaf)),
            _ => match self.routes.is_beside((table, key), nodes) {
                Some(true) => None,
                Some(false) => Some(Error::refused(Status::UnknownTablet)),
                // The transaction that makes the change in its place asks for the tablets.
                None => Some(Error::refused(Status::Retry)),
            },
        };
        match refused {
            Some(error) => self.unsent(request, error, deadline),
            None => self.object(request, table, key, value, rules, deadline),
        }
    }

    /// Gives an object this lifetime from now on; with `None` it does not expire. The answer is
    /// [`Answer::Version`](super::Answer::Version).
    pub fn touch(
        &mut self,
        table: TableId,
        key: &[u8],
        lifetime: Option<Lifetime>,
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        let request = Request::Touch(lifetime);
        if let Some(lifetime) = lifetime.filter(|lifetime| *lifetime > Lifetime::MAX) {
            return self.unsent(request, Error::LifetimeTooLong(lifetime), deadline);
        }
        self.object(request, table, key, &[], rules, deadline)
    }

    /// Writes an object as [`Client::write`] does, and copies no long value.
    pub fn write_owned(
        &mut self,
        table: TableId,
        key: &[u8],
        value: Vec<u8>,
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        if value.len() > LONG {
            return self.write_long(table, key, NewValue::Owned(value), None, rules, deadline);
        }
        self.object(Request::Write(None), table, key, &value, rules, deadline)
    }

    /// Writes an object as [`Client::write`] does. While [`Client::is_lending`], the caller lends
    /// the same value to each turn of the node, and calls [`Client::give_back`] once the operation
    /// has ended.
    pub fn write_lent(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        if value.len() > LONG {
            return self.write_long(table, key, NewValue::Lent(value), None, rules, deadline);
        }
        self.object(Request::Write(None), table, key, value, rules, deadline)
    }

    /// Removes an object. The answer is [`Answer::Version`](super::Answer::Version).
    pub fn remove(
        &mut self,
        table: TableId,
        key: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        self.object(Request::Remove(()), table, key, &[], rules, deadline)
    }

    /// Adds to an object that is a 64-bit integer; a missing one counts as 0. The answer is
    /// [`Answer::Integer`](super::Answer::Integer).
    pub fn increment_integer(
        &mut self,
        table: TableId,
        key: &[u8],
        amount: i64,
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        let request = Request::Increment(Amount::Integer(amount));
        self.object(request, table, key, &[], rules, deadline)
    }

    /// Adds to an object that is a double; a missing one counts as 0. The answer is
    /// [`Answer::Double`](super::Answer::Double).
    pub fn increment_double(
        &mut self,
        table: TableId,
        key: &[u8],
        amount: f64,
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        let request = Request::Increment(Amount::Double(amount));
        self.object(request, table, key, &[], rules, deadline)
    }

    /// Adds bytes to the end of an object's value; a missing object counts as empty. The answer is
    /// [`Answer::Length`](super::Answer::Length).
    pub fn append(
        &mut self,
        table: TableId,
        key: &[u8],
        bytes: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        self.object(Request::Append(()), table, key, bytes, rules, deadline)
    }

    /// Writes an object as [`Client::write`] or, with a lifetime, [`Client::write_expiring`] does.
    /// The answer is [`Answer::Swapped`](super::Answer::Swapped): it has the object before.
    pub fn swap(
        &mut self,
        table: TableId,
        key: &[u8],
        value: &[u8],
        lifetime: Option<Lifetime>,
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        let request = Request::Swap(lifetime);
        if let Some(lifetime) = lifetime.filter(|lifetime| *lifetime > Lifetime::MAX) {
            return self.unsent(request, Error::LifetimeTooLong(lifetime), deadline);
        }
        self.object(request, table, key, value, rules, deadline)
    }

    /// Lists some objects of a table, from `cursor` on (the default one at the start).
    ///
    /// The answer is [`Answer::Page`](super::Answer::Page), which has the next cursor. An object
    /// that does not change meanwhile comes once.
    pub fn enumerate(&mut self, table: TableId, cursor: Cursor, deadline: Instant) -> Op {
        let (first, limit, within) = cursor.range();
        let request = Request::Enumerate(Scan { first, limit, last: limit, within });
        let op = self.object(request, table, &[], &[], RejectRules::default(), deadline);
        let slot = &mut self.slots[op.index()];
        if slot.state != State::Free {
            slot.extra().cursor = cursor;
        }
        op
    }

    /// Creates a table with these options unless the name is in use.
    ///
    /// The answer is [`Answer::Table`](super::Answer::Table). The operation ends with
    /// [`Error::TabletLost`] if the table exists and a part of it is lost.
    pub fn create_table(
        &mut self,
        name: &str,
        options: impl Into<TableOptions>,
        deadline: Instant,
    ) -> Op {
        self.named(Kind::Create(options.into()), name, deadline)
    }

    /// Drops a table with all its objects.
    ///
    /// The answer is [`Answer::Dropped`](super::Answer::Dropped), once no server has the table.
    pub fn drop_table(&mut self, name: &str, deadline: Instant) -> Op {
        self.named(Kind::Drop(TableId(0)), name, deadline)
    }

    /// Looks a table up by name. The answer is [`Answer::Table`](super::Answer::Table).
    pub fn table(&mut self, name: &str, deadline: Instant) -> Op {
        self.named(Kind::Lookup, name, deadline)
    }

    /// Lists all tables. The answer is [`Answer::Tables`](super::Answer::Tables).
    pub fn list_tables(&mut self, deadline: Instant) -> Op {
        self.plain(Kind::ListTables, PeerId::COORDINATOR, &[], deadline)
    }

    /// Lists the tablets of a table. The answer is [`Answer::Tablets`](super::Answer::Tablets).
    pub fn list_tablets(&mut self, table: TableId, deadline: Instant) -> Op {
        self.plain(Kind::ListTablets(table), PeerId::COORDINATOR, &[], deadline)
    }

    /// Divides the tablet of a table that contains the key hash `at`, so that a tablet begins with
    /// it. The answer is [`Answer::Arranged`](super::Answer::Arranged).
    pub fn split_tablet(&mut self, name: &str, at: u64, deadline: Instant) -> Op {
        self.named(Kind::Split { at }, name, deadline)
    }

    /// Unites the tablet of a table that begins with the key hash `at` and the one before it. One
    /// server must own both. The answer is [`Answer::Arranged`](super::Answer::Arranged).
    pub fn merge_tablets(&mut self, name: &str, at: u64, deadline: Instant) -> Op {
        self.named(Kind::Merge { at }, name, deadline)
    }

    /// Begins to move the keys of a table with hashes from `first` to `last`, which are in one
    /// tablet, to the server with the index `target`. The answer is
    /// [`Answer::Migration`](super::Answer::Migration).
    pub fn move_tablet(
        &mut self,
        name: &str,
        (first, last): (u64, u64),
        target: u32,
        deadline: Instant,
    ) -> Op {
        self.named(Kind::Move { first, last, target }, name, deadline)
    }

    /// Lists the migrations that are in progress or have ended a short while ago. The answer is
    /// [`Answer::Migrations`](super::Answer::Migrations).
    pub fn list_migrations(&mut self, deadline: Instant) -> Op {
        self.plain(Kind::ListMigrations, PeerId::COORDINATOR, &[], deadline)
    }

    /// Finds the coordinator that leads. The answer is [`Answer::Leader`](super::Answer::Leader).
    pub fn leader(&mut self, deadline: Instant) -> Op {
        self.plain(Kind::Leader, PeerId::COORDINATOR, &[], deadline)
    }

    /// Lists all servers. The answer is [`Answer::Servers`](super::Answer::Servers).
    pub fn list_servers(&mut self, deadline: Instant) -> Op {
        self.plain(Kind::ListServers, PeerId::COORDINATOR, &[], deadline)
    }

    /// Asks what the blocked recovery of a crashed server loses, and accepts that if `accept` is
    /// true. The answer is [`Answer::Loss`](super::Answer::Loss).
    pub fn accept_loss(&mut self, server: ServerId, accept: bool, deadline: Instant) -> Op {
        self.plain(Kind::AcceptLoss { server, accept }, PeerId::COORDINATOR, &[], deadline)
    }

    /// Sends `bytes` (up to 1 MiB) to a server and back. The answer is
    /// [`Answer::Bytes`](super::Answer::Bytes).
    pub fn echo(&mut self, peer: PeerId, bytes: &[u8], deadline: Instant) -> Op {
        self.plain(Kind::Server(Request::Echo(())), peer, bytes, deadline)
    }

    /// Reads the counters of a server. The answer is [`Answer::Bytes`](super::Answer::Bytes), a
    /// JSON object.
    pub fn stats(&mut self, peer: PeerId, deadline: Instant) -> Op {
        self.plain(Kind::Server(Request::Stats(())), peer, &[], deadline)
    }

    /// Returns the server at `locators` (as in [`ServerInfo::data`](super::ServerInfo::data)), by
    /// the transports of this client.
    ///
    /// # Errors
    /// [`Error::NoTransport`].
    pub fn peer(&mut self, locators: &str) -> Result<PeerId, Error> {
        self.routes.peer(locators).map(PeerId).map_err(Error::NoTransport)
    }

    /// Returns true if the operation is in progress, or if [`Client::event`] has not yet returned
    /// its outcome.
    #[must_use]
    pub fn is_in_progress(&self, op: Op) -> bool {
        self.live(op.0).is_some() || self.events.iter().any(|done| done.op == op)
    }

    /// Cancels an operation, so that it has no outcome. It may have been executed. Returns true if
    /// it was in progress.
    pub fn cancel(&mut self, op: Op) -> bool {
        match self.live(op.0) {
            Some(index) if !self.slots[index as usize].kind.is_own() => {
                let before = self.in_progress();
                self.cancel_transaction(index);
                self.end_parts(index);
                self.end(index);
                self.counters.cancelled += (before - self.in_progress()) as u64;
                // Parts that had just got room in the window may have ended.
                if !self.rifl.queued.is_empty() {
                    self.open_window();
                }
                true
            }
            _ => false,
        }
    }

    #[inline(always)]
    fn object(
        &mut self,
        request: Request,
        table: TableId,
        key: &[u8],
        value: &[u8],
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        if key.len() > MAX_KEY || value.len() > MAX_VALUE {
            return self.too_long(request, key.len(), value.len(), deadline);
        }
        let target = Target { cluster: self.cluster, table, rules, durable: false };
        let once = Once::default();
        let parts = Parts { target, once, key, value, page_bytes: self.config.page_bytes };
        let place = self.routes.table(table);
        let index = self.begin(Kind::Server(request), place, deadline);
        let slot = &mut self.slots[index as usize];
        let op = op(index, slot);
        slot.bytes = request.emit_in(parts, core::mem::take(&mut slot.bytes));
        slot.key_at = slot.bytes.len() - key.len() - value.len();
        slot.key_len = key.len();
        self.start(index);
        op
    }

    /// Refuses an operation whose key or value is too long.
    #[cold]
    fn too_long(&mut self, request: Request, key: usize, value: usize, deadline: Instant) -> Op {
        let error = if key > MAX_KEY { Error::KeyTooLong(key) } else { Error::ValueTooLong(value) };
        self.unsent(request, error, deadline)
    }

    /// Ends an operation with this error before it starts.
    #[cold]
    fn unsent(&mut self, request: Request, error: Error, deadline: Instant) -> Op {
        let index = self.begin(Kind::Server(request), 0, deadline);
        let op = op(index, &self.slots[index as usize]);
        self.refuse(index, error);
        op
    }

    /// Starts the write of a long value, which stays apart from the operation's request.
    #[cold]
    fn write_long(
        &mut self,
        table: TableId,
        key: &[u8],
        value: NewValue<'_>,
        lifetime: Option<Lifetime>,
        rules: RejectRules,
        deadline: Instant,
    ) -> Op {
        let request = Request::Write(lifetime);
        if value.len() > MAX_VALUE {
            return self.too_long(request, key.len(), value.len(), deadline);
        }
        let op = self.object(request, table, key, &[], rules, deadline);
        if let Some(index) = self.live(op.0) {
            let lent = match value {
                NewValue::Lent(bytes) => self.values.borrow(bytes.len()),
                NewValue::Copied(_) | NewValue::Owned(_) => None,
            };
            let target = Target { cluster: self.cluster, table, rules, durable: false };
            let write = Write { target, once: Once::default(), key, value: &[], lifetime };
            let long = lent.unwrap_or_else(|| self.values.keep(value.into_vec()));
            let slot = &mut self.slots[index as usize];
            slot.bytes = write.emit_front(long.len, core::mem::take(&mut slot.bytes));
            slot.extra().long = Some(long);
        }
        op
    }

    fn named(&mut self, kind: Kind, name: &str, deadline: Instant) -> Op {
        let valid = (1..=MAX_NAME).contains(&name.len());
        let index = self.begin(kind, 0, deadline);
        let slot = &mut self.slots[index as usize];
        let op = op(index, slot);
        if valid {
            slot.bytes.clear();
            slot.bytes.extend_from_slice(name.as_bytes());
            self.start(index);
        } else {
            self.refuse(index, Error::BadName);
        }
        op
    }

    fn plain(&mut self, kind: Kind, peer: PeerId, bytes: &[u8], deadline: Instant) -> Op {
        let index = self.begin(kind, peer.0, deadline);
        let slot = &mut self.slots[index as usize];
        let op = op(index, slot);
        if bytes.len() > MAX_VALUE {
            self.refuse(index, Error::ValueTooLong(bytes.len()));
            return op;
        }
        slot.bytes.clear();
        if let Kind::Server(request) = kind {
            let parts = Parts { value: bytes, ..Parts::default() };
            slot.bytes = request.emit_in(parts, core::mem::take(&mut slot.bytes));
            slot.key_at = slot.bytes.len() - bytes.len();
        }
        self.start(index);
        op
    }
}
