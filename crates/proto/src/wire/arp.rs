//! ARP for Ethernet and IPv4 (RFC 826) and RARP (RFC 903), which differ in their Ethernet type and their operations: 28
//! octets.
//!
//! ```text
//!  0 u16 1 (Ethernet)   2 u16 0x0800 (IPv4)   4 u8 6   5 u8 4   6 u16 operation
//!  8 sender's mac(6)   14 sender's address(4)   18 target's mac(6)   24 target's address(4)
//! ```
//!
//! Always: what [`Arp::emit`] writes, [`Arp::parse`] reads back. Other kinds of hardware and protocol are no ARP here.

use core::net::Ipv4Addr;

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::device::Mac;

/// Octets of a packet.
pub const LEN: usize = 28;

/// What a packet asks or says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Op {
    /// Who has the target's address?
    Request = 1,
    /// The sender has it.
    Reply = 2,
    /// RARP: which address has the target's mac?
    ReverseRequest = 3,
    /// RARP: the target has the target's address.
    ReverseReply = 4,
}

/// A packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arp {
    /// What it asks or says.
    pub op: Op,
    /// The sender's hardware address.
    pub sender_mac: Mac,
    /// The sender's address; unspecified in a probe (RFC 5227).
    pub sender: Ipv4Addr,
    /// Who is asked, if that is known; zero otherwise.
    pub target_mac: Mac,
    /// The address in question.
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
    /// The packet at the start of `bytes`, behind which there may be padding.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (b, _) = Bytes::ref_from_prefix(bytes).ok()?;
        if (b.hardware.get(), b.protocol.get(), b.lengths) != (1, 0x0800, [6, 4]) {
            return None;
        }
        let op = match b.op.get() {
            1 => Op::Request,
            2 => Op::Reply,
            3 => Op::ReverseRequest,
            4 => Op::ReverseReply,
            _ => return None,
        };
        let (sender_mac, target_mac) = (Mac(b.sender_mac), Mac(b.target_mac));
        Some(Self { op, sender_mac, sender: b.sender.into(), target_mac, target: b.target.into() })
    }

    /// The packet as it is sent.
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

    /// What Linux 6 sent over veth: who has 10.7.0.2?
    const REQUEST: [u8; LEN] =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 0xa, 10, 7, 0, 1, 0, 0, 0, 0, 0, 0, 10, 7, 0, 2];
    /// And its peer's answer.
    const REPLY: [u8; LEN] =
        [0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 0xb, 10, 7, 0, 2, 2, 0, 0, 0, 0, 0xa, 10, 7, 0, 1];

    #[test]
    fn golden() {
        let (a, b) = (Mac([2, 0, 0, 0, 0, 0xa]), Mac([2, 0, 0, 0, 0, 0xb]));
        let (one, two) = (Ipv4Addr::new(10, 7, 0, 1), Ipv4Addr::new(10, 7, 0, 2));
        let request = Arp {
            op: Op::Request,
            sender_mac: a,
            sender: one,
            target_mac: Mac::default(),
            target: two,
        };
        let reply = Arp { op: Op::Reply, sender_mac: b, sender: two, target_mac: a, target: one };
        for (bytes, packet) in [(REQUEST, request), (REPLY, reply)] {
            assert_eq!((Arp::parse(&bytes), packet.emit()), (Some(packet), bytes));
        }
        for op in [Op::ReverseRequest, Op::ReverseReply] {
            assert_eq!(Arp::parse(&Arp { op, ..reply }.emit()), Some(Arp { op, ..reply }));
        }
    }

    #[test]
    fn another_hardware_protocol_length_or_operation_is_none() {
        for at in 0..8 {
            let mut bytes = REPLY;
            bytes[at] ^= 0x40;
            assert_eq!(Arp::parse(&bytes), None, "octet {at}");
        }
        assert!((0..LEN).all(|len| Arp::parse(&REPLY[..len]).is_none()));
    }
}
