//! Recovery of a crashed master's log from its replicas.
//!
//! ```text
//!  segments, in any order ─► replay ─► objects, completions, safe version
//! ```
//!
//! [`Replay`] takes the segments of a log in any order. It is the specification of what a recovery
//! gives back: simple maps, no tables of a master.

pub mod replay;
#[cfg(test)]
mod tests;

pub use replay::Replay;
