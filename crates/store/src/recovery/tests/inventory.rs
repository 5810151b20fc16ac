//! Tests of the rules of the inventory.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use sprat_proto::wire::checksum::crc32c;

use super::{Bytes, CLUSTER, MASTER};
use crate::objects::entry::{HEADER, Header};
use crate::objects::segment::SegmentId;
use crate::recovery::{Crashed, Inventory, Listed, inventory};
use crate::types::{ServerId, Version};

/// The replicas of a crashed master's log on a few backups.
struct Replicas {
    crashed: Crashed,
    listed: Vec<Listed>,
    bytes: BTreeMap<(u32, u32), Vec<u8>>,
}

fn backup(index: u32) -> ServerId {
    ServerId { index, generation: 1 }
}

impl Replicas {
    fn new() -> Self {
        let (head_segment, head_epoch) = (SegmentId(0), 0);
        let crashed = Crashed { cluster: CLUSTER, master: MASTER, head_segment, head_epoch };
        Self { crashed, listed: Vec::new(), bytes: BTreeMap::new() }
    }

    fn replica(mut self, on: u32, segment: u32, epoch: u32, closed: bool, bytes: &[u8]) -> Self {
        let (segment_id, len) = (SegmentId(segment), bytes.len() as u32);
        self.listed.push(Listed { backup: backup(on), segment: segment_id, epoch, len, closed });
        self.bytes.insert((on, segment), bytes.to_vec());
        self
    }

    fn open(self, on: u32, segment: u32, bytes: &Bytes) -> Self {
        self.replica(on, segment, 1, false, &bytes.0)
    }

    fn closed(self, on: u32, segment: u32, bytes: &Bytes) -> Self {
        self.replica(on, segment, 1, true, &bytes.0)
    }

    /// The coordinator knows of this head.
    fn since(mut self, segment: u32, epoch: u32) -> Self {
        (self.crashed.head_segment, self.crashed.head_epoch) = (SegmentId(segment), epoch);
        self
    }

    fn inventory(&self) -> Inventory {
        let read = |on: ServerId, id: SegmentId| self.bytes.get(&(on.index, id.0));
        let found = inventory(crc32c, &self.crashed, &self.listed, read);
        let mut reverse = self.listed.clone();
        reverse.reverse();
        let other = inventory(crc32c, &self.crashed, &reverse, read);
        assert_eq!(lengths(&found), lengths(&other), "the order of the lists does not matter");
        found
    }

    /// Checks that the log has these segments: segment, backup and length.
    #[track_caller]
    fn finds(&self, head: u32, expected: &[(u32, u32, u32)]) {
        let segments =
            expected.iter().map(|&(id, on, len)| (SegmentId(id), backup(on), len)).collect();
        assert_eq!(self.inventory(), Inventory::Found { head: SegmentId(head), segments });
    }

    #[track_caller]
    fn misses(&self, head: bool, segments: &[u32]) {
        let segments = segments.iter().map(|&id| SegmentId(id)).collect();
        assert_eq!(self.inventory(), Inventory::Missing { head, segments });
    }
}

/// Returns an inventory without the choice of backups.
fn lengths(inventory: &Inventory) -> Inventory {
    let mut inventory = inventory.clone();
    if let Inventory::Found { segments, .. } = &mut inventory {
        segments.iter_mut().for_each(|(_, backup, _)| *backup = ServerId::default());
    }
    inventory
}

/// Returns a segment that is neither head nor damaged.
fn data(segment: u32) -> Bytes {
    Bytes::new(segment).object(b"key", u64::from(segment), b"value", None)
}

#[test]
fn a_log_is_its_head_and_what_the_head_names() {
    let (one, two) = (data(1), data(2));
    let head = Bytes::new(3).digest(&[(1, one.len()), (2, two.len())]).object(b"k", 9, b"v", None);
    let all = Replicas::new().closed(1, 1, &one).closed(2, 2, &two).open(1, 3, &head);
    all.finds(3, &[(1, 1, one.len()), (2, 2, two.len()), (3, 1, head.len())]);
    Replicas::new().open(1, 3, &Bytes::new(3).digest(&[])).finds(3, &[(3, 1, HEADER as u32 + 8)]);
}

