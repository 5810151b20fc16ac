//! Audits of replicas: at any time, what the backups have of a master's log gives back its durable
//! objects, and nothing that was removed durably.

use std::collections::{BTreeMap, BTreeSet};

use sprat_proto::wire::checksum::crc32c;
use sprat_sim::World;
use sprat_sim::wire::HostId;
use sprat_store::coordinator::Coordinator;
use sprat_store::master::Master;
use sprat_store::objects::log::Log;
use sprat_store::objects::segment::{Location, Segment, SegmentId};
use sprat_store::recovery::{Crashed, Inventory, Listed, Replay, inventory};
use sprat_store::types::{ServerId, TableId, Version};

use crate::score::Score;

/// An object of a master: its table, key, version and value, and whether it is durable.
type Object = (TableId, Vec<u8>, Version, Vec<u8>, bool);
/// An object, and the segment up to which entries of the log do not count for it.
type Counted = (Object, SegmentId);

/// A replica on a backup, with its bytes.
struct Copy {
    listed: Listed,
    bytes: Vec<u8>,
}

/// The number of audits by result.
#[derive(Debug, Default)]
pub(crate) struct Audits {
    /// The number of logs that were found.
    pub(crate) found: u64,
    /// The number of logs that were not found.
    pub(crate) missing: u64,
    /// The number of objects in the logs that were found.
    pub(crate) objects: u64,
    /// The number of found logs with more than one segment.
    pub(crate) rolled: u64,
    /// The number of outcomes of mutations that the found logs gave back.
    pub(crate) outcomes: u64,
}

/// Audits the log of each server among `hosts` that is up, with each server in turn gone if a
/// segment has more than one replica. If `must_find`, each log with durable entries must be found.
/// Without all backups of its head, a log need not be found, but never without its end.
pub(crate) fn audit(
    world: &mut World<Score>,
    hosts: &[HostId],
    replicas: usize,
    must_find: bool,
    audits: &mut Audits,
) {
    for &host in hosts {
        audit_one(world, hosts, host, &[], must_find, audits);
        for &other in hosts.iter().filter(|&&other| other != host && replicas > 1) {
            audit_one(world, hosts, host, &[other], must_find, audits);
        }
        let of_head = of_head(world, hosts, host);
        audit_one(world, hosts, host, &of_head, false, audits);
    }
}

/// Iterates over the segments of a log that have entries. One that a helper of the cleaner fills
/// has none yet.
fn filled(log: &Log) -> impl Iterator<Item = (SegmentId, &Segment)> {
    log.segments().filter(|(_, segment)| segment.written > 0)
}

/// Returns the hosts that have replicas of the head of `host`'s log.
fn of_head(world: &mut World<Score>, hosts: &[HostId], host: HostId) -> Vec<HostId> {
    let Some(master) = world.state::<Master>(host) else { return Vec::new() };
    let (head, server) = (master.memory().log.tail().segment, master.server());
    let has = |backup: &mut Master| {
        let copies = server.map_or_else(Vec::new, |server| replicas_on(backup, server));
        copies.iter().any(|copy| copy.listed.segment == head)
    };
    hosts.iter().copied().filter(|&other| world.state::<Master>(other).is_some_and(has)).collect()
}

/// Checks that a replay has the durable ones of `objects`, and none newer. There is a replay for
/// each segment up to which entries do not count. Returns the number of the objects.
fn audit_objects(replays: &BTreeMap<SegmentId, Replay>, objects: &[Counted], what: &str) -> u64 {
    for ((table, key, version, value, is_durable), since) in objects {
        let recovered = replays[since].object(*table, key);
        if *is_durable {
            assert_eq!(recovered, Some((*version, &value[..])), "{what}: {table:?} {key:?}");
        }
        assert!(recovered.is_none_or(|(recovered, _)| recovered <= *version));
    }
    objects.len() as u64
}

/// Checks that no object comes back that `host`, which has all of its log in replicas, has removed.
fn audit_removals(
    world: &mut World<Score>,
    host: HostId,
    replay: &Replay,
    objects: &[Counted],
    what: &str,
) {
    let Some(master) = world.state::<Master>(host) else { return };
    let Some(server) = master.server() else { return };
    let mut back = Vec::new();
    for (table, key, version, _) in replay.objects() {
        // The objects of a dropped tablet stay in the log, also if the server gets it again: the
        // replay does not know up to which segment they do not count.
        let Some(hash) = owned_hash(master, table, key) else { continue };
        let known = objects.iter().any(|(object, _)| object.0 == table && object.1 == key);
        if !known {
            back.push((table, hash, version));
        }
    }
    let Some(coordinator) = world.state::<Coordinator>(0) else { return };
    for (table, hash, version) in back {
        let since = coordinator.since(server, table, hash);
        assert!(
            since != Some(SegmentId(0)),
            "{what}: {version:?} of {table:?} {hash:x} came back, since {since:?}"
        );
    }
}

