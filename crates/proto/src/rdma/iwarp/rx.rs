//! Received DDP segments, whole or in pieces.
//!
//! ```text
//!  header ─► checks ─► place;   payload … ─► place;   end ─► delivery
//! ```
//!
//! Invariant: nothing is placed before all checks of its segment. Each piece of a segment is
//! checked again, so nothing is placed after a revocation. After the first error the caller hands
//! in nothing more.

use crate::rdma::ids::Stag;
use crate::rdma::iwarp::error::StreamError;
use crate::rdma::iwarp::segment::ENGINE_MESSAGE_MAX;
use crate::rdma::memory::{Memory, Span};
use crate::rdma::mr::Right;
use crate::rdma::qp::QueuePair;
use crate::rdma::shared::Shared;
use crate::wire::ddp::{self, Buffer};
use crate::wire::rdmap::{
    self, AtomicRequest, AtomicResponse, Cause, Opcode, ReadRequest, Terminate, parse_immediate,
};
use crate::wire::write_ack::WriteAck;

/// The outcome of a received piece of a segment.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The received piece of a segment needs no further step.
    Placed,
    /// After this piece of a segment the stream may have something to send.
    Wake,
    /// The received segment is the peer's Terminate.
    Terminated(Terminate),
}

impl QueuePair {
    /// Takes a piece of a segment: the header in the first piece, then payload, of which `rest`
    /// bytes are still missing.
    pub(crate) fn arrive<M: Memory>(
        &mut self,
        header: Option<&[u8]>,
        payload: &[u8],
        rest: usize,
        shared: &mut Shared,
        memory: &mut M,
    ) -> Result<Outcome, StreamError> {
        let first = header.is_some();
        if shared.unexpected.messages > 0 {
            self.place_unexpected(shared, memory)?;
        }
        if let Some(raw) = header {
            self.begin_arrival(raw, payload.len() + rest, shared)?;
        }
        if !self.iwarp.segment.open {
            return Ok(Outcome::Placed);
        }
        if !payload.is_empty() && self.iwarp.segment.is_placed() {
            self.place(payload, first, shared, memory).map_err(|cause| self.error(cause))?;
        } else if rest > 0 || !first {
            // A message that does not fit is refused by its length.
            let room = ENGINE_MESSAGE_MAX - self.iwarp.segment.small.len();
            self.iwarp.segment.small.extend(payload.iter().copied().take(room));
        }
        self.iwarp.segment.received += payload.len() as u32;
        if rest > 0 {
            return Ok(Outcome::Placed);
        }
        self.end_arrival(first.then_some(payload), shared, memory)
    }

    /// Returns the place in registered memory of the next payload, if the caller may read it
    /// directly to there.
    pub(crate) fn direct_span(&mut self, shared: &Shared) -> Option<Span> {
        let arrival = &self.iwarp.segment;
        if !arrival.open || !arrival.is_placed() || arrival.received >= arrival.len {
            return None;
        }
        let (received, left) = (arrival.received, arrival.len - arrival.received);
        match arrival.header.buffer {
            Buffer::Untagged { msn, mo, .. } => {
                let sge = self.message_sink(msn, mo + received, left)?;
                shared.mr.local(self.options.pd, sge, true).ok()
            }
            Buffer::Tagged { .. } => {
                self.tagged_span(shared).ok().flatten().map(|span| span.tail(received))
            }
        }
    }

    /// Handles payload that the caller has read directly into its place.
    pub(crate) fn placed_directly<M: Memory>(
        &mut self,
        bytes: u32,
        shared: &mut Shared,
        memory: &mut M,
    ) -> Result<Outcome, StreamError> {
        self.iwarp.segment.received =
            self.iwarp.segment.received.saturating_add(bytes).min(self.iwarp.segment.len);
        if !self.iwarp.segment.open || self.iwarp.segment.received < self.iwarp.segment.len {
            return Ok(Outcome::Placed);
        }
        self.end_arrival(None, shared, memory)
    }

