//! Memory of connections that is read before it is needed. A host of many connections waits for
//! memory at most of its steps: read for a burst of connections at a time, the waits overlap.

use core::hint::black_box;

use arrayvec::ArrayVec;

use super::{Entry, TcpFlow, TcpHost};
use crate::Instant;
use crate::net::tcp::connection::{Connection, Spare};
use crate::net::tcp::flow::Ends;

/// The number of connections whose memory is read at a time.
const AHEAD: usize = 32;
/// The cache lines of a connection.
const LINES: usize = size_of::<Entry>() / align_of::<Entry>();
/// The connections whose memory a cache has room for.
const CACHED: usize = 256;

impl Entry {
    /// Reads a field of each cache line, so that the memory of a connection is in the cache.
    #[inline]
    fn fetch(&self) -> u64 {
        let Connection { send, timers, receive, .. } = &self.connection;
        let fields: [u64; LINES] = [
            u64::from(send.congestion.window()),
            u64::from(send.board.lost()),
            u64::from(send.probe.may_be_sent()),
            send.last_at.as_ns(),
            u64::from(send.una.0),
            u64::from(receive.next().0),
            timers.retransmit.as_ns(),
            timers.keep_alive.as_ns(),
            self.timer.as_ns(),
        ];
        fields.into_iter().fold(0, |sum, field| sum ^ field)
    }

    /// Prepares a connection of many for data of its program: its cache lines come together, and
    /// its buffers from what others have given back.
    pub(super) fn prepare_to_send(&mut self, spare: &mut Spare) {
        black_box(self.fetch());
        self.connection.take_spare(spare);
    }

    /// Reads the memory that a connection has elsewhere, if it waits for an acknowledgement.
    #[inline]
    fn fetch_rest(&self) -> u64 {
        self.connection.send.board.segments().front().map_or(0, |sent| sent.at.as_ns())
    }
}

impl TcpHost {
    /// Returns true if the memory of the connections is more than a cache has room for. Then an
    /// idle one keeps neither buffers nor a timer for its next segments: both would be read again
    /// when they are in no cache any more.
    pub(super) fn has_many(&self) -> bool {
        self.connections() >= CACHED
    }

    /// Returns the index of the connection of a flow, and remembers it for the next segments.
    #[inline]
    pub(super) fn find_again(&mut self, flow: &TcpFlow) -> Option<u32> {
        let ends = Ends::from(flow);
        let recent = self.recent.get(&ends).filter(|index| self.is_at(&ends, *index));
        recent.or_else(|| {
            let index = self.find_ends(&ends)?;
            self.recent.set(&ends, index);
            Some(index)
        })
    }

    /// Prepares for the segments of these flows, which [`TcpHost::input`] gets next: finds their
    /// connections, and reads what the host has of them. A host of few connections has it in its
    /// cache, and takes none of the flows.
    pub fn look_ahead(&mut self, flows: impl IntoIterator<Item = TcpFlow>) {
        if !self.has_many() {
            return;
        }
        let mut flows = flows.into_iter();
        loop {
            // One step for all flows after the other: each step waits for the memory of the last
            // one.
            let mut found: ArrayVec<(Ends, u32), AHEAD> = ArrayVec::new();
            for flow in flows.by_ref().take(AHEAD) {
                let ends = Ends::from(&flow);
                found.push((ends, self.flows.hash(&ends)));
            }
            if found.is_empty() {
                return;
            }
            found.iter_mut().for_each(|(_, at)| *at = self.flows.first(*at).unwrap_or(u32::MAX));
            self.fetch_all(found.iter().map(|&(_, index)| index));
            for (ends, index) in found.iter().filter(|(_, index)| *index < u32::MAX) {
                self.recent.set(ends, *index);
            }
        }
    }

    /// Reads what the host has of the connections with these indexes.
    pub(super) fn fetch_all(&self, indexes: impl IntoIterator<Item = u32> + Clone) {
        let entries = || indexes.clone().into_iter().filter_map(|index| self.entries.get(index));
        black_box(entries().fold(0, |sum, entry| sum ^ entry.fetch()));
        black_box(entries().fold(0, |sum, entry| sum ^ entry.fetch_rest()));
    }

    /// Reads what the host has of the connections whose timers expire next, if it has not done so
    /// already: `n` of them have expired so far.
    pub(super) fn timers_ahead(&self, now: Instant, n: usize) {
        if n.is_multiple_of(AHEAD) && self.has_many() {
            let expired = self.timers.iter().take_while(|&&(at, _)| at <= now);
            self.fetch_all(expired.take(AHEAD).map(|&(_, index)| index));
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;
    use core::mem::offset_of;

    use super::*;
    use crate::Rng;
    use crate::net::tcp::TcpConfig;
    use core::net::SocketAddr;

    /// [`Entry::fetch`] reads each cache line of a connection, as the compiler places the fields.
    #[test]
    fn each_line_of_a_connection_is_read() {
        let read: [_; LINES] = [
            offset_of!(Entry, connection.send.congestion),
            offset_of!(Entry, connection.send.board),
            offset_of!(Entry, connection.send.probe),
            offset_of!(Entry, connection.send.last_at),
            offset_of!(Entry, connection.send.una),
            offset_of!(Entry, connection.receive.next),
            offset_of!(Entry, connection.timers.retransmit),
            offset_of!(Entry, connection.timers.keep_alive),
            offset_of!(Entry, timer),
        ];
        let lines: BTreeSet<_> = read.iter().map(|at| at / align_of::<Entry>()).collect();
        assert!(lines.into_iter().eq(0..LINES), "{read:?}");
        assert_eq!(size_of::<Option<Entry>>(), size_of::<Entry>());
    }

    /// The host finds the right connection of flows that
    /// [`Recent`](crate::net::tcp::flow::Recent) takes for one, also after a look ahead. A flow
    /// without a connection has none of them.
    #[test]
    fn flows_with_one_mark_are_told_apart() {
        let mut host = TcpHost::new(TcpConfig::default(), 2 * CACHED, Rng::seeded(1));
        // Their own address is not in the mark.
        let flow = |n: usize| TcpFlow {
            local: SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 5000)),
            peer: SocketAddr::from(([10, 1, 0, 1], 7)),
        };
        for n in 0..CACHED {
            let TcpFlow { local, peer } = flow(n);
            host.connect(Instant::from_ns(1), local, peer).unwrap();
        }
        assert!(host.has_many());
        for round in 0..2 {
            for n in 0..CACHED {
                let index = host.find(&flow(n));
                assert!(index.is_some());
                assert_eq!(host.find_again(&flow(n)), index, "{round}");
                assert_eq!(host.find_again(&flow(CACHED)), None);
            }
            host.look_ahead((0..=CACHED).map(flow));
        }
    }
}
