//! The driver `xdp`: AF_XDP, frames past the kernel's stack by way of a program of our own on the interface.
//!
//! ```text
//! memory    chunks of 4 KiB, half of them for what arrives (`stock`), half for what is sent
//! arriving  program ─► our socket: a chunk from `fill`, the frame copied (or written by the card) ─► `rx` ─► lent to the caller
//!                                                                             and back to `fill` at the next burst
//! sending   a free chunk ─► `tx` ─► a call, where the kernel wants one ─► `completion` ─► free
//! ```
//! A frame longer than a chunk is in several; what arrives so is put together in memory of our own.
//!
//! Three ways to run, tried at the start: *zero-copy* (the card writes our chunks), *native* (the card's driver runs the
//! program) and *generic* (the kernel does, behind any driver). Where there is no card, on veth, generic is the fastest of those
//! that there are.
//!
//! Always: the program is held by a link that ends with this value or its process (`bpf`). Not here: checksums and segments are
//! the caller's, as is telling whether a frame from the same machine has a checksum at all.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{RecvFlags, SendFlags, sockopt};
use sprat_proto::device::{Arrival, BURST, Device, HEADER, Info, MAX_FRAME, MAX_PARTS, Offload, Sent};

use super::flags::{Presence, presence};
use super::{Nic, OpenError, Options, Way, interface, sys};
use crate::mem::Region;
use crate::netns::link::Link;
use bpf::Mode;
use rings::{Desc, MORE, Ring};
use stock::Stock;

mod bpf;
mod program;
mod rings;
mod stock;

const DRIVER: &str = "xdp";

/// Octets of a chunk: a page.
const CHUNK: usize = 4096;
/// Chunks for each direction, and entries of each ring.
const CHUNKS: u32 = 2048;
/// What the kernel keeps free before an arriving frame (XDP_PACKET_HEADROOM).
const HEADROOM: usize = 256;
/// Queues that the map has room for.
const MAX_QUEUES: u32 = 64;
/// Most calls in a row to get one burst sent: the kernel sends 32 at each in copy mode.
const MOST_CALLS: u32 = 2 * CHUNKS / 32;

/// An AF_XDP socket with its memory and its program.
#[derive(Debug)]
pub struct Xdp {
    socket: OwnedFd,
    /// Holds the program on the interface.
    _link: OwnedFd,
    _map: OwnedFd,
    way: Way,
    index: u32,
    info: Info,
    /// Frames may be in several chunks.
    parted: bool,
    memory: Region,
    rx: Ring,
    tx: Ring,
    fill: Ring,
    completion: Ring,
    /// Chunks for what arrives that nobody uses.
    stock: Stock,
    /// Chunks for sending that nobody uses.
    free: Vec<u64>,
    /// Chunks of the last burst.
    lent: Vec<u64>,
    burst: [Lent; BURST],
    count: usize,
    /// Frames of the last burst that came in parts, one behind the other.
    joined: Vec<u8>,
    /// Something was put into `tx` that the kernel has not been called for.
    pending: bool,
    down: bool,
    gone: bool,
    counted: Counted,
}

/// A frame of the last burst: in the shared memory, or in `joined`.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    at: usize,
    len: usize,
    joined: bool,
}

#[derive(Debug, Default)]
struct Counted {
    received: u64,
    sent: u64,
    refused: u64,
    /// Descriptors from the kernel that point nowhere, and frames of no possible length.
    broken: u64,
    unsent: u64,
}

