//! Tests of the master by its verbs: requests, replies and calls, in virtual time.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::{any, prop_assert, prop_oneof, proptest};
use sprat_proto::node::machine::{Caller, Machine, Output};
use sprat_proto::rpc::{Message, Payload, RpcError, ServerRpc, Slices};
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};

use super::*;
use crate::durability::TableDurability;
use crate::message::control::{
    CheckLease, DropTablet, Enlist, Enlisted, LeaseTimes, RenewServer, Renewed, TakeTablet, done,
    failure, opcode,
};
use crate::message::data::{self, Amount, Once, RejectRules, Target};
use crate::message::list::{Listed, objects_reply};
use crate::message::{Opcode, Status, VERSION};
use crate::ops::tests::{echo_reply, increment_reply, mutation_reply, read_reply};
use crate::ops::{Echo, Enumerate, Increment, Operation as _, Read, Remove, Stats, Write};
use crate::types::{HashKey, LeaseId, MAX_KEY, MAX_VALUE, ServerId, TableId, Version};

mod damage;
mod durability;
mod handover;
mod heat;
mod indexed;
mod leases;
mod look_up;
mod memory;
mod multi;
mod recovery;
mod replicas;
mod swap;
mod terms;
mod transactions;

const CLUSTER: u64 = 9;
const TERM: u64 = 4;
const ME: ServerId = ServerId { index: 1, generation: 1 };
const TABLE: TableId = TableId(7);
const KEY: HashKey = HashKey([5; 16]);
const TERM_NS: u64 = 3 * SECOND;
const TARGET: Target = Target {
    cluster: CLUSTER,
    table: TABLE,
    rules: RejectRules {
        given_version: Version(0),
        doesnt_exist: false,
        exists: false,
        version_le_given: false,
        version_ne_given: false,
    },
    durable: false,
};

struct Rig {
    master: Master,
    now: Instant,
    callers: u64,
    /// The links that are connected.
    links: BTreeSet<u32>,
    calls: Vec<(u64, Vec<u8>)>,
    replies: BTreeMap<u64, Vec<u8>>,
    /// The syncs of the disk that are in progress.
    syncs: Vec<u64>,
    stopped: bool,
}

impl Rig {
    fn new(config: Config) -> Self {
        Self::over(Master::new(config, Rng::seeded(1)))
    }

    fn over(master: Master) -> Self {
        let mut rig = Self {
            master,
            now: Instant::from_ns(SECOND),
            callers: 0,
            links: BTreeSet::new(),
            calls: Vec::new(),
            replies: BTreeMap::new(),
            syncs: Vec::new(),
            stopped: false,
        };
        rig.pump();
        rig
    }

    /// Creates a master that is a member of the cluster and owns all of the table.
    fn serving(config: Config) -> Self {
        let mut rig = Self::new(config);
        rig.answer(
            Opcode::Enlist,
            Enlisted {
                cluster: CLUSTER,
                server: ME,
                list_version: 1,
                lease_ns: TERM_NS,
                term: TERM,
            }
            .emit(),
        );
        let taken = rig.send(&take(0, u64::MAX).emit()).or_else(|waiting| {
            rig.master.durable(rig.master.memory().log.tail());
            rig.pump();
            rig.replies.remove(&waiting).ok_or(())
        });
        assert_eq!(taken, Ok(done()));
        rig
    }

    fn small() -> Self {
        Self::serving(Config { log_bytes: 16 << 12, segment_bytes: 1 << 12, ..Config::default() })
    }

    /// Returns true if the master has nothing to do until something arrives or time passes.
    fn is_asleep(&self) -> bool {
        self.master.deadline().is_none_or(|at| at > self.now)
    }

    fn pump(&mut self) {
        while let Some(output) = self.master.output(self.now) {
            match output {
                Output::Connect { link, .. } => assert!(self.links.insert(link.0)),
                Output::Disconnect { link } => assert!(self.links.remove(&link.0)),
                Output::Call { link, tag, message, deadline } => {
                    assert!(self.links.contains(&link.0), "{link:?}");
                    assert!(deadline > self.now && message.slices.is_empty());
                    self.calls.push((tag, message.bytes));
                }
                Output::Reply { caller, message } => {
                    let bytes = self.take_message(message);
                    assert!(self.replies.insert(caller.rpc.0, bytes).is_none(), "one reply");
                }
                Output::Counters { caller, mut message } => {
                    // The node writes JSON; here a line for each is enough.
                    for (name, value) in self.master.counters() {
                        message.bytes.extend(alloc::format!("{name} {value}\n").into_bytes());
                    }
                    assert!(
                        self.replies.insert(caller.rpc.0, message.bytes).is_none(),
                        "one reply"
                    );
                }
                Output::Stop { reason } => {
                    assert!(!reason.is_empty());
                    self.stopped = true;
                }
                Output::Persist { seq, puts, deletes } => {
                    assert!(puts.is_empty() && deletes.is_empty());
                    self.syncs.push(seq);
                }
                output => panic!("{output:?}"),
            }
        }
    }

