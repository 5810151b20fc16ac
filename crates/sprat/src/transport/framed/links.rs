//! The table of links: one [`Link`] for each connection, found by its slot, and their deadlines in
//! order.
//!
//! Always holds: a slot that was emptied is used again only after all others that were empty then;
//! `live` has every slot in use once, and `places` knows where, so that removing a link of 65,536
//! takes as long as removing one of two; `deadlines` has each link whose `due` is not
//! [`Instant::NEVER`] once, by that time.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::SocketAddr;

use sprat_proto::Instant;
use sprat_proto::rpc::stream::{Role, Stream};

/// One connection of a transport of frames, and its state.
#[derive(Debug)]
pub(crate) struct Link<W> {
    pub(crate) stream: Stream,
    /// The carrier's part of the link's connection.
    pub(crate) wire: W,
    /// The state of a connection that is not open yet; `None` once it is open.
    pub(crate) connecting: Option<Connecting>,
    /// The reason why the link's connection could not be opened.
    pub(crate) cause: Option<io::Error>,
    /// Bytes of the budget that the link has taken, or waits for, to hold the request of which a
    /// part has arrived.
    pub(super) room: usize,
    /// Bytes of the link's replies that the peer has not taken, as they are counted in the sum of
    /// all links.
    pub(super) unsent: usize,
    /// Bytes that the link has read and not parsed, since its stream wanted no more input.
    pub(crate) backlog: Vec<u8>,
    /// True if the list of links that go on with their backlog has this link.
    pub(super) resumed: bool,
    /// True if the list of links with output has this link.
    pub(super) dirty: bool,
    /// True if `Framed::owing` has this link: a request failed, or the connection has ended.
    pub(super) owing: bool,
    /// For an accepted connection: the time by which its first frame must have arrived.
    pub(crate) silent_until: Instant,
    /// For an accepted connection with replies to send: the time by which the peer must have taken
    /// some of them.
    pub(super) progress_until: Instant,
    /// The time at which the link's deadlines are checked next: not later than the first of them.
    due: Instant,
}

/// The state of a connection that is being opened.
#[derive(Debug)]
pub(crate) struct Connecting {
    /// The server's addresses to try next.
    pub(crate) left: VecDeque<SocketAddr>,
    /// The time when the attempt to connect ends.
    pub(crate) until: Instant,
}

impl<W> Link<W> {
    fn new(slot: u16, wire: W, role: Role, queue_limit: usize) -> Self {
        Self {
            stream: Stream::new(slot, role, queue_limit),
            wire,
            connecting: None,
            cause: None,
            room: 0,
            unsent: 0,
            backlog: Vec::new(),
            resumed: false,
            dirty: false,
            owing: false,
            silent_until: Instant::NEVER,
            progress_until: Instant::NEVER,
            due: Instant::NEVER,
        }
    }
}

/// The table of a transport's links, and the slots in use.
#[derive(Debug)]
pub(crate) struct Links<W> {
    slots: Vec<Option<Box<Link<W>>>>,
    free: VecDeque<u16>,
    live: Vec<u16>,
    /// The index in `live` of each slot in use.
    places: Vec<u16>,
    /// The links that are due at some time, by that time.
    deadlines: BTreeSet<(Instant, u16)>,
    /// The first of these times, which each turn of the transport compares with the present one.
    first_deadline: Instant,
}

