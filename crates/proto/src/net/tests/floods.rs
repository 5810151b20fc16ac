//! Tests of an IP stack under floods of frames with forged senders: memory stays within its limits,
//! and traffic with known neighbours continues.

use core::net::Ipv6Addr;

use super::*;
use crate::net::ip::output::udp4_header;
use crate::net::link::queue::MAX_FRAMES;
use crate::wire::arp::{Arp, ArpOperation};
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::icmp::Icmp;
use crate::wire::icmpv6::Icmpv6;
use crate::wire::ipv4::Ecn;
use crate::wire::ipv6::{self, Fragment, Ipv6};

/// The number of frames that the attacker sends in a flood.
const FLOOD: usize = 100_000;
/// The number of the attacker's frames that arrive before each step of the hosts.
const BURST_LEN: usize = 100;
const ATTACKER: Mac = mac(0x66);

fn six(last: u8) -> Ipv6Addr {
    ipv6::link_local(mac(last))
}

fn arp(op: ArpOperation, sender_mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let header = Ethernet { to: mac(1), from: sender_mac, kind: ethernet::ARP };
    let arp = Arp { op, sender_mac, sender, target_mac: mac(1), target };
    [&header.emit()[..], &arp.emit()].concat()
}

/// Builds a frame with an IPv6 packet to the link-local address of host 1.
fn packet(from_mac: Mac, from: Ipv6Addr, next: u8, hops: u8, upper: &[u8]) -> Vec<u8> {
    let header = Ethernet { to: mac(1), from: from_mac, kind: ethernet::IPV6 };
    let ip = Ipv6 { dscp: 0, ecn: Ecn::NotEct, next, hops, from, to: six(1) };
    [&header.emit()[..], &ip.emit(upper.len()), upper].concat()
}

fn discovery(from_mac: Mac, from: Ipv6Addr, message: &Icmpv6) -> Vec<u8> {
    let ip = Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: ipv6::ICMPV6, hops: 255, from, to: six(1) };
    packet(from_mac, from, ipv6::ICMPV6, 255, &message.emit(&ip, &[]))
}

