//! Changes of objects of tables with indexes, as far as one master has all of the indexes.
//!
//! The master does what a client does otherwise by a read and a transaction ([`crate::index`]):
//! [`crate::btree::change`] finds the nodes, and the object and the nodes are one group of the log.
//! What the master has not, or what needs a merge of leaves or a split of nodes above them, it
//! leaves to the client.
//!
//! Invariants: an object and its entries change together or not at all. The group has one
//! completion record, that of the object.

use alloc::vec::Vec;
use core::mem::take;

use arrayvec::ArrayVec;
use sprat_proto::Rng;

use crate::btree::change::{Edited, MOST_LEAVES, MOST_NODES, Nodes, Object, change};
use crate::btree::{COPIES, catalog_key};
use crate::message::Status;
use crate::message::data::{Once, RejectRules};
use crate::message::transaction::Participants;
use crate::objects::commit::Item;
use crate::objects::entry::Outcome;
use crate::objects::locks::Access;
use crate::objects::memory::Memory;
use crate::objects::mutate::{Before, Change, Mutation};
use crate::objects::record::Planned;
use crate::objects::table::spread;
use crate::types::{KeyHash, TableId, Version, WallTime};

/// The hashes of the nodes that a change has edited.
pub type Edits = ArrayVec<KeyHash, MOST_NODES>;

/// The place of a node in a master's memory: the hash of its key, and the object if it exists.
type NodePlace = (KeyHash, Option<Before>);

/// The most bytes of edited leaves that the memory keeps room for.
const KEPT: usize = 64 << 10;

/// The nodes of a table that a master has.
struct Here<'m> {
    memory: &'m Memory,
    table: TableId,
    /// The identity of the change.
    once: Once,
}

impl<'m> Nodes<'m> for Here<'m> {
    type Place = NodePlace;

    fn expect(&self, keys: impl Iterator<Item = [u8; 10]>) {
        let &Self { memory, table, .. } = self;
        let position = |key: [u8; 10]| Some(spread(table, memory.tablets.locate(table, &key)?));
        let positions: ArrayVec<u64, MOST_LEAVES> = keys.filter_map(position).collect();
        memory.load(&positions);
    }

    fn node(&self, key: &[u8]) -> Result<(Self::Place, &'m [u8]), Status> {
        let &Self { memory, table, .. } = self;
        let hash = memory.tablets.locate(table, key).ok_or(Status::OtherLeaf)?;
        let before = memory.before(table, hash, key).ok_or(Status::OtherLeaf)?;
        Ok(((hash, Some(before)), memory.log.object(before.at).value))
    }

    fn absent(&self, key: &[u8]) -> Result<Self::Place, Status> {
        let &Self { memory, table, .. } = self;
        let hash = memory.tablets.locate(table, key).ok_or(Status::OtherLeaf)?;
        let place = (hash, None);
        self.check(&place)?;
        if memory.find(table, hash, key).is_none() { Ok(place) } else { Err(Status::OtherLeaf) }
    }

    fn check(&self, (hash, _): &Self::Place) -> Result<(), Status> {
        let is_locked = self.memory.transactions.is_locked(self.table, *hash, Access::Change);
        if is_locked { Err(Status::Locked) } else { Ok(()) }
    }

    fn random(&self) -> u64 {
        // A client uses no number twice.
        Rng::seeded(self.once.lease.0.rotate_left(32) ^ self.once.rpc).u64()
    }
}

