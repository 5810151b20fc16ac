//! The send queue: a ring of work requests from posting to completion.
//!
//! ```text
//!  front                      at                         back
//!  done or under way …        being cut into segments    waiting …
//! ```
//!
//! Always: requests leave at the front, in order. A Send or a Write is done when the stream took its last byte; a Read or
//! an atomic when its answer is there; what is done behind one that is not waits.

use alloc::collections::VecDeque;

use crate::rdma::completion::{Completed, Status};
use crate::rdma::work::{SendOp, SendRequest};

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// It waits, or is being sent.
    Waiting,
    /// All its bytes are before this position of the stream.
    Framed(u64),
    /// It waits for its answer.
    OutstandingRequest,
    /// It is done, and so many bytes were read.
    Done(u32),
}

#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) request: SendRequest,
    pub(crate) stage: Stage,
    /// Writes that were framed up to its end, itself among them.
    writes: u64,
    /// Why it failed.
    fault: Option<Status>,
}

/// See the file.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    ring: VecDeque<Work>,
    /// The front's number; numbers rise by one for each request posted.
    front: u64,
    /// How many from the front on were sent (or done) wholly.
    at: usize,
    /// Requests from this number on were posted after the connection's end was asked for.
    end: Option<u64>,
    /// Of the request at `at`: begun,
    pub(crate) begun: bool,
    /// its bytes,
    pub(crate) total: u32,
    /// those sent,
    pub(crate) done: u32,
    /// and whether only its immediate data is left.
    pub(crate) immediate_left: bool,
    /// The number of the last message on queue 0.
    pub(crate) msn: u32,
}

impl SendQueue {
    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(crate) fn push(&mut self, request: SendRequest) {
        self.ring.push_back(Work { request, stage: Stage::Waiting, writes: 0, fault: None });
    }

    /// What is posted from now on is not sent.
    pub(crate) fn close(&mut self) {
        self.end = Some(self.front + self.ring.len() as u64);
    }

    /// All that is to be sent is done.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ring.is_empty() || self.end.is_some_and(|end| self.front >= end)
    }

    /// The request whose turn it is.
    #[inline]
    pub(crate) fn current(&self) -> Option<&SendRequest> {
        if self.end.is_some_and(|end| self.current_number() >= end) {
            return None;
        }
        self.ring.get(self.at).map(|work| &work.request)
    }

    /// Something waits to be sent, be it allowed to or not.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.current().is_some()
    }

    /// The number of the request whose turn it is.
    pub(crate) const fn current_number(&self) -> u64 {
        self.front + self.at as u64
    }

    /// The request whose turn it is was sent wholly, and so many Writes up to it; the next one follows.
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

    /// The request with this number, if it is still in the ring.
    pub(crate) fn work(&mut self, number: u64) -> Option<&mut Work> {
        self.ring.get_mut(usize::try_from(number.checked_sub(self.front)?).ok()?)
    }

    /// Marks the request that is at fault.
    pub(crate) fn blame(&mut self, number: u64, status: Status) {
        if let Some(work) = self.work(number) {
            work.fault = Some(status);
        }
    }

    /// The first that is under way, not wholly taken by the stream, and sends what `is` says.
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

    /// The `nth` Write that was sent, the last of them perhaps in part, if it is still in the ring.
    pub(crate) fn find_write(&self, nth: u64, sent: u64) -> Option<u64> {
        let is = |work: &Work| {
            let writes = matches!(work.request.op, SendOp::Write(_) | SendOp::WriteImmediate(..));
            writes && nth == if work.stage == Stage::Waiting { sent + 1 } else { work.writes }
        };
        let begun = self.at + usize::from(self.begun);
        self.ring.iter().take(begun).position(is).map(|at| self.front + at as u64)
    }

    /// The front, if it is done: its request, and the bytes that were read. If it is signalled, all Writes up to it have to
    /// be placed.
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

    /// Drops the front, where it lies: a request is large.
    #[inline]
    pub(crate) fn drop_front(&mut self) {
        if self.ring.pop_front().is_some() {
            self.front += 1;
            self.at = self.at.saturating_sub(1);
        }
    }

    /// Takes the front as the queue pair has failed.
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
