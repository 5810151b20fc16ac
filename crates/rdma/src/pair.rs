//! Queue pairs: the send and the receive queue of a connection, and the connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sprat_proto::rdma::mr::Rights;
use sprat_proto::rdma::{
    ConnectOptions, MAX_INLINE, MAX_SGE, PostError, Qp, QpOptions, QpState, RecvRequest,
    SendRequest, StartupError,
};
use sprat_proto::time::SECOND;
use sprat_proto::wire::rdmap::Cause;

use super::ended;
use super::memory::{Domain, ProtectionDomain};
use super::queue::{AsyncEventChannel, CompletionQueue, SharedReceiveQueue, post_all};
use crate::engine::{ConnectionState, EventSource, Patience};

/// The time that TCP has to connect a queue pair.
const CONNECT_NS: u64 = 5 * SECOND;

/// Options of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct PairOptions<'q> {
    /// The completion queue of the queue pair's send requests.
    pub send_queue: &'q CompletionQueue,
    /// The completion queue of the queue pair's receives.
    pub recv_queue: &'q CompletionQueue,
    /// The shared receive queue to take receives from. With `None` the queue pair has a receive
    /// queue of its own.
    pub shared: Option<&'q SharedReceiveQueue>,
    /// The most work requests in the send queue.
    pub send_depth: u32,
    /// The most work requests in the receive queue.
    pub recv_depth: u32,
    /// The most scatter/gather elements of one send request.
    pub max_send_sge: usize,
    /// The most scatter/gather elements of one receive request.
    pub max_recv_sge: usize,
    /// The most bytes of inline data in one send request.
    pub max_inline: usize,
    /// True if every send request leaves a completion.
    pub signal_all: bool,
}

impl<'q> PairOptions<'q> {
    /// Options of a queue pair with room for 64 requests in each of its two queues, all completing
    /// in `queue`.
    #[must_use]
    pub fn new(queue: &'q CompletionQueue) -> Self {
        Self {
            send_queue: queue,
            recv_queue: queue,
            shared: None,
            send_depth: 64,
            recv_depth: 64,
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            signal_all: false,
        }
    }
}

/// The values that both ends of a connection agreed on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Connected {
    /// The private data of the peer's program.
    pub private_data: Vec<u8>,
    /// The number of Reads and atomics of the peer that this end serves at once.
    pub ird: u16,
    /// The number of Reads and atomics that this end may request at once; further ones wait.
    pub ord: u16,
}

/// The reason why a connection was not opened, or has ended.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConnectError {
    /// The queue pair is not, or no longer, being connected.
    #[error("the queue pair is not being connected")]
    Idle,
    /// TCP did not connect to the peer.
    #[error("no connection: {0}")]
    Unreachable(io::ErrorKind),
    /// The peer's program rejected the connection.
    #[error("the peer refused")]
    Rejected {
        /// The private data with which the peer's program rejected the connection.
        private_data: Vec<u8>,
        /// The number of Reads and atomics that the rejecting peer would serve at once, if its
        /// Reply states it.
        ird: Option<u16>,
        /// The number of Reads and atomics that the rejecting peer would request at once, if its
        /// Reply states it.
        ord: Option<u16>,
    },
    /// The start-up of the connection failed: the two ends do not understand each other, or the
    /// peer has gone.
    #[error("the start-up failed: {0}")]
    Failed(StartupError),
    /// The connection has ended, by an error if there is a cause; `ours` states which end found it.
    #[error("the connection has ended")]
    Disconnected {
        /// The error that ended the connection, if there was one.
        cause: Option<Cause>,
        /// True if this end found the error that ended the connection.
        ours: bool,
    },
    /// The attempt to connect took longer than the caller wanted to wait, and goes on.
    #[error("not connected in time")]
    TimedOut,
}

/// The state of a queue pair's connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Connection {
    /// The connection is being opened.
    Opening,
    /// The connection is open.
    Ready(Connected),
    /// The connection is not open, for this reason.
    Not(ConnectError),
}

