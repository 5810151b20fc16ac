//! Tests of posted writes: what counts is there before a fence and before any message, and what a
//! former life has left.

extern crate std;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use std::sync::Mutex;

use super::super::{Inbox, Outbox, Posted, Rings};
use super::*;

/// Rings in memory of the test, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestRings(Arc<Mutex<Vec<TestRing>>>);

#[derive(Debug, Default)]
struct TestRing {
    writes: VecDeque<Vec<u8>>,
    closed: bool,
    left: bool,
}

/// One end of a ring.
#[derive(Debug)]
struct End(TestRings, usize);

impl TestRings {
    fn with<T>(&self, ring: usize, of: impl FnOnce(&mut TestRing) -> T) -> T {
        of(&mut self.0.lock().unwrap()[ring])
    }

    /// Returns the number of rings that take writes.
    pub(crate) fn open(&self) -> usize {
        self.0.lock().unwrap().iter().filter(|ring| !ring.closed).count()
    }

    /// Leaves what is in the rings to the next life of the backup.
    fn leave(&self) {
        self.0.lock().unwrap().iter_mut().for_each(|ring| ring.left = !ring.closed);
    }
}

impl Rings for TestRings {
    fn offer(&mut self) -> Option<(String, Box<dyn Inbox>)> {
        let mut rings = self.0.lock().unwrap();
        rings.push(TestRing::default());
        let ring = rings.len() - 1;
        Some((format!("{ring}"), Box::new(End(self.clone(), ring))))
    }

    fn accept(&mut self, offer: &str) -> Option<Box<dyn Outbox>> {
        Some(Box::new(End(self.clone(), offer.parse().ok()?)))
    }

    fn left(&mut self) -> Option<Box<dyn Inbox>> {
        let mut rings = self.0.lock().unwrap();
        let at = rings.iter().position(|ring| ring.left)?;
        rings[at].left = false;
        Some(Box::new(End(self.clone(), at)))
    }
}

impl Inbox for End {
    fn take(&mut self, into: &mut Vec<u8>) -> bool {
        let next = self.0.with(self.1, |ring| ring.writes.pop_front());
        next.map(|write| *into = write).is_some()
    }

    fn close(&mut self) {
        self.0.with(self.1, |ring| ring.closed = true);
    }
}

impl Outbox for End {
    fn post(&mut self, parts: [&[u8]; 2]) -> Posted {
        self.0.with(self.1, |ring| match (ring.closed, ring.writes.len()) {
            (true, _) => Posted::Closed,
            (false, 8..) => Posted::Full,
            (false, _) => {
                ring.writes.push_back(parts.concat());
                Posted::Done
            }
        })
    }
}

fn post(to: &mut dyn Outbox, write: &WriteReplica<'_>) -> Posted {
    to.post([&write.emit_front(), write.data])
}

/// Returns a backup with a replica of 50 bytes, and its master's end of a ring.
fn shared(bytes: &[u8]) -> (Backup, TestRings, Box<dyn Outbox>) {
    let (mut backup, mut rings) = (backup(2), TestRings::default());
    backup.share(Box::new(rings.clone()));
    assert_eq!(backup.write(&open(bytes, 50)), Ok(50));
    let outbox = rings.accept(&backup.open_ring(MASTER).unwrap()).unwrap();
    (backup, rings, outbox)
}

#[test]
fn a_fence_takes_what_was_posted_before_and_nothing_after() {
    let bytes = segment(MASTER, SEGMENT);
    let (mut backup, rings, mut master) = shared(&bytes);
    assert_eq!(post(&mut *master, &write(&bytes, 50, 60)), Posted::Done);
    assert_eq!(post(&mut *master, &write(&bytes, 60, 75)), Posted::Done);
    assert_eq!(listed(&backup), (2, 50, false), "no one has taken it");
    backup.fence(MASTER).unwrap();
    assert_eq!(listed(&backup), (2, 75, false));
    assert_eq!(backup.bytes(MASTER, SEGMENT), Some(&bytes[..75]));
    assert_eq!(post(&mut *master, &write(&bytes, 75, 80)), Posted::Closed);
    assert_eq!(backup.open_ring(MASTER), Err(Status::Fenced));
    assert_eq!(rings.open(), 0);
    // Another life of the server is another master.
    let later = ServerId { generation: MASTER.generation + 1, ..MASTER };
    backup.open_ring(later).unwrap();
    backup.fence(MASTER).unwrap();
    assert_eq!(rings.open(), 1);
}

