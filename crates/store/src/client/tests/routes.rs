//! Tests of the server that a client sends an operation to, and of the reasons to choose another
//! one.

use super::*;
use crate::hash::KeyHasher;

#[test]
fn the_first_read_asks_where_and_the_next_ones_know() {
    let mut s = Script::new();
    let deadline = s.far();
    let op = s.client.read(T, b"key", NO_RULES, deadline);
    let ask = s.call();
    assert_eq!((ask.link, s.links[0].as_str()), (0, "tcp:coordinator"));
    assert_eq!(GetTablets::parse(&ask.request).unwrap().table, T);
    // Others wait for the same answer.
    let other = s.client.read(T, b"other", NO_RULES, deadline);
    assert_eq!(s.calls().len(), 0);
    assert!(s.reply(&ask, tablets(&[("x:1;tcp:m;fast:m", TabletState::Normal)])).is_none());
    let reads = s.calls();
    assert_eq!(s.links[1], "fast:m;tcp:m", "the transports that are wanted, in their order");
    let read = Read::parse(&reads[0].request).unwrap();
    assert_eq!((read.key, read.target.table, read.target.cluster), (&b"key"[..], T, CLUSTER));
    assert_eq!(reads[0].deadline, s.now.after(2 * SECOND));
    assert_eq!(Read::parse(&reads[1].request).unwrap().key, b"other");

    // The value is lent from the packet.
    let reply = ok(5, b"value");
    let done = s.client.response(s.now, reads[0].tag, Ok(Payload::Borrowed(&reply))).unwrap();
    assert_eq!(done.op, op);
    let Ok(Answer::Object { version, value }) = done.outcome else { panic!() };
    assert_eq!((version, &value[..]), (Version(5), &b"value"[..]));
    assert_eq!(value.as_ptr(), reply[12..].as_ptr());
    assert_eq!(value.into_vec(), b"value");

    let done = s.reply(&reads[1], ok(6, b"")).unwrap();
    assert_eq!(done.op, other);
    s.client.read(T, b"third", NO_RULES, s.now.after(SECOND));
    let third = s.call();
    assert_eq!((third.link, third.deadline), (1, s.now.after(SECOND)));
    assert_eq!(s.client.in_progress(), 1);
    assert_eq!(s.client.deadline(), None);
}

#[test]
fn each_key_goes_to_the_owner_of_its_hash() {
    let mut s = Script::new();
    s.client.read(T, b"", NO_RULES, Instant::NEVER);
    let ask = s.call();
    let parts: Vec<_> = (0..5).map(|i| format!("fast:{i}")).collect();
    let parts: Vec<_> = parts.iter().map(|part| (part.as_str(), TabletState::Normal)).collect();
    s.reply(&ask, tablets(&parts));
    s.calls();
    for i in 0..100u32 {
        let key = i.to_be_bytes();
        s.client.read(T, &key, NO_RULES, Instant::NEVER);
        let KeyHash(hash) = KeyHasher::from(HASH_KEY).hash(&key);
        let call = s.calls().pop().unwrap();
        let part = (u128::from(hash) * 5) >> 64;
        assert_eq!(s.links[call.link as usize], format!("fast:{part}"));
    }
}

#[test]
fn the_map_is_asked_for_anew_when_a_server_does_not_have_the_tablet() {
    for status in
        [Status::UnknownTablet, Status::NotServing, Status::NotInCluster, Status::TableDoesntExist]
    {
        let mut s = Script::knowing();
        s.client.read(T, b"k", NO_RULES, s.far());
        let read = s.call();
        assert!(s.reply(&read, no(status)).is_none());
        s.map = tablets(&[("tcp:n", TabletState::Normal)]);
        let again = s.object_call();
        assert_eq!(s.links[again.link as usize], "tcp:n");
        assert!(s.reply(&again, ok(1, b"")).unwrap().outcome.is_ok());
    }
}

