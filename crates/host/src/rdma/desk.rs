//! What programs wait for, kept until they fetch it: how connections stand, who asks for one, which queues have something,
//! what went wrong.
//!
//! Always holds: every list has a limit, and what is not fetched costs its sender, not the others.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sprat_proto::rdma::{Conn, Cq, Event, Qp, Why};
use sprat_proto::wire::rdmap::Cause;

/// The most requests for a connection that wait at one listener; those beyond are refused.
pub(super) const MOST_ASKED: usize = 4096;
/// The most notices that wait; the oldest go first.
const MOST_NOTICES: usize = 4096;

/// How a queue pair's connection stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Link {
    /// There is none.
    #[default]
    Idle,
    /// It is being made.
    Opening,
    /// It is there.
    Connected {
        /// From the peer's program.
        private_data: Vec<u8>,
        /// Reads and atomics served at once.
        ird: u16,
        /// Reads and atomics asked at once.
        ord: u16,
    },
    /// The peer's program refused.
    Rejected {
        /// From the peer's program.
        private_data: Vec<u8>,
        /// What the peer would serve.
        ird: Option<u16>,
        /// What the peer would ask.
        ord: Option<u16>,
    },
    /// TCP did not connect.
    Unreachable(std::io::ErrorKind),
    /// The start-up failed.
    Failed(Why),
    /// It has ended; by an error, if there is a cause, which we found or the peer.
    Disconnected(Option<(Cause, bool)>),
}

/// A peer asks for a connection.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Its stream.
    pub(crate) conn: Conn,
    /// Its address.
    pub(crate) peer: SocketAddr,
    /// From its program.
    pub(crate) private_data: Vec<u8>,
    /// What it serves at once, if it says so.
    pub(crate) ird: Option<u16>,
    /// What it asks at once, if it says so.
    pub(crate) ord: Option<u16>,
}

/// The completion queues of one channel that have something.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) ready: VecDeque<Cq>,
}

/// See the file.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    pub(crate) links: BTreeMap<Qp, Link>,
    /// Whose connection stands otherwise than before, if anybody wants to know.
    pub(crate) moved: Option<VecDeque<Qp>>,
    /// Which channel a completion queue reports to.
    pub(crate) reports: BTreeMap<Cq, u32>,
    pub(crate) channels: BTreeMap<u32, Channel>,
    /// What concerns no connection's maker: overflow, limits, failures.
    pub(crate) notices: VecDeque<Event>,
}

impl Desk {
    /// Takes in what the engine says of objects (streams and requests are the core's).
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Established { qp, private_data, ird, ord, .. } => {
                self.link(qp, Link::Connected { private_data, ird, ord });
            }
            Event::Rejected { qp, private_data, ird, ord, .. } => {
                self.link(qp, Link::Rejected { private_data, ird, ord });
            }
            Event::Failed { qp: Some(qp), why, .. } => self.link(qp, Link::Failed(why)),
            Event::Disconnected { qp } => {
                if !matches!(self.links.get(&qp), Some(Link::Disconnected(_))) {
                    self.link(qp, Link::Disconnected(None));
                }
            }
            Event::CqReady(cq) => self.report(cq),
            other => {
                if let Event::QpFailed { qp, cause, ours } = other {
                    self.link(qp, Link::Disconnected(Some((cause, ours))));
                }
                if self.notices.len() == MOST_NOTICES {
                    self.notices.pop_front();
                }
                self.notices.push_back(other);
            }
        }
    }

    /// The state of a queue pair's connection; nothing if the pair has gone.
    pub(super) fn link(&mut self, qp: Qp, link: Link) {
        if let Some(slot) = self.links.get_mut(&qp) {
            *slot = link;
            if let Some(moved) = &mut self.moved {
                moved.push_back(qp);
            }
        }
    }

    fn report(&mut self, cq: Cq) {
        let Some(channel) = self.reports.get(&cq).and_then(|id| self.channels.get_mut(id)) else { return };
        channel.ready.push_back(cq);
        // A counter at its limit is readable anyway.
        let _ = rustix::io::write(&*channel.fd, &[0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
