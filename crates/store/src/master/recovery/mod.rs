//! The recovery of a crashed master's tablets by this master.
//!
//! ```text
//!  Recover ─► read the segments from backups ─► replay into this memory ─► a digest names all
//!          ─► RecoveryEnded ─► the coordinator has made this master the owner ─► serve
//! ```
//!
//! Segments are read while others are replayed, the newest first: then most old versions find a
//! newer one and are not copied. A replica on this server is replayed where it is.
//!
//! Invariants:
//! - One recovery is in progress at a time. A tick replays a bounded number of bytes.
//! - No request reads or changes a recovered object before the coordinator has durably made this
//!   master the owner, and this log has all of the tablets with all replicas.
//! - An entry that is not intact is never skipped: another replica has it, or the recovery ends
//!   with [`Ending::Lacking`].
//! - A recovery ends only when the coordinator knows that.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError};
use sprat_proto::time::MS;

use super::membership::{CALL_NS, COORDINATOR};
use crate::backup::Backup;
use crate::message::Status;
use crate::message::control;
use crate::message::data::accepted;
use crate::message::recovery::{Ending, Range, ReadReplica, Recover, RecoveryEnded};
use crate::objects::cleaner::{Cleaner, STEP};
use crate::objects::entry::Entries;
use crate::objects::log::{Full, Log};
use crate::objects::memory::Memory;
use crate::objects::partition::{Partition, Stopped};
use crate::objects::segment::SEGMENT_BYTES;
use crate::objects::tablet::{Tablet, TakeError};
use crate::types::{MAX_KEY, MAX_VALUE, ServerId, TableId};

mod reading;

use reading::{Reading, Segment, Source};

/// The most bytes that one tick replays.
const TICK_BYTES: usize = 256 << 10;
/// The most bytes of an entry, which may have two values, with room for its header.
const LONGEST: usize = MAX_KEY + 2 * MAX_VALUE + (4 << 10);
/// The pause before a report to the coordinator is repeated.
const AGAIN_NS: u64 = 100 * MS;
/// The first of this master's links to backups whose replicas it reads. Those below are for the
/// replicas of its own log.
const LINKS: u32 = 1 << 20;

/// A master's recovery of tablets, if one is in progress.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    current: Option<Current>,
    /// The number of the last recovery that has ended.
    ended: u64,
    /// The calls in progress: the number of the recovery, and what was asked.
    calls: BTreeMap<u64, (u64, Asked)>,
    /// The links to unbind.
    unlinked: Vec<Link>,
    /// True if there may be something to send at once.
    pub(super) pending: bool,
    due: Instant,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    /// A backup has to return bytes of a replica: this many from this offset on. The number counts
    /// the attempts to read any segment.
    Bytes { attempt: u32, offset: u32, len: u32 },
    /// The coordinator has to confirm the end.
    Report,
}

#[derive(Debug)]
struct Current {
    number: u64,
    crashed: ServerId,
    partition: Partition,
    backups: Vec<Source>,
    reading: Reading,
    /// The segment that is replayed now, and the position in it.
    replaying: Option<Replaying>,
    stage: Stage,
}

