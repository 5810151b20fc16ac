//! The state of a master, and the rules by which replies leave it.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::node::machine::{Caller, Output, Replied};
use sprat_proto::rpc::Message;
use sprat_proto::time::MS;
use sprat_proto::wire::checksum::Crc32c;
use sprat_proto::{Instant, Rng};

use super::burst::Burst;
use super::counters::{self, Counters};
use super::damage::Reports;
use super::departure::Departure;
use super::gather::Gather;
use super::heat::Heat;
use super::lag::{Lag, Mark};
use super::leases::Leases;
use super::links::COORDINATOR;
use super::membership::Membership;
use super::recovery::Recovery;
use super::replication::{MAX_REPLICAS, Replication};
use super::resolving::Resolving;
use super::syncs::Syncs;
use super::wall::{Wall, WallClock};
use super::work::{TURN_WORK, Work};
use crate::backup::{Backup, Frames, MemoryFrames, Rings};
use crate::done::Done;
use crate::durability::{Durability, TableDurability};
use crate::leading::{Binding, Coordinators};
use crate::message::Status;
use crate::message::data::{self, Target};
use crate::objects::blocks::Prepare;
use crate::objects::cleaner::{Cleaner, Copier, STEP, Worth};
use crate::objects::expiry::Expiry;
use crate::objects::log::{self, Log, SORTED_FROM};
use crate::objects::memory::Memory;
use crate::objects::segment::{Location, Position, SEGMENT_BYTES};
use crate::objects::table::Place;
use crate::site::OwnedSite;
use crate::types::{KeyHash, ServerId, TableId, WallTime};

/// The most replies that wait for the log to become durable.
pub(crate) const MAX_GATED: usize = 1 << 16;

/// The options of a master.
#[derive(Clone, Debug)]
pub struct Config {
    /// The locators of the coordinators, of which one leads, with `;` between them.
    pub coordinator: String,
    /// The locators at which the coordinator reaches this server, with `;` between them.
    pub control: String,
    /// The locators at which clients reach this server, with `;` between them.
    pub data: String,
    /// The size of the master's log in memory, in bytes.
    pub log_bytes: u64,
    /// The size of a segment of the log in bytes.
    /// [`segment_bytes`](crate::objects::segment::segment_bytes) gives one that suits the log.
    pub segment_bytes: u32,
    /// The memory for replicas of other masters' segments, in bytes.
    pub backup_bytes: u64,
    /// The longest segment of which the server can hold a replica, in bytes, if it is longer than
    /// `segment_bytes`.
    pub frame_bytes: u32,
    /// The function that continues a CRC32C checksum.
    pub crc32c: Crc32c,
    /// The number of replicas of each segment on backups, at most
    /// [`MAX_REPLICAS`]. With 0, objects live as long as the process.
    pub replicas: usize,
    /// The time at which the master acknowledges a change, if the log has replicas.
    /// [`Durability::Process`] and [`Durability::Disk`] need frames that outlive the process.
    pub durability: Durability,
    /// The place and the roles of the server. The name of its rack has at most
    /// [`MAX_RACK`](crate::site::MAX_RACK) bytes. A server without the role of a backup has no
    /// frames.
    pub site: OwnedSite,
    /// The wall clock. The lifetimes of objects end by it, also after another server has recovered
    /// them.
    pub wall: WallClock,
    /// A number of this run of the machine: it differs from those of earlier runs. It matters if
    /// the server's frames outlive the process.
    pub boot: u64,
    /// True if the server holds the replicas of its own log itself while no other server is up
    /// (RAMCloud's allowLocalBackup). That makes sense if the frames outlive the process.
    pub own_replica: bool,
    /// The number of segments from which on the log has a survivor segment for old entries.
    pub sort_from: u32,
    /// The work in bytes, of requests and the cleaner, after which a turn leaves further requests
    /// to the next one.
    pub turn_work: u64,
    /// The time in nanoseconds in which the server verifies each closed replica once on the device,
    /// if its frames outlive the process. 0: never.
    pub scrub_ns: u64,
    /// The time after which a backup that does not answer a write counts as slow, in nanoseconds:
    /// another backup takes its place. With [`Durability::Disk`] it counts as slow after
    /// `slow_disk_ns`.
    pub slow_backup_ns: u64,
    /// The time after which a backup that does not answer a write counts as slow if the write has
    /// to be on disk. A busy machine flushes in multiples of 4 ms, a slow disk takes 100 ms for a
    /// flush, and a write may wait for the one before its own.
    pub slow_disk_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            coordinator: String::new(),
            control: String::new(),
            data: String::new(),
            log_bytes: 1 << 30,
            segment_bytes: SEGMENT_BYTES,
            backup_bytes: 0,
            frame_bytes: 0,
            crc32c: sprat_proto::wire::checksum::crc32c,
            replicas: 0,
            durability: Durability::Memory,
            site: OwnedSite::default(),
            wall: WallClock::default(),
            boot: 0,
            own_replica: false,
            sort_from: SORTED_FROM,
            turn_work: TURN_WORK,
            scrub_ns: 0,
            slow_backup_ns: 20 * MS,
            slow_disk_ns: 500 * MS,
        }
    }
}

