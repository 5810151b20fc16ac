//! Software iWARP: verbs over RDMAP (RFC 5040, 7306), DDP (RFC 5041) and MPA (RFC 5044, 6581) on
//! any reliable stream.
//!
//! ```text
//!  post_send ─► send queue ─► DDP segments ─► FPDUs ─► output ─► stream
//!  stream ─► input ─► FPDUs ─► checks ─► placement ─► completion
//! ```
//!
//! One [`Rnic`] owns all objects: protection domains, regions, completion queues, queue pairs and
//! connections. It is one state machine with the five verbs of this crate, and one thread at a time
//! drives it. The caller owns the stream below: a kernel socket, or a stream that sends the bytes
//! of one [`Rnic::output`] as one segment. RFC 5044 calls the two "loose" and "tight" coupling of
//! MPA and TCP; the engine works with both.
//!
//! The caller also owns registered memory. Other threads write it at any time, so the engine
//! reaches it through [`Memory`] only, by copies or by naming a [`Span`], and only after it has
//! checked the STag.
//!
//! The folder has one object model and room for two wires. The verbs objects lie here ([`mr`],
//! [`cq`], shared receive queues, queue pairs and the [`Rnic`]); [`iwarp`] has the state and the
//! steps of the iWARP wire.
//!
//! Invariants:
//! - The engine places a byte only after it has checked the FPDU's CRC (if there is one), the STag,
//!   the rights and the bounds, and never after the STag was revoked.
//! - Work requests complete in the order posted, each exactly once. When a queue pair fails, the
//!   remaining requests complete as flushed.
//! - The engine answers the first error of a stream with a Terminate and sends nothing after it.
//!
//! Not here: sockets, threads, addresses, the C interface.

mod completion;
pub mod cq;
mod error;
mod event;
mod ids;
pub mod iwarp;
mod memory;
pub mod mr;
mod options;
mod qp;
mod rnic;
mod shared;
mod srq;
mod table;
#[cfg(test)]
mod tests;
mod work;

pub use completion::{Completed, Completion, Status};
pub use error::PostError;
pub use event::{Event, StartupError, StreamEnd};
pub use ids::{Conn, Cq, Pd, Qp, Srq, Stag};
pub use memory::{Access, Memory, Part, Record, Span, Unmapped};
pub use options::{
    AcceptOptions, ConnectOptions, Limits, MAX_READ_DEPTH, QpOptions, QpState, RnicOptions,
};
pub use rnic::Rnic;
pub use rnic::poll::Polled;
pub use work::{
    Data, MAX_INLINE, MAX_SGE, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge,
};
