//! Tests of the coordinator with masters that obey or are silent, and a disk, in virtual time.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use sprat_proto::node::machine::{Caller, Link, Machine, Output};
use sprat_proto::rpc::{Payload, RpcError, ServerRpc};
use sprat_proto::time::{MS, SECOND};
use sprat_proto::{Instant, Rng};

use super::durable::{self, Batch, FORMAT, Key, Place};
use super::*;
use crate::durability::Durability;
use crate::durability::TableDurability;
use crate::message::control::{Table as Listed, *};
use crate::message::recovery::Recover;
use crate::message::{Opcode, Status};
use crate::objects::segment::SegmentId;
use crate::site::{MAX_RACK, Role, Site};
use crate::types::{HashKey, KeyHash, LeaseId, ServerId, TableId, Version};

mod disk;
mod heads;
mod heat;
mod leases;
mod migrations;
mod recovery;
mod servers;
mod state;
mod tables;

/// A server with the tablets that the coordinator ordered it to take. Alive, it obeys; dead, it
/// never replies.
#[derive(Default)]
struct Master {
    alive: bool,
    id: ServerId,
    owns: BTreeSet<(TableId, u64, u64)>,
    took: u32,
    /// The durability of each table of which it took or recovered a tablet.
    durability: BTreeMap<TableId, TableDurability>,
    recoverer: recovery::Recoverer,
    accesses: u64,
    /// The last accesses to objects of the server, in a sample.
    sample: Vec<(TableId, KeyHash)>,
}

/// A test's coordinator, its disk, and its masters by locator.
struct World {
    coordinator: Coordinator,
    config: Config,
    now: Instant,
    disk: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The changes that the coordinator has sent and the disk has not written yet.
    queue: VecDeque<Output>,
    disk_stalls: bool,
    /// The number of writes after which the disk does nothing any more.
    persists_left: usize,
    /// True if the disk is full and takes no writes.
    disk_full: bool,
    /// True to make the disk full once, rather than dead, when `persists_left` is 0.
    fills: bool,
    masters: BTreeMap<String, Master>,
    links: BTreeMap<u32, String>,
    replies: BTreeMap<u64, Vec<u8>>,
    asked: u64,
    /// The number of replicas of the logs of servers that enlist.
    replicas: u8,
    /// The site of servers that enlist.
    site: Site<'static>,
    /// The share of calls that fail, in millionths: half of them reach the server.
    failing: u32,
    /// Chooses the calls whose replies come late.
    holds: fn(&[u8]) -> bool,
    /// The share of calls whose replies come late, in millionths: half of them come again.
    late: u32,
    /// The late replies by tag.
    held: Vec<(u64, Option<Vec<u8>>)>,
    seed: Rng,
}

fn config() -> Config {
    Config { call_retry_ns: 10 * MS, ..Config::default() }
}

/// Returns the request to join of a new server without replicas that the coordinator reaches at
/// `control`.
fn joining(nonce: u64, control: &str) -> Enlist<'_> {
    Enlist {
        nonce,
        capacity_bytes: 7,
        replicas: 0,
        durability: Durability::None,
        site: Site::default(),
        cluster: 0,
        replaces: ServerId::default(),
        control,
        data: "d",
    }
}

impl World {
    fn new(config: Config) -> Self {
        let rng = Rng::seeded(1);
        Self {
            coordinator: Coordinator::restore(Instant::ZERO, config.clone(), rng, []).unwrap(),
            config,
            now: Instant::ZERO,
            disk: BTreeMap::new(),
            queue: VecDeque::new(),
            disk_stalls: false,
            persists_left: usize::MAX,
            disk_full: false,
            fills: false,
            masters: BTreeMap::new(),
            links: BTreeMap::new(),
            replies: BTreeMap::new(),
            asked: 0,
            replicas: 0,
            site: Site::default(),
            failing: 0,
            holds: |_| false,
            late: 0,
            held: Vec::new(),
            seed: Rng::seeded(1),
        }
    }

    /// Ends the coordinator's process and starts it again, with the state that is on the disk.
    fn restart(&mut self) {
        let pairs: Vec<_> = self.disk.clone().into_iter().collect();
        let rng = Rng::seeded(self.now.as_ns());
        self.coordinator = Coordinator::restore(self.now, self.config.clone(), rng, pairs).unwrap();
        self.queue.clear();
        self.links.clear();
        self.held.clear();
        self.persists_left = usize::MAX;
        self.run();
    }

