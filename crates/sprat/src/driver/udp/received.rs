//! The messages of the last receive from a UDP socket, and their division into datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use sprat_proto::datagrams::BURST;
use sprat_sys::datagram::{MAX_RECV, Received};

use super::options::Counters;

/// The number of messages that a receive asks for after one that received some.
const FEW: usize = 8;
/// The distance from one receive buffer to the next, in bytes: the largest super-packet, and a bit,
/// so that buffers do not share cache sets.
pub(super) const STRIDE: usize = (64 << 10) + 192;
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The messages of the last receive, each of one or several datagrams.
pub(super) struct Rx {
    /// The receive buffers: [`MAX_RECV`] pieces of [`STRIDE`] bytes.
    pub(super) buffer: Box<[u8]>,
    pub(super) messages: [Received; MAX_RECV],
    /// The sender of the messages, if the socket is connected.
    peer: Option<SocketAddr>,
    /// The number of messages received.
    filled: usize,
    /// The message to divide into datagrams next, and the offset up to which it has been divided.
    next: (usize, usize),
    /// The datagrams of this burst: the place of each in the buffer, and its message.
    burst: [Datagram; BURST],
    len: usize,
    /// The number of messages that the next receive asks for. One costs least if little arrives; a
    /// server with many clients takes the messages of all of them.
    want: usize,
}

#[derive(Clone, Copy)]
struct Datagram {
    from: SocketAddr,
    start: usize,
    end: usize,
}

impl Rx {
    /// Makes the receive buffers, without a received message.
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; MAX_RECV * STRIDE].into(),
            messages: [Received::default(); MAX_RECV],
            peer: None,
            filled: 0,
            next: (0, 0),
            burst: [Datagram { from: NOWHERE, start: 0, end: 0 }; BURST],
            len: 0,
            want: 1,
        }
    }

    /// The number of messages that the next receive asks for.
    #[inline]
    pub(super) fn want(&self) -> usize {
        self.want
    }

    /// Begins to divide `filled` received messages, from `peer` if the socket is connected.
    pub(super) fn begin(&mut self, filled: usize, peer: Option<SocketAddr>) {
        (self.filled, self.next, self.peer) = (filled, (0, 0), peer);
        self.want = if filled >= self.want { 2 * self.want } else { self.want / 2 };
        self.want = self.want.clamp(FEW, MAX_RECV);
    }

    /// Records that a receive returned no message.
    #[inline]
    pub(super) fn idle(&mut self) {
        self.want = 1;
    }

    /// True if a message has not been divided to its end.
    #[inline]
    pub(super) fn pending(&self) -> bool {
        self.next.0 < self.filled
    }

    /// Fills the burst with datagrams of the messages, as far as it has room; returns the number of
    /// datagrams.
    pub(super) fn split(&mut self, counters: &mut Counters) -> usize {
        self.len = 0;
        while self.pending() && self.len < BURST {
            let (i, at) = self.next;
            let message = &self.messages[i];
            let from = self.peer.or_else(|| message.from.addr());
            let Some(from) = from.filter(|_| !message.truncated) else {
                counters.receive_invalid += 1;
                self.next = (i + 1, 0);
                continue;
            };
            let end = message.segment.map_or(message.len, |s| message.len.min(at + s));
            self.burst[self.len] = Datagram { from, start: i * STRIDE + at, end: i * STRIDE + end };
            self.len += 1;
            self.next = if end < message.len { (i, end) } else { (i + 1, 0) };
        }
        counters.received += self.len as u64;
        self.len
    }

    /// The sender and the bytes of datagram `i` of the burst.
    #[inline]
    pub(super) fn datagram(&self, i: usize) -> (SocketAddr, &[u8]) {
        let datagram = &self.burst[..self.len][i];
        (datagram.from, &self.buffer[datagram.start..datagram.end])
    }
}
