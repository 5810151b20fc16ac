//! The world: hosts, each with a clock, a disk and at most one live process, on one wire, in
//! virtual time from one seed.
//!
//! ```text
//!  event queue, by (time, seq):  arrival of a datagram · a turn · a write safe · crash · start ·
//!                                pause · partition · heal · disks full · room again
//!  one turn of a host:           Process::turn(Outside { now, port, disk, score, … })
//! ```
//!
//! What always holds: everything that happens follows from the seed and the options, so a run
//! repeats itself; a process that dies loses all that it had but its disk; nothing happens at a
//! host between its turns.
//!
//! Not here: what the processes do (see [`crate::node`] for one that runs an endpoint with a store
//! machine), and what is right (see [`crate::check`]).

use std::fmt::Debug;

use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::{Addr, Instant, Rng};

use crate::disk::{Contents, Disk, Outcome, Write};
use crate::queue::Queue;
use crate::wire::{self, HostId, Port, Wire};

/// A process of a host. `S` is the score: the data of the test, outside of all processes.
pub trait Process<S> {
    /// One turn: take what has arrived, do it, send. True if it wants another turn although nothing
    /// happens.
    fn turn(&mut self, outside: &mut Outside<'_, S>) -> bool;

    /// The time, by its own clock, at which it needs a turn even if nothing arrives.
    fn deadline(&self) -> Option<Instant>;
}

/// The surroundings of a process in one turn.
#[derive(Debug)]
pub struct Outside<'w, S> {
    /// The host's clock.
    pub now: Instant,
    /// The host's driver.
    pub port: Port,
    /// The writes that ended since the last turn.
    pub completed: Vec<Outcome>,
    /// Writes to begin.
    pub writes: Vec<Write>,
    /// The process ends after this turn, for this reason; the world starts it anew after a while.
    pub stop: Option<String>,
    /// The test's own.
    pub score: &'w mut S,
}

/// The surroundings of a process when it starts.
#[derive(Debug)]
pub struct Start<'w> {
    /// The process's host.
    pub host: HostId,
    /// The number of the process at this host, from 1.
    pub life: u64,
    /// The process's address.
    pub addr: Addr,
    /// The process's clock.
    pub now: Instant,
    /// The process's driver, for a process that keeps one.
    pub port: Port,
    /// The process's randomness.
    pub rng: Rng,
    /// The contents of its disk.
    pub disk: &'w Contents,
}

/// Makes the process of a host, at each start.
pub type Make<S> = Box<dyn FnMut(Start<'_>) -> Box<dyn Process<S>>>;

/// Settings of a world. In the default one nothing fails.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network.
    pub wire: wire::Options,
    /// The faults of hosts.
    pub chaos: Chaos,
    /// The most that a host's clock drifts from true time, in parts per million.
    pub drift_ppm: u32,
    /// The time of a turn, in nanoseconds.
    pub turn_ns: u64,
    /// The shortest time until a write is safe, and how much longer it may take, in nanoseconds.
    pub disk_ns: (u64, u64),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            wire: wire::Options::default(),
            chaos: Chaos::default(),
            drift_ppm: 200,
            turn_ns: US,
            disk_ns: (20 * US, 2 * MS),
        }
    }
}

/// Faults of hosts at random times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chaos {
    /// The mean time between two blows, in nanoseconds; 0 for none at all.
    pub every_ns: u64,
    /// The relative probabilities of a crash, a pause, a partition and full disks.
    pub weights: [u32; 4],
    /// The longest time that a host stays down, in nanoseconds.
    pub down_ns: u64,
    /// The longest time that a process is paused, in nanoseconds.
    pub pause_ns: u64,
    /// The longest time that a partition lasts, in nanoseconds.
    pub partition_ns: u64,
    /// The longest time that disks are full, in nanoseconds.
    pub full_ns: u64,
}

/// Which blows of [`Chaos`] may hit a host. Partitions and full disks hit all alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frail {
    /// The host's process may crash.
    pub crash: bool,
    /// The host's process may be paused.
    pub pause: bool,
}

impl Frail {
    /// Neither.
    pub const SOLID: Self = Self { crash: false, pause: false };
    /// Pauses only.
    pub const SLOW: Self = Self { crash: false, pause: true };
    /// Both.
    pub const FRAIL: Self = Self { crash: true, pause: true };
}

