//! Tests of the fast path of single-packet messages on a lossy driver: the conditions to take it,
//! each reason to leave it, the packets that it leaves to be flushed and retained, and the recovery
//! of its lost packets by the ordinary path. Tests with lossless drivers are in `lossless`.

use alloc::vec::Vec;

use super::{Host, Net, Seen, pattern};
use crate::fault::Fault;
use crate::rpc::shared::{DIRECT_BYTES, DIRECT_MAX};
use crate::rpc::{CHANNELS, CloseReason, Config, Message, RpcError, ServerRpc, SessionId, Slice};
use crate::time::{MS, SECOND, US};
use crate::wire::rpc::{ECHO, HEADER, Kind, RESENT, TTL};
use crate::{Addr, Instant};

/// The number of payload bytes in a full packet on the test's wire.
const MSS: usize = 1472 - HEADER - 8;

/// Opens a session of host 1 with no request under way and no reply retained. The test itself
/// replies for the server.
fn quiet(seed: u64) -> (Net, SessionId) {
    let mut net = Net::new(seed, 2, false);
    let session = net.connect(1, 0);
    net.request(1, session, 0, pattern(0, 10));
    net.run(SECOND, |_| false);
    assert_eq!((net.seen(0).len(), net.seen(1).len(), net.stats(0).done), (1, 1, 1));
    assert_eq!(net.hosts[0].endpoint.sizes().slots + net.hosts[1].endpoint.sizes().slots, 0);
    net.hosts[0].echo = false;
    net.record();
    (net, session)
}

/// The requests that the server, host 0, received since the last call.
fn asked(net: &mut Net) -> Vec<(ServerRpc, Vec<u8>)> {
    let asked = net.seen(0).into_iter().map(|seen| match seen {
        Seen::Request(rpc, bytes, _) => (rpc, bytes),
        other => panic!("{other:?}"),
    });
    asked.collect()
}

/// Waits for the next request at the server, host 0.
fn next_asked(net: &mut Net) -> ServerRpc {
    assert!(net.run(SECOND, |net| !net.hosts[0].seen.is_empty()));
    let all = asked(net);
    assert_eq!(all.len(), 1);
    all[0].0
}

/// The number of packets that host `from` sent to the other host without a turn.
fn sent_at_once(net: &Net, from: usize) -> usize {
    net.sent(from, 1 - from).len()
}

fn lose_all() -> Fault {
    Fault { drop_ppm: 1_000_000, ..Fault::default() }
}