/// A reply of a master that waits for the log to become durable.
#[derive(Debug)]
pub(crate) struct Gated {
    until: Position,
    caller: Caller,
    message: Message,
}

/// The master: a server of tablets.
///
/// The [module](crate::master) describes its invariants.
#[derive(Debug)]
pub struct Master {
    pub(crate) memory: Memory,
    pub(crate) cleaner: Cleaner,
    pub(crate) expiry: Expiry,
    pub(crate) wall: Wall,
    pub(super) coordinators: Coordinators,
    /// The calls to the coordinator that are in progress, by tag.
    pub(super) asked: BTreeMap<u64, Binding>,
    pub(crate) membership: Membership,
    pub(crate) leases: Leases,
    pub(crate) replication: Replication,
    pub(crate) backup: Backup,
    pub(super) reports: Reports,
    /// The writes to replicas here that wait for the disk.
    pub(crate) syncs: Syncs,
    /// The lag of the replicas, for mutations that do not wait for them.
    lag: Lag,
    /// True if no mutation waits for the replicas, unless they lag.
    is_async: bool,
    /// The pause before the next write to the replicas, if their disks confirm it.
    pub(super) gather: Option<Gather>,
    pub(crate) recovery: Recovery,
    pub(super) departure: Departure,
    pub(super) resolving: Resolving,
    pub(crate) gated: VecDeque<Gated>,
    pub(crate) out: VecDeque<Output>,
    pub(crate) counters: Counters,
    pub(super) burst: Burst,
    /// The sample of the accesses to objects.
    pub(crate) heat: Heat,
    last_tag: u64,
    /// True if the master has background work.
    pub(crate) busy: bool,
    /// True if a request arrived since the last tick.
    pub(super) requested: bool,
    pub(super) work: Work,
    /// The operations and tasks of the last turn.
    pub(super) done: Done,
}

impl Master {
    /// Passes the identity of this server, and the version of the coordinator's server list, to the
    /// log, the backup and the replication.
    pub(crate) fn follow_membership(&mut self) {
        if let (Some(cluster), Some(server)) = (self.membership.cluster(), self.membership.server())
        {
            self.memory.log.set_server(cluster, server);
            self.backup.set_owner(cluster, server);
            self.replication.member(cluster, server, self.membership.list_version());
        }
    }

    /// Returns a master that will join the cluster, and that holds the replicas of other masters in
    /// memory. `rng` draws the number that identifies it in the cluster.
    #[must_use]
    pub fn new(config: Config, rng: Rng) -> Self {
        let segment = log::segment_bytes(config.segment_bytes);
        let frames = MemoryFrames::new(config.backup_bytes, config.frame_bytes.max(segment));
        Self::with_frames(config, Box::new(frames), rng)
    }

    /// Returns a master that will join the cluster, and that holds the replicas of other masters in
    /// `frames`. Those that it finds there count in recoveries. The options `backup_bytes` and
    /// `frame_bytes` do not matter.
    #[must_use]
    pub fn with_frames(config: Config, frames: Box<dyn Frames>, mut rng: Rng) -> Self {
        let (boot, own) = (config.boot, config.own_replica);
        let Config { coordinator, control, data, site, log_bytes, segment_bytes, .. } = config;
        let crc32c = config.crc32c;
        let replicas = config.replicas.min(MAX_REPLICAS);
        let durability = if replicas == 0 { Durability::None } else { config.durability };
        let slow_ns = match durability {
            Durability::Disk => config.slow_disk_ns,
            _ => config.slow_backup_ns,
        };
        let is_on_disk = durability == Durability::Disk;
        let mode = (replicas, durability);
        let mut log = Log::new(log_bytes, segment_bytes, crc32c, replicas > 0);
        log.sort_from(config.sort_from);
        let mut backup = Backup::new(frames, crc32c, boot);
        if config.scrub_ns > 0 {
            backup.scrub_each(config.scrub_ns);
        }
        let former = backup.owner();
        let mut out = VecDeque::new();
        let coordinators = Coordinators::new(COORDINATOR, &coordinator);
        out.push_back(coordinators.connect());
        Self {
            memory: Memory::new(log),
            cleaner: Cleaner::default(),
            expiry: Expiry::default(),
            wall: Wall::new(config.wall),
            coordinators,
            asked: BTreeMap::new(),
            membership: Membership::new(rng.u64(), mode, site.clone(), former, control, data),
            leases: Leases::default(),
            replication: Replication::new((replicas, site, own), (is_on_disk, slow_ns), rng.fork()),
            backup,
            reports: Reports::new(),
            syncs: Syncs::default(),
            lag: Lag::default(),
            is_async: durability == Durability::Async,
            gather: is_on_disk.then(Gather::default),
            recovery: Recovery::default(),
            departure: Departure::default(),
            resolving: Resolving::default(),
            gated: VecDeque::new(),
            out,
            counters: Counters::default(),
            burst: Burst::default(),
            heat: Heat::new(rng.fork()),
            last_tag: 0,
            busy: false,
            requested: false,
            work: Work::new(config.turn_work),
            done: Done::default(),
        }
    }

