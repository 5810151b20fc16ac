//! Streams, memory and time for the iWARP engine of `sprat-proto`: what `api::verbs` stands on.
//!
//! ```text
//!   api::verbs ─► Shared (one lock, one way to wait, perhaps a thread) ─► Core (one turn) ─► Rnic (pure)
//!                                                                          │
//!   a worker ────► rpc::Rdma (a transport, one thread) ────────────────────►│
//!                                                    sockets, epoll, Regions, clock
//! ```
//!
//! The engine is coupled loosely to the stream here: a kernel socket takes any octets, and what leaves in one record is not
//! promised to be one segment.
//!
//! Not here: what the octets mean (`proto::rdma`), the objects that programs hold (`api::verbs`).

mod attend;
mod core;
mod desk;
mod door;
mod guard;
mod parties;
mod regions;
pub(crate) mod rpc;
mod shared;
mod stream;
mod socket;

pub(crate) use self::core::Settings;
pub use self::core::{Copies, Counters, Failure};
pub(crate) use desk::{Asked, Desk, Link, Mailbox, Object};
pub(crate) use door::{Audience, Dial};
pub(crate) use parties::{News, Number};
pub use shared::Threading;
pub(crate) use shared::{Patience, Shared};
pub use sprat_sys::interfaces::{Interface, interfaces};
pub use stream::SocketOptions;
pub(crate) use stream::{bound, open};
pub(crate) use sprat_sys::signals::without_signals;
