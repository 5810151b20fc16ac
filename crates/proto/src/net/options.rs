//! The options of an IP stack.

use core::net::{Ipv4Addr, Ipv6Addr};

use crate::time::SECOND;

/// The way in which an IP stack gets its IPv4 address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ipv4Assignment {
    /// The IP stack has no IPv4 address.
    #[default]
    None,
    /// The caller assigns the IPv4 address.
    Static {
        /// The IPv4 address that the caller assigns.
        addr: Ipv4Addr,
        /// The length in bits of the IPv4 address's on-link prefix, at most 32; 0 makes every host
        /// a neighbour.
        prefix: u8,
    },
    /// The IP stack asks for its IPv4 address by RARP until a server answers. Every host is a
    /// neighbour.
    Rarp,
}

/// The options of an IP stack. By default it has only its IPv6 link-local address.
#[derive(Clone, Debug)]
pub struct StackOptions {
    /// The way in which the stack gets its IPv4 address.
    pub ipv4: Ipv4Assignment,
    /// An IPv6 address of the stack beside the link-local one, and the length in bits of its
    /// on-link prefix (0 makes every host a neighbour).
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// The router for IPv4 datagrams to hosts that are no neighbours.
    pub gateway4: Option<Ipv4Addr>,
    /// The router for IPv6 datagrams to hosts that are no neighbours.
    pub gateway6: Option<Ipv6Addr>,
    /// If true, the stack completes address conflict detection before it uses an address, which
    /// takes some seconds (RFC 5227, RFC 4862). Otherwise it uses its addresses at once and reports
    /// conflicts later.
    pub detect_first: bool,
    /// If true, the stack responds to address resolution, echo requests and datagrams to closed
    /// ports. Set it to false if another stack responds for the same addresses.
    pub respond: bool,
    /// If true, the stack computes the checksums of UDP over IPv4, where they are optional. A
    /// protocol with a checksum of its own does not need them.
    pub udp4_checksum: bool,
    /// If true, the stack accepts datagrams whose checksum field holds only the sum of the
    /// pseudo-header. The kernel leaves such checksums to the device, and AF_XDP on a veth does not
    /// report it.
    pub accept_partial_checksum: bool,
    /// The most entries of the neighbour cache.
    pub max_neighbours: usize,
    /// The most bytes of frames that wait for address resolution.
    pub max_unresolved_bytes: usize,
    /// The most bytes of incomplete datagrams (fragments), bookkeeping included.
    pub max_reassembly_bytes: usize,
    /// The time after which an incomplete datagram is dropped, in nanoseconds.
    pub reassembly_ns: u64,
    /// The time between two solicitations of one neighbour in nanoseconds (RetransTimer in RFC
    /// 4861). Broadcast and multicast solicitations double it each time.
    pub retransmit_ns: u64,
    /// The time for which a neighbour is reachable after it has answered, in nanoseconds
    /// (ReachableTime in RFC 4861).
    pub reachable_ns: u64,
    /// The most ICMP errors that the stack sends per second.
    pub icmp_errors_per_second: u32,
}

impl Default for StackOptions {
    fn default() -> Self {
        Self {
            ipv4: Ipv4Assignment::None,
            ipv6: None,
            gateway4: None,
            gateway6: None,
            detect_first: false,
            respond: true,
            udp4_checksum: true,
            accept_partial_checksum: false,
            max_neighbours: 1024,
            max_unresolved_bytes: 1 << 20,
            max_reassembly_bytes: 4 << 20,
            reassembly_ns: 30 * SECOND,
            retransmit_ns: SECOND / 10,
            reachable_ns: 30 * SECOND,
            icmp_errors_per_second: 100,
        }
    }
}
