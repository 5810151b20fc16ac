//! The server list: places, each with a server that is up, one that crashed, or nobody.
//!
//! What always holds: a (place, generation) names one life of one server for ever. A server is taken for crashed only
//! when the term that it was granted last, and a margin for clocks that run apart, has passed by this clock, or when it
//! said itself that it serves no more.

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
    /// When its lease and the margin are over, unless [`Servers::floor`] is later.
    pub(super) until: Instant,
    /// Whether it was heard of since this coordinator started, and since another server enlisted at its locators.
    pub(super) heard: bool,
    /// How many tablets name this place with this generation.
    pub(super) tablets: u32,
    /// Whether the world has been told where this server is.
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
    /// No server's lease is over before this.
    pub(super) floor: Instant,
}

impl Servers {
    /// The server, if it is this life of it and it is up.
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

    /// All that are up.
    pub(super) fn all_up(&self) -> impl Iterator<Item = (ServerId, &Slot)> {
        self.slots.iter().enumerate().filter(|(_, slot)| slot.place == Place::Up).map(
            |(index, slot)| (ServerId { index: index as u32, generation: slot.generation }, slot),
        )
    }

    /// The server that is up and has this nonce.
    pub(super) fn by_nonce(&self, nonce: u64) -> Option<ServerId> {
        self.all_up().find(|(_, slot)| slot.nonce == nonce).map(|(id, _)| id)
    }

    /// A place for a new server: a free one, else a new one, else one whose server is gone (its tablets stay lost, for
    /// they name the old generation). `None` if there are `max` servers up.
    pub(super) fn vacancy(&self, max: u32) -> Option<usize> {
        let last_life = |slot: &Slot| slot.generation == u32::MAX;
        let find =
            |place| self.slots.iter().position(|slot| slot.place == place && !last_life(slot));
        find(Place::Free)
            .or_else(|| (self.slots.len() < max as usize).then_some(self.slots.len()))
            .or_else(|| find(Place::Crashed))
    }

    /// Servers that are up by how few tablets they have, then by index; first those that were heard of. One that was not
    /// is perhaps dead, and a table on it waits for the end of its lease.
    pub(super) fn by_load(&self) -> Vec<ServerId> {
        let mut all: Vec<_> =
            self.all_up().map(|(id, slot)| (!slot.heard, slot.tablets, id)).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Another server enlists at these locators: those that were there are dead, most likely, until they renew.
    pub(super) fn superseded(&mut self, control: &str) {
        let up = self.slots.iter_mut().filter(|slot| slot.place == Place::Up);
        up.filter(|slot| slot.control == control).for_each(|slot| slot.heard = false);
    }

    /// Counts a tablet that a server gets (or, with `-1`, loses).
    pub(super) fn count(&mut self, id: ServerId, change: i32) {
        if let Some(slot) = self.slots.get_mut(id.index as usize)
            && slot.generation == id.generation
        {
            slot.tablets = slot.tablets.saturating_add_signed(change);
        }
    }

    /// Servers whose lease is over.
    pub(super) fn expired(&self, now: Instant) -> Vec<ServerId> {
        self.all_up()
            .filter(|(_, slot)| slot.until.max(self.floor) <= now)
            .map(|(id, _)| id)
            .collect()
    }
}
