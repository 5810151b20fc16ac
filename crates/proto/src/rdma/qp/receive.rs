//! Untagged messages into receives: Sends and immediate data.
//!
//! Always: the n-th message takes the n-th receive, whatever order their segments come in; a message is delivered when its
//! last segment and all its octets are there and every earlier one is delivered. A shared receive is taken when the first
//! segment of its message comes.

use alloc::collections::VecDeque;

use super::super::rnic::Shared;
use super::super::{Completed, Completion, Memory, RecvRequest, Stag, Status};
use super::ranges::Ranges;
use super::transmit::scatter;
use super::{QueuePair, Sge};
use crate::wire::rdmap::{Cause, Opcode};

/// How many messages may be begun before an earlier one has come, if receives are shared.
const AHEAD: u32 = 16;

/// A message that is arriving.
#[derive(Debug)]
struct Incoming {
    request: RecvRequest,
    capacity: u32,
    got: Ranges,
    /// Its length, and what its last segment says.
    end: Option<(u32, Opcode, u32)>,
    immediate: Option<u64>,
    fault: Option<Status>,
}

/// See the file.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    waiting: VecDeque<RecvRequest>,
    /// The messages after `delivered` that are begun.
    arriving: VecDeque<Incoming>,
    /// The number of the last message that was delivered.
    pub(crate) delivered: u32,
}

impl ReceiveQueue {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.arriving.len()
    }

    pub(crate) fn post(&mut self, request: RecvRequest) {
        self.waiting.push_back(request);
    }

    /// Takes the front as the queue pair has failed.
    pub(crate) fn flush_one(&mut self) -> Option<(u64, Status)> {
        if let Some(incoming) = self.arriving.pop_front() {
            return Some((incoming.request.id, incoming.fault.unwrap_or(Status::Flushed)));
        }
        self.waiting.pop_front().map(|request| (request.id, Status::Flushed))
    }

    /// The first message takes no receive: it only opened the connection.
    pub(crate) const fn swallow(&mut self) {
        self.delivered = self.delivered.wrapping_add(1);
    }

    /// Where message `msn` stands in `arriving`.
    fn place(&self, msn: u32) -> u32 {
        msn.wrapping_sub(self.delivered.wrapping_add(1))
    }

    fn incoming(&mut self, msn: u32) -> Option<&mut Incoming> {
        let place = self.place(msn);
        self.arriving.get_mut(place as usize)
    }
}

impl QueuePair {
    /// A segment of message `msn` comes: `len` octets at `mo`. Takes a receive for it if it is the first.
    pub(crate) fn admit(&mut self, msn: u32, mo: u32, len: u32, shared: &mut Shared) -> Result<(), Cause> {
        let place = self.receive.place(msn);
        if place >= self.receive.arriving.len() as u32 {
            self.take(place, shared)?;
        }
        let Some(incoming) = self.receive.arriving.get_mut(place as usize) else { return Ok(()) };
        if len == 0 {
            return Ok(());
        }
        if mo > incoming.capacity
            || incoming.end.is_some_and(|(total, ..)| u64::from(mo) + u64::from(len) > u64::from(total))
        {
            incoming.fault = Some(Status::LocalLength);
            return Err(Cause::UNTAGGED_MO);
        }
        if u64::from(mo) + u64::from(len) > u64::from(incoming.capacity) {
            incoming.fault = Some(Status::LocalLength);
            return Err(Cause::UNTAGGED_TOO_LONG);
        }
        Ok(())
    }

    /// Takes receives until there is one for the message at `place`.
    #[inline]
    fn take(&mut self, place: u32, shared: &mut Shared) -> Result<(), Cause> {
        let more = u64::from(place) + 1 - self.receive.arriving.len() as u64;
        let (there, most) = match self.options.srq {
            Some(srq) => (shared.srq_len(srq), u64::from(AHEAD)),
            None => (self.receive.waiting.len(), u64::MAX),
        };
        if more > (there as u64).min(most) {
            return Err(if more == 1 { Cause::UNTAGGED_NO_BUFFER } else { Cause::UNTAGGED_MSN });
        }
        for _ in 0..more {
            let request = match self.options.srq {
                Some(srq) => shared.take_srq(srq),
                None => self.receive.waiting.pop_front(),
            };
            let Some(request) = request else { return Err(Cause::UNTAGGED_NO_BUFFER) };
            let capacity = request.list.iter().fold(0u32, |sum, sge| sum.saturating_add(sge.len));
            let (got, end, immediate, fault) = (Ranges::default(), None, None, None);
            self.receive.arriving.push_back(Incoming { request, capacity, got, end, immediate, fault });
        }
        Ok(())
    }

