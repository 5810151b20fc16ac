//! Tests of the neighbour cache: resolution, confirmation, failure, and forged claims.

use super::*;
use crate::wire::arp::{Arp, ArpOperation};
use crate::wire::ethernet::{self, Ethernet};

fn arp(to: Mac, arp: Arp) -> Vec<u8> {
    let header = Ethernet { to, from: arp.sender_mac, kind: ethernet::ARP };
    [&header.emit()[..], &arp.emit()].concat()
}

/// Builds an ARP packet to host 1 that claims that `sender` is at `at`.
fn claim(op: ArpOperation, sender: u8, at: Mac) -> Vec<u8> {
    let packet = Arp { op, sender_mac: at, sender: v4(sender), target_mac: mac(1), target: v4(1) };
    arp(mac(1), packet)
}

fn destinations(net: &Network) -> Vec<Mac> {
    let ours = net.frames.iter().filter(|(side, f)| *side == 0 && f[12..14] == [8, 0]);
    ours.map(|(_, f)| Mac(*f.first_chunk().unwrap())).collect()
}

#[test]
fn a_silent_neighbour_is_solicited_at_growing_intervals_and_its_frames_are_dropped() {
    let mut net = Network::new(1500);
    net.run_for(10 * SECOND);
    net.frames.clear();
    let start = net.now;
    for _ in 0..70 {
        net.send(0, at(9, 7), b"x");
    }
    let mut solicited = Vec::new();
    for _ in 0..100 {
        net.run_for(100 * MS);
        let now = net.now;
        solicited.extend(net.frames.drain(..).map(|_| now.since(start) / (100 * MS)));
    }
    assert_eq!(solicited, [1, 1, 3, 7, 15, 31], "tenths of a second");
    let counters = *net.stack(0).counters();
    assert_eq!(
        (counters.drop_unresolved, counters.drop_unreachable, counters.neighbours_failed),
        (6, 64, 1)
    );
    assert_eq!(net.sockets[0].interface().deadline(), None);
}

#[test]
fn a_stale_neighbour_is_probed_and_resolved_again_if_it_moved() {
    let mut net = Network::new(1500);
    net.send(0, at(2, 7), b"x");
    net.run_for(31 * SECOND);
    net.frames.clear();
    net.send(0, at(2, 7), b"y");
    net.run_for(MS);
    // The datagram leaves at once; the solicitation is unicast.
    let kinds: Vec<_> = net.frames.iter().map(|(side, f)| (*side, f[0], f[13])).collect();
    assert_eq!(kinds, [(0, 2, 0), (0, 2, 6), (1, 2, 6)]);
    // The neighbour moves. Datagrams to the old address are lost until probes there have failed.
    net.sockets[1].interface_mut().stack_mut().cx.info.mac = mac(3);
    net.sockets[1].interface_mut().device_mut().info.mac = mac(3);
    net.run_for(31 * SECOND);
    net.delivered[1].clear();
    for _ in 0..20 {
        net.send(0, at(2, 7), b"z");
        net.run_for(SECOND);
    }
    assert!(net.delivered[1].len() >= 10, "{}", net.delivered[1].len());
    assert_eq!(destinations(&net).last(), Some(&mac(3)));
}

#[test]
fn a_neighbour_that_moves_and_announces_it_is_resolved_within_a_second() {
    let mut net = Network::new(1500);
    net.send(0, at(2, 7), b"x");
    net.run_for(10 * SECOND);
    net.sockets[1].interface_mut().stack_mut().cx.info.mac = mac(3);
    net.sockets[1].interface_mut().device_mut().info.mac = mac(3);
    let gratuitous = Arp {
        op: ArpOperation::Request,
        sender_mac: mac(3),
        sender: v4(2),
        target_mac: Mac::default(),
        target: v4(2),
    };
    net.inject(0, arp(Mac::BROADCAST, gratuitous));
    net.delivered[1].clear();
    for _ in 0..10 {
        net.send(0, at(2, 7), b"z");
        net.run_for(100 * MS);
    }
    assert!(
        (6..=7).contains(&net.delivered[1].len()),
        "three probes of the old address, 100 ms each, then one broadcast"
    );
}

