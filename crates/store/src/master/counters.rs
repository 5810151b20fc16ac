//! The counters of a master, in one list from which all formats and the documents are made.

use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::backup::Scrubbed;
use crate::counter::{Counter, Kind, Unit};
use crate::message::Status;
use crate::objects::cleaner::Cleaner;
use crate::objects::memory::Memory;

/// The beginning of the counters' names for refused requests. The status follows.
pub const REFUSED: &str = "refused_";

/// The number of requests since the master's start, by kind and by refusal.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accesses: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) removes: u64,
    pub(crate) increments: u64,
    pub(crate) appends: u64,
    pub(crate) touches: u64,
    pub(crate) swaps: u64,
    pub(crate) commits: u64,
    pub(crate) conflicts: u64,
    pub(crate) prepares: u64,
    pub(crate) validations: u64,
    pub(crate) decisions: u64,
    pub(crate) resolutions: u64,
    pub(crate) silent: u64,
    pub(crate) enumerations: u64,
    pub(crate) look_ups: u64,
    pub(crate) indexed_changes: u64,
    pub(crate) multis: u64,
    pub(crate) echoes: u64,
    pub(crate) pings: u64,
    pub(crate) repeated: u64,
    pub(crate) late: u64,
    /// The number of refused requests, by status code.
    refused: Refusals,
}

/// A counter for each status code.
#[derive(Debug)]
struct Refusals([u64; 64]);

impl Default for Refusals {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl Counters {
    /// Counts a refused request under its status.
    pub(crate) fn refused(&mut self, status: Status) {
        if let Some(count) = self.refused.0.get_mut(status as usize) {
            *count += 1;
        }
    }
}

/// Makes the list of a master's counters, and the function that visits them.
macro_rules! catalogue {
    ($counters:ident, $memory:ident, $cleaner:ident, $replicas:ident;
     $($name:ident $kind:ident $unit:ident = $value:expr, $help:literal;)*) => {
        /// All counters of a master except those of refused requests.
        pub const COUNTERS: &[Counter] = &[$(Counter {
            name: stringify!($name),
            kind: Kind::$kind,
            unit: Unit::$unit,
            help: $help,
        }),*];

        /// Calls `visit` with each of a master's counters and its value.
        fn each(
            $counters: &Counters,
            $memory: &Memory,
            $cleaner: &Cleaner,
            $replicas: Replicas,
            visit: &mut dyn FnMut(&Counter, u64),
        ) {
            let values = [$($value),*];
            COUNTERS.iter().zip(values).for_each(|(counter, value)| visit(counter, value));
        }
    };
}

/// The numbers of replicas that a server writes and holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replicas {
    /// The replicas of the server's own segments that are not complete.
    pub(super) incomplete: u64,
    /// The replicas of the server's own segments that are not as long as they have to be.
    pub(super) missing: u64,
    /// The replicas that the server holds for other servers.
    pub(super) held: u64,
    /// The replicas among them that an earlier life of the server has left.
    pub(super) left: u64,
    /// The replicas here whose bytes are damaged.
    pub(super) damaged: u64,
    /// The frames here that the device does not deliver.
    pub(super) retired: u64,
    /// The numbers of what scrubbing has verified.
    pub(super) scrubbed: Scrubbed,
    /// The replicas here that are lost and of which their masters have not heard.
    pub(super) unreported: u64,
    /// The replicas of the server's own segments that backups have reported as lost.
    pub(super) lost: u64,
    /// The replicas in reports of backups that the server does not have.
    pub(super) unknown: u64,
    /// The writes to replicas that the server has posted.
    pub(super) posted: u64,
    /// The posted writes that the server has taken as a backup.
    pub(super) taken: u64,
    /// The syncs that writes to replicas here have waited for.
    pub(super) syncs: u64,
    /// The most bytes that are acknowledged and not replicated, and the mutations that waited
    /// because of them.
    pub(super) lag: (u64, u64),
}

