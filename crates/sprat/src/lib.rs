//! Sprat: microsecond storage and RPC on the Ethernet people already have.
//!
//! Three doors for programs: [`rpc`], sessions with servers and services of one's own, [`kv`], the store, and [`verbs`],
//! RDMA over iWARP. A service is named by a [`locator`], and the locator chooses how it is reached: shared memory, kernel
//! UDP or kernel TCP.
//!
//! Behind them: a [`worker`] turns a pure state machine (from `sprat-store` or the program's own) and its [`doors`], each
//! a [`transport`]: the RPC endpoint of `sprat-proto` over a datagram [`driver`] ([`fast`]), or a byte stream.

mod api;
mod count;
pub mod disk;
pub mod doors;
pub mod driver;
pub mod fast;
pub mod fault;
pub mod floor;
mod framed;
#[cfg(fuzzing)]
pub mod fuzzing;
mod links;
pub mod locator;
pub mod nic;
mod open;
pub mod probe;
mod race;
mod rdma;
pub mod server;
pub mod shm;
pub mod socket;
pub mod stack;
pub mod transport;
pub mod worker;

pub use api::{kv, rpc, verbs};
