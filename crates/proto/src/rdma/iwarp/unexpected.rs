//! Unexpected messages: those that arrive before a receive is posted for them.
//!
//! ```text
//!   a Send without a receive ─► buffered ─┬─ a receive is posted ─► placed and delivered
//!                                         ├─ the RNR time-out ────► Terminate 1/2/02
//!                                         └─ STALL_BYTES ─────────► the stream stalls
//! ```
//!
//! The buffer here is DDP's Untagged Buffer of the message: DDP has delivered the message to RDMAP,
//! and RDMAP has not yet delivered it to the program (RFC 5040 section 5.5, rules 10 and 16). So
//! everything else on the stream goes on: Writes, Reads (rules 12 and 17 require DDP's delivery
//! only), responses, the Terminate.
//!
//! Invariant: the engine takes memory for bytes that have arrived, never for a claimed length. The
//! bytes of a buffered message arrive in order. Messages are delivered in order, each into one
//! receive.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::Instant;
use crate::rdma::completion::Status;
use crate::rdma::iwarp::error::{StreamError, offending};
use crate::rdma::iwarp::rx_message::fill;
use crate::rdma::memory::Memory;
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::recv_queue::{IncomingMessage, Place};
use crate::rdma::qp::unexpected::{ENTRY_BYTES, STALL_BYTES, UnexpectedMessage};
use crate::rdma::shared::Shared;
use crate::wire::rdmap::Cause;

impl QueuePair {
    /// True if the caller must not read the queue pair's stream, since unexpected messages have
    /// taken the memory for them.
    pub(crate) fn is_stalled(&self, shared: &mut Shared) -> bool {
        if self.receive.unexpected_bytes < STALL_BYTES
            && (self.receive.unexpected_bytes == 0 || !shared.unexpected.is_short())
        {
            return false;
        }
        if self.receive.unexpected_bytes < STALL_BYTES
            && !shared.unexpected.stalled.contains(&self.number)
        {
            shared.unexpected.stalled.push(self.number);
        }
        true
    }

    /// Begins to buffer the message of the current segment, since it has no receive.
    #[cold]
    pub(super) fn keep(&mut self, shared: &mut Shared) -> Result<(), Cause> {
        if self.rnr_timeout_ns == Some(0) {
            return Err(Cause::UNTAGGED_NO_BUFFER);
        }
        shared
            .unexpected
            .grow(ENTRY_BYTES)
            .inspect_err(|_| shared.unexpected.bytes -= ENTRY_BYTES)?;
        shared.unexpected.messages += 1;
        let about = offending(self.iwarp.segment.raw(), self.iwarp.segment.len());
        let kept = UnexpectedMessage { bytes: Vec::new(), extent: 0, about };
        self.receive.unexpected_bytes += kept.cost();
        self.receive.arriving.push_back(IncomingMessage::new(Place::Unexpected(Box::new(kept))));
        self.receive.unexpected += 1;
        if self.receive.unexpected == 1 {
            self.start_rnr_timer(shared.now);
            if let Some(srq) = self.options.srq {
                shared.wait_for_srq(srq, self.number);
            }
        }
        Ok(())
    }

    /// Starts the time-out of the first message that waits for a receive.
    fn start_rnr_timer(&mut self, now: Instant) {
        self.receive.rnr_deadline = self.rnr_timeout_ns.map_or(Instant::NEVER, |ns| now.after(ns));
    }

    /// Places unexpected messages into receives that were posted since they arrived.
    pub(crate) fn place_unexpected<M: Memory>(
        &mut self,
        shared: &mut Shared,
        memory: &mut M,
    ) -> Result<(), StreamError> {
        let before = self.receive.unexpected;
        while self.receive.unexpected > 0 {
            let Some(request) = self.next_receive(shared) else { break };
            let at = self.receive.arriving.len() - self.receive.unexpected;
            let Some(incoming) = self.receive.arriving.get_mut(at) else { break };
            let room = request.capacity();
            incoming.capacity = room;
            let place = core::mem::replace(&mut incoming.place, Place::Receive(request));
            let (Place::Unexpected(kept), Place::Receive(request)) = (place, &incoming.place)
            else {
                break;
            };
            let UnexpectedMessage { bytes, extent, about } = *kept;
            self.iwarp.ahead.clear();
            let filled = if extent > room {
                incoming.fault = Some(Status::LocalLength);
                Err(Cause::UNTAGGED_TOO_LONG)
            } else {
                let filled = fill(request, 0, &bytes, self.options.pd, shared, memory);
                filled.inspect_err(|_| incoming.fault = Some(Status::LocalProtection))
            };
            self.receive.unexpected -= 1;
            self.receive.unexpected_bytes -= bytes.len() + ENTRY_BYTES;
            shared.release_unexpected(1, bytes.len() + ENTRY_BYTES);
            filled
                .and_then(|()| self.deliver(shared))
                .map_err(|cause| StreamError { cause, about: Some(about) })?;
        }
        if self.receive.unexpected == 0 {
            self.stop_rnr_timer(shared);
        } else if self.receive.unexpected < before {
            self.start_rnr_timer(shared.now);
        }
        Ok(())
    }

    /// Stops the time-out of the first unexpected message, since no message is unexpected any more.
    fn stop_rnr_timer(&mut self, shared: &mut Shared) {
        self.receive.rnr_deadline = Instant::NEVER;
        if let Some(srq) = self.options.srq {
            shared.stop_waiting_for_srq(srq, self.number);
        }
    }

    /// Drops the unexpected messages of a queue pair that is at its end.
    pub(crate) fn drop_unexpected(&mut self, shared: &mut Shared) {
        if self.receive.unexpected == 0 {
            return;
        }
        let left = self.receive.arriving.len() - self.receive.unexpected;
        self.receive.arriving.truncate(left);
        let messages = core::mem::take(&mut self.receive.unexpected);
        shared.release_unexpected(messages, core::mem::take(&mut self.receive.unexpected_bytes));
        shared.unexpected.stalled.retain(|qp| *qp != self.number);
        self.stop_rnr_timer(shared);
    }

    /// True if a whole message waits only for a receive.
    pub(crate) fn has_whole_unexpected(&self) -> bool {
        let at = self.receive.arriving.len() - self.receive.unexpected;
        self.receive.arriving.range(at..).any(IncomingMessage::is_whole)
    }

    /// The error that ends the stream of an unexpected message that has waited too long for a
    /// receive.
    pub(crate) fn rnr_error(&self) -> StreamError {
        let at = self.receive.arriving.len() - self.receive.unexpected;
        let about = self.receive.arriving.get(at).and_then(|incoming| match &incoming.place {
            Place::Unexpected(kept) => Some(kept.about.clone()),
            Place::Receive(_) => None,
        });
        StreamError { cause: Cause::UNTAGGED_NO_BUFFER, about }
    }
}
