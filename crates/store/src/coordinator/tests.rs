use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;
use alloc::vec;

use proptest::prelude::*;
use sprat_proto::Rng;
use sprat_proto::rpc::ServerRpc;

use super::durable::FORMAT;
use super::*;

use crate::message::control::{Table as Listed, *};
use crate::types::{HashKey, LeaseId, ServerId, TableId};

/// A server as the coordinator sees it: what it was told to own. Alive, it obeys; dead, it never answers.
#[derive(Default)]
struct Master {
    alive: bool,
    id: ServerId,
    owns: BTreeSet<(TableId, u64, u64)>,
    took: u32,
}

/// A coordinator, its disk, and masters by locator.
struct World {
    coordinator: Coordinator,
    config: Config,
    now: Instant,
    disk: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Persists that the disk has not done yet.
    queue: VecDeque<Output>,
    disk_stalls: bool,
    /// Once it is 0 the disk does nothing any more.
    persists_left: usize,
    /// It takes no writes.
    disk_full: bool,
    /// It is full, once, rather than dead when `persists_left` is 0.
    fills: bool,
    masters: BTreeMap<String, Master>,
    links: BTreeMap<u32, String>,
    replies: BTreeMap<u64, Vec<u8>>,
    asked: u64,
}

fn config() -> Config {
    Config { call_retry_ns: 10 * MS, ..Config::default() }
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
        }
    }

    /// The coordinator's process ends and begins again, with what is on the disk.
    fn restart(&mut self) {
        let pairs: Vec<_> = self.disk.clone().into_iter().collect();
        let rng = Rng::seeded(self.now.as_ns());
        self.coordinator = Coordinator::restore(self.now, self.config.clone(), rng, pairs).unwrap();
        self.queue.clear();
        self.links.clear();
        self.persists_left = usize::MAX;
        self.run();
    }

    /// Everything that can happen now happens.
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

    /// If nothing is on its way to the disk, memory says what the disk says.
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
                    .map(|master| master.request(&message.bytes));
                let result = reply.map(Payload::Owned).ok_or(RpcError::MaybeExecuted);
                self.coordinator.response(self.now, tag, result);
            }
            Output::Reply { caller, message } => {
                self.replies.insert(caller.rpc.0, message.bytes);
            }
            Output::Persist { .. } => self.queue.push_back(output),
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, request: Vec<u8>) -> u64 {
        self.asked += 1;
        let caller = Caller { transport: 0, rpc: ServerRpc(self.asked) };
        let payload = Payload::Owned(request);
        if let Some(message) = self.coordinator.request(self.now, caller, payload, Instant::NEVER) {
            self.replies.insert(self.asked, message.bytes);
        }
        self.run();
        self.asked
    }

    /// The reply to a request that is answered without any time passing.
    fn answer(&mut self, request: Vec<u8>) -> Vec<u8> {
        let asked = self.ask(request);
        self.replies.remove(&asked).expect("an answer")
    }

    /// Time passes; every live server in `renewing` renews in good time.
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
        let nonce = self.asked + 1000;
        let data = ["data:", locator].concat();
        let request = Enlist { nonce, capacity_bytes: 7, control: locator, data: &data };
        let reply = self.answer(request.emit());
        let enlisted = Enlisted::parse(&reply).unwrap();
        let id = enlisted.server;
        let old = self.masters.insert(
            locator.to_string(),
            Master { alive: true, id, owns: BTreeSet::new(), took: 0 },
        );
        assert!(old.is_none_or(|old| old.id != id), "an id was used twice");
        self.run();
        id
    }

    fn renew(&mut self, locator: &str) -> Result<Renewed, Status> {
        let server = self.masters[locator].id;
        let usage = Usage { used_bytes: 1, capacity_bytes: 7, objects: 2 };
        let cluster = self.coordinator.cluster();
        Renewed::parse(&self.answer(RenewServer { cluster, server, usage }.emit()))
    }

    fn create(&mut self, name: &str, span: u32) -> Result<TableId, Status> {
        TableKey::parse(&self.answer(CreateTable { span, name }.emit())).map(|key| key.table)
    }

    fn drop_table(&mut self, name: &str) -> Status {
        outcome(&self.answer(DropTable { table: TableId(0), name }.emit())).unwrap().0
    }

    fn table(&mut self, name: &str) -> Result<TableKey, Status> {
        TableKey::parse(&self.answer(GetTable { name }.emit()))
    }

    /// Owner and state of each tablet.
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
            }
            Ok(Opcode::DropTablet) => {
                let drop = DropTablet::parse(request).unwrap();
                if drop.server != self.id {
                    return failure(Status::NotInCluster, "");
                }
                self.owns.remove(&(drop.table, drop.first, drop.last));
            }
            other => panic!("{other:?}"),
        }
        done()
    }
}

