//! The network between the hosts of a TCP world: Ethernet frames through links with a rate and a
//! queue, and a middle that loses, doubles, delays, damages and marks them.
//!
//! ```text
//!  host ─► faults ─► switch, or router with an MTU ─► queue of a host's link ─► delay ─► host
//! ```
//!
//! Always: a frame that is damaged is damaged in its IP packet, for no checksum covers the rest.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::IpAddr;

use sprat_proto::device::HEADER;
use sprat_proto::fault::Fault;
use sprat_proto::time::SECOND;
use sprat_proto::wire::checksum::Sum;
use sprat_proto::wire::ethernet::{self, Ethernet};
use sprat_proto::wire::icmp::Icmp;
use sprat_proto::wire::icmpv6::Icmpv6;
use sprat_proto::wire::ipv4::{self, Ecn, Ipv4};
use sprat_proto::wire::ipv6::{self, Ipv6};
use sprat_proto::wire::tcp::Tcp;
use sprat_proto::{Instant, Rng};
use sprat_sim::queue::Queue;

use super::edges::Edges;
use super::host::{ROUTER, ROUTER4, ROUTER6, mac};
use super::liar::lies;

/// The most segments that a failure shows.
const LOGGED: usize = 60;
/// The bytes of the shortest frame.
const LEAST_FRAME: usize = 60;
/// The bytes of a packet that a router's error quotes.
const QUOTED: usize = 500;
/// The lowest two bits of IPv4's service and IPv6's traffic class: congestion experienced.
const MARK: u8 = 3;

/// A router between all hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Router {
    /// The times at which the largest packet that the router forwards changes, and its bytes.
    pub(crate) mtus: Vec<(Instant, usize)>,
    /// True if the router does not report packets that are too big: a black hole.
    pub(crate) is_silent: bool,
}

/// The properties of the network between the hosts.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) delay_ns: u64,
    pub(crate) jitter_ns: u64,
    pub(crate) fault: Fault,
    /// The bytes a second of each host's link, and the bytes that wait before it at most.
    pub(crate) rate: u64,
    pub(crate) queue: u64,
    /// Packets that can be marked are marked if more bytes than these wait before the link.
    pub(crate) mark_above: u64,
    /// The probability, in parts per million, that another packet is marked.
    pub(crate) mark_ppm: u32,
    pub(crate) router: Option<Router>,
    /// The host whose segments lie.
    pub(crate) liar: Option<usize>,
    /// The host whose TCP is not ours.
    pub(crate) foreign: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            delay_ns: 100_000,
            jitter_ns: 0,
            fault: Fault::default(),
            rate: 1 << 40,
            queue: 1 << 40,
            mark_above: 1 << 40,
            mark_ppm: 0,
            router: None,
            liar: None,
            foreign: None,
        }
    }
}

/// The number of frames that something happened to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Frames lost since the queue of a link was full.
    pub(crate) overflowed: u64,
    pub(crate) damaged: u64,
    pub(crate) marked: u64,
    /// Packets that were too big for the router.
    pub(crate) too_big: u64,
}

/// The network between the hosts.
pub(crate) struct Network {
    pub(crate) options: Options,
    pub(crate) count: Count,
    rng: Rng,
    /// The time at which the link of each host is free.
    busy: Vec<Instant>,
    in_flight: Queue<(usize, Vec<u8>)>,
    log: VecDeque<(Instant, usize, Vec<u8>)>,
    edges: Edges,
}

impl Network {
    pub(crate) fn new(options: Options, hosts: usize, rng: Rng) -> Self {
        let busy = vec![Instant::ZERO; hosts];
        let (in_flight, log) = (Queue::default(), VecDeque::new());
        let (count, edges) = (Count::default(), Edges::default());
        Self { options, count, rng, busy, in_flight, log, edges }
    }

