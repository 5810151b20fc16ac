//! Pings: they tell servers at once that the server list has changed. And they find out where the
//! links to servers lead, so that the end of a process on the coordinator's machine is noticed at
//! once, and not when its lease ends.
//!
//! ```text
//!  Ping on the server's link ─► reply: the link leads to the server
//!                                 │ the kernel says that the process has ended
//!                                 └─► the server is gone
//! ```
//! Invariant: a server is taken for gone only if the link leads to the server. Another server may
//! listen at the locators by now, or have the same ones on another machine. What the kernel says is
//! certain: a process that has ended answers no read, so that its lease need not end. It is certain
//! for all shards of the process, to which one link led.

use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};
use sprat_proto::rpc::{Payload, RpcError};
use sprat_proto::time::MS;

use super::servers::Reach;
use super::state::Coordinator;
use crate::message::Status;
use crate::message::control::{self, Ping};
use crate::types::ServerId;

/// The time after which the coordinator pings a new server: it knows its id by then, mostly.
pub(super) const FIRST_PING_NS: u64 = 20 * MS;

impl Coordinator {
    /// Lets the servers be pinged of which it is not known where their links lead.
    pub(super) fn ping_unknown(&mut self) {
        let up = self.servers.all_up().filter(|(_, slot)| slot.reach == Reach::Unknown);
        let unknown: Vec<_> = up.map(|(server, _)| server).collect();
        for server in unknown {
            self.servers.up_mut(server).into_iter().for_each(|slot| slot.reach = Reach::Asked);
            self.pings.ready.insert(server);
        }
    }

    /// Returns true if there is a server to ping.
    pub(super) fn has_pings(&self) -> bool {
        !self.pings.ready.is_empty() || self.pings.told != self.servers.version()
    }

    /// Returns the next ping.
    pub(super) fn next_ping(&mut self, now: Instant) -> Option<Output> {
        let list_version = self.servers.version();
        if core::mem::replace(&mut self.pings.told, list_version) != list_version {
            self.pings.ready.extend(self.servers.all_up().map(|(server, _)| server));
        }
        while self.pings.calls.len() < self.config.max_calls {
            let server = self.pings.ready.pop_first()?;
            if self.servers.up(server).is_none() {
                continue;
            }
            if let Some(connect) = self.servers.connect(server) {
                self.pings.ready.insert(server);
                return Some(connect);
            }
            let (cluster, term) = (self.cluster.id, self.cluster.incarnation);
            let ping = Ping { cluster, term, server, list_version };
            let (tag, output) = self.call(now, server, ping.emit());
            self.pings.calls.insert(tag, server);
            return Some(output);
        }
        None
    }

    /// Handles the result of a ping. Returns false if the call was none.
    pub(super) fn pinged(&mut self, tag: u64, result: &Result<Payload<'_>, RpcError>) -> bool {
        let Some(server) = self.pings.calls.remove(&tag) else { return false };
        let is_reply = |reply: &Payload<'_>| control::outcome(reply) == Ok((Status::Ok, &[][..]));
        let reach = if result.as_ref().is_ok_and(is_reply) { Reach::Known } else { Reach::Unknown };
        self.servers.up_mut(server).into_iter().for_each(|slot| slot.reach = reach);
        true
    }

    /// Handles the end of a session with the server of a link.
    pub(super) fn lost_session(&mut self, link: Link) {
        if let Some(slot) = self.servers.slots.get_mut(link.0 as usize)
            && slot.reach == Reach::Known
        {
            slot.reach = Reach::Unknown;
        }
    }

    /// Returns the servers that are up and are other shards of the process of a server, which may
    /// have crashed.
    pub(super) fn siblings(&self, server: ServerId) -> Vec<ServerId> {
        let slot = self.servers.slots.get(server.index as usize);
        let slot = slot.filter(|slot| slot.generation == server.generation);
        let Some(process) = slot.map(|slot| slot.site.process).filter(|process| *process != 0)
        else {
            return Vec::new();
        };
        let all = self.servers.all_up().filter(|(_, slot)| slot.site.process == process);
        all.map(|(id, _)| id).filter(|id| *id != server).collect()
    }

    /// Handles the certain end of the server to which a link has led.
    pub(super) fn process_ended(&mut self, link: Link) {
        let known = self.servers.all_up().find(|(id, _)| id.index == link.0);
        let known = known.filter(|(_, slot)| slot.linked && slot.reach == Reach::Known);
        // While the disk takes no changes, no server goes. The lease ends all the same.
        if let Some((server, _)) = known
            && self.refusal.is_none()
        {
            for ended in [server].into_iter().chain(self.siblings(server)) {
                self.pings.ended += 1;
                self.server_gone(ended);
            }
        }
    }
}
