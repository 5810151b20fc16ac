//! The steps of acknowledged Writes, which decide when to send hellos, requests and
//! acknowledgements. `acks` describes them.

use crate::Instant;
use crate::rdma::iwarp::acks::{Peer, Piggyback};
use crate::rdma::iwarp::fpdu_writer::FpduWriter;
use crate::rdma::memory::{Memory, Unmapped};
use crate::rdma::options::QpState;
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::deferred::DEFER_NS;
use crate::rdma::shared::Shared;
use crate::wire::rdmap::Cause;
use crate::wire::write_ack::WriteAck;

impl QueuePair {
    /// Records that this end framed a message. An acknowledgement could have preceded it.
    pub(crate) fn message_framed(&mut self, now: Instant) {
        let it = &mut self.iwarp.acks;
        if it.pending {
            it.message_framed = true;
        } else if it.ride.alone > Instant::ZERO {
            it.ride.pays |= now.since(it.ride.alone) < DEFER_NS;
            it.ride.alone = Instant::ZERO;
        }
    }

    /// Appends an acknowledgement of Writes, or a request for one, that must leave before this
    /// end's next message. Returns false if there is none.
    pub(crate) fn ack_before_message<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, Unmapped> {
        let (it, queued) = (&self.iwarp.acks, self.send.len());
        let says_hello = it.hello && (self.send.has_work() || !self.iwarp.responses.is_empty());
        if says_hello || it.is_due(queued) {
            self.send_ack(shared, out).map(|()| true)
        } else {
            Ok(false)
        }
    }

    /// Appends an acknowledgement of Writes, or a request for one, when this end has no message to
    /// send. Returns false if there is none, or it can wait.
    pub(crate) fn ack_when_idle<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, Unmapped> {
        let (it, queued) = (&self.iwarp.acks, self.send.len());
        let (is_due, pending) = (it.asks_when_idle(queued) || it.is_due(queued), it.pending);
        if is_due || (pending && !self.may_piggyback(shared)) {
            self.send_ack(shared, out).map(|()| true)
        } else {
            Ok(false)
        }
    }

    /// True if the pending acknowledgement of Writes waits for a message of this end.
    fn may_piggyback(&mut self, shared: &mut Shared) -> bool {
        let it = &mut self.iwarp.acks;
        let due = it.requested_at.after(DEFER_NS);
        if !it.ride.pays || shared.now >= due || self.state != QpState::Ready {
            return false;
        }
        if it.due.is_none() {
            it.due = Some(due);
            shared.ack_timers.push_back((due, self.number));
        }
        true
    }

    fn send_ack<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<(), Unmapped> {
        let queued = self.send.len();
        let it = &mut self.iwarp.acks;
        let asks = it.asks();
        out.record.push |= asks && it.half_is_framed(queued);
        let ack = WriteAck { hello: it.hello, ack_request: asks, count: it.placed };
        out.frame(&ack.header(), &[])?;
        if it.pending {
            let waited = it.due.take().is_some();
            if waited && shared.ack_timers.front().is_some_and(|(_, qp)| *qp == self.number) {
                shared.ack_timers.pop_front();
            }
            if it.message_framed {
                it.ride.pays = true;
            } else {
                it.ride = Piggyback { pays: false, alone: shared.now };
            }
        }
        (it.hello, it.pending, it.message_framed, it.reported) = (false, false, false, it.placed);
        if asks {
            it.first_request = it.peer == Peer::Unknown && it.asked[1] == 0;
            it.asked = [it.asked[1], it.framed];
            it.bytes = 0;
        }
        Ok(())
    }

    /// Appends the hello of acknowledged Writes as the stream's first segment.
    pub(crate) fn hello<M: Memory>(&mut self, out: &mut FpduWriter<'_, M>) -> Result<(), Unmapped> {
        self.iwarp.acks.hello = false;
        out.frame(&WriteAck { hello: true, ..WriteAck::default() }.header(), &[])
    }

    /// Handles the peer's acknowledgement of Writes, or its request for one.
    pub(crate) fn receive_ack(&mut self, ack: WriteAck, shared: &mut Shared) -> Result<(), Cause> {
        let it = &mut self.iwarp.acks;
        if it.peer != Peer::Acknowledging {
            return Ok(());
        }
        if ack.count > it.framed {
            return Err(Cause::OPERATION);
        }
        if ack.ack_request && !it.pending {
            (it.pending, it.message_framed, it.requested_at) = (true, false, shared.now);
        }
        it.ack_up_to(ack.count);
        self.complete_done(shared);
        Ok(())
    }
}
