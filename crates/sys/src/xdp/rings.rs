//! The four rings of an AF_XDP socket, shared with the kernel: rx (frames that arrived), tx (frames
//! to send), fill (chunks for frames that will arrive) and completion (chunks of frames that were
//! sent).
//!
//! ```text
//! producer: u32 · consumer: u32 · flags: u32      at offsets that the kernel names
//! entries      a power of two: descriptors (16 bytes) or addresses (8)
//! ```
//!
//! Numbers only grow and wrap at 2³²; an entry's place is its number modulo the ring's size. One
//! side writes `producer`, the other side `consumer`.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use rustix::net::xdp::XdpRingOffset;

use crate::memory::Region;

/// A descriptor: a frame, or a part of one, in the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Desc {
    pub(super) addr: u64,
    pub(super) len: u32,
    /// Zero, or [`MORE`] if another part of the frame follows.
    pub(super) options: u32,
}

/// The option of a descriptor that another part of its frame follows (`XDP_PKT_CONTD`).
pub(super) const MORE: u32 = 1;

/// One ring of an AF_XDP socket, of which this side is the consumer or the producer.
#[derive(Debug)]
pub(super) struct Ring {
    memory: Region,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    size: u32,
    /// This side's number (`producer` or `consumer`), published or not.
    own: u32,
    /// The kernel's number (`producer` or `consumer`) when it was last read.
    other: u32,
}

impl Ring {
    /// Maps the ring of `size` entries, `entry` bytes each, at `page` of the socket.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        page: u64,
        at: &XdpRingOffset,
        size: u32,
        entry: usize,
    ) -> io::Result<Self> {
        let entries = at.desc as usize;
        let memory = Region::of_device(fd, entries + size as usize * entry, page)?;
        let flags = at.flags.ok_or(io::ErrorKind::Unsupported)? as usize;
        Ok(Self {
            memory,
            producer: at.producer as usize,
            consumer: at.consumer as usize,
            flags,
            entries,
            size,
            own: 0,
            other: 0,
        })
    }

    /// Returns the number of entries that the kernel has put into the ring and this side has not
    /// taken.
    #[inline]
    pub(super) fn ready(&mut self) -> u32 {
        if self.other == self.own {
            self.other = self.memory.flag(self.producer).load(Ordering::Acquire);
        }
        // The ring never holds more, whatever the kernel says.
        self.other.wrapping_sub(self.own).min(self.size)
    }

    /// True if the kernel has put an entry into the ring. It reads the kernel's number anew.
    pub(super) fn is_ready(&self) -> bool {
        self.memory.flag(self.producer).load(Ordering::Acquire) != self.own
    }

    /// Returns the number of entries that the ring has room for.
    #[inline]
    pub(super) fn room(&mut self) -> u32 {
        let room = |this: &Self| this.size.saturating_sub(this.own.wrapping_sub(this.other));
        if room(self) == 0 {
            self.other = self.memory.flag(self.consumer).load(Ordering::Acquire);
        }
        room(self)
    }

    /// Returns the number of entries that this side has put into the ring and the kernel has not
    /// taken.
    pub(super) fn unsent(&self) -> u32 {
        self.own.wrapping_sub(self.memory.flag(self.consumer).load(Ordering::Acquire))
    }

    /// Returns the descriptor `ahead` entries after the ring's next one.
    #[inline]
    pub(super) fn desc(&self, ahead: u32) -> Desc {
        let mut bytes = [0; 16];
        self.memory.copy_out(self.place(ahead, 16), &mut bytes);
        let (a, b) = (u64_at(&bytes, 0), u64_at(&bytes, 8));
        let (len, options) =
            if cfg!(target_endian = "little") { (b, b >> 32) } else { (b >> 32, b) };
        Desc { addr: a, len: len as u32, options: options as u32 }
    }

    /// Returns the address `ahead` entries after the ring's next one.
    #[inline]
    pub(super) fn address(&self, ahead: u32) -> u64 {
        let mut bytes = [0; 8];
        self.memory.copy_out(self.place(ahead, 8), &mut bytes);
        u64_at(&bytes, 0)
    }

    /// Puts a descriptor into the ring. [`Ring::publish`] shows it to the kernel.
    #[inline]
    pub(super) fn put_desc(&mut self, desc: Desc) {
        let halves = [desc.len.to_le().to_le_bytes(), desc.options.to_le().to_le_bytes()];
        let [[a, b, c, d], [e, f, g, h]] = halves;
        let place = self.place(0, 16);
        self.memory
            .copy_words_in(place, &[desc.addr.to_le().to_le_bytes(), [a, b, c, d, e, f, g, h]]);
        self.own = self.own.wrapping_add(1);
    }

    /// Puts the address of a chunk into the ring. [`Ring::publish`] shows it to the kernel.
    #[inline]
    pub(super) fn put_address(&mut self, address: u64) {
        let place = self.place(0, 8);
        self.memory.copy_words_in(place, &[address.to_le().to_le_bytes()]);
        self.own = self.own.wrapping_add(1);
    }

    /// Takes `n` entries from the ring. The kernel may use them again from now on.
    #[inline]
    pub(super) fn take(&mut self, n: u32) {
        self.own = self.own.wrapping_add(n);
        self.memory.flag(self.consumer).store(self.own, Ordering::Release);
    }

    /// Shows the kernel the entries that were put into the ring.
    #[inline]
    pub(super) fn publish(&self) {
        self.memory.flag(self.producer).store(self.own, Ordering::Release);
    }

    /// True if the kernel works on this ring only after a system call.
    #[inline]
    pub(super) fn wants_call(&self) -> bool {
        self.memory.flag(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }

    #[inline]
    fn place(&self, ahead: u32, entry: usize) -> usize {
        self.entries + (self.own.wrapping_add(ahead) & (self.size - 1)) as usize * entry
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le(u64::from_le_bytes(eight))
}
