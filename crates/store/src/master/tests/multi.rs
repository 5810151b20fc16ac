//! Tests of multi-operations at the master.

use super::*;
use crate::message::multi::{self, Parts};
use crate::ops::{Append, MOST_PARTS};

/// The longest reply to several parts, in bytes.
const MOST_BYTES: usize = 64 << 10;

fn request(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    multi::begin_request(&mut out);
    parts.iter().for_each(|part| multi::append(&mut out, part));
    out
}

fn write(once: Once, key: &[u8], value: &[u8]) -> Vec<u8> {
    Write { target: TARGET, once, key, value, lifetime: None }.emit()
}

fn read(key: &[u8]) -> Vec<u8> {
    Read { target: TARGET, key }.emit()
}

/// Returns the replies to the parts that the master executed.
fn replies(reply: &[u8]) -> Vec<&[u8]> {
    Parts::of_reply(reply).unwrap().collect()
}

fn statuses(reply: &[u8]) -> Vec<Status> {
    replies(reply).iter().map(|part| Status::from_code(part[1]).unwrap()).collect()
}

#[test]
fn each_part_has_its_own_status() {
    let mut rig = Rig::small();
    rig.client(1, TERM_NS);
    let foreign = Target { table: TableId(8), ..TARGET };
    let two = Amount::Integer(2);
    let parts = [
        write(once(1, 2, 1), b"a", b"one"),
        read(b"a"),
        read(b"b"),
        Increment { target: TARGET, once: once(1, 3, 1), amount: two, key: b"a" }.emit(),
        Increment { target: TARGET, once: once(1, 4, 1), amount: two, key: b"n" }.emit(),
        Remove { target: TARGET, once: once(1, 5, 1), key: b"a" }.emit(),
        Read { target: foreign, key: b"a" }.emit(),
        // These are no operations on an object.
        Echo(b"bytes").emit(),
        Stats.emit(),
        request(&[read(b"a")]),
        vec![],
        take(0, 9).emit(),
        vec![VERSION, 200, 0, 0],
    ];
    let bytes = request(&parts);
    let reply = rig.ask(bytes.clone());
    let expected = [
        Status::Ok,
        Status::Ok,
        Status::ObjectDoesntExist,
        Status::NotANumber,
        Status::Ok,
        Status::Ok,
        Status::UnknownTablet,
    ];
    assert_eq!(statuses(&reply), [&expected[..], &[Status::BadFormat; 6]].concat());
    assert_eq!(read_reply(replies(&reply)[1]).unwrap().1, b"one");
    assert_eq!(increment_reply(replies(&reply)[4]).unwrap().1, 2_i64.to_be_bytes());
    assert_eq!(rig.master.counter("multis"), 1);
    assert_eq!(rig.master.counter("writes"), 1);
    assert_eq!(rig.master.counter("refused_BadFormat"), 6);

    // Repeated, the mutations have their outcomes, and the reads see what is now.
    let again = rig.ask(bytes);
    assert_eq!(rig.master.counter("writes"), 1);
    for i in [0, 3, 4, 5] {
        assert_eq!(replies(&again)[i], replies(&reply)[i]);
    }
    assert_eq!(statuses(&again)[1], Status::ObjectDoesntExist);

    for bad in [request(&[]), request(&[read(b"a")])[..20].to_vec(), vec![VERSION, 9, 0, 1]] {
        assert_eq!(rig.status(bad), Some(Status::BadFormat));
    }
}

