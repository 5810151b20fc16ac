//! The tx and completion rings of an AF_XDP socket. One queue sends all frames, so that they keep
//! their order and a burst costs one system call.
//!
//! ```text
//! a free chunk ─► tx ring ─► a call, where the kernel wants one ─► completion ring ─► free
//! ```

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::xdp::XdpMmapOffsets;

use super::CHUNK;
use super::rings::{Desc, MORE, Ring};
use crate::memory::Region;

/// The most frames that the kernel sends in one call in copy mode.
const A_CALL: u32 = 32;

/// The sending half of an AF_XDP queue. Its chunks are the second half of the queue's memory.
#[derive(Debug)]
pub(super) struct Outgoing {
    tx: Ring,
    completion: Ring,
    /// Addresses of the idle chunks.
    free: Vec<u64>,
    /// The most system calls in a row for one burst.
    most_calls: u32,
    /// True if the tx ring holds frames of which no call has informed the kernel.
    pending: bool,
    /// True if the interface is switched off.
    pub(super) down: bool,
}

impl Outgoing {
    /// Maps the tx and completion rings of a socket, `chunks` entries each.
    pub(super) fn new(fd: BorrowedFd<'_>, at: &XdpMmapOffsets, chunks: u32) -> io::Result<Self> {
        Ok(Self {
            tx: Ring::map(fd, libc::XDP_PGOFF_TX_RING as u64, &at.tx, chunks, 16)?,
            completion: Ring::map(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, chunks, 8)?,
            free: (chunks..2 * chunks).map(|chunk| u64::from(chunk) * CHUNK as u64).collect(),
            most_calls: 2 * chunks / A_CALL,
            pending: false,
            down: false,
        })
    }

    /// Takes back the chunks of frames that the kernel has sent.
    fn reclaim(&mut self) {
        let n = self.completion.ready();
        for i in 0..n {
            self.free.push(self.completion.address(i));
        }
        if n > 0 {
            self.completion.take(n);
        }
    }

    /// True if there is room for a frame of `chunks` chunks.
    #[inline]
    pub(super) fn has_room(&mut self, chunks: usize) -> bool {
        let room = |this: &mut Self| this.free.len() >= chunks && this.tx.room() as usize >= chunks;
        if room(self) {
            return true;
        }
        self.reclaim();
        room(self)
    }

    /// Copies a frame of `len` bytes into chunks of `memory` and puts them into the tx ring.
    ///
    /// # Panics
    /// If [`Outgoing::has_room`] has not said yes before.
    pub(super) fn put(&mut self, memory: &Region, parts: &[&[u8]], len: usize) {
        let mut left = len;
        let mut parts = parts.iter().copied();
        let mut part: &[u8] = &[];
        while left > 0 {
            let addr =
                self.free.pop().expect("`has_room` said that there is a chunk for every part");
            let here = left.min(CHUNK);
            let mut filled = 0;
            while filled < here {
                if part.is_empty() {
                    part = parts.next().unwrap_or(&[]);
                    continue;
                }
                let n = part.len().min(here - filled);
                memory.copy_in(addr as usize + filled, &part[..n]);
                (filled, part) = (filled + n, &part[n..]);
            }
            left -= here;
            let options = if left > 0 { MORE } else { 0 };
            self.tx.put_desc(Desc { addr, len: here as u32, options });
        }
        self.pending = true;
    }

    /// Calls the kernel until it has taken all frames of the tx ring, or takes none for now.
    /// Returns false if the interface is gone.
    #[inline]
    pub(super) fn flush(&mut self, fd: BorrowedFd<'_>) -> bool {
        !self.pending || self.call(fd)
    }

    fn call(&mut self, fd: BorrowedFd<'_>) -> bool {
        self.tx.publish();
        self.pending = false;
        for _ in 0..self.most_calls {
            if !self.tx.wants_call() {
                return true;
            }
            match rustix::net::send(fd, &[], SendFlags::DONTWAIT) {
                Ok(_) => self.down = false,
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => {}
                Err(Errno::NETDOWN) => {
                    self.down = true;
                    return true;
                }
                Err(Errno::NXIO | Errno::NODEV) => return false,
                Err(_) => return true,
            }
            self.reclaim();
            if self.tx.unsent() == 0 {
                return true;
            }
        }
        // The next flush sends the rest.
        self.pending = true;
        true
    }
}
