//! Tables and their tablets, as the coordinator knows them.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::Caller;

use super::durable::{self, Stage};
use crate::durability::TableDurability;
use crate::message::Status;
use crate::message::control::{self, TableKey};
use crate::objects::segment::SegmentId;
use crate::types::{HashKey, ServerId, TableId, Version};

/// The most tablets of a table: the entries of a list.
pub(super) const MOST_TABLETS: usize = u16::MAX as usize;
/// The number of tablets of a table from which on recoveries cut no more tablets of it.
pub(super) const MANY_TABLETS: usize = 4096;

/// The progress of the coordinator's call to a tablet's server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// The coordinator's work for the tablet has not started.
    Idle,
    /// The tablet waits in [`Tables::ready`] for its call.
    Queued,
    /// A call to the tablet's server is in progress.
    Calling,
    /// A call to the tablet's server failed. The next one comes later ([`Tables::later`]).
    Waiting,
    /// The tablet's server has done its part of the table's stage, or is gone.
    Settled,
}

#[derive(Debug)]
pub(super) struct Tablet {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) server: ServerId,
    /// The segment of the owner's log up to which entries do not count for the tablet.
    pub(super) since: SegmentId,
    /// The lowest version of a write to the tablet.
    pub(super) floor: Version,
    pub(super) work: Work,
    /// The number of calls to the tablet's server that failed in a row.
    pub(super) failures: u32,
}

impl Tablet {
    /// Returns a tablet of the hashes `range` without a call in progress.
    pub(super) fn new(range: (u64, u64), server: ServerId, since: SegmentId, work: Work) -> Self {
        let (floor, failures) = (Version(0), 0);
        Self { first: range.0, last: range.1, server, since, floor, work, failures }
    }

    fn record(&self) -> durable::Tablet {
        let &Self { first, last, server, since, floor, .. } = self;
        durable::Tablet { first, last, server, since, floor }
    }
}

#[derive(Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) hash_key: HashKey,
    pub(super) durability: TableDurability,
    pub(super) stage: Stage,
    pub(super) tablets: Vec<Tablet>,
    /// The requests that wait for the end of the table's stage.
    pub(super) waiters: Vec<Caller>,
    /// The number of the table's last change. The coordinator calls no server before that change is
    /// durable.
    pub(super) changed: u64,
}

