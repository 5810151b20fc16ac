//! One receive queue of the interface: a socket of its own, with its memory and the rings by which frames arrive.
//!
//! ```text
//! memory    chunks of 4 KiB for what arrives (`stock`); behind them, in the queue that sends, as many for that (`outgoing`)
//! arriving  program ─► the queue's socket: a chunk from `fill`, the frame copied (or written by the card) ─► `rx` ─► lent
//!                                                                                      and back to `fill` at the next look
//! ```
//! A frame longer than a chunk is in several; what arrives so is put together in memory of our own.
//!
//! Always: chunks that are lent stay where they are until the next look at this queue.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::net::xdp::{XdpStatistics, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{RecvFlags, sockopt};
use sprat_proto::device::{BURST, HEADER, MAX_FRAME};

use super::CHUNK;
use super::outgoing::Outgoing;
use super::rings::{Desc, MORE, Ring};
use super::stock::Stock;
use sprat_sys::memory::Region;
use sprat_sys::socket;

/// What was found by the last look at all queues.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) frames: [Lent; BURST],
    pub(super) count: usize,
    /// Frames that came in parts, one behind the other.
    pub(super) joined: Vec<u8>,
    /// Descriptors from the kernel that point nowhere, and frames of no possible length, ever.
    pub(super) broken: u64,
}

/// A frame: in the memory of the queue at this place, or in `joined`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lent {
    pub(super) queue: usize,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) joined: bool,
}

/// See the file.
#[derive(Debug)]
pub(super) struct Queue {
    socket: OwnedFd,
    memory: Region,
    chunks: usize,
    rx: Ring,
    fill: Ring,
    /// Chunks for what arrives that nobody uses.
    stock: Stock,
    /// Chunks of the last look.
    lent: Vec<u64>,
    /// Frames, ever.
    pub(super) received: u64,
}

impl Queue {
    /// A socket with rings for `chunks` frames, and what sends by it if it `sends`; bound to no queue yet.
    pub(super) fn new(chunks: u32, sends: bool) -> io::Result<(Self, Option<Outgoing>)> {
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
        let lent = Vec::with_capacity(BURST);
        Ok((
            Self { socket, memory, chunks: chunks as usize, rx, fill, stock, lent, received: 0 },
            outgoing,
        ))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn memory(&self) -> &Region {
        &self.memory
    }

    /// Takes the chunks of the last look back, and gives the kernel what it needs.
    pub(super) fn give_back(&mut self) {
        for chunk in self.lent.drain(..) {
            self.stock.put(chunk);
        }
        let owed = self.stock.owed(self.fill.unsent());
        self.offer(owed);
    }

    /// Gives the kernel so many chunks for what arrives, as far as there are any.
    fn offer(&mut self, owed: u32) {
        for chunk in (0..owed).map_while(|_| self.stock.take()) {
            // There is room: the ring has an entry for each chunk that is for arriving frames.
            self.fill.put_address(chunk);
        }
        self.fill.publish();
        if self.fill.wants_call() {
            let _ = rustix::net::recv(&self.socket, &mut [0; 0][..], RecvFlags::DONTWAIT);
        }
    }

    /// Looks for frames, as many as `found` has room for; `own` is this queue's place among all.
    #[inline]
    pub(super) fn receive(&mut self, own: usize, found: &mut Found) {
        if !self.lent.is_empty() {
            self.give_back();
        }
        let before = found.count;
        while found.count < BURST {
            let ready = self.rx.ready();
            if ready == 0 {
                break;
            }
            let Some((parts, frame)) = self.next_frame(ready, &mut found.joined) else { break };
            self.rx.take(parts);
            match frame {
                Some(lent) => {
                    found.frames[found.count] = Lent { queue: own, ..lent };
                    found.count += 1;
                }
                None => found.broken += 1,
            }
        }
        self.received += (found.count - before) as u64;
    }

    /// Where the part `desc` of a frame lies, if the kernel is right.
    fn part(&self, desc: Desc) -> Option<(usize, usize)> {
        let (at, len) = (usize::try_from(desc.addr).ok()?, desc.len as usize);
        let end = (at / CHUNK + 1) * CHUNK;
        (at < self.chunks * CHUNK && len <= end - at).then_some((at, len))
    }

    /// The next frame, of the `ready` descriptors; none if its last part has not come.
    fn next_frame(&mut self, ready: u32, joined: &mut Vec<u8>) -> Option<(u32, Option<Lent>)> {
        let first = self.rx.desc(0);
        if first.options & MORE == 0 {
            self.lent.push(first.addr & !(CHUNK as u64 - 1));
            let lent = self.part(first).map(|(at, len)| Lent { queue: 0, at, len, joined: false });
            return Some((1, lent.filter(|l| l.len >= HEADER)));
        }
        let parts = (0..ready).find(|&i| self.rx.desc(i).options & MORE == 0)? + 1;
        let (at, mut whole) = (joined.len(), true);
        for i in 0..parts {
            let desc = self.rx.desc(i);
            self.lent.push(desc.addr & !(CHUNK as u64 - 1));
            match self.part(desc) {
                Some((from, len)) if joined.len() - at + len <= MAX_FRAME => {
                    self.memory.append_to(from, len, joined);
                }
                _ => whole = false,
            }
        }
        let len = joined.len() - at;
        Some((parts, (whole && len >= HEADER).then_some(Lent { queue: 0, at, len, joined: true })))
    }

    /// Gets ready for a time in which nobody looks; what was lent is taken back.
    pub(super) fn doze(&mut self) {
        self.give_back();
        let owed = self.stock.owed_asleep(self.fill.unsent());
        self.offer(owed);
    }

    /// True if something is there.
    pub(super) fn is_ready(&self) -> bool {
        self.rx.is_ready()
    }

    /// What the kernel has dropped.
    pub(super) fn statistics(&self) -> Option<XdpStatistics> {
        sockopt::xdp_statistics(&self.socket).ok()
    }
}