const NORMAL: TabletState = TabletState::Normal;
const LOST: TabletState = TabletState::Lost;

#[test]
fn a_table_is_spread_over_servers_and_forgotten_by_them() {
    let mut w = World::new(config());
    assert_eq!(w.create("a", 1), Err(Status::TooFewServers));
    let (x, y, z) = (w.enlist("x"), w.enlist("y"), w.enlist("z"));
    assert_eq!([x.index, y.index, z.index], [0, 1, 2]);
    let a = w.create("a", 2).unwrap();
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    // Where there are fewest tablets is filled first; more tablets than servers go round.
    let b = w.create("b", 4).unwrap();
    assert_eq!(w.tablets(b).unwrap(), [(z, NORMAL), (x, NORMAL), (y, NORMAL), (z, NORMAL)]);
    assert_eq!(w.masters["x"].owns.len(), 2);
    assert_eq!(w.table("b").unwrap().table, b);
    assert_ne!(w.table("a").unwrap().hash_key, w.table("b").unwrap().hash_key);
    // Again: the same table.
    assert_eq!(w.create("a", 3), Ok(a));

    assert_eq!(w.drop_table("a"), Status::Ok);
    assert_eq!(w.masters["x"].owns.len(), 1);
    assert_eq!(w.drop_table("a"), Status::Ok);
    assert_eq!(w.table("a"), Err(Status::TableDoesntExist));
    assert_eq!(w.tablets(a), Err(Status::TableDoesntExist));
    let again = w.create("a", 1).unwrap();
    assert!(again > b, "an id was used twice");
    // A drop of the table that had the name before leaves this one alone.
    assert_eq!(w.answer(DropTable { table: a, name: "a" }.emit()), done());
    assert_eq!(w.table("a").unwrap().table, again);
}

#[test]
fn nothing_is_said_before_it_is_durable() {
    let mut w = World::new(config());
    w.run();
    w.disk_stalls = true;
    let enlist = w.ask(Enlist { nonce: 1, capacity_bytes: 7, control: "x", data: "d" }.emit());
    assert!(w.replies.is_empty());
    w.persist_one();
    w.run();
    let id = Enlisted::parse(&w.replies[&enlist]).unwrap().server;
    w.masters.insert("x".into(), Master { alive: true, id, ..Master::default() });

    let create = w.ask(CreateTable { span: 1, name: "a" }.emit());
    let look = w.ask(GetTable { name: "b" }.emit());
    assert_eq!(w.masters["x"].took, 0, "called before the table is durable");
    assert!(!w.replies.contains_key(&look), "an answer that rests on what may be forgotten");
    w.persist_one();
    w.run();
    assert!(w.replies.contains_key(&look));
    assert_eq!(w.masters["x"].took, 1);
    assert!(!w.replies.contains_key(&create));
    let early = w.ask(GetTable { name: "a" }.emit());
    w.persist_one();
    w.run();
    assert!(TableKey::parse(&w.replies[&create]).is_ok());
    assert!(TableKey::parse(&w.replies[&early]).is_ok());

    let drop = w.ask(DropTable { table: TableId(0), name: "a" }.emit());
    assert_eq!(w.masters["x"].owns.len(), 1);
    w.persist_one();
    w.run();
    assert!(w.masters["x"].owns.is_empty());
    assert!(!w.replies.contains_key(&drop));
    w.persist_one();
    assert!(w.coordinator.output(w.now).is_some_and(|o| matches!(o, Output::Reply { .. })));
}

#[test]
fn a_silent_server_is_declared_crashed_after_its_term_and_the_margin() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    w.pass(10 * SECOND, &["x", "y"]);
    let last_heard = w.now;
    w.masters.get_mut("y").unwrap().alive = false;
    let patience = w.config.server_term_ns + w.config.server_margin_ns;
    w.pass(patience - 100 * MS, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    w.pass(600 * MS, &["x"]);
    assert!(w.now.since(last_heard) > patience);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    assert_eq!(w.renew("y"), Err(Status::NotInCluster));
    assert_eq!(w.servers(), [(x, ServerState::Up, 1), (y, ServerState::Crashed, 1)]);

    // Its next life is somebody else, who is never asked to serve what is lost.
    let next = w.enlist("y");
    assert_eq!(next, ServerId { index: 2, generation: 1 });
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    assert!(w.masters["y"].owns.is_empty());
    w.restart();
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    let reply = w.answer(ListTables { after: TableId(0) }.emit());
    let page = TablePage::parse(&reply).unwrap();
    assert_eq!(page.tables, [Listed { table: a, tablets: 2, lost: 1, unheard: 1, name: "a" }]);

    // A table with lost tablets can be dropped; the place is free then, for another generation.
    assert_eq!(w.drop_table("a"), Status::Ok);
    assert!(w.masters["x"].owns.is_empty());
    assert_eq!(w.servers(), [(x, ServerState::Up, 0), (next, ServerState::Up, 0)]);
    assert_eq!(w.enlist("z"), ServerId { index: 1, generation: 2 });
}

