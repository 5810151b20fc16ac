//! A completion queue: bounded, and armed for one notification at a time.
//!
//! ```text
//!  push ─► [oldest … newest] ─► poll
//!  arm  ─► notified once: by the next push that counts, by a completion that was pushed before and
//!          not notified, or by a poll that leaves completions
//! ```
//!
//! Invariant: completions come out in the order they went in, each once. A completion that finds no
//! room is lost, and the queue stays in overflow. An overflow is an error of this queue and of the
//! queue pairs that complete here, and of no other (RFC 5040 section 8.1.1).
//!
//! Not here: the queue pairs that complete here; the queue only counts them.

#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;

use crate::rdma::completion::{Completion, Status};
use crate::rdma::error::PostError;
use crate::rdma::ids::Qp;

/// The kind of completion for which a program has armed a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    /// The program waits for a completion that the peer solicited, or for a failure.
    Solicited,
    /// The program waits for any completion.
    Next,
}

/// The result of a completion's push to its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Pushed {
    /// The completion is in its queue, and the program need not be notified.
    Queued,
    /// The completion is in its queue, and the program, which has armed the queue, must be
    /// notified.
    Notify,
    /// The completion found no room and is the first that its queue has lost. The queue is in error
    /// from now on.
    Overflowed,
    /// The completion found no room and is lost, as others before it.
    Lost,
}

/// A bounded queue of completions.
#[derive(Debug)]
pub struct CompletionQueue {
    entries: VecDeque<Completion>,
    depth: usize,
    armed: Armed,
    /// True if a completion was pushed after the last notification of the program.
    unnotified: bool,
    lost: u64,
    users: u32,
}

impl CompletionQueue {
    /// Creates an empty queue for `depth` completions, at least 1. The queue allocates as it fills.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        let depth = depth.max(1) as usize;
        Self {
            entries: VecDeque::new(),
            depth,
            armed: Armed::No,
            unnotified: false,
            lost: 0,
            users: 0,
        }
    }

    /// Pushes a completion. `solicited` is true for a receive whose message requested an event.
    #[inline]
    pub fn push(&mut self, completion: Completion, solicited: bool) -> Pushed {
        if self.lost > 0 || self.entries.len() >= self.depth {
            self.lost += 1;
            return if self.lost == 1 { Pushed::Overflowed } else { Pushed::Lost };
        }
        let counts = match self.armed {
            Armed::No => false,
            Armed::Solicited => solicited || completion.status != Status::Success,
            Armed::Next => true,
        };
        self.entries.push_back(completion);
        self.unnotified = !counts;
        if !counts {
            return Pushed::Queued;
        }
        self.armed = Armed::No;
        Pushed::Notify
    }

    /// Takes the oldest completion of the queue.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        self.entries.pop_front()
    }

    /// Returns the oldest completion of the queue and leaves it there.
    #[inline]
    #[must_use]
    pub fn front(&self) -> Option<&Completion> {
        self.entries.front()
    }

    /// True if the queue has a successful completion of this queue pair.
    #[must_use]
    pub fn has_success(&self, qp: Qp) -> bool {
        self.entries
            .iter()
            .any(|completion| completion.qp == qp && completion.status == Status::Success)
    }

    /// Removes the queue's completions of a queue pair that was reset or destroyed.
    pub fn remove_of(&mut self, qp: Qp) {
        self.entries.retain(|completion| completion.qp != qp);
    }

    /// Requests one notification, for the next completion that is pushed. With `solicited_only`
    /// only solicited completions and failures count, and those already in the queue do not, so
    /// poll again afterwards. `solicited_only` does not weaken an earlier request for any
    /// completion.
    ///
    /// Returns true if the program requests any completion and must be notified at once: a
    /// completion that was pushed after the last notification is already in the queue. The queue is
    /// then not armed. Hardware behaves like this, and programs that arm after their peer has begun
    /// to send rely on it.
    pub fn arm(&mut self, solicited_only: bool) -> bool {
        if !solicited_only {
            let at_once = self.unnotified && !self.entries.is_empty();
            self.unnotified = false;
            self.armed = if at_once { Armed::No } else { Armed::Next };
            return at_once;
        }
        if self.armed == Armed::No {
            self.armed = Armed::Solicited;
        }
        false
    }

    /// Reports that the program polled as many completions as it had room for. Returns true if
    /// completions remain and the queue is armed for any: the program must be notified now, and the
    /// queue is no longer armed. Programs that poll once for each event rely on hardware that does
    /// this.
    #[inline]
    pub fn notify_remaining(&mut self) -> bool {
        let wakes = self.armed == Armed::Next && !self.entries.is_empty();
        if wakes {
            self.armed = Armed::No;
            self.unnotified = false;
        }
        wakes
    }

    /// The number of completions in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if the queue has no completion.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The most completions that the queue holds.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// The number of completions that this queue lost. The queue is in error if it is not 0.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Sets the number of completions that the queue can hold, at least 1.
    ///
    /// # Errors
    /// [`PostError::NoRoom`] if the queue has more completions than that.
    pub fn resize(&mut self, depth: u32) -> Result<(), PostError> {
        let depth = depth.max(1) as usize;
        if self.entries.len() > depth {
            return Err(PostError::NoRoom);
        }
        self.depth = depth;
        Ok(())
    }

    /// Counts one more work queue that completes on this completion queue.
    pub fn add_user(&mut self) {
        self.users += 1;
    }

    /// Counts one work queue less that completes on this completion queue.
    pub fn remove_user(&mut self) {
        self.users = self.users.saturating_sub(1);
    }

    /// True if a queue pair completes on this completion queue. It must then not be destroyed.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.users > 0
    }
}
