use sprat_proto::wire::checksum::crc32c;

use alloc::vec::Vec;

use super::*;
use crate::objects::log::Purpose;

/// Makes a log of eight segments, of which five are full.
fn full() -> Log {
    let mut log = Log::new(8 * 1024, 1024, crc32c, false);
    while let Ok((_, memory)) = log.append(200, Purpose::Write) {
        memory[..5].copy_from_slice(b"value");
    }
    log
}

/// Opens segments of the log until none is left. Returns the number of opened segments.
fn open_all(log: &mut Log) -> usize {
    (0..).take_while(|_| log.append(log.longest_entry(), Purpose::Survive).is_ok()).count()
}

fn at(slot: u32) -> Location {
    Location::new(slot, crate::objects::entry::HEADER as u32)
}

/// Readers that never take their replies occupy memory, but no room that mutations could write to.
#[test]
fn a_pinned_segments_memory_is_not_used_again_and_takes_no_room() {
    let mut log = full();
    let slice = log.lend(at(0), 5).unwrap();
    assert_eq!(log.lend(at(0), 5), Some(slice));
    let free = log.available();
    log.free(0);
    assert_eq!((log.available(), log.segments().count()), (free + 1, 4));
    assert_eq!(
        open_all(&mut log),
        free as usize + 1,
        "all that the log may have, and not one more"
    );
    assert_eq!(log.lent_bytes(slice), b"value");
    log.give_back(slice);
    assert_eq!(log.lent_bytes(slice), b"value");
    log.give_back(slice);
    assert_eq!(log.lent_bytes(slice), b"", "the log has all its memory, so this one goes back");
    assert_eq!((log.pinned(), log.taken(), log.available()), (0, 8, 0));
    log.free(1);
    assert_eq!((log.available(), log.spare()), (1, 1));
    assert_eq!(open_all(&mut log), 1);
}

#[test]
fn what_is_lent_in_all_is_limited() {
    let mut log = full();
    let pinned = log.lend(at(0), 5).unwrap();
    assert_eq!(pinned.segment, 0);
    let copies: Vec<Slice> = core::iter::from_fn(|| log.lend(at(1), 200)).collect();
    assert_eq!(
        (copies.len(), log.pinned(), log.copied_bytes()),
        (5, 1, 1000),
        "one segment and one segment's bytes"
    );
    assert!(log.lend(at(0), 200).is_some(), "a segment that is pinned may be lent again");
    log.free(1);
    open_all(&mut log);
    for &copy in &copies {
        assert_eq!(&log.lent_bytes(copy)[..5], b"value");
        log.give_back(copy);
        log.give_back(copy);
    }
    assert_eq!(log.copied_bytes(), 0);
    assert!(log.lend(at(2), 200).is_some());
}

#[test]
fn what_was_never_lent_cannot_be_given_back() {
    let mut log = full();
    for segment in [3, 99, COPY, COPY | 7, u32::MAX] {
        let slice = Slice { segment, offset: 1020, len: 5 };
        log.give_back(slice);
        assert_eq!(log.lent_bytes(slice), b"");
    }
    assert_eq!((log.pinned(), log.available(), log.copied_bytes()), (0, 3, 0));
}
