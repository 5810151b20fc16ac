use alloc::sync::Arc;
use alloc::vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::objects::entry::Entry;
use sprat_proto::wire::checksum::crc32c;

fn log(segments: u64) -> Log {
    Log::new(segments * 1024, 1024, crc32c, false)
}

/// Appends entries of 200 bytes until the log takes no more. Returns the number of entries.
fn fill(log: &mut Log, purpose: Purpose) -> usize {
    (0..).take_while(|_| log.append(200, purpose).is_ok()).count()
}

#[test]
fn the_reserve_is_for_removals_and_the_cleaner() {
    let mut log = log(8);
    // 4 entries of 200 bytes and a header fit into 1024.
    assert_eq!(fill(&mut log, Purpose::Write), 5 * 4);
    assert_eq!(log.available(), SURVIVORS + REMOVALS);
    assert_eq!(fill(&mut log, Purpose::Remove), 4);
    assert_eq!(log.available(), SURVIVORS);
    assert_eq!(fill(&mut log, Purpose::Survive), 2 * 4);
    assert_eq!((log.available(), log.segments().count()), (0, 8));
    let too_long = log.longest_entry() + 1;
    assert_eq!(log.append(too_long, Purpose::Write).unwrap_err(), Full::TooLong);
}

/// A host that prepares each block at once, and the number of its orders.
#[derive(Debug)]
struct Host(Arc<AtomicUsize>, Vec<Vec<u8>>);

impl Prepare for Host {
    fn order(&mut self, bytes: usize) {
        self.0.fetch_add(1, Ordering::Relaxed);
        self.1.push(vec![7; bytes]);
    }

    fn ready(&mut self) -> Option<Vec<u8>> {
        self.1.pop()
    }
}

/// Each segment but the first has prepared memory, and none is ordered that the log does not take:
/// not for a full log, and not if a segment is free.
#[test]
fn memory_is_ordered_for_new_segments_alone() {
    let (mut log, orders) = (log(8), Arc::new(AtomicUsize::new(0)));
    log.prepare(Box::new(Host(Arc::clone(&orders), Vec::new())));
    let count = || orders.load(Ordering::Relaxed);
    log.prepare_next(Instant::ZERO);
    for purpose in [Purpose::Write, Purpose::Remove, Purpose::Survive] {
        while log.append(220, purpose).is_ok() {
            log.prepare_next(Instant::ZERO);
        }
    }
    assert_eq!((log.taken(), count()), (8, 7));
    log.free(log.slot(SegmentId(2)).unwrap());
    log.prepare_next(Instant::ZERO);
    assert!(log.append(220, Purpose::Survive).is_ok());
    log.prepare_next(Instant::ZERO);
    assert_eq!((log.taken(), count()), (8, 7));
}

#[test]
fn positions_only_grow() {
    let mut log = log(8);
    let mut last = log.tail();
    for _ in 0..3 {
        fill(&mut log, Purpose::Write);
        assert!(log.tail() > last);
        last = log.tail();
        let first = log.segments().next().unwrap().0;
        let slot = log.slot(first).unwrap();
        log.free(slot);
    }
    assert_eq!(log.last_id, SegmentId(7));
}

#[test]
fn spans_shrink_to_what_is_left() {
    let mut log = log(8);
    fill(&mut log, Purpose::Write);
    let ids = |first, last| Span { first: SegmentId(first), last: SegmentId(last) };
    let none = SegmentId(0);
    assert_eq!(log.narrow(Span::default(), none), Span::default());
    assert_eq!(log.narrow(ids(1, 9), none), ids(1, 5));
    assert_eq!(log.narrow(ids(2, 3), SegmentId(2)), ids(3, 3));
    assert_eq!(log.narrow(ids(2, 2), SegmentId(2)), Span::default());
    log.free(log.slot(SegmentId(2)).unwrap());
    assert_eq!(log.narrow(ids(2, 4), none), ids(3, 4));
    assert_eq!(log.narrow(ids(9, 2), none), Span::default());
    assert_eq!(ids(2, 3).hull(Span::default()), ids(2, 3));
    assert_eq!(Span::default().hull(ids(4, 5)).with(SegmentId(1)), ids(1, 5));
}

