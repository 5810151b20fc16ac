//! Tests of mutations that wait for the lease of their client.

use super::*;
use crate::message::control::{Hint, HintCrashed};

#[test]
fn a_mutation_waits_until_its_clients_lease_is_known() {
    let mut rig = Rig::small();
    let request = |rpc| {
        let amount = Amount::Integer(1);
        Increment { target: TARGET, once: once(1, rpc, 0), amount, key: b"n" }.emit()
    };
    let other =
        Increment { target: TARGET, once: once(2, 1, 0), amount: Amount::Integer(1), key: b"n" };
    // A repetition that comes meanwhile gets the same answer.
    let first = rig.send(&request(1)).unwrap_err();
    let second = rig.send(&request(2)).unwrap_err();
    let repeated = rig.send(&request(1)).unwrap_err();
    let others = rig.send(&other.emit()).unwrap_err();
    let asked = rig.now;
    rig.pass(10);
    let request_one = rig.answer(Opcode::CheckLease, LeaseTimes { valid_ns: vec![1000] }.emit());
    assert_eq!(CheckLease::parse(&request_one).unwrap().leases, [LeaseId(1)]);
    assert_eq!(rig.replies[&first], rig.replies[&repeated]);
    assert_eq!(increment_reply(&rig.replies[&first]).unwrap().1, 1u64.to_be_bytes());
    assert_eq!(increment_reply(&rig.replies[&second]).unwrap().1, 2u64.to_be_bytes());
    assert_eq!(
        rig.master.counters.increments, 2,
        "each counts when it is executed, not also when it began to wait"
    );
    assert!(!rig.replies.contains_key(&others));
    rig.answer(Opcode::CheckLease, LeaseTimes { valid_ns: vec![0] }.emit());
    assert_eq!(rig.replies[&others], data::head(Status::ExpiredLease));

    // The lease is known until its term ends, from the time of the request. Then the master asks
    // again and forgets nothing.
    rig.now = asked.after(999);
    assert!(rig.send(&request(3)).is_ok());
    rig.now = asked.after(1000);
    let again = rig.send(&request(1)).unwrap_err();
    let new = rig.send(&request(4)).unwrap_err();
    rig.answer(Opcode::CheckLease, failure(Status::Starting, ""));
    for waited in [again, new] {
        assert_eq!(rig.replies[&waited], data::head(Status::Retry), "nobody knows");
    }
    let again = rig.send(&request(1)).unwrap_err();
    rig.answer(Opcode::CheckLease, LeaseTimes { valid_ns: vec![1000] }.emit());
    assert_eq!(rig.replies[&again], rig.replies[&first]);

    // Expired: its records go, and nothing of it is executed any more.
    assert_eq!(rig.master.memory().results.records(), 3);
    let live = rig.master.memory().log.live_bytes();
    rig.pass(1000);
    rig.answer(Opcode::CheckLease, LeaseTimes { valid_ns: vec![0] }.emit());
    assert_eq!(rig.master.memory().results.records(), 0);
    assert!(rig.master.memory().log.live_bytes() < live);
    let late = rig.send(&request(1)).unwrap_err();
    rig.answer(Opcode::CheckLease, LeaseTimes { valid_ns: vec![0] }.emit());
    assert_eq!(rig.replies[&late], data::head(Status::ExpiredLease));
    assert_eq!(rig.read(b"n").unwrap().1, b"3");
}

#[test]
fn mutations_that_wait_are_limited() {
    let mut rig = Rig::small();
    let big = vec![0; MAX_VALUE];
    let refused = (1..30).find(|&n| {
        let request =
            Write { target: TARGET, once: once(1, n, 0), key: b"", value: &big, lifetime: None }
                .emit();
        rig.send(&request).is_ok()
    });
    assert_eq!(refused, Some(16), "16 MiB");
    let mut rig = Rig::small();
    let refused = (1..600).filter(|&lease| {
        let request = Remove { target: TARGET, once: once(lease, 1, 0), key: b"" }.emit();
        rig.send(&request).is_ok_and(|reply| reply == data::head(Status::Retry))
    });
    // The first is asked about alone, the next 512 together when the answer comes.
    assert_eq!(refused.count(), 599 - 513);
    rig.answer(Opcode::CheckLease, LeaseTimes { valid_ns: vec![TERM_NS] }.emit());
    let times = LeaseTimes { valid_ns: vec![TERM_NS; 512] };
    rig.answer(Opcode::CheckLease, times.emit());
    assert_eq!(rig.replies.len(), 513);
}

/// A master that ends serves no more before it tells the coordinator: other servers may serve its
/// tablets as soon as the coordinator knows.
#[test]
fn a_master_that_leaves_serves_no_more() {
    let mut rig = Rig::small();
    assert_eq!(rig.read(b"n").unwrap_err(), Status::ObjectDoesntExist);
    rig.master.leave(rig.now);
    assert_eq!(rig.read(b"n").unwrap_err(), Status::NotServing);
    rig.pump();
    assert!(!rig.master.has_left());
    let told = rig.answer(Opcode::HintCrashed, done());
    let hint = HintCrashed { cluster: CLUSTER, server: ME, hint: Hint::Leaving };
    assert_eq!(HintCrashed::parse(&told), Ok(hint));
    assert!(rig.master.has_left() && !rig.stopped);
    assert_eq!(rig.read(b"n").unwrap_err(), Status::NotServing);
    // It never asks for a lease again.
    rig.pass(10 * TERM_NS / MS);
    assert!(rig.calls.is_empty());

    // The coordinator may be dead.
    let mut rig = Rig::small();
    rig.master.leave(rig.now);
    rig.pump();
    let (tag, _) = rig.calls.pop().unwrap();
    rig.master.response(rig.now, tag, Err(RpcError::NotExecuted));
    assert!(rig.master.has_left());
}
