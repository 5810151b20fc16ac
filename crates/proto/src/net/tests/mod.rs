//! Tests of the IP stack: two stacks, or a stack and a script, over devices in memory, in virtual
//! time.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::ops::Range;

use super::*;
use crate::datagrams::{Addr, Datagrams};
use crate::device::{
    BURST, Device, HEADER, Headers, Info, LEFT_HEAD, Mac, Offload, Offloads, RxOffload, Sent,
    send_concatenated,
};
use crate::fault::Fault;
use crate::time::{MS, SECOND, US};
use crate::wire::checksum::Sum;
use crate::{Instant, Rng};

mod basic;
mod dad;
mod fast_path;
mod faults;
mod floods;
mod fragments;
mod gso;
mod hostile;
mod left;
mod neighbours;
mod queue;

/// A packet device in memory, for tests.
#[derive(Debug)]
pub(super) struct Nic {
    info: Info,
    pub(super) inbox: VecDeque<(Vec<u8>, RxOffload)>,
    burst: Vec<(Vec<u8>, RxOffload)>,
    pub(super) sent: Vec<(Vec<u8>, Offload)>,
    /// True if the test's device has no room for frames to send.
    pub(super) full: bool,
    /// True if the test's device leaves the ends of long frames.
    pub(super) leaves: bool,
}

impl Nic {
    pub(super) fn new(last: u8, mtu: usize) -> Self {
        let info = Info::without_offloads(mac(last), mtu);
        let (inbox, burst, sent) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { info, inbox, burst, sent, full: false, leaves: false }
    }
}

impl Device for Nic {
    fn recv_burst(&mut self) -> usize {
        self.burst.clear();
        self.burst.extend(self.inbox.drain(..self.inbox.len().min(BURST)));
        self.burst.len()
    }

    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        let (frame, offload) = &self.burst[i];
        match frame.split_at_checked(LEFT_HEAD) {
            Some((head, end)) if self.leaves => {
                (head, RxOffload { left: end.len() as u16, ..*offload })
            }
            _ => (frame, *offload),
        }
    }

    fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.burst[i].0[range]);
    }

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        if self.full {
            return Sent::Full;
        }
        let frame = parts.concat();
        let whole = HEADER + self.info.mtu;
        assert!(frame.len() <= whole || matches!(offload, Offload::Segments { .. }));
        assert!((HEADER..=self.info.max_send).contains(&frame.len()), "{} bytes", frame.len());
        assert!(parts[0].len() >= HEADER);
        self.sent.push((frame, offload));
        Sent::Yes
    }

    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        _: usize,
        offload: Offload,
    ) -> Sent {
        send_concatenated(self, headers, parts, offload)
    }

    fn flush(&mut self) {}

    fn info(&self) -> Info {
        self.info
    }

    fn rx_timestamp_ns(&self, _: usize) -> Option<u64> {
        None
    }

    fn counters(&self, _: &mut dyn FnMut(&'static str, u64)) {}
}

pub(super) const fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, last])
}

pub(super) const fn v4(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 7, 0, last)
}

pub(super) fn at(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(v4(last).into(), port)
}

pub(super) fn static_ipv4(last: u8) -> StackOptions {
    StackOptions {
        ipv4: Ipv4Assignment::Static { addr: v4(last), prefix: 24 },
        ..StackOptions::default()
    }
}

/// Two simulated hosts on a link: 10.7.0.1 and 10.7.0.2, each with a socket on port 7.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) now: Instant,
    pub(super) sockets: [UdpSocket<Nic>; 2],
    pub(super) fault: Fault,
    rng: Rng,
    /// The frames in flight: the time of delivery, the receiving side, the bytes and the receive
    /// offload.
    in_flight: Vec<(Instant, usize, Vec<u8>, RxOffload)>,
    /// All frames that were sent, with the numbers of their senders.
    pub(super) frames: Vec<(usize, Vec<u8>)>,
    /// The datagrams delivered to each side: the sender's address and the payload.
    pub(super) delivered: [Vec<(SocketAddr, Vec<u8>)>; 2],
    /// The number of datagrams of which the device of each side had left the end.
    pub(super) left: [usize; 2],
    pub(super) events: [Vec<StackEvent>; 2],
}

impl Network {
    pub(super) fn new(mtu: usize) -> Self {
        Self::of([1, 2].map(static_ipv4), mtu, Offloads::default(), 1)
    }

    pub(super) fn of(
        options: [StackOptions; 2],
        mtu: usize,
        offloads: Offloads,
        seed: u64,
    ) -> Self {
        let mut rng = Rng::seeded(seed);
        let mut last = 0;
        let sockets = options.map(|options| {
            last += 1;
            let mut nic = Nic::new(last, mtu);
            nic.info.offloads = offloads;
            if offloads.udp_segments {
                nic.info.max_send = crate::device::MAX_FRAME;
            }
            UdpSocket::new(Interface::new(options, nic, rng.fork()), 7, false).unwrap()
        });
        Self {
            now: Instant::from_ns(SECOND),
            sockets,
            fault: Fault::default(),
            rng,
            in_flight: Vec::new(),
            frames: Vec::new(),
            delivered: Default::default(),
            left: [0; 2],
            events: Default::default(),
        }
    }

    /// Returns the IP stack of one of the test's two hosts.
    pub(super) fn stack(&self, side: usize) -> &Stack {
        self.sockets[side].interface().stack()
    }

