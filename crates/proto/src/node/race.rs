//! Chooses the locator by which a client reaches a server: one attempt by each, the best first, and
//! the first session that opens wins. The method is that of RFC 8305 ("Happy Eyeballs"). A session
//! by a better locator may open a little later and still win: a busy server answers its sockets
//! before it looks for new clients over shared memory.
//!
//! ```text
//!  0 ms        250 ms      500 ms
//!  shm ────────────────────────────►   no answer yet: the attempt goes on
//!              udp ──✕ failed: the next attempt begins at once
//!                 tcp ──► open: it wins, and the caller closes the others
//! ```
//! An attempt that fails at once (no socket file, connection refused, no permission, no device)
//! costs no time. Not here: sessions, transports and locators, which the caller has.

use alloc::vec::Vec;

use crate::Instant;
use crate::time::MS;

/// The time in nanoseconds after the start of an attempt at which the race begins the next one
/// beside it: RFC 8305's Connection Attempt Delay.
pub(crate) const ATTEMPT_DELAY_NS: u64 = 250 * MS;

/// The time in nanoseconds for which an open session waits for one by a better locator whose
/// attempt has not failed.
const BETTER_NS: u64 = 50 * MS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt<S> {
    Waiting,
    Opening(S),
    Failed,
}

/// A race: attempts to open a session `S`, one by each candidate. The caller numbers the
/// candidates.
#[derive(Debug)]
pub(crate) struct Race<S> {
    /// The race's candidates and the states of their attempts, in the order of the attempts.
    attempts: Vec<(usize, Attempt<S>)>,
    /// The time at which the race's next attempt begins.
    due: Instant,
    /// The time at which the race ends, since a session is open.
    end: Option<Instant>,
}

impl<S: Copy + PartialEq> Race<S> {
    /// Makes a race of these candidates, the best first. It begins at `now`.
    pub(crate) fn new(now: Instant, candidates: impl IntoIterator<Item = usize>) -> Self {
        let attempts =
            candidates.into_iter().map(|candidate| (candidate, Attempt::Waiting)).collect();
        Self { attempts, due: now, end: None }
    }

    /// The candidate whose attempt has to begin now. Call [`Race::began`] or [`Race::failed`] for
    /// it next.
    pub(crate) fn due(&self, now: Instant) -> Option<usize> {
        self.waiting().filter(|_| self.due <= now)
    }

    /// Records that the candidate's attempt has begun.
    pub(crate) fn began(&mut self, now: Instant, candidate: usize, session: S) {
        self.set(candidate, Attempt::Opening(session));
        self.due = now.after(ATTEMPT_DELAY_NS);
    }

    /// Records that the candidate's attempt could not begin or has failed: the next attempt begins
    /// at once.
    pub(crate) fn failed(&mut self, now: Instant, candidate: usize) {
        self.set(candidate, Attempt::Failed);
        self.due = now;
    }

    /// The attempts of the race in progress, in the order of the candidates. The first that is open
    /// wins.
    pub(crate) fn opening(&self) -> impl Iterator<Item = (usize, S)> {
        self.attempts.iter().filter_map(|&(candidate, attempt)| match attempt {
            Attempt::Opening(session) => Some((candidate, session)),
            _ => None,
        })
    }

    /// True if the session of this candidate, which is open, wins: no better one may still open, or
    /// the time for that is over.
    pub(crate) fn wins(&mut self, now: Instant, candidate: usize) -> bool {
        let better = self.attempts.iter().take_while(|(other, _)| *other != candidate);
        let may_open = better.into_iter().any(|(_, attempt)| *attempt != Attempt::Failed);
        !may_open || *self.end.get_or_insert_with(|| now.after(BETTER_NS)) <= now
    }

    /// True if all attempts of the race have failed.
    pub(crate) fn is_lost(&self) -> bool {
        self.attempts.iter().all(|(_, attempt)| *attempt == Attempt::Failed)
    }

    /// Returns the time at which the race's next attempt begins, if one is left, or at which the
    /// race ends.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.end.or_else(|| self.waiting().map(|_| self.due))
    }

    fn waiting(&self) -> Option<usize> {
        self.attempts
            .iter()
            .find(|(_, attempt)| *attempt == Attempt::Waiting)
            .map(|(candidate, _)| *candidate)
    }

    fn set(&mut self, candidate: usize, to: Attempt<S>) {
        if let Some((_, attempt)) = self.attempts.iter_mut().find(|(c, _)| *c == candidate) {
            *attempt = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::ZERO.after(ms * MS)
    }

    #[test]
    fn a_silent_candidate_is_raced_after_the_delay_and_not_before() {
        let mut race = Race::new(at(0), [0, 1, 2]);
        assert_eq!(race.due(at(0)), Some(0));
        race.began(at(0), 0, 'a');
        assert_eq!((race.due(at(249)), race.deadline()), (None, Some(at(250))));
        assert_eq!(race.due(at(250)), Some(1));
        race.began(at(250), 1, 'b');
        assert_eq!((race.due(at(499)), race.due(at(500))), (None, Some(2)));
        race.began(at(500), 2, 'c');
        assert_eq!((race.due(at(9000)), race.deadline(), race.is_lost()), (None, None, false));
        assert!(race.opening().eq([(0, 'a'), (1, 'b'), (2, 'c')]), "the first goes on");
    }

    #[test]
    fn a_session_by_a_better_locator_wins_if_it_opens_soon() {
        let mut race = Race::new(at(0), [1, 0, 2]);
        race.began(at(0), 1, 'b');
        race.began(at(250), 0, 'a');
        assert!(race.wins(at(260), 1), "there is none better");
        assert!(!race.wins(at(260), 0));
        assert_eq!(race.deadline(), Some(at(310)), "not the start of another attempt");
        assert!(!race.wins(at(309), 0) && race.wins(at(310), 0));
        race.failed(at(270), 1);
        assert!(race.wins(at(270), 0), "the better one has failed");
    }

    #[test]
    fn what_fails_is_passed_over_at_once() {
        let mut race = Race::new(at(7), [2, 0, 1]);
        race.failed(at(7), 2);
        assert_eq!(race.due(at(7)), Some(0));
        race.began(at(7), 0, 'a');
        assert_eq!(race.due(at(20)), None);
        race.failed(at(20), 0);
        assert_eq!(race.due(at(20)), Some(1), "nothing else is in progress");
        race.failed(at(20), 1);
        assert!(race.is_lost() && race.due(at(20)).is_none() && race.deadline().is_none());
        assert!(Race::<char>::new(at(0), []).is_lost(), "no candidates, no winner");
    }
}
