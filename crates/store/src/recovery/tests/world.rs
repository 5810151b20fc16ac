//! A master's memory whose log is replicated on two backups, piece by piece and at random, while
//! the cleaner works. At any time, whatever either backup has must give all that was durable, and
//! nothing but what the log said at the place where the replica of its head ends.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::crc32c;
use sprat_proto::{Instant, Rng};

use super::{CLUSTER, LEASE, MASTER, TABLE};
use crate::backup::{Backup, MemoryFrames};
use crate::durability::TableDurability;
use crate::message::Status;
use crate::message::data::{Once, RejectRules, Target};
use crate::message::replica::{self, WriteReplica};
use crate::objects::cleaner::Cleaner;
use crate::objects::cleaner::{Late, Worth};
use crate::objects::entry::{Head, Outcome};
use crate::objects::log::Log;
use crate::objects::memory::Memory;
use crate::objects::mutate::{Change, Mutation};
use crate::objects::segment::{Position, SegmentId, State};
use crate::objects::tablet::Tablet;
use crate::recovery::{Crashed, Inventory, Listed, Replay, inventory};
use crate::types::{HashKey, ServerId, Version, WallTime};

mod heir;

const SEGMENT: u32 = 4096;
const BACKUPS: usize = 2;

/// The objects and outcomes of a master after some of its mutations.
#[derive(Clone, Default)]
struct Contents {
    objects: BTreeMap<Vec<u8>, (Version, Vec<u8>)>,
    /// The highest version that a key ever had.
    highest: BTreeMap<Vec<u8>, Version>,
    /// The outcomes of mutations by number, with the old values for the replies.
    outcomes: BTreeMap<u64, (Outcome, Vec<u8>)>,
}

/// A mutation that was executed.
struct Step {
    /// The end of the log after the mutation.
    end: Position,
    rpc: u64,
    outcome: Outcome,
    /// The old value for the reply.
    old: Vec<u8>,
    key: Vec<u8>,
    /// The object after the mutation, unless the mutation did not change it.
    after: Option<Option<Vec<u8>>>,
}

impl Contents {
    fn apply(&mut self, step: &Step) {
        self.outcomes.insert(step.rpc, (step.outcome, step.old.clone()));
        match &step.after {
            None => {}
            Some(None) => _ = self.objects.remove(&step.key),
            Some(Some(value)) => {
                let version = step.outcome.version;
                let highest = self.highest.insert(step.key.clone(), version);
                assert!(highest.is_none_or(|highest| highest < version));
                self.objects.insert(step.key.clone(), (version, value.clone()));
            }
        }
    }
}

/// A segment of which replicas are written.
struct Written {
    id: SegmentId,
    front: u32,
    /// The number of bytes that each backup has, 0 before it has opened the replica.
    lens: [u32; BACKUPS],
    closed: [bool; BACKUPS],
}

impl Written {
    fn least(&self) -> u32 {
        self.lens.into_iter().min().unwrap()
    }

    fn is_closed(&self) -> bool {
        self.closed == [true; BACKUPS]
    }
}

/// A segment of a log: its id and bytes.
type Bytes = (SegmentId, Vec<u8>);

struct World {
    rng: Rng,
    memory: Memory,
    cleaner: Cleaner,
    backups: Vec<Backup>,
    /// The heads that are not closed on all backups, in order.
    heads: VecDeque<Written>,
    survivors: Vec<Written>,
    /// The replicas to free, and their backups.
    frees: Vec<(usize, SegmentId)>,
    freed: usize,
    durable: Contents,
    /// The mutations that are not durable.
    steps: VecDeque<Step>,
    rpc: u64,
    ack: u64,
    /// The segment up to which the log's entries do not count.
    since: SegmentId,
}

fn backup_id(index: usize) -> ServerId {
    ServerId { index: 10 + index as u32, generation: 1 }
}

/// Returns the end of the last entry of a segment that ends at most at `most`. One ends at `from`.
fn end_of_entries(bytes: &[u8], from: u32, most: u32) -> u32 {
    let mut end = from;
    while let Some(head) = Head::of(&bytes[end as usize..])
        && end + head.entry_len() as u32 <= most
    {
        end += head.entry_len() as u32;
    }
    end
}