#[test]
fn what_is_durable() {
    let mut log = Log::new(8 << 10, 1024, crc32c, true);
    let (first, _) = log.append(200, Purpose::Write).unwrap();
    let after_first = log.tail();
    let (second, _) = log.append(200, Purpose::Write).unwrap();
    assert!(!log.is_durable(first) && !log.is_all_durable());
    log.set_durable(Position { offset: first.offset() as u32, ..after_first });
    assert!(!log.is_durable(first), "what is before it");
    log.set_durable(after_first);
    assert!(log.is_durable(first) && !log.is_durable(second));
    let (moved, _) = log.append(200, Purpose::Survive).unwrap();
    assert!(log.is_durable(moved), "the cleaner moves only what is durable");
    log.set_durable(log.tail());
    assert!(log.is_durable(second) && log.is_all_durable());
    log.set_durable(after_first);
    assert!(log.is_all_durable(), "what is durable stays so");
}

#[test]
fn the_end_of_entries_within_a_length() {
    let mut log = Log::new(8 << 10, 1024, crc32c, true);
    log.open_head().unwrap();
    let from = log.tail().offset;
    for (at, len) in [(from, 200), (from + 200, 100), (from + 300, 40)] {
        let (_, memory) = log.append(len, Purpose::Write).unwrap();
        entry::put_change(memory, (0..(len as u32 - 8) / 8).map(|id| (SegmentId(id), at)));
    }
    let slot = log.slot(SegmentId(1)).unwrap();
    let end = |at, most| log.end_of_entries(slot, from + at, most) - from;
    assert_eq!([end(0, 340), end(0, 9999), end(340, 9)], [340; 3], "all of it");
    assert_eq!([end(0, 339), end(0, 300), end(200, 139)], [300; 3]);
    assert_eq!([end(0, 299), end(0, 200), end(0, 199), end(0, 1)], [200; 4], "the first at least");
}

/// Returns the segments that the digest or change at `at` names.
fn named(log: &Log, id: u32, at: u32) -> Vec<(u32, u32)> {
    let bytes = log.bytes(Location::new(log.slot(SegmentId(id)).unwrap(), at));
    let (Entry::Digest(named) | Entry::Change(named), _) = entry::parse(bytes).unwrap() else {
        panic!("no digest");
    };
    named.segments().map(|(id, len)| (id.0, len)).collect()
}

/// Returns a replicated log with the full head 1, the survivor 2 of 240 bytes, and the head 3. The
/// first head is cleaned.
fn cleaned_log() -> Log {
    let mut log = Log::new(8 << 10, 1024, crc32c, true);
    (0..4).for_each(|_| _ = log.append(200, Purpose::Write).unwrap());
    log.append(200, Purpose::Survive).unwrap();
    log.append(200, Purpose::Write).unwrap();
    log.set_durable(log.tail());
    log.free(log.slot(SegmentId(1)).unwrap());
    log
}

/// The digest names no more of a survivor than all replicas have, and no less than was moved there
/// out of what leaves the log.
#[test]
fn a_digest_names_what_was_moved_to_a_survivor() {
    let mut log = cleaned_log();
    log.append(200, Purpose::Survive).unwrap();
    let slot = log.slot(SegmentId(2)).unwrap();
    log.set_replicated(slot, 40);
    assert!(!log.change_digest(), "not all of what was moved is durable");
    log.set_replicated(slot, 240);
    let at = log.tail().offset;
    assert!(log.change_digest());
    assert_eq!(named(&log, 3, at), [(2, 240), (1, 0)]);
    assert_eq!(log.take_freed(), None);
    log.set_durable(log.tail());
    assert_eq!(log.take_freed(), Some(SegmentId(1)));
}

/// All replicas had a survivor before it was full and closed, so that no report of them follows.
#[test]
fn a_survivor_that_was_replicated_before_it_closed_is_whole() {
    let mut log = cleaned_log();
    (0..3).for_each(|_| _ = log.append(200, Purpose::Survive).unwrap());
    log.set_replicated(log.slot(SegmentId(2)).unwrap(), 840);
    log.append(200, Purpose::Survive).unwrap();
    let at = log.tail().offset;
    assert!(log.change_digest());
    assert_eq!(named(&log, 3, at), [(2, 840), (1, 0)]);
}

/// A survivor whose entries all died leaves the log while no digest names it.
#[test]
fn no_digest_names_a_survivor_that_was_freed() {
    let mut log = Log::new(8 << 10, 1024, crc32c, true);
    log.append(200, Purpose::Survive).unwrap();
    log.append(200, Purpose::Write).unwrap();
    log.set_replicated(log.slot(SegmentId(1)).unwrap(), 240);
    log.begin_side().unwrap();
    log.free(log.slot(SegmentId(1)).unwrap());
    assert!(log.change_digest());
    log.set_durable(log.tail());
    assert_eq!(log.take_freed(), Some(SegmentId(1)));
    // The next change names all survivors up to this one.
    log.append(200, Purpose::Recover).unwrap();
    log.end_side();
    let ([end, ..], at) = (log.survivor_ends(), log.tail());
    log.set_replicated(log.slot(end.segment).unwrap(), end.offset);
    assert!(log.change_digest());
    assert_eq!(named(&log, at.segment.0, at.offset), [(end.segment.0, end.offset)]);
}

