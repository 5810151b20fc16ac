//! Floods by who invents senders: what is kept stays within its limits, and those who are known do not notice.

use super::*;
use crate::wire::arp::{Arp, Op};
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::icmp::Icmp;
use crate::wire::icmpv6::Icmpv6;
use crate::wire::ipv6::{self, Fragment, Ipv6};

/// Frames of a flood.
const FLOOD: usize = 100_000;
/// Of them in one turn.
const TURN: usize = 100;
const THIEF: Mac = mac(0x66);

fn six(last: u8) -> Ipv6Addr {
    ipv6::link_local(mac(last))
}

fn arp(op: Op, sender_mac: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let header = Ethernet { to: mac(1), from: sender_mac, kind: ethernet::ARP };
    let arp = Arp { op, sender_mac, sender, target_mac: mac(1), target };
    [&header.emit()[..], &arp.emit()].concat()
}

/// An IPv6 packet to 1.
fn packet(from_mac: Mac, from: Ipv6Addr, next: u8, hops: u8, upper: &[u8]) -> Vec<u8> {
    let header = Ethernet { to: mac(1), from: from_mac, kind: ethernet::IPV6 };
    let ip = Ipv6 { next, hops, from, to: six(1) };
    [&header.emit()[..], &ip.emit(upper.len()), upper].concat()
}

fn discovery(from_mac: Mac, from: Ipv6Addr, message: &Icmpv6) -> Vec<u8> {
    let ip = Ipv6 { next: ipv6::ICMPV6, hops: 255, from, to: six(1) };
    packet(from_mac, from, ipv6::ICMPV6, 255, &message.emit(&ip, &[]))
}

/// One frame of who pretends to be everybody.
fn spoofed(rng: &mut Rng) -> Vec<u8> {
    let n = rng.u32();
    let other = Mac([2, 9, (n >> 24) as u8, (n >> 16) as u8, (n >> 8) as u8, n as u8]);
    let v4_other = Ipv4Addr::new(10, (n >> 16) as u8 | 128, (n >> 8) as u8, n as u8);
    let v6_other = ipv6::link_local(other);
    let advertise = |target| Icmpv6::Advertise {
        target,
        mac: Some(THIEF),
        router: true,
        solicited: n & 1 == 1,
        replaces: true,
    };
    match rng.below(8) {
        0 => arp(Op::Request, other, v4_other, v4(1)),
        1 => arp(Op::Reply, other, v4_other, v4(1)),
        2 => arp(Op::Request, THIEF, v4(2), v4(2)),
        3 => arp(Op::Reply, THIEF, v4(2), v4(1)),
        4 => discovery(other, v6_other, &Icmpv6::Solicit { target: six(1), mac: Some(other) }),
        5 => discovery(other, v6_other, &advertise(v6_other)),
        6 => discovery(THIEF, six(2), &advertise(six(2))),
        _ => discovery(THIEF, six(2), &Icmpv6::Solicit { target: six(1), mac: Some(THIEF) }),
    }
}

#[test]
fn a_hundred_thousand_spoofed_neighbours_are_no_neighbours_and_known_ones_stay() {
    let configs = [1, 2].map(|last| Config {
        v4: V4::Fixed { addr: v4(last), prefix: 8 },
        neighbours: 64,
        ..fixed(last)
    });
    let mut link = Link::of(configs, 1500, Offloads::default(), 1);
    let peers = [at(2, 7), SocketAddr::new(six(2).into(), 7)];
    for to in peers {
        link.send(0, to, b"x");
    }
    link.pass(SECOND);
    let mut rng = Rng::seeded(3);
    link.got[1].clear();
    for turn in 1..=FLOOD / TURN {
        for _ in 0..TURN {
            link.inject(0, spoofed(&mut rng));
        }
        link.seen.clear();
        for to in peers {
            link.send(0, to, b"y");
        }
        link.pass(MS);
        assert_eq!(link.got[1].len(), 2 * turn, "each datagram arrives");
        let ours = link.seen.iter().filter(|(side, frame)| *side == 0 && frame[..6] == THIEF.0);
        // Who asks is answered where he says that he is; nothing else goes there.
        let datagrams = ours.filter(|(_, frame)| frame.ends_with(b"y")).count();
        assert_eq!(datagrams, 0);
        let stack = link.ports[0].stack();
        assert!(stack.neighbours.len() <= 64 && stack.outbox.len() <= 512);
    }
    let stats = *link.ports[0].stack().stats();
    assert!(
        stats.drop_unsolicited > FLOOD as u64 / 10 && stats.neighbours_disputed > FLOOD as u64 / 10,
        "{stats:?}"
    );
    // Somebody new finds room nevertheless.
    link.send(0, at(9, 7), b"z");
    link.pass(MS);
    let asked = link
        .seen
        .iter()
        .any(|(side, frame)| *side == 0 && frame[0] == 0xff && frame.ends_with(&v4(9).octets()));
    assert!(asked);
}