    /// Performs every output of the coordinator and every write of the disk that can happen now.
    fn run(&mut self) {
        loop {
            if let Some(output) = self.coordinator.output(self.now) {
                self.perform(output);
            } else if !self.disk_stalls && self.persists_left > 0 && !self.queue.is_empty() {
                self.persist_one();
                if self.persists_left == 0 && core::mem::take(&mut self.fills) {
                    (self.disk_full, self.persists_left) = (true, usize::MAX);
                }
            } else {
                return self.memory_is_durable();
            }
        }
    }

    /// Checks that the coordinator's memory agrees with the disk if no change is on its way to the
    /// disk.
    fn memory_is_durable(&self) {
        let c = &self.coordinator;
        if c.journal.issued != c.journal.safe {
            return;
        }
        let mut batch = Batch::default();
        batch.put(Key::Cluster, &c.cluster);
        for (index, slot) in c.servers.slots.iter().enumerate() {
            batch.put(Key::Server(index as u32), &slot.record());
        }
        c.tables.by_id.iter().for_each(|(id, table)| batch.put(Key::Table(*id), &table.record()));
        (0..c.cluster.next_lease)
            .filter(|id| c.leases.valid_ns(self.now, *id).is_some())
            .for_each(|id| batch.put_empty(Key::Lease(id)));
        // A server says its capacity with each renewal, and the disk keeps what it said first.
        let without_capacity = |(key, mut value): (Vec<u8>, Vec<u8>)| {
            if key[0] == b's' {
                value[13..21].fill(0);
            }
            (key, value)
        };
        let memory: BTreeMap<_, _> = batch.puts.into_iter().map(without_capacity).collect();
        let disk: BTreeMap<_, _> = self.disk.clone().into_iter().map(without_capacity).collect();
        assert!(memory == disk, "memory {memory:?}, disk {disk:?}");
    }

