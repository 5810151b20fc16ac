//! The operations of transactions: prepare, commit, validate and decide.
//!
//! [`crate::message::transaction`] has the formats and the way of a transaction.
//! [`crate::objects::commit`] executes the parts.
//!
//! Invariants: a reply goes out when everything that it reports is durable, whatever the durability
//! of the tables. A transaction that was refused by the master of its first object never commits.

use alloc::vec::Vec;

use sprat_proto::node::machine::Replied;
use sprat_proto::rpc::Message;

use super::mutation::{check_identity, with_room};
use super::operation::{Call, Executed, Operation, Order};
use crate::btree::edit::Edits;
use crate::master::{MAX_GATED, Master};
use crate::message::data::{Once, head};
use crate::message::transaction::{
    self, ANSWER, Change, Conflict, Decide, Decision, Front, Participant, Resolve, Resolved, answer,
};
use crate::message::{Opcode, Status};
use crate::objects::cache;
use crate::objects::commit::{Item, version_of};
use crate::objects::locks::Access;
use crate::objects::memory::{self, Memory};
use crate::objects::record::Planned;
use crate::objects::rifl::Verdict;
use crate::types::{KeyHash, LeaseId, TableId, Version, WallTime};

/// A request to lock objects, and to remember their changes until the decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Prepare<'a>(pub Front<'a>);

/// A request to commit a transaction: the first part is the first object of the transaction, and
/// the objects of other masters are prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Commit<'a>(pub Front<'a>);

/// A request to check that objects which a transaction has read are as they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validate<'a>(pub Front<'a>);

/// The state of a part of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    New,
    /// The part was prepared or committed before, in this version.
    Done(Version),
}

/// The verdict on the parts of a request.
enum Judged {
    /// The parts that are new can be executed.
    Executable,
    /// The first part was refused before, by this conflict.
    Refused(Conflict),
    /// The lease has to be confirmed first.
    Suspended(LeaseId),
}

/// The parts of a request, as the master executes them.
struct Parts<'a> {
    items: Vec<Item<'a>>,
    states: Vec<State>,
    /// The refusals of edits: the indices of their items.
    refused: Vec<(usize, Status)>,
    wall: WallTime,
}

/// The outcome of the edits of an object: its new value, or `None` if it has that already.
type Edited = Result<Option<Vec<u8>>, Status>;

