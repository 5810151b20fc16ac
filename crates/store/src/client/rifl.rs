//! The client's side of RIFL: what makes a mutation happen exactly once however often it is sent.
//!
//! What always holds: each mutation has its own number under one lease; a repetition has the same; a number is never used
//! under another lease. A number counts as answered (`ack`) only when its operation has ended for the program.

use alloc::collections::VecDeque;

use sprat_proto::Instant;

use super::op::Op;
use crate::message::data::Once;
use crate::types::LeaseId;

/// The most mutations without an answer: masters remember as many results of each client.
pub const WINDOW: u64 = 512;

#[derive(Debug)]
pub(super) struct Rifl {
    /// 0 if there is none.
    pub(super) lease: LeaseId,
    /// Until then mutations may be sent; somewhat before the coordinator's end of it.
    until: Instant,
    renew_at: Instant,
    /// Whether a mutation went out since the last renewal: an idle client lets its lease end.
    used: bool,
    /// The slot of the request for a lease, if one is in progress.
    pub(super) asking: Option<u32>,
    /// When that request went out.
    pub(super) asked_at: Instant,
    /// Operations that wait for a lease.
    pub(super) parked: VecDeque<Op>,
    /// Operations that wait for the window.
    pub(super) queued: VecDeque<Op>,
    /// The lowest number without an answer, and whether it and those that follow have one.
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

    /// Whether mutations may be sent.
    #[inline]
    pub(super) fn valid(&self, now: Instant) -> bool {
        now < self.until
    }

    /// The next number, or `None` if the window is full.
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

    /// What a message says of mutation `rpc`.
    #[inline]
    pub(super) fn once(&self, rpc: u64) -> Once {
        Once { lease: self.lease, rpc, ack: self.base - 1 }
    }

    /// How many numbers are free.
    pub(super) fn room(&self) -> u64 {
        WINDOW - self.answered.len() as u64
    }

    /// The operation has ended. Numbers of another lease mean nothing.
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

    /// The lease is granted or prolonged, for `term_ns` from when the request went out.
    pub(super) fn granted(&mut self, lease: LeaseId, term_ns: u64) {
        if lease != self.lease {
            self.lost();
            self.lease = lease;
        }
        // An eighth less than granted, for clocks that run apart and messages on their way.
        self.until = self.asked_at.after(term_ns - term_ns / 8);
        self.renew_at = self.asked_at.after(term_ns / 2);
        self.used = false;
    }

    /// The lease has ended: its numbers with it.
    pub(super) fn lost(&mut self) {
        self.lease = LeaseId(0);
        self.until = Instant::ZERO;
        self.renew_at = Instant::NEVER;
        self.base = 1;
        self.answered.clear();
    }

    /// A master says that the lease has ended: the coordinator must be asked before anything else is sent.
    pub(super) fn doubt(&mut self) {
        self.until = Instant::ZERO;
    }

    /// Nobody renews the lease until a mutation needs it.
    pub(super) fn give_up(&mut self) {
        self.renew_at = Instant::NEVER;
    }

    /// When the lease should be renewed, if it is worth it.
    pub(super) fn renew_at(&self) -> Option<Instant> {
        let wanted = self.used || !self.answered.is_empty();
        (wanted && self.asking.is_none() && self.renew_at != Instant::NEVER)
            .then_some(self.renew_at)
    }
}