/// A fragment of 512 octets at `offset`, of a datagram that nobody completes.
fn fragment(rng: &mut Rng, offset: usize) -> Vec<u8> {
    let bytes = [7; 512];
    let ident = rng.u32();
    if rng.chance(500_000) {
        let more = true;
        let header = Fragment { next: 17, offset: offset as u16, more, ident }.emit();
        return packet(mac(3), six(3), ipv6::FRAGMENTED, 64, &[&header[..], &bytes].concat());
    }
    let base = paths::v4(v4(3), v4(1));
    let header = crate::wire::ipv4::Ipv4 {
        ident: ident as u16,
        offset: offset as u16,
        more: true,
        dont_fragment: false,
        ..base
    };
    let mut frame = basic::ip_frame(v4(3), v4(1), 17, &bytes);
    frame[HEADER..HEADER + 20].copy_from_slice(&header.emit(bytes.len()));
    frame
}

#[test]
fn floods_of_fragments_cost_no_more_than_their_limit_and_nobody_elses_datagrams() {
    const LIMIT: usize = 100_000;
    let configs = [1, 2].map(|last| Config { reassembly_bytes: LIMIT, ..fixed(last) });
    let mut link = Link::of(configs, 1500, Offloads::default(), 1);
    let peers = [at(1, 7), SocketAddr::new(six(1).into(), 7)];
    for to in peers {
        link.send(1, to, b"x");
    }
    link.pass(SECOND);
    let mut rng = Rng::seeded(4);
    link.got[0].clear();
    for turn in 1..=FLOOD / TURN / 2 {
        for _ in 0..TURN {
            let offset = rng.below(120) as usize * 512;
            link.inject(0, fragment(&mut rng, offset));
        }
        link.turn();
        for to in peers {
            link.send(1, to, &[5; 4000]);
        }
        link.pass(MS);
        assert_eq!(link.got[0].len(), 2 * turn, "{:?}", link.ports[0].stack().stats());
        assert!(link.ports[0].stack().reassembly.held() <= LIMIT);
    }
    assert!(counted(link.ports[0].stack(), "drop_evicted") > FLOOD as u64 / 4);
    link.pass(31 * SECOND);
    assert_eq!(link.ports[0].stack().reassembly.held(), 0, "what never completes is given up");
}

#[test]
fn forged_errors_about_what_was_never_sent_change_nothing() {
    let mut link = Link::new(1500);
    let peers = [at(2, 7), SocketAddr::new(six(2).into(), 7)];
    for to in peers {
        link.send(0, to, &[1; 1400]);
    }
    link.pass(SECOND);
    let mut forged = 0;
    for (from, to) in [(7, 9), (9, 7), (8, 8)] {
        let udp = crate::wire::udp::Udp { from, to, checksum: 0 }.emit(8);
        let upper = [&udp[..], &[0; 8]].concat();
        let four = &basic::ip_frame(v4(1), v4(2), 17, &upper)[HEADER..];
        let ip = Ipv6 { next: ipv6::UDP, hops: 64, from: six(1), to: six(2) };
        let quoted6 = [&ip.emit(upper.len())[..], &upper].concat();
        // Cut short anywhere, too.
        for cut in (0..=four.len()).rev() {
            for message in [Icmp::PortUnreachable, Icmp::TooBig { mtu: 600 }] {
                let error = [&message.emit(&four[..cut])[..], &four[..cut]].concat();
                link.inject(0, basic::ip_frame(v4(2), v4(1), 1, &error));
                forged += 1;
            }
        }
        for cut in (0..=quoted6.len()).rev() {
            for message in [Icmpv6::PortUnreachable, Icmpv6::TooBig { mtu: 1280 }] {
                let about = Ipv6 { next: ipv6::ICMPV6, hops: 64, from: six(2), to: six(1) };
                let error = message.emit(&about, &quoted6[..cut]);
                link.inject(0, packet(mac(2), six(2), ipv6::ICMPV6, 64, &error));
                forged += 1;
            }
        }
    }
    link.turn();
    assert_eq!(counted(link.ports[0].stack(), "drop_error"), forged);
    assert!(link.events[0].is_empty(), "{:?}", link.events[0]);
    for to in peers {
        assert_eq!(link.ports[0].stack().paths.mtu(link.now, to.ip(), 1500), 1500);
    }
}