#[test]
fn enlisting_again_because_the_answer_was_lost_gives_the_same_id() {
    let mut w = World::new(config());
    let enlist = Enlist { nonce: 5, capacity_bytes: 7, control: "x", data: "d" }.emit();
    let first = Enlisted::parse(&w.answer(enlist.clone())).unwrap();
    w.restart();
    assert_eq!(Enlisted::parse(&w.answer(enlist.clone())).unwrap(), first);
    // But not when that life is over.
    let hint = |hint| HintCrashed { cluster: first.cluster, server: first.server, hint }.emit();
    w.answer(hint(Hint::Silent));
    assert_eq!(w.servers().len(), 1);
    w.answer(hint(Hint::Leaving));
    assert_eq!(w.servers(), []);
    assert_eq!(
        Enlisted::parse(&w.answer(enlist)).unwrap().server,
        ServerId { index: 0, generation: 2 }
    );
    let other = HintCrashed { cluster: 1, server: first.server, hint: Hint::Leaving };
    w.answer(other.emit());
    assert_eq!(w.servers().len(), 1);
}

#[test]
fn a_server_that_leaves_in_good_order_is_gone_at_once() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    let cluster = w.coordinator.cluster();
    w.answer(HintCrashed { cluster, server: x, hint: Hint::Leaving }.emit());
    assert_eq!(w.tablets(a).unwrap(), [(x, LOST), (y, NORMAL)]);
}

/// A server that was killed and started again, and a cluster that was ended and started again with its state: the life
/// before had fewer tablets, and a table on it was not created before its lease ended, four seconds later.
#[test]
fn a_table_is_not_put_on_a_life_of_a_server_that_is_over() {
    let mut w = World::new(config());
    let (old, y) = (w.enlist("x"), w.enlist("y"));
    let x = w.enlist("x");
    assert_ne!(x, old);
    let a = w.create("a", 2).unwrap();
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL), (x, NORMAL)]);
    w.restart();
    let (new, y) = (w.enlist("x"), w.enlist("y"));
    let b = w.create("b", 2).unwrap();
    assert_eq!(w.tablets(b).unwrap(), [(new, NORMAL), (y, NORMAL)]);
}

#[test]
fn after_a_restart_servers_have_a_full_term_to_be_heard_of() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    let incarnation = w.coordinator.incarnation();
    // Nobody could renew while the coordinator was down.
    w.now = w.now.after(100 * SECOND);
    // The next coordinator is set to shorter terms, but what was granted counts.
    w.config.server_term_ns = SECOND / 2;
    w.config.server_margin_ns = SECOND / 2;
    // Nor does it help that the one after it learns of shorter terms only.
    w.restart();
    w.restart();
    assert_eq!(w.coordinator.incarnation(), incarnation + 2);
    w.pass(2 * SECOND + 400 * MS, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    assert!(w.create("b", 1).is_ok());
    w.pass(SECOND, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
}

/// After a restart of everything, tables were "complete" for four seconds whose servers had all died, and to create one of
/// them again succeeded without a word.
#[test]
fn after_a_restart_a_table_is_unknown_until_its_servers_are_heard_of() {
    let mut w = World::new(config());
    w.enlist("x");
    w.enlist("y");
    let a = w.create("a", 2).unwrap();
    let unheard = |w: &mut World| {
        let reply = w.answer(ListTables { after: TableId(0) }.emit());
        let table = &TablePage::parse(&reply).unwrap().tables[0];
        (table.lost, table.unheard)
    };
    assert_eq!(unheard(&mut w), (0, 0));
    w.restart();
    assert_eq!(unheard(&mut w), (0, 2));
    assert!(w.renew("x").is_ok());
    assert_eq!(unheard(&mut w), (0, 1));
    assert_eq!(w.create("a", 2), Ok(a));
    w.pass(5 * SECOND, &["x"]);
    assert_eq!(unheard(&mut w), (1, 0));
    assert_eq!(w.create("a", 2), Err(Status::TabletLost));
}

/// A coordinator that was stopped (a laptop asleep, a process under SIGSTOP) finds renewals waiting at its door and must
/// not take servers for dead because it was away.
#[test]
fn a_coordinator_that_was_away_declares_nobody_dead() {
    let mut w = World::new(config());
    let x = w.enlist("x");
    let a = w.create("a", 1).unwrap();
    let lease = w.lease(LeaseId(0)).unwrap().lease;
    w.now = w.now.after(1000 * SECOND);
    while w.coordinator.tick(w.now) {}
    w.run();
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL)]);
    assert!(w.renew("x").is_ok());
    assert!(w.lease(lease).is_ok());
    w.pass(10 * SECOND, &[]);
    assert_eq!(w.tablets(a).unwrap(), [(x, LOST)]);
}

