//! The server list of the coordinator: places, each free or with a server that is up or crashed.
//!
//! Invariants:
//! - A (place, generation) names one life of one server for ever.
//! - A server counts as crashed only when its last term and a margin for differing clocks have
//!   passed by this clock, when it reported itself that it has stopped, when a server has its
//!   directory, or when the kernel of this machine says that its process has ended.
//! - A crashed server keeps its place as long as it has tablets, or its log has replicas. Its
//!   record is needed to recover the tablets and to free the replicas.
//! - Each change of the list of servers that are up or crashed gives the list a higher version.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;
use sprat_proto::node::machine::{Link, Output};

use super::durable::{self, Place};
use super::rate::Rate;
use super::table::MANY_TABLETS;
use crate::durability::Durability;
use crate::message::control::{Enlist, Usage};
use crate::objects::segment::SegmentId;
use crate::site::OwnedSite;
use crate::types::ServerId;

/// The most places of a server list. The list is indexed by place.
pub(super) const MAX_PLACES: u32 = ServerId::MAX_INDEX + 1;
/// The number of low bits of a version of the server list that count the changes of the list in one
/// life of the coordinator. The bits above them are the coordinator's incarnation.
const VERSION_BITS: u32 = 32;

/// The knowledge of the coordinator about its link to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Reach {
    /// The coordinator does not know where the link leads.
    #[default]
    Unknown,
    /// A ping is on its way.
    Asked,
    /// The link leads to the server, since the server has answered a ping there.
    Known,
}

/// The pings of the coordinator to servers.
#[derive(Debug, Default)]
pub(super) struct Pings {
    /// The servers to ping.
    pub(super) ready: BTreeSet<ServerId>,
    /// The version of the server list that the servers have heard of, or will.
    pub(super) told: u64,
    /// The pings in progress, by the tags of their calls.
    pub(super) calls: BTreeMap<u64, ServerId>,
    /// The number of servers whose processes had ended by the word of the kernel.
    pub(super) ended: u64,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) place: Place,
    pub(super) nonce: u64,
    pub(super) control: String,
    pub(super) data: String,
    pub(super) usage: Usage,
    pub(super) rate: Rate,
    /// The number of replicas of each segment of the server's log.
    pub(super) replicas: u8,
    /// The time at which the server acknowledges a change.
    pub(super) durability: Durability,
    pub(super) site: OwnedSite,
    /// The lowest segment and epoch of a replica of the server's log that is valid although it is
    /// not closed.
    pub(super) head: (SegmentId, u32),
    /// The number of the accepted loss by which the server's recovery goes on, or 0, and the
    /// segments that it replays then.
    pub(super) loss: (u16, Vec<durable::Kept>),
    /// The end of the server's lease and the margin, unless [`Servers::floor`] is later.
    pub(super) until: Instant,
    /// True if the server has renewed its lease since this coordinator started and since another
    /// server enlisted at its locators.
    pub(super) heard: bool,
    /// The number of tablets that name this place of the server list with this generation.
    pub(super) tablets: u32,
    /// True if the coordinator's link to this server is connected.
    pub(super) linked: bool,
    /// The knowledge about where that link leads.
    pub(super) reach: Reach,
}

impl Slot {
    /// Returns true if this is the place of the server `id`, and that server is up.
    fn is_up(&self, id: ServerId) -> bool {
        self.generation == id.generation && self.place == Place::Up
    }

    pub(super) fn record(&self) -> durable::Server<'_> {
        durable::Server {
            generation: self.generation,
            place: self.place,
            nonce: self.nonce,
            capacity_bytes: self.usage.capacity_bytes,
            replicas: self.replicas,
            durability: self.durability,
            site: self.site.as_site(),
            head_segment: self.head.0,
            head_epoch: self.head.1,
            control: &self.control,
            data: &self.data,
            loss: self.loss.0,
            kept: self.loss.1.clone(),
        }
    }

    pub(super) fn restored(record: &durable::Server<'_>) -> Self {
        Self {
            generation: record.generation,
            place: record.place,
            nonce: record.nonce,
            control: record.control.into(),
            data: record.data.into(),
            usage: Usage { capacity_bytes: record.capacity_bytes, ..Usage::default() },
            rate: Rate::default(),
            replicas: record.replicas,
            durability: record.durability,
            site: record.site.to_owned(),
            head: (record.head_segment, record.head_epoch),
            loss: (record.loss, record.kept.clone()),
            until: Instant::ZERO,
            heard: false,
            tablets: 0,
            linked: false,
            reach: Reach::Unknown,
        }
    }
}

