use alloc::vec::Vec;

use super::super::{Completed, Qp};
use super::*;
use crate::{Instant, Rng};

fn completion(id: u64, status: Status) -> Completion {
    let (completed, qp) = (Completed::Recv, Qp(1));
    Completion {
        id,
        status,
        completed,
        len: 0,
        qp,
        immediate: None,
        invalidated: None,
        at: Instant::ZERO,
    }
}

fn good(id: u64) -> Completion {
    completion(id, Status::Success)
}

#[test]
fn completions_come_out_as_they_went_in() {
    let mut cq = CompletionQueue::new(4);
    for id in 0..20 {
        assert_eq!(cq.push(good(2 * id), false), Pushed::Queued);
        assert_eq!(cq.push(good(2 * id + 1), true), Pushed::Queued);
        assert_eq!(
            (cq.poll().map(|c| c.id), cq.poll().map(|c| c.id)),
            (Some(2 * id), Some(2 * id + 1))
        );
        assert_eq!(cq.poll(), None);
    }
}

#[test]
fn an_overflow_is_reported_once_and_stays() {
    let mut cq = CompletionQueue::new(2);
    let _ = cq.arm(false);
    assert_eq!(cq.push(good(1), false), Pushed::Notify);
    assert_eq!(cq.push(good(2), false), Pushed::Queued);
    assert_eq!(cq.push(good(3), false), Pushed::Overflowed);
    assert_eq!(cq.push(good(4), false), Pushed::Lost);
    // Earlier completions can still be polled, and nothing enters behind the gap.
    assert_eq!(cq.poll().map(|c| c.id), Some(1));
    assert_eq!(cq.push(good(5), false), Pushed::Lost);
    assert_eq!(cq.poll().map(|c| c.id), Some(2));
    assert_eq!((cq.poll(), cq.lost()), (None, 3));
}

#[test]
fn arming_wakes_once() {
    let mut cq = CompletionQueue::new(8);
    assert!(!cq.arm(false), "nothing is there");
    assert_eq!(cq.push(good(1), false), Pushed::Notify);
    assert!(!cq.arm(false), "what has woken does not count again");
    assert_eq!(cq.push(good(2), false), Pushed::Notify);
    assert_eq!(cq.push(good(3), true), Pushed::Queued);
    assert!(!cq.arm(true), "what was there before does not count for who waits for solicited ones");
}

#[test]
fn solicited_completions_and_errors_notify_a_queue_armed_for_them() {
    let mut cq = CompletionQueue::new(8);
    let _ = cq.arm(true);
    assert_eq!(cq.push(good(1), false), Pushed::Queued);
    assert_eq!(cq.push(good(2), true), Pushed::Notify);
    let _ = cq.arm(true);
    assert_eq!(cq.push(completion(3, Status::Flushed), false), Pushed::Notify);
    // A request for any completion stays; one for solicited completions can be widened.
    let _ = cq.arm(false);
    let _ = cq.arm(true);
    assert_eq!(cq.push(good(4), false), Pushed::Notify);
    let _ = cq.arm(true);
    let _ = cq.arm(false);
    assert_eq!(cq.push(good(5), false), Pushed::Notify);
}

#[test]
fn depth_changes_as_long_as_nothing_is_lost_by_it() {
    let mut cq = CompletionQueue::new(0);
    assert_eq!(cq.depth(), 1);
    assert_eq!(cq.resize(3), Ok(()));
    for id in 0..3 {
        assert_eq!(cq.push(good(id), false), Pushed::Queued);
    }
    assert_eq!((cq.resize(2), cq.depth()), (Err(PostError::NoRoom), 3));
    cq.poll();
    assert_eq!((cq.resize(2), cq.len()), (Ok(()), 2));
    assert_eq!(cq.push(good(9), false), Pushed::Overflowed);
}

#[test]
fn it_is_busy_while_someone_completes_here() {
    let mut cq = CompletionQueue::new(1);
    assert!(!cq.is_busy());
    cq.add_user();
    cq.add_user();
    cq.remove_user();
    assert!(cq.is_busy());
    cq.remove_user();
    assert!(!cq.is_busy());
}

/// Random pushes, polls and arms agree with a list.
#[test]
fn random_use_matches_a_list() {
    for seed in 0..200 {
        let mut rng = Rng::seeded(seed);
        let depth = 1 + rng.below(6) as u32;
        let (mut cq, mut list) = (CompletionQueue::new(depth), Vec::new());
        let (mut next, mut lost) = (0, 0);
        for _ in 0..200 {
            match rng.below(8) {
                0..=2 => {
                    let pushed = cq.push(good(next), false);
                    if lost == 0 && list.len() < depth as usize {
                        list.push(next);
                        assert!(matches!(pushed, Pushed::Queued | Pushed::Notify));
                    } else {
                        lost += 1;
                        assert_eq!(
                            pushed,
                            if lost == 1 { Pushed::Overflowed } else { Pushed::Lost }
                        );
                    }
                    next += 1;
                }
                3 => {
                    let _ = cq.arm(rng.chance(500_000));
                }
                _ => {
                    let oldest = if list.is_empty() { None } else { Some(list.remove(0)) };
                    assert_eq!(cq.poll().map(|c| c.id), oldest);
                }
            }
            assert_eq!((cq.len(), cq.is_empty(), cq.lost()), (list.len(), list.is_empty(), lost));
        }
    }
}

/// The program perftest arms after its peer has begun to send. Without the immediate notification
/// it would wait forever for the completions before that.
#[test]
fn arming_notifies_of_earlier_completions() {
    let mut cq = CompletionQueue::new(8);
    assert_eq!(cq.push(good(1), false), Pushed::Queued);
    assert!(cq.arm(false) && !cq.arm(false), "once");
    assert_eq!(cq.push(good(2), false), Pushed::Notify);
    assert_eq!(cq.push(good(3), false), Pushed::Queued);
    while cq.poll().is_some() {}
    assert!(!cq.arm(false), "it is polled");
}

/// The program perftest polls once for each event, with room for 16. Without another notification
/// it would wait forever for the completions that remain.
#[test]
fn a_poll_that_leaves_completions_notifies_again() {
    let mut cq = CompletionQueue::new(4);
    assert!(!cq.notify_remaining());
    let _ = cq.push(good(1), false);
    let _ = cq.push(good(2), false);
    assert!(!cq.notify_remaining(), "nobody waits");
    let _ = cq.arm(true);
    assert!(!cq.notify_remaining(), "for solicited ones alone");
    assert!(cq.arm(false) && !cq.arm(false));
    assert!(cq.notify_remaining());
    assert!(!cq.notify_remaining(), "once");
    let _ = cq.arm(false);
    while cq.poll().is_some() {}
    assert!(!cq.notify_remaining(), "nothing is left");
    assert_eq!(cq.push(good(3), false), Pushed::Notify);
}
