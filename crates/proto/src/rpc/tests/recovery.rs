//! Failures of the server: restarts, silence, overload and deadlines, and the errors that the
//! client reports for them.

use alloc::vec::Vec;

use super::{Net, Seen, pattern};
use crate::Addr;
use crate::fault::Fault;
use crate::rpc::{CloseReason, Config, RequestError, RpcError};
use crate::time::{MS, SECOND, US};
use crate::wire::rpc::Kind;

fn lose_all() -> Fault {
    Fault { drop_ppm: 1_000_000, ..Fault::default() }
}

/// Opens a session of host 1 with the server, host 0.
fn open(seed: u64, lossless: bool) -> (Net, crate::rpc::SessionId) {
    let mut net = Net::new(seed, 2, lossless);
    let session = net.connect(1, 0);
    net.request(1, session, 0, pattern(0, 10));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    net.seen(1);
    net.seen(0);
    (net, session)
}

#[test]
fn a_restarted_server_executes_nothing_again() {
    let (mut net, session) = open(1, false);
    net.hosts[0].echo = false;
    let sent = net.request(1, session, 1, pattern(1, 10));
    assert!(net.run(SECOND, |net| !net.hosts[0].seen.is_empty()));
    net.restart(0, Config::default());
    let unsent = net.request(1, session, 2, pattern(2, 10));
    // Expect: both were given to the wire, so both may have been executed; the session ends by
    // reset.
    assert!(net.run(5 * SECOND, |net| net.hosts[1].seen.len() == 3));
    assert_eq!(
        net.seen(1),
        [
            Seen::Failed(sent, 1, RpcError::MaybeExecuted),
            Seen::Failed(unsent, 2, RpcError::MaybeExecuted),
            Seen::Closed(session, CloseReason::Reset),
        ]
    );
    assert_eq!(net.stats(0).requests, 0);
    // Expect: a new session works.
    let session = net.connect(1, 0);
    net.request(1, session, 3, pattern(3, 10));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
}

#[test]
fn what_was_never_sent_was_not_executed() {
    let (mut net, session) = open(2, false);
    net.hosts[0].up = false;
    // Eight channels and a window: the ninth waits for a channel, the long one for a grant.
    let rpcs: Vec<_> = (0..8).map(|n| net.request(1, session, n, pattern(n, 500_000))).collect();
    let queued = net.request(1, session, 8, pattern(8, 10));
    assert!(net.run(30 * SECOND, |net| net.hosts[1].seen.len() == 10));
    let mut expected: Vec<_> =
        rpcs.iter().zip(0..).map(|(&rpc, n)| Seen::Failed(rpc, n, RpcError::NotExecuted)).collect();
    expected.push(Seen::Failed(queued, 8, RpcError::NotExecuted));
    expected.push(Seen::Closed(session, CloseReason::Unreachable));
    assert_eq!(net.seen(1), expected);
}

#[test]
fn silence_ends_a_session() {
    let (mut net, session) = open(3, false);
    net.fault(lose_all());
    let rpc = net.request(1, session, 1, pattern(1, 10));
    assert!(net.run(30 * SECOND, |net| net.hosts[1].seen.len() == 2));
    assert_eq!(
        net.seen(1),
        [
            Seen::Failed(rpc, 1, RpcError::MaybeExecuted),
            Seen::Closed(session, CloseReason::Unreachable)
        ]
    );
    assert_eq!(u64::from(Config::default().max_silent), net.stats(1).probes);
    let again = net.hosts[1].endpoint.request(
        net.now,
        session,
        2,
        Vec::new().into(),
        crate::Instant::NEVER,
    );
    assert_eq!(again, Err(RequestError::Closed));
    // Expect: an unreachable server is noticed while opening, too.
    let session = net.connect(1, 0);
    let rpc = net.request(1, session, 3, pattern(3, 10));
    assert!(net.run(30 * SECOND, |net| net.hosts[1].seen.len() == 2));
    assert_eq!(
        net.seen(1),
        [
            Seen::Failed(rpc, 3, RpcError::NotExecuted),
            Seen::Closed(session, CloseReason::Unreachable)
        ]
    );
}

