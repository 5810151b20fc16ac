//! Exactly once (RIFL): the outcomes of mutations, as a master remembers them.
//!
//! A client numbers its mutations and repeats one under the same number until it has the reply. The
//! master keeps the outcome of each until the client acknowledges it or the client's lease ends. A
//! repetition gets the same outcome.
//!
//! ```text
//!  numbers:  … stale │ ack │ executed: outcome · others: new … ack + WINDOW │ too far ahead
//! ```
//!
//! Invariants: an executed number is never new again while the client's lease may be valid. A
//! client takes memory only for outcomes that it has not acknowledged, at most [`WINDOW`]. A client
//! is known here only after the coordinator has confirmed its lease. The master asks the
//! coordinator; the log has the same outcomes as completion records
//! ([`crate::objects::entry::Completion`]).

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use sprat_proto::Instant;

use crate::message::data::Once;
use crate::objects::entry::Outcome;
use crate::objects::segment::{Location, Position};
use crate::types::LeaseId;

/// The most by which the number of a mutation may be ahead of its client's acknowledgement.
pub const WINDOW: u64 = 512;

/// The verdict on a mutation: the master executes it, repeats its outcome, or refuses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The mutation is new: execute it.
    New,
    /// The mutation was executed: reply with this outcome once the log is durable up to the
    /// position.
    Done(Outcome, Position),
    /// The mutation was acknowledged before, so that its client does not wait for a reply.
    Stale,
    /// The mutation's number is too far ahead of its client's acknowledgement.
    TooFar,
    /// The client's lease is not known: the coordinator must say if it is valid.
    Unknown,
}

/// The need for a completion record that is replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// The client has acknowledged the outcome, so that the record is not needed.
    Acknowledged,
    /// The record is needed and not remembered.
    New,
    /// The record is remembered, and is at this location in the log.
    Known(Location),
}

#[derive(Debug)]
struct Record {
    rpc: u64,
    outcome: Outcome,
    /// The location of the mutation's completion record in the log.
    at: Location,
    /// The end of the log after the mutation's completion record.
    end: Position,
}

#[derive(Debug, Default)]
struct Client {
    /// The time until which the client's lease is surely valid.
    valid_until: Instant,
    ack: u64,
    /// The outcomes of the client's mutations, sorted by number.
    records: VecDeque<Record>,
}

impl Client {
    /// Forgets the outcomes up to the number `ack`. Returns their number.
    #[inline]
    fn acknowledge(&mut self, ack: u64, forget: &mut impl FnMut(Location)) -> u64 {
        let mut forgotten = 0;
        if ack > self.ack {
            self.ack = ack;
            while let Some(record) = self.records.pop_front_if(|record| record.rpc <= ack) {
                forgotten += 1;
                forget(record.at);
            }
        }
        forgotten
    }
}

/// A hash function for lease numbers. The coordinator chooses and confirms them, so that no client
/// can choose colliding ones.
#[derive(Clone, Copy, Debug, Default)]
struct LeaseHasher(u64);

impl Hasher for LeaseHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// The outcomes of the mutations of all clients, as a master remembers them.
#[derive(Debug, Default)]
pub struct Results {
    clients: HashMap<LeaseId, Client, BuildHasherDefault<LeaseHasher>>,
    /// Each client's lease once with its end, approximately in the order of the ends.
    terms: VecDeque<(Instant, LeaseId)>,
    records: u64,
}

impl Results {
    /// Returns the verdict on the mutation `once`. Calls `forget` with the location of each
    /// completion record that the mutation's acknowledgement frees.
    #[inline]
    pub fn check(&mut self, now: Instant, once: Once, mut forget: impl FnMut(Location)) -> Verdict {
        let Some(client) =
            self.clients.get_mut(&once.lease).filter(|client| now < client.valid_until)
        else {
            return Verdict::Unknown;
        };
        self.records -= client.acknowledge(once.ack, &mut forget);
        if once.rpc <= client.ack {
            return Verdict::Stale;
        }
        if client.records.back().is_some_and(|last| once.rpc <= last.rpc)
            && let Ok(found) = client.records.binary_search_by_key(&once.rpc, |record| record.rpc)
        {
            let record = &client.records[found];
            return Verdict::Done(record.outcome, record.end);
        }
        if once.rpc - client.ack > WINDOW { Verdict::TooFar } else { Verdict::New }
    }