impl Table {
    pub(super) fn record(&self) -> durable::Table<'_> {
        let tablets = self.tablets.iter();
        durable::Table {
            stage: self.stage,
            name: &self.name,
            hash_key: self.hash_key,
            durability: self.durability,
            tablets: tablets.map(Tablet::record).collect(),
        }
    }

    pub(super) fn restored(record: &durable::Table<'_>) -> Self {
        let work = if record.stage == Stage::Ready { Work::Settled } else { Work::Idle };
        let tablets = record.tablets.iter();
        Self {
            name: record.name.into(),
            hash_key: record.hash_key,
            durability: record.durability,
            stage: record.stage,
            tablets: tablets
                .map(|t| Tablet {
                    floor: t.floor,
                    ..Tablet::new((t.first, t.last), t.server, t.since, work)
                })
                .collect(),
            waiters: Vec::new(),
            changed: 0,
        }
    }

    /// Returns true if the table has a name and its tablets cover each hash once.
    pub(super) fn makes_sense(&self) -> bool {
        let mut next = Some(0);
        let mut whole = (1..=MOST_TABLETS).contains(&self.tablets.len());
        for tablet in &self.tablets {
            whole &= next == Some(tablet.first) && tablet.first <= tablet.last;
            next = tablet.last.checked_add(1);
        }
        whole && next.is_none() && (1..=control::MAX_NAME).contains(&self.name.len())
    }

    /// Returns the tablet that has all hashes of `range`.
    pub(super) fn tablet(&self, range: (u64, u64)) -> Option<&Tablet> {
        self.tablets.get(self.index(range)?)
    }

    fn index(&self, (first, last): (u64, u64)) -> Option<usize> {
        let i = self.tablets.partition_point(|tablet| tablet.last < first);
        let tablet = self.tablets.get(i)?;
        (tablet.first <= first && first <= last && last <= tablet.last).then_some(i)
    }

    /// Gives a range within one tablet of a table in use to another server, and raises the lowest
    /// version of its writes to `floor`. The rest of the tablet stays with its owner.
    pub(super) fn give(
        &mut self,
        range: (u64, u64),
        owner: ServerId,
        since: SegmentId,
        floor: Version,
    ) {
        let Some(i) = self.index(range) else { return };
        let &Tablet { first, last, server, since: old, floor: old_floor, .. } = &self.tablets[i];
        let rest =
            |range| Tablet { floor: old_floor, ..Tablet::new(range, server, old, Work::Settled) };
        let mut pieces = Vec::with_capacity(3);
        if first < range.0 {
            pieces.push(rest((first, range.0 - 1)));
        }
        let floor = floor.max(old_floor);
        pieces.push(Tablet { floor, ..Tablet::new(range, owner, since, Work::Settled) });
        if range.1 < last {
            pieces.push(rest((range.1 + 1, last)));
        }
        self.tablets.splice(i..=i, pieces);
    }

    /// Divides the tablet of a table in use that contains the hash `at`, so that one begins there.
    /// Returns the owner, `None` if one begins there already.
    pub(super) fn split(&mut self, at: u64) -> Option<ServerId> {
        let i = self.index((at, at))?;
        let tablet = &mut self.tablets[i];
        if tablet.first == at {
            return None;
        }
        let (server, last) = (tablet.server, tablet.last);
        let second = Tablet {
            floor: tablet.floor,
            ..Tablet::new((at, last), server, tablet.since, Work::Settled)
        };
        tablet.last = at - 1;
        self.tablets.insert(i + 1, second);
        Some(server)
    }

    /// Unites the tablet of a table in use that begins at the hash `at` and the one before it.
    /// Returns the owner, `None` if no tablet begins there.
    ///
    /// # Errors
    /// The status and the text of the refusal. Nothing has changed.
    pub(super) fn merge(&mut self, at: u64) -> Result<Option<ServerId>, (Status, &'static str)> {
        let Some(i) = self.index((at, at)).filter(|&i| i > 0 && self.tablets[i].first == at) else {
            return Ok(None);
        };
        let (before, tablet) = (&self.tablets[i - 1], &self.tablets[i]);
        if before.server != tablet.server {
            let text = "two servers own the tablets: move one of them first";
            return Err((Status::WrongTablets, text));
        }
        if before.since != tablet.since {
            let text = "one of the tablets came back to a server that owned it before, whose log \
                        may have its old objects: move it to another server first";
            return Err((Status::WrongTablets, text));
        }
        let (server, last, floor) = (tablet.server, tablet.last, tablet.floor);
        let before = &mut self.tablets[i - 1];
        (before.last, before.floor) = (last, before.floor.max(floor));
        self.tablets.remove(i);
        Ok(Some(server))
    }

    pub(super) fn key(&self, cluster: u64, id: u64) -> TableKey {
        TableKey { cluster, table: TableId(id), hash_key: self.hash_key }
    }
}

/// A call to a master that is in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) table: u64,
    pub(super) tablet: usize,
    /// The first hash of the tablet. After a rollback the index may be another tablet's.
    pub(super) first: u64,
    pub(super) server: ServerId,
    pub(super) stage: Stage,
}

impl Call {
    /// Returns true if the call is to the owner of this tablet.
    pub(super) fn is_of(&self, tablet: &Tablet) -> bool {
        (tablet.first, tablet.server) == (self.first, self.server)
    }
}

#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) by_id: BTreeMap<u64, Table>,
    /// The ids of the tables that are not being dropped, by name.
    pub(super) by_name: BTreeMap<String, u64>,
    /// The number of tablets of all tables.
    pub(super) tablets: usize,
    /// The number of requests that wait for any table.
    pub(super) waiting: usize,
    pub(super) ready: VecDeque<(u64, usize)>,
    pub(super) later: BTreeSet<(Instant, u64, usize)>,
    pub(super) calls: BTreeMap<u64, Call>,
    pub(super) next_tag: u64,
}

impl Tables {
    /// Returns the time at which the coordinator repeats the next failed call.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.later.first().map(|&(at, ..)| at)
    }

    /// Takes over the calls in progress from `old`.
    pub(super) fn take_calls(&mut self, old: Self) {
        (self.calls, self.next_tag) = (old.calls, old.next_tag);
        for call in self.calls.values() {
            let table = self.by_id.get_mut(&call.table).filter(|table| table.stage != Stage::Ready);
            let tablet = table.and_then(|table| table.tablets.get_mut(call.tablet));
            if let Some(tablet) = tablet.filter(|tablet| call.is_of(tablet)) {
                tablet.work = Work::Calling;
            }
        }
    }

    /// Inserts a table. Returns false if its name is in use.
    pub(super) fn insert(&mut self, id: u64, table: Table) -> bool {
        if table.stage != Stage::Dropping && self.by_name.insert(table.name.clone(), id).is_some() {
            return false;
        }
        self.tablets += table.tablets.len();
        self.by_id.insert(id, table);
        true
    }
}
