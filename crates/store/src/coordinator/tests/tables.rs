//! Tests of the life of a table at the coordinator.

use super::*;
use crate::durability::TableDurability;

#[test]
fn a_table_is_spread_over_servers_and_forgotten_by_them() {
    let mut w = World::new(config());
    assert_eq!(w.create("a", 1), Err(Status::TooFewServers));
    let (x, y, z) = (w.enlist("x"), w.enlist("y"), w.enlist("z"));
    assert_eq!([x.index, y.index, z.index], [0, 1, 2]);
    let a = w.create("a", 2).unwrap();
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    // Where there are fewest tablets is filled first; more tablets than servers go round.
    let b = w.create("b", 4).unwrap();
    assert_eq!(w.tablets(b).unwrap(), [(z, NORMAL), (x, NORMAL), (y, NORMAL), (z, NORMAL)]);
    assert_eq!(w.masters["x"].owns.len(), 2);
    assert_eq!(w.table("b").unwrap().table, b);
    assert_ne!(w.table("a").unwrap().hash_key, w.table("b").unwrap().hash_key);
    // Again: the same table.
    assert_eq!(w.create("a", 3), Ok(a));

    assert_eq!(w.drop_table("a"), Status::Ok);
    assert_eq!(w.masters["x"].owns.len(), 1);
    assert_eq!(w.drop_table("a"), Status::Ok);
    assert_eq!(w.table("a"), Err(Status::TableDoesntExist));
    assert_eq!(w.tablets(a), Err(Status::TableDoesntExist));
    let again = w.create("a", 1).unwrap();
    assert!(again > b, "an id was used twice");
    // A drop of the table that had the name before leaves this one alone.
    assert_eq!(w.answer(DropTable { table: a, name: "a" }.emit()), done());
    assert_eq!(w.table("a").unwrap().table, again);
}

#[test]
fn nothing_is_said_before_it_is_durable() {
    let mut w = World::new(config());
    w.run();
    w.disk_stalls = true;
    let enlist = w.ask(joining(1, "x").emit());
    assert!(w.replies.is_empty());
    w.persist_one();
    w.run();
    let id = Enlisted::parse(&w.replies[&enlist]).unwrap().server;
    w.masters.insert("x".into(), Master { alive: true, id, ..Master::default() });

    let create =
        w.ask(CreateTable { span: 1, durability: TableDurability::Cluster, name: "a" }.emit());
    let look = w.ask(GetTable { name: "b" }.emit());
    assert_eq!(w.masters["x"].took, 0, "called before the table is durable");
    assert!(!w.replies.contains_key(&look), "an answer that rests on what may be forgotten");
    w.persist_one();
    w.run();
    assert!(w.replies.contains_key(&look));
    assert_eq!(w.masters["x"].took, 1);
    assert!(!w.replies.contains_key(&create));
    let early = w.ask(GetTable { name: "a" }.emit());
    w.persist_one();
    w.run();
    assert!(TableKey::parse(&w.replies[&create]).is_ok());
    assert!(TableKey::parse(&w.replies[&early]).is_ok());

    let drop = w.ask(DropTable { table: TableId(0), name: "a" }.emit());
    assert_eq!(w.masters["x"].owns.len(), 1);
    w.persist_one();
    w.run();
    assert!(w.masters["x"].owns.is_empty());
    assert!(!w.replies.contains_key(&drop));
    w.persist_one();
    assert!(w.coordinator.output(w.now).is_some_and(|o| matches!(o, Output::Reply { .. })));
}

#[test]
fn a_tablet_that_its_server_never_took_is_given_to_another() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    w.masters.get_mut("x").unwrap().alive = false;
    let create =
        w.ask(CreateTable { span: 2, durability: TableDurability::Cluster, name: "a" }.emit());
    let again =
        w.ask(CreateTable { span: 2, durability: TableDurability::Cluster, name: "a" }.emit());
    assert_eq!(w.table("a"), Err(Status::Retry));
    w.pass(3 * SECOND, &["y"]);
    assert!(!w.replies.contains_key(&create));
    w.pass(2 * SECOND, &["y"]);
    let key = TableKey::parse(&w.replies[&create]).unwrap();
    assert_eq!(TableKey::parse(&w.replies[&again]).unwrap(), key);
    assert_eq!(w.tablets(key.table).unwrap(), [(y, NORMAL), (y, NORMAL)]);
    assert_eq!(w.servers(), [(y, ServerState::Up, 2)]);
    assert_ne!(x, y);
}

