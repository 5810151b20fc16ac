//! What two stacks do when all goes well.

use super::*;

#[test]
fn a_datagram_finds_its_neighbour_and_the_next_ones_ask_nobody() {
    let mut link = Link::new(1500);
    link.send(0, at(2, 7), b"hello");
    link.pass(MS);
    assert_eq!(link.got[1], [(at(1, 7), b"hello".to_vec())]);
    let frames = link.seen.len();
    for i in 0..10u8 {
        link.send(1, at(1, 7), &[i; 100]);
    }
    link.pass(MS);
    assert_eq!(link.got[0].len(), 10);
    // The one who was asked knows who asked; he checks it once, while he sends.
    assert_eq!(link.seen.len(), frames + 12);
    let stats = link.ports.each_ref().map(|p| *p.stack().stats());
    assert_eq!([stats[0].neighbours_asked, stats[1].neighbours_asked], [1, 0]);
    assert_eq!((stats[0].datagrams_out, stats[1].datagrams_out), (0, 10));
}

#[test]
fn every_length_arrives_with_and_without_offload_over_both_versions() {
    for (checksum, offload) in [(true, false), (true, true), (false, false)] {
        let configs = [1, 2].map(|last| Config { checksum, ..fixed(last) });
        let offloads = Offloads { checksum: offload, ..Offloads::default() };
        let mut link = Link::of(configs, 1500, offloads, 7);
        let six = SocketAddr::new(crate::wire::ipv6::link_local(mac(2)).into(), 7);
        let mut sent = Vec::new();
        for len in (0..80).chain([1451, 1452, 1453, 1471, 1472, 1473, 2000, 8192, 65_507]) {
            for to in [at(2, 7), six] {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
                assert_eq!(link.send(0, to, &bytes), Sent::Yes);
                link.pass(MS);
                sent.push(bytes);
            }
        }
        let got: Vec<_> = link.got[1].iter().map(|(_, bytes)| bytes.clone()).collect();
        assert!(got == sent, "{} of {}", got.len(), sent.len());
        assert!(link.got[1].iter().all(|(from, _)| from.port() == 7));
        // Echoes of what went out take the short way: their frames are all alike.
        let stats = *link.ports[0].stack().stats();
        let short = sent.iter().filter(|b| b.len() <= 1452).count() as u64;
        assert!(stats.datagrams_out >= short - 2, "{stats:?}");
    }
}

/// Golden: what a stack sends is, to the octet, what Linux sent for the same datagram (identification aside, which is 0 here).
#[test]
fn a_datagram_looks_like_that_of_linux() {
    let mut rng = Rng::seeded(3);
    let mut port = Port::new(fixed(1), Nic::new(0xa, 1500), 0x1234, false, rng.fork()).unwrap();
    port.neighbour(v4(2).into(), mac(0xb));
    port.send(Addr::Net(at(2, 0x5678)), &[b"spr", b"at"]);
    let linux = [
        2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a, 8, 0, 0x45, 0, 0, 0x21, 0, 0, 0x40, 0, 0x40,
        0x11, 0x26, 0xbc, 10, 7, 0, 1, 10, 7, 0, 2, 0x12, 0x34, 0x56, 0x78, 0, 0x0d, 0x29, 0x45,
        0x73, 0x70, 0x72, 0x61, 0x74,
    ];
    assert_eq!(port.device().sent, [(linux.to_vec(), Offload::None)]);
}

#[test]
fn echo_requests_are_answered_and_timed() {
    let mut link = Link::new(1500);
    let six = crate::wire::ipv6::link_local(mac(2)).into();
    for to in [IpAddr::V4(v4(2)), six] {
        for len in [8, 56, 4000, 65_507] {
            let now = link.now;
            let seq = link.ports[0].stack_mut().ping(now, to, len).unwrap();
            link.pass(SECOND);
            let Some(Event::Echo { from, seq: answered, len: back, rtt_ns }) = link.events[0].pop()
            else {
                unreachable!("{to} {len}: {:?}", link.events)
            };
            assert_eq!((from, answered, back), (to, seq, len));
            assert!((2 * US..=5 * US).contains(&rtt_ns), "{rtt_ns}");
        }
    }
    let mut refused =
        |to: IpAddr, len| link.ports[0].stack_mut().ping(Instant::from_ns(9), to, len);
    assert_eq!(refused(six, 7), Err(PingError::Length));
    assert_eq!(refused(Ipv4Addr::BROADCAST.into(), 8), Err(PingError::NoRoute));
    assert_eq!(refused(Ipv4Addr::new(10, 8, 0, 1).into(), 8), Err(PingError::NoRoute));
}

