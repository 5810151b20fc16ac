//! The requests of one stream that wait for their replies. The peer names a request by its sequence
//! number, the caller by its id, and time by its deadline.
//!
//! Always holds: sequence numbers and ids grow together, so that one queue answers for both by
//! binary search; every request with a deadline has an entry in `deadlines`; at most half of those
//! entries and 64 more are stale, that is, belong to requests that are gone.

use alloc::collections::BinaryHeap;
use core::cmp::{Ordering, Reverse};

use super::head::SEQ_MASK;
use super::ordered::Ordered;
use crate::Instant;
use crate::rpc::types::RpcId;

/// A request of a stream that waits for its reply.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) tag: u64,
    /// True if the last byte of the request has been written.
    pub(super) sent: bool,
}

/// The sequence number and the id of a request. Both are larger than those of every earlier
/// request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Numbers {
    seq: u64,
    id: u64,
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    waiting: Ordered<Numbers, Request>,
    /// The deadline and sequence number of each request that has a deadline, earliest first.
    deadlines: BinaryHeap<Reverse<(Instant, u64)>>,
}

fn by_seq(seq: u64) -> impl Fn(&Numbers) -> Ordering {
    move |numbers| numbers.seq.cmp(&seq)
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds a request that waits for its reply. Its numbers exceed those of all requests before.
    pub(super) fn push(&mut self, seq: u64, id: RpcId, tag: u64, deadline: Instant) {
        self.waiting.push(Numbers { seq, id: id.0 }, Request { tag, sent: false });
        if deadline != Instant::NEVER {
            self.deadlines.push(Reverse((deadline, seq)));
        }
    }

    /// True if the sequence number `seq` would look like an older request's on the wire, where
    /// sequence numbers have 29 bits.
    pub(super) fn is_ambiguous(&self, seq: u64) -> bool {
        self.waiting.oldest().is_some_and(|oldest| seq - oldest.seq > u64::from(SEQ_MASK) / 2)
    }

    pub(super) fn contains(&self, seq: u64) -> bool {
        self.waiting.find(by_seq(seq)).is_some()
    }

    /// The sequence number of the waiting request with this id.
    pub(super) fn seq(&self, id: RpcId) -> Option<u64> {
        self.waiting.find(|numbers| numbers.id.cmp(&id.0)).map(|numbers| numbers.seq)
    }

    /// Records that the last byte of a request has been written.
    pub(super) fn was_sent(&mut self, seq: u64) {
        if let Some(request) = self.waiting.get_mut(by_seq(seq)) {
            request.sent = true;
        }
    }

    /// Removes the waiting request with the sequence number `seq` and returns it with its id.
    pub(super) fn take(&mut self, seq: u64) -> Option<(RpcId, Request)> {
        let (numbers, request) = self.waiting.take(by_seq(seq))?;
        if self.deadlines.len() > 2 * self.waiting.len() + 64 {
            let waiting = &self.waiting;
            self.deadlines.retain(|Reverse((_, seq))| waiting.find(by_seq(*seq)).is_some());
        }
        Some((RpcId(numbers.id), request))
    }

    /// Removes all waiting requests and returns them with their ids, oldest first.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (RpcId, Request)> {
        self.deadlines.clear();
        self.waiting.drain().map(|(numbers, request)| (RpcId(numbers.id), request))
    }

    /// A time not later than the first deadline of a waiting request.
    pub(super) fn deadline(&self) -> Instant {
        self.deadlines.peek().map_or(Instant::NEVER, |Reverse((deadline, _))| *deadline)
    }

    /// The sequence number of a waiting request whose deadline has passed, earliest deadline first;
    /// the caller takes that request out before the next call. After `None`, [`Requests::deadline`]
    /// is exact.
    pub(super) fn next_late(&mut self, now: Instant) -> Option<u64> {
        while let Some(&Reverse((deadline, seq))) = self.deadlines.peek() {
            let waits = self.contains(seq);
            if waits && deadline > now {
                return None;
            }
            self.deadlines.pop();
            if waits {
                return Some(seq);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;
    use alloc::vec::Vec;

    use super::*;
    use crate::Rng;

    fn late(requests: &mut Requests, now: u64) -> Vec<u64> {
        let mut late = Vec::new();
        while let Some(seq) = requests.next_late(Instant::from_ns(now)) {
            assert!(requests.take(seq).is_some());
            late.push(seq);
        }
        late
    }

    /// Compares the table of waiting requests with a map: replies, cancels and deadlines in random
    /// order. Entries of requests that are gone must not gather, or one long deadline each would
    /// fill memory.
    #[test]
    fn agrees_with_a_map_and_keeps_no_stale_deadlines() {
        let mut rng = Rng::seeded(11);
        let (mut requests, mut map) = (Requests::default(), BTreeMap::new());
        let (mut now, mut id) = (0, 0);
        for seq in 1..20_000_u64 {
            id += 1 + rng.below(3);
            let deadline = if rng.chance(100_000) { u64::MAX } else { now + 1 + rng.below(3000) };
            requests.push(seq, RpcId(id), seq, Instant::from_ns(deadline));
            map.insert(seq, (id, deadline));
            while map.len() as u64 > rng.below(60) {
                let wanted = map.range(rng.below(seq)..).next().map(|(seq, (id, _))| (*seq, *id));
                let Some((wanted, id)) = wanted else { continue };
                assert_eq!(requests.seq(RpcId(id)), Some(wanted));
                let taken = requests.take(wanted).map(|(id, request)| (id.0, request.tag));
                assert_eq!(taken, Some((id, wanted)));
                assert_eq!((requests.seq(RpcId(id)), requests.contains(wanted)), (None, false));
                map.remove(&wanted);
            }
            now += rng.below(100);
            let mut expected: Vec<_> =
                map.iter().map(|(seq, (_, at))| (*at, *seq)).filter(|(at, _)| *at <= now).collect();
            expected.sort_unstable();
            let expected: Vec<_> = expected.into_iter().map(|(_, seq)| seq).collect();
            assert_eq!(late(&mut requests, now), expected);
            map.retain(|_, (_, at)| *at > now);
            let first = map.values().map(|(_, at)| *at).min().unwrap_or(u64::MAX);
            assert_eq!((requests.len(), requests.deadline().as_ns()), (map.len(), first));
            assert!(requests.deadlines.len() <= 2 * map.len() + 65);
        }
    }
}
