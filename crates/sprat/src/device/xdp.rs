//! The driver `xdp`: AF_XDP, frames past the kernel's stack by a program of our own on the
//! interface.
//!
//! ```text
//! arriving  the interface ─► the program, on each of its queues ─► the queue's socket ─► a burst
//! sending   one queue ─► the interface
//! ```
//!
//! A card spreads flows over all of its receive queues, and a socket gets only the frames of its
//! own queue. So each queue has a socket, unless one queue was named. Sending needs only one queue,
//! because one thread sends.
//!
//! Three modes are tried when a device is opened: *zero-copy* (the card writes our chunks),
//! *native* (the card's driver runs the program) and *generic* (the kernel runs it, behind any
//! driver). On veth, which has no card, generic is the fastest mode that works.
//!
//! Rights: CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_IPC_LOCK.
//!
//! Always holds: a link holds the program and ends with this value or its process (`bpf`). All
//! queues are polled in turn. Not here: checksums and segments, which the caller computes.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll, poll};
use rustix::net::sockopt;
use sprat_proto::device::{
    BURST, Device, HEADER, Headers, Info, MAX_FRAME, MAX_PARTS, Offload, RxOffload, Sent,
    send_concatenated,
};

use super::{Nic, OpenError, Options, XdpMode, interface};
use failed::Failed;
use hold::Held;
use sprat_sys::bpf::{self, Mode};
use sprat_sys::ethtool::{Presence, Queues, presence, queues};
use sprat_sys::netns::link::Link;
use sprat_sys::socket;
use sprat_sys::xdp::{CHUNK, Frame, HEADROOM, Joined, Lengths, Queue};

mod failed;
mod hold;
mod program;

const DRIVER: &str = "xdp";
/// The capabilities that the driver `xdp` needs. The error names all of them at once.
const CAPABILITIES: &str = "CAP_NET_RAW,CAP_NET_ADMIN,CAP_BPF,CAP_IPC_LOCK";
/// The capabilities that several `xdp` devices on one interface need.
const SHARING: &str = "CAP_SYS_ADMIN,CAP_NET_RAW,CAP_NET_ADMIN,CAP_BPF,CAP_IPC_LOCK";

/// The name of the XDP program in the kernel.
const NAME: [u8; 16] = *b"sprat\0\0\0\0\0\0\0\0\0\0\0";
/// The pause between two attempts to get a queue of the interface.
const A_MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// The most receive queues of an interface that the driver `xdp` takes.
const MAX_QUEUES: u32 = 256;

/// Returns the number of chunks for each direction of one of `queues` queues, which is also the
/// number of entries of each ring. The kernel pins the memory.
fn chunks(queues: usize) -> u32 {
    (8192 / queues.next_power_of_two() as u32).clamp(256, 2048)
}

/// A packet device of AF_XDP sockets, with the program that steers frames to them.
#[derive(Debug)]
pub struct Xdp {
    /// The socket of each queue, at least one. The first one sends.
    queues: Vec<Queue>,
    /// Number of frames that each of the queues has received since the device was opened.
    received: Vec<u64>,
    /// The index of the queue that is polled first.
    first: usize,
    found: Found,
    /// The epoll descriptor that is readable when one of several sockets is. `None` if there is one
    /// socket.
    any: Option<OwnedFd>,
    /// The number that the first queue has at the interface; the others follow it.
    number: u32,
    /// Keeps the program attached to the interface.
    _held: Held,
    _map: OwnedFd,
    xdp_mode: XdpMode,
    index: u32,
    info: Info,
    /// True if a frame may lie in several chunks.
    parted: bool,
    gone: bool,
    counted: Counted,
}

/// The frames that the last poll of all queues found.
#[derive(Debug)]
struct Found {
    frames: [Lent; BURST],
    count: usize,
    /// The bytes of frames that came in several chunks.
    joined: Joined,
    /// Number of broken frames since the device was opened: with descriptors that point nowhere, or
    /// of no possible length.
    broken: u64,
}

/// The place of a received frame: number `at` of those that the queue lends, or the `len` bytes
/// from `at` in `joined`.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    queue: usize,
    at: usize,
    len: usize,
    joined: bool,
}

impl Default for Found {
    fn default() -> Self {
        Self { frames: [Lent::default(); BURST], count: 0, joined: Vec::new(), broken: 0 }
    }
}

