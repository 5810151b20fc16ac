//! Sprat: microsecond storage and RPC on the Ethernet people already have.
//!
//! Three doors for programs: [`rpc`], sessions with servers and services of one's own, [`kv`], the store, and [`verbs`],
//! RDMA over iWARP. A service is named by a [`locator`], and the locator chooses how it is reached: shared memory, kernel
//! UDP or kernel TCP.
//!
//! Behind them: a [`worker`] turns a pure state machine (from `sprat-store` or the program's own) and its [`doors`], each
//! a [`transport`]: the RPC endpoint of `sprat-proto` over a datagram [`driver`] ([`fast`]), or a byte stream.

#![forbid(unsafe_code)]

mod completions;
mod count;
pub mod device;
pub mod disk;
pub mod doors;
pub mod driver;
pub mod fast;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod kv;
mod links;
pub mod locator;
mod open;
mod race;
pub mod rpc;
pub mod server;
pub mod trace;
pub mod transport;
#[doc(inline)]
pub use sprat_rdma as verbs;
pub mod worker;
