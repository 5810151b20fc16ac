//! What Sprat needs of Linux that no safe library offers. All unsafe code outside the C ABI of
//! `sprat-verbs` belongs here.
//!
//! Memory: [`memory`] maps it, shares it and copies it, also where it may vanish during the copy;
//! [`ring`] is a queue of messages between two processes in it. System calls: [`datagram`] moves
//! bursts of UDP datagrams, [`socket`] serves AF_PACKET, AF_XDP and tap sockets, [`bpf`] loads XDP
//! programs, [`ethtool`] and [`interfaces`] ask about network interfaces, [`netns`] makes network
//! namespaces, [`fork`] starts a child that is a copy of this process. Processor: [`clock`],
//! [`cpu`] and [`crc`].
//!
//! Not here: protocols, and any thread or state of the whole process but the fault handler's.

pub mod bpf;
pub mod clock;
pub mod cpu;
pub mod crc;
pub mod datagram;
pub mod ethtool;
pub mod fork;
pub mod interfaces;
pub mod memory;
pub mod netns;
pub mod ring;
pub mod socket;
