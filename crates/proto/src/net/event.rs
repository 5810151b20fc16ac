//! Events that an IP stack reports beside datagrams.

use core::net::{IpAddr, SocketAddr};

use crate::device::Mac;

/// An event that an IP stack reports beside datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StackEvent {
    /// The IP stack may use this address of its own: a RARP server assigned it, or address
    /// detection found no conflict.
    AddressReady(IpAddr),
    /// Another host uses an address of this IP stack.
    AddressConflict {
        /// The IP address that another host uses too.
        addr: IpAddr,
        /// The MAC address of the other host that uses the address.
        mac: Mac,
        /// True if the IP stack had not used the address yet and gives it up.
        lost: bool,
    },
    /// A peer answered an echo request.
    EchoReply {
        /// The IP address of the peer that answered the echo request.
        from: IpAddr,
        /// The sequence number of the echo request, which `Stack::ping` returned.
        seq: u16,
        /// The number of bytes of data in the echo reply.
        len: usize,
        /// The round-trip time of the echo, in nanoseconds.
        rtt_ns: u64,
    },
    /// An ICMP error reports that a port to which this IP stack sent is closed. Any host on the
    /// path can forge such an error, so it proves nothing.
    PortUnreachable {
        /// The destination of the datagram that the ICMP error quotes.
        to: SocketAddr,
        /// The port of this IP stack that sent the datagram.
        port: u16,
    },
}
