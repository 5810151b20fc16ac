//! The driver `packet`: AF_PACKET (packet(7)), on any interface of the kernel and beside its own
//! stack.
//!
//! Frames arrive in a ring that the kernel shares ([`Ring`]). They are lent from where they lie,
//! and the next `recv_burst` gives their slots back.
//!
//! Frames leave by system calls that copy, several at a time (docs/decisions.md, "AF_PACKET sends
//! by system calls, not from a mapped ring"). A `virtio_net_hdr` goes with each frame in both
//! directions: it says which checksums and segments are left to the other side. Between two
//! interfaces of one machine nothing ever computes them.
//!
//! Not here: a block timer (TPACKET_V3 waits at least a millisecond), VLAN tags (counted and
//! dropped).

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, sendmmsg, sendmsg};
use sprat_proto::device::{
    BURST, Device, HEADER, Headers, Info, MAX_FRAME, MAX_PARTS, Mac, Offload, Offloads, RxOffload,
    Sent, send_concatenated,
};

use super::{Nic, OpenError, Options, filter, interface, vnet};
use sprat_sys::ethtool::{Presence, cuts_segments, presence};
use sprat_sys::netns::link;
use sprat_sys::packet::{Header, Ring};
use sprat_sys::socket;

const DRIVER: &str = "packet";

/// Number of the ring's blocks if a slot has room for joined segments. `BLOCKS_PLAIN` is the number
/// if it has room for one frame.
const BLOCKS_JOINED: usize = 16;
const BLOCKS_PLAIN: usize = 4;
/// The most bytes of a slot before a frame: the ring's header, an address, alignment, and the
/// `virtio_net_hdr`.
const BEFORE: usize = 128;
/// The greatest length in bytes of a frame that is collected and sent together with others.
const COLLECTED: usize = 4096;
/// Bytes of our frames that the kernel may hold until they are sent.
const SEND_BUFFER: libc::c_int = 8 << 20;

/// A packet device that is an AF_PACKET socket with a receive ring.
#[derive(Debug)]
pub struct Packet {
    socket: OwnedFd,
    index: u32,
    info: Info,
    vnet: bool,
    ring: Ring,
    burst: [Lent; BURST],
    /// Number of frames of the last burst.
    count: usize,
    out: Outbox,
    gone: bool,
    counted: Counted,
}

/// The place and the properties of a frame of the last burst.
#[derive(Clone, Copy, Debug, Default)]
struct Lent {
    /// The number of the frame's slot among those that the ring holds.
    slot: usize,
    /// The offset in the slot at which the frame begins.
    at: usize,
    len: usize,
    arrival: RxOffload,
    ns: u64,
}

/// Short frames that wait for `flush`, one behind the other, each with its `virtio_net_hdr` if
/// there are any.
#[derive(Debug, Default)]
struct Outbox {
    bytes: Vec<u8>,
    /// The offset at which each frame ends.
    ends: Vec<usize>,
}

#[derive(Debug, Default)]
struct Counted {
    received: u64,
    sent: u64,
    /// Number of received frames that were dropped because the kernel cut them to the length of a
    /// slot.
    cut: u64,
    vlan: u64,
    /// Number of frames that the device refused to send: too long, too short, or with an offload
    /// that it lacks.
    refused: u64,
    /// Number of frames that the interface did not take.
    unsent: u64,
    /// Number of frames for which the ring had no room, as the kernel counted them. The kernel
    /// forgets its number when it is read.
    ring_full: Cell<u64>,
}