impl Found {
    /// Adds received frames of `queue`, the one with number `number`, as far as there is room.
    #[inline]
    fn receive(&mut self, number: usize, queue: &mut Queue) {
        let Self { frames, count, joined, broken } = self;
        let lengths = Lengths { least: HEADER, most: MAX_FRAME };
        queue.receive(BURST - *count, lengths, joined, |frame| {
            let lent = Lent { queue: number, ..Lent::default() };
            frames[*count] = match frame {
                Frame::Lent(at) => Lent { at, ..lent },
                Frame::Joined(at, len) => Lent { at, len, joined: true, ..lent },
                Frame::Broken => {
                    *broken += 1;
                    return;
                }
            };
            *count += 1;
        });
    }
}

#[derive(Debug, Default)]
struct Counted {
    sent: u64,
    refused: u64,
    unsent: u64,
}

impl Xdp {
    /// Opens the interface `options.dev` in the mode `options.xdp_mode`, or in the best one that
    /// works. It takes queue `options.queue`, or all receive queues if none is named.
    ///
    /// # Errors
    /// The interface is missing or down, CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF or CAP_IPC_LOCK is
    /// missing, another program is attached, the interface has no such queue, or no way works here.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let link = interface(options)?;
        let modes: &[XdpMode] = match (options.xdp_mode, link.kind.as_str()) {
            (Some(XdpMode::ZeroCopy), _) => &[XdpMode::ZeroCopy],
            (Some(XdpMode::Native), _) => &[XdpMode::Native],
            (Some(XdpMode::Generic), _) => &[XdpMode::Generic],
            // Nothing below copies less here, and the driver's own way converts every frame once
            // more.
            (None, "veth") => &[XdpMode::Generic, XdpMode::Native],
            (None, _) => &[XdpMode::ZeroCopy, XdpMode::Native, XdpMode::Generic],
        };
        let wanted = wanted(&link, options)?;
        let mut failed = None;
        for &xdp_mode in modes {
            match Self::open_in(xdp_mode, &link, &wanted, options) {
                Ok(device) => return Ok(device),
                Err(Failed(what, error)) => {
                    failed = Some(explain(xdp_mode, what, error, &link, options))
                }
            }
        }
        Err(failed.expect("there is a way at least, and it failed"))
    }

    fn open_in(
        xdp_mode: XdpMode,
        link: &Link,
        wanted: &Wanted,
        options: &Options,
    ) -> Result<Self, Failed> {
        let chunks = chunks(wanted.numbers.len());
        let first = Queue::new(chunks, true).map_err(|e| Failed("the rings", e))?;
        let map = bpf::socket_map(wanted.numbers.end).map_err(|e| Failed("a map", e))?;
        let mac = options.mac.unwrap_or(link.mac);
        let program = program::program(mac, options.steer, rustix::fd::AsRawFd::as_raw_fd(&map));
        // For a program that takes frames of several parts the kernel copies each short one to a
        // page of a pool first, where there is no room before it; and kernels before 5.18 have
        // none. Drivers want room of their own behind a whole frame.
        let long = options.long_frames || HEADER + link.mtu > CHUNK / 2;
        let load = |parts| bpf::load(&program, NAME, parts).map(|program| (program, parts));
        let loaded = if long { load(true) } else { Err(io::ErrorKind::Unsupported.into()) };
        let (program, in_parts) =
            loaded.or_else(|_| load(false)).map_err(|e| Failed("the program", e))?;
        let mode = if xdp_mode == XdpMode::Generic { Mode::Generic } else { Mode::Native };
        // The program comes first: a queue is free only some time after its last socket closed.
        let held = match options.queue {
            None => Held::all(program.as_fd(), link.index, mode)?,
            Some(_) => Held::shared(link.index, mode, in_parts)?,
        };
        let (mut queues, mut parted) = (Vec::new(), true);
        let mut fresh = Some(first);
        for number in wanted.numbers.clone() {
            let queue = match fresh.take() {
                Some(queue) => queue,
                None => Queue::new(chunks, false).map_err(|e| Failed("the rings", e))?,
            };
            match bind_soon(queue.fd(), xdp_mode, link, number, long) {
                Ok(parts) => parted &= parts,
                // The driver does not say how many there are in use: the first one that is not ends
                // them.
                Err(e)
                    if !wanted.sure
                        && !queues.is_empty()
                        && e.raw_os_error() == Some(libc::EINVAL) =>
                {
                    break;
                }
                Err(e) => return Err(Failed("to bind the socket", e)),
            }
            bpf::put(map.as_fd(), number, queue.fd())
                .and_then(|()| held.put(number, program.as_fd()))
                .map_err(|e| Failed("an entry in the map", e))?;
            queues.push(queue);
        }
        let any = any_of(&queues).map_err(|e| Failed("an epoll", e))?;
        let longest = if parted { MAX_FRAME } else { CHUNK - HEADROOM };
        queues.iter_mut().for_each(Queue::release);
        Ok(Self {
            received: vec![0; queues.len()],
            queues,
            first: 0,
            found: Found::default(),
            any,
            number: wanted.numbers.start,
            _held: held,
            _map: map,
            xdp_mode,
            index: link.index,
            info: Info::without_offloads(mac, link.mtu.min(longest - HEADER)),
            parted,
            gone: false,
            counted: Counted::default(),
        })
    }

    /// Returns the mode in which the device receives frames.
    #[must_use]
    pub fn xdp_mode(&self) -> XdpMode {
        self.xdp_mode
    }

    /// Returns the numbers of the interface's queues that the device takes, each with the number of
    /// frames received on it.
    pub fn received(&self) -> impl Iterator<Item = (u32, u64)> {
        (self.number..).zip(self.received.iter().copied())
    }
}

