//! The execution of a mutation: the part that write, swap, append, touch, remove and increment
//! have in common.
//!
//! A mutation of which the master has a completion record gets the recorded outcome. A mutation
//! whose lease the master does not know is suspended until the coordinator has confirmed the lease.

use sprat_proto::Instant;
use sprat_proto::rpc::Message;

use super::operation::{Call, Executed};
use crate::master::{MAX_GATED, Master};
use crate::message::Status;
use crate::message::data::{Once, Target, head, result_head};
use crate::objects::cleaner::STEP;
use crate::objects::entry::{MAX_RPC, Outcome};
use crate::objects::locks::Access;
use crate::objects::memory::{self, Memory};
use crate::objects::mutate::{Change, Mutation};
use crate::objects::rifl::Verdict;
use crate::types::{LeaseId, WallTime};

/// Executes a mutation exactly once.
pub(super) fn execute(
    master: &mut Master,
    call: &Call<'_>,
    reply: &mut Message,
    target: Target,
    once: Once,
    key: &[u8],
    change: Change<'_>,
) -> Result<Executed, Status> {
    execute_by(master, call, reply, (target, once, key, change), Memory::mutate)
}

/// Executes a mutation of this target, identity and key exactly once. `mutate` makes the change.
#[inline(always)]
pub(super) fn execute_by(
    master: &mut Master,
    call: &Call<'_>,
    reply: &mut Message,
    (target, once, key, change): (Target, Once, &[u8], Change<'_>),
    mut mutate: impl FnMut(&mut Memory, &Mutation<'_>) -> Result<Outcome, Status>,
) -> Result<Executed, Status> {
    master.membership.check(call.now, target.cluster)?;
    memory::check_sizes(
        key,
        match change {
            Change::Write(value, _) | Change::Append(value) | Change::Swap(value, _) => value,
            _ => &[],
        },
    )?;
    let hash = master.locate(target.table, key)?;
    check_identity(once)?;
    let Memory { log, results, .. } = &mut master.memory;
    match results.check(call.now, once, |at| log.dead_record(at)) {
        Verdict::New => {}
        Verdict::Done(outcome, end) if master.is_acknowledged(target, end) => {
            master.counters.repeated += 1;
            write(reply, outcome);
            return Ok(Executed::Now { idempotent: false });
        }
        Verdict::Done(..) | Verdict::TooFar => return Err(Status::Retry),
        Verdict::Stale => return Err(Status::StaleRpc),
        Verdict::Unknown => return Ok(Executed::Suspended(once.lease)),
    }
    if master.memory.transactions.is_locked(target.table, hash, Access::Change) {
        return Err(Status::Locked);
    }
    match change {
        Change::Write(..) => master.counters.writes += 1,
        Change::Remove => master.counters.removes += 1,
        Change::Add(_) => master.counters.increments += 1,
        Change::Append(_) => master.counters.appends += 1,
        Change::Touch(_) => master.counters.touches += 1,
        Change::Swap(..) => master.counters.swaps += 1,
    }
    if master.gated.len() >= MAX_GATED {
        return Err(Status::Retry);
    }
    master.replication.check(call.now, &master.memory.log)?;
    let before = master.may_lag(call.now, target);
    let wall = master.wall(call.now);
    let mutation = Mutation { target, once, key, hash, change, wall };
    let outcome = with_room(master, call.now, wall, |memory| mutate(memory, &mutation));
    master.busy |= master.cleaner.pay(&mut master.memory);
    if let (Change::Append(_), Err(Status::ValueTooLong)) = (change, outcome) {
        // The refusal tells how long the value is, which has to be durable as for a verdict.
        master.counters.refused(Status::ValueTooLong);
        reply.bytes.extend_from_slice(&head(Status::ValueTooLong));
        return Ok(Executed::Changed(before));
    }
    write(reply, outcome?);
    Ok(Executed::Changed(before))
}

/// Checks that the log has room for the identity of a mutation.
#[inline]
pub(super) fn check_identity(once: Once) -> Result<(), Status> {
    if once.rpc > MAX_RPC {
        return Err(Status::BadFormat);
    }
    if once.lease.0 == 0 || once.lease > LeaseId::MAX {
        return Err(Status::ExpiredLease);
    }
    Ok(())
}

/// Makes a change of the memory. If memory is full, a step of background work goes first, even if
/// this machine is never idle.
#[inline]
pub(super) fn with_room<T>(
    master: &mut Master,
    now: Instant,
    wall: WallTime,
    mut change: impl FnMut(&mut Memory) -> Result<T, Status>,
) -> Result<T, Status> {
    let Master { memory, cleaner, expiry, .. } = master;
    let outcome = change(memory);
    match outcome {
        Err(Status::Retry) => {
            cleaner.step(memory, STEP);
            let outcome = change(memory);
            let is_full = matches!(outcome, Err(Status::Retry)) && !cleaner.wanted(memory);
            if is_full { Err(Status::NoSpace) } else { outcome }
        }
        Err(Status::NoSpace) if expiry.hurry(memory, now, wall) => {
            // Tombstones of what has expired may need a segment.
            cleaner.step(memory, STEP);
            let hope = expiry.make_room(memory, now, wall) || cleaner.wanted(memory);
            master.busy |= hope;
            let outcome = change(memory);
            let is_full = matches!(outcome, Err(Status::NoSpace));
            if hope && is_full { Err(Status::Retry) } else { outcome }
        }
        outcome => outcome,
    }
}

/// Writes the outcome of a mutation into its reply.
fn write(reply: &mut Message, outcome: Outcome) {
    reply.bytes.extend_from_slice(&result_head(outcome.status, outcome.version));
    if let Some(sum) = outcome.sum {
        reply.bytes.extend_from_slice(&sum);
    }
}
