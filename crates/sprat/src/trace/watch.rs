//! The wrappers that mark where a driver, a device or a transport of frames begins and ends, and answer who asks for the marks'
//! samples. They are around what they watch only in a process that was asked for marks.
//!
//! Always: what is watched is called by the methods that it would be called by alone.

use std::io;
use std::os::fd::BorrowedFd;

use sprat_proto::datagrams::{PaddedHeader, Sent};
use sprat_proto::device::{Device, Headers, Info, Offload, RxOffload};
use sprat_proto::node::Transport;
use sprat_proto::rpc::{Event, Message, RequestError, RpcId, ServerRpc, SessionId, Slice, Slices};
use sprat_proto::{Addr, Datagrams, Instant, TimedDatagrams};

use super::{Marks, Step, sample};
use crate::device::{AnyNic, Nic};
use crate::driver::Driver;
use crate::locator::Locator;
use crate::transport::SystemTransport;

/// A driver between the marks of its layer: that of the driver itself, or of IP where a watched device is below it.
#[derive(Debug)]
pub(crate) struct Watched<D> {
    inner: D,
    marks: Marks,
    over_ip: bool,
    /// Something was sent since the last flush.
    unflushed: bool,
}

impl<D: Driver> Watched<D> {
    /// `inner`; `over_ip` if the device below it has marks of its own.
    pub(crate) fn new(inner: D, marks: Marks, over_ip: bool) -> Self {
        Self { inner, marks, over_ip, unflushed: false }
    }

    /// A call into the layer, between marks.
    #[inline]
    fn inside<T>(&mut self, step: Step, call: impl FnOnce(&mut D) -> T) -> T {
        let (begin, end) =
            if self.over_ip { (Step::Ip, Step::Transport) } else { (step, Step::Sent) };
        self.marks.now(begin, 0);
        let result = call(&mut self.inner);
        self.marks.now(end, 0);
        result
    }
}

impl<D: Driver> Datagrams for Watched<D> {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        if self.over_ip {
            let n = self.inner.recv_burst();
            if n > 0 {
                self.marks.now(Step::Transport, 0);
            }
            return n;
        }
        let begin = self.marks.ticks();
        let n = self.inner.recv_burst();
        if n > 0 {
            self.marks.at(begin, Step::Receive, 0);
            self.marks.now(Step::Received, 0);
        }
        n
    }

    #[inline]
    fn datagram(&self, i: usize) -> (Addr, &[u8]) {
        self.inner.datagram(i)
    }

    #[inline]
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent {
        self.unflushed = true;
        self.inside(Step::Send, |inner| inner.send(to, parts))
    }

    #[inline]
    fn send_short(&mut self, to: Addr, head: &PaddedHeader, body: &[u8]) -> Sent {
        self.unflushed = true;
        self.inside(Step::Send, |inner| inner.send_short(to, head, body))
    }

    #[inline]
    fn flush(&mut self) {
        // Where nothing is lost, what is sent is there.
        if !self.unflushed || self.inner.lossless() {
            return self.inner.flush();
        }
        self.unflushed = false;
        self.inside(Step::Flush, D::flush);
    }

    fn gone(&mut self) -> Option<Addr> {
        self.inner.gone()
    }

    fn max_payload(&self) -> usize {
        self.inner.max_payload()
    }

    fn lossless(&self) -> bool {
        self.inner.lossless()
    }

    fn intact(&self) -> bool {
        self.inner.intact()
    }
}

impl<D: Driver> TimedDatagrams for Watched<D> {
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

impl<D: Driver> Driver for Watched<D> {
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

/// A device between the marks of the driver, called by the IP layer.
pub(crate) struct WatchedNic {
    inner: AnyNic,
    marks: Marks,
    unflushed: bool,
}

impl WatchedNic {
    pub(crate) fn new(inner: AnyNic, marks: Marks) -> Self {
        Self { inner, marks, unflushed: false }
    }
}

impl Device for WatchedNic {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        let begin = self.marks.ticks();
        let n = self.inner.recv_burst();
        if n > 0 {
            self.marks.at(begin, Step::Receive, 0);
            self.marks.now(Step::ReceivedIp, 0);
        }
        n
    }

    #[inline]
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        self.inner.frame(i)
    }

