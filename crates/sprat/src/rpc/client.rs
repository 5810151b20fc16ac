//! The RPC client: sessions with servers, and the requests in progress on them.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::os::fd::OwnedFd;
use std::time::Duration;

use arrayvec::ArrayVec;
use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Link, Machine, Output, Replied};
use sprat_proto::rpc::{Message, Payload, RpcError, RpcId, Slice, Slices};
use sprat_sys::clock::Clock;

use crate::completions::{Completions, Delivery, EntryId};
use crate::locator::Locator;
use crate::transports::{Options, Transports};
use crate::worker::{Waker, Worker};

/// A session of a [`Client`] with one server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Session(u32);

/// A request that a [`Client`] has started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rpc(EntryId);

impl Rpc {
    /// Returns a small number that no other request has while this one is in progress or its
    /// outcome waits.
    pub(super) fn index(self) -> usize {
        self.0.tag() as u32 as usize
    }
}

/// The result of an RPC: the reply, or the reason why there is none.
pub type Outcome = Result<Vec<u8>, RpcError>;

/// Number of sessions whose state is loaded into the cache together.
const PREFETCH: usize = 32;

/// Sessions with servers, and the requests in flight on them.
#[derive(Debug)]
pub struct Client {
    worker: Worker<Calls>,
    sessions: u32,
    /// The most sessions that the client can open, since only this many have numbers.
    most_sessions: u32,
}

/// The most lanes that a session may have.
const MOST_LANES: u16 = 256;

/// Settings of an RPC [`Client`].
#[derive(Clone, Debug, Default)]
#[must_use = "call `build`"]
pub struct Builder {
    options: Options,
    lanes: Option<u16>,
}

impl Builder {
    /// Allows addresses other than loopback, although nothing is encrypted. The default is `false`.
    pub fn insecure_network(mut self, allowed: bool) -> Self {
        self.options.insecure_network = allowed;
        self
    }

    /// Sets this client's own end of a packet device: a locator with the device and the address.
    /// Each call adds one, for one protocol.
    pub fn local(mut self, locator: Locator) -> Self {
        self.options.local.push(locator);
        self
    }

    /// Sets the most connections that a session opens to its server, from 1 to 256. Each carries
    /// eight requests at a time; further ones wait. A session opens another one only when the
    /// others are busy. The default is 1, and 8 for [`AsyncClient`](super::AsyncClient).
    ///
    /// A session takes 16 bytes for each of them, whether it is open or not.
    pub fn lanes(mut self, most: u16) -> Self {
        self.lanes = Some(most.clamp(1, MOST_LANES));
        self
    }

    /// Sets the most lanes of a session, unless the program has set them.
    pub(super) fn lanes_or(mut self, lanes: u16) -> Self {
        self.lanes = self.lanes.or(Some(lanes));
        self
    }

    /// Sets the transport options that only this repository's own programs use.
    #[doc(hidden)]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Makes an RPC client with no sessions.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn build(self) -> io::Result<Client> {
        let (lanes, transports) = (self.lanes.unwrap_or(1), Transports::new(self.options));
        let worker = Worker::with_lanes(Calls::default(), transports, None, Clock::new(), lanes)?;
        Ok(Client { worker, sessions: 0, most_sessions: u32::MAX / u32::from(lanes) - 1 })
    }
}

