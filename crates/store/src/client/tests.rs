//! The client against scripts: a fake server whose every answer the test writes.

use alloc::format;
use alloc::string::ToString;
use alloc::vec;

use proptest::prelude::*;
use sprat_proto::Rng;
use sprat_proto::rpc::RpcError;

use super::*;
use crate::machine::Link;
use crate::message::control::{self, *};
use crate::message::data::{self, Increment, Once, Read, Write};
use crate::message::{Opcode, Status};
use crate::types::{HashKey, KeyHash, ServerId, Version};

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
    /// What the coordinator says whenever it is asked for tablets by [`Script::object_call`].
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
        let config =
            Config { transports: vec!["fast".into(), "tcp".into()], ..Config::new("tcp:coordinator") };
        Self {
            client: Client::new(config, Rng::seeded(1)),
            now: Instant::from_ns(SECOND),
            links: Vec::new(),
            map: tablets(&[("fast:m", TabletState::Normal)]),
        }
    }

    /// A client that knows where the table is: one tablet at `fast:m`.
    fn knowing() -> Self {
        let mut s = Self::new();
        s.client.read(T, b"", NO_RULES, Instant::NEVER);
        let ask = s.call();
        s.reply(&ask, tablets(&[("fast:m", TabletState::Normal)]));
        let read = s.call();
        s.reply(&read, ok(1, b""));
        s
    }

    /// The same with a lease for 60 s from now.
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

    /// The one call that the client makes now.
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
                    calls.push(Call { link, tag, request: message.bytes, deadline });
                }
                other => panic!("{other:?}"),
            }
        }
        calls
    }

    /// The next call to a master; questions for tablets are answered meanwhile, and time goes on.
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

    /// An answer that ends the operation with an error.
    fn error(&mut self, call: &Call, reply: Vec<u8>) -> Error {
        self.reply(call, reply).expect("an end").outcome.unwrap_err()
    }

    fn event(&mut self) -> Done<'static> {
        let done = self.client.event().expect("an event");
        assert!(self.client.event().is_none());
        done
    }

    /// Time goes on to the client's next deadline.
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

/// A verdict: a status with the object's version.
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

/// An OK with a version, and what follows.
fn ok(version: u64, rest: &[u8]) -> Vec<u8> {
    [&data::result_head(Status::Ok, Version(version))[..], rest].concat()
}

fn once(call: &Call) -> Once {
    match opcode(&call.request).unwrap() {
        Opcode::Write => Write::parse(&call.request).unwrap().once,
        Opcode::Remove => data::Remove::parse(&call.request).unwrap().once,
        _ => Increment::parse(&call.request).unwrap().once,
    }
}

#[test]
fn the_first_read_asks_where_and_the_next_ones_know() {
    let mut s = Script::new();
    let deadline = s.far();
    let op = s.client.read(T, b"key", NO_RULES, deadline);
    let ask = s.call();
    assert_eq!((ask.link, s.links[0].as_str()), (0, "tcp:coordinator"));
    assert_eq!(GetTablets::parse(&ask.request).unwrap().table, T);
    // Others wait for the same answer.
    let other = s.client.read(T, b"other", NO_RULES, deadline);
    assert_eq!(s.calls().len(), 0);
    assert!(s.reply(&ask, tablets(&[("x:1;tcp:m;fast:m", TabletState::Normal)])).is_none());
    let reads = s.calls();
    assert_eq!(s.links[1], "fast:m");
    let read = Read::parse(&reads[0].request).unwrap();
    assert_eq!((read.key, read.target.table, read.target.cluster), (&b"key"[..], T, CLUSTER));
    assert_eq!(reads[0].deadline, s.now.after(2 * SECOND));
    assert_eq!(Read::parse(&reads[1].request).unwrap().key, b"other");

    // The value is lent from the packet.
    let reply = ok(5, b"value");
    let done = s.client.response(s.now, reads[0].tag, Ok(Payload::Borrowed(&reply))).unwrap();
    assert_eq!(done.op, op);
    let Ok(Answer::Object { version, value }) = done.outcome else { panic!() };
    assert_eq!((version, &value[..]), (Version(5), &b"value"[..]));
    assert_eq!(value.as_ptr(), reply[12..].as_ptr());
    assert_eq!(value.into_vec(), b"value");

    let done = s.reply(&reads[1], ok(6, b"")).unwrap();
    assert_eq!(done.op, other);
    s.client.read(T, b"third", NO_RULES, s.now.after(SECOND));
    let third = s.call();
    assert_eq!((third.link, third.deadline), (1, s.now.after(SECOND)));
    assert_eq!(s.client.in_progress(), 1);
    assert_eq!(s.client.deadline(), None);
}