/// The world.
pub struct World<S> {
    /// The test's own.
    pub score: S,
    /// The network.
    pub wire: Wire,
    options: Options,
    now: Instant,
    rng: Rng,
    hosts: Vec<Host<S>>,
    queue: Queue<Event>,
    trace: u64,
    events: u64,
    stopped: Vec<(HostId, String)>,
    /// The times that disks became full.
    filled: u64,
}

struct Host<S> {
    make: Make<S>,
    frail: Frail,
    process: Option<Box<dyn Process<S>>>,
    life: u64,
    clock: Clock,
    disk: Disk,
    completed: Vec<Outcome>,
    /// The turn that is in the queue; others there are stale.
    turn_at: Instant,
    busy_until: Instant,
    idle_turns: u32,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Turn(HostId),
    Safe(HostId),
    Start(HostId),
    Chaos,
    Heal,
    /// Disks have room again, unless they became full once more since: how often they had.
    Room(u64),
}

/// Most events in one [`World::run_until`]: more is a world that goes in circles.
const MAX_EVENTS: u64 = 50_000_000;

impl<S> World<S> {
    /// An empty world.
    #[must_use]
    pub fn new(seed: u64, options: Options, score: S) -> Self {
        let mut rng = Rng::seeded(seed);
        let wire = Wire::new(options.wire.clone(), rng.fork());
        let mut queue = Queue::default();
        if options.chaos.every_ns > 0 {
            queue.push(Instant::from_ns(rng.below(2 * options.chaos.every_ns)), Event::Chaos);
        }
        Self {
            score,
            wire,
            options,
            now: Instant::ZERO,
            rng,
            hosts: Vec::new(),
            queue,
            trace: 0,
            events: 0,
            stopped: Vec::new(),
            filled: 0,
        }
    }

    /// One more host, whose process `make` makes now and after each crash.
    pub fn host(
        &mut self,
        frail: Frail,
        make: impl FnMut(Start<'_>) -> Box<dyn Process<S>> + 'static,
    ) -> HostId {
        let id = self.wire.host();
        let drift_ppm = self.rng.below(2 * u64::from(self.options.drift_ppm) + 1);
        self.hosts.push(Host {
            make: Box::new(make),
            frail,
            process: None,
            life: 0,
            clock: Clock {
                ahead_ns: self.rng.below(1_000 * SECOND),
                ppm: 1_000_000 + drift_ppm - u64::from(self.options.drift_ppm),
            },
            disk: Disk::default(),
            completed: Vec::new(),
            turn_at: Instant::NEVER,
            busy_until: Instant::ZERO,
            idle_turns: 0,
        });
        self.start(id);
        id
    }

    /// True time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the number of processes that have lived at `host`.
    #[must_use]
    pub fn life(&self, host: HostId) -> u64 {
        self.hosts[host].life
    }

    /// Returns true if a process lives at `host`.
    #[must_use]
    pub fn is_up(&self, host: HostId) -> bool {
        self.hosts[host].process.is_some()
    }

    /// Processes that ended of their own will so far, with their reasons.
    #[must_use]
    pub fn stopped(&self) -> &[(HostId, String)] {
        &self.stopped
    }

    /// From now on this is what happens to hosts. Not for a world that has had any before.
    pub fn set_chaos(&mut self, chaos: Chaos) {
        self.options.chaos = chaos;
        self.queue.push(self.now.after(1 + self.rng.below(2 * chaos.every_ns)), Event::Chaos);
    }

    /// A number that depends on everything that happened: two runs of one seed must agree in it.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.trace ^ self.wire.trace_hash()
    }

    /// Runs for `ns`.
    pub fn run_for(&mut self, ns: u64) {
        self.run_until(ns, |_| false);
    }

    /// Runs until `done`, at most for `ns`; whether `done` came true. Asked after each event.
    ///
    /// # Panics
    /// If the world goes in circles.
    pub fn run_until(&mut self, ns: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now.after(ns);
        let mut events = 0;
        while !done(self) {
            let next = self.wire.next().into_iter().chain(self.queue.next()).min();
            let Some(at) = next.filter(|at| *at <= end) else {
                self.now = if end == Instant::NEVER { self.now } else { end };
                return false;
            };
            self.now = self.now.max(at);
            events += 1;
            assert!(events < MAX_EVENTS, "the world goes in circles at {:?}", self.now);
            if self.wire.next() == Some(at) {
                if let Some(host) = self.wire.deliver() {
                    self.wake(host, at);
                }
            } else if let Some((at, event)) = self.queue.pop() {
                self.happen(at, event);
            }
        }
        true
    }

