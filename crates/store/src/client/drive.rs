//! The verbs by which the world drives a client.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError};

use super::answer::Done;
use super::state::{Client, State};

impl Client {
    /// Returns the next thing to do. Call it until `None` after every operation, `response` and
    /// `tick`.
    #[inline]
    pub fn output(&mut self, now: Instant) -> Option<Output> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        while let Some(index) = self.ready.pop_front() {
            if self.slots[index as usize].state == State::Ready
                && let Some(output) = self.send(now, index)
            {
                return Some(output);
            }
        }
        None
    }

    /// Takes the result of a call, and returns the operation that ended by it, if one did.
    #[inline]
    pub fn response<'b>(
        &mut self,
        now: Instant,
        tag: u64,
        result: Result<Payload<'b>, RpcError>,
    ) -> Option<Done<'b>> {
        let index = self.live(tag)?;
        if self.slots[index as usize].state != State::Calling {
            return None;
        }
        if self.doubts && result.is_ok() {
            self.reached(index);
        }
        match result {
            Ok(reply) => self.answered(now, index, reply),
            Err(error) => self.failed(now, index, error),
        }
    }

    /// Records why the server of a link cannot be reached, for error texts.
    pub fn unreachable(&mut self, link: Link, why: &str) {
        if let Some(peer) = self.routes.peers.get_mut(link.0 as usize) {
            peer.why = Some(why.into());
            self.doubts = true;
        }
    }

    /// Returns an operation that ended otherwise than by [`Client::response`]. Call it until `None`
    /// after every other verb.
    #[inline]
    pub fn event(&mut self) -> Option<Done<'static>> {
        self.events.pop_front()
    }

    /// Takes the buffer of a request that was sent, for the next request.
    #[inline]
    pub fn spare(&mut self, buffer: Vec<u8>) {
        self.spare = buffer;
    }

    /// Returns the time of the next [`Client::tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.rifl.renew_at()).min()
    }

    /// Does what is due at `now`.
    pub fn tick(&mut self, now: Instant) {
        while let Some(&(at, index)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let slot = &mut self.slots[index as usize];
            slot.timer = None;
            if slot.deadline <= now {
                self.end_late(index);
            } else {
                slot.state = State::Ready;
                self.ready.push_back(index);
            }
        }
        if self.rifl.renew_at().is_some_and(|at| at <= now) {
            self.ask_for_lease();
        }
    }
}
