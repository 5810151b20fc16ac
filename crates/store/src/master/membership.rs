//! A master's membership in the cluster, and the lease under which it serves.
//!
//! Invariants: the lease starts when the request was sent, by this machine's own clock, and its
//! last tenth is not used, so that this machine stops before the coordinator declares it crashed.
//! An identity that the coordinator has given up is never used again. No order and no reply of a
//! coordinator counts whose term is lower than one that this master has seen.

use alloc::format;
use alloc::string::String;

use sprat_proto::Instant;
use sprat_proto::rpc::{Message, Payload, RpcError};
use sprat_proto::time::MS;

use super::links::COORDINATOR;
use crate::durability::Durability;
use crate::message::Status;
use crate::message::control::{
    Enlist, Enlisted, Hint, HintCrashed, RenewServer, Renewed, Usage, failure_text,
};
use crate::site::OwnedSite;
use crate::types::ServerId;
use sprat_proto::node::machine::Output;

/// The time that a master's call to the coordinator may take.
pub(super) const CALL_NS: u64 = 500 * MS;
/// The pause before a master repeats a failed request to the coordinator.
const AGAIN_NS: u64 = 100 * MS;

/// The reason why a server does not join a cluster that would have it.
const FOREIGN: &str = "its directory belongs to another cluster; name another directory or \
                       coordinator";

#[derive(Debug)]
pub(crate) struct Membership {
    nonce: u64,
    /// The number of replicas of each segment of the master's log.
    replicas: u8,
    /// The time at which the master acknowledges a change.
    durability: Durability,
    site: OwnedSite,
    /// The cluster and the id of the last server that has used this server's frames.
    former: Option<(u64, ServerId)>,
    control: String,
    data: String,
    state: State,
    /// The time at which the master stops serving under its lease.
    until: Instant,
    /// True if the master serves no more, though it is a member.
    draining: bool,
    /// The time of the next request to the coordinator; never while one is in progress.
    due: Instant,
    /// The tag and the send time of the request to the coordinator that is in progress.
    asked: Option<(u64, Instant)>,
    lease_ns: u64,
    /// The version of the coordinator's server list.
    list_version: u64,
    /// The highest term of a coordinator that this master has seen.
    term: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Joining,
    Member {
        cluster: u64,
        server: ServerId,
    },
    /// The master has told the coordinator that it stops, and has no reply yet.
    Leaving,
    Gone,
}

impl Membership {
    pub(super) fn new(
        nonce: u64,
        (replicas, durability): (usize, Durability),
        site: OwnedSite,
        former: Option<(u64, ServerId)>,
        control: String,
        data: String,
    ) -> Self {
        Self {
            nonce,
            replicas: replicas as u8,
            durability,
            site,
            former,
            control,
            data,
            state: State::Joining,
            until: Instant::ZERO,
            draining: false,
            due: Instant::ZERO,
            asked: None,
            lease_ns: 0,
            list_version: 0,
            term: 0,
        }
    }

    /// Checks that the master may serve a request for `cluster`.
    #[inline]
    pub(crate) fn check(&self, now: Instant, cluster: u64) -> Result<(), Status> {
        match self.state {
            State::Member { cluster: mine, .. } if mine != cluster => Err(Status::NotInCluster),
            State::Member { .. } if now < self.until => Ok(()),
            _ => Err(Status::NotServing),
        }
    }

    /// Checks that the coordinator of `cluster` means this master by `server`.
    pub(crate) fn is_me(&self, cluster: u64, server: ServerId) -> Result<(), Status> {
        match self.state {
            // An order of the coordinator may overtake its reply.
            State::Joining => Err(Status::Retry),
            State::Member { cluster: mine, server: me } if (mine, me) == (cluster, server) => {
                Ok(())
            }
            _ => Err(Status::NotInCluster),
        }
    }

    /// Checks that an order of a coordinator of `cluster` with this term means this master by
    /// `server`. A coordinator that another one has replaced is not obeyed.
    pub(crate) fn is_ordered(
        &mut self,
        cluster: u64,
        server: ServerId,
        term: u64,
    ) -> Result<(), Status> {
        self.is_me(cluster, server)?;
        self.follow(term)
    }

    /// Records the term of a coordinator.
    ///
    /// # Errors
    /// [`Status::StaleTerm`] if the term is lower than one that this master has seen.
    pub(super) fn follow(&mut self, term: u64) -> Result<(), Status> {
        if term < self.term {
            return Err(Status::StaleTerm);
        }
        self.term = term;
        Ok(())
    }

    pub(super) fn server(&self) -> Option<ServerId> {
        match self.state {
            State::Member { server, .. } => Some(server),
            _ => None,
        }
    }

    pub(super) fn cluster(&self) -> Option<u64> {
        match self.state {
            State::Member { cluster, .. } => Some(cluster),
            _ => None,
        }
    }

    /// Returns the version of the coordinator's server list as of the last reply.
    pub(super) fn list_version(&self) -> u64 {
        self.list_version
    }

