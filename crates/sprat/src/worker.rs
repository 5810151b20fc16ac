//! ONE turn of the loop, and nothing else: what arrived goes to the machine, what the machine wants goes out.
//!
//! ```text
//!   now ─► doors: input ─► events ─► machine ─► output ─► doors: output ─► (idle long enough? sleep)
//! ```
//!
//! Everything in `host` that talks is a [`Machine`] in a worker: a coordinator, a master, the client of a program, an RPC
//! service. A worker is one thread and owns all it touches, so nothing here locks; the only way in from another thread
//! is a [`Waker`].
//!
//! Not here: what the messages say (the machine), how they travel (the doors), when to stop (the caller of `turn`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Link, Machine, Output};
use sprat_proto::rpc::{Event, Message, RequestError, RpcError, RpcId};
use sprat_proto::time::{SECOND, US};

use crate::disk::{Disk, Outcome};
use crate::doors::{Door, Doors};
use crate::links::Links;
use sprat_sys::clock::Clock;
use sprat_sys::cpu::{Idle, Rest};

mod reach;
#[cfg(test)]
mod tests;

use reach::{HELD, Reach, Waiting};

/// How often timers are looked at: a turn that finds nothing must be short, for the next packet arrives in one of them.
const TIMER_CHECK_NS: u64 = 20 * US;
/// Calls whose sessions are loaded together.
const AHEAD: usize = 32;
/// The longest buffer that a machine gets back, in bytes.
const SPARE_MOST: usize = 64 << 10;
/// The longest sleep, so that no lost wake-up can last.
const LONGEST_SLEEP_NS: u64 = SECOND;

/// Lets another thread end the worker's sleep.
#[derive(Clone, Debug)]
pub struct Waker {
    fd: Arc<OwnedFd>,
    rung: Arc<AtomicBool>,
}

impl Waker {
    fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { fd: Arc::new(fd), rung: Arc::new(AtomicBool::new(false)) })
    }

    /// Makes the worker's next turn happen now. Callable from a signal handler.
    pub fn wake(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            // A full counter means that a wake-up is pending anyway.
            let _ = rustix::io::write(&*self.fd, &[0, 0, 0, 0, 0, 0, 0, 1]);
        }
    }

    /// True if it was rung since the last call.
    fn clear(&self) -> bool {
        if !self.rung.load(Ordering::Relaxed) {
            return false;
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.fd, &mut count);
        self.rung.store(false, Ordering::SeqCst);
        true
    }
}

/// Ends a worker's [`Worker::run`] from another thread or a signal handler.
#[derive(Clone, Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    waker: Waker,
}

impl Stop {
    /// Makes `run` return after the turn it is in.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::SeqCst);
        self.waker.wake();
    }
}

/// A machine, the doors it talks through, and the loop that joins them.
#[derive(Debug)]
pub struct Worker<M: Machine> {
    machine: M,
    doors: Doors,
    links: Links,
    clock: Clock,
    idle: Idle,
    waker: Waker,
    stop: Arc<AtomicBool>,
    disk: Option<Disk>,
    next_timers: Instant,
    /// The last look at the timers found work, and there may be more: the next one comes with the first idle turn.
    ticking: bool,
    /// Something may wait to be sent.
    unsent: bool,
    /// Calls without an answer yet.
    awaited: usize,
    /// Those of them that wait until it is known how their server is reached.
    waiting: Waiting,
    stopped: Option<String>,
}