#[test]
fn a_tablet_that_its_server_never_took_is_given_to_another() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    w.masters.get_mut("x").unwrap().alive = false;
    let create = w.ask(CreateTable { span: 2, name: "a" }.emit());
    let again = w.ask(CreateTable { span: 2, name: "a" }.emit());
    assert_eq!(w.table("a"), Err(Status::Retry));
    w.pass(3 * SECOND, &["y"]);
    assert!(!w.replies.contains_key(&create));
    w.pass(2 * SECOND, &["y"]);
    let key = TableKey::parse(&w.replies[&create]).unwrap();
    assert_eq!(TableKey::parse(&w.replies[&again]).unwrap(), key);
    assert_eq!(w.tablets(key.table).unwrap(), [(y, NORMAL), (y, NORMAL)]);
    assert_eq!(w.servers(), [(y, ServerState::Up, 2)]);
    assert_ne!(x, y);
}

#[test]
fn a_table_whose_servers_are_all_gone_waits_for_others() {
    let mut w = World::new(config());
    w.enlist("x");
    w.masters.get_mut("x").unwrap().alive = false;
    let create = w.ask(CreateTable { span: 2, name: "a" }.emit());
    w.pass(5 * SECOND, &[]);
    assert_eq!(TableKey::parse(&w.replies[&create]), Err(Status::TooFewServers));
    w.restart();
    let again = w.ask(CreateTable { span: 2, name: "a" }.emit());
    assert!(!w.replies.contains_key(&again));
    let y = w.enlist("y");
    w.pass(SECOND, &["y"]);
    let key = TableKey::parse(&w.replies[&again]).unwrap();
    assert_eq!(w.tablets(key.table).unwrap(), [(y, NORMAL), (y, NORMAL)]);
}

#[test]
fn a_table_can_be_dropped_while_it_is_created() {
    let mut w = World::new(config());
    w.enlist("x");
    w.masters.get_mut("x").unwrap().alive = false;
    let create = w.ask(CreateTable { span: 1, name: "a" }.emit());
    let drop = w.ask(DropTable { table: TableId(0), name: "a" }.emit());
    assert_eq!(TableKey::parse(&w.replies[&create]), Err(Status::TableDoesntExist));
    assert!(!w.replies.contains_key(&drop));
    w.masters.get_mut("x").unwrap().alive = true;
    let again = w.create("a", 1).unwrap();
    assert_eq!(again, TableId(2));
    w.pass(2 * SECOND, &["x"]);
    assert_eq!(w.replies[&drop], done());
    assert_eq!(w.masters["x"].owns.len(), 1);
    assert_eq!(w.table("a").unwrap().table, again);
}

#[test]
fn the_reply_to_a_drop_waits_until_no_server_can_answer_for_the_table() {
    let mut w = World::new(config());
    w.enlist("x");
    w.enlist("y");
    w.create("a", 2).unwrap();
    w.masters.get_mut("y").unwrap().alive = false;
    let drop = w.ask(DropTable { table: TableId(0), name: "a" }.emit());
    let again = w.ask(DropTable { table: TableId(1), name: "a" }.emit());
    assert_eq!(w.table("a"), Err(Status::TableDoesntExist));
    assert!(w.masters["x"].owns.is_empty());
    assert!(!w.replies.contains_key(&drop));
    w.restart();
    w.pass(5 * SECOND, &["x"]);
    // Those who asked the coordinator's former life have no answer; asking again is answered.
    assert!(!w.replies.contains_key(&again));
    assert_eq!(w.drop_table("a"), Status::Ok);
}

