//! The RPC transport `fast` as a [`Transport`]: one [`Endpoint`] over one [`Driver`].
//!
//! Nothing is decided here: what concerns sessions and requests goes to the endpoint, what concerns names and sleep to
//! the driver.

use std::io;
use std::os::fd::BorrowedFd;

use sprat_proto::rpc::{
    CHANNELS, Config, Endpoint, Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice,
    Slices,
};
use sprat_proto::tracepoint::{NoProbe, Probe};
use sprat_proto::{Instant, Rng};

use crate::driver::Driver;
use crate::locator::Locator;
use crate::transport::Transport;

/// Sessions and requests over driver `D`.
#[derive(Debug)]
pub struct Fast<D: Driver, P: Probe = NoProbe> {
    endpoint: Endpoint<P>,
    driver: D,
}

impl<D: Driver, P: Probe> Fast<D, P> {
    /// A transport with no sessions over `driver`.
    pub fn new(driver: D, config: Config, rng: Rng, probe: P) -> Self {
        Self { endpoint: Endpoint::new(config, rng, probe), driver }
    }

    /// The driver, to read its counters.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The endpoint, to read its counters.
    pub fn endpoint(&self) -> &Endpoint<P> {
        &self.endpoint
    }
}

impl<D: Driver, P: Probe + Send> Transport for Fast<D, P> {
    #[inline]
    fn input(&mut self, now: Instant) -> usize {
        self.driver.turn(now);
        self.endpoint.input(now, &mut self.driver)
    }

    #[inline]
    fn event(&mut self, now: Instant) -> Option<Event<'_>> {
        self.endpoint.event(now, &self.driver)
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

    fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId> {
        let addr = self.driver.resolve(to)?;
        Ok(self.endpoint.connect(now, addr))
    }

    fn is_open(&self, session: SessionId) -> bool {
        self.endpoint.is_open(session)
    }

    fn cause(&self, _: SessionId) -> Option<String> {
        None
    }

    fn close(&mut self, now: Instant, session: SessionId) {
        self.endpoint.close(now, session);
    }

    fn channels(&self) -> usize {
        CHANNELS
    }

    fn warm(&mut self, sessions: &[SessionId]) {
        self.endpoint.warm(sessions.iter().copied());
    }

    #[inline]
    fn request(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        mut message: Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        self.take_request(now, session, tag, &mut message, deadline)
    }

    #[inline]
    fn take_request(
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
    ) -> Result<RpcId, RequestError> {
        self.endpoint.request_bytes_over(now, session, tag, bytes, deadline, &mut self.driver)
    }

    fn cancel(&mut self, now: Instant, rpc: RpcId) {
        self.endpoint.cancel(now, rpc);
    }

    #[inline]
    fn reply(&mut self, now: Instant, rpc: ServerRpc, mut message: Message) {
        self.take_reply(now, rpc, &mut message);
    }

    #[inline]
    fn take_reply(&mut self, now: Instant, rpc: ServerRpc, message: &mut Message) {
        self.endpoint.reply_over(now, rpc, message, &mut self.driver);
    }

    fn refuse(&mut self, now: Instant, rpc: ServerRpc, retry_after_ns: u64) {
        self.endpoint.refuse(now, rpc, retry_after_ns);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.driver.fd()
    }

    fn doze(&mut self) -> bool {
        self.driver.doze()
    }

    fn wake(&mut self) {
        self.driver.wake();
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.endpoint.stats().each(each);
        self.driver.counters(each);
    }

    fn locator(&self) -> Option<String> {
        self.driver.locator()
    }
}
