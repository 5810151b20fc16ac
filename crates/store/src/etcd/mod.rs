//! The coordinator's state in etcd, shared by several coordinators of which one leads.
//!
//! ```text
//!   watch beat every 200 ms ── unchanged for 1 s ─► stand: term + 1 ─► load state/ ─► Elected
//!                                                                       │
//!     Standby ◄── a transaction finds another term ◄── beat every 200 ms, one write at a time
//! ```
//! Invariants:
//! - Each write is one transaction that compares the term and the number of the write before. Only
//!   the leader of the present term can write, and a write whose result is unknown can be repeated.
//! - A standby stands only after it saw `beat` unchanged for [`SILENT_NS`], and its transaction
//!   compares that `beat`. A leader leads for [`VALID_NS`] from before it sent its last good beat,
//!   which is less. So the times in which two candidates lead never overlap.
//! - A write that is longer than a transaction may be is durable with one transaction too: it lies
//!   under `batch` by then, and each later leader completes it before it reads the state.
//! - A refusal is certain: no try of the refused write can still be executed.
//! - If the keys of a known cluster are gone, the candidate stops, and does not begin a new one.
//!
//! Elsewhere: how requests reach etcd (`sprat`), and what a leader does
//! ([`crate::coordinator::Candidate`]).

mod keys;
mod state;
mod txn;
mod writes;

pub use keys::{Keys, MAX_CLUSTER};
pub use state::{EtcdState, SILENT_NS, TRY_NS, VALID_NS, is_turn};
pub use txn::{Compare, Failure, Is, Op, Pair, Reply, Request, Txn};

#[cfg(test)]
mod tests;
