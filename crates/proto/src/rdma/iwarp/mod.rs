//! iWARP: the wire below the verbs objects. RDMAP (RFC 5040, 7306) over DDP (RFC 5041) over MPA (RFC 5044, 6581).

pub(crate) mod acks;
mod complete;
mod conn;
pub(crate) mod connection;
pub mod deframer;
pub(crate) mod error;
pub(crate) mod fpdu_writer;
pub mod framer;
mod io;
pub(crate) mod outstanding;
mod requester;
mod responder;
pub(crate) mod responses;
mod rx;
mod rx_message;
pub(crate) mod segment;
pub mod start;
mod startup;
pub(crate) mod state;
mod teardown;
#[cfg(test)]
mod tests;
mod timers;
mod tx;
mod unexpected;
mod write_ack;
