//! The recovery of crashed servers' logs: the coordinator finds the log, and masters replay it.
//!
//! ```text
//! crashed (durable) ─► list, fence ─► search ─► plan ─► Recover ─► RecoveryEnded ─► new owners
//!                           ▲           │ missing        ▲  │ full, lacking, gone    (durable)
//!                           └── 1 s ────┘                └──┘
//! no tablet left (durable) ─► list, fence ─► FreeReplicas ─► the place is free (durable)
//! ```
//!
//! Invariants:
//! - The durable state of a recovery is the crashed server's record and the owners of tablets.
//!   Everything else is computed anew after a restart and after a change that the disk did not
//!   take.
//! - A range is part of at most one partition, and a partition has at most one assignment. Only the
//!   master of the last assignment becomes the owner, by one durable change.
//! - A backup is asked to free replicas only after it has fenced their master, and after the change
//!   by which the last tablet got another owner is durable.
//! - A recovery that lacks segments goes on only after `AcceptLoss`. The crashed server's record
//!   then names the segments that are replayed, and each of them must be found.
//!
//! Elsewhere: the rules by which a log is found ([`crate::recovery`]), and the replay.

mod agenda;
mod answers;
mod loss;
mod lost;
mod plan;
mod replay;
mod state;

pub(super) use loss::MOST_LOSSES;
pub(super) use state::Recoveries;
