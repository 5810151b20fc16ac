//! The counters of a client.

/// The work of a client since its start. Counters only grow.
///
/// A multi-operation counts as one operation, and each of its parts as one more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// The number of operations that the program has started.
    pub started: u64,
    /// The number of operations that have ended with success or an error.
    pub completed: u64,
    /// The number of operations that the program has cancelled.
    pub cancelled: u64,
    /// The number of pauses after which the client tried an operation again, because a server did
    /// not answer it or sent it elsewhere. An operation may have several.
    pub retried: u64,
    /// The number of operations that have ended at their deadline. They are among the completed
    /// ones.
    pub late: u64,
    /// The number of times that the client asked the coordinator for the tablets of a table, the
    /// first time included.
    pub route_refreshes: u64,
    /// The number of requests that carried several parts of multi-operations.
    pub bundles: u64,
    /// The number of round trips that these requests saved: one for each part after the first.
    pub saved_round_trips: u64,
}
