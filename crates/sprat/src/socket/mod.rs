//! Kernel sockets: UDP as a datagram driver ([`udp`]) and TCP as what carries frames (`tcp`).

pub(crate) mod tcp;
pub mod udp;
