//! Tests of the transport's limits: the cost of an idle session, sessions and requests that expire,
//! and memory that follows the bytes that arrived.

use alloc::vec::Vec;

use super::{Net, Seen, pattern};
use crate::Instant;
use crate::fault::Fault;
use crate::rpc::body::Body;
use crate::rpc::incoming::{Incoming, Inserted, claim};
use crate::rpc::session::{ClientSession, ServerSession};
use crate::rpc::slot::Slot;
use crate::rpc::{Config, Message, RequestError, RpcError, Slice};
use crate::time::{MS, SECOND};

/// The sizes of sessions and slots that `docs/results/rpc.md` and the README may quote.
#[test]
fn sizes() {
    assert_eq!(size_of::<ServerSession>(), 64);
    assert_eq!(size_of::<ClientSession>(), 64);
    assert!(size_of::<Slot>() <= 256, "{}", size_of::<Slot>());
}

/// After every session has had a request, the endpoints keep nothing of the requests.
#[test]
fn idle_sessions_hold_nothing() {
    for lossless in [false, true] {
        let mut net = Net::new(1, 2, lossless);
        let sessions: Vec<_> = (0..3000).map(|_| net.connect(1, 0)).collect();
        for (n, &session) in sessions.iter().enumerate() {
            net.request(1, session, n as u64, pattern(n as u64, 100));
            if n % 64 == 0 {
                net.run(MS, |_| false);
            }
        }
        assert!(net.run(10 * SECOND, |net| net.hosts[1].seen.len() == 3000));
        net.run(SECOND, |_| false);
        let sizes = net.hosts[0].endpoint.sizes();
        assert_eq!(
            (sizes.sessions, sizes.slots, sizes.blocks),
            (3000, 0, 0),
            "lossless {lossless}"
        );
        let sizes = net.hosts[1].endpoint.sizes();
        assert_eq!((sizes.clients, sizes.slots, sizes.blocks), (3000, 0, 0));
        // Expect: on a lossy wire by DONE, many sessions in a packet.
        if !lossless {
            assert_eq!(net.stats(0).done, 3000);
            assert_eq!(net.stats(0).evicted, 0);
        }
    }
}

/// A path that was congested once has a small window, which grants alone would not open in time:
/// each window then took as long as a probe waits.
#[test]
fn a_small_window_is_opened_by_acknowledgements_and_not_by_probes() {
    let mut net = Net::new(5, 2, false);
    let session = net.connect(1, 0);
    net.request(1, session, 0, pattern(0, 10));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    net.seen(1);
    for n in 1..4 {
        for host in &mut net.hosts {
            host.endpoint.shared.peers.slab[0].path.window = 32 << 10;
        }
        net.request(1, session, n, pattern(n, 1_000_000));
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        net.seen(1);
    }
    assert_eq!((net.stats(0).nacks, net.stats(1).nacks, net.stats(1).probes), (0, 0, 0));
}

#[test]
fn a_loaded_session_sends_no_acknowledgements() {
    let mut net = Net::new(2, 2, false);
    let session = net.connect(1, 0);
    net.record();
    for n in 0..200 {
        net.request(1, session, n, pattern(n, 100));
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        net.seen(1);
    }
    // Expect: opening takes two, then one packet each way an echo.
    assert_eq!(net.sent(1, 0).len(), 202);
    assert_eq!(net.sent(0, 1).len(), 202);
    net.run(SECOND, |_| false);
    assert_eq!(net.sent(1, 0).len(), 1, "DONE");
}

#[test]
fn kept_replies_are_asked_about_before_they_are_dropped() {
    let mut net = Net::new(3, 0, false);
    net.add(Config { max_kept: 8, ..Config::default() });
    net.add(Config { done_after_ns: 60 * SECOND, ..Config::default() });
    for n in 0..100 {
        let session = net.connect(1, 0);
        net.request(1, session, n, pattern(n, 100));
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        net.seen(1);
    }
    assert_eq!(net.stats(0).evicted, 0);
    assert!(net.stats(0).done > 80);
}

#[test]
fn idle_sessions_expire_and_busy_ones_do_not() {
    let mut net = Net::new(4, 0, false);
    net.add(Config { idle_expiry_ns: 10 * SECOND, ..Config::default() });
    net.add(Config::default());
    net.hosts[0].echo = false;
    let (idle, busy) = (net.connect(1, 0), net.connect(1, 0));
    net.request(1, busy, 1, pattern(1, 10));
    net.run(60 * SECOND, |_| false);
    assert_eq!((net.stats(0).sessions_opened, net.stats(0).sessions_ended), (2, 1));
    // Expect: the client learns it when it uses the session, and nothing is executed.
    net.hosts[0].echo = true;
    net.request(1, idle, 2, pattern(1, 10));
    assert!(net.run(5 * SECOND, |net| net.hosts[1].seen.len() == 2));
    assert_eq!(net.stats(0).requests, 1);
}