#[test]
fn a_claim_does_not_replace_a_known_neighbour() {
    let mut net = Network::new(1500);
    net.send(0, at(2, 7), b"x");
    net.run_for(SECOND);
    let attacker = mac(0x66);
    for op in [ArpOperation::Reply, ArpOperation::Request] {
        net.inject(0, claim(op, 2, attacker));
        let gratuitous = Arp {
            op,
            sender_mac: attacker,
            sender: v4(2),
            target_mac: Mac::default(),
            target: v4(2),
        };
        net.inject(0, arp(Mac::BROADCAST, gratuitous));
        net.run_for(MS);
        net.send(0, at(2, 7), b"y");
        net.run_for(10 * SECOND);
        // A reply of the attacker to the probe of the neighbour does not count.
        net.inject(0, claim(ArpOperation::Reply, 2, attacker));
        net.run_for(10 * SECOND);
    }
    net.send(0, at(2, 7), b"z");
    net.run_for(SECOND);
    assert!(destinations(&net).iter().all(|to| *to == mac(2)));
    assert_eq!(net.delivered[1].len(), 4);
    assert_eq!(counted(net.stack(0), "neighbours_disputed"), 6, "{:?}", net.stack(0).counters());
}

#[test]
fn unsolicited_replies_are_dropped_and_requests_evict_no_entries() {
    let mut net = Network::of(
        [StackOptions { max_neighbours: 8, ..static_ipv4(1) }, static_ipv4(2)],
        1500,
        Offloads::default(),
        1,
    );
    net.send(0, at(2, 7), b"x");
    net.run_for(SECOND);
    for last in 3..=200 {
        net.inject(0, claim(ArpOperation::Reply, last, mac(last)));
        net.inject(0, claim(ArpOperation::Request, last, mac(last)));
    }
    net.run_for(MS);
    assert_eq!(counted(net.stack(0), "drop_unsolicited"), 198);
    net.frames.clear();
    // The cache kept seven senders of requests, and the neighbour from before.
    net.send(0, at(2, 7), b"y");
    net.send(0, at(3, 7), b"y");
    net.send(0, at(100, 7), b"y");
    net.run_for(MS);
    let broadcasts = net.frames.iter().filter(|(side, f)| *side == 0 && f[0] == 0xff).count();
    assert_eq!(broadcasts, 1);
    assert_eq!(destinations(&net), [mac(2), mac(3)]);
    // Many unresolved neighbours evict each other, not the resolved one.
    for last in 100..250 {
        net.send(0, at(last, 7), b"y");
    }
    net.frames.clear();
    net.send(0, at(2, 7), b"z");
    net.run_for(MS);
    assert_eq!(destinations(&net), [mac(2)]);
}

#[test]
fn arp_senders_that_differ_from_the_frame_or_are_no_station_are_dropped() {
    let mut net = Network::new(1500);
    let mut wrong = claim(ArpOperation::Request, 2, mac(2));
    wrong[11] = 9;
    net.inject(0, wrong);
    net.inject(0, claim(ArpOperation::Request, 2, Mac::BROADCAST));
    net.inject(0, claim(ArpOperation::Request, 2, Mac::default()));
    net.inject(0, claim(ArpOperation::Request, 2, mac(2))[..30].to_vec());
    net.step();
    assert_eq!(counted(net.stack(0), "drop_neighbour"), 4);
}

#[test]
fn a_permanent_neighbour_is_never_solicited() {
    let mut net = Network::new(1500);
    net.run_for(10 * SECOND);
    net.frames.clear();
    net.sockets[0].interface_mut().set_neighbour(v4(2).into(), mac(2));
    for _ in 0..5 {
        net.send(0, at(2, 7), b"x");
        net.run_for(40 * SECOND);
    }
    assert_eq!(net.delivered[1].len(), 5);
    assert!(net.frames.iter().all(|(side, f)| *side == 1 || f[12..14] == [8, 0]));
}