    fn take_message(&mut self, message: Message) -> Vec<u8> {
        let mut bytes = message.bytes;
        for slice in message.slices {
            bytes.extend_from_slice(self.master.bytes(slice));
            self.master.released(slice);
        }
        bytes
    }

    /// Sends a request and returns its reply; if the reply follows later, returns the request's
    /// number as an error.
    fn send(&mut self, request: &[u8]) -> Result<Vec<u8>, u64> {
        self.callers += 1;
        let caller = Caller { transport: 0, rpc: ServerRpc(self.callers), at: Instant::ZERO };
        let payload = Payload::Borrowed(request);
        let reply =
            crate::testing::request(&mut self.master, self.now, caller, payload, Instant::NEVER);
        let reply = reply.map(|message| self.take_message(message));
        self.pump();
        // What was counted goes by way of the world, which adds to it, and waits for nothing.
        let counted = if opcode(request) == Ok(Opcode::Stats) {
            self.replies.remove(&self.callers)
        } else {
            None
        };
        reply.or(counted).ok_or(self.callers)
    }

    fn ask(&mut self, request: Vec<u8>) -> Vec<u8> {
        self.send(&request).expect("an answer at once")
    }

    fn status(&mut self, request: Vec<u8>) -> Option<Status> {
        Status::from_code(self.ask(request)[1])
    }

    /// Answers the only call to the coordinator that is in progress. Returns the call's request.
    fn answer(&mut self, to: Opcode, reply: Vec<u8>) -> Vec<u8> {
        let (tag, request) = self.calls.pop().expect("a call");
        assert!(self.calls.is_empty() && opcode(&request) == Ok(to), "{request:?}");
        self.master.response(self.now, tag, Ok(Payload::Borrowed(&reply)));
        self.pump();
        request
    }

    fn pass(&mut self, ns: u64) {
        self.now = self.now.after(ns);
        self.master.tick(self.now);
        self.pump();
    }

    /// Makes the master know a client's lease as valid.
    fn client(&mut self, lease: u64, valid_ns: u64) {
        let nothing = Remove { target: TARGET, once: once(lease, 1, 0), key: b"" };
        let waiting = self.send(&nothing.emit()).unwrap_err();
        self.answer(Opcode::CheckLease, LeaseTimes { valid_ns: vec![valid_ns] }.emit());
        assert_eq!(mutation_reply(&self.replies.remove(&waiting).unwrap()), Ok(Version(0)));
    }

    fn write(&mut self, once: Once, key: &[u8], value: &[u8]) -> Result<Version, Status> {
        let reply = self.ask(Write { target: TARGET, once, key, value, lifetime: None }.emit());
        mutation_reply(&reply).map_err(|refusal| refusal.status)
    }

    fn read(&mut self, key: &[u8]) -> Result<(Version, Vec<u8>), Status> {
        let reply = self.ask(Read { target: TARGET, key }.emit());
        read_reply(&reply).map(|(v, value)| (v, value.to_vec())).map_err(|refusal| refusal.status)
    }
}

fn once(lease: u64, rpc: u64, ack: u64) -> Once {
    Once { lease: LeaseId(lease), rpc, ack }
}

fn take(first: u64, last: u64) -> TakeTablet {
    TakeTablet {
        cluster: CLUSTER,
        term: TERM,
        server: ME,
        table: TABLE,
        first,
        last,
        hash_key: KEY,
        durability: TableDurability::Cluster,
    }
}

