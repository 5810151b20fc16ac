//! Recovery of a crashed master's log from its replicas.
//!
//! ```text
//!  lists of the backups ─► inventory ─► the segments, and a replica of each
//!                                         └─► replay ─► objects, completions, safe version
//! ```
//!
//! [`inventory()`] finds the whole log or none. [`salvage()`] finds the rest of a log whose head is
//! lost. [`Replay`] takes the segments in any order. It is the specification of what a recovery
//! gives back: simple maps, no tables of a master.

pub mod inventory;
pub mod replay;
pub mod salvage;
#[cfg(test)]
mod tests;

pub use inventory::{Crashed, Inventory, Listed, ReadHead, Search, inventory, search};
pub use replay::Replay;
pub use salvage::salvage;
