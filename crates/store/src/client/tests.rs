//! Tests of the store's client against scripts: the tests write each reply of the servers.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::ToString;
use alloc::vec;

use alloc::string::String;
use alloc::vec::Vec;

use proptest::prelude::*;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError};
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::{Instant, Rng};

use super::state::{KEPT_BYTES, State};
use super::*;
use crate::message::control::{self, *};
use crate::message::data::{self, Amount, Once, RejectRules};
use crate::message::list::{Listed, object_head, objects_head};
use crate::message::{Opcode, Status};
use crate::ops::{Enumerate, Increment, Operation as _, Read, Remove, Write};
use crate::types::{
    HashKey, KeyHash, LeaseId, MAX_KEY, MAX_PARTS, MAX_VALUE, ServerId, TableId, Version,
};

mod counters;
mod direct;
mod indexed;
mod leases;
mod multi;
mod routes;
mod tables;
mod transactions;
mod values;
mod world;

const T: TableId = TableId(7);
const CLUSTER: u64 = 9;
const HASH_KEY: HashKey = HashKey([3; 16]);
const NO_RULES: RejectRules = RejectRules {
    given_version: Version(0),
    doesnt_exist: false,
    exists: false,
    version_le_given: false,
    version_ne_given: false,
};

struct Script {
    client: Client,
    now: Instant,
    links: Vec<String>,
    /// The tablets that the coordinator returns to [`Script::object_call`].
    map: Vec<u8>,
}

/// A call that the client made.
#[derive(Debug)]
struct Call {
    link: u32,
    tag: u64,
    request: Vec<u8>,
    deadline: Instant,
}

impl Script {
    fn new() -> Self {
        let config = Config {
            transports: vec!["fast".into(), "tcp".into()],
            ..Config::new("tcp:coordinator")
        };
        Self {
            client: Client::new(config, Rng::seeded(1)),
            now: Instant::from_ns(SECOND),
            links: Vec::new(),
            map: tablets(&[("fast:m", TabletState::Normal)]),
        }
    }

    /// Returns a client that knows the table: one tablet at `fast:m`.
    fn knowing() -> Self {
        let mut s = Self::new();
        s.client.read(T, b"", NO_RULES, Instant::NEVER);
        let ask = s.call();
        s.reply(&ask, tablets(&[("fast:m", TabletState::Normal)]));
        let read = s.call();
        s.reply(&read, ok(1, b""));
        s
    }

    /// Returns a client that knows the table and has a lease for 60 s from now.
    fn leasing() -> Self {
        let mut s = Self::knowing();
        s.client.remove(T, b"", NO_RULES, Instant::NEVER);
        let ask = s.call();
        s.reply(&ask, leased(1));
        let remove = s.call();
        assert_eq!(once(&remove), Once { lease: LeaseId(1), rpc: 1, ack: 0 });
        s.reply(&remove, ok(1, b""));
        s
    }

    fn far(&self) -> Instant {
        self.now.after(10 * SECOND)
    }

    /// Returns the one call that the client makes now.
    fn call(&mut self) -> Call {
        let call = self.calls().pop().expect("a call");
        assert_eq!(self.calls().len(), 0);
        call
    }

    fn calls(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        while let Some(output) = self.client.output(self.now) {
            match output {
                Output::Connect { link: Link(link), locator } => {
                    self.links.resize(self.links.len().max(link as usize + 1), String::new());
                    assert_eq!(self.links[link as usize], "", "connected twice");
                    self.links[link as usize] = locator;
                }
                Output::Call { link: Link(link), tag, message, deadline } => {
                    assert_ne!(self.links[link as usize], "", "called before it was connected");
                    let mut request = message.bytes;
                    for slice in message.slices {
                        request.extend_from_slice(self.client.bytes(slice));
                        self.client.released(slice);
                    }
                    calls.push(Call { link, tag, request, deadline });
                }
                other => panic!("{other:?}"),
            }
        }
        calls
    }

    /// Returns the client's next call to a master. Answers questions for tablets meanwhile, and
    /// lets time pass.
    fn object_call(&mut self) -> Call {
        for _ in 0..100 {
            for call in self.calls() {
                if call.link != 0 {
                    return call;
                }
                assert_eq!(opcode(&call.request), Ok(Opcode::GetTablets));
                assert!(self.reply(&call, self.map.clone()).is_none());
            }
            if self.client.ready.is_empty() {
                self.tick();
            }
        }
        panic!("no call to a master");
    }

