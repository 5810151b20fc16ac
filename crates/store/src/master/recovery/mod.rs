//! The recovery of a crashed master's tablets by this master, and the migration of a tablet to it.
//!
//! ```text
//!  Recover ─► read the segments from backups ─┐
//!  Migrate ─► pull pages from the owner ──────┴► replay into this memory ─► a digest names all
//!          ─► RecoveryEnded ─► the coordinator has made this master the owner ─► serve
//! ```
//!
//! Segments are read while others are replayed, the newest first: then most old versions find a
//! newer one and are not copied. A replica on this server is replayed where it is. A migration
//! differs in the source of the entries alone.
//!
//! Invariants:
//! - One recovery or migration is in progress at a time. A tick replays a bounded number of bytes.
//! - No request reads or changes a recovered object before the coordinator has durably made this
//!   master the owner, and this log has all of the tablets with all replicas.
//! - An entry that is not intact is never skipped: another replica has it, or the recovery ends
//!   with [`Ending::Lacking`].
//! - A recovery ends only when the coordinator knows that.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError};
use sprat_proto::time::MS;

use super::links::COORDINATOR;
use super::membership::CALL_NS;
use crate::backup::Backup;
use crate::message::Status;
use crate::message::control;
use crate::message::migration::Migrate;
use crate::message::recovery::{DamagedReplica, Ending, Part, Range, Recover, RecoveryEnded};
use crate::objects::cleaner::{Cleaner, STEP};
use crate::objects::log::{Full, Log};
use crate::objects::memory::Memory;
use crate::objects::partition::Partition;
use crate::objects::segment::SegmentId;
use crate::objects::tablet::{Tablet, TakeError};
use crate::types::{ServerId, TableId};

mod crashed;
mod fed;
mod pulling;
mod reading;

use crashed::CrashedLog;
use fed::Fed;
use pulling::Pulling;

/// The pause before a report to the coordinator is repeated.
const AGAIN_NS: u64 = 100 * MS;
/// A master's recovery of tablets, if one is in progress.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    current: Option<Current>,
    /// The highest number of a recovery that has ended, and of a migration.
    ended: Ended,
    /// The calls in progress: the number of the recovery, and what was asked.
    calls: BTreeMap<u64, (u64, Asked)>,
    /// The links to unbind.
    unlinked: Vec<Link>,
    /// True if there may be something to send at once.
    pub(super) pending: bool,
    due: Instant,
}

/// The highest numbers of orders that have ended.
#[derive(Debug, Default)]
struct Ended {
    recovery: u64,
    migration: u64,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    /// A backup has to return bytes of a replica.
    Bytes(crashed::Asked),
    /// The owner of a tablet has to return a page.
    Page(pulling::Asked),
    /// The coordinator has to confirm the end.
    Report,
}

/// The source of the entries to replay.
#[derive(Debug)]
enum Feed {
    Crashed(CrashedLog),
    Owner(Pulling),
}

impl Feed {
    fn not_before(&self) -> Instant {
        match self {
            Self::Crashed(log) => log.not_before(),
            Self::Owner(owner) => owner.not_before(),
        }
    }

    fn links(&self) -> Vec<Link> {
        match self {
            Self::Crashed(log) => log.links(),
            Self::Owner(owner) => owner.links(),
        }
    }

    fn damaged_replicas(&self) -> Vec<DamagedReplica> {
        match self {
            Self::Crashed(log) => log.damaged_replicas(),
            Self::Owner(_) => Vec::new(),
        }
    }

    fn next(&mut self, now: Instant, cluster: u64, tag: u64) -> Option<(Output, Option<Asked>)> {
        Some(match self {
            Self::Crashed(log) => {
                let (output, asked) = log.next(now, cluster, tag)?;
                (output, asked.map(Asked::Bytes))
            }
            Self::Owner(owner) => {
                let (output, asked) = owner.next(now, cluster, tag)?;
                (output, asked.map(Asked::Page))
            }
        })
    }
}

