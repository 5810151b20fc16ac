//! A peer that lies: for each segment that its host sends, others leave, with numbers near the
//! edges, acknowledgements of parts or of what never arrived, SACK blocks at random, windows that
//! shrink, and data that contradicts itself.

use sprat_proto::Rng;
use sprat_proto::device::HEADER;
use sprat_proto::wire::ethernet::{self, Ethernet};
use sprat_proto::wire::ipv4::{self, Ipv4};
use sprat_proto::wire::ipv6::Ipv6;
use sprat_proto::wire::tcp::{CHECKSUM, Flags, MAX_HEADER, SackBlocks, Tcp};

/// The most bytes of data of a segment that lies.
const MOST_DATA: u64 = 1200;

/// The IP header of a segment.
enum Ip {
    V4(Ipv4),
    V6(Ipv6),
}

/// Returns the frames that leave instead of one with a segment. One without is left alone.
pub(crate) fn lies(rng: &mut Rng, frame: &[u8]) -> Vec<Vec<u8>> {
    let Some((ip, tcp, data)) = parse(frame) else { return vec![frame.to_vec()] };
    let mut frames = Vec::new();
    for _ in 0..rng.below(4) {
        let (tcp, data) = lie(rng, tcp, data);
        frames.push(emit(frame, &ip, &tcp, &data));
    }
    // Most of the time the right segment leaves too, so that the connection goes on.
    if rng.chance(900_000) {
        let at = rng.below(frames.len() as u64 + 1) as usize;
        frames.insert(at, frame.to_vec());
    }
    frames
}

fn parse(frame: &[u8]) -> Option<(Ip, Tcp, &[u8])> {
    let (ethernet, packet) = Ethernet::parse(frame)?;
    let (ip, segment) = match ethernet.kind {
        ethernet::IPV4 => {
            let (header, segment) = Ipv4::parse(packet).ok()?;
            (header.protocol == ipv4::TCP).then_some((Ip::V4(header), segment))?
        }
        ethernet::IPV6 => {
            let (header, segment) = Ipv6::parse(packet).ok()?;
            (header.next == ipv4::TCP).then_some((Ip::V6(header), segment))?
        }
        _ => return None,
    };
    let (tcp, data) = Tcp::parse(segment).ok()?;
    Some((ip, tcp, data))
}

/// Returns a number at some distance: small, of a window, or half of all numbers.
fn near(rng: &mut Rng, value: u32) -> u32 {
    let distance = match rng.below(5) {
        0 => rng.below(4) as u32,
        1 => rng.below(3000) as u32,
        2 => rng.below(1 << 20) as u32,
        3 => 1_u32.wrapping_shl(31).wrapping_add(rng.below(3) as u32),
        _ => rng.u32(),
    };
    if rng.chance(500_000) { value.wrapping_add(distance) } else { value.wrapping_sub(distance) }
}

/// Returns a segment in which some fields are wrong.
fn lie(rng: &mut Rng, truth: Tcp, data: &[u8]) -> (Tcp, Vec<u8>) {
    let (mut tcp, mut data) = (truth, data.to_vec());
    let mut picks = |share: u32| rng.chance(share);
    let (seq, ack, sack, window) = (picks(300_000), picks(400_000), picks(300_000), picks(300_000));
    let (flags, times, contents) = (picks(100_000), picks(100_000), picks(300_000));
    if seq {
        tcp.seq = near(rng, tcp.seq);
    }
    if ack {
        tcp.ack = near(rng, tcp.ack);
    }
    if sack {
        tcp.options.sack = SackBlocks::default();
        for _ in 0..1 + rng.below(4) {
            let (left, right) = (near(rng, truth.ack), near(rng, truth.ack));
            tcp.options.sack.push((left, right));
        }
    }
    if window {
        tcp.window = [0, 1, rng.below(100) as u16, rng.u32() as u16][rng.below(4) as usize];
    }
    if flags {
        // A reset at the right number would end the connection.
        let bits = [Flags::FIN, Flags::SYN, Flags::URG, Flags::PSH, Flags::ECE, Flags::CWR];
        tcp.flags = Flags(tcp.flags.0 ^ bits[rng.below(6) as usize].0);
        tcp.urgent = rng.u32() as u16;
    }
    if times {
        let lied = tcp.options.timestamps.map(|(a, b)| (near(rng, a), near(rng, b)));
        tcp.options.timestamps = lied.filter(|_| rng.chance(700_000));
    }
    if contents {
        data.resize(rng.below(MOST_DATA) as usize, 0);
        rng.fill(&mut data);
    }
    (tcp, data)
}

/// Returns a frame with a segment, whose checksums are right.
fn emit(frame: &[u8], ip: &Ip, tcp: &Tcp, data: &[u8]) -> Vec<u8> {
    let mut header = [0; MAX_HEADER];
    let len = tcp.emit(&mut header);
    let mut segment = [&header[..len], data].concat();
    let (ip, sum) = match ip {
        Ip::V4(ip) => (ip.emit(segment.len()).to_vec(), ip.pseudo(segment.len())),
        Ip::V6(ip) => (ip.emit(segment.len()).to_vec(), ip.pseudo(ipv4::TCP, segment.len())),
    };
    let checksum = sum.bytes(&segment).checksum();
    segment[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
    [&frame[..HEADER], &ip, &segment].concat()
}