#[test]
fn half_requests_are_given_up() {
    let mut net = Net::new(5, 2, false);
    let session = net.connect(1, 0);
    net.request(1, session, 0, pattern(0, 10));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    let rpc = net.request(1, session, 1, pattern(1, 500_000));
    net.settle();
    let now = net.now;
    net.hosts[1].endpoint.cancel(now, rpc);
    net.run(MS, |_| false);
    assert_eq!(net.hosts[0].endpoint.sizes().slots, 1);
    net.run(20 * SECOND, |_| false);
    assert_eq!(net.hosts[0].endpoint.sizes().slots, 0);
    assert_eq!(net.stats(0).abandoned, 1, "{:?}", net.stats(0));
}

/// Clients that stopped in the middle of long requests, and began others in their place, kept all
/// other clients out: the server gave each request up after five seconds only.
#[test]
fn stalled_requests_make_room_for_others_within_two_seconds() {
    for lossless in [false, true] {
        let mut net = Net::new(8, 0, lossless);
        net.add(Config { max_assembling_bytes: 4 * claim(1 << 20), ..Config::default() });
        (1..=5).for_each(|_| _ = net.add(Config { serve: false, ..Config::default() }));
        let sessions: Vec<_> = (1..=5).map(|host| net.connect(host, 0)).collect();
        net.run(MS, |_| false);
        for host in 1..=4 {
            net.request(host, sessions[host - 1], 0, pattern(0, 1 << 20));
            let begun = |net: &mut Net| {
                net.hosts[0].endpoint.sizes().assembling_bytes == host * claim(1 << 20)
            };
            assert!(net.run(MS, begun), "{host}, lossless {lossless}");
            net.hosts[host].up = false;
        }
        let honest = sessions[4];
        let begin = net.now;
        for n in 1.. {
            net.request(5, honest, n, pattern(n, 1 << 20));
            assert!(net.run(5 * SECOND, |net| !net.hosts[5].seen.is_empty()));
            if let [Seen::Response(..)] = net.seen(5)[..] {
                break;
            }
            assert!(net.now.since(begin) < 2 * SECOND, "it is kept out, lossless {lossless}");
        }
        assert!(net.stats(0).abandoned > 0);
    }
}

#[test]
fn the_queue_has_a_limit() {
    let mut net = Net::new(6, 0, false);
    net.add(Config::default());
    net.add(Config { queue_limit: 5, ..Config::default() });
    net.hosts[0].echo = false;
    let session = net.connect(1, 0);
    let request = |net: &mut Net, len| {
        let now = net.now;
        let message = pattern(1, len).into();
        net.hosts[1].endpoint.request(now, session, 1, message, Instant::NEVER).map(|_| ())
    };
    (0..5).for_each(|_| assert_eq!(request(&mut net, 10), Ok(())));
    assert_eq!(request(&mut net, 10), Err(RequestError::QueueFull));
    net.run(MS, |_| false);
    (0..8).for_each(|_| assert_eq!(request(&mut net, 10), Ok(())));
    assert_eq!(request(&mut net, 10), Err(RequestError::QueueFull));
    let long = crate::rpc::MAX_MESSAGE + 1;
    assert_eq!(request(&mut net, long), Err(RequestError::TooLong(long)));
}

/// A buffer that doubled at each step moved a message of 1 MB more than once while it arrived.
#[test]
fn the_buffer_of_a_long_message_is_moved_early() {
    for packet in [1_400, 8_000, 65_000] {
        let len = 1_000_000;
        let mut incoming = Incoming::new(Instant::ZERO, len, packet, len);
        let (mut moved, mut capacity) = (0, 0);
        while incoming.contig < len {
            let (before, at) = (incoming.bytes.len(), incoming.contig);
            let bytes = alloc::vec![1; packet.min(len - at) as usize];
            assert_ne!(incoming.insert(len, at, Body::Burst(&bytes)), Inserted::Misfit);
            if incoming.bytes.capacity() != capacity {
                capacity = incoming.bytes.capacity();
                moved += before;
            }
            let arrived = incoming.bytes.len();
            assert!(capacity <= if arrived > 64 << 10 { 16 * arrived } else { 2 * arrived });
        }
        assert!(moved < 200_000, "packets of {packet}: {moved} bytes moved");
    }
}

#[test]
fn memory_follows_what_arrived() {
    // Expect: one packet of a message that claims 16 MiB costs two packets.
    let mut incoming = Incoming::new(Instant::ZERO, 16 << 20, 1000, 64 << 10);
    assert_eq!(incoming.insert(16 << 20, 0, Body::Burst(&[1; 1000])), Inserted::New);
    assert!(incoming.bytes.capacity() <= 2000);
    // Expect: nothing beyond the grant, rounded up to a packet, is taken.
    assert_eq!(incoming.insert(16 << 20, 66_000, Body::Burst(&[1; 1000])), Inserted::Misfit);
    assert_eq!(incoming.insert(16 << 20, 65_000, Body::Burst(&[1; 1000])), Inserted::New);
    assert!(incoming.bytes.capacity() <= 16 * 66_000);
    assert_eq!(incoming.insert(16 << 20, 65_000, Body::Burst(&[1; 1000])), Inserted::Duplicate);
    assert_eq!((incoming.contig, incoming.received), (1000, 2000));
    // Expect: the missing ones are named, up to what was seen.
    let missing = incoming.missing(66_000);
    assert_eq!(missing.base, 1000);
    assert_eq!(missing.bits.iter().map(|w| w.count_ones()).sum::<u32>(), 64);
}