impl From<&ConnectionState> for Connection {
    fn from(link: &ConnectionState) -> Self {
        Self::Not(match link {
            ConnectionState::Opening => return Self::Opening,
            ConnectionState::Connected { private_data, ird, ord } => {
                return Self::Ready(Connected {
                    private_data: private_data.clone(),
                    ird: *ird,
                    ord: *ord,
                });
            }
            ConnectionState::Idle => ConnectError::Idle,
            ConnectionState::Unreachable(kind) => ConnectError::Unreachable(*kind),
            ConnectionState::Rejected { private_data, ird, ord } => {
                ConnectError::Rejected { private_data: private_data.clone(), ird: *ird, ord: *ord }
            }
            ConnectionState::Failed(why) => ConnectError::Failed(*why),
            ConnectionState::Disconnected(cause) => ConnectError::Disconnected {
                cause: cause.map(|(cause, _)| cause),
                ours: cause.is_some_and(|(_, ours)| ours),
            },
        })
    }
}

/// A queue pair, reliable and connected (the only kind that iWARP has).
#[derive(Debug)]
pub struct QueuePair {
    pub(super) domain: Arc<Domain>,
    pub(super) qp: Qp,
    /// The completion queues of the queue pair, which must live as long as it does.
    queues: [CompletionQueue; 2],
    shared: Option<SharedReceiveQueue>,
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.domain.handle.shared.act(|core, now| {
            core.cancel_connect(self.qp);
            core.events().pair_destroyed(self.qp);
            ended(core.rnic().destroy_qp(self.qp));
            core.flush(now);
        });
    }
}

impl ProtectionDomain {
    /// Creates a queue pair in the protection domain.
    ///
    /// # Errors
    /// The device has too many queue pairs, or an option is above its limit.
    pub fn queue_pair(&self, options: &PairOptions<'_>) -> Result<QueuePair, PostError> {
        // A program may have installed handlers of its own since it registered memory.
        sprat_sys::memory::check_handler();
        QueuePair::new(Arc::clone(&self.inner), options)
    }
}

impl QueuePair {
    pub(super) fn new(domain: Arc<Domain>, options: &PairOptions<'_>) -> Result<Self, PostError> {
        let wanted = QpOptions {
            pd: domain.pd,
            send_cq: options.send_queue.inner.cq,
            recv_cq: options.recv_queue.inner.cq,
            srq: options.shared.map(|s| s.inner.srq),
            send_depth: options.send_depth,
            recv_depth: options.recv_depth,
            max_send_sge: options.max_send_sge,
            max_recv_sge: options.max_recv_sge,
            max_inline: options.max_inline,
            signal_all: options.signal_all,
        };
        let qp = domain.handle.shared.act(|core, _| {
            let qp = core.rnic().create_qp(wanted)?;
            core.events().connections.insert(qp, ConnectionState::Idle);
            Ok::<_, PostError>(qp)
        })?;
        let queues = [options.send_queue.clone(), options.recv_queue.clone()];
        Ok(Self { domain, qp, queues, shared: options.shared.cloned() })
    }

    /// The queue pair's number, which completions and asynchronous events carry.
    #[must_use]
    pub fn number(&self) -> Qp {
        self.qp
    }

    /// The completion queue of the queue pair's send requests.
    #[must_use]
    pub fn send_queue(&self) -> &CompletionQueue {
        &self.queues[0]
    }

    /// The completion queue of the queue pair's receives.
    #[must_use]
    pub fn recv_queue(&self) -> &CompletionQueue {
        &self.queues[1]
    }

    /// The shared receive queue of the queue pair, if it has one.
    #[must_use]
    pub fn shared(&self) -> Option<&SharedReceiveQueue> {
        self.shared.as_ref()
    }

    /// Posts a work request to the send queue. Before the connection is open requests wait; after
    /// it has ended they complete as flushed.
    ///
    /// # Errors
    /// The queue is full, or the request is not possible; nothing was posted.
    #[inline]
    pub fn post_send(&self, request: SendRequest) -> Result<(), PostError> {
        self.domain.handle.shared.post(|core| core.rnic().post_send(self.qp, request))
    }

