//! The interface to a packet device: Ethernet frames in bursts, and the device's offloads.
//!
//! AF_PACKET, AF_XDP, tap, memif, DPDK and shared-memory devices implement it in `sprat`; tests use
//! pairs of devices in memory.
//!
//! ```text
//! frame    destination(6) source(6) ethertype(2) payload
//!          no preamble, no frame check sequence, no VLAN tag
//! ```
//!
//! Always: no call blocks; a device counts what it cannot send, and the frame is lost. Not here:
//! addresses above Ethernet (`net`), and how a worker sleeps (`sprat`).

use alloc::vec::Vec;
use core::ops::Range;

pub use crate::datagrams::{BURST, Sent};

/// The length of an Ethernet header in bytes.
pub const HEADER: usize = 14;

/// The longest frame in bytes: an IP packet of 65,535 bytes and its Ethernet header. A device may
/// take less ([`Info::max_send`]).
pub const MAX_FRAME: usize = HEADER + 65_535;

/// The fewest bytes that a device returns of a frame whose end it leaves: those of all headers,
/// from Ethernet to the transport's.
pub const LEFT_HEAD: usize = 128;

/// The most parts of one frame given to [`Device::send`]: those of a datagram, and its headers.
pub const MAX_PARTS: usize = crate::datagrams::MAX_PARTS + 1;

/// An Ethernet (MAC) address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The Ethernet broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns true for a MAC address of a group, broadcast included. A group never sends.
    #[inline]
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns true for the MAC address of one station: neither a group nor zero.
    #[inline]
    #[must_use]
    pub const fn is_unicast(self) -> bool {
        !self.is_multicast() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl core::fmt::Display for Mac {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl core::fmt::Debug for Mac {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

/// Receive offloads: what a device reports about a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxOffload {
    /// The TCP or UDP checksum needs no verification: the device verified it, or the frame never
    /// left this machine and its checksum field holds only the sum of the pseudo-header. The
    /// checksum of an IPv4 header is always present and always verified.
    pub checksum_valid: bool,
    /// The payload bytes of each segment that the device coalesced into this frame (GRO); the last
    /// segment may be shorter. 0 if the device coalesced none. The lengths in the IP and UDP
    /// headers are those of the whole frame.
    pub segment_size: u16,
    /// The number of bytes at the end of the frame that the device has left in memory that the peer
    /// can write; 0 of a frame that is returned whole. [`Device::append_left`] copies them.
    pub left: u16,
}

/// A transmit offload: what the device does to a frame before it sends it. A caller may request
/// only what [`Info::offloads`] lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Offload {
    /// No transmit offload: the frame is complete.
    #[default]
    None,
    /// Checksum offload: the device stores the complement of the ones' complement sum from byte
    /// `start` of the frame to its end at byte `start + offset`. The caller leaves the sum of the
    /// pseudo-header, not complemented, in that field.
    Checksum {
        /// The byte offset of the transport header in the frame.
        start: u16,
        /// The byte offset of the checksum in the transport header: 6 for UDP, 16 for TCP.
        offset: u16,
    },
    /// Segmentation offload (GSO): the device cuts the payload into segments and puts a copy of the
    /// headers before each, with the segment's own lengths, sequence numbers and checksums. The
    /// caller fills in the frame as for `Checksum`, with the lengths of the whole.
    Segments {
        /// The transport protocol whose payload the device segments.
        kind: Segmentation,
        /// The byte offset of the transport header in the frame.
        start: u16,
        /// The length of all headers of the frame in bytes, which is the offset of the payload.
        header: u16,
        /// The number of payload bytes in each segment but the last.
        mss: u16,
    },
}

/// A transport protocol whose payload a device can segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segmentation {
    /// The device segments TCP over IPv4.
    Tcp4,
    /// The device segments TCP over IPv6.
    Tcp6,
    /// The device segments UDP over IPv4 or IPv6: each segment is a datagram.
    Udp,
}

