use super::*;
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
    log.set_durable(after_first);
    assert!(log.is_durable(first) && !log.is_durable(second));
    let (moved, _) = log.append(200, Purpose::Survive).unwrap();
    assert!(log.is_durable(moved), "the cleaner moves only what is durable");
    log.set_durable(log.tail());
    assert!(log.is_durable(second) && log.is_all_durable());
    log.set_durable(after_first);
    assert!(log.is_all_durable(), "what is durable stays so");
}