    /// Posts several send requests at once, which are sent in as few pieces as possible.
    ///
    /// # Errors
    /// The error of the first request that cannot be posted, as of [`QueuePair::post_send`], with
    /// the number of requests posted before it.
    pub fn post_sends(
        &self,
        requests: impl IntoIterator<Item = SendRequest>,
    ) -> Result<usize, (usize, PostError)> {
        self.domain.handle.shared.post(|core| {
            let rnic = core.rnic();
            post_all(requests, |request| rnic.post_send(self.qp, request))
        })
    }

    /// Posts several send requests, all or none; posted requests are taken out of `requests`.
    ///
    /// # Errors
    /// The error of the first request that cannot be posted, as of [`QueuePair::post_send`];
    /// nothing was posted.
    pub fn post_all(&self, requests: &mut Vec<SendRequest>) -> Result<(), PostError> {
        self.domain.handle.shared.post(|core| core.rnic().post_sends(self.qp, requests))
    }

    /// Posts several receives, one after the other.
    ///
    /// # Errors
    /// The error of the first receive that cannot be posted, as of [`QueuePair::post_recv`], with
    /// the number of receives posted before it.
    pub fn post_recvs(
        &self,
        requests: impl IntoIterator<Item = RecvRequest>,
    ) -> Result<usize, (usize, PostError)> {
        self.domain.handle.shared.post_receives(|core| {
            let rnic = core.rnic();
            post_all(requests, |request| rnic.post_recv(self.qp, request))
        })
    }

    /// Posts a receive to the receive queue. The peer's messages take the receives in order.
    ///
    /// # Errors
    /// The queue is full, or the request is not possible; nothing was posted.
    #[inline]
    pub fn post_recv(&self, request: RecvRequest) -> Result<(), PostError> {
        self.domain.handle.shared.post_receives(|core| core.rnic().post_recv(self.qp, request))
    }

    /// Begins to connect the queue pair with the listener at `to`; [`QueuePair::connection`] and
    /// [`QueuePair::connected`] return the result.
    ///
    /// # Errors
    /// There is no socket or no route to that address, or the address is not allowed.
    pub fn begin_connect(&self, to: SocketAddr, options: ConnectOptions) -> io::Result<()> {
        self.domain.handle.allow_peer(to)?;
        self.domain.handle.start()?;
        self.domain
            .handle
            .shared
            .act(|core, now| core.connect(now, self.qp, to, options, CONNECT_NS))
    }

    /// Connects the queue pair with the listener at `to`, and waits for the result, at most for
    /// `limit`.
    ///
    /// # Errors
    /// The reason why the connection was not opened.
    pub fn connect(
        &self,
        to: SocketAddr,
        options: ConnectOptions,
        limit: Option<Duration>,
    ) -> Result<Connected, ConnectError> {
        self.begin_connect(to, options).map_err(|e| ConnectError::Unreachable(e.kind()))?;
        self.connected(limit)
    }

    /// Waits until the queue pair's connection is open, at most for `limit`.
    ///
    /// # Errors
    /// The reason why the connection is not open.
    pub fn connected(&self, limit: Option<Duration>) -> Result<Connected, ConnectError> {
        let found = self.domain.handle.shared.wait(limit, Patience::Spin, |core| {
            match core.events().connections.get(&self.qp).map(Connection::from)? {
                Connection::Opening => None,
                Connection::Ready(connected) => Some(Ok(connected)),
                Connection::Not(error) => Some(Err(error)),
            }
        });
        found.unwrap_or(Err(ConnectError::TimedOut))
    }

    /// The present state of the queue pair's connection.
    #[must_use]
    pub fn connection(&self) -> Connection {
        let link = self
            .domain
            .handle
            .shared
            .with(|core| core.events().connections.get(&self.qp).map(Connection::from));
        link.unwrap_or(Connection::Not(ConnectError::Idle))
    }

    /// Limits the accesses of the peer to this end's memory, under any key, from now on. A new
    /// queue pair allows all.
    pub fn allow(&self, rights: Rights) {
        // The queue pair is there as long as this is.
        let _ = self.domain.handle.shared.act(|core, _| core.rnic().allow(self.qp, rights));
    }

    /// The present state of the queue pair.
    #[must_use]
    pub fn state(&self) -> Option<QpState> {
        self.domain.handle.shared.with(|core| core.rnic().state(self.qp))
    }

