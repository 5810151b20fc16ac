//! What is sent, all of it by one queue: frames keep their order, and however many go at once cost one call.
//!
//! ```text
//! a free chunk ─► `tx` ─► a call, where the kernel wants one ─► `completion` ─► free
//! ```

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::xdp::XdpMmapOffsets;

use super::CHUNK;
use super::rings::{Desc, MORE, Ring};
use sprat_sys::memory::Region;

/// Frames that the kernel sends at a call in copy mode.
const A_CALL: u32 = 32;

/// See the file. The chunks are the second half of the memory of the queue that sends.
#[derive(Debug)]
pub(super) struct Outgoing {
    tx: Ring,
    completion: Ring,
    /// Chunks that nobody uses.
    free: Vec<u64>,
    /// Most calls in a row to get one burst sent.
    most_calls: u32,
    /// Something was put into `tx` that the kernel has not been called for.
    pending: bool,
    /// The interface is switched off.
    pub(super) down: bool,
}

impl Outgoing {
    /// Of a socket that has a ring of `chunks` to send from.
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

    /// Takes back the chunks of what has been sent.
    fn reclaim(&mut self) {
        let n = self.completion.ready();
        for i in 0..n {
            self.free.push(self.completion.address(i));
        }
        if n > 0 {
            self.completion.take(n);
        }
    }

    /// Whether a frame of so many chunks can be put.
    #[inline]
    pub(super) fn has_room(&mut self, chunks: usize) -> bool {
        let room = |this: &mut Self| this.free.len() >= chunks && this.tx.room() as usize >= chunks;
        if room(self) {
            return true;
        }
        self.reclaim();
        room(self)
    }

    /// Copies a frame of `len` octets into chunks of `memory` and puts them into the ring; there is room for all.
    pub(super) fn put(&mut self, memory: &Region, parts: &[&[u8]], len: usize) {
        let mut left = len;
        let mut parts = parts.iter().copied();
        let mut part: &[u8] = &[];
        while left > 0 {
            let addr =
                self.free.pop().expect("there is a chunk for every part, as was looked at before");
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

    /// Calls the kernel until it has taken all, or does not for now. False if the interface is there no more.
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
        // The rest goes by the next call.
        self.pending = true;
        true
    }
}