impl Packet {
    /// Opens a socket on the interface `options.dev`.
    ///
    /// # Errors
    /// The interface is missing or down, CAP_NET_RAW is missing, or there is no memory for the
    /// ring.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let link = interface(options)?;
        let dev = || options.dev.clone();
        let failed =
            |what| move |source| OpenError::Failed { driver: DRIVER, dev: dev(), what, source };
        let socket = socket::raw(libc::AF_PACKET).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => {
                OpenError::NotPermitted { driver: DRIVER, dev: dev(), capability: "CAP_NET_RAW" }
            }
            _ => failed("a socket")(e),
        })?;
        let vnet = !options.no_offload;
        let mac = options.mac.unwrap_or(link.mac);
        prepare(&socket, vnet).map_err(failed("an option of the socket"))?;
        if !options.promiscuous {
            socket::set_filter(socket.as_fd(), &filter::program(mac, options.steer))
                .map_err(failed("the filter"))?;
        }
        let ring = ring(&socket, vnet, link.mtu).map_err(failed("the ring"))?;
        join(&socket, &link, options, mac).map_err(failed("to bind the socket"))?;
        let cuts = vnet && cuts_segments(socket.as_fd(), link.index).unwrap_or(true);
        let offloads = Offloads { checksum: vnet, tcp_segments: cuts, udp_segments: cuts };
        let max_send = if cuts { MAX_FRAME } else { HEADER + link.mtu };
        Ok(Self {
            socket,
            index: link.index,
            info: Info { mac, mtu: link.mtu, max_send, offloads },
            vnet,
            ring,
            burst: [Lent::default(); BURST],
            count: 0,
            out: Outbox::default(),
            gone: false,
            counted: Counted::default(),
        })
    }

    /// Returns the frame in held slot `slot`. `None` if the device cannot use it.
    fn check(&mut self, slot: usize, header: &Header) -> Option<Lent> {
        let Header { status, len, kept, mac, ns } = *header;
        if status & libc::TP_STATUS_VLAN_VALID != 0 {
            self.counted.vlan += 1;
            return None;
        }
        let whole = kept == len && (HEADER..=MAX_FRAME).contains(&kept);
        let begins = sprat_sys::packet::HEADER + vnet::LEN;
        if !whole || mac < begins || mac + kept > self.ring.slot() {
            self.counted.cut += 1;
            return None;
        }
        let mut arrival = RxOffload {
            checksum_valid: status & (libc::TP_STATUS_CSUMNOTREADY | libc::TP_STATUS_CSUM_VALID)
                != 0,
            ..RxOffload::default()
        };
        if self.vnet {
            let mut vnet = [0; vnet::LEN];
            vnet.copy_from_slice(self.ring.bytes(slot, mac - vnet::LEN, vnet::LEN));
            let more = vnet::arrival(vnet);
            arrival =
                RxOffload { checksum_valid: arrival.checksum_valid || more.checksum_valid, ..more };
        }
        Some(Lent { slot, at: mac, len: kept, arrival, ns })
    }

    /// Handles an error that the kernel returned when it was to send.
    fn failed(&mut self, error: Errno) -> Sent {
        match error {
            Errno::AGAIN => return Sent::Full,
            Errno::NXIO | Errno::NODEV => self.gone = true,
            _ => {}
        }
        self.counted.unsent += 1;
        if self.gone { Sent::Gone } else { Sent::Yes }
    }

    /// Sends one frame now, from where its parts are.
    fn send_at_once(&mut self, vnet: &[u8], parts: &[&[u8]]) -> Sent {
        let mut slices = [IoSlice::new(&[]); MAX_PARTS + 1];
        slices[0] = IoSlice::new(vnet);
        for (slice, part) in slices[1..].iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
        }
        let mut control = SendAncillaryBuffer::default();
        let send =
            || sendmsg(&self.socket, &slices[..=parts.len()], &mut control, SendFlags::DONTWAIT);
        match twice(send) {
            Ok(_) => {
                self.counted.sent += 1;
                Sent::Yes
            }
            Err(e) => self.failed(e),
        }
    }

    /// Sends the collected frames. Returns false if there is no room for all of them now.
    fn send_collected(&mut self) -> bool {
        let mut from = 0;
        while from < self.out.ends.len() && !self.gone {
            match twice(|| self.out.send(&self.socket, from)) {
                Ok(n) => {
                    self.counted.sent += n as u64;
                    from += n;
                }
                Err(e) => {
                    if self.failed(e) == Sent::Full {
                        self.out.forget(from);
                        return false;
                    }
                    from += 1;
                }
            }
        }
        self.out.forget(self.out.ends.len());
        true
    }

    /// Checks that the interface still exists after the socket has had an error.
    fn check_interface(&mut self) {
        if let Ok(Err(_)) = rustix::net::sockopt::socket_error(&self.socket)
            && let Ok(Presence::Gone) = presence(self.socket.as_fd(), self.index)
        {
            self.gone = true;
        }
    }
}