#[test]
fn each_key_goes_to_the_owner_of_its_hash() {
    let mut s = Script::new();
    s.client.read(T, b"", NO_RULES, Instant::NEVER);
    let ask = s.call();
    let parts: Vec<_> = (0..5).map(|i| format!("fast:{i}")).collect();
    let parts: Vec<_> = parts.iter().map(|part| (part.as_str(), TabletState::Normal)).collect();
    s.reply(&ask, tablets(&parts));
    s.calls();
    for i in 0..100u32 {
        let key = i.to_be_bytes();
        s.client.read(T, &key, NO_RULES, Instant::NEVER);
        let KeyHash(hash) = HASH_KEY.hash(&key);
        let call = s.calls().pop().unwrap();
        let part = (u128::from(hash) * 5) >> 64;
        assert_eq!(s.links[call.link as usize], format!("fast:{part}"));
    }
}

#[test]
fn a_mutation_has_one_number_however_often_it_is_sent() {
    let mut s = Script::leasing();
    let op = s.client.write(T, b"k", b"v", NO_RULES, s.far());
    let next = s.client.increment_integer(T, b"k", -2, NO_RULES, s.far());
    let mut calls = s.calls();
    assert_eq!(once(&calls[1]), Once { lease: LeaseId(1), rpc: 3, ack: 1 });
    let done = s.reply(&calls[1], ok(9, &(-2i64).to_be_bytes())).unwrap();
    assert_eq!(done.op, next);
    assert!(matches!(done.outcome, Ok(Answer::Integer { version: Version(9), sum: -2 })));
    let mut write = calls.swap_remove(0);
    for error in [
        RpcError::MaybeExecuted,
        RpcError::NotExecuted,
        RpcError::Deadline { maybe_executed: true },
        RpcError::Deadline { maybe_executed: false },
        RpcError::Cancelled,
        RpcError::Busy { retry_after_ns: 5 },
    ] {
        let Write { once, key, value, .. } = Write::parse(&write.request).unwrap();
        assert_eq!((key, value), (&b"k"[..], &b"v"[..]));
        // 3 is answered, 2 is not: only 1 may be forgotten.
        assert_eq!(once, Once { lease: LeaseId(1), rpc: 2, ack: 1 });
        assert!(s.respond(&write, Err(error)).is_none());
        write = s.object_call();
    }
    let done = s.reply(&write, ok(3, b"")).unwrap();
    assert_eq!(done.op, op);
    assert!(matches!(done.outcome, Ok(Answer::Version(Version(3)))));
    s.client.increment_double(T, b"k", 0.5, NO_RULES, s.far());
    let call = s.object_call();
    assert_eq!(once(&call), Once { lease: LeaseId(1), rpc: 4, ack: 3 });
    let done = s.reply(&call, ok(4, &0.25f64.to_be_bytes())).unwrap();
    assert!(matches!(done.outcome, Ok(Answer::Double { sum: 0.25, .. })));
}

