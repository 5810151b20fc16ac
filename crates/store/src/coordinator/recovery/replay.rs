//! Partitions of a crashed server's tablets: the masters that recover them become their owners.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::Caller;
use sprat_proto::rpc::{MAX_MESSAGE, Message};

use super::plan::{MOST_PARTS, divide, shares};
use super::state::{Partition, Recovery, Step};
use crate::coordinator::durable::{Batch, Key, Stage};
use crate::coordinator::state::{Coordinator, Otherwise};
use crate::coordinator::table::{MANY_TABLETS, Table, Tablet};
use crate::message::Status;
use crate::message::control;
use crate::message::recovery::{Ending, Part, Piece, Range, Recover, RecoveryEnded, Source};
use crate::recovery::inventory::Found;
use crate::types::{ServerId, TableId};

/// The bytes of a tablet in an order.
const PART_BYTES: usize = 53;

impl Coordinator {
    /// Plans the partitions of a crashed server's tablets that belong to none. A partition stays if
    /// the crashed server still owns all of it.
    pub(super) fn plan_partitions(&mut self, id: ServerId, recovery: &mut Recovery) {
        let owned = |part: &Part| {
            let table = self.tables.by_id.get(&part.table.0);
            table.is_some_and(|table| is_owned(table, (part.first, part.last), id))
        };
        recovery.partitions.retain(|_, partition| partition.parts.iter().all(owned));
        let planned = recovery.partitions.values().flat_map(|partition| &partition.parts);
        let mut planned: BTreeSet<_> =
            planned.map(|part| (part.table.0, part.first, part.last)).collect();
        let mut rest = Vec::new();
        for (&table, state) in self.tables.by_id.iter().filter(|(_, t)| t.stage == Stage::Ready) {
            for tablet in state.tablets.iter().filter(|tablet| tablet.server == id) {
                let mut part = Part {
                    table: TableId(table),
                    first: tablet.first,
                    last: tablet.last,
                    hash_key: state.hash_key,
                    durability: state.durability,
                    since: tablet.since,
                    floor: tablet.floor,
                };
                let mut is_left = true;
                while let Some(&(at, first, last)) =
                    planned.range((table, part.first, 0)..=(table, part.last, u64::MAX)).next()
                {
                    planned.remove(&(at, first, last));
                    if part.first < first {
                        rest.push(Part { last: first - 1, ..part.clone() });
                    }
                    is_left = last < part.last;
                    part.first = last.saturating_add(1);
                    if !is_left {
                        break;
                    }
                }
                if is_left {
                    rest.push(part);
                }
            }
        }
        let bytes = recovery.log.iter().flatten().map(|found| u64::from(found.len)).sum();
        let shares = shares(&self.config, bytes, self.servers.masters().count());
        let may_cut = |part: &Part| {
            let table = self.tables.by_id.get(&part.table.0);
            table.is_some_and(|table| table.tablets.len() < MANY_TABLETS)
        };
        for parts in divide(rest, shares, may_cut) {
            let key = self.next_number();
            let partition = Partition {
                parts,
                number: key,
                master: None,
                avoid: BTreeSet::new(),
                failures: 0,
                due: None,
                replayed: 0,
            };
            recovery.partitions.insert(key, partition);
        }
    }

    /// Returns the next number of a recovery or migration, above all those of earlier lives of the
    /// coordinator.
    pub(in crate::coordinator) fn next_number(&mut self) -> u64 {
        self.recoveries.count += 1;
        self.cluster.incarnation << 32 | u64::from(self.recoveries.count)
    }

