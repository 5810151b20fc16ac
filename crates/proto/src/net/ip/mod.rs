//! The IP layer of a stack: next hops, fragmentation and reassembly, path MTU, ICMP.

pub(super) mod echo;
pub(super) mod fields;
pub(super) mod icmp;
pub(super) mod output;
pub(super) mod paths;
pub(super) mod pmtu;
pub(super) mod reassembly;
pub(super) mod template;