#[test]
fn leases_end_and_never_come_back() {
    let mut w = World::new(config());
    let term = w.config.client_term_ns;
    let a = w.lease(LeaseId(0)).unwrap();
    let b = w.lease(LeaseId(0)).unwrap().lease;
    assert_eq!(a.term_ns, term);
    let a = a.lease;
    assert_eq!(w.check(&[a, b, LeaseId(99)]), [term, term, 0]);
    w.pass(term / 2, &[]);
    assert!(w.lease(a).is_ok());
    w.pass(term / 2, &[]);
    assert_eq!(w.lease(b), Err(Status::ExpiredLease));
    assert_eq!(w.check(&[a, b]), [term / 2, 0]);
    let cluster = w.coordinator.cluster();
    // After a restart nobody knows who renewed when: whoever had not expired has a full term.
    w.restart();
    assert_eq!(w.check(&[a, b]), [term, 0]);
    w.pass(term - SECOND, &[]);
    assert_eq!(w.check(&[a, b]), [SECOND, 0]);
    w.pass(SECOND, &[]);
    assert_eq!(w.check(&[a, b]), [0, 0]);
    w.restart();
    assert_eq!(w.lease(a), Err(Status::ExpiredLease));
    let c = w.lease(LeaseId(0)).unwrap().lease;
    assert!(c > b);
    assert_eq!(w.answer(RenewClient { cluster, lease: c, release: true }.emit()), done());
    assert_eq!(w.answer(RenewClient { cluster, lease: c, release: true }.emit()), done());
    assert_eq!(w.lease(c), Err(Status::ExpiredLease));
    assert_eq!(w.disk.keys().filter(|key| key[0] == b'l').count(), 0);
    let foreign = RenewClient { cluster: cluster ^ 1, lease: a, release: false }.emit();
    assert_eq!(Leased::parse(&w.answer(foreign)), Err(Status::ExpiredLease));
    let foreign = CheckLease { cluster: cluster ^ 1, leases: vec![] }.emit();
    assert_eq!(LeaseTimes::parse(&w.answer(foreign)), Err(Status::NotInCluster));
}

#[test]
fn that_a_lease_has_ended_is_said_only_when_it_is_durable() {
    let mut w = World::new(config());
    let a = w.lease(LeaseId(0)).unwrap().lease;
    w.disk_stalls = true;
    // Not by a tick, but because somebody asks.
    let end = w.now.after(w.config.client_term_ns);
    while w.now < end {
        w.now = w.now.after(100 * MS);
        w.coordinator.notice(w.now);
    }
    let cluster = w.coordinator.cluster();
    let check = w.ask(CheckLease { cluster, leases: vec![a] }.emit());
    let renew = w.ask(RenewClient { cluster, lease: a, release: false }.emit());
    assert!(w.replies.is_empty());
    w.disk_stalls = false;
    w.run();
    assert_eq!(LeaseTimes::parse(&w.replies[&check]).unwrap().valid_ns, [0]);
    assert_eq!(Leased::parse(&w.replies[&renew]), Err(Status::ExpiredLease));
}

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
    let second = Enlist { nonce: 5, capacity_bytes: 7, control: "y", data: "d" };
    assert_eq!(Enlisted::parse(&w.answer(second.emit())), Err(Status::NoSpace));
    let nowhere = Enlist { control: "", ..second.clone() }.emit();
    assert_eq!(Enlisted::parse(&w.answer(nowhere)), Err(Status::BadFormat));
    let long = "l".repeat(MAX_LOCATORS + 1);
    let far = Enlist { data: &long, ..second }.emit();
    assert_eq!(Enlisted::parse(&w.answer(far)), Err(Status::BadFormat));

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
        w.ask(CreateTable { span: 1, name: &i.to_string() }.emit());
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
    let stats = w.answer(vec![1, 8, 0, 0]);
    assert!(core::str::from_utf8(&stats[4..]).unwrap().starts_with("{\"incarnation\":1,"));
    assert_eq!(outcome(&w.answer(vec![1, 2, 0, 0])).unwrap().0, Status::UnknownOpcode);
}

