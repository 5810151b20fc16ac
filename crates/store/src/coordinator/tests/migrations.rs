//! Tests of tablets that are split, merged and moved, at the coordinator.

use super::*;
use crate::message::migration::*;
use crate::message::recovery::{Ending, Range, RecoveryEnded};

const HALF: u64 = 1 << 63;

impl World {
    fn split(&mut self, at: u64) -> Status {
        outcome(&self.answer(SplitTablet { name: "a", at }.emit())).unwrap().0
    }

    fn merge(&mut self, at: u64) -> Status {
        outcome(&self.answer(MergeTablets { name: "a", at }.emit())).unwrap().0
    }

    fn move_to(&mut self, range: (u64, u64), target: ServerId) -> Result<u64, Status> {
        let (first, last) = range;
        let request = MoveTablet { name: "a", first, last, target: target.index };
        Moving::parse(&self.answer(request.emit())).map(|moving| moving.migration)
    }

    /// The target of a migration reports its end.
    fn moved(&mut self, number: u64, (from, to): (ServerId, ServerId), ending: Ending) -> Status {
        let (table, first, last) = self.migration(number).2;
        let report = RecoveryEnded {
            cluster: self.coordinator.cluster(),
            recovery: self.order_of(number),
            server: to,
            crashed: from,
            ending,
            since: SegmentId(0),
            replayed: 9,
            tablets: vec![Range { table, first, last }],
            damaged: Vec::new(),
        };
        outcome(&self.answer(report.emit())).unwrap().0
    }

    /// Returns the number of the order of a migration, 0 if there was none.
    fn order_of(&self, number: u64) -> u64 {
        self.coordinator.migrations.all.get(&number).map_or(0, |migration| migration.order)
    }

    /// Returns the state of a migration, the reason of its failure, and what moves.
    fn migration(&mut self, number: u64) -> (MigrationState, String, (TableId, u64, u64)) {
        let reply = self.answer(ListMigrations { after: 0 }.emit());
        let page = MigrationPage::parse(&reply).unwrap();
        let found = page.migrations.iter().find(|migration| migration.number == number).unwrap();
        let what = (found.table, found.first, found.last);
        (found.state, found.reason.into(), what)
    }

    fn fate(&mut self, server: ServerId, migration: u64, table: TableId) -> Fate {
        let cluster = self.coordinator.cluster();
        let (first, last) = (0, u64::MAX);
        let migration = self.order_of(migration);
        let request = FindTablet { cluster, server, migration, table, first, last };
        let found = Found::parse(&self.answer(request.emit())).unwrap();
        assert_eq!(found.term, self.coordinator.incarnation());
        found.fate
    }
}

/// Returns a cluster with the servers x and y and the table "a" on x.
fn two() -> (World, [ServerId; 2], TableId) {
    let mut w = World::new(config());
    let x = w.enlist("x");
    let a = w.create("a", 1).unwrap();
    let y = w.enlist("y");
    (w, [x, y], a)
}

#[test]
fn tablets_are_divided_and_united() {
    let (mut w, [x, y], a) = two();
    assert_eq!(w.split(HALF), Status::Ok);
    assert_eq!(w.split(HALF), Status::Ok, "again");
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (x, NORMAL)]);
    assert_eq!(w.servers(), [(x, ServerState::Up, 2), (y, ServerState::Up, 0)]);
    assert_eq!(w.split(0), Status::Ok, "a tablet begins there");
    w.restart();
    assert_eq!(w.tablets(a).unwrap().len(), 2, "it was durable");
    assert_eq!(w.merge(7), Status::Ok, "none begins there");
    assert_eq!(w.merge(HALF), Status::Ok);
    assert_eq!(w.merge(0), Status::Ok, "none is before it");
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL)]);
    assert_eq!(w.servers(), [(x, ServerState::Up, 1), (y, ServerState::Up, 0)]);
    let unknown = SplitTablet { name: "b", at: 1 }.emit();
    assert_eq!(outcome(&w.answer(unknown)).unwrap().0, Status::TableDoesntExist);
}

