//! Tests of swaps at the master: each repetition gets the object that the first try replaced.

use super::*;
use crate::message::data::Refusal;
use crate::message::multi::{self, Parts};
use crate::objects::entry::OBJECT;
use crate::objects::segment::Location;
use crate::ops::{ClientOperation as _, ReadExpiring, Reply, Swap, Touch};
use crate::types::Lifetime;

fn swap(once: Once, key: &[u8], value: &[u8]) -> Vec<u8> {
    Swap { target: TARGET, once, key, value, lifetime: None }.emit()
}

/// Returns the new version, the old version and the old value in the reply to a swap.
fn swapped(reply: &[u8]) -> Result<(u64, u64, Vec<u8>), Refusal<'_>> {
    match Swap::completion(None, reply)? {
        Reply::Swapped { version, before, value } => {
            Ok((version.0, before.0, reply[value..].to_vec()))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_swap_returns_what_it_replaces() {
    let mut rig = Rig::small();
    rig.client(1, TERM_NS);
    let first = rig.ask(swap(once(1, 2, 1), b"k", b""));
    assert_eq!(swapped(&first), Ok((1, 0, vec![])));
    let second = rig.ask(swap(once(1, 3, 1), b"k", b"two"));
    assert_eq!(swapped(&second), Ok((2, 1, vec![])), "an empty value is an object");
    let third = rig.ask(swap(once(1, 4, 1), b"k", &[3; 600]));
    assert_eq!(swapped(&third), Ok((3, 2, b"two".to_vec())));
    let fourth = rig.ask(swap(once(1, 5, 1), b"k", b"four"));
    assert_eq!(swapped(&fourth), Ok((4, 3, vec![3; 600])), "a long value comes as a slice");
    assert_eq!(rig.read(b"k"), Ok((Version(4), b"four".to_vec())));
    assert_eq!(rig.master.counter("swaps"), 4);

    // Repetitions change nothing, although the object is gone meanwhile.
    let remove = Remove { target: TARGET, once: once(1, 6, 1), key: b"k" }.emit();
    assert_eq!(mutation_reply(&rig.ask(remove)), Ok(Version(4)));
    let values = [&b""[..], b"two", &[3; 600], b"four"];
    for ((rpc, value), reply) in (2..).zip(values).zip([first, second, third, fourth]) {
        assert_eq!(rig.ask(swap(once(1, rpc, 1), b"k", value)), reply, "{rpc}");
    }
    assert_eq!(rig.master.counter("swaps"), 4);
    // An acknowledged one is not answered any more.
    assert!(rig.write(once(1, 7, 6), b"other", b"").is_ok());
    assert_eq!(rig.status(swap(once(1, 4, 1), b"k", b"")), Some(Status::StaleRpc));
}

#[test]
fn a_swap_that_is_refused_returns_nothing_and_changes_nothing() {
    let mut rig = Rig::small();
    rig.client(1, TERM_NS);
    assert!(rig.write(once(1, 2, 1), b"k", b"v").is_ok());
    let mut target = TARGET;
    (target.rules.version_ne_given, target.rules.given_version) = (true, Version(7));
    let refused =
        Swap { target, once: once(1, 3, 1), key: b"k", value: b"w", lifetime: None }.emit();
    for _ in 0..2 {
        let reply = rig.ask(refused.clone());
        let refusal = swapped(&reply).unwrap_err();
        assert_eq!((refusal.status, refusal.version), (Status::WrongVersion, Version(1)));
    }
    assert_eq!(rig.read(b"k"), Ok((Version(1), b"v".to_vec())));

    // The old value and the new one do not fit into a segment together.
    let (old, new) = (vec![1; 2000], vec![2; 2100]);
    assert!(OBJECT + new.len() < 1 << 12);
    assert!(rig.write(once(1, 4, 3), b"k", &old).is_ok());
    assert_eq!(rig.status(swap(once(1, 5, 4), b"k", &new)), Some(Status::ValueTooLong));
    assert_eq!(rig.read(b"k"), Ok((Version(2), old)));
    assert!(rig.write(once(1, 5, 4), b"k", &new).is_ok(), "the number is still new");
}

/// An object at the end of its lifetime is not there for a swap. A swap may give a lifetime.
#[test]
fn swaps_and_lifetimes() {
    let mut rig = Rig::small();
    rig.client(1, 100 * TERM_NS);
    let expiring = |rpc, value| {
        let (once, lifetime) = (once(1, rpc, 1), Some(Lifetime(100)));
        Swap { target: TARGET, once, key: b"k", value, lifetime }.emit()
    };
    assert_eq!(swapped(&rig.ask(expiring(2, b"one"))), Ok((1, 0, vec![])));
    rig.now = rig.now.after(99 * MS);
    let second = rig.ask(expiring(3, b"two"));
    assert_eq!(swapped(&second), Ok((2, 1, b"one".to_vec())));
    rig.now = rig.now.after(99 * MS);
    assert!(rig.read(b"k").is_ok(), "the second lifetime began with the second swap");
    rig.now = rig.now.after(MS);
    assert_eq!(swapped(&rig.ask(swap(once(1, 4, 1), b"k", b"three"))), Ok((3, 0, vec![])));
    assert_eq!(rig.ask(expiring(3, b"two")), second, "as it was then");
    let touch = Touch { target: TARGET, once: once(1, 5, 1), lifetime: None, key: b"k" }.emit();
    assert_eq!(mutation_reply(&rig.ask(touch)), Ok(Version(4)));
}

/// A read may tell the rest of a lifetime, as a list does.
#[test]
fn the_rest_of_a_lifetime_is_told() {
    let mut rig = Rig::small();
    rig.client(1, 100 * TERM_NS);
    let value = [4; 600];
    for (rpc, key, lifetime) in [(2, b"e", Some(Lifetime(100))), (3, b"f", None)] {
        let once = once(1, rpc, 1);
        rig.ask(Swap { target: TARGET, once, key, value: &value, lifetime }.emit());
    }
    rig.now = rig.now.after(70 * MS);
    let read = |rig: &mut Rig, key: &[u8]| {
        let reply = rig.ask(ReadExpiring { target: TARGET, key }.emit());
        match ReadExpiring::completion((), &reply).map_err(|refusal| refusal.status) {
            Ok(Reply::Expiring { version, lifetime, value: at }) => {
                assert_eq!(reply[at..], value);
                Ok((version.0, lifetime))
            }
            Err(status) => Err(status),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(read(&mut rig, b"e"), Ok((1, Some(Lifetime(30)))));
    assert_eq!(read(&mut rig, b"f"), Ok((2, None)));
    let (first, last) = (0, u64::MAX);
    let list =
        Enumerate { cluster: CLUSTER, table: TABLE, first, last, cursor: 0, limit_bytes: 5000 };
    let mut listed: Vec<_> = Vec::new();
    let mut next = Some(0);
    while let Some(cursor) = next {
        let reply = rig.ask(Enumerate { cursor, ..list }.emit());
        let objects = objects_reply(&reply).unwrap();
        next = objects.next;
        listed.extend(objects.map(|object| (object.key.to_vec(), object.lifetime)));
    }
    listed.sort();
    assert_eq!(listed, [(b"e".to_vec(), Some(Lifetime(30))), (b"f".to_vec(), None)]);
    rig.now = rig.now.after(30 * MS);
    assert_eq!(read(&mut rig, b"e"), Err(Status::ObjectDoesntExist));
    assert_eq!(rig.master.memory().expired, 1);
}

/// The cleaner moves old values, with their objects and alone, and they leave no memory behind once
/// the client has acknowledged them.
#[test]
fn old_values_survive_the_cleaner() {
    let mut rig = Rig::small();
    rig.client(1, 100 * TERM_NS);
    assert!(rig.write(once(1, 2, 1), b"k", &[0; 700]).is_ok());
    let replies = [3, 4, 5].map(|rpc| rig.ask(swap(once(1, rpc, 2), b"k", &[rpc as u8; 700])));
    let live = rig.master.memory().log.live_bytes();
    for rpc in 6..300 {
        let other = [rpc as u8 % 4];
        // The acknowledgement does not rise.
        assert!(rig.write(once(1, rpc, 2), &other, &[9; 500]).is_ok(), "{rpc}");
        if rpc % 50 == 0 {
            for (rpc, reply) in (3..).zip(&replies) {
                assert_eq!(&rig.ask(swap(once(1, rpc, 2), b"k", &[rpc as u8; 700])), reply);
            }
        }
    }
    assert!(rig.master.counter("segments_cleaned") > 0);
    assert!(rig.write(once(1, 300, 299), b"k", &[9; 500]).is_ok());
    assert_eq!(rig.master.memory().results.records(), 1);
    assert!(rig.master.memory().log.live_bytes() < live);
}

/// Swaps are parts of multi-operations as other mutations are. Their replies take no slice, and a
/// long one ends the reply.
#[test]
fn swaps_in_multi_operations() {
    let mut rig = Rig::serving(Config { log_bytes: 64 << 20, ..Config::default() });
    rig.client(1, TERM_NS);
    let long = vec![5; 70 << 10];
    let mut request = Vec::new();
    multi::begin_request(&mut request);
    for (rpc, value) in (2..).zip([&long[..], b"b", b"c", b"d"]) {
        multi::append(&mut request, &swap(once(1, rpc, 1), b"k", value));
    }
    for _ in 0..2 {
        let reply = rig.ask(request.clone());
        let parts: Vec<_> = Parts::of_reply(&reply).unwrap().map(swapped).collect();
        assert_eq!(parts, [Ok((1, 0, vec![])), Ok((2, 1, long.clone()))]);
    }
    assert_eq!(rig.read(b"k"), Ok((Version(2), b"b".to_vec())));
}

/// If the log can lend no more bytes, the client repeats the swap, and gets the old value then.
#[test]
fn a_swap_whose_old_value_cannot_be_lent_is_repeated() {
    let mut rig = Rig::small();
    rig.client(1, TERM_NS);
    for rpc in 2..8 {
        assert!(rig.write(once(1, rpc, 1), &[rpc as u8], &[0; 1500]).is_ok());
    }
    let old = vec![7; 1000];
    assert!(rig.write(once(1, 8, 1), b"k", &old).is_ok());
    // Readers have all that the log lends: two segments, and copies of as much.
    let lend = |rig: &mut Rig, (slot, len)| rig.master.memory.log.lend(Location::new(slot, 0), len);
    let lent = [(0, 9), (1, 9), (2, 4000), (2, 4000)].map(|each| lend(&mut rig, each).unwrap());
    let request = swap(once(1, 9, 1), b"k", b"new");
    assert_eq!(rig.status(request.clone()), Some(Status::Retry));
    lent.into_iter().for_each(|slice| _ = rig.master.memory.log.give_back(slice));
    assert_eq!(swapped(&rig.ask(request)), Ok((8, 7, old)));
    assert_eq!(rig.master.counter("swaps"), 1);
}