    /// Records the outcome of the new mutation `once`. Its completion record is at `at`, and the
    /// log ends at `end`.
    pub fn done(&mut self, once: Once, outcome: Outcome, at: Location, end: Position) {
        if let Some(client) = self.clients.get_mut(&once.lease) {
            let record = Record { rpc: once.rpc, outcome, at, end };
            match client.records.back() {
                Some(last) if once.rpc < last.rpc => {
                    let index = client.records.partition_point(|record| record.rpc < once.rpc);
                    client.records.insert(index, record);
                }
                _ => client.records.push_back(record),
            }
            self.records += 1;
        }
    }

    /// Returns the outcome of `once` and the location of its completion record, if it is
    /// remembered.
    #[must_use]
    pub fn record(&self, once: Once) -> Option<(Outcome, Location)> {
        let records = &self.clients.get(&once.lease)?.records;
        let found = records.binary_search_by_key(&once.rpc, |record| record.rpc).ok()?;
        Some((records[found].outcome, records[found].at))
    }

    /// Returns the location of the completion record of `once`, if it is remembered.
    #[must_use]
    pub fn location(&self, once: Once) -> Option<Location> {
        self.record(once).map(|(_, at)| at)
    }

    /// Takes the acknowledgement of the completion record of `once`, which is replayed, and returns
    /// the need for the record. Calls `forget` as [`Results::check`] does. The client's lease
    /// counts as unknown until the coordinator has confirmed it.
    pub fn replay(&mut self, once: Once, mut forget: impl FnMut(Location)) -> Need {
        let client = self.clients.entry(once.lease).or_insert_with(|| {
            self.terms.push_front((Instant::ZERO, once.lease));
            Client::default()
        });
        self.records -= client.acknowledge(once.ack, &mut forget);
        if once.rpc <= client.ack {
            return Need::Acknowledged;
        }
        self.location(once).map_or(Need::New, Need::Known)
    }

    /// Forgets the outcomes with a completion record for which `is_gone` returns true. Returns the
    /// locations of these records.
    pub fn forget(&mut self, is_gone: impl Fn(Location) -> bool) -> Vec<Location> {
        let mut gone = Vec::new();
        for client in self.clients.values_mut() {
            client.records.retain(|record| {
                let stays = !is_gone(record.at);
                gone.extend((!stays).then_some(record.at));
                stays
            });
        }
        self.records -= gone.len() as u64;
        gone
    }

    /// Records that the cleaner moved the completion record of `once` to `to`.
    pub fn moved(&mut self, once: Once, to: Location) {
        if let Some(client) = self.clients.get_mut(&once.lease)
            && let Ok(found) = client.records.binary_search_by_key(&once.rpc, |record| record.rpc)
        {
            client.records[found].at = to;
        }
    }

    /// Iterates over the remembered outcomes: lease and number of each mutation, its outcome, and
    /// the end of the log after its completion record.
    pub fn outcomes(&self) -> impl Iterator<Item = (LeaseId, u64, Outcome, Position)> {
        self.clients.iter().flat_map(|(&lease, client)| {
            let records = client.records.iter();
            records.map(move |record| (lease, record.rpc, record.outcome, record.end))
        })
    }

    /// Calls `take` with each remembered mutation and the location of its completion record.
    pub fn each(&self, mut take: impl FnMut(Once, Location)) {
        for (&lease, client) in &self.clients {
            for &Record { rpc, at, .. } in &client.records {
                take(Once { lease, rpc, ack: client.ack }, at);
            }
        }
    }

    // Leases.

    /// Extends a client's lease, which the coordinator has confirmed until `until`.
    pub fn extend(&mut self, lease: LeaseId, until: Instant) {
        let client = self.clients.entry(lease).or_insert_with(|| {
            self.terms.push_back((until, lease));
            Client::default()
        });
        client.valid_until = client.valid_until.max(until);
    }

    /// Forgets a client whose lease has expired according to the coordinator, with its outcomes.
    pub fn expire(&mut self, lease: LeaseId, forget: impl FnMut(Location)) {
        if let Some(client) = self.clients.remove(&lease) {
            self.records -= client.records.len() as u64;
            client.records.iter().map(|record| record.at).for_each(forget);
        }
    }

