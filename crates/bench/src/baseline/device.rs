//! Baselines of packet devices: a frame there and back, and frames one way, without a stack.
//!
//! The frames are UDP datagrams, so that a device's offloads have work. The receiver reads only the
//! number of a ping.

use std::io;
use std::net::Ipv4Addr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat_proto::device::{Device as _, HEADER, Mac, Offload, Segmentation, Sent};
use sprat_proto::wire::ethernet::{self, Ethernet};
use sprat_proto::wire::ipv4::{self, Ecn, Ipv4};
use sprat_proto::wire::udp::{self, Udp};

use super::{Flow, Limits, between, sample};
use sprat::internals::device::{AnyNic, Nic as _};
use sprat_sys::clock::Clock;
use sprat_sys::cpu::{Idle, Rest};

/// A function that opens the packet device of one end of a baseline. The process of that end calls
/// it.
pub type Open<'o> = Box<dyn FnOnce() -> io::Result<AnyNic> + Send + 'o>;

/// Bytes of the Ethernet, IPv4 and UDP headers before the payload of a datagram.
pub const HEADERS: usize = HEADER + ipv4::HEADER + udp::HEADER;
/// Time after which a frame counts as lost, and the sender sends another one.
const LOST_NS: u64 = 200_000_000;
/// The longest sleep of an end that waits for frames. A device that comes up with its peer wakes no
/// sleeper, so the end polls it at least this often.
const MAX_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// Segments of the largest frame that the baseline gives the device to cut: older kernels accept no
/// more.
const MOST_SEGMENTS: usize = 64;
/// Bytes of the receiver's buffer, as many as a long message has. The stream of the baseline
/// overwrites the buffer again and again.
const OWN: usize = 1 << 20;
/// Source and destination port of the baseline's datagrams.
const PORT: u16 = 7;

/// One end of the baseline: a packet device, and the way in which its process waits for frames.
struct End {
    nic: AnyNic,
    idle: Idle,
    clock: Clock,
    /// Ethernet address of the other end. It is the broadcast address until a received frame shows
    /// the peer's own.
    peer: Mac,
}

impl End {
    fn open(open: Open<'_>) -> io::Result<Self> {
        Ok(Self { nic: open()?, idle: Idle::new(), clock: Clock::new(), peer: Mac::BROADCAST })
    }

    /// Returns the Ethernet, IPv4 and UDP headers of a datagram with `payload` bytes.
    fn headers(&self, payload: usize) -> [u8; HEADERS] {
        let (from, to) = (Ipv4Addr::new(10, 83, 0, 250), Ipv4Addr::new(10, 83, 0, 251));
        let ip = Ipv4 {
            dscp: 0,
            ecn: Ecn::NotEct,
            dont_fragment: true,
            more: false,
            offset: 0,
            ident: 0,
            ttl: 64,
            protocol: ipv4::UDP,
            from,
            to,
        };
        let kind = ethernet::IPV4;
        let sum = ip.pseudo(udp::HEADER + payload).folded();
        let udp = Udp { from: PORT, to: PORT, checksum: sum };
        let mut headers = [0; HEADERS];
        let (ethernet, rest) = headers.split_at_mut(HEADER);
        ethernet
            .copy_from_slice(&Ethernet { to: self.peer, from: self.nic.info().mac, kind }.emit());
        rest[..ipv4::HEADER].copy_from_slice(&ip.emit(udp::HEADER + payload));
        rest[ipv4::HEADER..].copy_from_slice(&udp.emit(payload));
        headers
    }

    /// Waits until the device has room, and then sends a frame.
    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> io::Result<()> {
        loop {
            match self.nic.send(parts, offload) {
                Sent::Yes => return Ok(()),
                Sent::Full => {
                    self.nic.flush();
                    self.nic.recv_burst();
                    // The other side makes room by receiving, which wakes no sleeper.
                    self.idle.rest(true, || self.clock.now());
                }
                Sent::Gone => return Err(super::ended()),
            }
        }
    }

