//! Wrappers that trace the calls of a driver, a device or a transport of frames, and return samples
//! to a client that asks for them. They exist only in a process that traces.
//!
//! Always holds: a wrapper calls the same methods as its user would call without it.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use sprat_proto::datagrams::{LeftDatagram, PaddedHeader, Sent};
use sprat_proto::device::{Device, Headers, Info, Offload, RxOffload};
use sprat_proto::node::Transport;
use sprat_proto::rpc::{Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices};
use sprat_proto::{Addr, Datagrams, Instant, TimedDatagrams};

use super::{TraceEvent, TraceRing, sample};
use crate::device::{AnyNic, Nic};
use crate::driver::Driver;
use crate::locator::Locator;
use crate::transport::SystemTransport;

/// A driver whose calls are traced. Its time belongs to the driver's layer, or to IP if a traced
/// device is below it.
#[derive(Debug)]
pub(crate) struct Traced<D> {
    inner: D,
    trace: TraceRing,
    over_ip: bool,
    /// True if something was sent since the last flush.
    unflushed: bool,
}

impl<D: Driver> Traced<D> {
    /// Wraps the driver `inner`; `over_ip` if the device below it is traced.
    pub(crate) fn new(inner: D, trace: TraceRing, over_ip: bool) -> Self {
        Self { inner, trace, over_ip, unflushed: false }
    }

    /// Records a call into the driver's layer, or into IP's.
    #[inline]
    fn inside<T>(&mut self, kind: TraceEvent, call: impl FnOnce(&mut D) -> T) -> T {
        let (begin, end) = if self.over_ip {
            (TraceEvent::Ip, TraceEvent::Transport)
        } else {
            (kind, TraceEvent::Sent)
        };
        self.trace.now(begin, 0);
        let result = call(&mut self.inner);
        self.trace.now(end, 0);
        result
    }
}

impl<D: Driver> Datagrams for Traced<D> {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        if self.over_ip {
            let n = self.inner.recv_burst();
            if n > 0 {
                self.trace.now(TraceEvent::Transport, 0);
            }
            return n;
        }
        let begin = self.trace.ticks();
        let n = self.inner.recv_burst();
        if n > 0 {
            self.trace.at(begin, TraceEvent::Receive, 0);
            self.trace.now(TraceEvent::Received, 0);
        }
        n
    }

    #[inline]
    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        self.inner.datagram(i)
    }

    fn left(&self, i: usize) -> Option<LeftDatagram<'_>> {
        self.inner.left(i)
    }

    fn append_left(&self, i: usize, from: usize, bytes: &mut Vec<u8>) {
        self.inner.append_left(i, from, bytes);
    }

    #[inline]
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        self.unflushed = true;
        self.inside(TraceEvent::Send, |inner| inner.send(to, parts))
    }

    #[inline]
    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.unflushed = true;
        self.inside(TraceEvent::Send, |inner| inner.send_short(to, head, body))
    }

    #[inline]
    fn flush(&mut self) {
        // A lossless driver has sent a packet when `send` returns.
        if !self.unflushed || self.inner.lossless() {
            return self.inner.flush();
        }
        self.unflushed = false;
        self.inside(TraceEvent::Flush, D::flush);
    }

    fn gone(&mut self) -> Option<Addr> {
        self.inner.gone()
    }

    fn max_payload(&self) -> usize {
        self.inner.max_payload()
    }

    fn max_loopback_payload(&self) -> usize {
        self.inner.max_loopback_payload()
    }

    fn lossless(&self) -> bool {
        self.inner.lossless()
    }

    fn intact(&self) -> bool {
        self.inner.intact()
    }
}

impl<D: Driver> TimedDatagrams for Traced<D> {
    fn set_now(&mut self, now: Instant) {
        self.inner.set_now(now);
    }
    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }
    fn tick(&mut self, now: Instant) {
        self.inner.tick(now);
    }
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(each);
    }
}