    /// Sends the asynchronous events of the queue pair to `channel` alone from now on.
    pub fn report_to(&self, channel: &AsyncEventChannel) {
        channel.own(EventSource::Qp(self.qp));
    }

    /// Puts the queue pair in error at once: posted requests complete as flushed, and the
    /// connection, if there is one, ends.
    pub fn fail(&self) {
        let _ = self.domain.handle.shared.act(|core, now| core.rnic().fail_qp(now, self.qp));
    }

    /// Resets the queue pair to its state after creation: posted requests leave no completion, and
    /// the connection ends.
    pub fn reset(&self) {
        self.domain.handle.shared.act(|core, now| {
            let _ = core.rnic().reset_qp(now, self.qp);
            core.cancel_connect(self.qp);
            core.events().pair_reset(self.qp);
        });
    }

    /// Ends the queue pair's connection, after everything that was posted has been sent.
    ///
    /// # Errors
    /// The queue pair has no connection.
    pub fn disconnect(&self) -> Result<(), PostError> {
        self.domain.handle.shared.act(|core, now| core.rnic().disconnect(now, self.qp))
    }

    /// Waits until the queue pair's connection has ended, at most for `limit`; returns true if it
    /// has.
    pub fn disconnected(&self, limit: Option<Duration>) -> bool {
        let gone = self.domain.handle.shared.wait(limit, Patience::Spin, |core| {
            let link = core.events().connections.get(&self.qp)?;
            (!matches!(link, ConnectionState::Opening | ConnectionState::Connected { .. }))
                .then_some(())
        });
        gone.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AcceptOptions, Access, Device, Options, SendOp, Threading};

    const SOON: Option<Duration> = Some(Duration::from_secs(20));
    const LONG: usize = 64 << 10;

    /// Long messages that a program posts one by one leave two in a call while it has completions
    /// to take. A lone one leaves with the next call that is no post, or with a short message.
    #[test]
    fn posts_of_a_stream_leave_together() {
        let options = Options { threading: Threading::Background, ..Options::default() };
        let sides = [0, 1].map(|_| {
            let device = Device::open(options).unwrap();
            // No background thread, which sends what waits whenever it takes a turn.
            *device.handle.thread.lock().unwrap() = Some(std::thread::spawn(|| ()));
            let domain = device.protection_domain().unwrap();
            let queue = device.completion_queue(64).unwrap();
            let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
            let memory = domain.register(LONG, Access::LOCAL).unwrap();
            (device, queue, pair, memory)
        });
        let [(a, queue, pair, memory), (b, _, peer, _)] = &sides;
        let listener = b.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        pair.begin_connect(listener.local_addr(), ConnectOptions::default()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.next(SOON).unwrap();
                request.accept(peer, AcceptOptions::default()).unwrap();
                peer.connected(SOON).unwrap();
            });
            pair.connected(SOON).unwrap();
            // Opens the other side.
            pair.post_send(SendRequest::new(0, SendOp::Send, memory.sge(0..0))).unwrap();
            queue.wait(SOON).unwrap();
        });
        let sends = |len: usize| {
            let before = a.counters().sends;
            pair.post_send(SendRequest::new(0, SendOp::Send, memory.sge(0..len))).unwrap();
            a.counters().sends - before
        };
        // The kernel takes all of them, so each is done once it has left.
        let each = [(); 9].map(|()| sends(LONG));
        assert_eq!(each, [1, 1, 1, 1, 0, 1, 0, 1, 0]);
        let before = a.counters().sends;
        for _ in 0..8 {
            queue.poll().unwrap();
        }
        queue.wait(SOON).unwrap();
        assert_eq!(a.counters().sends - before, 1, "the lone one");
        assert_eq!([(); 5].map(|()| sends(LONG)), [1, 1, 1, 1, 0]);
        assert_eq!(sends(1), 1, "both");
        assert_eq!(sends(LONG), 0);
        let may_sleep = pair.domain.handle.shared.with(crate::engine::Core::arm);
        assert!(!may_sleep, "no thread sleeps beside what waits");
        pair.fail();
        let ids = std::iter::from_fn(|| queue.poll_ready()).map(|c| c.result().unwrap().id);
        assert_eq!(ids.count(), 7, "what waits leaves before the end");
    }
}
