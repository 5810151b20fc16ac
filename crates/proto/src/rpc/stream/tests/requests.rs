//! Tests of the end of a request on a byte stream: a reply, a deadline, a cancel, or the end of the
//! connection.

use super::*;

#[test]
fn at_most_once_ends_with_the_connection() {
    let (mut client, mut ids, mut all) = (client(), Ids::default(), Vec::new());
    for tag in 0..3 {
        let mut message: Message = vec![1; 50].into();
        message.slices.push(Slice { segment: tag as u32, offset: 0, len: 10 });
        client.request(tag, message, Instant::NEVER, &mut ids).expect("taken");
    }
    // The first is written to its last byte, the second all but one.
    let frame = FIXED + 60;
    assert_eq!(
        write(&mut client, &Memory(vec![0; 10]), 2 * frame - 1, &mut Vec::new()),
        2 * frame - 1
    );
    client.end(CloseReason::Reset);
    client.end(CloseReason::Local);
    events(&mut client, &mut all);
    let expected = [
        Seen::Failed(0, RpcError::MaybeExecuted),
        Seen::Failed(1, RpcError::NotExecuted),
        Seen::Failed(2, RpcError::NotExecuted),
        Seen::Closed(CloseReason::Reset),
    ];
    assert_eq!(all, expected);
    assert_eq!(core::iter::from_fn(|| client.released()).count(), 3);
    assert_eq!(
        client.request(9, Message::default(), Instant::NEVER, &mut ids),
        Err(RequestError::Closed)
    );
    assert!(!client.has_output());
}

#[test]
fn replies_after_the_end_give_their_slices_back() {
    let (wire, _) = some_requests();
    let (mut server, mut ids, mut all) = (server(), Ids::default(), Vec::new());
    read(&mut server, &wire, &mut ids, &mut all);
    server.end(CloseReason::Reset);
    let Seen::Request(rpc, ..) = all[0] else { panic!("{all:?}") };
    let slice = Slice { segment: 1, offset: 2, len: 3 };
    let mut message = Message::default();
    message.slices.push(slice);
    server.reply(rpc, message);
    server.refuse(rpc, 1);
    assert_eq!(
        (server.released(), server.released(), server.has_output()),
        (Some(slice), None, false)
    );
    assert!(server.event().is_none());
}

#[test]
fn deadlines_and_cancels() {
    let (mut client, mut server, mut ids, mut all) =
        (client(), server(), Ids::default(), Vec::new());
    let send = |client: &mut Stream, ids: &mut Ids, tag, ns| {
        client.request(tag, vec![tag as u8].into(), Instant::from_ns(ns), ids).expect("taken")
    };
    assert_eq!(client.deadline(), Instant::NEVER);
    send(&mut client, &mut ids, 0, 90_000);
    send(&mut client, &mut ids, 1, 70_000);
    let cancelled = send(&mut client, &mut ids, 2, 95_000);
    assert_eq!(client.deadline(), Instant::from_ns(70_000));
    let wire = write_all(&mut client);
    send(&mut client, &mut ids, 3, 60_000);
    let unsent = send(&mut client, &mut ids, 4, 100_000);
    send(&mut client, &mut ids, 5, 110_000);
    client.tick(Instant::from_ns(59_999));
    events(&mut client, &mut all);
    assert_eq!(all, []);
    client.tick(Instant::from_ns(70_000));
    client.cancel(cancelled);
    client.cancel(cancelled);
    client.cancel(unsent);
    events(&mut client, &mut all);
    let expected = [
        Seen::Failed(3, RpcError::Deadline { maybe_executed: false }),
        Seen::Failed(1, RpcError::Deadline { maybe_executed: true }),
        Seen::Failed(2, RpcError::Cancelled),
        Seen::Failed(4, RpcError::Cancelled),
    ];
    assert_eq!(all, expected);
    assert_eq!(client.deadline(), Instant::from_ns(90_000));
    // What had not been written is not sent any more; replies that come too late are skipped.
    let mut wire = [wire, write_all(&mut client)].concat();
    let mut requests = Vec::new();
    read(&mut server, &wire, &mut ids, &mut requests);
    let mut tags = Vec::new();
    for e in requests {
        let Seen::Request(rpc, payload, _) = e else { panic!("{e:?}") };
        tags.push(payload[0]);
        server.reply(rpc, bytes(0, 10_000).into());
    }
    assert_eq!(tags, [0, 1, 2, 5]);
    wire = write_all(&mut server);
    all.clear();
    for piece in wire.chunks(999) {
        read_into_body(&mut client, piece, &mut ids, &mut all);
    }
    assert_eq!(all, [Seen::Response(0, bytes(0, 10_000)), Seen::Response(5, bytes(0, 10_000))]);
    assert_eq!(client.unsolicited(), 2);
}

