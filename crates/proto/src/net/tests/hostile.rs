//! Tests of an IP stack with invalid and hostile frames: the stack drops each, counts its reason,
//! and does nothing else.

use super::*;
use crate::net::link::queue::{MAX_BYTES, MAX_FRAMES};
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::icmp::Icmp;
use crate::wire::ipv4::Ecn;
use crate::wire::ipv6::Ipv6;

fn dropped(frame: Vec<u8>, reason: &str) {
    let mut net = Network::new(1500);
    net.inject(0, frame);
    net.step();
    assert_eq!(counted(net.stack(0), reason), 1, "{reason}: {:?}", net.stack(0).counters());
    assert!(net.delivered[0].is_empty());
}

pub(super) fn udp(from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
    let header = crate::wire::udp::Udp { from: 9, to: 7, checksum: 0 }.emit(3);
    ip_frame(from, to, 17, &[&header[..], b"abc"].concat())
}

fn with(mut frame: Vec<u8>, at: usize, byte: u8) -> Vec<u8> {
    frame[at] = byte;
    frame
}

#[test]
fn each_drop_is_counted_by_its_reason() {
    let good = || udp(v4(2), v4(1));
    dropped(good()[..13].to_vec(), "drop_length");
    dropped(good()[..40].to_vec(), "drop_length");
    dropped(with(good(), 5, 9), "drop_address");
    dropped(with(good(), 12, 0x99), "drop_type");
    dropped(with(good(), HEADER, 0x65), "drop_version");
    dropped(with(good(), HEADER + 8, 63), "drop_checksum");
    dropped(with(good(), HEADER + 20 + 6, 1), "drop_checksum");
    dropped(with(good(), HEADER + 20 + 5, 7), "drop_length");
    dropped(with(good(), HEADER + 20 + 5, 12), "drop_length");
    dropped(udp(v4(2), v4(3)), "drop_address");
    dropped(udp(v4(1), v4(1)), "drop_source");
    dropped(udp(Ipv4Addr::BROADCAST, v4(1)), "drop_source");
    dropped(udp(Ipv4Addr::LOCALHOST, v4(1)), "drop_source");
    dropped([&Mac::BROADCAST.0[..], &good()[6..]].concat(), "drop_address");
    dropped(ip_frame(v4(2), v4(1), 6, &[0; 20]), "drop_protocol");
    dropped(ip_frame(v4(2), v4(1), 1, &[0; 20]), "drop_checksum");
    dropped(ip_frame(v4(2), v4(1), 1, &[0; 7]), "drop_length");
    let reply = Icmp::Reply { ident: 1, seq: 1 }.emit(b"12345678");
    dropped(ip_frame(v4(2), v4(1), 1, &[&reply[..], b"12345678"].concat()), "drop_unsolicited");
    let error = Icmp::TooBig { mtu: 600 }.emit(&good()[HEADER..]);
    dropped(ip_frame(v4(2), v4(1), 1, &[&error[..], &good()[HEADER..]].concat()), "drop_error");
}

#[test]
fn padding_is_ignored_and_ipv6_requires_a_checksum() {
    let mut net = Network::new(1500);
    // Padding behind the IP packet, or behind the datagram inside of it, is not delivered.
    net.inject(0, [&udp(v4(2), v4(1))[..], &[9; 30]].concat());
    let six = |checksum| {
        let (from, to) = [2, 1].map(|n| crate::wire::ipv6::link_local(mac(n))).into();
        let ip = Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: 17, hops: 64, from, to };
        let header = crate::wire::udp::Udp { from: 9, to: 7, checksum }.emit(3);
        let bytes = [&header[..], b"abc", b"behind"].concat();
        let ethernet = Ethernet { to: mac(1), from: mac(2), kind: ethernet::IPV6 };
        let pseudo = ip.pseudo(17, 11).bytes(&header).bytes(b"abc");
        (
            [&ethernet.emit()[..], &ip.emit(bytes.len()), &bytes].concat(),
            crate::wire::udp::to_field(pseudo),
        )
    };
    let (none, checksum) = six(0);
    net.inject(0, six(checksum).0);
    // Over IPv6 a datagram without a checksum is invalid.
    net.inject(0, none);
    net.step();
    assert!(
        net.delivered[0].len() == 2 && net.delivered[0].iter().all(|(_, bytes)| bytes == b"abc")
    );
    assert_eq!(counted(net.stack(0), "drop_checksum"), 1);
}

