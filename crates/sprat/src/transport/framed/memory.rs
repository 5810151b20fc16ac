//! The memory of all connections of a transport, within limits: requests of which a part has
//! arrived, and replies that wait to be written.
//!
//! A request takes room for its whole length from [`sprat_proto::rpc::budget`] before more than its
//! first bytes are kept. A connection that waits for room is not read; it keeps what one read
//! brought: 64 KiB, or 4 KiB while another waits already.

use sprat_proto::Instant;
use sprat_proto::rpc::CloseReason;
use sprat_proto::rpc::stream::Role;
use sprat_proto::time::SECOND;

use super::Framed;
use super::carrier::Carrier;

/// The limit of replies that wait to be written, in bytes on all connections together. From there
/// on, connections with many such bytes are not read. The datagram transport refuses requests from
/// there on.
pub(super) const MAX_UNSENT: usize = 256 << 20;
/// The number of unsent bytes from which on a connection counts as one with many.
const MANY_UNSENT: usize = 64 << 10;
/// The time without progress, in nanoseconds, after which a connection whose peer takes no reply
/// ends. This releases the memory of the replies. The datagram transport gives up a reply of this
/// age.
pub(super) const PROGRESS_NS: u64 = 30 * SECOND;

impl<C: Carrier> Framed<C> {
    /// Counts the replies of `slot` that wait to be written, and pauses its input while it has many
    /// and all connections together have too many.
    #[inline]
    pub(super) fn count_unsent(&mut self, slot: u16) {
        let (all, until) = (self.unsent, self.now.after(PROGRESS_NS));
        let Some(link) = self.link(slot).filter(|link| link.stream.role() == Role::Server) else {
            return;
        };
        let (before, now) = (link.unsent, link.stream.unsent() + C::unread_by_peer(&link.wire));
        if before == now {
            return;
        }
        link.unsent = now;
        if now == 0 {
            link.progress_until = Instant::NEVER;
        } else if now < before || before == 0 {
            link.progress_until = until;
        }
        let due = link.progress_until;
        let all = all - before + now;
        link.stream.set_paused(now >= MANY_UNSENT && all >= MAX_UNSENT);
        self.unsent = all;
        self.due_by(slot, due);
    }

    /// Takes room in the budget for the connection's request of which a part has arrived, and
    /// returns the room of its previous request.
    #[cold]
    pub(super) fn request_room(&mut self, slot: u16) {
        let (now, name) = (self.now, u32::from(slot));
        let Some((link, shared)) = self.link_and_shared(slot) else { return };
        if link.room > 0 {
            shared.budget.leave(now, name);
        }
        link.room = link.stream.assembling();
        let waits = link.room > 0 && !shared.budget.take(now, name, link.room);
        link.stream.set_waiting(waits);
        self.resume_granted();
    }

    /// Resumes the connections that waited for room in the budget and have it now.
    pub(crate) fn resume_granted(&mut self) {
        while let Some(name) = self.budget.granted() {
            let slot = name as u16;
            let Some(link) = self.link(slot) else { continue };
            link.stream.set_waiting(false);
            C::room_granted(link);
            self.stream_changed(slot);
            self.mark_dirty(slot);
        }
    }

    /// Ends the connections whose requests have stopped arriving.
    pub(super) fn end_stalled(&mut self, now: Instant) {
        self.budget.tick(now);
        while let Some(name) = self.budget.late() {
            self.counters.stalled += 1;
            self.end(name as u16, CloseReason::Unreachable);
        }
    }
}
