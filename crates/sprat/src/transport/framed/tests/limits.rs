//! Tests of the limits on memory: replies that no client takes, and requests that stop arriving.

use super::super::memory::{MAX_UNSENT, PROGRESS_NS};
use super::*;

/// Sends short requests for long replies from a client that reads nothing. 64 KiB of such requests
/// were once all answered at once, which took 200 MB in this test.
pub(super) fn short_requests_for_long_replies_are_answered_as_their_client_reads<C: Named>() {
    let (mut server, at) = server::<C>();
    let mut client = client::<C>();
    let session = client.connect(NOW, &at).expect("connects");
    for tag in 0..200 {
        client.request(NOW, session, tag, &mut bytes(1, 10).into(), Instant::NEVER).expect("taken");
    }
    let (mut seen, mut served, mut most) = (Vec::new(), 0, 0);
    let reply = bytes(2, 1 << 20);
    let mut last = (0, 0);
    // The client reads nothing until the server has answered all that it may.
    for turns in 0.. {
        if served == 0 {
            turn(&mut client, NOW, &mut seen);
        }
        served += serve(&mut server, |_| Some(reply.clone()));
        most = most.max(server.unsent);
        last = if last.0 == served { (served, last.1 + 1) } else { (served, 0) };
        if served > 0 && last.1 > 1000 {
            break;
        }
        assert!(turns < 20_000_000);
    }
    assert!(served < 200, "{served} are answered");
    for turns in 0.. {
        turn(&mut client, NOW, &mut seen);
        served += serve(&mut server, |_| Some(reply.clone()));
        most = most.max(server.unsent);
        if seen.len() == 200 {
            break;
        }
        assert!(turns < 20_000_000, "{} of 200", seen.len());
    }
    assert!(seen.iter().all(|seen| matches!(seen, Seen::Response(_, bytes) if *bytes == reply)));
    // Over queue pairs, announced messages take as much again.
    let announced = if C::PROTOCOL == "rdma" { 2 * MAX_MESSAGE } else { 0 };
    assert!(most <= 2 * MAX_MESSAGE + (1 << 20) + announced, "{most} bytes waited to be taken");
    assert_eq!((served, server.unsent), (200, 0));
}

/// Lets replies wait on many connections, which are limited in sum, besides the limit of each
/// connection.
pub(super) fn where_too_much_waits_in_sum_one_that_has_much_is_not_read<C: Named>() {
    const MANY: usize = 31;
    let (mut server, at) = server::<C>();
    let mut client = client::<C>();
    let session = client.connect(NOW, &at).expect("connects");
    for tag in 0..MANY {
        client
            .request(NOW, session, tag as u64, &mut bytes(1, 10).into(), Instant::NEVER)
            .expect("taken");
    }
    // Other connections have this much to write.
    server.unsent = MAX_UNSENT;
    let (mut seen, mut served, mut idle) = (Vec::new(), 0, 0);
    let reply = bytes(2, 1 << 20);
    for turns in 0.. {
        if served == 0 {
            turn(&mut client, NOW, &mut seen);
        }
        let now = serve(&mut server, |_| Some(reply.clone()));
        served += now;
        idle = if served == 0 || now > 0 { 0 } else { idle + 1 };
        if idle > 1000 {
            break;
        }
        assert!(turns < 20_000_000);
    }
    // The connection's own limit would let all of them through.
    assert!(served < MANY, "all {MANY} are answered");
    for turns in 0.. {
        turn(&mut client, NOW, &mut seen);
        served += serve(&mut server, |_| Some(reply.clone()));
        if seen.len() == MANY {
            break;
        }
        assert!(turns < 20_000_000, "{} of {MANY}", seen.len());
    }
    assert_eq!((served, server.unsent), (MANY, MAX_UNSENT));
}