#[test]
fn a_retry_waits_for_the_new_map_and_longer_each_time() {
    let mut s = Script::knowing();
    s.client.read(T, b"k", NO_RULES, s.far());
    let mut last_ns = 0;
    for i in 0..12 {
        let read = s.object_call();
        let before = s.now;
        assert!(s.respond(&read, Err(RpcError::NotExecuted)).is_none());
        let ask = s.call();
        assert_eq!(ask.link, 0);
        s.tick();
        let pause_ns = s.now.since(before);
        let nominal_ns = ((100 * US) << i).min(50 * MS);
        assert!((nominal_ns / 2..=nominal_ns).contains(&pause_ns), "{pause_ns} after {i} failures");
        last_ns = pause_ns.max(last_ns);
        // The pause is over, but the question is not: the old map is not used.
        assert_eq!(s.calls().len(), 0);
        let map = s.map.clone();
        s.reply(&ask, map);
    }
    assert!(last_ns > 24 * MS);
}

#[test]
fn lost_tablets_and_dropped_tables_are_told_by_the_coordinator() {
    let mut s = Script::new();
    s.map = tablets(&[("fast:a", TabletState::Normal), ("", TabletState::Lost)]);
    let ops: Vec<_> = (0..20u8).map(|i| s.client.read(T, &[i], NO_RULES, s.far())).collect();
    let ask = s.call();
    let map = s.map.clone();
    s.reply(&ask, map);
    let sent = s.calls().len();
    let mut lost = 0;
    while let Some(done) = s.client.event() {
        assert!(ops.contains(&done.op));
        assert_eq!(done.outcome.unwrap_err(), Error::TabletLost);
        lost += 1;
    }
    assert!(sent + lost == 20 && lost > 0 && sent > 0);

    let mut s = Script::knowing();
    let op = s.client.read(T, b"k", NO_RULES, s.far());
    let read = s.call();
    s.reply(&read, no(Status::UnknownTablet));
    while s.client.events.is_empty() {
        for ask in s.calls() {
            assert!(s.reply(&ask, no(Status::TableDoesntExist)).is_none());
        }
        if s.client.events.is_empty() && s.client.ready.is_empty() {
            s.tick();
        }
    }
    let done = s.event();
    assert_eq!((done.op, done.outcome.unwrap_err()), (op, Error::TableDoesntExist));
}

/// All operations on the recovering tablets of a table wait together: the client asks for the
/// tablets once after each pause, and sends the operations with the reply that names an owner.
#[test]
fn operations_on_recovering_tablets_wait_and_ask_together() {
    let mut s = Script::leasing();
    s.client.increment_integer(T, b"k", 1, NO_RULES, s.far());
    let sent = s.call();
    s.respond(&sent, Err(RpcError::MaybeExecuted));
    let recovering = tablets(&[("", TabletState::Recovering)]);
    let mut ask = s.calls().remove(0);
    for i in 0..12 {
        s.reply(&ask, recovering.clone());
        s.client.read(T, b"other", NO_RULES, s.far());
        let before = s.now;
        ask = loop {
            match s.calls().pop() {
                Some(call) => break call,
                None => s.tick(),
            }
        };
        assert_eq!(s.calls().len(), 0);
        let pause_ns = s.now.since(before);
        let longest_ns = ((10 * MS) << i).min(50 * MS);
        assert!((longest_ns / 2..=longest_ns).contains(&pause_ns), "{pause_ns} in {i}");
    }
    s.reply(&ask, tablets(&[("tcp:n", TabletState::Normal)]));
    let calls = s.calls();
    assert_eq!(calls.len(), 13);
    let again = calls.iter().find(|call| opcode(&call.request) == Ok(Opcode::IncrementInteger));
    assert_eq!(once(again.expect("the increment")), once(&sent));
}