catalogue! {
    counters, memory, cleaner, replicas;
    reads Total Requests = counters.reads, "Reads that were executed or refused.";
    writes Total Requests = counters.writes, "Writes that were executed.";
    removes Total Requests = counters.removes, "Removals that were executed.";
    increments Total Requests = counters.increments, "Increments that were executed.";
    appends Total Requests = counters.appends, "Appends that were executed.";
    touches Total Requests = counters.touches, "Touches that were executed.";
    swaps Total Requests = counters.swaps, "Swaps that were executed.";
    commits Total Requests = counters.commits,
        "Transactions that were committed here; those of one object are writes and removals.";
    conflicts Total Requests = counters.conflicts,
        "Requests of transactions that were refused because an object had changed or was locked.";
    prepares Total Requests = counters.prepares,
        "Requests of transactions to lock objects that were executed.";
    validations Total Requests = counters.validations,
        "Requests of transactions to check objects that were read.";
    decisions Total Requests = counters.decisions,
        "Decisions on transactions that were executed on objects here.";
    resolutions Total Requests = counters.resolutions,
        "Questions of other servers for the decision on a transaction.";
    transactions_silent Total Events = counters.silent,
        "Records of transactions of which the server took care because the client was silent.";
    transactions Level Records = memory.transactions.len() as u64,
        "Records of transactions: locked objects, and commits that are not known everywhere.";
    expired Total Objects = memory.expired, "Objects that were removed because they had expired.";
    enumerations Total Requests = counters.enumerations, "Enumerations of tablets.";
    look_ups Total Requests = counters.look_ups, "Look-ups in leaves of indexes.";
    indexed_changes Total Requests = counters.indexed_changes,
        "Writes and removals that one operation made together with entries of indexes.";
    multis Total Requests = counters.multis,
        "Multi-operations. Their parts count as operations of their own.";
    echoes Total Requests = counters.echoes, "Echoes.";
    pings Total Requests = counters.pings,
        "Questions of the coordinator whether this is the server that it means.";
    repeated Total Requests = counters.repeated,
        "Mutations that had been executed before and got the recorded outcome.";
    late Total Requests = counters.late, "Requests that came after their deadline.";
    accesses Total Objects = counters.accesses,
        "Objects that requests and parts of requests have read, changed or missed.";
    objects Level Objects = memory.table.len(), "Objects in memory.";
    tablets Level Tablets = memory.tablets.iter().count() as u64, "Tablets that are owned.";
    clients Level Clients = memory.results.clients() as u64,
        "Clients whose mutations are remembered.";
    completions Level Records = memory.results.records(), "Completion records in memory.";
    live_bytes Level Bytes = memory.log.live_bytes(), "Live entries in the log.";
    tombstone_bytes Level Bytes = memory.log.tombstone_bytes(), "Live tombstones in the log.";
    live_limit_bytes Level Bytes = memory.log.live_limit(), "The limit of live entries.";
    capacity_bytes Level Bytes = memory.log.capacity_bytes(), "The size of the log.";
    appended_bytes Total Bytes = memory.log.appended_bytes(),
        "Entries appended to the log, by writes and by the cleaner.";
    table_bytes Level Bytes = memory.table.memory_bytes(), "The size of the hash table.";
    segments Level Segments = u64::from(memory.log.limit()), "The limit of segments.";
    segments_free Level Segments = u64::from(memory.log.available()),
        "Segments that may yet be opened.";
    segments_pinned Level Segments = u64::from(memory.log.pinned()),
        "Segments that replies refer to.";
    segments_cleaned Total Segments = cleaner.cleaned(), "Segments that were cleaned.";
    survivors_helped Total Segments = cleaner.helped(),
        "Segments that the helper thread of the cleaner has filled with entries of others.";
    replicas_incomplete Level Segments = replicas.incomplete,
        "Replicas of this server's segments that are open or missing.";
    replicas_missing Level Segments = replicas.missing,
        "Replicas of this server's segments that a crash now would need and not find.";
    replicas_held Level Segments = replicas.held, "Replicas of other servers' segments.";
    replicas_left Level Segments = replicas.left,
        "Replicas of other servers that an earlier process has left in the directory.";
    replicas_damaged Level Segments = replicas.damaged,
        "Replicas of other servers here whose bytes are damaged.";
    frames_unreadable Level Segments = replicas.retired,
        "Frames for replicas here that the disk does not deliver: they are not used.";
    scrubbed_bytes Total Bytes = replicas.scrubbed.bytes,
        "Bytes of closed replicas here that scrubbing has verified on the device.";
    scrub_damaged Total Segments = replicas.scrubbed.damaged,
        "Replicas that scrubbing found damaged, or whose headers it wrote anew.";
    replicas_unreported Level Segments = replicas.unreported,
        "Lost replicas here of which their servers have not heard yet.";
    replicas_lost Total Segments = replicas.lost,
        "Replicas of this server's segments that backups have reported as lost or damaged.";
    replica_reports_unknown Total Segments = replicas.unknown,
        "Replicas in reports of backups that this server does not have, or not any more.";
    posted_writes Total Events = replicas.posted,
        "Writes to replicas that this server has posted in shared memory.";
    posted_writes_taken Total Events = replicas.taken,
        "Posted writes of other servers that this server has taken.";
    replica_syncs Total Events = replicas.syncs,
        "Writes to the journal and syncs of the frames that writes to replicas have waited for.";
    replicas_lag_bytes Level Bytes = replicas.lag.0,
        "The most bytes of the log that are acknowledged and have no replicas yet.";
    replicas_lag_waits Total Requests = replicas.lag.1,
        "Mutations that waited for replicas that lagged behind.";
    lent_copies_bytes Level Bytes = memory.log.copied_bytes(), "Copies that replies refer to.";
}

/// Returns the names and values of all counters of a master. The counter of a refusal that never
/// occurred is left out.
pub(super) fn list(
    counters: &Counters,
    memory: &Memory,
    cleaner: &Cleaner,
    replicas: Replicas,
) -> Vec<(String, u64)> {
    let mut list = Vec::new();
    each(counters, memory, cleaner, replicas, &mut |counter, value| {
        list.push((counter.name.to_owned(), value));
    });
    for (code, &count) in counters.refused.0.iter().enumerate().filter(|&(_, &count)| count > 0) {
        if let Some(status) = Status::from_code(code as u8) {
            list.push((format!("{REFUSED}{status:?}"), count));
        }
    }
    list
}