#[test]
fn joins_renews_and_stops_when_it_is_given_up() {
    let config = Config { control: "tcp:c".into(), data: "shm:d".into(), ..Config::default() };
    let mut rig = Rig::new(config);
    // Orders that overtake the answer to Enlist must be repeated, not refused.
    assert_eq!(rig.status(take(0, 9).emit()), Some(Status::Retry));
    assert_eq!(rig.read(b"k"), Err(Status::NotServing));
    let (tag, request) = rig.calls.pop().unwrap();
    let enlist = Enlist::parse(&request).unwrap();
    assert_eq!((enlist.control, enlist.data, enlist.capacity_bytes), ("tcp:c", "shm:d", 1 << 30));
    let nonce = enlist.nonce;
    rig.master.response(rig.now, tag, Err(RpcError::NotExecuted));
    rig.pump();
    assert!(rig.calls.is_empty());
    assert_eq!(rig.master.deadline(), Some(rig.now.after(100 * MS)));
    rig.pass(100 * MS);
    let enlisted =
        Enlisted { cluster: CLUSTER, server: ME, list_version: 1, lease_ns: TERM_NS, term: TERM }
            .emit();
    let request = rig.answer(Opcode::Enlist, enlisted);
    assert_eq!(Enlist::parse(&request).unwrap().nonce, nonce, "the same life");
    assert_eq!(rig.master.server(), Some(ME));
    assert_eq!(rig.read(b"k"), Err(Status::UnknownTablet));

    // Renewed at a third of the term; the lease counts from when it was asked for.
    assert_eq!(rig.master.deadline(), Some(rig.now.after(SECOND)));
    rig.pass(SECOND);
    let asked = rig.now;
    rig.pass(SECOND / 2);
    let request = rig.answer(
        Opcode::RenewServer,
        Renewed { list_version: 1, lease_ns: TERM_NS, term: TERM }.emit(),
    );
    let renew = RenewServer::parse(&request).unwrap();
    assert_eq!((renew.cluster, renew.server), (CLUSTER, ME));
    assert_eq!(rig.master.deadline(), Some(asked.after(SECOND)));

    // Without a reply, the master stops serving before the coordinator gives it up, and continues
    // if it renews its lease.
    rig.now = asked.after(TERM_NS - TERM_NS / 10 - 1);
    assert_eq!(rig.read(b"k"), Err(Status::UnknownTablet));
    rig.now = asked.after(TERM_NS - TERM_NS / 10);
    assert_eq!(rig.read(b"k"), Err(Status::NotServing));
    rig.answer(
        Opcode::RenewServer,
        Renewed { list_version: 1, lease_ns: TERM_NS, term: TERM }.emit(),
    );
    assert_eq!(rig.read(b"k"), Err(Status::UnknownTablet));

    rig.pass(TERM_NS);
    assert!(!rig.stopped);
    rig.answer(Opcode::RenewServer, failure(Status::NotInCluster, "gone"));
    assert!(rig.stopped);
    rig.pass(10 * TERM_NS);
    assert!(rig.calls.is_empty(), "it never comes back");
    assert_eq!(rig.read(b"k"), Err(Status::NotServing));
    assert_eq!(rig.status(take(0, 9).emit()), Some(Status::NotInCluster));
}

#[test]
fn tablets_are_taken_and_dropped() {
    let mut rig = Rig::small();
    rig.client(1, TERM_NS);
    let repeated = take(0, u64::MAX).emit();
    assert_eq!(rig.ask(repeated), done());
    let other = ServerId { index: 1, generation: 2 };
    assert_eq!(
        rig.status(TakeTablet { server: other, ..take(0, 9) }.emit()),
        Some(Status::NotInCluster)
    );
    assert_eq!(
        rig.status(TakeTablet { cluster: 1, ..take(0, 9) }.emit()),
        Some(Status::NotInCluster)
    );
    assert_eq!(rig.status(take(0, 9).emit()), Some(Status::BadFormat), "it overlaps");
    assert_eq!(rig.status(take(9, 0).emit()), Some(Status::BadFormat));

    assert!(rig.write(once(1, 2, 1), b"k", b"v").is_ok());
    let drop = DropTablet {
        cluster: CLUSTER,
        term: TERM,
        server: ME,
        table: TABLE,
        first: 0,
        last: u64::MAX,
    };
    assert_eq!(rig.ask(drop.emit()), done());
    assert_eq!(rig.ask(drop.emit()), done());
    assert_eq!(rig.read(b"k"), Err(Status::UnknownTablet));
    assert_eq!(rig.write(once(1, 3, 2), b"k", b"v"), Err(Status::UnknownTablet));
    // It comes back empty, when its old objects are gone.
    assert_eq!(rig.status(take(0, u64::MAX).emit()), Some(Status::Retry));
    assert_eq!(rig.master.deadline(), Some(Instant::ZERO));
    while rig.master.tick(rig.now) {}
    assert_eq!(rig.ask(take(0, u64::MAX).emit()), done());
    assert_eq!(rig.read(b"k"), Err(Status::ObjectDoesntExist));
    // The refused mutation was not recorded: it is new.
    assert!(rig.write(once(1, 3, 2), b"k", b"v").is_ok());
}

