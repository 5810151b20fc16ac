//! A transport of any kind, as a worker holds it.

use std::io;
use std::os::fd::BorrowedFd;

use sprat_proto::Instant;
use sprat_proto::node::{Fast, Transport};
use sprat_proto::rpc::{Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices};

use crate::driver::shm::Shm;
use crate::locator::Locator;
use crate::transport::SystemTransport;

/// A transport of any kind. Calls of the shared-memory transport cost about as much as their work,
/// so they are direct and the compiler inlines them; calls of the others go through a table.
pub(crate) enum AnyTransport {
    Shm(Box<Fast<Shm>>),
    Other(Box<dyn SystemTransport>),
}

/// Calls one method of whichever transport an [`AnyTransport`] holds.
macro_rules! on {
    ($any:expr, $transport:ident => $call:expr) => {
        match $any {
            AnyTransport::Shm($transport) => $call,
            AnyTransport::Other($transport) => $call,
        }
    };
}

// The methods that are called for each message or at each turn are inlined.
impl Transport for AnyTransport {
    #[inline(always)]
    fn input(&mut self, now: Instant) -> usize {
        on!(self, t => t.input(now))
    }

    #[inline(always)]
    fn event(&mut self, now: Instant) -> Option<Event<'_>> {
        on!(self, t => t.event(now))
    }

    #[inline(always)]
    fn peek_requests(&self, each: &mut dyn FnMut(&[u8])) {
        on!(self, t => t.peek_requests(each));
    }

    #[inline(always)]
    fn has_output(&self) -> bool {
        on!(self, t => t.has_output())
    }

    #[inline(always)]
    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        on!(self, t => t.output(now, memory))
    }

    #[inline(always)]
    fn released(&mut self) -> Option<Slice> {
        on!(self, t => t.released())
    }

    fn deadline(&self) -> Option<Instant> {
        on!(self, t => t.deadline())
    }

    fn tick(&mut self, now: Instant) {
        on!(self, t => t.tick(now));
    }

    fn is_open(&self, session: SessionId) -> bool {
        on!(self, t => t.is_open(session))
    }

    #[inline(always)]
    fn has_idle_channel(&self, session: SessionId) -> bool {
        on!(self, t => t.has_idle_channel(session))
    }

    fn cause(&self, session: SessionId) -> Option<String> {
        on!(self, t => t.cause(session))
    }

    fn close(&mut self, now: Instant, session: SessionId) {
        on!(self, t => t.close(now, session));
    }

    fn prefetch(&mut self, sessions: &[SessionId]) {
        on!(self, t => t.prefetch(sessions));
    }

    #[inline(always)]
    fn request(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        on!(self, t => t.request(now, session, tag, message, deadline))
    }

    #[inline(always)]
    fn request_bytes(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Option<RpcId> {
        on!(self, t => t.request_bytes(now, session, tag, bytes, deadline))
    }

    fn cancel(&mut self, now: Instant, rpc: RpcId) {
        on!(self, t => t.cancel(now, rpc));
    }

    #[inline(always)]
    fn reply(&mut self, now: Instant, rpc: ServerRpc, message: &mut Message, idempotent: bool) {
        on!(self, t => t.reply(now, rpc, message, idempotent));
    }

    fn refuse(&mut self, now: Instant, rpc: ServerRpc, retry_after_ns: u64) {
        on!(self, t => t.refuse(now, rpc, retry_after_ns));
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        on!(self, t => t.counters(each));
    }
}

impl SystemTransport for AnyTransport {
    fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId> {
        on!(self, t => t.connect(now, to))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        on!(self, t => t.fd())
    }

    fn arm(&mut self) -> bool {
        on!(self, t => t.arm())
    }

    fn disarm(&mut self) {
        on!(self, t => t.disarm());
    }

    fn locator(&self) -> Option<String> {
        on!(self, t => t.locator())
    }
}
