//! Tests of the IP layer: two stacks, or a stack and a script, over devices in memory, in virtual time.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::*;
use crate::datagrams::{Addr, Datagrams};
use crate::device::{
    BURST, Device, HEADER, Headers, Info, Offload, Offloads, RxOffload, Sent, send_concatenated,
};
use crate::fault::Fault;
use crate::time::{MS, SECOND, US};
use crate::wire::checksum::Sum;
use crate::{Instant, Rng};

mod basic;
#[path = "dad.rs"]
mod claims;
mod faults;
mod floods;
mod fragments;
mod hostile;
mod neighbours;
#[path = "fast_path.rs"]
mod short;

/// A device in memory.
#[derive(Debug)]
pub(super) struct Nic {
    info: Info,
    inbox: VecDeque<(Vec<u8>, RxOffload)>,
    burst: Vec<(Vec<u8>, RxOffload)>,
    pub(super) sent: Vec<(Vec<u8>, Offload)>,
    pub(super) full: bool,
}

impl Nic {
    fn new(last: u8, mtu: usize) -> Self {
        let info = Info::without_offloads(mac(last), mtu);
        Self { info, inbox: VecDeque::new(), burst: Vec::new(), sent: Vec::new(), full: false }
    }
}

impl Device for Nic {
    fn recv_burst(&mut self) -> usize {
        self.burst.clear();
        self.burst.extend(self.inbox.drain(..self.inbox.len().min(BURST)));
        self.burst.len()
    }

    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        (&self.burst[i].0, self.burst[i].1)
    }

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        if self.full {
            return Sent::Full;
        }
        let frame = parts.concat();
        let whole = HEADER + self.info.mtu;
        assert!(frame.len() <= whole || matches!(offload, Offload::Segments { .. }));
        assert!((HEADER..=self.info.max_send).contains(&frame.len()), "{} octets", frame.len());
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

pub(super) fn fixed(last: u8) -> Config {
    Config { v4: V4::Fixed { addr: v4(last), prefix: 24 }, ..Config::default() }
}

/// Two hosts on a link: 10.7.0.1 and 10.7.0.2, each with port 7.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) now: Instant,
    pub(super) ports: [Port<Nic>; 2],
    pub(super) fault: Fault,
    rng: Rng,
    /// Frames on their way, by arrival.
    wire: Vec<(Instant, usize, Vec<u8>, RxOffload)>,
    /// All frames that went over the wire.
    pub(super) seen: Vec<(usize, Vec<u8>)>,
    /// Datagrams that arrived.
    pub(super) got: [Vec<(SocketAddr, Vec<u8>)>; 2],
    pub(super) events: [Vec<Event>; 2],
}

impl Link {
    pub(super) fn new(mtu: usize) -> Self {
        Self::of([1, 2].map(fixed), mtu, Offloads::default(), 1)
    }

    pub(super) fn of(configs: [Config; 2], mtu: usize, offloads: Offloads, seed: u64) -> Self {
        let mut rng = Rng::seeded(seed);
        let mut last = 0;
        let ports = configs.map(|config| {
            last += 1;
            let mut nic = Nic::new(last, mtu);
            nic.info.offloads = offloads;
            if offloads.udp_segments {
                nic.info.max_send = crate::device::MAX_FRAME;
            }
            Port::new(config, nic, 7, false, rng.fork()).unwrap()
        });
        let fault = Fault::default();
        let now = Instant::from_ns(SECOND);
        let (wire, seen, got, events) =
            (Vec::new(), Vec::new(), Default::default(), Default::default());
        Self { now, ports, fault, rng, wire, seen, got, events }
    }

    pub(super) fn send(&mut self, side: usize, to: SocketAddr, bytes: &[u8]) -> Sent {
        self.ports[side].turn(self.now);
        let (a, b) = bytes.split_at(bytes.len() / 3);
        let sent = self.ports[side].send(Addr::Net(to), &[a, b]);
        self.ports[side].flush();
        sent
    }

    /// Hands a frame to a side, as if it came by the wire.
    pub(super) fn inject(&mut self, side: usize, frame: Vec<u8>) {
        self.ports[side].device_mut().inbox.push_back((frame, RxOffload::default()));
    }

    /// Both sides take what is there, and what they send goes on its way.
    pub(super) fn turn(&mut self) {
        for side in 0..2 {
            let mut i = 0;
            while i < self.wire.len() {
                let (due, to, ..) = self.wire[i];
                if to == side && due <= self.now {
                    let (_, _, frame, arrival) = self.wire.remove(i);
                    self.ports[side].device_mut().inbox.push_back((frame, arrival));
                } else {
                    i += 1;
                }
            }
            let port = &mut self.ports[side];
            port.turn(self.now);
            while port.recv_burst() > 0 || !port.device().inbox.is_empty() {
                for i in 0..port.stack().items.len() {
                    let (from, bytes) = port.datagram(i);
                    let Addr::Net(from) = from else { continue };
                    self.got[side].push((from, bytes.to_vec()));
                }
            }
            if port.deadline().is_some_and(|due| due <= self.now) {
                port.tick(self.now);
            }
            port.flush();
            self.events[side].extend(core::iter::from_fn(|| port.event()));
            for (mut frame, offload) in core::mem::take(&mut port.device_mut().sent) {
                let arrival = finish(&mut frame, offload);
                self.seen.push((side, frame.clone()));
                let fate = self.fault.fate(&mut self.rng, frame.len());
                for copy in 0..usize::from(fate.copies) {
                    let mut frame = frame.clone();
                    if copy == 0 {
                        fate.flip_bit.into_iter().for_each(|bit| frame[bit / 8] ^= 1 << (bit % 8));
                        fate.cut_to.into_iter().for_each(|len| frame.truncate(len));
                    }
                    self.wire.push((
                        self.now.after(US + fate.delay_ns[copy]),
                        1 - side,
                        frame,
                        arrival,
                    ));
                }
            }
        }
    }

    /// Lets so much time pass, in turns of whatever is due.
    pub(super) fn pass(&mut self, ns: u64) {
        let end = self.now.after(ns);
        loop {
            self.turn();
            let wire = self.wire.iter().map(|(due, ..)| *due).min();
            let timers = self.ports.iter().filter_map(Port::deadline).min();
            let next = wire.into_iter().chain(timers).min().unwrap_or(Instant::NEVER);
            if next > end {
                break;
            }
            self.now = next.max(self.now.after(1));
        }
        self.now = end;
        self.turn();
    }
}

/// What a device does by itself: the checksum. Segments stay joined, as on a pair of interfaces within one machine.
fn finish(frame: &mut [u8], offload: Offload) -> RxOffload {
    let (start, offset, segment) = match offload {
        Offload::None => return RxOffload::default(),
        Offload::Checksum { start, offset } => (start, offset, 0),
        Offload::Segments { kind, start, mss, .. } => (start, kind.checksum_at(), mss),
    };
    let (start, at) = (usize::from(start), usize::from(start + offset));
    let checksum = Sum::new().bytes(&frame[start..]).checksum();
    let checksum = if checksum == 0 { 0xffff } else { checksum };
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    RxOffload { checksum_valid: false, segment_size: segment }
}

fn counted(stack: &Stack, name: &str) -> u64 {
    let mut found = None;
    stack.stats().each(&mut |n, count| {
        if n.strip_prefix("ip_") == Some(name) {
            found = Some(count);
        }
    });
    found.unwrap()
}
