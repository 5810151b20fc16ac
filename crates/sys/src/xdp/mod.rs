//! AF_XDP sockets (Linux's Documentation/networking/af_xdp.rst): their memory and their rings.
//!
//! [`Queue`] is the socket of one receive queue of an interface. It owns the memory (UMEM) that
//! frames lie in, cut into chunks, and all rings, so that no caller can lend a chunk that the
//! kernel writes.
//!
//! Not here: the XDP program that steers frames to a socket ([`crate::bpf`] loads it), and to which
//! interface a socket is bound.

mod outgoing;
mod queue;
mod rings;
mod stock;

pub use queue::{Frame, Joined, Lengths, Queue};

/// The length in bytes of a chunk of an AF_XDP socket's memory: a page.
pub const CHUNK: usize = 4096;

/// Number of bytes that the kernel keeps free before an arriving frame (`XDP_PACKET_HEADROOM`).
pub const HEADROOM: usize = 256;