#[test]
fn a_message_finds_what_was_posted_before_it() {
    let bytes = segment(MASTER, SEGMENT);
    let (mut backup, rings, mut master) = shared(&bytes);
    assert_eq!(post(&mut *master, &write(&bytes, 50, 60)), Posted::Done);
    assert_eq!(backup.write(&write(&bytes, 60, 70)), Ok(70), "no gap");
    assert_eq!(post(&mut *master, &write(&bytes, 70, 80)), Posted::Done);
    // The write that follows in the ring must not close it, because its replica is gone.
    backup.free(MASTER, SEGMENT, 2);
    assert_eq!((backup.replicas(), backup.posted_writes(), rings.open()), (0, 2, 1));
}

#[test]
fn a_write_that_cannot_be_executed_closes_the_ring() {
    let bytes = segment(MASTER, SEGMENT);
    let other = ServerId { index: 9, generation: 1 };
    let good = write(&bytes, 50, 60);
    let of = |write: &WriteReplica<'_>| [&write.emit_front()[..], write.data].concat();
    for bad in [
        of(&WriteReplica { target: target(other, SEGMENT), ..good }),
        of(&WriteReplica { target: target(MASTER, SegmentId(9)), ..good }),
        of(&WriteReplica { open: true, ..write(&bytes, 0, 60) }),
        of(&WriteReplica { close: true, ..good }),
        of(&WriteReplica { epoch: 1, ..good }),
        of(&write(&bytes, 55, 60)),
        Vec::new(),
        vec![1; 80],
    ] {
        let (mut backup, rings, mut master) = shared(&bytes);
        assert_eq!(master.post([&bad, b""]), Posted::Done);
        backup.take_all_posted();
        assert_eq!((listed(&backup), rings.open()), ((2, 50, false), 0), "{bad:?}");
        assert_eq!(post(&mut *master, &good), Posted::Closed);
    }
}

#[test]
fn the_next_ring_of_a_master_replaces_the_last_and_their_number_is_limited() {
    let bytes = segment(MASTER, SEGMENT);
    let (mut backup, rings, mut master) = shared(&bytes);
    assert_eq!(post(&mut *master, &write(&bytes, 50, 60)), Posted::Done);
    backup.open_ring(MASTER).unwrap();
    assert_eq!((listed(&backup), rings.open()), ((2, 60, false), 1));
    assert_eq!(post(&mut *master, &write(&bytes, 60, 70)), Posted::Closed);
    let others = (100..200).map(|index| ServerId { index, generation: 1 });
    let given = others.filter(|&other| backup.open_ring(other).is_ok()).count();
    assert_eq!(given, 63);
    assert_eq!(backup.open_ring(ServerId { index: 99, generation: 1 }), Err(Status::NoSpace));
    backup.open_ring(MASTER).expect("it has one of them");
    drop(backup);
    assert_eq!(rings.open(), 0, "the end of the process closes all");
    let mut alone = super::backup(1);
    assert_eq!(alone.open_ring(MASTER), Err(Status::NoSpace), "it shares no memory");
}

#[test]
fn what_was_posted_to_a_former_life_is_in_its_replicas() {
    let bytes = segment(MASTER, SEGMENT);
    let (mut backup, rings, mut master) = shared(&bytes);
    assert_eq!(post(&mut *master, &write(&bytes, 50, 60)), Posted::Done);
    // The process ends before it takes the write, and the test gives its replica to the next one.
    rings.leave();
    let mut next = super::backup(2);
    next.write(&open(&bytes, 50)).unwrap();
    next.share(Box::new(rings));
    assert_eq!(listed(&next), (2, 60, false));
    assert_eq!(next.left(), (1, 0), "its master has not written to this life");
    assert_eq!(post(&mut *master, &write(&bytes, 60, 70)), Posted::Closed);
    backup.take_all_posted();
}
