//! A machine and a host with transports that all do what the test says.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::Instant;
use crate::node::machine::{Caller, Link, Machine, Output, Replied};
use crate::node::{Host, Node, Opened, Pairs, Transport, Written};
use crate::rpc::{
    CloseReason, Event, Message, Payload, RequestError, RpcError, RpcId, ServerRpc, SessionId,
    Slice, Slices,
};

pub(super) type TestNode = Node<Script, Fake>;

/// Makes a test's node with `lanes` lanes for each link, whose host has two transports.
pub(super) fn node(lanes: u16) -> TestNode {
    Node::new(Script::default(), Fake::default(), lanes)
}

pub(super) fn at(us: u64) -> Instant {
    Instant::from_ns(1_000 * us)
}

/// The end of a call: its tag, and the first byte of the reply or the error.
pub(super) type Ended = (u64, Result<u8, RpcError>);

#[derive(Debug, Default)]
pub(super) struct Script {
    /// The actions that the test's machine asks of its node next.
    pub(super) wants: VecDeque<Output>,
    pub(super) ended: Vec<Ended>,
    pub(super) sent: Vec<(u64, u32, RpcId)>,
    pub(super) unreachable: Vec<(Link, Box<str>)>,
    pub(super) ended_servers: Vec<Link>,
    pub(super) requests: Vec<(Caller, u8)>,
    /// The first bytes of the requests that the node announced by `expect`, and the number of them
    /// at the calls of `prefetch`.
    pub(super) expected: Vec<u8>,
    pub(super) prefetched: usize,
    /// The byte that the test's machine replies to each request; if none, it replies later.
    pub(super) reply: Option<u8>,
    /// True if the next request fills the turn.
    pub(super) is_full: bool,
    pub(super) persisted: Vec<u64>,
    pub(super) refused: Vec<String>,
    pub(super) spare: usize,
    pub(super) released: Vec<Slice>,
    pub(super) deadline: Option<Instant>,
    pub(super) ticks: Vec<Instant>,
    /// The number of pieces of background work that the test's machine has left.
    pub(super) background: u32,
}

impl Slices for Script {
    fn bytes(&self, _: Slice) -> &[u8] {
        b"machine"
    }
}

impl Machine for Script {
    fn request(
        &mut self,
        _: Instant,
        caller: Caller,
        payload: Payload<'_>,
        _: Instant,
        reply: &mut Message,
    ) -> Replied {
        assert!(reply.is_empty() && reply.slices.is_empty(), "the last reply is in the message");
        self.requests.push((caller, payload[0]));
        let Some(byte) = self.reply else { return Replied::Later };
        reply.bytes.push(byte);
        Replied::Now
    }

    fn fills_turn(&mut self) -> bool {
        core::mem::take(&mut self.is_full)
    }

    fn expects(&self) -> bool {
        true
    }

    fn expect(&mut self, request: &[u8]) {
        self.expected.push(request[0]);
    }

    fn prefetch(&mut self) {
        self.prefetched += self.expected.len();
    }

    fn sent(&mut self, tag: u64, transport: u32, rpc: RpcId) {
        self.sent.push((tag, transport, rpc));
    }

    fn response(&mut self, _: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        assert!(self.ended.iter().all(|(other, _)| *other != tag), "call {tag} ends again");
        self.ended.push((tag, result.map(|payload| payload[0])));
    }

    fn ended(&mut self, _: Instant, link: Link) {
        self.ended_servers.push(link);
    }

    fn unreachable(&mut self, link: Link, why: &str) {
        self.unreachable.push((link, why.into()));
    }

    fn has_output(&self) -> bool {
        !self.wants.is_empty()
    }

    fn output(&mut self, _: Instant) -> Option<Output> {
        self.wants.pop_front()
    }

    fn released(&mut self, slice: Slice) {
        self.released.push(slice);
    }

    fn spare(&mut self, _: Vec<u8>) {
        self.spare += 1;
    }

    fn persisted(&mut self, _: Instant, seq: u64) {
        self.persisted.push(seq);
    }

    fn rollback(&mut self, _: Instant, reason: &str, _: Pairs) {
        self.refused.push(reason.to_owned());
    }

