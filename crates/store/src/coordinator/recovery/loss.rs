//! The loss of segments whose replicas are gone for good, and the decision to go on without them.
//!
//! ```text
//!  a search finds no servers for some segments ─► blocked
//!  AcceptLoss ─► the crashed server's record names the segments that are left (durable)
//!             ─► they are the log, and all of them must be found
//! ```
//!
//! Invariants:
//! - The recovery gives up only segments that the decision has not named. If another one gets lost
//!   later, the recovery is blocked again.
//! - No version is used twice: each accepted loss begins a new range of versions. Later writes to
//!   the recovered tablets have versions in that range or above it, and all that the lost segments
//!   can have given are below.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::node::machine::Caller;
use sprat_proto::rpc::Message;

use super::lost::Lost;
use super::state::Recovery;
use crate::coordinator::durable::{Batch, Kept, Key, Place, Stage};
use crate::coordinator::state::{Coordinator, Otherwise};
use crate::message::Status;
use crate::message::control::MAX_PAGE;
use crate::message::recovery::{AcceptLoss, Loss, Range, SegmentRange};
use crate::recovery::inventory::Found;
use crate::types::{ServerId, TableId, Version};

/// The number of low bits of a version that count within the range of one accepted loss. A key that
/// is written a million times a second takes 50 days to leave the range.
const RANGE_BITS: u32 = 42;
/// The most losses that a cluster can accept: each takes one range of versions.
pub(in crate::coordinator) const MOST_LOSSES: u16 = (Version::MAX.0 >> RANGE_BITS) as u16;

impl Coordinator {
    /// Returns the segments that the recovery of a crashed server replays by an accepted loss.
    pub(super) fn accepted(&self, crashed: ServerId) -> Option<&[Kept]> {
        let slot = self.servers.slots.get(crashed.index as usize)?;
        (slot.generation == crashed.generation && slot.loss.0 > 0).then_some(&slot.loss.1)
    }

    /// Returns the lowest version of later writes to tablets of a crashed server, 0 unless a loss
    /// was accepted.
    pub(super) fn loss_floor(&self, crashed: ServerId) -> Version {
        let slot = self.servers.slots.get(crashed.index as usize);
        let number = slot.filter(|slot| slot.generation == crashed.generation);
        Version(number.map_or(0, |slot| u64::from(slot.loss.0)) << RANGE_BITS)
    }

    /// Says what the blocked recovery of a crashed server loses, and lets it go on if the request
    /// accepts that.
    pub(in crate::coordinator) fn accept_loss(
        &mut self,
        caller: Caller,
        request: &AcceptLoss,
    ) -> Option<Message> {
        let server = request.server;
        let lost = match self.lost(server) {
            Ok(lost) => lost,
            Err(text) => return self.fail(caller, Status::NoRecovery, &text),
        };
        let kept: Vec<_> = lost.kept().collect();
        let Some(reply) = self.loss(server) else {
            return self.fail(caller, Status::NoRecovery, "the recovery has ended");
        };
        if request.accept {
            if let Some(reply) = self.full().or_else(|| self.unwritable(Otherwise::Refused)) {
                return Some(reply.into());
            }
            if self.cluster.losses >= MOST_LOSSES {
                let text = "the cluster has accepted too many losses, and has no more versions; \
                            export its tables into another cluster";
                return self.fail(caller, Status::NoSpace, text);
            }
            self.cluster.losses += 1;
            let mut batch = Batch::default();
            batch.put(Key::Cluster, &self.cluster);
            if let Some(slot) = self.servers.slots.get_mut(server.index as usize) {
                slot.loss = (self.cluster.losses, kept);
                batch.put(Key::Server(server.index), &slot.record());
            }
            let seq = self.persist(batch);
            if let Some(recovery) = self.recoveries.all.get_mut(&server) {
                (recovery.after, recovery.unsearched) = (seq, true);
            }
            self.recoveries.notice();
        }
        self.answer_or(caller, reply.emit(), Otherwise::Refused)
    }

    /// Returns what a blocked recovery lacks.
    ///
    /// # Errors
    /// The reason why nothing is lost, for people.
    fn lost(&self, server: ServerId) -> Result<&Lost, String> {
        let slot = self.servers.slots.get(server.index as usize);
        let slot = slot.filter(|slot| slot.generation == server.generation);
        let text = match slot.map(|slot| (slot.place, slot.replicas)) {
            Some((Place::Up, _)) => format!("server {server} is up, and its data is not lost"),
            Some((Place::Crashed, 0)) => {
                format!("the log of server {server} had no replicas: all of it is lost")
            }
            Some((Place::Crashed, _)) => match self.recoveries.all.get(&server) {
                Some(Recovery { lost: Some(lost), .. }) => return Ok(lost),
                Some(recovery) if !recovery.blocked.is_empty() => recovery.blocked.clone(),
                _ => format!("the recovery of server {server} is not blocked"),
            },
            _ => format!("no server {server} is known, or its recovery has ended"),
        };
        Err(text)
    }

    /// Returns the reply that says what a blocked recovery loses.
    fn loss(&self, server: ServerId) -> Option<Loss> {
        let recovery = self.recoveries.all.get(&server)?;
        let lost = recovery.lost.as_ref()?;
        let mut ranges: Vec<SegmentRange> = Vec::new();
        for &Found { segment, .. } in lost.lost() {
            match ranges.last_mut() {
                Some(range) if range.last.0.checked_add(1) == Some(segment.0) => {
                    range.last = segment;
                }
                _ => ranges.push(SegmentRange { first: segment, last: segment }),
            }
        }
        ranges.truncate(MAX_PAGE);
        let tablets = || {
            let ready = self.tables.by_id.iter().filter(|(_, table)| table.stage == Stage::Ready);
            ready.flat_map(|(&id, table)| {
                let owned = table.tablets.iter().filter(|tablet| tablet.server == server);
                owned.map(move |t| Range { table: TableId(id), first: t.first, last: t.last })
            })
        };
        let bytes = |len: u32| u64::from(len);
        Some(Loss {
            head: lost.head(),
            segments: lost.lost().count() as u32,
            bytes: lost.lost().map(|found| bytes(found.len)).sum(),
            lost: ranges,
            damaged: lost.damaged().take(MAX_PAGE).cloned().collect(),
            kept_segments: lost.kept().count() as u32,
            kept_bytes: lost.kept().map(|kept| bytes(kept.len)).sum(),
            tablets: tablets().count() as u32,
            ranges: tablets().take(MAX_PAGE).collect(),
        })
    }
}
