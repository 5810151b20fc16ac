//! A transport as a [`Node`](super::Node) sees it: requests, replies and events of any number of
//! sessions.
//!
//! Always: each request that a transport takes ends with exactly one [`Event::Response`] or
//! [`Event::Failed`]. Not here: how a session begins (the [`Host`](super::Host) knows locators),
//! and how a process sleeps until a transport has something (production only).

use alloc::string::String;

use crate::Instant;
use crate::rpc::{Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices};

/// Requests and replies over one driver or one set of sockets. Never blocks; belongs to one thread.
///
/// No method has a default, which a wrapper could forget.
pub trait Transport {
    /// Receives what has arrived, and returns how many events it may hold. If zero, a call of
    /// [`Transport::event`] finds nothing.
    fn input(&mut self, now: Instant) -> usize;

    /// Returns the next event. Call it until `None` after each [`Transport::input`] that found
    /// something and after each [`Transport::tick`].
    fn event(&mut self, now: Instant) -> Option<Event<'_>>;

    /// Passes the bytes of requests that [`Transport::event`] may return next to `each`. Nothing is
    /// checked: they are good only to load into the cache what the requests will touch. Passes
    /// none where a transport has not received them yet.
    fn peek_requests(&self, each: &mut dyn FnMut(&[u8]));

    /// True if [`Transport::output`] may have something to send, or [`Transport::released`]
    /// something to return.
    fn has_output(&self) -> bool;

    /// Sends what is queued, up to the budget of one turn. Returns true if more is ready to be
    /// sent.
    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool;

    /// Returns a slice that is no longer needed. Call it until `None`.
    fn released(&mut self) -> Option<Slice>;

    /// Returns the time to call [`Transport::tick`] if nothing happens before.
    fn deadline(&self) -> Option<Instant>;

    /// Runs the timers that are due at `now`.
    fn tick(&mut self, now: Instant);

    /// True once the peer, or the kernel on its behalf, has accepted the session. False after the
    /// session has ended.
    fn is_open(&self, session: SessionId) -> bool;

    /// True if the session can take a request that does not wait for a channel of it.
    fn has_idle_channel(&self, session: SessionId) -> bool;

    /// Explains why a session ended or could not be opened, if the system knows more than the
    /// [`CloseReason`](crate::rpc::CloseReason). Known until the call of [`Transport::event`] that
    /// follows the one which returned [`Event::Closed`].
    fn cause(&self, session: SessionId) -> Option<String>;

    /// Ends a session. Its requests fail.
    fn close(&mut self, now: Instant, session: SessionId);

    /// Loads into the cache what requests on these sessions will touch.
    fn prefetch(&mut self, sessions: &[SessionId]);

    /// Sends a request; see [`Endpoint::request`](crate::rpc::Endpoint::request). Takes of
    /// `message` what the transport keeps: a buffer that is left in it belongs to the caller again.
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

    /// Sends a request of bytes that the caller keeps.
    ///
    /// # Errors
    /// [`RequestError`], and nothing was sent.
    fn request_bytes(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Result<RpcId, RequestError>;

    /// Cancels a request.
    fn cancel(&mut self, now: Instant, rpc: RpcId);

    /// Answers a request. Takes of `message` what [`Transport::request`] would take.
    fn reply(&mut self, now: Instant, rpc: ServerRpc, message: &mut Message);

    /// Refuses a request that was not executed; its client tries again after `retry_after_ns`.
    fn refuse(&mut self, now: Instant, rpc: ServerRpc, retry_after_ns: u64);

    /// Passes the name and value of each counter to `each`. Values only grow.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64));
}
