//! Tests of multi-operations: parts that go together, and parts that go on alone.

use super::*;
use crate::message::multi;
use crate::ops::{MOST_PARTS, Multi};

fn read(key: &[u8]) -> Part<'_> {
    Part { table: T, key, rules: NO_RULES, request: PartRequest::Read }
}

fn write<'a>(key: &'a [u8], value: &'a [u8]) -> Part<'a> {
    Part { request: PartRequest::Write(value), ..read(key) }
}

/// Returns the requests in a bundle.
fn requests(call: &Call) -> Vec<&[u8]> {
    Multi::parse(&call.request).unwrap().parts.collect()
}

/// Makes the reply to a bundle.
fn replies(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    multi::begin_reply(&mut out);
    parts.iter().for_each(|part| multi::append(&mut out, part));
    out
}

fn parts(done: Done<'_>) -> Parts {
    match done.outcome {
        Ok(Answer::Parts(parts)) => parts,
        other => panic!("{other:?}"),
    }
}

/// The identities of the mutations in a bundle.
fn onces(call: &Call) -> Vec<Once> {
    let part = |request: &&[u8]| Write::parse(request).unwrap().once;
    requests(call).iter().map(part).collect()
}

#[test]
fn parts_of_one_master_share_a_call_and_have_results_of_their_own() {
    let mut s = Script::leasing();
    let add = Part { request: PartRequest::Increment(Amount::Integer(2)), ..read(b"c") };
    let remove = Part { request: PartRequest::Remove, ..read(b"d") };
    let all = [read(b"a"), write(b"b", b"v"), add, remove, read(b"e")];
    let op = s.client.multi(all, s.far());
    let call = s.call();
    let codes: Vec<_> = requests(&call).iter().map(|r| opcode(r).unwrap()).collect();
    let expected = [Opcode::Read, Opcode::Write, Opcode::IncrementInteger, Opcode::Remove];
    assert_eq!(codes, [&expected[..], &[Opcode::Read]].concat());
    assert_eq!(Read::parse(requests(&call)[4]).unwrap().key, b"e");
    let answer = replies(&[
        ok(4, b"value"),
        verdict(Status::WrongVersion, 5),
        ok(6, &7_i64.to_be_bytes()),
        ok(8, b""),
        ok(9, b""),
    ]);
    let done = s.reply(&call, answer).unwrap();
    assert_eq!(done.op, op);
    let parts = parts(done);
    let results: Vec<_> = parts.iter().collect();
    let object = PartAnswer::Object { version: Version(4), value: b"value" };
    assert_eq!(results[0], Ok(object));
    assert_eq!(results[1], Err(&Error::WrongVersion(Version(5))));
    assert_eq!(results[2], Ok(PartAnswer::Integer { version: Version(6), sum: 7 }));
    assert_eq!(results[3], Ok(PartAnswer::Version(Version(8))));
    assert_eq!(results[4], Ok(PartAnswer::Object { version: Version(9), value: b"" }));
    assert_eq!((s.client.in_progress(), s.client.own), (0, 0));
    // All mutations have their replies: the next one acknowledges them.
    s.client.remove(T, b"k", NO_RULES, s.far());
    assert_eq!(once(&s.call()).ack, 4);
}

#[test]
fn parts_that_the_master_left_out_go_again_at_once() {
    let mut s = Script::leasing();
    s.client.multi([write(b"a", b""), write(b"b", b""), write(b"c", b"")], s.far());
    let first = s.call();
    assert!(s.reply(&first, replies(&[ok(1, b"")])).is_none());
    let second = s.call();
    assert_eq!(
        onces(&second),
        onces(&first)[1..].iter().map(|o| Once { ack: 2, ..*o }).collect::<Vec<_>>()
    );
    assert!(s.reply(&second, replies(&[ok(2, b"")])).is_none());
    // The last one goes as if it had come alone.
    let third = s.call();
    assert_eq!(once(&third), Once { ack: 3, ..onces(&first)[2] });
    let parts = parts(s.reply(&third, ok(3, b"")).unwrap());
    let versions = [1, 2, 3].map(|v| PartAnswer::Version(Version(v)));
    assert!(parts.iter().eq(versions.map(Ok)));
}

#[test]
fn a_part_that_fails_goes_on_by_itself_under_its_number() {
    let mut s = Script::leasing();
    s.client.multi([write(b"a", b""), write(b"b", b""), read(b"c")], s.far());
    let call = s.call();
    let numbers: Vec<_> =
        requests(&call)[..2].iter().map(|r| Write::parse(r).unwrap().once.rpc).collect();
    let answer = replies(&[ok(1, b""), no(Status::Retry), ok(3, b"c")]);
    assert!(s.reply(&call, answer).is_none());
    assert_eq!(s.calls().len(), 0, "it pauses");
    s.tick();
    let again = s.call();
    assert_eq!(once(&again).rpc, numbers[1]);
    assert!(s.reply(&again, ok(2, b"")).is_some());

    // The whole call fails: each part goes again, and remembers that it may have been executed.
    s.client.multi([write(b"a", b""), write(b"b", b"")], s.far());
    let call = s.call();
    let before = onces(&call);
    assert!(s.respond(&call, Err(RpcError::MaybeExecuted)).is_none());
    let mut after = Vec::new();
    while after.len() < 2 {
        let again = s.object_call();
        after.push(once(&again).rpc);
        let done = s.reply(&again, ok(5, b""));
        assert_eq!(done.is_some(), after.len() == 2);
    }
    after.sort_unstable();
    assert_eq!(after, [before[0].rpc, before[1].rpc]);
}