impl World {
    fn new(seed: u64, segments: u64) -> Self {
        let mut log = Log::new(segments * u64::from(SEGMENT), SEGMENT, crc32c, true);
        log.set_server(CLUSTER, MASTER);
        log.sort_from(12);
        let mut memory = Memory::new(log);
        let all = Tablet { table: TABLE, first: 0, last: u64::MAX };
        memory.tablets.take(all, HashKey([1; 16]), TableDurability::Cluster).unwrap();
        memory.results.extend(LEASE, Instant::NEVER);
        let frames = || Box::new(MemoryFrames::new(1 << 24, SEGMENT));
        let mut cleaner = Cleaner::default();
        if !seed.is_multiple_of(2) {
            cleaner.help(
                Box::new(Late::new(Rng::seeded(seed), [4, 30][seed as usize / 2 % 2])),
                Worth::default(),
            );
        }
        Self {
            rng: Rng::seeded(seed),
            memory,
            cleaner,
            backups: (0..BACKUPS).map(|_| Backup::new(frames(), crc32c, 0)).collect(),
            heads: VecDeque::new(),
            survivors: Vec::new(),
            frees: Vec::new(),
            freed: 0,
            durable: Contents::default(),
            steps: VecDeque::new(),
            rpc: 0,
            ack: 0,
            since: SegmentId(0),
        }
    }

    // The master.

    /// Executes a mutation. Returns false if memory is full.
    fn mutate(&mut self, key: &[u8], rules: RejectRules, change: Change<'_>) -> bool {
        self.rpc += 1;
        let once = Once { lease: LEASE, rpc: self.rpc, ack: self.ack };
        let Memory { results, log, .. } = &mut self.memory;
        _ = results.check(Instant::ZERO, once, |at| log.dead_record(at));
        let target = Target { table: TABLE, rules, ..Target::default() };
        let hash = self.memory.tablets.locate(TABLE, key).unwrap();
        let mutation = Mutation { target, once, key, hash, change, wall: WallTime(0) };
        for _ in 0..100 {
            let before = self.memory.find(TABLE, hash, key);
            let before = before.map(|(_, at)| self.memory.log.object(at).value.to_vec());
            match self.memory.mutate(&mutation) {
                Ok(outcome) => {
                    let is_swap = outcome.sum.is_some();
                    let old = before.filter(|_| is_swap).unwrap_or_default();
                    let after = match change {
                        _ if outcome.status != Status::Ok => None,
                        Change::Write(value, _) | Change::Swap(value, _) => {
                            Some(Some(value.to_vec()))
                        }
                        Change::Remove => Some(None),
                        Change::Add(_) | Change::Append(_) | Change::Touch(_) => {
                            panic!("not in this test")
                        }
                    };
                    let (end, rpc, key) = (self.memory.log.tail(), self.rpc, key.to_vec());
                    self.steps.push_back(Step { end, rpc, outcome, old, key, after });
                    return true;
                }
                Err(Status::Retry) => {
                    self.replicate_all();
                    self.memory.log.change_digest();
                    self.replicate_all();
                    self.cleaner.step(&mut self.memory, 2000);
                }
                Err(Status::NoSpace) => return false,
                Err(status) => panic!("{status:?}"),
            }
        }
        false
    }

    fn random_mutation(&mut self, keys: u64, max_value: u64) -> bool {
        let n = self.rng.below(keys);
        let key = vec![n as u8; 1 + (n % 40) as usize];
        let key = [&n.to_be_bytes()[7 - (n % 8) as usize..], &key].concat();
        let mut value = vec![0; self.rng.below(max_value) as usize];
        self.rng.fill(&mut value);
        let exists = self.rng.chance(100_000);
        let rules = RejectRules { exists, ..RejectRules::default() };
        let change = match self.rng.below(10) {
            0..4 => Change::Write(&value, None),
            4..6 => Change::Swap(&value, None),
            _ => Change::Remove,
        };
        self.mutate(&key, rules, change)
    }

