//! Options of a memif device, and their limits.

use std::io;
use std::path::PathBuf;

use sprat_proto::device::{HEADER, Mac};
use sprat_proto::wire::memif::{LOG2_RING_MAX, SECRET};

use super::Role;
use super::control::Wanted;

/// Options of a memif device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The path of the memif's Unix socket.
    pub socket: PathBuf,
    /// The side of this memif: server or client.
    pub role: Role,
    /// The memif interface's number at the socket. A server without one accepts any number; a
    /// client without one requests 0.
    pub id: Option<u32>,
    /// The secret that a client sends and a server expects: at most 24 bytes.
    pub secret: String,
    /// The hardware address of the device; random if `None`.
    pub mac: Option<Mac>,
    /// The longest payload of a frame in bytes, up to 65,535.
    pub mtu: usize,
    /// Number of a ring's descriptors: a power of two, 16 to 16,384. A server takes the client's
    /// number.
    pub ring: usize,
    /// Bytes of a buffer. A server takes the client's size. Longer frames take several buffers.
    pub buffer: usize,
    /// Leave the ends of long frames in the ring until the next burst
    /// ([`RxOffload::left`](sprat_proto::device::RxOffload::left)), for a caller that copies them.
    pub leaves: bool,
}

impl Options {
    /// Makes options with the usual sizes: an MTU of 1500, rings of 1024 descriptors, buffers of
    /// 2048 bytes.
    #[must_use]
    pub fn new(role: Role, socket: impl Into<PathBuf>) -> Self {
        let (id, secret, mac) = (None, String::new(), None);
        let (mtu, ring, buffer, leaves) = (1500, 1024, 2048, false);
        Self { socket: socket.into(), role, id, secret, mac, mtu, ring, buffer, leaves }
    }

    /// Makes options for long messages between two processes of this library: an MTU of 9000, and
    /// one buffer for each frame. The buffers' beginnings are an odd number of cache lines apart,
    /// so that short frames in all of them fit into a cache.
    #[must_use]
    pub fn jumbo(role: Role, socket: impl Into<PathBuf>) -> Self {
        Self { mtu: 9000, ring: 256, buffer: 9024, ..Self::new(role, socket) }
    }

    pub(super) fn wanted(&self) -> io::Result<Wanted> {
        let bad = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        if !self.ring.is_power_of_two() || !(16..=1 << LOG2_RING_MAX).contains(&self.ring) {
            return Err(bad(format!(
                "a ring of {}: it must be a power of two from 16 to 16384",
                self.ring
            )));
        }
        if self.ring * self.buffer < HEADER + self.mtu {
            return Err(bad(format!(
                "{} buffers of {}: too little for one frame",
                self.ring, self.buffer
            )));
        }
        if !(64..=65_536).contains(&self.buffer) || !self.buffer.is_multiple_of(64) {
            return Err(bad(format!(
                "buffers of {}: a multiple of 64 up to 65536 is needed",
                self.buffer
            )));
        }
        if !(576..=65_535).contains(&self.mtu) {
            return Err(bad(format!("an MTU of {}: it must be from 576 to 65535", self.mtu)));
        }
        if self.secret.len() > SECRET {
            return Err(bad(format!("a secret of {} octets: 24 at most", self.secret.len())));
        }
        let mut secret = [0; SECRET];
        secret[..self.secret.len()].copy_from_slice(self.secret.as_bytes());
        let log2 = self.ring.trailing_zeros() as u8;
        Ok(Wanted { id: self.id, secret, log2, buffer: self.buffer })
    }
}
