//! The short way in: a whole UDP datagram over IPv4 to a port of ours, told from everything else by its headers' words. Whatever
//! is not clearly one goes the ordinary way (`input`), which says what it is, and counts it.
//!
//! ```text
//!  octet  0 destination(6)  6 source(6)  12 type │ 14 version  service  length   18 ident  fragment  ttl  protocol
//!         24 checksum  source(4)  destination(4) │ 34 ports  length  checksum
//! ```
//!
//! Always: what passes here is what the ordinary way would hand up, and it hands up the same. Each octet that the ordinary way
//! compares is compared here too; the tests hold one against the other.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::ops::Range;

use crate::device::{HEADER, Mac, RxOffload};
use crate::wire::checksum::Sum;
use crate::wire::{ethernet, ipv4, udp};

/// Octets of all headers, and of the words that are compared.
const HEADERS: usize = HEADER + ipv4::HEADER + udp::HEADER;
const WORDS: usize = 5;

/// What is compared in each word, the first octet lowest: destination; type, version and header's length; fragment and protocol;
/// destination, and the port.
const MASKS: [u64; WORDS] = [
    0x0000_ffff_ffff_ffff,
    0x00ff_ffff_0000_0000,
    0xff00_ff3f_0000_0000,
    0xffff_0000_0000_0000,
    0x0000_ffff_0000_ffff,
];

/// What the headers of datagrams to one port of ours have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    words: [u64; WORDS],
    /// Our hardware address as a number, the first octet lowest: nobody else sends from it.
    mac: u64,
    pub(super) port: u16,
    to: Ipv4Addr,
}

impl Short {
    /// For datagrams to `port` at `to`, which are ours.
    pub(super) fn new(mac: Mac, to: Ipv4Addr, port: u16) -> Self {
        let mut octets = [0; 8 * WORDS];
        octets[..6].copy_from_slice(&mac.0);
        octets[12..14].copy_from_slice(&ethernet::IPV4.to_be_bytes());
        octets[14] = 0x45;
        octets[23] = ipv4::UDP;
        octets[30..34].copy_from_slice(&to.octets());
        octets[36..38].copy_from_slice(&port.to_be_bytes());
        let words = words(&octets);
        Self { words, mac: words[0], port, to }
    }

    /// True if it is for datagrams to `port` at `to`.
    pub(super) fn is(&self, to: Ipv4Addr, port: u16) -> bool {
        (self.to, self.port) == (to, port)
    }

    /// Who sent a datagram to our port, and where in the frame its payload lies; `None`: the ordinary way may know more.
    #[inline]
    pub(super) fn datagram(
        &self,
        frame: &[u8],
        arrival: RxOffload,
    ) -> Option<(SocketAddrV4, Range<usize>)> {
        let head: &[u8; HEADERS] = frame.first_chunk()?;
        let [a, b, c, d, e] = words(head);
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
        // The header's octets: from the one of the version on to the end of our address.
        let halves = |word: u64| (word & 0xffff_ffff).wrapping_add(word >> 32);
        let sum = halves(c).wrapping_add(halves(d)).wrapping_add(b >> 48).wrapping_add(e & 0xffff);
        let unsummed = arrival.checksum_valid || u16::from_le_bytes([head[40], head[41]]) == 0;
        if Sum::of_pairs(sum).checksum() != 0 || !unsummed {
            return None;
        }
        let ip_len = usize::from((c as u16).swap_bytes());
        let udp_len = usize::from(((e >> 48) as u16).swap_bytes());
        let payload = HEADERS..HEADER + ip_len;
        let whole =
            arrival.segment_size == 0 || udp_len <= udp::HEADER + usize::from(arrival.segment_size);
        if ip_len != udp_len + ipv4::HEADER
            || udp_len < udp::HEADER
            || payload.end > frame.len()
            || !whole
        {
            return None;
        }
        Some((SocketAddrV4::new(from, ((e >> 16) as u16).swap_bytes()), payload))
    }
}

/// The first words of some octets, the first octet lowest.
#[inline]
fn words(octets: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, octets) in words.iter_mut().zip(octets.as_chunks().0) {
        *word = u64::from_le_bytes(*octets);
    }
    words
}