    /// Begins to receive a segment with this header and a payload of `len` bytes.
    pub(super) fn begin_arrival(
        &mut self,
        raw: &[u8],
        len: usize,
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        let arrival = &mut self.iwarp.segment;
        arrival.raw.clear();
        let _ = arrival.raw.try_extend_from_slice(raw);
        arrival.len = len as u32;
        (arrival.received, arrival.open, arrival.span, arrival.read) = (0, false, None, None);
        arrival.small.clear();
        let header = ddp::parse(raw).map_err(|bad| self.error(bad.into()))?;
        let opcode = Opcode::of(&header).map_err(|cause| self.error(cause))?;
        self.iwarp.segment.header = header;
        self.iwarp.segment.opcode = opcode;
        self.iwarp.segment.ack = None;
        if opcode == Opcode::Write && len == 0 {
            self.iwarp.segment.ack = WriteAck::parse(&header);
        }
        if !self.iwarp.peer_seen {
            self.learn_peer(shared);
        }
        if self.iwarp.segment.ack.is_some() {
            self.iwarp.segment.open = true;
            return Ok(());
        }
        if opcode == Opcode::Write && self.iwarp.segment.written.1 {
            self.iwarp.segment.written = (0, false);
        } else if opcode != Opcode::Write && opcode.queue() != Some(rdmap::QN_SEND) {
            self.iwarp.segment.written = (0, true);
        }
        self.check(len as u32, shared).map_err(|cause| self.error(cause))?;
        self.iwarp.segment.open = true;
        Ok(())
    }

    /// Learns from the peer's first segment if the peer acknowledges Writes.
    #[cold]
    fn learn_peer(&mut self, shared: &mut Shared) {
        self.iwarp.peer_seen = true;
        // The initiator sends its hello first, so only the responder answers with one.
        let answers = !self.iwarp.initiator;
        if self.iwarp.acks.learn_peer(self.iwarp.segment.ack, answers) {
            self.complete_done(shared);
        }
    }

    /// Makes all checks of a received segment that do not need its payload.
    fn check(&mut self, len: u32, shared: &mut Shared) -> Result<(), Cause> {
        let opcode = self.iwarp.segment.opcode;
        match self.iwarp.segment.header.buffer {
            Buffer::Tagged { .. } => {
                self.iwarp.segment.span = self.tagged_span(shared)?;
                Ok(())
            }
            Buffer::Untagged { msn, mo, .. } => match opcode {
                Opcode::Immediate | Opcode::ImmediateSolicited => {
                    single(self.iwarp.segment.header.last, mo)?;
                    if len != rdmap::IMMEDIATE as u32 {
                        return Err(Cause::OPERATION);
                    }
                    self.admit(msn, 0, 0, shared)
                }
                Opcode::ReadRequest | Opcode::AtomicRequest => {
                    self.iwarp.responses.admit(msn)?;
                    single(self.iwarp.segment.header.last, mo)
                }
                Opcode::AtomicResponse => {
                    if !self.iwarp.outstanding.atomic_response_due(msn) {
                        return Err(Cause::UNTAGGED_MSN);
                    }
                    single(self.iwarp.segment.header.last, mo)
                }
                Opcode::Terminate => {
                    if msn != 1 {
                        return Err(Cause::UNTAGGED_MSN);
                    }
                    single(self.iwarp.segment.header.last, mo)
                }
                _ if len == 0 && self.opens(msn) => Ok(()),
                _ => self.admit(msn, mo, len, shared),
            },
        }
    }

    /// True for an empty Send that only opens the connection.
    fn opens(&self, msn: u32) -> bool {
        self.iwarp.opened_by_send && msn == 1 && self.iwarp.segment.header.last
    }

    /// Returns the place of a tagged segment's payload. An empty payload needs none.
    fn tagged_span(&mut self, shared: &Shared) -> Result<Option<Span>, Cause> {
        let Buffer::Tagged { stag, to } = self.iwarp.segment.header.buffer else { return Ok(None) };
        let len = self.iwarp.segment.len;
        if self.iwarp.segment.opcode == Opcode::ReadResponse {
            return self.response_sink(stag, to, len, shared);
        }
        if len == 0 {
            return Ok(None);
        }
        shared.mr.remote(self.tag_user(), Stag(stag), to, len, Right::Write).map(Some)
    }

    /// Places payload of the current segment. `fresh` is true if the segment's checks were made in
    /// this call.
    fn place<M: Memory>(
        &mut self,
        payload: &[u8],
        fresh: bool,
        shared: &mut Shared,
        memory: &mut M,
    ) -> Result<(), Cause> {
        let received = self.iwarp.segment.received;
        if !self.iwarp.ahead.is_empty() {
            self.forget_ahead(payload.len() as u32, shared);
        }
        if let Buffer::Untagged { msn, mo, .. } = self.iwarp.segment.header.buffer {
            return self.place_message(msn, mo.wrapping_add(received), payload, shared, memory);
        }
        let span = if fresh { self.iwarp.segment.span } else { self.tagged_span(shared)? };
        let Some(span) = span else { return Ok(()) };
        let here = Span { len: payload.len() as u32, ..span.tail(received) };
        memory.write(here, payload).map_err(|_| {
            // The peer gets the same error for unmapped memory as for a tag that has ended.
            if self.iwarp.segment.opcode == Opcode::Write {
                return Cause::TAGGED_STAG;
            }
            self.set_oldest_fault();
            Cause::LOCAL
        })
    }