impl Client {
    /// Makes an RPC client with no sessions.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new() -> io::Result<Self> {
        Builder::default().build()
    }

    /// Returns the settings of an RPC client.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Opens a session with the server at `locators`: one, or several with `;` between them, the
    /// preferred one first. The client tries the next locator at once if one fails, and after
    /// 250 ms without an answer beside it. It uses the first that opens.
    ///
    /// # Errors
    /// The locators are malformed, or every one names a transport that this build lacks, a host or
    /// server that does not exist, or fails by a system call. A server that does not answer shows
    /// with the first request.
    pub fn connect(&mut self, locators: &str) -> io::Result<Session> {
        if self.sessions == self.most_sessions {
            return Err(io::Error::other("the client has opened all sessions that it can number"));
        }
        self.worker.connect(Link(self.sessions), locators)?;
        self.sessions += 1;
        Ok(Session(self.sessions - 1))
    }

    /// Returns the reason why the client could not reach a session's server last, or why the
    /// session ended: each locator that it tried, with its cause. `None` if neither has happened.
    pub fn why(&mut self, session: Session) -> Option<&str> {
        self.worker.machine().whys.get(&session.0).map(|why| &**why)
    }

    /// Returns a handle that wakes the client's thread.
    pub(super) fn waker(&self) -> Waker {
        self.worker.waker()
    }

    /// Ends a session. Its requests in progress fail.
    pub fn close(&mut self, session: Session) {
        self.worker.machine().out.push_back(Output::Disconnect { link: Link(session.0) });
        self.worker.machine().whys.remove(&session.0);
        self.worker.node().mark_unsent();
        self.turn();
    }

    /// Sends `request` and waits for its reply.
    ///
    /// # Errors
    /// [`RpcError`].
    pub fn call(&mut self, session: Session, request: &[u8], timeout: Duration) -> Outcome {
        let mut reply = Vec::new();
        self.call_into(session, request, timeout, &mut reply)?;
        Ok(reply)
    }

    /// Sends `request`, waits for its reply and puts it into `reply`. A short reply needs no
    /// allocation if the buffer has room.
    ///
    /// # Errors
    /// [`RpcError`]; `reply` is then empty.
    pub fn call_into(
        &mut self,
        session: Session,
        request: &[u8],
        timeout: Duration,
        reply: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        self.call_meanwhile(session, request, timeout, reply, || ())
    }

    /// Calls as [`Client::call_into`] does, and calls `meanwhile` before each turn that waits. A
    /// test that counts instructions runs the server's turns there.
    ///
    /// # Errors
    /// Those of [`Client::call_into`].
    #[doc(hidden)]
    pub fn call_meanwhile(
        &mut self,
        session: Session,
        request: &[u8],
        timeout: Duration,
        reply: &mut Vec<u8>,
        mut meanwhile: impl FnMut(),
    ) -> Result<(), RpcError> {
        let now = self.worker.now();
        let rpc = self.begin(now, session, request, timeout, Delivery::Held, reply);
        self.worker.node().finish(now, &[]);
        loop {
            if let Some((outcome, bytes)) = self.worker.machine().completions.lend(rpc.0) {
                mem::swap(bytes, reply);
                return outcome;
            }
            meanwhile();
            self.turn_and_rest();
        }
    }

    /// Starts a request. [`Client::poll`], [`Client::wait`] or [`Client::completed`] returns its
    /// outcome.
    ///
    /// Over memory the request goes out at once. Over sockets the requests that start together go
    /// out together, in few system calls: with the next turn, of [`Client::turn`] or of a method
    /// that waits.
    #[inline]
    pub fn start(&mut self, session: Session, request: &[u8], timeout: Duration) -> Rpc {
        let now = self.worker.now();
        self.begin(now, session, request, timeout, Delivery::Queued, &mut Vec::new())
    }

    /// Sends a request. The reply goes into a buffer of the client, or into that of `reply` if it
    /// has one.
    #[inline(always)]
    fn begin(
        &mut self,
        now: Instant,
        session: Session,
        request: &[u8],
        timeout: Duration,
        delivery: Delivery,
        reply: &mut Vec<u8>,
    ) -> Rpc {
        let calls = &mut self.worker.machine().completions;
        let id = calls.begin(None, delivery);
        if reply.capacity() > 0 {
            calls.swap_bytes(id, reply);
        }
        let (link, deadline) = (Link(session.0), deadline(now, timeout));
        self.worker.node().call_bytes(now, link, id.tag(), request, deadline);
        Rpc(id)
    }

    /// Loads the state of sessions into the cache. A program with many sessions that starts
    /// requests on several of them calls this before: the cache misses then overlap.
    pub fn prefetch(&mut self, sessions: impl IntoIterator<Item = Session>) {
        let mut sessions = sessions.into_iter().map(|session| Link(session.0)).fuse();
        loop {
            let links: ArrayVec<_, PREFETCH> = sessions.by_ref().take(PREFETCH).collect();
            if links.is_empty() {
                return;
            }
            self.worker.node().prefetch(&links);
        }
    }

    /// Makes one turn: sends and receives what there is, and never waits. Returns true if there was
    /// work.
    pub fn turn(&mut self) -> bool {
        self.worker.turn()
    }

    /// Makes one turn. After many turns without work it yields the processor, then sleeps until
    /// something happens. Call it in a loop that waits for completions.
    pub fn turn_and_rest(&mut self) {
        self.worker.turn_and_rest();
    }

    /// Returns a descriptor for a loop of the program's own (`epoll`, mio): it becomes readable
    /// when there is something to do after [`Client::prepare_to_sleep`] returned a time. Each call
    /// returns another descriptor of the same state.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.worker.descriptor()
    }

    /// Prepares for a wait on [`Client::descriptor`]. Returns the longest wait; then make turns
    /// until one finds no work. `None`: there is work at once, so make turns instead.
    ///
    /// Call it again before each wait, and after each start of a request.
    pub fn prepare_to_sleep(&mut self) -> Option<Duration> {
        self.worker.prepare_to_sleep()
    }

    /// Makes one turn, then returns the outcome of `rpc` if it has ended. Each outcome comes once.
    pub fn poll(&mut self, rpc: Rpc) -> Option<Outcome> {
        self.turn();
        self.worker.machine().take(rpc)
    }

    /// Waits for the outcome of the request `rpc`.
    ///
    /// # Errors
    /// [`RpcError`]. [`RpcError::Cancelled`] also if its outcome has come before.
    pub fn wait(&mut self, rpc: Rpc) -> Outcome {
        loop {
            if let Some(outcome) = self.worker.machine().take(rpc) {
                return outcome;
            }
            if !self.worker.machine().completions.is_known(rpc.0) {
                return Err(RpcError::Cancelled);
            }
            self.turn_and_rest();
        }
    }

    /// Returns the oldest outcome that has not come yet, and lends its reply until the next call.
    /// Makes no turn.
    #[inline]
    pub fn completed(&mut self) -> Option<(Rpc, Result<&[u8], RpcError>)> {
        let (id, outcome, bytes) = self.worker.machine().completions.next()?;
        Some((Rpc(id), outcome.map(|()| bytes.as_slice())))
    }

    /// Gives up a request. It ends with [`RpcError::Cancelled`] unless it has ended before.
    pub fn cancel(&mut self, rpc: Rpc) {
        self.worker.machine().cancel(rpc);
        self.worker.node().mark_unsent();
        self.turn();
    }
}

