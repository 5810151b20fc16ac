//! The transactions that their clients left undecided, or committed and not made known.
//!
//! ```text
//!  prepared   FindOwner ─► Resolve at the master of the first object ─► decide here
//!  committed  FindOwner ─► Decide at the master of each prepared object ─► finish here
//! ```
//!
//! Invariants: a few records are taken care of at a time, and each of them has one call in
//! progress. A record that cannot be decided now becomes due again later.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::Output;
use sprat_proto::rpc::{Payload, RpcError};

use super::links::COORDINATOR;
use super::membership::CALL_NS;
use super::resolving::{Asked, Job, MOST_JOBS, Step};
use super::state::Master;
use crate::message::Status;
use crate::message::control;
use crate::message::transaction::{
    Decision, FindOwner, Owner, Participant, Resolution, Resolve, Resolved, decide,
};
use crate::objects::locks::Due;
use crate::objects::record::Record;
use crate::types::ServerId;

impl Master {
    /// Notes the records that are new, and begins to take care of those that are due.
    #[inline]
    pub(super) fn begin_resolving(&mut self, now: Instant) {
        if !self.memory.transactions.is_quiet() {
            self.resolve_due(now);
        }
    }

    /// Returns the time of the next step for the records.
    #[cold]
    pub(super) fn resolving_deadline(&self) -> Instant {
        match self.membership.cluster() {
            Some(_) => self.resolving.deadline(&self.memory),
            None => Instant::NEVER,
        }
    }

    #[cold]
    fn resolve_due(&mut self, now: Instant) {
        let Some(cluster) = self.membership.cluster() else { return };
        if self.memory.transactions.deadline() > now {
            return;
        }
        // A master that others may have replaced has nothing to tell.
        let is_master = self.membership.check(now, cluster).is_ok();
        self.memory.transactions.note(now);
        while self.resolving.jobs.len() < MOST_JOBS
            && let Some(due) = self.memory.transactions.next_due(now)
        {
            let is_served = self.memory.tablets.serves(due.table, due.key.hash);
            let can = self.replication.check(now, &self.memory.log).is_ok();
            match self.job(due).filter(|_| is_master && is_served && can) {
                Some(job) => {
                    self.counters.silent += 1;
                    self.resolving.jobs.push(job);
                    self.resolving.pending = true;
                }
                None => self.memory.transactions.again(now, due),
            }
        }
    }

    /// Returns the job for a record that is due.
    fn job(&self, due: Due) -> Option<Job> {
        let (_, at) = self.memory.find(due.table.records(), due.key.hash, &due.key.bytes())?;
        // A commit that is not durable may yet be lost: then no other master may know of it.
        if !self.memory.log.is_durable(at) {
            return None;
        }
        let (first, left) = match Record::parse(self.memory.log.object(at).value)? {
            Record::Prepared { first, .. } => (Some(first), Vec::new()),
            Record::Committed(others) => (None, others.iter().collect()),
        };
        let link = self.resolving.free_link();
        Some(Job { due, first, left, step: Step::Find, link, linked: false })
    }

    /// Returns the next action for the records.
    pub(super) fn next_for_transactions(&mut self, now: Instant) -> Option<Output> {
        self.resolving.pending = false;
        let me = (self.membership.cluster()?, self.membership.server()?);
        for index in 0..self.resolving.jobs.len() {
            let output = self.next_for(now, index, me);
            if output.is_some() {
                self.resolving.pending = true;
                return output;
            }
        }
        self.resolving.jobs.retain(|job| !matches!(job.step, Step::End));
        None
    }

    fn next_for(
        &mut self,
        now: Instant,
        index: usize,
        (cluster, me): (u64, ServerId),
    ) -> Option<Output> {
        let tag = self.tag();
        let job = &mut self.resolving.jobs[index];
        let call = |link, message: Vec<u8>| Output::Call {
            link,
            tag,
            message: message.into(),
            deadline: now.after(CALL_NS),
        };
        match &mut job.step {
            Step::Wait(..) => None,
            Step::End => {
                let linked = core::mem::take(&mut job.linked);
                linked.then_some(Output::Disconnect { link: job.link })
            }
            Step::Connect(locator) => {
                let locator = core::mem::take(locator);
                (job.step, job.linked) = (Step::Call, true);
                Some(Output::Connect { link: job.link, locator })
            }
            Step::Find if job.linked => {
                job.linked = false;
                Some(Output::Disconnect { link: job.link })
            }
            Step::Find => {
                let Some(Participant { table, hash, .. }) = job.object() else {
                    self.end_job(now, index);
                    return None;
                };
                if self.memory.tablets.serves(table, hash) {
                    self.answer_here(now, index);
                    return self.next_for(now, index, (cluster, me));
                }
                job.step = Step::Wait(tag, Asked::Owner);
                let request = FindOwner { cluster, table, hash: hash.0 };
                Some(call(COORDINATOR, request.emit()))
            }
            Step::Call => {
                let object = job.object()?;
                let lease = job.lease();
                job.step = Step::Wait(tag, Asked::Server);
                let request = if job.first.is_some() {
                    let Participant { table, hash, rpc } = object;
                    Resolve { cluster, lease: lease.0, rpc, table, hash: hash.0 }.emit()
                } else {
                    decide((cluster, lease), Decision::Commit, core::iter::once(object))
                };
                Some(call(job.link, request))
            }
        }
    }