/// Checks that each outcome that `host` remembers is in the replicas of its log, which all of the
/// log is. Returns the number of outcomes. After the end of a client's lease a master may remember
/// some that were acknowledged before, until it asks the coordinator.
fn audit_outcomes(world: &mut World<Score>, host: HostId, replay: &Replay, what: &str) -> u64 {
    let recovered: BTreeMap<_, _> =
        replay.outcomes().map(|(lease, rpc, _, outcome)| ((lease, rpc), outcome)).collect();
    let Some(master) = world.state::<Master>(host) else { return 0 };
    let outcomes: Vec<_> = master.memory().results.outcomes().collect();
    let Some(coordinator) = world.state::<Coordinator>(0) else { return 0 };
    let mut count = 0;
    for (lease, rpc, outcome, _) in outcomes {
        if coordinator.has_lease(lease) {
            assert_eq!(recovered.get(&(lease, rpc)), Some(&outcome), "{what}: {lease:?} {rpc}");
            count += 1;
        }
    }
    count
}

fn audit_one(
    world: &mut World<Score>,
    hosts: &[HostId],
    host: HostId,
    without: &[HostId],
    must_find: bool,
    audits: &mut Audits,
) {
    let Some(master) = world.state::<Master>(host) else { return };
    let (Some(server), Some(cluster)) = (master.server(), master.cluster()) else { return };
    let log = &master.memory().log;
    if log.durable().segment == SegmentId(0) {
        return;
    }
    let (all_durable, objects) = (log.is_all_durable(), objects(master));
    let mut copies = Vec::new();
    for &other in hosts.iter().filter(|&&other| other != host && !without.contains(&other)) {
        let Some(backup) = world.state::<Master>(other) else { continue };
        copies.extend(replicas_on(backup, server));
    }
    let Some(coordinator) = world.state::<Coordinator>(0) else { return };
    let Some((head_segment, head_epoch)) = coordinator.head(server) else { return };
    let crashed = Crashed { cluster, master: server, head_segment, head_epoch };
    let listed: Vec<_> = copies.iter().map(|copy| copy.listed).collect();
    let read = |backup, segment| {
        let of = |copy: &&Copy| (copy.listed.backup, copy.listed.segment) == (backup, segment);
        copies.iter().find(of).map(|copy| &copy.bytes)
    };
    let (at, found) = (world.now(), inventory(crc32c, &crashed, &listed, read));
    let Inventory::Found { segments, .. } = found else {
        assert!(
            !must_find,
            "{at:?}: the log of {server} without {without:?}: {found:?}; {crashed:?}, {listed:#?}"
        );
        audits.missing += 1;
        return;
    };
    audits.found += 1;
    audits.rolled += u64::from(segments.len() > 1);
    let log = &world.state::<Master>(host).expect("it is up").memory().log;
    // What a recovery has replayed, and what the cleaner has copied, is in the log when the digest
    // names it. The open survivor segment is named up to the end that it had then.
    let is_named = |id, end| segments.iter().any(|&(segment, _, len)| segment == id && end == len);
    let all_named = all_durable && filled(log).all(|(id, segment)| is_named(id, segment.written));
    let replay_behind = |since| {
        let mut replay = Replay::new(crc32c);
        for &(segment, backup, len) in &segments {
            let bytes = read(backup, segment).expect("the inventory found it");
            if since == SegmentId(0) || segment > since {
                replay.segment(&bytes[..len as usize]).expect("the inventory found it intact");
            }
        }
        (since, replay)
    };
    let objects = counted(world, host, server, objects);
    let mut sinces: BTreeSet<SegmentId> = objects.iter().map(|(_, since)| *since).collect();
    sinces.insert(SegmentId(0));
    let replays: BTreeMap<SegmentId, Replay> = sinces.into_iter().map(replay_behind).collect();
    let what = format!("{at:?}: {server} without {without:?}");
    audits.objects += audit_objects(&replays, &objects, &what);
    let replay = &replays[&SegmentId(0)];
    if all_named {
        audits.outcomes += audit_outcomes(world, host, replay, &what);
    }
    if all_durable {
        audit_removals(world, host, replay, &objects, &what);
    }
}