    /// Ends the current segment. `whole` is its payload if it arrived in one piece.
    pub(super) fn end_arrival<M: Memory>(
        &mut self,
        whole: Option<&[u8]>,
        shared: &mut Shared,
        memory: &mut M,
    ) -> Result<Outcome, StreamError> {
        self.iwarp.segment.open = false;
        let (opcode, header, len) =
            (self.iwarp.segment.opcode, self.iwarp.segment.header, self.iwarp.segment.len);
        let outcome = match header.buffer {
            Buffer::Tagged { .. } if opcode == Opcode::Write => {
                if let Some(ack) = self.iwarp.segment.ack {
                    return self
                        .receive_ack(ack, shared)
                        .map(|()| Outcome::Wake)
                        .map_err(|c| self.error(c));
                }
                if header.last {
                    self.iwarp.acks.write_placed();
                }
                let written = &mut self.iwarp.segment.written;
                *written = (written.0.saturating_add(len), header.last);
                return Ok(Outcome::Placed);
            }
            Buffer::Tagged { to, .. } => {
                self.response_placed(to, len, header.last, shared).map(|()| Outcome::Wake)
            }
            Buffer::Untagged { msn, mo, ulp, .. } => match opcode {
                Opcode::Immediate | Opcode::ImmediateSolicited => {
                    self.immediate_came(whole, msn, shared).map(|()| Outcome::Placed)
                }
                Opcode::Terminate => return self.terminated(whole),
                Opcode::ReadRequest | Opcode::AtomicRequest | Opcode::AtomicResponse => {
                    self.engine_message(whole, shared, memory).map(|()| Outcome::Wake)
                }
                _ if len == 0 && self.opens(msn) => {
                    self.iwarp.opened_by_send = false;
                    self.receive.skip_first();
                    Ok(Outcome::Placed)
                }
                _ => {
                    self.iwarp.segment.written = (0, true);
                    self.message_placed(msn, mo, len, header.last, opcode, ulp, None, shared)
                        .map(|()| Outcome::Placed)
                }
            },
        };
        outcome.map_err(|cause| self.error(cause))
    }

    fn immediate_came(
        &mut self,
        whole: Option<&[u8]>,
        msn: u32,
        shared: &mut Shared,
    ) -> Result<(), Cause> {
        let value = parse_immediate(whole.unwrap_or(&self.iwarp.segment.small))?;
        self.message_placed(msn, 0, 0, true, self.iwarp.segment.opcode, 0, Some(value), shared)?;
        self.iwarp.segment.written = (0, true);
        Ok(())
    }

    fn terminated(&self, whole: Option<&[u8]>) -> Result<Outcome, StreamError> {
        let terminate = Terminate::parse(whole.unwrap_or(&self.iwarp.segment.small));
        terminate.map(Outcome::Terminated).ok_or_else(|| self.error(Cause::OPERATION))
    }

    /// Handles a message that the engine itself consumes.
    fn engine_message<M: Memory>(
        &mut self,
        whole: Option<&[u8]>,
        shared: &mut Shared,
        memory: &mut M,
    ) -> Result<(), Cause> {
        let small = self.iwarp.segment.small.clone();
        let payload = whole.unwrap_or(&small);
        // A message of another length is malformed, even if its beginning parses.
        if payload.len() != self.iwarp.segment.len as usize {
            return Err(Cause::OPERATION);
        }
        match self.iwarp.segment.opcode {
            Opcode::ReadRequest => {
                let request = ReadRequest::parse(payload)?;
                self.iwarp.segment.read = Some(request);
                self.read_request(request, shared)
            }
            Opcode::AtomicRequest => self.atomic_request(AtomicRequest::parse(payload)?, shared),
            _ => self.atomic_response(AtomicResponse::parse(payload)?, shared, memory),
        }
    }
}

/// Checks that a message of the peer has only one segment.
const fn single(last: bool, mo: u32) -> Result<(), Cause> {
    match (mo, last) {
        (1.., _) => Err(Cause::UNTAGGED_MO),
        (0, false) => Err(Cause::UNTAGGED_TOO_LONG),
        (0, true) => Ok(()),
    }
}
