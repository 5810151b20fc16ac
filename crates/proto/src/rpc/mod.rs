//! The RPC transport: requests and replies of up to 16 MiB, at most once, over any
//! [`Datagrams`](crate::Datagrams) ([`Endpoint`]), over a reliable byte stream ([`stream`]), or
//! over the Sends and Reads of a queue pair ([`over_qp`]).
//!
//! A *session* joins a client to a server and has eight *channels*. A channel carries one RPC at a
//! time, and the next request on it acknowledges the last reply. The client drives: it alone has
//! timers, it probes when a reply is overdue, and the server keeps no timer for a session or an
//! RPC. Receivers grant the packets of long messages, shortest remaining first, and ask for lost
//! ones by bitmap.
//!
//! The transport promises at-most-once execution within the life of both processes: a request runs
//! once or not at all, unless the server's application calls it idempotent. If the client cannot
//! know which, the error is [`RpcError::MaybeExecuted`]. Exactly-once execution across crashes is
//! the store's task (RIFL).

pub mod budget;
pub mod endpoint;
pub mod over_qp;
pub mod stream;

mod body;
mod client;
mod config;
mod control;
mod credit;
mod incoming;
mod limits;
mod missing;
mod outgoing;
mod path;
mod peer;
mod retained;
mod server;
mod session;
mod shared;
mod slab;
mod slot;
mod srpt_queue;
mod stats;
mod types;
mod wheel;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use endpoint::Endpoint;
pub use limits::{CHANNELS, MAX_MESSAGE, MAX_SLICES};
pub use stats::Stats;
pub use types::{
    CloseReason, Event, Message, Payload, RequestError, RpcError, RpcId, ServerRpc, SessionId,
    Slice, Slices,
};