impl Segmentation {
    /// Returns the offset of the checksum in the transport header, in bytes.
    #[must_use]
    pub const fn checksum_at(self) -> u16 {
        match self {
            Self::Tcp4 | Self::Tcp6 => 16,
            Self::Udp => 6,
        }
    }
}

/// The transmit offloads that a device has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offloads {
    /// The device takes a frame whose checksum it must store ([`Offload::Checksum`]).
    pub checksum: bool,
    /// The device segments TCP: it takes [`Offload::Segments`] with [`Segmentation::Tcp4`] and
    /// [`Segmentation::Tcp6`].
    pub tcp_segments: bool,
    /// The device segments UDP: it takes [`Offload::Segments`] with [`Segmentation::Udp`].
    pub udp_segments: bool,
}

/// The properties of a packet device, constant during its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// The packet device's MAC address.
    pub mac: Mac,
    /// The longest payload of a frame on the wire, without the Ethernet header: usually 1500, at
    /// most 65,535.
    pub mtu: usize,
    /// The longest frame that [`Device::send`] takes, with the Ethernet header: [`HEADER`] + `mtu`
    /// without segmentation, up to [`MAX_FRAME`] with it.
    pub max_send: usize,
    /// The transmit offloads that the packet device has.
    pub offloads: Offloads,
}

impl Info {
    /// Returns the properties of a packet device without offloads.
    #[must_use]
    pub const fn without_offloads(mac: Mac, mtu: usize) -> Self {
        let offloads = Offloads { checksum: false, tcp_segments: false, udp_segments: false };
        Self { mac, mtu, max_send: HEADER + mtu, offloads }
    }
}

/// The headers of a datagram, from Ethernet to UDP, in zero-padded 8-byte words, so that devices
/// can copy them by words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    words: [u64; Self::CAPACITY / 8],
    len: usize,
}

impl Headers {
    /// The bytes of the longest headers that a frame takes from Ethernet to UDP, rounded up to
    /// whole words.
    pub const CAPACITY: usize = 64;

    /// The headers of no frame.
    pub(crate) const NONE: Self = Self { words: [0; Self::CAPACITY / 8], len: 0 };

    /// Makes a frame's headers from `bytes`, of which it keeps at most [`Headers::CAPACITY`].
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let len = bytes.len().min(Self::CAPACITY);
        let mut padded = [0; Self::CAPACITY];
        padded[..len].copy_from_slice(&bytes[..len]);
        let mut words = [0; Self::CAPACITY / 8];
        for (word, bytes) in words.iter_mut().zip(padded.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Self { words, len }
    }

    /// Sets the big-endian 16-bit field at `byte` of the frame's headers, an even number below
    /// [`Headers::CAPACITY`]. It does so by words, because reads of whole words right after writes
    /// of single bytes stall the processor.
    #[inline]
    pub(crate) const fn set_field(&mut self, byte: usize, value: u16) {
        let (word, shift) = (&mut self.words[byte / 8], byte % 8 * 8);
        *word = *word & !(0xffff << shift) | (value.swap_bytes() as u64) << shift;
    }

    /// Returns the words of the frame's headers, padding included.
    #[inline]
    #[must_use]
    pub const fn words(&self) -> &[u64; Self::CAPACITY / 8] {
        &self.words
    }

    /// Returns the length of the frame's headers in bytes.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is no frame without headers")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns the destination MAC address of the frame.
    #[inline]
    #[must_use]
    pub const fn destination(&self) -> Mac {
        let [a, b, c, d, e, f, ..] = self.words[0].to_le_bytes();
        Mac([a, b, c, d, e, f])
    }

    /// Returns the frame's headers as bytes, padding included.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::CAPACITY] {
        let mut bytes = [0; Self::CAPACITY];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.words) {
            *to = word.to_le_bytes();
        }
        bytes
    }
}