impl Outbox {
    /// Sends the collected frames from number `first` on. Returns the number of frames that the
    /// kernel took.
    fn send(&self, socket: &OwnedFd, first: usize) -> rustix::io::Result<usize> {
        let start = |i: usize| if i == 0 { 0 } else { self.ends[i - 1] };
        if self.ends.len() - first == 1 {
            return rustix::net::send(socket, &self.bytes[start(first)..], SendFlags::DONTWAIT)
                .map(|_| 1);
        }
        let n = (self.ends.len() - first).min(BURST);
        let slices: [[IoSlice<'_>; 1]; BURST] = std::array::from_fn(|i| {
            let i = (first + i).min(self.ends.len() - 1);
            [IoSlice::new(&self.bytes[start(i)..self.ends[i]])]
        });
        let mut controls: [SendAncillaryBuffer<'_, '_, '_>; BURST] =
            std::array::from_fn(|_| SendAncillaryBuffer::default());
        let mut messages = slices.iter().zip(&mut controls).map(|(s, c)| MMsgHdr::new(s, c));
        let mut messages: [MMsgHdr<'_>; BURST] = std::array::from_fn(|_| {
            messages.next().unwrap_or_else(|| unreachable!("there are BURST of both"))
        });
        sendmmsg(socket, &mut messages[..n], SendFlags::DONTWAIT)
    }

    /// Removes the first `n` frames from the outbox.
    fn forget(&mut self, n: usize) {
        if n == self.ends.len() {
            self.ends.clear();
            self.bytes.clear();
        } else if n > 0 {
            let until = self.ends[n - 1];
            self.ends.drain(..n);
            self.ends.iter_mut().for_each(|end| *end -= until);
            self.bytes.drain(..until);
        }
    }
}

/// Calls `send`, and once more if it fails because the interface was down. The socket keeps that
/// error until the next send, though the interface may be up again.
fn twice<T>(mut send: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    match send() {
        Err(Errno::NETDOWN) => send(),
        other => other,
    }
}

/// Makes the receive ring of the socket, with slots for joined segments if frames have a
/// `virtio_net_hdr`.
fn ring(socket: &OwnedFd, vnet: bool, mtu: usize) -> io::Result<Ring> {
    let frame = if vnet { MAX_FRAME } else { HEADER + mtu };
    let slot = (BEFORE + frame).next_multiple_of(libc::TPACKET_ALIGNMENT);
    Ring::new(socket.as_fd(), slot, if vnet { BLOCKS_JOINED } else { BLOCKS_PLAIN })
}

/// Sets the options of the socket that the kernel accepts only before it is bound.
fn prepare(socket: &OwnedFd, vnet: bool) -> io::Result<()> {
    let packet =
        |name, value: libc::c_int| socket::set(socket.as_fd(), libc::SOL_PACKET, name, &value);
    packet(libc::PACKET_VERSION, TPACKET_V2)?;
    packet(libc::PACKET_QDISC_BYPASS, 1)?;
    packet(libc::PACKET_IGNORE_OUTGOING, 1)?;
    if vnet {
        packet(libc::PACKET_VNET_HDR, 1)?;
    }
    // As much as is allowed, where more is not.
    if socket::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER).is_err() {
        let _ = socket::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER);
    }
    Ok(())
}

/// The version of the ring's format: a value of `tpacket_versions` in linux/if_packet.h.
const TPACKET_V2: libc::c_int = 1;

