//! Memory of connections that is read before it is needed. A host of many connections waits for
//! memory at most of its steps: read for a burst of connections at a time, the waits overlap.

use core::hint::black_box;

use arrayvec::ArrayVec;

use super::{Entry, TcpFlow, TcpHost};
use crate::Instant;
use crate::net::tcp::connection::{Connection, Phase};
use crate::net::tcp::flow::Ends;

/// The number of connections whose memory is read at a time.
const AHEAD: usize = 32;
/// The connections whose memory a cache has room for.
const CACHED: usize = 500;

impl Entry {
    /// Reads a field of each 64 bytes of the memory of a connection, in their order.
    fn touch(&self) -> u64 {
        let Connection { send, timers, receive, .. } = &self.connection;
        let fields = [
            u64::from(send.congestion.window()),
            u64::from(send.board.lost()),
            u64::from(send.phase == Phase::Open),
            send.data.len() as u64,
            u64::from(send.una.0),
            u64::from(receive.lent()),
            timers.retransmit.as_ns(),
            timers.keep_alive.as_ns(),
            self.timer.as_ns(),
            u64::from(self.ends.kind()),
        ];
        fields.into_iter().fold(0, |sum, field| sum ^ field)
    }
}

impl TcpHost {
    /// Returns true if the memory of the connections is more than a cache has room for. Then none
    /// keeps memory or a timer for its next segments: both would be read again when they are in no
    /// cache any more.
    pub(in crate::net) fn has_many(&self) -> bool {
        self.connections() >= CACHED
    }

    /// Returns the index of the connection of a flow, and remembers it for the next segments.
    #[inline]
    pub(super) fn find_again(&mut self, flow: &TcpFlow) -> Option<u32> {
        let ends = Ends::from(flow);
        let recent = self.recent.get(&ends).filter(|index| self.is_at(&ends, *index));
        recent.or_else(|| {
            let index = self.find(flow)?;
            self.recent.set(&ends, index);
            Some(index)
        })
    }

    /// Prepares for the segments of these flows, which [`TcpHost::input`] gets next: finds their
    /// connections, and reads what the host has of them. A host of few connections has it in its
    /// cache.
    pub fn look_ahead(&mut self, flows: &[TcpFlow]) {
        if !self.has_many() {
            return;
        }
        for flows in flows.chunks(AHEAD) {
            // One step for all flows after the other: each step waits for the memory of the last
            // one.
            let mut found: ArrayVec<_, AHEAD> = flows
                .iter()
                .map(|flow| {
                    let ends = Ends::from(flow);
                    (ends, self.flows.hash(&ends))
                })
                .collect();
            found.iter_mut().for_each(|(_, at)| *at = self.flows.first(*at).unwrap_or(u32::MAX));
            self.touch_all(found.iter().map(|&(_, index)| index));
            found.iter().for_each(|(ends, index)| self.recent.set(ends, *index));
        }
    }

    /// Reads what the host has of the connections with these indexes.
    pub(super) fn touch_all(&self, indexes: impl IntoIterator<Item = u32>) {
        let entries = indexes.into_iter().filter_map(|index| self.entries.get(index as usize));
        black_box(entries.flatten().fold(0, |sum, entry| sum ^ entry.touch()));
    }

    /// Reads what the host has of the connections whose timers expire next, if it has not done so
    /// already: `n` of them have expired so far.
    pub(super) fn timers_ahead(&self, now: Instant, n: usize) {
        if n.is_multiple_of(AHEAD) && self.has_many() {
            let expired = self.timers.iter().take_while(|&&(at, _)| at <= now);
            self.touch_all(expired.take(AHEAD).map(|&(_, index)| index));
        }
    }
}
