//! Streams, memory and time for the pure iWARP engine of `sprat-proto`.
//!
//! ```text
//!   objects of a program ─► Shared (one lock, one way to wait, perhaps a thread) ─► Core ─► Rnic
//!   RPC over queue pairs (sprat, one thread) ─────────────────────────────────────►│       (pure)
//!                                                              sockets, epoll, Regions, clock
//! ```
//!
//! The engine is coupled loosely to the stream: a kernel socket takes any bytes, and the bytes of
//! one record need not leave in one segment.
//!
//! Not here: what the bytes mean (`sprat_proto::rdma`), and the objects that programs hold.

mod background;
mod cm;
mod connect;
mod core;
mod event_queue;
mod events;
mod leave;
mod listen;
mod listener;
mod native;
mod native_input;
mod progress;
mod receive;
mod regions;
mod reserved;
mod send;
mod shared;
mod socket;
mod state;
mod stream;
mod streams;
mod threading;

pub use self::core::{Copies, Core, Counters, Failure, Settings};
pub(crate) use cm::{CmEvent, CmId};
pub(crate) use connect::ConnectLimits;
pub(crate) use event_queue::EventQueue;
pub(crate) use events::EventSource;
pub use events::Events;
pub(crate) use listener::AcceptPolicy;
pub use native::{Coupling, NativeInterface};
pub use regions::Regions;
pub(crate) use shared::Shared;
pub use state::{ConnectionState, PendingRequest};
pub use stream::SocketOptions;
pub(crate) use stream::Unconnected;
pub(crate) use threading::Patience;
pub use threading::Threading;
