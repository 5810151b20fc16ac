//! A completion queue: bounded, armed for one event at a time.
//!
//! ```text
//!  push ─► [oldest … newest] ─► poll         arm ─► what was not told yet, the next push that counts,
//!                                                   or a poll that leaves some: wakes, and disarms
//! ```
//!
//! Always: completions come out in the order they went in, each once. One that finds no room is lost, and the queue stays
//! overflowed: that is an error of this queue and of the queue pairs that complete here, never of others (RFC 5040 section
//! 8.1.1). Not here: who completes here, except that the queue cannot go while they do.

#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;

use crate::rdma::completion::{Completion, Status};
use crate::rdma::error::PostError;
use crate::rdma::ids::Qp;

/// What a program waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    /// A completion that the peer solicited, or one that did not end well.
    Solicited,
    /// Any completion.
    Next,
}

/// What became of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Pushed {
    /// It is in the queue.
    UnexpectedMessage,
    /// It is in the queue, and the program waits for it.
    Wakes,
    /// It is lost, the first of this queue: the queue is in error now.
    Overflows,
    /// It is lost like others before it.
    Lost,
}

/// See the file.
#[derive(Debug)]
pub struct CompletionQueue {
    entries: VecDeque<Completion>,
    depth: usize,
    armed: Armed,
    /// Something was pushed of which nobody was woken.
    untold: bool,
    lost: u64,
    users: u32,
}

impl CompletionQueue {
    /// An empty queue for `depth` completions, at least 1. It takes memory as it fills.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        let depth = depth.max(1) as usize;
        Self { entries: VecDeque::new(), depth, armed: Armed::No, untold: false, lost: 0, users: 0 }
    }

    /// Puts a completion; `solicited`: it is of a receive whose message asked for an event.
    #[inline]
    pub fn push(&mut self, completion: Completion, solicited: bool) -> Pushed {
        if self.lost > 0 || self.entries.len() >= self.depth {
            self.lost += 1;
            return if self.lost == 1 { Pushed::Overflows } else { Pushed::Lost };
        }
        let counts = match self.armed {
            Armed::No => false,
            Armed::Solicited => solicited || completion.status != Status::Success,
            Armed::Next => true,
        };
        self.entries.push_back(completion);
        self.untold = !counts;
        if !counts {
            return Pushed::UnexpectedMessage;
        }
        self.armed = Armed::No;
        Pushed::Wakes
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        self.entries.pop_front()
    }

    /// The oldest completion.
    #[inline]
    #[must_use]
    pub fn front(&self) -> Option<&Completion> {
        self.entries.front()
    }

    /// Whether a success of one queue pair waits here.
    #[must_use]
    pub fn has_success(&self, qp: Qp) -> bool {
        self.entries
            .iter()
            .any(|completion| completion.qp == qp && completion.status == Status::Success)
    }

    /// Takes out what is of one queue pair, which begins anew or has gone.
    pub fn forget(&mut self, qp: Qp) {
        self.entries.retain(|completion| completion.qp != qp);
    }

    /// Asks to be woken once, by the next completion that is pushed from now on. With `solicited_only` only solicited ones and
    /// errors count, and those in the queue do not, so poll again afterwards; who asked for any keeps that.
    ///
    /// True if who asks for any is to be woken at once, and is not armed: something is in the queue already that was pushed
    /// behind the last one that woke. Hardware does so, and programs rely on it that arm when their peer has begun to send.
    pub fn arm(&mut self, solicited_only: bool) -> bool {
        if !solicited_only {
            let at_once = self.untold && !self.entries.is_empty();
            self.untold = false;
            self.armed = if at_once { Armed::No } else { Armed::Next };
            return at_once;
        }
        if self.armed == Armed::No {
            self.armed = Armed::Solicited;
        }
        false
    }

    /// The program has polled as many as it had room for. True if it has left some and waits for any: it is to be woken now, and
    /// is no longer armed. Programs that poll once for each event rely on hardware that does so.
    #[inline]
    pub fn notify_remaining(&mut self) -> bool {
        let wakes = self.armed == Armed::Next && !self.entries.is_empty();
        if wakes {
            self.armed = Armed::No;
            self.untold = false;
        }
        wakes
    }

    /// Completions in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nothing is in the queue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Most completions in the queue.
    #[must_use]
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// How many completions were lost; the queue is in error if any was.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Gives the queue another depth, at least 1.
    ///
    /// # Errors
    /// [`PostError::NoRoom`] if more completions than that are in it.
    pub fn resize(&mut self, depth: u32) -> Result<(), PostError> {
        let depth = depth.max(1) as usize;
        if self.entries.len() > depth {
            return Err(PostError::NoRoom);
        }
        self.depth = depth;
        Ok(())
    }

    /// A queue pair completes here from now on (once for each of its queues).
    pub fn hold(&mut self) {
        self.users += 1;
    }

    /// What [`Self::hold`] has counted is gone.
    pub fn release(&mut self) {
        self.users = self.users.saturating_sub(1);
    }

    /// Someone completes here: the queue must not go.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.users > 0
    }
}
