//! Redis and memcached as peers of the store: their servers as child processes, their protocols,
//! and a client that is as lean as ours.
//!
//! [`resp`] and [`memcached`] write requests and parse replies, [`connection`] pipelines them over
//! one non-blocking socket, [`server`] starts the servers. The client polls and sleeps on the
//! schedule of Sprat's workers. So a comparison shows servers, protocols and transports, and not
//! the client library of one of them.

pub mod connection;
pub mod memcached;
pub mod reply;
pub mod resp;
pub mod server;
