//! Tests of the coordinator with servers that join, renew, crash and leave.

use super::super::servers::{MAX_PLACES, Servers, Slot};
use super::*;
use crate::durability::TableDurability;
use crate::message::transaction::{FindOwner, Owner};
use crate::site::Site;

#[test]
fn a_silent_server_is_declared_crashed_after_its_term_and_the_margin() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    w.pass(10 * SECOND, &["x", "y"]);
    let last_heard = w.now;
    w.masters.get_mut("y").unwrap().alive = false;
    let patience = w.coordinator.patience_ns(0);
    w.pass(patience - 100 * MS, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    w.pass(600 * MS, &["x"]);
    assert!(w.now.since(last_heard) > patience);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    assert_eq!(w.renew("y"), Err(Status::NotInCluster));
    assert_eq!(w.servers(), [(x, ServerState::Up, 1), (y, ServerState::Crashed, 1)]);

    // Its next life is another server, which never gets the lost tablets.
    let next = w.enlist("y");
    assert_eq!(next, ServerId { index: 2, generation: 1 });
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    assert!(w.masters["y"].owns.is_empty());
    w.restart();
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    let reply = w.answer(ListTables { after: TableId(0) }.emit());
    let page = TablePage::parse(&reply).unwrap();
    assert_eq!(
        page.tables,
        [Listed {
            table: a,
            tablets: 2,
            lost: 1,
            unheard: 1,
            recovering: 0,
            durability: TableDurability::Cluster,
            name: "a"
        }]
    );

    // A table with lost tablets can be dropped; the place is free then, for another generation.
    assert_eq!(w.drop_table("a"), Status::Ok);
    assert!(w.masters["x"].owns.is_empty());
    assert_eq!(w.servers(), [(x, ServerState::Up, 0), (next, ServerState::Up, 0)]);
    assert_eq!(w.enlist("z"), ServerId { index: 1, generation: 2 });
}

#[test]
fn a_server_whose_process_has_ended_is_gone_at_once() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    let ended = |w: &mut World| {
        w.coordinator.ended(w.now, Link(y.index));
        w.coordinator.unreachable(Link(y.index), "");
        w.run();
    };
    ended(&mut w);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)], "the link may lead elsewhere");
    w.pass(500 * MS, &["x", "y"]);
    ended(&mut w);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    assert!(!w.links.contains_key(&y.index) && w.links.contains_key(&x.index));
    assert!(w.coordinator.counters().contains(&("servers_ended".into(), 1)));
    assert_eq!(w.renew("y"), Err(Status::NotInCluster));
    ended(&mut w);
    assert_eq!(w.servers(), [(x, ServerState::Up, 1), (y, ServerState::Crashed, 1)]);
}

/// Enlists the shards of a process.
fn enlist_shards(w: &mut World, process: u64, locators: &[&str]) -> Vec<ServerId> {
    let shards = (0..).zip(locators).map(|(shard, locator)| {
        w.site = Site { process, shard, ..Site::default() };
        w.enlist(locator)
    });
    let shards = shards.collect();
    w.site = Site::default();
    shards
}

#[test]
fn the_shards_of_a_process_are_gone_with_it() {
    let mut w = World::new(config());
    let shards = enlist_shards(&mut w, 7, &["a0", "a1"]);
    let others = enlist_shards(&mut w, 8, &["b0", "b1"]);
    let alone = [w.enlist("c"), w.enlist("d")];
    w.pass(500 * MS, &["a0", "a1", "b0", "b1", "c", "d"]);
    assert_eq!(w.coordinator.siblings(shards[1]), [shards[0]]);
    assert_eq!(w.coordinator.siblings(alone[0]), []);
    w.coordinator.ended(w.now, Link(shards[1].index));
    w.run();
    let up = |id: ServerId| (id, ServerState::Up, 0);
    let left = [others[0], others[1], alone[0], alone[1]].map(up);
    assert_eq!(w.servers(), left);
    w.coordinator.ended(w.now, Link(alone[0].index));
    w.run();
    assert_eq!(w.servers(), [left[0], left[1], left[3]], "its process had one shard");
    assert!(w.coordinator.counters().contains(&("servers_ended".into(), 3)));
}

