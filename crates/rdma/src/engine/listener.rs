//! A listening socket, and the connections it accepts.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use sprat_proto::Instant;
use sprat_proto::rdma::StartupError;

use super::cm::CmId;
use super::state::PendingRequest;

/// A listening socket and the connection requests that wait there.
#[derive(Debug)]
pub(super) struct Listener {
    /// The kernel's socket. A listener of our own TCP has none.
    pub(super) socket: Option<OwnedFd>,
    pub(super) local: SocketAddr,
    pub(super) asked: VecDeque<PendingRequest>,
    /// The newest peers whose start-up at this listener failed, with the reason.
    pub(super) failed: VecDeque<(SocketAddr, StartupError)>,
    pub(super) policy: AcceptPolicy,
    /// The time at which a paused listener accepts again; `NEVER` if it waits until a connection
    /// ends. A paused listener is out of the epoll.
    pub(super) paused_until: Option<Instant>,
}

/// The peers that may connect to a listener, and the place where their requests wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AcceptPolicy {
    /// The rdma_cm id that gets the listener's requests, and how many may wait for it. Without an
    /// id they wait at the listener.
    pub(crate) cm_id: Option<(CmId, usize)>,
    /// True if the listener does not serve peers of other machines.
    pub(crate) local_only: bool,
}