    /// From now on nothing goes wrong any more: partitions heal, pauses end, dead hosts start, the
    /// wire is clean, disks have room.
    pub fn calm(&mut self) {
        self.options.chaos.every_ns = 0;
        self.wire.set_fault(Default::default());
        self.wire.heal();
        self.set_full(false);
        self.hosts.iter_mut().for_each(|host| host.disk.mend());
        for host in 0..self.hosts.len() {
            let now = self.now;
            self.hosts[host].busy_until = self.hosts[host].busy_until.min(now);
            self.wake(host, now);
            self.start(host);
        }
    }

    /// Kills the process at `host`; it starts anew `down_ns` later, or never.
    pub fn crash(&mut self, host: HostId, down_ns: Option<u64>) {
        if self.hosts[host].process.take().is_none() {
            return;
        }
        self.note(1, host);
        self.wire.down(host);
        let state = &mut self.hosts[host];
        state.disk.crash(&mut self.rng);
        state.completed.clear();
        state.turn_at = Instant::NEVER;
        if let Some(ns) = down_ns {
            self.queue.push(self.now.after(ns), Event::Start(host));
        }
    }

    /// Starts a process at `host`, unless one lives there.
    pub fn start(&mut self, id: HostId) {
        if self.hosts[id].process.is_some() {
            return;
        }
        self.note(2, id);
        let addr = self.wire.up(id);
        let rng = self.rng.fork();
        let host = &mut self.hosts[id];
        host.life += 1;
        host.busy_until = self.now;
        let now = host.clock.local(self.now);
        let port = self.wire.port(id, self.now);
        let disk = host.disk.contents();
        let start = Start { host: id, life: host.life, addr, now, port, rng, disk };
        host.process = Some((host.make)(start));
        self.wake(id, self.now);
    }

    /// Stops the process at `host` for `ns`: it then goes on, with its clock further and its inbox
    /// full.
    pub fn pause(&mut self, host: HostId, ns: u64) {
        self.note(3, host);
        let host = &mut self.hosts[host];
        host.busy_until = host.busy_until.max(self.now.after(ns));
    }

