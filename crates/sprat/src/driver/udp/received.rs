//! The messages of the last receive, which are taken apart into datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use sprat_proto::datagrams::BURST;
use sprat_sys::datagram::{MAX_RECV, Received};

use super::options::Counters;

/// The messages that a receive asks for after one that gave something.
const FEW: usize = 8;
/// From one receive buffer to the next: the largest super-packet, and a bit, so that they do not
/// share cache sets.
pub(super) const STRIDE: usize = (64 << 10) + 192;
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// The messages of the last receive, each of one or several datagrams.
pub(super) struct Rx {
    /// [`MAX_RECV`] pieces of [`STRIDE`].
    pub(super) buffer: Box<[u8]>,
    pub(super) messages: [Received; MAX_RECV],
    /// The sender, if the socket is connected.
    peer: Option<SocketAddr>,
    /// The number of messages.
    filled: usize,
    /// The message to take apart next, and how far it has been.
    next: (usize, usize),
    /// The datagrams of this burst: where each lies in the buffer, and its message.
    burst: [Datagram; BURST],
    len: usize,
    /// The messages that the next receive asks for. One costs least where little comes; a server
    /// with many clients takes what all of them have sent.
    want: usize,
}

#[derive(Clone, Copy)]
struct Datagram {
    from: SocketAddr,
    start: usize,
    end: usize,
}

impl Rx {
    /// Nothing received.
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

    /// Begins with `filled` messages, from `peer` if the socket is connected.
    pub(super) fn begin(&mut self, filled: usize, peer: Option<SocketAddr>) {
        (self.filled, self.next, self.peer) = (filled, (0, 0), peer);
        self.want = if filled >= self.want { 2 * self.want } else { self.want / 2 };
        self.want = self.want.clamp(FEW, MAX_RECV);
    }

    /// Nothing came.
    #[inline]
    pub(super) fn idle(&mut self) {
        self.want = 1;
    }

    /// True if a message has not been taken apart to its end.
    #[inline]
    pub(super) fn pending(&self) -> bool {
        self.next.0 < self.filled
    }

    /// Fills the burst from the messages, as far as it goes; returns the number of datagrams.
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