#[test]
fn a_part_of_a_table_moves_to_another_server() {
    let (mut w, [x, y], a) = two();
    let number = w.move_to((HALF, u64::MAX), y).unwrap();
    let order = w.order_of(number);
    assert_eq!(w.masters["y"].recoverer.migration, Some((order, x, HALF, u64::MAX)));
    assert_eq!(w.move_to((HALF, u64::MAX), y), Ok(number), "the same request again");
    assert_eq!(w.move_to((0, u64::MAX), y), Err(Status::Retry), "a part of it moves");
    assert_eq!(w.split(HALF + 1), Status::Retry, "the part would be divided");
    assert_eq!(w.fate(x, number, a), Fate::Moving);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL)]);
    assert_eq!(w.moved(number, (x, y), Ending::Done), Status::Ok);
    assert_eq!(w.moved(number, (x, y), Ending::Done), Status::Ok, "the reply was lost");
    // The tablet may be divided before the report comes again.
    assert_eq!(w.split(HALF + 9), Status::Ok);
    assert_eq!(w.moved(number, (x, y), Ending::Done), Status::Ok);
    assert_eq!(w.merge(HALF + 9), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    assert_eq!(w.migration(number).0, MigrationState::Done);
    assert_eq!(w.merge(HALF), Status::WrongTablets, "two servers own them");
    assert_eq!(w.move_to((0, u64::MAX), y), Err(Status::WrongTablets), "two tablets");
    assert_eq!(w.move_to((HALF, u64::MAX), y), Ok(0), "it is there");
    let unknown = ServerId { index: 7, generation: 1 };
    assert_eq!(w.move_to((HALF, u64::MAX), unknown), Err(Status::TooFewServers));
    assert_eq!(w.move_to((9, 8), y), Err(Status::BadFormat));

    // All of it.
    let number = w.move_to((0, HALF - 1), y).unwrap();
    assert_eq!(w.moved(number, (x, y), Ending::Done), Status::Ok);
    assert_eq!(w.fate(x, number, a), Fate::Gone);
    assert_eq!(w.merge(HALF), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)]);
}

#[test]
fn a_migration_that_fails_leaves_the_tablet_where_it_is() {
    let (mut w, [x, y], a) = two();
    for ending in [Ending::Lacking, Ending::Full] {
        let number = w.move_to((0, u64::MAX), y).unwrap();
        assert_eq!(w.moved(number, (x, y), ending), Status::Ok);
        let (state, reason, _) = w.migration(number);
        assert!(state == MigrationState::Failed && !reason.is_empty());
        assert_eq!(w.moved(number, (x, y), Ending::Done), Status::NoRecovery, "too late");
        // The tablet may be divided before its owner asks.
        assert_eq!(w.split(HALF), Status::Ok);
        assert_eq!(w.fate(x, number, a), Fate::Kept);
        assert_eq!(w.merge(HALF), Status::Ok);
        assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL)]);
    }
    // The coordinator restarts: what it knew of migrations is gone.
    let number = w.move_to((0, u64::MAX), y).unwrap();
    let (table, first, last) = w.migration(number).2;
    w.restart();
    assert_eq!(w.fate(x, number, a), Fate::Kept);
    let report = RecoveryEnded {
        cluster: w.coordinator.cluster(),
        recovery: number + 1,
        server: y,
        crashed: x,
        ending: Ending::Done,
        since: SegmentId(0),
        replayed: 9,
        tablets: vec![Range { table, first, last }],
        damaged: Vec::new(),
    };
    assert_eq!(outcome(&w.answer(report.emit())).unwrap().0, Status::NoRecovery);
    assert!(w.move_to((0, u64::MAX), y).unwrap() > number, "numbers grow with the term");
}

#[test]
fn a_migration_ends_with_its_servers_and_its_table() {
    let (mut w, [x, y], a) = two();
    let number = w.move_to((0, u64::MAX), y).unwrap();
    let cluster = w.coordinator.cluster();
    let leaving = HintCrashed { cluster, server: y, hint: Hint::Leaving };
    assert_eq!(w.answer(leaving.emit()), done());
    let (state, reason, _) = w.migration(number);
    assert!(state == MigrationState::Failed && reason.contains("1.1"), "{reason}");
    assert_eq!(w.fate(x, number, a), Fate::Kept);
    assert_eq!(w.move_to((0, u64::MAX), y), Err(Status::TooFewServers));

    let z = w.enlist("z");
    let number = w.move_to((0, u64::MAX), z).unwrap();
    assert_eq!(w.drop_table("a"), Status::Ok);
    assert_eq!(w.migration(number).0, MigrationState::Failed);
    assert_eq!(w.fate(x, number, a), Fate::Gone);
    assert_eq!(w.moved(number, (x, z), Ending::Done), Status::NoRecovery);
}

