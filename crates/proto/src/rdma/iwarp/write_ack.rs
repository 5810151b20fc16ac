//! What two engines of ours say about placed Writes.

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
    /// An own message was sent wholly.
    pub(crate) fn message_framed(&mut self, now: Instant) {
        let it = &mut self.iwarp.acks;
        if it.owed {
            it.ack_timers = true;
        } else if it.ride.alone > Instant::ZERO {
            it.ride.pays |= now.since(it.ride.alone) < DEFER_NS;
            it.ride.alone = Instant::ZERO;
        }
    }

    /// Says what has to be said before the next own message; false if that is nothing.
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

    /// Says what there is to say when no own message is left to be sent; false if that is nothing, or can wait.
    pub(crate) fn ack_when_idle<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut FpduWriter<'_, M>,
    ) -> Result<bool, Unmapped> {
        let it = &self.iwarp.acks;
        let asks = it.asks() && it.asked[0] <= it.acked;
        let (is_due, owed) = (asks || it.is_due(self.send.len()), it.owed);
        if is_due || (owed && !self.may_piggyback(shared)) {
            self.send_ack(shared, out).map(|()| true)
        } else {
            Ok(false)
        }
    }

    /// The answer that is owed waits for an own message.
    fn may_piggyback(&mut self, shared: &mut Shared) -> bool {
        let it = &mut self.iwarp.acks;
        let due = it.since.after(DEFER_NS);
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
        let said = WriteAck { hello: it.hello, ack_request: asks, count: it.placed };
        out.frame(&said.header(), &[])?;
        if it.owed {
            let waited = it.due.take().is_some();
            if waited && shared.ack_timers.front().is_some_and(|(_, qp)| *qp == self.number) {
                shared.ack_timers.pop_front();
            }
            if it.ack_timers {
                it.ride.pays = true;
            } else {
                it.ride = Piggyback { pays: false, alone: shared.now };
            }
        }
        (it.hello, it.owed, it.ack_timers, it.told) = (false, false, false, it.placed);
        if asks {
            it.wonders = it.peer == Peer::Unknown && it.asked[1] == 0;
            it.asked = [it.asked[1], it.framed];
            it.bytes = 0;
        }
        Ok(())
    }

    /// Says hello with the first segment.
    pub(crate) fn hello<M: Memory>(&mut self, out: &mut FpduWriter<'_, M>) -> Result<(), Unmapped> {
        self.iwarp.acks.hello = false;
        out.frame(&WriteAck { hello: true, ..WriteAck::default() }.header(), &[])
    }

    /// The peer says something.
    pub(crate) fn receive_ack(&mut self, said: WriteAck, shared: &mut Shared) -> Result<(), Cause> {
        let it = &mut self.iwarp.acks;
        if it.peer != Peer::Acknowledging {
            return Ok(());
        }
        if said.count > it.framed {
            return Err(Cause::OPERATION);
        }
        if said.ack_request && !it.owed {
            (it.owed, it.ack_timers, it.since) = (true, false, shared.now);
        }
        it.passed(said.count);
        self.release(shared);
        Ok(())
    }
}
