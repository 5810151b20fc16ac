//! Tests of recoveries in which servers, the disk or the coordinator fail.

use super::*;

#[test]
fn a_log_without_a_head_is_blocked_until_a_server_brings_it() {
    let mut w = World::new(config());
    let x = w.join("x");
    let a = w.create("a", 1).unwrap();
    let y = w.join("y");
    w.leave(x);
    assert_eq!(w.servers(), [(x, ServerState::Blocked, 1), (y, ServerState::Up, 0)]);
    assert_eq!(w.tablets(a).unwrap(), [(x, RECOVERING)]);
    assert_eq!(w.coordinator.recoveries.counts(), (0, 1, 0));
    assert_eq!(w.blocked(), ["no server has the head of the log", ""]);
    // The head alone does not suffice.
    w.put("y", x, 2, Some(&[(1, HEADER as u32)]));
    w.pass(2 * SECOND, &["y"]);
    assert_eq!(w.servers()[0].1, ServerState::Blocked);
    assert_eq!(w.blocked(), ["no server has 1 segment of the log: 1", ""]);
    assert_eq!(w.order("y"), None);
    w.put("y", x, 1, None);
    w.pass(2 * SECOND, &["y"]);
    assert_eq!(w.servers()[0].1, ServerState::Recovering);
    assert_eq!(w.blocked(), ["", ""]);
    assert_eq!(w.end("y", Ending::Done, 1), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)]);
}

#[test]
fn a_master_that_dies_is_replaced_and_gets_no_tablets() {
    let (mut w, x, y, a) = crashed();
    let (first, _) = w.order("y").unwrap();
    let z = w.join("z");
    w.put_log("z", x);
    let late = w.end_request("y", Ending::Done, 7);
    w.leave(y);
    let (second, _) = w.order("z").unwrap();
    assert!(second > first);
    assert_eq!(outcome(&w.answer(late)).unwrap().0, Status::NotInCluster);
    assert_eq!(w.tablets(a).unwrap(), [(x, RECOVERING)]);
    assert_eq!(w.end("z", Ending::Done, 3), Status::Ok);
    w.pass(SECOND, &["z"]);
    assert_eq!(w.servers(), [(z, ServerState::Up, 1)], "both are freed");
}

#[test]
fn a_full_master_gives_way_to_another() {
    let (mut w, x, y, a) = crashed();
    let early = w.end_request("y", Ending::Done, 4);
    assert_eq!(w.end("y", Ending::Full, 0), Status::Ok);
    assert_eq!(w.end("y", Ending::Done, 4), Status::NoRecovery);
    let z = w.join("z");
    w.pass(100 * MS, &["y", "z"]);
    assert_eq!(w.end("z", Ending::Full, 0), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(x, RECOVERING)]);
    // All are full: after a pause one of them tries again.
    w.pass(2 * SECOND, &["y", "z"]);
    let early = outcome(&w.answer(early)).unwrap().0;
    assert_eq!(early, Status::NoRecovery, "the number is that of an earlier assignment");
    assert_eq!(w.end("y", Ending::Done, 4), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)]);
    assert_ne!(y, z);
}

#[test]
fn after_lacking_the_lists_are_made_again() {
    let (mut w, x, y, a) = crashed();
    let (first, _) = w.order("y").unwrap();
    assert_eq!(w.end("y", Ending::Lacking, 0), Status::Ok);
    assert_eq!(w.order("y").unwrap().0, first, "not before new lists");
    w.put("y", x, 3, Some(&[]));
    w.pass(2 * SECOND, &["y"]);
    assert!(w.order("y").unwrap().0 > first);
    assert_eq!(w.end("y", Ending::Done, 1), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)]);
}

#[test]
fn a_busy_master_is_asked_again() {
    let mut w = World::new(config());
    let x = w.join("x");
    w.create("a", 1).unwrap();
    w.join("y");
    w.put_log("y", x);
    w.masters.get_mut("y").unwrap().recoverer.busy = true;
    w.leave(x);
    w.pass(SECOND, &["y"]);
    assert_eq!(w.order("y"), None);
    w.masters.get_mut("y").unwrap().recoverer.busy = false;
    w.pass(SECOND, &["y"]);
    assert!(w.order("y").is_some());
}

#[test]
fn a_table_dropped_during_its_recovery_has_no_new_owner() {
    let (mut w, x, y, _) = crashed();
    assert_eq!(w.drop_table("a"), Status::Ok);
    assert_eq!(w.end("y", Ending::Done, 4), Status::NoRecovery);
    w.pass(SECOND, &["y"]);
    assert_eq!(w.servers(), [(y, ServerState::Up, 0)], "{x} is freed");
}

/// The map and the recovery agree again after a change that the disk refused.
#[test]
fn a_new_owner_that_the_disk_refuses_is_none() {
    let (mut w, x, y, a) = crashed();
    w.disk_full = true;
    let (first, _) = w.order("y").unwrap();
    assert_eq!(w.end("y", Ending::Done, 4), Status::NotDurable);
    assert_eq!(w.tablets(a).unwrap(), [(x, RECOVERING)]);
    assert_eq!(w.masters["y"].recoverer.replicas.len(), 2);
    w.disk_full = false;
    w.pass(SECOND, &["y"]);
    assert!(w.order("y").unwrap().0 > first);
    assert_eq!(w.end("y", Ending::Done, 4), Status::Ok);
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)]);
}

/// The coordinator's process ends after each number of writes, and goes on.
#[test]
fn a_restarted_coordinator_continues_a_recovery_from_any_point() {
    for writes in 0..4 {
        let mut w = World::new(config());
        let x = w.join("x");
        let a = w.create("a", 1).unwrap();
        let y = w.join("y");
        w.put_log("y", x);
        w.persists_left = writes;
        w.leave(x);
        for _ in 0..3 {
            if w.order("y").is_some() {
                let request = w.end_request("y", Ending::Done, 4);
                w.ask(request);
            }
            if w.persists_left == 0 {
                w.restart();
            }
            if w.coordinator.servers.up(x).is_some() {
                w.leave(x);
            }
        }
        w.pass(2 * SECOND, &["y"]);
        assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL)], "{writes}");
        assert_eq!(w.servers(), [(y, ServerState::Up, 1)], "{writes}");
    }
}

#[test]
fn two_servers_that_crash_together_are_both_recovered() {
    let mut w = World::new(config());
    let (x, y) = (w.join("x"), w.join("y"));
    let a = w.create("a", 2).unwrap();
    let z = w.join("z");
    w.put_log("z", x);
    w.put_log("z", y);
    w.leave(x);
    w.leave(y);
    for since in [3, 4] {
        assert_eq!(w.end("z", Ending::Done, since), Status::Ok);
        w.pass(100 * MS, &["z"]);
    }
    assert_eq!(w.tablets(a).unwrap(), [(z, NORMAL), (z, NORMAL)]);
    assert_eq!(w.servers(), [(z, ServerState::Up, 2)]);
}