impl<'a> Parts<'a> {
    /// Finds the objects of a request. Their edits are to follow: see [`Parts::edited`].
    fn find(master: &mut Master, call: &Call<'_>, front: &Front<'a>) -> Result<Self, Status> {
        let wall = master.wall(call.now);
        if front.count > 1 {
            master.expect_all(front.parts.map(|part| (part.table, part.key)));
        }
        let mut items = Vec::with_capacity(front.count);
        for part in front.parts {
            let planned = match part.change {
                Change::Write(value, lifetime) => Planned::Write(value, wall.after(lifetime)),
                Change::Remove => Planned::Remove,
                Change::Check | Change::Edit(_) => Planned::Check,
            };
            let value = if let Planned::Write(value, _) = planned { value } else { &[] };
            memory::check_sizes(part.key, value)?;
            let hash = master.locate(part.table, part.key)?;
            let (table, key, rules) = (part.table, part.key, part.rules);
            let once = Once { lease: front.lease, rpc: part.rpc, ack: front.ack };
            let mut before = master.memory.before(table, hash, key);
            // What has expired is gone, whatever the clock of the next server says.
            if let Some(gone) = before.take_if(|before| before.expires <= wall) {
                master.expire(call.now, gone.place, gone.at)?;
            }
            items.push(Item { table, hash, key, rules, once, planned, before });
        }
        if front.count > 1 {
            let mut objects: Vec<_> = items.iter().map(|item| (item.table, item.hash)).collect();
            objects.sort_unstable();
            if objects.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(Status::BadFormat);
            }
        }
        Ok(Self { items, states: Vec::with_capacity(front.count), refused: Vec::new(), wall })
    }

    /// Makes the edits of a request, in the order of its parts. Changes no object.
    fn edited(&self, master: &Master, front: &Front<'_>) -> Result<Vec<Edited>, Status> {
        let (mut all, mut bytes) = (Vec::new(), 0);
        if !front.has_edits {
            return Ok(all);
        }
        let leaf = |item: &Item<'_>| Some(master.memory.log.object(item.before?.at).value);
        let edits = || {
            front.parts.zip(&self.items).filter_map(|(part, item)| match part.change {
                Change::Edit(edits) => Some((edits, leaf(item))),
                _ => None,
            })
        };
        for (edits, leaf) in edits() {
            // What a segment has no room for is not worth the work.
            bytes += leaf.map_or(0, <[u8]>::len) + edits.len();
            if bytes > master.memory.log.longest_entry() {
                return Err(Status::ValueTooLong);
            }
            leaf.into_iter().for_each(cache::load);
        }
        for (edits, leaf) in edits() {
            let edits = Edits::parse(edits)?;
            all.push(leaf.ok_or(Status::OtherLeaf).and_then(|leaf| edits.apply(leaf)));
        }
        Ok(all)
    }

    /// Plans to write what the edits of a request have made.
    fn plan(&mut self, front: &Front<'_>, edited: &'a [Edited]) -> Result<(), Status> {
        let edits = front.parts.map(|part| matches!(part.change, Change::Edit(_)));
        let items = self.items.iter_mut().enumerate().zip(edits).filter(|(_, is_edit)| *is_edit);
        for ((index, item), edited) in items.map(|(item, _)| item).zip(edited) {
            item.planned = match edited {
                Ok(Some(value)) => Planned::Write(value, WallTime::NEVER),
                Ok(None) => Planned::Check,
                // A part that is refused is never executed. It needs the lock of a change.
                Err(why) => {
                    self.refused.push((index, *why));
                    Planned::Remove
                }
            };
            if let Planned::Write(value, _) = item.planned {
                memory::check_sizes(item.key, value)?;
            }
        }
        Ok(())
    }

    /// Finds out which parts of a change are new, whose edits had these outcomes.
    fn judged(
        &mut self,
        master: &mut Master,
        call: &Call<'_>,
        front: &Front<'_>,
        edited: &'a [Edited],
    ) -> Result<Judged, Status> {
        if front.has_edits {
            self.plan(front, edited)?;
        }
        let judged = self.judge(master, call)?;
        check_room(master, call)?;
        Ok(judged)
    }

    fn judge(&mut self, master: &mut Master, call: &Call<'_>) -> Result<Judged, Status> {
        let Memory { log, results, .. } = &mut master.memory;
        let mut numbers: Vec<_> = self.items.iter().map(|item| item.once.rpc).collect();
        numbers.sort_unstable();
        if numbers.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Status::BadFormat);
        }
        let mut judged = Judged::Executable;
        for item in &self.items {
            check_identity(item.once)?;
            if item.once.rpc == 0 {
                return Err(Status::BadFormat);
            }
            let state = match results.check(call.now, item.once, |at| log.dead_record(at)) {
                Verdict::New => State::New,
                Verdict::Done(_, end) if end > log.durable() => return Err(Status::Retry),
                Verdict::Done(outcome, _) => {
                    if outcome.status == Status::Conflict {
                        let sum = outcome.sum.unwrap_or_default();
                        judged = Judged::Refused(Conflict::of_sum(sum, outcome.version));
                    }
                    State::Done(version_of(outcome))
                }
                Verdict::TooFar => return Err(Status::Retry),
                Verdict::Stale => return Err(Status::StaleRpc),
                Verdict::Unknown => return Ok(Judged::Suspended(item.once.lease)),
            };
            self.states.push(state);
        }
        Ok(judged)
    }

    /// Returns the parts that are new.
    fn new_ones(&self) -> impl Iterator<Item = (usize, &Item<'a>)> {
        let items = self.items.iter().enumerate().zip(&self.states);
        items.filter(|(_, state)| **state == State::New).map(|(item, _)| item)
    }

    /// Returns the conflict of the first new part that is not as the transaction needs it.
    fn conflict(&self, master: &Master) -> Option<Conflict> {
        self.new_ones().find_map(|(index, item)| {
            let why = master.memory.check(item, item.access()).err();
            let refused = || self.refused.iter().find(|(of, _)| *of == index).map(|it| it.1);
            let why = why.or_else(refused)?;
            Some(Conflict { why, part: index as u16, version: item.version() })
        })
    }
}

/// Checks that the master can execute a change of a transaction now.
fn check_room(master: &Master, call: &Call<'_>) -> Result<(), Status> {
    if master.gated.len() >= MAX_GATED {
        return Err(Status::Retry);
    }
    master.replication.check(call.now, &master.memory.log)
}

/// Writes the answers to all parts into the reply.
fn write(reply: &mut Message, answers: impl Iterator<Item = [u8; ANSWER]>) {
    reply.bytes.extend_from_slice(&head(Status::Ok));
    answers.for_each(|answer| reply.bytes.extend_from_slice(&answer));
}