    fn counters(&self) -> Vec<(String, u64)> {
        [("a".into(), 1)].into()
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn tick(&mut self, now: Instant) -> bool {
        self.ticks.push(now);
        if self.deadline.is_some_and(|at| at <= now) {
            self.deadline = None;
        }
        let more = self.background > 0;
        self.background = self.background.saturating_sub(1);
        more
    }
}

/// A session of a transport that the test controls.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) is_open: bool,
    pub(super) ended: bool,
    /// The requests of the session without an answer: their numbers and tags.
    pub(super) calls: Vec<(RpcId, u64)>,
}

/// A transport of a node that the test controls.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) sessions: Vec<Session>,
    /// The events that [`Transport::event`] of the test's transport returns next.
    pub(super) events: VecDeque<Event<'static>>,
    /// The number of channels of a session, and of requests that may wait beyond them.
    pub(super) channels: usize,
    pub(super) queue: usize,
    pub(super) inputs: usize,
    pub(super) replies: Vec<(ServerRpc, u8)>,
    pub(super) last_reply: Vec<u8>,
    pub(super) cancelled: Vec<RpcId>,
    pub(super) deadline: Option<Instant>,
    pub(super) slices: Vec<Slice>,
    /// The number of further calls of `output` at which the test's transport has something to send.
    pub(super) more: u32,
    pub(super) outputs: usize,
    /// The slices of the requests that it took, and their bytes at the last output.
    pub(super) taken: Vec<Slice>,
    pub(super) bytes: Vec<Vec<u8>>,
    rpcs: u64,
}

impl Wire {
    pub(super) fn session(&mut self, place: usize) -> &mut Session {
        &mut self.sessions[place]
    }

    /// Has the session at `place` answer its oldest request.
    pub(super) fn answer(&mut self, place: usize) {
        let (rpc, tag) = self.sessions[place].calls.remove(0);
        let payload = Payload::Owned(alloc::vec![tag as u8]);
        self.events.push_back(Event::Response { rpc, tag, payload });
    }

    /// Ends the session at `place`; its requests fail.
    pub(super) fn end(&mut self, place: usize, reason: CloseReason) {
        let session = &mut self.sessions[place];
        session.ended = true;
        for (rpc, tag) in session.calls.drain(..) {
            self.events.push_back(Event::Failed { rpc, tag, error: RpcError::MaybeExecuted });
        }
        self.events.push_back(Event::Closed { session: session.id, reason });
    }

    /// The places of the transport's sessions that have not ended.
    pub(super) fn living(&self) -> Vec<u32> {
        self.sessions.iter().filter(|s| !s.ended).map(|s| s.id.place()).collect()
    }
}

impl Transport for Wire {
    fn input(&mut self, _: Instant) -> usize {
        self.inputs += 1;
        self.events.len()
    }

