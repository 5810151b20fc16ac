//! A received IP packet on its way to the protocol that it is for.

use core::net::IpAddr;

use super::tcp::TcpId;
use super::udp::received::Location;
use crate::device::RxOffload;
use crate::wire::ipv4::Ecn;

/// The payload of a received IP packet, and its place in the frame or the reassembled packet.
#[derive(Clone, Copy)]
pub(super) struct Packet<'a> {
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    pub(super) bytes: &'a [u8],
    pub(super) location: Location,
    /// The offset of the IP packet's payload in the frame or the reassembled packet.
    pub(super) start: usize,
    pub(super) offload: RxOffload,
    pub(super) ecn: Ecn,
}

/// Received data that is lent to the program.
#[derive(Clone, Copy, Debug)]
pub(super) struct LentData {
    pub(super) id: TcpId,
    pub(super) location: Location,
    /// The range of the data in its frame or reassembled packet.
    pub(super) start: usize,
    pub(super) end: usize,
}
