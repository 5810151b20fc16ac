//! Tests of the masters that recover partitions, and of plans that change.

use super::*;

/// Server x crashes and leaves two tables. Server y has the first segment of its log, z the head.
fn two_masters() -> (World, ServerId, TableId, TableId) {
    let mut w = World::new(config());
    let x = w.join("x");
    let (a, b) = (w.create("a", 1).unwrap(), w.create("b", 1).unwrap());
    w.join("y");
    w.join("z");
    w.put("y", x, 1, None);
    w.put("z", x, 2, Some(&[(1, HEADER as u32)]));
    w.leave(x);
    (w, x, a, b)
}

#[test]
fn a_server_that_is_only_a_backup_gets_no_tablets() {
    let mut w = World::new(config());
    w.site.role = Role::Backup;
    let x = w.join("x");
    assert_eq!(w.create("a", 1), Err(Status::TooFewServers));
    w.site.role = Role::Both;
    let y = w.join("y");
    let a = w.create("a", 4).unwrap();
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL); 4]);

    // It has the replicas of a crashed server. Another one recovers its tablets.
    w.restart();
    w.put_log("x", y);
    w.leave(y);
    w.pass(SECOND, &["x"]);
    assert!(w.order("x").is_none());
    assert_eq!(w.servers()[0], (x, ServerState::Up, 0));
    w.join("z");
    w.pass(SECOND, &["x", "z"]);
    assert_eq!(w.order("z").unwrap().1.tablets.len(), 4);
}

/// Returns the servers with orders, the one with the highest number first, and that number.
fn orders(w: &World) -> Vec<(u64, &'static str)> {
    let order = |on| w.order(on).map(|(number, _)| (number, on));
    let mut all: Vec<_> = ["y", "z"].into_iter().filter_map(order).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

#[test]
fn a_new_plan_keeps_the_partitions_that_stand() {
    let (mut w, x, _, b) = two_masters();
    let first = orders(&w);
    assert_eq!(first.len(), 1);
    w.create("c", 1).unwrap();
    assert_eq!(orders(&w), first, "a range is part of one partition");
    // A partition with a dropped table does not stand.
    assert_eq!(w.drop_table("a"), Status::Ok);
    w.create("d", 1).unwrap();
    let (number, on) = orders(&w)[0];
    assert!(number > first[0].0);
    let tablets = w.order(on).unwrap().1.tablets;
    assert_eq!(tablets, [Range { table: b, first: 0, last: u64::MAX }]);
    assert_eq!(w.end(on, Ending::Done, 1), Status::Ok);
    w.pass(SECOND, &["y", "z"]);
    assert!(w.servers().iter().all(|(id, ..)| *id != x), "freed");
}

#[test]
fn a_master_becomes_the_owner_of_its_partition_alone() {
    let (mut w, x, a, b) = two_masters();
    let (number, on) = orders(&w)[0];
    let request = w.end_request(on, Ending::Done, 1);
    let mut less = RecoveryEnded::parse(&request).unwrap();
    assert_eq!(less.tablets.len(), 2);
    less.tablets.pop();
    assert_eq!(outcome(&w.answer(less.emit())).unwrap().0, Status::NoRecovery);
    assert_eq!(w.tablets(a).unwrap(), [(x, RECOVERING)]);
    // The partition is planned anew. Then one of its tables is dropped.
    let (next, on) = orders(&w)[0];
    assert!(next > number);
    assert_eq!(w.drop_table("a"), Status::Ok);
    assert_eq!(w.end(on, Ending::Done, 1), Status::NoRecovery);
    assert_eq!(w.tablets(b).unwrap(), [(x, RECOVERING)]);
    let on = orders(&w)[0].1;
    assert_eq!(w.end(on, Ending::Done, 1), Status::Ok);
}

#[test]
fn after_lacking_no_other_master_begins_before_new_lists() {
    let (mut w, ..) = two_masters();
    let (number, on) = orders(&w)[0];
    assert_eq!(w.end(on, Ending::Lacking, 0), Status::Ok);
    assert_eq!(orders(&w).len(), 1);
    w.pass(2 * SECOND, &["y", "z"]);
    assert!(orders(&w)[0].0 > number);
}

#[test]
fn a_late_reply_of_an_earlier_master_does_not_count() {
    let mut w = World::new(config());
    let x = w.join("x");
    w.create("a", 1).unwrap();
    w.join("y");
    w.put_log("y", x);
    w.holds = |request| opcode(request) == Ok(Opcode::Recover);
    w.leave(x);
    w.join("z");
    w.holds = |_| false;
    assert_eq!(w.end("y", Ending::Full, 0), Status::Ok);
    let order = w.order("z");
    assert!(order.is_some());
    w.held[0].1 = Some(failure(Status::BadFormat, ""));
    w.release();
    assert_eq!(w.order("z"), order, "z keeps the partition");
    assert_eq!(w.end("z", Ending::Done, 1), Status::Ok);
}

#[test]
fn a_log_whose_backup_leaves_is_searched_again() {
    let (mut w, x, ..) = two_masters();
    let y = w.masters["y"].id;
    w.leave(y);
    assert_eq!(w.coordinator.recoveries.blocked(x), "no server has 1 segment of the log: 1");
}

#[test]
fn a_master_gets_its_next_partition_when_it_durably_owns_the_one_before() {
    let mut w = World::new(Config { max_share_bytes: HEADER as u64, ..config() });
    let x = w.join("x");
    w.create("a", 1).unwrap();
    w.join("y");
    w.put_log("y", x);
    w.leave(x);
    let first = w.order("y").unwrap();
    w.disk_stalls = true;
    let report = w.end_request("y", Ending::Done, 1);
    let asked = w.ask(report);
    assert!(!w.replies.contains_key(&asked));
    assert_eq!(w.order("y"), Some(first.clone()));
    w.disk_stalls = false;
    w.run();
    assert_eq!(w.replies[&asked], done());
    let next = w.order("y").unwrap();
    assert!(next.0 > first.0);
    assert_ne!(next.1.tablets, first.1.tablets);
}

#[test]
fn the_log_of_a_replaced_server_is_recovered_at_once() {
    let mut w = World::new(config());
    let x = w.join("x");
    w.create("a", 1).unwrap();
    w.join("y");
    w.put_log("y", x);
    let cluster = w.coordinator.cluster();
    w.replicas = 1;
    w.enlist_after("x", (cluster, x));
    assert!(["x", "y"].iter().any(|on| w.order(on).is_some_and(|(_, order)| order.crashed == x)));
}