    #[inline]
    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        self.unflushed = true;
        self.marks.now(Step::Send, 0);
        let sent = self.inner.send(parts, offload);
        self.marks.now(Step::SentIp, 0);
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
        self.marks.now(Step::Send, 0);
        let sent = self.inner.send_with_headers(headers, parts, len, offload);
        self.marks.now(Step::SentIp, 0);
        sent
    }

    #[inline]
    fn flush(&mut self) {
        if !self.unflushed {
            return self.inner.flush();
        }
        self.unflushed = false;
        self.marks.now(Step::Flush, 0);
        self.inner.flush();
        self.marks.now(Step::SentIp, 0);
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

impl Nic for WatchedNic {
    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }
    fn doze(&mut self) -> bool {
        self.inner.doze()
    }
    fn wake(&mut self) {
        self.inner.wake();
    }
    fn carries(&mut self) -> bool {
        self.inner.carries()
    }

    fn stamps(&self) -> bool {
        self.inner.stamps()
    }

    fn queues(&self) -> usize {
        self.inner.queues()
    }
}

/// A transport that answers who asks for samples, and, where it carries frames on connections, marks what passes its door: there
/// the kernel's stream and the frames on it are one layer, the driver's.
pub(crate) struct Asked<T> {
    inner: T,
    marks: Marks,
    frames: bool,
    /// Frames: something was handed in since the last output.
    unsent: bool,
    /// Frames: when the look for what has arrived began.
    looked: u64,
    /// Who waits for samples.
    asking: Vec<ServerRpc>,
}

/// Most that wait for samples at a time; nobody but one is expected.
const ASKING: usize = 16;

impl<T: SystemTransport> Asked<T> {
    /// `inner`; `frames` if nothing in it marks.
    pub(crate) fn new(inner: T, marks: Marks, frames: bool) -> Self {
        Self { inner, marks, frames, unsent: false, looked: 0, asking: Vec::new() }
    }

    /// Sends a request by `send`, and marks that where nothing in the transport does.
    fn requested(
        &mut self,
        send: impl FnOnce(&mut T) -> Result<RpcId, RequestError>,
    ) -> Result<RpcId, RequestError> {
        if !self.frames {
            return send(&mut self.inner);
        }
        let begin = self.marks.ticks();
        let result = send(&mut self.inner);
        if let Ok(rpc) = &result {
            self.unsent = true;
            self.marks.at(begin, Step::Request, rpc.0);
        }
        result
    }
}

/// Marks what a transport of frames brings. Such a request has no number that both ends know: the server's marks have none.
fn mark_event(marks: &Marks, looked: u64, event: &Event<'_>) {
    let (step, rpc) = match event {
        Event::Request { .. } => (Step::Serve, 0),
        Event::Response { rpc, .. } => (Step::Done, rpc.0),
        _ => return,
    };
    let now = marks.ticks();
    marks.at(looked, Step::Receive, 0);
    marks.at(now, Step::Received, 0);
    marks.at(now, step, rpc);
}

impl<T: SystemTransport> Transport for Asked<T> {
    #[inline]
    fn input(&mut self, now: Instant) -> usize {
        if !self.frames {
            return self.inner.input(now);
        }
        self.looked = self.marks.ticks();
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
            // What else there is comes with the next turn.
            return None;
        }
        if self.frames {
            mark_event(&self.marks, self.looked, &event);
        }
        Some(event)
    }

    #[inline]
    fn output(&mut self, now: Instant, memory: &dyn Slices) -> bool {
        for rpc in std::mem::take(&mut self.asking) {
            self.inner.reply(now, rpc, &mut sample::answer(&self.marks).into());
        }
        if !self.unsent {
            return self.inner.output(now, memory);
        }
        self.unsent = false;
        self.marks.now(Step::Flush, 0);
        let more = self.inner.output(now, memory);
        self.marks.now(Step::Sent, 0);
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
        self.requested(|inner| inner.request(now, session, tag, message, deadline))
    }

    fn request_bytes(
        &mut self,
        now: Instant,
        session: SessionId,
        tag: u64,
        bytes: &[u8],
        deadline: Instant,
    ) -> Result<RpcId, RequestError> {
        self.requested(|inner| inner.request_bytes(now, session, tag, bytes, deadline))
    }

    fn reply(&mut self, now: Instant, rpc: ServerRpc, message: &mut Message) {
        if self.frames {
            self.unsent = true;
            self.marks.now(Step::Answer, 0);
        }
        self.inner.reply(now, rpc, message);
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

impl<T: SystemTransport> SystemTransport for Asked<T> {
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
