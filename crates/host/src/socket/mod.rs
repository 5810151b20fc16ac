//! Kernel sockets: UDP as a datagram driver ([`udp`]) and TCP as a transport ([`tcp`]).

mod sys;
pub mod tcp;
pub mod udp;