/// Returns the objects of a server with the segment up to which entries of its log do not count for
/// each: those may be of a recovery that was given up, and the next one may have found an earlier
/// end of the crashed log.
fn counted(
    world: &mut World<Score>,
    host: HostId,
    server: ServerId,
    objects: Vec<Object>,
) -> Vec<Counted> {
    let Some(master) = world.state::<Master>(host) else { return Vec::new() };
    let hash = |object: &Object| owned_hash(master, object.0, &object.1);
    let hashes: Vec<Option<u64>> = objects.iter().map(hash).collect();
    let Some(coordinator) = world.state::<Coordinator>(0) else { return Vec::new() };
    let since = |(object, hash): (Object, Option<u64>)| {
        let since = hash.and_then(|hash| coordinator.since(server, object.0.base(), hash));
        (object, since.unwrap_or(SegmentId(0)))
    };
    objects.into_iter().zip(hashes).map(since).collect()
}

/// Checks that all servers are up, that each segment of their logs has exactly `replicas` replicas,
/// that no digest names a cleaned segment, and that no frame holds a replica that no log needs.
///
/// # Errors
/// The first difference.
pub(crate) fn whole(
    world: &mut World<Score>,
    hosts: &[HostId],
    replicas: usize,
) -> Result<(), String> {
    let mut servers = Vec::new();
    let mut needed = BTreeMap::new();
    for &host in hosts {
        let master = world.state::<Master>(host).ok_or_else(|| format!("host {host} is down"))?;
        let server = master.server().ok_or_else(|| format!("host {host} has not joined"))?;
        let log = &master.memory().log;
        if !log.is_all_durable() {
            return Err(format!("the log of {server} is not durable"));
        }
        // Lost replicas of a cleaned segment stay lost, and a recovery needs them until the digest
        // has changed.
        if log.lingering() > 0 {
            return Err(format!("the digest of {server} names cleaned segments"));
        }
        servers.push(server);
        needed.extend(filled(log).map(|(segment, _)| ((server, segment), 0)));
    }
    for &host in hosts {
        let Some(backup) = world.state::<Master>(host) else { continue };
        let mut known = 0;
        for &server in &servers {
            for Copy { listed, .. } in replicas_on(backup, server) {
                let count = needed.get_mut(&(server, listed.segment));
                *count.ok_or_else(|| format!("{listed:?} of {server} is not needed"))? += 1;
                known += 1;
            }
        }
        let others = backup.backup().replicas() - known;
        if others > 0 {
            return Err(format!("host {host} has {others} replicas of crashed servers"));
        }
    }
    match needed.into_iter().find(|&(_, count)| count != replicas) {
        Some((segment, count)) => Err(format!("{segment:?} has {count} replicas")),
        None => Ok(()),
    }
}

/// Returns the hash of `key` if a master owns its tablet, and so neither recovers nor sweeps it.
fn owned_hash(master: &Master, table: TableId, key: &[u8]) -> Option<u64> {
    let tablets = &master.memory().tablets;
    let hash = tablets.hash(table, key)?;
    tablets.iter().any(|tablet| tablet.contains(table, hash)).then_some(hash.0)
}

/// Returns the objects of the tablets that a master owns.
fn objects(master: &Master) -> Vec<Object> {
    let memory = master.memory();
    let mut objects = Vec::new();
    let mut next = Some(0);
    while let Some(hash) = next {
        let mut line: Vec<Location> = Vec::new();
        next = memory.table.walk(hash, &mut line);
        for at in line {
            let object = memory.log.object(at);
            if owned_hash(master, object.table, object.key).is_none() {
                continue;
            }
            objects.push((
                object.table,
                object.key.to_vec(),
                object.version,
                object.value.to_vec(),
                memory.log.is_durable(at),
            ));
        }
    }
    objects
}

/// Returns the replicas of a master's log that a backup lists.
pub(crate) fn listed_on(backup: &mut Master, master: ServerId) -> Vec<Listed> {
    replicas_on(backup, master).into_iter().map(|copy| copy.listed).collect()
}

fn replicas_on(backup: &mut Master, master: ServerId) -> Vec<Copy> {
    backup.take_posted();
    let Some(me) = backup.server() else { return Vec::new() };
    let mut copies = Vec::new();
    let mut after = SegmentId(0);
    loop {
        let page = backup.backup().list(master, after);
        for replica in page.replicas {
            after = replica.segment;
            let bytes = backup.backup().bytes(master, replica.segment).unwrap_or_default();
            let (segment, epoch) = (replica.segment, replica.epoch);
            let (len, closed) = (replica.len, replica.closed);
            let listed = Listed { backup: me, segment, epoch, len, closed };
            copies.push(Copy { listed, bytes: bytes.to_vec() });
        }
        if !page.more {
            return copies;
        }
    }
}
