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

mod progress;
mod core;
mod events;
mod listen;
mod background;
mod cm;
mod regions;
mod shared;
mod socket;
mod stream;

pub use self::core::{Copies, Core, Counters, Failure, Settings};
pub use events::{Asked, Desk, Link};
pub(crate) use events::{Mailbox, Object};
pub(crate) use listen::{Audience, Dial};
pub(crate) use cm::{News, Number};
pub use regions::Regions;
pub use shared::Threading;
pub(crate) use shared::{Patience, Shared};
pub use stream::SocketOptions;
pub(crate) use stream::{bound, open};
