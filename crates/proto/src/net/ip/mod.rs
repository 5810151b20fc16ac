//! The IP layer of a stack: routes, fragmentation and reassembly, path MTU, ICMP.

pub(super) mod echo;
pub(super) mod icmp;
pub(super) mod output;
pub(super) mod pmtu;
pub(super) mod reassembly;
