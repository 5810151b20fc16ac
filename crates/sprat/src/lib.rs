//! Sprat: microsecond storage and RPC on the Ethernet people already have.
//!
//! Programs use [`kv`], the key-value store, [`rpc`], sessions with servers and services of their
//! own, [`verbs`], RDMA over iWARP, and [`tcp`], streams past the kernel. [`server`] runs the
//! store's coordinator and servers. A [`locator`] names a service and chooses how it is reached:
//! shared memory, UDP, TCP, queue pairs, or frames past the kernel. [`trace`] shows where the time
//! of requests goes.
//!
//! Below them a worker drives a pure state machine (of `sprat-store` or of the program) and its
//! transports: the RPC endpoint of `sprat-proto` over a datagram driver, or a byte stream.

#![forbid(unsafe_code)]

mod completions;
mod count;
mod device;
mod disk;
mod driver;
mod frames;
#[cfg(fuzzing)]
pub mod fuzzing;
mod interface;
#[doc(hidden)]
pub mod internals;
pub mod kv;
pub mod locator;
mod open;
mod promise;
mod random;
mod rings;
pub mod rpc;
pub mod server;
pub mod tcp;
pub mod trace;
mod transport;
mod transports;
pub mod verbs;
mod worker;
