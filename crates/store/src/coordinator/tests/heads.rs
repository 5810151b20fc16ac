//! Tests of the coordinator with servers that raise the valid head of their logs.

use super::*;

impl World {
    fn set_head_request(&self, server: ServerId, segment: u32, epoch: u32) -> Vec<u8> {
        let cluster = self.coordinator.cluster();
        SetHead { cluster, server, segment: SegmentId(segment), epoch }.emit()
    }

    fn set_head(&mut self, server: ServerId, segment: u32, epoch: u32) -> Status {
        let request = self.set_head_request(server, segment, epoch);
        outcome(&self.answer(request)).unwrap().0
    }

    /// Returns the valid head of a server's log in the coordinator's memory.
    fn head(&self, server: ServerId) -> (u32, u32) {
        let slot = &self.coordinator.servers.slots[server.index as usize];
        (slot.head.0.0, slot.head.1)
    }

    /// Returns the valid head of a server's log on the disk.
    fn durable_head(&self, server: ServerId) -> (u32, u32) {
        let record = &self.disk[&Key::Server(server.index).emit()];
        let record: durable::Server<'_> = durable::decode(record).unwrap();
        (record.head_segment.0, record.head_epoch)
    }
}

/// A master serves again after the reply. If the coordinator then forgot the head, a recovery could
/// take a replica that the master gave up for the end of the log.
#[test]
fn a_head_is_durable_before_the_reply() {
    let mut w = World::new(config());
    let x = w.enlist("x");
    w.disk_stalls = true;
    let request = w.set_head_request(x, 3, 1);
    let first = w.ask(request.clone());
    // The head is in memory, so that the repetition changes nothing. It waits all the same.
    let again = w.ask(request);
    let lower = w.set_head_request(x, 2, 7);
    let lower = w.ask(lower);
    assert_eq!((w.queue.len(), w.durable_head(x)), (1, (0, 0)));
    assert!(w.replies.is_empty(), "a reply before the head is durable");
    w.disk_stalls = false;
    w.run();
    assert_eq!(w.durable_head(x), (3, 1));
    for asked in [first, again, lower] {
        assert_eq!(w.replies[&asked], done());
    }
}

#[test]
fn a_head_never_falls() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let steps = [
        ((5, 1), (5, 1)),
        ((4, 9), (5, 1)),
        ((5, 0), (5, 1)),
        ((5, 1), (5, 1)),
        ((5, 2), (5, 2)),
        ((6, 0), (6, 0)),
        ((5, u32::MAX), (6, 0)),
        ((u32::MAX, u32::MAX), (u32::MAX, u32::MAX)),
    ];
    for ((segment, epoch), head) in steps {
        let (before, changes) = (w.head(x), w.coordinator.journal.issued);
        assert_eq!(w.set_head(x, segment, epoch), Status::Ok);
        assert_eq!((w.head(x), w.durable_head(x)), (head, head));
        let changed = u64::from(before != head);
        assert_eq!(w.coordinator.journal.issued, changes + changed, "{segment} {epoch}");
    }
    assert_eq!(w.head(y), (0, 0));
}

#[test]
fn a_head_that_the_disk_does_not_take_is_taken_back() {
    let mut w = World::new(config());
    let x = w.enlist("x");
    assert_eq!(w.set_head(x, 3, 1), Status::Ok);
    w.disk_stalls = true;
    let request = w.set_head_request(x, 4, 0);
    let (first, again) = (w.ask(request.clone()), w.ask(request));
    (w.disk_full, w.disk_stalls) = (true, false);
    w.run();
    for asked in [first, again] {
        assert_eq!(outcome(&w.replies[&asked]).unwrap().0, Status::NotDurable);
    }
    assert_eq!((w.head(x), w.durable_head(x)), ((3, 1), (3, 1)));
    // While the disk takes no changes, a head that is durable is acknowledged.
    assert_eq!(w.set_head(x, 4, 0), Status::NotDurable);
    assert_eq!(w.coordinator.refusals, 1, "the disk is not asked again at once");
    assert_eq!(w.set_head(x, 3, 1), Status::Ok);
    w.disk_full = false;
    w.pass(300 * MS, &["x"]);
    assert_eq!(w.set_head(x, 4, 0), Status::Ok);
    assert_eq!((w.head(x), w.durable_head(x)), ((4, 0), (4, 0)));
}