#[test]
fn many_parts_go_in_bundles_of_limited_size_and_long_values_alone() {
    let mut s = Script::leasing();
    let count = 2 * MOST_PARTS + 3;
    s.client.multi((0..count).map(|_| read(b"k")), s.far());
    let calls = s.calls();
    let sizes: Vec<_> = calls.iter().map(|call| requests(call).len()).collect();
    assert_eq!(sizes, [MOST_PARTS, MOST_PARTS, 3]);
    for call in &calls[..2] {
        assert!(s.reply(call, replies(&vec![ok(1, b"v"); MOST_PARTS])).is_none());
    }
    let last = s.reply(&calls[2], replies(&vec![ok(1, b"v"); 3])).unwrap();
    assert_eq!(parts(last).len(), count);

    let (long, half) = (vec![1; 5000], vec![2; 4000]);
    let values = [&long[..], &half, &half, &half, b"short"];
    s.client.multi(values.map(|value| write(b"k", value)), s.far());
    let calls = s.calls();
    let codes: Vec<_> = calls.iter().map(|call| opcode(&call.request).unwrap()).collect();
    assert_eq!(codes, [Opcode::Write, Opcode::Multi, Opcode::Multi]);
    assert_eq!(Write::parse(&calls[0].request).unwrap().value, long);
    assert_eq!((requests(&calls[1]).len(), requests(&calls[2]).len()), (2, 2));
}

#[test]
fn parts_go_to_the_masters_of_their_tablets() {
    let mut s = Script::leasing();
    let map = tablets(&[("fast:m", TabletState::Normal), ("tcp:n", TabletState::Normal)]);
    let (client, far) = (&mut s.client, Instant::NEVER);
    let two = TableId(8);
    let keys: Vec<_> = (0..40_u8).map(|i| [i]).collect();
    client.multi(keys.iter().map(|key| Part { table: two, ..read(key) }), far);
    let ask = s.call();
    s.reply(&ask, map);
    let calls = s.calls();
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0].link, calls[1].link);
    assert_eq!(requests(&calls[0]).len() + requests(&calls[1]).len(), 40);
    // Refused as a whole, as by a master that left the cluster: every part goes on.
    assert!(s.reply(&calls[0], no(Status::NotInCluster)).is_none());
    let answers = vec![ok(1, b""); requests(&calls[1]).len()];
    assert!(s.reply(&calls[1], replies(&answers)).is_none());
    assert!(s.client.in_progress() > 1);
}

#[test]
fn none_too_many_too_long_and_cancelled() {
    let mut s = Script::leasing();
    let op = s.client.multi([], s.far());
    let done = s.event();
    assert_eq!(done.op, op);
    assert!(parts(done).is_empty());

    s.client.multi((0..MAX_PARTS + 1).map(|_| read(b"")), s.far());
    assert_eq!(s.event().outcome.unwrap_err(), Error::TooManyParts(MAX_PARTS + 1));

    let long = vec![0; MAX_KEY + 1];
    s.client.multi([read(&long), write(b"", &vec![0; MAX_VALUE + 1])], s.far());
    let results = parts(s.event());
    assert_eq!(results.get(0), Err(&Error::KeyTooLong(MAX_KEY + 1)));
    assert_eq!(results.get(1), Err(&Error::ValueTooLong(MAX_VALUE + 1)));

    let op = s.client.multi([write(b"a", b""), write(b"b", b"")], s.far());
    let call = s.call();
    assert!(s.client.is_in_progress(op) && s.client.cancel(op) && !s.client.cancel(op));
    assert_eq!(s.client.in_progress(), 0);
    assert!(s.reply(&call, replies(&[ok(1, b""), ok(2, b"")])).is_none());
    assert!(s.client.event().is_none());

    // A malformed reply is final for every part.
    for reply in [replies(&[]), replies(&[vec![1]])[..5].to_vec(), vec![1, 0, 0, 0, 9, 9, 9, 9]] {
        s.client.multi([read(b"a"), read(b"b")], s.far());
        let call = s.call();
        let parts = parts(s.reply(&call, reply).unwrap());
        assert!(parts.iter().all(|part| matches!(part, Err(Error::Refused { .. }))), "{parts:?}");
    }
}

