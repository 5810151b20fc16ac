//! Input: bursts of frames, the data that they lend, and what happened to connections.
//!
//! Always holds: bytes of a receive buffer are read only in a turn in which all lent data of their
//! connection was taken, since what is lent comes first.

use sprat_proto::Instant;
use sprat_proto::net::tcp::{TcpChanges, TcpId};
use sprat_proto::rpc::CloseReason;
use sprat_proto::rpc::budget::EXEMPT_BYTES;

use super::Utcp;
use super::connection::{Read, Wire, failure};

impl Utcp {
    /// Receives a burst of frames, and handles what has happened to connections. Returns a number
    /// that is 0 only if there is no input, and nothing to send because of it: an acknowledgement
    /// lets more of a message leave and is no event.
    #[inline]
    pub(super) fn input_burst(&mut self, now: Instant) -> usize {
        let carrier = &mut self.carrier;
        carrier.interface.set_now(now);
        let before = carrier.interface.stack().counters().received;
        carrier.interface.input();
        let stack = carrier.interface.stack();
        let is_answered = stack.counters().received != before && !stack.is_idle();
        carrier.piece = 0;
        carrier.burst += 1;
        let mut count = carrier.interface.stack().lent_tcp();
        while let Some((id, changes)) = self.carrier.tcp().event() {
            self.changed(now, id, changes);
            count += 1;
        }
        count + usize::from(is_answered) + self.carrier.ready.len()
    }

    /// Handles what has happened to a connection.
    fn changed(&mut self, now: Instant, id: TcpId, changes: TcpChanges) {
        let slot = match self.carrier.slot(id) {
            Some(slot) => slot,
            None if changes.opened => match self.accept(now, id) {
                Some(slot) => slot,
                None => return,
            },
            None => return self.carrier.reset(id),
        };
        let Some(link) = self.link(slot) else { return };
        if link.connecting.is_some() {
            if changes.ended {
                let error = self.carrier.tcp().error(id);
                return self.try_others(now, slot, failure(error));
            }
            if !changes.opened {
                return;
            }
            self.connected(slot);
        }
        let Some(link) = self.link(slot) else { return };
        link.wire.unread |= changes.readable || changes.ended;
        if changes.ended && !link.goes_on() {
            return self.end(slot, CloseReason::Reset);
        }
        let was_blocked = link.wire.blocked && changes.writable;
        link.wire.blocked &= !changes.writable;
        self.stream_changed(slot);
        if was_blocked {
            self.mark_dirty(slot);
        }
    }

    /// Takes a connection that a peer has opened. Returns its slot, or none if the transport is
    /// full.
    fn accept(&mut self, now: Instant, id: TcpId) -> Option<u16> {
        if self.is_full() {
            self.carrier.accept_errors += 1;
            self.carrier.reset(id);
            return None;
        }
        let slot = self.insert_accepted(now, Wire::new(id));
        self.carrier.set_slot(id, slot);
        Some(slot)
    }

    /// Takes the next piece of lent data that a stream wants. False if there is none.
    #[inline]
    pub(super) fn receive_lent(&mut self, now: Instant) -> bool {
        while self.carrier.piece < self.carrier.interface.stack().lent_tcp() {
            let piece = self.carrier.piece;
            let (id, bytes) = self.carrier.interface.tcp_data(piece);
            let count = bytes.len();
            if count == 0 {
                self.carrier.piece += 1;
                continue;
            }
            let slot = self.carrier.slot(id).unwrap_or(u16::MAX);
            let found = self.link_and_shared(slot).filter(|(link, _)| link.wire.id == id);
            let Some((link, shared)) = found else {
                self.carrier.interface.take_tcp(piece, count);
                continue;
            };
            let carrier = shared.carrier;
            if link.wire.left_in == carrier.burst || link.wire.unread || !link.goes_on() {
                link.wire.left_in = carrier.burst;
                carrier.piece += 1;
                continue;
            }
            let (_, bytes) = carrier.interface.tcp_data(piece);
            let most = if shared.budget.has_waiting() { EXEMPT_BYTES } else { shared.buffer.len() };
            match link.take(now, bytes, &mut shared.buffer[..most], shared.ids) {
                Read::Bytes(count) => {
                    carrier.interface.take_tcp(piece, count);
                    self.buffer_filled(slot, 0, count);
                }
                Read::Body(event, count) => {
                    carrier.interface.take_tcp(piece, count);
                    shared.budget.brought(now, u32::from(slot), count);
                    link.silent_until = Instant::NEVER;
                    self.found = event;
                    self.stream_changed(slot);
                }
                Read::Nothing | Read::End => {}
            }
            return true;
        }
        false
    }

    /// Reads the receive buffer of a connection once. False if none waits to be read.
    pub(super) fn receive_kept(&mut self, now: Instant) -> bool {
        while let Some(slot) = self.carrier.ready.pop_front() {
            let Some((link, shared)) = self.link_and_shared(slot) else { continue };
            link.wire.queued = false;
            let carrier = shared.carrier;
            // What was left of the burst is in the buffer at the next turn, before the rest.
            if !link.wire.unread || link.wire.left_in == carrier.burst || !link.goes_on() {
                continue;
            }
            let most = if shared.budget.has_waiting() { EXEMPT_BYTES } else { shared.buffer.len() };
            let buffer = &mut shared.buffer[..most];
            match link.read(now, carrier.tcp(), buffer, shared.ids) {
                Read::Nothing => {
                    link.wire.unread = false;
                    continue;
                }
                Read::Bytes(count) => {
                    link.wire.queued = true;
                    carrier.ready.push_back(slot);
                    self.buffer_filled(slot, 0, count);
                }
                Read::Body(event, count) => {
                    shared.budget.brought(now, u32::from(slot), count);
                    link.silent_until = Instant::NEVER;
                    self.found = event;
                    self.stream_changed(slot);
                }
                Read::End => self.end(slot, CloseReason::Reset),
            }
            return true;
        }
        false
    }
}