#[test]
fn a_table_on_some_servers_uses_all_of_their_shards() {
    let mut w = World::new(config());
    let a = enlist_shards(&mut w, 7, &["a0", "a1"]);
    let b = enlist_shards(&mut w, 8, &["b0", "b1"]);
    let c = w.enlist("c");
    let owners = |w: &mut World, name: &str, span| {
        let table = w.create(name, span).unwrap();
        w.tablets(table).unwrap().into_iter().map(|(server, _)| server).collect::<Vec<_>>()
    };
    assert_eq!(owners(&mut w, "one", 1), a);
    assert_eq!(owners(&mut w, "two", 2), [b[0], b[1], c]);
    // A server for each process and more: the shards share the tablets.
    let all = owners(&mut w, "three", 3);
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 5);
    assert_eq!(all.len(), 5);
    assert_eq!(owners(&mut w, "seven", 7).len(), 7);
}

#[test]
fn the_end_of_a_process_counts_only_if_the_link_led_to_the_server() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let is_up = |w: &mut World| w.servers().contains(&(y, ServerState::Up, 0));
    // Another server listens at the locator.
    w.masters.get_mut("y").unwrap().id = x;
    w.coordinator.ping_unknown();
    w.run();
    w.coordinator.ended(w.now, Link(y.index));
    assert!(is_up(&mut w));
    w.masters.get_mut("y").unwrap().id = y;
    w.pass(500 * MS, &["x", "y"]);
    // The session ended before, and the next one may lead elsewhere.
    w.coordinator.unreachable(Link(y.index), "");
    w.coordinator.ended(w.now, Link(y.index));
    assert!(is_up(&mut w));
    w.pass(500 * MS, &["x", "y"]);
    w.coordinator.ended(w.now, Link(y.index));
    assert!(!is_up(&mut w));
}

#[test]
fn while_the_disk_takes_no_changes_no_process_counts_as_ended() {
    let mut w = World::new(config());
    w.enlist("x");
    let y = w.enlist("y");
    w.create("a", 2).unwrap();
    w.pass(500 * MS, &["x", "y"]);
    w.disk_full = true;
    let _ = w.create("b", 1);
    w.coordinator.ended(w.now, Link(y.index));
    assert!(w.servers().contains(&(y, ServerState::Up, 1)));
}

/// A server whose log has replicas loses nothing when it is given up.
#[test]
fn a_server_without_replicas_gets_a_further_time() {
    let w = World::new(config());
    let Config { server_term_ns, server_margin_ns, server_grace_ns, .. } = w.config;
    assert_eq!(w.coordinator.patience_ns(1), server_term_ns + server_margin_ns);
    assert_eq!(w.coordinator.patience_ns(0) - w.coordinator.patience_ns(1), server_grace_ns);
}

#[test]
fn enlisting_again_because_the_answer_was_lost_gives_the_same_id() {
    let mut w = World::new(config());
    let enlist = joining(5, "x").emit();
    let first = Enlisted::parse(&w.answer(enlist.clone())).unwrap();
    w.restart();
    let again = Enlisted::parse(&w.answer(enlist.clone())).unwrap();
    assert_eq!((again.cluster, again.server), (first.cluster, first.server));
    // But not when that life is over.
    let hint = |hint| HintCrashed { cluster: first.cluster, server: first.server, hint }.emit();
    w.answer(hint(Hint::Silent));
    assert_eq!(w.servers().len(), 1);
    w.answer(hint(Hint::Leaving));
    assert_eq!(w.servers(), []);
    assert_eq!(
        Enlisted::parse(&w.answer(enlist)).unwrap().server,
        ServerId { index: 0, generation: 2 }
    );
    let other = HintCrashed { cluster: 1, server: first.server, hint: Hint::Leaving };
    w.answer(other.emit());
    assert_eq!(w.servers().len(), 1);
}

#[test]
fn a_server_that_leaves_in_good_order_is_gone_at_once() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    let cluster = w.coordinator.cluster();
    w.answer(HintCrashed { cluster, server: x, hint: Hint::Leaving }.emit());
    assert_eq!(w.tablets(a).unwrap(), [(x, LOST), (y, NORMAL)]);
}

/// A server that is killed and started again: its former life has fewer tablets, but must not get a
/// table. The creation would wait four seconds for the end of that life's lease.
#[test]
fn a_table_is_not_put_on_a_life_of_a_server_that_is_over() {
    let mut w = World::new(config());
    let (old, y) = (w.enlist("x"), w.enlist("y"));
    let x = w.enlist("x");
    assert_ne!(x, old);
    let a = w.create("a", 2).unwrap();
    assert_eq!(w.tablets(a).unwrap(), [(y, NORMAL), (x, NORMAL)]);
    w.restart();
    let (new, y) = (w.enlist("x"), w.enlist("y"));
    let b = w.create("b", 2).unwrap();
    assert_eq!(w.tablets(b).unwrap(), [(new, NORMAL), (y, NORMAL)]);
}