/// A deadline and a cancel once searched all requests of the connection: 100,000 requests with
/// deadlines of their own would take 10 billion steps here, which is minutes.
#[test]
fn an_expiry_and_a_cancel_do_not_scan_the_requests() {
    const MANY: u64 = 100_000;
    let (mut client, mut ids) = (Stream::new(0, Role::Client(SESSION), usize::MAX), Ids::default());
    let rpcs: Vec<_> = (0..MANY)
        .map(|tag| {
            let deadline = Instant::from_ns(1_000_000 + tag);
            client.request(tag, Message::default(), deadline, &mut ids).expect("taken")
        })
        .collect();
    // Every fourth from the middle to the end, every fourth from the middle to the beginning.
    let (older, younger) = rpcs.split_at(rpcs.len() / 2);
    for rpc in younger.iter().step_by(4).chain(older.iter().rev().step_by(4)) {
        client.cancel(*rpc);
        assert!(
            matches!(client.event(), Some(Event::Failed { rpc: failed, .. }) if failed == *rpc)
        );
    }
    let mut late = 0;
    for tag in 0..MANY {
        client.tick(Instant::from_ns(1_000_000 + tag));
        while let Some(event) = client.event() {
            late += 1;
            let not_sent = RpcError::Deadline { maybe_executed: false };
            assert_eq!(seen(event), Seen::Failed(tag, not_sent));
        }
    }
    assert_eq!((late, client.deadline()), (MANY - MANY / 4, Instant::NEVER));
    assert!(!client.has_output() && client.unsent() == 0);
}

#[test]
fn queues_have_limits() {
    let (mut client, mut ids) = (Stream::new(0, Role::Client(SESSION), 10), Ids::default());
    for tag in 0..10 {
        client.request(tag, Message::default(), Instant::NEVER, &mut ids).expect("taken");
    }
    assert_eq!(
        client.request(10, Message::default(), Instant::NEVER, &mut ids),
        Err(RequestError::QueueFull)
    );
    let (mut client, mut server) = (Stream::new(0, Role::Client(SESSION), usize::MAX), server());
    for tag in 0..PENDING_LIMIT as u64 {
        client.request(tag, Message::default(), Instant::NEVER, &mut ids).expect("taken");
    }
    let mut all = Vec::new();
    let wire = write_all(&mut client);
    assert!(server.wants_input());
    read(&mut server, &wire, &mut ids, &mut all);
    assert!(!server.wants_input());
    let Seen::Request(rpc, ..) = all[0] else { panic!("{all:?}") };
    server.refuse(rpc, 0);
    assert!(server.wants_input());
    // A peer that asks and never reads is not read either.
    let Seen::Request(rpc, ..) = all[1] else { panic!("{all:?}") };
    server.reply(rpc, vec![0; MAX_MESSAGE].into());
    let Seen::Request(rpc, ..) = all[2] else { panic!("{all:?}") };
    assert!(server.wants_input());
    server.reply(rpc, vec![0; MAX_MESSAGE].into());
    assert!(!server.wants_input());
    write_all(&mut server);
    assert!(server.wants_input());
}

#[test]
fn numbers_wrap() {
    let (mut client, mut server, mut ids) = (client(), server(), Ids::default());
    client.next_number = 3 * u64::from(SEQ_MASK + 1) - 2;
    for tag in 0..5 {
        client
            .request(tag, bytes(tag as usize, 3).into(), Instant::NEVER, &mut ids)
            .expect("taken");
    }
    let (mut requests, mut all) = (Vec::new(), Vec::new());
    read(&mut server, &write_all(&mut client), &mut ids, &mut requests);
    for e in requests.into_iter().rev() {
        let Seen::Request(rpc, payload, _) = e else { panic!("{e:?}") };
        assert_eq!(Ids::stream(rpc.0), 4);
        server.reply(rpc, payload.into());
    }
    read(&mut client, &write_all(&mut server), &mut ids, &mut all);
    assert_eq!(
        all,
        (0..5).rev().map(|tag| Seen::Response(tag, bytes(tag as usize, 3))).collect::<Vec<_>>()
    );
}
