//! The door that every transport of `host` opens to the worker: the RPC endpoint over a datagram driver ([`crate::fast`])
//! and frames on connections (`crate::transport::framed`) alike.

use std::io;
use std::mem;
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::rpc::{Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices};

use crate::locator::Locator;

pub(crate) mod framed;
pub(crate) mod qp;
pub(crate) mod tcp;

/// Requests and replies over one driver or one set of sockets. Never blocks; belongs to one thread.
pub trait Transport: Send {
    /// Receives what has arrived; returns how much there is to look at: if nothing, `event` need not be called.
    fn input(&mut self, now: Instant) -> usize;

    /// What happened: call until `None` after each `input` that found something, and after each `tick`.
    fn event(&mut self, now: Instant) -> Option<Event<'_>>;

    /// Sends what there is to send; true if more waits for nothing but the next turn.
    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool;

    /// A slice that is no longer needed; call until `None`.
    fn released(&mut self) -> Option<Slice>;

    /// When `tick` wants to be called, if nothing happens before.
    fn deadline(&self) -> Option<Instant>;

    /// It is `now`.
    fn tick(&mut self, now: Instant);

    /// Begins a session with the server at `to`.
    ///
    /// # Errors
    /// The locator names no host that resolves, no server of that name exists on this machine, or a system call failed.
    fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId>;

    /// True once the peer has taken part in opening the session, or the kernel for it; false also if it has ended.
    fn is_open(&self, session: SessionId) -> bool;

    /// What the machine said of why a session ended or could not be opened, where that is more than its
    /// [`sprat_proto::rpc::CloseReason`]. Known until the call of [`Transport::event`] after the one that told of the end.
    fn cause(&self, session: SessionId) -> Option<String>;

    /// Ends a session.
    fn close(&mut self, now: Instant, session: SessionId);

    /// Requests that one session carries at a time; further ones wait in it.
    fn channels(&self) -> usize;

    /// Requests on these sessions follow: loads what they will touch, if that is worth it.
    fn warm(&mut self, _sessions: &[SessionId]) {}

    /// Sends a request; see [`sprat_proto::rpc::Endpoint::request`].
    ///
    /// # Errors
    /// [`RequestError`], and nothing was sent.
    fn request(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError>;

    /// The same, which takes of `message` what it has to keep: if a buffer is left in it, that is the caller's again.
    ///
    /// # Errors
    /// As [`Transport::request`].
    fn take_request(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        self.request(now, session, tag, mem::take(message), deadline)
    }

    /// The same for bytes that stay the caller's.
    ///
    /// # Errors
    /// As [`Transport::request`].
    fn request_bytes(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        self.request(now, session, tag, bytes.into(), deadline)
    }

    /// Gives a request up.
    fn cancel(&mut self, now: Instant, rpc: RpcId);

    /// Answers a request.
    fn reply(&mut self, now: Instant, rpc: ServerRpc, message: Message);

    /// The same, which takes of `message` what [`Transport::take_request`] would.
    fn take_reply(&mut self, now: Instant, rpc: ServerRpc, message: &mut Message) {
        self.reply(now, rpc, mem::take(message));
    }

    /// Refuses a request that was not executed.
    fn refuse(&mut self, now: Instant, rpc: ServerRpc, retry_after_ns: u64);

    /// Readable when there is something for `input` after [`Transport::doze`] said yes.
    fn fd(&self) -> BorrowedFd<'_>;

    /// The worker wants to sleep on [`Transport::fd`]: arrange that peers wake it. False if something has arrived
    /// meanwhile, so that the worker must not sleep.
    fn doze(&mut self) -> bool;

    /// The worker is awake again and polls: peers need not wake it.
    fn wake(&mut self);

    /// What it has counted, and dropped by which reason: names and numbers that only grow.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64));

    /// Where others reach this transport, if it listens: a locator with every chosen value filled in.
    fn locator(&self) -> Option<String>;
}
