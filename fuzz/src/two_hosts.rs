//! The parts of fuzz targets with two hosts: the script, the device in memory, and the changes
//! that the wire makes to frames.
//!
//! Always: a frame that was cut or edited has the right checksums.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use sprat_proto::device::{
    BURST, Device, HEADER, Headers, Info, Mac, Offload, RxOffload, Segmentation, Sent,
    send_concatenated,
};
use sprat_proto::net::tcp::{CongestionControl, TcpConfig};
use sprat_proto::time::{MS, SECOND, US};
use sprat_proto::wire::checksum::Sum;
use sprat_proto::wire::icmp::Icmp;
use sprat_proto::wire::icmpv6::Icmpv6;
use sprat_proto::wire::ipv4::{self, Ecn, Ipv4};
use sprat_proto::wire::ipv6::{self, Ipv6};

/// The MAC addresses of the hosts.
pub const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

/// The input, which ends with zeros.
pub struct Script<'a>(pub &'a [u8]);

impl Script<'_> {
    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns the next two bytes.
    pub fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Returns what the next byte chooses.
    pub fn choose<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[usize::from(self.byte()) % N]
    }
}

/// A device in memory, which cuts segments if its options say so.
pub struct Nic {
    info: Info,
    /// The frames that have arrived, and what the device reports about each.
    pub inbox: VecDeque<(Vec<u8>, RxOffload)>,
    burst: Vec<(Vec<u8>, RxOffload)>,
    /// The frames that the host has sent.
    pub sent: Vec<Vec<u8>>,
    /// The most frames that the device takes before they are on the wire.
    pub room: usize,
    /// True if the device has refused a frame.
    pub was_full: bool,
}

impl Nic {
    /// Returns a device with these properties.
    #[must_use]
    pub fn new(info: Info) -> Self {
        let (inbox, burst, sent) = (VecDeque::new(), Vec::new(), Vec::new());
        Self { info, inbox, burst, sent, room: usize::MAX, was_full: false }
    }

    /// Adds a frame, about which the device reports nothing, to those that have arrived.
    pub fn receive(&mut self, frame: Vec<u8>) {
        self.inbox.push_back((frame, RxOffload::default()));
    }
}

impl Device for Nic {
    fn recv_burst(&mut self) -> usize {
        self.burst = self.inbox.drain(..self.inbox.len().min(BURST)).collect();
        self.burst.len()
    }

    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        (&self.burst[i].0, self.burst[i].1)
    }

    fn append_left(&self, _: usize, _: Range<usize>, _: &mut Vec<u8>) {}

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        if self.sent.len() >= self.room {
            self.was_full = true;
            return Sent::Full;
        }
        let mut frame = parts.concat();
        assert!((HEADER..=self.info.max_send).contains(&frame.len()));
        match offload {
            Offload::Segments { kind, start, header, mss } => {
                assert!(self.info.offloads.tcp_segments && kind != Segmentation::Udp);
                cut(&frame, start.into(), header.into(), mss.into(), &mut self.sent);
                return Sent::Yes;
            }
            Offload::Checksum { .. } => {
                assert!(self.info.offloads.checksum);
                mend(&mut frame);
            }
            Offload::None => {}
        }
        assert!(frame.len() <= HEADER + self.info.mtu, "{} bytes", frame.len());
        self.sent.push(frame);
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

/// Cuts a frame into segments of `mss` bytes.
fn cut(frame: &[u8], start: usize, header: usize, mss: usize, out: &mut Vec<Vec<u8>>) {
    let data = &frame[header..];
    let count = data.len().div_ceil(mss);
    for (i, piece) in data.chunks(mss).enumerate() {
        let mut segment = [&frame[..header], piece].concat();
        let seq = u32::from_be_bytes(*segment[start + 4..].first_chunk().unwrap());
        let seq = seq.wrapping_add((i * mss) as u32);
        segment[start + 4..start + 8].copy_from_slice(&seq.to_be_bytes());
        segment[start + 13] &= if i + 1 < count { !9 } else { !0 } & if i > 0 { !0x80 } else { !0 };
        set_len(&mut segment);
        mend(&mut segment);
        out.push(segment);
    }
}

