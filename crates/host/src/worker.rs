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
use sprat_proto::rpc::{Event, Message, RequestError, RpcError, RpcId, SessionId};
use sprat_proto::time::{SECOND, US};
use sprat_store::machine::{Caller, Link, Machine, Output};

use crate::clock::Clock;
use crate::cpu::{Idle, Rest};
use crate::disk::Disk;
use crate::doors::{Door, Doors, Way};
use crate::links::Links;
use crate::locator::Locator;

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
                Event::Closed { session, .. } => self.links.closed(index, session),
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
        if let Some(disk) = &mut self.disk {
            while let Some(seq) = disk.persisted() {
                self.machine.persisted(now, seq);
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
                Output::Call { link, tag, message, deadline } => self.call(now, link, tag, message, deadline),
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
                Output::Disconnect { link } => self.links.strands(link).for_each(|s| self.unbind(now, s)),
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
        self.call_by(now, link, tag, |door, session| {
            door.take_request(now, session, tag, &mut message, deadline)
        });
        spare(&mut self.machine, message);
    }

    /// The same for bytes that stay the caller's.
    #[inline]
    pub(crate) fn call_bytes(&mut self, now: Instant, link: Link, tag: u64, bytes: &[u8], deadline: Instant) {
        self.call_by(now, link, tag, |door, session| door.request_bytes(now, session, tag, bytes, deadline));
    }

    #[inline]
    fn call_by(
        &mut self,
        now: Instant,
        link: Link,
        tag: u64,
        send: impl FnOnce(&mut Way, SessionId) -> Result<RpcId, RequestError>,
    ) {
        let strand = self.links.strand(link, self.awaited);
        let result = self.session(now, strand).and_then(|(door, session)| {
            let sent = send(self.doors.at(door), session);
            sent.map(|rpc| (door, rpc)).map_err(|e| match e {
                RequestError::QueueFull => RpcError::Busy { retry_after_ns: 100 * US },
                _ => RpcError::NotExecuted,
            })
        });
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

    /// The session that stands for a strand, connected if it is not.
    #[inline]
    fn session(&mut self, now: Instant, strand: Link) -> Result<(usize, SessionId), RpcError> {
        match self.links.session(strand) {
            Some(session) => Ok(session),
            None => self.open(now, strand).map_err(|_| RpcError::NotExecuted),
        }
    }

    /// Opens a session for a strand.
    fn open(&mut self, now: Instant, strand: Link) -> io::Result<(usize, SessionId)> {
        let (door, to) = self.links.target(strand).ok_or(io::ErrorKind::NotFound)?;
        let session = self.doors.at(door).connect(now, to)?;
        self.links.opened(strand, session);
        Ok((door, session))
    }

    /// Binds `link` to the server at `locator` and connects at once, so that a mistake shows here.
    pub(crate) fn connect(&mut self, link: Link, locator: &str) -> io::Result<()> {
        let target = match self.links.known(locator) {
            Some(target) => target,
            None => {
                let to = locator.parse()?;
                let door = self.doors.towards(&to)?;
                self.links.learn(locator, to, door, self.doors.at(door).channels())
            }
        };
        let now = self.clock.now();
        self.place(now, link, Some(target));
        let strand = self.links.strand(link, 0);
        self.open(now, strand).map(drop)
    }

    /// Binds `link` to the first of `locators` that there is a door for; unusable ones leave it unbound, so that its
    /// calls fail as not executed.
    fn bind(&mut self, now: Instant, link: Link, locators: &str) {
        let target = self.links.known(locators).or_else(|| {
            let mut list = Locator::list(locators).ok()?.into_iter();
            let (to, door) = list.find_map(|to| self.doors.towards(&to).ok().map(|door| (to, door)))?;
            Some(self.links.learn(locators, to, door, self.doors.at(door).channels()))
        });
        self.place(now, link, target);
    }

    /// Binds all strands of `link`, or none; whatever they were bound to before, they are not any more.
    fn place(&mut self, now: Instant, link: Link, target: Option<u32>) {
        for strand in self.links.strands(link) {
            self.unbind(now, strand);
            if let Some(target) = target {
                self.links.bind(strand, target);
            }
        }
    }

    /// Closes the session of a strand: nobody would hear of it any more, and its door has room for so many only.
    fn unbind(&mut self, now: Instant, strand: Link) {
        if let Some((door, session)) = self.links.unbind(strand) {
            self.doors.at(door).close(now, session);
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
        let mut wake_at = now.after(LONGEST_SLEEP_NS).min(self.machine.deadline().unwrap_or(Instant::NEVER));
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

/// Gives the machine the buffer of a message that has gone out, if there is one and it is not so long that keeping it would
/// be a waste.
#[inline]
fn spare<M: Machine>(machine: &mut M, message: Message) {
    if (1..=SPARE_MOST).contains(&message.bytes.capacity()) {
        machine.spare(message.bytes);
    }
}

#[cfg(test)]
mod tests {
    use sprat_proto::rpc::{Payload, Slice, Slices};

    use super::*;
    use crate::doors::Options;

    /// A machine that says what the test wants.
    #[derive(Debug, Default)]
    struct Script {
        says: Vec<Output>,
        failed: Vec<u64>,
    }

    impl Slices for Script {
        fn bytes(&self, _: Slice) -> &[u8] {
            &[]
        }
    }

    impl Machine for Script {
        fn request(&mut self, _: Instant, _: Caller, _: Payload<'_>, _: Instant) -> Option<Message> {
            None
        }

        fn response(&mut self, _: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
            assert!(result.is_err(), "nobody is there");
            self.failed.push(tag);
        }

        fn output(&mut self, _: Instant) -> Option<Output> {
            self.says.pop()
        }

        fn deadline(&self) -> Option<Instant> {
            None
        }

        fn tick(&mut self, _: Instant) -> bool {
            false
        }
    }

    #[test]
    fn a_link_bound_anew_closes_its_old_session() {
        // Sockets that nobody reads: whoever calls them waits.
        let silent = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let sockets = [silent(), silent()];
        let mut worker =
            Worker::new(Script::default(), Doors::new(Options::default()), None, Clock::new()).unwrap();
        for (tag, socket) in (0..).zip(&sockets) {
            let port = socket.local_addr().unwrap().port();
            let (link, message) = (Link(0), vec![1; 8].into());
            let call = Output::Call { link, tag, message, deadline: Instant::NEVER };
            let connect = Output::Connect { link, locator: format!("fast+udp:host=127.0.0.1,port={port}") };
            worker.machine.says = vec![call, connect];
            worker.unsent = true;
            worker.turn();
            assert!(worker.machine.says.is_empty() && worker.machine.failed.is_empty());
        }
        worker.doors.all_due();
        worker.turn();
        assert_eq!(
            worker.machine.failed,
            [0],
            "what was called on the old session has ended, and nothing else"
        );
        assert!(worker.links.session(Link(0)).is_some());
    }
}
