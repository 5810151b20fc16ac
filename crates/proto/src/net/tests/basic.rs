//! Tests of two IP stacks on a link without faults.

use super::*;

#[test]
fn the_first_datagram_resolves_the_neighbour_and_later_ones_use_the_cache() {
    let mut net = Network::new(1500);
    net.send(0, at(2, 7), b"hello");
    net.run_for(MS);
    assert_eq!(net.delivered[1], [(at(1, 7), b"hello".to_vec())]);
    let frames = net.frames.len();
    for i in 0..10u8 {
        net.send(1, at(1, 7), &[i; 100]);
    }
    net.run_for(MS);
    assert_eq!(net.delivered[0].len(), 10);
    // Host 2 learned the address of host 1 from its request, and confirms it once while it sends.
    assert_eq!(net.frames.len(), frames + 12);
    let counters = net.sockets.each_ref().map(|s| *s.interface().stack().counters());
    assert_eq!([counters[0].neighbours_solicited, counters[1].neighbours_solicited], [1, 0]);
    assert_eq!((counters[0].datagrams_out, counters[1].datagrams_out), (0, 10));
}

#[test]
fn datagrams_of_every_length_arrive_with_and_without_offload_over_ipv4_and_ipv6() {
    for (checksum, offload) in [(true, false), (true, true), (false, false)] {
        let options =
            [1, 2].map(|last| StackOptions { udp4_checksum: checksum, ..static_ipv4(last) });
        let offloads = Offloads { checksum: offload, ..Offloads::default() };
        let mut net = Network::of(options, 1500, offloads, 7);
        let six = SocketAddr::new(crate::wire::ipv6::link_local(mac(2)).into(), 7);
        let mut sent = Vec::new();
        for len in (0..80).chain([1451, 1452, 1453, 1471, 1472, 1473, 2000, 8192, 65_507]) {
            for to in [at(2, 7), six] {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
                assert_eq!(net.send(0, to, &bytes), Sent::Yes);
                net.run_for(MS);
                sent.push(bytes);
            }
        }
        let delivered: Vec<_> = net.delivered[1].iter().map(|(_, bytes)| bytes.clone()).collect();
        assert!(delivered == sent, "{} of {}", delivered.len(), sent.len());
        assert!(net.delivered[1].iter().all(|(from, _)| from.port() == 7));
        let counters = *net.stack(0).counters();
        let unfragmented = sent.iter().filter(|b| b.len() <= 1452).count() as u64;
        assert!(counters.datagrams_out >= unfragmented - 2, "{counters:?}");
    }
}

/// A datagram that the IP stack sends equals the golden bytes that Linux sent for it, except for
/// the identification, which is 0 here.
#[test]
fn a_datagram_equals_that_of_linux() {
    let mut rng = Rng::seeded(3);
    let mut socket = UdpSocket::new(
        Interface::new(static_ipv4(1), Nic::new(0xa, 1500), rng.fork()),
        0x1234,
        false,
    )
    .unwrap();
    socket.interface_mut().set_neighbour(v4(2).into(), mac(0xb));
    socket.send(Addr::Net(at(2, 0x5678)), &[b"spr", b"at"]);
    let linux = [
        2, 0, 0, 0, 0, 0x0b, 2, 0, 0, 0, 0, 0x0a, 8, 0, 0x45, 0, 0, 0x21, 0, 0, 0x40, 0, 0x40,
        0x11, 0x26, 0xbc, 10, 7, 0, 1, 10, 7, 0, 2, 0x12, 0x34, 0x56, 0x78, 0, 0x0d, 0x29, 0x45,
        0x73, 0x70, 0x72, 0x61, 0x74,
    ];
    assert_eq!(socket.interface().device().sent, [(linux.to_vec(), Offload::None)]);
}

#[test]
fn echo_requests_get_replies_with_a_round_trip_time() {
    let mut net = Network::new(1500);
    let six = crate::wire::ipv6::link_local(mac(2)).into();
    for to in [IpAddr::V4(v4(2)), six] {
        for len in [8, 56, 4000, 65_507] {
            let seq = net.ping(0, to, len).unwrap();
            net.run_for(SECOND);
            let Some(StackEvent::EchoReply { from, seq: answered, len: back, rtt_ns }) =
                net.events[0].pop()
            else {
                unreachable!("{to} {len}: {:?}", net.events)
            };
            assert_eq!((from, answered, back), (to, seq, len));
            assert!((2 * US..=5 * US).contains(&rtt_ns), "{rtt_ns}");
        }
    }
    let mut refused = |to: IpAddr, len| net.ping(0, to, len);
    assert_eq!(refused(six, 7), Err(PingError::Length));
    assert_eq!(refused(Ipv4Addr::BROADCAST.into(), 8), Err(PingError::NoRoute));
    assert_eq!(refused(Ipv4Addr::new(10, 8, 0, 1).into(), 8), Err(PingError::NoRoute));
}

