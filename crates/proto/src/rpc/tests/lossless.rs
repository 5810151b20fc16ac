//! Tests of drivers that lose nothing: a full ring, peers that leave, no retained replies, and
//! small messages that do not wait behind a megabyte.

use alloc::vec::Vec;

use super::{Net, Seen, Slice, pattern};
use crate::rpc::{CloseReason, Config, Message, RpcError};
use crate::time::{SECOND, US};
use crate::wire::rpc::{Kind, Packet};
use crate::{Addr, Rng};

#[test]
fn opening_takes_one_round_and_an_echo_two_packets() {
    let mut net = Net::new(1, 2, true);
    net.record();
    let session = net.connect(1, 0);
    net.request(1, session, 1, pattern(1, 100));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert_eq!(net.sent_kinds(1, 0), [Kind::Open, Kind::Data]);
    assert_eq!(net.sent_kinds(0, 1), [Kind::Accept, Kind::Data]);
    // Expect: nothing more is ever said about it, and no timer but the one that is armed already.
    net.run(10 * SECOND, |_| false);
    assert_eq!(net.sent_kinds(1, 0), []);
    assert_eq!(net.sent_kinds(0, 1), []);
    assert_eq!(net.hosts[0].endpoint.deadline(), None);
    assert_eq!(net.hosts[1].endpoint.deadline(), None);
}

#[test]
fn a_full_ring_loses_nothing_and_stops_nobody_else() {
    let mut net = Net::new(2, 3, true);
    net.shared.borrow_mut().capacity = 3;
    let (a, b) = (net.connect(1, 0), net.connect(2, 0));
    net.request(1, a, 1, pattern(1, 3_000_000));
    net.request(2, b, 2, pattern(2, 2_000_000));
    (3..30).for_each(|n| _ = net.request(2, b, n, pattern(n, 3000)));
    assert!(
        net.run(10 * SECOND, |net| net.hosts[1].seen.len() == 1 && net.hosts[2].seen.len() == 28)
    );
    for seen in net.seen(2).into_iter().chain(net.seen(1)) {
        let Seen::Response(_, n, bytes) = seen else { panic!("{seen:?}") };
        let len = [3_000_000, 2_000_000].get(n as usize - 1).copied().unwrap_or(3000);
        assert_eq!(bytes, pattern(n, len));
    }
    assert_eq!(net.stats(0).resent + net.stats(1).resent + net.stats(2).resent, 0);
}

/// The driver leaves datagrams in memory that the peer can write. They have messages of one packet,
/// and of several, of which the last may be short. All arrive.
#[test]
fn the_body_of_a_datagram_that_the_driver_leaves_is_taken_from_there() {
    let mut net = Net::new(11, 2, true);
    net.shared.borrow_mut().leave_from = 1000;
    let session = net.connect(1, 0);
    let lens = [100, 2000, 8000, 8200, 3_000_000];
    for (n, &len) in lens.iter().enumerate() {
        net.request(1, session, n as u64, pattern(n as u64, len));
    }
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == lens.len()));
    for seen in net.seen(1) {
        let Seen::Response(_, n, bytes) = seen else { panic!("{seen:?}") };
        assert!(bytes == pattern(n, lens[n as usize]), "message {n}");
    }
}

/// A datagram that the driver leaves is longer than its message: the endpoint drops it. The driver
/// shows the first 64 bytes, a header and 32 bytes of the body.
#[test]
fn a_datagram_that_is_left_and_longer_than_its_message_is_dropped() {
    let mut net = Net::new(12, 2, true);
    net.record();
    net.shared.borrow_mut().leave_from = 1000;
    let session = net.connect(1, 0);
    net.request(1, session, 1, pattern(1, 2000));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    net.seen(0);
    let (first, body) = net.sent(1, 0).pop().expect("the request");
    for (n, msg_len) in [32, 1999, 2000].into_iter().enumerate() {
        let packet = Packet { seq: first.seq + 1 + n as u32, msg_len, ..first };
        net.inject(Addr::Local(1), 0, net.datagram(&packet, &body));
    }
    net.settle();
    assert_eq!(net.stats(0).drop_field, 2);
    let seen = net.seen(0);
    assert!(matches!(&seen[..], [Seen::Request(_, bytes, _)] if *bytes == body), "{seen:?}");
}

/// A peer that opened session after session and emptied no ring once filled the queue of control
/// packets with its own answers, and no other peer got an answer as long as it stayed.
#[test]
fn a_peer_that_takes_no_answers_keeps_nobody_elses_out() {
    let mut net = Net::new(9, 3, true);
    net.record();
    net.connect(1, 0);
    assert!(net.run(SECOND, |net| net.stats(0).sessions_opened == 1));
    let (open, body) = net.sent(1, 0).swap_remove(0);
    net.hosts[1].up = false;
    for n in 0..5000 {
        let packet = Packet { seq: open.seq + n, token: u64::from(n), ..open };
        net.inject(Addr::Local(1), 0, net.datagram(&packet, &body));
    }
    net.settle();
    assert!(net.stats(0).drop_control > 0);
    let session = net.connect(2, 0);
    net.request(2, session, 1, pattern(1, 100));
    assert!(net.run(SECOND, |net| !net.hosts[2].seen.is_empty()));
}