#[test]
fn a_segment_that_is_not_named_is_not_replayed() {
    let (one, two, later) = (data(1), data(2), data(4));
    let head = Bytes::new(3).digest(&[(2, two.len())]);
    let all = Replicas::new().closed(1, 1, &one).closed(1, 2, &two).open(1, 4, &later);
    all.open(1, 3, &head).finds(3, &[(2, 1, two.len()), (3, 1, head.len())]);
}

#[test]
fn changes_follow_the_digest() {
    let (one, two, survivor) = (data(1), data(2), data(4));
    let front = Bytes::new(3).digest(&[(1, one.len()), (2, two.len())]);
    let head = front.change(&[(4, survivor.len()), (1, 0)]).object(b"k", 9, b"v", None);
    let head = head.change(&[(2, 0)]);
    let all = Replicas::new().closed(1, 1, &one).closed(1, 2, &two).open(1, 4, &survivor);
    all.open(1, 3, &head).finds(3, &[(3, 1, head.len()), (4, 1, survivor.len())]);
}

#[test]
fn without_a_head_the_end_is_unknown() {
    let one = data(1);
    let head = Bytes::new(2).digest(&[(1, one.len())]);
    Replicas::new().misses(true, &[]);
    Replicas::new().closed(1, 1, &one).closed(1, 2, &head).misses(true, &[]);
    Replicas::new().closed(1, 1, &one).open(1, 2, &data(2)).misses(true, &[]);
    let mut unread = Replicas::new().closed(1, 1, &one).open(1, 2, &head);
    unread.bytes.remove(&(1, 2));
    unread.misses(true, &[]);
}

#[test]
fn the_lowest_of_several_heads_is_the_end() {
    let one = data(1);
    let two = Bytes::new(2).digest(&[(1, one.len())]).object(b"k", 9, b"v", None);
    let three = Bytes::new(3).digest(&[(1, one.len()), (2, two.len())]);
    let all = Replicas::new().closed(1, 1, &one).open(1, 3, &three);
    all.closed(1, 2, &two).open(2, 2, &two).finds(2, &[(1, 1, one.len()), (2, 1, two.len())]);
    let all = Replicas::new().closed(1, 1, &one).open(1, 3, &three);
    let all = all.closed(1, 2, &two).closed(2, 2, &two);
    all.finds(3, &[(1, 1, one.len()), (2, 1, two.len()), (3, 1, three.len())]);
}

#[test]
fn an_open_replica_that_was_given_up_is_not_the_end() {
    let front = Bytes::new(2).digest(&[]);
    let short = Bytes::new(2).digest(&[]);
    let long = front.object(b"k", 9, b"v", None);
    let all = || Replicas::new().replica(1, 2, 3, false, &short.0);
    all().since(2, 3).finds(2, &[(2, 1, short.len())]);
    all().since(2, 4).misses(true, &[]);
    all().since(3, 0).misses(true, &[]);
    // It is not the longest of the head either, even if it has more bytes.
    let longer = all().since(2, 3).replica(2, 2, 2, false, &long.0);
    longer.finds(2, &[(2, 1, short.len())]);
    // But its bytes may serve for a segment whose length is known.
    let head = Bytes::new(3).digest(&[(2, long.len())]);
    let named = Replicas::new().since(3, 0).replica(1, 2, 1, false, &long.0).open(1, 3, &head);
    named.finds(3, &[(2, 1, long.len()), (3, 1, head.len())]);
}