#[test]
fn an_echo_is_two_packets_with_times_and_the_reply_is_kept() {
    let (mut net, session) = quiet(1);
    let by = net.now.after(SECOND);
    net.request_by(1, session, 1, pattern(1, 100), by);
    let sent = net.sent(1, 0);
    let [(packet, body)] = &sent[..] else { panic!("{sent:?}") };
    // Expect: a minute of silence makes the peer's clock stale, so that it is not echoed; ours is
    // there.
    assert_eq!((packet.kind, packet.flags, packet.ttl_us), (Kind::Data, TTL, 1_000_000));
    assert_eq!((&body[..], packet.ts_us), (&pattern(1, 100)[..], (net.now.as_ns() / US) as u16));
    let stamp_us = packet.ts_us;
    let rpc = next_asked(&mut net);
    net.now = net.now.after(700 * US);
    net.reply(0, rpc, pattern(2, 50));
    let sent = net.sent(0, 1);
    let [(packet, body)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((packet.flags & ECHO, packet.ts_echo_us), (ECHO, stamp_us.wrapping_add(700)));
    assert_eq!(body, &pattern(2, 50));
    assert_eq!((net.hosts[0].endpoint.sizes().slots, net.stats(0).replies), (1, 2));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert_eq!(net.hosts[1].endpoint.sizes().slots, 0);
    // Expect: the next request on the channel acknowledges it, without a word.
    net.request(1, session, 2, pattern(3, 10));
    let rpc = next_asked(&mut net);
    assert_eq!((net.hosts[0].endpoint.sizes().slots, net.stats(0).done), (0, 1));
    // Expect: and a client that becomes idle says so.
    net.reply(0, rpc, pattern(4, 10));
    net.run(SECOND, |_| false);
    assert_eq!((net.hosts[0].endpoint.sizes().slots, net.stats(0).done), (0, 2));
    assert_eq!((net.stats(1).probes, net.stats(0).resent, net.stats(1).responses), (0, 0, 3));
}

#[test]
fn what_a_turn_passed_is_flushed_once_and_nothing_is_not() {
    let (mut net, session) = quiet(2);
    let before = net.shared.borrow().flushes;
    let flushes = |net: &Net| net.shared.borrow().flushes - before;
    (1..4).for_each(|tag| _ = net.request(1, session, tag, pattern(tag, 20)));
    assert_eq!((sent_at_once(&net, 1), flushes(&net)), (3, 0));
    let now = net.now;
    assert!(!net.hosts[1].turn(now), "nothing more waits");
    assert_eq!(flushes(&net), 1);
    net.hosts[1].turn(now);
    assert_eq!(flushes(&net), 1);
    // Expect: with something in the queues too, all of it goes out by one.
    net.request(1, session, 4, pattern(4, 20));
    net.request(1, session, 5, pattern(5, MSS + 1));
    net.hosts[1].turn(now);
    assert_eq!((sent_at_once(&net, 1), flushes(&net)), (3, 2));
}

/// Requests that start together leave together, by the flush of the next output. The reply to the
/// last request of a burst leaves at once, since no other reply follows in its turn.
#[test]
fn requests_leave_together_and_the_last_reply_at_once() {
    let (mut net, session) = quiet(2);
    let flushes = |net: &Net| net.shared.borrow().flushes;
    let before = flushes(&net);
    let Host { endpoint, port, .. } = &mut net.hosts[1];
    let sent =
        endpoint.request_bytes_over(net.now, session, 1, &pattern(1, 10), Instant::NEVER, port);
    assert!(sent.is_some());
    assert!(endpoint.has_output(), "a caller that waits asks for the output");
    (2..4).for_each(|tag| _ = net.request(1, session, tag, pattern(tag, 10)));
    assert_eq!((sent_at_once(&net, 1), flushes(&net)), (3, before));
    let now = net.now;
    net.hosts[1].turn(now);
    assert_eq!((sent_at_once(&net, 1), flushes(&net)), (0, before + 1));
    assert!(!net.hosts[1].endpoint.has_output());
    assert!(net.run(SECOND, |net| net.hosts[0].seen.len() == 3));
    let rpcs = asked(&mut net);
    let before = flushes(&net);
    net.reply(0, rpcs[1].0, pattern(2, 10));
    net.reply(0, rpcs[0].0, pattern(1, 10));
    assert_eq!(flushes(&net), before);
    net.reply(0, rpcs[2].0, pattern(3, 10));
    assert_eq!((sent_at_once(&net, 0), flushes(&net)), (3, before + 1));
    let now = net.now;
    net.hosts[0].turn(now);
    assert_eq!(flushes(&net), before + 1);
}

#[test]
fn requests_step_back_and_keep_their_order() {
    // More than a packet, slices: these are sent by the turn.
    let slices = [Slice { segment: 0, offset: 0, len: 10 }];
    let sliced = Message { bytes: pattern(1, 10), slices: slices.into_iter().collect() };
    for (message, packets) in
        [(pattern(1, MSS).into(), 0), (pattern(1, MSS + 1).into(), 2), (sliced, 1)]
    {
        let (mut net, session) = quiet(3);
        net.request(1, session, 1, message);
        assert_eq!(sent_at_once(&net, 1), usize::from(packets == 0));
        net.settle();
        assert_eq!(net.sent(1, 0).len(), packets);
        assert!(net.run(SECOND, |net| !net.hosts[0].seen.is_empty()));
    }
    // Every channel is in use: one more request waits, and so does the next, though a channel is
    // free by then.
    let (mut net, session) = quiet(4);
    (0..=8).for_each(|tag| _ = net.request(1, session, tag, pattern(tag, 10)));
    assert_eq!(sent_at_once(&net, 1), CHANNELS);
    net.settle();
    assert_eq!(sent_at_once(&net, 1), 0);
    // The driver is full: the message waits, and the next one behind it though there is room again.
    let (mut net, session) = quiet(5);
    net.shared.borrow_mut().full = true;
    net.request(1, session, 1, pattern(1, 10));
    assert_eq!((net.stats(1).calls, sent_at_once(&net, 1)), (2, 0));
    net.shared.borrow_mut().full = false;
    net.request(1, session, 2, pattern(2, 10));
    assert_eq!(sent_at_once(&net, 1), 0);
    assert!(net.run(SECOND, |net| net.hosts[0].seen.len() == 2));
    assert!(asked(&mut net).into_iter().map(|a| a.1).eq([pattern(1, 10), pattern(2, 10)]));
}

/// A wire whose datagrams have 64 KB: what is sent directly is copied in case it is lost, so a long
/// message of one packet waits for the turn, which keeps the message itself.
#[test]
fn long_messages_of_one_packet_are_not_copied() {
    for (len, at_once) in [(DIRECT_BYTES, 1), (DIRECT_BYTES + 1, 0), (60_000, 0)] {
        let mut net = Net::new(17, 2, false);
        net.shared.borrow_mut().max_payload = 65_488;
        let session = net.connect(1, 0);
        net.run(SECOND, |_| false);
        net.hosts[0].echo = false;
        net.record();
        net.request(1, session, 1, pattern(1, len));
        assert_eq!(sent_at_once(&net, 1), at_once);
        assert!(net.run(SECOND, |net| !net.hosts[0].seen.is_empty()));
        assert_eq!(net.sent(1, 0).len(), 1 - at_once);
        let (rpc, bytes) = asked(&mut net).remove(0);
        assert!(bytes == pattern(1, len));
        net.reply(0, rpc, bytes);
        assert_eq!(sent_at_once(&net, 0), at_once);
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        assert_eq!((net.sent(0, 1).len(), net.stats(0).resent), (1 - at_once, 0));
    }
}

#[test]
fn no_turn_passes_more_than_it_would_send() {
    let mut net = Net::new(6, 2, false);
    let most = DIRECT_MAX as usize;
    let sessions: Vec<_> = (0..most / CHANNELS + 1).map(|_| net.connect(1, 0)).collect();
    net.run(SECOND, |_| false);
    net.record();
    for (tag, &session) in (0..).zip(sessions.iter().flat_map(|s| [s; CHANNELS])) {
        net.request(1, session, tag, pattern(tag, 10));
    }
    assert_eq!(sent_at_once(&net, 1), most);
    // Expect: the turn's own budget is spent as well.
    let now = net.now;
    assert!(net.hosts[1].turn(now));
    assert_eq!(sent_at_once(&net, 1), 0);
    assert!(!net.hosts[1].turn(now));
    assert_eq!(sent_at_once(&net, 1), CHANNELS);
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == most + CHANNELS));
    assert_eq!(net.stats(1).resent + net.stats(0).resent, 0);
}

