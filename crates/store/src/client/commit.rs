//! The client's side of transactions: it leads each one through its phases.
//!
//! ```text
//!  objects of one master     Commit
//!  of several, with changes  Prepare to the others ─► Commit to the first ─► Decide to the others
//!  without changes           Validate to all, if the versions of all are known
//! ```
//!
//! The transaction is committed when the master of the first object that changes says so. Then it
//! ends for the program, and [`super::deciding`] makes the decision known. A phase ends when all of
//! its calls have ended. A phase whose calls failed is repeated after a pause. If tablets have
//! moved, the objects are sent to their new masters, which know what was executed.
//!
//! Invariants: a commit is sent only when all objects of other masters are prepared. The numbers of
//! the objects are not acknowledged before all masters know the decision, as far as the client can
//! make it known.

use alloc::boxed::Box;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::rpc::{Payload, RpcError};

use super::answer::{Answer, Done};
use super::error::{Error, WaitedFor};
use super::op::Op;
use super::routes::Owner;
use super::state::{Client, Kind, State as Waiting, enqueue, op};
use super::transaction::{
    Group, Object, OwnedTransactionPart, Phase, State, Step, Transaction, TransactionPart, add,
    check_sizes, single,
};
use crate::message::data::{Refusal, Target, accepted};
use crate::message::transaction::{
    self, Answered, Change, Decision, Participant, answered, decide, part_answer,
};
use crate::message::{Opcode, Status};
use crate::types::Version;

impl Client {
    /// Starts a transaction: all changes are made, or none if an object is not as its rules say.
    /// The answer is [`Answer::Committed`]. A transaction that meets another state ends with
    /// [`Error::Conflict`].
    pub fn transact(&mut self, parts: &[TransactionPart<'_>], deadline: Instant) -> Op {
        if let [only] = parts
            && let Some(op) = self.transact_one(*only, deadline)
        {
            return op;
        }
        self.transact_several(parts.iter().copied(), deadline)
    }

    /// Starts a transaction as [`Client::transact`] does.
    pub fn transact_owned(&mut self, parts: &[OwnedTransactionPart], deadline: Instant) -> Op {
        if let [only] = parts
            && let Some(op) = self.transact_one(only.part(), deadline)
        {
            return op;
        }
        self.transact_several(parts.iter().map(OwnedTransactionPart::part), deadline)
    }

    fn transact_several<'a>(
        &mut self,
        parts: impl ExactSizeIterator<Item = TransactionPart<'a>> + Clone,
        deadline: Instant,
    ) -> Op {
        let bytes = match check_sizes(parts.clone()) {
            Ok(bytes) => bytes,
            Err(error) => return self.unstarted(error, deadline),
        };
        let transaction = Transaction::new(parts, bytes, |table| self.routes.table(table));
        let index = self.begin(Kind::Transaction, 0, deadline);
        let op = op(index, &self.slots[index as usize]);
        self.slots[index as usize].extra().transaction = Some(Box::new(transaction));
        self.start(index);
        op
    }

    /// Ends a transaction with this error before it starts.
    fn unstarted(&mut self, error: Error, deadline: Instant) -> Op {
        let index = self.begin(Kind::Transaction, 0, deadline);
        let op = op(index, &self.slots[index as usize]);
        self.refuse(index, error);
        op
    }

    /// Starts a transaction that writes or removes one object, as that operation: it takes half of
    /// the time of a commit.
    fn transact_one(&mut self, part: TransactionPart<'_>, deadline: Instant) -> Option<Op> {
        let TransactionPart { table, key, rules, change } = part;
        let op = match change {
            Change::Write(value, None) => self.write(table, key, value, rules, deadline),
            Change::Write(value, Some(lifetime)) => {
                self.write_expiring(table, key, value, lifetime, rules, deadline)
            }
            Change::Remove => self.remove(table, key, rules, deadline),
            Change::Check | Change::Edit(_) => return None,
        };
        if let Some(index) = self.live(op.0) {
            let slot = &mut self.slots[index as usize];
            Target::set_durable(&mut slot.bytes);
            slot.is_commit = true;
        }
        Some(op)
    }