    pub(super) fn deadline(&self) -> Instant {
        self.due
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.due <= now
    }

    /// Returns the call to the coordinator that is due, if one is.
    pub(super) fn call(&mut self, now: Instant, tag: u64, usage: Usage) -> Option<Output> {
        let (former_cluster, replaces) = self.former.unwrap_or_default();
        let request = match self.state {
            State::Joining => Enlist {
                nonce: self.nonce,
                capacity_bytes: usage.capacity_bytes,
                replicas: self.replicas,
                durability: self.durability,
                site: self.site.as_site(),
                cluster: former_cluster,
                replaces,
                control: &self.control,
                data: &self.data,
            }
            .emit(),
            State::Member { cluster, server } => RenewServer { cluster, server, usage }.emit(),
            State::Leaving | State::Gone => return None,
        };
        self.asked = Some((tag, now));
        self.due = Instant::NEVER;
        let patience_ns = if self.lease_ns == 0 { CALL_NS } else { self.lease_ns / 4 };
        let message = Message::from(request);
        Some(Output::Call { link: COORDINATOR, tag, message, deadline: now.after(patience_ns) })
    }

    /// Stops serving for good. The master stays a member, and renews its lease, so that its log
    /// still goes to replicas.
    pub(super) fn drain(&mut self) {
        self.draining = true;
        self.until = Instant::ZERO;
    }

    /// Ends the membership: the master serves no more, and no later reply of the coordinator
    /// changes that. Returns the call that tells the coordinator, if this is a member.
    pub(super) fn leave(&mut self, now: Instant, tag: u64) -> Option<Output> {
        self.due = Instant::NEVER;
        let State::Member { cluster, server } = self.state else {
            self.state = State::Gone;
            return None;
        };
        self.state = State::Leaving;
        self.asked = Some((tag, now));
        let message = HintCrashed { cluster, server, hint: Hint::Leaving }.emit().into();
        Some(Output::Call { link: COORDINATOR, tag, message, deadline: now.after(CALL_NS) })
    }

    /// Returns true if the membership has ended, and the coordinator knows or does not answer.
    pub(super) fn has_left(&self) -> bool {
        self.state == State::Gone
    }

    /// Takes the reply to the enlistment. Returns the term of the lease.
    ///
    /// # Errors
    /// [`Status::NotInCluster`] if the coordinator leads another cluster than the server's frames
    /// belong to.
    fn joined(&mut self, enlisted: &Enlisted) -> Result<u64, Status> {
        if self.former.is_some_and(|(cluster, _)| cluster != enlisted.cluster) {
            return Err(Status::NotInCluster);
        }
        self.follow(enlisted.term)?;
        self.state = State::Member { cluster: enlisted.cluster, server: enlisted.server };
        self.list_version = enlisted.list_version;
        Ok(enlisted.lease_ns)
    }

    /// Takes a version of the coordinator's server list. The news may come in another order than
    /// the changes.
    pub(crate) fn hear(&mut self, list_version: u64) {
        self.list_version = self.list_version.max(list_version);
    }

    /// Takes the result of a call to the coordinator. Returns an order to stop if the cluster has
    /// given this server up.
    pub(super) fn response(
        &mut self,
        now: Instant,
        tag: u64,
        result: Result<Payload<'_>, RpcError>,
    ) -> Option<Output> {
        let (_, sent) = self.asked.take_if(|(asked, _)| *asked == tag)?;
        if self.state == State::Leaving {
            self.state = State::Gone;
            return None;
        }
        let lease_ns = match (self.state, &result) {
            (_, Err(_)) => Err(Status::Retry),
            (State::Joining, Ok(reply)) => {
                Enlisted::parse(reply).and_then(|enlisted| self.joined(&enlisted))
            }
            (_, Ok(reply)) => Renewed::parse(reply).and_then(|renewed| {
                self.follow(renewed.term)?;
                self.hear(renewed.list_version);
                Ok(renewed.lease_ns)
            }),
        };
        match lease_ns {
            Ok(lease_ns) => {
                self.lease_ns = lease_ns;
                if !self.draining {
                    self.until = self.until.max(sent.after(lease_ns - lease_ns / 10));
                }
                self.due = sent.after(lease_ns / 3).max(now);
                None
            }
            Err(Status::NotInCluster) if self.state != State::Joining => {
                self.state = State::Gone;
                let reason =
                    String::from("the cluster has given this server up: its lease had run out");
                Some(Output::Stop { reason })
            }
            Err(Status::NotInCluster) => {
                self.state = State::Gone;
                let reply = result.as_deref().unwrap_or_default();
                let text =
                    if Enlisted::parse(reply).is_ok() { FOREIGN } else { failure_text(reply) };
                let reason = format!("the coordinator refuses this server: {text}");
                Some(Output::Stop { reason })
            }
            Err(_) => {
                self.due = now.after(AGAIN_NS);
                None
            }
        }
    }
}
