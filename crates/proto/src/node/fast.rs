//! The transport `fast`: one [`Endpoint`] over one driver.
//!
//! This module decides nothing: the endpoint handles sessions and requests, the driver datagrams.

use alloc::string::String;

use super::transport::Transport;
use crate::rpc::{
    Config, Endpoint, Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices,
};
use crate::tracepoint::{NoProbe, Probe};
use crate::{Addr, Instant, Rng, TimedDatagrams};

/// The transport `fast`: sessions and requests over the driver `D`.
#[derive(Debug)]
pub struct Fast<D: TimedDatagrams, P: Probe = NoProbe> {
    endpoint: Endpoint<P>,
    driver: D,
}

impl<D: TimedDatagrams, P: Probe> Fast<D, P> {
    /// Makes the transport `fast` with no sessions over `driver`.
    pub fn new(driver: D, config: Config, rng: Rng, probe: P) -> Self {
        Self { endpoint: Endpoint::new(config, rng, probe), driver }
    }

    /// Returns the driver of the transport.
    pub const fn driver(&self) -> &D {
        &self.driver
    }

    /// Returns the driver of the transport, to change it.
    pub const fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// Returns the endpoint of the transport, to read its counters.
    pub const fn endpoint(&self) -> &Endpoint<P> {
        &self.endpoint
    }

    /// Begins a session with the server at `to`, an address of the driver.
    pub fn open(&mut self, now: Instant, to: Addr) -> SessionId {
        self.endpoint.connect(now, to)
    }
}

impl<D: TimedDatagrams, P: Probe> Transport for Fast<D, P> {
    #[inline]
    fn input(&mut self, now: Instant) -> usize {
        self.driver.set_now(now);
        self.endpoint.input(now, &mut self.driver)
    }

    #[inline]
    fn event(&mut self, now: Instant) -> Option<Event<'_>> {
        self.endpoint.event(now, &self.driver)
    }

    #[inline]
    fn peek_requests(&self, each: &mut dyn FnMut(&[u8])) {
        self.endpoint.peek_requests(&self.driver, each);
    }

    #[inline]
    fn has_output(&self) -> bool {
        self.endpoint.has_output()
    }

    #[inline]
    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        self.endpoint.output(now, memory, &mut self.driver)
    }

    #[inline]
    fn released(&mut self) -> Option<Slice> {
        self.endpoint.released()
    }

    fn deadline(&self) -> Option<Instant> {
        match (self.endpoint.deadline(), self.driver.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    fn tick(&mut self, now: Instant) {
        self.driver.tick(now);
        self.endpoint.tick(now);
    }

    fn is_open(&self, session: SessionId) -> bool {
        self.endpoint.is_open(session)
    }

    #[inline]
    fn has_idle_channel(&self, session: SessionId) -> bool {
        self.endpoint.has_idle_channel(session)
    }

    fn cause(&self, _: SessionId) -> Option<String> {
        None
    }

    fn close(&mut self, now: Instant, session: SessionId) {
        self.endpoint.close(now, session);
    }

    fn prefetch(&mut self, sessions: &[SessionId]) {
        self.endpoint.warm(sessions.iter().copied());
    }

    #[inline]
    fn request(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        self.endpoint.request_over(now, session, tag, message, deadline, &mut self.driver)
    }

    #[inline]
    fn request_bytes(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Option<RpcId> {
        self.endpoint.request_bytes_over(now, session, tag, bytes, deadline, &mut self.driver)
    }

    fn cancel(&mut self, now: Instant, rpc: RpcId) {
        self.endpoint.cancel(now, rpc);
    }

    #[inline]
    fn reply(&mut self, now: Instant, rpc: ServerRpc, message: &mut Message, idempotent: bool) {
        self.endpoint.reply_over(now, rpc, message, idempotent, &mut self.driver);
    }

    fn refuse(&mut self, now: Instant, rpc: ServerRpc, retry_after_ns: u64) {
        self.endpoint.refuse(now, rpc, retry_after_ns);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.endpoint.stats().each(each);
        self.driver.counters(each);
    }
}
