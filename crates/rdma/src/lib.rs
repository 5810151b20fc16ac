//! Verbs over software iWARP: RDMA between programs that have nothing but TCP.
//!
//! The names are those of every verbs program: a [`Device`] has [`ProtectionDomain`]s, which have [`MemoryRegion`]s and
//! [`QueuePair`]s; work requests are posted to a queue pair and complete in a [`CompletionQueue`]. What is on the wire is
//! iWARP (RFC 5040, 5041, 5044, 6581, 7306), so that the peer may be anyone who speaks it, Linux's siw among others.
//!
//! ```
//! use std::time::Duration;
//! use sprat_rdma::{Access, ConnectOptions, Device, Options, PairOptions, SendRequest, SendOp, RecvRequest};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open(Options::default())?;
//! let domain = device.protection_domain()?;
//! let completions = device.completion_queue(64)?;
//! let memory = domain.register(4096, Access::LOCAL)?;
//! // Two queue pairs of one device are connected with each other here; mostly they are on two machines.
//! let (ours, theirs) =
//!     (domain.queue_pair(&PairOptions::new(&completions))?, domain.queue_pair(&PairOptions::new(&completions))?);
//! let listener = device.listen("127.0.0.1:0".parse()?)?;
//! ours.begin_connect(listener.local_addr(), ConnectOptions::default())?;
//! let request = listener.next(Some(Duration::from_secs(5))).ok_or("nobody came")?;
//! request.accept(&theirs, Default::default())?;
//! ours.connected(Some(Duration::from_secs(5)))?;
//!
//! theirs.post_recv(RecvRequest::new(1, memory.sge(2048..4096)))?;
//! memory.write(0, b"sprats swim in swarms")?;
//! ours.post_send(SendRequest::new(2, SendOp::Send, memory.sge(0..21)))?;
//! for _ in 0..2 {
//!     let completion = completions.wait(Some(Duration::from_secs(5))).ok_or("too slow")?;
//!     completion.result()?;
//! }
//! let mut text = [0; 21];
//! memory.read(2048, &mut text)?;
//! assert_eq!(&text, b"sprats swim in swarms");
//! # Ok(())
//! # }
//! ```
//!
//! Registered memory is written by peers at any time, so it is never lent as a slice: it is read and written by copies and
//! by atomic words. Nothing is encrypted, and nobody is asked for a password: whoever can reach a listener and is accepted
//! can use what the program gives him. Addresses other than loopback need [`Options::insecure_network`].
//!
//! Every object may be used by several threads. Dropping one gives it back; what it depends on lives as long.

#![forbid(unsafe_code)]

use std::io;

use rustix::io::Errno;

pub use sprat_proto::rdma::mr::{Rights, WindowKind};
pub use sprat_proto::rdma::{
    AcceptOptions, Access, Completed, Completion, ConnectOptions, Cq, Data, Limits, MAX_INLINE,
    MAX_READ_DEPTH, MAX_SGE, PostError, Qp, QpState, RecvRequest, Remote, SendFlags, SendOp,
    SendRequest, Sge, Srq, Stag, StartupError, Status,
};
pub use sprat_proto::wire::mpa::RtrKind;
pub use sprat_proto::wire::rdmap::Cause;

pub use engine::{Copies, Counters, Failure, SocketOptions, Threading};
pub use sprat_sys::interfaces::{Interface, interfaces};

mod channel;
mod device;
#[doc(hidden)]
pub mod engine;
mod listen;
mod memory;
mod pair;
mod queue;

pub use channel::{BoundAddress, ConnectionChannel, ConnectionId, News};
pub use device::{Device, Notice, Options};
pub use listen::{ConnectRequest, Listener};
pub use memory::{
    FastRegion, ForeignRegion, MemoryRegion, MemoryWindow, ProtectionDomain, is_written,
};
pub use pair::{ConnectError, Connected, Connection, PairOptions, QueuePair};
pub use queue::{CompletionChannel, CompletionQueue, NoticeChannel, SharedReceiveQueue};
pub use sprat_sys::memory::Foreign;

/// Why something could not be made or done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine refused.
    #[error(transparent)]
    Refused(#[from] PostError),
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for Error {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// Bytes outside a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("these bytes are not all in the region")]
pub struct OutOfBounds;

/// Checks the end of an engine's object. Its owner alone ends it, when nothing uses it any more; an error means that the
/// object stays for ever, and that peers go on to reach what it opened.
fn ended(result: Result<(), PostError>) {
    debug_assert!(
        result.is_ok() || std::thread::panicking(),
        "an object of the engine stays: {result:?}"
    );
}
