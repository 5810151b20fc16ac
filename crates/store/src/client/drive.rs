//! The verbs by which a caller drives a client: output, response, event, deadline and tick.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError, Slice};

use super::answer::Done;
use super::op::Op;
use super::send::Call;
use super::state::{Client, Kind, NONE, State};

/// The longest key and value of an operation that goes out directly, in bytes. The transport copies
/// the request, where it takes over the buffer of another one.
pub(super) const DIRECT_MOST: usize = 4096;

impl Client {
    /// Returns the client's next output: a call or a change of links. Call it until `None` after
    /// every operation, `response` and `tick`.
    #[inline]
    pub fn output(&mut self, now: Instant) -> Option<Output> {
        loop {
            if let Some(output) = self.out.pop_front() {
                return Some(output);
            }
            let index = match self.ready.pop_front() {
                Some(index) => index,
                None => core::mem::replace(&mut self.newest, NONE),
            };
            if index == NONE {
                if !self.send_bundle(now) {
                    return None;
                }
            } else if self.slots[index as usize].state == State::Ready {
                self.send(now, index);
            }
        }
    }

    /// Returns the call of an operation on an object that has just started, if the call can go out
    /// at once and its bytes are few. Otherwise [`Client::output`] returns it when its turn comes.
    /// Give the bytes back by [`Client::sent`].
    #[inline(always)]
    pub fn direct(&mut self, now: Instant, op: Op) -> Option<Call> {
        let index = self.newest;
        let slot = self.slots.get(index as usize)?;
        let is_next = super::state::op(index, slot) == op && slot.state == State::Ready;
        let is_short = slot.bytes.len() <= DIRECT_MOST && slot.extra.is_none();
        if !is_next || !is_short || !slot.kind.is_object() {
            return None;
        }
        self.newest = NONE;
        self.call_directly(now, index)
    }

    /// Takes back the bytes of the call of [`Client::direct`], which was sent.
    #[inline]
    pub fn sent(&mut self, op: Op, bytes: Vec<u8>) {
        if let Some(slot) = self.slots.get_mut(op.index()) {
            slot.bytes = bytes;
        }
    }

    /// Returns true if [`Client::output`] or [`Client::event`] may return something.
    #[must_use]
    #[inline]
    pub fn has_output(&self) -> bool {
        self.newest != NONE
            || !self.out.is_empty()
            || !self.ready.is_empty()
            || !self.bundles.is_empty()
            || !self.events.is_empty()
    }

    /// Takes the result of a call, and returns the operation that ended by it, if one did.
    #[inline(always)]
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
        if self.any_unreachable && result.is_ok() {
            self.reached(index);
        }
        match self.slots[index as usize].kind {
            Kind::Bundle => return self.bundle_ended(now, index, result),
            Kind::Step => return self.step_ended(now, index, result),
            _ => {}
        }
        match result {
            Ok(reply) => self.answered(now, index, reply),
            Err(error) => self.failed(now, index, error),
        }
    }

    /// Records why the server of a link cannot be reached, for error texts.
    pub fn unreachable(&mut self, link: Link, why: &str) {
        if let Some(peer) = self.routes.peers.get_mut(link.0 as usize) {
            (peer.why, peer.leaderless) = (Some(why.into()), false);
            self.any_unreachable = true;
        }
    }

    /// Returns an operation that ended otherwise than by [`Client::response`]. Call it until `None`
    /// after every other verb.
    #[inline]
    pub fn event(&mut self) -> Option<Done<'static>> {
        self.events.pop_front()
    }

    /// Takes the buffer of a request that was sent, so that the next request can use it.
    #[inline]
    pub fn spare(&mut self, buffer: Vec<u8>) {
        self.spare = buffer;
    }

    /// Returns the bytes of a slice of a request, if the client has them. The caller has the bytes
    /// of the value that it lends.
    #[must_use]
    pub fn bytes(&self, slice: Slice) -> &[u8] {
        self.values.bytes(slice)
    }

    /// Takes a slice of a request back that no transport needs any more.
    pub fn released(&mut self, slice: Slice) {
        self.values.release(slice.segment);
    }

    /// Returns true if the value of [`Client::write_lent`] is lent to the client, and not copied.
    #[must_use]
    pub fn is_lending(&self) -> bool {
        self.values.is_lending()
    }

    /// Ends the loan of `value`, because its operation has ended. If a request that was sent needs
    /// it longer, the client copies it.
    pub fn give_back(&mut self, value: &[u8]) {
        self.values.give_back(value);
    }

    /// Returns the time when [`Client::tick`] is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(at, _)| *at);
        timer.into_iter().chain(self.rifl.renew_at()).min()
    }

    /// Sends operations again whose pause is over, ends those whose deadline has passed, and renews
    /// the lease, as far as that is due at `now`.
    pub fn tick(&mut self, now: Instant) {
        while let Some(&(at, index)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let slot = &mut self.slots[index as usize];
            slot.extra().timer = None;
            if slot.deadline <= now && !slot.kind.is_transaction() {
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