#[test]
fn every_part_ends_at_the_deadline() {
    let mut s = Script::leasing();
    s.client.multi([read(b"a"), write(b"b", b"")], s.now.after(SECOND));
    let call = s.call();
    assert_eq!(call.deadline, s.now.after(SECOND));
    s.now = call.deadline;
    let done = s.respond(&call, Err(RpcError::Deadline { maybe_executed: true })).unwrap();
    let parts = parts(done);
    let late = |maybe_executed| Error::Deadline {
        maybe_executed,
        waited_for: WaitedFor::Server,
        why: None,
    };
    assert_eq!(parts.get(0), Err(&late(false)));
    assert_eq!(parts.get(1), Err(&late(true)));
}

#[test]
fn another_cluster_ends_all_parts() {
    let mut s = Script::leasing();
    s.client.multi([read(b"a"), write(b"b", b"")], s.far());
    let call = s.call();
    s.client.create_table("t", 1, s.far());
    let create = s.call();
    let other = TableKey { cluster: CLUSTER + 1, table: T, hash_key: HASH_KEY };
    s.reply(&create, other.emit());
    let mut ended = 0;
    while let Some(done) = s.client.event() {
        match done.outcome {
            Ok(Answer::Parts(parts)) => {
                assert!(parts.iter().all(|part| part == Err(&Error::ClusterReplaced)));
                ended += 1;
            }
            Err(Error::ClusterReplaced) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((ended, s.client.in_progress()), (1, 0));
    assert!(s.reply(&call, replies(&[ok(1, b""), ok(2, b"")])).is_none());
}

#[test]
fn operations_behind_a_cancelled_one_get_its_room_in_the_window() {
    let mut s = Script::leasing();
    // Slots are reused in an order of their own.
    s.client.multi((0..600).map(|_| read(b"k")), s.far());
    for call in s.calls() {
        let answers = vec![ok(1, b""); requests(&call).len()];
        s.reply(&call, replies(&answers));
    }
    let many = s.client.multi((0..1500).map(|_| write(b"k", b"")), s.far());
    let behind = s.client.write(T, b"behind", b"", NO_RULES, s.far());
    assert!(!s.calls().is_empty());
    assert!(s.client.cancel(many));
    let calls = s.calls();
    assert_eq!(Write::parse(&calls[0].request).unwrap().key, b"behind");
    assert_eq!(s.reply(&calls[0], ok(1, b"")).unwrap().op, behind);
}

#[test]
fn bundles_take_no_room_from_operations() {
    let mut s = Script::knowing();
    s.client.config.max_ops = 65;
    let first = s.client.multi((0..32).map(|_| read(b"k")), s.far());
    assert_eq!(s.calls().len(), 1);
    s.client.multi((0..31).map(|_| read(b"k")), s.far());
    assert_eq!((s.client.in_progress(), s.calls().len()), (65, 1));
    s.client.read(T, b"k", NO_RULES, s.far());
    assert_eq!(s.event().outcome.unwrap_err(), Error::TooManyOps);
    assert!(s.client.cancel(first));
}

#[test]
fn parts_leave_before_the_last_one_is_added() {
    let mut s = Script::knowing();
    let op = s.client.begin_multi(3, s.far());
    s.client.add_parts(op, [read(b"a"), read(b"b")]);
    let call = s.call();
    assert!(s.reply(&call, replies(&[ok(1, b"a"), ok(2, b"b")])).is_none());
    assert!(s.client.is_in_progress(op) && s.client.event().is_none());
    s.client.add_parts(op, [read(b"c")]);
    s.client.end_multi(op);
    let last = s.call();
    let done = s.reply(&last, ok(3, b"c")).unwrap();
    assert_eq!(done.op, op);
    let versions = [(1, &b"a"[..]), (2, b"b"), (3, b"c")];
    let objects = versions.map(|(v, value)| PartAnswer::Object { version: Version(v), value });
    assert!(parts(done).iter().eq(objects.map(Ok)));

    // All have ended when the last one is announced.
    let op = s.client.begin_multi(1, s.far());
    s.client.add_parts(op, [read(b"a")]);
    let call = s.call();
    assert!(s.reply(&call, ok(1, b"a")).is_none());
    s.client.end_multi(op);
    assert_eq!(parts(s.event()).len(), 1);

    // Nothing starts for an operation that has ended.
    let op = s.client.begin_multi(2, s.far());
    s.client.add_parts(op, [read(b"a")]);
    assert!(s.client.cancel(op));
    s.client.add_parts(op, [read(b"b")]);
    s.client.end_multi(op);
    assert_eq!((s.calls().len(), s.client.in_progress()), (0, 0));
    assert!(s.client.event().is_none());
    let op = s.client.begin_multi(MAX_PARTS + 1, s.far());
    s.client.add_parts(op, [read(b"a")]);
    s.client.end_multi(op);
    assert_eq!(s.event().outcome.unwrap_err(), Error::TooManyParts(MAX_PARTS + 1));
}
