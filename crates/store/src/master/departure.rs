//! The state of the migration of a tablet to another master, apart from the tablet's objects.

use sprat_proto::Instant;

/// The migration of a tablet to another master, apart from the tablet's objects.
#[derive(Debug)]
pub(crate) struct Departure {
    /// The highest number of a migration that has ended.
    pub(super) ended: u64,
    /// The tag of the question to the coordinator that is in progress.
    pub(super) asked: Option<u64>,
    due: Instant,
}

impl Default for Departure {
    fn default() -> Self {
        Self { ended: 0, asked: None, due: Instant::NEVER }
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
}