/// A packet device: sends and receives Ethernet frames in bursts, and never blocks.
///
/// The network may lose, duplicate, damage or reorder frames. A device delivers frames for its own
/// address and for groups; it may also deliver others.
///
/// No method has a default implementation, so that a wrapper cannot forget to forward one.
pub trait Device {
    /// Receives up to [`BURST`] frames from the device and returns their number. [`Device::frame`]
    /// reads them until the next call. A device that has vanished returns 0.
    fn recv_burst(&mut self) -> usize;

    /// Returns frame `i` of the last burst, from its Ethernet header on, and what the device
    /// reports about it. Nothing else writes the bytes until the next burst.
    ///
    /// A device may leave the end of a long frame in memory that the peer can write, and returns
    /// the beginning of the frame, at least [`LEFT_HEAD`] bytes ([`RxOffload::left`]).
    ///
    /// A device that coalesces segments may return more than its MTU, but at most [`MAX_FRAME`]
    /// bytes. A short frame may be padded to 60 bytes. The frame has no particular alignment.
    ///
    /// # Panics
    /// If `i` is not below what the last `recv_burst` returned.
    fn frame(&self, i: usize) -> (&[u8], RxOffload);

    /// Appends the bytes `range` of frame `i` of the last burst, part of which the device has left
    /// ([`RxOffload::left`]), to `bytes`. The peer may have changed them since it sent them, and
    /// may change them again: use the beginning that [`Device::frame`] returned, and no byte twice.
    fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>);

    /// Sends one frame, the concatenation of `parts`: at most [`MAX_PARTS`], some of which may be
    /// empty, with the whole Ethernet header in the first, and [`HEADER`] to [`Info::max_send`]
    /// bytes in total. The device copies the bytes before it returns, and may hold the frame in a
    /// batch until [`Device::flush`]. It pads frames that are too short for its wire; it counts and
    /// drops frames that are too long or request an offload that it does not have.
    ///
    /// Returns [`Sent::Full`] if the device has no room and took nothing, and [`Sent::Gone`] if the
    /// device has vanished for good.
    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent;

    /// Sends one frame, `headers` and fewer than [`MAX_PARTS`] parts of `len` bytes in total, with
    /// the effect of [`Device::send`]. A device that can copy short frames faster implements it;
    /// other devices call [`send_concatenated`].
    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
        offload: Offload,
    ) -> Sent;

    /// Sends the frames of the device's current batch.
    fn flush(&mut self);

    /// Returns the properties of the packet device.
    fn info(&self) -> Info;

    /// Returns the time at which frame `i` of the last burst was received, in nanoseconds of the
    /// device's or the kernel's clock, if it is known. It is for measurements only.
    fn rx_timestamp_ns(&self, i: usize) -> Option<u64>;

    /// Calls `each` with the name and the value of every counter of the device.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64));
}

impl<T: Device + ?Sized> Device for alloc::boxed::Box<T> {
    fn recv_burst(&mut self) -> usize {
        (**self).recv_burst()
    }
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        (**self).frame(i)
    }
    fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        (**self).append_left(i, range, bytes);
    }
    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        (**self).send(parts, offload)
    }
    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
        offload: Offload,
    ) -> Sent {
        (**self).send_with_headers(headers, parts, len, offload)
    }
    fn flush(&mut self) {
        (**self).flush();
    }
    fn info(&self) -> Info {
        (**self).info()
    }
    fn rx_timestamp_ns(&self, i: usize) -> Option<u64> {
        (**self).rx_timestamp_ns(i)
    }
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        (**self).counters(each);
    }
}

/// Sends headers and parts as one frame by [`Device::send`]: [`Device::send_with_headers`] for
/// devices without a faster implementation.
#[inline]
pub fn send_concatenated(
    device: &mut (impl Device + ?Sized),
    headers: &Headers,
    parts: &[&[u8]],
    offload: Offload,
) -> Sent {
    let bytes = headers.to_bytes();
    let mut all = [&[][..]; MAX_PARTS];
    all[0] = &bytes[..headers.len()];
    all[1..=parts.len()].copy_from_slice(parts);
    device.send(&all[..=parts.len()], offload)
}
