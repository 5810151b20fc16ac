//! The state of the migration of a tablet to another master, apart from the tablet's objects.

use alloc::collections::VecDeque;

use sprat_proto::Instant;
use sprat_proto::node::machine::Caller;

use crate::message::Status;
use crate::message::migration::{MOST_AHEAD, PullTablet};

/// The migration of a tablet to another master, apart from the tablet's objects.
#[derive(Debug)]
pub(crate) struct Departure {
    /// The highest number of a migration that has ended.
    pub(super) ended: u64,
    /// The tag of the question to the coordinator that is in progress.
    pub(super) asked: Option<u64>,
    due: Instant,
    /// The requests for pages that wait for a tick.
    pulls: VecDeque<(Caller, PullTablet)>,
}

impl Default for Departure {
    fn default() -> Self {
        Self { ended: 0, asked: None, due: Instant::NEVER, pulls: VecDeque::new() }
    }
}

impl Departure {
    /// Returns the time of the next question to the coordinator.
    pub(super) fn deadline(&self) -> Instant {
        if self.asked.is_some() { Instant::NEVER } else { self.due }
    }

    /// Lets the next question come at `due`. An answer to an earlier one does not count any more:
    /// it may be about another migration.
    pub(super) fn ask_at(&mut self, due: Instant) {
        (self.asked, self.due) = (None, due);
    }

    pub(super) fn is_mine(&self, tag: u64) -> bool {
        self.asked == Some(tag)
    }

    /// Keeps a request for a page until a tick answers it.
    ///
    /// # Errors
    /// [`Status::Retry`] if more wait than one master asks for ahead.
    pub(super) fn keep(&mut self, caller: Caller, pull: PullTablet) -> Result<(), Status> {
        if self.pulls.len() >= MOST_AHEAD as usize {
            return Err(Status::Retry);
        }
        self.pulls.push_back((caller, pull));
        Ok(())
    }

    /// Returns the first of the requests for pages that wait.
    pub(super) fn next_pull(&mut self) -> Option<(Caller, PullTablet)> {
        self.pulls.pop_front()
    }

    /// Returns true if requests for pages wait.
    pub(super) fn has_pulls(&self) -> bool {
        !self.pulls.is_empty()
    }
}
