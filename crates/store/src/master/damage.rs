//! The reports of this server, as a backup, about replicas that it has lost.
//!
//! Invariants: one report is in progress at a time, and has a page of replicas of one master. A
//! report is repeated until the master has answered, or is not in the coordinator's list any more.
//! Masters take turns, so that one that does not answer delays the others by one call each.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::Output;
use sprat_proto::rpc::{Payload, RpcError};
use sprat_proto::time::MS;

use super::membership::CALL_NS;
use super::replication::Replication;
use crate::backup::Backup;
use crate::message::Status;
use crate::message::control;
use crate::message::damage::{LostReplica, ReplicaDamaged};
use crate::types::ServerId;

/// The pause after a report that has to be repeated.
const AGAIN_NS: u64 = 100 * MS;

/// The report in progress, and the time of the next one.
#[derive(Debug)]
pub(crate) struct Reports {
    /// The tag of the report in progress, its master and its replicas.
    sent: Option<(u64, ServerId, Vec<LostReplica>)>,
    /// The master that got the last report.
    last: ServerId,
    due: Instant,
}

impl Reports {
    pub(super) fn new() -> Self {
        Self { sent: None, last: ServerId::default(), due: Instant::NEVER }
    }

    /// Looks again for something to report, for the backup has lost replicas, or there are other
    /// masters.
    pub(super) fn look(&mut self) {
        self.due = Instant::ZERO;
    }

    /// Returns the time at which [`Reports::next`] may have something to do.
    pub(super) fn deadline(&self) -> Instant {
        if self.sent.is_some() { Instant::NEVER } else { self.due }
    }

    pub(super) fn is_mine(&self, tag: u64) -> bool {
        self.sent.as_ref().is_some_and(|(sent, ..)| *sent == tag)
    }

    /// Returns the next action: a call with this tag that reports lost replicas to their master, or
    /// the order to bind the link to it.
    pub(super) fn next(
        &mut self,
        now: Instant,
        backup: &Backup,
        replication: &mut Replication,
        (cluster, me): (u64, ServerId),
        tag: u64,
    ) -> Option<Output> {
        if now < self.deadline() {
            return None;
        }
        let report = backup.next_report(self.last, |master| replication.knows(master));
        let Some((master, replicas)) = report else {
            self.due = Instant::NEVER;
            return None;
        };
        let link = match replication.reach(master)? {
            Ok(link) => link,
            Err(connect) => return Some(connect),
        };
        self.last = master;
        let message = ReplicaDamaged { cluster, master, backup: me, replicas: replicas.clone() };
        self.sent = Some((tag, master, replicas));
        let message = message.emit().into();
        Some(Output::Call { link, tag, message, deadline: now.after(CALL_NS) })
    }

    /// Takes the result of the report in progress.
    pub(super) fn response(
        &mut self,
        now: Instant,
        backup: &mut Backup,
        result: Result<Payload<'_>, RpcError>,
    ) {
        let Some((_, master, replicas)) = self.sent.take() else { return };
        let status = result.ok().and_then(|reply| Some(control::outcome(&reply).ok()?.0));
        if status == Some(Status::Ok) {
            backup.reported(master, &replicas);
            self.due = now;
        } else {
            self.due = now.after(AGAIN_NS);
        }
    }
}
