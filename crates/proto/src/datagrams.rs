//! The door to a world that carries datagrams: kernel UDP, a shared-memory ring, our own UDP over a packet device, or
//! the simulator's wire.

use core::fmt;
use core::net::SocketAddr;
use core::ops::Deref;

/// Who sent a datagram, or who shall get it. Compared by value; means something to the driver only.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Addr {
    /// An IP address and UDP port.
    Net(SocketAddr),
    /// A number that the driver gave a peer: a shared-memory connection, a simulated host. Never used again for another
    /// peer while the driver lives.
    Local(u64),
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(a) => write!(f, "{a}"),
            Self::Local(n) => write!(f, "local:{n}"),
        }
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Most datagrams that one [`Datagrams::recv_burst`] delivers.
pub const BURST: usize = 32;

/// The longest part that comes by [`Datagrams::send_short`].
pub const SHORT: usize = 4096;

/// A header of up to 40 bytes, kept so that it can be moved by words of eight: behind its end, its bytes are zero.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    bytes: [u8; Self::ROOM],
    len: usize,
}

impl Head {
    /// Bytes of the longest one.
    pub const ROOM: usize = 40;

    /// The first `len` of `bytes`; those behind it must be zero.
    #[inline]
    #[must_use]
    pub const fn new(bytes: [u8; Self::ROOM], len: usize) -> Self {
        Self { bytes, len: if len < Self::ROOM { len } else { Self::ROOM } }
    }

    /// All bytes, those behind the end too.
    #[inline]
    #[must_use]
    pub const fn room(&self) -> &[u8; Self::ROOM] {
        &self.bytes
    }
}

impl Deref for Head {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The most parts (header, head, slices, trailer) in one datagram given to [`Datagrams::send`].
pub const MAX_PARTS: usize = 8;

/// What became of a datagram given to [`Datagrams::send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// Accepted. On a lossy driver it may still be lost.
    Yes,
    /// No room towards this peer now: nothing was taken, offer it again after the next `recv_burst`.
    Full,
    /// This peer cannot be reached any more (its ring is gone). Only drivers with `lossless()` say so.
    Gone,
}

/// Unreliable datagrams in bursts. Never blocks.
///
/// A driver reports errors of its own by counting them; what it cannot send counts as lost. Sleeping while idle is the
/// worker's business, not this door's.
///
/// No method has a default: a wrapper around a driver has to say for each what becomes of it.
pub trait Datagrams {
    /// Receives up to [`BURST`] datagrams and returns how many; they stay readable by [`Datagrams::datagram`] until the
    /// next call.
    fn recv_burst(&mut self) -> usize;

    /// Datagram `i` of the last burst: who sent it, and its bytes (the driver's private copy: no one else writes it).
    ///
    /// # Panics
    /// If `i` is not below what the last `recv_burst` returned.
    fn datagram(&self, i: usize) -> (Addr, &[u8]);

    /// Takes one datagram, the concatenation of `parts` (at most [`MAX_PARTS`], together at most
    /// [`Datagrams::max_payload`] bytes). The bytes are copied before it returns. It may wait in a batch until
    /// [`Datagrams::flush`].
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent;

    /// Takes one datagram as [`Datagrams::send`] does: a header and one part of at most [`SHORT`] bytes behind it. A driver
    /// to which the copying of such parts costs much has a way of its own; others call `send`.
    fn send_short(&mut self, to: Addr, head: &Head, body: &[u8]) -> Sent;

    /// Sends whatever waits in a batch.
    fn flush(&mut self);

    /// A peer that went away since the last call (its process died, its ring was closed). Only drivers with
    /// `lossless()` notice.
    fn gone(&mut self) -> Option<Addr>;

    /// The largest datagram in bytes.
    fn max_payload(&self) -> usize;

    /// True if datagrams are neither lost, reordered, doubled nor damaged, and a full peer pushes back by
    /// [`Sent::Full`]: shared memory. Such a driver needs no checksum, no retransmission and no congestion window.
    fn lossless(&self) -> bool;

    /// True if every datagram that arrives is as it was sent, octet by octet, so that packets have no checksum: so it is where
    /// nothing is lost, and where both ends say that nothing but memory is between them. Both ends of a driver must be of one
    /// mind, or neither understands the other.
    fn intact(&self) -> bool;
}
