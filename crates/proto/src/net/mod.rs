//! Our own IP layer over a packet device: ARP and RARP, neighbour discovery, IPv4 and IPv6 with fragments, ICMP, path MTU,
//! UDP. Pure: frames and time go in, frames and datagrams come out.
//!
//! ```text
//!  Device.recv_burst ─► Stack::input ─┬─► datagram(i): payload borrowed from the burst
//!                                     ├─► claims, neighbours, echo, errors ─► event
//!                                     └─► reassembly
//!  send ─► a path's ready-made headers ─► Device.send          output ─► what waited: answers, questions, fragments
//! ```
//!
//! [`Stack`] is the door, [`Port`] makes [`Datagrams`](crate::Datagrams) of it and a device. `paths` has the headers of each
//! peer, filled in but for lengths and checksum, so that a datagram to a known peer costs a copy of some 40 octets; `short` takes
//! the datagrams that look as nearly all do before `input` looks at what else there may be; `neighbours` knows hardware
//! addresses, `claims` our own addresses and who else claims them, `reassembly` puts fragments together.
//!
//! Always: nothing that arrives makes memory grow beyond a limit in [`Config`]; a known neighbour's hardware address changes
//! only after he has been asked; each drop is counted in [`Stats`] under its reason.
//!
//! Absent on purpose: routing for others, groups other than those of neighbour discovery (and so MLD), routers'
//! advertisements, VLAN tags, IPv4 options, DHCP.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::device::Mac;
use crate::time::SECOND;

#[path = "link/dad.rs"]
mod claims;
#[path = "ip/echo.rs"]
mod echo;
#[path = "ip/icmp.rs"]
mod errors;
mod input;
#[path = "link/neighbours.rs"]
mod neighbours;
#[path = "ip/output.rs"]
mod output;
#[path = "udp/routes.rs"]
mod paths;
#[path = "udp/socket.rs"]
mod port;
#[path = "ip/reassembly.rs"]
mod reassembly;
#[path = "udp/gso.rs"]
mod run;
#[path = "udp/fast_path.rs"]
mod short;
mod stack;
#[path = "counters.rs"]
mod stats;

#[cfg(test)]
mod tests;

pub use echo::PingError;
pub use port::Port;
pub use stack::{BindError, Stack};
pub use stats::Stats;

/// How a stack comes by its IPv4 address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum V4 {
    /// It has none.
    #[default]
    None,
    /// It is told.
    Fixed {
        /// The address.
        addr: Ipv4Addr,
        /// Leading bits that it shares with its neighbours, at most 32; 0: everyone is a neighbour.
        prefix: u8,
    },
    /// It asks by RARP, until somebody answers; everyone is a neighbour.
    Learnt,
}

/// What can be set. The default has no address but the link's own IPv6 one.
#[derive(Clone, Debug)]
pub struct Config {
    /// The IPv4 address.
    pub v4: V4,
    /// An IPv6 address beside the link-local one, and how many leading bits it shares with its neighbours (0: everyone is
    /// one).
    pub v6: Option<(Ipv6Addr, u8)>,
    /// Where datagrams for others than neighbours go.
    pub gateway4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub gateway6: Option<Ipv6Addr>,
    /// Wait until nobody has objected before an address is used, some seconds (RFC 5227, RFC 4862); otherwise it is used at
    /// once, and who objects is heard anyway.
    pub careful: bool,
    /// Answer who asks for our addresses, echo requests and datagrams to closed ports. False where another stack does so
    /// under the same addresses.
    pub answer: bool,
    /// Compute checksums of datagrams over IPv4, where they may be left out. Whoever checks his payload himself needs none.
    pub checksum: bool,
    /// Take datagrams whose checksum field holds the sum of the pseudo-header only: so they come from a kernel on the same machine
    /// that left the rest to a device, by a device that does not say so (AF_XDP on a veth).
    pub unfinished: bool,
    /// Most neighbours known.
    pub neighbours: usize,
    /// Most octets that wait for neighbours to answer.
    pub waiting_bytes: usize,
    /// Most octets of fragments that wait for the others of their datagram, with what it costs to keep them.
    pub reassembly_bytes: usize,
    /// How long they wait.
    pub reassembly_ns: u64,
    /// How long a neighbour has to answer before he is asked again for the first time; then ever longer.
    pub retry_ns: u64,
    /// How long an answer counts before he is asked again.
    pub fresh_ns: u64,
    /// Most ICMP errors sent in a second.
    pub errors_per_second: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            v4: V4::None,
            v6: None,
            gateway4: None,
            gateway6: None,
            careful: false,
            answer: true,
            checksum: true,
            unfinished: false,
            neighbours: 1024,
            waiting_bytes: 1 << 20,
            reassembly_bytes: 4 << 20,
            reassembly_ns: 30 * SECOND,
            retry_ns: SECOND / 10,
            fresh_ns: 30 * SECOND,
            errors_per_second: 100,
        }
    }
}

/// What happened, beside datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// An address of ours may be used: it was learnt, or nobody has objected.
    Ready(IpAddr),
    /// Somebody else uses an address of ours.
    Conflict {
        /// The address.
        addr: IpAddr,
        /// Who.
        mac: Mac,
        /// It was not in use yet, and will not be.
        lost: bool,
    },
    /// An echo request of ours was answered.
    Echo {
        /// By whom.
        from: IpAddr,
        /// Which, as [`Stack::ping`] said.
        seq: u16,
        /// Octets of data that came back.
        len: usize,
        /// How long it took.
        rtt_ns: u64,
    },
    /// A peer says that nobody listens at a port to which we sent. He may be anybody: no proof of anything.
    Unreachable {
        /// Where we sent.
        to: SocketAddr,
        /// From which port of ours.
        port: u16,
    },
}