#[test]
fn a_state_that_makes_no_sense_is_refused() {
    let restore = |pairs: &[(&[u8], &[u8])]| {
        let pairs = pairs.iter().map(|(key, value)| (key.to_vec(), value.to_vec()));
        let restored = Coordinator::restore(Instant::ZERO, config(), Rng::seeded(1), pairs);
        restored.map(|_| ()).unwrap_err()
    };
    assert_eq!(restore(&[(b"c", &[0, 9, 1])]), RestoreError::Format(9));
    assert_eq!(restore(&[(b"c", &[0, 1, 1])]), RestoreError::Damaged("cluster record"));
    assert_eq!(restore(&[(b"l\0\0\0\0\0\0\0\x01", &[])]), RestoreError::NoCluster);
    assert_eq!(restore(&[(b"", &[])]), RestoreError::Damaged("key"));
    assert_eq!(restore(&[(b"x", &[])]), RestoreError::Damaged("key"));
    assert_eq!(restore(&[(b"s\0\0\0", &[])]), RestoreError::Damaged("key"));
    assert_eq!(restore(&[(b"s\xff\0\0\0", &[])]), RestoreError::Damaged("server record"));
    assert_eq!(restore(&[(b"t\0\0\0\0\0\0\0\x01", &[])]), RestoreError::Damaged("table"));

    // What parses but cannot have been written.
    let cluster = |next_table| durable::Cluster {
        format: FORMAT,
        id: 9,
        incarnation: 1,
        next_table,
        next_lease: 3,
        server_term_ns: 4,
        client_term_ns: 5,
    };
    let table = |name, last| durable::Table {
        stage: durable::Stage::Ready,
        name,
        hash_key: HashKey([7; 16]),
        tablets: vec![durable::Tablet { first: 0, last, server: ServerId::default() }],
    };
    let bad_cluster = |next_table| restore(&[(b"c", &durable::encode(&cluster(next_table)))]);
    assert_eq!(bad_cluster(u64::MAX), RestoreError::Damaged("cluster record"));
    let c = durable::encode(&cluster(2));
    let lease = Key::Lease(3).emit();
    assert_eq!(restore(&[(b"c", &c), (&lease, &[])]), RestoreError::Damaged("lease"));
    let bad_tables = |tables: &[(u64, durable::Table<'_>)]| {
        let mut pairs = vec![(b"c".to_vec(), c.clone())];
        pairs.extend(
            tables.iter().map(|(id, table)| (Key::Table(*id).emit(), durable::encode(table))),
        );
        let pairs: Vec<_> = pairs.iter().map(|(key, value)| (&key[..], &value[..])).collect();
        restore(&pairs)
    };
    let damaged = RestoreError::Damaged("table");
    assert_eq!(bad_tables(&[(2, table("a", u64::MAX))]), damaged);
    assert_eq!(bad_tables(&[(1, table("a", 7))]), damaged);
    assert_eq!(bad_tables(&[(1, table("", u64::MAX))]), damaged);
    assert_eq!(bad_tables(&[(0, table("a", u64::MAX)), (1, table("a", u64::MAX))]), damaged);
}

/// The bytes on the disk, as docs/formats.md has them.
#[test]
fn golden_state() {
    use super::durable::*;
    let cluster = Cluster {
        format: FORMAT,
        id: 9,
        incarnation: 1,
        next_table: 2,
        next_lease: 3,
        server_term_ns: 4,
        client_term_ns: 5,
    };
    let numbers = [9u64, 1, 2, 3, 4, 5].map(u64::to_be_bytes).concat();
    assert_eq!(encode(&cluster), [vec![0, 1], numbers].concat());
    let server = Server {
        generation: 2,
        place: Place::Crashed,
        nonce: 3,
        capacity_bytes: 4,
        control: "c",
        data: "d",
    };
    let bytes = b"\0\0\0\x02\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\x01c\0\x01d";
    assert_eq!(encode(&server), bytes);
    let table = Table {
        stage: Stage::Dropping,
        name: "a",
        hash_key: HashKey([7; 16]),
        tablets: vec![Tablet { first: 1, last: 2, server: ServerId { index: 3, generation: 4 } }],
    };
    let mut bytes = b"\x02\0\x01a".to_vec();
    bytes.extend([7; 16]);
    bytes.extend(b"\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x03\0\0\0\x04");
    assert_eq!(encode(&table), bytes);
    for (key, bytes) in [
        (Key::Cluster, &b"c"[..]),
        (Key::Server(1), b"s\0\0\0\x01"),
        (Key::Table(1), b"t\0\0\0\0\0\0\0\x01"),
        (Key::Lease(1), b"l\0\0\0\0\0\0\0\x01"),
    ] {
        assert_eq!(key.emit(), bytes);
        assert_eq!(Key::parse(bytes), Ok(key));
    }
}

/// A life of a cluster in which every acknowledged step is held against what the cluster says afterwards; requests that
/// got no answer are repeated.
struct Story {
    w: World,
    /// What was acknowledged.
    tables: BTreeMap<String, TableKey>,
    ids: BTreeSet<TableId>,
    leases: BTreeSet<u64>,
    servers: BTreeSet<ServerId>,
}

impl Story {
    /// Asks until there is an answer that says more than that changes are not written, however often the coordinator must
    /// be started again for that.
    fn insist(&mut self, request: Vec<u8>) -> Vec<u8> {
        for _ in 0..10 {
            let asked = self.w.ask(request.clone());
            if let Some(reply) = self.w.replies.remove(&asked) {
                if !matches!(outcome(&reply).unwrap().0, Status::NotDurable | Status::Unfinished) {
                    return reply;
                }
                assert_eq!(failure_text(&reply), "no room");
                assert!(self.w.disk_full, "the disk has room");
                self.check();
                self.w.disk_full = false;
                // The servers are not heard of in this time, but it is short.
                self.w.pass(300 * MS, &[]);
                continue;
            }
            assert_eq!(self.w.persists_left, 0, "no answer, though the disk works");
            self.w.restart();
            self.check();
        }
        panic!("never answered");
    }

    fn check(&mut self) {
        for (name, key) in self.tables.clone() {
            assert_eq!(self.w.table(&name).as_ref(), Ok(&key), "{name}");
            let owners = self.w.tablets(key.table).unwrap();
            for ((server, state), i) in owners.into_iter().zip(0..) {
                assert_eq!(state, NORMAL);
                let master = self.w.masters.values().find(|master| master.id == server).unwrap();
                assert!(
                    master.owns.iter().any(|owned| owned.0 == key.table),
                    "tablet {i} of {name}"
                );
            }
        }
        for lease in self.leases.clone() {
            assert!(self.w.check(&[LeaseId(lease)])[0] > 0);
        }
    }

    fn live(&mut self) {
        for (nonce, locator) in [(11, "x"), (12, "y")] {
            let enlist = Enlist { nonce, capacity_bytes: 7, control: locator, data: "d" };
            let id = Enlisted::parse(&self.insist(enlist.emit())).unwrap().server;
            assert!(self.servers.insert(id), "two servers have one id");
            self.w.masters.insert(locator.into(), Master { alive: true, id, ..Master::default() });
        }
        for name in ["a", "b", "a"] {
            let reply = self.insist(CreateTable { span: 2, name }.emit());
            let key = TableKey::parse(&reply).unwrap();
            assert!(self.ids.insert(key.table) || self.tables.get(name) == Some(&key));
            self.tables.insert(name.into(), key);
            self.check();
        }
        let lease = Leased::parse(
            &self.insist(RenewClient { cluster: 0, lease: LeaseId(0), release: false }.emit()),
        );
        assert!(self.leases.insert(lease.unwrap().lease.0));
        let key = self.tables.remove("a").unwrap();
        assert_eq!(self.insist(DropTable { table: key.table, name: "a" }.emit()), done());
        assert_eq!(self.w.table("a"), Err(Status::TableDoesntExist));
        let key = TableKey::parse(&self.insist(CreateTable { span: 1, name: "a" }.emit())).unwrap();
        assert!(self.ids.insert(key.table), "an id was used twice");
        self.tables.insert("a".into(), key);
        self.check();
        let owned: usize = self.w.masters.values().map(|master| master.owns.len()).sum();
        assert_eq!(owned, 3, "a server owns what belongs to no table");
    }
}

/// While the disk is full changes are refused with its words, everything else goes on, and nothing of the refused changes is
/// left; with room again they can be made.
#[test]
fn a_full_disk_refuses_changes_and_nothing_else() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    let lease = w.lease(LeaseId(0)).unwrap().lease;
    w.disk_full = true;
    let refused = |w: &mut World, request: Vec<u8>| {
        let reply = w.answer(request);
        assert_eq!(
            (outcome(&reply).unwrap().0, failure_text(&reply)),
            (Status::NotDurable, "no room")
        );
    };
    let drop_a = DropTable { table: TableId(0), name: "a" }.emit();
    let lease_request = RenewClient { cluster: 0, lease: LeaseId(0), release: false }.emit();
    for _ in 0..3 {
        refused(&mut w, CreateTable { span: 1, name: "b" }.emit());
        refused(&mut w, drop_a.clone());
        refused(&mut w, lease_request.clone());
        refused(&mut w, Enlist { nonce: 5, capacity_bytes: 7, control: "z", data: "d" }.emit());
        assert_eq!(w.table("b"), Err(Status::TableDoesntExist));
        assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
        assert!(w.lease(lease).is_ok() && w.renew("x").is_ok());
        assert_eq!(w.create("a", 2), Ok(a), "it exists");
        w.pass(SECOND, &["x", "y"]);
    }
    assert!(w.coordinator.refusals <= 4, "the disk is asked again now and then");
    // A server that dies meanwhile is declared crashed as soon as that can be written.
    w.pass(10 * SECOND, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    w.disk_full = false;
    w.pass(SECOND, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    assert_eq!(w.answer(drop_a), done());
    assert!(w.create("b", 1).is_ok() && w.lease(LeaseId(0)).unwrap().lease > lease);
    assert_eq!(w.masters["x"].owns.len(), 1);
}

/// A write that the disk has not been handed when it refuses the one before may rest on that one.
#[test]
fn what_the_disk_has_not_been_handed_is_given_up_too() {
    let mut w = World::new(config());
    w.enlist("x");
    let before = w.disk.clone();
    let lease = RenewClient { cluster: 0, lease: LeaseId(0), release: false }.emit();
    w.disk_stalls = true;
    let first = w.ask(lease.clone());
    let second = Caller { transport: 0, rpc: ServerRpc(first + 1) };
    let reply = w.coordinator.request(w.now, second, Payload::Owned(lease), Instant::NEVER);
    assert!(reply.is_none(), "it waits for the disk");
    w.disk_full = true;
    w.persist_one();
    (w.disk_full, w.disk_stalls) = (false, false);
    w.run();
    assert!(w.disk == before, "nothing of what was refused is on the disk");
    for asked in [first, first + 1] {
        assert_eq!(outcome(&w.replies[&asked]).unwrap().0, Status::NotDurable);
    }
}

/// A table whose first record is durable and whose second one is not comes to be when there is room; its creator is told.
#[test]
fn a_table_that_is_half_created_is_finished_later() {
    let mut w = World::new(config());
    w.enlist("x");
    w.disk_stalls = true;
    let create = w.ask(CreateTable { span: 1, name: "a" }.emit());
    w.persist_one();
    w.run();
    assert_eq!(w.masters["x"].took, 1);
    (w.disk_full, w.disk_stalls) = (true, false);
    w.run();
    assert_eq!(outcome(&w.replies[&create]).unwrap().0, Status::Unfinished);
    let again = w.answer(CreateTable { span: 1, name: "a" }.emit());
    assert_eq!(outcome(&again).unwrap().0, Status::Unfinished);
    assert_eq!(w.table("a"), Err(Status::Retry));
    w.disk_full = false;
    w.pass(300 * MS, &["x"]);
    assert!(w.table("a").is_ok());
}

/// Each change in turn finds the disk full: it is refused or left unfinished, what was acknowledged holds, and with room
/// again it can be asked for again.
#[test]
fn every_change_may_find_the_disk_full() {
    for before in 1..40 {
        let w = World { persists_left: before, fills: true, ..World::new(config()) };
        let (tables, ids) = (BTreeMap::new(), BTreeSet::new());
        let mut story = Story { w, tables, ids, leases: BTreeSet::new(), servers: BTreeSet::new() };
        story.live();
        if before == 39 {
            assert!(story.w.fills, "the story is longer");
        }
    }
}

/// The disk fails after each change in turn; what was acknowledged holds, and what was not can be asked for again.
#[test]
fn every_acknowledged_change_survives_a_crash_at_any_change() {
    for persists in 0..40 {
        let w = World { persists_left: persists, ..World::new(config()) };
        let (tables, ids) = (BTreeMap::new(), BTreeSet::new());
        let mut story = Story { w, tables, ids, leases: BTreeSet::new(), servers: BTreeSet::new() };
        story.live();
        if persists == 39 {
            assert!(story.w.persists_left > 0 && story.w.persists_left < 39, "the story is longer");
        }
    }
}

proptest! {
    /// Whatever arrives, in whatever order, is answered or waits; nothing panics.
    #[test]
    fn arbitrary_requests(seed: u64, count in 1usize..60) {
        let mut w = World::new(Config { max_servers: 3, max_tables: 4, max_leases: 3, ..config() });
        let mut rng = Rng::seeded(seed);
        for _ in 0..count {
            let cluster = w.coordinator.cluster();
            let (a, b) = (rng.below(4), rng.below(3));
            let server = ServerId { index: a as u32, generation: b as u32 };
            let name = ["a", "b", "c", ""][a as usize];
            let table = TableId(a);
            let usage = Usage { used_bytes: 0, capacity_bytes: 0, objects: 0 };
            let mut request = match rng.below(12) {
                0 => Enlist { nonce: a, capacity_bytes: b, control: "x", data: name }.emit(),
                1 => RenewServer { cluster, server, usage }.emit(),
                2 => RenewClient { cluster, lease: LeaseId(a), release: b == 0 }.emit(),
                3 => CheckLease { cluster, leases: vec![LeaseId(a), LeaseId(b)] }.emit(),
                4 | 5 => CreateTable { span: b as u32, name }.emit(),
                6 => DropTable { table: TableId(b), name }.emit(),
                7 => GetTable { name }.emit(),
                8 => ListTables { after: table }.emit(),
                9 => GetTablets { table }.emit(),
                10 => ListServers { from: a as u32 }.emit(),
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
        prop_assert!(up <= 3 && w.coordinator.leases.len() <= 3 && w.coordinator.tables.by_name.len() <= 4);
        // Tablet counts are what the tables say.
        for (index, slot) in w.coordinator.servers.slots.iter().enumerate() {
            let id = ServerId { index: index as u32, generation: slot.generation };
            let tables = w.coordinator.tables.by_id.values();
            let tablets = tables.flat_map(|table| &table.tablets).filter(|tablet| tablet.server == id).count();
            prop_assert_eq!(tablets as u32, slot.tablets);
        }
    }
}