impl Memory {
    /// Executes a mutation that is new, a write or a removal, together with the entries of its
    /// object in the indexes whose nodes are in the table `nodes`. Puts the edited nodes into
    /// `edits`. The outcome has the status [`Status::OtherLeaf`] if not all nodes that the change
    /// needs are here, or if leaves have to be merged, or nodes above them to be split.
    ///
    /// # Errors
    /// Those of [`Memory::mutate`], and [`Status::Locked`].
    pub fn change_indexed(
        &mut self,
        mutation: &Mutation<'_>,
        nodes: TableId,
        edits: &mut Edits,
    ) -> Result<Outcome, Status> {
        edits.clear();
        let &Mutation { target, once, key, hash, wall, .. } = mutation;
        let (planned, value) = match mutation.change {
            Change::Write(value, lifetime) => {
                (Planned::Write(value, wall.after(lifetime)), Some(value))
            }
            _ => (Planned::Remove, None),
        };
        let before = self.before(target.table, hash, key);
        let old = before.filter(|before| wall < before.expires);
        let version = old.map_or(Version(0), |old| old.version);
        let outcome = |status| Outcome { status, version, sum: None };
        if let Err(status) = target.rules.check(version) {
            return self.leave(mutation, before.as_ref(), outcome(status));
        }
        if old.is_none() && value.is_none() {
            return self.leave(mutation, before.as_ref(), outcome(Status::Ok));
        }
        let mut bytes = take(&mut self.edited);
        bytes.clear();
        let edited = self.edit_nodes((nodes, once), (key, before, value), &mut bytes);
        let item = Item {
            table: target.table,
            hash,
            key,
            rules: RejectRules::default(),
            once,
            planned,
            before,
        };
        let committed =
            edited.and_then(|edited| self.commit_with(&item, nodes, (&edited, &bytes), edits));
        if bytes.capacity() <= KEPT {
            self.edited = bytes;
        }
        match committed {
            // The client finds out what is too long.
            Err(Status::OtherLeaf | Status::ValueTooLong) => {
                self.leave(mutation, before.as_ref(), outcome(Status::OtherLeaf))
            }
            version => Ok(Outcome { version: version?, ..outcome(Status::Ok) }),
        }
    }

    /// Commits an object together with the edited nodes, which are in `bytes`. Returns the version
    /// of the object.
    fn commit_with(
        &mut self,
        item: &Item<'_>,
        nodes: TableId,
        (edited, bytes): (&[Edited<NodePlace>], &[u8]),
        edits: &mut Edits,
    ) -> Result<Version, Status> {
        let mut items = Vec::with_capacity(1 + edited.len());
        items.push(*item);
        items.extend(edited.iter().map(|node| Item {
            table: nodes,
            hash: node.place.0,
            key: &node.key,
            rules: RejectRules::default(),
            once: Once::default(),
            planned: Planned::Write(&bytes[node.bytes.clone()], WallTime::NEVER),
            before: node.place.1,
        }));
        let versions = self.commit(&items, Participants::default())?;
        edits.extend(edited.iter().map(|node| node.place.0));
        Ok(versions[0])
    }

    /// Appends the nodes that change with an object to `bytes`, and returns them. Changes nothing
    /// yet.
    fn edit_nodes(
        &self,
        (nodes, once): (TableId, Once),
        (key, before, after): (&[u8], Option<Before>, Option<&[u8]>),
        bytes: &mut Vec<u8>,
    ) -> Result<Vec<Edited<NodePlace>>, Status> {
        let Some(catalog) = self.catalog(nodes)? else { return Ok(Vec::new()) };
        let before = before.map(|before| self.log.object(before.at).value);
        let here = Here { memory: self, table: nodes, once };
        let object = Object { key, before, after };
        // What a segment has no room for is not worth the work.
        change(&here, catalog, object, self.log.longest_entry(), bytes)
    }

    /// Returns the catalog of the indexes, `None` if there is none.
    fn catalog(&self, nodes: TableId) -> Result<Option<&[u8]>, Status> {
        let mut copies = (0..COPIES).map(catalog_key);
        let here = copies.find_map(|key| Some((key, self.tablets.locate(nodes, &key)?)));
        let (key, hash) = here.ok_or(Status::OtherLeaf)?;
        if self.transactions.is_locked(nodes, hash, Access::Keep) {
            return Err(Status::Locked);
        }
        Ok(self.find(nodes, hash, &key).map(|(_, at)| self.log.object(at).value))
    }
}