#[test]
fn the_map_is_asked_for_anew_when_a_server_does_not_have_the_tablet() {
    for status in [Status::UnknownTablet, Status::NotServing, Status::NotInCluster, Status::TableDoesntExist]
    {
        let mut s = Script::knowing();
        s.client.read(T, b"k", NO_RULES, s.far());
        let read = s.call();
        assert!(s.reply(&read, no(status)).is_none());
        s.map = tablets(&[("tcp:n", TabletState::Normal)]);
        let again = s.object_call();
        assert_eq!(s.links[again.link as usize], "tcp:n");
        assert!(s.reply(&again, ok(1, b"")).unwrap().outcome.is_ok());
    }
}

#[test]
fn a_retry_waits_for_the_new_map_and_longer_each_time() {
    let mut s = Script::knowing();
    s.client.read(T, b"k", NO_RULES, s.far());
    let mut last_ns = 0;
    for i in 0..12 {
        let read = s.object_call();
        let before = s.now;
        assert!(s.respond(&read, Err(RpcError::NotExecuted)).is_none());
        let ask = s.call();
        assert_eq!(ask.link, 0);
        s.tick();
        let pause_ns = s.now.since(before);
        let nominal_ns = ((100 * US) << i).min(50 * MS);
        assert!((nominal_ns / 2..=nominal_ns).contains(&pause_ns), "{pause_ns} after {i} failures");
        last_ns = pause_ns.max(last_ns);
        // The pause is over, but the question is not: the old map is not used.
        assert_eq!(s.calls().len(), 0);
        let map = s.map.clone();
        s.reply(&ask, map);
    }
    assert!(last_ns > 24 * MS);
}

