//! Tests of recoveries with a fake cluster: servers that list, read, recover and free.

use sprat_proto::wire::checksum::crc32c;

use super::*;
use crate::message::migration::Migrate;
use crate::message::recovery::*;
use crate::objects::entry::{self, DIGESTED, HEADER, Header};

mod faults;
mod lists;
mod loss;
mod masters;
mod random;

/// A replica on a server: epoch, closed, and its bytes.
pub(super) type Stored = (u32, bool, Vec<u8>);

/// A server's part in recoveries.
#[derive(Default)]
pub(super) struct Recoverer {
    replicas: BTreeMap<(ServerId, SegmentId), Stored>,
    fenced: BTreeSet<ServerId>,
    /// The last order, by number.
    order: Option<(u64, Ended)>,
    /// The last migration that the server was ordered to make: its number, source and range.
    pub(super) migration: Option<(u64, ServerId, u64, u64)>,
    /// True to reply that the server is busy.
    busy: bool,
}

/// An order, as a master keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ended {
    crashed: ServerId,
    tablets: Vec<Range>,
    since: Vec<u32>,
    floors: Vec<u64>,
    segments: Vec<(u32, u32, usize)>,
}

impl Recoverer {
    /// Returns the reply of the server `me` to a call of a recovery.
    pub(super) fn request(&mut self, me: ServerId, request: &[u8]) -> Vec<u8> {
        match opcode(request).unwrap() {
            Opcode::ListReplicas => {
                let list = ListReplicas::parse(request).unwrap();
                if list.backup != me {
                    return failure(Status::NotInCluster, "");
                }
                self.fenced.insert(list.master);
                let of_master = self
                    .replicas
                    .iter()
                    .filter(|((master, id), _)| *master == list.master && *id > list.after);
                let mut all = of_master.map(|(&(_, segment), (epoch, closed, bytes))| Replica {
                    segment,
                    epoch: *epoch,
                    len: bytes.len() as u32,
                    closed: *closed,
                });
                // Pages are small, so that short logs need several.
                let replicas = all.by_ref().take(2).collect();
                ReplicaPage { more: all.next().is_some(), replicas }.emit()
            }
            Opcode::ReadReplica => {
                let read = ReadReplica::parse(request).unwrap();
                let replica = self.replicas.get(&(read.master, read.segment));
                replica.map_or_else(
                    || failure(Status::NoReplica, ""),
                    |(.., bytes)| {
                        let rest = &bytes[read.offset as usize..];
                        [done(), rest[..rest.len().min(read.len as usize)].to_vec()].concat()
                    },
                )
            }
            Opcode::Recover => {
                let order = Recover::parse(request).unwrap();
                if order.server != me {
                    return failure(Status::NotInCluster, "");
                }
                if self.busy {
                    return failure(Status::Retry, "");
                }
                let range = |p: &Part| Range { table: p.table, first: p.first, last: p.last };
                let ended = Ended {
                    crashed: order.crashed,
                    tablets: order.tablets.iter().map(range).collect(),
                    since: order.tablets.iter().map(|part| part.since.0).collect(),
                    floors: order.tablets.iter().map(|part| part.floor.0).collect(),
                    segments: order
                        .segments
                        .iter()
                        .map(|piece| (piece.segment.0, piece.len, piece.on.len()))
                        .collect(),
                };
                if self.order.as_ref().is_none_or(|(number, _)| *number < order.recovery) {
                    self.order = Some((order.recovery, ended));
                }
                Recovering { replayed: 1 }.emit()
            }
            Opcode::Migrate => self.migrate(me, &Migrate::parse(request).unwrap()),
            Opcode::FreeReplicas => {
                let free = FreeReplicas::parse(request).unwrap();
                assert!(self.fenced.contains(&free.master), "freed before the fence");
                self.replicas.retain(|(master, _), _| *master != free.master);
                done()
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Recoverer {
    fn migrate(&mut self, me: ServerId, order: &Migrate<'_>) -> Vec<u8> {
        assert_eq!(order.server, me);
        let Part { first, last, .. } = order.part;
        self.migration = Some((order.migration, order.source, first, last));
        Recovering { replayed: 1 }.emit()
    }
}

/// Returns the bytes of a segment: its header, and a digest if it names segments.
fn segment(cluster: u64, server: ServerId, id: u32, digest: Option<&[(u32, u32)]>) -> Vec<u8> {
    let header = Header {
        cluster,
        server,
        segment: SegmentId(id),
        capacity: 4096,
        safe_version: Version(1),
    };
    let mut bytes = vec![0; HEADER];
    entry::put_header(&mut bytes, &header);
    entry::seal(crc32c, 0, &mut bytes).unwrap();
    if let Some(named) = digest {
        let seed = u32::from_be_bytes(bytes[4..8].try_into().unwrap());
        bytes.resize(HEADER + 8 + named.len() * DIGESTED, 0);
        let named = named.iter().map(|&(id, len)| (SegmentId(id), len));
        entry::put_digest(&mut bytes[HEADER..], named);
        entry::seal(crc32c, seed, &mut bytes[HEADER..]).unwrap();
    }
    bytes
}

impl World {
    /// A server joins whose log has replicas.
    fn join(&mut self, locator: &str) -> ServerId {
        self.replicas = 1;
        let id = self.enlist(locator);
        self.replicas = 0;
        id
    }

    /// Puts a replica of a master's segment on a server.
    fn put(&mut self, on: &str, master: ServerId, id: u32, named: Option<&[(u32, u32)]>) {
        let bytes = segment(self.coordinator.cluster(), master, id, named);
        let replicas = &mut self.masters.get_mut(on).unwrap().recoverer.replicas;
        replicas.insert((master, SegmentId(id)), (1, named.is_none(), bytes));
    }

    /// Puts bytes behind those of a replica.
    fn extend(&mut self, on: &str, master: ServerId, id: u32, bytes: &[u8]) {
        let replicas = &mut self.masters.get_mut(on).unwrap().recoverer.replicas;
        replicas.get_mut(&(master, SegmentId(id))).unwrap().2.extend_from_slice(bytes);
    }

    /// Puts a log of two segments on a server.
    fn put_log(&mut self, on: &str, master: ServerId) {
        self.put(on, master, 1, None);
        self.put(on, master, 2, Some(&[(1, HEADER as u32)]));
    }

    fn leave(&mut self, server: ServerId) {
        let cluster = self.coordinator.cluster();
        self.masters.values_mut().filter(|m| m.id == server).for_each(|m| m.alive = false);
        self.ask(HintCrashed { cluster, server, hint: Hint::Leaving }.emit());
    }

    /// Returns for each server the reason why its recovery is blocked.
    fn blocked(&mut self) -> Vec<String> {
        let reply = self.answer(ListServers { from: 0 }.emit());
        let page = ServerPage::parse(&reply).unwrap();
        page.servers.iter().map(|server| server.blocked.to_string()).collect()
    }

    fn order(&self, on: &str) -> Option<(u64, Ended)> {
        self.masters[on].recoverer.order.clone()
    }

    /// The server reports the end of its last order.
    fn end_request(&self, on: &str, ending: Ending, since: u32) -> Vec<u8> {
        let (recovery, Ended { crashed, tablets, .. }) = self.order(on).unwrap();
        let (cluster, server) = (self.coordinator.cluster(), self.masters[on].id);
        let since = SegmentId(since);
        RecoveryEnded {
            cluster,
            recovery,
            server,
            crashed,
            ending,
            since,
            replayed: 0,
            tablets,
            damaged: Vec::new(),
        }
        .emit()
    }

    fn end(&mut self, on: &str, ending: Ending, since: u32) -> Status {
        let request = self.end_request(on, ending, since);
        outcome(&self.answer(request)).unwrap().0
    }
}

const RECOVERING: TabletState = TabletState::Recovering;

/// Server x crashes and leaves one table. Server y has the replicas.
fn crashed() -> (World, ServerId, ServerId, TableId) {
    let mut w = World::new(config());
    let x = w.join("x");
    let a = w.create("a", 1).unwrap();
    let y = w.join("y");
    w.put_log("y", x);
    w.leave(x);
    (w, x, y, a)
}

#[test]
fn a_crashed_servers_tablets_are_recovered_and_its_replicas_freed() {
    let (mut w, x, y, a) = crashed();
    assert_eq!(w.tablets(a).unwrap(), [(x, RECOVERING)]);
    assert_eq!(w.create("a", 1), Ok(a), "clients wait at the tablets");
    assert_eq!(w.servers(), [(x, ServerState::Recovering, 1), (y, ServerState::Up, 0)]);
    let page = w.answer(ListTables { after: TableId(0) }.emit());
    let page = TablePage::parse(&page).unwrap();
    assert_eq!((page.tables[0].lost, page.tables[0].recovering), (0, 1));
    let (number, order) = w.order("y").unwrap();
    assert_eq!(number >> 32, 1);
    let tablets = vec![Range { table: a, first: 0, last: u64::MAX }];
    let (head, one) = ((HEADER + 8 + DIGESTED) as u32, HEADER as u32);
    let segments = vec![(1, one, 1), (2, head, 1)];
    assert_eq!(order, Ended { crashed: x, tablets, since: vec![0], floors: vec![0], segments });

    // The reply and the order to free wait for the disk.
    w.disk_stalls = true;
    let request = w.end_request("y", Ending::Done, 9);
    let asked = w.ask(request);
    assert!(!w.replies.contains_key(&asked));
    assert_eq!(w.masters["y"].recoverer.replicas.len(), 2, "freed too early");
    w.disk_stalls = false;
    w.run();
    assert_eq!(w.replies[&asked], done());
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)]);
    assert_eq!(w.masters["y"].recoverer.replicas.len(), 0);
    assert_eq!(w.servers(), [(y, ServerState::Up, 1)]);
    assert_eq!(w.coordinator.recoveries.counts(), (0, 0, 1));
    // The reply was lost: the map has the answer, after a restart too.
    assert_eq!(w.end("y", Ending::Done, 9), Status::Ok);
    w.restart();
    assert_eq!(w.end("y", Ending::Done, 9), Status::Ok);
    assert_eq!(w.end("y", Ending::Done, 8), Status::NoRecovery);
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)]);
}