impl Xdp {
    /// Opens queue `options.queue` of the interface `options.dev`, in the way `options.way` or the best one that works.
    ///
    /// # Errors
    /// The interface is missing or down, CAP_NET_ADMIN, CAP_NET_RAW or CAP_BPF is missing, another program is attached, or no
    /// way works here.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let link = interface(options)?;
        let ways: &[Way] = match (options.way, link.kind.as_str()) {
            (Some(Way::ZeroCopy), _) => &[Way::ZeroCopy],
            (Some(Way::Native), _) => &[Way::Native],
            (Some(Way::Generic), _) => &[Way::Generic],
            // Nothing below copies less here, and the driver's own way converts every frame once more.
            (None, "veth") => &[Way::Generic, Way::Native],
            (None, _) => &[Way::ZeroCopy, Way::Native, Way::Generic],
        };
        let mut failed = None;
        for &way in ways {
            match Self::open_in(way, &link, options) {
                Ok(device) => return Ok(device),
                Err(Failed(what, error)) => failed = Some(explain(way, what, error, &link, options)),
            }
        }
        Err(failed.expect("there is a way at least, and it failed"))
    }

    fn open_in(way: Way, link: &Link, options: &Options) -> Result<Self, Failed> {
        let socket = sys::socket(libc::AF_XDP).map_err(|e| Failed("a socket", e))?;
        let memory = Region::anonymous(2 * CHUNKS as usize * CHUNK).map_err(|e| Failed("memory", e))?;
        let [rx, tx, fill, completion] = rings(&socket, &memory).map_err(|e| Failed("the rings", e))?;
        let map = bpf::socket_map(MAX_QUEUES).map_err(|e| Failed("a map", e))?;
        let mac = options.mac.unwrap_or(link.mac);
        let program = program::program(mac, options.steer, rustix::fd::AsRawFd::as_raw_fd(&map));
        // For a program that takes frames of several parts the kernel copies each short one to a page of a pool first, where
        // there is no room before it; and kernels before 5.18 have none. Drivers want room of their own behind a whole frame.
        let long = HEADER + link.mtu > CHUNK / 2;
        let program = if long { bpf::load(&program, true) } else { Err(io::ErrorKind::Unsupported.into()) }
            .or_else(|_| bpf::load(&program, false));
        let program = program.map_err(|e| Failed("the program", e))?;
        let mode = if way == Way::Generic { Mode::Generic } else { Mode::Native };
        // First the program, then the queue: that is free again only some time after a socket had it, when another way would be
        // tried already.
        let held =
            bpf::attach(program.as_fd(), link.index, mode).map_err(|e| Failed("to attach the program", e))?;
        let parted =
            bind(&socket, way, link, options.queue, long).map_err(|e| Failed("to bind the socket", e))?;
        bpf::put(map.as_fd(), options.queue, socket.as_fd()).map_err(|e| Failed("an entry in the map", e))?;
        let longest = if parted { MAX_FRAME } else { CHUNK - HEADROOM };
        let chunks = |from: u32| (from..from + CHUNKS).map(|chunk| u64::from(chunk) * CHUNK as u64);
        let mut this = Self {
            socket,
            _link: held,
            _map: map,
            way,
            index: link.index,
            info: Info::plain(mac, link.mtu.min(longest - HEADER)),
            parted,
            memory,
            rx,
            tx,
            fill,
            completion,
            stock: Stock::new(chunks(0)),
            free: chunks(CHUNKS).collect(),
            lent: Vec::with_capacity(BURST),
            burst: [Lent::default(); BURST],
            count: 0,
            joined: Vec::new(),
            pending: false,
            down: false,
            gone: false,
            counted: Counted::default(),
        };
        this.give_back();
        Ok(this)
    }

    /// The way in which it runs.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Takes the chunks of the last burst back, and gives the kernel what it needs.
    fn give_back(&mut self) {
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

    /// Where the part `desc` of a frame lies, if the kernel is right.
    fn part(&self, desc: Desc) -> Option<(usize, usize)> {
        let (at, len) = (usize::try_from(desc.addr).ok()?, desc.len as usize);
        let end = (at / CHUNK + 1) * CHUNK;
        (at < CHUNKS as usize * CHUNK && len <= end - at).then_some((at, len))
    }

    /// The next frame, of the `ready` descriptors; none if its last part has not come.
    fn next_frame(&mut self, ready: u32) -> Option<(u32, Option<Lent>)> {
        let first = self.rx.desc(0);
        if first.options & MORE == 0 {
            self.lent.push(first.addr & !(CHUNK as u64 - 1));
            let lent = self.part(first).map(|(at, len)| Lent { at, len, joined: false });
            return Some((1, lent.filter(|l| l.len >= HEADER)));
        }
        let parts = (0..ready).find(|&i| self.rx.desc(i).options & MORE == 0)? + 1;
        let (at, mut whole) = (self.joined.len(), true);
        for i in 0..parts {
            let desc = self.rx.desc(i);
            self.lent.push(desc.addr & !(CHUNK as u64 - 1));
            match self.part(desc) {
                Some((from, len)) if self.joined.len() - at + len <= MAX_FRAME => {
                    self.memory.append_to(from, len, &mut self.joined);
                }
                _ => whole = false,
            }
        }
        let len = self.joined.len() - at;
        Some((parts, (whole && len >= HEADER).then_some(Lent { at, len, joined: true })))
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

    /// Copies a frame into chunks and puts them into the ring; there is room for all.
    fn put(&mut self, parts: &[&[u8]], len: usize) {
        let mut left = len;
        let mut parts = parts.iter().copied();
        let mut part: &[u8] = &[];
        while left > 0 {
            let addr = self.free.pop().expect("there is a chunk for every part, as was looked at before");
            let here = left.min(CHUNK);
            let mut filled = 0;
            while filled < here {
                if part.is_empty() {
                    part = parts.next().unwrap_or(&[]);
                    continue;
                }
                let n = part.len().min(here - filled);
                self.memory.copy_in(addr as usize + filled, &part[..n]);
                (filled, part) = (filled + n, &part[n..]);
            }
            left -= here;
            let options = if left > 0 { MORE } else { 0 };
            self.tx.put_desc(Desc { addr, len: here as u32, options });
        }
    }

    /// Calls the kernel until it has taken all, or does not for now.
    fn call(&mut self) {
        self.tx.publish();
        self.pending = false;
        for _ in 0..MOST_CALLS {
            if !self.tx.wants_call() {
                return;
            }
            match rustix::net::send(&self.socket, &[], SendFlags::DONTWAIT) {
                Ok(_) => self.down = false,
                Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => {}
                Err(Errno::NETDOWN) => {
                    self.down = true;
                    return;
                }
                Err(Errno::NXIO | Errno::NODEV) => {
                    self.gone = true;
                    return;
                }
                Err(_) => return,
            }
            self.reclaim();
            if self.tx.unsent() == 0 {
                return;
            }
        }
        // The rest goes by the next call.
        self.pending = true;
    }
}

/// What failed, and how.
struct Failed(&'static str, io::Error);

fn explain(way: Way, what: &'static str, source: io::Error, link: &Link, options: &Options) -> OpenError {
    let dev = options.dev.clone();
    let unsupported =
        |what: String| OpenError::Unsupported { driver: DRIVER, dev: options.dev.clone(), what };
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            let capability =
                if what == "a socket" { "CAP_NET_RAW" } else { "CAP_NET_ADMIN,CAP_BPF,CAP_NET_RAW" };
            OpenError::NotPermitted { driver: DRIVER, dev, capability }
        }
        Some(libc::EBUSY | libc::EEXIST) => unsupported(format!(
            "another XDP program or socket has it: see `ip link show {dev}`, take it off by `ip link set {dev} xdp off`"
        )),
        Some(libc::EOPNOTSUPP) => unsupported(format!("the interface's driver has no {way}")),
        Some(libc::EAFNOSUPPORT) => unsupported("the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)".into()),
        Some(libc::ERANGE | libc::EINVAL) if what == "to attach the program" => {
            unsupported(format!("{way} does not go with an MTU of {}: ip link set {dev} mtu 1500", link.mtu))
        }
        _ => OpenError::Failed { driver: DRIVER, dev, what, source },
    }
}

