//! A simulated world: hosts, each with a clock, a disk and at most one live process, on one wire,
//! in virtual time from one seed.
//!
//! ```text
//!  event queue, by (time, seq):  arrival of a datagram · a write safe · crash · start ·
//!                                pause · partition · heal · disks full · room again
//!  a turn of the first host:     Process::turn(Outside { now, port, disk, score, … })
//! ```
//!
//! Always: everything that happens follows from the seed and the options, so a run repeats itself;
//! a process that dies loses all its state but its disk; a host does nothing between its turns.
//!
//! Not here: the work of the processes (see [`crate::node`] for one that runs an endpoint with a
//! store machine), and the check of their results (see [`crate::check`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::{Instant, Rng};
use sprat_store::etcd::Request;

use crate::clock::Clock;
use crate::disk::{Disk, Outcome};
use crate::etcd::{self, Etcd};
use crate::frames::Kept;
use crate::process::{Make, Outside, Process, Start};
use crate::queue::Queue;
use crate::wire::{self, HostId, Wire};

mod faults;

/// The options of a simulated world. By default nothing fails.
#[derive(Clone, Debug)]
pub struct Options {
    /// The options of the simulated network.
    pub wire: wire::Options,
    /// The faults between hosts and the simulated etcd.
    pub etcd: etcd::Options,
    /// The faults of the simulated hosts at random times.
    pub chaos: Chaos,
    /// The most that a simulated host's clock drifts from true time, in parts per million.
    pub drift_ppm: u32,
    /// The time that a process's turn takes, in nanoseconds.
    pub turn_ns: u64,
    /// The shortest time until a write to disk is durable, and the most time added to it at random,
    /// in nanoseconds.
    pub disk_ns: (u64, u64),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            wire: wire::Options::default(),
            etcd: etcd::Options::default(),
            chaos: Chaos::default(),
            drift_ppm: 200,
            turn_ns: US,
            disk_ns: (20 * US, 2 * MS),
        }
    }
}

/// Faults of simulated hosts at random times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chaos {
    /// The mean time between two faults of hosts, in nanoseconds; 0 for no faults.
    pub every_ns: u64,
    /// The relative probabilities of four faults: a crash, a pause, a partition and full disks.
    pub weights: [u32; 4],
    /// The longest time that a simulated host stays down, in nanoseconds.
    pub down_ns: u64,
    /// The longest time that a simulated process is paused, in nanoseconds.
    pub pause_ns: u64,
    /// The longest time that a partition of the network lasts, in nanoseconds.
    pub partition_ns: u64,
    /// The longest time that the simulated disks are full, in nanoseconds.
    pub full_ns: u64,
}

/// The faults of [`Chaos`] that may hit a host. Partitions and full disks hit all hosts alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFaults {
    /// The host's process may crash.
    pub crash: bool,
    /// The host's process may be paused.
    pub pause: bool,
}

impl HostFaults {
    /// The host's process neither crashes nor is paused.
    pub const NONE: Self = Self { crash: false, pause: false };
    /// The host's process may be paused, but does not crash.
    pub const PAUSES: Self = Self { crash: false, pause: true };
    /// The host's process may crash and may be paused.
    pub const ALL: Self = Self { crash: true, pause: true };
}

/// A simulated world: hosts with their processes, a wire and virtual time.
pub struct World<S> {
    /// The score: the data of the test, outside of all processes.
    pub score: S,
    /// The simulated network of the world.
    pub wire: Wire,
    /// The etcd that all hosts of the world share.
    pub etcd: Etcd,
    /// The hosts that cannot reach the etcd.
    without_etcd: BTreeSet<HostId>,
    /// The requests to the etcd and its replies that are under way.
    letters: BTreeMap<u64, Letter>,
    options: Options,
    now: Instant,
    rng: Rng,
    hosts: Vec<Host<S>>,
    queue: Queue<Event>,
    trace: u64,
    events: u64,
    stopped: Vec<(HostId, String)>,
    /// The number of times that the world's disks became full.
    filled: u64,
    /// The number of messages between hosts and the etcd so far.
    posted: u64,
}