#[test]
fn one_probe_at_a_time_whatever_is_in_flight() {
    let (mut net, session) = open(4, false);
    net.fault(lose_all());
    (0..8).for_each(|n| _ = net.request(1, session, n, pattern(n, 10)));
    net.run(100 * MS, |_| false);
    assert!(net.stats(1).probes < 8, "{} probes", net.stats(1).probes);
    // Expect: all recover when the wire does.
    net.fault(Fault::default());
    assert!(net.run(10 * SECOND, |net| net.hosts[1].seen.len() == 8));
    assert_eq!(net.stats(0).requests, 9);
}

#[test]
fn a_lost_request_or_reply_costs_a_probe() {
    for lost in [Kind::Data, Kind::Probe] {
        let (mut net, session) = open(5, false);
        net.record();
        net.fault(lose_all());
        net.request(1, session, 1, pattern(1, 10));
        net.settle();
        if lost == Kind::Probe {
            net.run(6 * MS, |_| false);
        }
        net.fault(Fault::default());
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        assert_eq!(net.stats(0).requests, 2);
        assert!(net.sent_kinds(0, 1).starts_with(&[Kind::Unknown, Kind::Data]));
    }
    // Expect: a lost reply is sent again from where it is kept.
    let (mut net, session) = open(6, false);
    net.hosts[0].echo = false;
    net.request(1, session, 1, pattern(1, 10));
    assert!(net.run(SECOND, |net| !net.hosts[0].seen.is_empty()));
    let Seen::Request(rpc, ..) = net.seen(0)[0] else { panic!() };
    net.fault(lose_all());
    net.hosts[0].endpoint.reply(net.now, rpc, pattern(9, 3000).into());
    net.settle();
    net.fault(Fault::default());
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert!(
        matches!(&net.seen(1)[..], [Seen::Response(_, 1, bytes)] if *bytes == pattern(9, 3000))
    );
    assert_eq!(net.stats(0).resent, 3);
}

/// An idempotent request costs a round trip more than another if its reply is lost, and nothing if
/// it is not: no copy, and no DONE.
#[test]
fn a_lost_reply_to_an_idempotent_request_is_made_again() {
    let (mut net, session) = open(6, false);
    net.run(SECOND, |_| false);
    net.settle();
    net.hosts[0].is_idempotent = |_| true;
    net.record();
    net.request(1, session, 1, pattern(1, 10));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    net.run(SECOND, |_| false);
    assert_eq!(net.sent_kinds(0, 1), [Kind::Data]);
    assert_eq!(net.sent_kinds(1, 0), [Kind::Data]);
    assert_eq!(net.hosts[0].endpoint.sizes().slots, 0);
    // The second reply is lost.
    net.seen(1);
    net.settle();
    net.request(1, session, 2, pattern(2, 10));
    net.fault(lose_all());
    net.run(SECOND, |net| net.stats(0).requests == 3);
    net.fault(Fault::default());
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert!(matches!(&net.seen(1)[..], [Seen::Response(_, 2, bytes)] if *bytes == pattern(2, 10)));
    assert_eq!(net.sent_kinds(0, 1), [Kind::Data, Kind::Unknown, Kind::Data]);
    assert_eq!((net.stats(0).requests, net.stats(0).forgotten), (4, 1));
}

#[test]
fn a_slow_server_is_asked_but_not_hurried() {
    let (mut net, session) = open(7, false);
    net.hosts[0].echo = false;
    net.request(1, session, 1, pattern(1, 10));
    assert!(net.run(SECOND, |net| !net.hosts[0].seen.is_empty()));
    net.run(5 * SECOND, |_| false);
    // Expect: about one question every 50 ms, no second execution, no failure.
    assert!((50..200).contains(&net.stats(1).probes), "{}", net.stats(1).probes);
    assert_eq!(net.stats(0).requests, 2);
    let Seen::Request(rpc, ..) = net.seen(0)[0] else { panic!() };
    net.hosts[0].endpoint.reply(net.now, rpc, pattern(2, 20).into());
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
}