/// Makes the four rings of a socket over `memory`.
fn rings(socket: &OwnedFd, memory: &Region) -> io::Result<[Ring; 4]> {
    let fd = socket.as_fd();
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
    sockopt::set_xdp_umem_fill_ring_size(fd, CHUNKS)?;
    sockopt::set_xdp_umem_completion_ring_size(fd, CHUNKS)?;
    sockopt::set_xdp_rx_ring_size(fd, CHUNKS)?;
    sockopt::set_xdp_tx_ring_size(fd, CHUNKS)?;
    let at = sockopt::xdp_mmap_offsets(fd)?;
    Ok([
        Ring::map(fd, libc::XDP_PGOFF_RX_RING as u64, &at.rx, CHUNKS, 16)?,
        Ring::map(fd, libc::XDP_PGOFF_TX_RING as u64, &at.tx, CHUNKS, 16)?,
        Ring::map(fd, libc::XDP_UMEM_PGOFF_FILL_RING, &at.fr, CHUNKS, 8)?,
        Ring::map(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, CHUNKS, 8)?,
    ])
}

/// Binds the socket to a queue; true if frames may come and go in several parts, as they have to where they are `long`.
fn bind(socket: &OwnedFd, way: Way, link: &Link, queue: u32, long: bool) -> io::Result<bool> {
    let copy = if way == Way::ZeroCopy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
    let name = |more: u16| libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: copy | libc::XDP_USE_NEED_WAKEUP | more,
        sxdp_ifindex: link.index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // Kernels before 6.6 have no frames of several parts.
    if long && sys::bind(socket.as_fd(), &name(libc::XDP_USE_SG)).is_ok() {
        return Ok(true);
    }
    sys::bind(socket.as_fd(), &name(0)).map(|()| false)
}

