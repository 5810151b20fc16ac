//! Tests of an IP stack's own addresses: assigned by RARP, probed, announced, defended, lost.

use super::*;
use crate::wire::arp::{Arp, ArpOperation};
use crate::wire::ethernet::{self, Ethernet};

fn sent_arps(net: &Network) -> Vec<Arp> {
    let arps = net
        .frames
        .iter()
        .filter(|(side, f)| *side == 0 && matches!(f[12..14], [8, 6] | [0x80, 0x35]));
    arps.filter_map(|(_, f)| Arp::parse(&f[HEADER..])).collect()
}

fn detect_first() -> [StackOptions; 2] {
    [1, 2].map(|last| StackOptions { detect_first: true, ..static_ipv4(last) })
}

#[test]
fn by_default_an_address_is_in_use_at_once_and_announced_twice() {
    let mut net = Network::new(1500);
    assert!(net.stack(0).has_address(v4(1).into()));
    net.run_for(10 * SECOND);
    let own = Arp {
        op: ArpOperation::Request,
        sender_mac: mac(1),
        sender: v4(1),
        target_mac: Mac::default(),
        target: v4(1),
    };
    assert_eq!(sent_arps(&net), [own, own]);
    assert_eq!(net.sockets[0].interface().deadline(), None);
}

#[test]
fn with_detect_first_a_stack_probes_before_it_uses_an_address() {
    let mut net = Network::of(detect_first(), 1500, Offloads::default(), 4);
    let six = IpAddr::V6(crate::wire::ipv6::link_local(mac(1)));
    assert!(!net.stack(0).has_address(v4(1).into()) && !net.stack(0).has_address(six));
    net.run_for(20 * SECOND);
    assert_eq!(
        net.events[0],
        [StackEvent::AddressReady(six), StackEvent::AddressReady(v4(1).into())]
    );
    let probes = sent_arps(&net).iter().filter(|arp| arp.sender.is_unspecified()).count();
    let announcements = sent_arps(&net).iter().filter(|arp| arp.sender == v4(1)).count();
    assert_eq!((probes, announcements), (3, 2));
    net.send(0, at(2, 7), b"x");
    net.run_for(MS);
    assert_eq!(net.delivered[1].len(), 1);
}

#[test]
fn with_detect_first_an_address_of_another_host_is_lost() {
    let mut options = [1, 1].map(static_ipv4);
    options[0].detect_first = true;
    let mut net = Network::of(options, 1500, Offloads::default(), 4);
    net.run_for(20 * SECOND);
    let addr = v4(1).into();
    assert!(net.events[0].contains(&StackEvent::AddressConflict { addr, mac: mac(2), lost: true }));
    assert!(!net.stack(0).has_address(addr) && net.stack(1).has_address(addr));
    assert!(
        sent_arps(&net).iter().all(|arp| arp.sender.is_unspecified()),
        "the stack announces an address that it lost"
    );
}

/// RFC 5227 section 2.1.1: a probe for an address that this host probes for is a conflict. A host
/// that receives such a probe before its own first one sends no probe, so the other host gets the
/// address.
#[test]
fn of_two_hosts_that_probe_for_an_address_one_gets_it() {
    for seed in 0..20 {
        let options = [1, 1].map(|last| StackOptions { detect_first: true, ..static_ipv4(last) });
        let mut net = Network::of(options, 1500, Offloads::default(), seed);
        net.run_for(20 * SECOND);
        let assigned =
            net.sockets.iter().filter(|socket| socket.interface().stack().ipv4().is_some()).count();
        assert_eq!(assigned, 1, "seed {seed}");
    }
}

#[test]
fn an_address_in_use_is_defended_at_most_every_ten_seconds() {
    let mut net = Network::new(1500);
    net.run_for(30 * SECOND);
    net.frames.clear();
    let other = Arp {
        op: ArpOperation::Request,
        sender_mac: mac(9),
        sender: v4(1),
        target_mac: Mac::default(),
        target: v4(1),
    };
    let header = Ethernet { to: Mac::BROADCAST, from: mac(9), kind: ethernet::ARP };
    for _ in 0..30 {
        net.inject(0, [&header.emit()[..], &other.emit()].concat());
        net.run_for(SECOND);
    }
    assert_eq!(sent_arps(&net).len(), 3);
    assert_eq!(counted(net.stack(0), "address_conflicts"), 30);
    let conflict = StackEvent::AddressConflict { addr: v4(1).into(), mac: mac(9), lost: false };
    assert!(net.events[0].iter().all(|event| *event == conflict) && net.events[0].len() == 30);
    assert!(net.stack(0).has_address(v4(1).into()));
}

#[test]
fn rarp_assigns_an_address() {
    let options =
        [StackOptions { ipv4: Ipv4Assignment::Rarp, ..StackOptions::default() }, static_ipv4(2)];
    let mut net = Network::of(options, 1500, Offloads::default(), 5);
    assert_eq!(net.ping(0, v4(2).into(), 8), Err(PingError::NoAddress));
    net.run_for(100 * SECOND);
    let requests = sent_arps(&net);
    assert!((5..=12).contains(&requests.len()), "{}", requests.len());
    let request = Arp {
        op: ArpOperation::ReverseRequest,
        sender_mac: mac(1),
        sender: Ipv4Addr::UNSPECIFIED,
        target_mac: mac(1),
        target: Ipv4Addr::UNSPECIFIED,
    };
    assert!(requests.iter().all(|arp| *arp == request));
    let reply = |target_mac, target| {
        let arp = Arp {
            op: ArpOperation::ReverseReply,
            sender_mac: mac(2),
            sender: v4(2),
            target_mac,
            target,
        };
        let header = Ethernet { to: mac(1), from: mac(2), kind: ethernet::RARP };
        [&header.emit()[..], &arp.emit()].concat()
    };
    // A reply for another host, and one with an address that no host can have.
    net.inject(0, reply(mac(3), v4(77)));
    net.inject(0, reply(mac(1), Ipv4Addr::BROADCAST));
    net.step();
    assert_eq!(net.stack(0).ipv4(), None);
    net.inject(0, reply(mac(1), v4(44)));
    net.inject(0, reply(mac(1), v4(45)));
    net.run_for(MS);
    assert_eq!(net.stack(0).ipv4(), Some(v4(44)));
    assert_eq!(net.events[0], [StackEvent::AddressReady(v4(44).into())]);
    net.send(0, at(2, 7), b"x");
    net.run_for(MS);
    assert_eq!(net.delivered[1], [(at(44, 7), b"x".to_vec())]);
}

#[test]
fn without_respond_a_stack_neither_answers_nor_announces() {
    let options = [StackOptions { respond: false, ..static_ipv4(1) }, static_ipv4(2)];
    let mut net = Network::of(options, 1500, Offloads::default(), 5);
    net.send(1, at(1, 7), b"x");
    net.ping(1, v4(1).into(), 8).unwrap();
    net.run_for(20 * SECOND);
    assert!(net.frames.iter().all(|(side, _)| *side == 1));
    // With a permanent neighbour the other host reaches it nevertheless.
    net.sockets[1].interface_mut().set_neighbour(v4(1).into(), mac(1));
    net.send(1, at(1, 7), b"x");
    net.send(1, at(1, 8), b"x");
    net.run_for(MS);
    assert_eq!(net.delivered[0].len(), 1);
    assert!(net.frames.iter().all(|(side, _)| *side == 1));
}