/// Returns the deadline of a request that may take `timeout` from `now` on.
fn deadline(now: Instant, timeout: Duration) -> Instant {
    now.after(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}

/// The state machine of the RPC client: the requests, by their numbers.
#[derive(Debug, Default)]
struct Calls {
    /// The entry of each request: in progress it has the transport that carries the request and the
    /// request's number there.
    completions: Completions<Option<(u32, RpcId)>, Result<(), RpcError>>,
    out: VecDeque<Output>,
    /// The reason for which each session failed last, by the session's number.
    whys: BTreeMap<u32, Box<str>>,
}

impl Calls {
    fn take(&mut self, rpc: Rpc) -> Option<Outcome> {
        let (outcome, bytes) = self.completions.lend(rpc.0)?;
        Some(outcome.map(|()| mem::take(bytes)))
    }

    fn cancel(&mut self, rpc: Rpc) {
        if let Some(Some((transport, rpc))) = self.completions.request(rpc.0) {
            self.out.push_back(Output::Cancel { transport: *transport, rpc: *rpc });
        }
    }
}

impl Slices for Calls {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

impl Machine for Calls {
    fn request(
        &mut self,
        _: Instant,
        _: Caller,
        _: Payload<'_>,
        _: Instant,
        _: &mut Message,
    ) -> Replied {
        Replied::Later
    }

    #[inline]
    fn sent(&mut self, tag: u64, transport: u32, rpc: RpcId) {
        if let Some(sent) = self.completions.request(EntryId::of_tag(tag)) {
            *sent = Some((transport, rpc));
        }
    }

    fn unreachable(&mut self, link: Link, why: &str) {
        self.whys.insert(link.0, why.into());
    }

    #[inline(always)]
    fn response(&mut self, _: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        self.completions.end(EntryId::of_tag(tag), |bytes| {
            match result? {
                Payload::Borrowed(reply) => bytes.extend_from_slice(reply),
                Payload::Owned(reply) => *bytes = reply,
            }
            Ok(())
        });
    }

    #[inline]
    fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    fn output(&mut self, _: Instant) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _: Instant) -> bool {
        false
    }
}
