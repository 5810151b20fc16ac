//! Failures of a client's calls: each leads to another try or ends the operation.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;

use sprat_proto::Instant;
use sprat_proto::rpc::RpcError;

use super::answer::Done;
use super::error::{Error, WaitedFor};
use super::op::Op;
use super::state::{Client, Kind};
use crate::leading::Binding;
use crate::message::Status;
use crate::message::control;
use crate::message::data::Refusal;
use crate::ops::Request;
use sprat_proto::node::machine::Link;

/// The error text for a server that answers BUSY.
const OVERLOADED: &str = "it answers that it has too much to do";

impl Client {
    /// Records that the server of an operation has replied.
    #[cold]
    pub(super) fn reached(&mut self, index: u32) {
        if let Some(peer) = self.peer_of(index) {
            let peer = &mut self.routes.peers[peer as usize];
            (peer.why, peer.leaderless) = (None, false);
        }
        self.any_unreachable = self.routes.peers.iter().any(|peer| peer.why.is_some());
    }

    /// Handles a reply with another status than OK.
    #[cold]
    pub(super) fn refused(
        &mut self,
        now: Instant,
        index: u32,
        refusal: &Refusal<'_>,
    ) -> Option<Done<'static>> {
        if refusal.status == Status::NotLeader && self.peer_of(index) == Some(0) {
            self.without_leader(now, index, refusal.text);
            return None;
        }
        let slot = &mut self.slots[index as usize];
        if slot.kind.is_own() {
            self.own_request_refused(now, index, refusal);
            return None;
        }
        let error = match refusal.status {
            Status::ObjectDoesntExist => Error::ObjectDoesntExist,
            Status::ObjectExists => Error::ObjectExists(refusal.version),
            Status::WrongVersion => Error::WrongVersion(refusal.version),
            Status::NotANumber => Error::NotANumber(refusal.version),
            Status::Overflow => Error::Overflow(refusal.version),
            Status::NotFinite => Error::NotFinite,
            Status::KeyTooLong => Error::KeyTooLong(slot.key_len),
            Status::ValueTooLong if slot.kind == Kind::Server(Request::Append(())) => {
                Error::NoRoomToAppend(slot.value_len())
            }
            Status::ValueTooLong => Error::ValueTooLong(slot.value_len()),
            Status::NoSpace if slot.kind.is_object() => Error::NoSpace,
            Status::TabletLost => Error::TabletLost,
            Status::TooFewServers => Error::TooFewServers,
            Status::NotDurable => {
                Error::NotDurable { text: refusal.text.into(), maybe_executed: slot.maybe() }
            }
            Status::Unfinished => {
                Error::NotDurable { text: refusal.text.into(), maybe_executed: true }
            }
            Status::BadName => Error::BadName,
            Status::TableDoesntExist if !slot.kind.is_object() => Error::TableDoesntExist,
            // The master has forgotten the outcome, for it counts as acknowledged.
            Status::StaleRpc => Error::Unknown,
            Status::ExpiredLease => {
                // This try was not executed. The coordinator knows whether the lease has ended.
                if slot.lease == self.rifl.lease {
                    self.rifl.suspend();
                }
                self.pause(now, index, 0);
                return None;
            }
            Status::UnknownTablet
            | Status::TableDoesntExist
            | Status::NotServing
            | Status::NotInCluster => {
                self.try_again(now, index, 0);
                return None;
            }
            Status::Retry | Status::Starting | Status::Locked => {
                self.pause(now, index, 0);
                return None;
            }
            status => Error::Refused { status, text: refusal.text.into() },
        };
        self.close(index, Err(error))
    }

    /// Handles the failure of a call that got no reply.
    #[cold]
    pub(super) fn failed(
        &mut self,
        now: Instant,
        index: u32,
        error: RpcError,
    ) -> Option<Done<'static>> {
        let slot = &mut self.slots[index as usize];
        if error.maybe_executed() && slot.kind.changes_something() {
            slot.extra().maybe = true;
        }
        if let RpcError::Busy { .. } = error
            && let Some(peer) = self.peer_of(index)
        {
            self.unreachable(Link(peer), OVERLOADED);
        }
        let is_busy = matches!(error, RpcError::Busy { .. });
        // Without a session the node tries all of them anyway, in the order of the list.
        let is_silent = matches!(error, RpcError::Deadline { .. });
        if !is_busy
            && (is_silent || !self.coordinators.is_to_all())
            && self.peer_of(index) == Some(0)
            && self.coordinators.failed(self.binding_of(index))
        {
            self.out.push_back(self.coordinators.connect());
        }
        let slot = &self.slots[index as usize];
        if slot.kind.is_own() {
            self.own_request_failed(now, index);
            return None;
        }
        if slot.deadline <= now {
            let error = self.lateness(index);
            return self.close(index, Err(error));
        }
        match error {
            RpcError::Busy { retry_after_ns } => self.pause(now, index, retry_after_ns),
            _ => self.try_again(now, index, 0),
        }
        None
    }

    /// Handles the reply of a coordinator that does not lead, or led when the request arrived and
    /// leads no more: binds the link to the one that leads, and tries again.
    fn without_leader(&mut self, now: Instant, index: u32, text: &str) {
        let slot = &mut self.slots[index as usize];
        if slot.kind.changes_something() {
            slot.extra().maybe = true;
        }
        if self.coordinators.refused(self.binding_of(index), text) {
            self.out.push_back(self.coordinators.connect());
        }
        let why = match self.coordinators.why() {
            "" => String::from("no coordinator leads so far"),
            why => format!("no coordinator leads: {why}"),
        };
        self.unreachable(Link(0), &why);
        // A coordinator that knows a reason names the last leader besides.
        let (leader, why) = control::leader_in(text);
        self.routes.peers[0].leaderless = leader.is_empty() || !why.is_empty();
        if self.slots[index as usize].kind.is_own() {
            self.own_request_failed(now, index);
        } else {
            self.pause(now, index, 0);
        }
    }

    fn binding_of(&self, index: u32) -> Binding {
        self.slots[index as usize]
            .extra
            .as_ref()
            .map_or_else(Default::default, |extra| extra.binding)
    }

    /// Tries an operation again after a pause. Meanwhile the client asks the coordinator for the
    /// tablets, for the object may have moved.
    fn try_again(&mut self, now: Instant, index: u32, at_least_ns: u64) {
        let slot = &self.slots[index as usize];
        if slot.kind.is_object() {
            self.ask_for_tablets(slot.place);
        }
        self.pause(now, index, at_least_ns);
    }

    /// Handles the coordinator's refusal of one of the client's own requests.
    fn own_request_refused(&mut self, now: Instant, index: u32, refusal: &Refusal<'_>) {
        let refused = |maybe_executed| match refusal.status {
            Status::NotDurable => Error::NotDurable { text: refusal.text.into(), maybe_executed },
            status => Error::Refused { status, text: refusal.text.into() },
        };
        let kind = self.slots[index as usize].kind;
        match (refusal.status, kind) {
            (Status::Retry | Status::Starting, _) => self.own_request_failed(now, index),
            (Status::TableDoesntExist, Kind::Tablets) => {
                let table = self.slots[index as usize].place;
                self.routes.tables[table as usize].tablets.clear();
                let waiting = self.close_own_request(index);
                self.end_all(&waiting, WaitedFor::Coordinator, |_| Error::TableDoesntExist);
            }
            (Status::ExpiredLease, Kind::Lease) => {
                self.rifl.lost();
                if self.has_waiters(index) {
                    self.go_on(index);
                } else {
                    self.close_own_request(index);
                }
            }
            (_, Kind::Lease) => {
                self.rifl.give_up();
                let waiting = self.close_own_request(index);
                self.end_all(&waiting, WaitedFor::Lease, refused);
            }
            _ => {
                let waiting = self.close_own_request(index);
                self.end_all(&waiting, WaitedFor::Coordinator, refused);
            }
        }
    }

    /// Repeats one of the client's own requests to the coordinator that got no reply, while an
    /// operation needs it.
    fn own_request_failed(&mut self, now: Instant, index: u32) {
        let is_lease = self.slots[index as usize].kind == Kind::Lease;
        if self.has_waiters(index) || is_lease && self.rifl.valid(now) {
            return self.pause(now, index, 0);
        }
        if is_lease {
            self.rifl.give_up();
        }
        self.close_own_request(index);
    }

    /// Returns true if an operation waits for the reply to the client's own request in slot
    /// `index`.
    fn has_waiters(&self, index: u32) -> bool {
        let slot = &self.slots[index as usize];
        let (parked, what) = match slot.kind {
            Kind::Tablets => {
                (&self.routes.tables[slot.place as usize].parked, WaitedFor::Coordinator)
            }
            _ => (&self.rifl.parked, WaitedFor::Lease),
        };
        parked.iter().any(|&op| self.parked(op, what).is_some())
    }

    /// Ends one of the client's own requests and returns the operations that waited for its reply.
    pub(super) fn close_own_request(&mut self, index: u32) -> VecDeque<Op> {
        let slot = &self.slots[index as usize];
        let parked = if slot.kind == Kind::Tablets {
            let table = &mut self.routes.tables[slot.place as usize];
            table.asking = None;
            core::mem::take(&mut table.parked)
        } else {
            self.rifl.asking = None;
            core::mem::take(&mut self.rifl.parked)
        };
        self.end(index);
        parked
    }

    fn end_all(&mut self, waiting: &VecDeque<Op>, what: WaitedFor, error: impl Fn(bool) -> Error) {
        for &op in waiting {
            if let Some(index) = self.parked(op, what) {
                let maybe_executed = self.slots[index as usize].maybe();
                self.refuse(index, error(maybe_executed));
            }
        }
    }
}
