//! A transport as a [`Node`](super::Node) sees it: requests, replies and events of any number of
//! sessions.
//!
//! Always: each request that a transport takes ends with exactly one [`Event::Response`] or
//! [`Event::Failed`]. Not here: how a session begins (the [`Host`](super::Host) knows locators),
//! and how a process sleeps until a transport has something (production only).

use alloc::string::String;

use crate::Instant;
use crate::rpc::{Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices};

/// A transport: requests and replies over one driver or one set of sockets. It never blocks, and
/// belongs to one thread.
///
/// No method has a default implementation, so that a wrapper cannot forget to forward one.
pub trait Transport {
    /// Receives what has arrived at the transport, and returns the number of events that it may
    /// hold, those included that the last turn has left. If zero, a call of [`Transport::event`]
    /// returns none.
    fn input(&mut self, now: Instant) -> usize;

    /// Returns the next event of the transport. Call it after each [`Transport::input`] that
    /// returned events and after each [`Transport::tick`], until `None` or until a turn is full:
    /// the transport keeps the other events.
    fn event(&mut self, now: Instant) -> Option<Event<'_>>;

    /// Passes the bytes of requests that [`Transport::event`] may return next to `each`. The bytes
    /// are not checked: the caller may only use them to load memory that the requests will need
    /// into the cache. A transport that has not received the bytes yet passes none.
    fn peek_requests(&self, each: &mut dyn FnMut(&[u8]));

    /// True if [`Transport::output`] may have something to send, or [`Transport::released`]
    /// something to return.
    fn has_output(&self) -> bool;

    /// Sends what the transport has queued, up to the budget of one turn. Returns true if more is
    /// ready to be sent.
    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool;

    /// Returns a slice of a message that the transport no longer needs. Call it until `None`.
    fn released(&mut self) -> Option<Slice>;

    /// Returns the time of the transport's next timer, when to call [`Transport::tick`].
    fn deadline(&self) -> Option<Instant>;

    /// Runs the transport's timers that are due at `now`.
    fn tick(&mut self, now: Instant);

    /// True once the peer, or the kernel on its behalf, has accepted the session. False after the
    /// session has ended.
    fn is_open(&self, session: SessionId) -> bool;

    /// True if the session has an idle channel, so that it can send another request at once.
    fn has_idle_channel(&self, session: SessionId) -> bool;

    /// Explains why a session ended or could not be opened, if the system knows more than the
    /// [`CloseReason`](crate::rpc::CloseReason). Known until the call of [`Transport::event`] that
    /// follows the one which returned [`Event::Closed`].
    fn cause(&self, session: SessionId) -> Option<String>;

    /// Ends a session of the transport. Its requests fail.
    fn close(&mut self, now: Instant, session: SessionId);

    /// Loads into the processor's cache the memory that requests on these sessions will need.
    fn prefetch(&mut self, sessions: &[SessionId]);

    /// Sends a request on a session; see [`Endpoint::request`](crate::rpc::Endpoint::request). The
    /// transport takes the parts of `message` that it keeps: a buffer that is left in it belongs to
    /// the caller again.
    ///
    /// # Errors
    /// [`RequestError`], and nothing was sent.
    fn request(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError>;

    /// Sends a request of bytes that the caller keeps, if the session can take it without waiting
    /// for a channel. Returns `None` otherwise, and nothing was sent: [`Transport::request`] takes
    /// the request then, or says why it cannot.
    fn request_bytes(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Option<RpcId>;

    /// Cancels a request that the transport has sent.
    fn cancel(&mut self, now: Instant, rpc: RpcId);

    /// Answers a received request. The transport takes the parts of `message` that
    /// [`Transport::request`] would take. If the request is `idempotent`, the transport may hand it
    /// up again instead of retaining the reply.
    fn reply(&mut self, now: Instant, rpc: ServerRpc, message: &mut Message, idempotent: bool);

    /// Refuses a received request that was not executed; its client tries again after
    /// `retry_after_ns` nanoseconds.
    fn refuse(&mut self, now: Instant, rpc: ServerRpc, retry_after_ns: u64);

    /// Passes the name and value of each counter of the transport to `each`. Values only grow.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64));
}