#[test]
fn what_is_final_ends_the_operation() {
    let verdicts = [
        (Status::ObjectDoesntExist, Error::ObjectDoesntExist),
        (Status::ObjectExists, Error::ObjectExists(Version(5))),
        (Status::WrongVersion, Error::WrongVersion(Version(5))),
        (Status::NotANumber, Error::NotANumber(Version(5))),
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
fn lost_tablets_and_dropped_tables_are_told_by_the_coordinator() {
    let mut s = Script::new();
    s.map = tablets(&[("fast:a", TabletState::Normal), ("", TabletState::Lost)]);
    let ops: Vec<_> = (0..20u8).map(|i| s.client.read(T, &[i], NO_RULES, s.far())).collect();
    let ask = s.call();
    let map = s.map.clone();
    s.reply(&ask, map);
    let sent = s.calls().len();
    let mut lost = 0;
    while let Some(done) = s.client.event() {
        assert!(ops.contains(&done.op));
        assert_eq!(done.outcome.unwrap_err(), Error::TabletLost);
        lost += 1;
    }
    assert!(sent + lost == 20 && lost > 0 && sent > 0);

    let mut s = Script::knowing();
    let op = s.client.read(T, b"k", NO_RULES, s.far());
    let read = s.call();
    s.reply(&read, no(Status::UnknownTablet));
    while s.client.events.is_empty() {
        for ask in s.calls() {
            assert!(s.reply(&ask, no(Status::TableDoesntExist)).is_none());
        }
        if s.client.events.is_empty() && s.client.ready.is_empty() {
            s.tick();
        }
    }
    let done = s.event();
    assert_eq!((done.op, done.outcome.unwrap_err()), (op, Error::TableDoesntExist));
}

/// Slots are used again, and one that waits for a question's answer may have waited for another question before.
#[test]
fn a_question_that_is_refused_ends_only_those_who_wait_for_it() {
    let mut s = Script::new();
    s.client.read(TableId(1), b"k", NO_RULES, s.now.after(MS));
    let ask_1 = s.call();
    s.tick();
    assert!(matches!(s.event().outcome.unwrap_err(), Error::Deadline { .. }));
    let op = s.client.read(T, b"k", NO_RULES, s.far());
    let ask = s.call();
    assert!(s.reply(&ask_1, no(Status::TableDoesntExist)).is_none());
    assert!(s.client.event().is_none());
    s.reply(&ask, tablets(&[("fast:m", TabletState::Normal)]));
    let read = s.call();
    assert_eq!(s.reply(&read, ok(1, b"")).expect("an end").op, op);
}

#[test]
fn operations_that_ended_while_they_waited_do_not_pile_up() {
    let mut s = Script::new();
    s.client.read(T, b"k", NO_RULES, Instant::NEVER);
    s.client.write(TableId(8), b"k", b"", NO_RULES, Instant::NEVER);
    for ask in s.calls() {
        let table_8 = opcode(&ask.request) == Ok(Opcode::GetTablets)
            && GetTablets::parse(&ask.request).unwrap().table == TableId(8);
        if table_8 {
            s.reply(&ask, tablets(&[("fast:m", TabletState::Normal)]));
        }
    }
    for _ in 0..1_000 {
        let read = s.client.read(T, b"k", NO_RULES, Instant::NEVER);
        let write = s.client.write(TableId(8), b"k", b"", NO_RULES, Instant::NEVER);
        s.calls();
        assert!(s.client.cancel(read) && s.client.cancel(write));
    }
    let most = 2 * s.client.slots.len();
    assert!(s.client.routes.tables.iter().all(|table| table.parked.len() <= most));
    assert!((1..=most).contains(&s.client.rifl.parked.len()) && most < 20);
}

#[test]
fn a_server_that_no_transport_reaches_is_named() {
    let mut s = Script::new();
    s.client.read(T, b"k", NO_RULES, s.far());
    let ask = s.call();
    s.reply(&ask, tablets(&[("rdma:x", TabletState::Normal)]));
    assert_eq!(s.calls().len(), 0);
    let text = r#"the server listens at "rdma:x", and this client uses fast, tcp"#;
    assert_eq!(s.event().outcome.unwrap_err(), Error::NoTransport(text.into()));
    assert_eq!(s.client.peer("rdma:x"), Err(Error::NoTransport(text.into())));
}

#[test]
fn busy_and_retry_are_waited_for() {
    let mut s = Script::knowing();
    s.client.read(T, b"k", NO_RULES, s.far());
    let read = s.call();
    assert!(s.respond(&read, Err(RpcError::Busy { retry_after_ns: 3 * MS })).is_none());
    assert_eq!(s.calls().len(), 0);
    let before = s.now;
    s.tick();
    assert_eq!(s.now.since(before), 3 * MS);
    let read = s.call();
    for status in [Status::Retry, Status::Starting] {
        assert!(s.reply(&read, no(status)).is_none() || status == Status::Starting);
    }
    assert_eq!(s.calls().len(), 0, "a retry does not ask for the map");
    s.tick();
    s.call();
}

#[test]
fn a_deadline_says_what_was_waited_for() {
    let late = |maybe_executed, waited_for| Error::Deadline { maybe_executed, waited_for };
    // The map.
    let mut s = Script::new();
    let op = s.client.read(T, b"k", NO_RULES, s.now.after(MS));
    let ask = s.call();
    s.tick();
    assert_eq!(s.calls().len(), 0);
    let done = s.event();
    assert_eq!((done.op, done.outcome.unwrap_err()), (op, late(false, WaitedFor::Coordinator)));
    // The question that nobody waits for any more is not asked again.
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
    assert_eq!(s.event().outcome.unwrap_err(), late(true, WaitedFor::Server));

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

#[test]
fn an_operation_without_an_answer_when_its_lease_ends_is_unknown() {
    let mut s = Script::leasing();
    let maybe = s.client.write(T, b"maybe", b"", NO_RULES, Instant::NEVER);
    let first = s.call();
    let never = s.client.write(T, b"not", b"", NO_RULES, Instant::NEVER);
    let second = s.call();
    assert_eq!((once(&first).rpc, once(&second).rpc), (2, 3));
    assert!(s.respond(&first, Err(RpcError::MaybeExecuted)).is_none());
    // A master says that the lease has ended; the coordinator must be asked before anything is sent.
    assert!(s.reply(&second, no(Status::ExpiredLease)).is_none());
    let ask = loop {
        let asked = s.calls().into_iter().find_map(|call| match opcode(&call.request) {
            Ok(Opcode::RenewClient) => Some(call),
            _ => {
                assert_eq!(call.link, 0, "a mutation was sent");
                let map = s.map.clone();
                s.reply(&call, map);
                None
            }
        });
        match asked {
            Some(ask) => break ask,
            None if s.client.ready.is_empty() => s.tick(),
            None => {}
        }
    };
    assert_eq!(RenewClient::parse(&ask.request).unwrap().lease, LeaseId(1));
    s.reply(&ask, no(Status::ExpiredLease));
    let ask = s.call();
    assert_eq!(RenewClient::parse(&ask.request).unwrap().lease, LeaseId(0));
    s.reply(&ask, leased(2));
    // What certainly was not executed is sent under the new lease; the other is never sent again.
    let again = s.object_call();
    assert_eq!(Write::parse(&again.request).unwrap().key, b"not");
    assert_eq!(once(&again), Once { lease: LeaseId(2), rpc: 1, ack: 0 });
    assert_eq!(s.reply(&again, ok(1, b"")).unwrap().op, never);
    while s.client.events.is_empty() {
        assert_eq!(s.calls().len(), 0);
        if s.client.events.is_empty() {
            s.tick();
        }
    }
    let done = s.event();
    assert_eq!((done.op, done.outcome.unwrap_err()), (maybe, Error::Unknown));
}

#[test]
fn a_lease_that_a_master_doubts_but_the_coordinator_does_not_goes_on() {
    let mut s = Script::leasing();
    s.client.write(T, b"k", b"", NO_RULES, Instant::NEVER);
    let write = s.call();
    s.reply(&write, no(Status::ExpiredLease));
    s.tick();
    let ask = s.call();
    s.reply(&ask, leased(1));
    assert_eq!(once(&s.call()), once(&write));
}

#[test]
fn a_lease_in_use_is_renewed_and_one_in_no_use_is_not() {
    let mut s = Script::leasing();
    let asked_at = s.now;
    s.tick();
    assert_eq!(s.now, asked_at.after(30 * SECOND));
    let ask = s.call();
    s.respond(&ask, Err(RpcError::MaybeExecuted));
    s.tick();
    let ask = s.call();
    assert_eq!(RenewClient::parse(&ask.request).unwrap().lease, LeaseId(1));
    s.reply(&ask, leased(1));
    // Nothing was written since: it is allowed to end.
    assert_eq!(s.client.deadline(), None);
    s.now = s.now.after(52 * SECOND);
    s.client.write(T, b"k", b"", NO_RULES, Instant::NEVER);
    assert_eq!(once(&s.call()).rpc, 2);
    s.now = s.now.after(SECOND);
    s.client.write(T, b"l", b"", NO_RULES, Instant::NEVER);
    let ask = s.call();
    assert_eq!(RenewClient::parse(&ask.request).unwrap().lease, LeaseId(1));
}

#[test]
fn the_window_bounds_mutations_without_an_answer() {
    let mut s = Script::leasing();
    for _ in 0..WINDOW + 2 {
        s.client.remove(T, b"k", NO_RULES, s.far());
    }
    let reads = s.client.read(T, b"k", NO_RULES, s.far());
    let mut calls = s.calls();
    assert_eq!(calls.len() as u64, WINDOW + 1);
    assert_eq!(s.client.live(reads.0).map(|i| s.client.slots[i as usize].state), Some(State::Calling));
    calls.pop();
    // Not the first: the window stands.
    let second = calls.remove(1);
    s.reply(&second, ok(1, b""));
    assert_eq!(s.calls().len(), 0);
    let first = calls.remove(0);
    s.reply(&first, ok(1, b""));
    let calls = s.calls();
    assert_eq!(calls.iter().map(|call| once(call).rpc).collect::<Vec<_>>(), [WINDOW + 2, WINDOW + 3]);
    assert!(calls.iter().all(|call| once(call).ack == 3));
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
    // The client's own questions are nobody's to cancel.
    s.client.read(TableId(9), b"k", NO_RULES, s.far());
    let ask = s.call();
    assert!(!s.client.cancel(Op(ask.tag)));
}

#[test]
fn limits_are_held_before_anything_is_sent() {
    let mut s = Script::leasing();
    let long = vec![0; MAX_VALUE + 1];
    s.client.write(T, &long[..=MAX_KEY], b"", NO_RULES, s.far());
    assert_eq!(s.event().outcome.unwrap_err().to_string(), "the key has 65537 bytes, the limit is 65536");
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
    assert_eq!(call.request.len(), call.request.capacity());
    assert_eq!(call.request.len(), 60 + MAX_KEY + MAX_VALUE);
    assert_eq!(s.reply(&call, ok(1, b"")).unwrap().op, op);
    assert!(s.client.slots.iter().all(|slot| slot.body.capacity() <= KEPT_BYTES));

    s.client.config.max_ops = 2;
    let ops: Vec<_> = (0..3).map(|_| s.client.read(T, b"", NO_RULES, s.far())).collect();
    let done = s.event();
    assert_eq!((done.op, done.outcome.unwrap_err()), (ops[2], Error::TooManyOps));
    assert_eq!(s.calls().len(), 2);
}

#[test]
fn tables_are_created_looked_up_and_dropped() {
    let mut s = Script::new();
    let key = TableKey { cluster: CLUSTER, table: T, hash_key: HASH_KEY }.emit();
    s.client.create_table("a", 3, s.far());
    let create = s.call();
    let request = CreateTable::parse(&create.request).unwrap();
    assert_eq!((request.name, request.span), ("a", 3));
    // Whether it was executed or not: asking again is safe, the name sees to that.
    s.respond(&create, Err(RpcError::MaybeExecuted));
    s.tick();
    let create = s.call();
    let done = s.reply(&create, key.clone()).unwrap();
    assert!(matches!(done.outcome, Ok(Answer::Table(T))));

    s.client.table("a", s.far());
    let look = s.call();
    assert_eq!(GetTable::parse(&look.request).unwrap().name, "a");
    s.reply(&look, no(Status::Retry));
    s.tick();
    let look = s.call();
    assert!(matches!(s.reply(&look, key.clone()).unwrap().outcome, Ok(Answer::Table(T))));
    s.client.table("b", s.far());
    let look = s.call();
    assert_eq!(s.error(&look, no(Status::TableDoesntExist)), Error::TableDoesntExist);
    s.client.create_table("b", 1, s.far());
    let create = s.call();
    assert_eq!(s.error(&create, no(Status::TooFewServers)), Error::TooFewServers);
    s.client.create_table("b", 1, s.far());
    let create = s.call();
    let full = Error::Refused { status: Status::NoSpace, text: "because".into() };
    assert_eq!(s.error(&create, no(Status::NoSpace)), full);

    // A drop learns first which table is meant, so that its repetition cannot hit a later one of that name.
    s.client.drop_table("a", s.far());
    let look = s.call();
    assert!(s.reply(&look, key).is_none());
    for _ in 0..3 {
        let drop = s.call();
        let request = DropTable::parse(&drop.request).unwrap();
        assert_eq!((request.table, request.name), (T, "a"));
        s.respond(&drop, Err(RpcError::MaybeExecuted));
        s.tick();
    }
    let drop = s.call();
    assert!(matches!(s.reply(&drop, control::done()).unwrap().outcome, Ok(Answer::Dropped)));
    s.client.drop_table("a", s.far());
    let look = s.call();
    assert_eq!(s.error(&look, no(Status::TableDoesntExist)), Error::TableDoesntExist);
}

#[test]
fn lists_are_collected_page_by_page() {
    let mut s = Script::new();
    s.client.list_tables(s.far());
    for (after, more) in [(0, true), (5, false)] {
        let ask = s.call();
        assert_eq!(ListTables::parse(&ask.request).unwrap().after, TableId(after));
        let tables = vec![Table { table: TableId(after + 5), tablets: 2, lost: 1, name: "a" }];
        match s.reply(&ask, TablePage { more, tables }.emit()) {
            None => assert!(more),
            Some(done) => {
                let Ok(Answer::Tables(tables)) = done.outcome else { panic!() };
                assert_eq!(tables.iter().map(|table| table.table.0).collect::<Vec<_>>(), [5, 10]);
                assert_eq!((tables[1].tablets, tables[1].lost, tables[1].name.as_str()), (2, 1, "a"));
            }
        }
    }
    s.client.list_servers(s.far());
    for (from, next) in [(0, 4), (4, 0)] {
        let ask = s.call();
        assert_eq!(ListServers::parse(&ask.request).unwrap().from, from);
        let server = Server {
            server: ServerId { index: from + 3, generation: 1 },
            state: ServerState::Up,
            tablets: 2,
            usage: Usage { used_bytes: 1, capacity_bytes: 2, objects: 3 },
            control: "c",
            data: "d",
        };
        match s.reply(&ask, ServerPage { next, servers: vec![server] }.emit()) {
            None => assert_ne!(next, 0),
            Some(done) => {
                let Ok(Answer::Servers(servers)) = done.outcome else { panic!() };
                assert_eq!(servers.iter().map(|server| server.server.index).collect::<Vec<_>>(), [3, 7]);
                assert_eq!((servers[0].control.as_str(), servers[0].data.as_str()), ("c", "d"));
            }
        }
    }
}

#[test]
fn an_enumeration_goes_through_all_tablets() {
    let mut s = Script::new();
    s.map = tablets(&[("fast:a", TabletState::Normal), ("fast:b", TabletState::Normal)]);
    let mut cursor = Some(Cursor::default());
    let half = 1u64 << 63;
    for (at, first, last, within, next) in
        [("fast:a", 0, half - 1, 0, 77), ("fast:a", 0, half - 1, 77, 0), ("fast:b", half, u64::MAX, 0, 0)]
    {
        s.client.enumerate(T, cursor.unwrap(), s.far());
        let call = s.object_call();
        assert_eq!(s.links[call.link as usize], at);
        let request = data::Enumerate::parse(&call.request).unwrap();
        assert_eq!((request.first, request.last, request.cursor), (first, last, within));
        let mut reply = data::objects_head(1, next).to_vec();
        reply.extend(data::object_head(1, Version(4), 2));
        reply.extend(b"kvv");
        let done = s.reply(&call, reply).unwrap();
        let Ok(Answer::Page(page)) = done.outcome else { panic!() };
        let objects: Vec<_> = page.objects().collect();
        assert_eq!(objects, [(&b"k"[..], Version(4), &b"vv"[..])]);
        cursor = page.next;
    }
    assert_eq!(cursor, None);
}

#[test]
fn echo_and_stats_go_to_the_server_that_is_named() {
    let mut s = Script::new();
    let peer = s.client.peer("tcp:x;fast:x").unwrap();
    s.client.echo(peer, b"hello", s.far());
    let call = s.call();
    assert_eq!(s.links[call.link as usize], "fast:x");
    let done = s.reply(&call, [&data::head(Status::Ok)[..], b"hello"].concat()).unwrap();
    let Ok(Answer::Bytes(bytes)) = done.outcome else { panic!() };
    assert_eq!(&bytes[..], b"hello");
    s.client.stats(PeerId::COORDINATOR, s.far());
    let call = s.call();
    assert_eq!(call.link, 0);
    let done = s.reply(&call, [&data::head(Status::Ok)[..], b"{}"].concat()).unwrap();
    let Ok(Answer::Bytes(bytes)) = done.outcome else { panic!() };
    assert_eq!(bytes.into_vec(), b"{}");
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
fn errors_speak_to_people() {
    let late = Error::Deadline { maybe_executed: true, waited_for: WaitedFor::Lease };
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
    /// Whatever servers answer, each operation ends exactly once, by its deadline, and nothing panics.
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
                4 => Ok(tablets(&[("fast:m", TabletState::Normal), ("tcp:n", TabletState::Normal)])),
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