/// The recovery of a crashed server begins with its head, so that neither the crash nor a restart
/// of the coordinator may lose it.
#[test]
fn a_head_survives_the_crash_of_its_server_and_a_restart() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    let a = w.create("a", 2).unwrap();
    assert_eq!((w.set_head(x, 3, 1), w.set_head(y, 7, 2)), (Status::Ok, Status::Ok));
    w.restart();
    assert_eq!((w.head(x), w.head(y)), ((3, 1), (7, 2)));
    w.pass(10 * SECOND, &["x"]);
    assert_eq!(w.tablets(a).unwrap(), [(x, NORMAL), (y, LOST)]);
    assert_eq!((w.head(y), w.durable_head(y)), ((7, 2), (7, 2)));
    w.restart();
    assert_eq!(w.head(y), (7, 2));
}

#[test]
fn a_new_life_of_a_server_has_a_head_of_its_own() {
    let mut w = World::new(config());
    let x = w.enlist("x");
    assert_eq!(w.set_head(x, 3, 1), Status::Ok);
    let cluster = w.coordinator.cluster();
    w.answer(HintCrashed { cluster, server: x, hint: Hint::Leaving }.emit());
    let next = w.enlist("x");
    assert_eq!(next, ServerId { index: 0, generation: 2 });
    assert_eq!((w.head(next), w.durable_head(next)), ((0, 0), (0, 0)));
    assert_eq!(w.set_head(x, 9, 9), Status::NotInCluster);
    assert_eq!(w.head(next), (0, 0));
    assert_eq!(w.set_head(next, 1, 1), Status::Ok);
}

/// A master that is declared crashed must not raise its head, for a recovery may have read it.
#[test]
fn only_a_server_that_is_up_raises_its_head() {
    let mut w = World::new(config());
    let (x, y) = (w.enlist("x"), w.enlist("y"));
    w.create("a", 2).unwrap();
    assert_eq!(w.set_head(y, 3, 1), Status::Ok);
    w.pass(10 * SECOND, &["x"]);
    let changes = w.coordinator.journal.issued;
    assert_eq!(w.set_head(y, 4, 1), Status::NotInCluster);
    assert_eq!(w.set_head(y, 3, 1), Status::NotInCluster, "no success, though nothing changes");
    assert_eq!(w.head(y), (3, 1));
    let other = |index, generation| ServerId { index, generation };
    for server in [other(0, 0), other(0, 2), other(2, 1), other(ServerId::MAX_INDEX, 1)] {
        assert_eq!(w.set_head(server, 4, 1), Status::NotInCluster, "{server}");
    }
    let none = other(ServerId::MAX_INDEX + 1, 1);
    assert_eq!(w.set_head(none, 4, 1), Status::BadFormat, "a list has no room for it");
    let cluster = w.coordinator.cluster() ^ 1;
    let request = SetHead { cluster, server: x, segment: SegmentId(4), epoch: 1 }.emit();
    assert_eq!(outcome(&w.answer(request)).unwrap().0, Status::NotInCluster);
    assert_eq!(w.head(x), (0, 0));
    assert_eq!(w.coordinator.journal.issued, changes);
}

/// No list limits the heads that one server sends, so that the changes that wait for the disk have
/// a limit of their own.
#[test]
fn heads_that_wait_for_the_disk_are_limited() {
    let mut w = World::new(Config { max_waiting: 2, ..config() });
    let x = w.enlist("x");
    w.disk_stalls = true;
    let asked: Vec<_> = (1..10)
        .map(|epoch| {
            let request = w.set_head_request(x, 1, epoch);
            w.ask(request)
        })
        .collect();
    assert_eq!(w.queue.len(), 2);
    assert_eq!(w.head(x), (1, 2));
    w.disk_stalls = false;
    w.run();
    let status = |asked: &u64| outcome(&w.replies[asked]).unwrap().0;
    assert!(asked[..2].iter().all(|asked| status(asked) == Status::Ok));
    assert!(asked[2..].iter().all(|asked| status(asked) == Status::Retry));
}