impl Device for Xdp {
    fn recv_burst(&mut self) -> usize {
        if !self.lent.is_empty() {
            self.give_back();
        }
        self.joined.clear();
        self.count = 0;
        while self.count < BURST {
            let ready = self.rx.ready();
            if ready == 0 {
                break;
            }
            let Some((parts, frame)) = self.next_frame(ready) else { break };
            self.rx.take(parts);
            match frame {
                Some(lent) => {
                    self.burst[self.count] = lent;
                    self.count += 1;
                }
                None => self.counted.broken += 1,
            }
        }
        self.counted.received += self.count as u64;
        self.count
    }

    #[inline]
    fn frame(&self, i: usize) -> (&[u8], Arrival) {
        let lent = self.burst[..self.count][i];
        if lent.joined {
            return (&self.joined[lent.at..lent.at + lent.len], Arrival::default());
        }
        // SAFETY: the octets lie in a chunk that the kernel handed over by `rx` and gets back only by `recv_burst` or `doze`,
        // which need `self` mutably; until then neither side writes them.
        (unsafe { self.memory.lend(lent.at, lent.len) }, Arrival::default())
    }

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        if self.gone {
            return Sent::Gone;
        }
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let fits = (HEADER..=self.info.max_send).contains(&len) && parts.len() <= MAX_PARTS;
        if !fits || offload != Offload::None {
            self.counted.refused += 1;
            return Sent::Yes;
        }
        let chunks = len.div_ceil(CHUNK);
        if chunks > 1 && !self.parted {
            self.counted.refused += 1;
            return Sent::Yes;
        }
        if self.free.len() < chunks || (self.tx.room() as usize) < chunks {
            self.reclaim();
            if self.free.len() < chunks || (self.tx.room() as usize) < chunks {
                if self.down {
                    self.counted.unsent += 1;
                    return Sent::Yes;
                }
                return Sent::Full;
            }
        }
        self.put(parts, len);
        self.counted.sent += 1;
        self.pending = true;
        Sent::Yes
    }

    #[inline]
    fn flush(&mut self) {
        if self.pending {
            self.call();
        }
    }

    fn info(&self) -> Info {
        self.info
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let c = &self.counted;
        each("frames_received", c.received);
        each("frames_sent", c.sent);
        each("frames_refused", c.refused);
        each("frames_broken", c.broken);
        each("frames_unsent", c.unsent);
        if let Ok(kernel) = sockopt::xdp_statistics(&self.socket) {
            each("frames_too_long", kernel.rx_dropped);
            each("frames_ring_full", kernel.rx_ring_full.unwrap_or(0));
            each("frames_no_chunk", kernel.rx_fill_ring_empty_descs.unwrap_or(0));
        }
    }
}

impl Nic for Xdp {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn doze(&mut self) -> bool {
        if let Ok(Err(_)) = sockopt::socket_error(&self.socket)
            && let Ok(Presence::Gone) = presence(self.socket.as_fd(), self.index)
        {
            self.gone = true;
        }
        self.count = 0;
        self.give_back();
        let owed = self.stock.owed_asleep(self.fill.unsent());
        self.offer(owed);
        self.flush();
        !self.rx.is_ready()
    }

    fn wake(&mut self) {}

    fn carries(&mut self) -> bool {
        let presence = presence(self.socket.as_fd(), self.index);
        self.gone |= matches!(presence, Ok(Presence::Gone));
        matches!(presence, Ok(Presence::Up))
    }
}