#[test]
fn operations_and_their_verdicts() {
    let mut rig = Rig::small();
    rig.client(1, TERM_NS);
    assert_eq!(rig.read(b""), Err(Status::ObjectDoesntExist));
    assert_eq!(rig.write(once(1, 2, 1), b"", b""), Ok(Version(1)));
    assert_eq!(rig.read(b""), Ok((Version(1), vec![])), "empty keys and values are allowed");
    assert_eq!(rig.write(once(1, 3, 2), b"", b"v"), Ok(Version(2)));
    assert_eq!(rig.read(b""), Ok((Version(2), b"v".to_vec())));

    let mut target = TARGET;
    target.rules.exists = true;
    let request =
        Write { target, once: once(1, 4, 3), key: b"", value: b"w", lifetime: None }.emit();
    for _ in 0..2 {
        let reply = rig.ask(request.clone());
        let refusal = mutation_reply(&reply).unwrap_err();
        assert_eq!((refusal.status, refusal.version), (Status::ObjectExists, Version(2)));
    }
    // A verdict is a result too: it stays the answer though the object is gone.
    let remove = Remove { target: TARGET, once: once(1, 5, 3), key: b"" }.emit();
    assert_eq!(mutation_reply(&rig.ask(remove)), Ok(Version(2)));
    assert_eq!(mutation_reply(&rig.ask(request)).unwrap_err().status, Status::ObjectExists);
    let reply = rig.ask(Read { target, key: b"" }.emit());
    assert_eq!(read_reply(&reply).unwrap_err().status, Status::ObjectDoesntExist);

    let add =
        |rpc, amount| Increment { target: TARGET, once: once(1, rpc, 5), amount, key: b"n" }.emit();
    let reply = rig.ask(add(6, Amount::Integer(-5)));
    assert_eq!(increment_reply(&reply), Ok((Version(3), (-5i64).to_be_bytes())));
    assert_eq!(rig.ask(add(6, Amount::Integer(-5))), reply, "the sum is remembered");
    assert_eq!(rig.read(b"n"), Ok((Version(3), b"-5".to_vec())));
    assert!(rig.write(once(1, 7, 6), b"n", b"1234567").is_ok());
    let refusal = rig.ask(add(8, Amount::Double(1.0)));
    assert_eq!(
        increment_reply(&refusal),
        Ok((Version(5), 1234568f64.to_be_bytes())),
        "text is counted on"
    );
    let half = rig.ask(add(9, Amount::Double(0.5)));
    assert_eq!(increment_reply(&half), Ok((Version(6), 1234568.5f64.to_be_bytes())));
    let refusal = rig.ask(add(10, Amount::Integer(1)));
    assert_eq!(increment_reply(&refusal).unwrap_err().status, Status::NotANumber);
    assert!(rig.write(once(1, 11, 10), b"n", b"9223372036854775807").is_ok());
    let refusal = rig.ask(add(12, Amount::Integer(1)));
    assert_eq!(increment_reply(&refusal).unwrap_err().status, Status::Overflow);
    assert!(rig.write(once(1, 13, 11), b"n", b"0").is_ok());
    assert_eq!(rig.ask(add(12, Amount::Integer(1))), refusal, "a refusal is remembered");
    for (rpc, amount) in [(14, f64::NAN), (15, f64::INFINITY), (16, f64::NEG_INFINITY)] {
        assert_eq!(rig.status(add(rpc, Amount::Double(amount))), Some(Status::NotFinite));
    }
    assert_eq!(rig.read(b"n").unwrap().1, b"0");

    assert_eq!(echo_reply(&rig.ask(Echo(b"hello").emit())), Ok(&b"hello"[..]));
    let stats = rig.ask(Stats.emit());
    let text = core::str::from_utf8(echo_reply(&stats).unwrap()).unwrap();
    assert!(text.starts_with("reads ") && text.contains("\nobjects 1\n"), "{text}");
}

