//! The door to a packet device: Ethernet frames in bursts, with what the device can take off the processor. AF_PACKET,
//! AF_XDP, tap, memif, DPDK and shared memory in `host` implement it, and pairs in memory for tests.
//!
//! ```text
//! frame    destination(6) source(6) ethertype(2) payload           no preamble, no frame check sequence, no VLAN tag
//! ```
//!
//! Always: nothing blocks; what a device cannot do it counts itself and treats as loss. Not here: addresses above Ethernet
//! (`net`), and how a worker sleeps (`host`).

pub use crate::datagrams::{BURST, Sent};

/// Octets of an Ethernet header.
pub const HEADER: usize = 14;

/// The longest frame of all: a segment of 64 KiB less one, with room for its header. `info().max_send` may be less.
pub const MAX_FRAME: usize = HEADER + 65_535;

/// The most parts in one frame given to [`Device::send`]: a datagram's, and the headers before them.
pub const MAX_PARTS: usize = crate::datagrams::MAX_PARTS + 1;

/// A hardware address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// True for groups of stations, all of them included: never a sender's.
    #[inline]
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for one station: neither a group nor zero.
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

/// What a device knows about a frame that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Arrival {
    /// The TCP or UDP checksum need not be looked at: the device compared it, or the frame never left this machine and its
    /// field holds the sum of the pseudo-header only. An IPv4 header's own checksum is always there, and always looked at.
    pub checked: bool,
    /// Octets of payload in each of the segments that the device joined into this frame, the last one perhaps shorter; 0 if
    /// it joined none. Lengths in the IP and UDP headers are those of the joined frame.
    pub segment: u16,
}

/// What a device shall do to a frame before it leaves. Only what [`Info::offloads`] names may be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Offload {
    /// Nothing: the frame is complete.
    #[default]
    None,
    /// Compute the checksum: the ones' complement sum from octet `start` of the frame to its end, complemented, goes to
    /// octet `start + offset`, which holds the sum of the pseudo-header, not complemented, until then.
    Checksum {
        /// Where the transport's header begins.
        start: u16,
        /// Where in it the checksum is: 6 for UDP, 16 for TCP.
        offset: u16,
    },
    /// Cut the payload into segments, each behind a copy of the headers with lengths, numbers and checksums of its own. The
    /// frame looks as for `Checksum`, with the lengths of the whole.
    Segments {
        /// The transport.
        kind: Segmented,
        /// Where the transport's header begins.
        start: u16,
        /// Octets of all headers: where the payload begins.
        header: u16,
        /// Octets of payload in each segment but the last.
        mss: u16,
    },
}

/// Transports whose payload a device can cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Segmented {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over either: each segment is a datagram.
    Udp,
}

impl Segmented {
    /// Where in the transport's header the checksum is.
    #[must_use]
    pub const fn checksum_at(self) -> u16 {
        match self {
            Self::Tcp4 | Self::Tcp6 => 16,
            Self::Udp => 6,
        }
    }
}

/// What a device can do to frames that it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offloads {
    /// [`Offload::Checksum`].
    pub checksum: bool,
    /// [`Offload::Segments`] with [`Segmented::Tcp4`] and [`Segmented::Tcp6`].
    pub tcp_segments: bool,
    /// [`Offload::Segments`] with [`Segmented::Udp`].
    pub udp_segments: bool,
}

/// What a device is. Does not change while it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Info {
    /// Its address.
    pub mac: Mac,
    /// The longest payload of a frame on the wire, its Ethernet header not counted: 1500 as a rule, up to 65,535.
    pub mtu: usize,
    /// The longest frame that [`Device::send`] takes, its Ethernet header counted: [`HEADER`] + `mtu` where nothing is
    /// segmented, up to [`MAX_FRAME`] where something is.
    pub max_send: usize,
    /// What it does to frames that it sends.
    pub offloads: Offloads,
}

impl Info {
    /// A device that offloads nothing.
    #[must_use]
    pub const fn plain(mac: Mac, mtu: usize) -> Self {
        let offloads = Offloads { checksum: false, tcp_segments: false, udp_segments: false };
        Self { mac, mtu, max_send: HEADER + mtu, offloads }
    }
}

/// A datagram's headers, from Ethernet's to UDP's, kept so that they can be moved by words of eight: behind their end, octets are
/// zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headers {
    words: [u64; Self::ROOM / 8],
    len: usize,
}

impl Headers {
    /// Octets of the longest, rounded up to whole words.
    pub const ROOM: usize = 64;

