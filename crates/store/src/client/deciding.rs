//! The client's way to make the decision on a transaction known to the masters that prepared it.
//!
//! ```text
//!  committed ─► the answer to the program
//!            ─► Decide to the others, until each knows ─► Finish to the first
//!  given up  ─► Decide to the others, once
//! ```
//!
//! The first master decides a commit, so that the program need not wait until the others know. A
//! master that does not get to know the decision asks for it.
//!
//! Invariant: the numbers of a transaction's objects count in the window until its decision is
//! known. So the window bounds the decisions that are on their way.

use alloc::boxed::Box;
use alloc::vec::Vec;

use sprat_proto::Instant;

use super::routes::Owner;
use super::state::{Client, Kind, State as Waiting};
use super::transaction::{Group, Phase, State, Step, Transaction, add};
use crate::message::transaction::{Decision, decide};

/// The time until the client leaves a decision to the masters, in times that one try may take.
const TRIES: u64 = 2;

impl Client {
    /// Returns true if the decision on a committed transaction is on its way to a master.
    #[must_use]
    pub fn is_deciding(&self) -> bool {
        self.deciding > 0
    }

    /// Ends a transaction that its first master has committed for the program, and goes on to make
    /// the decision known to the others.
    pub(super) fn decide_behind(&mut self, now: Instant, index: u32, it: &mut Transaction) {
        self.committed(index, it.versions());
        let mut rest = Box::new(core::mem::take(it));
        rest.phase = Phase::Deciding;
        rest.forget_parts();
        let deadline = now.after(TRIES.saturating_mul(self.config.try_timeout_ns));
        let index = self.begin(Kind::Decide, 0, deadline);
        self.slots[index as usize].extra().transaction = Some(rest);
        self.deciding += 1;
        self.go_on(index);
    }

    /// Ends a transaction whose decision all masters know, or have to ask for.
    pub(super) fn decided(&mut self, index: u32, it: &Transaction) {
        self.end(index);
        self.end_numbers(it);
    }

    /// Lets the masters of prepared objects unlock them, since the transaction is not committed. If
    /// that does not reach one, it asks after a while.
    pub(super) fn give_up(&mut self, it: &Transaction) {
        let is_open = |&number: &usize| match it.objects[number].state {
            _ if number == it.first => false,
            State::Held => true,
            // With a commit that was refused, nothing was prepared.
            State::Sent => it.phase == Phase::Preparing,
            State::Todo | State::Done => false,
        };
        let open: Vec<_> = (0..it.objects.len()).filter(is_open).collect();
        self.tell(it, &open, Decision::Abort);
    }

    /// Makes a decision known to the masters of some objects. Nothing waits for their answers.
    pub(super) fn tell(&mut self, it: &Transaction, objects: &[usize], decision: Decision) {
        let mut groups: Vec<Group> = Vec::new();
        for &number in objects {
            let object = &it.objects[number];
            let table = &self.routes.tables[object.place as usize];
            match table.tablet(|_| object.hash).map(|tablet| &tablet.owner) {
                Some(&Owner::Peer(peer)) => add(&mut groups, peer, number),
                _ => continue,
            }
        }
        for (peer, objects) in groups {
            let objects = objects.iter().map(|&number| it.objects[number].participant());
            let bytes = decide((self.cluster, it.lease), decision, objects);
            let index = self.step(peer, Step { of: None, objects: Vec::new() }, bytes);
            self.slots[index as usize].state = Waiting::Ready;
            self.ready.push_back(index);
        }
    }
}
