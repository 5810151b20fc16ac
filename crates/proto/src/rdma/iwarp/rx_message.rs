//! Untagged messages into receives: Sends and immediate data.
//!
//! Always: the n-th message takes the n-th receive, whatever order their segments come in; a message is delivered when its
//! last segment and all its octets are there and every earlier one is delivered. A shared receive is taken when the first
//! segment of its message comes. A message that comes before its receive is kept (`unready`).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::Instant;
use crate::rdma::Sge;
use crate::rdma::iwarp::tx::scatter;
use crate::rdma::iwarp::unexpected::Kept;
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::ranges::Ranges;
use crate::rdma::rnic::Shared;
use crate::rdma::{Completed, Completion, Memory, Pd, Qp, RecvRequest, Stag, Status};
use crate::wire::rdmap::{Cause, Opcode};

/// How many messages may be begun before the first of them has come, if receives are shared: others wait for what they take.
const AHEAD: u32 = 16;

/// Where the octets of a message go.
#[derive(Debug)]
pub(in crate::rdma) enum Place {
    Receive(RecvRequest),
    /// No receive is there yet.
    Kept(Box<Kept>),
}

/// A message that is arriving.
#[derive(Debug)]
pub(in crate::rdma) struct Incoming {
    pub(in crate::rdma) place: Place,
    pub(in crate::rdma) capacity: u32,
    got: Ranges,
    /// Its length, and what its last segment says.
    pub(in crate::rdma) end: Option<(u32, Opcode, u32)>,
    /// Immediate data, and the octets of the Write directly before it.
    immediate: Option<(u64, u32)>,
    pub(in crate::rdma) fault: Option<Status>,
}

impl Incoming {
    /// A message with this place for its octets, none of which is there.
    pub(in crate::rdma) fn new(place: Place) -> Self {
        let capacity = match &place {
            Place::Receive(request) => capacity(request),
            Place::Kept(_) => u32::MAX,
        };
        Self { place, capacity, got: Ranges::default(), end: None, immediate: None, fault: None }
    }

    /// All of it is there.
    pub(in crate::rdma) fn is_whole(&self) -> bool {
        self.end.is_some_and(|(total, ..)| self.immediate.is_some() || self.got.complete(total))
    }
}

/// How many octets fit into a receive.
pub(in crate::rdma) fn capacity(request: &RecvRequest) -> u32 {
    request.list.iter().fold(0u32, |sum, sge| sum.saturating_add(sge.len))
}

/// See the file.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    waiting: VecDeque<RecvRequest>,
    /// The messages after `delivered` that are begun; those without a receive are at its end.
    pub(in crate::rdma) arriving: VecDeque<Incoming>,
    /// How many of them have no receive,
    pub(in crate::rdma) unready: usize,
    /// what is kept of these,
    pub(in crate::rdma) kept: usize,
    /// and when the patience with the first one ends.
    pub(crate) until: Instant,
    /// The number of the last message that was delivered.
    pub(crate) delivered: u32,
}

impl Default for ReceiveQueue {
    fn default() -> Self {
        let (waiting, arriving) = (VecDeque::new(), VecDeque::new());
        Self { waiting, arriving, unready: 0, kept: 0, until: Instant::NEVER, delivered: 0 }
    }
}

impl ReceiveQueue {
    /// Receives that are posted and not completed.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.arriving.len() - self.unready
    }

    /// A message waits for the next receive.
    pub(crate) const fn is_awaited(&self) -> bool {
        self.unready > 0
    }

    pub(crate) fn post(&mut self, request: RecvRequest) {
        self.waiting.push_back(request);
    }

    /// Takes the front as the queue pair has failed.
    pub(crate) fn flush_one(&mut self) -> Option<(u64, Status)> {
        if let Some(Incoming { place: Place::Receive(request), fault, .. }) =
            self.arriving.pop_front()
        {
            return Some((request.id, fault.unwrap_or(Status::Flushed)));
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

    /// How many messages are begun from the first one on that is not whole.
    fn begun(&self) -> usize {
        let first = self.arriving.iter().position(|incoming| !incoming.is_whole());
        first.map_or(0, |first| self.arriving.len() - first)
    }

    fn incoming(&mut self, msn: u32) -> Option<&mut Incoming> {
        let place = self.place(msn);
        self.arriving.get_mut(place as usize)
    }
}

impl QueuePair {
    /// A segment of message `msn` comes: `len` octets at `mo`. Takes a receive for it if it is the first.
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
        if let Place::Kept(kept) = &mut incoming.place {
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

    /// Takes receives until there is one for the message at `place`, or begins to keep it.
    #[inline]
    fn take(&mut self, place: u32, shared: &mut Shared) -> Result<(), Cause> {
        let more = u64::from(place) + 1 - self.receive.arriving.len() as u64;
        if self.options.srq.is_some() && self.receive.begun() as u64 + more > u64::from(AHEAD) {
            return Err(Cause::UNTAGGED_MSN);
        }
        let there = match self.options.srq {
            _ if self.receive.unready > 0 => 0,
            Some(srq) => shared.srq_len(srq),
            None => self.receive.waiting.len(),
        };
        if more > there as u64 {
            return if more == 1 { self.keep(shared) } else { Err(Cause::UNTAGGED_MSN) };
        }
        for _ in 0..more {
            let request = self.next_receive(shared).ok_or(Cause::UNTAGGED_NO_BUFFER)?;
            self.receive.arriving.push_back(Incoming::new(Place::Receive(request)));
        }
        Ok(())
    }

    /// Takes the oldest receive.
    #[inline]
    pub(in crate::rdma) fn next_receive(&mut self, shared: &mut Shared) -> Option<RecvRequest> {
        match self.options.srq {
            Some(srq) => shared.take_srq(srq),
            None => self.receive.waiting.pop_front(),
        }
    }

    /// Places octets of message `msn`.
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
            Place::Kept(kept) => {
                kept.append(bytes);
                self.receive.kept += bytes.len();
                shared.unready.grow(bytes.len())
            }
        }
    }

    /// The element that octets from `mo` of message `msn` go to, at most `len`.
    pub(crate) fn message_sink(&mut self, msn: u32, mo: u32, len: u32) -> Option<Sge> {
        let Place::Receive(request) = &self.receive.incoming(msn)?.place else { return None };
        let mut sink = None;
        let _ = scatter(&request.list, mo, len, |sge| {
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
        let written = self.arrival.written();
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

    /// Delivers what is complete, in order.
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
                shared.mr.remote_invalidate(self.stream(), stag)?;
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

/// Puts octets of a message, `mo` octets into it, where its receive says.
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

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct SharedQueue {
    pub(crate) pd: Pd,
    pub(crate) depth: u32,
    pub(crate) max_sge: usize,
    /// Fewer than this raise an event, once.
    pub(crate) limit: u32,
    pub(crate) waiting: VecDeque<RecvRequest>,
    /// Queue pairs that use it.
    pub(crate) users: u32,
    /// Those of them that have messages without a receive; the first one is asked when there is one.
    pub(crate) unready: VecDeque<Qp>,
}
