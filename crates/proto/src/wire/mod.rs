//! Wire formats, one protocol a file: each parses bytes into values and emits them, without state.
//! `docs/formats.md` is normative.

pub mod arp;
pub mod checksum;
pub mod ddp;
pub mod ethernet;
pub mod icmp;
pub mod icmpv6;
pub mod ipv4;
pub mod ipv6;
pub mod memif;
pub mod mpa;
pub mod rdmap;
pub mod rpc;
pub mod tcp;
pub mod udp;
pub mod write_ack;