impl<M: Machine> Worker<M> {
    /// A worker for `machine`, served through `doors`; `disk` keeps what the machine persists.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new(machine: M, doors: Doors, disk: Option<Disk>, clock: Clock) -> io::Result<Self> {
        Ok(Self {
            machine,
            doors,
            links: Links::new(1),
            clock,
            idle: Idle::new(),
            waker: Waker::new()?,
            stop: Arc::new(AtomicBool::new(false)),
            disk,
            next_timers: Instant::ZERO,
            ticking: false,
            unsent: true,
            awaited: 0,
            waiting: Waiting::default(),
            stopped: None,
        })
    }

    /// The same with up to so many sessions for a link, used as far as calls do not fit fewer. Before anything is bound.
    #[must_use]
    pub(crate) fn with_strands(self, strands: u32) -> Self {
        Self { links: Links::new(strands), ..self }
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The doors, to read their locators.
    pub fn doors(&self) -> &Doors {
        &self.doors
    }

    /// The time now, on the clock that the machine sees.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// What other threads wake this worker by.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// What ends [`Worker::run`].
    pub fn stop(&self) -> Stop {
        Stop { flag: Arc::clone(&self.stop), waker: self.waker() }
    }

    /// One turn, without sleeping. True if there was work.
    pub fn turn(&mut self) -> bool {
        let now = self.clock.now();
        self.turn_at(now)
    }

    #[inline]
    fn turn_at(&mut self, now: Instant) -> bool {
        self.unsent |= self.waker.clear();
        let mut work = self.receive(now);
        if now >= self.next_timers || self.ticking && !work {
            self.ticking = self.timers(now);
            work |= self.ticking;
        }
        if !self.links.racing().is_empty() {
            self.races(now);
        }
        if self.unsent {
            self.send(now);
        }
        work
    }

    /// One turn, then the rest that idling has earned: nothing, a pause, a yield, or a sleep until something happens.
    pub fn turn_and_rest(&mut self) {
        let now = self.clock.now();
        if self.turn_at(now) {
            self.idle.worked();
            return;
        }
        match self.idle.rest(self.awaited > 0, || now) {
            Rest::Spun => {}
            Rest::Sleep => self.sleep(),
        }
    }

    /// Turns until [`Stop::stop`].
    ///
    /// # Errors
    /// The machine wants to stop for good; the text says why.
    pub fn run(&mut self) -> Result<(), String> {
        while !self.stop.load(Ordering::Relaxed) {
            self.turn_and_rest();
            if let Some(reason) = self.stopped.take() {
                return Err(reason);
            }
        }
        Ok(())
    }

    /// What arrived goes to the machine.
    fn receive(&mut self, now: Instant) -> bool {
        let mut work = false;
        for index in 0..self.doors.len() {
            if !self.doors.due(index, now) {
                continue;
            }
            let door = self.doors.at(index);
            if door.input(now) > 0 {
                work = true;
                self.unsent = true;
                self.doors.warm(index, now);
                self.events(index, now);
            }
        }
        work
    }

    /// Events of one door, until there are none.
    fn events(&mut self, index: usize, now: Instant) {
        let door = self.doors.at(index);
        while let Some(event) = door.event(now) {
            match event {
                Event::Request { rpc, payload, deadline } => {
                    let caller = Caller { door: index as u32, rpc };
                    if let Some(mut reply) = self.machine.request(now, caller, payload, deadline) {
                        door.take_reply(now, rpc, &mut reply);
                        spare(&mut self.machine, reply);
                    }
                }
                Event::Response { tag, payload, .. } => {
                    self.awaited -= 1;
                    self.machine.response(now, tag, Ok(payload));
                }
                Event::Failed { tag, error, .. } => {
                    self.awaited -= 1;
                    self.machine.response(now, tag, Err(error));
                }
                Event::Closed { session, reason } => {
                    let ended =
                        self.links.closed(now, (index, session), reason, door.cause(session));
                    if let Some((link, why)) = ended {
                        self.machine.unreachable(link, &why.to_string());
                    }
                }
            }
            self.unsent = true;
        }
    }

    /// Timers that are due, and what the disk has written.
    fn timers(&mut self, now: Instant) -> bool {
        self.next_timers = now.after(TIMER_CHECK_NS);
        let mut work = false;
        for index in 0..self.doors.len() {
            let door = self.doors.at(index);
            if door.deadline().is_some_and(|at| at <= now) {
                door.tick(now);
                self.events(index, now);
                self.unsent = true;
                work = true;
            }
        }
        if !self.waiting.is_empty() {
            work |= self.expire(now);
        }
        if let Some(disk) = &mut self.disk {
            while let Some(outcome) = disk.completed() {
                match outcome {
                    Outcome::Persisted(seq) => self.machine.persisted(now, seq),
                    Outcome::Refused { reason, durable } => {
                        self.machine.rollback(now, &reason, durable)
                    }
                    Outcome::Failed(reason) => self.stopped = Some(reason),
                }
                self.unsent = true;
                work = true;
            }
        }
        if self.machine.deadline().is_some_and(|at| at <= now) {
            work = true;
            self.unsent = true;
            self.machine.tick(now);
        }
        work
    }

    /// What the machine wants goes out.
    pub(crate) fn send(&mut self, now: Instant) {
        self.unsent = false;
        while let Some(output) = self.machine.output(now) {
            match output {
                Output::Call { link, tag, message, deadline } => {
                    self.call(now, link, tag, message, deadline)
                }
                Output::Reply { caller, mut message } => {
                    if let Some(door) = self.doors.get(caller.door as usize) {
                        door.take_reply(now, caller.rpc, &mut message);
                        spare(&mut self.machine, message);
                    }
                }
                Output::Counters { caller, mut message } => {
                    self.doors.count(&mut message.bytes);
                    if let Some(door) = self.doors.get(caller.door as usize) {
                        door.reply(now, caller.rpc, message);
                    }
                }
                Output::Connect { link, locator } => self.bind(now, link, &locator),
                Output::Disconnect { link } => self.place(now, link, None),
                Output::Cancel { door: HELD, rpc } => self.cancel_held(now, rpc),
                Output::Cancel { door, rpc } => {
                    if let Some(door) = self.doors.get(door as usize) {
                        door.cancel(now, rpc);
                    }
                }
                Output::Persist { seq, puts, deletes } => match &mut self.disk {
                    Some(disk) => disk.persist(seq, puts, deletes),
                    None => self.machine.persisted(now, seq),
                },
                Output::Stop { reason } => self.stopped = Some(reason),
            }
        }
        for Door { transport, .. } in self.doors.iter() {
            self.unsent |= transport.output(now, &self.machine);
            while let Some(slice) = transport.released() {
                self.machine.released(slice);
            }
        }
    }

    /// Sends a request; its response, an error included, goes to the machine.
    pub(crate) fn call(
        &mut self,
        now: Instant,
        link: Link,
        tag: u64,
        mut message: Message,
        deadline: Instant,
    ) {
        let strand = self.links.strand(link, self.awaited);
        let result = match self.reach(now, strand) {
            Reach::Session((door, session)) => {
                let sent =
                    self.doors.at(door).take_request(now, session, tag, &mut message, deadline);
                spare(&mut self.machine, message);
                sent.map(|rpc| (door, rpc)).map_err(not_taken)
            }
            Reach::Opening => return self.hold(now, link, tag, message, deadline),
            Reach::Failed => Err(RpcError::NotExecuted),
        };
        self.called(now, tag, result);
    }

    /// Sends a request of bytes that stay the caller's, as [`Worker::call`].
    #[inline]
    pub(crate) fn call_bytes(
        &mut self,
        now: Instant,
        link: Link,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) {
        let strand = self.links.strand(link, self.awaited);
        let result = match self.reach(now, strand) {
            Reach::Session((door, session)) => {
                let sent = self.doors.at(door).request_bytes(now, session, tag, bytes, deadline);
                sent.map(|rpc| (door, rpc)).map_err(not_taken)
            }
            Reach::Opening => return self.hold(now, link, tag, bytes.into(), deadline),
            Reach::Failed => Err(RpcError::NotExecuted),
        };
        self.called(now, tag, result);
    }

    /// A request has gone out, by this door and under this number, or has failed.
    #[inline]
    fn called(&mut self, now: Instant, tag: u64, result: Result<(usize, RpcId), RpcError>) {
        match result {
            Ok((door, rpc)) => {
                self.awaited += 1;
                self.machine.sent(tag, door as u32, rpc);
            }
            Err(error) => {
                self.machine.response(now, tag, Err(error));
                self.unsent = true;
            }
        }
    }

    /// The machine was told something between two turns: the next one asks what it wants.
    pub(crate) fn told(&mut self) {
        self.unsent = true;
    }

    /// The machine, whose links have one strand each, was told to call on these: loads what that will touch. Misses of the cache that are independent
    /// overlap, which among a million sessions is most of a call's time.
    pub(crate) fn warm(&mut self, links: &[Link]) {
        for links in links.chunks(AHEAD) {
            let sessions: ArrayVec<_, AHEAD> =
                links.iter().filter_map(|&link| self.links.session(link)).collect();
            for door in sessions.chunk_by(|a, b| a.0 == b.0) {
                let ids: ArrayVec<_, AHEAD> = door.iter().map(|session| session.1).collect();
                self.doors.at(door[0].0).warm(&ids);
            }
        }
    }

    /// Sleeps until a door, the disk, another thread or a timer has something.
    fn sleep(&mut self) {
        let now = self.clock.now();
        // Background work comes before sleep, a bounded piece at a time.
        if self.machine.tick(now) {
            self.unsent = true;
        }
        if self.unsent {
            self.send(now);
            return;
        }
        let mut wake_at =
            now.after(LONGEST_SLEEP_NS).min(self.machine.deadline().unwrap_or(Instant::NEVER));
        wake_at = wake_at.min(self.race_deadline());
        let mut may_sleep = true;
        for door in self.doors.iter() {
            wake_at = wake_at.min(door.transport.deadline().unwrap_or(Instant::NEVER));
            may_sleep &= door.transport.doze();
        }
        if may_sleep {
            self.wait(wake_at.since(now));
        }
        for door in self.doors.iter() {
            door.transport.wake();
        }
        self.doors.all_due();
        self.next_timers = Instant::ZERO;
    }

    fn wait(&self, ns: u64) {
        let timeout = Timespec { tv_sec: (ns / SECOND) as i64, tv_nsec: (ns % SECOND) as i64 };
        let mut fds = Vec::with_capacity(self.doors.len() + 2);
        fds.push(PollFd::new(&*self.waker.fd, PollFlags::IN));
        if let Some(disk) = &self.disk {
            fds.push(PollFd::from_borrowed_fd(disk.fd(), PollFlags::IN));
        }
        fds.extend(self.doors.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // An interrupted wait is as good as a short one.
        let _ = poll(&mut fds, Some(&timeout));
        if let Some(disk) = &self.disk {
            disk.clear();
        }
    }
}

/// What became of a request that a transport did not take.
fn not_taken(error: RequestError) -> RpcError {
    match error {
        RequestError::QueueFull => RpcError::Busy { retry_after_ns: 100 * US },
        _ => RpcError::NotExecuted,
    }
}

/// Gives the machine the buffer of a message that has gone out, if there is one and it is not so long that keeping it would
/// be a waste.
#[inline]
fn spare<M: Machine>(machine: &mut M, message: Message) {
    if (1..=SPARE_MOST).contains(&message.bytes.capacity()) {
        machine.spare(message.bytes);
    }
}
