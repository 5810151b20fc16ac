//! The execution that write, remove and increment have in common.
//!
//! A mutation of which the master has a completion record gets the recorded outcome. A mutation
//! whose lease the master does not know waits until the coordinator has answered for the lease.

use alloc::vec::Vec;

use sprat_proto::rpc::Message;

use super::operation::Call;
use crate::master::{MAX_GATED, Master};
use crate::message::Status;
use crate::message::data::{Once, Target, result_head};
use crate::objects::cleaner::STEP;
use crate::objects::entry::{COMPLETION, Outcome};
use crate::objects::memory::{self, Change, Memory, Mutation};
use crate::objects::rifl::Verdict;

/// Executes a mutation exactly once.
pub(super) fn execute(
    master: &mut Master,
    call: &Call<'_>,
    target: Target,
    once: Once,
    key: &[u8],
    change: Change<'_>,
) -> Result<Option<Message>, Status> {
    master.membership.check(call.now, target.cluster)?;
    memory::check_sizes(key, if let Change::Write(value) = change { value } else { &[] })?;
    let Memory { log, tablets, results, .. } = &mut master.memory;
    let hash = tablets.locate(target.table, key).ok_or(Status::UnknownTablet)?;
    if once.lease.0 == 0 {
        return Err(Status::ExpiredLease);
    }
    match results.check(call.now, once, |at| log.dead(at, COMPLETION)) {
        Verdict::New => {}
        Verdict::Done(outcome, end) if end <= log.durable() => {
            master.counters.repeated += 1;
            return Ok(Some(reply(&mut master.spare, outcome)));
        }
        Verdict::Done(..) | Verdict::TooFar => return Err(Status::Retry),
        Verdict::Stale => return Err(Status::StaleRpc),
        Verdict::Unknown => {
            master.leases.suspend(once.lease, call.caller, call.request, call.deadline)?;
            return Ok(None);
        }
    }
    match change {
        Change::Write(_) => master.counters.writes += 1,
        Change::Remove => master.counters.removes += 1,
        Change::Add(_) => master.counters.increments += 1,
    }
    if master.gated.len() >= MAX_GATED {
        return Err(Status::Retry);
    }
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
    let message = reply(&mut master.spare, outcome?);
    Ok(master.gate(call.caller, message, false))
}

/// Returns the reply that tells the outcome of a mutation, in the spare buffer.
fn reply(spare: &mut Vec<u8>, outcome: Outcome) -> Message {
    let mut bytes = core::mem::take(spare);
    bytes.clear();
    bytes.extend_from_slice(&result_head(outcome.status, outcome.version));
    if let Some(sum) = outcome.sum {
        bytes.extend_from_slice(&sum);
    }
    bytes.into()
}