#[test]
fn replies_step_back_and_keep_their_order() {
    let slices = [Slice { segment: 0, offset: 0, len: 10 }];
    let sliced = Message { bytes: pattern(1, 10), slices: slices.into_iter().collect() };
    for (message, packets) in
        [(pattern(1, MSS).into(), 0), (pattern(1, MSS + 1).into(), 2), (sliced, 1)]
    {
        let (mut net, session) = quiet(7);
        net.request(1, session, 1, pattern(1, 10));
        let rpc = next_asked(&mut net);
        net.reply(0, rpc, message);
        assert_eq!(sent_at_once(&net, 0), usize::from(packets == 0));
        net.settle();
        assert_eq!((net.sent(0, 1).len(), net.hosts[0].endpoint.sizes().slots), (packets, 1));
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        net.run(SECOND, |_| false);
        assert_eq!((net.hosts[0].endpoint.sizes().slots, net.stats(0).resent), (0, 0));
    }
    // The driver is full: that reply waits, and the next one behind it. Both are kept, and counted,
    // once.
    let (mut net, session) = quiet(8);
    (1..3).for_each(|tag| _ = net.request(1, session, tag, pattern(tag, 10)));
    assert!(net.run(SECOND, |net| net.hosts[0].seen.len() == 2));
    let rpcs = asked(&mut net);
    net.shared.borrow_mut().full = true;
    net.reply(0, rpcs[0].0, pattern(1, 10));
    net.shared.borrow_mut().full = false;
    net.reply(0, rpcs[1].0, pattern(2, 10));
    assert_eq!((sent_at_once(&net, 0), net.stats(0).replies), (0, 3));
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 2));
    let tags = net.seen(1).into_iter().map(|seen| match seen {
        Seen::Response(_, tag, _) => tag,
        other => panic!("{other:?}"),
    });
    assert!(tags.eq([1, 2]));
    assert_eq!(net.hosts[0].endpoint.sizes().slots, 2);
    // A reply given twice, and one to a session that is over, change nothing.
    net.reply(0, rpcs[0].0, pattern(1, 10));
    let now = net.now;
    net.hosts[1].endpoint.close(now, session);
    net.run(SECOND, |_| false);
    net.reply(0, rpcs[1].0, pattern(1, 10));
    assert_eq!((net.stats(0).drop_reply, net.hosts[0].endpoint.sizes().slots), (2, 0));
}