    fn respond(&mut self, call: &Call, result: Result<Vec<u8>, RpcError>) -> Option<Done<'static>> {
        let done = self.client.response(self.now, call.tag, result.map(Payload::Owned));
        // The same tag says nothing any more.
        assert!(self.client.response(self.now, call.tag, Ok(Payload::Owned(ok(1, b"")))).is_none());
        done
    }

    fn reply(&mut self, call: &Call, reply: Vec<u8>) -> Option<Done<'static>> {
        self.respond(call, Ok(reply))
    }

    /// Gives the client a reply that ends the operation, and returns the operation's error.
    fn error(&mut self, call: &Call, reply: Vec<u8>) -> Error {
        self.reply(call, reply).expect("an end").outcome.unwrap_err()
    }

    fn event(&mut self) -> Done<'static> {
        let done = self.client.event().expect("an event");
        assert!(self.client.event().is_none());
        done
    }

    /// Moves time to the client's next deadline.
    fn tick(&mut self) {
        let deadline = self.client.deadline().expect("a deadline");
        assert!(deadline >= self.now);
        self.now = deadline;
        self.client.tick(self.now);
    }
}

fn no(status: Status) -> Vec<u8> {
    failure(status, "because")
}

/// Makes a reply with a verdict: a status with the object's version.
fn verdict(status: Status, version: u64) -> Vec<u8> {
    data::result_head(status, Version(version)).to_vec()
}

fn tablets(parts: &[(&str, TabletState)]) -> Vec<u8> {
    let n = parts.len() as u128;
    let start = |i: usize| ((i as u128) << 64) / n;
    let tablets = parts.iter().enumerate().map(|(i, &(data, state))| Tablet {
        first: start(i) as u64,
        last: (start(i + 1) - 1) as u64,
        server: ServerId { index: i as u32, generation: 1 },
        state,
        data,
    });
    Tablets { cluster: CLUSTER, hash_key: HASH_KEY, tablets: tablets.collect() }.emit()
}

fn leased(lease: u64) -> Vec<u8> {
    Leased { cluster: CLUSTER, lease: LeaseId(lease), term_ns: 60 * SECOND }.emit()
}

/// Makes a reply with the status OK, a version, and the bytes `rest`.
fn ok(version: u64, rest: &[u8]) -> Vec<u8> {
    [&data::result_head(Status::Ok, Version(version))[..], rest].concat()
}

fn once(call: &Call) -> Once {
    match opcode(&call.request).unwrap() {
        Opcode::Write => Write::parse(&call.request).unwrap().once,
        Opcode::Remove => Remove::parse(&call.request).unwrap().once,
        _ => Increment::parse(&call.request).unwrap().once,
    }
}

#[test]
fn what_is_final_ends_the_operation() {
    let verdicts = [
        (Status::ObjectDoesntExist, Error::ObjectDoesntExist),
        (Status::ObjectExists, Error::ObjectExists(Version(5))),
        (Status::WrongVersion, Error::WrongVersion(Version(5))),
        (Status::NotANumber, Error::NotANumber(Version(5))),
        (Status::Overflow, Error::Overflow(Version(5))),
    ];
    for (status, error) in verdicts {
        let mut s = Script::leasing();
        s.client.write(T, b"k", b"v", NO_RULES, s.far());
        let write = s.call();
        assert_eq!(s.error(&write, verdict(status, 5)), error);
        // It has an answer, so the next one acknowledges it.
        s.client.remove(T, b"k", NO_RULES, s.far());
        assert_eq!(once(&s.call()).ack, 2);
    }
    let others = [
        (Status::NoSpace, Error::NoSpace),
        (Status::TabletLost, Error::TabletLost),
        (Status::KeyTooLong, Error::KeyTooLong(1)),
        (Status::ValueTooLong, Error::ValueTooLong(2)),
        (Status::StaleRpc, Error::Unknown),
    ];
    let refused = [Status::BadFormat, Status::BadVersion, Status::UnknownOpcode]
        .map(|status| (status, Error::Refused { status, text: "because".into() }));
    for (status, error) in others.into_iter().chain(refused) {
        let mut s = Script::leasing();
        s.client.write(T, b"k", b"vv", NO_RULES, s.far());
        let write = s.call();
        assert_eq!(s.error(&write, no(status)), error);
        assert_eq!(s.client.in_progress(), 0);
    }
}

