//! Own Reads and atomics that wait for their answers, oldest first; and the answers that come.
//!
//! Always: never more than `limit` at once (ORD), but for the Read that opens a peer-to-peer connection; an answer belongs to
//! the oldest, and what does not fit it ends the stream.

use alloc::collections::VecDeque;

use crate::rdma::iwarp::rx::Arrival;
use crate::rdma::qp::ranges::Ranges;
use crate::rdma::qp::send_queue::Stage;
use crate::rdma::qp::{Fault, QueuePair};
use crate::rdma::rnic::Shared;
use crate::rdma::{Memory, SendOp, Sge, Span, Status};
use crate::wire::rdmap::{AtomicResponse, Cause};

/// What was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    /// With this request identifier.
    Atomic(u32),
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Of the work request; none for the frame that opens a connection.
    number: Option<u64>,
    sink: Sge,
    pub(crate) kind: Kind,
    got: Ranges,
    /// The last segment has come.
    ended: bool,
    /// Own Writes before it.
    writes: u64,
}

impl Asked {
    pub(crate) fn new(number: Option<u64>, sink: Sge, kind: Kind, writes: u64) -> Self {
        Self { number, sink, kind, got: Ranges::default(), ended: false, writes }
    }
}

/// See the file.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    queue: VecDeque<Asked>,
    /// ORD.
    pub(crate) limit: u16,
    /// Of the last one sent.
    msn: u32,
    /// Atomic Responses that came.
    atomic_msn: u32,
    id: u32,
}

impl Requests {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() >= usize::from(self.limit)
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    pub(crate) fn push(&mut self, asked: Asked) {
        self.queue.push_back(asked);
    }

    pub(crate) fn next_msn(&mut self) -> u32 {
        self.msn = self.msn.wrapping_add(1);
        self.msn
    }

    pub(crate) fn next_id(&mut self) -> u32 {
        self.id = self.id.wrapping_add(1);
        self.id
    }

    /// The work request of the Request with this number and, if it is a Read, this sink. Linux's siw puts something else
    /// where the number should be: then the sink alone tells.
    pub(crate) fn find(&self, msn: Option<u32>, sink: Option<(u32, u64)>) -> Option<u64> {
        let numbered = msn.and_then(|msn| {
            let back = self.msn.wrapping_sub(msn) as usize;
            self.queue.get(self.queue.len().checked_sub(back.checked_add(1)?)?)
        });
        let asked = match sink {
            None => numbered,
            Some((stag, to)) => {
                let covers = |asked: &&Asked| {
                    let from = to.wrapping_sub(asked.sink.addr);
                    asked.sink.stag.0 == stag && from < u64::from(asked.sink.len.max(1))
                };
                numbered.filter(covers).or_else(|| self.queue.iter().find(covers))
            }
        };
        asked.and_then(|asked| asked.number)
    }

    /// True if this is the number of the Atomic Response that is due.
    pub(crate) const fn atomic_response_due(&mut self, msn: u32) -> bool {
        let due = self.atomic_msn.wrapping_add(1) == msn;
        if due {
            self.atomic_msn = msn;
        }
        due
    }

    /// The oldest work request that waits.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.queue.iter().find_map(|asked| asked.number)
    }
}

impl QueuePair {
    /// Where the `len` octets of a Read Response go that says `stag` and `to`.
    pub(crate) fn response_sink(
        &mut self,
        stag: u32,
        to: u64,
        len: u32,
        shared: &Shared,
    ) -> Result<Option<Span>, Cause> {
        let asked = self.requests.queue.front().filter(|asked| asked.kind == Kind::Read);
        let asked = asked.ok_or(Cause::OPCODE)?;
        if asked.sink.stag.0 != stag {
            return Err(Cause::TAGGED_STAG);
        }
        let from = to.wrapping_sub(asked.sink.addr);
        if from.checked_add(u64::from(len)).is_none_or(|end| end > u64::from(asked.sink.len)) {
            return Err(Cause::TAGGED_BOUNDS);
        }
        if len == 0 {
            return Ok(None);
        }
        let number = asked.number;
        match shared.mr.local(self.options.pd, Sge { stag: asked.sink.stag, addr: to, len }, true) {
            Ok(span) => Ok(Some(span)),
            Err(_) => {
                self.blame_request(number, Status::LocalProtection);
                Err(Cause::LOCAL)
            }
        }
    }

    fn blame_request(&mut self, number: Option<u64>, status: Status) {
        if let Some(number) = number {
            self.send.blame(number, status);
        }
    }

    /// The memory of the oldest request is gone.
    pub(crate) fn blame_oldest(&mut self) {
        let number = self.requests.oldest();
        self.blame_request(number, Status::LocalProtection);
    }

    /// A segment of a Read Response was placed.
    pub(crate) fn response_placed(
        &mut self,
        to: u64,
        len: u32,
        last: bool,
        shared: &mut Shared,
    ) -> Result<(), Cause> {
        let Some(asked) = self.requests.queue.front_mut() else { return Ok(()) };
        let from = to.wrapping_sub(asked.sink.addr) as u32;
        if !asked.got.add(from, from + len) {
            return Err(Cause::OPERATION);
        }
        if last && from + len != asked.sink.len {
            return Err(Cause::OPERATION);
        }
        asked.ended |= last;
        let total = asked.sink.len;
        if asked.ended && asked.got.complete(total) {
            return self.answered(total, shared);
        }
        Ok(())
    }

    /// An Atomic Response came.
    pub(crate) fn atomic_response<M: Memory>(
        &mut self,
        response: AtomicResponse,
        shared: &mut Shared,
        memory: &mut M,
    ) -> Result<(), Cause> {
        let Some(&Asked { kind: Kind::Atomic(id), sink, .. }) = self.requests.queue.front() else {
            return Err(Cause::OPCODE);
        };
        if id != response.id {
            return Err(Cause::OPERATION);
        }
        let span = shared.mr.local(self.options.pd, sink, true).ok();
        #[expect(clippy::host_endian_bytes, reason = "the program reads it as a number of its own")]
        let was = response.was.to_ne_bytes();
        if span.is_none_or(|span| memory.write(span, &was).is_err()) {
            self.blame_oldest();
            return Err(Cause::LOCAL);
        }
        self.answered(8, shared)
    }

    /// The oldest request has its answer.
    fn answered(&mut self, len: u32, shared: &mut Shared) -> Result<(), Cause> {
        let Some(asked) = self.requests.queue.pop_front() else { return Ok(()) };
        // A Read is done behind all Writes that came before it (RFC 5040 section 5.5, rule 12).
        self.placement.passed(asked.writes);
        let Some(number) = asked.number else { return Ok(()) };
        let Some(work) = self.send.work(number) else { return Ok(()) };
        if matches!(work.request.op, SendOp::ReadInvalidate(_))
            && let Err(status) = shared.mr.invalidate(self.stream(), asked.sink.stag)
        {
            self.send.blame(number, status);
            return Err(Cause::LOCAL);
        }
        if let Some(work) = self.send.work(number) {
            work.stage = Stage::Done(len);
        }
        self.release(shared);
        Ok(())
    }

    /// The fault that `cause` is in the segment that arrives.
    pub(crate) fn fault(&self, cause: Cause) -> Fault {
        RxOffload::fault(&self.arrival, cause)
    }
}