    /// Removes all objects, which must be possible however full memory is.
    fn empty(&mut self) {
        self.ack = self.rpc;
        let keys: Vec<_> = self.durable.objects.keys().cloned().collect();
        for key in keys {
            assert!(self.mutate(&key, RejectRules::default(), Change::Remove), "{key:?}");
            self.ack = self.rpc;
        }
        self.replicate_all();
        assert!(self.durable.objects.is_empty());
    }

    // The replicas.

    /// Returns the bytes of a segment of the log with their checksums, unless its memory is free.
    fn bytes(&mut self, id: SegmentId) -> Option<Vec<u8>> {
        let slot = self.memory.log.slot(id)?;
        self.memory.log.seal(slot);
        let segment = &self.memory.log.slots()[slot as usize];
        assert_eq!(segment.sealed, segment.written, "all entries are well-formed");
        Some(segment.bytes[..segment.written as usize].to_vec())
    }

    /// Sends the bytes of `written` up to `to` to a backup, in one write.
    fn send(&mut self, on: usize, written: &mut Written, bytes: &[u8], to: u32, close: bool) {
        let from = written.lens[on];
        let target = replica::Target {
            cluster: CLUSTER,
            backup: backup_id(on),
            master: MASTER,
            segment: written.id,
        };
        let data = bytes.get(from as usize..to as usize).unwrap_or_default();
        let open = from == 0;
        let (commit, sync) = (true, false);
        let write =
            WriteReplica { target, epoch: 1, offset: from, open, close, commit, sync, data };
        assert_eq!(self.backups[on].write(&write), Ok(to.max(from)));
        written.lens[on] = to.max(from);
        written.closed[on] |= close;
    }

    /// Takes note of opened and freed segments.
    fn news(&mut self) {
        while let Some(opened) = self.memory.log.take_opened() {
            let (id, front) = (opened.id, opened.front);
            let written = Written { id, front, lens: [0; BACKUPS], closed: [false; BACKUPS] };
            if opened.survivor {
                self.survivors.push(written);
            } else {
                self.heads.push_back(written);
            }
        }
        while let Some(id) = self.memory.log.take_freed() {
            self.freed += 1;
            self.survivors.retain(|survivor| survivor.id != id);
            assert!(self.heads.iter().all(|head| head.id != id), "a head is closed before");
            self.frees.extend((0..BACKUPS).map(|on| (on, id)));
        }
    }

    /// Sends some bytes of the head and of the next one to a backup, in the order that keeps the
    /// end of the log known.
    fn replicate_head(&mut self, on: usize, all: bool) {
        let Some(mut head) = self.heads.pop_front() else { return };
        let next = self.heads.pop_front();
        // The memory of a head may be free that is durable but not closed.
        let bytes = self.bytes(head.id).unwrap_or_else(|| vec![0; head.lens[on] as usize]);
        let (len, have) = (bytes.len() as u32, head.lens[on]);
        let least = if have == 0 { head.front } else { have };
        let most = least + self.rng.below(u64::from(len - least) + 1) as u32;
        let to = if all { len } else { end_of_entries(&bytes, least, most) };
        self.send(on, &mut head, &bytes, to, false);
        if let Some(mut next) = next {
            if next.lens[on] == 0 && head.least() > 0 && (all || self.rng.chance(500_000)) {
                let front = next.front;
                let bytes = self.bytes(next.id).unwrap();
                self.send(on, &mut next, &bytes, front, false);
            }
            if next.least() > 0 && head.lens[on] == len && (all || self.rng.chance(500_000)) {
                self.send(on, &mut head, &bytes, len, true);
            }
            self.heads.push_front(next);
        }
        self.heads.push_front(head);
        if self.heads[0].is_closed() {
            self.heads.pop_front();
        }
        let head = &self.heads[0];
        if head.least() > 0 {
            self.set_durable(Position { segment: head.id, offset: head.least() });
        }
    }