    /// Places octets of message `msn`.
    pub(crate) fn place_message<M: Memory>(
        &mut self,
        msn: u32,
        mo: u32,
        bytes: &[u8],
        shared: &Shared,
        memory: &mut M,
    ) -> Result<(), Cause> {
        let pd = self.options.pd;
        let Some(incoming) = self.receive.incoming(msn) else { return Ok(()) };
        let mut rest = bytes;
        let placed = scatter(&incoming.request.list, mo, bytes.len() as u32, |sge| {
            let (here, behind) = rest.split_at(sge.len as usize);
            rest = behind;
            let span = shared.mr.local(pd, sge, true).map_err(|_| ())?;
            memory.write(span, here).map_err(|_| ())
        });
        placed.map_err(|()| {
            incoming.fault = Some(Status::LocalProtection);
            Cause::LOCAL
        })
    }

    /// The element that octets from `mo` of message `msn` go to, at most `len`.
    pub(crate) fn message_sink(&mut self, msn: u32, mo: u32, len: u32) -> Option<Sge> {
        let incoming = self.receive.incoming(msn)?;
        let mut sink = None;
        let _ = scatter(&incoming.request.list, mo, len, |sge| {
            sink = Some(sge);
            Err(())
        });
        sink
    }

    /// A segment of message `msn` was placed.
    #[expect(clippy::too_many_arguments, reason = "what a segment says")]
    pub(crate) fn message_placed(
        &mut self,
        msn: u32,
        mo: u32,
        len: u32,
        last: bool,
        opcode: Opcode,
        ulp: u32,
        immediate: Option<u64>,
        shared: &mut Shared,
    ) -> Result<(), Cause> {
        let Some(incoming) = self.receive.incoming(msn) else { return Ok(()) };
        let end = mo.wrapping_add(len);
        if !incoming.got.add(mo, end) {
            return Err(Cause::UNTAGGED_MO);
        }
        if last {
            if incoming.end.is_some_and(|(total, ..)| total != end) {
                return Err(Cause::UNTAGGED_MO);
            }
            incoming.end = Some((end, opcode, ulp));
            incoming.immediate = immediate;
        }
        self.deliver(shared)
    }

    /// Delivers what is complete, in order.
    fn deliver(&mut self, shared: &mut Shared) -> Result<(), Cause> {
        while let Some(incoming) = self.receive.arriving.front() {
            let Some((total, opcode, ulp)) = incoming.end else { break };
            if incoming.immediate.is_none() && !incoming.got.complete(total) {
                break;
            }
            let invalidated = opcode.invalidates().then_some(Stag(ulp));
            if let Some(stag) = invalidated {
                shared.mr.remote_invalidate(self.stream(), stag)?;
            }
            let immediate = incoming.immediate;
            let completed = if immediate.is_some() { Completed::RecvImmediate } else { Completed::Recv };
            let len = if immediate.is_some() { self.arrival.written() } else { total };
            let (id, status, qp, at) = (incoming.request.id, Status::Success, self.number, shared.now);
            let completion = Completion { id, status, completed, len, qp, immediate, invalidated, at };
            self.receive.arriving.pop_front();
            self.receive.delivered = self.receive.delivered.wrapping_add(1);
            shared.complete(self.options.recv_cq, completion, opcode.solicits());
        }
        Ok(())
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    pub(crate) pd: super::super::Pd,
    pub(crate) depth: u32,
    pub(crate) max_sge: usize,
    /// Fewer than this raise an event, once.
    pub(crate) limit: u32,
    pub(crate) waiting: VecDeque<RecvRequest>,
    /// Queue pairs that use it.
    pub(crate) users: u32,
}