    /// Receives one burst of frames and calls `each` with the payload of each datagram of the
    /// baseline. Returns false if none arrived before [`LOST_NS`] had passed.
    fn receive(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        let mut first = None;
        loop {
            let mut ours = 0;
            for i in 0..self.nic.recv_burst() {
                let (frame, _) = self.nic.frame(i);
                if frame.len() < HEADERS
                    || frame[12..14] != ethernet::IPV4.to_be_bytes()
                    || frame[37] != PORT as u8
                {
                    continue;
                }
                if self.peer == Mac::BROADCAST {
                    self.peer = Mac([frame[6], frame[7], frame[8], frame[9], frame[10], frame[11]]);
                }
                ours += 1;
                each(&frame[HEADERS..]);
            }
            if ours > 0 {
                self.idle.worked();
                return Ok(true);
            }
            let mut now = None;
            let rest = self.idle.rest(true, || *now.insert(self.clock.now()));
            if rest == Rest::Sleep {
                if self.nic.arm() {
                    poll(
                        &mut [PollFd::from_borrowed_fd(self.nic.fd(), PollFlags::IN)],
                        Some(&MAX_SLEEP),
                    )?;
                }
                self.nic.disarm();
            }
            if let Some(now) = now
                && now.since(*first.get_or_insert(now)) > LOST_NS
            {
                return Ok(false);
            }
        }
    }
}

/// Measures round trips of a frame whose datagram has `payload` bytes, at least 8.
///
/// # Errors
/// A device cannot be opened, or vanishes.
pub fn device(open: [Open<'_>; 2], payload: usize, limits: Limits) -> io::Result<Vec<u32>> {
    let payload = payload.max(8);
    let [here, there] = open;
    let echo = move || {
        let (mut end, mut pongs) = (End::open(there)?, Vec::new());
        loop {
            pongs.clear();
            end.receive(|ping| {
                pongs.push(u64::from_be_bytes(ping[..8].try_into().unwrap_or_default()))
            })?;
            for number in &pongs {
                let (headers, rest) = (end.headers(payload), vec![2; payload - 8]);
                end.send(&[&headers, &number.to_be_bytes(), &rest], Offload::None)?;
            }
            end.nic.flush();
        }
    };
    let measure = move || {
        let (mut end, rest) = (End::open(here)?, vec![1; payload - 8]);
        let mut number = 0_u64;
        sample(limits, || {
            number += 1;
            let mut back = false;
            while !back {
                let headers = end.headers(payload);
                end.send(&[&headers, &number.to_be_bytes(), &rest], Offload::None)?;
                end.nic.flush();
                while !back && end.receive(|pong| back |= pong[..8] == number.to_be_bytes())? {}
            }
            Ok(())
        })
    };
    between(echo, measure)
}

/// Measures frames one way at full rate, each as large as the device takes them. The receiver
/// copies the payload to memory of its own, as the kernel does for a socket. A frame that finds no
/// room is lost and does not count.
///
/// # Errors
/// A device cannot be opened, or vanishes.
pub fn device_stream(open: [Open<'_>; 2], limits: Limits) -> io::Result<Flow> {
    let [here, there] = open;
    let send = move || {
        let mut end = End::open(there)?;
        let info = end.nic.info();
        let mss = info.mtu - (HEADERS - HEADER);
        let (payload, offload) = if info.offloads.udp_segments {
            let segments = ((info.max_send - HEADERS) / mss).clamp(1, MOST_SEGMENTS);
            let (start, header) = ((HEADER + ipv4::HEADER) as u16, HEADERS as u16);
            let kind = Segmentation::Udp;
            (segments * mss, Offload::Segments { kind, start, header, mss: mss as u16 })
        } else {
            (mss, Offload::None)
        };
        // The first frame of the other end has its address.
        while !end.receive(|_| ())? {}
        let (headers, bytes) = (end.headers(payload), vec![1; payload]);
        loop {
            end.send(&[&headers, &bytes], offload)?;
        }
    };
    let receive = move || {
        let mut end = End::open(here)?;
        let mut bytes = 0;
        while bytes == 0 {
            let headers = end.headers(8);
            end.send(&[&headers, &[0; 8]], Offload::None)?;
            end.nic.flush();
            end.receive(|payload| bytes += payload.len() as u64)?;
        }
        let (start, mut flow) = (end.clock.now(), Flow { bytes: 0, ns: 0 });
        let mut own = Vec::with_capacity(OWN);
        for _ in 0..limits.count {
            end.receive(|payload| {
                if own.len() + payload.len() > OWN {
                    std::hint::black_box(&own);
                    own.clear();
                }
                own.extend_from_slice(payload);
                flow.bytes += payload.len() as u64;
            })?;
            flow.ns = end.clock.now().since(start);
            if flow.ns >= limits.time_ns {
                break;
            }
        }
        Ok(flow)
    };
    between(send, receive)
}
