//! Bundles: requests that carry several parts of multi-operations to one master.
//!
//! ```text
//!  parts that are ready ─► bundle of their master ─► one call ─► one reply ─► each part's end
//! ```
//!
//! A part takes the way of an operation that comes alone: it waits for tablets, a lease or a pause
//! by itself, and then goes into the bundle that is open for its master. A bundle goes out when it
//! is full, or when nothing else is ready.
//!
//! Invariant: no bundle is open after [`Client::output`] has returned `None`.

use sprat_proto::Instant;
use sprat_proto::rpc::{Payload, RpcError};

use super::answer::{Answer, Done};
use super::op::Op;
use super::state::{Client, Kind, State, op};
use crate::message::data::Refusal;
use crate::message::multi;
use crate::ops::MOST_PARTS;

/// The longest request of a bundle in bytes, unless its only part is longer. While the master
/// executes one, the client assembles the next.
const MOST_BYTES: usize = 8 << 10;

impl Client {
    /// Adds a part, whose request is complete, to the bundle of the master `peer`.
    pub(super) fn bundle(&mut self, now: Instant, index: u32, peer: u32) {
        let len = multi::PART_HEAD + self.slots[index as usize].bytes.len();
        let mut open = self.open_bundle(peer);
        if self.slots[open as usize].bytes.len() + len > MOST_BYTES && self.bundled(open) > 0 {
            self.send_bundle_in(now, open);
            open = self.open_bundle(peer);
        }
        let slot = &mut self.slots[index as usize];
        slot.state = State::Calling;
        let (part, deadline) = (op(index, slot), slot.deadline);
        let bytes = core::mem::take(&mut slot.bytes);
        let bundle = &mut self.slots[open as usize];
        multi::append(&mut bundle.bytes, &bytes);
        bundle.deadline = bundle.deadline.min(deadline);
        bundle.extra().bundled.push(part);
        self.slots[index as usize].bytes = bytes;
        if self.bundled(open) == MOST_PARTS {
            self.send_bundle_in(now, open);
        }
    }

    /// Returns the number of parts in a bundle.
    fn bundled(&self, bundle: u32) -> usize {
        self.slots[bundle as usize].extra.as_ref().map_or(0, |extra| extra.bundled.len())
    }

    /// Returns the slot of the bundle that is open for `peer`, which is new if there was none.
    fn open_bundle(&mut self, peer: u32) -> u32 {
        let is_of = |&&bundle: &&u32| self.slots[bundle as usize].place == peer;
        if let Some(&open) = self.bundles.iter().find(is_of) {
            return open;
        }
        let index = self.begin(Kind::Bundle, peer, Instant::NEVER);
        let slot = &mut self.slots[index as usize];
        slot.bytes = core::mem::take(&mut self.spare);
        multi::begin_request(&mut slot.bytes);
        slot.bytes.reserve(MOST_BYTES);
        self.bundles.push(index);
        index
    }

    /// Queues the call of an open bundle. Returns false if none is open.
    pub(super) fn send_bundle(&mut self, now: Instant) -> bool {
        let Some(&index) = self.bundles.last() else { return false };
        self.send_bundle_in(now, index);
        true
    }

    fn send_bundle_in(&mut self, now: Instant, index: u32) {
        self.bundles.retain(|&bundle| bundle != index);
        let slot = &self.slots[index as usize];
        let peer = slot.place;
        match slot.extra.as_ref().map(|extra| &extra.bundled[..]) {
            // A single part goes as an operation that comes alone.
            Some(&[part]) => {
                self.end(index);
                if let Some(index) = self.bundled_part(part) {
                    self.queue_call(now, index, peer);
                }
            }
            bundled => {
                self.counters.bundles += 1;
                let parts = bundled.map_or(0, <[_]>::len) as u64;
                self.counters.saved_round_trips += parts.saturating_sub(1);
                self.queue_call(now, index, peer);
            }
        }
    }

    /// Returns the slot of a part in a bundle, if it was not cancelled since.
    fn bundled_part(&self, part: Op) -> Option<u32> {
        self.live(part.0).filter(|&index| self.slots[index as usize].state == State::Calling)
    }

    /// Takes the result of a bundle's call. Returns a multi-operation that ended by it.
    #[cold]
    pub(super) fn bundle_ended(
        &mut self,
        now: Instant,
        index: u32,
        result: Result<Payload<'_>, RpcError>,
    ) -> Option<Done<'static>> {
        let parts = core::mem::take(&mut self.slots[index as usize].extra().bundled);
        self.end(index);
        match result {
            Ok(reply) => match multi::Parts::of_reply(&reply) {
                Ok(replies) => {
                    self.expect_values(&parts, reply.len());
                    self.bundle_answered(now, &parts, replies);
                }
                Err(refusal) => self.bundle_refused(now, &parts, &refusal),
            },
            Err(error) => {
                for &part in &parts {
                    if let Some(index) = self.bundled_part(part) {
                        let done = self.failed(now, index, error);
                        self.events.extend(done);
                    }
                }
            }
        }
        self.event()
    }

    /// Makes room for the values in a reply of this length, so that they are not copied twice.
    fn expect_values(&mut self, parts: &[Op], len: usize) {
        let index = parts.iter().find_map(|&part| self.bundled_part(part));
        if let Some(part) = index.and_then(|index| self.slots[index as usize].part_of) {
            self.results(part.multi).reserve(len);
        }
    }

    fn bundle_answered(&mut self, now: Instant, parts: &[Op], mut replies: multi::Parts<'_>) {
        for &part in parts {
            let reply = replies.next();
            let Some(index) = self.bundled_part(part) else { continue };
            match reply {
                Some(reply) => self.part_answered(now, index, reply),
                // The master has not executed it.
                None => self.go_on(index),
            }
        }
    }

    fn part_answered(&mut self, now: Instant, index: u32, reply: &[u8]) {
        let slot = &self.slots[index as usize];
        let (Kind::Server(request), Some(part)) = (slot.kind, slot.part_of) else { return };
        let done = match request.completion(reply) {
            Ok(parsed) => {
                self.end(index);
                self.part_ended(part, Ok(Answer::new(parsed, Payload::Borrowed(reply), None)))
            }
            Err(refusal) => self.refused(now, index, &refusal),
        };
        self.events.extend(done);
    }

    fn bundle_refused(&mut self, now: Instant, parts: &[Op], refusal: &Refusal<'_>) {
        for &part in parts {
            if let Some(index) = self.bundled_part(part) {
                let done = self.refused(now, index, refusal);
                self.events.extend(done);
            }
        }
    }
}
