//! The client's side of RIFL, which makes a mutation happen exactly once, however often it is sent.
//!
//! Invariants: each mutation has its own number under one lease. A repetition has the same number.
//! A number is never used under another lease. A number is acknowledged (`ack`) only after its
//! operation has ended for the program.

use alloc::collections::VecDeque;

use sprat_proto::Instant;

use super::op::Op;
use crate::message::data::Once;
use crate::types::LeaseId;

/// The most mutations without a reply. Masters remember this number of outcomes of each client.
pub const WINDOW: u64 = 512;

#[derive(Debug)]
pub(super) struct Rifl {
    /// The client's lease, 0 if it has none.
    pub(super) lease: LeaseId,
    /// The time until which mutations may be sent under the lease. It is before the end of the
    /// lease.
    until: Instant,
    renew_at: Instant,
    /// True if a mutation was sent since the last renewal of the lease. An idle client lets its
    /// lease end.
    used: bool,
    /// The slot of the request for a lease, if one is in progress.
    pub(super) asking: Option<u32>,
    /// The time at which the last request for a lease was sent.
    pub(super) asked_at: Instant,
    /// The mutations that wait for a lease.
    pub(super) parked: VecDeque<Op>,
    /// The mutations that wait for room in the window of numbers.
    pub(super) queued: VecDeque<Op>,
    /// The lowest number of a mutation without a reply.
    base: u64,
    answered: VecDeque<bool>,
}

impl Rifl {
    pub(super) fn new() -> Self {
        Self {
            lease: LeaseId(0),
            until: Instant::ZERO,
            renew_at: Instant::NEVER,
            used: false,
            asking: None,
            asked_at: Instant::ZERO,
            parked: VecDeque::new(),
            queued: VecDeque::new(),
            base: 1,
            answered: VecDeque::new(),
        }
    }

    /// Returns true if the lease allows mutations to be sent at `now`.
    #[inline]
    pub(super) fn valid(&self, now: Instant) -> bool {
        now < self.until
    }

    /// Returns the next number for a mutation, or `None` if the window is full.
    #[inline]
    pub(super) fn assign(&mut self) -> Option<u64> {
        let rpc = self.base + self.answered.len() as u64;
        if rpc - self.base >= WINDOW {
            return None;
        }
        self.answered.push_back(false);
        self.used = true;
        Some(rpc)
    }

    /// Returns the identity of the mutation with the number `rpc`: lease, number and
    /// acknowledgement.
    #[inline]
    pub(super) fn once(&self, rpc: u64) -> Once {
        Once { lease: self.lease, rpc, ack: self.base - 1 }
    }

    /// Returns the number of further mutations that the window has room for.
    pub(super) fn room(&self) -> u64 {
        WINDOW - self.answered.len() as u64
    }

    /// Records that the mutation with the number `rpc` has ended. Numbers of another lease are
    /// ignored.
    #[inline]
    pub(super) fn answered(&mut self, lease: LeaseId, rpc: u64) {
        if rpc == 0 || lease != self.lease {
            return;
        }
        if let Some(answered) =
            rpc.checked_sub(self.base).and_then(|i| self.answered.get_mut(i as usize))
        {
            *answered = true;
        }
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
            self.base += 1;
        }
    }

    /// Records a granted or renewed lease, for `term_ns` from the time of the request.
    pub(super) fn granted(&mut self, lease: LeaseId, term_ns: u64) {
        if lease != self.lease {
            self.lost();
            self.lease = lease;
        }
        // The client uses an eighth less than granted, for differing clocks and the time of
        // messages.
        self.until = self.asked_at.after(term_ns - term_ns / 8);
        self.renew_at = self.asked_at.after(term_ns / 2);
        self.used = false;
    }

    /// Records that the lease has ended, and with it the numbers of its mutations.
    pub(super) fn lost(&mut self) {
        self.lease = LeaseId(0);
        self.until = Instant::ZERO;
        self.renew_at = Instant::NEVER;
        self.base = 1;
        self.answered.clear();
    }

    /// Stops mutations until the coordinator has confirmed the lease. A master refused a request of
    /// this lease as expired.
    pub(super) fn suspend(&mut self) {
        self.until = Instant::ZERO;
    }

    /// Stops renewals of the lease until a mutation needs it.
    pub(super) fn give_up(&mut self) {
        self.renew_at = Instant::NEVER;
    }

    /// Returns the time of the lease's next renewal, if the lease is in use.
    pub(super) fn renew_at(&self) -> Option<Instant> {
        let wanted = self.used || !self.answered.is_empty();
        (wanted && self.asking.is_none() && self.renew_at != Instant::NEVER)
            .then_some(self.renew_at)
    }
}