impl<D: Driver> Driver for Traced<D> {
    fn resolve(&mut self, to: &Locator) -> io::Result<Addr> {
        self.inner.resolve(to)
    }
    fn locator(&self) -> Option<String> {
        self.inner.locator()
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
    fn arm(&mut self) -> bool {
        self.inner.arm()
    }
    fn disarm(&mut self) {
        self.inner.disarm();
    }
}

/// A packet device whose calls from the IP layer are traced.
pub(crate) struct TracedNic {
    inner: AnyNic,
    trace: TraceRing,
    unflushed: bool,
}

impl TracedNic {
    pub(crate) fn new(inner: AnyNic, trace: TraceRing) -> Self {
        Self { inner, trace, unflushed: false }
    }
}

impl Device for TracedNic {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        let begin = self.trace.ticks();
        let n = self.inner.recv_burst();
        if n > 0 {
            self.trace.at(begin, TraceEvent::Receive, 0);
            self.trace.now(TraceEvent::ReceivedIp, 0);
        }
        n
    }

    #[inline]
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        self.inner.frame(i)
    }

    fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        self.inner.append_left(i, range, bytes);
    }

    #[inline]
    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        self.unflushed = true;
        self.trace.now(TraceEvent::Send, 0);
        let sent = self.inner.send(parts, offload);
        self.trace.now(TraceEvent::SentIp, 0);
        sent
    }

    #[inline]
    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
        offload: Offload,
    ) -> Sent {
        self.unflushed = true;
        self.trace.now(TraceEvent::Send, 0);
        let sent = self.inner.send_with_headers(headers, parts, len, offload);
        self.trace.now(TraceEvent::SentIp, 0);
        sent
    }

    #[inline]
    fn flush(&mut self) {
        if !self.unflushed {
            return self.inner.flush();
        }
        self.unflushed = false;
        self.trace.now(TraceEvent::Flush, 0);
        self.inner.flush();
        self.trace.now(TraceEvent::SentIp, 0);
    }

    fn info(&self) -> Info {
        self.inner.info()
    }
    fn rx_timestamp_ns(&self, i: usize) -> Option<u64> {
        self.inner.rx_timestamp_ns(i)
    }
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(each);
    }
}

impl Nic for TracedNic {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
    fn arm(&mut self) -> bool {
        self.inner.arm()
    }
    fn disarm(&mut self) {
        self.inner.disarm();
    }
    fn carries(&mut self) -> bool {
        self.inner.carries()
    }

    fn has_rx_timestamps(&self) -> bool {
        self.inner.has_rx_timestamps()
    }

    fn queues(&self) -> usize {
        self.inner.queues()
    }
}

/// A transport that returns samples to clients that ask for them. If it carries frames on
/// connections, it also traces their requests: the kernel's stream and the frames on it are one
/// layer, the driver's.
pub(crate) struct TracedTransport<T> {
    inner: T,
    trace: TraceRing,
    frames: bool,
    /// True if a transport of frames got a request or reply since the last output.
    unsent: bool,
    /// The time in ticks at which a transport of frames last began to poll for input.
    looked: u64,
    /// The requests for samples that the transport has not answered yet.
    asking: Vec<ServerRpc>,
}

/// The most requests for samples that wait for an answer; one is usual.
const ASKING: usize = 16;

impl<T: SystemTransport> TracedTransport<T> {
    /// Wraps the transport `inner`; `frames` if `inner` itself records no tracepoint.
    pub(crate) fn new(inner: T, trace: TraceRing, frames: bool) -> Self {
        Self { inner, trace, frames, unsent: false, looked: 0, asking: Vec::new() }
    }

    /// Sends a request by `send`, and records that if nothing in the transport does.
    fn requested<R>(
        &mut self,
        send: impl FnOnce(&mut T) -> R,
        sent: impl FnOnce(&R) -> Option<RpcId>,
    ) -> R {
        if !self.frames {
            return send(&mut self.inner);
        }
        let begin = self.trace.ticks();
        let result = send(&mut self.inner);
        if let Some(rpc) = sent(&result) {
            self.unsent = true;
            self.trace.at(begin, TraceEvent::Request, rpc.0);
        }
        result
    }
}

