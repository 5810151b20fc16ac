//! Software iWARP: verbs over RDMAP (RFC 5040, 7306) over DDP (RFC 5041) over MPA (RFC 5044, 6581) over any reliable stream.
//!
//! ```text
//!  post_send ─► send queue ─► DDP segments ─► FPDUs ─► output ─► stream ─► input ─► FPDUs ─► checks ─► placement ─► completion
//! ```
//!
//! One [`Rnic`] owns everything: protection domains, regions, completion queues, queue pairs, connections. It is one state
//! machine with the five verbs of this crate, driven by one thread at a time. The stream below is the caller's: a kernel
//! socket, which takes any bytes, or a stream of records, which promises to send what one [`Rnic::output`] appended as one
//! segment of its own ("loose" and "tight" coupling of MPA and TCP). The engine does not care which.
//!
//! Registered memory is the caller's as well, and others write it at any time: it is reached by copies only, through
//! [`Memory`], after an STag was checked.
//!
//! What always holds:
//! - An byte is placed only after the FPDU's CRC (if there is one), STag, rights and bounds were checked, and never after
//!   the STag was revoked.
//! - Work requests complete in the order posted, each exactly once; when a queue pair fails, what is left completes as
//!   flushed.
//! - The first error of a stream is answered by a Terminate, and nothing follows it.
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