/// A transaction whose first object was in a lost tablet could not be decided on, and the objects
/// that it had prepared on other servers stayed locked.
#[test]
fn the_owner_of_a_lost_tablet_is_gone_for_good() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let table = w.create("a", 2).unwrap();
    let owner = |w: &mut World, hash| {
        let reply = w.answer(FindOwner { cluster: w.coordinator.cluster(), table, hash }.emit());
        let owner = Owner::parse(&reply).unwrap();
        (owner.server, owner.gone)
    };
    assert_eq!([owner(&mut w, 0), owner(&mut w, u64::MAX)], [(x, false), (y, false)]);
    w.masters.get_mut("y").unwrap().alive = false;
    w.pass(10 * SECOND, &["x"]);
    assert_eq!(w.tablets(table).unwrap(), [(x, NORMAL), (y, LOST)]);
    let none = ServerId::default();
    assert_eq!([owner(&mut w, 0), owner(&mut w, u64::MAX)], [(x, false), (none, true)]);
}

/// The tablet of a crashed server with replicas gets another owner, which knows the decision.
#[test]
fn the_owner_of_a_tablet_that_is_recovered_is_not_gone() {
    let mut w = World::new(config());
    w.replicas = 1;
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let table = w.create("a", 2).unwrap();
    w.masters.values_mut().for_each(|master| master.alive = false);
    w.pass(10 * SECOND, &[]);
    assert_eq!(w.tablets(table).unwrap(), [x, y].map(|id| (id, TabletState::Recovering)));
    for hash in [0, u64::MAX] {
        let request = FindOwner { cluster: w.coordinator.cluster(), table, hash };
        let reply = w.answer(request.emit());
        let owner = Owner::parse(&reply).unwrap();
        assert_eq!((owner.server, owner.gone), (ServerId::default(), false));
    }
}

#[test]
fn after_a_restart_servers_have_a_full_term_to_be_heard_of() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    let incarnation = w.coordinator.incarnation();
    // No server could renew its lease while the coordinator was down.
    w.now = w.now.after(100 * SECOND);
    // The next coordinator is set to shorter terms, but what was granted counts.
    w.config.server_term_ns = SECOND / 2;
    (w.config.server_margin_ns, w.config.server_grace_ns) = (0, SECOND / 2);
    // Nor does it help that the one after it learns of shorter terms only.
    w.restart();
    w.restart();
    assert_eq!(w.coordinator.incarnation(), incarnation + 2);
    w.pass(2 * SECOND + 400 * MS, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    assert!(w.create("b", 1).is_ok());
    w.pass(SECOND, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
}

/// After a restart of all processes, the state of a table is unknown until its servers have renewed
/// their leases. It was once reported as complete, and creating it again succeeded.
#[test]
fn after_a_restart_a_table_is_unknown_until_its_servers_are_heard_of() {
    let mut w = World::new(config());
    w.enlist("x");
    w.enlist("y");
    let a = w.create("a", 2).unwrap();
    let unheard = |w: &mut World| {
        let reply = w.answer(ListTables { after: TableId(0) }.emit());
        let table = &TablePage::parse(&reply).unwrap().tables[0];
        (table.lost, table.unheard)
    };
    assert_eq!(unheard(&mut w), (0, 0));
    w.restart();
    assert_eq!(unheard(&mut w), (0, 2));
    assert!(w.renew("x").is_ok());
    assert_eq!(unheard(&mut w), (0, 1));
    assert_eq!(w.create("a", 2), Ok(a));
    w.pass(5 * SECOND, &["x"]);
    assert_eq!(unheard(&mut w), (1, 0));
    assert_eq!(w.create("a", 2), Err(Status::TabletLost));
}

/// A coordinator that was stopped (a suspended laptop, a process under SIGSTOP) finds renewals in
/// its sockets and must not declare servers crashed.
#[test]
fn a_coordinator_that_was_away_declares_nobody_dead() {
    let mut w = World::new(config());
    let x = w.enlist("x");
    let a = w.create("a", 1).unwrap();
    let lease = w.lease(LeaseId(0)).unwrap().lease;
    w.now = w.now.after(1000 * SECOND);
    while w.coordinator.tick(w.now) {}
    w.run();
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL)]);
    assert!(w.renew("x").is_ok());
    assert!(w.lease(lease).is_ok());
    w.pass(10 * SECOND, &[]);
    assert_eq!(w.tablets(a).unwrap(), [(x, LOST)]);
}