    /// Gives partitions that no master recovers to masters, one partition to a master at a time.
    pub(super) fn assign_partitions(&mut self, now: Instant) {
        self.recoveries.reported.retain(|_, change| self.journal.safe < *change);
        let reported = self.recoveries.reported.keys().copied();
        let all = self.recoveries.all.values();
        let assigned = all.flat_map(|r| r.partitions.values()).filter_map(|p| p.master);
        let busy: BTreeSet<_> = assigned.chain(reported).collect();
        let up = self.servers.masters();
        let mut up: Vec<_> =
            up.map(|(id, slot)| (!slot.heard, slot.usage.used_bytes, id)).collect();
        up.sort_unstable();
        let mut free: Vec<_> =
            up.iter().map(|&(.., id)| id).filter(|id| !busy.contains(id)).collect();
        let crashed: Vec<_> = self.recoveries.all.keys().copied().collect();
        for id in crashed {
            let Some(mut recovery) = self.recoveries.all.remove(&id) else { continue };
            // The other shards of its process have ended too, though their leases may not.
            let gone = self.siblings(id);
            if recovery.can_assign() {
                let mut none_is_left = false;
                for (&key, partition) in &mut recovery.partitions {
                    if partition.master.is_some() {
                        continue;
                    }
                    let fits = |server: &ServerId| {
                        !partition.avoid.contains(server) && !gone.contains(server)
                    };
                    if let Some(at) = free.iter().position(fits) {
                        partition.master = Some(free.remove(at));
                        partition.number = self.next_number();
                        (partition.failures, partition.replayed) = (0, 0);
                        if let Some(due) = partition.due.take() {
                            self.recoveries.later.remove(&(due, (id, Step::Recover(key))));
                        }
                        self.recoveries.ready.push_back((id, Step::Recover(key)));
                    } else {
                        none_is_left |= !up.iter().any(|(.., server)| fits(server));
                    }
                }
                if none_is_left {
                    self.again(now, id, &mut recovery);
                }
            }
            self.recoveries.all.insert(id, recovery);
        }
    }

    /// Returns the order to the master of a partition.
    pub(super) fn order(&mut self, crashed: ServerId, key: u64) -> Option<(ServerId, Vec<u8>)> {
        let recovery = self.recoveries.all.get_mut(&crashed)?;
        let partition = recovery.partitions.get_mut(&key)?;
        partition.due = None;
        let server = partition.master?;
        let (number, mut tablets) = (partition.number, partition.parts.clone());
        let floor = self.loss_floor(crashed);
        tablets.iter_mut().for_each(|part| part.floor = part.floor.max(floor));
        let log = self.recoveries.all.get(&crashed)?.log.as_ref()?;
        Some((server, self.order_of((server, crashed), number, tablets, log).emit()))
    }

    /// Returns true if the orders to replay this log are not too long for a message.
    pub(in crate::coordinator) fn order_fits(&self, log: &[Found]) -> bool {
        let order = self.order_of(Default::default(), 0, Vec::new(), log);
        order.emit().len() + MOST_PARTS * PART_BYTES <= MAX_MESSAGE
    }