#[test]
fn what_is_lost_comes_by_the_ordinary_way() {
    let (mut net, session) = quiet(9);
    net.fault(lose_all());
    net.request(1, session, 1, pattern(1, 10));
    assert_eq!(sent_at_once(&net, 1), 1);
    net.settle();
    net.fault(Fault::default());
    let rpc = next_asked(&mut net);
    assert_eq!(net.sent_kinds(1, 0), [Kind::Probe, Kind::Data]);
    assert_eq!(net.sent_kinds(0, 1), [Kind::Unknown]);
    // And the reply, from where it is kept, marked as sent before.
    net.fault(lose_all());
    net.reply(0, rpc, pattern(2, 30));
    assert_eq!(sent_at_once(&net, 0), 1);
    net.settle();
    net.fault(Fault::default());
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert!(matches!(&net.seen(1)[..], [Seen::Response(_, 1, bytes)] if *bytes == pattern(2, 30)));
    let sent = net.sent(0, 1);
    assert!(matches!(&sent[..], [(packet, _)] if packet.flags & RESENT != 0));
    assert_eq!((net.stats(0).resent, net.stats(0).requests, net.stats(0).replies), (1, 2, 2));
    net.run(SECOND, |_| false);
    assert_eq!(net.hosts[0].endpoint.sizes().slots, 0);
}

/// A request that its server refuses is sent again, from the copy that the fast path kept.
#[test]
fn a_refused_request_goes_out_again() {
    let (mut net, session) = quiet(10);
    net.request(1, session, 1, pattern(1, 10));
    let rpc = next_asked(&mut net);
    let now = net.now;
    net.hosts[0].endpoint.refuse(now, rpc, MS);
    assert!(net.run(SECOND, |net| !net.hosts[0].seen.is_empty()));
    assert_eq!(asked(&mut net)[0].1, pattern(1, 10));
}

#[test]
fn damage_and_doubles_are_counted_once_and_change_nothing() {
    let (mut net, session) = quiet(11);
    net.fault(Fault { duplicate_ppm: 1_000_000, ..Fault::default() });
    net.request(1, session, 1, pattern(1, 10));
    let rpc = next_asked(&mut net);
    net.reply(0, rpc, pattern(2, 10));
    assert!(net.run(MS, |net| !net.hosts[1].seen.is_empty()));
    net.settle();
    assert_eq!((net.stats(0).requests, net.stats(0).drop_duplicate), (2, 1));
    assert_eq!((net.stats(1).responses, net.stats(1).drop_stale), (2, 1));
    // Expect: one flipped bit anywhere is one drop, and no sign of life.
    net.fault(Fault::default());
    for tag in 2..40 {
        net.fault(Fault { corrupt_ppm: 1_000_000, ..Fault::default() });
        net.request(1, session, tag, pattern(tag, 10));
        let before = net.stats(0);
        net.now = net.now.after(10 * US);
        net.settle();
        assert_eq!(
            (net.stats(0).drop_checksum, net.stats(0).requests),
            (before.drop_checksum + 1, before.requests)
        );
        net.fault(Fault::default());
        let rpc = next_asked(&mut net);
        net.reply(0, rpc, pattern(tag, 10));
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        net.seen(1);
    }
}

