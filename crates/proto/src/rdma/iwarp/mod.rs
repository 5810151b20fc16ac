//! The iWARP wire below the verbs objects: RDMAP (RFC 5040, 7306) over DDP (RFC 5041) over MPA
//! (RFC 5044, 6581).
//!
//! ```text
//!  start  startup                      MPA's Request and Reply
//!  framer deframer                     MPA's FPDUs
//!  conn   io  teardown  timers         a stream: its owner's calls, bytes, end and deadlines
//!  tx     responder  fpdu_writer       segments to the peer
//!  rx     rx_message  unexpected       segments from the peer; messages into receives
//!  rx_ahead                            segments from the peer before their turn
//!  requester  complete                 responses to own requests, completion of the send queue
//!  acks   write_ack                    acknowledged Writes between two engines of this kind
//!  state  connection  segment  ahead  outstanding  responses   what the steps above work on
//! ```
//!
//! The steps are methods of [`Rnic`](crate::rdma::Rnic) and of its queue pairs. The state they work
//! on lies in files of its own, which name none of the steps.

pub(crate) mod acks;
pub(crate) mod ahead;
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
mod rx_ahead;
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
