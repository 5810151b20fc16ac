//! rdma_cm: connections by IP addresses, as librdmacm has them.
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
//! Behind an id stands a `ConnectionId` of the engine, behind a channel a `ConnectionChannel`; the engine puts what happens
//! into the channel, and getting an event translates it. An id without a channel of the program's has one of its own, and
//! each call waits there for the event that says what came of it.
//!
//! As the kernel's rdma_cm with an iWARP card: an event of ESTABLISHED on both sides and no CONNECT_RESPONSE, DISCONNECTED
//! on both sides, no TIMEWAIT_EXIT; `initiator_depth` is how many Reads may be asked here at once and
//! `responder_resources` how many are served here.
//!
//! Not here: datagrams, multicast, InfiniBand's addresses and routes (`EOPNOTSUPP`, `EINVAL`), rsockets.

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