/// A full ring whose receiver does not read: the endpoint offers packets to it less and less often.
#[test]
fn a_stuck_ring_is_tried_again_at_ease() {
    let mut net = Net::new(3, 2, true);
    net.shared.borrow_mut().capacity = 2;
    let session = net.connect(1, 0);
    net.request(1, session, 0, pattern(0, 10));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    net.hosts[0].up = false;
    net.request(1, session, 1, pattern(1, 100_000));
    net.settle();
    let mut waits = Vec::new();
    for _ in 0..20 {
        let before = net.now;
        assert!(net.step());
        waits.push(net.now.since(before));
    }
    assert!(waits.iter().skip(10).all(|&ns| ns >= 900 * US), "{waits:?}");
}

#[test]
fn a_short_reply_does_not_wait_behind_a_long_one() {
    let mut net = Net::new(4, 2, true);
    net.shared.borrow_mut().capacity = 100_000;
    net.hosts[0].echo = false;
    let session = net.connect(1, 0);
    net.request(1, session, 1, pattern(1, 10));
    net.request(1, session, 2, pattern(2, 10));
    assert!(net.run(SECOND, |net| net.hosts[0].seen.len() == 2));
    let rpcs = net
        .seen(0)
        .into_iter()
        .map(|seen| if let Seen::Request(rpc, ..) = seen { rpc } else { panic!() });
    let rpcs: Vec<_> = rpcs.collect();
    let now = net.now;
    let server = &mut net.hosts[0];
    server.endpoint.reply(now, rpcs[0], pattern(1, 16 << 20).into());
    assert!(server.endpoint.output(now, &server.memory, &mut server.port), "a turn sends a part");
    server.endpoint.reply(now, rpcs[1], pattern(2, 100).into());
    net.record();
    let server = &mut net.hosts[0];
    assert!(server.endpoint.output(now, &server.memory, &mut server.port));
    let sent = net.sent(0, 1);
    assert_eq!(sent[0].0.msg_len, 100);
    let bytes: usize = sent.iter().map(|(_, body)| body.len()).sum();
    assert!(bytes <= 300 << 10, "{bytes} bytes in one turn");
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 2));
}

#[test]
fn peers_that_are_gone() {
    let mut net = Net::new(5, 3, true);
    let (a, b, c) = (net.connect(1, 0), net.connect(1, 0), net.connect(2, 0));
    net.hosts[0].echo = false;
    let sent = net.request(1, a, 1, pattern(1, 100));
    net.request(2, c, 1, pattern(1, 100));
    assert!(net.run(SECOND, |net| net.hosts[0].seen.len() == 2));
    let never = crate::Instant::NEVER;
    let unsent =
        net.hosts[1].endpoint.request(net.now, b, 2, pattern(2, 100).into(), never).unwrap();
    net.shared.borrow_mut().gone.push(Addr::Local(0));
    net.settle();
    let mut seen = net.seen(1);
    seen.sort_by_key(|seen| matches!(seen, Seen::Closed(..)));
    assert_eq!(
        seen,
        [
            Seen::Failed(sent, 1, RpcError::MaybeExecuted),
            Seen::Failed(unsent, 2, RpcError::NotExecuted),
            Seen::Closed(a, CloseReason::PeerGone),
            Seen::Closed(b, CloseReason::PeerGone),
        ]
    );
    // Expect: the server forgets the sessions of a client that is gone, and only those.
    let mut net = Net::new(6, 3, true);
    (0..5000).for_each(|_| _ = net.connect(1, 0));
    let c = net.connect(2, 0);
    assert!(net.run(SECOND, |net| net.stats(0).sessions_opened == 5001));
    net.hosts[1].up = false;
    net.shared.borrow_mut().gone.push(Addr::Local(1));
    assert!(net.run(SECOND, |net| net.stats(0).sessions_ended == 5000));
    net.request(2, c, 1, pattern(1, 100));
    assert!(net.run(SECOND, |net| !net.hosts[2].seen.is_empty()));
}

#[test]
fn a_session_given_up_while_it_opens_is_closed_at_the_server() {
    let mut net = Net::new(7, 2, true);
    let session = net.connect(1, 0);
    net.settle();
    let now = net.now;
    net.hosts[1].endpoint.close(now, session);
    net.run(SECOND, |_| false);
    assert_eq!(net.seen(1), [Seen::Closed(session, CloseReason::Local)]);
    assert_eq!((net.stats(0).sessions_opened, net.stats(0).sessions_ended), (1, 1));
}