/// The queues of the interface that a device is to take.
struct Wanted {
    numbers: Range<u32>,
    /// True if the driver has confirmed the number of queues.
    sure: bool,
}

fn wanted(link: &Link, options: &Options) -> Result<Wanted, OpenError> {
    let failed = |e| explain(XdpMode::Generic, "a socket", e, link, options);
    let socket = socket::raw(libc::AF_XDP).map_err(failed)?;
    let unsupported =
        |what: String| OpenError::Unsupported { driver: DRIVER, dev: options.dev.clone(), what };
    let (all, sure) = match queues(socket.as_fd(), link.index) {
        Ok(all) => (all, true),
        Err(_) => (Queues { receive: link.queues, send: link.queues }, false),
    };
    if let Some(n) = options.queue {
        if n >= all.receive.min(all.send) {
            let Queues { receive, send } = all;
            let what = format!(
                "it has no queue {n}: {receive} to receive and {send} to send, counted from 0"
            );
            return Err(unsupported(what));
        }
        return Ok(Wanted { numbers: n..n + 1, sure });
    }
    if all.receive > MAX_QUEUES {
        let dev = &options.dev;
        let what = format!("it has {} queues: ethtool -L {dev} combined {MAX_QUEUES}", all.receive);
        return Err(unsupported(what));
    }
    Ok(Wanted { numbers: 0..all.receive.max(1), sure })
}

/// Returns an epoll descriptor that is readable while one of several sockets is. `None` for one
/// socket.
fn any_of(queues: &[Queue]) -> io::Result<Option<OwnedFd>> {
    if queues.len() < 2 {
        return Ok(None);
    }
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for queue in queues {
        epoll::add(&epoll, queue.fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(Some(epoll))
}

fn explain(
    xdp_mode: XdpMode,
    what: &'static str,
    source: io::Error,
    link: &Link,
    options: &Options,
) -> OpenError {
    let dev = options.dev.clone();
    let unsupported =
        |what: String| OpenError::Unsupported { driver: DRIVER, dev: options.dev.clone(), what };
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            let capability = if what == "to share the program" { SHARING } else { CAPABILITIES };
            OpenError::NotPermitted { driver: DRIVER, dev, capability }
        }
        // The kernel locks our chunks in memory, more of them than the user's limit allows.
        Some(libc::ENOBUFS) if what == "the rings" => {
            OpenError::NotPermitted { driver: DRIVER, dev, capability: CAPABILITIES }
        }
        Some(libc::EBUSY) if what == "to bind the socket" => unsupported(
            "another AF_XDP socket has one of its queues: `ss --xdp -p` shows whose".into(),
        ),
        Some(libc::EBUSY | libc::EEXIST) => unsupported(format!(
            "another XDP program has it, and an interface has but one (`ip link show {dev}` shows \
             it). If that is another Sprat, which took all queues, give each an interface, or each \
             a queue (queue=N, and have the card steer to it: ethtool -N), or use fast+packet, \
             which shares; if it was left behind, take it off by `ip link set {dev} xdp off`"
        )),
        Some(libc::EOPNOTSUPP) => unsupported(format!("the interface's driver has no {xdp_mode}")),
        Some(libc::EAFNOSUPPORT) => {
            unsupported("the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)".into())
        }
        Some(libc::ERANGE | libc::EINVAL) if what == "to attach the program" => {
            unsupported(format!(
                "{xdp_mode} does not go with an MTU of {}: ip link set {dev} mtu 1500",
                link.mtu
            ))
        }
        _ => OpenError::Failed { driver: DRIVER, dev, what, source },
    }
}

/// Binds the socket to a queue, and tries again for a while if the queue is in use. The kernel
/// frees a queue some time after its last socket was closed, which may have tried another mode.
fn bind_soon(
    socket: BorrowedFd<'_>,
    xdp_mode: XdpMode,
    link: &Link,
    queue: u32,
    long: bool,
) -> io::Result<bool> {
    for _ in 0..50 {
        match bind(socket, xdp_mode, link, queue, long) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                // Nothing tells when: so a moment, in which nothing is waited for.
                let _ = poll(&mut [], Some(&A_MOMENT));
            }
            done => return done,
        }
    }
    bind(socket, xdp_mode, link, queue, long)
}

