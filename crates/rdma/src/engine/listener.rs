//! A listening socket, and what it accepts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use sprat_proto::Instant;
use sprat_proto::rdma::StartupError;

use super::cm::CmId;
use super::state::PendingRequest;

/// A listening socket and the requests that wait there.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) local: SocketAddr,
    pub(super) asked: VecDeque<PendingRequest>,
    /// The newest peers whose start-up failed.
    pub(super) failed: VecDeque<(SocketAddr, StartupError)>,
    pub(super) policy: AcceptPolicy,
    /// While it is out of the epoll: when to try again, or never before a connection ends.
    pub(super) paused_until: Option<Instant>,
}

/// Which peers may connect, and where their requests wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AcceptPolicy {
    /// The id that gets the requests, and how many may wait for it. Without one they wait at the
    /// listener.
    pub(crate) cm_id: Option<(CmId, usize)>,
    /// Peers of other machines are not served.
    pub(crate) local_only: bool,
}