struct Host<S> {
    make: Make<S>,
    /// The other hosts whose processes end when this one's does.
    bound: Vec<HostId>,
    faults: HostFaults,
    process: Option<Box<dyn Process<S>>>,
    life: u64,
    clock: Clock,
    disk: Disk,
    completed: Vec<Outcome>,
    answers: Vec<(u64, etcd::Outcome)>,
    /// The time of the host's next turn.
    turn_at: Instant,
    busy_until: Instant,
    /// The number of turns in a row that left more to do.
    idle_turns: u32,
    /// The number of turns in a row, without a pause, for which nothing had arrived.
    fruitless: u32,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Safe(HostId),
    Start(HostId),
    /// A request to the etcd, or a reply, arrives.
    Letter(u64),
    Chaos,
    Heal,
    /// The disks have room again, unless they became full again since. The number says how often
    /// they had become full.
    Room(u64),
}

/// A request to the simulated etcd, or its reply, on the way.
struct Letter {
    host: HostId,
    /// The life of the process at the host that has sent the request.
    life: u64,
    /// The process's number of the request.
    id: u64,
    contents: Contents,
}

enum Contents {
    Request(Request),
    Reply(etcd::Outcome),
}

/// The most events in one [`World::run_until`]. A world with more makes no progress.
const MAX_EVENTS: u64 = 50_000_000;

/// The binary logarithm of the most that a process waits between turns that leave more to do, in
/// turns.
const MOST_SHIFT: u32 = 6;

/// The most turns of a host in a row, without a pause, for which nothing has arrived: more than any
/// background work takes. A process with more would use a whole core for nothing.
const MAX_FRUITLESS: u32 = 20_000;