impl<W> Links<W> {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            live: Vec::new(),
            places: Vec::new(),
            deadlines: BTreeSet::new(),
            first_deadline: Instant::NEVER,
        }
    }

    /// Returns the slots of the links that are in use, in no order.
    pub(crate) fn live(&self) -> &[u16] {
        &self.live
    }

    #[inline]
    pub(super) fn get(&self, slot: u16) -> Option<&Link<W>> {
        self.slots.get(usize::from(slot))?.as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u16) -> Option<&mut Link<W>> {
        self.slots.get_mut(usize::from(slot))?.as_deref_mut()
    }

    /// Returns the slot that the next link gets.
    pub(super) fn next_slot(&self) -> u16 {
        self.free.front().copied().unwrap_or(self.slots.len() as u16)
    }

    /// Adds a link to the table and returns its slot. The table must have fewer than 65,536 links.
    pub(super) fn insert(&mut self, wire: W, role: Role, queue_limit: usize) -> u16 {
        let slot = self.next_slot();
        if self.free.pop_front().is_none() {
            self.slots.push(None);
            self.places.push(0);
        }
        self.slots[usize::from(slot)] = Some(Box::new(Link::new(slot, wire, role, queue_limit)));
        self.places[usize::from(slot)] = self.live.len() as u16;
        self.live.push(slot);
        slot
    }

    /// Removes a link from its slot.
    pub(super) fn remove(&mut self, slot: u16) -> Option<Link<W>> {
        let link = self.slots.get_mut(usize::from(slot))?.take()?;
        let place = self.places[usize::from(slot)];
        self.live.swap_remove(usize::from(place));
        if let Some(moved) = self.live.get(usize::from(place)) {
            self.places[usize::from(*moved)] = place;
        }
        self.free.push_back(slot);
        if link.due != Instant::NEVER {
            self.remove_deadline((link.due, slot));
        }
        Some(*link)
    }

    /// Makes the link in `slot` due at the time `at`, unless it is due earlier.
    #[inline]
    pub(super) fn due_by(&mut self, slot: u16, at: Instant) {
        let Some(link) = self.get_mut(slot).filter(|link| at < link.due) else { return };
        let before = std::mem::replace(&mut link.due, at);
        if before != Instant::NEVER {
            self.deadlines.remove(&(before, slot));
        }
        self.deadlines.insert((at, slot));
        self.first_deadline = self.first_deadline.min(at);
    }

    /// Returns the time at which the first link is due.
    #[inline]
    pub(crate) fn first_deadline(&self) -> Instant {
        self.first_deadline
    }

    /// Returns the slot of a link that is due at the time `now`. The link is not due any more.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<u16> {
        let &(at, slot) = self.deadlines.first().filter(|(at, _)| *at <= now)?;
        self.remove_deadline((at, slot));
        if let Some(link) = self.get_mut(slot) {
            link.due = Instant::NEVER;
        }
        Some(slot)
    }

    fn remove_deadline(&mut self, deadline: (Instant, u16)) {
        self.deadlines.remove(&deadline);
        self.first_deadline = self.deadlines.first().map_or(Instant::NEVER, |(at, _)| *at);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sprat_proto::Rng;

    use super::*;

    /// Inserts and removes links at random: each slot in use is listed once, and a link stays in
    /// its slot.
    #[test]
    fn the_list_of_slots_in_use_agrees_with_a_set() {
        let (mut rng, mut links, mut set) = (Rng::seeded(2), Links::new(), BTreeSet::new());
        for _ in 0..20_000 {
            if rng.below(40) as usize >= set.len() {
                let slot = links.insert(0_u16, Role::Server, 0);
                links.get_mut(slot).expect("just inserted").wire = slot;
                assert!(set.insert(slot), "slot {slot} was free");
            } else {
                let slot = links.live()[rng.below(set.len() as u64) as usize];
                assert_eq!(links.remove(slot).map(|link| link.wire), Some(slot));
                assert!(links.remove(slot).is_none() && links.get(slot).is_none());
                set.remove(&slot);
            }
            assert!(set.iter().all(|&slot| links.get(slot).is_some_and(|l| l.wire == slot)));
            let mut live = links.live().to_vec();
            live.sort_unstable();
            assert!(live.iter().eq(&set), "{live:?} {set:?}");
        }
        assert!(links.slots.len() <= 41);
    }

    /// Makes links due at random times, removes some and lets time pass: each link is taken once
    /// when it is due, and not after its removal.
    #[test]
    fn deadlines_agree_with_a_map() {
        let (mut rng, mut links, mut map) = (Rng::seeded(3), Links::new(), BTreeMap::new());
        for now in 0..20_000_u64 {
            if links.live().len() < 30 {
                links.insert((), Role::Server, 0);
            }
            let slot = links.live()[rng.below(links.live().len() as u64) as usize];
            if rng.below(8) == 0 {
                links.remove(slot);
                map.remove(&slot);
            } else {
                let at = now + rng.below(300);
                links.due_by(slot, Instant::from_ns(at));
                let due = map.entry(slot).or_insert(at);
                *due = at.min(*due);
            }
            while let Some(slot) = links.take_due(Instant::from_ns(now)) {
                assert!(map.remove(&slot).is_some_and(|at| at <= now), "{slot} at {now}");
            }
            let first = map.values().min().map_or(Instant::NEVER, |at| Instant::from_ns(*at));
            assert!(links.first_deadline() == first && first > Instant::from_ns(now));
        }
    }

    /// A full table has deadlines at different times. Each deadline once visited all links: 65,536
    /// idle ones and one request a millisecond took 65 million steps a second.
    #[test]
    fn a_deadline_visits_only_its_own_link() {
        let mut links = Links::new();
        for at in 0..1 << 16 {
            let slot = links.insert((), Role::Server, 0);
            links.due_by(slot, Instant::from_ns(at));
        }
        for at in 0..1 << 16 {
            let visited = std::iter::from_fn(|| links.take_due(Instant::from_ns(at))).count();
            assert_eq!(visited, 1, "at {at}");
        }
        assert_eq!(links.first_deadline(), Instant::NEVER);
    }

    /// Removes all links of a full table. Removing one once searched the list of all links: 65,536
    /// that ended at once took 2 billion steps.
    #[test]
    fn removing_every_link_of_a_full_table_does_not_search() {
        let mut links = Links::new();
        let slots: Vec<u16> = (0..1 << 16).map(|_| links.insert((), Role::Server, 0)).collect();
        for slot in slots.into_iter().rev().step_by(2) {
            assert!(links.remove(slot).is_some());
        }
        while let Some(&slot) = links.live().first() {
            assert!(links.remove(slot).is_some());
        }
    }
}
