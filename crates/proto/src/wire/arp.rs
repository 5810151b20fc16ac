//! ARP for Ethernet and IPv4 (RFC 826), and RARP (RFC 903), which has another Ethernet type and
//! other operations: 28 bytes.
//!
//! ```text
//!  0 u16 1 (Ethernet)   2 u16 0x0800 (IPv4)   4 u8 6   5 u8 4   6 u16 operation
//!  8 sender MAC(6)   14 sender IP(4)   18 target MAC(6)   24 target IP(4)
//! ```
//!
//! Always: [`Arp::parse`] reads back what [`Arp::emit`] writes. It rejects other hardware and
//! protocol types.

use core::net::Ipv4Addr;

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::device::Mac;

/// The length of an ARP packet in bytes.
pub const LEN: usize = 28;

/// The operation of an ARP or RARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum ArpOperation {
    /// The ARP request: the sender asks for the MAC address of the target's IP address.
    Request = 1,
    /// The ARP reply: the sender has the IP address that a request asked for.
    Reply = 2,
    /// RARP: the sender asks for the IP address of the target's MAC address.
    ReverseRequest = 3,
    /// RARP: the target's IP address belongs to its MAC address.
    ReverseReply = 4,
}

/// An ARP or RARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// The packet's operation: a request or a reply, of ARP or RARP.
    pub op: ArpOperation,
    /// The MAC address of the ARP packet's sender.
    pub sender_mac: Mac,
    /// The IP address of the ARP packet's sender; unspecified in a probe (RFC 5227).
    pub sender: Ipv4Addr,
    /// The target's MAC address in the ARP packet, or zero if it is unknown.
    pub target_mac: Mac,
    /// The target's IP address in the ARP packet.
    pub target: Ipv4Addr,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Bytes {
    hardware: U16,
    protocol: U16,
    lengths: [u8; 2],
    op: U16,
    sender_mac: [u8; 6],
    sender: [u8; 4],
    target_mac: [u8; 6],
    target: [u8; 4],
}

impl Arp {
    /// Parses the ARP or RARP packet at the start of `bytes`, which may have padding behind it.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (b, _) = Bytes::ref_from_prefix(bytes).ok()?;
        if (b.hardware.get(), b.protocol.get(), b.lengths) != (1, 0x0800, [6, 4]) {
            return None;
        }
        let op = match b.op.get() {
            1 => ArpOperation::Request,
            2 => ArpOperation::Reply,
            3 => ArpOperation::ReverseRequest,
            4 => ArpOperation::ReverseReply,
            _ => return None,
        };
        let (sender_mac, target_mac) = (Mac(b.sender_mac), Mac(b.target_mac));
        Some(Self { op, sender_mac, sender: b.sender.into(), target_mac, target: b.target.into() })
    }

    /// Returns the ARP or RARP packet in wire format.
    #[must_use]
    pub fn emit(&self) -> [u8; LEN] {
        zerocopy::transmute!(Bytes {
            hardware: U16::new(1),
            protocol: U16::new(0x0800),
            lengths: [6, 4],
            op: U16::new(self.op as u16),
            sender_mac: self.sender_mac.0,
            sender: self.sender.octets(),
            target_mac: self.target_mac.0,
            target: self.target.octets(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ARP request for 10.7.0.2 that Linux 6 sent over veth.
    const REQUEST: [u8; LEN] =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0xa, 10, 7, 0, 1, 0, 0, 0, 0, 0, 0, 10, 7, 0, 2];
    /// The ARP reply of 10.7.0.2 that Linux 6 sent over veth.
    const REPLY: [u8; LEN] =
        [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 0xb, 10, 7, 0, 2, 2, 0, 0, 0, 0, 0xa, 10, 7, 0, 1];

    #[test]
    fn golden() {
        let (a, b) = (Mac([2, 0, 0, 0, 0, 0xa]), Mac([2, 0, 0, 0, 0, 0xb]));
        let (one, two) = (Ipv4Addr::new(10, 7, 0, 1), Ipv4Addr::new(10, 7, 0, 2));
        let request = Arp {
            op: ArpOperation::Request,
            sender_mac: a,
            sender: one,
            target_mac: Mac::default(),
            target: two,
        };
        let reply =
            Arp { op: ArpOperation::Reply, sender_mac: b, sender: two, target_mac: a, target: one };
        for (bytes, packet) in [(REQUEST, request), (REPLY, reply)] {
            assert_eq!((Arp::parse(&bytes), packet.emit()), (Some(packet), bytes));
        }
        for op in [ArpOperation::ReverseRequest, ArpOperation::ReverseReply] {
            assert_eq!(Arp::parse(&Arp { op, ..reply }.emit()), Some(Arp { op, ..reply }));
        }
    }

    #[test]
    fn other_hardware_protocols_lengths_and_operations_are_rejected() {
        for at in 0..8 {
            let mut bytes = REPLY;
            bytes[at] ^= 0x40;
            assert_eq!(Arp::parse(&bytes), None, "byte {at}");
        }
        assert!((0..LEN).all(|len| Arp::parse(&REPLY[..len]).is_none()));
    }
}
