//! One turn of a node: it gives the machine what arrived, and does the actions that the machine
//! asks for.
//!
//! ```text
//!   now ─► transports: input ─► events ─► machine ─► output ─► transports: output
//!          every 20 µs: timers of transports and machine, writes that are done
//! ```
//! Everything that communicates is a [`Machine`] in a node: a coordinator, a master, the client of
//! a program, an RPC service. A node is single-threaded and owns all it touches.
//!
//! Always: [`Machine::response`] is called exactly once for each call. Not here: what the messages
//! say (the machine), how they travel (the transports), clocks and sleep (the program around it).

use alloc::string::String;
use alloc::vec::Vec;

use arrayvec::ArrayVec;

use super::answers::Answers;
use super::counters;
use super::held::Calls;
use super::host::{Host, Opened, Written};
use super::links::{Closed, Links};
use super::machine::{Caller, Link, Machine, Output, Replied};
use super::transport::Transport;
use crate::Instant;
use crate::rpc::{Event, Message, RequestError, RpcError, RpcId, Slice, Slices};
use crate::time::US;

/// The interval in nanoseconds at which a node checks its timers. A turn that finds nothing must be
/// short, for the next packet arrives during one of them.
const TIMER_CHECK_NS: u64 = 20 * US;
/// The number of requests that a node takes from one transport in a turn. With more, a fast peer
/// could keep a turn from its end.
const MOST_REQUESTS: usize = 64;
/// The number of sessions that a node loads into the cache together.
const PREFETCH: usize = 32;
/// The number of links up to which their sessions stay in the processor's second-level cache.
const CACHED_LINKS: usize = 4096;
/// The time in nanoseconds after which a machine repeats a call that a full session did not take.
const FULL_RETRY_NS: u64 = 100 * US;
/// The index of no transport, which [`Machine::sent`] names for a call that waits for a race.
pub(super) const HELD: u32 = u32::MAX;

/// A node: a machine, the links that it calls by, and its host.
#[derive(Debug)]
pub struct Node<M: Machine, H: Host> {
    pub(super) machine: M,
    pub(super) host: H,
    pub(super) links: Links<H::Error>,
    next_timers: Instant,
    /// The transport that the next turn begins with.
    first: usize,
    /// The begin of the present turn, and the number of requests that it has answered.
    began: Instant,
    answered: u32,
    answers: Answers,
    /// The last check of the node's timers found work: the next idle turn checks them again.
    ticking: bool,
    /// The machine or a transport may have something to send.
    pub(super) unsent: bool,
    /// The number of the machine's calls that have no response yet.
    pub(super) awaited: usize,
    /// The machine's calls that wait for a race.
    pub(super) held: Calls,
    /// The numbers of the machine's last write to its durable state, and of the last one that has
    /// an outcome.
    writes: (u64, u64),
    /// The buffer for the machine's next reply.
    reply: Message,
    stopped: Option<String>,
}

/// The state of a lane to a server: a session, a race, or a failure.
pub(super) enum Reach {
    Session(Opened),
    /// The server of the lane has a race that is not decided yet.
    Opening,
    Failed,
}

impl<M: Machine, H: Host> Node<M, H> {
    /// Makes a node that runs `machine` on `host`, with up to `lanes` sessions for each link.
    ///
    /// # Panics
    /// If `lanes` is zero.
    pub fn new(machine: M, host: H, lanes: u16) -> Self {
        assert!(lanes > 0, "a link without lanes");
        Self {
            machine,
            host,
            links: Links::new(lanes),
            next_timers: Instant::ZERO,
            first: 0,
            began: Instant::ZERO,
            answered: 0,
            answers: Answers::default(),
            ticking: false,
            unsent: true,
            awaited: 0,
            held: Calls::default(),
            writes: (0, 0),
            reply: Message::default(),
            stopped: None,
        }
    }