    /// Returns clients whose leases may have ended, for a question to the coordinator. Each is
    /// returned again after `again_ns` unless its lease is extended. Examines at most `limit`
    /// clients.
    pub fn lapsed(&mut self, now: Instant, again_ns: u64, limit: usize) -> Vec<LeaseId> {
        let mut lapsed = Vec::new();
        for _ in 0..limit {
            let Some((_, lease)) = self.terms.pop_front_if(|(due, _)| *due <= now) else { break };
            let Some(client) = self.clients.get(&lease) else { continue };
            if client.valid_until > now {
                self.terms.push_back((client.valid_until, lease));
            } else {
                self.terms.push_back((now.after(again_ns), lease));
                lapsed.push(lease);
            }
        }
        lapsed
    }

    /// Returns the number of clients of which the master remembers the lease.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Returns the number of outcomes of mutations that the master remembers.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Status;
    use crate::types::Version;

    const LEASE: LeaseId = LeaseId(7);

    fn once(rpc: u64, ack: u64) -> Once {
        Once { lease: LEASE, rpc, ack }
    }

    fn outcome(version: u64) -> Outcome {
        Outcome { status: Status::Ok, version: Version(version), sum: None }
    }

    fn at(offset: u32) -> Location {
        Location::new(0, offset)
    }

    #[test]
    fn a_number_is_new_once() {
        let mut results = Results::default();
        let now = Instant::from_ns(10);
        assert_eq!(results.check(now, once(1, 0), |_| ()), Verdict::Unknown);
        results.extend(LEASE, Instant::from_ns(20));
        // Out of order, as several outstanding mutations may arrive.
        for rpc in [3, 1, 2] {
            assert_eq!(results.check(now, once(rpc, 0), |_| ()), Verdict::New);
            results.done(once(rpc, 0), outcome(rpc), at(rpc as u32), Position::default());
        }
        for rpc in [1, 2, 3] {
            let done = Verdict::Done(outcome(rpc), Position::default());
            assert_eq!(results.check(now, once(rpc, 0), |_| ()), done);
        }
        assert_eq!(results.check(Instant::from_ns(20), once(1, 0), |_| ()), Verdict::Unknown);
    }

    #[test]
    fn acknowledged_numbers_are_stale_and_take_no_memory() {
        let mut results = Results::default();
        let now = Instant::ZERO;
        results.extend(LEASE, Instant::NEVER);
        for rpc in 1..=5 {
            results.done(once(rpc, 0), outcome(rpc), at(rpc as u32), Position::default());
        }
        let mut freed = Vec::new();
        assert_eq!(results.check(now, once(6, 3), |at| freed.push(at)), Verdict::New);
        assert_eq!(freed, [at(1), at(2), at(3)]);
        assert_eq!(results.records(), 2);
        assert_eq!(results.check(now, once(3, 0), |_| ()), Verdict::Stale);
        // An acknowledgement that came late changes nothing.
        assert_eq!(
            results.check(now, once(4, 1), |_| ()),
            Verdict::Done(outcome(4), Position::default())
        );
        assert_eq!(results.check(now, once(3 + WINDOW, 3), |_| ()), Verdict::New);
        assert_eq!(results.check(now, once(4 + WINDOW, 3), |_| ()), Verdict::TooFar);
        assert_eq!(results.location(once(5, 0)), Some(at(5)));
        results.moved(once(5, 0), at(50));
        assert_eq!(results.location(once(5, 0)), Some(at(50)));
        assert_eq!(results.location(once(6, 0)), None);
    }

    #[test]
    fn an_expired_lease_is_forgotten_whole() {
        let mut results = Results::default();
        results.extend(LEASE, Instant::from_ns(5));
        results.done(once(1, 0), outcome(1), at(1), Position::default());
        assert_eq!(results.lapsed(Instant::from_ns(4), 10, 9), []);
        results.extend(LEASE, Instant::from_ns(6));
        assert_eq!(results.lapsed(Instant::from_ns(5), 10, 9), []);
        assert_eq!(results.lapsed(Instant::from_ns(6), 10, 9), [LEASE]);
        assert_eq!(results.lapsed(Instant::from_ns(7), 10, 9), [], "asked about a moment ago");
        assert_eq!(results.lapsed(Instant::from_ns(16), 10, 9), [LEASE]);
        let mut freed = Vec::new();
        results.expire(LEASE, |at| freed.push(at));
        assert_eq!((freed, results.records(), results.clients()), ([at(1)].to_vec(), 0, 0));
        assert_eq!(results.check(Instant::ZERO, once(1, 0), |_| ()), Verdict::Unknown);
    }
}
