//! Fuzzes the IP stack: whatever frames arrive, in whatever order and time, nothing panics,
//! datagrams pass again in the end, and the state stays within its limits.
//!
//! The input is a script: frames of the fuzzer's own, with checksums corrected or not, frames of a
//! real conversation changed, datagrams and echo requests of the two stacks, and time.

#![no_main]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use sprat_fuzz::two_hosts::{MACS, Nic, v4};
use sprat_proto::datagrams::{Addr, Datagrams};
use sprat_proto::device::{HEADER, Info, MAX_FRAME, RxOffload};
use sprat_proto::net::{Interface, Ipv4Assignment, StackOptions, UdpSocket};
use sprat_proto::time::MS;
use sprat_proto::wire::checksum::Sum;
use sprat_proto::wire::ipv6;
use sprat_proto::{Instant, Rng};

/// The number of frames that the fuzzer remembers, to change and send them again.
const SEEN: usize = 64;

struct World {
    now: Instant,
    ports: [UdpSocket<Nic>; 2],
    seen: VecDeque<(usize, Vec<u8>)>,
    got: [usize; 2],
}

impl World {
    fn new() -> Self {
        let mut rng = Rng::seeded(1);
        let ports = [0, 1].map(|side| {
            let nic = Nic::new(Info::without_offloads(MACS[side], 1500));
            let options = StackOptions {
                ipv4: Ipv4Assignment::Static { addr: v4(side), prefix: 24 },
                ..StackOptions::default()
            };
            UdpSocket::new(Interface::new(options, nic, rng.fork()), 7, false)
                .expect("the port is free")
        });
        Self { now: Instant::from_ns(1), ports, seen: VecDeque::new(), got: [0; 2] }
    }

    fn turn(&mut self) {
        for side in 0..2 {
            let port = &mut self.ports[side];
            port.interface_mut().set_now(self.now);
            loop {
                let n = port.recv_burst();
                (0..n).for_each(|i| assert!(port.datagram(i).1.len() <= MAX_FRAME));
                self.got[side] += n;
                port.flush();
                if n == 0
                    && port.interface().device().inbox.is_empty()
                    && port.interface().stack().is_idle()
                {
                    break;
                }
            }
            if port.interface().deadline().is_some_and(|due| due <= self.now) {
                port.interface_mut().tick(self.now);
            }
            port.flush();
            while port.interface_mut().event().is_some() {}
            for frame in std::mem::take(&mut port.interface_mut().device_mut().sent) {
                if self.seen.len() == SEEN {
                    self.seen.pop_front();
                }
                self.seen.push_back((1 - side, frame.clone()));
                self.ports[1 - side].interface_mut().device_mut().receive(frame);
            }
        }
    }

    fn send(&mut self, side: usize, v6: bool, len: usize) {
        let ip =
            if v6 { ipv6::link_local(MACS[1 - side]).into() } else { IpAddr::V4(v4(1 - side)) };
        self.ports[side].interface_mut().set_now(self.now);
        self.ports[side].send(Addr::Net(SocketAddr::new(ip, 7)), &[&vec![7; len]]);
        if len % 5 == 4 {
            let _ = self.ports[side].interface_mut().stack_mut().ping(self.now, ip, len);
        }
    }

    fn step(&mut self, op: u8, input: &mut &[u8]) {
        let arg = take(input);
        let (side, len) = (usize::from(op >> 7), usize::from(arg));
        match op % 8 {
            0 => self.send(side, arg & 1 == 1, len * len / 8),
            1 => self.now = self.now.after(u64::from(arg) * u64::from(arg) * MS),
            2..=4 if !self.seen.is_empty() => {
                let (to, mut frame) = self.seen[len % self.seen.len()].clone();
                for _ in 0..op >> 4 & 3 {
                    let at = usize::from(take(input)) % frame.len().min(90);
                    frame[at] = take(input);
                }
                if op & 8 != 0 {
                    mend(&mut frame);
                }
                let segment = if arg > 200 { u16::from(arg) } else { 0 };
                let arrival = RxOffload {
                    checksum_valid: op & 64 != 0,
                    segment_size: segment,
                    ..RxOffload::default()
                };
                self.ports[to].interface_mut().device_mut().inbox.push_back((frame, arrival));
            }
            5 | 6 => {
                let (mine, rest) = input.split_at(len.min(input.len()));
                *input = rest;
                let kind: &[u8] =
                    [&[8, 0], &[0x86, 0xdd], &[8, 6], &[0x80, 0x35]][usize::from(op >> 4 & 3)];
                let mut frame = [&MACS[side].0[..], &MACS[1 - side].0, kind, mine].concat();
                mend(&mut frame);
                self.ports[side]
                    .interface_mut()
                    .device_mut()
                    .inbox
                    .push_back((frame, RxOffload { checksum_valid: true, ..RxOffload::default() }));
            }
            _ => {}
        }
        self.turn();
    }

    /// Ends all input from outside. Datagrams between the two stacks must pass again within some
    /// time, whatever the stacks learned before.
    fn finish(mut self) {
        for v6 in [false, true] {
            let before = self.got[1];
            for _ in 0..200 {
                self.send(0, v6, 100);
                self.now = self.now.after(200 * MS);
                for _ in 0..4 {
                    self.turn();
                }
            }
            assert!(
                self.got[1] > before,
                "nothing passes any more: {:?}",
                self.ports[0].interface().stack().counters()
            );
        }
    }
}

/// Corrects the checksum of a frame's IPv4 header.
fn mend(frame: &mut [u8]) {
    if frame.get(12..14) != Some(&[8, 0]) {
        return;
    }
    let words = usize::from(frame.get(HEADER).copied().unwrap_or(5) & 15);
    let Some(header) = frame.get_mut(HEADER..HEADER + (4 * words).max(12)) else { return };
    header[10..12].fill(0);
    let checksum = Sum::new().bytes(header).checksum();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

fn take(input: &mut &[u8]) -> u8 {
    let Some((&first, rest)) = input.split_first() else { return 0 };
    *input = rest;
    first
}

fuzz_target!(|input: &[u8]| {
    let mut input = input;
    let mut world = World::new();
    while !input.is_empty() {
        let op = take(&mut input);
        world.step(op, &mut input);
    }
    world.finish();
});