/// A server fetches the list again when a renewal shows another version. Two lists with one version
/// would leave it with the old one.
#[test]
fn the_version_of_the_list_grows_with_each_change_of_the_list() {
    let mut w = World::new(config());
    let start = w.coordinator.incarnation() << 32;
    w.enlist("x");
    let version = |w: &mut World| w.renew("x").unwrap().list_version;
    let first = version(&mut w);
    assert!(first > start && first < start + 10, "{first:x}");
    let enlist = joining(5, "y").emit();
    let enlisted = Enlisted::parse(&w.answer(enlist.clone())).unwrap();
    let joined = version(&mut w);
    assert!(enlisted.list_version == joined && joined > first);
    let (y, cluster) = (enlisted.server, enlisted.cluster);
    w.masters.insert("y".into(), Master { alive: true, id: y, ..Master::default() });

    // What leaves the list as it is leaves the version too.
    assert_eq!(Enlisted::parse(&w.answer(enlist)).unwrap(), enlisted);
    w.create("a", 2).unwrap();
    w.lease(LeaseId(0)).unwrap();
    assert_eq!(version(&mut w), joined);

    w.answer(HintCrashed { cluster, server: y, hint: Hint::Leaving }.emit());
    let crashed = version(&mut w);
    assert!(crashed > joined);
    assert_eq!(w.servers().len(), 2);
    assert_eq!(w.drop_table("a"), Status::Ok);
    let freed = version(&mut w);
    assert!(freed > crashed);
    assert_eq!(w.servers().len(), 1);
    w.enlist("z");
    let joined = version(&mut w);
    assert!(joined > freed);
    w.pass(10 * SECOND, &["x"]);
    assert_eq!(w.servers().len(), 1);
    let expired = version(&mut w);
    assert!(expired > joined);
    w.restart();
    let incarnation = w.coordinator.incarnation();
    assert_eq!(version(&mut w), incarnation << 32);
    assert!(incarnation << 32 > expired);
}

/// A renewal names the version of a list that is not durable yet. If the list is taken back, a
/// third version shows that it is neither the list before nor the one that the version promised.
#[test]
fn a_list_that_is_taken_back_has_a_new_version() {
    let mut w = World::new(config());
    let x = w.enlist("x");
    let before = w.renew("x").unwrap().list_version;
    w.disk_stalls = true;
    let enlist = joining(5, "y").emit();
    let enlist = w.ask(enlist);
    let promised = w.renew("x").unwrap().list_version;
    assert!(promised > before);
    (w.disk_full, w.disk_stalls) = (true, false);
    w.run();
    assert_eq!(Enlisted::parse(&w.replies[&enlist]), Err(Status::NotDurable));
    assert!(w.renew("x").unwrap().list_version > promised);
    assert_eq!(w.servers(), [(x, ServerState::Up, 0)]);
}

/// A coordinator that dies before its start is durable has the incarnation of the next one, and so
/// the versions of its list. No reply may name them before the start is durable.
#[test]
fn a_start_that_is_not_durable_names_no_version() {
    let mut w = World::new(config());
    w.enlist("x");
    let (cluster, server) = (w.coordinator.cluster(), w.masters["x"].id);
    w.disk_stalls = true;
    w.restart();
    let usage = Usage { used_bytes: 1, capacity_bytes: 7, objects: 2, accesses: 0 };
    let renew = w.ask(RenewServer { cluster, server, usage }.emit());
    assert!(w.replies.is_empty());
    w.disk_stalls = false;
    w.run();
    let version = w.coordinator.incarnation() << 32;
    assert_eq!(Renewed::parse(&w.replies[&renew]).unwrap().list_version, version);
}

/// A place once went to a new server while the crashed one's tablets were lost. Its record, which a
/// recovery needs, was gone then.
#[test]
fn a_crashed_server_keeps_its_place_as_long_as_it_has_tablets() {
    let mut w = World::new(Config { max_servers: 2, ..config() });
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    w.pass(10 * SECOND, &["x"]);
    let record = w.disk[&Key::Server(y.index).emit()].clone();
    let z = w.enlist("z");
    assert_eq!(z, ServerId { index: 2, generation: 1 });
    let fourth = joining(5, "u").emit();
    assert_eq!(Enlisted::parse(&w.answer(fourth.clone())), Err(Status::NoSpace));
    w.restart();
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    assert_eq!(
        w.servers(),
        [(x, ServerState::Up, 1), (y, ServerState::Crashed, 1), (z, ServerState::Up, 0)]
    );
    assert_eq!(w.disk[&Key::Server(y.index).emit()], record);
    // Its place is free without tablets, but only for a server below the limit.
    assert_eq!(w.drop_table("a"), Status::Ok);
    assert_eq!(Enlisted::parse(&w.answer(fourth)), Err(Status::NoSpace));
    w.pass(10 * SECOND, &["x"]);
    assert_eq!(w.enlist("z"), ServerId { index: 1, generation: 2 });
}