    fn note(&mut self, what: u64, host: HostId) {
        self.events += 1;
        let word = self.now.as_ns() ^ what << 60 ^ (host as u64) << 52 ^ self.events << 32;
        self.trace = (self.trace ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn wake(&mut self, id: HostId, at: Instant) {
        let host = &mut self.hosts[id];
        let at = at.max(host.busy_until).max(self.now);
        if host.process.is_some() && at < host.turn_at {
            host.turn_at = at;
            self.queue.push(at, Event::Turn(id));
        }
    }

    fn happen(&mut self, at: Instant, event: Event) {
        match event {
            Event::Turn(host) => {
                if self.hosts[host].turn_at != at {
                    return;
                }
                self.hosts[host].turn_at = Instant::NEVER;
                if self.hosts[host].busy_until > at {
                    self.wake(host, at);
                } else {
                    self.turn(host);
                }
            }
            Event::Safe(host) => {
                while let Some(outcome) = self.hosts[host].disk.completed(at) {
                    self.hosts[host].completed.push(outcome);
                }
                self.wake(host, at);
            }
            Event::Start(host) => self.start(host),
            Event::Heal => self.wire.heal(),
            Event::Room(times) if times == self.filled => self.set_full(false),
            Event::Room(_) => {}
            Event::Chaos => self.blow(),
        }
    }

    fn turn(&mut self, id: HostId) {
        let host = &mut self.hosts[id];
        let Some(process) = host.process.as_mut() else { return };
        let mut outside = Outside {
            now: host.clock.local(self.now),
            port: self.wire.port(id, self.now),
            completed: std::mem::take(&mut host.completed),
            writes: Vec::new(),
            stop: None,
            score: &mut self.score,
        };
        let more = process.turn(&mut outside);
        let (writes, stop) = (outside.writes, outside.stop);
        let deadline = process.deadline().map(|at| host.clock.truth(at));
        host.busy_until = self.now.after(self.options.turn_ns);
        for write in writes {
            let (least, spread) = self.options.disk_ns;
            let at = host.disk.write(self.now.after(least + self.rng.below(spread + 1)), write);
            self.queue.push(at, Event::Safe(id));
        }
        if let Some(reason) = stop {
            self.stopped.push((id, reason));
            let down_ns = self.rng.below(self.options.chaos.down_ns.max(MS));
            self.crash(id, Some(down_ns));
            return;
        }
        // A process that waits for room towards a peer polls; the longer it does so without
        // success, the rarer its turns.
        host.idle_turns = if more { (host.idle_turns + 1).min(60) } else { 0 };
        let patience_ns = self.options.turn_ns << (host.idle_turns / 10);
        let more_at = (more || self.wire.waiting(id)).then(|| self.now.after(patience_ns));
        if let Some(at) = more_at.into_iter().chain(deadline).min() {
            self.wake(id, at);
        }
    }

    fn blow(&mut self) {
        let chaos = self.options.chaos;
        if chaos.every_ns == 0 {
            return;
        }
        self.queue.push(self.now.after(1 + self.rng.below(2 * chaos.every_ns)), Event::Chaos);
        let [crash, pause, partition, full] = chaos.weights.map(u64::from);
        let draw = self.rng.below(crash + pause + partition + full);
        let host = self.rng.below(self.hosts.len() as u64) as usize;
        if draw < crash {
            let ns = self.rng.below(chaos.down_ns + 1);
            if self.hosts[host].frail.crash {
                self.crash(host, Some(ns));
            }
        } else if draw < crash + pause {
            let ns = self.rng.below(chaos.pause_ns + 1);
            if self.hosts[host].frail.pause {
                self.pause(host, ns);
            }
        } else if draw < crash + pause + partition {
            let ns = self.rng.below(chaos.partition_ns + 1);
            self.partition(ns);
        } else {
            let ns = self.rng.below(chaos.full_ns + 1);
            self.fill_disks(ns);
        }
    }

    /// No disk takes a write for `ns`.
    pub fn fill_disks(&mut self, ns: u64) {
        self.filled += 1;
        self.note(5, 0);
        self.set_full(true);
        self.queue.push(self.now.after(ns), Event::Room(self.filled));
    }

    /// The next write to this host's disk fails, which ends the process there.
    pub fn fail_disk(&mut self, host: HostId) {
        self.note(6, host);
        self.hosts[host].disk.fail();
    }

    fn set_full(&mut self, full: bool) {
        self.hosts.iter_mut().for_each(|host| host.disk.set_full(full));
    }

    /// Divides the hosts into two camps at random, between which nothing passes for `ns`, in one
    /// direction or both.
    pub fn partition(&mut self, ns: u64) {
        let (camp, both) = (self.rng.u64(), self.rng.chance(500_000));
        self.note(4, camp as usize);
        let side = |host: HostId| camp >> (host % 64) & 1 == 1;
        for a in 0..self.hosts.len() {
            for b in 0..self.hosts.len() {
                if side(a) && !side(b) {
                    self.wire.cut(a, b, false);
                    if both {
                        self.wire.cut(b, a, false);
                    }
                }
            }
        }
        self.queue.push(self.now.after(ns), Event::Heal);
    }
}

impl<S: Debug> Debug for World<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("now", &self.now)
            .field("score", &self.score)
            .finish_non_exhaustive()
    }
}

/// A host's clock: it started at another time than the others and runs at a slightly other speed.
#[derive(Clone, Copy, Debug)]
struct Clock {
    ahead_ns: u64,
    /// A million is true time.
    ppm: u64,
}

impl Clock {
    fn local(self, truth: Instant) -> Instant {
        let ns = u128::from(truth.as_ns()) * u128::from(self.ppm) / 1_000_000;
        Instant::from_ns(self.ahead_ns + ns as u64)
    }

    /// The first time at which the clock shows `local` or more.
    fn truth(self, local: Instant) -> Instant {
        if local == Instant::NEVER {
            return local;
        }
        let ns = u128::from(local.as_ns().saturating_sub(self.ahead_ns)) * 1_000_000;
        Instant::from_ns(u64::try_from(ns.div_ceil(u128::from(self.ppm))).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