#[derive(Debug)]
struct Replaying {
    segment: Segment,
    entries: Entries,
    /// The end of the bytes of this server's own replica that the device has delivered.
    delivered: usize,
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
    /// Takes an order of the coordinator. Returns the number of bytes that were replayed.
    ///
    /// # Errors
    /// The status to reply with. [`Status::Retry`] means that another recovery has to end first.
    pub(crate) fn order(
        &mut self,
        order: &Recover<'_>,
        memory: &mut Memory,
    ) -> Result<u64, Status> {
        if let Some(current) = &self.current {
            if current.number == order.recovery {
                return Ok(current.partition.replayed());
            }
            if order.recovery < current.number {
                return Err(Status::NoRecovery);
            }
            // A reply to the report may be on its way. Before that, only a coordinator that has
            // restarted gives such an order.
            let is_reported = matches!(current.stage, Stage::Reporting(..));
            if order.crashed == current.crashed && !is_reported {
                self.end(memory, false);
            }
            return Err(Status::Retry);
        }
        if order.recovery <= self.ended {
            return Err(Status::NoRecovery);
        }
        let current = Current::new(order, memory)?;
        self.current = Some(current);
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
        let Current { number, crashed, partition, backups, reading, stage, .. } =
            self.current.as_mut()?;
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
                    crashed: *crashed,
                    ending,
                    since: partition.since(),
                    tablets: partition.tablets().map(range).collect(),
                    damaged: reading.damaged_replicas(backups),
                };
                let (message, deadline) = (message.emit().into(), now.after(CALL_NS));
                Some(Output::Call { link: COORDINATOR, tag, message, deadline })
            }
            Stage::Naming => None,
            Stage::Replaying => {
                if now < reading.not_before() {
                    self.due = reading.not_before();
                    return None;
                }
                let source = reading.source()?;
                let Source { backup, locator, linked } = backups.get_mut(source)?;
                let link = Link(LINKS + backup.index);
                if !core::mem::replace(linked, true) {
                    return Some(Output::Connect { link, locator: locator.clone() });
                }
                let (segment, attempt, offset, len) = reading.ask()?;
                self.calls.insert(tag, (*number, Asked::Bytes { attempt, offset, len }));
                let message = ReadReplica {
                    cluster,
                    backup: *backup,
                    master: *crashed,
                    segment,
                    offset,
                    len,
                };
                let (message, deadline) = (message.emit().into(), now.after(CALL_NS));
                Some(Output::Call { link, tag, message, deadline })
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
        match asked {
            Asked::Bytes { attempt, offset, len } => {
                let bytes = match &result {
                    Ok(reply) => accepted(reply).map_err(|refusal| Some(refusal.status)),
                    Err(_) => Err(None),
                };
                match bytes {
                    Ok(bytes) if bytes.len() == len as usize => {
                        current.reading.take(attempt, offset, bytes);
                    }
                    // The replica is gone, or shorter than it was.
                    Ok(_) | Err(Some(Status::NoReplica)) => current.reading.bad(attempt),
                    Err(_) => current.reading.failed(now, attempt),
                }
            }
            Asked::Report => {
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
        self.ended = current.number;
        for tablet in current.partition.tablets() {
            if succeeded {
                memory.tablets.open(tablet);
            } else {
                memory.abandon(tablet);
            }
        }
        let linked = current.backups.iter().filter(|source| source.linked);
        self.unlinked.extend(linked.map(|source| Link(LINKS + source.backup.index)));
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
        let more = match current.replay(now, me, memory, backup) {
            Ok(more) => more,
            Err(Full::NoSegment) if cleaner.wanted(memory) => {
                cleaner.step(memory, STEP);
                true
            }
            Err(Full::NoSegment) if make_room(memory) => true,
            Err(_) => {
                current.stage = Stage::Reporting(Ending::Full, now);
                false
            }
        };
        self.pending = true;
        more
    }
}

impl Current {
    fn new(order: &Recover<'_>, memory: &mut Memory) -> Result<Self, Status> {
        let sources = order.backups.len();
        let makes_sense = !order.tablets.is_empty()
            && order
                .tablets
                .iter()
                .all(|part| part.first <= part.last && part.table <= TableId::MAX)
            && order.segments.iter().all(|piece| {
                (1..=SEGMENT_BYTES).contains(&piece.len)
                    && !piece.on.is_empty()
                    && piece.on.iter().all(|&index| usize::from(index) < sources)
            });
        if !makes_sense {
            return Err(Status::BadFormat);
        }
        let mut tablets = Vec::new();
        let prepared = order.tablets.iter().try_for_each(|part| {
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
        let bytes = order.segments.iter().map(|piece| u64::from(piece.len));
        let source = |source: &crate::message::recovery::Source<'_>| Source {
            backup: source.backup,
            locator: String::from(source.data),
            linked: false,
        };
        Ok(Self {
            number: order.recovery,
            crashed: order.crashed,
            partition: Partition::new(order.crashed, bytes.sum(), tablets, since?),
            backups: order.backups.iter().map(source).collect(),
            reading: Reading::new(order.segments.clone()),
            replaying: None,
            stage: Stage::Replaying,
        })
    }

    /// Replays some bytes, or begins the next segment. Returns true if there is more to do at once.
    fn replay(
        &mut self,
        now: Instant,
        me: ServerId,
        memory: &mut Memory,
        backup: &Backup,
    ) -> Result<bool, Full> {
        self.reading.begin(me, &self.backups);
        let Some(Replaying { segment, entries, delivered }) = &mut self.replaying else {
            let next = self.reading.next(me, &self.backups);
            let begin = |segment| Replaying { segment, entries: Entries::default(), delivered: 0 };
            self.replaying = next.map(begin);
            if self.replaying.is_none() {
                self.finish_reading(now, memory);
            }
            return Ok(self.replaying.is_some());
        };
        let (id, len) = (segment.piece.segment, segment.piece.len as usize);
        let bytes = match &segment.bytes {
            Some(bytes) => bytes.get(..len),
            None => {
                let (from, until) = (*delivered, len.min(entries.at() + TICK_BYTES + LONGEST));
                *delivered = until;
                let more = until.saturating_sub(from) as u32;
                let are_there = backup.delivers(self.crashed, id, from as u32, more);
                let bytes = backup.bytes(self.crashed, id).filter(|bytes| bytes.len() >= len);
                bytes.filter(|_| are_there).map(|bytes| &bytes[..until])
            }
        };
        let bytes = bytes.unwrap_or_default();
        let replayed = if bytes.is_empty() {
            Err(Stopped::Damaged)
        } else {
            memory.replay(&mut self.partition, id, bytes, entries, TICK_BYTES)
        };
        let is_intact = match replayed {
            Err(Stopped::Full) => return Err(Full::NoSegment),
            replayed => replayed.is_ok(),
        };
        if !is_intact || entries.at() >= len {
            let segment = self.replaying.take().map(|replaying| replaying.segment);
            if let Some(segment) = segment {
                if is_intact {
                    self.reading.done(segment);
                } else {
                    self.reading.damaged(segment);
                }
            }
        }
        Ok(true)
    }

    /// Continues if all segments are replayed, or if one cannot be read.
    fn finish_reading(&mut self, now: Instant, memory: &mut Memory) {
        if self.reading.is_lacking() {
            self.stage = Stage::Reporting(Ending::Lacking, now);
        } else if self.reading.is_empty() {
            memory.log.end_side();
            self.stage = Stage::Naming;
        }
    }
}
