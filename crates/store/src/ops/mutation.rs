//! The execution of a mutation: the part that write, append, remove and increment have in
//! common.
//!
//! A mutation of which the master has a completion record gets the recorded outcome. A mutation
//! whose lease the master does not know is suspended until the coordinator has confirmed the lease.

use sprat_proto::rpc::Message;

use super::operation::{Call, Executed};
use crate::master::{MAX_GATED, Master};
use crate::message::Status;
use crate::message::data::{Once, Target, head, result_head};
use crate::objects::cleaner::STEP;
use crate::objects::entry::Outcome;
use crate::objects::memory::{self, Change, Memory, Mutation};
use crate::objects::rifl::Verdict;

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
    master.membership.check(call.now, target.cluster)?;
    memory::check_sizes(
        key,
        if let Change::Write(value) | Change::Append(value) = change { value } else { &[] },
    )?;
    let Memory { log, tablets, results, .. } = &mut master.memory;
    let hash = tablets.locate(target.table, key).ok_or(Status::UnknownTablet)?;
    if once.lease.0 == 0 {
        return Err(Status::ExpiredLease);
    }
    match results.check(call.now, once, |at| log.dead_record(at)) {
        Verdict::New => {}
        Verdict::Done(outcome, end) if master.is_acknowledged(target.table, end) => {
            master.counters.repeated += 1;
            write(reply, outcome);
            return Ok(Executed::Now { idempotent: false });
        }
        Verdict::Done(..) | Verdict::TooFar => return Err(Status::Retry),
        Verdict::Stale => return Err(Status::StaleRpc),
        Verdict::Unknown => return Ok(Executed::Suspended(once.lease)),
    }
    match change {
        Change::Write(_) => master.counters.writes += 1,
        Change::Remove => master.counters.removes += 1,
        Change::Add(_) => master.counters.increments += 1,
        Change::Append(_) => master.counters.appends += 1,
    }
    if master.gated.len() >= MAX_GATED {
        return Err(Status::Retry);
    }
    master.replication.check(call.now, &master.memory.log)?;
    let before = master.may_lag(call.now, target.table);
    let mutation = Mutation { target, once, key, hash, change };
    let mut outcome = master.memory.mutate(&mutation);
    if outcome == Err(Status::Retry) {
        // A write into full memory cleans, even if this machine is never idle.
        master.cleaner.step(&mut master.memory, STEP);
        outcome = master.memory.mutate(&mutation);
        if outcome == Err(Status::Retry) && !master.cleaner.wanted(&master.memory) {
            outcome = Err(Status::NoSpace);
        }
    }
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

/// Writes the outcome of a mutation into its reply.
fn write(reply: &mut Message, outcome: Outcome) {
    reply.bytes.extend_from_slice(&result_head(outcome.status, outcome.version));
    if let Some(sum) = outcome.sum {
        reply.bytes.extend_from_slice(&sum);
    }
}
