//! What two engines of ours say about placed Writes.

use crate::Instant;
use crate::rdma::iwarp::acks::{Peer, Ride};
use crate::rdma::iwarp::out::Out;
use crate::rdma::memory::{Memory, Unmapped};
use crate::rdma::options::QpState;
use crate::rdma::qp::QueuePair;
use crate::rdma::qp::deferred::LONGEST_NS;
use crate::rdma::shared::Shared;
use crate::wire::rdmap::Cause;
use crate::wire::write_ack::Placed;

impl QueuePair {
    /// An own message was sent wholly.
    pub(crate) fn message_left(&mut self, now: Instant) {
        let it = &mut self.iwarp.placement;
        if it.owed {
            it.rides = true;
        } else if it.ride.alone > Instant::ZERO {
            it.ride.pays |= now.since(it.ride.alone) < LONGEST_NS;
            it.ride.alone = Instant::ZERO;
        }
    }

    /// Says what has to be said before the next own message; false if that is nothing.
    pub(crate) fn speak_first<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut Out<'_, M>,
    ) -> Result<bool, Unmapped> {
        let (it, queued) = (&self.iwarp.placement, self.send.len());
        let greets = it.hello && (self.send.has_work() || !self.iwarp.answers.is_empty());
        if greets || it.must_speak(queued) {
            self.speak(shared, out).map(|()| true)
        } else {
            Ok(false)
        }
    }

    /// Says what there is to say when no own message is left to be sent; false if that is nothing, or can wait.
    pub(crate) fn speak_last<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut Out<'_, M>,
    ) -> Result<bool, Unmapped> {
        let it = &self.iwarp.placement;
        let asks = it.asks() && it.asked[0] <= it.acked;
        let (speaks, owed) = (asks || it.must_speak(self.send.len()), it.owed);
        if speaks || (owed && !self.waits_for_a_ride(shared)) {
            self.speak(shared, out).map(|()| true)
        } else {
            Ok(false)
        }
    }

    /// The answer that is owed waits for an own message.
    fn waits_for_a_ride(&mut self, shared: &mut Shared) -> bool {
        let it = &mut self.iwarp.placement;
        let due = it.since.after(LONGEST_NS);
        if !it.ride.pays || shared.now >= due || self.state != QpState::Ready {
            return false;
        }
        if it.due.is_none() {
            it.due = Some(due);
            shared.rides.push_back((due, self.number));
        }
        true
    }

    fn speak<M: Memory>(
        &mut self,
        shared: &mut Shared,
        out: &mut Out<'_, M>,
    ) -> Result<(), Unmapped> {
        let queued = self.send.len();
        let it = &mut self.iwarp.placement;
        let asks = it.asks();
        out.record.push |= asks && it.is_half(queued);
        let said = Placed { hello: it.hello, asks, count: it.placed };
        out.frame(&said.header(), &[])?;
        if it.owed {
            let waited = it.due.take().is_some();
            if waited && shared.rides.front().is_some_and(|(_, qp)| *qp == self.number) {
                shared.rides.pop_front();
            }
            if it.rides {
                it.ride.pays = true;
            } else {
                it.ride = Ride { pays: false, alone: shared.now };
            }
        }
        (it.hello, it.owed, it.rides, it.told) = (false, false, false, it.placed);
        if asks {
            it.wonders = it.peer == Peer::Unknown && it.asked[1] == 0;
            it.asked = [it.asked[1], it.framed];
            it.octets = 0;
        }
        Ok(())
    }

    /// Says hello with the first segment.
    pub(crate) fn hello<M: Memory>(&mut self, out: &mut Out<'_, M>) -> Result<(), Unmapped> {
        self.iwarp.placement.hello = false;
        out.frame(&Placed { hello: true, ..Placed::default() }.header(), &[])
    }

    /// The peer says something.
    pub(crate) fn heard(&mut self, said: Placed, shared: &mut Shared) -> Result<(), Cause> {
        let it = &mut self.iwarp.placement;
        if it.peer != Peer::Ours {
            return Ok(());
        }
        if said.count > it.framed {
            return Err(Cause::OPERATION);
        }
        if said.asks && !it.owed {
            (it.owed, it.rides, it.since) = (true, false, shared.now);
        }
        it.passed(said.count);
        self.release(shared);
        Ok(())
    }
}
