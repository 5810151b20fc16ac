//! The log of a crashed master as the source of a recovery: segments on backups are read and
//! replayed.

use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError};

use super::fed::{Fed, TICK_BYTES};
use super::reading::{Reading, Segment, Source};
use crate::backup::Backup;
use crate::master::links;
use crate::master::membership::CALL_NS;
use crate::message::Status;
use crate::message::data::accepted;
use crate::message::recovery::{DamagedReplica, ReadReplica, Recover};
use crate::objects::entry::Entries;
use crate::objects::log::Full;
use crate::objects::memory::Memory;
use crate::objects::partition::{Partition, Stopped};
use crate::objects::segment::SEGMENT_BYTES;
use crate::types::{MAX_KEY, MAX_VALUE, ServerId};

/// The most bytes of an entry, which may have two values, with room for its header.
const LONGEST: usize = MAX_KEY + 2 * MAX_VALUE + (4 << 10);

/// A read of bytes of a replica that is in progress: this many from this offset on. The number
/// counts the attempts to read any segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    attempt: u32,
    offset: u32,
    len: u32,
}

#[derive(Debug)]
struct Replaying {
    segment: Segment,
    entries: Entries,
    /// The end of the bytes of this server's own replica that the device has delivered.
    delivered: usize,
}

/// The log of a crashed master.
#[derive(Debug)]
pub(super) struct CrashedLog {
    crashed: ServerId,
    backups: Vec<Source>,
    reading: Reading,
    /// The segment that is replayed now, and the position in it.
    replaying: Option<Replaying>,
}

impl CrashedLog {
    /// Returns the log that an order names.
    ///
    /// # Errors
    /// [`Status::BadFormat`] if the order makes no sense.
    pub(super) fn new(order: &Recover<'_>) -> Result<Self, Status> {
        let sources = order.backups.len();
        let makes_sense = order.segments.iter().all(|piece| {
            (1..=SEGMENT_BYTES).contains(&piece.len)
                && !piece.on.is_empty()
                && piece.on.iter().all(|&index| usize::from(index) < sources)
        });
        if !makes_sense {
            return Err(Status::BadFormat);
        }
        let source = |source: &crate::message::recovery::Source<'_>| Source {
            backup: source.backup,
            locator: String::from(source.data),
            linked: false,
        };
        Ok(Self {
            crashed: order.crashed,
            backups: order.backups.iter().map(source).collect(),
            reading: Reading::new(order.segments.clone()),
            replaying: None,
        })
    }

    /// Returns the time before which no read begins.
    pub(super) fn not_before(&self) -> Instant {
        self.reading.not_before()
    }

    /// Returns the first damaged replicas, as many as a report has room for.
    pub(super) fn damaged_replicas(&self) -> Vec<DamagedReplica> {
        self.reading.damaged_replicas(&self.backups)
    }

    /// Returns the links to backups that are connected.
    pub(super) fn links(&self) -> Vec<Link> {
        let linked = self.backups.iter().filter(|source| source.linked);
        linked.map(|source| links::source(source.backup)).collect()
    }

    /// Returns the next read, or the order to connect the link that it needs.
    pub(super) fn next(
        &mut self,
        now: Instant,
        cluster: u64,
        tag: u64,
    ) -> Option<(Output, Option<Asked>)> {
        let source = self.reading.source()?;
        let Source { backup, locator, linked } = self.backups.get_mut(source)?;
        let link = links::source(*backup);
        if !core::mem::replace(linked, true) {
            return Some((Output::Connect { link, locator: locator.clone() }, None));
        }
        let (segment, attempt, offset, len) = self.reading.ask()?;
        let (backup, master) = (*backup, self.crashed);
        let message = ReadReplica { cluster, backup, master, segment, offset, len };
        let (message, deadline) = (message.emit().into(), now.after(CALL_NS));
        let call = Output::Call { link, tag, message, deadline };
        Some((call, Some(Asked { attempt, offset, len })))
    }

    /// Takes the result of a read.
    pub(super) fn take(
        &mut self,
        now: Instant,
        Asked { attempt, offset, len }: Asked,
        result: &Result<Payload<'_>, RpcError>,
    ) {
        let bytes = match result {
            Ok(reply) => accepted(reply).map_err(|refusal| Some(refusal.status)),
            Err(_) => Err(None),
        };
        match bytes {
            Ok(bytes) if bytes.len() == len as usize => self.reading.take(attempt, offset, bytes),
            // The replica is gone, or shorter than it was.
            Ok(_) | Err(Some(Status::NoReplica)) => self.reading.bad(attempt),
            Err(_) => self.reading.failed(now, attempt),
        }
    }

    /// Replays some bytes, or begins the next segment. Returns the progress.
    pub(super) fn replay(
        &mut self,
        me: ServerId,
        partition: &mut Partition,
        memory: &mut Memory,
        backup: &Backup,
    ) -> Result<Fed, Full> {
        let has_begun = self.reading.begin(me, &self.backups);
        let Some(Replaying { segment, entries, delivered }) = &mut self.replaying else {
            let next = self.reading.next(me, &self.backups);
            let begin = |segment| Replaying { segment, entries: Entries::default(), delivered: 0 };
            self.replaying = next.map(begin);
            return Ok(match self.replaying {
                Some(_) => Fed::More,
                None if self.reading.is_lacking() => Fed::Lacking,
                None if self.reading.is_empty() => Fed::All,
                None if has_begun => Fed::More,
                None => Fed::Waiting,
            });
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
            memory.replay(partition, (id, len), bytes, entries, TICK_BYTES)
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
        Ok(Fed::More)
    }
}