    /// Ends a transaction that was sent as an operation on its only object.
    #[cold]
    pub(super) fn close_commit<'b>(
        &mut self,
        index: u32,
        outcome: Result<Answer<'b>, Error>,
    ) -> Option<Done<'b>> {
        let op = self.end(index);
        Some(Done { op, outcome: single(outcome) })
    }

    /// Sends the calls of a transaction's phase.
    #[cold]
    pub(super) fn advance(&mut self, now: Instant, index: u32) {
        let Some((op, mut it)) = self.take_transaction(index) else { return };
        if self.slots[index as usize].deadline <= now {
            return self.end_transaction_late(index, &it);
        }
        let groups = self.groups(now, index, &mut it);
        if it.phase == Phase::Deciding && groups.as_ref().is_some_and(Vec::is_empty) {
            return self.decided(index, &it);
        }
        if groups.as_ref().is_some_and(|groups| groups.len() > 1) {
            it.lock_what_may_return();
        }
        if let Some(groups) = groups
            && self.number(now, index, &mut it)
        {
            self.slots[index as usize].state = Waiting::Calling;
            self.send_phase(now, index, &mut it, groups);
        }
        self.keep_transaction(op, it);
    }

    /// Takes a transaction out of its slot, so that it can be changed beside the client.
    fn take_transaction(&mut self, index: u32) -> Option<(Op, Box<Transaction>)> {
        let slot = &mut self.slots[index as usize];
        let op = op(index, slot);
        Some((op, slot.extra.as_mut()?.transaction.take()?))
    }

    /// Puts a transaction back into its slot, or acknowledges its numbers if it has ended.
    fn keep_transaction(&mut self, op: Op, it: Box<Transaction>) {
        match self.live(op.0) {
            Some(index) => self.slots[index as usize].extra().transaction = Some(it),
            None => self.end_numbers(&it),
        }
    }

    /// Lets the masters of a transaction that is cancelled unlock its objects, unless it may be
    /// committed.
    pub(super) fn cancel_transaction(&mut self, index: u32) {
        let extra = self.slots[index as usize].extra.as_mut();
        let Some(it) = extra.and_then(|extra| extra.transaction.take()) else { return };
        self.give_up_unless_maybe(&it);
        self.end_numbers(&it);
    }

    /// Lets the masters of a transaction that ends for its program unlock its objects, unless it
    /// may be committed. Then they ask for the decision.
    fn give_up_unless_maybe(&mut self, it: &Transaction) {
        if it.phase == Phase::Preparing && !it.maybe {
            self.give_up(it);
        }
    }

    /// Returns the objects by their masters. Parks or ends the transaction if a master is not
    /// known.
    fn groups(&mut self, now: Instant, index: u32, it: &mut Transaction) -> Option<Vec<Group>> {
        let mut groups: Vec<Group> = Vec::new();
        for number in 0..it.objects.len() {
            let table = &self.routes.tables[it.objects[number].place as usize];
            // Objects that are prepared have their hashes.
            if it.phase != Phase::Deciding {
                it.objects[number].hash = table.hasher.hash(it.key(number));
            }
            let object = &mut it.objects[number];
            if it.phase == Phase::Deciding && object.state != State::Held {
                continue;
            }
            let slot = &self.slots[index as usize];
            let tablet = table.tablet(|_| object.hash);
            let known = tablet.filter(|_| slot.failures() == 0 || table.asking.is_none());
            let Some(tablet) = known else {
                self.slots[index as usize].place = object.place;
                self.park_for_tablets(index);
                return None;
            };
            let &Owner::Peer(peer) = &tablet.owner else {
                let owner = tablet.owner.clone();
                match owner {
                    Owner::Lost if it.phase == Phase::Deciding => {
                        object.state = State::Done;
                        continue;
                    }
                    // Its master asks for the decision itself.
                    Owner::Unreachable(_) if it.phase == Phase::Deciding => continue,
                    _ => {}
                }
                self.slots[index as usize].place = object.place;
                self.without_owner(now, index, owner);
                return None;
            };
            add(&mut groups, peer, number);
        }
        Some(groups)
    }

    /// Gives the objects their numbers. Parks or ends the transaction if that is not possible, and
    /// returns false.
    fn number(&mut self, now: Instant, index: u32, it: &mut Transaction) -> bool {
        let is_over = it.lease.0 != 0 && it.lease != self.rifl.lease;
        if it.phase == Phase::Validating || it.phase == Phase::Deciding {
            return true;
        }
        if is_over {
            // Its lease has ended. Under another lease it could be committed a second time.
            if it.maybe {
                self.refuse(index, Error::Unknown);
                return false;
            }
            self.give_up(it);
            it.lease.0 = 0;
            it.phase = Phase::Preparing;
            it.objects.iter_mut().for_each(|object| object.state = State::Todo);
        }
        let op = op(index, &self.slots[index as usize]);
        if !self.rifl.valid(now) {
            enqueue(&mut self.rifl.parked, &self.slots, op);
            self.park(index, WaitedFor::Lease);
            self.ask_for_lease();
            return false;
        }
        if it.lease.0 == 0 {
            if self.rifl.room() <= it.objects.len() as u64 {
                enqueue(&mut self.rifl.queued, &self.slots, op);
                self.park(index, WaitedFor::Window);
                return false;
            }
            it.lease = self.rifl.lease;
            for number in 0..it.objects.len() {
                it.set_rpc(number, self.rifl.assign().unwrap_or(0));
            }
        }
        true
    }

    fn send_phase(
        &mut self,
        now: Instant,
        index: u32,
        it: &mut Transaction,
        mut groups: Vec<Group>,
    ) {
        match it.phase {
            Phase::Validating => {
                self.send_to(now, index, it, Opcode::Validate, groups, State::Todo);
            }
            Phase::Deciding => self.send_to(now, index, it, Opcode::Decide, groups, State::Held),
            Phase::Preparing | Phase::Committing => {
                it.phase = Phase::Preparing;
                let has_first = |(_, objects): &mut Group| objects.contains(&it.first);
                let first: Vec<Group> = groups.extract_if(.., has_first).collect();
                self.send_to(now, index, it, Opcode::Prepare, groups, State::Todo);
                if it.calls == 0 {
                    it.phase = Phase::Committing;
                    self.send_to(now, index, it, Opcode::Commit, first, State::Todo);
                }
            }
        }
    }

    /// Sends the objects of some masters that are in the state `of`, to each master in one call.
    fn send_to(
        &mut self,
        now: Instant,
        index: u32,
        it: &mut Transaction,
        opcode: Opcode,
        groups: Vec<Group>,
        of: State,
    ) {
        for (peer, mut objects) in groups {
            let wanted = |state| state == of || of == State::Todo && state == State::Sent;
            objects.retain(|&number| wanted(it.objects[number].state));
            if objects.is_empty() {
                continue;
            }
            // The first object decides, and the first part is the one that does.
            if let Some(at) = objects.iter().position(|&number| number == it.first) {
                objects.swap(0, at);
            }
            let bytes = self.request(it, opcode, &objects);
            if of == State::Todo {
                objects.iter().for_each(|&number| it.objects[number].state = State::Sent);
            }
            if opcode == Opcode::Commit {
                (it.was_maybe, it.maybe) = (it.maybe, true);
            }
            it.calls += 1;
            let slot = &self.slots[index as usize];
            let (of, deadline) = (Some(op(index, slot)), slot.deadline);
            let step = self.step(peer, Step { of, objects }, bytes);
            self.slots[step as usize].deadline = deadline;
            self.queue_call(now, step, peer);
        }
    }

    /// Returns the bytes of a request for these objects.
    fn request(&self, it: &Transaction, opcode: Opcode, objects: &[usize]) -> Vec<u8> {
        let participant = |&number: &usize| it.objects[number].participant();
        if opcode == Opcode::Decide {
            let to = (self.cluster, it.lease);
            return decide(to, Decision::Commit, objects.iter().map(participant));
        }
        let others: Vec<Participant> = match opcode {
            Opcode::Prepare => [participant(&it.first)].into(),
            Opcode::Commit => {
                let held = it.objects.iter().filter(|object| object.state == State::Held);
                held.map(Object::participant).collect()
            }
            _ => Vec::new(),
        };
        let ack = if opcode == Opcode::Validate { 0 } else { self.rifl.once(0).ack };
        let identity = (self.cluster, it.lease, ack);
        let room = (objects.len(), it.parts_len(objects));
        let mut request = transaction::begin(opcode, identity, others.into_iter(), room);
        it.emit_parts(objects, &mut request);
        request
    }

    /// Returns the slot of a new request of a transaction to a master.
    pub(super) fn step(&mut self, peer: u32, step: Step, bytes: Vec<u8>) -> u32 {
        let index = self.begin(Kind::Step, peer, Instant::NEVER);
        let slot = &mut self.slots[index as usize];
        slot.bytes = bytes;
        slot.extra().step = Some(step);
        index
    }

    // The ends of calls.

    /// Takes the result of a transaction's call. Returns a transaction that ended by it.
    #[cold]
    pub(super) fn step_ended(
        &mut self,
        now: Instant,
        index: u32,
        result: Result<Payload<'_>, RpcError>,
    ) -> Option<Done<'static>> {
        let step = self.slots[index as usize].extra().step.take();
        self.end(index);
        if let Some(Step { of: Some(of), objects }) = step
            && let Some(index) = self.live(of.0)
            && let Some((op, mut it)) = self.take_transaction(index)
        {
            it.calls -= 1;
            match result {
                Ok(reply) => self.step_answered(&mut it, &objects, &reply),
                Err(error) => {
                    if it.phase == Phase::Committing && !error.maybe_executed() {
                        it.maybe = it.was_maybe;
                    }
                    let pause_ns = match error {
                        RpcError::Busy { retry_after_ns } => retry_after_ns,
                        _ => 0,
                    };
                    it.round.again = it.round.again.max(Some(pause_ns));
                    it.round.moved.extend(objects.iter().map(|&n| it.objects[n].place));
                }
            }
            if it.calls == 0 {
                self.round_ended(now, index, &mut it);
            }
            self.keep_transaction(op, it);
        }
        self.event()
    }

    fn step_answered(&mut self, it: &mut Transaction, objects: &[usize], reply: &[u8]) {
        if it.phase == Phase::Deciding {
            match accepted(reply) {
                Ok(_) => objects.iter().for_each(|&n| it.objects[n].state = State::Done),
                Err(refusal) => self.step_refused(it, objects, &refusal),
            }
            return;
        }
        match answered(reply, objects.len()) {
            Ok(Answered::Done(answers)) => {
                for (&number, answer) in objects.iter().zip(answers) {
                    let object = &mut it.objects[number];
                    let (held, version) = part_answer(answer);
                    object.state = if held { State::Held } else { State::Done };
                    object.version = version;
                }
            }
            Ok(Answered::Conflict(conflict)) => {
                // The refusal of a commit is final: earlier tries were not executed either.
                it.maybe &= it.phase != Phase::Committing;
                let number = objects.get(usize::from(conflict.part)).copied().unwrap_or(0);
                it.round.conflict.get_or_insert((number, conflict));
            }
            Err(refusal) => self.step_refused(it, objects, &refusal),
        }
    }

    fn step_refused(&mut self, it: &mut Transaction, objects: &[usize], refusal: &Refusal<'_>) {
        // This try was not executed. An earlier one may have been.
        if it.phase == Phase::Committing {
            it.maybe = it.was_maybe;
        }
        let round = &mut it.round;
        let error = match refusal.status {
            Status::Retry | Status::Starting => {
                round.again.get_or_insert(0);
                return;
            }
            Status::TableDoesntExist if it.phase == Phase::Deciding => {
                objects.iter().for_each(|&number| it.objects[number].state = State::Done);
                return;
            }
            Status::UnknownTablet | Status::NotServing | Status::NotInCluster => {
                round.again.get_or_insert(0);
                round.moved.extend(objects.iter().map(|&number| it.objects[number].place));
                return;
            }
            Status::ExpiredLease => {
                if it.lease == self.rifl.lease {
                    self.rifl.suspend();
                }
                round.again.get_or_insert(0);
                return;
            }
            // What is decided has to become known, whatever the reason.
            _ if it.phase == Phase::Deciding => {
                round.again.get_or_insert(0);
                return;
            }
            Status::StaleRpc => {
                // The master has forgotten what it has executed.
                it.maybe = true;
                Error::Unknown
            }
            Status::NoSpace => Error::NoSpace,
            Status::TooFewServers => Error::TooFewServers,
            Status::TabletLost => Error::TabletLost,
            Status::TableDoesntExist => Error::TableDoesntExist,
            Status::ValueTooLong => {
                Error::TransactionTooLong(objects.iter().map(|&n| it.objects[n].len()).sum())
            }
            status => Error::Refused { status, text: refusal.text.into() },
        };
        it.round.error.get_or_insert(error);
    }

    /// Continues a transaction after the last call of a phase.
    fn round_ended(&mut self, now: Instant, index: u32, it: &mut Transaction) {
        let round = core::mem::take(&mut it.round);
        for table in round.moved {
            self.ask_for_tablets(table);
        }
        if it.phase != Phase::Deciding {
            let conflict = round.conflict.map(|(part, conflict)| Error::Conflict {
                part,
                why: conflict.why,
                version: conflict.version,
            });
            if let Some(error) = conflict.or(round.error) {
                // A commit that is on its way may still be executed. Then the prepared objects must
                // not be unlocked: their masters ask for the decision.
                if it.maybe {
                    return self.refuse(index, Error::Unknown);
                }
                self.give_up(it);
                return self.refuse(index, error);
            }
        }
        if let Some(pause_ns) = round.again {
            self.slots[index as usize].extra().maybe = it.maybe && it.phase != Phase::Deciding;
            return self.pause(now, index, pause_ns);
        }
        match it.phase {
            Phase::Preparing => self.go_on(index),
            Phase::Committing if it.objects.iter().any(|object| object.state == State::Held) => {
                self.decide_behind(now, index, it);
            }
            Phase::Deciding => {
                // The first master has to remember the commit as long as another one may ask.
                if it.objects.iter().all(|object| object.state != State::Held) {
                    self.tell(it, &[it.first], Decision::Finish);
                }
                self.decided(index, it);
            }
            Phase::Validating | Phase::Committing => {
                self.end_numbers(it);
                self.committed(index, it.versions());
            }
        }
    }

    /// Returns the outcome of a transaction that an error ends, apart from that of its own calls.
    pub(super) fn outcome(&self, index: u32, error: Error) -> Result<Answer<'static>, Error> {
        let extra = self.slots[index as usize].extra.as_ref();
        match extra.and_then(|extra| extra.transaction.as_ref()) {
            Some(it) if it.maybe && !error.maybe_executed() => Err(Error::Unknown),
            _ => Err(error),
        }
    }

    /// Ends a committed transaction for its program.
    pub(super) fn committed(&mut self, index: u32, versions: Vec<Version>) {
        let done = self.close(index, Ok(Answer::Committed(versions)));
        self.events.extend(done);
    }

    /// Acknowledges the numbers of a transaction's objects.
    pub(super) fn end_numbers(&mut self, it: &Transaction) {
        it.objects.iter().for_each(|object| self.rifl.answered(it.lease, object.rpc));
        if !self.rifl.queued.is_empty() {
            self.open_window();
        }
    }

    /// Ends a transaction whose deadline has passed.
    fn end_transaction_late(&mut self, index: u32, it: &Transaction) {
        if it.phase == Phase::Deciding {
            // The masters finish it without the client.
            return self.decided(index, it);
        }
        self.slots[index as usize].extra().maybe = it.maybe;
        self.give_up_unless_maybe(it);
        self.end_numbers(it);
        self.end_late(index);
    }
}