/// Each server takes part in one migration at a time, and the others wait in their order.
#[test]
fn migrations_of_the_same_servers_follow_each_other() {
    let (mut w, [x, y], _) = two();
    let z = w.enlist("z");
    let one = w.move_to((0, 9), y).unwrap();
    let two = w.move_to((10, 19), z).unwrap();
    let three = w.move_to((20, 29), y).unwrap();
    let states = |w: &mut World| [one, two, three].map(|number| w.migration(number).0);
    use MigrationState::{Done, Failed, Running, Waiting};
    assert_eq!(states(&mut w), [Running, Waiting, Waiting]);
    assert_eq!(w.moved(two, (x, z), Ending::Done), Status::NoRecovery, "it has not begun");
    assert_eq!(w.moved(one, (x, y), Ending::Done), Status::Ok);
    assert_eq!(states(&mut w), [Done, Running, Waiting]);
    assert_eq!(w.moved(two, (x, z), Ending::Full), Status::Ok);
    assert_eq!(states(&mut w), [Done, Failed, Running]);
}

/// The disk does not take the change of the map: the source keeps the tablet.
#[test]
fn a_change_that_is_not_written_moves_nothing() {
    let (mut w, [x, y], a) = two();
    let number = w.move_to((0, u64::MAX), y).unwrap();
    w.disk_full = true;
    assert_eq!(w.moved(number, (x, y), Ending::Done), Status::NotDurable);
    w.disk_full = false;
    assert_eq!(w.moved(number, (x, y), Ending::Done), Status::NoRecovery);
    assert_eq!(w.migration(number).0, MigrationState::Failed);
    assert_eq!(w.fate(x, number, a), Fate::Kept);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL)]);
}

/// A target that cannot be called, or takes over nothing, gives the tablet up after a while.
#[test]
fn a_migration_without_progress_is_given_up() {
    let (mut w, [x, y], a) = two();
    let number = w.move_to((0, u64::MAX), y).unwrap();
    w.pass(20 * SECOND, &["x", "y"]);
    assert_eq!(w.migration(number).0, MigrationState::Running);
    w.pass(20 * SECOND, &["x", "y"]);
    let (state, reason, _) = w.migration(number);
    assert!(state == MigrationState::Failed && reason.contains("half a minute"), "{reason}");
    assert_eq!(w.fate(x, number, a), Fate::Kept);
    // The server renews its lease and answers no call.
    w.masters.get_mut("y").unwrap().alive = false;
    let number = w.move_to((0, u64::MAX), y).unwrap();
    w.pass(90 * SECOND, &["x", "y"]);
    assert_eq!(w.migration(number).0, MigrationState::Failed);
}

/// A server that joins gets its share of each table, one part after the other.
#[test]
fn tables_are_balanced_by_themselves() {
    let mut w = World::new(Config { rebalance_ns: SECOND, ..config() });
    let x = w.enlist("x");
    let (a, b) = (w.create("a", 1).unwrap(), w.create("b", 1).unwrap());
    w.pass(3 * SECOND, &["x"]);
    assert!(w.coordinator.migrations.all.is_empty(), "one server has everything");
    let y = w.enlist("y");
    for table in [a, b] {
        w.pass(2 * SECOND, &["x", "y"]);
        let mut open = w.coordinator.migrations.all.iter().filter(|(_, m)| m.is_open());
        let (&number, _) = open.next().expect("a part moves");
        assert!(open.next().is_none(), "one at a time");
        let (moving, first, last) = w.migration(number).2;
        assert_eq!((moving, first, last), (table, HALF, u64::MAX));
        assert_eq!(w.moved(number, (x, y), Ending::Done), Status::Ok);
        assert_eq!(w.tablets(table).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    }
    w.pass(5 * SECOND, &["x", "y"]);
    assert!(w.coordinator.migrations.all.values().all(|m| !m.is_open()), "it is in balance");
}
