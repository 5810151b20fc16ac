//! The receive fast path: recognizes an unfragmented UDP datagram over IPv4 to the port of the
//! previous one by a few comparisons of header words.
//!
//! ```text
//!  byte   0 destination(6)  6 source(6)  12 type
//!        14 version  service  length  18 ident  fragment  ttl  protocol
//!        24 checksum  source(4)  destination(4)
//!        34 ports  length  checksum
//! ```
//!
//! Always: the fast path accepts only datagrams that the slow path (`input`) would deliver, and
//! delivers the same bytes. It checks every byte that the slow path checks, and leaves every other
//! frame to it. Tests compare both paths.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::ops::Range;

use crate::device::{HEADER, Mac, RxOffload};
use crate::wire::checksum::Sum;
use crate::wire::{ethernet, ipv4, udp};

/// The number of bytes of all headers of a UDP datagram over IPv4, and of header words that the
/// receive fast path compares.
const HEADERS: usize = HEADER + ipv4::HEADER + udp::HEADER;
const WORDS: usize = 5;

/// The bits that the receive fast path compares in each little-endian word: the destination MAC
/// address; the Ethernet type, the IP version and the header length; the fragment fields and the
/// protocol; half of the destination address; its other half and the destination port.
const MASKS: [u64; WORDS] = [
    0x0000_ffff_ffff_ffff,
    0x00ff_ffff_0000_0000,
    0xff00_ff3f_0000_0000,
    0xffff_0000_0000_0000,
    0x0000_ffff_0000_ffff,
];

/// The receive fast path: the header words that datagrams to one local port have.
#[derive(Clone, Copy, Debug)]
pub(in crate::net) struct FastPath {
    words: [u64; WORDS],
    /// Our MAC address as a little-endian number. No received frame may have it as its source.
    mac: u64,
    pub(in crate::net) port: u16,
    to: Ipv4Addr,
    last: Last,
}

/// The header words of the last datagram that the fast path delivered. The verdict on a header
/// depends on nothing else, so that an equal header needs no second check.
#[derive(Clone, Copy, Debug)]
struct Last {
    words: [u64; WORDS],
    from: SocketAddrV4,
    /// The end of the datagram in its frame; of no frame if there was no datagram.
    end: usize,
}

impl FastPath {
    /// Makes the receive fast path for UDP datagrams to `port` at our address `to`.
    pub(in crate::net) fn new(mac: Mac, to: Ipv4Addr, port: u16) -> Self {
        let mut bytes = [0; 8 * WORDS];
        bytes[..6].copy_from_slice(&mac.0);
        bytes[12..14].copy_from_slice(&ethernet::IPV4.to_be_bytes());
        bytes[14] = 0x45;
        bytes[23] = ipv4::UDP;
        bytes[30..34].copy_from_slice(&to.octets());
        bytes[36..38].copy_from_slice(&port.to_be_bytes());
        let words = words(&bytes);
        let from = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        Self { words, mac: words[0], port, to, last: Last { words, from, end: usize::MAX } }
    }

    /// Returns true if this is the receive fast path for UDP datagrams to `port` at `to`.
    pub(in crate::net) fn is_for(&self, to: Ipv4Addr, port: u16) -> bool {
        (self.to, self.port) == (to, port)
    }

    /// Returns the sender of a UDP datagram and the range of its payload in the frame that begins
    /// with `frame`, or none if the slow path must handle it.
    #[inline]
    pub(in crate::net) fn datagram(
        &mut self,
        frame: &[u8],
        offload: RxOffload,
    ) -> Option<(SocketAddrV4, Range<usize>)> {
        let headers: &[u8; HEADERS] = frame.first_chunk()?;
        let words = words(headers);
        let checksum_valid =
            offload.checksum_valid || u16::from_le_bytes([headers[40], headers[41]]) == 0;
        if !checksum_valid {
            return None;
        }
        let differs = |i: usize| words[i] ^ self.last.words[i];
        let is_last = differs(0) | differs(1) | differs(2) | differs(3) | differs(4) == 0;
        let len = frame.len() + usize::from(offload.left);
        if is_last && len >= self.last.end && offload.segment_size == 0 {
            return Some((self.last.from, HEADERS..self.last.end));
        }
        let (from, payload) = self.other_datagram(words, len, offload.segment_size)?;
        self.last = Last { words, from, end: payload.end };
        Some((from, payload))
    }

    /// Returns the sender of a UDP datagram and the range of its payload in a frame of `len` bytes
    /// that begins with these words, or none if the slow path must handle the frame. The UDP
    /// checksum is valid.
    fn other_datagram(
        &self,
        words: [u64; WORDS],
        len: usize,
        segment_size: u16,
    ) -> Option<(SocketAddrV4, Range<usize>)> {
        let [a, b, c, d, e] = words;
        let differs = |i: usize, word: u64| (word ^ self.words[i]) & MASKS[i];
        if differs(0, a) | differs(1, b) | differs(2, c) | differs(3, d) | differs(4, e) != 0 {
            return None;
        }
        let mac = a >> 48 | (b & 0xffff_ffff) << 16;
        let from = Ipv4Addr::from_bits(((d >> 16) as u32).swap_bytes());
        let first = from.to_bits() >> 24;
        if mac == self.mac || matches!(first, 0 | 127 | 224..) || from == self.to {
            return None;
        }
        // The sum of the IP header, from its version to the end of our address.
        let halves = |word: u64| (word & 0xffff_ffff).wrapping_add(word >> 32);
        let sum = halves(c).wrapping_add(halves(d)).wrapping_add(b >> 48).wrapping_add(e & 0xffff);
        if Sum::from_words(sum).checksum() != 0 {
            return None;
        }
        let ip_len = usize::from((c as u16).swap_bytes());
        let udp_len = usize::from(((e >> 48) as u16).swap_bytes());
        let payload = HEADERS..HEADER + ip_len;
        let segment_size = usize::from(segment_size);
        let is_single = segment_size == 0 || udp_len <= udp::HEADER + segment_size;
        if ip_len != udp_len + ipv4::HEADER
            || udp_len < udp::HEADER
            || payload.end > len
            || !is_single
        {
            return None;
        }
        Some((SocketAddrV4::new(from, ((e >> 16) as u16).swap_bytes()), payload))
    }
}

/// Returns the first bytes of a frame as little-endian words.
#[inline]
fn words(bytes: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}