#[test]
fn a_deadline_says_what_was_waited_for() {
    let late =
        |maybe_executed, waited_for| Error::Deadline { maybe_executed, waited_for, why: None };
    // The map.
    let mut s = Script::new();
    let op = s.client.read(T, b"k", NO_RULES, s.now.after(MS));
    let ask = s.call();
    s.tick();
    assert_eq!(s.calls().len(), 0);
    let done = s.event();
    assert_eq!((done.op, done.outcome.unwrap_err()), (op, late(false, WaitedFor::Coordinator)));
    // A request that no operation needs any more is not repeated.
    s.respond(&ask, Err(RpcError::NotExecuted));
    assert_eq!((s.client.deadline(), s.calls().len(), s.client.in_progress()), (None, 0, 0));

    // The server: the transport knows the deadline.
    let mut s = Script::leasing();
    s.client.remove(T, b"k", NO_RULES, s.now.after(MS));
    let call = s.call();
    assert_eq!(call.deadline, s.now.after(MS));
    s.now = call.deadline;
    let done = s.respond(&call, Err(RpcError::Deadline { maybe_executed: true })).unwrap();
    assert_eq!(done.outcome.unwrap_err(), late(true, WaitedFor::Server));
    // A read changes nothing, so nothing may have been executed.
    s.client.read(T, b"k", NO_RULES, s.now.after(MS));
    let call = s.call();
    s.now = call.deadline;
    let done = s.respond(&call, Err(RpcError::Deadline { maybe_executed: true })).unwrap();
    assert_eq!(done.outcome.unwrap_err(), late(false, WaitedFor::Server));

    // A pause that lasts beyond the deadline.
    s.client.write(T, b"k", b"", NO_RULES, s.now.after(MS));
    let call = s.call();
    s.respond(&call, Err(RpcError::MaybeExecuted));
    s.respond(&call, Err(RpcError::MaybeExecuted));
    let ask = s.call();
    s.respond(&ask, Err(RpcError::NotExecuted));
    let call = s.object_call();
    s.respond(&call, Err(RpcError::Busy { retry_after_ns: SECOND }));
    s.tick();
    let busy = s.event().outcome.unwrap_err();
    assert!(
        matches!(busy, Error::Deadline { waited_for: WaitedFor::Server, why: Some(_), .. }),
        "{busy:?}"
    );

    // The lease.
    let mut s = Script::knowing();
    s.client.write(T, b"k", b"", NO_RULES, s.now.after(MS));
    s.call();
    s.tick();
    assert_eq!(s.event().outcome.unwrap_err(), late(false, WaitedFor::Lease));

    // A deadline that has passed already.
    s.client.read(T, b"k", NO_RULES, s.now);
    assert_eq!(s.calls().len(), 0);
    assert_eq!(s.event().outcome.unwrap_err(), late(false, WaitedFor::Server));
    s.client.list_tables(s.now);
    assert_eq!(s.calls().len(), 0);
    assert_eq!(s.event().outcome.unwrap_err(), late(false, WaitedFor::Coordinator));
}

/// The user's next step is another one: the coordinators run.
#[test]
fn a_deadline_without_a_leader_says_so() {
    for (leader, why, leaderless) in
        [("", "", true), ("", "no etcd", true), ("tcp:b", "no etcd", true), ("tcp:b", "", false)]
    {
        for own in [false, true] {
            let mut s = if own { Script::knowing() } else { Script::new() };
            match own {
                true => s.client.write(T, b"k", b"", NO_RULES, s.now.after(SECOND)),
                false => s.client.list_tables(s.now.after(SECOND)),
            };
            let ask = s.call();
            s.respond(&ask, Ok(not_leader(leader, why)));
            s.now = s.now.after(SECOND);
            s.client.tick(s.now);
            let error = s.event().outcome.unwrap_err();
            let Error::Deadline { waited_for, why: Some(said), .. } = error else {
                panic!("{error:?}")
            };
            assert_eq!(
                waited_for == WaitedFor::Leader,
                leaderless,
                "{waited_for:?} {leader} {why}"
            );
            assert!(said.contains(why) && said.contains("no coordinator leads"), "{said}");
        }
    }
}

