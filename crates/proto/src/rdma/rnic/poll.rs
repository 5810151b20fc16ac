//! Deferred completions of Writes. If the peer does not acknowledge Writes, the engine withholds a
//! Write's completion for a moment. A program that polls for it makes progress meanwhile, and so
//! the engine receives the peer's answer. A program that polls memory for the answer makes no
//! progress.
//!
//! ```text
//!   a Write is done ─► deferred ─┬─ the peer sends a segment ─► completes, a hit
//!                                └─ the deferral expires ─────► completes, a miss
//!   after some misses in a row the engine defers only now and then
//! ```
//!
//! Invariant: the engine defers only the completion of a Write that is alone in its queue, with no
//! other work of its queue pair in progress, and only in polled queues. No action of the peer tells
//! the program when a Write is done, so a program cannot see that the completion was late.

use crate::Instant;
use crate::rdma::completion::{Completed, Completion, Status};
use crate::rdma::cq::CompletionQueue;
use crate::rdma::ids::Cq;
use crate::rdma::options::QpState;
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::deferred::{DEFER_NS, Deferral};
use crate::rdma::rnic::Rnic;

/// The result of polling a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// The poll took the oldest completion.
    Done(Completion),
    /// The poll took the oldest completion. It was deferred, and the peer sent nothing meanwhile.
    Expired(Completion),
    /// The completion queue has no completion, or only a deferred one.
    Nothing,
}

impl Rnic {
    /// Takes the oldest completion of a completion queue unless it is deferred. Calls `now` only if
    /// a deferral depends on it.
    #[inline]
    pub fn poll_deferring(&mut self, cq: Cq, now: impl FnOnce() -> Instant) -> Polled {
        let Some(queue) = self.shared.cq(cq) else { return Polled::Nothing };
        let Some(front) = queue.front().copied() else { return Polled::Nothing };
        let may_be_held = front.completed == Completed::Write && front.status == Status::Success;
        let mut misses = false;
        if may_be_held
            && queue.len() == 1
            && let Some(qp) = self.qps.get_mut(front.qp.0)
        {
            match qp.holds(&front, now) {
                Some(true) => return Polled::Nothing,
                Some(false) => misses = true,
                None => {}
            }
        }
        match self.shared.cq(cq).and_then(CompletionQueue::poll) {
            Some(completion) if misses => Polled::Expired(completion),
            Some(completion) => Polled::Done(completion),
            None => Polled::Nothing,
        }
    }
}

impl QueuePair {
    /// Decides on a completion at the front of its queue: true to defer it, false if its deferral
    /// has expired, and `None` to complete it without deferral.
    fn holds(&mut self, front: &Completion, now: impl FnOnce() -> Instant) -> Option<bool> {
        if self.state != QpState::Ready
            || self.send.len() > 0
            || self.iwarp.acks.peer_acknowledges()
        {
            return None;
        }
        if self.deferral.last_received > front.at {
            self.deferral =
                Deferral { last_received: self.deferral.last_received, ..Deferral::default() };
            return None;
        }
        if !self.deferral.should_defer() {
            self.deferral.skipped += 1;
            return None;
        }
        if now().since(front.at) < DEFER_NS {
            return Some(true);
        }
        self.deferral.misses = self.deferral.misses.saturating_add(1);
        self.deferral.skipped = 0;
        Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::qp::deferred::{MISSES, RETRY_EVERY};
    use crate::rdma::tests::{Pair, Setup};
    use crate::rdma::{Remote, SendOp, Stag};
    use crate::time::US;

    /// Two engines that write to each other, and the regions they write to.
    struct AnswerLoop {
        pair: Pair,
        own: Stag,
        theirs: Stag,
    }

    impl AnswerLoop {
        fn new() -> Self {
            let mut pair = Pair::connected(&Setup::default());
            let (own, theirs) =
                (pair.a.region([1; 64].to_vec(), 0), pair.b.region([2; 64].to_vec(), 0));
            Self { pair, own, theirs }
        }

        fn write(&mut self, id: u64) {
            self.pair.wait(US);
            self.pair.a.post(
                id,
                SendOp::Write(Remote { stag: self.theirs, addr: 0 }),
                &[(self.own, 0, 8)],
            );
            self.pair.run();
        }

        fn answer(&mut self) {
            self.pair.wait(US);
            self.pair.b.post(
                0,
                SendOp::Write(Remote { stag: self.own, addr: 8 }),
                &[(self.theirs, 0, 8)],
            );
            self.pair.run();
        }

        fn poll(&mut self) -> Polled {
            let now = self.pair.now;
            self.pair.a.rnic.poll_deferring(self.pair.a.cq, || now)
        }
    }

    #[test]
    fn a_write_is_deferred_until_the_peer_answers() {
        let mut game = AnswerLoop::new();
        for id in 0..1000 {
            game.write(id);
            assert_eq!(game.poll(), Polled::Nothing);
            game.answer();
            assert!(matches!(game.poll(), Polled::Done(c) if c.id == id));
            assert_eq!(game.poll(), Polled::Nothing);
        }
    }

    #[test]
    fn after_misses_writes_are_deferred_rarely() {
        let mut game = AnswerLoop::new();
        let mut held = 0;
        for id in 0..260 {
            game.write(id);
            if game.poll() == Polled::Nothing {
                held += 1;
                game.pair.wait(DEFER_NS - 1);
                assert_eq!(game.poll(), Polled::Nothing);
                game.pair.wait(1);
                assert!(matches!(game.poll(), Polled::Expired(c) if c.id == id));
            }
        }
        assert_eq!(held, u64::from(MISSES) + 256 / (u64::from(RETRY_EVERY) + 1), "of 260");
        // An answer makes the engine defer again.
        game.answer();
        game.write(1);
        assert!(matches!(game.poll(), Polled::Done(_)), "not yet known");
        game.answer();
        for id in 1000..1100 {
            game.write(id);
            let first = game.poll();
            game.answer();
            if first == Polled::Nothing {
                assert!(matches!(game.poll(), Polled::Done(_)));
            }
        }
        game.write(1);
        assert_eq!(game.poll(), Polled::Nothing);
    }

    #[test]
    fn no_other_completion_is_deferred() {
        let mut game = AnswerLoop::new();
        // The engine defers no completion that is not alone, is not of a Write, or whose queue pair
        // failed.
        game.write(1);
        game.write(2);
        assert!(matches!(game.poll(), Polled::Done(c) if c.id == 1));
        game.pair.wait(DEFER_NS);
        assert!(matches!(game.poll(), Polled::Expired(c) if c.id == 2));
        let from = Remote { stag: game.theirs, addr: 0 };
        game.pair.a.post(3, SendOp::Read(from), &[(game.own, 0, 8)]);
        game.pair.run();
        assert!(matches!(game.poll(), Polled::Done(c) if c.id == 3));
        game.write(4);
        assert_eq!(game.poll(), Polled::Nothing);
        let (now, qp) = (game.pair.now, game.pair.a.qp);
        game.pair.a.rnic.fail_qp(now, qp).unwrap();
        assert!(matches!(game.poll(), Polled::Done(c) if c.id == 4));
        assert_eq!(game.poll(), Polled::Nothing);
    }
}