/// Binds the socket to the interface. From then on frames arrive.
fn join(socket: &OwnedFd, link: &link::Link, options: &Options, mac: Mac) -> io::Result<()> {
    let mut address = [0; 8];
    address[..6].copy_from_slice(&mac.0);
    if mac != link.mac || options.promiscuous {
        let kind =
            if options.promiscuous { libc::PACKET_MR_PROMISC } else { libc::PACKET_MR_UNICAST };
        let member = libc::packet_mreq {
            mr_ifindex: link.index as i32,
            mr_type: kind as u16,
            mr_alen: 6,
            mr_address: address,
        };
        socket::set(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &member)?;
    }
    let name = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: link.index as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    socket::bind(socket.as_fd(), &name)?;
    if let Some(group) = options.group {
        let value = (libc::PACKET_FANOUT_HASH << 16 | u32::from(group)).cast_signed();
        socket::set(socket.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, &value)?;
    }
    Ok(())
}

impl Device for Packet {
    fn recv_burst(&mut self) -> usize {
        self.ring.release();
        self.count = 0;
        while self.ring.held() < BURST
            && let Some(header) = self.ring.take()
        {
            if let Some(lent) = self.check(self.ring.held() - 1, &header) {
                self.burst[self.count] = lent;
                self.count += 1;
            }
        }
        self.counted.received += self.count as u64;
        self.count
    }

    #[inline]
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        let lent = &self.burst[..self.count][i];
        let bytes = self.ring.bytes(lent.slot, lent.at, lent.len);
        (bytes, lent.arrival)
    }

    fn append_left(&self, _: usize, _: Range<usize>, _: &mut Vec<u8>) {}

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        if self.gone {
            return Sent::Gone;
        }
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let longest = match offload {
            Offload::Segments { .. } => self.info.max_send,
            _ => HEADER + self.info.mtu,
        };
        if !(HEADER..=longest).contains(&len)
            || parts.len() > MAX_PARTS
            || (offload != Offload::None && !self.vnet)
        {
            self.counted.refused += 1;
            return Sent::Yes;
        }
        let vnet = vnet::emit(offload);
        let vnet = &vnet[..if self.vnet { vnet::LEN } else { 0 }];
        if len > COLLECTED {
            return if self.send_collected() { self.send_at_once(vnet, parts) } else { Sent::Full };
        }
        if self.out.ends.len() >= BURST && !self.send_collected() {
            return Sent::Full;
        }
        self.out.bytes.extend_from_slice(vnet);
        for part in parts {
            self.out.bytes.extend_from_slice(part);
        }
        self.out.ends.push(self.out.bytes.len());
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
        if !self.out.ends.is_empty() {
            // Frames without room stay for the next flush.
            self.send_collected();
        }
    }

    fn info(&self) -> Info {
        self.info
    }

    fn rx_timestamp_ns(&self, i: usize) -> Option<u64> {
        self.burst[..self.count].get(i).map(|lent| lent.ns)
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let c = &self.counted;
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        if socket::get(self.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats)
            .is_ok()
        {
            c.ring_full.set(c.ring_full.get() + u64::from(stats.tp_drops));
        }
        each("frames_received", c.received);
        each("frames_sent", c.sent);
        each("frames_ring_full", c.ring_full.get());
        each("frames_cut", c.cut);
        each("frames_vlan", c.vlan);
        each("frames_refused", c.refused);
        each("frames_unsent", c.unsent);
    }
}

impl Nic for Packet {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn arm(&mut self) -> bool {
        self.check_interface();
        // Held slots would make the socket readable for ever.
        self.ring.release();
        self.count = 0;
        self.flush();
        self.out.ends.is_empty() && !self.ring.is_ready()
    }

    fn disarm(&mut self) {}

    fn has_rx_timestamps(&self) -> bool {
        true
    }

    fn carries(&mut self) -> bool {
        let presence = presence(self.socket.as_fd(), self.index);
        self.gone |= matches!(presence, Ok(Presence::Gone));
        matches!(presence, Ok(Presence::Up))
    }

    fn queues(&self) -> usize {
        1
    }
}
