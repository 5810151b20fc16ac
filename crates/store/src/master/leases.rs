//! A master's requests to the coordinator about clients' leases, and the mutations that wait for
//! the replies.
//!
//! Invariants: one request is in progress at a time. The waiting mutations are limited in number
//! and bytes, and wait no longer than the deadline of the request.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::rpc::{Message, Payload, RpcError};
use sprat_proto::time::SECOND;

use super::links::COORDINATOR;
use super::membership::CALL_NS;
use crate::message::Status;
use crate::message::control::{CheckLease, LeaseTimes, MAX_CHECKED_LEASES};
use crate::objects::rifl::Results;
use crate::objects::segment::Location;
use crate::types::LeaseId;
use sprat_proto::node::machine::{Caller, Output};

const MAX_SUSPENDED: usize = 4096;
const MAX_SUSPENDED_BYTES: usize = 16 << 20;
/// The interval of a master's requests about a silent client whose lease may have ended.
const SILENT_NS: u64 = 10 * SECOND;
/// The most silent clients that one tick of a master adds to its next request about leases.
const MAX_ADDED: usize = 64;

/// A mutation that waits until the master knows its client's lease.
#[derive(Debug)]
pub(super) struct Suspended {
    lease: LeaseId,
    pub(super) caller: Caller,
    pub(super) request: Vec<u8>,
    pub(super) deadline: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// The client leases that the master's next request to the coordinator asks about.
    ask: Vec<LeaseId>,
    asked: Option<Asked>,
    suspended: VecDeque<Suspended>,
    suspended_bytes: usize,
}

#[derive(Debug)]
struct Asked {
    tag: u64,
    sent: Instant,
    leases: Vec<LeaseId>,
}

impl Leases {
    /// Keeps a mutation until the coordinator has replied about its client's lease.
    pub(crate) fn suspend(
        &mut self,
        lease: LeaseId,
        caller: Caller,
        request: &[u8],
        deadline: Instant,
    ) -> Result<(), Status> {
        let bytes = self.suspended_bytes + request.len();
        if self.suspended.len() >= MAX_SUSPENDED || bytes > MAX_SUSPENDED_BYTES {
            return Err(Status::Retry);
        }
        let asked = self.asked.as_ref().is_some_and(|asked| asked.leases.contains(&lease));
        if !asked && !self.ask.contains(&lease) {
            if self.ask.len() >= MAX_CHECKED_LEASES {
                return Err(Status::Retry);
            }
            self.ask.push(lease);
        }
        self.suspended_bytes = bytes;
        self.suspended.push_back(Suspended { lease, caller, request: request.to_vec(), deadline });
        Ok(())
    }

    /// Adds silent clients whose leases may have ended to the next request, so that their outcomes
    /// can be forgotten.
    pub(super) fn check_silent(&mut self, now: Instant, results: &mut Results) {
        let room = MAX_CHECKED_LEASES.saturating_sub(self.ask.len()).min(MAX_ADDED);
        for lease in results.lapsed(now, SILENT_NS, room) {
            if !self.ask.contains(&lease) {
                self.ask.push(lease);
            }
        }
    }

    pub(super) fn is_due(&self, _now: Instant) -> bool {
        self.asked.is_none() && !self.ask.is_empty()
    }

    pub(super) fn deadline(&self) -> Instant {
        if self.asked.is_none() && !self.ask.is_empty() { Instant::ZERO } else { Instant::NEVER }
    }

    /// Returns the call that asks the coordinator about client leases.
    pub(super) fn call(&mut self, now: Instant, tag: u64, cluster: u64) -> Option<Output> {
        let leases = core::mem::take(&mut self.ask);
        let request = CheckLease { cluster, leases };
        let message = Message::from(request.emit());
        self.asked = Some(Asked { tag, sent: now, leases: request.leases });
        Some(Output::Call { link: COORDINATOR, tag, message, deadline: now.after(CALL_NS) })
    }

    pub(super) fn is_asked(&self, tag: u64) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.tag == tag)
    }

    /// Takes the result of the call about client leases, and updates `results`. Returns the
    /// mutations that waited for the call, each with true if its lease has expired, false if it is
    /// valid, and `None` if that is unknown.
    pub(super) fn checked(
        &mut self,
        result: Result<Payload<'_>, RpcError>,
        results: &mut Results,
        mut forget: impl FnMut(Location),
    ) -> Vec<(Suspended, Option<bool>)> {
        let Some(Asked { sent, leases, .. }) = self.asked.take() else { return Vec::new() };
        let times = result.ok().and_then(|reply| LeaseTimes::parse(&reply).ok());
        let times = times.filter(|times| times.valid_ns.len() == leases.len());
        if let Some(times) = &times {
            for (&lease, &valid_ns) in leases.iter().zip(&times.valid_ns) {
                match valid_ns {
                    0 => results.expire(lease, &mut forget),
                    _ => results.extend(lease, sent.after(valid_ns)),
                }
            }
        }
        let mut released = Vec::new();
        for suspended in core::mem::take(&mut self.suspended) {
            match leases.iter().position(|&lease| lease == suspended.lease) {
                Some(index) => {
                    self.suspended_bytes -= suspended.request.len();
                    released
                        .push((suspended, times.as_ref().map(|times| times.valid_ns[index] == 0)));
                }
                None => self.suspended.push_back(suspended),
            }
        }
        released
    }
}