    fn replicate_survivor(&mut self, on: usize, index: usize, all: bool) {
        let mut survivor = self.survivors.swap_remove(index);
        let Some(bytes) = self.bytes(survivor.id) else { return };
        let (len, have) = (bytes.len() as u32, survivor.lens[on]);
        let least = if have == 0 { survivor.front } else { have };
        let most = least + self.rng.below(u64::from(len - least) + 1) as u32;
        let to = if all { len } else { end_of_entries(&bytes, least, most) };
        let slot = self.memory.log.slot(survivor.id).unwrap();
        let is_closed = self.memory.log.slots()[slot as usize].state == State::Closed;
        self.send(on, &mut survivor, &bytes, to, is_closed && to == len);
        if survivor.least() > have {
            self.memory.log.set_replicated(slot, survivor.least());
        }
        if !survivor.is_closed() {
            self.survivors.push(survivor);
        }
    }

    fn set_durable(&mut self, position: Position) {
        self.memory.log.set_durable(position);
        while let Some(step) = self.steps.pop_front_if(|step| step.end <= position) {
            self.durable.apply(&step);
        }
    }

    /// Does something for the replicas.
    fn replicate(&mut self) {
        self.news();
        let on = self.rng.below(BACKUPS as u64) as usize;
        match self.rng.below(4) {
            0 if !self.survivors.is_empty() => {
                let index = self.rng.below(self.survivors.len() as u64) as usize;
                self.replicate_survivor(on, index, false);
            }
            1 if !self.frees.is_empty() => {
                let index = self.rng.below(self.frees.len() as u64) as usize;
                let (on, id) = self.frees.swap_remove(index);
                self.backups[on].free(MASTER, id, u32::MAX);
            }
            _ => self.replicate_head(on, false),
        }
    }

    /// Makes all of the log durable.
    fn replicate_all(&mut self) {
        self.news();
        while !self.memory.log.is_all_durable() || self.heads.len() > 1 {
            (0..BACKUPS).for_each(|on| self.replicate_head(on, true));
        }
        for on in 0..BACKUPS {
            for index in (0..self.survivors.len()).rev() {
                self.replicate_survivor(on, index, true);
            }
        }
        self.news();
    }

    // The crash.

    /// Recovers the log from the backups in `alive`, from a head that is cut off somewhere, and
    /// compares what is found with what the master had. Returns the segments and the contents.
    fn recover(&mut self, alive: &[usize]) -> Option<(Vec<Bytes>, Contents)> {
        let durable = self.memory.log.durable();
        let mut listed = Vec::new();
        for &on in alive {
            let page = self.backups[on].list(MASTER, SegmentId(0));
            assert!(!page.more);
            for replica in page.replicas {
                let mut len = replica.len;
                if replica.segment == durable.segment && !replica.closed {
                    let bytes = self.backups[on].bytes(MASTER, replica.segment).unwrap();
                    let most =
                        durable.offset + self.rng.below(u64::from(len - durable.offset) + 1) as u32;
                    len = end_of_entries(&bytes[..len as usize], durable.offset, most);
                }
                let (segment, epoch, closed) = (replica.segment, replica.epoch, replica.closed);
                listed.push(Listed { backup: backup_id(on), segment, epoch, len, closed });
            }
        }
        let (head_segment, head_epoch) = (SegmentId(0), 1);
        let crashed = Crashed { cluster: CLUSTER, master: MASTER, head_segment, head_epoch };
        let backups = &self.backups;
        let read = |on: ServerId, id| backups[on.index as usize - 10].bytes(MASTER, id);
        let (head, segments) = match inventory(crc32c, &crashed, &listed, read) {
            Inventory::Found { head, segments } => (head, segments),
            missing if durable != Position::default() => {
                panic!("{missing:?} {durable:?}")
            }
            Inventory::Missing { .. } => return None,
        };
        let mut replay = Replay::new(crc32c);
        let mut cut = Position::default();
        let mut log = Vec::new();
        for &(id, on, len) in &segments {
            let bytes = &read(on, id).unwrap()[..len as usize];
            log.push((id, bytes.to_vec()));
            if id > self.since {
                replay.segment(bytes).unwrap();
            }
            if id == head {
                cut = Position { segment: id, offset: len };
            }
        }
        let mut contents = self.durable.clone();
        for step in self.steps.iter().take_while(|step| step.end <= cut) {
            contents.apply(step);
        }
        let objects = replay
            .objects()
            .map(|(_, key, version, value)| (key.to_vec(), (version, value.to_vec())));
        let objects: BTreeMap<_, _> = objects.collect();
        assert_eq!(objects, contents.objects, "{cut:?} {segments:?}");
        let outcomes = replay.outcomes().map(|(lease, rpc, _, outcome)| {
            (rpc, (outcome, replay.old(lease, rpc).unwrap().to_vec()))
        });
        let outcomes: BTreeMap<_, _> = outcomes.filter(|(rpc, _)| *rpc > self.ack).collect();
        contents.outcomes = contents.outcomes.split_off(&(self.ack + 1));
        assert_eq!(outcomes, contents.outcomes);
        for (key, &highest) in &contents.highest {
            assert!(objects.contains_key(key) || replay.safe_version() > highest, "{key:?}");
        }
        Some((log, contents))
    }