#[test]
fn a_closed_port_is_told_to_who_sent_there() {
    let mut link = Link::new(1500);
    for to in [v4(2).into(), IpAddr::V6(crate::wire::ipv6::link_local(mac(2)))] {
        let to = SocketAddr::new(to, 9);
        link.send(0, to, &[1; 1400]);
        link.pass(MS);
        assert_eq!(link.events[0].pop(), Some(Event::Unreachable { to, port: 7 }));
    }
    // No more than so many a second.
    for _ in 0..200 {
        link.send(0, at(2, 9), b"x");
    }
    link.pass(MS);
    assert_eq!(counted(link.ports[1].stack(), "drop_port"), 202);
    assert_eq!(counted(link.ports[1].stack(), "drop_rate"), 102);
    link.pass(SECOND);
    link.send(0, at(2, 9), b"x");
    link.pass(MS);
    assert_eq!(counted(link.ports[0].stack(), "ports_unreachable"), 101);
}

#[test]
fn a_router_leads_to_others_and_says_what_the_way_carries() {
    let mut configs = [1, 2].map(fixed);
    configs[0].gateway4 = Some(v4(2));
    let mut link = Link::of(configs, 1500, Offloads::default(), 1);
    let far = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 7);
    link.send(0, far, &[5; 1400]);
    link.pass(MS);
    let (_, frame) = link.seen.iter().find(|(_, f)| f.len() > 1400).cloned().unwrap();
    assert_eq!(frame[..6], mac(2).0);
    // The router's answer: the next hop carries 1000.
    let quoted = &frame[HEADER..HEADER + 28];
    let message = crate::wire::icmp::Icmp::TooBig { mtu: 1000 };
    let error = [&message.emit(quoted)[..], quoted].concat();
    link.inject(0, ip_frame(v4(2), v4(1), crate::wire::ipv4::ICMP, &error));
    link.pass(MS);
    assert_eq!(counted(link.ports[0].stack(), "mtu_lowered"), 1);
    link.seen.clear();
    link.send(0, far, &[5; 1400]);
    link.send(0, far, &[5; 972]);
    link.pass(MS);
    let lengths: Vec<_> = link.seen.iter().map(|(_, f)| f.len() - HEADER).collect();
    assert_eq!(lengths, [996, 20 + 1408 - 976, 1000]);
    // After ten minutes the way is tried anew.
    link.pass(601 * SECOND);
    link.seen.clear();
    link.send(0, far, &[5; 1400]);
    link.pass(MS);
    assert!(link.seen.iter().any(|(_, f)| f.len() == HEADER + 28 + 1400));
}

/// A whole IPv4 packet from 2's hardware address to 1's.
pub(super) fn ip_frame(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, upper: &[u8]) -> Vec<u8> {
    use crate::wire::ethernet::{Ethernet, IPV4};
    let header = crate::wire::ipv4::Ipv4 { protocol, ..paths::v4(from, to) };
    let ethernet = Ethernet { to: mac(1), from: mac(2), kind: IPV4 };
    [&ethernet.emit()[..], &header.emit(upper.len()), upper].concat()
}

#[test]
fn a_frame_of_joined_segments_becomes_datagrams_of_a_burst_and_the_next() {
    let mut link = Link::new(1500);
    let payload: Vec<u8> = (0..70 * 10 + 3).map(|i| (i / 10) as u8).collect();
    let udp = crate::wire::udp::Udp { from: 9, to: 7, checksum: 0 }.emit(payload.len());
    let frame = ip_frame(v4(2), v4(1), 17, &[&udp[..], &payload].concat());
    let port = &mut link.ports[0];
    port.device_mut()
        .inbox
        .push_back((frame.clone(), RxOffload { checksum_valid: true, segment_size: 10 }));
    port.device_mut()
        .inbox
        .push_back((frame, RxOffload { checksum_valid: true, segment_size: 1000 }));
    let mut got = Vec::new();
    for expected in [32, 32, 8] {
        let n = port.recv_burst();
        assert_eq!(n, expected);
        got.extend((0..n).map(|i| port.datagram(i).1.to_vec()));
    }
    assert!((0..70).all(|i| got[i] == [i as u8; 10]));
    assert_eq!((&got[70][..], &got[71]), (&[70; 3][..], &payload));
}