/// Returns the offset of the segment in a frame, if it has a TCP header.
fn segment_at(frame: &[u8]) -> Option<usize> {
    let (at, protocol) = match frame.get(HEADER)? >> 4 {
        4 => (HEADER + usize::from(frame[HEADER] & 15) * 4, *frame.get(HEADER + 9)?),
        6 => (HEADER + ipv6::HEADER, *frame.get(HEADER + 6)?),
        _ => return None,
    };
    (protocol == ipv4::TCP && frame.len() >= at + 20 && at >= HEADER + 20).then_some(at)
}

/// Sets the length in the IP header to that of the frame.
fn set_len(frame: &mut [u8]) {
    let len = frame.len() - HEADER;
    let (at, len) = if frame[HEADER] >> 4 == 4 { (2, len) } else { (4, len - ipv6::HEADER) };
    frame[HEADER + at..HEADER + at + 2].copy_from_slice(&(len as u16).to_be_bytes());
}

/// Corrects the checksums of a frame's IPv4 header and of its segment.
fn mend(frame: &mut [u8]) {
    let Some(at) = segment_at(frame) else { return };
    let addresses = if frame[HEADER] >> 4 == 4 {
        frame[HEADER + 10..HEADER + 12].fill(0);
        let checksum = Sum::new().bytes(&frame[HEADER..at]).checksum();
        frame[HEADER + 10..HEADER + 12].copy_from_slice(&checksum.to_be_bytes());
        HEADER + 12..HEADER + 20
    } else {
        HEADER + 8..HEADER + 40
    };
    frame[at + 16..at + 18].fill(0);
    let sum = Sum::new().bytes(&frame[addresses]).word(ipv4::TCP.into());
    let checksum = sum.word((frame.len() - at) as u16).bytes(&frame[at..]).checksum();
    frame[at + 16..at + 18].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns the IPv4 address of a host, or of a router.
pub fn v4(side: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 7, 0, side as u8 + 1)
}

/// Returns the IPv6 address of a host, or of a router.
pub fn v6(side: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd07, 0, 0, 0, 0, 0, 0, side as u16 + 1)
}

