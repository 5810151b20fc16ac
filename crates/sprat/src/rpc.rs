//! RPC for programs: a [`Client`] with sessions to any number of servers, and a [`Server`] that
//! answers.
//!
//! Requests and replies are bytes, up to 16 MiB. A request runs at most once; when the client
//! cannot know whether it ran, the error says so ([`RpcError::maybe_executed`]). A session survives
//! the loss of its connection: the requests in flight fail, the next one connects anew.
//!
//! Neither type starts a thread: a client makes progress while one of its methods runs, a server
//! while [`Server::run`] does. Both are `Send` and not `Sync`: one thread at a time. To answer from
//! other threads, see [`Replier`].
//!
//! ```no_run
//! use std::time::Duration;
//! use sprat::rpc::{Client, Server, Stop};
//!
//! let name = "fast+udp:host=127.0.0.1,port=0";
//! let upper = |call: sprat::rpc::Call<'_>| Some(call.payload.to_ascii_uppercase());
//! let mut server = Server::listen(&[name], upper)?;
//! let (at, stop) = (server.locators(), server.stop());
//! let thread = std::thread::spawn(move || server.run());
//!
//! let mut client = Client::new()?;
//! let session = client.connect(&at)?;
//! let reply = client.call(session, b"hello", Duration::from_secs(1))?;
//! assert_eq!(reply, b"HELLO");
//!
//! stop.stop();
//! thread.join().unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sprat_proto::Instant;
pub use sprat_proto::node::machine::Caller;
use sprat_proto::node::machine::{Link, Machine, Output};
pub use sprat_proto::rpc::{Message, Payload, RpcError};
use sprat_proto::rpc::{RpcId, Slice, Slices};

use crate::completions::{Completions, Delivery, EntryId};
use crate::locator::Locator;
pub use crate::transports::Options;
use crate::transports::Transports;
pub use crate::worker::Stop;
use crate::worker::{Waker, Worker};
use sprat_sys::clock::Clock;

/// A session of a [`Client`] with one server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Session(u32);

/// A request that a [`Client`] has started.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rpc(EntryId);

/// The result of a request: the reply, or the reason why there is none.
pub type Outcome = Result<Vec<u8>, RpcError>;

/// Sessions with servers, and the requests in flight on them.
#[derive(Debug)]
pub struct Client {
    worker: Worker<Calls>,
    sessions: u32,
    /// The links of the requests that go out with the next turn.
    started: Vec<Link>,
}

impl Client {
    /// Makes a client with no sessions.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn new() -> io::Result<Self> {
        Self::with(Options::default())
    }

    /// Makes a client with options.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn with(options: Options) -> io::Result<Self> {
        let worker = Worker::new(Calls::default(), Transports::new(options), None, Clock::new())?;
        Ok(Self { worker, sessions: 0, started: Vec::new() })
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
        self.worker.connect(Link(self.sessions), locators)?;
        self.sessions += 1;
        Ok(Session(self.sessions - 1))
    }

    /// Returns the reason why the client could not reach a session's server last, or why the
    /// session ended: each locator that it tried, with its cause. `None` if neither has happened.
    pub fn why(&mut self, session: Session) -> Option<&str> {
        self.worker.machine().whys.get(&session.0).map(|why| &**why)
    }

    /// Ends a session. Its requests fail.
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
        reply.clear();
        let now = self.worker.now();
        let rpc = self.worker.machine().begin(mem::take(reply), Delivery::Held);
        self.worker.node().call_bytes(
            now,
            Link(session.0),
            rpc.0.tag(),
            request,
            deadline(now, timeout),
        );
        self.worker.node().send(now);
        loop {
            if let Some(outcome) = self.worker.machine().completions.take(rpc.0) {
                return outcome.map(|bytes| *reply = bytes);
            }
            meanwhile();
            self.turn_and_rest();
        }
    }

    /// Starts a request. [`Client::poll`], [`Client::wait`] or [`Client::completed`] returns its
    /// outcome. The request goes out with the next turn: of [`Client::turn`], or of a method that
    /// waits. Requests that start together go out together, in few system calls.
    pub fn start(
        &mut self,
        session: Session,
        request: impl Into<Message>,
        timeout: Duration,
    ) -> Rpc {
        self.started.push(Link(session.0));
        self.worker.node().mark_unsent();
        let deadline = deadline(self.worker.now(), timeout);
        let calls = self.worker.machine();
        let (link, rpc) = (Link(session.0), calls.begin(Vec::new(), Delivery::Queued));
        calls.out.push_back(Output::Call {
            link,
            tag: rpc.0.tag(),
            message: request.into(),
            deadline,
        });
        rpc
    }

    /// Makes one turn: sends and receives what there is, and never waits. Returns true if there was
    /// work.
    pub fn turn(&mut self) -> bool {
        self.prefetch();
        self.worker.turn()
    }

    /// Makes one turn. After many turns without work it yields the processor, then sleeps until
    /// something happens. Call it in a loop that waits for completions.
    pub fn turn_and_rest(&mut self) {
        self.prefetch();
        self.worker.turn_and_rest();
    }

    /// Loads the sessions of the started requests into the cache.
    #[inline]
    fn prefetch(&mut self) {
        if !self.started.is_empty() {
            self.worker.node().prefetch(&self.started);
            self.started.clear();
        }
    }

    /// Makes one turn, then returns the outcome of `rpc` if it has ended. Each outcome comes once.
    pub fn poll(&mut self, rpc: Rpc) -> Option<Outcome> {
        self.turn();
        self.worker.machine().completions.take(rpc.0)
    }

    /// Waits for `rpc`.
    ///
    /// # Errors
    /// [`RpcError`]. [`RpcError::Cancelled`] also if its outcome has come before.
    pub fn wait(&mut self, rpc: Rpc) -> Outcome {
        loop {
            if let Some(outcome) = self.worker.machine().completions.take(rpc.0) {
                return outcome;
            }
            if !self.worker.machine().completions.is_known(rpc.0) {
                return Err(RpcError::Cancelled);
            }
            self.turn_and_rest();
        }
    }

    /// Returns the oldest outcome that has not come yet. Makes no turn.
    pub fn completed(&mut self) -> Option<(Rpc, Outcome)> {
        self.worker.machine().completions.next().map(|(id, outcome)| (Rpc(id), outcome))
    }

    /// Gives up a request. It ends with [`RpcError::Cancelled`] unless it has ended before.
    pub fn cancel(&mut self, rpc: Rpc) {
        if !self.started.is_empty() {
            // What has not gone out has no number yet to cancel it by.
            self.turn();
        }
        self.worker.machine().cancel(rpc);
        self.worker.node().mark_unsent();
        self.turn();
    }
}