    /// Returns the time of the next delivery.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.in_flight.next()
    }

    /// Returns the next frame that arrives by `now`, and its host.
    pub(crate) fn deliver(&mut self, now: Instant) -> Option<(usize, Vec<u8>)> {
        if self.next()? > now {
            return None;
        }
        self.in_flight.pop().map(|(_, arrived)| arrived)
    }

    /// Takes a frame that a host sends.
    pub(crate) fn transmit(&mut self, now: Instant, from: usize, frame: Vec<u8>) {
        if self.options.foreign != Some(from) {
            self.edges.check(&frame);
        }
        if self.options.liar != Some(from) {
            return self.carry(now, from, frame);
        }
        for frame in lies(&mut self.rng, &frame) {
            self.carry(now, from, frame);
        }
    }

    /// Lets a frame suffer what the network does to it.
    fn carry(&mut self, now: Instant, from: usize, mut frame: Vec<u8>) {
        self.count.sent += 1;
        // As on a wire. What a router sends is shorter, and hosts take that too.
        frame.resize(frame.len().max(LEAST_FRAME), 0);
        self.remember(now, from, &frame);
        let fate = self.options.fault.fate(&mut self.rng, frame.len());
        self.count.lost += u64::from(fate.copies == 0);
        let is_ip = Ethernet::parse(&frame)
            .is_some_and(|(e, _)| matches!(e.kind, ethernet::IPV4 | ethernet::IPV6));
        for copy in 0..usize::from(fate.copies) {
            let is_last = copy + 1 == usize::from(fate.copies);
            let mut frame = if is_last { std::mem::take(&mut frame) } else { frame.clone() };
            if copy == 0 && is_ip {
                let bit = fate.flip_bit.filter(|bit| *bit >= 8 * HEADER);
                let cut = fate.cut_to.filter(|len| *len >= HEADER);
                bit.into_iter().for_each(|bit| frame[bit / 8] ^= 1 << (bit % 8));
                cut.into_iter().for_each(|len| frame.truncate(len));
                self.count.damaged += u64::from(bit.is_some() || cut.is_some());
            }
            self.forward(now, from, frame, fate.delay_ns[copy]);
        }
    }

    /// Takes a frame to its receivers.
    fn forward(&mut self, now: Instant, from: usize, frame: Vec<u8>, extra_ns: u64) {
        let Some((ethernet, _)) = Ethernet::parse(&frame) else { return };
        if ethernet.to == ROUTER {
            return self.route(now, from, frame, extra_ns);
        }
        for to in 0..self.busy.len() {
            if to != from && (ethernet.to.is_multicast() || ethernet.to == mac(to)) {
                self.queue(now, to, frame.clone(), extra_ns);
            }
        }
    }

    /// Puts a frame into the queue of a host's link.
    fn queue(&mut self, now: Instant, to: usize, mut frame: Vec<u8>, extra_ns: u64) {
        let Options { rate, queue, mark_above, mark_ppm, delay_ns, jitter_ns, .. } = self.options;
        let start = self.busy[to].max(now);
        let queued = (u128::from(start.since(now)) * u128::from(rate) / u128::from(SECOND)) as u64;
        if queued > queue {
            self.count.overflowed += 1;
            return;
        }
        let is_marked = queued > mark_above || mark_ppm > 0 && self.rng.chance(mark_ppm);
        if is_marked && mark(&mut frame) {
            self.count.marked += 1;
        }
        let free = start.after(frame.len() as u64 * SECOND / rate);
        self.busy[to] = free;
        let jitter = self.rng.below(jitter_ns + 1);
        self.in_flight.push(free.after(delay_ns + jitter + extra_ns), (to, frame));
    }

    /// Forwards a packet by its IP address, or reports that it is too big.
    fn route(&mut self, now: Instant, from: usize, mut frame: Vec<u8>, extra_ns: u64) {
        let Some(router) = &self.options.router else { return };
        let packet = &frame[HEADER..];
        let Some(to) = destination(packet) else { return };
        let mtu = router.mtus.iter().rev().find(|(at, _)| *at <= now).map_or(65_535, |(_, m)| *m);
        // RFC 8200 5: each link carries that much of IPv6.
        let mtu = if to.is_ipv6() { mtu.max(1280) } else { mtu };
        if packet.len() > mtu {
            self.count.too_big += 1;
            let report = if router.is_silent { None } else { too_big(packet, mtu) };
            if let Some(report) = report {
                self.queue(now, from, addressed(from, &report), 0);
            }
            return;
        }
        let Some(to) = super::host::number(to).filter(|to| *to < self.busy.len()) else { return };
        frame[..6].copy_from_slice(&mac(to).0);
        frame[6..12].copy_from_slice(&ROUTER.0);
        self.queue(now, to, frame, extra_ns);
    }

    fn remember(&mut self, now: Instant, from: usize, frame: &[u8]) {
        if self.log.len() == LOGGED {
            self.log.pop_front();
        }
        self.log.push_back((now, from, frame[..frame.len().min(HEADER + 100)].to_vec()));
    }

    /// Returns the last segments that were sent, as text.
    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        for (at, from, frame) in &self.log {
            let v6 = frame[12..14] == ethernet::IPV6.to_be_bytes();
            let start = HEADER + if v6 { ipv6::HEADER } else { ipv4::HEADER };
            let total = match (v6, frame.get(HEADER..start)) {
                (true, Some(ip)) => usize::from(u16::from_be_bytes([ip[4], ip[5]])),
                (false, Some(ip)) => usize::from(u16::from_be_bytes([ip[2], ip[3]])) - 20,
                (_, None) => 0,
            };
            let _ = match frame.get(start..).and_then(|segment| Tcp::parse(segment).ok()) {
                Some((tcp, _)) => {
                    let Tcp { from: a, to: b, seq, ack, flags, window, options, .. } = tcp;
                    let (flags, sack) = (flags.0, options.sack.as_slice());
                    let _ = write!(text, "{at:?} {from} {a}>{b} {flags:02x} {seq} ({total}) {ack}");
                    writeln!(text, " w {window} {sack:?}")
                }
                None => writeln!(text, "{at:?} {from} {:02x?}", &frame[..frame.len().min(60)]),
            };
        }
        text
    }
}