#[derive(Debug)]
struct Current {
    number: u64,
    /// The crashed master, or the owner of the tablet.
    source: ServerId,
    partition: Partition,
    feed: Feed,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Replaying,
    /// Everything is replayed. The log has to name it durably.
    Naming,
    /// The coordinator has to confirm the end from this time on, unless a call asks it already.
    Reporting(Ending, Instant),
}

impl Recovery {
    /// Takes an order to recover tablets. Returns the number of bytes that were replayed.
    ///
    /// # Errors
    /// The status to reply with. [`Status::Retry`] means that another recovery has to end first.
    pub(crate) fn order(
        &mut self,
        order: &Recover<'_>,
        memory: &mut Memory,
    ) -> Result<u64, Status> {
        if let Some(replayed) = self.known(order.recovery, (order.crashed, true), memory)? {
            return Ok(replayed);
        }
        let log = CrashedLog::new(order)?;
        let bytes = order.segments.iter().map(|piece| u64::from(piece.len)).sum();
        let (number, feed) = (order.recovery, Feed::Crashed(log));
        self.begin(number, (order.crashed, bytes), &order.tablets, feed, memory)
    }

    /// Takes an order to take over a tablet. Returns the number of bytes that were replayed.
    ///
    /// # Errors
    /// The status to reply with. [`Status::Retry`] means that another recovery has to end first.
    pub(crate) fn migrate(
        &mut self,
        order: &Migrate<'_>,
        memory: &mut Memory,
    ) -> Result<u64, Status> {
        if let Some(replayed) = self.known(order.migration, (order.source, false), memory)? {
            return Ok(replayed);
        }
        let Part { table, first, last, .. } = order.part;
        let part = Part { since: SegmentId(0), ..order.part.clone() };
        let feed = Feed::Owner(Pulling::new(order, Tablet { table, first, last }));
        self.begin(order.migration, (order.source, 0), &[part], feed, memory)
    }

    /// Returns the number of replayed bytes if the recovery with this number is in progress, and
    /// `None` if it may begin.
    fn known(
        &mut self,
        number: u64,
        (source, is_recovery): (ServerId, bool),
        memory: &mut Memory,
    ) -> Result<Option<u64>, Status> {
        let Some(current) = &self.current else {
            let ended = if is_recovery { self.ended.recovery } else { self.ended.migration };
            return if number <= ended { Err(Status::NoRecovery) } else { Ok(None) };
        };
        if current.number == number {
            return Ok(Some(current.partition.replayed()));
        }
        // A reply to the report may be on its way. Before that, only a coordinator that has
        // restarted gives another order for the same source. A recovery is more urgent than a
        // migration, and of two migrations the earlier one is over.
        let is_reported = matches!(current.stage, Stage::Reporting(..));
        let is_later = number > current.number;
        let gives_way = matches!(current.feed, Feed::Owner(_)) && (is_recovery || is_later);
        if !is_later && !gives_way {
            return Err(Status::NoRecovery);
        }
        if (source == current.source || gives_way) && !is_reported {
            self.end(memory, false);
        }
        Err(Status::Retry)
    }

    fn begin(
        &mut self,
        number: u64,
        (source, bytes): (ServerId, u64),
        parts: &[Part],
        feed: Feed,
        memory: &mut Memory,
    ) -> Result<u64, Status> {
        let partition = prepare((source, bytes), parts, memory)?;
        let partition = match feed {
            Feed::Crashed(_) => partition,
            Feed::Owner(_) => partition.in_order(),
        };
        let stage = Stage::Replaying;
        self.current = Some(Current { number, source, partition, feed, stage });
        self.pending = true;
        Ok(0)
    }

    // Sending.

    pub(super) fn deadline(&self) -> Instant {
        match self.current {
            _ if self.pending => Instant::ZERO,
            Some(_) => self.due,
            None => Instant::NEVER,
        }
    }