#[test]
fn a_cancelled_operation_does_not_end() {
    let mut s = Script::leasing();
    let op = s.client.write(T, b"k", b"", NO_RULES, s.far());
    let write = s.call();
    assert!(s.client.cancel(op));
    assert!(!s.client.cancel(op));
    assert!(s.reply(&write, ok(1, b"")).is_none());
    let waiting = s.client.read(TableId(8), b"k", NO_RULES, s.far());
    let ask = s.call();
    assert!(s.client.cancel(waiting));
    s.reply(&ask, tablets(&[("fast:m", TabletState::Normal)]));
    assert!(s.calls().is_empty() && s.client.event().is_none());
    // A program cannot cancel the client's own requests.
    s.client.read(TableId(9), b"k", NO_RULES, s.far());
    let ask = s.call();
    assert!(!s.client.cancel(Op(ask.tag)));
}

#[test]
fn limits_are_held_before_anything_is_sent() {
    let mut s = Script::leasing();
    let long = vec![0; MAX_VALUE + 1];
    s.client.write(T, &long[..=MAX_KEY], b"", NO_RULES, s.far());
    assert_eq!(
        s.event().outcome.unwrap_err().to_string(),
        "the key has 65537 bytes, the limit is 65536"
    );
    s.client.write(T, b"", &long, NO_RULES, s.far());
    assert_eq!(s.event().outcome.unwrap_err(), Error::ValueTooLong(MAX_VALUE + 1));
    s.client.create_table("", 1, s.far());
    assert_eq!(s.event().outcome.unwrap_err(), Error::BadName);
    s.client.create_table(&"n".repeat(256), 1, s.far());
    assert_eq!(s.event().outcome.unwrap_err(), Error::BadName);
    s.client.echo(PeerId::COORDINATOR, &long, s.far());
    assert_eq!(s.event().outcome.unwrap_err(), Error::ValueTooLong(MAX_VALUE + 1));
    assert_eq!(s.calls().len(), 0);
    // The longest are sent, and a slot does not keep their memory.
    let op = s.client.write(T, &long[..MAX_KEY], &long[..MAX_VALUE], NO_RULES, s.far());
    let call = s.call();
    assert_eq!(call.request.len(), 60 + MAX_KEY + MAX_VALUE);
    assert_eq!(s.reply(&call, ok(1, b"")).unwrap().op, op);
    assert!(s.client.slots.iter().all(|slot| slot.bytes.capacity() <= KEPT_BYTES));

    s.client.config.max_ops = 2;
    let ops: Vec<_> = (0..3).map(|_| s.client.read(T, b"", NO_RULES, s.far())).collect();
    let done = s.event();
    assert_eq!((done.op, done.outcome.unwrap_err()), (ops[2], Error::TooManyOps));
    assert_eq!(s.calls().len(), 2);
}

#[test]
fn a_coordinator_of_another_cluster_ends_everything() {
    let mut s = Script::leasing();
    let write = s.client.write(T, b"k", b"", NO_RULES, Instant::NEVER);
    s.call();
    let look = s.client.table("a", s.far());
    let call = s.call();
    let foreign = TableKey { cluster: CLUSTER + 1, table: T, hash_key: HASH_KEY }.emit();
    assert!(s.reply(&call, foreign).is_none());
    for op in [write, look] {
        let done = s.client.event().unwrap();
        assert!([write, look].contains(&op));
        assert_eq!(done.outcome.unwrap_err(), Error::ClusterReplaced);
    }
    s.client.read(T, b"k", NO_RULES, Instant::NEVER);
    assert_eq!(s.event().outcome.unwrap_err(), Error::ClusterReplaced);
    assert_eq!((s.calls().len(), s.client.deadline(), s.client.in_progress()), (0, None, 0));
}

#[test]
fn a_deadline_says_why_its_server_could_not_be_reached() {
    let why = |s: &mut Script, error| {
        s.client.remove(T, b"k", NO_RULES, s.now.after(MS));
        let call = s.call();
        s.now = call.deadline;
        let outcome = s.respond(&call, Err(error)).unwrap().outcome;
        let Err(Error::Deadline { why, .. }) = outcome else { panic!("{outcome:?}") };
        (Link(call.link), why)
    };
    let mut s = Script::leasing();
    let silent = RpcError::Deadline { maybe_executed: true };
    let (server, none) = why(&mut s, silent);
    assert_eq!(none, None);
    s.client.unreachable(server, "no such device");
    s.client.unreachable(Link(0), "the coordinator's");
    s.client.unreachable(Link(77), "there is no such server");
    assert_eq!(why(&mut s, RpcError::NotExecuted).1.as_deref(), Some("no such device"));
    assert!(
        why(&mut s, RpcError::Busy { retry_after_ns: 1 }).1.unwrap().contains("too much to do")
    );
    // Once it has answered, what was before explains nothing.
    s.client.read(T, b"k", NO_RULES, s.now.after(MS));
    let read = s.call();
    s.respond(&read, Ok(vec![0; 4]));
    assert_eq!(why(&mut s, silent).1, None);
}

