//! Tests of the client's side of transactions: its phases, and what it says of a commit whose reply
//! is lost.

use super::*;
use crate::hash::KeyHasher;
use crate::message::transaction::{Conflict, Decide, Decision, Front, answer};
use crate::types::Lifetime;

/// Returns a client with a lease that knows the table's two tablets, at `fast:m` and `fast:n`, and
/// a key of each.
fn two_servers() -> (Script, [Vec<u8>; 2]) {
    let mut s = Script::new();
    s.map = tablets(&[("fast:m", TabletState::Normal), ("fast:n", TabletState::Normal)]);
    let hasher = KeyHasher::from(HASH_KEY);
    let key = |upper| {
        let keys = (0..100_u8).map(|n| vec![n]);
        keys.into_iter().find(|key| (hasher.hash(key).0 >> 63 == 1) == upper).unwrap()
    };
    let keys = [key(false), key(true)];
    s.client.remove(T, &keys[0], NO_RULES, Instant::NEVER);
    for _ in 0..3 {
        let call = s.call();
        let reply = match opcode(&call.request) {
            Ok(Opcode::GetTablets) => s.map.clone(),
            Ok(Opcode::RenewClient) => leased(1),
            _ => ok(1, b""),
        };
        s.reply(&call, reply);
    }
    (s, keys)
}

/// Starts a transaction that writes both keys. Its first call prepares the second one.
fn start(s: &mut Script, keys: &[Vec<u8>; 2]) -> (Op, Call) {
    let part =
        |key| TransactionPart { table: T, key, rules: NO_RULES, change: Change::Write(b"v", None) };
    let parts = [part(&keys[0][..]), part(&keys[1])];
    let op = s.client.transact(&parts, Instant::NEVER);
    let prepare = s.call();
    assert_eq!(opcode(&prepare.request), Ok(Opcode::Prepare));
    let front = Front::parse(&prepare.request, Opcode::Prepare).unwrap();
    assert_eq!((front.count, front.others.len(), s.at(&prepare)), (1, 1, "fast:n"));
    (op, prepare)
}

fn answered(held: bool, version: u64) -> Vec<u8> {
    let mut reply = data::head(Status::Ok).to_vec();
    reply.extend_from_slice(&answer(held, Version(version)));
    reply
}

fn refused(why: Status) -> Vec<u8> {
    let mut reply = Vec::new();
    Conflict { why, part: 0, version: Version(4) }.emit_to(&mut reply);
    reply
}

impl Script {
    /// Returns the locator of the server that a call goes to.
    fn at(&self, call: &Call) -> &str {
        &self.links[call.link as usize]
    }

    /// Returns the call of a commit, after a successful prepare.
    fn commit(&mut self, prepare: &Call) -> Call {
        assert!(self.reply(prepare, answered(true, 7)).is_none());
        let commit = self.call();
        let front = Front::parse(&commit.request, Opcode::Commit).unwrap();
        assert_eq!((front.count, front.others.len(), self.at(&commit)), (1, 1, "fast:m"));
        commit
    }

    /// Takes the reply to the commit of the transaction, which ends it for the program.
    fn committed(&mut self, op: Op, commit: &Call) {
        let done = self.reply(commit, answered(false, 5)).expect("an end");
        assert_eq!(done.op, op);
        let Ok(Answer::Committed(versions)) = done.outcome else { panic!("{done:?}") };
        assert_eq!(versions, [Version(5), Version(7)]);
        assert_eq!((self.client.in_progress(), self.client.is_deciding()), (0, true));
    }

    /// Returns the decision in the next call, which goes to this server.
    fn decision(&mut self, to: &str) -> (Call, Decision) {
        let call = self.call();
        assert_eq!(self.at(&call), to);
        let decide = Decide::parse(&call.request).unwrap();
        assert_eq!(decide.objects.len(), 1);
        let decision = decide.decision;
        (call, decision)
    }
}