#[test]
fn a_turn_and_a_reply_have_limits() {
    let mut rig = Rig::serving(Config::default());
    rig.client(1, TERM_NS);
    let parts = vec![read(b"k"); MOST_PARTS + 9];
    let reply = rig.ask(request(&parts));
    assert_eq!(replies(&reply).len(), MOST_PARTS);
    for (i, len) in [200, 20_000, 300_000, MAX_VALUE].into_iter().enumerate() {
        rig.write(once(1, 2 + i as u64, 1), &[i as u8], &vec![i as u8; len]).unwrap();
    }
    let long = vec![read(&[1]); 9];
    let reply = rig.ask(request(&long));
    assert_eq!(replies(&reply).len(), 3);
    // The first part is in the reply, however long it is, and then it is the only one.
    let parts = [read(&[3]), read(&[0])];
    let reply = rig.ask(request(&parts));
    let found = replies(&reply);
    assert_eq!((found.len(), read_reply(found[0]).unwrap().1.len()), (1, MAX_VALUE));
    let parts = [read(&[0]), read(&[2]), read(&[0])];
    assert_eq!(replies(&rig.ask(request(&parts))).len(), 1);
}

#[test]
fn parts_of_an_unknown_lease_wait_together() {
    let mut rig = Rig::small();
    let parts = [read(b"a"), write(once(1, 1, 0), b"a", b"1"), write(once(1, 2, 0), b"b", b"2")];
    // The parts before the first one that has to wait are executed.
    let reply = rig.ask(request(&parts));
    assert_eq!(statuses(&reply), [Status::ObjectDoesntExist]);
    assert!(rig.calls.is_empty());
    let waiting = rig.send(&request(&parts[1..])).unwrap_err();
    assert_eq!(rig.master.counter("writes"), 0);
    rig.answer(Opcode::CheckLease, LeaseTimes { valid_ns: vec![TERM_NS] }.emit());
    let reply = rig.replies.remove(&waiting).unwrap();
    assert_eq!(statuses(&reply), [Status::Ok; 2]);
    assert_eq!(rig.read(b"b").unwrap().1, b"2");

    // A lease that has ended refuses the whole request.
    let waiting = rig.send(&request(&[write(once(2, 1, 0), b"a", b"")])).unwrap_err();
    rig.answer(Opcode::CheckLease, LeaseTimes { valid_ns: vec![0] }.emit());
    let reply = rig.replies.remove(&waiting).unwrap();
    assert_eq!(Status::from_code(reply[1]), Some(Status::ExpiredLease));
}

#[test]
fn the_reply_waits_until_all_that_it_reports_is_durable() {
    let mut rig = Rig::serving(Config { replicas: 1, ..Config::default() });
    rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
    let reads = request(&[read(b"a"), read(b"b")]);
    assert_eq!(statuses(&rig.ask(reads.clone())), [Status::ObjectDoesntExist; 2]);
    let writes = request(&[read(b"c"), write(once(1, 1, 0), b"a", b"1"), read(b"a")]);
    let writing = rig.send(&writes).unwrap_err();
    // What a read or a repeated write would report is not durable, either.
    let reading = rig.send(&reads).unwrap_err();
    let repeating = rig.send(&writes).unwrap_err();
    let tail = rig.master.memory().log.tail();
    rig.master.durable(tail);
    rig.pump();
    let reply = rig.replies.remove(&writing).unwrap();
    assert_eq!(statuses(&reply), [Status::ObjectDoesntExist, Status::Ok, Status::Ok]);
    let reply = rig.replies.remove(&reading).unwrap();
    assert_eq!(statuses(&reply), [Status::Ok, Status::ObjectDoesntExist]);
    let reply = rig.replies.remove(&repeating).unwrap();
    assert_eq!(statuses(&reply)[1], Status::Retry);
    assert_eq!(statuses(&rig.ask(writes)), [Status::ObjectDoesntExist, Status::Ok, Status::Ok]);

    // Changes of tables that may lag wait for none, unless another part does.
    let lagging = TableId(9);
    let target = Target { table: lagging, ..TARGET };
    let taken =
        TakeTablet { table: lagging, durability: TableDurability::Async, ..take(0, u64::MAX) };
    rig.ask(taken.emit());
    let hasty = Write { target, once: once(1, 2, 1), key: b"h", value: b"", lifetime: None }.emit();
    let look = Read { target, key: b"h" }.emit();
    assert_eq!(statuses(&rig.ask(request(&[hasty, look.clone()]))), [Status::Ok; 2]);
    assert_eq!(statuses(&rig.ask(request(&[look.clone(), look.clone()]))), [Status::Ok; 2]);
    assert!(rig.send(&request(&[look.clone(), read(b"c")])).is_err());
    assert!(rig.send(&request(&[read(b"c"), look.clone()])).is_err());
    assert_eq!(statuses(&rig.ask(request(&[look, read(b"a")]))), [Status::Ok; 2]);
    let mixed = [
        Write { target, once: once(1, 3, 1), key: b"h", value: b"", lifetime: None }.emit(),
        read(b"c"),
    ];
    assert!(rig.send(&request(&mixed)).is_err());
}

