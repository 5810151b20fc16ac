//! Tests of long messages, many at a time, over a wire that needs time for each byte.

use alloc::vec::Vec;

use super::{Net, Seen, pattern};
use crate::time::{MS, SECOND};
use crate::wire::rpc::Kind;

/// A message counts against the window of its path by its bytes, too: 16 packets of 64 KB once did
/// not. Its receiver acknowledges its last bytes by a GRANT.
#[test]
fn large_packets_count_against_the_window() {
    for (len, windowed) in [(120_000, false), (200_000, true)] {
        let mut net = Net::new(6, 2, false);
        net.shared.borrow_mut().max_payload = 65_488;
        let session = net.connect(1, 0);
        net.record();
        net.request(1, session, 1, pattern(1, len));
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        let acknowledges = |sent: &(crate::wire::rpc::Packet, Vec<u8>)| {
            sent.0.kind == Kind::Grant && sent.0.msg_len as usize == len
        };
        assert_eq!(net.sent(1, 0).iter().any(acknowledges), windowed, "{len} bytes");
    }
}

/// A message that waits longer than the receiver allows a stalled sender must not lose its rank by
/// that: of equal messages the oldest is the next one, so that all take about as long.
#[test]
fn equal_messages_take_turns_however_long_they_wait() {
    let (len, outstanding, all) = (1_000_000, 64, 192);
    let mut net = Net::new(5, 2, false);
    // A message takes half a millisecond each way, and all of them 32.
    net.shared.borrow_mut().byte_ps = 500;
    let sessions: Vec<_> = (0..outstanding / 8).map(|_| net.connect(1, 0)).collect();
    net.run(MS, |_| false);
    let message = pattern(1, len);
    let mut began = Vec::new();
    let mut took_ns = Vec::new();
    while took_ns.len() < all {
        while began.len() < took_ns.len() + outstanding {
            let n = began.len();
            net.request(1, sessions[n % sessions.len()], n as u64, message.clone());
            began.push(net.now);
        }
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        net.seen(0);
        for seen in net.seen(1) {
            let Seen::Response(_, n, _) = seen else { panic!("{seen:?}") };
            took_ns.push(net.now.since(began[n as usize]));
        }
    }
    // The first ones find an empty wire.
    let later = &mut took_ns[outstanding..all];

    later.sort_unstable();
    let (median, most) = (later[later.len() / 2], later[later.len() - 1]);
    assert!(most < 2 * median, "median {median} ns, most {most} ns");
}
