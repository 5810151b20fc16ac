//! Sprat's protocols as pure state machines: bytes and time go in, bytes and events come out.
//!
//! The crate is `no_std` and names no clock, socket, thread or source of entropy: the caller passes
//! these in. The same state machine therefore runs over a real network, where a driver implements
//! [`Datagrams`], and over a simulated one.
//!
//! Every state machine has the same five verbs: `input` takes received bytes, `output` yields bytes
//! to send, `event` yields what happened, `deadline` says when to call next, and `tick` handles the
//! timers that have expired. Commands (`connect`, `request`, `reply`) only change state.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod count;
pub mod datagrams;
pub mod device;
pub mod fault;
pub mod net;
pub mod node;
pub mod rand;
pub mod rdma;
pub mod rpc;
pub mod time;
pub mod tracepoint;
pub mod wire;

pub use datagrams::{Addr, Datagrams, TimedDatagrams};
pub use device::Device;
pub use rand::Rng;
pub use time::Instant;