    fn persist_one(&mut self) {
        let Some(Output::Persist { seq, puts, deletes }) = self.queue.pop_front() else { return };
        if self.disk_full {
            self.queue.clear();
            let durable = self.disk.clone().into_iter().collect();
            return self.coordinator.rollback(self.now, "no room", durable);
        }
        self.persists_left -= 1;
        self.disk.extend(puts);
        deletes.iter().for_each(|key| {
            self.disk.remove(key);
        });
        self.coordinator.persisted(self.now, seq);
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::Connect { link, locator } => {
                self.links.insert(link.0, locator);
            }
            Output::Disconnect { link } => {
                self.links.remove(&link.0);
            }
            Output::Call { link, tag, message, .. } => {
                let reply = self
                    .links
                    .get(&link.0)
                    .and_then(|locator| self.masters.get_mut(locator))
                    .filter(|master| master.alive)
                    .filter(|_| self.failing == 0 || !self.seed.chance(self.failing / 2))
                    .map(|master| master.request(&message.bytes))
                    .filter(|_| self.failing == 0 || !self.seed.chance(self.failing / 2));
                let late = self.late > 0 && self.seed.chance(self.late);
                if late || (self.holds)(&message.bytes) {
                    self.held.push((tag, reply.clone()));
                }
                if !(self.holds)(&message.bytes) && (!late || self.seed.chance(500_000)) {
                    self.respond(tag, reply);
                }
            }
            Output::Reply { caller, message } | Output::Counters { caller, message } => {
                self.replies.insert(caller.rpc.0, message.bytes);
            }
            Output::Persist { .. } => self.queue.push_back(output),
            other => panic!("{other:?}"),
        }
    }

    fn respond(&mut self, tag: u64, reply: Option<Vec<u8>>) {
        let result = reply.map(Payload::Owned).ok_or(RpcError::MaybeExecuted);
        self.coordinator.response(self.now, tag, result);
    }

    /// Delivers the late replies.
    fn release(&mut self) {
        for (tag, reply) in core::mem::take(&mut self.held) {
            self.respond(tag, reply);
        }
        self.run();
    }

    fn ask(&mut self, request: Vec<u8>) -> u64 {
        self.asked += 1;
        let caller = Caller { transport: 0, rpc: ServerRpc(self.asked), at: Instant::ZERO };
        let payload = Payload::Owned(request);
        if let Some(message) = crate::testing::request(
            &mut self.coordinator,
            self.now,
            caller,
            payload,
            Instant::NEVER,
        ) {
            self.replies.insert(self.asked, message.bytes);
        }
        self.run();
        self.asked
    }

    /// Sends a request that the coordinator answers without any time passing, and returns the
    /// reply.
    fn answer(&mut self, request: Vec<u8>) -> Vec<u8> {
        let asked = self.ask(request);
        self.replies.remove(&asked).expect("an answer")
    }

    /// Lets time pass. Every live server in `renewing` renews its lease in good time.
    fn pass(&mut self, ns: u64, renewing: &[&str]) {
        let end = self.now.after(ns);
        while self.now < end {
            self.now = self.now.after(100 * MS).min(end);
            for locator in renewing {
                let renewed = self.renew(locator);
                assert!(renewed.is_ok(), "{locator}: {renewed:?}");
            }
            while self.coordinator.tick(self.now) {}
            self.run();
        }
    }

    fn enlist(&mut self, locator: &str) -> ServerId {
        self.enlist_after(locator, (0, ServerId::default()))
    }

    /// A server joins whose disk belongs to a cluster and was used by another server last.
    fn enlist_after(&mut self, locator: &str, (cluster, replaces): (u64, ServerId)) -> ServerId {
        let nonce = self.asked + 1000;
        let data = ["data:", locator].concat();
        let request = Enlist {
            replicas: self.replicas,
            durability: Durability::of(self.replicas.into(), false),
            site: self.site.clone(),
            cluster,
            replaces,
            data: &data,
            ..joining(nonce, locator)
        };
        let reply = self.answer(request.emit());
        let enlisted = Enlisted::parse(&reply).unwrap();
        let id = enlisted.server;
        let old = self
            .masters
            .insert(locator.to_string(), Master { alive: true, id, ..Master::default() });
        assert!(old.is_none_or(|old| old.id != id), "an id was used twice");
        self.run();
        id
    }

    fn renew(&mut self, locator: &str) -> Result<Renewed, Status> {
        let server = self.masters[locator].id;
        let accesses = self.masters[locator].accesses;
        let usage = Usage { used_bytes: 1, capacity_bytes: 7, objects: 2, accesses };
        let cluster = self.coordinator.cluster();
        Renewed::parse(&self.answer(RenewServer { cluster, server, usage }.emit()))
    }

    fn create(&mut self, name: &str, span: u32) -> Result<TableId, Status> {
        self.create_with(name, span, TableDurability::Cluster)
    }

    fn create_with(
        &mut self,
        name: &str,
        span: u32,
        durability: TableDurability,
    ) -> Result<TableId, Status> {
        let reply = self.answer(CreateTable { span, durability, name }.emit());
        TableKey::parse(&reply).map(|key| key.table)
    }

    fn drop_table(&mut self, name: &str) -> Status {
        outcome(&self.answer(DropTable { table: TableId(0), name }.emit())).unwrap().0
    }

    fn table(&mut self, name: &str) -> Result<TableKey, Status> {
        TableKey::parse(&self.answer(GetTable { name }.emit()))
    }

    /// Returns the owner and the state of each tablet of a table.
    fn tablets(&mut self, table: TableId) -> Result<Vec<(ServerId, TabletState)>, Status> {
        let reply = self.answer(GetTablets { table }.emit());
        let tablets = Tablets::parse(&reply)?.tablets;
        let mut next = Some(0);
        for tablet in &tablets {
            assert_eq!(Some(tablet.first), next);
            next = tablet.last.checked_add(1);
        }
        assert_eq!(next, None);
        Ok(tablets.iter().map(|tablet| (tablet.server, tablet.state)).collect())
    }

    fn servers(&mut self) -> Vec<(ServerId, ServerState, u32)> {
        let reply = self.answer(ListServers { from: 0 }.emit());
        let page = ServerPage::parse(&reply).unwrap();
        page.servers.iter().map(|server| (server.server, server.state, server.tablets)).collect()
    }

    fn lease(&mut self, lease: LeaseId) -> Result<Leased, Status> {
        let cluster = if lease.0 == 0 { 0 } else { self.coordinator.cluster() };
        Leased::parse(&self.answer(RenewClient { cluster, lease, release: false }.emit()))
    }

    fn check(&mut self, leases: &[LeaseId]) -> Vec<u64> {
        let cluster = self.coordinator.cluster();
        let reply = self.answer(CheckLease { cluster, leases: leases.to_vec() }.emit());
        LeaseTimes::parse(&reply).unwrap().valid_ns
    }
}

