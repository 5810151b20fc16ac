//! The records of transactions that a master takes care of, since their clients are silent.
//!
//! [`super::transactions`] has the steps.

use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::Link;

use super::links::{FOR_TRANSACTIONS, for_transactions};
use crate::message::transaction::Participant;
use crate::objects::locks::Due;
use crate::objects::memory::Memory;
use crate::types::LeaseId;

/// The most records that are taken care of at a time.
pub(super) const MOST_JOBS: usize = FOR_TRANSACTIONS as usize;

/// The next step for a record.
#[derive(Debug)]
pub(super) enum Step {
    /// The coordinator has to say which server has the object that matters next.
    Find,
    /// The link to that server, which has these locators, has to be connected.
    Connect(String),
    /// That server has to be called.
    Call,
    /// The call with this tag is in progress.
    Wait(u64, Asked),
    /// The link has to be disconnected, and the job is over.
    End,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    Owner,
    Server,
}

/// A record that the master takes care of.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) due: Due,
    /// The first object, whose master knows the decision; or `None`: the transaction is committed.
    pub(super) first: Option<Participant>,
    /// The prepared objects of a committed transaction whose masters do not surely know of it. The
    /// last one is next.
    pub(super) left: Vec<Participant>,
    pub(super) step: Step,
    pub(super) link: Link,
    pub(super) linked: bool,
}

impl Job {
    /// Returns the object whose master is to be called next.
    pub(super) fn object(&self) -> Option<Participant> {
        self.first.or_else(|| self.left.last().copied())
    }

    pub(super) fn lease(&self) -> LeaseId {
        self.due.key.lease
    }
}

/// The records that the master takes care of.
#[derive(Debug, Default)]
pub(crate) struct Resolving {
    pub(super) jobs: Vec<Job>,
    /// True if there may be something to send at once.
    pub(super) pending: bool,
}

impl Resolving {
    pub(super) fn is_mine(&self, tag: u64) -> bool {
        self.jobs.iter().any(|job| matches!(job.step, Step::Wait(of, _) if of == tag))
    }

    /// Returns the time at which the next record is due.
    pub(super) fn deadline(&self, memory: &Memory) -> Instant {
        match self.jobs.len() {
            _ if self.pending => Instant::ZERO,
            MOST_JOBS.. => Instant::NEVER,
            _ => memory.transactions.deadline(),
        }
    }

    pub(super) fn free_link(&self) -> Link {
        let is_used = |link| self.jobs.iter().any(|job| job.link == link);
        let mut links = (0..FOR_TRANSACTIONS).map(for_transactions);
        links.find(|&link| !is_used(link)).unwrap_or(for_transactions(0))
    }
}