/// Ends the connection of a client that takes no reply. Such a client once kept the memory of the
/// reply for ever.
pub(super) fn a_client_that_takes_no_reply_is_given_up<C: Named>() {
    let (mut server, at) = server::<C>();
    let mut client = client::<C>();
    let session = client.connect(NOW, &at).expect("connects");
    client.request(NOW, session, 1, &mut bytes(1, 10).into(), Instant::NEVER).expect("taken");
    let (mut served, mut seen) = (0, Vec::new());
    let reply = bytes(2, MAX_MESSAGE);
    assert!((0..20_000_000).any(|_| {
        turn(&mut client, NOW, &mut seen);
        served += serve(&mut server, |_| Some(reply.clone()));
        served == 1
    }));
    // The carrier's buffers take a part of the reply.
    for _ in 0..1000 {
        serve(&mut server, |_| None);
        C::breathe(&mut client);
    }
    assert!(server.unsent > 0);
    let late = NOW.after(PROGRESS_NS);
    server.tick(Instant::from_ns(late.as_ns() - 1));
    serve(&mut server, |_| None);
    assert_eq!((server.live().len(), server.counters.stalled), (1, 0));
    assert!(server.deadline().is_some_and(|due| due <= late));
    server.tick(late);
    serve(&mut server, |_| None);
    assert_eq!((server.live().len(), server.counters.stalled, server.unsent), (0, 1, 0));
}

/// Stops senders in the middle of their messages. Such messages once took memory without limit.
pub(super) fn stalled_messages_make_room_for_others<C: Named>() {
    let (mut server, at) = server::<C>();
    let mut stalled = Vec::new();
    for i in 1..=6 {
        let mut client = client::<C>();
        let session = client.connect(NOW, &at).expect("connects");
        client
            .request(NOW, session, 0, &mut bytes(i, MAX_MESSAGE).into(), Instant::NEVER)
            .expect("taken");
        let before = server.budget.asked();
        assert!((0..20_000_000).any(|_| {
            turn(&mut client, NOW, &mut Vec::new());
            assert_eq!(echo(&mut server), 0, "no message is whole");
            server.budget.asked() > before
        }));
        stalled.push(client);
    }
    assert!(server.budget.has_waiting(), "there is room for four");
    let mut honest = client::<C>();
    let session = honest.connect(NOW, &at).expect("connects");
    let request = bytes(7, MAX_MESSAGE);
    honest.request(NOW, session, 0, &mut request.clone().into(), Instant::NEVER).expect("taken");
    let (mut now, mut seen) = (NOW, Vec::new());
    while !honest.is_open(session) {
        turn(&mut honest, now, &mut seen);
        echo(&mut server);
    }
    while seen.is_empty() {
        turn(&mut honest, now, &mut seen);
        serve_at(&mut server, now, |request| Some(request.to_vec()));
        // The honest client sends much in each turn, the others nothing.
        now = now.after(MS);
        server.tick(now);
        assert!(now < NOW.after(60 * SECOND), "the honest request gets no room");
    }
    assert!(seen == [Seen::Response(0, request)], "whole");
    assert!((1..=6).contains(&server.counters.stalled), "{}", server.counters.stalled);
}

pub(super) fn a_server_that_answers_late_is_not_flooded<C: Named>() {
    const MANY: usize = 10_000;
    let (mut server, at) = server::<C>();
    let mut client =
        C::client(Options { queue_limit: MANY, ..Options::default() }).expect("descriptors");
    let session = client.connect(NOW, &at).expect("loopback");
    for tag in 0..MANY {
        client
            .request(NOW, session, tag as u64, &mut bytes(tag, 100).into(), Instant::NEVER)
            .expect("taken");
    }
    let (mut seen, mut asked, mut most, mut quiet) = (Vec::new(), Vec::new(), 0, 0);
    while seen.len() < MANY {
        turn(&mut client, NOW, &mut seen);
        server.input(NOW);
        let before = asked.len();
        while let Some(event) = server.event(NOW) {
            let Event::Request { rpc, payload, .. } = event else { panic!("{event:?}") };
            asked.push((rpc, payload.into_vec()));
        }
        most = most.max(asked.len());
        quiet = if asked.len() == before { quiet + 1 } else { 0 };
        if quiet > 50 {
            for (rpc, request) in asked.drain(..) {
                server.reply(NOW, rpc, &mut request.into(), false);
            }
        }
        server.output(NOW, &());
    }
    assert!(most < 5_000, "{most} requests in a server that answers none");
    for (tag, one) in seen.into_iter().enumerate() {
        assert_eq!(one, Seen::Response(tag as u64, bytes(tag, 100)));
    }
}