/// Builds a random ARP or NDP frame with a forged sender.
fn forged_frame(rng: &mut Rng) -> Vec<u8> {
    let n = rng.u32();
    let other = Mac([2, 9, (n >> 24) as u8, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
    let v4_other = Ipv4Addr::new(10, (n >> 16) as u8 | 128, (n >> 8) as u8, n as u8);
    let v6_other = ipv6::link_local(other);
    let advertise = |target| Icmpv6::Advertise {
        target,
        mac: Some(ATTACKER),
        router: true,
        solicited: n & 1 == 1,
        replaces: true,
    };
    match rng.below(8) {
        0 => arp(ArpOperation::Request, other, v4_other, v4(1)),
        1 => arp(ArpOperation::Reply, other, v4_other, v4(1)),
        2 => arp(ArpOperation::Request, ATTACKER, v4(2), v4(2)),
        3 => arp(ArpOperation::Reply, ATTACKER, v4(2), v4(1)),
        4 => discovery(other, v6_other, &Icmpv6::Solicit { target: six(1), mac: Some(other) }),
        5 => discovery(other, v6_other, &advertise(v6_other)),
        6 => discovery(ATTACKER, six(2), &advertise(six(2))),
        _ => discovery(ATTACKER, six(2), &Icmpv6::Solicit { target: six(1), mac: Some(ATTACKER) }),
    }
}

#[test]
fn forged_neighbours_neither_fill_the_cache_nor_redirect_known_ones() {
    let options = [1, 2].map(|last| StackOptions {
        ipv4: Ipv4Assignment::Static { addr: v4(last), prefix: 8 },
        max_neighbours: 64,
        ..static_ipv4(last)
    });
    let mut net = Network::of(options, 1500, Offloads::default(), 1);
    let peers = [at(2, 7), SocketAddr::new(six(2).into(), 7)];
    for to in peers {
        net.send(0, to, b"x");
    }
    net.run_for(SECOND);
    let mut rng = Rng::seeded(3);
    net.delivered[1].clear();
    for turn in 1..=FLOOD / BURST_LEN {
        for _ in 0..BURST_LEN {
            net.inject(0, forged_frame(&mut rng));
        }
        net.frames.clear();
        for to in peers {
            net.send(0, to, b"y");
        }
        net.run_for(MS);
        assert_eq!(net.delivered[1].len(), 2 * turn, "each datagram arrives");
        let ours = net.frames.iter().filter(|(side, frame)| *side == 0 && frame[..6] == ATTACKER.0);
        // A reply to a forged request goes to the attacker; no datagram does.
        let datagrams = ours.filter(|(_, frame)| frame.ends_with(b"y")).count();
        assert_eq!(datagrams, 0);
        let stack = net.stack(0);
        assert!(stack.link.neighbours.len() <= 64 && stack.link.queue.size().0 <= MAX_FRAMES);
    }
    let counters = *net.stack(0).counters();
    assert!(
        counters.drop_unsolicited > FLOOD as u64 / 10
            && counters.neighbours_disputed > FLOOD as u64 / 10,
        "{counters:?}"
    );
    // The cache has room for a new neighbour nevertheless.
    net.send(0, at(9, 7), b"z");
    net.run_for(MS);
    let solicited = net
        .frames
        .iter()
        .any(|(side, frame)| *side == 0 && frame[0] == 0xff && frame.ends_with(&v4(9).octets()));
    assert!(solicited);
}

/// Builds a frame with an IP fragment of 512 bytes at `offset`, of a datagram that stays
/// incomplete.
fn fragment(rng: &mut Rng, offset: usize) -> Vec<u8> {
    let bytes = [7; 512];
    let ident = rng.u32();
    if rng.chance(500_000) {
        let more = true;
        let header = Fragment { next: 17, offset: offset as u16, more, ident }.emit();
        return packet(mac(3), six(3), ipv6::FRAGMENTED, 64, &[&header[..], &bytes].concat());
    }
    let base = udp4_header(v4(3), v4(1));
    let header = crate::wire::ipv4::Ipv4 {
        ecn: Ecn::NotEct,
        ident: ident as u16,
        offset: offset as u16,
        more: true,
        dont_fragment: false,
        ..base
    };
    let mut frame = ip_frame(v4(3), v4(1), 17, &bytes);
    frame[HEADER..HEADER + 20].copy_from_slice(&header.emit(bytes.len()));
    frame
}

#[test]
fn floods_of_fragments_stay_within_the_limit_and_evict_no_complete_datagrams() {
    const LIMIT: usize = 100_000;
    let options =
        [1, 2].map(|last| StackOptions { max_reassembly_bytes: LIMIT, ..static_ipv4(last) });
    let mut net = Network::of(options, 1500, Offloads::default(), 1);
    let peers = [at(1, 7), SocketAddr::new(six(1).into(), 7)];
    for to in peers {
        net.send(1, to, b"x");
    }
    net.run_for(SECOND);
    let mut rng = Rng::seeded(4);
    net.delivered[0].clear();
    for turn in 1..=FLOOD / BURST_LEN / 2 {
        for _ in 0..BURST_LEN {
            let offset = rng.below(120) as usize * 512;
            net.inject(0, fragment(&mut rng, offset));
        }
        net.step();
        for to in peers {
            net.send(1, to, &[5; 4000]);
        }
        net.run_for(MS);
        assert_eq!(net.delivered[0].len(), 2 * turn, "{:?}", net.stack(0).counters());
        assert!(net.stack(0).reassembly.charged() <= LIMIT);
    }
    assert!(counted(net.stack(0), "drop_evicted") > FLOOD as u64 / 4);
    net.run_for(31 * SECOND);
    assert_eq!(net.stack(0).reassembly.charged(), 0, "incomplete datagrams expire");
}

#[test]
fn forged_icmp_errors_about_datagrams_never_sent_change_nothing() {
    let mut net = Network::new(1500);
    let peers = [at(2, 7), SocketAddr::new(six(2).into(), 7)];
    for to in peers {
        net.send(0, to, &[1; 1400]);
    }
    net.run_for(SECOND);
    let mut forged = 0;
    for (from, to) in [(7, 9), (9, 7), (8, 8)] {
        let udp = crate::wire::udp::Udp { from, to, checksum: 0 }.emit(8);
        let upper = [&udp[..], &[0; 8]].concat();
        let four = &ip_frame(v4(1), v4(2), 17, &upper)[HEADER..];
        let ip =
            Ipv6 { dscp: 0, ecn: Ecn::NotEct, next: ipv6::UDP, hops: 64, from: six(1), to: six(2) };
        let quoted6 = [&ip.emit(upper.len())[..], &upper].concat();
        // The quoted packet may be cut anywhere.
        for cut in (0..=four.len()).rev() {
            for message in [Icmp::PortUnreachable, Icmp::TooBig { mtu: 600 }] {
                let error = [&message.emit(&four[..cut])[..], &four[..cut]].concat();
                net.inject(0, ip_frame(v4(2), v4(1), 1, &error));
                forged += 1;
            }
        }
        for cut in (0..=quoted6.len()).rev() {
            for message in [Icmpv6::PortUnreachable, Icmpv6::TooBig { mtu: 1280 }] {
                let about = Ipv6 {
                    dscp: 0,
                    ecn: Ecn::NotEct,
                    next: ipv6::ICMPV6,
                    hops: 64,
                    from: six(2),
                    to: six(1),
                };
                let error = message.emit(&about, &quoted6[..cut]);
                net.inject(0, packet(mac(2), six(2), ipv6::ICMPV6, 64, &error));
                forged += 1;
            }
        }
    }
    net.step();
    assert_eq!(counted(net.stack(0), "drop_error"), forged);
    assert!(net.events[0].is_empty(), "{:?}", net.events[0]);
    for to in peers {
        assert_eq!(net.stack(0).ip.path_mtus.get(net.now, to.ip(), 1500), 1500);
    }
}
