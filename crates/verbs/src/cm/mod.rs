//! rdma_cm: connections by IP addresses, with the interface of librdmacm.
//!
//! ```text
//!   channel   event channels               id        ids: making, moving, ending them; their options
//!   event     what happened, translated    address   binding, resolving, ports
//!   connect   asking, listening, answering, ending
//!   queues    queue pairs, queues and channels made for an id        endpoint  all of it in one call
//!   lookup    names into addresses         devices   which device an address is of
//!   told      what of it is logged        rnr       how long a message waits for its receive
//! ```
//!
//! An id has a `ConnectionId` of the engine, a channel a `ConnectionChannel`. The engine puts
//! events into the channel, and reading an event translates it. An id that is created without a
//! channel is synchronous: it has a private channel, and each call waits there for the event that
//! reports its outcome.
//!
//! The events are those of the kernel's rdma_cm with an iWARP card: ESTABLISHED on both sides
//! without CONNECT_RESPONSE, DISCONNECTED on both sides, no TIMEWAIT_EXIT. `initiator_depth` limits
//! the Reads that this end issues at once, `responder_resources` those that it serves.
//!
//! Not here: datagrams, multicast, InfiniBand's addresses and routes (`EOPNOTSUPP`, `EINVAL`),
//! rsockets.

mod address;
mod addrinfo;
mod channel;
mod connect;
mod delivery;
mod devices;
mod endpoint;
mod event;
mod id;
mod log;
mod lookup;
mod queues;
mod resolve;
mod rnr;
