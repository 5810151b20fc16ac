//! Tests of transactions at the master: commits, locks, decisions, and silent clients.

use super::*;
use crate::hash::KeyHasher;
use crate::message::data::Refusal;
use crate::message::transaction::{
    Answered, Change, Conflict, Decision, FindOwner, Owner, Part, Participant, Resolution, Resolve,
    Resolved, answered, decide, part_answer, request,
};
use crate::types::KeyHash;

mod edits;

const LEASE: LeaseId = LeaseId(1);
/// The time after which a master takes care of a record itself.
const SILENT_NS: u64 = 200 * MS;
/// The time after which a master takes care of a commit itself.
const IDLE_NS: u64 = SECOND;
/// An object of another master.
const ELSEWHERE: Participant = Participant { table: TableId(70), hash: KeyHash(3), rpc: 90 };

fn hash(key: &[u8]) -> KeyHash {
    KeyHasher::from(KEY).hash(key)
}

fn object(key: &[u8], rpc: u64) -> Participant {
    Participant { table: TABLE, hash: hash(key), rpc }
}

fn part<'a>(key: &'a [u8], rpc: u64, version: Option<u64>, change: Change<'a>) -> Part<'a> {
    let rules = match version {
        None => RejectRules::default(),
        Some(0) => RejectRules { exists: true, ..RejectRules::default() },
        Some(version) => RejectRules {
            given_version: Version(version),
            doesnt_exist: true,
            version_ne_given: true,
            ..RejectRules::default()
        },
    };
    Part { table: TABLE, rules, rpc, key, change }
}

fn write<'a>(key: &'a [u8], rpc: u64, version: Option<u64>, value: &'a [u8]) -> Part<'a> {
    part(key, rpc, version, Change::Write(value, None))
}