    /// Headers of `len` octets in `words`, of which each holds eight, the first one lowest; those behind the end must be zero.
    #[inline]
    #[must_use]
    pub const fn new(words: [u64; Self::ROOM / 8], len: usize) -> Self {
        Self { words, len: if len < Self::ROOM { len } else { Self::ROOM } }
    }

    /// The first octets of `octets`, as many as there is room for.
    #[must_use]
    pub fn of(octets: &[u8]) -> Self {
        let len = octets.len().min(Self::ROOM);
        let mut room = [0; Self::ROOM];
        room[..len].copy_from_slice(&octets[..len]);
        let mut words = [0; Self::ROOM / 8];
        for (word, octets) in words.iter_mut().zip(room.as_chunks().0) {
            *word = u64::from_le_bytes(*octets);
        }
        Self { words, len }
    }

    /// All words, those behind the end too.
    #[inline]
    #[must_use]
    pub const fn words(&self) -> &[u64; Self::ROOM / 8] {
        &self.words
    }

    /// How many octets the headers are.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is no frame without headers")]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whom the frame is for.
    #[inline]
    #[must_use]
    pub const fn to(&self) -> Mac {
        let [a, b, c, d, e, f, ..] = self.words[0].to_le_bytes();
        Mac([a, b, c, d, e, f])
    }

    /// All octets, those behind the end too.
    #[inline]
    #[must_use]
    pub fn octets(&self) -> [u8; Self::ROOM] {
        let mut octets = [0; Self::ROOM];
        for (to, word) in octets.as_chunks_mut().0.iter_mut().zip(self.words) {
            *to = word.to_le_bytes();
        }
        octets
    }
}

/// A device for Ethernet frames in bursts. Never blocks.
///
/// A frame may be lost, doubled, damaged or reordered on its way. It delivers frames to its own address and to groups;
/// others it may deliver or not.
///
/// No method has a default: a wrapper around a device has to say for each what becomes of it.
pub trait Device {
    /// Receives up to [`BURST`] frames and returns how many; they stay readable by [`Device::frame`] until the next call. 0
    /// also if the device has vanished.
    fn recv_burst(&mut self) -> usize;

    /// Frame `i` of the last burst, its Ethernet header first, and what the device knows about it. No one else writes the
    /// octets meanwhile. A device that joins segments may deliver more than its MTU, but no more than [`MAX_FRAME`]; a short
    /// frame may or may not be padded to 60 octets. No alignment is promised.
    ///
    /// # Panics
    /// If `i` is not below what the last `recv_burst` returned.
    fn frame(&self, i: usize) -> (&[u8], Arrival);

    /// Takes one frame, the concatenation of `parts`: at most [`MAX_PARTS`], some perhaps empty, the Ethernet header whole in
    /// the first one, together at least [`HEADER`] and at most [`Info::max_send`] octets (the device pads what is too short
    /// for its wire; what is too long, or asks for what it does not offer, it counts and drops). The octets are copied before
    /// it returns. It may wait in a batch until [`Device::flush`].
    ///
    /// [`Sent::Full`]: there is no room now, nothing was taken. [`Sent::Gone`]: the device has vanished, for good.
    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent;

    /// Takes one frame as [`Device::send`] does: `headers`, and fewer than [`MAX_PARTS`] parts of `len` octets together
    /// behind them. A device to which the copying of short parts costs much has a way of its own; others call [`send_whole`].
    fn send_behind(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
        offload: Offload,
    ) -> Sent;

    /// Sends whatever waits in a batch.
    fn flush(&mut self);

    /// What it is.
    fn info(&self) -> Info;

    /// When frame `i` of the last burst arrived, by the device's or the kernel's own clock in nanoseconds, where it is known:
    /// for measurements only.
    fn arrived_ns(&self, i: usize) -> Option<u64>;

    /// What it has counted and dropped: names and numbers that only grow.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64));
}

/// Sends a frame by [`Device::send`]: what [`Device::send_behind`] does where a device has no better way.
#[inline]
pub fn send_whole(
    device: &mut (impl Device + ?Sized),
    headers: &Headers,
    parts: &[&[u8]],
    offload: Offload,
) -> Sent {
    let octets = headers.octets();
    let mut all = [&[][..]; MAX_PARTS];
    all[0] = &octets[..headers.len()];
    all[1..=parts.len()].copy_from_slice(parts);
    device.send(&all[..=parts.len()], offload)
}
