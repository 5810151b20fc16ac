//! The receive ring of an AF_PACKET socket (packet(7), `TPACKET_V2`), mapped.
//!
//! ```text
//! ring     blocks of 1 MiB, each with as many slots as fit
//! slot     tpacket2_hdr (status first) … virtio_net_hdr(10) frame …
//! ```
//! A slot belongs to the kernel while its status is 0. The kernel sets bit 0 when it hands the slot
//! over with a frame in it, and owns the slot again once 0 is written.
//!
//! Always holds: bytes are lent only from slots that the kernel has handed over. [`Ring::release`]
//! gives slots back and needs the ring mutably, so no borrowed bytes outlive their slot. The kernel
//! refuses a second ring on a socket whose ring is mapped, so nothing else maps these slots.
//!
//! Not here: what a slot's frame is good for.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use crate::memory::Region;
use crate::socket;

/// The length in bytes of one block of the ring, which the kernel allocates in one piece.
pub const BLOCK: usize = 1 << 20;

/// The length in bytes of `tpacket2_hdr`.
pub const HEADER: usize = 32;

/// The fields of a slot's `tpacket2_hdr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The status of the slot: `TP_STATUS_…` bits.
    pub status: u32,
    /// The length in bytes of the frame on the wire.
    pub len: usize,
    /// The number of bytes of the frame that the slot holds.
    pub kept: usize,
    /// The offset in the slot at which the frame begins.
    pub mac: usize,
    /// The frame's time of arrival, in nanoseconds of the kernel's time of day.
    pub ns: u64,
}

/// The mapped receive ring of an AF_PACKET socket.
#[derive(Debug)]
pub struct Ring {
    memory: Region,
    slot: usize,
    slots: usize,
    /// The number of the slot that is taken next.
    next: usize,
    /// Offsets of the slots that were taken and not yet released.
    held: Vec<usize>,
}

impl Ring {
    /// Gives `socket` a ring of `blocks` blocks with slots of `slot` bytes, and maps it.
    ///
    /// # Errors
    /// The kernel has no memory for it, or the socket is not an AF_PACKET socket without a ring.
    pub fn new(socket: BorrowedFd<'_>, slot: usize, blocks: usize) -> io::Result<Self> {
        if !(HEADER..=BLOCK).contains(&slot) || blocks == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let slots = blocks * (BLOCK / slot);
        let number = |n: usize| u32::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: number(blocks)?,
            tp_frame_size: number(slot)?,
            tp_frame_nr: number(slots)?,
        };
        socket::set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let memory = Region::of_device(socket, blocks * BLOCK, 0)?;
        Ok(Self { memory, slot, slots, next: 0, held: Vec::new() })
    }

    /// Returns the bytes of a slot of the ring.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Returns the number of slots that were taken and not yet released.
    #[inline]
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    #[inline]
    fn place(&self, slot: usize) -> usize {
        let per_block = BLOCK / self.slot;
        slot / per_block * BLOCK + slot % per_block * self.slot
    }

    /// Returns the status of the slot at offset `place`.
    #[inline]
    fn status(&self, place: usize) -> u32 {
        self.memory.flag(place).load(Ordering::Acquire)
    }

    /// True if the kernel has handed over the next slot.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.status(self.place(self.next)) & libc::TP_STATUS_USER != 0
    }

    /// Takes the next slot if the kernel has handed it over, and holds it until
    /// [`Ring::release`]. The slot's number is [`Ring::held`] before the call.
    #[inline]
    pub fn take(&mut self) -> Option<Header> {
        let place = self.place(self.next);
        let status = self.status(place);
        if status & libc::TP_STATUS_USER == 0 || self.held.len() == self.slots {
            return None;
        }
        self.held.push(place);
        self.next = (self.next + 1) % self.slots;
        let bytes = self.bytes(self.held.len() - 1, 0, HEADER);
        let word = |at| u32::from_le(u32::from_le_bytes(array(bytes, at)));
        let mac = u16::from_le(u16::from_le_bytes(array(bytes, 12)));
        Some(Header {
            status,
            len: word(4) as usize,
            kept: word(8) as usize,
            mac: usize::from(mac),
            ns: u64::from(word(16)) * 1_000_000_000 + u64::from(word(20)),
        })
    }

    /// Returns the `n` bytes from `offset` of held slot `i`.
    ///
    /// # Panics
    /// If no such slot is held, or it ends before.
    #[inline]
    #[must_use]
    pub fn bytes(&self, i: usize, offset: usize, n: usize) -> &[u8] {
        assert!(offset <= self.slot && n <= self.slot - offset, "bytes behind the end of a slot");
        // SAFETY: the kernel handed this slot over and writes it no more until `release`, which
        // needs `self` mutably. This side writes nothing but the status, in `release`.
        unsafe { self.memory.lend(self.held[i] + offset, n) }
    }

    /// Gives all held slots back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        for place in self.held.drain(..) {
            self.memory.flag(place).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[at + i])
}
