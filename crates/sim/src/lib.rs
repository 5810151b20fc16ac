//! The fake world: Sprat's machines in virtual time, all from one seed, with every fault that a network, a disk and a
//! process can have. A failing run prints the seed that repeats it.
//!
//! - [`wire`]: the network, as a driver for each host;
//! - [`disk`]: what survives a crash;
//! - [`world`]: hosts, clocks, turns, crashes, pauses, partitions;
//! - [`check`]: whether what clients saw can be explained;
//! - [`node`]: a process with an RPC endpoint and a store machine;
//! - [`seeds`]: runs a test for many seeds.

#![forbid(unsafe_code)]

pub mod check;
pub mod disk;
pub mod node;
pub mod queue;
pub mod seeds;
pub mod wire;
pub mod world;

pub use world::{Chaos, Frail, Options, Outside, Process, Start, World};