    pub(super) fn send(&mut self, side: usize, to: SocketAddr, bytes: &[u8]) -> Sent {
        self.sockets[side].interface_mut().set_now(self.now);
        let (a, b) = bytes.split_at(bytes.len() / 3);
        let sent = self.sockets[side].send(Addr::Net(to), &[a, b]);
        self.sockets[side].flush();
        sent
    }

    /// Sends an echo request from a side and returns its sequence number.
    pub(super) fn ping(&mut self, side: usize, to: IpAddr, len: usize) -> Result<u16, PingError> {
        self.sockets[side].interface_mut().stack_mut().ping(self.now, to, len)
    }

    /// Adds a frame to the device of one host of the test, as if the other host had sent it.
    pub(super) fn inject(&mut self, side: usize, frame: Vec<u8>) {
        self.sockets[side]
            .interface_mut()
            .device_mut()
            .inbox
            .push_back((frame, RxOffload::default()));
    }

    /// Runs both hosts of the test once at the current time: each receives the frames that are due,
    /// handles its timers and sends.
    pub(super) fn step(&mut self) {
        for side in 0..2 {
            let now = self.now;
            let due = self.in_flight.extract_if(.., |(at, to, ..)| *to == side && *at <= now);
            let socket = &mut self.sockets[side];
            socket
                .interface_mut()
                .device_mut()
                .inbox
                .extend(due.map(|(_, _, frame, offload)| (frame, offload)));
            socket.interface_mut().set_now(now);
            while socket.recv_burst() > 0 || !socket.interface().device().inbox.is_empty() {
                for i in 0..socket.interface().stack().burst.len() {
                    let (from, bytes) = socket.datagram(i);
                    let Addr::Net(from) = from else { continue };
                    let mut bytes = bytes.to_vec();
                    if let Some(left) = socket.left(i) {
                        assert!(bytes.is_empty());
                        bytes.extend_from_slice(left.head);
                        socket.append_left(i, left.head.len(), &mut bytes);
                        assert_eq!(bytes.len(), left.len);
                        self.left[side] += 1;
                    }
                    self.delivered[side].push((from, bytes));
                }
            }
            if socket.interface().deadline().is_some_and(|due| due <= now) {
                socket.interface_mut().tick(now);
            }
            socket.flush();
            self.events[side].extend(core::iter::from_fn(|| socket.interface_mut().event()));
            for (frame, offload) in core::mem::take(&mut socket.interface_mut().device_mut().sent) {
                self.transmit(side, frame, offload);
            }
        }
    }

    /// Puts the copies of a sent frame in flight: none, one or two, as the faults say.
    fn transmit(&mut self, side: usize, mut frame: Vec<u8>, offload: Offload) {
        let offload = apply(&mut frame, offload);
        self.frames.push((side, frame.clone()));
        let fate = self.fault.fate(&mut self.rng, frame.len());
        for copy in 0..usize::from(fate.copies) {
            let mut frame = frame.clone();
            if copy == 0 {
                fate.flip_bit.into_iter().for_each(|bit| frame[bit / 8] ^= 1 << (bit % 8));
                fate.cut_to.into_iter().for_each(|len| frame.truncate(len));
            }
            let due = self.now.after(US + fate.delay_ns[copy]);
            self.in_flight.push((due, 1 - side, frame, offload));
        }
    }

    /// Runs both sides for `ns` nanoseconds, from one due frame or timer to the next.
    pub(super) fn run_for(&mut self, ns: u64) {
        let end = self.now.after(ns);
        loop {
            self.step();
            let frames = self.in_flight.iter().map(|(due, ..)| *due).min();
            let timers = self.sockets.iter().filter_map(|s| s.interface().deadline()).min();
            let next = frames.into_iter().chain(timers).min().unwrap_or(Instant::NEVER);
            if next > end {
                break;
            }
            self.now = next.max(self.now.after(1));
        }
        self.now = end;
        self.step();
    }
}

/// Computes the checksum that a sent frame's offload requests. Segments stay coalesced, as between
/// two virtual interfaces of one machine.
fn apply(frame: &mut [u8], offload: Offload) -> RxOffload {
    let (start, offset, segment_size) = match offload {
        Offload::None => return RxOffload::default(),
        Offload::Checksum { start, offset } => (start, offset, 0),
        Offload::Segments { kind, start, mss, .. } => (start, kind.checksum_at(), mss),
    };
    let (start, at) = (usize::from(start), usize::from(start + offset));
    let checksum = Sum::new().bytes(&frame[start..]).checksum();
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    RxOffload { checksum_valid: false, segment_size, left: 0 }
}

/// Returns the value of a counter of the stack. `name` lacks the prefix `ip_`.
fn counted(stack: &Stack, name: &str) -> u64 {
    let mut found = None;
    stack.counters().each(&mut |n, count| {
        if n.strip_prefix("ip_") == Some(name) {
            found = Some(count);
        }
    });
    found.unwrap()
}

/// Builds a frame with an IPv4 packet from the MAC address of host 2 to that of host 1.
pub(super) fn ip_frame(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, upper: &[u8]) -> Vec<u8> {
    use crate::wire::ethernet::{Ethernet, IPV4};
    let header = crate::wire::ipv4::Ipv4 { protocol, ..ip::output::udp4_header(from, to) };
    let ethernet = Ethernet { to: mac(1), from: mac(2), kind: IPV4 };
    [&ethernet.emit()[..], &header.emit(upper.len()), upper].concat()
}
