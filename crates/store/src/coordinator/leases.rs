//! Leases of clients at the coordinator, and the ends of their terms.
//!
//! Invariants: a lease that a reply has called expired never becomes valid again. Grants and
//! expiries are durable, renewals are not: after a restart of the coordinator every lease that had
//! not expired gets a full term ([`Leases::floor`]), which is never shorter than the term in any
//! reply.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use sprat_proto::Instant;

#[derive(Debug, Default)]
pub(super) struct Leases {
    until: BTreeMap<u64, Instant>,
    by_time: BTreeSet<(Instant, u64)>,
    /// The time before which no client lease expires.
    pub(super) floor: Instant,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.until.len()
    }

    /// Returns the greatest id of a client lease.
    pub(super) fn last(&self) -> Option<u64> {
        self.until.last_key_value().map(|(&id, _)| id)
    }

    /// Takes the ends of all leases from `old` that are in both sets.
    pub(super) fn heard_as(&mut self, old: &Self) {
        self.floor = old.floor;
        let (here, heard) = (&self.until, &old.until);
        let both: Vec<_> =
            here.keys().filter_map(|id| heard.get(id).map(|&until| (*id, until))).collect();
        both.into_iter().for_each(|(id, until)| self.set(id, until));
    }

    /// Sets or moves the end of a client lease.
    pub(super) fn set(&mut self, id: u64, until: Instant) {
        if let Some(old) = self.until.insert(id, until) {
            self.by_time.remove(&(old, id));
        }
        self.by_time.insert((until, id));
    }

    /// Removes a client lease. Returns true if it existed.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let Some(until) = self.until.remove(&id) else { return false };
        self.by_time.remove(&(until, id));
        true
    }

    /// Returns the remaining time of a client lease: `None` if the lease is unknown, `Some(0)` if
    /// it must be removed now.
    pub(super) fn valid_ns(&self, now: Instant, id: u64) -> Option<u64> {
        self.until.get(&id).map(|&until| until.max(self.floor).since(now))
    }

    /// Returns true if a client lease has not been removed.
    pub(super) fn has(&self, id: u64) -> bool {
        self.until.contains_key(&id)
    }

    /// Returns a client lease that has ended, if there is one.
    pub(super) fn expired(&self, now: Instant) -> Option<u64> {
        let &(until, id) = self.by_time.first()?;
        (until.max(self.floor) <= now).then_some(id)
    }
}