    /// Returns the node's machine. Call [`Node::mark_unsent`] after a call of it that may have made
    /// output.
    #[inline]
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }

    /// Returns the node's host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns the node's host, to change it.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// True while calls of the machine have no response yet, or a write to its durable state has no
    /// outcome.
    #[inline]
    pub fn is_awaiting(&self) -> bool {
        self.awaited > 0 || self.is_writing()
    }

    /// True while a write to the machine's durable state has no outcome.
    #[inline]
    pub fn is_writing(&self) -> bool {
        self.writes.0 != self.writes.1
    }

    /// Marks that the machine may have output that no turn has seen: the next turn asks for it.
    #[inline]
    pub fn mark_unsent(&mut self) {
        self.unsent = true;
    }

    /// Takes the reason why the node's machine must stop for good, if it must.
    #[inline]
    pub fn take_stopped(&mut self) -> Option<String> {
        self.stopped.take()
    }

    /// Returns the counters of the machine and of the host, as an object in JSON.
    #[must_use]
    pub fn counters(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.put_counters(&mut bytes);
        bytes
    }

    /// Writes the counters of the machine, of the node and of the host, as an object in JSON.
    fn put_counters(&self, bytes: &mut Vec<u8>) {
        let mut own = self.machine.counters();
        own.extend(self.answers.counters());
        counters::put(bytes, &own, &self.host);
    }

    // Turns.

    /// Runs one turn of the node. Returns true if there was work. `lent` is the memory of slices of
    /// [`Slice::LENT`].
    #[inline]
    pub fn turn(&mut self, now: Instant, lent: &[u8]) -> bool {
        let work = self.receive(now);
        self.finish(now, lent);
        work
    }

    /// Runs the first half of a node's turn: gives the machine what arrived, and runs the timers
    /// that are due. Returns true if there was work.
    #[inline]
    pub fn receive(&mut self, now: Instant) -> bool {
        self.end_turn(now);
        self.began = now;
        let mut work = self.input(now);
        if now >= self.next_timers || self.ticking && !work {
            self.ticking = self.timers(now);
            work |= self.ticking;
        } else if self.is_writing() {
            // Clients wait for the outcome, and no transport announces it.
            work |= self.written(now);
        }
        if !self.links.racing().is_empty() {
            self.races(now);
        }
        work
    }

    /// Runs the second half of a node's turn: if anything happened, does the actions that the
    /// machine asks for, and sends. A program that waits for its call does this half alone.
    #[inline]
    pub fn finish(&mut self, now: Instant, lent: &[u8]) {
        if self.unsent {
            self.send(now, lent);
        }
    }

    /// Prepares the node for a pause until something arrives: does a bounded piece of the machine's
    /// background work and sends. Returns the time at which the node needs its next turn if nothing
    /// arrives before, or none if there is more to do at once. Call [`Node::resume`] after the
    /// pause.
    pub fn pause(&mut self, now: Instant, lent: &[u8]) -> Option<Instant> {
        // The pause is part of no answer.
        self.end_turn(now);
        // A timer may have become due since the turn checked them, and may make output.
        let is_due = self.machine.deadline().is_some_and(|at| at <= now);
        if self.machine.tick(now) || is_due {
            self.unsent = true;
        }
        if self.unsent {
            self.send(now, lent);
            return None;
        }
        let mut at = self.machine.deadline().unwrap_or(Instant::NEVER).min(self.race_deadline());
        for index in 0..self.host.transports() {
            at = at.min(self.host.transport(index).deadline().unwrap_or(Instant::NEVER));
        }
        Some(at)
    }

    /// Counts the answers of the last turn, which has ended at `now`.
    #[inline]
    fn end_turn(&mut self, now: Instant) {
        if self.answered > 0 {
            self.answers.count(now.since(self.began), core::mem::take(&mut self.answered));
        }
    }

    /// Ends a pause of the node: the next turn checks the timers.
    pub fn resume(&mut self) {
        self.next_timers = Instant::ZERO;
    }

    /// Gives the machine what arrived at the transports. Returns true if there was anything. Ends
    /// early if the turn is full, and the next turn begins with the transport that follows.
    #[inline]
    fn input(&mut self, now: Instant) -> bool {
        let mut work = false;
        let transports = self.host.transports();
        let mut index = core::mem::take(&mut self.first);
        for _ in 0..transports {
            if index >= transports {
                index = 0;
            }
            work |= self.host.is_due(index, now) && self.arrived(index, now);
            index += 1;
            if self.first > 0 {
                break;
            }
        }
        work
    }

    /// Gives the machine what arrived at one transport. Returns true if there was anything.
    #[inline]
    fn arrived(&mut self, index: usize, now: Instant) -> bool {
        let events = self.host.transport(index).input(now);
        if events == 0 {
            return false;
        }
        self.host.received(index, now);
        if events > 1 && self.machine.expects() {
            let Self { machine, host, .. } = self;
            host.transport(index).peek_requests(&mut |request| machine.expect(request));
            machine.prefetch();
        }
        self.events(index, now);
        true
    }

    /// Handles the events of one transport, until there are none or the turn is full.
    fn events(&mut self, index: usize, now: Instant) {
        let mut transport = self.host.transport(index);
        let mut requests = 0;
        while let Some(event) = transport.event(now) {
            match event {
                Event::Request { rpc, payload, deadline } => {
                    let caller = Caller { transport: index as u32, rpc, at: now };
                    let reply = &mut self.reply;
                    let replied = self.machine.request(now, caller, payload, deadline, reply);
                    if replied != Replied::Later {
                        self.answered += 1;
                        transport.reply(now, rpc, reply, replied == Replied::Idempotent);
                        reply.empty();
                    }
                    requests += 1;
                    if requests == MOST_REQUESTS || self.machine.fills_turn() {
                        self.first = index + 1;
                        break;
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
                    let cause = transport.cause(session);
                    let ended = self.links.closed(now, (index, session), reason, cause);
                    if let Some(Closed { link, why, gone }) = ended {
                        if gone.is_some_and(|locator| self.host.has_ended(&locator)) {
                            self.machine.ended(now, link);
                        }
                        self.machine.unreachable(link, &why);
                        transport = self.host.transport(index);
                    }
                }
            }
        }
        self.unsent |= transport.has_output() || self.machine.has_output();
    }

    /// Runs the timers of the transports and the machine that are due, and gives the machine the
    /// outcome of its writes. Returns true if there was work.
    // Not inlined: it must not lengthen the turns between, and scripts/instructions leaves it out.
    #[inline(never)]
    fn timers(&mut self, now: Instant) -> bool {
        self.next_timers = now.after(TIMER_CHECK_NS);
        let mut work = false;
        for index in 0..self.host.transports() {
            let transport = self.host.transport(index);
            if transport.deadline().is_some_and(|at| at <= now) {
                transport.tick(now);
                self.events(index, now);
                self.unsent = true;
                work = true;
            }
        }
        if !self.held.is_empty() {
            work |= self.expire(now);
        }
        work |= self.written(now);
        if self.machine.deadline().is_some_and(|at| at <= now) {
            work = true;
            self.unsent = true;
            self.machine.tick(now);
        }
        work
    }

    /// Gives the machine the outcomes of its writes. Returns true if there were any.
    fn written(&mut self, now: Instant) -> bool {
        let mut work = false;
        while let Some(written) = self.host.written() {
            match written {
                Written::Durable(seq) => {
                    self.writes.1 = seq;
                    self.machine.persisted(now, seq);
                }
                Written::Refused { reason, durable } => {
                    self.writes.1 = self.writes.0;
                    self.machine.rollback(now, &reason, durable);
                }
                Written::Failed(reason) => {
                    self.writes.1 = self.writes.0;
                    self.stopped = Some(reason);
                }
                Written::Election(election) => self.machine.election(now, election),
            }
            self.unsent = true;
            work = true;
        }
        work
    }

    /// Does the actions that the machine asks for, then sends what the transports have queued.
    fn send(&mut self, now: Instant, lent: &[u8]) {
        self.unsent = false;
        while let Some(output) = self.machine.output(now) {
            self.act(now, output);
        }
        for index in 0..self.host.transports() {
            let transport = self.host.transport(index);
            if !transport.has_output() {
                continue;
            }
            let memory = Memory { machine: &self.machine, lent };
            self.unsent |= transport.output(now, &memory);
            while let Some(slice) = transport.released() {
                self.machine.released(slice);
            }
        }
    }

    /// Does one action that the machine asks for.
    #[inline]
    fn act(&mut self, now: Instant, output: Output) {
        match output {
            Output::Call { link, tag, message, deadline } => {
                self.call(now, link, tag, message, deadline);
            }
            Output::Reply { caller, message } => self.reply(now, caller, message),
            Output::Counters { caller, mut message } => {
                self.put_counters(&mut message.bytes);
                self.reply(now, caller, message);
            }
            Output::Connect { link, locator } => self.bind(now, link, &locator),
            Output::Disconnect { link } => self.place(now, link, None),
            Output::Cancel { transport: HELD, rpc } => self.cancel_held(now, rpc),
            Output::Cancel { transport, rpc } => {
                if (transport as usize) < self.host.transports() {
                    self.host.transport(transport as usize).cancel(now, rpc);
                }
            }
            Output::Persist { seq, puts, deletes } => {
                self.writes.0 = seq;
                if self.host.persist(seq, puts, deletes) {
                    self.writes.1 = seq;
                    self.machine.persisted(now, seq);
                }
            }
            Output::Stop { reason } => self.stopped = Some(reason),
        }
    }

    fn reply(&mut self, now: Instant, caller: Caller, mut message: Message) {
        if (caller.transport as usize) < self.host.transports() {
            let transport = self.host.transport(caller.transport as usize);
            transport.reply(now, caller.rpc, &mut message, false);
            self.answers.count(now.since(caller.at), 1);
        }
    }

    // Calls.

    /// Sends a request of the machine. Its response, an error included, goes to the machine.
    pub(super) fn call(
        &mut self,
        now: Instant,
        link: Link,
        tag: u64,
        message: Message,
        deadline: Instant,
    ) {
        let reach = self.reach(now, link);
        self.call_by(now, reach, link, tag, message, deadline);
    }

    /// Sends a request by the lane that was chosen for it.
    fn call_by(
        &mut self,
        now: Instant,
        reach: Reach,
        link: Link,
        tag: u64,
        mut message: Message,
        deadline: Instant,
    ) {
        let result = match reach {
            Reach::Session((index, session)) => {
                let transport = self.host.transport(index);
                let sent = transport.request(now, session, tag, &mut message, deadline);
                self.release(&message);
                message.empty();
                if message.bytes.capacity() > 0 {
                    self.machine.spare(message.bytes);
                }
                sent.map(|rpc| (index, rpc)).map_err(not_taken)
            }
            Reach::Opening => return self.hold(now, link, tag, message, deadline),
            Reach::Failed => {
                self.release(&message);
                Err(RpcError::NotExecuted)
            }
        };
        self.called(now, tag, result);
    }

    /// Gives the machine the slices of a message back that no transport has taken.
    pub(super) fn release(&mut self, message: &Message) {
        for &slice in &message.slices {
            self.machine.released(slice);
        }
    }

    /// Sends a request of bytes that the caller keeps. Its response, an error included, goes to the
    /// machine. A driver may hold the packet until [`Node::finish`], so that requests which start
    /// together leave together.
    #[inline]
    pub fn call_bytes(
        &mut self,
        now: Instant,
        link: Link,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) {
        if let Some((index, session)) = self.links.last(link)
            && let Some(rpc) =
                self.host.transport(index).request_bytes(now, session, tag, bytes, deadline)
        {
            return self.taken(tag, index, rpc);
        }
        self.call_bytes_elsewhere(now, link, tag, bytes, deadline);
    }

    /// Sends a request that the session of the link's last call does not take at once.
    #[inline(never)]
    fn call_bytes_elsewhere(
        &mut self,
        now: Instant,
        link: Link,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) {
        let reach = self.reach(now, link);
        if let Reach::Session((index, session)) = reach
            && let Some(rpc) =
                self.host.transport(index).request_bytes(now, session, tag, bytes, deadline)
        {
            return self.taken(tag, index, rpc);
        }
        self.call_by(now, reach, link, tag, bytes.into(), deadline);
    }

    /// Chooses a lane of `link` and returns its session. Begins a session if the lane has none.
    #[inline]
    fn reach(&mut self, now: Instant, link: Link) -> Reach {
        let host = &mut self.host;
        let lane = self
            .links
            .lane(link, |(index, session)| host.transport(index).has_idle_channel(session));
        match self.links.session(lane) {
            Some(session) => Reach::Session(session),
            None => self.open(now, lane),
        }
    }

    /// Records that a call was sent, or gives the machine its error.
    #[inline]
    fn called(&mut self, now: Instant, tag: u64, result: Result<(usize, RpcId), RpcError>) {
        match result {
            Ok((index, rpc)) => self.taken(tag, index, rpc),
            Err(error) => {
                self.machine.response(now, tag, Err(error));
                self.unsent = true;
            }
        }
    }

    /// A transport has taken a request.
    #[inline(always)]
    fn taken(&mut self, tag: u64, index: usize, rpc: RpcId) {
        self.awaited += 1;
        self.unsent |= self.host.transport(index).has_output();
        self.machine.sent(tag, index as u32, rpc);
    }

    /// Loads into the processor's cache the memory that calls on these links will need, if links
    /// have one lane each. Cache misses that are independent overlap: among a million sessions they
    /// are most of a call's time.
    pub fn prefetch(&mut self, links: &[Link]) {
        if self.links.len() <= CACHED_LINKS {
            return;
        }
        for links in links.chunks(PREFETCH) {
            let sessions: ArrayVec<_, PREFETCH> =
                links.iter().filter_map(|&link| self.links.session(link)).collect();
            for together in sessions.chunk_by(|a, b| a.0 == b.0) {
                let ids: ArrayVec<_, PREFETCH> = together.iter().map(|session| session.1).collect();
                self.host.transport(together[0].0).prefetch(&ids);
            }
        }
    }
}

/// The memory of the slices in a machine's messages.
struct Memory<'m, M> {
    machine: &'m M,
    lent: &'m [u8],
}

impl<M: Machine> Slices for Memory<'_, M> {
    fn bytes(&self, slice: Slice) -> &[u8] {
        let lent = (slice.segment == Slice::LENT).then(|| {
            let from = slice.offset as usize;
            self.lent.get(from..from + slice.len as usize)
        });
        lent.flatten().unwrap_or_else(|| self.machine.bytes(slice))
    }
}

/// Returns the RPC error for a request that a transport did not take.
fn not_taken(error: RequestError) -> RpcError {
    match error {
        RequestError::QueueFull => RpcError::Busy { retry_after_ns: FULL_RETRY_NS },
        _ => RpcError::NotExecuted,
    }
}
