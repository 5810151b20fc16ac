//! The replies of servers to the calls of recoveries.

use sprat_proto::Instant;
use sprat_proto::rpc::{Payload, RpcError};
use sprat_proto::time::SECOND;
use sprat_proto::wire::checksum::crc32c;

use super::state::{Backup, Job, Reading, Recovery, Step};
use crate::coordinator::state::Coordinator;
use crate::message::Status;
use crate::message::control;
use crate::message::recovery::{MOST_READ, Recovering, ReplicaPage};
use crate::objects::segment::MAX_SEGMENTS;
use crate::recovery::ReadHead;
use crate::types::ServerId;

/// The time between two polls of a master that recovers a partition.
const POLL_NS: u64 = SECOND;
/// The number of failures after which a replica counts as unreadable.
const MOST_FAILURES: u32 = 3;

impl Coordinator {
    /// Handles the result of a call of a recovery. Returns false if no recovery has made the call.
    pub(in crate::coordinator) fn recovery_called(
        &mut self,
        now: Instant,
        tag: u64,
        result: &Result<Payload<'_>, RpcError>,
    ) -> bool {
        let Some((job, server)) = self.recoveries.calls.remove(&tag) else { return false };
        // A call without a reply counts as a refusal for now.
        let reply = result.as_ref().map_or(Err(Status::Retry), |reply| Ok(&reply[..]));
        let Some(mut recovery) = self.recoveries.all.remove(&job.0) else { return true };
        self.recoveries.dirty = true;
        match job.1 {
            Step::List(backup, after) => {
                let state = recovery.backups.get_mut(&backup);
                let repeat = state.is_some_and(|state| {
                    state.busy = false;
                    // A page of an earlier round does not count.
                    !state.listed && state.last() == after && !listed(state, reply)
                });
                recovery.unsearched |= !repeat;
                self.repeat_of_backup(now, job, &mut recovery, backup, repeat);
            }
            Step::Free(backup) => {
                let outcome = reply.and_then(control::outcome).map(|(status, _)| status);
                let state = recovery.backups.get_mut(&backup);
                let repeat = state.is_some_and(|state| {
                    state.busy = false;
                    state.freed = outcome == Ok(Status::Ok);
                    // The backup has started again and knows of no fence.
                    state.listed &= outcome != Ok(Status::BadFormat);
                    !state.freed && state.listed
                });
                self.repeat_of_backup(now, job, &mut recovery, backup, repeat);
            }
            Step::Read(..) => self.replica_read(now, job, server, &mut recovery, reply),
            Step::Recover(key) => self.master_polled(now, (job, key), server, &mut recovery, reply),
            Step::Again => {}
        }
        self.recoveries.all.insert(job.0, recovery);
        true
    }

    /// Repeats a call to a backup after a pause if it failed.
    fn repeat_of_backup(
        &mut self,
        now: Instant,
        job: Job,
        recovery: &mut Recovery,
        backup: ServerId,
        repeat: bool,
    ) {
        let Some(state) = recovery.backups.get_mut(&backup) else { return };
        if repeat {
            state.busy = true;
            self.recoveries.later.insert((now.after(self.retry_ns(state.failures)), job));
        }
        state.failures = if repeat { state.failures.saturating_add(1) } else { 0 };
    }

    /// Handles the bytes of a replica that the search needs.
    fn replica_read(
        &mut self,
        now: Instant,
        job: Job,
        server: ServerId,
        recovery: &mut Recovery,
        reply: Result<&[u8], Status>,
    ) {
        let crashed = self.crashed(job.0);
        let expected = |reading: &&mut Reading| {
            let step = Step::Read(reading.segment, reading.bytes.len() as u32);
            (reading.backup, step) == (server, job.1)
        };
        let Some(reading) = recovery.reading.as_mut().filter(expected) else { return };
        let segment = reading.segment;
        let head = match reply.and_then(control::outcome) {
            Ok((Status::Ok, bytes)) => {
                let before = reading.bytes.len();
                let asked = (reading.len as usize - before).min(MOST_READ as usize);
                reading.bytes.extend_from_slice(&bytes[..bytes.len().min(asked)]);
                (reading.failures, recovery.unsearched) = (0, true);
                let parsed = || ReadHead::parse(crc32c, &crashed, segment, &reading.bytes);
                // A replica without a digest in the first read is no head. The digest of a log that
                // an order can name fits into it.
                let may_be_head = before > 0 || parsed().has_digest();
                let more = bytes.len() >= asked && reading.bytes.len() < reading.len as usize;
                if more && may_be_head {
                    let next = Step::Read(segment, reading.bytes.len() as u32);
                    return self.recoveries.ready.push_back((job.0, next));
                }
                if more { parsed().of_a_part() } else { parsed() }
            }
            Ok((Status::NoReplica, _)) => ReadHead::default(),
            _ if reading.failures < MOST_FAILURES => {
                let at = now.after(self.retry_ns(reading.failures));
                reading.failures += 1;
                self.recoveries.later.insert((at, job));
                return;
            }
            _ => ReadHead::default(),
        };
        recovery.heads.insert((server, segment), head);
        (recovery.reading, recovery.unsearched) = (None, true);
    }

    /// Handles the reply of a master to an order.
    fn master_polled(
        &mut self,
        now: Instant,
        (job, key): (Job, u64),
        server: ServerId,
        recovery: &mut Recovery,
        reply: Result<&[u8], Status>,
    ) {
        let Some(partition) = recovery.partitions.get_mut(&key) else { return };
        // Another assignment has its own orders.
        if partition.master != Some(server) || partition.due.is_some() {
            return;
        }
        let wait_ns = match reply.and_then(Recovering::parse) {
            Ok(progress) => {
                (partition.replayed, partition.failures) = (progress.replayed, 0);
                POLL_NS
            }
            Err(Status::Retry | Status::Starting | Status::NotServing | Status::NotInCluster) => {
                partition.failures = partition.failures.saturating_add(1);
                self.retry_ns(partition.failures)
            }
            Err(_) => {
                partition.avoid.insert(server);
                partition.master = None;
                return;
            }
        };
        let at = now.after(wait_ns);
        partition.due = Some(at);
        self.recoveries.later.insert((at, job));
    }
}

/// Takes over a page of a backup's list. Returns false if the reply is a refusal or malformed.
fn listed(state: &mut Backup, reply: Result<&[u8], Status>) -> bool {
    let Ok(page) = reply.and_then(ReplicaPage::parse) else { return false };
    let ids = state.replicas.last().into_iter().chain(&page.replicas).map(|r| r.segment);
    if !ids.is_sorted_by(|a, b| a < b) || page.more && page.replicas.is_empty() {
        return false;
    }
    state.replicas.extend(page.replicas);
    // No log has more segments.
    state.listed = !page.more || state.replicas.len() >= MAX_SEGMENTS as usize;
    true
}
