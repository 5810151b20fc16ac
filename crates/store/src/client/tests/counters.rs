//! Tests of the counters of a client.

use super::*;

fn read(key: &[u8]) -> Part<'_> {
    Part { table: T, key, rules: NO_RULES, request: PartRequest::Read }
}

#[test]
fn operations_are_counted_by_their_ends() {
    let mut s = Script::leasing();
    let before = s.client.counters();
    assert_eq!((before.started, before.completed, before.route_refreshes), (2, 2, 1));
    // A try that fails asks for the tablets again; the next one succeeds.
    s.client.read(T, b"k", NO_RULES, s.far());
    let first = s.call();
    assert!(s.reply(&first, no(Status::UnknownTablet)).is_none());
    let second = s.object_call();
    assert!(s.reply(&second, ok(1, b"")).is_some());
    // A program gives one up, and one ends at its deadline.
    let op = s.client.read(T, b"k", NO_RULES, s.far());
    s.call();
    assert_eq!(s.client.counters().started, s.client.counters().completed + 1);
    s.client.cancel(op);
    s.client.read(T, b"k", NO_RULES, s.now);
    assert!(s.calls().is_empty());
    assert!(matches!(s.event().outcome, Err(Error::Deadline { .. })));
    let expected = Counters {
        started: 5,
        completed: 4,
        cancelled: 1,
        retried: 1,
        late: 1,
        route_refreshes: 2,
        ..Counters::default()
    };
    assert_eq!(s.client.counters(), expected);
}

#[test]
fn bundles_are_counted_by_the_round_trips_that_they_save() {
    let mut s = Script::knowing();
    let op = s.client.multi([read(b"a"), read(b"b"), read(b"c")], s.far());
    s.call();
    let counters = s.client.counters();
    assert_eq!((counters.bundles, counters.saved_round_trips), (1, 2));
    assert_eq!((counters.started, counters.completed), (5, 1));
    s.client.cancel(op);
    assert_eq!(s.client.counters().cancelled, 4);
    // A part that comes alone saves nothing.
    s.client.multi([read(b"a")], s.far());
    s.call();
    assert_eq!(s.client.counters().bundles, 1);
}
