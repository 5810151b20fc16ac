//! Connections by IP addresses: rdma_cm, with the interface of librdmacm.
//!
//! ```text
//!   channel   event channels                  id        ids and their options
//!   event     events                          delivery  the engine's events become programs'
//!   resolve   binding, resolving, ports       connect   listening, connecting, disconnecting
//!   queues    queue pairs of ids              endpoint  id, route and queue pair in one call
//!   addrinfo  names become addresses          lookup    an id's name becomes an address
//!   devices   the device of an address        address   C's addresses
//!   log       the log of connections          rnr       the time a message waits for a receive
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
