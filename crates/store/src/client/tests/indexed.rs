//! Tests of the choice between one operation for an object with its entries, and a transaction.

use super::*;
use crate::index;

const NODES: TableId = TableId(8);

/// Starts to remove an object together with its entries.
fn remove(s: &mut Script) -> Op {
    let part = TransactionPart { table: T, key: b"key", rules: NO_RULES, change: Change::Remove };
    s.client.change_indexed(NODES, &part, s.far())
}

/// Returns the status of an operation that ends before anything is sent.
fn refusal(s: &mut Script) -> Status {
    let op = remove(s);
    let done = s.event();
    assert_eq!(done.op, op);
    match done.outcome {
        Err(Error::Refused { status, .. }) => status,
        other => panic!("{other:?}"),
    }
}

/// Lets the client know the tablets of the nodes.
fn know(s: &mut Script, parts: &[(&str, TabletState)]) {
    let read = s.client.read(NODES, b"", NO_RULES, s.far());
    let ask = s.call();
    s.reply(&ask, tablets(parts));
    assert!(s.client.cancel(read));
    s.calls();
}

#[test]
fn a_server_with_the_object_and_all_nodes_makes_the_change() {
    let mut s = Script::leasing();
    know(&mut s, &[("fast:m", TabletState::Normal), ("fast:m", TabletState::Normal)]);
    let op = remove(&mut s);
    let call = s.call();
    assert_eq!(opcode(&call.request), Ok(Opcode::ChangeIndexed));
    assert_eq!(s.reply(&call, ok(3, b"")).expect("an end").op, op);
}

#[test]
fn nodes_of_several_servers_are_apart_and_unknown_ones_are_not() {
    // Neither the tablets of the table nor those of the nodes are known.
    let mut s = Script::new();
    assert_eq!(refusal(&mut s), Status::Retry);
    let mut s = Script::leasing();
    assert_eq!(refusal(&mut s), Status::Retry);
    know(&mut s, &[("fast:m", TabletState::Normal), ("fast:n", TabletState::Normal)]);
    assert_eq!(refusal(&mut s), Status::UnknownTablet);
    let of = |status| index::Changed::of(Err(Error::refused(status)));
    assert_eq!(of(Status::Retry), Ok(index::Changed::Undone));
    assert_eq!(of(Status::UnknownTablet), Ok(index::Changed::Apart));
}
