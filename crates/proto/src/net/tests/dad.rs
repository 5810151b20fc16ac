//! Our own addresses: learnt, probed, announced, defended, lost.

use super::*;
use crate::wire::arp::{Arp, Op};
use crate::wire::ethernet::{self, Ethernet};

fn sent_arps(link: &Link) -> Vec<Arp> {
    let arps = link
        .seen
        .iter()
        .filter(|(side, f)| *side == 0 && matches!(f[12..14], [8, 6] | [0x80, 0x35]));
    arps.filter_map(|(_, f)| Arp::parse(&f[HEADER..])).collect()
}

fn careful() -> [Config; 2] {
    [1, 2].map(|last| Config { careful: true, ..fixed(last) })
}

#[test]
fn an_address_is_announced_twice_and_used_at_once() {
    let mut link = Link::new(1500);
    assert!(link.ports[0].stack().has(v4(1).into()));
    link.pass(10 * SECOND);
    let own = Arp {
        op: Op::Request,
        sender_mac: mac(1),
        sender: v4(1),
        target_mac: Mac::default(),
        target: v4(1),
    };
    assert_eq!(sent_arps(&link), [own, own]);
    assert_eq!(link.ports[0].deadline(), None);
}

#[test]
fn a_careful_stack_probes_before_it_uses_an_address() {
    let mut link = Link::of(careful(), 1500, Offloads::default(), 4);
    let six = IpAddr::V6(crate::wire::ipv6::link_local(mac(1)));
    assert!(!link.ports[0].stack().has(v4(1).into()) && !link.ports[0].stack().has(six));
    link.pass(20 * SECOND);
    assert_eq!(link.events[0], [Event::Ready(six), Event::Ready(v4(1).into())]);
    let probes = sent_arps(&link).iter().filter(|arp| arp.sender.is_unspecified()).count();
    let announcements = sent_arps(&link).iter().filter(|arp| arp.sender == v4(1)).count();
    assert_eq!((probes, announcements), (3, 2));
    link.send(0, at(2, 7), b"x");
    link.pass(MS);
    assert_eq!(link.got[1].len(), 1);
}

#[test]
fn an_address_that_somebody_has_is_not_taken() {
    let mut configs = [1, 1].map(fixed);
    configs[0].careful = true;
    let mut link = Link::of(configs, 1500, Offloads::default(), 4);
    link.pass(20 * SECOND);
    let addr = v4(1).into();
    assert!(link.events[0].contains(&Event::Conflict { addr, mac: mac(2), lost: true }));
    assert!(!link.ports[0].stack().has(addr) && link.ports[1].stack().has(addr));
    assert!(
        sent_arps(&link).iter().all(|arp| arp.sender.is_unspecified()),
        "nothing is said as if it were ours"
    );
}

/// RFC 5227 section 2.1.1: a probe for an address that one wants is an objection. Who hears it before his own first one says
/// nothing any more, and so does not object in turn.
#[test]
fn of_two_that_probe_for_an_address_the_later_gives_way() {
    for seed in 0..20 {
        let configs = [1, 1].map(|last| Config { careful: true, ..fixed(last) });
        let mut link = Link::of(configs, 1500, Offloads::default(), seed);
        link.pass(20 * SECOND);
        let held = link.ports.iter().filter(|port| port.stack().v4().is_some()).count();
        assert_eq!(held, 1, "seed {seed}");
    }
}

#[test]
fn an_address_in_use_is_defended_but_not_faster_than_every_ten_seconds() {
    let mut link = Link::new(1500);
    link.pass(30 * SECOND);
    link.seen.clear();
    let thief = Arp {
        op: Op::Request,
        sender_mac: mac(9),
        sender: v4(1),
        target_mac: Mac::default(),
        target: v4(1),
    };
    let header = Ethernet { to: Mac::BROADCAST, from: mac(9), kind: ethernet::ARP };
    for _ in 0..30 {
        link.inject(0, [&header.emit()[..], &thief.emit()].concat());
        link.pass(SECOND);
    }
    assert_eq!(sent_arps(&link).len(), 3);
    assert_eq!(counted(link.ports[0].stack(), "conflicts"), 30);
    let conflict = Event::Conflict { addr: v4(1).into(), mac: mac(9), lost: false };
    assert!(link.events[0].iter().all(|event| *event == conflict) && link.events[0].len() == 30);
    assert!(link.ports[0].stack().has(v4(1).into()));
}

#[test]
fn an_address_is_learnt_by_rarp() {
    let configs = [Config { v4: V4::Learnt, ..Config::default() }, fixed(2)];
    let mut link = Link::of(configs, 1500, Offloads::default(), 5);
    assert_eq!(
        link.ports[0].stack_mut().ping(link.now, v4(2).into(), 8),
        Err(PingError::NoAddress)
    );
    link.pass(100 * SECOND);
    let asked = sent_arps(&link);
    assert!((5..=12).contains(&asked.len()), "{}", asked.len());
    let question = Arp {
        op: Op::ReverseRequest,
        sender_mac: mac(1),
        sender: Ipv4Addr::UNSPECIFIED,
        target_mac: mac(1),
        target: Ipv4Addr::UNSPECIFIED,
    };
    assert!(asked.iter().all(|arp| *arp == question));
    let answer = |target_mac, target| {
        let arp =
            Arp { op: Op::ReverseReply, sender_mac: mac(2), sender: v4(2), target_mac, target };
        let header = Ethernet { to: mac(1), from: mac(2), kind: ethernet::RARP };
        [&header.emit()[..], &arp.emit()].concat()
    };
    // Not for us, or no address of a host.
    link.inject(0, answer(mac(3), v4(77)));
    link.inject(0, answer(mac(1), Ipv4Addr::BROADCAST));
    link.turn();
    assert_eq!(link.ports[0].stack().v4(), None);
    link.inject(0, answer(mac(1), v4(44)));
    link.inject(0, answer(mac(1), v4(45)));
    link.pass(MS);
    assert_eq!(link.ports[0].stack().v4(), Some(v4(44)));
    assert_eq!(link.events[0], [Event::Ready(v4(44).into())]);
    link.send(0, at(2, 7), b"x");
    link.pass(MS);
    assert_eq!(link.got[1], [(at(44, 7), b"x".to_vec())]);
}

#[test]
fn a_stack_that_shares_its_addresses_answers_nobody_and_announces_nothing() {
    let configs = [Config { answer: false, ..fixed(1) }, fixed(2)];
    let mut link = Link::of(configs, 1500, Offloads::default(), 5);
    link.send(1, at(1, 7), b"x");
    link.ports[1].stack_mut().ping(link.now, v4(1).into(), 8).unwrap();
    link.pass(20 * SECOND);
    assert!(link.seen.iter().all(|(side, _)| *side == 1));
    // Told where its neighbour is, it is reached nevertheless.
    link.ports[1].neighbour(v4(1).into(), mac(1));
    link.send(1, at(1, 7), b"x");
    link.send(1, at(1, 8), b"x");
    link.pass(MS);
    assert_eq!(link.got[0].len(), 1);
    assert!(link.seen.iter().all(|(side, _)| *side == 1));
}