/// Requests that the fast path does not accept: each is answered or dropped as on the ordinary
/// path, and counted.
#[test]
fn arrivals_step_back() {
    let (mut net, session) = quiet(12);
    net.request(1, session, 1, pattern(1, 10));
    let (packet, body) = net.sent(1, 0).pop().expect("it left at once");
    let first = next_asked(&mut net);
    let arrives = |net: &mut Net, from: u64, change: &dyn Fn(&mut crate::wire::rpc::Packet)| {
        let mut changed = packet;
        change(&mut changed);
        let datagram = net.datagram(&changed, &body);
        net.inject(Addr::Local(from), 0, datagram);
        net.settle();
        asked(net).len()
    };
    // Another token, address, session or generation; an earlier number and the same one.
    assert_eq!(arrives(&mut net, 1, &|p| p.token ^= 1), 0);
    assert_eq!(arrives(&mut net, 7, &|p| p.seq += 1), 0);
    assert_eq!(arrives(&mut net, 1, &|p| p.session += 1), 0);
    assert_eq!(arrives(&mut net, 1, &|p| p.session ^= 1 << 24), 0);
    assert_eq!(arrives(&mut net, 1, &|p| p.seq -= 1), 0);
    assert_eq!(arrives(&mut net, 1, &|_| ()), 0);
    let stats = net.stats(0);
    assert_eq!((stats.drop_token, stats.drop_address, stats.drop_session), (1, 1, 2));
    assert_eq!((stats.drop_stale, stats.drop_duplicate, stats.requests), (1, 1, 2));
    // Its time is over; it was sent before; the application still has the one before it.
    assert_eq!(arrives(&mut net, 1, &|p| (p.seq, p.flags, p.ttl_us) = (p.seq + 1, TTL, 0)), 0);
    assert_eq!((net.stats(0).drop_dead, net.hosts[0].endpoint.sizes().executing), (1, 0));
    assert_eq!(arrives(&mut net, 1, &|p| (p.seq, p.flags) = (p.seq + 2, RESENT)), 1);
    assert_eq!(arrives(&mut net, 1, &|p| p.seq += 3), 1);
    assert_eq!((net.stats(0).requests, net.hosts[0].endpoint.sizes().executing), (4, 1));
    net.reply(0, first, pattern(2, 10));
    assert_eq!((net.stats(0).drop_reply, sent_at_once(&net, 0)), (1, 0));
}

/// Too many replies are retained: the server asks for acknowledgements of the oldest, then drops
/// them, and never executes their requests again.
#[test]
fn kept_replies_have_their_limits() {
    let mut net = Net::new(13, 0, false);
    net.add(Config { max_kept: 4, ..Config::default() });
    net.add(Config { serve: false, ..Config::default() });
    let session = net.connect(1, 0);
    net.run(SECOND, |_| false);
    net.record();
    (0..8).for_each(|tag| _ = net.request(1, session, tag, pattern(tag, 10)));
    // Expect: eight replies in one turn, of which the last four are kept, and the oldest was asked
    // for when it came near that.
    assert!(net.run(SECOND, |net| net.stats(0).replies == 8));
    assert_eq!((net.stats(0).evicted, net.hosts[0].endpoint.sizes().slots), (4, 4));
    assert!(net.sent_kinds(0, 1).contains(&Kind::NeedAck));
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 8));
    net.run(SECOND, |_| false);
    assert_eq!((net.stats(0).requests, net.hosts[0].endpoint.sizes().slots), (8, 0));
}