impl<'a> Operation<'a> for Prepare<'a> {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        emit(Opcode::Prepare, &self.0, out)
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let front = Front::parse(request, Opcode::Prepare)?;
        if front.others.len() == 1 { Ok(Self(front)) } else { Err(Status::BadFormat) }
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status> {
        let front = &self.0;
        let first = front.others.iter().next().ok_or(Status::BadFormat)?;
        master.membership.check(call.now, front.cluster)?;
        let mut parts = Parts::find(master, call, front)?;
        let edited = parts.edited(master, front)?;
        let conflict = match parts.judged(master, call, front, &edited)? {
            Judged::Suspended(lease) => return Ok(Executed::Suspended(lease)),
            Judged::Refused(conflict) => Some(conflict),
            Judged::Executable => parts.conflict(master),
        };
        if let Some(conflict) = conflict {
            master.counters.conflicts += 1;
            conflict.emit_to(&mut reply.bytes);
            // What conflicts may not be durable yet.
            return Ok(Executed::Changed(None));
        }
        let mut versions = Vec::with_capacity(parts.items.len());
        for (item, state) in parts.items.iter().zip(&parts.states) {
            versions.push(match *state {
                State::Done(version) => version,
                State::New => {
                    let prepare = |memory: &mut Memory| memory.prepare(item, first);
                    with_room(master, call.now, parts.wall, prepare)?
                }
            });
        }
        master.busy |= master.cleaner.pay(&mut master.memory);
        master.counters.prepares += 1;
        write(reply, versions.into_iter().map(|version| answer(true, version)));
        Ok(Executed::Changed(None))
    }
}

impl<'a> Operation<'a> for Commit<'a> {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        emit(Opcode::Commit, &self.0, out)
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        Front::parse(request, Opcode::Commit).map(Self)
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status> {
        let front = &self.0;
        master.membership.check(call.now, front.cluster)?;
        let mut parts = Parts::find(master, call, front)?;
        let edited = parts.edited(master, front)?;
        match parts.judged(master, call, front, &edited)? {
            Judged::Suspended(lease) => return Ok(Executed::Suspended(lease)),
            Judged::Refused(conflict) => {
                conflict.emit_to(&mut reply.bytes);
                return Ok(Executed::Changed(None));
            }
            Judged::Executable => {}
        }
        let first = parts.items[0];
        let is_new = parts.states[0] == State::New;
        if let Some(conflict) = parts.conflict(master).filter(|_| is_new) {
            let refuse = |memory: &mut Memory| {
                memory.refuse((first.table, first.hash), first.once, conflict)
            };
            with_room(master, call.now, parts.wall, refuse)?;
            master.counters.conflicts += 1;
            conflict.emit_to(&mut reply.bytes);
            return Ok(Executed::Changed(None));
        }
        if !is_new && parts.new_ones().next().is_some() {
            // A client sends no part with the first one that it has not sent with it before.
            return Err(Status::BadFormat);
        }
        if is_new {
            commit(master, call, front, &mut parts)?;
            master.counters.commits += 1;
        }
        let memory = &master.memory;
        let answers = parts.items.iter().zip(&parts.states).map(|(item, state)| {
            let held = memory.transactions.knows(item.table, item.record_key());
            let version = if let State::Done(version) = *state { version } else { Version(0) };
            answer(held && item.once.rpc != first.once.rpc, version)
        });
        write(reply, answers);
        Ok(Executed::Changed(None))
    }
}

/// Commits a transaction. Parts that are prepared here already stay so until the decision.
fn commit(
    master: &mut Master,
    call: &Call<'_>,
    front: &Front<'_>,
    parts: &mut Parts<'_>,
) -> Result<(), Status> {
    let mut others = front.others.bytes().to_vec();
    for (item, state) in parts.items.iter().zip(&parts.states) {
        if *state != State::New {
            let Item { table, hash, once, .. } = *item;
            Participant { table, hash, rpc: once.rpc }.emit_to(&mut others);
        }
    }
    let others = transaction::Participants::parse(&others)?;
    let mut items: Vec<Item<'_>> = parts.new_ones().map(|(_, item)| *item).collect();
    let mut is_first_try = true;
    let change = |memory: &mut Memory| {
        if !core::mem::take(&mut is_first_try) {
            memory.find_again(&mut items);
        }
        memory.commit(&items, others)
    };
    let versions = with_room(master, call.now, parts.wall, change)?;
    let new = parts.states.iter_mut().filter(|state| **state == State::New);
    for (state, version) in new.zip(versions) {
        *state = State::Done(version);
    }
    master.busy |= master.cleaner.pay(&mut master.memory);
    Ok(())
}