/// A long message's datagrams leave as few frames, and arrive as what they were, in order.
#[test]
fn long_datagrams_to_one_peer_are_gathered() {
    let offloads = Offloads { checksum: true, udp_segments: true, ..Offloads::default() };
    let mut link = Link::of([1, 2].map(fixed), 1500, offloads, 1);
    link.send(0, at(2, 7), b"x");
    link.pass(SECOND);
    for six in [false, true] {
        let (ip, room) = match six {
            true => (crate::wire::ipv6::link_local(mac(2)).into(), 1452),
            false => (IpAddr::V4(v4(2)), 1472),
        };
        let to = SocketAddr::new(ip, 7);
        link.send(0, to, b"who are you");
        link.pass(SECOND);
        link.got[1].clear();
        link.seen.clear();
        let mut lens = alloc::vec![room; 100];
        lens.extend([700, 1100, 20, room, room, 0, 1300, 1300, 1300]);
        let sent: Vec<Vec<u8>> =
            lens.iter().enumerate().map(|(i, len)| alloc::vec![i as u8; *len]).collect();
        for bytes in &sent {
            link.ports[0].turn(link.now);
            let (a, b) = bytes.split_at(bytes.len() / 2);
            assert_eq!(link.ports[0].send(Addr::Net(to), &[a, b]), Sent::Yes);
        }
        link.ports[0].device_mut().full = true;
        link.ports[0].flush();
        assert!(!link.ports[0].stack().is_idle(), "the last ones wait");
        link.ports[0].device_mut().full = false;
        link.pass(MS);
        let got: Vec<_> = link.got[1].iter().map(|(_, bytes)| bytes.clone()).collect();
        assert!(got == sent, "{} of {}", got.len(), sent.len());
        let lengths: Vec<_> = link.seen.iter().map(|(_, frame)| frame.len()).collect();
        assert!(lengths.len() <= 8, "{lengths:?}");
        assert!(link.ports[0].stack().is_idle());
    }
}

#[test]
fn a_device_that_is_full_is_tried_again_by_the_caller_and_by_the_outbox() {
    let mut link = Link::new(1500);
    link.send(0, at(2, 7), b"a");
    link.pass(MS);
    link.ports[0].device_mut().full = true;
    assert_eq!(link.send(0, at(2, 7), b"b"), Sent::Full);
    // Fragments are taken and wait.
    assert_eq!(link.send(0, at(2, 7), &[3; 4000]), Sent::Yes);
    link.pass(MS);
    assert_eq!(link.got[1].len(), 1);
    link.ports[0].device_mut().full = false;
    link.pass(MS);
    assert_eq!(link.got[1].last().unwrap().1, [3; 4000]);
}

/// What waited for a device that took nothing any more waited for ever: the stack never rested, and its thread never slept.
#[test]
fn a_device_that_stays_full_is_given_up_by_the_outbox() {
    let mut link = Link::new(1500);
    link.send(0, at(2, 7), b"a");
    link.pass(MS);
    link.ports[0].device_mut().full = true;
    assert_eq!(link.send(0, at(2, 7), &[3; 4000]), Sent::Yes);
    link.pass(50 * MS);
    assert_eq!(link.ports[0].stack().stats().drop_outbox, 0);
    link.pass(100 * MS);
    assert_eq!(link.ports[0].stack().stats().drop_outbox, 3);
    assert!(link.ports[0].stack().is_idle());
    link.ports[0].device_mut().full = false;
    link.send(0, at(2, 7), &[4; 4000]);
    link.pass(MS);
    assert_eq!(link.got[1].last().unwrap().1, [4; 4000]);
}

#[test]
fn ports_are_bound_once_and_chosen_where_nobody_minds() {
    let mut stack = Stack::new(fixed(1), Info::without_offloads(mac(1), 1500), Rng::seeded(1));
    assert_eq!(stack.bind(80), Ok(80));
    assert_eq!(stack.bind(80), Err(BindError::InUse));
    for _ in 1..64 {
        assert!(stack.bind(0).unwrap() >= 49_152);
    }
    assert_eq!(stack.bind(0), Err(BindError::TooMany));
    stack.unbind(80);
    assert_eq!(stack.bind(80), Ok(80));
}

#[test]
fn what_cannot_be_sent_is_counted() {
    let mut link = Link::new(1500);
    let far = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 7);
    link.send(0, far, b"x");
    link.send(0, at(2, 0), b"x");
    link.send(0, at(1, 7), b"x");
    link.send(0, at(2, 7), &[0; 65_508]);
    let stack = link.ports[0].stack();
    assert_eq!((counted(stack, "drop_no_route"), counted(stack, "drop_invalid")), (2, 2));
}
