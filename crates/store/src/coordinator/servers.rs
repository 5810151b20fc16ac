//! The server list of the coordinator: places, each free or with a server that is up or crashed.
//!
//! Invariants: a (place, generation) names one life of one server for ever. A server counts as
//! crashed only when its last term and a margin for differing clocks have passed by this clock, or
//! when it reported itself that it has stopped.

use alloc::string::String;
use alloc::vec::Vec;

use sprat_proto::Instant;

use super::durable::{self, Place};
use crate::message::control::Usage;
use crate::types::ServerId;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) generation: u32,
    pub(super) place: Place,
    pub(super) nonce: u64,
    pub(super) control: String,
    pub(super) data: String,
    pub(super) usage: Usage,
    /// The end of the server's lease and the margin, unless [`Servers::floor`] is later.
    pub(super) until: Instant,
    /// True if the server has renewed its lease since this coordinator started and since another
    /// server enlisted at its locators.
    pub(super) heard: bool,
    /// The number of tablets that name this place of the server list with this generation.
    pub(super) tablets: u32,
    /// True if the coordinator's link to this server is connected.
    pub(super) linked: bool,
}

impl Slot {
    pub(super) fn record(&self) -> durable::Server<'_> {
        durable::Server {
            generation: self.generation,
            place: self.place,
            nonce: self.nonce,
            capacity_bytes: self.usage.capacity_bytes,
            control: &self.control,
            data: &self.data,
        }
    }

    pub(super) fn restored(record: &durable::Server<'_>) -> Self {
        Self {
            generation: record.generation,
            place: record.place,
            nonce: record.nonce,
            control: record.control.into(),
            data: record.data.into(),
            usage: Usage { used_bytes: 0, capacity_bytes: record.capacity_bytes, objects: 0 },
            until: Instant::ZERO,
            heard: false,
            tablets: 0,
            linked: false,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Servers {
    pub(super) slots: Vec<Slot>,
    /// The time before which no server's lease ends.
    pub(super) floor: Instant,
    /// The version of the server list. It changes with each server that joins or leaves.
    pub(super) version: u64,
}

impl Servers {
    /// Returns the server with this id, if that life of the server is up.
    pub(super) fn up(&self, id: ServerId) -> Option<&Slot> {
        self.slots
            .get(id.index as usize)
            .filter(|slot| slot.generation == id.generation && slot.place == Place::Up)
    }

    pub(super) fn up_mut(&mut self, id: ServerId) -> Option<&mut Slot> {
        self.slots
            .get_mut(id.index as usize)
            .filter(|slot| slot.generation == id.generation && slot.place == Place::Up)
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

    /// Returns a place for a new server: a free one, else a new one, else that of a crashed server
    /// (its tablets stay lost, for they name the old generation). Returns `None` if `max` servers
    /// are up.
    pub(super) fn vacancy(&self, max: u32) -> Option<usize> {
        let last_life = |slot: &Slot| slot.generation == u32::MAX;
        let find =
            |place| self.slots.iter().position(|slot| slot.place == place && !last_life(slot));
        find(Place::Free)
            .or_else(|| (self.slots.len() < max as usize).then_some(self.slots.len()))
            .or_else(|| find(Place::Crashed))
    }

    /// Returns the servers that are up, ordered by their number of tablets, then by index. Servers
    /// that have not renewed their leases come last: they may be dead, and a table on them would
    /// wait for the end of their leases.
    pub(super) fn by_load(&self) -> Vec<ServerId> {
        let mut all: Vec<_> =
            self.all_up().map(|(id, slot)| (!slot.heard, slot.tablets, id)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, _, id)| id).collect()
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