    fn recover_all(&mut self) {
        self.recover(&[0]);
        self.recover(&[1]);
        self.recover(&[0, 1]);
    }
}

#[test]
fn whatever_the_backups_have_is_enough() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed, 8 + seed % 16);
        let keys = 10 + world.rng.below(150);
        let max_value = [400, 900, 60][seed as usize % 3];
        let (mut refused, mut calm) = (0, 3);
        for _ in 0..2000 {
            refused += u32::from(!world.random_mutation(keys, max_value));
            if world.rng.chance(100_000) || world.rpc - world.ack > 500 {
                let outstanding = world.rng.below(30);
                world.ack = world.ack.max(world.rpc.saturating_sub(outstanding));
            }
            if world.rng.chance(20_000) {
                calm = world.rng.below(8);
            }
            for _ in 0..world.rng.below(1 + calm) {
                world.replicate();
            }
            if world.rng.chance(200_000) {
                world.memory.log.change_digest();
            }
            if world.rng.chance(300_000) {
                let work = world.rng.below(3000) as usize;
                world.cleaner.step(&mut world.memory, work);
            }
            if world.rng.chance(50_000) {
                let alive = [&[0][..], &[1], &[0, 1]][world.rng.below(3) as usize];
                world.recover(alive);
            }
        }
        world.recover_all();
        world.replicate_all();
        assert!(world.memory.log.is_all_durable() && world.steps.is_empty());
        world.recover_all();
        world.empty();
        world.recover_all();
        let (cleaned, freed) = (world.cleaner.cleaned(), world.freed);
        assert!(cleaned > 20 && freed > 20, "seed {seed}: {cleaned} cleaned, {freed} freed");
        assert!(refused < 1000, "seed {seed}: {refused}");
    }
}

/// Backups that are slow leave nothing to clean for a while. The cleaner goes on by itself when
/// they have caught up, although no write has succeeded since.
#[test]
fn the_cleaner_goes_on_when_the_backups_have_caught_up() {
    for seed in 0..8 {
        let mut world = World::new(seed, 10);
        let mut refused = 0;
        let target = Target { table: TABLE, ..Target::default() };
        while refused < 3 {
            world.rpc += 1;
            let once = Once { lease: LEASE, rpc: world.rpc, ack: world.rpc - 1 };
            let Memory { results, log, .. } = &mut world.memory;
            _ = results.check(Instant::ZERO, once, |at| log.dead_record(at));
            let key = &[world.rng.below(20) as u8][..];
            let hash = world.memory.tablets.locate(TABLE, key).unwrap();
            let change = Change::Write(&[7; 300], None);
            let result = world.memory.mutate(&Mutation {
                target,
                once,
                key,
                hash,
                change,
                wall: WallTime(0),
            });
            refused += u32::from(result.is_err());
            while world.cleaner.step(&mut world.memory, 2000) {}
        }
        assert_eq!(world.cleaner.cleaned(), 0, "nothing is durable");
        world.replicate_all();
        assert!(world.cleaner.wanted(&world.memory), "seed {seed}");
        while world.cleaner.step(&mut world.memory, 2000) {}
        assert!(world.cleaner.cleaned() > 0);
    }
}

/// The number of random histories.
const SEEDS: u64 = 40;