#[test]
fn the_deadline_of_an_operation_names_the_recovery() {
    let mut s = Script::knowing();
    s.map = tablets(&[("", TabletState::Recovering)]);
    let op = s.client.read(T, b"k", NO_RULES, s.now.after(20 * MS));
    let read = s.call();
    s.reply(&read, no(Status::UnknownTablet));
    while s.client.events.is_empty() {
        for ask in s.calls() {
            assert!(s.reply(&ask, s.map.clone()).is_none());
        }
        if s.client.events.is_empty() && s.client.ready.is_empty() {
            s.tick();
        }
    }
    let done = s.event();
    let error = done.outcome.unwrap_err();
    let waited_for = WaitedFor::Recovery;
    assert_eq!(error, Error::Deadline { maybe_executed: false, waited_for, why: None });
    assert_eq!(done.op, op);
    let text = "the deadline passed while waiting for the recovery of the tablet, whose server \
                crashed";
    assert_eq!(error.to_string(), text);
}

/// Slots of operations are reused. An operation that waits for a reply of the coordinator may have
/// a slot that another waiting operation had before.
#[test]
fn a_question_that_is_refused_ends_only_those_who_wait_for_it() {
    let mut s = Script::new();
    s.client.read(TableId(1), b"k", NO_RULES, s.now.after(MS));
    let ask_1 = s.call();
    s.tick();
    assert!(matches!(s.event().outcome.unwrap_err(), Error::Deadline { .. }));
    let op = s.client.read(T, b"k", NO_RULES, s.far());
    let ask = s.call();
    assert!(s.reply(&ask_1, no(Status::TableDoesntExist)).is_none());
    assert!(s.client.event().is_none());
    s.reply(&ask, tablets(&[("fast:m", TabletState::Normal)]));
    let read = s.call();
    assert_eq!(s.reply(&read, ok(1, b"")).expect("an end").op, op);
}

#[test]
fn operations_that_ended_while_they_waited_do_not_pile_up() {
    let mut s = Script::new();
    s.client.read(T, b"k", NO_RULES, Instant::NEVER);
    s.client.write(TableId(8), b"k", b"", NO_RULES, Instant::NEVER);
    for ask in s.calls() {
        let table_8 = opcode(&ask.request) == Ok(Opcode::GetTablets)
            && GetTablets::parse(&ask.request).unwrap().table == TableId(8);
        if table_8 {
            s.reply(&ask, tablets(&[("fast:m", TabletState::Normal)]));
        }
    }
    for _ in 0..1_000 {
        let read = s.client.read(T, b"k", NO_RULES, Instant::NEVER);
        let write = s.client.write(TableId(8), b"k", b"", NO_RULES, Instant::NEVER);
        s.calls();
        assert!(s.client.cancel(read) && s.client.cancel(write));
    }
    let most = 2 * s.client.slots.len();
    assert!(s.client.routes.tables.iter().all(|table| table.parked.len() <= most));
    assert!((1..=most).contains(&s.client.rifl.parked.len()) && most < 20);
}

#[test]
fn a_server_that_no_transport_reaches_is_named() {
    let mut s = Script::new();
    s.client.read(T, b"k", NO_RULES, s.far());
    let ask = s.call();
    s.reply(&ask, tablets(&[("rdma:x", TabletState::Normal)]));
    assert_eq!(s.calls().len(), 0);
    let text = r#"the server listens at "rdma:x", and this client uses fast, tcp"#;
    assert_eq!(s.event().outcome.unwrap_err(), Error::NoTransport(text.into()));
    assert_eq!(s.client.peer("rdma:x"), Err(Error::NoTransport(text.into())));
}

#[test]
fn busy_and_retry_are_waited_for() {
    let mut s = Script::knowing();
    s.client.read(T, b"k", NO_RULES, s.far());
    let read = s.call();
    assert!(s.respond(&read, Err(RpcError::Busy { retry_after_ns: 3 * MS })).is_none());
    assert_eq!(s.calls().len(), 0);
    let before = s.now;
    s.tick();
    assert_eq!(s.now.since(before), 3 * MS);
    let read = s.call();
    for status in [Status::Retry, Status::Starting] {
        assert!(s.reply(&read, no(status)).is_none() || status == Status::Starting);
    }
    assert_eq!(s.calls().len(), 0, "a retry does not ask for the map");
    s.tick();
    s.call();
}