/// Binds the socket to a queue. Returns true if frames may have several parts, which they must
/// where they are `long`.
fn bind(
    socket: BorrowedFd<'_>,
    xdp_mode: XdpMode,
    link: &Link,
    queue: u32,
    long: bool,
) -> io::Result<bool> {
    let copy = if xdp_mode == XdpMode::ZeroCopy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
    let name = |more: u16| libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: copy | libc::XDP_USE_NEED_WAKEUP | more,
        sxdp_ifindex: link.index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // Kernels before 6.6 have no frames of several parts.
    if long && socket::bind(socket, &name(libc::XDP_USE_SG)).is_ok() {
        return Ok(true);
    }
    socket::bind(socket, &name(0)).map(|()| false)
}

impl Device for Xdp {
    fn recv_burst(&mut self) -> usize {
        self.found.joined.clear();
        self.found.count = 0;
        let mut at = self.first;
        for _ in 0..self.queues.len() {
            let before = self.found.count;
            self.found.receive(at, &mut self.queues[at]);
            self.received[at] += (self.found.count - before) as u64;
            at = if at + 1 == self.queues.len() { 0 } else { at + 1 };
            if self.found.count == BURST {
                break;
            }
        }
        self.first = at;
        self.found.count
    }

    #[inline]
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        let lent = self.found.frames[..self.found.count][i];
        if lent.joined {
            return (&self.found.joined[lent.at..lent.at + lent.len], RxOffload::default());
        }
        (self.queues[lent.queue].frame(lent.at), RxOffload::default())
    }

    fn append_left(&self, _: usize, _: Range<usize>, _: &mut Vec<u8>) {}

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        if self.gone {
            return Sent::Gone;
        }
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let fits = (HEADER..=self.info.max_send).contains(&len) && parts.len() <= MAX_PARTS;
        let chunks = len.div_ceil(CHUNK);
        if !fits || offload != Offload::None || (chunks > 1 && !self.parted) {
            self.counted.refused += 1;
            return Sent::Yes;
        }
        if !self.queues[0].has_room(chunks) {
            if self.queues[0].is_down() {
                self.counted.unsent += 1;
                return Sent::Yes;
            }
            return Sent::Full;
        }
        self.queues[0].send(parts, len);
        self.counted.sent += 1;
        Sent::Yes
    }

    #[inline]
    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        _: usize,
        offload: Offload,
    ) -> Sent {
        send_concatenated(self, headers, parts, offload)
    }

    fn flush(&mut self) {
        self.gone |= !self.queues[0].flush();
    }

    fn info(&self) -> Info {
        self.info
    }

    fn rx_timestamp_ns(&self, _: usize) -> Option<u64> {
        None
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let c = &self.counted;
        each("frames_received", self.received.iter().sum());
        each("frames_sent", c.sent);
        each("frames_refused", c.refused);
        each("frames_broken", self.found.broken);
        each("frames_unsent", c.unsent);
        let kernel: Vec<_> = self.queues.iter().filter_map(Queue::statistics).collect();
        each("frames_too_long", kernel.iter().map(|k| k.rx_dropped).sum());
        each("frames_ring_full", kernel.iter().filter_map(|k| k.rx_ring_full).sum());
        each("frames_no_chunk", kernel.iter().filter_map(|k| k.rx_fill_ring_empty_descs).sum());
    }
}

impl Nic for Xdp {
    fn fd(&self) -> BorrowedFd<'_> {
        self.any.as_ref().map_or_else(|| self.queues[0].fd(), OwnedFd::as_fd)
    }

    fn arm(&mut self) -> bool {
        let fd = self.queues[0].fd();
        if let Ok(Err(_)) = sockopt::socket_error(fd)
            && let Ok(Presence::Gone) = presence(fd, self.index)
        {
            self.gone = true;
        }
        self.found.count = 0;
        self.queues.iter_mut().for_each(Queue::release_for_sleep);
        self.flush();
        !self.queues.iter().any(Queue::is_ready)
    }

    fn disarm(&mut self) {}

    fn carries(&mut self) -> bool {
        let presence = presence(self.queues[0].fd(), self.index);
        self.gone |= matches!(presence, Ok(Presence::Gone));
        matches!(presence, Ok(Presence::Up))
    }

    fn queues(&self) -> usize {
        self.queues.len()
    }

    fn has_rx_timestamps(&self) -> bool {
        false
    }
}
