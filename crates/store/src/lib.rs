//! Sprat's store as pure state machines: a coordinator, masters with log-structured memory, and
//! clients.
//!
//! The store handles messages and no transports. The caller passes time, randomness and the disk.
//! Production and the simulator drive it by the trait [`sprat_proto::node::machine::Machine`].

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod backup;
pub mod balance;
pub mod btree;
pub mod client;
pub mod coordinator;
pub mod counter;
mod done;
pub mod durability;
pub mod etcd;
pub mod hash;
pub mod index;
mod leading;
pub mod master;
pub mod message;
pub mod objects;
pub mod ops;
pub mod recovery;
pub mod site;
#[cfg(test)]
mod testing;
pub mod types;
