//! Tests of frames whose ends the device leaves in memory that the peer can write.

use super::*;

/// Makes two hosts, the second with a device that leaves the ends of long frames. Datagrams over
/// IPv4 have a checksum if `checksum`.
fn leaving(checksum: bool) -> Network {
    let options = [1, 2].map(|last| StackOptions { udp4_checksum: checksum, ..static_ipv4(last) });
    let mut net = Network::of(options, 9000, Offloads::default(), 1);
    net.sockets[1].interface_mut().device_mut().leaves = true;
    net
}

/// Sends datagrams of these lengths to the second host. Returns how many of them arrived with
/// their end left.
fn send(net: &mut Network, to: SocketAddr, lens: &[usize]) -> usize {
    let sent: Vec<_> = lens.iter().map(|&n| (0..n).map(|i| i as u8).collect::<Vec<_>>()).collect();
    net.delivered[1].clear();
    let before = net.left[1];
    for bytes in &sent {
        assert_eq!(net.send(0, to, bytes), Sent::Yes);
        net.run_for(SECOND);
    }
    let delivered: Vec<_> = net.delivered[1].iter().map(|(_, bytes)| bytes.clone()).collect();
    assert!(delivered == sent, "{} of {}", delivered.len(), sent.len());
    net.left[1] - before
}

#[test]
fn the_fast_path_leaves_the_end_of_a_datagram() {
    let mut net = leaving(false);
    // The fast path begins with the second datagram. The last one is no longer than its beginning.
    assert_eq!(send(&mut net, at(2, 7), &[5000, 5000, 8972, LEFT_HEAD, 40]), 3);
}

/// The slow path copies a frame before it checks it, because the peer may change what it checks.
#[test]
fn the_slow_path_copies_a_frame_first() {
    assert_eq!(send(&mut leaving(true), at(2, 7), &[5000, 5000, 8972]), 0);
    let v6 = SocketAddr::new(crate::wire::ipv6::link_local(mac(2)).into(), 7);
    assert_eq!(send(&mut leaving(false), v6, &[5000, 5000]), 0);
    // Fragments are frames of which the stack keeps the bytes.
    assert_eq!(send(&mut leaving(false), at(2, 7), &[20_000, 20_000]), 0);
}