    /// Returns the order to a server to recover tablets of a crashed server.
    fn order_of(
        &self,
        (server, crashed): (ServerId, ServerId),
        number: u64,
        tablets: Vec<Part>,
        log: &[Found],
    ) -> Recover<'_> {
        let on: BTreeSet<_> = log.iter().flat_map(|found| &found.backups).copied().collect();
        let backups: Vec<_> = on
            .into_iter()
            .filter_map(|backup| Some(Source { backup, data: &self.servers.up(backup)?.data }))
            .take(usize::from(u16::MAX))
            .collect();
        let index = |backup: &ServerId| {
            backups.binary_search_by_key(backup, |source| source.backup).ok().map(|i| i as u16)
        };
        let segments = log
            .iter()
            .map(|found| Piece {
                segment: found.segment,
                len: found.len,
                on: found.backups.iter().filter_map(index).collect(),
            })
            .collect();
        let (cluster, term) = (self.cluster.id, self.cluster.incarnation);
        Recover { cluster, term, recovery: number, server, crashed, tablets, backups, segments }
    }

    /// Handles the end of a recovery by a master. A master that has all objects becomes the owner
    /// of the tablets, and gets the reply when that is durable.
    pub(in crate::coordinator) fn recovery_ended(
        &mut self,
        now: Instant,
        caller: Caller,
        request: &RecoveryEnded,
    ) -> Option<Message> {
        let server = request.server;
        if request.cluster != self.cluster.id || self.servers.up(server).is_none() {
            return self.fail(
                caller,
                Status::NotInCluster,
                "this server is not or no more in the cluster",
            );
        }
        if request.ending == Ending::Done && self.is_given(request) {
            return self.answer_or(caller, control::done(), Otherwise::Refused);
        }
        if let Some(reply) = self.migration_ended(caller, request) {
            return reply;
        }
        let recovery = self.recoveries.all.get_mut(&request.crashed);
        let assigned = recovery.and_then(|recovery| {
            let is_it =
                |p: &&Partition| (p.number, p.master) == (request.recovery, Some(request.server));
            let (&key, _) = recovery.partitions.iter().find(|(_, p)| is_it(p))?;
            Some((recovery, key))
        });
        let Some((recovery, key)) = assigned else {
            return self.fail(caller, Status::NoRecovery, "another server recovers the tablets");
        };
        if request.ending != Ending::Done {
            if let Some(partition) = recovery.partitions.get_mut(&key) {
                partition.master = None;
                partition.avoid.insert(server);
            }
            self.recoveries.dirty = true;
            if request.ending == Ending::Lacking
                && let Some(mut recovery) = self.recoveries.all.remove(&request.crashed)
            {
                recovery.suspect = true;
                recovery.take_damaged(&request.damaged);
                self.again(now, request.crashed, &mut recovery);
                self.recoveries.all.insert(request.crashed, recovery);
            }
            return self.answer(caller, control::done());
        }
        let ranges = |range: &Range| (range.table, range.first, range.last);
        let told: BTreeSet<_> = request.tablets.iter().map(ranges).collect();
        let parts = recovery.partitions.get(&key).map_or(&[][..], |p| &p.parts);
        let given: BTreeSet<_> = parts.iter().map(|p| (p.table, p.first, p.last)).collect();
        let fits = told == given && self.are_owned(request.crashed, &given);
        if !fits {
            self.recoveries.all.entry(request.crashed).and_modify(|recovery| {
                recovery.partitions.remove(&key);
            });
            self.recoveries.replan();
            return self.fail(caller, Status::NoRecovery, "the tablets are others now");
        }
        // The requests that wait limit the changes.
        if let Some(reply) = self.full().or_else(|| self.unwritable(Otherwise::Refused)) {
            return Some(reply.into());
        }
        self.recoveries.all.entry(request.crashed).and_modify(|recovery| {
            recovery.partitions.remove(&key);
        });
        self.give(request);
        self.recoveries.reported.insert(server, self.journal.issued);
        self.recoveries.dirty = true;
        self.answer_or(caller, control::done(), Otherwise::Refused)
    }

    /// Returns true if a server owns all of these ranges of tables in use, and none of the tables
    /// has too many tablets for another cut.
    pub(in crate::coordinator) fn are_owned(
        &self,
        owner: ServerId,
        ranges: &BTreeSet<(TableId, u64, u64)>,
    ) -> bool {
        ranges.iter().all(|&(table, first, last)| {
            self.tables.by_id.get(&table.0).is_some_and(|state| {
                let of_table = ranges.range((table, 0, 0)..=(table, u64::MAX, u64::MAX)).count();
                state.tablets.len() + 2 * of_table <= usize::from(u16::MAX)
                    && is_owned(state, (first, last), owner)
            })
        })
    }

    /// Returns true if the map gives the server these tablets because of this recovery.
    fn is_given(&self, request: &RecoveryEnded) -> bool {
        !request.tablets.is_empty()
            && request.tablets.iter().all(|range| {
                let table = self.tables.by_id.get(&range.table.0);
                let table = table.filter(|table| table.stage == Stage::Ready);
                // It may have been divided or united with others since.
                table.is_some_and(|table| {
                    let of_range = |t: &&Tablet| t.first <= range.last && range.first <= t.last;
                    let mut tablets = table.tablets.iter().filter(of_range);
                    tablets.all(|t| (t.server, t.since) == (request.server, request.since))
                })
            })
    }

    /// Makes the sender of a request the owner of the recovered tablets, by one durable change.
    pub(in crate::coordinator) fn give(&mut self, request: &RecoveryEnded) {
        let mut changed = BTreeSet::new();
        let floor = self.loss_floor(request.crashed);
        self.heat.settled = self.seen;
        for range in &request.tablets {
            let Some(table) = self.tables.by_id.get_mut(&range.table.0) else { continue };
            let before = table.tablets.len();
            table.give((range.first, range.last), request.server, request.since, floor);
            let more = table.tablets.len() - before;
            self.tables.tablets += more;
            self.servers.count(request.crashed, more as i32 - 1);
            self.servers.count(request.server, 1);
            changed.insert(range.table.0);
        }
        let mut batch = Batch::default();
        for id in changed {
            if let Some(table) = self.tables.by_id.get(&id) {
                batch.put(Key::Table(id), &table.record());
            }
        }
        self.persist(batch);
    }
}

/// Returns true if a server owns the range of a table in use.
fn is_owned(table: &Table, range: (u64, u64), owner: ServerId) -> bool {
    table.stage == Stage::Ready && table.tablet(range).is_some_and(|tablet| tablet.server == owner)
}
