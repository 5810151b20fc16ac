//! Events that a stack reports beside datagrams.

use core::net::{IpAddr, SocketAddr};

use crate::device::Mac;

/// An event that a stack reports beside datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StackEvent {
    /// The stack may use this address of its own: a RARP server assigned it, or address detection
    /// found no conflict.
    AddressReady(IpAddr),
    /// Another host uses an address of this stack.
    AddressConflict {
        /// The address.
        addr: IpAddr,
        /// The MAC address of the other host.
        mac: Mac,
        /// True if the stack had not used the address yet and gives it up.
        lost: bool,
    },
    /// A peer answered an echo request.
    EchoReply {
        /// The address of the peer.
        from: IpAddr,
        /// The sequence number that `Stack::ping` returned.
        seq: u16,
        /// The bytes of data in the reply.
        len: usize,
        /// The round-trip time.
        rtt_ns: u64,
    },
    /// An ICMP error reports that a port to which this stack sent is closed. Any host on the path
    /// can forge such an error, so it proves nothing.
    PortUnreachable {
        /// The destination of the datagram.
        to: SocketAddr,
        /// The port of this stack that sent it.
        port: u16,
    },
}