    /// Takes the step for which this master itself has the object.
    fn answer_here(&mut self, now: Instant, index: usize) {
        let job = &self.resolving.jobs[index];
        let (Some(object), lease) = (job.object(), job.lease()) else { return };
        self.replication.appended();
        if job.first.is_some() {
            match self.memory.resolve(object, lease) {
                Ok(resolution) => self.resolved(now, index, resolution),
                Err(_) => self.put_off(now, index),
            }
        } else {
            match self.memory.decide(object, lease, true) {
                Ok(()) => self.told(now, index),
                Err(_) => self.put_off(now, index),
            }
        }
    }

    /// Takes the result of a call for a record.
    pub(super) fn take_for_transaction(
        &mut self,
        now: Instant,
        tag: u64,
        result: Result<Payload<'_>, RpcError>,
    ) {
        let is_it = |job: &Job| matches!(job.step, Step::Wait(of, _) if of == tag);
        let Some(index) = self.resolving.jobs.iter().position(is_it) else { return };
        self.resolving.pending = true;
        let Step::Wait(_, asked) = self.resolving.jobs[index].step else { return };
        let Ok(reply) = result else { return self.put_off(now, index) };
        match asked {
            Asked::Owner => self.found(now, index, Owner::parse(&reply).ok()),
            Asked::Server if self.resolving.jobs[index].first.is_some() => {
                match Resolved::parse(&reply) {
                    Ok(Resolved { resolution }) => self.resolved(now, index, resolution),
                    Err(_) => self.put_off(now, index),
                }
            }
            Asked::Server => match control::outcome(&reply) {
                Ok((Status::Ok, _)) => self.told(now, index),
                _ => self.put_off(now, index),
            },
        }
    }

    /// Takes the owner of the object that matters next.
    fn found(&mut self, now: Instant, index: usize, owner: Option<Owner<'_>>) {
        let job = &mut self.resolving.jobs[index];
        match owner {
            // The table of the first object was dropped, or its tablet is lost, and what its master
            // knew is gone with it.
            Some(owner) if owner.gone && job.first.is_some() => {
                self.resolved(now, index, Resolution::Aborted);
            }
            Some(owner) if owner.gone => self.told(now, index),
            Some(owner) if owner.server.generation > 0 => {
                job.step = Step::Connect(owner.data.into());
            }
            _ => self.put_off(now, index),
        }
    }

    /// Takes the decision on a prepared object.
    fn resolved(&mut self, now: Instant, index: usize, resolution: Resolution) {
        let Job { due, .. } = self.resolving.jobs[index];
        let commit = resolution == Resolution::Committed;
        // The tablet may have gone to another master meanwhile, and its record with it.
        let is_served = self.memory.tablets.serves(due.table, due.key.hash);
        let is_decided =
            is_served && self.memory.decide(due.object(), due.key.lease, commit).is_ok();
        self.replication.appended();
        if is_decided {
            self.resolving.jobs[index].step = Step::End;
        } else {
            self.put_off(now, index);
        }
    }

    /// Records that the master of a prepared object knows that the transaction is committed.
    fn told(&mut self, now: Instant, index: usize) {
        let job = &mut self.resolving.jobs[index];
        job.left.pop();
        job.step = Step::Find;
        if job.left.is_empty() {
            self.end_job(now, index);
        }
    }

    /// Ends the record of a committed transaction: all masters know of it.
    fn end_job(&mut self, now: Instant, index: usize) {
        let Job { due, .. } = self.resolving.jobs[index];
        let is_served = self.memory.tablets.serves(due.table, due.key.hash);
        let is_ended = is_served && self.memory.finish(due.object(), due.key.lease).is_ok();
        self.replication.appended();
        if is_ended {
            self.resolving.jobs[index].step = Step::End;
        } else {
            self.put_off(now, index);
        }
    }

    /// Lets a record become due again later.
    fn put_off(&mut self, now: Instant, index: usize) {
        let job = &mut self.resolving.jobs[index];
        job.step = Step::End;
        self.memory.transactions.again(now, job.due);
        // There may be no free segment.
        self.busy |= self.cleaner.wanted(&self.memory);
    }
}
