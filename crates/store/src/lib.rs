//! Sprat's store as pure state machines: a coordinator, masters with log-structured memory, and the client's side.
//!
//! The store knows messages and nothing of how they travel; time, randomness and the disk are handed in. See
//! [`machine::Machine`] for the door that `host` and `sim` drive it by.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cleaner;
pub mod client;
pub mod coordinator;
pub mod log;
pub mod machine;
pub mod master;
pub mod memory;
pub mod message;
pub mod number;
pub mod rifl;
pub mod segment;
pub mod statefile;
pub mod table;
pub mod tablet;
pub mod types;
