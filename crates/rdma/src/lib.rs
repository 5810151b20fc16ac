//! Verbs over software iWARP: RDMA between programs over TCP.
//!
//! The names are those of the verbs: a [`Device`] has [`ProtectionDomain`]s, which have
//! [`MemoryRegion`]s and [`QueuePair`]s. Work requests are posted to a queue pair and complete in a
//! [`CompletionQueue`]. The wire carries iWARP (RFC 5040, 5041, 5044, 6581, 7306), so the peer may
//! be any implementation of it, such as Linux's siw.
//!
//! ```
//! use std::time::Duration;
//! use sprat_rdma::{
//!     Access, ConnectOptions, Device, Options, PairOptions, RecvRequest, SendOp, SendRequest,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::open(Options::default())?;
//! let domain = device.protection_domain()?;
//! let completions = device.completion_queue(64)?;
//! let memory = domain.register(4096, Access::LOCAL)?;
//! // This example connects two queue pairs of one device. Programs connect two machines.
//! let options = PairOptions::new(&completions);
//! let (ours, theirs) = (domain.queue_pair(&options)?, domain.queue_pair(&options)?);
//! let listener = device.listen("127.0.0.1:0".parse()?)?;
//! ours.begin_connect(listener.local_addr(), ConnectOptions::default())?;
//! let request = listener.next(Some(Duration::from_secs(5))).ok_or("no request came")?;
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
//! Peers write registered memory at any time, so it is never lent as a slice: programs read and
//! write it by copies and by atomic words. Nothing is encrypted or authenticated: a peer that
//! reaches a listener and is accepted can use the memory that the program opens to it. Addresses
//! other than loopback need [`Options::insecure_network`].
//!
//! Several threads may use one object. Dropping an object gives it back to the device; the objects
//! that it depends on live as long.

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

pub use engine::{Copies, Counters, Coupling, Failure, NativeInterface, SocketOptions, Threading};
pub use sprat_sys::interfaces::{Interface, interfaces};

mod async_event;
mod channel;
mod device;
#[doc(hidden)]
pub mod engine;
mod handle;
mod listen;
mod memory;
mod pair;
mod queue;

pub use async_event::AsyncEvent;
pub use channel::{BoundAddress, CmEvent, ConnectionChannel, ConnectionId};
pub use device::{Device, Options};
pub use listen::{ConnectRequest, Listener};
pub use memory::{
    FastRegion, ForeignRegion, MemoryRegion, MemoryWindow, ProtectionDomain, is_written,
};
pub use pair::{ConnectError, Connected, Connection, PairOptions, QueuePair};
pub use queue::{AsyncEventChannel, CompletionChannel, CompletionQueue, SharedReceiveQueue};
pub use sprat_sys::memory::Foreign;

/// The error of a failed call on an RDMA device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine refused the call.
    #[error(transparent)]
    Refused(#[from] PostError),
    /// The operating system refused the call.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for Error {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

/// The error of an access to bytes that are not all in a memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("these bytes are not all in the region")]
pub struct OutOfBounds;

/// Checks that the engine has ended an object. Only its owner ends it, when nothing uses it any
/// more. An error means that the object stays forever, and that peers can still reach the memory
/// that it opened.
fn ended(result: Result<(), PostError>) {
    debug_assert!(
        result.is_ok() || std::thread::panicking(),
        "an object of the engine stays: {result:?}"
    );
}