/// The masters of a process.
struct Process {
    process: u64,
    /// True if one of them has not renewed its lease since this coordinator started.
    unheard: bool,
    /// The number of tablets of all of them.
    tablets: u32,
    /// Their shards.
    shards: Vec<(u16, ServerId)>,
}

#[derive(Debug, Default)]
pub(super) struct Servers {
    pub(super) slots: Vec<Slot>,
    /// The time before which no server's lease ends.
    pub(super) floor: Instant,
    /// The version of the list of servers that are up or crashed.
    version: u64,
}

impl Servers {
    /// Starts the versions of the list in this life of the coordinator. They are above those of all
    /// earlier lives.
    pub(super) fn start_versions(&mut self, incarnation: u64) {
        self.version = incarnation << VERSION_BITS;
    }

    /// Returns the version of the list of servers that are up or crashed.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Takes over the time before which no lease ends. The version rises above that of `old`, which
    /// may name a list that was not written.
    pub(super) fn continue_from(&mut self, old: &Self) {
        self.floor = old.floor;
        self.version = old.version + 1;
    }

    /// Puts a new server into a place that [`Self::vacancy`] returned.
    pub(super) fn join(&mut self, place: usize, slot: Slot) -> ServerId {
        let id = ServerId { index: place as u32, generation: slot.generation };
        match self.slots.get_mut(place) {
            Some(old) => *old = slot,
            None => self.slots.push(slot),
        }
        self.version += 1;
        id
    }

    /// Returns the number of replicas and the mode of a server that is up and has renewed its lease
    /// since this coordinator started, if they differ from those of the server that enlists.
    pub(super) fn unlike(&self, request: &Enlist<'_>) -> Option<(u8, Durability)> {
        let others = self.all_up().filter(|(id, slot)| {
            slot.heard && slot.control != request.control && *id != request.replaces
        });
        let mut modes = others.map(|(_, slot)| (slot.replicas, slot.durability));
        modes.find(|&mode| mode != (request.replicas, request.durability))
    }