#[test]
fn a_table_whose_servers_are_all_gone_waits_for_others() {
    let mut w = World::new(config());
    w.enlist("x");
    w.masters.get_mut("x").unwrap().alive = false;
    let create =
        w.ask(CreateTable { span: 2, durability: TableDurability::Cluster, name: "a" }.emit());
    w.pass(5 * SECOND, &[]);
    assert_eq!(TableKey::parse(&w.replies[&create]), Err(Status::TooFewServers));
    w.restart();
    let again =
        w.ask(CreateTable { span: 2, durability: TableDurability::Cluster, name: "a" }.emit());
    assert!(!w.replies.contains_key(&again));
    let y = w.enlist("y");
    w.pass(SECOND, &["y"]);
    let key = TableKey::parse(&w.replies[&again]).unwrap();
    assert_eq!(w.tablets(key.table).unwrap(), [(y, NORMAL), (y, NORMAL)]);
}

#[test]
fn a_table_can_be_dropped_while_it_is_created() {
    let mut w = World::new(config());
    w.enlist("x");
    w.masters.get_mut("x").unwrap().alive = false;
    let create =
        w.ask(CreateTable { span: 1, durability: TableDurability::Cluster, name: "a" }.emit());
    let drop = w.ask(DropTable { table: TableId(0), name: "a" }.emit());
    assert_eq!(TableKey::parse(&w.replies[&create]), Err(Status::TableDoesntExist));
    assert!(!w.replies.contains_key(&drop));
    w.masters.get_mut("x").unwrap().alive = true;
    let again = w.create("a", 1).unwrap();
    assert_eq!(again, TableId(2));
    w.pass(2 * SECOND, &["x"]);
    assert_eq!(w.replies[&drop], done());
    assert_eq!(w.masters["x"].owns.len(), 1);
    assert_eq!(w.table("a").unwrap().table, again);
}

#[test]
fn the_reply_to_a_drop_waits_until_no_server_can_answer_for_the_table() {
    let mut w = World::new(config());
    w.enlist("x");
    w.enlist("y");
    w.create("a", 2).unwrap();
    w.masters.get_mut("y").unwrap().alive = false;
    let drop = w.ask(DropTable { table: TableId(0), name: "a" }.emit());
    let again = w.ask(DropTable { table: TableId(1), name: "a" }.emit());
    assert_eq!(w.table("a"), Err(Status::TableDoesntExist));
    assert!(w.masters["x"].owns.is_empty());
    assert!(!w.replies.contains_key(&drop));
    w.restart();
    w.pass(5 * SECOND, &["x"]);
    // Requests to the coordinator's former life get no reply. A repeated request gets one.
    assert!(!w.replies.contains_key(&again));
    assert_eq!(w.drop_table("a"), Status::Ok);
}

/// After a rollback the index in a call may be the one of another tablet.
#[test]
fn a_call_from_before_a_rollback_belongs_to_its_tablet_alone() {
    use crate::coordinator::durable::Stage;
    use crate::coordinator::table::{Call, Table, Tables, Work};

    let server = ServerId { index: 0, generation: 1 };
    let half = 1 << 63;
    let tablet = |first, last| {
        let (since, floor) = (SegmentId(0), Version(0));
        durable::Tablet { first, last, server, since, floor }
    };
    let record = durable::Table {
        stage: Stage::Dropping,
        name: "a",
        hash_key: HashKey::default(),
        durability: TableDurability::Async,
        tablets: vec![tablet(0, half - 1), tablet(half, u64::MAX)],
    };
    let call = |first| Call { table: 1, tablet: 1, first, server, stage: Stage::Dropping };
    for (first, work) in [(half, Work::Calling), (half - 1, Work::Idle)] {
        let (mut old, mut tables) = (Tables::default(), Tables::default());
        old.calls.insert(5, call(first));
        tables.insert(1, Table::restored(&record));
        tables.take_calls(old);
        let works: Vec<_> = tables.by_id[&1].tablets.iter().map(|tablet| tablet.work).collect();
        assert_eq!(works, [Work::Idle, work]);
    }
}