    fn event(&mut self, _: Instant) -> Option<Event<'_>> {
        self.events.pop_front()
    }

    fn peek_requests(&self, each: &mut dyn FnMut(&[u8])) {
        for event in &self.events {
            if let Event::Request { payload, .. } = event {
                each(payload);
            }
        }
    }

    fn has_output(&self) -> bool {
        self.more > 0 || !self.slices.is_empty()
    }

    fn output(&mut self, _: Instant, memory: &dyn Slices) -> bool {
        self.outputs += 1;
        self.bytes = self.taken.iter().map(|slice| memory.bytes(*slice).to_vec()).collect();
        self.more = self.more.saturating_sub(1);
        self.more > 0
    }

    fn released(&mut self) -> Option<Slice> {
        self.slices.pop()
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn tick(&mut self, _: Instant) {
        self.deadline = None;
    }

    fn is_open(&self, id: SessionId) -> bool {
        let session = &self.sessions[id.place() as usize];
        session.is_open && !session.ended
    }

    fn has_idle_channel(&self, id: SessionId) -> bool {
        let session = &self.sessions[id.place() as usize];
        !session.ended && session.calls.len() < self.channels
    }

    fn cause(&self, _: SessionId) -> Option<String> {
        None
    }

    fn close(&mut self, _: Instant, id: SessionId) {
        self.end(id.place() as usize, CloseReason::Local);
    }

    fn prefetch(&mut self, _: &[SessionId]) {}

    fn request(
        &mut self,
        _: Instant,
        id: SessionId,
        tag: u64,
        message: &mut Message,
        _: Instant,
    ) -> Result<RpcId, RequestError> {
        let session = &mut self.sessions[id.place() as usize];
        if session.ended {
            return Err(RequestError::Closed);
        }
        if session.calls.len() >= self.channels + self.queue {
            return Err(RequestError::QueueFull);
        }
        self.rpcs += 1;
        session.calls.push((RpcId(self.rpcs), tag));
        self.taken.extend(message.slices.drain(..));
        Ok(RpcId(self.rpcs))
    }

    fn request_bytes(
        &mut self,
        now: Instant,
        id: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Option<RpcId> {
        if !self.has_idle_channel(id) {
            return None;
        }
        self.request(now, id, tag, &mut bytes.into(), deadline).ok()
    }

    fn cancel(&mut self, _: Instant, rpc: RpcId) {
        self.cancelled.push(rpc);
    }

    fn reply(&mut self, _: Instant, rpc: ServerRpc, message: &mut Message, _: bool) {
        self.replies.push((rpc, message.bytes[0]));
        self.last_reply.clone_from(&message.bytes);
    }

    fn refuse(&mut self, _: Instant, _: ServerRpc, _: u64) {}

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

/// A host with two transports, and a disk of which the test says what it wrote. A locator is
/// `TRANSPORT.NAME`. Locators in `down` cannot be reached; all other sessions open when the test
/// says so.
#[derive(Debug)]
pub(super) struct Fake {
    pub(super) wires: [Wire; 2],
    pub(super) down: Vec<&'static str>,
    /// True if the node does not poll the second transport.
    pub(super) asleep: bool,
    pub(super) writes: Vec<u64>,
    pub(super) written: VecDeque<Written>,
    pub(super) tried: Vec<String>,
}

impl Default for Fake {
    fn default() -> Self {
        let wire = || Wire { channels: 2, queue: 100, ..Wire::default() };
        Self {
            wires: [wire(), wire()],
            down: Vec::new(),
            asleep: false,
            writes: Vec::new(),
            written: VecDeque::new(),
            tried: Vec::new(),
        }
    }
}

impl Host for Fake {
    type Transport = Wire;
    type Error = String;

    fn transports(&self) -> usize {
        self.wires.len()
    }

    fn transport(&mut self, index: usize) -> &mut Wire {
        &mut self.wires[index]
    }

    fn is_due(&mut self, index: usize, _: Instant) -> bool {
        index == 0 || !self.asleep
    }

    fn received(&mut self, _: usize, _: Instant) {
        self.asleep = false;
    }

    fn candidates(&self, locators: &str) -> Result<Vec<String>, String> {
        let list: Vec<_> = locators.split(';').map(str::to_owned).collect();
        let malformed = list.iter().find(|l| !l.starts_with(['0', '1']));
        match malformed {
            Some(locator) => Err(format!("{locator}: no such transport")),
            None => Ok(list),
        }
    }

    fn connect(&mut self, _: Instant, candidate: &str) -> Result<Opened, String> {
        self.tried.push(candidate.to_owned());
        if self.down.contains(&candidate) {
            return Err("down".to_owned());
        }
        let index = usize::from(candidate.starts_with('1'));
        let wire = &mut self.wires[index];
        let id = SessionId::new(7, wire.sessions.len() as u32);
        wire.sessions.push(Session { id, is_open: false, ended: false, calls: Vec::new() });
        Ok((index, id))
    }

    fn has_ended(&mut self, candidate: &str) -> bool {
        self.down.contains(&candidate)
    }

    fn persist(&mut self, seq: u64, _: Pairs, _: Vec<Vec<u8>>) -> bool {
        self.writes.push(seq);
        // The first needs no disk.
        seq == 1
    }

    fn written(&mut self) -> Option<Written> {
        self.written.pop_front()
    }

    fn counters(&self, each: &mut dyn FnMut(&str, &'static str, u64)) {
        each("", "own", 7);
        each("fake", "turns", 2);
        each("fake", "turns", 3);
    }
}