#[test]
fn a_closed_port_is_reported_to_the_sender_up_to_the_rate_limit() {
    let mut net = Network::new(1500);
    for to in [v4(2).into(), IpAddr::V6(crate::wire::ipv6::link_local(mac(2)))] {
        let to = SocketAddr::new(to, 9);
        net.send(0, to, &[1; 1400]);
        net.run_for(MS);
        assert_eq!(net.events[0].pop(), Some(StackEvent::PortUnreachable { to, port: 7 }));
    }
    // The limit is 100 errors per second; two were sent above.
    for _ in 0..200 {
        net.send(0, at(2, 9), b"x");
    }
    net.run_for(MS);
    assert_eq!(counted(net.stack(1), "drop_port"), 202);
    assert_eq!(counted(net.stack(1), "drop_rate"), 102);
    net.run_for(SECOND);
    net.send(0, at(2, 9), b"x");
    net.run_for(MS);
    assert_eq!(counted(net.stack(0), "ports_unreachable"), 101);
}

#[test]
fn a_gateway_forwards_and_its_errors_lower_the_path_mtu() {
    let mut options = [1, 2].map(static_ipv4);
    options[0].gateway4 = Some(v4(2));
    let mut net = Network::of(options, 1500, Offloads::default(), 1);
    let far = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 7);
    net.send(0, far, &[5; 1400]);
    net.run_for(MS);
    let (_, frame) = net.frames.iter().find(|(_, f)| f.len() > 1400).cloned().unwrap();
    assert_eq!(frame[..6], mac(2).0);
    // The router reports that its next hop has an MTU of 1000.
    let quoted = &frame[HEADER..HEADER + 28];
    let message = crate::wire::icmp::Icmp::TooBig { mtu: 1000 };
    let error = [&message.emit(quoted)[..], quoted].concat();
    net.inject(0, ip_frame(v4(2), v4(1), crate::wire::ipv4::ICMP, &error));
    net.run_for(MS);
    assert_eq!(counted(net.stack(0), "mtu_lowered"), 1);
    net.frames.clear();
    net.send(0, far, &[5; 1400]);
    net.send(0, far, &[5; 972]);
    net.run_for(MS);
    let lengths: Vec<_> = net.frames.iter().map(|(_, f)| f.len() - HEADER).collect();
    assert_eq!(lengths, [996, 20 + 1408 - 976, 1000]);
    // The lowered path MTU expires after ten minutes.
    net.run_for(601 * SECOND);
    net.frames.clear();
    net.send(0, far, &[5; 1400]);
    net.run_for(MS);
    assert!(net.frames.iter().any(|(_, f)| f.len() == HEADER + 28 + 1400));
}

#[test]
fn the_datagrams_of_a_coalesced_frame_fill_this_burst_and_the_next() {
    let mut net = Network::new(1500);
    let payload: Vec<u8> = (0..70 * 10 + 3).map(|i| (i / 10) as u8).collect();
    let udp = crate::wire::udp::Udp { from: 9, to: 7, checksum: 0 }.emit(payload.len());
    let frame = ip_frame(v4(2), v4(1), 17, &[&udp[..], &payload].concat());
    let socket = &mut net.sockets[0];
    socket
        .interface_mut()
        .device_mut()
        .inbox
        .push_back((frame.clone(), RxOffload { checksum_valid: true, segment_size: 10, left: 0 }));
    socket
        .interface_mut()
        .device_mut()
        .inbox
        .push_back((frame, RxOffload { checksum_valid: true, segment_size: 1000, left: 0 }));
    let mut datagrams = Vec::new();
    for expected in [32, 32, 8] {
        let n = socket.recv_burst();
        assert_eq!(n, expected);
        datagrams.extend((0..n).map(|i| socket.datagram(i).1.to_vec()));
    }
    assert!((0..70).all(|i| datagrams[i] == [i as u8; 10]));
    assert_eq!((&datagrams[70][..], &datagrams[71]), (&[70; 3][..], &payload));
}

#[test]
fn a_port_is_bound_once_and_port_0_binds_a_free_one() {
    let mut stack =
        Stack::new(static_ipv4(1), Info::without_offloads(mac(1), 1500), Rng::seeded(1));
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
fn datagrams_that_cannot_be_sent_are_counted() {
    let mut net = Network::new(1500);
    let far = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 7);
    net.send(0, far, b"x");
    net.send(0, at(2, 0), b"x");
    net.send(0, at(1, 7), b"x");
    net.send(0, at(2, 7), &[0; 65_508]);
    let stack = net.stack(0);
    assert_eq!((counted(stack, "drop_no_route"), counted(stack, "drop_invalid")), (2, 2));
}
