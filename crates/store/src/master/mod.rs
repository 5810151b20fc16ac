//! The master: the machine that owns tablets and executes operations on their objects.
//!
//! ```text
//!  request ─► parse ─► lease? ─► tablet, hash ─► read:     table ─► log ─► reply
//!                                             └► mutation: RIFL ─► append ─► tables ─► gate ─►
//!                                client's lease unknown: suspend ┘                 durable?
//! ```
//!
//! Invariants:
//! - The master serves only under a lease from the coordinator, by its own clock.
//! - It executes a mutation once for each number of its client.
//! - No reply tells of a change before that change is durable, unless the durability is `async`.
//!   Replies that wait for durability leave in the order of the log.
//! - A turn's work is bounded, and so is every queue.
//!
//! Elsewhere: [`crate::ops`] executes the operations, [`crate::objects`] keeps the objects, the
//! coordinator decides which server owns a tablet, `replication` writes the log to backups,
//! `recovery` takes the tablets of a master that has crashed.

mod burst;
mod counters;
mod damage;
mod departure;
mod gather;
mod handover;
pub(crate) mod heat;
mod lag;
mod leases;
mod links;
mod machine;
mod membership;
mod recovery;
mod replication;
mod resolving;
mod state;
mod syncs;
#[cfg(test)]
mod tests;
mod transactions;
mod wall;
mod work;

pub use counters::{COUNTERS, REFUSED};
pub use lag::Mark;
pub use links::COORDINATOR;
pub use replication::MAX_REPLICAS;
pub(crate) use state::MAX_GATED;
pub use state::{Config, Master};
pub(crate) use syncs::Waiting;
pub use wall::WallClock;
