//! The AF_XDP socket of one receive queue, with its memory and its rings.
//!
//! ```text
//! memory    chunks of 4 KiB for arriving frames (`stock`), then as many for sending (`outgoing`)
//! arriving  fill ring ─► the kernel or the card writes a frame ─► rx ring ─► lent
//!                                                 ─► back to the fill ring at the next receive
//! ```
//! A frame longer than a chunk comes in several chunks and is copied together.
//!
//! Always holds: a chunk is either in the kernel's hands, idle, or lent. [`Queue::release`] takes
//! lent chunks back and needs the queue mutably, so no borrowed bytes outlive their chunk.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::net::xdp::{XdpStatistics, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{RecvFlags, sockopt};

use super::CHUNK;
use super::outgoing::Outgoing;
use super::rings::{Desc, MORE, Ring};
use super::stock::Stock;
use crate::memory::Region;
use crate::socket;

/// A frame that [`Queue::receive`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The frame lies in a chunk: [`Queue::frame`] with this number lends it.
    Lent(usize),
    /// The frame came in several chunks and lies in [`Joined`]: the first number is its offset
    /// there, the second one its length.
    Joined(usize, usize),
    /// The frame is broken: its descriptors point outside the memory, or it has no possible length.
    Broken,
}

/// Frames that came in several chunks, one behind the other.
pub type Joined = Vec<u8>;

/// The range of lengths that a frame may have, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// The shortest length of a frame, in bytes.
    pub least: usize,
    /// The longest length of a frame, in bytes.
    pub most: usize,
}

/// The AF_XDP socket of one receive queue of an interface.
#[derive(Debug)]
pub struct Queue {
    socket: OwnedFd,
    memory: Region,
    chunks: usize,
    rx: Ring,
    fill: Ring,
    /// The idle chunks for arriving frames.
    stock: Stock,
    /// Addresses of the chunks whose frames are lent to the caller.
    lent: Vec<u64>,
    /// Offset and length of each frame that is lent to the caller. Each lies in a chunk of `lent`.
    frames: Vec<(usize, usize)>,
    outgoing: Option<Outgoing>,
}

impl Queue {
    /// Makes a socket with rings for `chunks` frames (a power of two), and rings for sending too if
    /// it `sends`. The socket is bound to no queue yet.
    ///
    /// # Errors
    /// The kernel has no AF_XDP, `CAP_NET_RAW` is missing, or the user may not lock the memory.
    pub fn new(chunks: u32, sends: bool) -> io::Result<Self> {
        let socket = socket::raw(libc::AF_XDP)?;
        let fd = socket.as_fd();
        let memory = Region::anonymous((1 + usize::from(sends)) * chunks as usize * CHUNK)?;
        sockopt::set_xdp_umem_reg(
            fd,
            XdpUmemReg {
                addr: memory.address(0, memory.len()).expose_provenance() as u64,
                len: memory.len() as u64,
                chunk_size: CHUNK as u32,
                headroom: 0,
                flags: XdpUmemRegFlags::empty(),
                tx_metadata_len: 0,
            },
        )?;
        sockopt::set_xdp_umem_fill_ring_size(fd, chunks)?;
        sockopt::set_xdp_umem_completion_ring_size(fd, chunks)?;
        sockopt::set_xdp_rx_ring_size(fd, chunks)?;
        if sends {
            sockopt::set_xdp_tx_ring_size(fd, chunks)?;
        }
        let at = sockopt::xdp_mmap_offsets(fd)?;
        let rx = Ring::map(fd, libc::XDP_PGOFF_RX_RING as u64, &at.rx, chunks, 16)?;
        let fill = Ring::map(fd, libc::XDP_UMEM_PGOFF_FILL_RING, &at.fr, chunks, 8)?;
        let outgoing = if sends { Some(Outgoing::new(fd, &at, chunks)?) } else { None };
        let stock = Stock::new((0..chunks).map(|chunk| u64::from(chunk) * CHUNK as u64));
        let (lent, frames, chunks) = (Vec::new(), Vec::new(), chunks as usize);
        Ok(Self { socket, memory, chunks, rx, fill, stock, lent, frames, outgoing })
    }

    /// Returns the queue's AF_XDP socket.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes the chunks of lent frames back, and gives the kernel the chunks that it needs.
    pub fn release(&mut self) {
        self.frames.clear();
        for chunk in self.lent.drain(..) {
            self.stock.put(chunk);
        }
        let owed = self.stock.owed(self.fill.unsent());
        self.offer(owed);
    }

    /// Gives the kernel `owed` idle chunks for arriving frames, or as many as there are.
    fn offer(&mut self, owed: u32) {
        for chunk in (0..owed).map_while(|_| self.stock.take()) {
            // The ring has an entry for each chunk of arriving frames, so there is room.
            self.fill.put_address(chunk);
        }
        self.fill.publish();
        if self.fill.wants_call() {
            let _ = rustix::net::recv(&self.socket, &mut [0; 0][..], RecvFlags::DONTWAIT);
        }
    }

