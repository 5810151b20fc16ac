//! Kernel sockets: UDP as a datagram driver ([`udp`]) and TCP as a transport ([`tcp`]).

mod mmsg;
pub mod udp;