#[test]
fn deadlines() {
    let (mut net, session) = open(8, false);
    net.hosts[0].echo = false;
    let by = net.now.after(3 * MS);
    let rpc = net.request_by(1, session, 1, pattern(1, 10), by);
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    // Expect: it fails when it is time, not much later; the server knew when that is.
    assert!(net.now >= by && net.now < by.after(200 * US));
    let maybe = RpcError::Deadline { maybe_executed: true };
    assert_eq!(net.seen(1), [Seen::Failed(rpc, 1, maybe)]);
    let Seen::Request(late, _, at) = net.seen(0)[0] else { panic!() };
    assert!(at.since(by) < 50 * US && by.since(at) < 50 * US);
    net.hosts[0].endpoint.reply(net.now, late, pattern(2, 20).into());
    // Expect: one that waits for a channel was not executed.
    (2..10).for_each(|n| _ = net.request(1, session, n, pattern(n, 10)));
    let by = net.now.after(MS);
    let rpc = net.request_by(1, session, 10, pattern(1, 10), by);
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    let not = RpcError::Deadline { maybe_executed: false };
    assert_eq!(net.seen(1), [Seen::Failed(rpc, 10, not)]);
    // Expect: the late reply changed nothing, the channel goes on.
    net.hosts[0].echo = true;
    for seen in net.seen(0) {
        let Seen::Request(rpc, bytes, _) = seen else { panic!() };
        net.hosts[0].endpoint.reply(net.now, rpc, bytes.into());
    }
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 8));
}

#[test]
fn cancelled_requests_end_once_and_free_their_channel() {
    for lossless in [false, true] {
        let (mut net, session) = open(9, lossless);
        net.hosts[0].echo = false;
        let rpcs: Vec<_> = (0..9).map(|n| net.request(1, session, n, pattern(n, 20))).collect();
        net.settle();
        for &rpc in &rpcs {
            let now = net.now;
            net.hosts[1].endpoint.cancel(now, rpc);
            net.hosts[1].endpoint.cancel(now, rpc);
        }
        net.settle();
        let cancelled = |(&rpc, n)| Seen::Failed(rpc, n, RpcError::Cancelled);
        assert_eq!(net.seen(1), rpcs.iter().zip(0..).map(cancelled).collect::<Vec<_>>());
        net.hosts[0].echo = true;
        (20..40).for_each(|n| _ = net.request(1, session, n, pattern(n, 20)));
        assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 20));
    }
}

#[test]
fn an_overloaded_server_puts_clients_off() {
    let mut net = Net::new(10, 0, false);
    net.add(Config { max_executing: 2, retry_after_ns: 2 * MS, ..Config::default() });
    net.add(Config::default());
    net.hosts[0].echo = false;
    let session = net.connect(1, 0);
    (0..3).for_each(|n| _ = net.request(1, session, n, pattern(n, 20)));
    assert!(net.run(SECOND, |net| net.hosts[0].seen.len() == 2 && net.stats(0).refused > 0));
    // Expect: when there is room, the third gets it, and is executed once.
    for seen in net.seen(0) {
        let Seen::Request(rpc, bytes, _) = seen else { panic!() };
        net.hosts[0].endpoint.reply(net.now, rpc, bytes.into());
    }
    net.hosts[0].echo = true;
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 3));
    assert_eq!(net.stats(0).requests, 3);
    // Expect: when there never is, it fails as busy, certainly not executed.
    net.hosts[0].echo = false;
    net.seen(0);
    net.seen(1);
    (3..6).for_each(|n| _ = net.request(1, session, n, pattern(n, 20)));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert!(matches!(
        net.seen(1)[..],
        [Seen::Failed(_, _, RpcError::Busy { retry_after_ns })] if retry_after_ns == 2 * MS
    ));
    assert_eq!(net.hosts[0].seen.len(), 2);
}

#[test]
fn an_application_that_refuses_is_asked_again() {
    for lossless in [false, true] {
        let (mut net, session) = open(11, lossless);
        net.hosts[0].echo = false;
        net.request(1, session, 1, pattern(1, 5000));
        for _ in 0..3 {
            assert!(net.run(SECOND, |net| !net.hosts[0].seen.is_empty()));
            let Seen::Request(rpc, ..) = net.seen(0)[0] else { panic!() };
            net.hosts[0].endpoint.refuse(net.now, rpc, 10 * MS);
        }
        net.hosts[0].echo = true;
        assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
        assert_eq!(net.seen(1).len(), 1);
        assert_eq!(net.stats(0).refused, 3);
    }
}

