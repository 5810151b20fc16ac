//! Tests of an RPC endpoint's ordinary course: sessions open, short and long messages are echoed,
//! many at once.

use super::{CloseReason, Config, Message, Net, RpcError, Seen, Slice, pattern};
use crate::Addr;
use crate::time::{MS, SECOND};
use alloc::vec::Vec;

fn echo(lossless: bool, len: usize) {
    let mut net = Net::new(1, 2, lossless);
    let session = net.connect(1, 0);
    let rpc = net.request(1, session, 7, pattern(1, len));
    assert!(
        net.run(10 * SECOND, |net| !net.hosts[1].seen.is_empty()),
        "{:?}",
        net.hosts[1].endpoint.stats()
    );
    assert_eq!(net.seen(1), [Seen::Response(rpc, 7, pattern(1, len))]);
    assert_eq!(net.seen(0).len(), 1);
}

#[test]
fn echoes_of_every_size() {
    for lossless in [false, true] {
        for len in [0, 1, 100, 1431, 1432, 1433, 2864, 10_000, 65_536, 65_537, 1_000_000, 16 << 20]
        {
            echo(lossless, len);
        }
    }
}

#[test]
fn many_sessions_and_channels_at_once() {
    for lossless in [false, true] {
        let mut net = Net::new(2, 3, lossless);
        let sessions: Vec<_> = (0..300).map(|n| (1 + n % 2, net.connect(1 + n % 2, 0))).collect();
        for (n, &(host, session)) in sessions.iter().enumerate() {
            for m in 0..20 {
                net.request(host, session, (n * 20 + m) as u64, pattern(n as u64, n * m));
            }
        }
        assert!(
            net.run(10 * SECOND, |net| net.hosts[1].seen.len() + net.hosts[2].seen.len() == 6000)
        );
        for host in [1, 2] {
            for seen in net.seen(host) {
                let Seen::Response(_, tag, bytes) = seen else { panic!("{seen:?}") };
                let (n, m) = (tag as usize / 20, tag as usize % 20);
                assert_eq!(bytes, pattern(n as u64, n * m));
            }
        }
        assert_eq!(net.hosts[0].endpoint.stats().requests, 6000);
        assert_eq!(net.hosts[0].endpoint.stats().sessions_opened, 300);
    }
}

/// A reply that the driver could not deliver any more used to keep its slices, and its share of the
/// server's memory for replies, for ever.
#[test]
fn a_reply_to_a_ring_that_is_gone_gives_its_slices_back() {
    for len in [10, 30_000] {
        let mut net = Net::new(3, 2, true);
        net.hosts[0].echo = false;
        let session = net.connect(1, 0);
        net.request(1, session, 7, pattern(1, 10));
        assert!(net.run(SECOND, |net| !net.hosts[0].seen.is_empty()));
        let Seen::Request(rpc, ..) = net.hosts[0].seen[0] else { panic!("{:?}", net.seen(0)) };
        net.hosts[1].up = false;
        net.shared.borrow_mut().gone.push(Addr::Local(1));
        let slice = Slice { segment: 0, offset: 5, len };
        let message = Message { bytes: Vec::new(), slices: core::iter::once(slice).collect() };
        let now = net.now;
        net.hosts[0].endpoint.reply(now, rpc, message);
        let host = &mut net.hosts[0];
        host.endpoint.output(now, &host.memory, &mut host.port);
        net.run(SECOND, |_| false);
        assert_eq!(net.hosts[0].released, [slice]);
    }
}

/// A restarted server does not know its old sessions. A client once sent requests with deadlines
/// shorter than the wait for an overdue answer on such a session for ever, since it never asked the
/// server about them.
#[test]
fn short_deadlines_find_out_that_the_server_has_started_anew() {
    let mut net = Net::new(4, 2, false);
    let session = net.connect(1, 0);
    net.request(1, session, 0, pattern(1, 10));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    net.seen(1);
    net.restart(0, Config::default());
    let deadline = net.now.after(MS);
    let rpc = net.request_by(1, session, 1, pattern(1, 10), deadline);
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 2), "{:?}", net.seen(1));
    let error = RpcError::Deadline { maybe_executed: true };
    assert_eq!(
        net.seen(1),
        [Seen::Failed(rpc, 1, error), Seen::Closed(session, CloseReason::Reset)]
    );
}