    /// Returns the id of this master, once it has joined the cluster.
    #[must_use]
    pub fn server(&self) -> Option<ServerId> {
        self.membership.server()
    }

    /// Returns the id of the cluster, once this master has joined it.
    #[must_use]
    pub fn cluster(&self) -> Option<u64> {
        self.membership.cluster()
    }

    /// Returns the replicas that this server holds for other masters.
    #[must_use]
    pub fn backup(&self) -> &Backup {
        &self.backup
    }

    /// Returns the master's objects and the tables that point to them.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Lets `host` touch the memory of later log segments before they are used.
    pub fn prepare(&mut self, host: Box<dyn Prepare>) {
        self.memory.log.prepare(host);
    }

    /// Lets `helper` copy entries for the cleaner, if the log and the job are worth it.
    pub fn help(&mut self, helper: Box<dyn Copier>, worth: Worth) {
        self.cleaner.help(helper, worth);
    }

    /// Stops serving for good: it refuses requests for objects by a status at which clients go to
    /// the coordinator and try again. What was executed still goes to replicas and is answered.
    pub fn drain(&mut self) {
        self.membership.drain();
    }

    /// Returns true if replicas have all of the log, and no reply waits.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.memory.log.is_all_durable()
            && self.gated.is_empty()
            && self.out.is_empty()
            && !self.syncs.is_due()
    }

    /// Stops serving for good, and tells the coordinator, so that other servers recover the tablets
    /// at once. A reply that waits for replicas still goes out when they are written.
    pub fn leave(&mut self, now: Instant) {
        let tag = self.tag();
        self.out.extend(self.membership.leave(now, tag));
    }

    /// Returns true if the master has left the cluster, and the coordinator knows or does not
    /// answer.
    #[must_use]
    pub fn has_left(&self) -> bool {
        self.membership.has_left()
    }

    /// Lets this server share memory through `host` with other servers of its machine, so that they
    /// post writes to replicas. Takes what was posted to an earlier life of this server.
    pub fn share(&mut self, host: Box<dyn Rings>) {
        self.backup.share(host);
        self.replication.allow_posts();
    }

    /// Takes what other masters have posted to this server's replicas.
    pub fn take_posted(&mut self) {
        self.backup.take_all_posted();
    }

    /// Sends the replies that waited for the log to be durable up to `position`.
    pub fn durable(&mut self, position: Position) {
        self.memory.log.set_durable(position);
        while let Some(Gated { caller, message, .. }) =
            self.gated.pop_front_if(|gated| gated.until <= position)
        {
            self.out.push_back(Output::Reply { caller, message });
        }
    }

    /// Lets the reply go out if every change that it reports is durable, else keeps it until the
    /// log is.
    ///
    /// `durable` is true if the caller knows that the reply tells nothing new.
    #[inline(always)]
    pub(crate) fn gate(&mut self, caller: Caller, reply: &mut Message, durable: bool) -> Replied {
        if durable || self.memory.log.is_all_durable() {
            return Replied::Now;
        }
        if self.gated.len() >= MAX_GATED {
            for &slice in &reply.slices {
                self.memory.log.give_back(slice);
            }
            self.refuse(Status::Retry, reply);
            return Replied::Now;
        }
        self.replication.appended();
        let message = core::mem::take(reply);
        self.gated.push_back(Gated { until: self.memory.log.tail(), caller, message });
        Replied::Later
    }

    /// Returns the hash of `key` in `table`, and counts an access to the object.
    ///
    /// # Errors
    /// [`Status::UnknownTablet`] if the master does not own the object's tablet.
    #[inline(always)]
    pub(crate) fn locate(&mut self, table: TableId, key: &[u8]) -> Result<KeyHash, Status> {
        let hash = self.memory.tablets.locate(table, key).ok_or(Status::UnknownTablet)?;
        self.count_access(table, hash);
        Ok(hash)
    }

    /// Counts an access to the object of `table` under `hash`.
    #[inline(always)]
    pub(crate) fn count_access(&mut self, table: TableId, hash: KeyHash) {
        self.counters.accesses += 1;
        if self.counters.accesses == self.heat.due {
            self.heat.sample(&self.memory.tablets, table, hash);
        }
    }

    /// Returns the end of the log before a mutation, if the mutation does not wait for its replicas
    /// unless they lag.
    #[inline(always)]
    pub(crate) fn may_lag(&self, now: Instant, target: Target) -> Option<Mark> {
        let waits = target.durable || !self.is_async_table(target.table);
        (!waits).then(|| Mark::new(now, &self.memory.log))
    }

    /// Returns true if changes of `table` are acknowledged before they are durable.
    #[inline(always)]
    pub(crate) fn is_async_table(&self, table: TableId) -> bool {
        self.is_async || self.memory.tablets.durability(table) == TableDurability::Async
    }

    /// Lets the reply to a mutation that was just executed go out, or keeps it until the log is
    /// durable, as the durability demands. `before` is [`Master::may_lag`] of before the mutation.
    #[inline(always)]
    pub(crate) fn acknowledge(
        &mut self,
        before: Option<Mark>,
        caller: Caller,
        reply: &mut Message,
    ) -> Replied {
        let Some(before) = before else { return self.gate(caller, reply, false) };
        self.replication.appended();
        let may_lag = self.lag.allows(before, &self.memory.log);
        self.gate(caller, reply, may_lag)
    }

    /// Returns true if the reply to a mutation that ends at this position of the log may be
    /// repeated.
    #[inline]
    pub(crate) fn is_acknowledged(&self, target: Target, end: Position) -> bool {
        end <= self.memory.log.durable() || !target.durable && self.is_async_table(target.table)
    }

    /// Lets the reply to a request that changes nothing of `table` go out, or keeps it, as
    /// [`Master::gate`].
    #[inline(always)]
    pub(crate) fn gate_read(
        &mut self,
        caller: Caller,
        reply: &mut Message,
        table: TableId,
        durable: bool,
    ) -> Replied {
        let durable = durable || self.memory.log.is_all_durable() || self.is_async_table(table);
        match self.gate(caller, reply, durable) {
            Replied::Now => Replied::Idempotent,
            later => later,
        }
    }

    /// Returns the time of the wall clock.
    #[inline]
    pub(crate) fn wall(&mut self, now: Instant) -> WallTime {
        self.wall.at(now)
    }

    /// Removes the object at `place` and `at`, which has expired, before a reply says that there is
    /// none. The reply must wait until that is durable.
    ///
    /// # Errors
    /// The status to reply with. The object is still there.
    #[cold]
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        place: Place,
        at: Location,
    ) -> Result<(), Status> {
        if self.gated.len() >= MAX_GATED {
            return Err(Status::Retry);
        }
        // A server that lacks backups lets the operation wait, as others that wait for durability.
        self.replication.check(now, &self.memory.log).map_err(|_| Status::Retry)?;
        if self.memory.expire(place, at).is_err() {
            self.cleaner.step(&mut self.memory, STEP);
            return Err(Status::Retry);
        }
        self.replication.appended();
        // Cleaning has to wait: the caller may have found locations in the log.
        self.busy |= self.cleaner.wanted(&self.memory);
        Ok(())
    }

    /// Counts a refused request. Its reply has `status` alone.
    #[cold]
    pub(crate) fn refuse(&mut self, status: Status, reply: &mut Message) {
        self.counters.refused(status);
        *reply = data::head(status)[..].into();
    }

    /// Returns an unused tag for a call of the master.
    pub(super) fn tag(&mut self) -> u64 {
        self.last_tag += 1;
        self.last_tag
    }

    /// Returns the most bytes that are acknowledged and not replicated, and the number of mutations
    /// that waited for replicas because of them.
    pub(crate) fn lag(&self) -> (u64, u64) {
        self.lag.counts(&self.memory.log)
    }

    /// Returns the value of the counter with this name, 0 if there is none.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let list = self.list_counters();
        list.into_iter().find(|(counter, _)| counter == name).map_or(0, |(_, value)| value)
    }

    /// Returns the names and values of all counters of the master.
    pub(crate) fn list_counters(&self) -> Vec<(String, u64)> {
        let (left, _) = self.backup.left();
        let reported = self.replication.reported();
        let replicas = counters::Replicas {
            incomplete: self.replication.incomplete(),
            missing: self.replication.missing(),
            held: self.backup.replicas() as u64,
            left: left as u64,
            damaged: self.backup.damaged() as u64,
            retired: self.backup.retired() as u64,
            scrubbed: self.backup.scrubbed(),
            unreported: self.backup.unreported() as u64,
            lost: reported.lost,
            unknown: reported.unknown,
            posted: self.replication.posted_writes(),
            taken: self.backup.posted_writes(),
            syncs: self.syncs.begun(),
            lag: self.lag(),
        };
        counters::list(&self.counters, &self.memory, &self.cleaner, replicas)
    }
}