#[test]
fn an_evicted_reply_is_never_executed_again() {
    let mut net = Net::new(12, 0, false);
    net.add(Config { max_kept: 4, ..Config::default() });
    net.add(Config { done_after_ns: SECOND, ..Config::default() });
    let session = net.connect(1, 0);
    net.request(1, session, 0, pattern(0, 20));
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    net.seen(1);
    // The reply to the first is lost, and others push it out before the client asks for it.
    net.hosts[0].echo = false;
    let rpc = net.request(1, session, 1, pattern(1, 20));
    net.run(15 * US, |_| false);
    let Seen::Request(first, ..) = net.seen(0).pop().expect("it arrived") else { panic!() };
    net.fault(lose_all());
    net.hosts[0].endpoint.reply(net.now, first, pattern(1, 20).into());
    net.settle();
    net.fault(Fault::default());
    net.hosts[0].echo = true;
    let other = net.connect(1, 0);
    (2..10).for_each(|n| _ = net.request(1, other, n, pattern(n, 20)));
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 9));
    assert!(net.seen(1).contains(&Seen::Failed(rpc, 1, RpcError::MaybeExecuted)));
    assert!(net.stats(0).evicted > 0);
    assert_eq!(net.stats(0).requests, 10);
}

#[test]
fn a_server_of_another_version_says_so() {
    let (mut net, _) = open(13, false);
    net.record();
    let session = net.connect(1, 0);
    net.settle();
    let (mut packet, body) = net.sent(1, 0).pop().expect("an OPEN");
    assert_eq!(packet.kind, Kind::Open);
    // Expect: an OPEN of a future version is answered by RESET, which the client believes.
    packet.version = 6;
    let datagram = net.datagram(&packet, &body);
    net.inject(Addr::Local(1), 0, datagram);
    net.settle();
    assert!(net.run(SECOND, |net| !net.hosts[1].seen.is_empty()));
    assert_eq!(net.seen(1), [Seen::Closed(session, CloseReason::Version)]);
}

/// All packets of a moment are lost, as when a cable is pulled. One overdue request probes first,
/// and once the server has answered it the others probe without waiting as long each.
#[test]
fn requests_that_were_lost_together_come_back_together() {
    let mut net = Net::new(1, 2, false);
    let sessions: Vec<_> = (0..4).map(|_| net.connect(1, 0)).collect();
    for (n, session) in sessions.iter().enumerate() {
        net.request(1, *session, n as u64, pattern(n as u64, 100));
    }
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 4));
    net.seen(1);
    net.fault(lose_all());
    let begin = net.now;
    for n in 0..32 {
        net.request(1, sessions[n % 4], n as u64, pattern(n as u64, 100));
    }
    net.run(MS, |_| false);
    net.fault(Fault::default());
    assert!(net.run(SECOND, |net| net.hosts[1].seen.len() == 32));
    let took_ns = net.now.since(begin);
    assert!(took_ns < 12 * MS, "{took_ns} ns");
    // Expect: each was asked about once, and executed once.
    assert_eq!((net.stats(1).probes, net.stats(0).requests), (32, 36));
}

/// The client has forgotten its session, but the server has not, for the CLOSE was lost. The server
/// must not take the client's next OPEN for a copy of an earlier one.
#[test]
fn a_session_opens_although_the_server_still_has_the_last_one() {
    let (mut net, session) = open(10, false);
    for tag in 1..4 {
        net.fault(lose_all());
        let at = net.now;
        let last = if tag == 1 { session } else { net.connect(1, 0) };
        net.hosts[1].endpoint.close(at, last);
        net.run(SECOND, |_| false);
        net.seen(1);
        net.fault(Fault::default());
        let session = net.connect(1, 0);
        net.request(1, session, tag, pattern(tag, 10));
        let answered = |seen: &Seen| matches!(seen, Seen::Response(_, t, _) if *t == tag);
        assert!(net.run(SECOND, |net| net.hosts[1].seen.iter().any(answered)), "{tag}");
        net.hosts[1].endpoint.close(net.now, session);
    }
}