/// Marks a packet that may be marked.
pub fn mark(frame: &mut [u8]) {
    let Some(at) = segment_at(frame) else { return };
    if frame[HEADER] >> 4 == 6 && frame[HEADER + 1] & 0x30 != 0 {
        frame[HEADER + 1] |= 0x30;
    } else if frame[HEADER] >> 4 == 4 && frame[HEADER + 1] & 3 != 0 {
        frame[HEADER + 1] |= 3;
        frame[HEADER + 10..HEADER + 12].fill(0);
        let checksum = Sum::new().bytes(&frame[HEADER..at]).checksum();
        frame[HEADER + 10..HEADER + 12].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Changes fields of a segment, and corrects its checksums.
pub fn edit(frame: &mut [u8], script: &mut Script<'_>) {
    let Some(at) = segment_at(frame) else { return };
    let (field, value) = (script.byte(), script.byte());
    let near = |bytes: &mut [u8]| {
        let number = u32::from_be_bytes(*bytes.first_chunk().expect("a number"));
        let by = (value as i8 as i32) << (field >> 4);
        bytes[..4].copy_from_slice(&number.wrapping_add_signed(by).to_be_bytes());
    };
    match field & 15 {
        0..=2 => near(&mut frame[at + 4..at + 8]),
        3..=5 => near(&mut frame[at + 8..at + 12]),
        6 | 7 => frame[at + 13] ^= value,
        8 => frame[at + 13] = value,
        9 => frame[at + 14..at + 16].copy_from_slice(&[value, script.byte()]),
        10 => frame[HEADER + 1] ^= value & 0x33,
        11 => frame[at + 12] = value,
        12 if frame.len() >= at + 32 => near(&mut frame[at + 24..at + 28]),
        _ => {
            // The options, or the data.
            let place = at + 20 + usize::from(value) % 60;
            frame.iter_mut().skip(place).take(1).for_each(|b| *b = script.byte());
        }
    }
    mend(frame);
}

/// Puts the data of another frame behind the header of this one.
pub fn join(frame: &mut Vec<u8>, other: &[u8]) {
    let (Some(at), Some(other_at)) = (segment_at(frame), segment_at(other)) else { return };
    let data = |frame: &[u8], at: usize| at + usize::from(frame[at + 12] >> 4) * 4;
    let (start, other_start) = (data(frame, at), data(other, other_at));
    frame.truncate(start);
    frame.extend_from_slice(other.get(other_start..).unwrap_or_default());
    set_len(frame);
    mend(frame);
}

/// Returns an ICMP error about a frame, for the host that has sent it.
pub fn icmp(side: usize, frame: &[u8], script: &mut Script<'_>) -> Option<Vec<u8>> {
    let (kind, mtu) = (script.byte(), script.word());
    let quoted = &frame[HEADER..frame.len().min(HEADER + 100)];
    let mut bytes = [MACS[side].0, MACS[1 - side].0].concat();
    bytes.extend_from_slice(&frame[12..14]);
    if quoted.first()? >> 4 == 4 {
        let message = match kind % 4 {
            0 => Icmp::PortUnreachable,
            1 => Icmp::Unreachable { code: kind >> 2 },
            2 => Icmp::Other(kind >> 2),
            _ => Icmp::TooBig { mtu },
        };
        let head = message.emit(quoted);
        let ip = Ipv4 {
            dscp: 0,
            ecn: Ecn::NotEct,
            dont_fragment: true,
            more: false,
            offset: 0,
            ident: 0,
            ttl: 64,
            protocol: ipv4::ICMP,
            from: v4(8),
            to: v4(side),
        };
        bytes.extend_from_slice(&ip.emit(head.len() + quoted.len()));
        bytes.extend_from_slice(&[&head[..], quoted].concat());
    } else {
        let message = match kind % 4 {
            0 => Icmpv6::PortUnreachable,
            1 => Icmpv6::Unreachable { code: kind >> 2 },
            2 => Icmpv6::Other(3 + (kind >> 2 & 1)),
            _ => Icmpv6::TooBig { mtu: mtu.into() },
        };
        let (next, from, to) = (ipv6::ICMPV6, v6(8), v6(side));
        let ip = Ipv6 { dscp: 0, ecn: Ecn::NotEct, next, hops: 64, from, to };
        let message = message.emit(&ip, quoted);
        bytes.extend_from_slice(&ip.emit(message.len()));
        bytes.extend_from_slice(&message);
    }
    Some(bytes)
}

/// Returns the options of TCP that the script chooses.
#[must_use]
pub fn tcp_options(script: &mut Script<'_>) -> TcpConfig {
    let bits = script.byte();
    TcpConfig {
        mss: script.choose([u16::MAX, 100, 536, 1460]),
        receive_bytes: script.choose([70_000, 1000, 5000, 20_000]),
        send_bytes: script.choose([20_000, 1000, 5000]),
        timestamps: bits & 1 == 0,
        window_scaling: bits & 2 == 0,
        sack: bits & 4 == 0,
        ecn: bits & 8 == 0,
        no_delay: bits & 16 == 0,
        // Numbers out of range, too.
        dscp: bits,
        ttl: bits,
        congestion: congestion(script),
        delayed_ack_ns: if bits & 32 == 0 { 40 * MS } else { 0 },
        ack_segments: if bits & 64 == 0 { 2 } else { 8 },
        ack_hold_ns: 10 * US,
        min_timeout_ns: script.choose([200 * MS, 10 * MS]),
        syn_retries: script.choose([7, 1]),
        user_timeout_ns: script.choose([120 * SECOND, 2 * SECOND]),
        time_wait_ns: script.choose([60 * SECOND, SECOND]),
        keep_alive_ns: if bits & 128 == 0 { None } else { Some(5 * SECOND) },
    }
}

/// Returns the algorithm that the script chooses.
#[must_use]
pub fn congestion(script: &mut Script<'_>) -> CongestionControl {
    use CongestionControl::{Cubic, Dctcp, Reno};
    script.choose([Cubic, Reno, Dctcp])
}

/// Returns a byte of a stream.
#[must_use]
pub fn byte(salt: u64, at: usize) -> u8 {
    let mixed = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0x2545_f491);
    (mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
}