#[test]
fn what_cannot_be_served_says_why() {
    let mut rig = Rig::small();
    rig.client(1, TERM_NS);
    let elsewhere = Target { cluster: 1, ..TARGET };
    assert_eq!(rig.status(Read { target: elsewhere, key: b"" }.emit()), Some(Status::NotInCluster));
    let unknown = Target { table: TableId(8), ..TARGET };
    assert_eq!(rig.status(Read { target: unknown, key: b"" }.emit()), Some(Status::UnknownTablet));
    let long_key = vec![0; MAX_KEY + 1];
    assert_eq!(rig.read(&long_key), Err(Status::KeyTooLong));
    assert_eq!(rig.read(&long_key[1..]), Err(Status::ObjectDoesntExist));
    assert_eq!(rig.write(once(1, 2, 1), &long_key, b""), Err(Status::KeyTooLong));
    assert_eq!(rig.write(once(1, 2, 1), b"", &vec![0; MAX_VALUE + 1]), Err(Status::ValueTooLong));
    assert_eq!(
        rig.write(once(1, 2, 1), b"", &vec![0; 5000]),
        Err(Status::ValueTooLong),
        "small segments"
    );
    assert_eq!(rig.write(once(0, 2, 1), b"", b""), Err(Status::ExpiredLease), "no lease at all");
    assert_eq!(rig.write(once(1, 1, 1), b"", b""), Err(Status::StaleRpc));
    assert_eq!(rig.write(once(1, 514, 1), b"", b""), Err(Status::Retry), "too far ahead");
    assert!(rig.write(once(1, 513, 1), b"", b"").is_ok());
    assert_eq!(rig.status(vec![]), Some(Status::BadFormat));
    assert_eq!(rig.status(vec![1, 2, 0]), Some(Status::BadFormat));
    assert_eq!(rig.status(vec![2, 2, 0, 0]), Some(Status::BadVersion));
    assert_eq!(rig.status(vec![1, 64, 0, 0]), Some(Status::UnknownOpcode));
    assert_eq!(rig.status(vec![1, 99, 0, 0]), Some(Status::UnknownOpcode));

    // What comes too late is not executed.
    let request =
        Write { target: TARGET, once: once(1, 3, 1), key: b"late", value: b"", lifetime: None }
            .emit();
    let caller = Caller { transport: 0, rpc: ServerRpc(0), at: Instant::ZERO };
    let late = rig.now;
    rig.pass(1);
    let reply = crate::testing::request(
        &mut rig.master,
        rig.now,
        caller,
        Payload::Borrowed(&request),
        late,
    )
    .unwrap();
    assert_eq!(reply.bytes, data::head(Status::Retry));
    assert_eq!(rig.read(b"late"), Err(Status::ObjectDoesntExist));
}

#[test]
fn large_values_are_not_copied_and_stay_until_released() {
    let mut rig =
        Rig::serving(Config { log_bytes: 16 << 12, segment_bytes: 1 << 12, ..Config::default() });
    rig.client(1, TERM_NS);
    let value: Vec<u8> = (0..=255).chain(0..=255).collect();
    assert!(rig.write(once(1, 2, 1), b"big", &value).is_ok());
    let caller = Caller { transport: 0, rpc: ServerRpc(0), at: Instant::ZERO };
    let request = Read { target: TARGET, key: b"big" }.emit();
    let message = crate::testing::request(
        &mut rig.master,
        rig.now,
        caller,
        Payload::Borrowed(&request),
        Instant::NEVER,
    )
    .unwrap();
    assert_eq!((message.bytes.len(), message.len()), (12, 12 + value.len()));
    let slice = message.slices[0];
    // The object is overwritten and cleaned away, and the reply still says what it said.
    for n in 0..400u64 {
        let value = [n as u8; 512];
        assert!(rig.write(once(1, 3 + n, 2 + n), b"big", &value).is_ok(), "{n}");
        rig.pass(1);
    }
    assert_eq!(rig.master.bytes(slice), &value[..]);
    assert!(rig.master.cleaner.cleaned() > 20);
    rig.master.released(slice);
    assert_eq!(rig.read(b"big").unwrap().1, [399u64 as u8; 512]);
}

