//! The interface to drivers, which carry datagrams: kernel UDP, a shared-memory ring, our own UDP
//! over a packet device, or the simulator's network.

use alloc::vec::Vec;
use core::fmt;
use core::net::SocketAddr;
use core::ops::Deref;

use crate::Instant;

/// The address of a driver's peer. Only the driver that made it can interpret it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Addr {
    /// The address of a peer on an IP network: an IP address and a UDP port.
    Net(SocketAddr),
    /// A number that the driver gave a peer, such as a shared-memory connection or a simulated
    /// host. The driver never gives it to another peer.
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

/// The most datagrams that one [`Datagrams::recv_burst`] returns.
pub const BURST: usize = 32;

/// The longest body that [`Datagrams::send_short`] takes, in bytes.
pub const MAX_SHORT_BODY: usize = 4096;

/// The header of a datagram, up to 40 bytes in a zero-padded buffer, so that drivers can copy it in
/// 8-byte words.
#[derive(Clone, Copy, Debug)]
pub struct PaddedHeader {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl PaddedHeader {
    /// The length of the longest datagram header in bytes.
    pub const CAPACITY: usize = 40;

    /// Makes a datagram's header of the first `len` bytes of `bytes`. The bytes behind them must be
    /// zero.
    #[inline]
    #[must_use]
    pub const fn new(bytes: [u8; Self::CAPACITY], len: usize) -> Self {
        Self { bytes, len: if len < Self::CAPACITY { len } else { Self::CAPACITY } }
    }

    /// Returns the datagram's header with its padding.
    #[inline]
    #[must_use]
    pub const fn padded(&self) -> &[u8; Self::CAPACITY] {
        &self.bytes
    }
}

impl Deref for PaddedHeader {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The most parts (headers, slices, trailer) of one datagram given to [`Datagrams::send`].
pub const MAX_PARTS: usize = 8;

/// The outcome of sending a datagram by [`Datagrams::send`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// The driver accepted the datagram. A lossy driver may still lose it.
    Yes,
    /// The driver has no room for this peer and took nothing. Retry after the next `recv_burst`.
    Full,
    /// The peer can never be reached again because its ring is gone. Only drivers with `lossless()`
    /// return it.
    Gone,
}

/// The beginning of a datagram that its driver has left in memory that the peer can write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeftDatagram<'b> {
    /// A private copy of its first bytes, more than [`PaddedHeader::CAPACITY`].
    pub head: &'b [u8],
    /// The length of the whole datagram.
    pub len: usize,
}

/// A driver: sends and receives unreliable datagrams in bursts, and never blocks.
///
/// A driver counts its own errors; a datagram that it cannot send counts as lost. The trait has no
/// methods for sleeping: the worker that polls the driver decides when to sleep.
///
/// No method has a default implementation, so that a wrapper cannot forget to forward one.
pub trait Datagrams {
    /// Receives up to [`BURST`] datagrams from the driver and returns their number.
    /// [`Datagrams::datagram`] reads them until the next call.
    fn recv_burst(&mut self) -> usize;

    /// Returns the sender and the bytes of datagram `i` of the last burst. The bytes are the
    /// driver's private copy, which nothing else writes. There are none of a datagram that
    /// [`Datagrams::left`] returns.
    ///
    /// # Panics
    /// If `i` is not below what the last `recv_burst` returned.
    fn datagram(&self, i: usize) -> (Addr, &[u8]);

    /// Returns the beginning of datagram `i` of the last burst if the driver has left the datagram
    /// in memory that the peer can write, so that its bytes are copied once, to where they belong.
    /// Only drivers with `intact()` leave datagrams, and only long ones.
    fn left(&self, i: usize) -> Option<LeftDatagram<'_>>;

    /// Appends the bytes from `from` on of datagram `i`, which the driver has left, to `bytes`. The
    /// peer may have changed them since they were sent: use what [`Datagrams::left`] returned, and
    /// none of these bytes twice.
    fn append_left(&self, i: usize, from: usize, bytes: &mut Vec<u8>);

    /// Sends one datagram, the concatenation of `parts`: at most [`MAX_PARTS`] parts and
    /// [`Datagrams::max_payload`] bytes, or [`Datagrams::max_loopback_payload`] to a loopback
    /// address. The driver copies the bytes before it returns, and may hold the datagram in a batch
    /// until [`Datagrams::flush`].
    fn send(&mut self, to: Addr, parts: &[&[u8]]) -> Sent;

    /// Sends one datagram, a header and a body of at most [`MAX_SHORT_BODY`] bytes, with the effect
    /// of [`Datagrams::send`]. A driver that can copy short datagrams faster implements it; other
    /// drivers call `send`.
    fn send_short(&mut self, to: Addr, header: &PaddedHeader, body: &[u8]) -> Sent;

    /// Sends the datagrams of the driver's current batch.
    fn flush(&mut self);

    /// Returns a peer that has disappeared (its process died, its ring was closed) and was not yet
    /// reported. Only drivers with `lossless()` detect this.
    fn gone(&mut self) -> Option<Addr>;

    /// Returns the size in bytes of the largest datagram that the driver sends to every peer.
    fn max_payload(&self) -> usize;

    /// Returns the size in bytes of the largest datagram that the driver sends to a loopback
    /// address: at least [`Datagrams::max_payload`].
    fn max_loopback_payload(&self) -> usize;

    /// Returns true if the driver never loses, reorders, duplicates or damages datagrams, and
    /// returns [`Sent::Full`] for a peer that does not keep up. Shared memory is such a driver: it
    /// needs no checksum, no retransmission and no congestion window.
    fn lossless(&self) -> bool;

    /// Returns true if packets carry no checksum of their own because every datagram arrives byte
    /// for byte as sent: on a lossless driver, or where the configuration of both ends declares
    /// that only memory lies between them. Both ends of a link must agree, because the packet
    /// format differs.
    fn intact(&self) -> bool;
}

/// A driver of [`Datagrams`] with timers and counters of its own.
///
/// No method has a default implementation, so that a wrapper cannot forget to forward one.
pub trait TimedDatagrams: Datagrams {
    /// Sets the driver's time for all later calls. Only drivers with timers use it.
    fn set_now(&mut self, now: Instant);

    /// Returns the time of the driver's next timer, at which [`TimedDatagrams::tick`] must be
    /// called.
    fn deadline(&self) -> Option<Instant>;

    /// Runs the driver's timers that are due at `now`.
    fn tick(&mut self, now: Instant);

    /// Passes the name and value of each counter of the driver to `each`. Values only grow.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64));
}