/// The stack accepts a partial checksum only with the option. Linux 6 sent this datagram over a
/// veth with checksum offload: 0x142f is the sum of the pseudo-header.
#[test]
fn a_partial_checksum_is_accepted_only_with_the_option() {
    let bytes = [0x12, 0x34, 0x56, 0x78, 0, 0x0d, 0x14, 0x2f, b's', b'p', b'r', b'a', b't'];
    for accept_partial_checksum in [false, true] {
        let options = [StackOptions { accept_partial_checksum, ..static_ipv4(2) }, static_ipv4(1)];
        let mut net = Network::of(options, 1500, Offloads::default(), 1);
        net.sockets[0].interface_mut().stack_mut().bind(0x5678).unwrap();
        for last in [b't', b'u'] {
            let mut bytes = bytes;
            bytes[12] = last;
            net.inject(0, ip_frame(v4(1), v4(2), 17, &bytes));
        }
        let mut wrong = bytes;
        wrong[7] ^= 1;
        net.inject(0, ip_frame(v4(1), v4(2), 17, &wrong));
        net.step();
        assert_eq!(net.delivered[0].len(), if accept_partial_checksum { 2 } else { 0 });
    }
}

#[test]
fn a_path_mtu_falls_only_for_datagrams_sent_and_not_below_the_minimum() {
    let mut net = Network::new(1500);
    net.send(0, at(2, 7), &[1; 1400]);
    net.run_for(MS);
    let quote =
        |to: u8, port: u8| with(with(udp(v4(1), v4(to)), HEADER + 21, 7), HEADER + 23, port);
    let mut lowered = Vec::new();
    for (to, port, mtu) in
        [(2, 8, 900), (3, 7, 900), (2, 7, 1500), (2, 7, 900), (2, 7, 950), (2, 7, 68), (2, 7, 0)]
    {
        let quoted = quote(to, port)[HEADER..].to_vec();
        let error = [&Icmp::TooBig { mtu }.emit(&quoted)[..], &quoted].concat();
        net.inject(0, ip_frame(v4(2), v4(1), 1, &error));
        net.step();
        lowered.push(net.stack(0).ip.path_mtus.get(net.now, v4(2).into(), 1500));
        net.send(0, at(2, 7), &[1; 1400]);
        net.run_for(MS);
    }
    assert_eq!(lowered, [1500, 1500, 1500, 900, 900, 552, 552]);
    assert_eq!(counted(net.stack(0), "drop_error"), 2);
    assert_eq!(net.delivered[1].len(), 8);
}

/// Frames of real traffic, repeated, truncated and with random bytes changed, half of them with a
/// correct IP checksum, cause no panic, and the transmit queue stays within its limits.
#[test]
fn mutated_frames_do_no_harm() {
    for seed in 0..40 {
        let mut rng = Rng::seeded(seed);
        let mut net = Network::new(1500);
        let six = crate::wire::ipv6::link_local(mac(2)).into();
        for to in [v4(2).into(), six] {
            net.send(0, SocketAddr::new(to, 7), &[4; 3000]);
            net.send(0, SocketAddr::new(to, 9), &[4; 30]);
            net.ping(0, to, 2000).unwrap();
            net.run_for(SECOND);
        }
        let seen = core::mem::take(&mut net.frames);
        for _ in 0..2000 {
            let (side, mut frame) = seen[rng.below(seen.len() as u64) as usize].clone();
            for _ in 0..rng.below(4) {
                let at = rng.below(frame.len().min(80) as u64) as usize;
                frame[at] = [0, 0xff, frame[at] ^ 1, frame[at] ^ 0x40, rng.u32() as u8]
                    [rng.below(5) as usize];
            }
            if rng.chance(100_000) {
                frame.truncate(rng.below(frame.len() as u64 + 1) as usize);
            }
            if rng.chance(500_000) {
                fix_checksum(&mut frame);
            }
            net.inject(1 - side, frame);
            net.step();
            net.now = net.now.after(rng.below(50 * MS));
        }
        let stack = net.stack(0);
        let (frames, bytes) = stack.link.queue.size();
        assert!(frames <= MAX_FRAMES && bytes <= MAX_BYTES);
    }
}

/// Corrects the checksum of a frame's IPv4 header.
pub(super) fn fix_checksum(frame: &mut [u8]) {
    let Some(header) = frame.get_mut(HEADER..HEADER + 20) else { return };
    header[10..12].fill(0);
    let checksum = Sum::new().bytes(header).checksum();
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}