fn transaction(opcode: Opcode, others: &[Participant], parts: &[Part<'_>]) -> Vec<u8> {
    request(opcode, (CLUSTER, LEASE, 1), others.iter().copied(), parts.iter().copied())
}

/// The answers to the parts, or the conflict.
type Outcome = Result<Vec<(bool, u64)>, (u16, Status)>;

fn outcome(reply: &[u8], parts: usize) -> Outcome {
    let answered = answered(reply, parts).map_err(|refusal: Refusal<'_>| (99, refusal.status))?;
    match answered {
        Answered::Done(answers) => {
            let answer = |answer| part_answer(answer);
            Ok(answers.iter().map(answer).map(|(held, version)| (held, version.0)).collect())
        }
        Answered::Conflict(Conflict { part, why, .. }) => Err((part, why)),
    }
}

impl Rig {
    fn commit(&mut self, others: &[Participant], parts: &[Part<'_>]) -> Outcome {
        outcome(&self.ask(transaction(Opcode::Commit, others, parts)), parts.len())
    }

    fn prepare(&mut self, parts: &[Part<'_>]) -> Outcome {
        outcome(&self.ask(transaction(Opcode::Prepare, &[ELSEWHERE], parts)), parts.len())
    }

    fn validate(&mut self, parts: &[Part<'_>]) -> Outcome {
        outcome(&self.ask(transaction(Opcode::Validate, &[], parts)), parts.len())
    }

    fn decide(&mut self, decision: Decision, objects: &[Participant]) -> Option<Status> {
        self.status(decide((CLUSTER, LEASE), decision, objects.iter().copied()))
    }

    fn resolve(&mut self, first: Participant) -> Result<Resolution, Status> {
        let Participant { table, hash, rpc } = first;
        let resolve = Resolve { cluster: CLUSTER, lease: LEASE.0, rpc, table, hash: hash.0 };
        Resolved::parse(&self.ask(resolve.emit())).map(|resolved| resolved.resolution)
    }

    /// Answers the question for the owner of an object: another server.
    fn owner_is_elsewhere(&mut self) -> FindOwner {
        let server = ServerId { index: 5, generation: 1 };
        let owner = Owner { server, gone: false, data: "tcp:x" };
        let asked = self.answer(Opcode::FindOwner, owner.emit());
        FindOwner::parse(&asked).unwrap()
    }

    /// Lets time pass, in which the master may renew its lease.
    fn idle(&mut self, ns: u64) {
        self.pass(ns);
        self.calls.retain(|(_, request)| opcode(request) != Ok(Opcode::RenewServer));
    }

    fn records(&self) -> u64 {
        self.master.counter("transactions")
    }
}

fn rig() -> Rig {
    let mut rig = Rig::small();
    rig.client(LEASE.0, 1000 * TERM_NS);
    rig
}

#[test]
fn a_commit_makes_all_changes_or_none_and_is_executed_once() {
    let mut rig = rig();
    assert!(rig.write(once(1, 2, 1), b"gone", b"v").is_ok());
    let parts = [
        write(b"a", 3, Some(0), b"one"),
        write(b"b", 4, None, b"two"),
        part(b"gone", 5, Some(1), Change::Remove),
        part(b"absent", 6, Some(0), Change::Check),
        part(b"never", 7, None, Change::Remove),
    ];
    let committed = rig.commit(&[], &parts);
    let versions = [(false, 2), (false, 2), (false, 1), (false, 0), (false, 0)];
    assert_eq!(committed, Ok(versions.to_vec()));
    assert_eq!(rig.read(b"a"), Ok((Version(2), b"one".to_vec())));
    assert_eq!(rig.read(b"b"), Ok((Version(2), b"two".to_vec())));
    assert_eq!(rig.read(b"gone"), Err(Status::ObjectDoesntExist));
    assert_eq!((rig.records(), rig.master.counter("commits")), (0, 1));
    let [found, ..] = parts;

    // A repetition gets the same answer, although the object has changed.
    assert!(rig.write(once(1, 8, 1), b"a", b"later").is_ok());
    assert_eq!(rig.commit(&[], &parts), committed);
    assert_eq!(rig.read(b"a"), Ok((Version(3), b"later".to_vec())));
    // Its numbers mean that transaction alone.
    assert_eq!(rig.commit(&[], &[found]), Ok(vec![(false, 2)]));

    // One part that does not fit, and nothing changes. The refusal is remembered.
    let parts = [
        write(b"c", 10, None, b"three"),
        write(b"a", 11, Some(3), b"four"),
        write(b"b", 12, Some(9), b"five"),
    ];
    assert_eq!(rig.commit(&[], &parts), Err((2, Status::WrongVersion)));
    assert_eq!(rig.read(b"a"), Ok((Version(3), b"later".to_vec())));
    assert_eq!(rig.read(b"c"), Err(Status::ObjectDoesntExist));
    let [first, second, _] = parts;
    assert_eq!(rig.commit(&[], &[first, second]), Err((2, Status::WrongVersion)));
    assert_eq!(rig.read(b"c"), Err(Status::ObjectDoesntExist));
    assert_eq!(rig.commit(&[], &[write(b"a", 13, Some(0), b"")]), Err((0, Status::ObjectExists)));
    let missing = [write(b"x", 14, Some(4), b"")];
    assert_eq!(rig.commit(&[], &missing), Err((0, Status::ObjectDoesntExist)));
    // What is acknowledged is not answered any more.
    let stale = request(
        Opcode::Commit,
        (CLUSTER, LEASE, 14),
        [].into_iter(),
        [write(b"a", 14, None, b"")].into_iter(),
    );
    assert_eq!(rig.status(stale), Some(Status::StaleRpc));
}

#[test]
fn requests_that_make_no_sense_change_nothing() {
    let mut rig = rig();
    let twice = [write(b"a", 3, None, b"x"), part(b"a", 4, None, Change::Check)];
    assert_eq!(rig.commit(&[], &twice), Err((99, Status::BadFormat)));
    assert_eq!(rig.commit(&[], &[write(b"a", 0, None, b"x")]), Err((99, Status::BadFormat)));
    let same = [write(b"a", 3, None, b"x"), part(b"b", 3, None, Change::Check)];
    assert_eq!(rig.prepare(&same), Err((99, Status::BadFormat)), "a number is of one part");
    assert_eq!(rig.commit(&[], &[write(b"a", 1 << 48, None, b"")]), Err((99, Status::BadFormat)));
    assert_eq!(rig.validate(&[write(b"a", 3, None, b"x")]), Err((99, Status::BadFormat)));
    let no_first = transaction(Opcode::Prepare, &[], &[write(b"a", 3, None, b"x")]);
    assert_eq!(rig.status(no_first), Some(Status::BadFormat));
    let other_table = Part { table: TableId(8), ..write(b"a", 3, None, b"x") };
    assert_eq!(rig.commit(&[], &[other_table]), Err((99, Status::UnknownTablet)));
    // Records are no objects for clients.
    let table = TABLE.records();
    let records = Part { table, ..write(&[7; 24], 3, None, b"x") };
    assert_eq!(rig.commit(&[], &[records]), Err((99, Status::UnknownTablet)));
    let target = Target { table, ..TARGET };
    let read = Read { target, key: &[7; 24] }.emit();
    assert_eq!(rig.status(read), Some(Status::UnknownTablet));
    let long = vec![1; MAX_VALUE + 1];
    assert_eq!(rig.commit(&[], &[write(b"a", 3, None, &long)]), Err((99, Status::ValueTooLong)));
    // Longer than a segment together, and longer than one alone.
    let half = vec![1; 2100];
    let parts = [write(b"a", 3, None, &half), write(b"b", 4, None, &half)];
    assert_eq!(rig.commit(&[], &parts), Err((99, Status::ValueTooLong)));
    assert_eq!(rig.prepare(&[write(b"a", 3, None, &[1; 5000])]), Err((99, Status::ValueTooLong)));
    assert_eq!(rig.decide(Decision::Commit, &[ELSEWHERE]), Some(Status::UnknownTablet));
    assert_eq!(rig.read(b"a"), Err(Status::ObjectDoesntExist));
    assert_eq!((rig.records(), rig.commit(&[], &[write(b"a", 3, None, b"x")]).is_ok()), (0, true));
}

#[test]
fn prepared_objects_are_locked_until_the_decision() {
    let mut rig = rig();
    for (rpc, key) in [(2, b"w"), (3, b"r")] {
        assert!(rig.write(once(1, rpc, 1), key, b"old").is_ok());
    }
    let parts = [write(b"w", 4, Some(1), b"new"), part(b"r", 5, Some(2), Change::Check)];
    let prepared = Ok(vec![(true, 2), (true, 2)]);
    assert_eq!(rig.prepare(&parts), prepared);
    assert_eq!(rig.prepare(&parts), prepared, "a repetition");
    assert_eq!(rig.records(), 2);

    // What is to change is neither read nor written; what was read is not written.
    assert_eq!(rig.read(b"w"), Err(Status::Locked));
    assert_eq!(rig.write(once(1, 6, 1), b"w", b"x"), Err(Status::Locked));
    assert_eq!(rig.read(b"r"), Ok((Version(2), b"old".to_vec())));
    assert_eq!(rig.write(once(1, 6, 1), b"r", b"x"), Err(Status::Locked));
    // Other transactions.
    let locked = |part| Err((part, Status::Locked));
    assert_eq!(rig.commit(&[], &[write(b"w", 7, None, b"x")]), locked(0));
    assert_eq!(rig.prepare(&[write(b"r", 8, None, b"x")]), locked(0));
    assert_eq!(rig.validate(&[part(b"w", 0, Some(1), Change::Check)]), locked(0));
    assert_eq!(rig.validate(&[part(b"r", 0, Some(2), Change::Check)]), Ok(vec![(false, 0)]));
    let reader = [part(b"r", 9, Some(2), Change::Check)];
    assert_eq!(rig.prepare(&reader), Ok(vec![(true, 2)]), "it may be read by two");

    let objects = [object(b"w", 4), object(b"r", 5)];
    assert_eq!(rig.decide(Decision::Commit, &objects), Some(Status::Ok));
    assert_eq!(rig.decide(Decision::Commit, &objects), Some(Status::Ok), "a repetition");
    assert_eq!(rig.read(b"w"), Ok((Version(2), b"new".to_vec())));
    assert_eq!(rig.write(once(1, 6, 1), b"r", b"x"), Err(Status::Locked), "by the other reader");
    assert_eq!(rig.decide(Decision::Abort, &[object(b"r", 9)]), Some(Status::Ok));
    assert_eq!(rig.write(once(1, 6, 1), b"r", b"x"), Ok(Version(3)));
    assert_eq!(rig.records(), 0);
    // A late repetition of the prepare locks nothing: it was executed.
    assert_eq!(rig.prepare(&parts), prepared);
    assert_eq!(rig.records(), 0);

    // An abort leaves everything as it was.
    let remove = [part(b"w", 10, Some(2), Change::Remove), write(b"n", 11, Some(0), b"new")];
    assert!(rig.prepare(&remove).is_ok());
    assert_eq!(rig.read(b"n"), Err(Status::Locked));
    let objects = [object(b"w", 10), object(b"n", 11)];
    assert_eq!(rig.decide(Decision::Abort, &objects), Some(Status::Ok));
    assert_eq!(rig.read(b"w"), Ok((Version(2), b"new".to_vec())));
    assert_eq!(rig.read(b"n"), Err(Status::ObjectDoesntExist));
    // A removal that is decided.
    assert!(rig.prepare(&[part(b"w", 12, Some(2), Change::Remove)]).is_ok());
    assert_eq!(rig.decide(Decision::Commit, &[object(b"w", 12)]), Some(Status::Ok));
    assert_eq!(rig.read(b"w"), Err(Status::ObjectDoesntExist));
}

/// A transaction that another master has committed may not be known here yet. An enumeration missed
/// the object that it had created, and a new index did not get the object's entry.
#[test]
fn an_enumeration_waits_for_prepared_objects() {
    let mut rig = rig();
    for n in 0..40_u64 {
        assert!(rig.write(once(1, 2 + n, 1), &n.to_be_bytes(), b"old").is_ok());
    }
    let parts = [write(b"new", 50, Some(0), b"new"), part(b"read", 51, Some(0), Change::Check)];
    assert!(rig.prepare(&parts).is_ok());
    let (cluster, last) = (CLUSTER, u64::MAX);
    let mut request =
        Enumerate { cluster, table: TABLE, first: 0, last, cursor: 0, limit_bytes: 5000 };
    let mut listed = Vec::new();
    for is_decided in [false, true] {
        if is_decided {
            assert_eq!(rig.status(request.emit()), Some(Status::Locked));
            let elsewhere = Enumerate { first: hash(b"read").0, last: hash(b"read").0, ..request };
            assert!(objects_reply(&rig.ask(elsewhere.emit())).is_ok());
            let objects = [object(b"new", 50), object(b"read", 51)];
            assert_eq!(rig.decide(Decision::Commit, &objects), Some(Status::Ok));
        }
        while rig.status(request.emit()) == Some(Status::Ok) {
            let reply = rig.ask(request.emit());
            let objects = objects_reply(&reply).unwrap();
            let next = objects.next;
            listed.extend(objects.map(|it| it.key.to_vec()));
            let Some(next) = next else { break };
            request.cursor = next;
        }
    }
    let mut keys: Vec<_> = (0..40_u64).map(|n| n.to_be_bytes().to_vec()).collect();
    keys.push(b"new".to_vec());
    keys.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, keys);
}

/// The master of the first object says whether a transaction is committed. If it says no, that is
/// final.
#[test]
fn a_resolution_is_final() {
    let mut rig = rig();
    let parts = [write(b"a", 3, None, b"x")];
    assert_eq!(rig.commit(&[ELSEWHERE], &parts), Ok(vec![(false, 1)]));
    assert_eq!(rig.records(), 1, "the others do not know of it");
    assert_eq!(rig.resolve(object(b"a", 3)), Ok(Resolution::Committed));
    assert_eq!(rig.decide(Decision::Finish, &[object(b"a", 3)]), Some(Status::Ok));
    assert_eq!(rig.records(), 0);
    assert_eq!(rig.resolve(object(b"a", 3)), Ok(Resolution::Committed), "it is remembered");

    assert_eq!(rig.resolve(object(b"b", 4)), Ok(Resolution::Aborted));
    let late = [write(b"b", 4, None, b"x")];
    assert_eq!(rig.commit(&[ELSEWHERE], &late), Err((0, Status::Aborted)));
    assert_eq!(rig.read(b"b"), Err(Status::ObjectDoesntExist));
    // Also for a client that the master does not know, until the coordinator knows it.
    let resolve = Resolve { cluster: CLUSTER, lease: 8, rpc: 3, table: TABLE, hash: 1 << 63 };
    assert_eq!(Resolved::parse(&rig.ask(resolve.emit())).unwrap().resolution, Resolution::Aborted);
    let conflict = [write(b"a", 5, Some(9), b"")];
    assert_eq!(rig.commit(&[], &conflict), Err((0, Status::WrongVersion)));
    assert_eq!(rig.resolve(object(b"a", 5)), Ok(Resolution::Aborted));
    let bad = Resolve { cluster: CLUSTER, lease: 0, rpc: 3, table: TABLE, hash: 0 };
    assert_eq!(rig.status(bad.emit()), Some(Status::BadFormat));
    let elsewhere = Resolve { cluster: CLUSTER, lease: 1, rpc: 3, table: TableId(8), hash: 0 };
    assert_eq!(rig.status(elsewhere.emit()), Some(Status::UnknownTablet));
}

/// A record that has gone leaves nothing to do, and an idle master sleeps.
#[test]
fn a_master_sleeps_when_its_transactions_have_ended() {
    let mut rig = rig();
    assert!(rig.prepare(&[write(b"a", 3, None, b"x")]).is_ok());
    rig.pass(0);
    assert_eq!(rig.decide(Decision::Commit, &[object(b"a", 3)]), Some(Status::Ok));
    assert!(rig.prepare(&[write(b"b", 4, None, b"x")]).is_ok());
    assert_eq!(rig.decide(Decision::Abort, &[object(b"b", 4)]), Some(Status::Ok));
    for _ in 0..3 {
        rig.pass(SILENT_NS);
        rig.calls.clear();
    }
    assert!(rig.is_asleep(), "{:?}", rig.master.deadline());
    assert_eq!(rig.master.counter("transactions_silent"), 0);
}

/// Two clients that let each other's prepared objects decide lock them for a while, not for good.
#[test]
fn a_prepared_object_decides_nothing() {
    let mut rig = rig();
    let own = transaction(Opcode::Prepare, &[object(b"a", 3)], &[write(b"a", 3, None, b"x")]);
    assert!(outcome(&rig.ask(own), 1).is_ok());
    rig.pass(0);
    rig.pass(SILENT_NS);
    assert_eq!((rig.records(), rig.read(b"a")), (0, Err(Status::ObjectDoesntExist)));
}

/// If the client is silent, the master asks that of the first object for the decision.
#[test]
fn a_master_asks_for_the_decision_of_a_silent_client() {
    for resolution in [Resolution::Committed, Resolution::Aborted] {
        let mut rig = rig();
        assert!(rig.prepare(&[write(b"a", 3, None, b"x")]).is_ok());
        rig.pass(0);
        rig.pass(SILENT_NS - 1);
        rig.calls.clear();
        rig.pass(1);
        assert_eq!(rig.master.counter("transactions_silent"), 1);
        let asked = rig.owner_is_elsewhere();
        assert_eq!((asked.table, asked.hash), (ELSEWHERE.table, ELSEWHERE.hash.0));
        let request = rig.answer(Opcode::Resolve, Resolved { resolution }.emit());
        let resolve = Resolve::parse(&request).unwrap();
        let Resolve { lease, rpc, table, .. } = resolve;
        assert_eq!((lease, rpc, table), (LEASE.0, ELSEWHERE.rpc, ELSEWHERE.table));
        let found = match resolution {
            Resolution::Committed => Ok((Version(1), b"x".to_vec())),
            Resolution::Aborted => Err(Status::ObjectDoesntExist),
        };
        assert_eq!(rig.read(b"a"), found);
        rig.pass(0);
        assert!(rig.is_asleep(), "{:?}", rig.master.deadline());
        assert_eq!((rig.records(), rig.links.contains(&links::for_transactions(0).0)), (0, false));
    }
}

/// The master of the first object makes a commit known that its client did not.
#[test]
fn a_master_makes_the_commit_of_a_silent_client_known() {
    let mut rig = rig();
    let others = [ELSEWHERE, Participant { rpc: 91, ..ELSEWHERE }];
    assert!(rig.commit(&others, &[write(b"a", 3, None, b"x")]).is_ok());
    rig.pass(0);
    rig.calls.clear();
    rig.pass(SILENT_NS);
    assert!(rig.calls.is_empty(), "a client that rests is not silent");
    rig.idle(IDLE_NS);
    rig.owner_is_elsewhere();
    // The first call fails, and is repeated later.
    let (tag, _) = rig.calls.pop().unwrap();
    rig.master.response(rig.now, tag, Err(RpcError::NotExecuted));
    rig.pump();
    assert_eq!(rig.records(), 1);
    rig.idle(IDLE_NS);
    for other in others.iter().rev() {
        rig.owner_is_elsewhere();
        let request = rig.answer(Opcode::Decide, data::head(Status::Ok).to_vec());
        let expected = decide((CLUSTER, LEASE), Decision::Commit, [*other].into_iter());
        assert_eq!(request, expected);
    }
    assert_eq!((rig.records(), rig.links.contains(&links::for_transactions(0).0)), (0, false));
    assert_eq!(rig.resolve(object(b"a", 3)), Ok(Resolution::Committed));
}

/// A table that was dropped decides nothing: what depends on it is given up.
#[test]
fn the_end_of_a_table_ends_its_transactions() {
    let mut rig = rig();
    assert!(rig.prepare(&[write(b"a", 3, None, b"x")]).is_ok());
    assert!(rig.commit(&[ELSEWHERE], &[write(b"b", 4, None, b"x")]).is_ok());
    rig.pass(0);
    rig.calls.clear();
    let gone = Owner { server: ServerId::default(), gone: true, data: "" }.emit();
    for ns in [SILENT_NS, IDLE_NS] {
        rig.idle(ns);
        for (tag, request) in core::mem::take(&mut rig.calls) {
            assert_eq!(opcode(&request), Ok(Opcode::FindOwner));
            rig.master.response(rig.now, tag, Ok(Payload::Borrowed(&gone)));
            rig.pump();
        }
    }
    assert_eq!((rig.records(), rig.read(b"a")), (0, Err(Status::ObjectDoesntExist)));

    // The master's own table is dropped: nothing is left to decide, and no lock.
    assert!(rig.prepare(&[write(b"a", 5, None, b"x")]).is_ok());
    let drop = DropTablet {
        cluster: CLUSTER,
        term: TERM,
        server: ME,
        table: TABLE,
        first: 0,
        last: u64::MAX,
    };
    assert_eq!(rig.ask(drop.emit()), done());
    rig.pass(SILENT_NS);
    (0..5).for_each(|_| rig.pass(SILENT_NS));
    assert_eq!((rig.records(), rig.calls.len()), (0, rig.calls.len()));
    assert_eq!(rig.ask(take(0, u64::MAX).emit()), done());
    assert_eq!(rig.read(b"a"), Err(Status::ObjectDoesntExist));
}
