//! Sprat's protocols as pure state machines: bytes and time go in, bytes and events come out.
//!
//! Nothing here can name a clock, a socket, a thread or a source of entropy: the crate is `no_std`, and everything of
//! that kind is handed in by the caller. The same machine therefore runs on a real network ([`Datagrams`] implemented by
//! a driver) and in a seeded fake one.
//!
//! Every machine speaks the same five verbs: `input` what arrived, `output` what to send, `event` what happened,
//! `deadline` when to wake me, `tick` it is that time. Commands (`connect`, `request`, `reply`) only change state.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod count;
pub mod datagrams;
pub mod device;
pub mod fault;
pub mod net;
pub mod node;
pub mod probe;
pub mod rand;
pub mod rdma;
pub mod rpc;
pub mod time;
pub mod wire;

pub use datagrams::{Addr, Datagrams};
pub use device::Device;
pub use rand::Rng;
pub use time::Instant;