#[test]
fn the_places_of_the_list_are_limited() {
    let mut servers = Servers::default();
    let record = durable::Server {
        generation: 1,
        place: Place::Crashed,
        nonce: 0,
        capacity_bytes: 0,
        replicas: 0,
        durability: Durability::None,
        site: Site::default(),
        head_segment: SegmentId(0),
        head_epoch: 0,
        control: "",
        data: "",
        loss: 0,
        kept: Vec::new(),
    };
    let last = MAX_PLACES as usize - 1;
    servers.slots.extend((0..last).map(|_| Slot::restored(&record)));
    assert_eq!(servers.vacancy(1), Some(last));
    servers.slots.push(Slot::restored(&record));
    assert_eq!(servers.vacancy(1), None);
    servers.slots[7].place = Place::Free;
    assert_eq!(servers.vacancy(1), Some(7));
    servers.slots[7].generation = u32::MAX;
    assert_eq!(servers.vacancy(1), None);
    assert_eq!(Servers::default().vacancy(0), None);
}

#[test]
fn a_server_that_replaces_another_proves_that_it_is_dead() {
    let mut w = World::new(config());
    let cluster = w.coordinator.cluster();
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    // An unknown generation, and an id of no cluster.
    let later = ServerId { generation: 2, ..x };
    w.enlist_after("u", (cluster, later));
    w.enlist_after("v", (0, x));
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, NORMAL)]);
    let next = w.enlist_after("x", (cluster, x));
    assert_ne!(next, x);
    assert_eq!(w.tablets(a).unwrap(), [(x, LOST), (y, NORMAL)]);
    w.restart();
    assert_eq!(w.tablets(a).unwrap(), [(x, LOST), (y, NORMAL)]);
}

#[test]
fn a_repeated_enlistment_replaces_nothing() {
    let mut w = World::new(config());
    let cluster = w.coordinator.cluster();
    let x = w.enlist("x");
    let enlist = Enlist { cluster, replaces: x, ..joining(5, "x") };
    let first = Enlisted::parse(&w.answer(enlist.emit())).unwrap().server;
    let again = Enlist { replaces: first, ..enlist };
    assert_eq!(Enlisted::parse(&w.answer(again.emit())).unwrap().server, first);
    assert!(w.servers().contains(&(first, ServerState::Up, 0)));
}

/// A cluster in which servers acknowledge changes at different times would promise nothing.
#[test]
fn a_server_of_another_durability_is_refused_while_others_are_up() {
    let mut w = World::new(config());
    let x = w.enlist("x");
    let cluster = w.coordinator.cluster();
    let enlist = |control, replaces, replicas, durability| {
        Enlist { replicas, durability, cluster, replaces, ..joining(77, control) }.emit()
    };
    let none = ServerId::default();
    let before = w.disk.clone();
    for (replicas, durability) in
        [(1, Durability::Memory), (2, Durability::None), (0, Durability::Disk)]
    {
        let reply = w.answer(enlist("y", none, replicas, durability));
        assert_eq!(outcome(&reply).unwrap().0, Status::NotInCluster);
        let text = failure_text(&reply);
        assert!(text.contains("--replicas 0 --durability none"), "{text}");
    }
    assert_eq!(w.disk, before);
    // A server in the place of the only other one changes the mode of the cluster.
    let reply = w.answer(enlist("y", x, 2, Durability::Disk));
    let y = Enlisted::parse(&reply).unwrap().server;
    let reply = w.answer(ListServers { from: 0 }.emit());
    let servers = ServerPage::parse(&reply).unwrap().servers;
    let modes: Vec<_> = servers.iter().map(|s| (s.server, s.replicas, s.durability)).collect();
    assert_eq!(modes, [(y, 2, Durability::Disk)]);
}

/// The servers of the cluster's last run are in the coordinator's state, and all of them may come
/// back with another mode.
#[test]
fn servers_that_were_not_heard_allow_any_durability() {
    let mut w = World::new(config());
    w.enlist("x");
    w.restart();
    w.replicas = 1;
    w.enlist("y");
}

#[test]
fn a_disk_of_another_cluster_is_refused() {
    let mut w = World::new(config());
    let x = w.enlist("x");
    let before = w.disk.clone();
    let cluster = w.coordinator.cluster() ^ 1;
    let enlist = Enlist { cluster, replaces: x, ..joining(5, "y") };
    assert_eq!(outcome(&w.answer(enlist.emit())).unwrap().0, Status::NotInCluster);
    assert_eq!(w.disk, before);
}
