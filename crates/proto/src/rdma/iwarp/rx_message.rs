//! Receives untagged messages, which are Sends and immediate data, into posted receives.
//!
//! Invariant: the n-th message takes the n-th receive, whatever the order of segments. A message is
//! delivered when it is whole and every earlier one is delivered. The first segment of a message
//! takes its receive from a shared queue. `unexpected` buffers a message that arrives before its
//! receive.

use crate::rdma::completion::{Completed, Completion, Status};
use crate::rdma::ids::{Pd, Stag};
use crate::rdma::memory::Memory;
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::recv_queue::{IncomingMessage, Place};
use crate::rdma::shared::Shared;
use crate::rdma::work::{RecvRequest, Sge, scatter};
use crate::wire::rdmap::{Cause, Opcode};

/// The most messages that may begin before the first of them is whole, if the receives come from a
/// shared receive queue. Other queue pairs wait for the receives that these messages take.
const AHEAD: u32 = 16;

impl QueuePair {
    /// Admits a segment of `len` bytes at offset `mo` of message `msn`. The first segment takes a
    /// receive for the message.
    pub(crate) fn admit(
        &mut self,
        msn: u32,
        mo: u32,
        len: u32,
        shared: &mut Shared,
    ) -> Result<(), Cause> {
        let place = self.receive.place(msn);
        if place >= self.receive.arriving.len() as u32 {
            self.take(place, shared)?;
        }
        let Some(incoming) = self.receive.arriving.get_mut(place as usize) else { return Ok(()) };
        if let Place::Unexpected(kept) = &mut incoming.place {
            let is_over = incoming.end.is_some() && len > 0;
            return if is_over { Err(Cause::UNTAGGED_MO) } else { kept.admit(mo, len) };
        }
        if len == 0 {
            return Ok(());
        }
        if mo > incoming.capacity
            || incoming
                .end
                .is_some_and(|(total, ..)| u64::from(mo) + u64::from(len) > u64::from(total))
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

    /// Takes receives up to the message at index `place` of the arriving messages, or begins to
    /// buffer that message.
    #[inline]
    fn take(&mut self, place: u32, shared: &mut Shared) -> Result<(), Cause> {
        let more = u64::from(place) + 1 - self.receive.arriving.len() as u64;
        if self.options.srq.is_some() && self.receive.begun() as u64 + more > u64::from(AHEAD) {
            return Err(Cause::UNTAGGED_MSN);
        }
        let there = match self.options.srq {
            _ if self.receive.unexpected > 0 => 0,
            Some(srq) => shared.srq_len(srq),
            None => self.receive.waiting.len(),
        };
        if more > there as u64 {
            return if more == 1 { self.keep(shared) } else { Err(Cause::UNTAGGED_MSN) };
        }
        for _ in 0..more {
            let request = self.next_receive(shared).ok_or(Cause::UNTAGGED_NO_BUFFER)?;
            self.receive.arriving.push_back(IncomingMessage::new(Place::Receive(request)));
        }
        Ok(())
    }

    /// Takes the oldest receive of the queue pair or of its shared receive queue.
    #[inline]
    pub(in crate::rdma) fn next_receive(&mut self, shared: &mut Shared) -> Option<RecvRequest> {
        match self.options.srq {
            Some(srq) => shared.take_srq(srq),
            None => self.receive.waiting.pop_front(),
        }
    }

    /// Places bytes of message `msn` into its receive or its buffer.
    pub(crate) fn place_message<M: Memory>(
        &mut self,
        msn: u32,
        mo: u32,
        bytes: &[u8],
        shared: &mut Shared,
        memory: &mut M,
    ) -> Result<(), Cause> {
        let pd = self.options.pd;
        let Some(incoming) = self.receive.incoming(msn) else { return Ok(()) };
        match &mut incoming.place {
            Place::Receive(request) => {
                let placed = fill(request, mo, bytes, pd, shared, memory);
                placed.inspect_err(|_| incoming.fault = Some(Status::LocalProtection))
            }
            Place::Unexpected(kept) => {
                kept.append(bytes);
                self.receive.unexpected_bytes += bytes.len();
                shared.unexpected.grow(bytes.len())
            }
        }
    }

    /// Returns the receive's element for the bytes at offset `mo` of message `msn`, at most `len`
    /// bytes of it.
    pub(crate) fn message_sink(&mut self, msn: u32, mo: u32, len: u32) -> Option<Sge> {
        let Place::Receive(request) = &self.receive.incoming(msn)?.place else { return None };
        let mut sink = None;
        let _ = scatter(&request.list, mo, len, |sge| {
            sink = Some(sge);
            Err(())
        });
        sink
    }

    /// Records a placed segment of message `msn`, and delivers the messages that are then whole.
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
        let written = self.iwarp.segment.written();
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
            incoming.immediate = immediate.map(|value| (value, written));
        }
        self.deliver(shared)
    }

    /// Delivers the messages that are whole, in order.
    pub(in crate::rdma) fn deliver(&mut self, shared: &mut Shared) -> Result<(), Cause> {
        while let Some(incoming) = self.receive.arriving.front() {
            let (Some((total, opcode, ulp)), Place::Receive(request)) =
                (incoming.end, &incoming.place)
            else {
                break;
            };
            if !incoming.is_whole() {
                break;
            }
            let id = request.id;
            let invalidated = opcode.invalidates().then_some(Stag(ulp));
            if let Some(stag) = invalidated {
                shared.mr.remote_invalidate(self.tag_user(), stag)?;
            }
            let (completed, len) = match incoming.immediate {
                Some((_, written)) => (Completed::RecvImmediate, written),
                None => (Completed::Recv, total),
            };
            let immediate = incoming.immediate.map(|(value, _)| value);
            let (status, qp, at) = (Status::Success, self.number, shared.now);
            let completion =
                Completion { id, status, completed, len, qp, immediate, invalidated, at };
            self.receive.arriving.pop_front();
            self.receive.delivered = self.receive.delivered.wrapping_add(1);
            shared.complete(self.options.recv_cq, completion, opcode.solicits());
        }
        Ok(())
    }
}

/// Copies bytes of a message, from offset `mo` on, to the elements of its receive.
pub(in crate::rdma) fn fill<M: Memory>(
    request: &RecvRequest,
    mo: u32,
    bytes: &[u8],
    pd: Pd,
    shared: &Shared,
    memory: &mut M,
) -> Result<(), Cause> {
    let mut rest = bytes;
    scatter(&request.list, mo, bytes.len() as u32, |sge| {
        let (here, behind) = rest.split_at(sge.len as usize);
        rest = behind;
        let span = shared.mr.local(pd, sge, true).map_err(|_| Cause::LOCAL)?;
        memory.write(span, here).map_err(|_| Cause::LOCAL)
    })
}
