//! The RPC server: a service at one or more locators, and answers from other threads.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Caller, Machine, Output, Replied};
use sprat_proto::rpc::{Message, Payload, RpcError, Slice, Slices};
use sprat_sys::clock::Clock;

use crate::locator::Locator;
use crate::transports::{Options, Transports};
use crate::worker::{Stop, Waker, Worker};

/// A request that has arrived at an RPC server.
#[derive(Debug)]
pub struct Call<'a> {
    /// The request's bytes.
    pub payload: Payload<'a>,
    /// Names the request for a later answer by [`Replier::reply`].
    pub caller: Caller,
    /// The time that the request's client still waits. `None` if the client did not say.
    pub time_left: Option<Duration>,
}

/// Answers a server's requests. Every `FnMut(Call) -> Option<Vec<u8>>` is one: it returns the
/// reply, or `None` if [`Replier::reply`] will give it.
pub trait Service {
    /// Handles a request. Writes the reply into `reply`, which is empty and keeps the buffer of an
    /// earlier one, unless [`Replier::reply`] will give it.
    fn request(&mut self, call: Call<'_>, reply: &mut Vec<u8>) -> Replied;
}

impl<F: FnMut(Call<'_>) -> Option<Vec<u8>>> Service for F {
    #[inline]
    fn request(&mut self, call: Call<'_>, reply: &mut Vec<u8>) -> Replied {
        match self(call) {
            Some(bytes) => *reply = bytes,
            None => return Replied::Later,
        }
        Replied::Now
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

/// Settings of a [`Server`]; [`ServerBuilder::default`] has those of [`Server::listen`].
#[derive(Clone, Debug, Default)]
#[must_use = "call `listen`"]
pub struct ServerBuilder {
    options: Options,
}

impl ServerBuilder {
    /// Allows addresses other than loopback, although nothing is encrypted. The default is `false`.
    pub fn insecure_network(mut self, allowed: bool) -> Self {
        self.options.insecure_network = allowed;
        self
    }

    /// Sets the transport options that only this repository's own programs use.
    #[doc(hidden)]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Makes a server that listens at each of `locators`.
    ///
    /// # Errors
    /// Those of [`Server::listen`].
    pub fn listen<S: Service>(self, locators: &[&str], service: S) -> io::Result<Server<S>> {
        Server::open(self.options, locators, service)
    }
}

/// An RPC server: a service at one or more locators.
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
        ServerBuilder::default().listen(locators, service)
    }

    fn open(options: Options, locators: &[&str], service: S) -> io::Result<Self> {
        let mut list = Vec::new();
        for locator in locators {
            list.extend(Locator::list(locator)?);
        }
        let transports = Transports::listen(options, &list)?;
        let (replies, queue) = channel();
        let replied = Arc::new(AtomicBool::new(false));
        let serve = Serve { service, queue, replied: Arc::clone(&replied) };
        let worker = Worker::new(serve, transports, None, Clock::new())?;
        Ok(Self { worker, replies, replied })
    }

    /// Returns the locators by which clients reach the server, with `;` between them and with the
    /// chosen ports.
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

    /// Returns the service that answers the requests.
    pub fn service(&mut self) -> &mut S {
        &mut self.worker.machine().service
    }

    /// Serves requests until [`Stop::stop`].
    pub fn run(&mut self) {
        // A service's machine never stops by itself.
        let _ = self.worker.run();
    }

    /// Returns a descriptor for a loop of the program's own (`epoll`, mio): it becomes readable
    /// when there is something to do after [`Server::prepare_to_sleep`] returned a time. Each call
    /// returns another descriptor of the same state.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn descriptor(&mut self) -> io::Result<OwnedFd> {
        self.worker.descriptor()
    }

    /// Prepares for a wait on [`Server::descriptor`]. Returns the longest wait; then make turns
    /// until one finds no work. `None`: there is work at once, so make turns instead. Call it again
    /// before each wait.
    pub fn prepare_to_sleep(&mut self) -> Option<Duration> {
        self.worker.prepare_to_sleep()
    }

    /// Makes one turn of the server, without sleep. Returns true if there was work.
    pub fn turn(&mut self) -> bool {
        self.worker.turn()
    }
}

/// The state machine of the RPC server.
#[derive(Debug)]
struct Serve<S> {
    service: S,
    queue: Receiver<(Caller, Vec<u8>)>,
    /// True if a reply was queued since the queue of replies was last found empty.
    replied: Arc<AtomicBool>,
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
        reply: &mut Message,
    ) -> Replied {
        let time_left =
            (deadline != Instant::NEVER).then(|| Duration::from_nanos(deadline.since(now)));
        self.service.request(Call { payload, caller, time_left }, &mut reply.bytes)
    }

    fn response(&mut self, _: Instant, _: u64, _: Result<Payload<'_>, RpcError>) {}

    #[inline]
    fn has_output(&self) -> bool {
        self.replied.load(Ordering::Relaxed)
    }

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