/// Returns the destination of an IP packet whose header is sound.
fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Ipv4::parse(packet).ok().map(|(header, _)| header.to.into()),
        _ => Ipv6::parse(packet).ok().map(|(header, _)| header.to.into()),
    }
}

/// Returns a frame of the router to a host.
fn addressed(to: usize, packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 { ethernet::IPV4 } else { ethernet::IPV6 };
    [&Ethernet { to: mac(to), from: ROUTER, kind }.emit()[..], packet].concat()
}

/// Returns the packet by which a router reports that another one is too big for a link.
fn too_big(packet: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let quoted = &packet[..packet.len().min(QUOTED)];
    if packet[0] >> 4 == 4 {
        let (header, _) = Ipv4::parse(packet).ok().filter(|(header, _)| header.dont_fragment)?;
        let message = [&Icmp::TooBig { mtu: mtu as u16 }.emit(quoted)[..], quoted].concat();
        let ip = Ipv4 { protocol: ipv4::ICMP, from: ROUTER4, to: header.from, ..header };
        return Some([&ip.emit(message.len())[..], &message].concat());
    }
    let (header, _) = Ipv6::parse(packet).ok()?;
    let (next, from, to) = (ipv6::ICMPV6, ROUTER6, header.from);
    let ip = Ipv6 { dscp: 0, ecn: Ecn::NotEct, next, hops: 64, from, to };
    let message = Icmpv6::TooBig { mtu: mtu as u32 }.emit(&ip, quoted);
    Some([&ip.emit(message.len())[..], &message].concat())
}

/// Marks the packet in a frame, if its sender understands marks. Returns true if it does.
fn mark(frame: &mut [u8]) -> bool {
    let Some((ethernet, packet)) = Ethernet::parse(frame) else { return false };
    let len = packet.len();
    match ethernet.kind {
        ethernet::IPV4 if len >= ipv4::HEADER && frame[HEADER + 1] & MARK != 0 => {
            frame[HEADER + 1] |= MARK;
            frame[HEADER + 10..HEADER + 12].fill(0);
            let sum = Sum::new().bytes(&frame[HEADER..HEADER + ipv4::HEADER]).checksum();
            frame[HEADER + 10..HEADER + 12].copy_from_slice(&sum.to_be_bytes());
            true
        }
        ethernet::IPV6 if len >= ipv6::HEADER && frame[HEADER + 1] & MARK << 4 != 0 => {
            frame[HEADER + 1] |= MARK << 4;
            true
        }
        _ => false,
    }
}
