//! The check of a transaction that only reads, while a tablet moves between its rounds.

use sprat::kv::{Error, Table};

use crate::Cluster;

/// A transaction reads that `a` is absent, and `b` as another one has written it together with `a`.
/// The check of `b` passes. Until the check of `a` reaches the server to which its tablet has
/// moved, a third transaction removes `a` and changes `b`. At no time was `a` absent with this `b`,
/// but the transaction is committed.
#[test]
fn an_object_that_came_and_went_was_not_absent() {
    let cluster = Cluster::start("fast+shm", "t-absent", 3);
    let (reader, other) = (cluster.client(), cluster.client());
    let (a, b) = (other.create_table("a", 1).unwrap(), other.create_table("b", 1).unwrap());
    let server = |table: &Table<'_>| table.tablets().unwrap()[0].server.index;
    assert_ne!(server(&a), server(&b));
    b.put(b"k", b"1").unwrap();

    let mut reads = reader.transaction();
    assert_eq!(reads.get(&reader.table_by_id(a.id()), b"k").unwrap(), None);
    let mut writes = other.transaction();
    writes.put(&a, b"k", b"there").unwrap();
    writes.put(&b, b"k", b"2").unwrap();
    writes.commit().unwrap();
    let found = reads.get(&reader.table_by_id(b.id()), b"k").unwrap().unwrap();
    assert_eq!(found.value, b"2");

    let (from, to) = (server(&a), server(&b));
    let servers = other.servers().unwrap();
    let third = servers.iter().map(|it| it.server.index).find(|it| *it != from && *it != to);
    let tablet = a.tablets().unwrap()[0].clone();
    other.move_tablet("a", tablet.first..=tablet.last, third.unwrap()).unwrap();
    while server(&a) != third.unwrap() {
        std::thread::yield_now();
    }
    let retried = reader.counters().retried;
    let commit = reads.start_commit();
    while reader.counters().retried == retried {
        reader.turn();
    }
    let mut removes = other.transaction();
    removes.remove(&a, b"k").unwrap();
    removes.put(&b, b"k", b"3").unwrap();
    let removed = removes.commit();
    let outcome = commit.wait();
    let is_refused = |outcome| matches!(outcome, Err(Error::Conflict { .. }));
    assert!(is_refused(removed.clone()) || is_refused(outcome), "both are committed: {removed:?}");
}
