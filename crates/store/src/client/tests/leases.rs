//! Tests of a client's mutations: their numbers, and the lease that the numbers belong to.

use super::*;

#[test]
fn a_mutation_has_one_number_however_often_it_is_sent() {
    let mut s = Script::leasing();
    let op = s.client.write(T, b"k", b"v", NO_RULES, s.far());
    let next = s.client.increment_integer(T, b"k", -2, NO_RULES, s.far());
    let mut calls = s.calls();
    assert_eq!(once(&calls[1]), Once { lease: LeaseId(1), rpc: 3, ack: 1 });
    let done = s.reply(&calls[1], ok(9, &(-2i64).to_be_bytes())).unwrap();
    assert_eq!(done.op, next);
    assert!(matches!(done.outcome, Ok(Answer::Integer { version: Version(9), sum: -2 })));
    let mut write = calls.swap_remove(0);
    for error in [
        RpcError::MaybeExecuted,
        RpcError::NotExecuted,
        RpcError::Deadline { maybe_executed: true },
        RpcError::Deadline { maybe_executed: false },
        RpcError::Cancelled,
        RpcError::Busy { retry_after_ns: 5 },
    ] {
        let Write { once, key, value, .. } = Write::parse(&write.request).unwrap();
        assert_eq!((key, value), (&b"k"[..], &b"v"[..]));
        // 3 is answered, 2 is not: only 1 may be forgotten.
        assert_eq!(once, Once { lease: LeaseId(1), rpc: 2, ack: 1 });
        assert!(s.respond(&write, Err(error)).is_none());
        write = s.object_call();
    }
    let done = s.reply(&write, ok(3, b"")).unwrap();
    assert_eq!(done.op, op);
    assert!(matches!(done.outcome, Ok(Answer::Version(Version(3)))));
    s.client.increment_double(T, b"k", 0.5, NO_RULES, s.far());
    let call = s.object_call();
    assert_eq!(once(&call), Once { lease: LeaseId(1), rpc: 4, ack: 3 });
    let done = s.reply(&call, ok(4, &0.25f64.to_be_bytes())).unwrap();
    assert!(matches!(done.outcome, Ok(Answer::Double { sum: 0.25, .. })));
}

#[test]
fn an_operation_without_an_answer_when_its_lease_ends_is_unknown() {
    let mut s = Script::leasing();
    let maybe = s.client.write(T, b"maybe", b"", NO_RULES, Instant::NEVER);
    let first = s.call();
    let never = s.client.write(T, b"not", b"", NO_RULES, Instant::NEVER);
    let second = s.call();
    assert_eq!((once(&first).rpc, once(&second).rpc), (2, 3));
    assert!(s.respond(&first, Err(RpcError::MaybeExecuted)).is_none());
    // A master refuses the lease. The client must ask the coordinator before it sends anything
    // else.
    assert!(s.reply(&second, no(Status::ExpiredLease)).is_none());
    let ask = loop {
        let asked = s.calls().into_iter().find_map(|call| match opcode(&call.request) {
            Ok(Opcode::RenewClient) => Some(call),
            _ => {
                assert_eq!(call.link, 0, "a mutation was sent");
                let map = s.map.clone();
                s.reply(&call, map);
                None
            }
        });
        match asked {
            Some(ask) => break ask,
            None if s.client.ready.is_empty() => s.tick(),
            None => {}
        }
    };
    assert_eq!(RenewClient::parse(&ask.request).unwrap().lease, LeaseId(1));
    s.reply(&ask, no(Status::ExpiredLease));
    let ask = s.call();
    assert_eq!(RenewClient::parse(&ask.request).unwrap().lease, LeaseId(0));
    s.reply(&ask, leased(2));
    // What certainly was not executed is sent under the new lease; the other is never sent again.
    let again = s.object_call();
    assert_eq!(Write::parse(&again.request).unwrap().key, b"not");
    assert_eq!(once(&again), Once { lease: LeaseId(2), rpc: 1, ack: 0 });
    assert_eq!(s.reply(&again, ok(1, b"")).unwrap().op, never);
    while s.client.events.is_empty() {
        assert_eq!(s.calls().len(), 0);
        if s.client.events.is_empty() {
            s.tick();
        }
    }
    let done = s.event();
    assert_eq!((done.op, done.outcome.unwrap_err()), (maybe, Error::Unknown));
}

#[test]
fn a_lease_that_a_master_doubts_but_the_coordinator_does_not_goes_on() {
    let mut s = Script::leasing();
    s.client.write(T, b"k", b"", NO_RULES, Instant::NEVER);
    let write = s.call();
    s.reply(&write, no(Status::ExpiredLease));
    s.tick();
    let ask = s.call();
    s.reply(&ask, leased(1));
    assert_eq!(once(&s.call()), once(&write));
}

#[test]
fn a_lease_in_use_is_renewed_and_one_in_no_use_is_not() {
    let mut s = Script::leasing();
    let asked_at = s.now;
    s.tick();
    assert_eq!(s.now, asked_at.after(30 * SECOND));
    let ask = s.call();
    s.respond(&ask, Err(RpcError::MaybeExecuted));
    s.tick();
    let ask = s.call();
    assert_eq!(RenewClient::parse(&ask.request).unwrap().lease, LeaseId(1));
    s.reply(&ask, leased(1));
    // Nothing was written since: it is allowed to end.
    assert_eq!(s.client.deadline(), None);
    s.now = s.now.after(52 * SECOND);
    s.client.write(T, b"k", b"", NO_RULES, Instant::NEVER);
    assert_eq!(once(&s.call()).rpc, 2);
    s.now = s.now.after(SECOND);
    s.client.write(T, b"l", b"", NO_RULES, Instant::NEVER);
    let ask = s.call();
    assert_eq!(RenewClient::parse(&ask.request).unwrap().lease, LeaseId(1));
}

#[test]
fn the_window_bounds_mutations_without_an_answer() {
    let mut s = Script::leasing();
    for _ in 0..WINDOW + 2 {
        s.client.remove(T, b"k", NO_RULES, s.far());
    }
    let reads = s.client.read(T, b"k", NO_RULES, s.far());
    let mut calls = s.calls();
    assert_eq!(calls.len() as u64, WINDOW + 1);
    assert_eq!(
        s.client.live(reads.0).map(|i| s.client.slots[i as usize].state),
        Some(State::Calling)
    );
    calls.pop();
    // Not the first: the window stands.
    let second = calls.remove(1);
    s.reply(&second, ok(1, b""));
    assert_eq!(s.calls().len(), 0);
    let first = calls.remove(0);
    s.reply(&first, ok(1, b""));
    let calls = s.calls();
    assert_eq!(
        calls.iter().map(|call| once(call).rpc).collect::<Vec<_>>(),
        [WINDOW + 2, WINDOW + 3]
    );
    assert!(calls.iter().all(|call| once(call).ack == 3));
}