#[test]
fn errors_speak_to_people() {
    let late = Error::Deadline { maybe_executed: true, waited_for: WaitedFor::Lease, why: None };
    assert!(late.maybe_executed());
    assert_eq!(
        late.to_string(),
        "the deadline passed while waiting for the coordinator to grant a lease; \
         the operation may have been executed"
    );
    assert!(!Error::WrongVersion(Version(3)).maybe_executed());
    assert_eq!(Error::WrongVersion(Version(3)).to_string(), "the object has version 3");
}

proptest! {
    /// Each operation of the client ends exactly once, by its deadline, for any replies of servers,
    /// and the client never panics.
    #[test]
    fn arbitrary_answers(seed: u64) {
        let mut rng = Rng::seeded(seed);
        let mut s = Script::leasing();
        let end = s.now.after(5 * SECOND);
        let mut open = BTreeSet::new();
        for i in 0..20u32 {
            let deadline = s.now.after(rng.below(5 * SECOND));
            let table = TableId(rng.below(3) + 6);
            let key = i.to_be_bytes();
            open.insert(match rng.below(9) {
                0 | 1 => s.client.read(table, &key, NO_RULES, deadline),
                2 => s.client.write(table, &key, &key, NO_RULES, deadline),
                3 => s.client.increment_integer(table, &key, 1, NO_RULES, deadline),
                4 => s.client.enumerate(table, Cursor::default(), deadline),
                5 => s.client.create_table("a", 1, deadline),
                6 => s.client.drop_table("a", deadline),
                7 => s.client.list_tables(deadline),
                _ => s.client.list_servers(deadline),
            });
        }
        let mut under_way = Vec::new();
        for _ in 0..10_000 {
            under_way.extend(s.calls());
            while let Some(done) = s.client.event() {
                prop_assert!(open.remove(&done.op), "{:?} ended twice", done);
            }
            if under_way.is_empty() {
                match s.client.deadline() {
                    Some(at) => s.now = at.max(s.now),
                    None => break,
                }
                s.client.tick(s.now);
                continue;
            }
            let call = under_way.swap_remove(rng.below(under_way.len() as u64) as usize);
            let choice = if s.now > end { 0 } else { rng.below(8) };
            let result = match choice {
                0 => {
                    s.now = call.deadline.max(s.now);
                    Err(RpcError::Deadline { maybe_executed: true })
                }
                1 => Err([RpcError::MaybeExecuted, RpcError::NotExecuted][rng.below(2) as usize]),
                2 => Ok(verdict(Status::from_code(rng.below(22) as u8).unwrap(), 1)),
                3 => Ok(no(Status::from_code(rng.below(22) as u8).unwrap())),
                4 => {
                    let other = [TabletState::Normal, TabletState::Recovering];
                    let state = other[rng.below(2) as usize];
                    Ok(tablets(&[("fast:m", TabletState::Normal), ("tcp:n", state)]))
                }
                5 => Ok(leased(1 + rng.below(3))),
                6 => Ok(TableKey { cluster: CLUSTER, table: T, hash_key: HASH_KEY }.emit()),
                _ => {
                    let mut garbage = vec![0; rng.below(40) as usize];
                    rng.fill(&mut garbage);
                    garbage.splice(..0, [1, 0, 0, 0]);
                    Ok(garbage)
                }
            };
            s.now = s.now.after(rng.below(MS));
            if let Some(done) = s.respond(&call, result) {
                prop_assert!(open.remove(&done.op), "{:?} ended twice", done);
            }
            s.client.tick(s.now);
        }
        while let Some(done) = s.client.event() {
            prop_assert!(open.remove(&done.op), "{:?} ended twice", done);
        }
        prop_assert!(open.is_empty(), "{:?} never ended", open);
        prop_assert_eq!(s.client.in_progress(), 0);
    }
}