/// Records the events of a transport of frames. Its requests have no number that both ends know, so
/// the server's tracepoints carry none.
fn mark_event(trace: &TraceRing, looked: u64, event: &Event<'_>) {
    let (kind, rpc) = match event {
        Event::Request { .. } => (TraceEvent::Serve, 0),
        Event::Response { rpc, .. } => (TraceEvent::Done, rpc.0),
        _ => return,
    };
    let now = trace.ticks();
    trace.at(looked, TraceEvent::Receive, 0);
    trace.at(now, TraceEvent::Received, 0);
    trace.at(now, kind, rpc);
}

impl<T: SystemTransport> Transport for TracedTransport<T> {
    #[inline]
    fn input(&mut self, now: Instant) -> usize {
        if !self.frames {
            return self.inner.input(now);
        }
        self.looked = self.trace.ticks();
        self.inner.input(now)
    }

    #[inline]
    fn event(&mut self, now: Instant) -> Option<Event<'_>> {
        let event = self.inner.event(now)?;
        if let Event::Request { rpc, payload, .. } = &event
            && sample::is_ask(payload)
        {
            if self.asking.len() < ASKING {
                self.asking.push(*rpc);
            }
            // Further events come with the next turn.
            return None;
        }
        if self.frames {
            mark_event(&self.trace, self.looked, &event);
        }
        Some(event)
    }

    #[inline]
    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        for rpc in std::mem::take(&mut self.asking) {
            self.inner.reply(now, rpc, &mut sample::answer(&self.trace).into(), false);
        }
        if !self.unsent {
            return self.inner.output(now, memory);
        }
        self.unsent = false;
        self.trace.now(TraceEvent::Flush, 0);
        let more = self.inner.output(now, memory);
        self.trace.now(TraceEvent::Sent, 0);
        more
    }

    fn request(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        message: &mut Message,
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        let send = |inner: &mut T| inner.request(now, session, tag, message, deadline);
        self.requested(send, |sent| sent.as_ref().ok().copied())
    }

    fn request_bytes(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Option<RpcId> {
        self.requested(
            |inner| inner.request_bytes(now, session, tag, bytes, deadline),
            |sent| *sent,
        )
    }

    fn reply(&mut self, now: Instant, rpc: ServerRpc, message: &mut Message, idempotent: bool) {
        if self.frames {
            self.unsent = true;
            self.trace.now(TraceEvent::Answer, 0);
        }
        self.inner.reply(now, rpc, message, idempotent);
    }

    fn peek_requests(&self, each: &mut dyn FnMut(&[u8])) {
        self.inner.peek_requests(each);
    }
    fn has_output(&self) -> bool {
        self.unsent || !self.asking.is_empty() || self.inner.has_output()
    }
    fn released(&mut self) -> Option<Slice> {
        self.inner.released()
    }
    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }
    fn tick(&mut self, now: Instant) {
        self.inner.tick(now);
    }
    fn is_open(&self, session: SessionId) -> bool {
        self.inner.is_open(session)
    }
    fn cause(&self, session: SessionId) -> Option<String> {
        self.inner.cause(session)
    }
    fn close(&mut self, now: Instant, session: SessionId) {
        self.inner.close(now, session);
    }
    fn has_idle_channel(&self, session: SessionId) -> bool {
        self.inner.has_idle_channel(session)
    }
    fn prefetch(&mut self, sessions: &[SessionId]) {
        self.inner.prefetch(sessions);
    }
    fn cancel(&mut self, now: Instant, rpc: RpcId) {
        self.inner.cancel(now, rpc);
    }
    fn refuse(&mut self, now: Instant, rpc: ServerRpc, retry_after_ns: u64) {
        self.inner.refuse(now, rpc, retry_after_ns);
    }
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.inner.counters(each);
    }
}

impl<T: SystemTransport> SystemTransport for TracedTransport<T> {
    fn connect(&mut self, now: Instant, to: &Locator) -> io::Result<SessionId> {
        self.inner.connect(now, to)
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
    fn arm(&mut self) -> bool {
        self.inner.arm()
    }
    fn disarm(&mut self) {
        self.inner.disarm();
    }
    fn locator(&self) -> Option<String> {
        self.inner.locator()
    }
}