/// Many long requests at once: the credit limits the bytes in flight, and all requests arrive.
#[test]
fn many_long_messages_share_the_credit() {
    let mut net = Net::new(7, 0, false);
    net.add(Config { credit_bytes: 64 << 10, unscheduled_bytes: 8 << 10, ..Config::default() });
    for _ in 0..4 {
        net.add(Config { serve: false, ..Config::default() });
    }
    net.fault(Fault { drop_ppm: 5_000, ..Fault::default() });
    for host in 1..5 {
        let session = net.connect(host, 0);
        (0..8).for_each(|n| {
            _ = net.request(host, session, n, pattern(n, 150_000 + 1000 * n as usize))
        });
    }
    let mut most = 0;
    assert!(
        net.run(60 * SECOND, |net| {
            let waiting: usize = net
                .shared
                .borrow()
                .in_flight
                .values()
                .filter(|d| d.1 == crate::Addr::Local(0))
                .count();
            most = most.max(waiting);
            (1..5).all(|host| net.hosts[host].seen.len() == 8)
        }),
        "{:?} {:?}",
        net.stats(0),
        (1..5).map(|h| (net.hosts[h].seen.len(), net.stats(h))).collect::<Vec<_>>()
    );
    // 32 messages' unscheduled bytes and one credit, in packets of 1432 bytes, and some for what is
    // sent again.
    assert!(most < 32 * 6 + 46 + 60, "{most} packets on the way");
    for host in 1..5 {
        for seen in net.seen(host) {
            let Seen::Response(_, n, bytes) = seen else { panic!("{seen:?}") };
            assert_eq!(bytes, pattern(n, 150_000 + 1000 * n as usize));
        }
    }
}

/// A client that stops while replies are under way holds their slices for a bounded time, wherever
/// the replies are: in the queue behind a full ring, half sent, or sent and not acknowledged. The
/// limit `stale_reply_ns` holds even if `stale_request_ns` is longer.
#[test]
fn a_client_that_stops_does_not_hold_slices_for_ever() {
    const REPLIES: u64 = 20;
    for (lossless, stale_request_ns) in [(true, 5), (true, 1000), (false, 5), (false, 1000)] {
        let mut net = Net::new(7, 0, lossless);
        net.shared.borrow_mut().capacity = 20;
        net.add(Config { stale_request_ns: stale_request_ns * SECOND, ..Config::default() });
        net.add(Config::default());
        net.hosts[0].echo = false;
        let sessions = [0, 1, 2].map(|_| net.connect(1, 0));
        for n in 0..REPLIES {
            net.request(1, sessions[n as usize % 3], n, pattern(n, 10));
        }
        assert!(net.run(SECOND, |net| net.hosts[0].seen.len() == REPLIES as usize));
        net.hosts[1].up = false;
        let now = net.now;
        for (n, seen) in net.seen(0).into_iter().enumerate() {
            let Seen::Request(rpc, ..) = seen else { panic!("{seen:?}") };
            let mut message = Message::from(&[n as u8; 16][..]);
            message.slices.push(Slice { segment: n as u32, offset: 0, len: [300, 60_000][n % 2] });
            net.hosts[0].endpoint.reply(now, rpc, message);
        }
        net.run(SECOND, |_| false);
        let early = net.hosts[0].released.len();
        net.run(10 * SECOND, |_| false);
        let after_ten = net.hosts[0].released.len();
        net.run(25 * SECOND, |_| false);
        assert_eq!(net.hosts[0].released.len(), REPLIES as usize, "{lossless} {stale_request_ns}");
        assert_eq!(
            after_ten == REPLIES as usize,
            stale_request_ns == 5,
            "{after_ten} of {REPLIES}"
        );
        let server = &net.hosts[0].endpoint;
        assert_eq!((server.sizes().slots, server.stats().abandoned), (0, REPLIES - early as u64));
        assert!(lossless || early == 0, "what a lossy driver took is not yet there");
        // Expect: the client learns what it has missed, and goes on.
        net.hosts[1].up = true;
        net.hosts[0].echo = true;
        net.request(1, sessions[0], 100, pattern(100, 10));
        assert!(
            net.run(20 * SECOND, |net| net.hosts[1].seen.len() == REPLIES as usize + 1),
            "{:?}",
            net.hosts[1].seen.len()
        );
        let seen = net.seen(1);
        let told = |seen: &Seen| {
            matches!(seen, Seen::Response(..) | Seen::Failed(_, _, RpcError::MaybeExecuted))
        };
        assert!(seen.iter().all(told), "{seen:?}");
        net.run(SECOND, |_| false);
        assert_eq!(net.hosts[0].endpoint.sizes().slots, 0);
    }
}
