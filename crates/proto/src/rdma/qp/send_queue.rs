//! The send queue: a ring of work requests from posting to completion.
//!
//! ```text
//!  front                      at                         back
//!  done or in progress …      being cut into segments    waiting …
//! ```
//!
//! Invariant: requests leave at the front, in order. A Send or a Write is done when the stream has
//! taken its last byte, a Read or an atomic when its response has arrived. A done request waits for
//! those before it.

use alloc::collections::VecDeque;

use crate::rdma::completion::{Completed, Status};
use crate::rdma::work::{SendOp, SendRequest, data_len};

/// Work requests of fewer bytes leave at once: one may be the last that the program posts.
const LONG: u64 = 4 << 10;

/// The most bytes that wait for more posts. Two messages of 64 KB leave together: the kernel's TCP
/// makes fewer segments of both than of one after the other.
const MOST_WAITING: u64 = 64 << 10;

/// The requests in progress from which posts may wait. A program with as many has completions to
/// take, so that it will make another call.
const STREAM: usize = 4;

/// The progress of a work request of the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The work request waits, or some of its segments are framed.
    Waiting,
    /// All segments of the work request are framed and end at this position of the stream.
    Framed(u64),
    /// The work request is sent and waits for its response.
    AwaitingResponse,
    /// The work request is done and has read this many bytes.
    Done(u32),
}

#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) request: SendRequest,
    pub(crate) stage: Stage,
    /// The number of Writes framed up to the end of the work request, itself included.
    writes: u64,
    /// The completion status of the work request if it is at fault.
    fault: Option<Status>,
}

/// The send queue: a ring of work requests.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    ring: VecDeque<Work>,
    /// The number of the work request at the front of the send queue. Numbers rise by one with each
    /// posted request.
    front: u64,
    /// The index in the send queue of the work request to frame next. All earlier work requests are
    /// framed or done.
    at: usize,
    /// The number of the first work request that was posted after a disconnect.
    end: Option<u64>,
    /// True if the work request at `at` has begun.
    pub(crate) begun: bool,
    /// The length in bytes of the work request at `at`.
    pub(crate) total: u32,
    /// The number of bytes of the work request at `at` that are framed.
    pub(crate) done: u32,
    /// True if only the immediate data of the work request at `at` is left to frame.
    pub(crate) immediate_left: bool,
    /// The message number (MSN) of the last message on DDP's queue 0.
    pub(crate) msn: u32,
}

impl SendQueue {
    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(crate) fn push(&mut self, request: SendRequest) {
        self.ring.push_back(Work { request, stage: Stage::Waiting, writes: 0, fault: None });
    }

    /// Closes the send queue: work requests posted from now on are not sent.
    pub(crate) fn close(&mut self) {
        self.end = Some(self.front + self.ring.len() as u64);
    }

    /// True if every work request that is to be sent is done.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ring.is_empty() || self.end.is_some_and(|end| self.front >= end)
    }

    /// The work request to frame next.
    #[inline]
    pub(crate) fn current(&self) -> Option<&SendRequest> {
        if self.end.is_some_and(|end| self.current_number() >= end) {
            return None;
        }
        self.ring.get(self.at).map(|work| &work.request)
    }

    /// True if a work request waits to be framed, even if a fence or a limit holds it back.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.current().is_some()
    }

    /// True if the work requests that are not framed may wait for more of their kind: they are long
    /// but few, and the program has others in progress. `uncollected` is the number of completions
    /// that the program has not taken.
    #[inline]
    pub(crate) fn may_wait_for_posts(&self, uncollected: usize) -> bool {
        if self.begun || self.end.is_some() || self.at + uncollected < STREAM {
            return false;
        }
        let mut waiting = 0;
        for work in self.ring.range(self.at..) {
            let carries = matches!(work.request.op, SendOp::Send | SendOp::Write(_));
            let len = data_len(&work.request.data);
            waiting += len;
            if !carries || len < LONG || waiting > MOST_WAITING {
                return false;
            }
        }
        waiting > 0
    }

    /// The number of the work request to frame next.
    pub(crate) const fn current_number(&self) -> u64 {
        self.front + self.at as u64
    }

    /// Marks the current work request as framed and moves on to the next. `writes` is the number of
    /// Writes framed so far.
    #[inline]
    pub(crate) fn advance(&mut self, stage: Stage, writes: u64) {
        if let Some(work) = self.ring.get_mut(self.at) {
            (work.stage, work.writes) = (stage, writes);
            self.at += 1;
        }
        self.begun = false;
        self.immediate_left = false;
        (self.total, self.done) = (0, 0);
    }

    /// Returns the work request with this number if it is in the ring.
    pub(crate) fn work(&mut self, number: u64) -> Option<&mut Work> {
        self.ring.get_mut(usize::try_from(number.checked_sub(self.front)?).ok()?)
    }

    /// Sets the completion status of the work request that is at fault.
    pub(crate) fn set_fault(&mut self, number: u64, status: Status) {
        if let Some(work) = self.work(number) {
            work.fault = Some(status);
        }
    }

    /// The number of the first work request that matches `is` and of which the stream has not taken
    /// all bytes.
    pub(crate) fn under_way(&self, taken: u64, is: impl Fn(&SendRequest) -> bool) -> Option<u64> {
        let sent = |work: &Work| match work.stage {
            Stage::Framed(position) => position > taken,
            Stage::Waiting => self.begun,
            _ => false,
        };
        let mut known = self.ring.iter().take(self.at + 1);
        let at = known.position(|work| sent(work) && is(&work.request))?;
        Some(self.front + at as u64)
    }

    /// The number of the `nth` framed Write if it is in the ring. The last one may be framed in
    /// part.
    pub(crate) fn find_write(&self, nth: u64, sent: u64) -> Option<u64> {
        let is = |work: &Work| {
            let writes = matches!(work.request.op, SendOp::Write(_) | SendOp::WriteImmediate(..));
            writes && nth == if work.stage == Stage::Waiting { sent + 1 } else { work.writes }
        };
        let begun = self.at + usize::from(self.begun);
        self.ring.iter().take(begun).position(is).map(|at| self.front + at as u64)
    }

    /// Returns the front work request and its read bytes if it is done. A signaled request also
    /// waits until all Writes up to it are acknowledged.
    #[inline]
    pub(crate) fn front_done(
        &self,
        taken: u64,
        acked: u64,
        signal_all: bool,
    ) -> Option<(&SendRequest, u32)> {
        let work = self.ring.front()?;
        if work.writes > acked && (signal_all || work.request.flags.signaled) {
            return None;
        }
        match work.stage {
            Stage::Done(len) => Some((&work.request, len)),
            Stage::Framed(position) if position <= taken => Some((&work.request, 0)),
            _ => None,
        }
    }

    /// Drops the front work request in place, since a request is large.
    #[inline]
    pub(crate) fn drop_front(&mut self) {
        if self.ring.pop_front().is_some() {
            self.front += 1;
            self.at = self.at.saturating_sub(1);
        }
    }

    /// Takes the front work request of a failed queue pair, to complete it.
    pub(crate) fn flush_one(&mut self) -> Option<(u64, Completed, Status)> {
        let work = self.ring.pop_front()?;
        self.front += 1;
        self.at = 0;
        self.begun = false;
        Some((
            work.request.id,
            Completed::of(&work.request.op),
            work.fault.unwrap_or(Status::Flushed),
        ))
    }
}