impl<'a> Operation<'a> for Validate<'a> {
    fn emit_in(&self, out: Vec<u8>) -> Vec<u8> {
        emit(Opcode::Validate, &self.0, out)
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        let front = Front::parse(request, Opcode::Validate)?;
        let is_check = front.parts.into_iter().all(|part| part.change == Change::Check);
        if is_check { Ok(Self(front)) } else { Err(Status::BadFormat) }
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status> {
        master.membership.check(call.now, self.0.cluster)?;
        let parts = Parts::find(master, call, &self.0)?;
        let conflict = parts.items.iter().enumerate().find_map(|(index, item)| {
            let why = master.memory.check(item, Access::Read).err()?;
            Some(Conflict { why, part: index as u16, version: item.version() })
        });
        master.counters.validations += 1;
        match conflict {
            Some(conflict) => {
                master.counters.conflicts += 1;
                conflict.emit_to(&mut reply.bytes);
                return Ok(Executed::Changed(None));
            }
            None => {
                write(reply, parts.items.iter().map(|_| answer(false, Version(0))));
                // The client has read what exists, so that it is durable. A removal may not be.
                let exists = |it: &Item<'_>| it.rules.version_ne_given && it.rules.doesnt_exist;
                if !parts.items.iter().all(exists) {
                    return Ok(Executed::Changed(None));
                }
            }
        }
        Ok(Executed::Now { idempotent: true })
    }
}

impl<'a> Operation<'a> for Decide<'a> {
    fn emit_in(&self, mut out: Vec<u8>) -> Vec<u8> {
        out.clear();
        let Self { cluster, lease, decision, objects } = *self;
        out.extend(transaction::decide((cluster, lease), decision, objects.iter()));
        out
    }

    fn parse(request: &'a [u8]) -> Result<Self, Status> {
        Decide::parse(request)
    }

    fn key(&self) -> Option<(TableId, &'a [u8])> {
        None
    }

    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Executed, Status> {
        master.membership.check(call.now, self.cluster)?;
        for Participant { table, hash, .. } in self.objects.iter() {
            if !master.memory.tablets.serves(table, hash) {
                return Err(Status::UnknownTablet);
            }
        }
        check_room(master, call)?;
        let wall = master.wall(call.now);
        for object in self.objects.iter() {
            let decide = |memory: &mut Memory| match self.decision {
                Decision::Finish => memory.finish(object, self.lease),
                decision => memory.decide(object, self.lease, decision == Decision::Commit),
            };
            // A decision is never refused for lack of space: the prepared record has it.
            with_room(master, call.now, wall, decide).map_err(|_| Status::Retry)?;
        }
        master.busy |= master.cleaner.pay(&mut master.memory);
        master.counters.decisions += 1;
        reply.bytes.extend_from_slice(&head(Status::Ok));
        Ok(Executed::Changed(None))
    }
}

impl Order for Resolve {
    fn execute(
        self,
        master: &mut Master,
        call: &Call<'_>,
        reply: &mut Message,
    ) -> Result<Replied, Status> {
        master.membership.check(call.now, self.cluster)?;
        let Self { lease, rpc, table, .. } = self;
        let first = Participant { table, hash: KeyHash(self.hash), rpc };
        let lease = LeaseId(lease);
        check_identity(Once { lease, rpc, ack: 0 }).map_err(|_| Status::BadFormat)?;
        if !master.memory.tablets.serves(table, first.hash) {
            return Err(Status::UnknownTablet);
        }
        check_room(master, call)?;
        let wall = master.wall(call.now);
        let resolve = |memory: &mut Memory| memory.resolve(first, lease);
        let resolution = with_room(master, call.now, wall, resolve).map_err(|_| Status::Retry)?;
        master.counters.resolutions += 1;
        *reply = Resolved { resolution }.emit().into();
        Ok(master.gate(call.caller, reply, false))
    }
}

/// Puts the bytes of a request into `out`.
fn emit(opcode: Opcode, front: &Front<'_>, mut out: Vec<u8>) -> Vec<u8> {
    out.clear();
    let Front { cluster, lease, ack, others, parts, .. } = *front;
    let others: Vec<_> = others.iter().collect();
    let parts: Vec<_> = parts.collect();
    let identity = (cluster, lease, ack);
    out.extend(transaction::request(opcode, identity, others.into_iter(), parts.into_iter()));
    out
}