/// The endpoint returns each slice exactly once, whether its message is sent, fails or is dropped.
#[test]
fn slices_come_back_once() {
    for seed in 0..60 {
        let lossless = seed % 2 == 0;
        let mut rng = Rng::seeded(seed);
        let mut net = Net::new(seed, 0, lossless);
        net.add(Config { idle_expiry_ns: 2 * SECOND, ..Config::default() });
        net.add(Config::default());
        net.hosts[0].echo = false;
        if !lossless {
            net.fault(crate::fault::Fault { drop_ppm: 50_000, ..Default::default() });
        }
        let mut handed_in = [Vec::new(), Vec::new()];
        let mut number = 0;
        let mut message = |rng: &mut Rng| {
            let slices: arrayvec::ArrayVec<Slice, 3> = (0..rng.below(4))
                .map(|_| {
                    number += 1;
                    let most = if rng.below(4) == 0 { 20_000 } else { 300 };
                    let len = rng.below(most) as u32;
                    Slice { segment: number, offset: rng.below(40_000) as u32, len }
                })
                .collect();
            Message { bytes: pattern(1, rng.below(2000) as usize), slices }
        };
        let mut session = net.connect(1, 0);
        for tag in 0..40 {
            let m = message(&mut rng);
            let slices = m.slices.clone();
            let now = net.now;
            match net.hosts[1].endpoint.request(now, session, tag, m, crate::Instant::NEVER) {
                Ok(rpc) => {
                    handed_in[1].extend(slices);
                    if rng.below(6) == 0 {
                        net.hosts[1].endpoint.cancel(now, rpc);
                    }
                }
                Err(_) => session = net.connect(1, 0),
            }
            if rng.below(15) == 0 {
                net.hosts[1].endpoint.close(now, session);
            }
            (0..rng.below(20)).for_each(|_| _ = net.step());
            for seen in net.seen(0) {
                let Seen::Request(rpc, ..) = seen else { panic!() };
                let m = message(&mut rng);
                handed_in[0].extend(m.slices.clone());
                let now = net.now;
                net.hosts[0].endpoint.reply(now, rpc, m);
            }
        }
        net.fault(crate::fault::Fault::default());
        let now = net.now;
        net.hosts[1].endpoint.close(now, session);
        net.run(10 * SECOND, |_| false);
        net.shared.borrow_mut().gone.push(Addr::Local(1));
        net.run(SECOND, |_| false);
        for (host, mut handed_in) in handed_in.into_iter().enumerate() {
            let mut released = net.hosts[host].released.clone();
            released.sort_by_key(|slice| slice.segment);
            handed_in.sort_by_key(|slice| slice.segment);
            assert_eq!(released, handed_in, "seed {seed}, host {host}");
        }
    }
}

/// The receiver gets the bytes that a message's slices name, wherever packets cut them.
#[test]
fn slices_arrive_as_bytes() {
    for lossless in [false, true] {
        let mut net = Net::new(8, 2, lossless);
        let slices = [(0, 10), (100, 0), (7, 40_000)];
        let slices = slices.map(|(offset, len)| Slice { segment: 0, offset, len });
        let memory: Vec<u8> = net.hosts[1].memory.0.clone();
        for head in [0, 1, 1400, 1432, 9000] {
            let session = net.connect(1, 0);
            let message = Message { bytes: pattern(1, head), slices: slices.into() };
            let expected = [&pattern(1, head)[..], &memory[..10], &memory[7..40_007]].concat();
            net.request(1, session, 1, message);
            assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
            assert!(
                matches!(&net.seen(1)[..], [Seen::Response(_, 1, bytes)] if *bytes == expected)
            );
        }
    }
}

/// A short message is in the ring before the call that sends it returns, unless another message
/// waits before it.
#[test]
fn a_short_message_leaves_at_once_and_overtakes_nobody() {
    let mut net = Net::new(8, 2, true);
    let session = net.connect(1, 0);
    net.request(1, session, 0, pattern(0, 10));
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 1));
    assert_eq!((net.seen(0).len(), net.seen(1).len()), (1, 1));
    net.shared.borrow_mut().capacity = 2;
    net.record();
    (1..4).for_each(|tag| _ = net.request(1, session, tag, pattern(tag, 10)));
    assert_eq!(net.sent(1, 0).len(), 2, "the ring is full");
    net.shared.borrow_mut().capacity = 64;
    net.request(1, session, 4, pattern(4, 10));
    assert_eq!(net.sent(1, 0).len(), 0, "there is room, but one waits");
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 4));
    let arrived = net.seen(0).into_iter().map(|seen| match seen {
        Seen::Request(_, bytes, _) => bytes,
        other => panic!("{other:?}"),
    });
    assert!(arrived.eq((1..5).map(|tag| pattern(tag, 10))));
    assert_eq!(net.hosts[0].endpoint.sizes().slots, 0, "the replies took none");
}
