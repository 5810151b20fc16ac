//! Neighbours: found, kept, checked, lost; and those who say that they are others.

use super::*;
use crate::wire::arp::{Arp, Op};
use crate::wire::ethernet::{self, Ethernet};

fn arp(to: Mac, arp: Arp) -> Vec<u8> {
    let header = Ethernet { to, from: arp.sender_mac, kind: ethernet::ARP };
    [&header.emit()[..], &arp.emit()].concat()
}

/// "`sender` is at `mac`", said to 1.
fn claim(op: Op, sender: u8, at: Mac) -> Vec<u8> {
    let packet = Arp { op, sender_mac: at, sender: v4(sender), target_mac: mac(1), target: v4(1) };
    arp(mac(1), packet)
}

fn destinations(link: &Link) -> Vec<Mac> {
    let ours = link.seen.iter().filter(|(side, f)| *side == 0 && f[12..14] == [8, 0]);
    ours.map(|(_, f)| Mac(*f.first_chunk().unwrap())).collect()
}

#[test]
fn a_silent_neighbour_is_asked_ever_more_slowly_and_what_waits_is_dropped() {
    let mut link = Link::new(1500);
    link.pass(10 * SECOND);
    link.seen.clear();
    let start = link.now;
    for _ in 0..70 {
        link.send(0, at(9, 7), b"x");
    }
    let mut asked = Vec::new();
    for _ in 0..100 {
        link.pass(100 * MS);
        let now = link.now;
        asked.extend(link.seen.drain(..).map(|_| now.since(start) / (100 * MS)));
    }
    assert_eq!(asked, [1, 1, 3, 7, 15, 31], "tenths of a second");
    let stats = *link.ports[0].stack().stats();
    assert_eq!((stats.drop_waiting, stats.drop_unreachable, stats.neighbours_lost), (6, 64, 1));
    assert_eq!(link.ports[0].deadline(), None);
}

#[test]
fn a_neighbour_is_checked_when_his_time_is_up_and_asked_for_anew_when_he_moved() {
    let mut link = Link::new(1500);
    link.send(0, at(2, 7), b"x");
    link.pass(31 * SECOND);
    link.seen.clear();
    link.send(0, at(2, 7), b"y");
    link.pass(MS);
    // The datagram goes at once; the question goes to him alone.
    let kinds: Vec<_> = link.seen.iter().map(|(side, f)| (*side, f[0], f[13])).collect();
    assert_eq!(kinds, [(0, 2, 0), (0, 2, 6), (1, 2, 6)]);
    // He moves: what is sent to the old address is lost until nobody has answered there.
    link.ports[1].stack_mut().info.mac = mac(3);
    link.ports[1].device_mut().info.mac = mac(3);
    link.pass(31 * SECOND);
    link.got[1].clear();
    for _ in 0..20 {
        link.send(0, at(2, 7), b"z");
        link.pass(SECOND);
    }
    assert!(link.got[1].len() >= 10, "{}", link.got[1].len());
    assert_eq!(destinations(&link).last(), Some(&mac(3)));
}

#[test]
fn one_who_moves_and_says_so_is_missed_for_less_than_a_second() {
    let mut link = Link::new(1500);
    link.send(0, at(2, 7), b"x");
    link.pass(10 * SECOND);
    link.ports[1].stack_mut().info.mac = mac(3);
    link.ports[1].device_mut().info.mac = mac(3);
    let gratuitous = Arp {
        op: Op::Request,
        sender_mac: mac(3),
        sender: v4(2),
        target_mac: Mac::default(),
        target: v4(2),
    };
    link.inject(0, arp(Mac::BROADCAST, gratuitous));
    link.got[1].clear();
    for _ in 0..10 {
        link.send(0, at(2, 7), b"z");
        link.pass(100 * MS);
    }
    assert!(
        (6..=7).contains(&link.got[1].len()),
        "three questions to the old address, 100 ms each, then one to all"
    );
}

#[test]
fn nobody_becomes_a_known_neighbour_by_saying_so() {
    let mut link = Link::new(1500);
    link.send(0, at(2, 7), b"x");
    link.pass(SECOND);
    let thief = mac(0x66);
    for op in [Op::Reply, Op::Request] {
        link.inject(0, claim(op, 2, thief));
        let gratuitous =
            Arp { op, sender_mac: thief, sender: v4(2), target_mac: Mac::default(), target: v4(2) };
        link.inject(0, arp(Mac::BROADCAST, gratuitous));
        link.pass(MS);
        link.send(0, at(2, 7), b"y");
        link.pass(10 * SECOND);
        // Answers of the thief to the question whether the neighbour is still there are no answers.
        link.inject(0, claim(Op::Reply, 2, thief));
        link.pass(10 * SECOND);
    }
    link.send(0, at(2, 7), b"z");
    link.pass(SECOND);
    assert!(destinations(&link).iter().all(|to| *to == mac(2)));
    assert_eq!(link.got[1].len(), 4);
    assert_eq!(
        counted(link.ports[0].stack(), "neighbours_disputed"),
        6,
        "{:?}",
        link.ports[0].stack().stats()
    );
}

#[test]
fn answers_that_nobody_asked_for_and_floods_of_them_leave_nothing() {
    let mut link =
        Link::of([Config { neighbours: 8, ..fixed(1) }, fixed(2)], 1500, Offloads::default(), 1);
    link.send(0, at(2, 7), b"x");
    link.pass(SECOND);
    for last in 3..=200 {
        link.inject(0, claim(Op::Reply, last, mac(last)));
        link.inject(0, claim(Op::Request, last, mac(last)));
    }
    link.pass(MS);
    assert_eq!(counted(link.ports[0].stack(), "drop_unsolicited"), 198);
    link.seen.clear();
    // Seven of them were remembered, as who asks wants an answer; the neighbour from before is still known.
    link.send(0, at(2, 7), b"y");
    link.send(0, at(3, 7), b"y");
    link.send(0, at(100, 7), b"y");
    link.pass(MS);
    let broadcasts = link.seen.iter().filter(|(side, f)| *side == 0 && f[0] == 0xff).count();
    assert_eq!(broadcasts, 1);
    assert_eq!(destinations(&link), [mac(2), mac(3)]);
    // Asking for very many drives out those who have not answered first.
    for last in 100..250 {
        link.send(0, at(last, 7), b"y");
    }
    link.seen.clear();
    link.send(0, at(2, 7), b"z");
    link.pass(MS);
    assert_eq!(destinations(&link), [mac(2)]);
}

#[test]
fn senders_that_contradict_their_frame_or_are_no_station_are_dropped() {
    let mut link = Link::new(1500);
    let mut wrong = claim(Op::Request, 2, mac(2));
    wrong[11] = 9;
    link.inject(0, wrong);
    link.inject(0, claim(Op::Request, 2, Mac::BROADCAST));
    link.inject(0, claim(Op::Request, 2, Mac::default()));
    link.inject(0, claim(Op::Request, 2, mac(2))[..30].to_vec());
    link.turn();
    assert_eq!(counted(link.ports[0].stack(), "drop_neighbour"), 4);
}

#[test]
fn a_neighbour_told_by_the_caller_is_never_asked() {
    let mut link = Link::new(1500);
    link.pass(10 * SECOND);
    link.seen.clear();
    link.ports[0].neighbour(v4(2).into(), mac(2));
    for _ in 0..5 {
        link.send(0, at(2, 7), b"x");
        link.pass(40 * SECOND);
    }
    assert_eq!(link.got[1].len(), 5);
    assert!(link.seen.iter().all(|(side, f)| *side == 1 || f[12..14] == [8, 0]));
}