impl<S> World<S> {
    /// Makes a simulated world without hosts.
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
            etcd: Etcd::default(),
            without_etcd: BTreeSet::new(),
            letters: BTreeMap::new(),
            options,
            now: Instant::ZERO,
            rng,
            hosts: Vec::new(),
            queue,
            trace: 0,
            events: 0,
            stopped: Vec::new(),
            filled: 0,
            posted: 0,
        }
    }

    /// Adds a host to the world. `make` makes its process now and after each crash. Returns the
    /// host's number.
    pub fn host(
        &mut self,
        faults: HostFaults,
        make: impl FnMut(Start<'_>) -> Box<dyn Process<S>> + 'static,
    ) -> HostId {
        let id = self.wire.host();
        let drift_ppm = self.rng.below(2 * u64::from(self.options.drift_ppm) + 1);
        self.hosts.push(Host {
            make: Box::new(make),
            bound: Vec::new(),
            faults,
            process: None,
            life: 0,
            clock: Clock {
                ahead_ns: self.rng.below(1_000 * SECOND),
                ppm: 1_000_000 + drift_ppm - u64::from(self.options.drift_ppm),
            },
            disk: Disk::default(),
            completed: Vec::new(),
            answers: Vec::new(),
            turn_at: Instant::NEVER,
            busy_until: Instant::ZERO,
            idle_turns: 0,
            fruitless: 0,
        });
        self.start(id);
        id
    }

    /// Binds hosts together: they are parts of one process, and when that of one ends, all do.
    pub fn bind(&mut self, hosts: &[HostId]) {
        for &host in hosts {
            let others = hosts.iter().copied().filter(|other| *other != host);
            self.hosts[host].bound = others.collect();
        }
    }

    /// Lets the writes to a host's disk sync the frames of its replicas.
    pub fn set_frames(&mut self, host: HostId, frames: Kept) {
        self.hosts[host].disk.set_frames(frames);
    }

    /// Returns the frames of a host's replicas, if it has any.
    #[must_use]
    pub fn frames(&self, host: HostId) -> Option<&Kept> {
        self.hosts[host].disk.frames()
    }

    /// Returns the true time of the world, which no host's clock shows.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the time now by the clock of a simulated host.
    #[must_use]
    pub fn local(&self, host: HostId) -> Instant {
        self.hosts[host].clock.local(self.now)
    }

    /// Returns the number of processes that have lived at the simulated host `host`.
    #[must_use]
    pub fn life(&self, host: HostId) -> u64 {
        self.hosts[host].life
    }

    /// Returns the state of the process that runs at `host`, if it is a `T`.
    pub fn state<T: 'static>(&mut self, host: HostId) -> Option<&mut T> {
        self.hosts.get_mut(host)?.process.as_mut()?.state().downcast_mut()
    }

    /// Returns true if a process lives at the simulated host `host`.
    #[must_use]
    pub fn is_up(&self, host: HostId) -> bool {
        self.hosts[host].process.is_some()
    }

    /// Returns the processes that ended by themselves so far, as their hosts and reasons.
    #[must_use]
    pub fn stopped(&self) -> &[(HostId, String)] {
        &self.stopped
    }

    /// Sets the faults of hosts from now on. The world must not have had any before.
    pub fn set_chaos(&mut self, chaos: Chaos) {
        self.options.chaos = chaos;
        self.queue.push(self.now.after(1 + self.rng.below(2 * chaos.every_ns)), Event::Chaos);
    }

    /// Returns a number that depends on everything that happened in the world: two runs of one seed
    /// must give the same number.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.trace ^ self.wire.trace_hash()
    }

    /// Runs the simulated world for `ns` nanoseconds.
    pub fn run_for(&mut self, ns: u64) {
        self.run_until(ns, |_| false);
    }

    /// Runs the simulated world until `done` returns true, which it calls after each event, but at
    /// most for `ns` nanoseconds. Returns true if `done` did.
    ///
    /// # Panics
    /// If the world makes no progress: too many events happen.
    pub fn run_until(&mut self, ns: u64, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now.after(ns);
        let mut events = 0;
        while !done(self) {
            let (wire, event) = (self.wire.next(), self.queue.next());
            let (turn, host) = self.next_turn();
            let next = wire.into_iter().chain(event).fold(turn, Instant::min);
            let Some(at) = Some(next).filter(|at| *at <= end && *at < Instant::NEVER) else {
                self.now = if end == Instant::NEVER { self.now } else { end };
                return false;
            };
            self.now = self.now.max(at);
            events += 1;
            assert!(events < MAX_EVENTS, "the world goes in circles at {:?}", self.now);
            if wire == Some(at) {
                if let Some(host) = self.wire.deliver() {
                    self.wake(host, at);
                }
            } else if event == Some(at) {
                if let Some((at, event)) = self.queue.pop() {
                    self.happen(at, event);
                }
            } else {
                self.turn(host);
            }
        }
        true
    }

    /// Returns the time of the next turn, and the host that has it. There are few hosts, and each
    /// moves its turn with everything that arrives.
    fn next_turn(&self) -> (Instant, HostId) {
        let turns = self.hosts.iter().enumerate().map(|(id, host)| (host.turn_at, id));
        turns.min().unwrap_or((Instant::NEVER, 0))
    }

    /// Starts a process at the simulated host `host`, unless one lives there.
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
        let start =
            Start { host: id, life: host.life, addr, now, truth: self.now, port, rng, disk };
        host.process = Some((host.make)(start));
        self.wake(id, self.now);
    }

    fn note(&mut self, what: u64, host: HostId) {
        self.events += 1;
        let word = self.now.as_ns() ^ what << 60 ^ (host as u64) << 52 ^ self.events << 32;
        self.trace = (self.trace ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn wake(&mut self, id: HostId, at: Instant) {
        let host = &mut self.hosts[id];
        if host.process.is_some() {
            host.turn_at = host.turn_at.min(at.max(host.busy_until).max(self.now));
        }
    }

    fn happen(&mut self, at: Instant, event: Event) {
        match event {
            Event::Safe(host) => {
                while let Some(outcome) = self.hosts[host].disk.completed(at) {
                    self.hosts[host].completed.push(outcome);
                }
                self.wake(host, at);
            }
            Event::Start(host) => self.start(host),
            Event::Letter(number) => self.deliver(number),
            Event::Heal => {
                self.wire.heal();
                self.without_etcd.clear();
            }
            Event::Room(times) if times == self.filled => self.set_full(false),
            Event::Room(_) => {}
            Event::Chaos => self.inject_fault(),
        }
    }

    fn turn(&mut self, id: HostId) {
        let is_fruitless = !self.wire.waiting(id);
        let host = &mut self.hosts[id];
        if host.busy_until > self.now {
            host.turn_at = host.busy_until;
            return;
        }
        host.turn_at = Instant::NEVER;
        let Some(process) = host.process.as_mut() else { return };
        let is_fruitless = is_fruitless && host.completed.is_empty() && host.answers.is_empty();
        let is_rested = self.now > host.busy_until.after(self.options.turn_ns << MOST_SHIFT);
        host.fruitless = if is_fruitless && !is_rested { host.fruitless + 1 } else { 0 };
        assert!(host.fruitless < MAX_FRUITLESS, "host {id} turns for nothing at {:?}", self.now);
        let mut outside = Outside {
            now: host.clock.local(self.now),
            truth: self.now,
            port: self.wire.port(id, self.now),
            completed: std::mem::take(&mut host.completed),
            writes: Vec::new(),
            answers: std::mem::take(&mut host.answers),
            requests: Vec::new(),
            stop: None,
            score: &mut self.score,
        };
        let more = process.turn(&mut outside);
        let (writes, requests, stop) = (outside.writes, outside.requests, outside.stop);
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
        host.idle_turns = if more { (host.idle_turns + 1).min(10 * MOST_SHIFT) } else { 0 };
        let (patience_ns, life) = (self.options.turn_ns << (host.idle_turns / 10), host.life);
        for (number, request) in requests {
            let contents = Contents::Request(request);
            self.post(Letter { host: id, life, id: number, contents });
        }
        let more_at = (more || self.wire.waiting(id)).then(|| self.now.after(patience_ns));
        if let Some(at) = more_at.into_iter().chain(deadline).min() {
            self.wake(id, at);
        }
    }

    /// Sends a request to the etcd, or its reply, unless it is lost.
    fn post(&mut self, letter: Letter) {
        let etcd::Options { drop_ppm, late_ppm, delay_ns: (usual, late) } = self.options.etcd;
        let is_cut = self.without_etcd.contains(&letter.host);
        if is_cut || self.rng.chance(drop_ppm) {
            return;
        }
        let most = if self.rng.chance(late_ppm) { late } else { usual };
        let at = self.now.after(1 + self.rng.below(most));
        self.posted += 1;
        self.letters.insert(self.posted, letter);
        self.queue.push(at, Event::Letter(self.posted));
    }

    /// Executes a request to the etcd, or hands its reply to the process that has sent it.
    fn deliver(&mut self, number: u64) {
        let Some(Letter { host, life, id, contents }) = self.letters.remove(&number) else {
            return;
        };
        match contents {
            Contents::Request(request) => {
                let contents = Contents::Reply(self.etcd.execute(&request));
                self.post(Letter { host, life, id, contents });
            }
            Contents::Reply(outcome) if self.hosts[host].life == life && self.is_up(host) => {
                self.hosts[host].answers.push((id, outcome));
                self.wake(host, self.now);
            }
            Contents::Reply(_) => {}
        }
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

#[cfg(test)]
mod tests;
