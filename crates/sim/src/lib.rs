//! The simulated world: Sprat's state machines in virtual time, driven by one seed, with the faults
//! of networks, disks and processes. A failing run prints the seed that repeats it.
//!
//! - [`wire`]: the network, as a driver for each host;
//! - [`disk`]: the data that survives a crash;
//! - [`etcd`]: the store that several coordinators share;
//! - [`frames`]: the frames of replicas that survive a crash;
//! - [`rings`]: memory that processes of one machine share;
//! - [`world`]: hosts, clocks, turns, crashes, pauses, partitions;
//! - [`check`]: checkers of the clients' results: is each object linearizable, and are transactions
//!   strictly serializable?
//! - [`node`]: a process with an RPC endpoint and a store machine;
//! - [`process`]: a process and its environment;
//! - [`seeds`]: runs a test with many seeds.

#![forbid(unsafe_code)]

mod blocks;
pub mod check;
mod clock;
pub mod disk;
pub mod etcd;
pub mod frames;
mod journal;
pub mod node;
pub mod process;
pub mod queue;
pub mod rings;
pub mod seeds;
pub mod wire;
pub mod world;

pub use process::{Outside, Process, Start};
pub use world::{Chaos, HostFaults, Options, World};