/// The deadline of a request that may take `timeout` from `now` on.
fn deadline(now: Instant, timeout: Duration) -> Instant {
    now.after(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX))
}

/// A request in progress, as the client keeps it.
#[derive(Debug)]
struct Request {
    /// The transport that carries it and its number there, once it has gone out.
    sent: Option<(u32, RpcId)>,
    /// The reply goes here.
    reply: Vec<u8>,
}

/// The client's machine: requests by number.
#[derive(Debug, Default)]
struct Calls {
    completions: Completions<Request, Outcome>,
    out: VecDeque<Output>,
    /// The reason why a session, by number, failed last.
    whys: BTreeMap<u32, Box<str>>,
}

impl Calls {
    /// Makes a number for a request that is about to be sent. Its reply goes into `reply`.
    #[inline]
    fn begin(&mut self, reply: Vec<u8>, delivery: Delivery) -> Rpc {
        Rpc(self.completions.begin(Request { sent: None, reply }, delivery))
    }

    fn cancel(&mut self, rpc: Rpc) {
        if let Some(Request { sent: Some((transport, rpc)), .. }) = self.completions.request(rpc.0)
        {
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
    fn request(&mut self, _: Instant, _: Caller, _: Payload<'_>, _: Instant) -> Option<Message> {
        None
    }

    fn sent(&mut self, tag: u64, transport: u32, rpc: RpcId) {
        if let Some(request) = self.completions.request(EntryId::of_tag(tag)) {
            request.sent = Some((transport, rpc));
        }
    }

    fn unreachable(&mut self, link: Link, why: &str) {
        self.whys.insert(link.0, why.into());
    }

    fn response(&mut self, _: Instant, tag: u64, result: Result<Payload<'_>, RpcError>) {
        self.completions.end(EntryId::of_tag(tag), |request| match result? {
            Payload::Borrowed(bytes) => {
                let mut reply = request.reply;
                reply.extend_from_slice(bytes);
                Ok(reply)
            }
            Payload::Owned(bytes) => Ok(bytes),
        });
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

/// A request at the server.
#[derive(Debug)]
pub struct Call<'a> {
    /// The request's bytes.
    pub payload: Payload<'a>,
    /// Names the request for a later answer by [`Replier::reply`].
    pub caller: Caller,
    /// The time that its client still waits. `None` if the client did not say.
    pub time_left: Option<Duration>,
    /// An empty vector for the reply. It held an earlier reply, so that a short one needs no
    /// allocation.
    pub room: Vec<u8>,
}

/// Answers a server's requests. Every `FnMut(Call) -> Option<Vec<u8>>` is one.
pub trait Service {
    /// Handles a request. Returns the reply, or `None` if [`Replier::reply`] will give it.
    fn request(&mut self, call: Call<'_>) -> Option<Message>;
}

impl<F: FnMut(Call<'_>) -> Option<Vec<u8>>> Service for F {
    fn request(&mut self, call: Call<'_>) -> Option<Message> {
        self(call).map(Message::from)
    }
}

/// Answers requests that a [`Service`] left open, from any thread.
#[derive(Clone, Debug)]
pub struct Replier {
    replies: Sender<(Caller, Vec<u8>)>,
    replied: Arc<AtomicBool>,
    waker: Waker,
}

impl Replier {
    /// Answers `caller`. Does nothing if its client is gone.
    pub fn reply(&self, caller: Caller, reply: Vec<u8>) {
        // A server that has ended answers no request.
        if self.replies.send((caller, reply)).is_ok() {
            self.replied.store(true, Ordering::SeqCst);
            self.waker.wake();
        }
    }
}

/// A service at one or more locators.
#[derive(Debug)]
pub struct Server<S: Service> {
    worker: Worker<Serve<S>>,
    replies: Sender<(Caller, Vec<u8>)>,
    replied: Arc<AtomicBool>,
}

impl<S: Service> Server<S> {
    /// Makes a server that listens at each of `locators`.
    ///
    /// # Errors
    /// A locator is malformed or of a kind that is not built, its name or port is in use, its
    /// address is not allowed, or a system call failed; the error names the locator.
    pub fn listen(locators: &[&str], service: S) -> io::Result<Self> {
        Self::listen_with(Options::default(), locators, service)
    }

    /// Makes a server that listens at each of `locators`, with options.
    ///
    /// # Errors
    /// Those of [`Server::listen`].
    pub fn listen_with(options: Options, locators: &[&str], service: S) -> io::Result<Self> {
        let mut list = Vec::new();
        for locator in locators {
            list.extend(Locator::list(locator)?);
        }
        let transports = Transports::listen(options, &list)?;
        let (replies, queue) = channel();
        let replied = Arc::new(AtomicBool::new(false));
        let serve = Serve { service, queue, replied: Arc::clone(&replied), room: Vec::new() };
        let worker = Worker::new(serve, transports, None, Clock::new())?;
        Ok(Self { worker, replies, replied })
    }

    /// Returns the locators by which clients reach it, with `;` between them and chosen ports
    /// filled in.
    pub fn locators(&self) -> String {
        self.worker.transports().locators().join(";")
    }

    /// Returns a handle that answers requests which the service left open.
    pub fn replier(&self) -> Replier {
        let (replies, replied) = (self.replies.clone(), Arc::clone(&self.replied));
        Replier { replies, replied, waker: self.worker.waker() }
    }

    /// Returns a handle that ends [`Server::run`].
    pub fn stop(&self) -> Stop {
        self.worker.stop()
    }

    /// Returns the service.
    pub fn service(&mut self) -> &mut S {
        &mut self.worker.machine().service
    }

    /// Serves until [`Stop::stop`].
    pub fn run(&mut self) {
        // A service's machine never stops by itself.
        let _ = self.worker.run();
    }

    /// Makes one turn, without sleep. Returns true if there was work.
    pub fn turn(&mut self) -> bool {
        self.worker.turn()
    }
}

/// The server's machine.
#[derive(Debug)]
struct Serve<S> {
    service: S,
    queue: Receiver<(Caller, Vec<u8>)>,
    /// The queue got a reply since it was last found empty.
    replied: Arc<AtomicBool>,
    /// The buffer for the next reply.
    room: Vec<u8>,
}

impl<S> Slices for Serve<S> {
    fn bytes(&self, _: Slice) -> &[u8] {
        &[]
    }
}

impl<S: Service> Machine for Serve<S> {
    fn request(
        &mut self,
        now: Instant,
        caller: Caller,
        payload: Payload<'_>,
        deadline: Instant,
    ) -> Option<Message> {
        let time_left =
            (deadline != Instant::NEVER).then(|| Duration::from_nanos(deadline.since(now)));
        let room = mem::take(&mut self.room);
        self.service.request(Call { payload, caller, time_left, room })
    }

    fn spare(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.room = buffer;
    }

    fn response(&mut self, _: Instant, _: u64, _: Result<Payload<'_>, RpcError>) {}

    fn output(&mut self, _: Instant) -> Option<Output> {
        if !self.replied.load(Ordering::Relaxed) {
            return None;
        }
        let next = self.queue.try_recv().or_else(|_| {
            // Another one may come between that look and this word, and none after both.
            self.replied.store(false, Ordering::SeqCst);
            self.queue.try_recv().inspect(|_| self.replied.store(true, Ordering::SeqCst))
        });
        let (caller, reply) = next.ok()?;
        Some(Output::Reply { caller, message: reply.into() })
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _: Instant) -> bool {
        false
    }
}
