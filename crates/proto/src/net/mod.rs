//! An IP stack over a packet device: ARP and RARP, IPv6 neighbour discovery, IPv4 and IPv6 with
//! fragmentation, ICMP, path MTU discovery, UDP. It does no I/O: frames and time go in, frames and
//! datagrams come out.
//!
//! ```text
//!  Device::recv_burst ─► Stack::input ─┬─► datagram(i): payload borrowed from the burst
//!                                      ├─► ARP, NDP, ICMP ─► event, replies
//!                                      └─► reassembly
//!  Stack::send ─► cached route ─► Device::send_with_headers
//!  Stack::output ─► transmit queue: fragments, solicitations, replies ─► Device::send
//! ```
//!
//! | folder | layer |
//! | --- | --- |
//! | `link` | own addresses and conflicts, neighbour cache, ARP, NDP, transmit queue |
//! | `ip` | next hops, fragmentation and reassembly, path MTU, ICMP errors, echo, [`IpFields`] |
//! | `udp` | ports, cached routes, GSO batches, receive fast path, [`UdpSocket`] |
//!
//! [`Stack`] owns the state of all layers; `input` and `output` connect them. [`UdpSocket`] makes a
//! [`Datagrams`](crate::Datagrams) driver of a stack and its device.
//!
//! Always: no received packet grows memory beyond a limit in [`StackOptions`]; a known neighbour's
//! MAC address changes only after the stack has solicited it; [`StackCounters`] counts each drop by
//! its reason.
//!
//! Not here: forwarding, multicast groups other than those of neighbour discovery (and so MLD),
//! router advertisements, VLAN tags, IPv4 options, DHCP.

mod context;
mod counters;
mod event;
mod input;
mod interface;
mod ip;
mod link;
mod options;
mod output;
mod packet;
mod stack;
pub mod tcp;
mod udp;

#[cfg(test)]
mod tests;

pub use counters::StackCounters;
pub use event::StackEvent;
pub use interface::Interface;
pub use ip::echo::PingError;
pub use ip::fields::IpFields;
pub use options::{Ipv4Assignment, StackOptions};
pub use stack::Stack;
pub use udp::ports::BindError;
pub use udp::socket::UdpSocket;