    pub(super) fn is_mine(&self, tag: u64) -> bool {
        self.calls.contains_key(&tag)
    }

    /// Returns the next action for the recovery that is in progress. A call has this tag.
    pub(super) fn next(
        &mut self,
        now: Instant,
        (cluster, me): (u64, ServerId),
        memory: &Memory,
        tag: u64,
    ) -> Option<Output> {
        self.due = Instant::NEVER;
        let output = self.next_output(now, (cluster, me), memory, tag);
        self.pending = output.is_some();
        output
    }

    fn next_output(
        &mut self,
        now: Instant,
        (cluster, me): (u64, ServerId),
        memory: &Memory,
        tag: u64,
    ) -> Option<Output> {
        if let Some(link) = self.unlinked.pop() {
            return Some(Output::Disconnect { link });
        }
        let Current { number, source, partition, feed, stage } = self.current.as_mut()?;
        if *stage == Stage::Naming && memory.log.is_side_durable() {
            *stage = Stage::Reporting(Ending::Done, now);
        }
        match *stage {
            Stage::Reporting(ending, due) => {
                if now < due {
                    self.due = due;
                    return None;
                }
                *stage = Stage::Reporting(ending, Instant::NEVER);
                self.calls.insert(tag, (*number, Asked::Report));
                let range = |Tablet { table, first, last }| Range { table, first, last };
                let message = RecoveryEnded {
                    cluster,
                    recovery: *number,
                    server: me,
                    crashed: *source,
                    ending,
                    since: partition.counts_from(),
                    replayed: partition.replayed(),
                    tablets: partition.tablets().map(range).collect(),
                    damaged: feed.damaged_replicas(),
                };
                let (message, deadline) = (message.emit().into(), now.after(CALL_NS));
                Some(Output::Call { link: COORDINATOR, tag, message, deadline })
            }
            Stage::Naming => None,
            Stage::Replaying => {
                if now < feed.not_before() {
                    self.due = feed.not_before();
                    return None;
                }
                let (output, asked) = feed.next(now, cluster, tag)?;
                self.calls.extend(asked.map(|asked| (tag, (*number, asked))));
                Some(output)
            }
        }
    }

    /// Lets [`Recovery::next`] look again if the log has named durably what was replayed.
    pub(super) fn look(&mut self, log: &Log) {
        let is_naming = self.current.as_ref().is_some_and(|c| c.stage == Stage::Naming);
        self.pending |= is_naming && log.is_side_durable();
    }

    // What has happened.

    /// Takes the result of a call. Serves the tablets if the coordinator has confirmed them.
    pub(super) fn response(
        &mut self,
        now: Instant,
        memory: &mut Memory,
        tag: u64,
        result: Result<Payload<'_>, RpcError>,
    ) {
        let Some((number, asked)) = self.calls.remove(&tag) else { return };
        self.pending = true;
        let Some(current) = self.current.as_mut().filter(|current| current.number == number) else {
            return;
        };
        match (asked, &mut current.feed) {
            (Asked::Bytes(asked), Feed::Crashed(log)) => log.take(now, asked, &result),
            (Asked::Page(asked), Feed::Owner(owner)) => owner.take(now, asked, result),
            (Asked::Bytes(_) | Asked::Page(_), _) => {}
            (Asked::Report, _) => {
                let Stage::Reporting(ending, _) = current.stage else { return };
                match result.as_deref().map(control::outcome) {
                    Ok(Ok((Status::Ok, _))) => self.end(memory, ending == Ending::Done),
                    Ok(Ok((Status::NoRecovery, _))) => self.end(memory, false),
                    _ => current.stage = Stage::Reporting(ending, now.after(AGAIN_NS)),
                }
            }
        }
    }