#[test]
fn an_enumeration_lists_everything_once() {
    let mut rig =
        Rig::serving(Config { log_bytes: 16 << 16, segment_bytes: 1 << 16, ..Config::default() });
    rig.client(1, TERM_NS);
    let mut expected = BTreeMap::new();
    for n in 0..300u64 {
        let value = vec![n as u8; if n % 50 == 0 { 9000 } else { n as usize }];
        let version = rig.write(once(1, 2 + n, 1 + n), &n.to_be_bytes(), &value).unwrap();
        expected.insert(n.to_be_bytes().to_vec(), (version, value));
    }
    let mut listed = BTreeMap::new();
    let mut request = Enumerate {
        cluster: CLUSTER,
        table: TABLE,
        first: 0,
        last: u64::MAX,
        cursor: 0,
        limit_bytes: 5000,
    };
    loop {
        let reply = rig.ask(request.emit());
        assert!(reply.len() < 16_000);
        let objects = objects_reply(&reply).unwrap();
        for Listed { key, version, value, lifetime } in objects {
            assert_eq!(lifetime, None);
            assert!(listed.insert(key.to_vec(), (version, value.to_vec())).is_none());
        }
        let Some(next) = objects.next else { break };
        request.cursor = next;
    }
    assert_eq!(listed, expected);
    request.table = TableId(8);
    assert_eq!(rig.status(request.emit()), Some(Status::UnknownTablet));
    let nothing = Enumerate { table: TABLE, first: 5, last: 5, cursor: 0, ..request };
    assert_eq!(objects_reply(&rig.ask(nothing.emit())).unwrap().count(), 0);
}

proptest! {
    /// No request of any bytes makes the master panic, and the master answers every request that it
    /// does not keep.
    #[test]
    fn arbitrary_requests(
        opcode in prop_oneof![0u8..10, 126u8..132],
        rules in 0u8..20,
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut rig = Rig::small();
        rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
        let head = [VERSION, opcode, 0, 0, rules, 0, 0, 0];
        let len = head.len().min(bytes.len());
        bytes[..len].copy_from_slice(&head[..len]);
        if bytes.len() >= 40 {
            bytes[8..16].copy_from_slice(&CLUSTER.to_be_bytes());
            bytes[16..24].copy_from_slice(&TABLE.0.to_be_bytes());
            bytes[32..40].copy_from_slice(&1u64.to_be_bytes());
        }
        let reply = rig.ask(bytes);
        prop_assert!(reply.len() >= 4 && reply[0] == VERSION);
        prop_assert!(Status::from_code(reply[1]).is_some());
    }

    /// No response of the coordinator, however malformed, makes the master panic.
    #[test]
    fn arbitrary_responses(
        tag in 0u64..4,
        mut bytes in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        if bytes.len() > 4 {
            bytes[..4].copy_from_slice(&[VERSION, 0, 0, 0]);
        }
        let mut joining = Rig::new(Config::default());
        joining.master.response(joining.now, tag, Ok(Payload::Borrowed(&bytes)));
        joining.pump();
        let mut rig = Rig::small();
        let waiting = rig.send(&Remove { target: TARGET, once: once(1, 1, 0), key: b"" }.emit());
        let (tag, _) = rig.calls.pop().unwrap();
        rig.master.response(rig.now, tag, Ok(Payload::Borrowed(&bytes)));
        rig.pump();
        prop_assert!(rig.replies.contains_key(&waiting.unwrap_err()));
        rig.pass(10 * SECOND);
    }
}

/// The master loads announced requests ahead once there are more objects than a cache holds;
/// nothing else changes.
#[test]
fn a_burst_is_loaded_before_it_is_executed() {
    let mut rig = Rig::serving(Config::default());
    rig.master.memory.results.extend(LeaseId(3), Instant::NEVER);
    let read = |n: u64| Read { target: TARGET, key: &n.to_be_bytes() }.emit();
    for n in 0..5000u64 {
        if n == 4000 {
            assert!(!rig.master.expects(), "few objects are in the cache");
        }
        let written = rig.write(once(3, n + 1, n), &n.to_be_bytes(), b"value");
        assert_eq!(written, Ok(Version(n + 1)));
    }
    assert!(rig.master.expects());
    for burst in [0..10u64, 4995..5005, 0..100] {
        burst.clone().for_each(|n| rig.master.expect(&read(n)));
        for other in [&b""[..], &[1, 2, 3], &Stats.emit(), &read(1)[..31]] {
            rig.master.expect(other);
        }
        let foreign = Target { table: TableId(8), ..TARGET };
        rig.master.expect(&Read { target: foreign, key: b"key" }.emit());
        assert_eq!(rig.master.burst.len as u64, (burst.end - burst.start).min(64));
        rig.master.prefetch();
        assert_eq!(rig.master.burst.len, 0, "each burst is loaded once");
    }
    assert_eq!(rig.read(b"none").unwrap_err(), Status::ObjectDoesntExist);
    assert_eq!(rig.read(&7u64.to_be_bytes()), Ok((Version(8), b"value".to_vec())));
}
