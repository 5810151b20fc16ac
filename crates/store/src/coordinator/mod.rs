//! The coordinator: it decides which tables exist, which server owns which part of them, and which
//! servers and clients are alive.
//!
//! ```text
//!  request ─► change in memory ─► Persist { seq } ─► persisted(seq) ─► reply, calls to masters
//! ```
//!
//! Invariants:
//! - The coordinator sends no reply and calls no master before everything that they rest on is
//!   durable: a reply waits for the last change that was issued before it, even the reply to a
//!   query.
//! - A tablet has one owner at a time, and that owner serves it only under a lease. The coordinator
//!   declares a server crashed only after the server's lease has surely ended, and a migration
//!   changes the owner only after the old one has closed the tablet. So no two servers ever answer
//!   for one key.
//! - Ids of tables, leases and lives of servers are never reused in one cluster. A coordinator that
//!   lost its state is another cluster, with another random id that every message names.
//! - A change that the disk does not take leaves no trace: memory returns to the durable state, and
//!   every request that rested on the change fails.
//! - After a restart the coordinator continues with the servers and leases that it knew. Each gets
//!   a full term to renew. After the process was stopped for a while, the same holds.
//!
//! Elsewhere: the disk (`Output::Persist` goes out, `Machine::persisted` comes back) and the
//! objects.

mod candidate;
mod counters;
mod durable;
mod heat;
mod leases;
mod machine;
mod members;
mod migration;
mod migrations;
mod rate;
mod rebalance;
mod recovery;
mod restore;
mod restored;
mod servers;
mod state;
pub mod statefile;
mod table;
mod tables;
mod tablets;
#[cfg(test)]
mod tests;
mod watch;

pub use candidate::Candidate;
pub use counters::COUNTERS;
pub use durable::RestoreError;
pub use state::{Config, Coordinator};