    /// Releases the frames of the previous call, and passes up to `room` frames that have arrived
    /// to `each`. Frames of several chunks are appended to `joined`.
    #[inline]
    pub fn receive(
        &mut self,
        room: usize,
        lengths: Lengths,
        joined: &mut Joined,
        mut each: impl FnMut(Frame),
    ) {
        if !self.lent.is_empty() {
            self.release();
        }
        let mut taken = 0;
        while taken < room {
            let ready = self.rx.ready();
            if ready == 0 {
                break;
            }
            let Some((parts, frame)) = self.next_frame(ready, lengths, joined) else { break };
            self.rx.take(parts);
            taken += usize::from(frame != Frame::Broken);
            each(frame);
        }
    }

    /// Returns the bytes of lent frame `i`.
    ///
    /// # Panics
    /// If no such frame is lent.
    #[inline]
    #[must_use]
    pub fn frame(&self, i: usize) -> &[u8] {
        let (at, len) = self.frames[i];
        // SAFETY: the bytes lie in a chunk that the kernel handed over by the rx ring and gets back
        // only by `release`, which needs `self` mutably. Until then neither side writes it: what is
        // sent is copied to other chunks.
        unsafe { self.memory.lend(at, len) }
    }

    /// Returns the offset and the length of the frame part that `desc` describes. `None` if it lies
    /// outside the chunks for arriving frames.
    fn part(&self, desc: Desc) -> Option<(usize, usize)> {
        let (at, len) = (usize::try_from(desc.addr).ok()?, desc.len as usize);
        let end = (at / CHUNK + 1) * CHUNK;
        (at < self.chunks * CHUNK && len <= end - at).then_some((at, len))
    }

    /// Returns the next frame of the `ready` descriptors, with the number of its descriptors.
    /// `None` if its last part has not come.
    fn next_frame(
        &mut self,
        ready: u32,
        lengths: Lengths,
        joined: &mut Joined,
    ) -> Option<(u32, Frame)> {
        let first = self.rx.desc(0);
        if first.options & MORE == 0 {
            self.lent.push(first.addr & !(CHUNK as u64 - 1));
            let Some(place) = self.part(first).filter(|(_, len)| *len >= lengths.least) else {
                return Some((1, Frame::Broken));
            };
            self.frames.push(place);
            return Some((1, Frame::Lent(self.frames.len() - 1)));
        }
        let parts = (0..ready).find(|&i| self.rx.desc(i).options & MORE == 0)? + 1;
        let (at, mut whole) = (joined.len(), true);
        for i in 0..parts {
            let desc = self.rx.desc(i);
            self.lent.push(desc.addr & !(CHUNK as u64 - 1));
            match self.part(desc) {
                Some((from, len)) if joined.len() - at + len <= lengths.most => {
                    self.memory.append_to(from, len, joined);
                }
                _ => whole = false,
            }
        }
        let len = joined.len() - at;
        let whole = whole && len >= lengths.least;
        Some((parts, if whole { Frame::Joined(at, len) } else { Frame::Broken }))
    }

    /// Prepares the queue for a time without calls of [`Queue::receive`]: releases lent frames, and
    /// gives the kernel more chunks.
    pub fn release_for_sleep(&mut self) {
        self.release();
        let owed = self.stock.owed_asleep(self.fill.unsent());
        self.offer(owed);
    }

    /// True if a frame has arrived.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.rx.is_ready()
    }

    /// Returns the kernel's counters of this AF_XDP socket. `None` if the kernel does not report
    /// them.
    #[must_use]
    pub fn statistics(&self) -> Option<XdpStatistics> {
        sockopt::xdp_statistics(&self.socket).ok()
    }

    /// True if a frame of `chunks` chunks can be sent now. A queue that does not send has no room.
    #[inline]
    pub fn has_room(&mut self, chunks: usize) -> bool {
        self.outgoing.as_mut().is_some_and(|outgoing| outgoing.has_room(chunks))
    }

    /// Copies a frame of `len` bytes into chunks and puts them into the tx ring.
    ///
    /// # Panics
    /// If [`Queue::has_room`] has not just said yes to this many bytes.
    #[inline]
    pub fn send(&mut self, parts: &[&[u8]], len: usize) {
        if let Some(outgoing) = &mut self.outgoing {
            outgoing.put(&self.memory, parts, len);
        }
    }

    /// True if the last call for sending found the interface switched off.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.outgoing.as_ref().is_some_and(|outgoing| outgoing.down)
    }

    /// Calls the kernel until it has taken all frames of the tx ring, or takes none for now.
    /// Returns false if the interface is gone.
    #[inline]
    pub fn flush(&mut self) -> bool {
        self.outgoing.as_mut().is_none_or(|outgoing| outgoing.flush(self.socket.as_fd()))
    }
}
