//! Tests of the client's side of transactions: its phases, and what it says of a commit whose reply
//! is lost.

use super::*;
use crate::hash::KeyHasher;
use crate::message::transaction::{Conflict, Decide, Decision, Front, answer};

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
    assert!(s.reply(&commit, answered(false, 5)).is_none());
    let (decide, decision) = s.decision("fast:n");
    assert_eq!(decision, Decision::Commit);
    // It is repeated until it is known, whatever refuses it.
    assert!(s.reply(&decide, data::head(Status::TooFewServers).to_vec()).is_none());
    s.tick();
    let (decide, decision) = s.decision("fast:n");
    assert_eq!(decision, Decision::Commit);
    let done = s.reply(&decide, data::head(Status::Ok).to_vec()).unwrap();
    assert_eq!(done.op, op);
    let Ok(Answer::Committed(versions)) = done.outcome else { panic!("{done:?}") };
    assert_eq!(versions, [Version(5), Version(7)]);
    assert_eq!(s.decision("fast:m").1, Decision::Finish);
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
    let (_, prepare) = start(&mut s, &keys);
    let commit = s.commit(&prepare);
    assert!(s.reply(&commit, answered(false, 5)).is_none());
    let (decide, _) = s.decision("fast:n");
    assert!(s.reply(&decide, data::head(Status::UnknownTablet).to_vec()).is_none());
    // The tablet has another server, which this client cannot reach.
    let ask = s.call();
    let map = tablets(&[("fast:m", TabletState::Normal), ("rdma:x", TabletState::Normal)]);
    assert!(s.reply(&ask, map).is_none());
    s.tick();
    assert_eq!(s.calls().len(), 0);
    assert!(matches!(s.event().outcome, Ok(Answer::Committed(_))));
}

/// After a commit, the end of a table is no error: what was to be changed there is gone.
#[test]
fn a_decision_outlives_its_tables() {
    let (mut s, keys) = two_servers();
    let (op, prepare) = start(&mut s, &keys);
    let commit = s.commit(&prepare);
    assert!(s.reply(&commit, answered(false, 5)).is_none());
    let (decide, _) = s.decision("fast:n");
    assert!(s.reply(&decide, data::head(Status::UnknownTablet).to_vec()).is_none());
    let mut done = None;
    for _ in 0..20 {
        for call in s.calls() {
            if opcode(&call.request) == Ok(Opcode::GetTablets) {
                let gone = failure(Status::TableDoesntExist, "it is dropped");
                done = done.or_else(|| s.reply(&call, gone));
            }
        }
        done = done.or_else(|| s.client.event());
        if done.is_none() {
            s.tick();
        }
    }
    let done = done.expect("an end");
    assert_eq!(done.op, op);
    assert!(matches!(done.outcome, Ok(Answer::Committed(_))), "{done:?}");
}
