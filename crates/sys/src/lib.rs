//! The parts of Linux that Sprat needs and no safe library offers. All unsafe code outside the C
//! ABI of `sprat-verbs` belongs here.
//!
//! Memory: [`memory`] maps it, shares it and copies it, also where it may vanish during the copy;
//! [`ring`] is a queue of messages between two processes in it. Frames: [`packet`] has the ring of
//! an AF_PACKET socket, [`xdp`] AF_XDP sockets, `dpdk` DPDK's ports. System calls: [`datagram`]
//! moves bursts of UDP datagrams, [`gather`] sends from and receives into shared memory, [`socket`]
//! has raw sockets, options and taps, [`bpf`] loads XDP programs, [`ethtool`] and [`interfaces`]
//! ask about network interfaces, [`netns`] makes network namespaces, [`tmpfs`] a disk that can be
//! full, [`fork`] starts a child that is a copy of this process, [`signals`] blocks signals.
//! Processor: [`clock`], [`cpu`] and [`crc`].
//!
//! Not here: protocols, threads, and state of the whole process but the fault handler's and DPDK's.

pub mod bpf;
pub mod clock;
pub mod cpu;
pub mod crc;
pub mod datagram;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod ethtool;
pub mod fork;
pub mod gather;
pub mod interfaces;
pub mod memory;
pub mod netns;
pub mod nic;
pub mod packet;
pub mod ring;
pub mod signals;
pub mod socket;
pub mod tmpfs;
pub mod xdp;
