//! Tests of several clients of one server in shared memory: no client harms the others.

use super::*;

fn open(name: &str, listens: bool) -> Frames {
    Frames::open(&Options { name: name.to_owned(), listens, mac: None, mtu: 9000 }).unwrap()
}

fn received(device: &mut Frames) -> usize {
    let mut n = 0;
    // Long enough for a listener to accept.
    for _ in 0..5000 {
        n += device.recv_burst();
    }
    n
}

fn frame(to: Mac, from: Mac) -> Vec<u8> {
    [&to.0[..], &from.0, &[8, 0], &[7; 5000]].concat()
}

/// Sends to a client that takes no frames. The frame stood first in the stack's outbox, and no
/// other peer got an answer to its ARP.
#[test]
fn a_client_that_takes_nothing_holds_up_nobody_else() {
    let name = format!("frames-{}", std::process::id());
    let (mut server, mut stuck, mut other) =
        (open(&name, true), open(&name, false), open(&name, false));
    let macs = [server.info().mac, stuck.info().mac, other.info().mac];
    received(&mut server);
    assert_eq!(received(&mut stuck) + received(&mut other), 0);
    for (n, client) in [(1, &mut stuck), (2, &mut other)] {
        assert_eq!(client.send(&[&frame(macs[0], macs[n])], Offload::None), Sent::Yes);
    }
    assert_eq!(received(&mut server), 2);
    let lost = frame(macs[1], macs[0]);
    for _ in 0..1000 {
        assert_eq!(server.send(&[&lost], Offload::None), Sent::Yes);
    }
    assert!(server.counted.unsent > 0);
    assert_eq!(server.send(&[&frame(macs[2], macs[0])], Offload::None), Sent::Yes);
    assert_eq!(received(&mut other), 1);
    assert!(received(&mut stuck) > 0);
}
