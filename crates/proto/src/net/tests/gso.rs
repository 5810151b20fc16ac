//! Tests of GSO batches: long datagrams to one peer leave in few frames, and stay in order.

use super::*;

#[test]
fn long_datagrams_to_one_peer_leave_in_few_frames() {
    let offloads = Offloads { checksum: true, udp_segments: true, ..Offloads::default() };
    let mut net = Network::of([1, 2].map(static_ipv4), 1500, offloads, 1);
    net.send(0, at(2, 7), b"x");
    net.run_for(SECOND);
    for six in [false, true] {
        let (ip, room) = match six {
            true => (crate::wire::ipv6::link_local(mac(2)).into(), 1452),
            false => (IpAddr::V4(v4(2)), 1472),
        };
        let to = SocketAddr::new(ip, 7);
        net.send(0, to, b"resolve");
        net.run_for(SECOND);
        net.delivered[1].clear();
        net.frames.clear();
        let mut lens = alloc::vec![room; 100];
        lens.extend([700, 1100, 20, room, room, 0, 1300, 1300, 1300]);
        let sent: Vec<Vec<u8>> =
            lens.iter().enumerate().map(|(i, len)| alloc::vec![i as u8; *len]).collect();
        for bytes in &sent {
            net.sockets[0].interface_mut().set_now(net.now);
            let (a, b) = bytes.split_at(bytes.len() / 2);
            assert_eq!(net.sockets[0].send(Addr::Net(to), &[a, b]), Sent::Yes);
        }
        net.sockets[0].interface_mut().device_mut().full = true;
        net.sockets[0].flush();
        assert!(!net.stack(0).is_idle(), "the last batch waits");
        net.sockets[0].interface_mut().device_mut().full = false;
        net.run_for(MS);
        let delivered: Vec<_> = net.delivered[1].iter().map(|(_, bytes)| bytes.clone()).collect();
        assert!(delivered == sent, "{} of {}", delivered.len(), sent.len());
        let lengths: Vec<_> = net.frames.iter().map(|(_, frame)| frame.len()).collect();
        assert!(lengths.len() <= 8, "{lengths:?}");
        assert!(net.stack(0).is_idle());
    }
}

/// A batch leaves before a later datagram to a peer whose cached route has expired. The bug: that
/// datagram left first.
#[test]
fn a_batch_leaves_before_a_datagram_without_a_cached_route() {
    let offloads = Offloads { checksum: true, udp_segments: true, ..Offloads::default() };
    let mut net = Network::of([1, 2].map(static_ipv4), 1500, offloads, 1);
    net.send(0, at(2, 7), b"x");
    net.run_for(SECOND);
    net.delivered[1].clear();
    // The second datagram needs fragments, so it goes by the transmit queue.
    let sent = [alloc::vec![1; 1400], alloc::vec![2; 4000], alloc::vec![3; 1400]];
    for bytes in &sent {
        net.sockets[0].interface_mut().set_now(net.now);
        assert_eq!(net.sockets[0].send(Addr::Net(at(2, 7)), &[bytes]), Sent::Yes);
    }
    assert_eq!(net.sockets[0].interface().device().sent.len(), 1, "the batch is at the device");
    net.sockets[0].flush();
    net.run_for(MS);
    let delivered: Vec<_> = net.delivered[1].iter().map(|(_, bytes)| bytes.clone()).collect();
    assert!(delivered == sent);
}