    /// Ends the recovery. If it has succeeded, this master serves the tablets. Otherwise their
    /// outcomes are forgotten, and their objects swept.
    fn end(&mut self, memory: &mut Memory, succeeded: bool) {
        let Some(current) = self.current.take() else { return };
        let ended = match current.feed {
            Feed::Crashed(_) => &mut self.ended.recovery,
            Feed::Owner(_) => &mut self.ended.migration,
        };
        *ended = current.number.max(*ended);
        for tablet in current.partition.tablets() {
            if succeeded {
                memory.tablets.open(tablet);
            } else {
                memory.abandon(tablet);
            }
        }
        self.unlinked.extend(current.feed.links());
        self.pending = true;
    }

    // Replaying.

    /// Replays some bytes. Returns true if there is more to do at once. In full memory, `make_room`
    /// frees what it can and returns true if the replay may go on.
    pub(super) fn work(
        &mut self,
        now: Instant,
        me: ServerId,
        memory: &mut Memory,
        backup: &Backup,
        cleaner: &mut Cleaner,
        make_room: &mut dyn FnMut(&mut Memory) -> bool,
    ) -> bool {
        let Some(current) = self.current.as_mut() else { return false };
        self.pending |= self.due <= now;
        match current.stage {
            Stage::Replaying => {}
            Stage::Naming => {
                self.look(&memory.log);
                return false;
            }
            Stage::Reporting(..) => return false,
        }
        let Current { partition, feed, stage, .. } = current;
        let fed = match feed {
            Feed::Crashed(log) => log.replay(me, partition, memory, backup),
            Feed::Owner(owner) => owner.replay(partition, memory),
        };
        let fed = match fed {
            // A crash of this server may not let versions fall below those of the other log.
            Ok(Fed::All) => memory.log.keep_safe_version().map(|()| Fed::All),
            fed => fed,
        };
        let more = match fed {
            Ok(Fed::More) => true,
            // A reply makes it go on.
            Ok(Fed::Waiting) => return false,
            Ok(Fed::Lacking) => {
                *stage = Stage::Reporting(Ending::Lacking, now);
                false
            }
            Ok(Fed::All) => {
                memory.log.end_side();
                *stage = Stage::Naming;
                false
            }
            Err(Full::NoSegment) if cleaner.wanted(memory) => {
                cleaner.step(memory, STEP);
                true
            }
            Err(Full::NoSegment) if make_room(memory) => true,
            Err(_) => {
                *stage = Stage::Reporting(Ending::Full, now);
                false
            }
        };
        self.pending = true;
        more
    }
}

/// Prepares the memory to replay tablets of `source`, whose log has this many bytes. Returns them
/// as a partition.
fn prepare(
    (source, bytes): (ServerId, u64),
    parts: &[Part],
    memory: &mut Memory,
) -> Result<Partition, Status> {
    let makes_sense = !parts.is_empty()
        && parts.iter().all(|part| part.first <= part.last && part.table <= TableId::MAX);
    if !makes_sense {
        return Err(Status::BadFormat);
    }
    let mut tablets = Vec::new();
    let was_here = parts.iter().any(|part| {
        let Part { table, first, last, .. } = *part;
        memory.tablets.had(Tablet { table, first, last })
    });
    let prepared = parts.iter().try_for_each(|part| {
        let tablet = Tablet { table: part.table, first: part.first, last: part.last };
        memory.tablets.prepare(tablet, part.hash_key, part.durability, part.floor)?;
        tablets.push((tablet, part.since));
        Ok(())
    });
    let since = match prepared {
        Ok(()) => memory.log.begin_side().map_err(|_| Status::NoSpace),
        Err(TakeError::Sweeping) => Err(Status::Retry),
        Err(TakeError::Overlap) => Err(Status::BadFormat),
    };
    if since.is_err() {
        tablets.iter().for_each(|&(tablet, _)| memory.tablets.forget(tablet));
    }
    Ok(Partition::new(source, bytes, tablets, (since?, was_here)))
}
