use sprat_proto::wire::checksum::crc32c;

use super::*;
use crate::objects::segment::SegmentId;

const SEGMENT: u32 = 32 << 10;
/// The length of an entry of which seven fill a segment.
const ENTRY: usize = 4 << 10;

/// Returns a log that sorts survivors. Its segments 1 to 3 are full and 4 is its head.
fn log(replicated: bool) -> Log {
    let mut log = Log::new(12 * u64::from(SEGMENT), SEGMENT, crc32c, replicated);
    log.sort_from(12);
    assert!(log.sorts());
    while log.tail().segment < SegmentId(4) {
        let (at, _) = log.append(ENTRY, Purpose::Write).unwrap();
        log.live(at, ENTRY);
    }
    log.set_durable(log.tail());
    log
}

/// Moves the last `count` entries of the segment `id`. Returns the segment of the last copy.
fn clean(log: &mut Log, id: u32, count: u32) -> SegmentId {
    let slot = log.slot(SegmentId(id)).unwrap();
    log.begin_moving(slot);
    let mut to = SegmentId(0);
    for n in 1..=count {
        let offset = log.slots()[slot as usize].written - n * ENTRY as u32;
        let at = log.relocate(Location::new(slot, offset), ENTRY, ENTRY, |_, _| {}).unwrap();
        to = log.slots()[at.slot()].id;
    }
    to
}

/// Returns the mean segment in which the entries of the segment `id` were written.
fn born(log: &Log, id: u32) -> u32 {
    log.slots()[log.slot(SegmentId(id)).unwrap() as usize].born().0
}

/// Entries that were written a whole log ago have a survivor of their own. Their age counts from
/// their first write, however often they were moved.
#[test]
fn old_entries_have_a_survivor_of_their_own() {
    let mut log = log(false);
    assert_eq!(clean(&mut log, 1, 7), SegmentId(5));
    assert!((1..=2).contains(&born(&log, 5)), "the header is younger");
    assert_eq!(clean(&mut log, 2, 3), SegmentId(6), "the first survivor is full");
    // Meanwhile 1,000 segments come and go.
    log.last_id = SegmentId(1000);
    assert_eq!(clean(&mut log, 3, 2), SegmentId(1001));
    assert_eq!(clean(&mut log, 5, 2), SegmentId(1001), "a survivor is as old as its entries");
    let mean = born(&log, 1001);
    assert!((2..12).contains(&mean), "{mean}");
    assert_eq!(log.slots()[log.survivors.open[0].unwrap() as usize].id, SegmentId(6));
}

/// A small log has one survivor for entries of every age.
#[test]
fn a_small_log_has_one_survivor() {
    let mut log = Log::new(11 * u64::from(SEGMENT), SEGMENT, crc32c, false);
    log.sort_from(12);
    log.append(ENTRY, Purpose::Write).unwrap();
    log.last_id = SegmentId(1000);
    log.begin_moving(0);
    assert_eq!((log.sorts(), log.survivors.current), (false, 0));
}

/// The cleaner of a full log opens no survivor while another one has room.
#[test]
fn a_full_log_moves_entries_to_whichever_survivor_has_room() {
    let mut log = log(false);
    assert_eq!(clean(&mut log, 1, 6), SegmentId(5));
    log.last_id = SegmentId(1000);
    while log.append(ENTRY, Purpose::Write).is_ok() {}
    assert_eq!(log.available(), SURVIVORS + REMOVALS);
    assert_eq!(clean(&mut log, 2, 1), SegmentId(5), "old entries beside young ones");
    assert_eq!(log.available(), SURVIVORS + REMOVALS);
    clean(&mut log, 3, 1);
    assert_eq!(log.available(), SURVIVORS + REMOVALS - 1, "no survivor has room");
}

/// A cleaned segment leaves the digest when all replicas have the entries that were moved out of
/// it, to one survivor or the other, and both are named.
#[test]
fn a_digest_names_both_survivors() {
    let mut log = log(true);
    assert_eq!(clean(&mut log, 1, 1), SegmentId(5));
    log.last_id = SegmentId(1000);
    assert_eq!(clean(&mut log, 2, 2), SegmentId(1001));
    for id in [1, 2] {
        let slot = log.slot(SegmentId(id)).unwrap();
        let live = log.slots()[slot as usize].live as usize;
        log.dead(Location::new(slot, 40), live);
        log.free(slot);
    }
    let replicate = |log: &mut Log, id, entries: u32| {
        let slot = log.slot(SegmentId(id)).unwrap();
        log.set_replicated(slot, 40 + entries * ENTRY as u32);
    };
    replicate(&mut log, 1001, 2);
    assert!(!log.change_digest(), "no replica has the survivor 5, which is open");
    replicate(&mut log, 5, 1);
    assert!(log.change_digest());
    let named = &log.replicated.as_ref().unwrap().named;
    let len = |entries: u32| 40 + entries * ENTRY as u32;
    let of = |id| named.get(&SegmentId(id)).copied();
    assert_eq!([of(5), of(1001)], [Some(len(1)), Some(len(2))]);
    assert_eq!([of(1), of(2)], [None; 2]);
}

/// A recovery begins with other survivors than those that are open, of both kinds.
#[test]
fn a_side_log_closes_both_survivors() {
    let mut log = log(true);
    clean(&mut log, 1, 1);
    log.last_id = SegmentId(1000);
    clean(&mut log, 2, 1);
    let last = log.begin_side().unwrap();
    assert_eq!((last, log.survivors.open), (SegmentId(1001), [None; KINDS]));
    log.append(ENTRY, Purpose::Recover).unwrap();
    assert!(log.survivor_ends().iter().any(|end| end.segment > last));
}