#[test]
fn a_transaction_on_two_servers_takes_its_phases() {
    let (mut s, keys) = two_servers();
    let (op, prepare) = start(&mut s, &keys);
    let commit = s.commit(&prepare);
    let room = s.client.rifl.room();
    s.committed(op, &commit);
    let (decide, decision) = s.decision("fast:n");
    assert_eq!(decision, Decision::Commit);
    // It is repeated until it is known, whatever refuses it.
    assert!(s.reply(&decide, data::head(Status::TooFewServers).to_vec()).is_none());
    s.tick();
    let (decide, decision) = s.decision("fast:n");
    assert_eq!(decision, Decision::Commit);
    // A number is used again only when no master can need it.
    assert_eq!(s.client.rifl.room(), room);
    assert!(s.reply(&decide, data::head(Status::Ok).to_vec()).is_none());
    assert_eq!((s.client.rifl.room(), s.client.is_deciding()), (room + 2, false));
    assert_eq!(s.decision("fast:m").1, Decision::Finish);
}

/// A decision that reaches no master is given up after a while, and its numbers count no longer:
/// the masters ask for it.
#[test]
fn a_decision_is_given_up_some_time_after_the_end_of_the_transaction() {
    let (mut s, keys) = two_servers();
    let (op, prepare) = start(&mut s, &keys);
    let commit = s.commit(&prepare);
    let room = s.client.rifl.room();
    s.committed(op, &commit);
    assert!(!s.client.cancel(op));
    let mut tries = 0;
    while s.client.is_deciding() {
        for call in s.calls() {
            if opcode(&call.request) == Ok(Opcode::GetTablets) {
                assert!(s.reply(&call, s.map.clone()).is_none());
            } else {
                tries += 1;
                assert!(s.respond(&call, Err(RpcError::MaybeExecuted)).is_none());
            }
        }
        if s.client.is_deciding() && !s.client.has_output() {
            s.tick();
        }
    }
    assert!(tries > 1);
    assert_eq!((s.client.rifl.room(), s.calls().len()), (room + 2, 0));
}