/// A recovery closes the survivor that has what was moved out of a segment, which is cleaned later.
#[test]
fn a_segment_stays_until_a_closed_survivor_has_its_entries() {
    let mut log = Log::new(12 << 10, 1024, crc32c, true);
    (0..4).for_each(|_| _ = log.append(200, Purpose::Write).unwrap());
    log.append(200, Purpose::Survive).unwrap();
    log.begin_side().unwrap();
    log.set_durable(log.tail());
    log.free(log.slot(SegmentId(1)).unwrap());
    assert!(!log.change_digest(), "no replica has the survivor");
    log.set_replicated(log.slot(SegmentId(2)).unwrap(), 240);
    let at = log.tail();
    assert!(log.change_digest());
    assert_eq!(named(&log, at.segment.0, at.offset), [(2, 240), (1, 0)]);
}

/// Entries of a recovery and later ones are in segments behind the returned one.
#[test]
fn a_side_log_begins_with_other_segments() {
    let mut log = log(12);
    let id = |log: &Log, at: Location| log.slots()[at.slot()].id;
    let before = log.append(200, Purpose::Write).unwrap().0;
    log.append(200, Purpose::Survive).unwrap();
    let last = log.begin_side().unwrap();
    assert_eq!((id(&log, before), last), (SegmentId(1), SegmentId(2)));
    let aside = log.append(200, Purpose::Recover).unwrap().0;
    let after = log.append(200, Purpose::Write).unwrap().0;
    assert!(id(&log, aside) > last && id(&log, after) > last);
    log.end_side();
    assert!(log.is_side_durable(), "a log without replicas is durable at once");
    assert!(log.live_limit() > 5000, "the segment that was closed early wastes nothing");
    fill(&mut log, Purpose::Recover);
    assert_eq!(log.available(), SURVIVORS + REMOVALS);
    assert_eq!(log.begin_side(), Err(Full::NoSegment));
}

#[test]
fn a_digest_names_what_was_recovered_when_all_replicas_have_it() {
    let mut log = Log::new(12 << 10, 1024, crc32c, true);
    log.append(200, Purpose::Write).unwrap();
    log.begin_side().unwrap();
    let id = SegmentId(log.tail().segment.0 + 1);
    log.append(200, Purpose::Recover).unwrap();
    log.end_side();
    let slot = log.slot(id).unwrap();
    log.set_replicated(slot, 40);
    assert!(!log.change_digest() && !log.is_side_durable());
    log.set_replicated(slot, 240);
    let tail = log.tail();
    assert!(log.change_digest());
    assert!(named(&log, tail.segment.0, tail.offset).contains(&(id.0, 240)));
    assert!(!log.is_side_durable(), "no replica has the change");
    assert!(!log.change_digest(), "one change says it");
    log.set_durable(log.tail());
    assert!(log.is_side_durable());
}

/// The versions of removed objects of another log were in memory alone after its replay. A crash
/// let the next owner give them again. The header of a new head has them.
#[test]
fn a_new_head_has_the_safe_version_of_a_replayed_log() {
    let header = |log: &Log| {
        let head = log.slot(log.tail().segment).unwrap();
        let Some((Entry::Header(header), _)) = entry::parse(log.bytes(Location::new(head, 0)))
        else {
            panic!("a segment begins with its header")
        };
        header.safe_version
    };
    let mut log = Log::new(12 << 10, 1024, crc32c, true);
    log.append(200, Purpose::Write).unwrap();
    log.begin_side().unwrap();
    let before = log.tail().segment;
    log.keep_safe_version().unwrap();
    assert_eq!(log.tail().segment, before, "it has no higher one");
    log.raise_safe_version(Version(14));
    log.keep_safe_version().unwrap();
    assert!(log.tail().segment > before);
    assert_eq!(header(&log), Version(15));
    let mut full = Log::new(12 << 10, 1024, crc32c, true);
    fill(&mut full, Purpose::Recover);
    full.raise_safe_version(Version(14));
    assert_eq!(full.keep_safe_version(), Err(Full::NoSegment));
    let mut alone = self::log(12);
    alone.raise_safe_version(Version(14));
    assert_eq!(alone.keep_safe_version(), Ok(()), "a crash loses all of it");
}