#[test]
fn the_longest_intact_replica_of_the_head_counts() {
    let front = Bytes::new(2).digest(&[]);
    let len = front.len();
    let long = Bytes::new(2).digest(&[]).object(b"k", 9, b"v", None);
    let cut = &long.0[..long.0.len() - 1];
    let mut damaged = long.0.clone();
    damaged[len as usize + 20] ^= 1;
    // What is behind the damage may have been acknowledged.
    let rotten = || Replicas::new().replica(2, 2, 1, false, &damaged);
    rotten().misses(true, &[]);
    rotten().replica(1, 2, 1, true, &damaged).misses(true, &[]);
    rotten().open(4, 2, &long).finds(2, &[(2, 4, long.len())]);
    // The damage may be in the length of an entry.
    let mut longer = long.0.clone();
    longer[len as usize + 1] ^= 1;
    let both = || rotten().replica(3, 2, 1, false, &longer);
    both().misses(true, &[]);
    both().replica(1, 2, 1, false, cut).misses(true, &[]);
    let shorter = both().open(1, 2, &front);
    shorter.finds(2, &[(2, 1, len)]);
    shorter.open(4, 2, &long).finds(2, &[(2, 4, long.len())]);
    // A replica that the next head's master has closed is as good.
    let closed = Replicas::new().open(1, 2, &front).closed(2, 2, &long);
    closed.finds(2, &[(2, 2, long.len())]);
}

#[test]
fn a_named_segment_is_complete_or_missing() {
    let (one, two) = (data(1), data(2));
    let head = Bytes::new(3).digest(&[(1, one.len()), (2, two.len())]);
    let all = || Replicas::new().open(1, 3, &head);
    all().misses(false, &[1, 2]);
    let cut = &one.0[..one.0.len() - 1];
    let mut damaged = one.0.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let bad = || all().closed(1, 2, &two).replica(1, 1, 1, true, cut);
    let bad = || bad().replica(2, 1, 1, true, &damaged);
    bad().misses(false, &[1]);
    bad().open(3, 1, &one).finds(3, &[(1, 3, one.len()), (2, 1, two.len()), (3, 1, head.len())]);
    let mut unread = bad().open(3, 1, &one);
    unread.bytes.remove(&(3, 1));
    unread.misses(false, &[1]);
    unread.bytes.insert((3, 1), Vec::new());
    unread.misses(false, &[1]);
}

/// A survivor may have more than the digest says. The rest is still elsewhere.
#[test]
fn as_much_of_a_segment_as_is_named_is_replayed() {
    let front = data(1);
    let len = front.len();
    let more = front.object(b"more", 5, b"value", None);
    let head = Bytes::new(2).digest(&[(1, len)]);
    Replicas::new()
        .open(1, 1, &more)
        .open(1, 2, &head)
        .finds(2, &[(1, 1, len), (2, 1, head.len())]);
    // A length within an entry is none of a log's.
    let head = Bytes::new(2).digest(&[(1, len + 1)]);
    Replicas::new().open(1, 1, &more).open(1, 2, &head).misses(false, &[1]);
}

/// A frame that another replica had before, or a block that was written to the wrong place.
#[test]
fn a_replica_of_another_segment_is_none() {
    let one = data(1);
    let head = Bytes::new(2).digest(&[(1, one.len())]);
    let header = Header {
        cluster: CLUSTER,
        server: MASTER,
        segment: SegmentId(1),
        capacity: 4096,
        safe_version: Version(1),
    };
    let earlier = ServerId { generation: MASTER.generation - 1, ..MASTER };
    for other in [
        Header { cluster: 8, ..header },
        Header { server: earlier, ..header },
        Header { segment: SegmentId(5), ..header },
    ] {
        let wrong = Bytes::with(other).object(b"key", 1, b"value", None);
        assert_eq!(wrong.len(), one.len());
        Replicas::new().closed(1, 1, &wrong).open(1, 2, &head).misses(false, &[1]);
        let wrong = Bytes::with(other).digest(&[]);
        Replicas::new().open(1, 1, &wrong).misses(true, &[]);
    }
}