#[test]
fn only_reads_are_left_out_of_a_long_reply() {
    let mut rig = Rig::serving(Config::default());
    rig.client(1, TERM_NS);
    rig.write(once(1, 2, 1), b"long", &vec![7; MOST_BYTES + 1]).unwrap();
    rig.write(once(1, 3, 1), b"half", &vec![7; MOST_BYTES / 2]).unwrap();
    // After a long part, none is executed any more.
    let writes = rig.master.counter("writes");
    let reply = rig.ask(request(&[read(b"long"), write(once(1, 4, 1), b"a", b"")]));
    assert_eq!((replies(&reply).len(), rig.master.counter("writes")), (1, writes));
    // A mutation that was executed has its reply, also where the reply is full.
    let half = [read(b"half"), read(b"half"), write(once(1, 4, 1), b"a", b""), read(b"half")];
    let reply = rig.ask(request(&half));
    assert_eq!(replies(&reply).len(), 1);
    let parts = [read(b"half"), write(once(1, 4, 1), b"a", b""), read(b"half"), read(b"a")];
    let reply = rig.ask(request(&parts));
    assert_eq!(statuses(&reply), [Status::Ok; 2]);
}

#[test]
fn a_read_without_room_for_its_value_is_refused_alone() {
    let mut rig = Rig::small();
    rig.client(1, TERM_NS);
    rig.write(once(1, 2, 1), b"k", &[7; 2000]).unwrap();
    // Readers that take no replies keep slices of the log.
    let mut kept = Vec::new();
    for _ in 0..100_000 {
        let mut message = Message::default();
        let caller = Caller { transport: 0, rpc: ServerRpc(0), at: Instant::ZERO };
        let payload = read(b"k");
        let payload = Payload::Borrowed(&payload);
        rig.master.request(rig.now, caller, payload, Instant::NEVER, &mut message);
        if message.slices.is_empty() {
            break;
        }
        kept.push(message);
        rig.write(once(1, 3 + kept.len() as u64, 2 + kept.len() as u64), b"k", &[7; 2000]).unwrap();
        while rig.master.tick(rig.now) {}
    }
    let reply = rig.ask(request(&[read(b"none"), read(b"k")]));
    assert_eq!(statuses(&reply), [Status::ObjectDoesntExist, Status::Retry]);
    assert_eq!(replies(&reply)[1], data::head(Status::Retry));
}

#[test]
fn an_append_without_room_waits_for_the_value_that_leaves_none() {
    let mut rig = Rig::serving(Config { replicas: 1, ..Config::default() });
    rig.master.memory.results.extend(LeaseId(1), Instant::NEVER);
    let append = |rpc, len| {
        let once = once(1, rpc, 0);
        Append { target: TARGET, once, key: b"k", bytes: &vec![1; len] }.emit()
    };
    let first = rig.send(&append(1, MAX_VALUE)).unwrap_err();
    let second = rig.send(&append(2, 1)).unwrap_err();
    let tail = rig.master.memory().log.tail();
    rig.master.durable(tail);
    rig.pump();
    assert!(mutation_status(&rig.replies.remove(&first).unwrap()) == Status::Ok);
    assert!(mutation_status(&rig.replies.remove(&second).unwrap()) == Status::ValueTooLong);
}

fn mutation_status(reply: &[u8]) -> Status {
    Status::from_code(reply[1]).unwrap()
}