impl Master {
    fn request(&mut self, request: &[u8]) -> Vec<u8> {
        match opcode(request) {
            Ok(Opcode::TakeTablet) => {
                let take = TakeTablet::parse(request).unwrap();
                if take.server != self.id {
                    return failure(Status::NotInCluster, "");
                }
                self.took += 1;
                self.owns.insert((take.table, take.first, take.last));
                self.durability.insert(take.table, take.durability);
            }
            Ok(Opcode::DropTablet) => {
                let drop = DropTablet::parse(request).unwrap();
                if drop.server != self.id {
                    return failure(Status::NotInCluster, "");
                }
                self.owns.remove(&(drop.table, drop.first, drop.last));
            }
            Ok(Opcode::Ping) => {
                if Ping::parse(request).unwrap().server != self.id {
                    return failure(Status::NotInCluster, "");
                }
            }
            Ok(Opcode::Recover) => {
                for part in Recover::parse(request).unwrap().tablets {
                    self.durability.insert(part.table, part.durability);
                }
                return self.recoverer.request(self.id, request);
            }
            Ok(Opcode::HotRange) => return self.hot_range(request),
            _ => return self.recoverer.request(self.id, request),
        }
        done()
    }
}

const NORMAL: TabletState = TabletState::Normal;
const LOST: TabletState = TabletState::Lost;

#[test]
fn limits_are_told_by_their_status() {
    let mut w = World::new(Config {
        max_servers: 1,
        max_tables: 2,
        max_tablets: 3,
        max_leases: 1,
        ..config()
    });
    w.enlist("x");
    let second = joining(5, "y");
    assert_eq!(Enlisted::parse(&w.answer(second.emit())), Err(Status::NoSpace));
    let nowhere = Enlist { control: "", ..second.clone() }.emit();
    assert_eq!(Enlisted::parse(&w.answer(nowhere)), Err(Status::BadFormat));
    let long = "l".repeat(MAX_LOCATORS + 1);
    let far = Enlist { data: &long, ..second.clone() }.emit();
    assert_eq!(Enlisted::parse(&w.answer(far)), Err(Status::BadFormat));
    let site = Site { rack: &long[..MAX_RACK + 1], ..Site::default() };
    let racked = Enlist { site, ..second }.emit();
    assert_eq!(Enlisted::parse(&w.answer(racked)), Err(Status::BadFormat));

    assert_eq!(w.create("", 1), Err(Status::BadName));
    assert_eq!(w.create(&"n".repeat(MAX_NAME + 1), 1), Err(Status::BadName));
    assert_eq!(w.create("a", 0), Err(Status::BadFormat));
    assert_eq!(w.create("a", MAX_SPAN + 1), Err(Status::BadFormat));
    assert_eq!(w.create("a", 4), Err(Status::NoSpace));
    assert!(w.create(&"n".repeat(MAX_NAME), 1).is_ok());
    assert!(w.create("b", 1).is_ok());
    assert_eq!(w.create("c", 1), Err(Status::NoSpace));
    assert!(w.lease(LeaseId(0)).is_ok());
    assert_eq!(w.lease(LeaseId(0)), Err(Status::NoSpace));
    let many = CheckLease { cluster: w.coordinator.cluster(), leases: vec![LeaseId(1); 513] };
    assert_eq!(LeaseTimes::parse(&w.answer(many.emit())), Err(Status::BadFormat));
}

#[test]
fn requests_that_wait_are_limited() {
    let mut w = World::new(Config { max_waiting: 2, ..config() });
    w.enlist("x");
    w.disk_stalls = true;
    for i in 0..10 {
        w.ask(
            CreateTable { span: 1, durability: TableDurability::Cluster, name: &i.to_string() }
                .emit(),
        );
        w.ask(GetTable { name: "?" }.emit());
    }
    assert!(w.coordinator.tables.waiting <= 2);
    assert!(
        w.coordinator.journal.effects.len() <= 2 + 10,
        "replies to 2, and the tables to begin with"
    );
    assert!(w.replies.values().all(|reply| outcome(reply).unwrap().0 == Status::Retry));
    w.disk_stalls = false;
    w.run();
    assert_eq!(w.coordinator.tables.waiting, 0);
    assert!(w.create("9", 1).is_ok());
}