#[test]
fn a_server_without_tablets_keeps_its_place_until_its_replicas_are_freed() {
    let mut w = World::new(config());
    let (x, y) = (w.join("x"), w.join("y"));
    w.put_log("y", x);
    w.masters.get_mut("y").unwrap().alive = false;
    w.leave(x);
    assert_eq!(w.servers(), [(x, ServerState::Recovering, 0), (y, ServerState::Up, 0)]);
    w.restart();
    assert_eq!(w.servers()[0], (x, ServerState::Recovering, 0));
    w.masters.get_mut("y").unwrap().alive = true;
    w.pass(3 * SECOND, &["y"]);
    assert_eq!(w.servers(), [(y, ServerState::Up, 0)]);
    assert!(w.masters["y"].recoverer.replicas.is_empty());
}

#[test]
fn a_log_is_divided_among_masters() {
    let mut w = World::new(config());
    let x = w.join("x");
    let a = w.create("a", 1).unwrap();
    let (y, z) = (w.join("y"), w.join("z"));
    w.put("y", x, 1, None);
    w.put("y", x, 2, Some(&[(1, HEADER as u32)]));
    // The digest names more bytes than one master replays fast; the list agrees.
    let big = 48 << 20;
    w.put("y", x, 2, Some(&[(1, big)]));
    let replicas = &mut w.masters.get_mut("y").unwrap().recoverer.replicas;
    replicas.get_mut(&(x, SegmentId(1))).unwrap().2.resize(big as usize, 0);
    w.leave(x);
    let half = 1 << 63;
    let tablets = |w: &World, on| w.order(on).unwrap().1.tablets;
    let (low, high) = (
        Range { table: a, first: 0, last: half - 1 },
        Range { table: a, first: half, last: u64::MAX },
    );
    assert_eq!((tablets(&w, "y"), tablets(&w, "z")), (vec![low], vec![high]));
    assert_eq!(w.end("z", Ending::Done, 5), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(x, RECOVERING), (z, NORMAL)]);
    assert_eq!(w.masters["y"].recoverer.replicas.len(), 2);
    assert_eq!(w.end("y", Ending::Done, 6), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL), (z, NORMAL)]);
    // The tablets of the second crash have the sinces of the first recovery.
    w.put_log("z", y);
    w.leave(y);
    let (_, order) = w.order("z").unwrap();
    assert_eq!((order.crashed, order.since), (y, vec![6]));
}

#[test]
fn a_table_keeps_its_durability() {
    let mut w = World::new(config());
    w.enlist("w");
    let refused = w.create_with("a", 1, TableDurability::Async);
    assert_eq!(refused, Err(Status::BadFormat), "the cluster has no replicas");
    w.leave(w.masters["w"].id);
    let x = w.join("x");
    let a = w.create_with("a", 1, TableDurability::Async).unwrap();
    let b = w.create("b", 1).unwrap();
    let wanted = [(a, TableDurability::Async), (b, TableDurability::Cluster)];
    assert_eq!(w.masters["x"].durability, wanted.into());
    assert_eq!(w.create("a", 1), Ok(a), "it exists");
    w.restart();
    let page = w.answer(ListTables { after: TableId(0) }.emit());
    let tables = TablePage::parse(&page).unwrap().tables;
    assert_eq!(tables.iter().map(|t| (t.table, t.durability)).collect::<Vec<_>>(), wanted);
    w.pass(SECOND, &["x"]);
    w.join("y");
    w.put_log("y", x);
    w.leave(x);
    assert_eq!(w.masters["y"].durability, wanted.into(), "the order of the recovery");
}