    /// Marks a server that is up as gone: crashed if it has tablets, or replicas of its log.
    /// Otherwise its place is free.
    pub(super) fn leave(&mut self, id: ServerId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| slot.is_up(id))?;
        slot.place =
            if slot.tablets == 0 && slot.replicas == 0 { Place::Free } else { Place::Crashed };
        self.version += 1;
        Some(slot)
    }

    /// Frees the place of a crashed server if it has no tablets any more and its log had no
    /// replicas. Returns the free place.
    pub(super) fn release(&mut self, id: ServerId) -> Option<&Slot> {
        self.slots.get(id.index as usize).filter(|slot| slot.replicas == 0)?;
        self.free(id)
    }

    /// Frees the place of a crashed server if it has no tablets any more. The replicas of its log
    /// are freed. Returns the free place.
    pub(super) fn free(&mut self, id: ServerId) -> Option<&Slot> {
        let slot = self.slots.get_mut(id.index as usize).filter(|slot| {
            slot.generation == id.generation && slot.place == Place::Crashed && slot.tablets == 0
        })?;
        slot.place = Place::Free;
        slot.loss = (0, Vec::new());
        self.version += 1;
        Some(slot)
    }

    /// Returns true if this server has crashed, and other servers have replicas of its log.
    pub(super) fn is_recovering(&self, id: ServerId) -> bool {
        self.slots.get(id.index as usize).is_some_and(|slot| {
            let is_it = slot.generation == id.generation && slot.place == Place::Crashed;
            is_it && slot.replicas > 0
        })
    }

    /// Returns true if this server is gone, and so is its log.
    pub(super) fn is_lost(&self, id: ServerId) -> bool {
        self.up(id).is_none() && !self.is_recovering(id)
    }

    /// Returns the server with this id, if that life of the server is up.
    pub(super) fn up(&self, id: ServerId) -> Option<&Slot> {
        self.slots.get(id.index as usize).filter(|slot| slot.is_up(id))
    }

    pub(super) fn up_mut(&mut self, id: ServerId) -> Option<&mut Slot> {
        self.slots.get_mut(id.index as usize).filter(|slot| slot.is_up(id))
    }

    /// Returns the order to bind the link to a server that is up, unless it is bound.
    pub(super) fn connect(&mut self, id: ServerId) -> Option<Output> {
        let slot = self.up_mut(id).filter(|slot| !slot.linked)?;
        slot.linked = true;
        Some(Output::Connect { link: Link(id.index), locator: slot.control.clone() })
    }

    /// Iterates over all servers of the list that are up.
    pub(super) fn all_up(&self) -> impl Iterator<Item = (ServerId, &Slot)> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.place == Place::Up).map(
            |(index, slot)| (ServerId { index: index as u32, generation: slot.generation }, slot),
        )
    }

    /// Returns the server that is up and has this random number (nonce) of its life.
    pub(super) fn by_nonce(&self, nonce: u64) -> Option<ServerId> {
        self.all_up().find(|(_, slot)| slot.nonce == nonce).map(|(id, _)| id)
    }

    /// Returns a place for a new server: a free one, else a new one. Returns `None` if `max`
    /// servers are up, or if all of the [`MAX_PLACES`] places are taken.
    ///
    /// The place of a crashed server is never returned. Its record names the life whose log has to
    /// be recovered, and the valid head of that log. [`Self::release`] and [`Self::free`] free the
    /// place.
    pub(super) fn vacancy(&self, max: u32) -> Option<usize> {
        if self.all_up().count() >= max as usize {
            return None;
        }
        let is_free = |slot: &Slot| slot.place == Place::Free && slot.generation < u32::MAX;
        let new = (self.slots.len() < MAX_PLACES as usize).then_some(self.slots.len());
        self.slots.iter().position(is_free).or(new)
    }

    /// Iterates over all servers of the list that are up and may own tablets.
    pub(super) fn masters(&self) -> impl Iterator<Item = (ServerId, &Slot)> {
        self.all_up().filter(|(_, slot)| slot.site.role.is_master())
    }

    /// Returns the servers that are up and may own tablets, ordered by their number of tablets,
    /// then by index. Servers that have not renewed their leases come last: they may be dead, and a
    /// table on them would wait for the end of their leases.
    pub(super) fn by_load(&self) -> Vec<ServerId> {
        let mut all: Vec<_> =
            self.masters().map(|(id, slot)| (!slot.heard, slot.tablets, id)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Returns the masters of the tablets of a table that is to have its keys on `span` processes,
    /// one master for each tablet. The processes with the fewest tablets come first, and each gets
    /// a tablet on each of its shards. Without as many processes, their shards get `span` tablets
    /// together, and one each at least.
    pub(super) fn owners(&self, span: usize) -> Vec<ServerId> {
        let all = self.by_load();
        let mut processes: Vec<Process> = Vec::new();
        for (id, slot) in self.masters() {
            let &OwnedSite { process, shard, .. } = &slot.site;
            let new = Process { process, unheard: false, tablets: 0, shards: Vec::new() };
            let known = processes.iter().position(|one| process != 0 && one.process == process);
            let at = known.unwrap_or_else(|| {
                processes.push(new);
                processes.len() - 1
            });
            let one = &mut processes[at];
            one.unheard |= !slot.heard;
            one.tablets += slot.tablets;
            one.shards.push((shard, id));
        }
        if span >= processes.len() {
            let count = span.max(all.len().min(MANY_TABLETS));
            return all.into_iter().cycle().take(count).collect();
        }
        processes.iter_mut().for_each(|one| one.shards.sort_unstable());
        processes.sort_by_key(|one| (one.unheard, one.tablets, one.shards[0].1));
        let chosen = processes.into_iter().take(span).flat_map(|one| one.shards);
        chosen.map(|(_, id)| id).take(MANY_TABLETS).collect()
    }

    /// Records that another server enlists at these locators. Earlier servers there are probably
    /// dead, unless they renew.
    pub(super) fn superseded(&mut self, control: &str) {
        let up = self.slots.iter_mut().filter(|slot| slot.place == Place::Up);
        up.filter(|slot| slot.control == control).for_each(|slot| slot.heard = false);
    }

    /// Adds `change` to the number of tablets of a server: 1 for a tablet that it gets, -1 for one
    /// that it loses.
    pub(super) fn count(&mut self, id: ServerId, change: i32) {
        if let Some(slot) = self.slots.get_mut(id.index as usize)
            && slot.generation == id.generation
        {
            slot.tablets = slot.tablets.saturating_add_signed(change);
        }
    }

    /// Returns the servers whose leases have ended.
    pub(super) fn expired(&self, now: Instant) -> Vec<ServerId> {
        self.all_up()
            .filter(|(_, slot)| slot.until.max(self.floor) <= now)
            .map(|(id, _)| id)
            .collect()
    }
}