#[test]
fn long_lists_come_in_pages() {
    let mut w = World::new(config());
    for i in 0..300 {
        w.enlist(&i.to_string());
    }
    let mut names = BTreeSet::new();
    for i in 0..300 {
        names.insert(i.to_string());
        w.create(&i.to_string(), 1).unwrap();
    }
    let (mut after, mut found) = (TableId(0), BTreeSet::new());
    loop {
        let reply = w.answer(ListTables { after }.emit());
        let page = TablePage::parse(&reply).unwrap();
        found.extend(page.tables.iter().map(|table| table.name.to_string()));
        after = page.tables.last().map_or(after, |table| table.table);
        if !page.more {
            break;
        }
    }
    assert_eq!(found, names);
    let (mut from, mut servers) = (0, 0);
    loop {
        let reply = w.answer(ListServers { from }.emit());
        let page = ServerPage::parse(&reply).unwrap();
        servers += page.servers.len();
        from = page.next;
        if from == 0 {
            break;
        }
    }
    assert_eq!(servers, 300);
    let reply = w.answer(ListTables { after: TableId(u64::MAX) }.emit());
    assert_eq!(TablePage::parse(&reply).unwrap().tables, []);
}

#[test]
fn echo_and_stats_answer_too() {
    let mut w = World::new(config());
    assert_eq!(w.answer(vec![1, 1, 0, 0, 7, 8]), [1, 0, 0, 0, 7, 8]);
    assert_eq!(w.answer(vec![1, 8, 0, 0]), [1, 0, 0, 0], "the node writes the counters behind it");
    assert!(w.coordinator.counters().contains(&("incarnation".into(), 1)));
    assert_eq!(outcome(&w.answer(vec![1, 2, 0, 0])).unwrap().0, Status::UnknownOpcode);
}

proptest! {
    /// The coordinator answers or keeps any requests in any order; nothing panics.
    #[test]
    fn arbitrary_requests(seed: u64, count in 1usize..60) {
        let mut w = World::new(Config { max_servers: 3, max_tables: 4, max_leases: 3, ..config() });
        let mut rng = Rng::seeded(seed);
        for _ in 0..count {
            let cluster = w.coordinator.cluster();
            let (a, b) = (rng.below(4), rng.below(3));
            let server = ServerId { index: a as u32, generation: b as u32 };
            let name = ["a", "b", "c", ""][a as usize];
            let (table, durability) = (TableId(a), TableDurability::ALL[usize::from(a == 1)]);
            let usage = Usage::default();
            let mut request = match rng.below(13) {
                0 => {
                    let (capacity_bytes, data, replaces) = (b, name, server);
                    Enlist { capacity_bytes, cluster, replaces, data, ..joining(a, "x") }.emit()
                }
                1 => RenewServer { cluster, server, usage }.emit(),
                2 => RenewClient { cluster, lease: LeaseId(a), release: b == 0 }.emit(),
                3 => CheckLease { cluster, leases: vec![LeaseId(a), LeaseId(b)] }.emit(),
                4 | 5 => CreateTable { span: b as u32, durability, name }.emit(),
                6 => DropTable { table: TableId(b), name }.emit(),
                7 => GetTable { name }.emit(),
                8 => ListTables { after: table }.emit(),
                9 => GetTablets { table }.emit(),
                10 => ListServers { from: a as u32 }.emit(),
                11 => {
                    let (segment, epoch) = (SegmentId(rng.below(4) as u32), rng.below(4) as u32);
                    SetHead { cluster, server, segment, epoch }.emit()
                }
                _ => HintCrashed { cluster, server, hint: Hint::Leaving }.emit(),
            };
            if rng.chance(100_000) {
                let at = rng.below(request.len() as u64) as usize;
                request[at] ^= rng.u32() as u8;
            }
            w.ask(request);
            w.masters.entry("x".into()).or_default().alive = rng.chance(800_000);
            w.masters.entry("x".into()).or_default().id = server;
            if rng.chance(300_000) {
                w.pass(rng.below(3 * SECOND), &[]);
            }
            w.disk_full = rng.chance(if w.disk_full { 700_000 } else { 100_000 });
            if rng.chance(50_000) {
                w.disk_full = false;
                w.restart();
            }
        }
        let up = w.coordinator.servers.slots.iter().filter(|slot| slot.place == Place::Up).count();
        let (leases, tables) = (&w.coordinator.leases, &w.coordinator.tables);
        prop_assert!(up <= 3 && leases.len() <= 3 && tables.by_name.len() <= 4);
        // Tablet counts are what the tables say.
        for (index, slot) in w.coordinator.servers.slots.iter().enumerate() {
            let id = ServerId { index: index as u32, generation: slot.generation };
            let tables = w.coordinator.tables.by_id.values();
            let tablets = tables.flat_map(|table| &table.tablets);
            let tablets = tablets.filter(|tablet| tablet.server == id).count();
            prop_assert_eq!(tablets as u32, slot.tablets);
        }
    }
}