/// Replies that the fast path does not accept are handled by the ordinary path.
#[test]
fn answers_step_back() {
    let (mut net, session) = quiet(14);
    // A request of many packets, whose bytes on the path are given back with its reply.
    net.request(1, session, 1, pattern(1, 40 * MSS));
    let rpc = next_asked(&mut net);
    net.reply(0, rpc, pattern(2, 10));
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 1));
    assert_eq!(net.hosts[1].endpoint.sizes().slots, 0);
    // One waits for a channel: a reply makes room for it.
    (0..10).for_each(|tag| _ = net.request_by(1, session, tag, pattern(tag, 10), Instant::NEVER));
    assert!(net.run(SECOND, |net| net.hosts[0].seen.len() == 8));
    let rpcs = asked(&mut net);
    rpcs.iter().for_each(|(rpc, bytes)| net.reply(0, *rpc, bytes.clone()));
    assert!(net.run(SECOND, |net| net.hosts[0].seen.len() == 2));
    let rpcs = asked(&mut net);
    rpcs.iter().for_each(|(rpc, bytes)| net.reply(0, *rpc, bytes.clone()));
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 11));
    // A reply of another number than what is asked for now, and one whose session is over.
    net.request(1, session, 20, pattern(1, 10));
    let rpc = next_asked(&mut net);
    net.sent(0, 1);
    net.reply(0, rpc, pattern(2, 10));
    let (packet, body) = net.sent(0, 1).pop().expect("it left at once");
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 12));
    net.request(1, session, 21, pattern(1, 10));
    let before = net.stats(1);
    let datagram = net.datagram(&packet, &body);
    net.inject(Addr::Local(0), 1, datagram.clone());
    net.settle();
    let now = net.now;
    net.hosts[1].endpoint.close(now, session);
    net.inject(Addr::Local(0), 1, datagram);
    net.settle();
    let after = net.stats(1);
    assert_eq!(
        (after.drop_stale, after.drop_session),
        (before.drop_stale + 1, before.drop_session + 1)
    );
    assert_eq!(after.responses, before.responses);
}

/// A lossy wire damages nothing, and both ends say so: no packet has a checksum, and requests are
/// answered as with checksums.
#[test]
fn where_nothing_is_damaged_there_is_no_checksum() {
    let mut net = Net::new(15, 2, false);
    net.hosts.iter_mut().for_each(|host| host.port.intact = Some(true));
    net.record();
    let session = net.connect(1, 0);
    for (tag, len) in [(0, 10), (1, 100), (2, 0), (3, 100_000)] {
        net.request(1, session, tag, pattern(tag, len));
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        assert!(
            matches!(&net.seen(1)[..], [Seen::Response(_, _, bytes)] if *bytes == pattern(tag, len))
        );
    }
    let trace = net.shared.borrow_mut().trace.take().expect("recorded");
    for (_, _, bytes) in trace {
        let packet = crate::wire::rpc::parse(&bytes, None).expect("a packet");
        assert!(packet.kind != Kind::Data || packet.ts_us > 0);
        assert!(packet.body_len() as u32 <= packet.msg_len || packet.kind != Kind::Data);
    }
    // Expect: loss is repaired here too.
    net.record();
    net.fault(lose_all());
    net.request(1, session, 4, pattern(4, 10));
    net.settle();
    net.fault(Fault::default());
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert_eq!(net.stats(1).probes, 1);
}

/// One side expects checksums and the other sends none. The side that expects them drops packets
/// without, and the client learns that the server does not answer.
#[test]
fn ends_of_two_minds_about_checksums_do_not_meet() {
    for (server, client) in [(true, false), (false, true)] {
        let mut net = Net::new(16, 2, false);
        (net.hosts[0].port.intact, net.hosts[1].port.intact) = (Some(server), Some(client));
        let session = net.connect(1, 0);
        let rpc = net.request(1, session, 1, pattern(1, 10));
        assert!(net.run(60 * SECOND, |net| net.hosts[1].seen.len() == 2));
        assert_eq!(
            net.seen(1),
            [
                Seen::Failed(rpc, 1, RpcError::NotExecuted),
                Seen::Closed(session, CloseReason::Unreachable)
            ]
        );
        // The client, if the server has none.
        let expects = usize::from(server);
        assert!(net.stats(expects).drop_checksum > 0, "counted where one is expected");
        assert_eq!(net.stats(0).requests, 0);
    }
}