/// A transaction of one object is one write or one removal, whose reply waits until it is durable.
#[test]
fn a_transaction_of_one_object_is_one_operation() {
    let (mut s, keys) = two_servers();
    let mut ask = |change, reply: Vec<u8>| {
        let part = TransactionPart { table: T, key: &keys[0], rules: NO_RULES, change };
        let op = s.client.transact(&[part], Instant::NEVER);
        let call = s.call();
        let done = s.reply(&call, reply).expect("an end");
        assert_eq!((done.op, s.client.in_progress()), (op, 0));
        (call.request, done.outcome)
    };
    let value = [7; 5000];
    let lifetime = Some(Lifetime(3));
    for (change, of) in [
        (Change::Write(b"v", None), Opcode::Write),
        (Change::Write(&value, None), Opcode::Write),
        (Change::Write(b"v", lifetime), Opcode::WriteExpiring),
        (Change::Remove, Opcode::Remove),
    ] {
        let (request, outcome) = ask(change, ok(5, b""));
        assert_eq!((opcode(&request), request[5]), (Ok(of), 1));
        let Ok(Answer::Committed(versions)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(versions, [Version(5)]);
    }
    for (why, version) in
        [(Status::ObjectExists, 4), (Status::ObjectDoesntExist, 0), (Status::WrongVersion, 4)]
    {
        let refusal = data::result_head(why, Version(version)).to_vec();
        let conflict = Error::Conflict { part: 0, why, version: Version(version) };
        assert_eq!(ask(Change::Remove, refusal).1.unwrap_err(), conflict);
    }
    let too_long = TransactionPart {
        table: T,
        key: &keys[0],
        rules: NO_RULES,
        change: Change::Write(b"v", Some(Lifetime(u64::MAX))),
    };
    s.client.transact(&[too_long], Instant::NEVER);
    let refused = s.event().outcome.unwrap_err();
    assert_eq!(refused, Error::LifetimeTooLong(Lifetime(u64::MAX)));
}

#[test]
fn a_conflict_unlocks_what_was_prepared() {
    let (mut s, keys) = two_servers();
    let (_, prepare) = start(&mut s, &keys);
    let commit = s.commit(&prepare);
    let error = s.error(&commit, refused(Status::WrongVersion));
    let why = Status::WrongVersion;
    assert_eq!(error, Error::Conflict { part: 0, why, version: Version(4) });
    assert_eq!(s.decision("fast:n").1, Decision::Abort);

    let (_, prepare) = start(&mut s, &keys);
    let error = s.error(&prepare, refused(Status::Locked));
    assert_eq!(error, Error::Conflict { part: 1, why: Status::Locked, version: Version(4) });
    assert_eq!(s.decision("fast:n").1, Decision::Abort);
}

/// A commit whose reply is lost may have been executed, or may yet be. Then no prepared object is
/// unlocked: its master asks for the decision.
#[test]
fn what_may_be_committed_is_not_given_up() {
    for end in 0..4 {
        let (mut s, keys) = two_servers();
        let (op, prepare) = start(&mut s, &keys);
        let commit = s.commit(&prepare);
        assert!(s.respond(&commit, Err(RpcError::MaybeExecuted)).is_none());
        if end == 0 {
            assert!(s.client.cancel(op));
            assert_eq!(s.calls().iter().filter(|call| call.link != 0).count(), 0);
            continue;
        }
        let again = s.object_call();
        assert_eq!(opcode(&again.request), Ok(Opcode::Commit));
        let reply = match end {
            1 => data::head(Status::NoSpace).to_vec(),
            2 => failure(Status::BadFormat, "no"),
            // The master remembers that it has refused, also earlier tries.
            _ => refused(Status::Aborted),
        };
        let error = s.error(&again, reply);
        if end < 3 {
            assert_eq!(error, Error::Unknown);
            assert_eq!(s.calls().iter().filter(|call| call.link != 0).count(), 0);
        } else {
            assert!(matches!(error, Error::Conflict { why: Status::Aborted, .. }));
            assert_eq!(s.decision("fast:n").1, Decision::Abort);
        }
    }
}

/// The first master forgets no commit of which another one may ask.
#[test]
fn a_commit_that_one_master_may_not_know_of_is_not_finished() {
    let (mut s, keys) = two_servers();
    let (op, prepare) = start(&mut s, &keys);
    let commit = s.commit(&prepare);
    s.committed(op, &commit);
    let (decide, _) = s.decision("fast:n");
    assert!(s.reply(&decide, data::head(Status::UnknownTablet).to_vec()).is_none());
    // The tablet has another server, which this client cannot reach.
    let ask = s.call();
    let map = tablets(&[("fast:m", TabletState::Normal), ("rdma:x", TabletState::Normal)]);
    assert!(s.reply(&ask, map).is_none());
    s.tick();
    assert_eq!((s.calls().len(), s.client.is_deciding()), (0, false));
}

/// After a commit, the end of a table ends the decision: what was to be changed there is gone.
#[test]
fn a_decision_outlives_its_tables() {
    let (mut s, keys) = two_servers();
    let (op, prepare) = start(&mut s, &keys);
    let commit = s.commit(&prepare);
    s.committed(op, &commit);
    let (decide, _) = s.decision("fast:n");
    assert!(s.reply(&decide, data::head(Status::UnknownTablet).to_vec()).is_none());
    for _ in 0..20 {
        for call in s.calls() {
            if opcode(&call.request) == Ok(Opcode::GetTablets) {
                let gone = failure(Status::TableDoesntExist, "it is dropped");
                assert!(s.reply(&call, gone).is_none());
            }
        }
        if s.client.is_deciding() {
            s.tick();
        }
    }
    assert!(!s.client.is_deciding() && s.client.event().is_none());
}
