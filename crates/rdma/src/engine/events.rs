//! What programs wait for, kept until they fetch it: how connections stand, who asks for one, which queues have something,
//! what went wrong.
//!
//! Always holds: every list has a limit, and what is not fetched costs its sender, not the others.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::ReadWriteFlags;
use sprat_proto::rdma::{Conn, Cq, Event, Qp, Srq, StartupError};
use sprat_proto::wire::rdmap::Cause;

use super::cm::{self, Parties};

/// The most requests for a connection that wait at one listener; those beyond are refused.
pub(super) const MOST_ASKED: usize = 4096;
/// The most notices that wait; the oldest go first.
const MOST_NOTICES: usize = 4096;

/// How a queue pair's connection stands.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Link {
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
    Unreachable(io::ErrorKind),
    /// The start-up failed.
    Failed(StartupError),
    /// It has ended; by an error, if there is a cause, which we found or the peer.
    Disconnected(Option<(Cause, bool)>),
}

/// A peer asks for a connection.
#[derive(Debug)]
pub struct Asked {
    /// Its stream.
    pub conn: Conn,
    /// Its address.
    pub peer: SocketAddr,
    /// The address that it asks at.
    pub local: SocketAddr,
    /// From its program.
    pub private_data: Vec<u8>,
    /// What it serves at once, if it says so.
    pub ird: Option<u16>,
    /// What it asks at once, if it says so.
    pub ord: Option<u16>,
}

/// What waits for one reader, behind a descriptor that counts it: readable exactly while something is there, if nobody else
/// reads from it. Whoever has the descriptor may make it non-blocking, which is a wish and not minded here.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    fd: Arc<OwnedFd>,
    waiting: VecDeque<T>,
}

impl<T> Mailbox<T> {
    /// An empty one.
    ///
    /// # Errors
    /// No descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        let fd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?);
        Ok(Self::behind(fd))
    }

    /// An empty one behind a descriptor of the caller's: an eventfd that counts down by one.
    pub(crate) fn behind(fd: Arc<OwnedFd>) -> Self {
        Self { fd, waiting: VecDeque::new() }
    }

    pub(crate) fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn put(&mut self, item: T) {
        self.waiting.push_back(item);
        #[expect(clippy::host_endian_bytes, reason = "the kernel reads a number of this machine")]
        let one = 1_u64.to_ne_bytes();
        // A counter at its limit is readable anyway.
        let _ = rustix::io::write(&*self.fd, &one);
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.waiting.front()
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        let item = self.waiting.pop_front()?;
        self.count_down();
        Some(item)
    }

    /// Takes out those that are wanted, in order.
    pub(crate) fn extract(&mut self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let (out, rest): (Vec<T>, Vec<T>) =
            std::mem::take(&mut self.waiting).into_iter().partition(wanted);
        self.waiting = rest.into();
        for _ in &out {
            self.count_down();
        }
        out
    }

    /// Takes out what is of no use any more.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        let before = self.waiting.len();
        self.waiting.retain(keep);
        for _ in self.waiting.len()..before {
            self.count_down();
        }
    }

    fn count_down(&self) {
        let mut count = [0; 8];
        // It does not wait even if somebody else has read.
        let _ = rustix::io::preadv2(
            &*self.fd,
            &mut [IoSliceMut::new(&mut count)],
            u64::MAX,
            ReadWriteFlags::NOWAIT,
        );
    }
}

/// What something can happen to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Object {
    /// A completion queue.
    Cq(Cq),
    /// A queue pair.
    Qp(Qp),
    /// A shared receive queue.
    Srq(Srq),
}

impl Object {
    /// What an event is of.
    pub(crate) const fn of(event: &Event) -> Option<Self> {
        match event {
            Event::CqOverflow(cq) => Some(Self::Cq(*cq)),
            Event::QpFailed { qp, .. } | Event::LastWqe(qp) => Some(Self::Qp(*qp)),
            Event::SrqLimit(srq) => Some(Self::Srq(*srq)),
            _ => None,
        }
    }
}

/// See the file.
#[derive(Debug, Default)]
pub struct Desk {
    pub links: BTreeMap<Qp, Link>,
    /// The addresses of the peers that they were connected with last, where failures are logged.
    pub(super) peers: BTreeMap<Qp, SocketAddr>,
    /// Whose connection stands otherwise than before, if anybody wants to know.
    pub moved: Option<VecDeque<Qp>>,
    /// Who is told of it, each for himself.
    pub(crate) parties: Parties,
    /// Which channel a completion queue reports to.
    pub(crate) reports: BTreeMap<Cq, u32>,
    /// The completion queues of each channel that have something.
    pub(crate) channels: BTreeMap<u32, Mailbox<Cq>>,
    /// What concerns no connection's maker: overflow, limits, failures.
    pub notices: VecDeque<Event>,
    /// The same of objects that have a box of their own for it,
    pub(crate) boxes: BTreeMap<u32, Mailbox<Event>>,
    /// which is this one.
    pub(crate) owners: BTreeMap<Object, u32>,
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
                self.notice(other);
            }
        }
    }

    /// The state of a queue pair's connection; nothing if the pair has gone.
    pub(super) fn link(&mut self, qp: Qp, link: Link) {
        if let Some(slot) = self.links.get_mut(&qp) {
            self.parties.moved(qp, &link);
            *slot = link;
            if let Some(moved) = &mut self.moved {
                moved.push_back(qp);
            }
        }
    }

    /// A queue pair is destroyed: its connection, if there is one, has an end for those who are told of it.
    pub(crate) fn pair_goes(&mut self, qp: Qp) {
        self.begins_anew(qp);
        self.links.remove(&qp);
        self.peers.remove(&qp);
        self.parties.unfollow(qp);
        self.forget(Object::Qp(qp));
    }

    /// A queue pair is as if it were new: what there was of a connection is no more.
    pub(crate) fn begins_anew(&mut self, qp: Qp) {
        if let Some(link) = self.links.get_mut(&qp)
            && let Some(last) = cm::without_pair(&std::mem::take(link))
        {
            self.parties.moved(qp, &last);
        }
    }

    /// A completion queue that was armed has something: its channel, if it has one, tells that.
    pub(crate) fn report(&mut self, cq: Cq) {
        if let Some(channel) = self.reports.get(&cq).and_then(|id| self.channels.get_mut(id)) {
            channel.put(cq);
        }
    }

    fn notice(&mut self, event: Event) {
        let own = Object::of(&event).and_then(|object| self.owners.get(&object));
        if let Some(own) = own.and_then(|number| self.boxes.get_mut(number)) {
            if own.len() < MOST_NOTICES {
                own.put(event);
            }
            return;
        }
        if self.notices.len() == MOST_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(event);
    }

    /// A number that no box or channel has.
    pub(crate) fn free_number<T>(of: &BTreeMap<u32, T>) -> u32 {
        of.last_key_value().map_or(0, |(n, _)| n + 1)
    }

    /// What happens to `object` goes into the box with this number from now on.
    pub(crate) fn own(&mut self, object: Object, number: u32) {
        self.owners.insert(object, number);
    }

    /// Nobody asks for an object any more: what waits of it goes too.
    pub(crate) fn forget(&mut self, object: Object) {
        if let Some(own) =
            self.owners.remove(&object).and_then(|number| self.boxes.get_mut(&number))
        {
            own.retain(|event| Object::of(event) != Some(object));
        }
        if let Object::Cq(cq) = object
            && let Some(channel) =
                self.reports.remove(&cq).and_then(|number| self.channels.get_mut(&number))
        {
            channel.retain(|ready| *ready != cq);
        }
    }
}
