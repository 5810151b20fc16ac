//! The link table: the server that each link is bound to, and the sessions with it.
//!
//! A session carries a fixed number of requests at a time. A machine with few links and many calls
//! needs several sessions for each link: each link then has several *lanes*, and each lane has at
//! most one session. Lanes are numbered as links are: lane `i` of link `n` is `n × lanes + i`.
//!
//! ```text
//!   bound        lane ─► server, transport, session, and for lane 0 of a link: the lane used last
//!   targets      server ─► its locators; few, even where there are a million links
//!   by_text      the list of locators ─► server, of servers that lanes are bound to
//!   by_session   transport, place of a session ─► lane; may name a lane whose session was closed
//! ```
//! A lane takes 16 bytes, so that a million cost little and a request touches one cache line of
//! them.
//!
//! Always: a session belongs to at most one lane. A server has a race exactly while it is listed in
//! `racing`. Not here: opening and closing sessions.

use alloc::borrow::ToOwned as _;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;

use super::host::Opened;
use super::machine::Link;
use super::race::Race;
use crate::Instant;
use crate::rpc::{CloseReason, SessionId};

mod target;

pub(crate) use target::Target;

/// The server that a lane is bound to, and the lane's session.
#[derive(Clone, Copy, Debug)]
struct Bound {
    target: u32,
    transport: u16,
    /// For the first lane of a link: the offset of the lane that the link's last call took.
    last: u16,
    session: Option<SessionId>,
}

const _: () = assert!(size_of::<Bound>() == 16);
/// The number of no server: the lane is not bound.
const NONE: u32 = u32::MAX;
const UNBOUND: Bound = Bound { target: NONE, transport: 0, last: 0, session: None };

/// The link table of a node: the server of each link, and the sessions with it.
#[derive(Debug)]
pub(crate) struct Links<E> {
    /// The number of lanes of each link.
    lanes: u16,
    bound: Vec<Bound>,
    targets: Vec<Target<E>>,
    by_text: BTreeMap<String, u32>,
    /// The numbers of servers that no lane is bound to.
    unused: Vec<u32>,
    /// The numbers of servers that have a race, which chooses their locator.
    racing: Vec<u32>,
    by_session: Vec<Vec<Link>>,
}

/// The end of a session that had reached a server.
#[derive(Debug)]
pub(crate) struct Closed {
    /// The link whose server the session reached.
    pub(crate) link: Link,
    /// The reason why the server cannot be reached.
    pub(crate) why: String,
    /// The locator of the session, if the driver reported that the peer is gone.
    pub(crate) gone: Option<String>,
}

impl<E: Display> Links<E> {
    /// Makes a table without links, each of which will have this many lanes, at least one.
    pub(crate) const fn new(lanes: u16) -> Self {
        Self {
            lanes,
            bound: Vec::new(),
            targets: Vec::new(),
            by_text: BTreeMap::new(),
            unused: Vec::new(),
            racing: Vec::new(),
            by_session: Vec::new(),
        }
    }

    // Lanes.

    /// The number of lanes in the link table.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bound.len()
    }

    /// Returns all lanes of `link`.
    pub(crate) fn lanes(&self, link: Link) -> impl Iterator<Item = Link> + use<E> {
        let first = self.first(link).0;
        (first..first + u32::from(self.lanes)).map(Link)
    }

    /// Returns the first lane of `link`.
    #[inline]
    pub(crate) const fn first(&self, link: Link) -> Link {
        Link(link.0 * self.lanes as u32)
    }

    /// The link that `lane` belongs to.
    pub(crate) const fn link(&self, lane: Link) -> Link {
        Link(lane.0 / self.lanes as u32)
    }

    /// The session of the lane that the last call on `link` took.
    #[inline]
    pub(crate) fn last(&self, link: Link) -> Option<Opened> {
        let first = self.first(link);
        match self.bound.get(first.0 as usize)?.last {
            0 => self.session(first),
            last => self.session(Link(first.0 + u32::from(last))),
        }
    }

    /// The lane for the next call on `link`: one with a session for which `is_idle` is true, else
    /// one without a session, else the lanes in turn.
    #[inline]
    pub(crate) fn lane(&mut self, link: Link, mut is_idle: impl FnMut(Opened) -> bool) -> Link {
        if self.lanes == 1 {
            return link;
        }
        let first = self.first(link);
        let Some(&Bound { last, .. }) = self.bound.get(first.0 as usize) else { return first };
        match self.last(link) {
            Some(session) if is_idle(session) => Link(first.0 + u32::from(last)),
            _ => self.other_lane(first, last, is_idle),
        }
    }

    /// Chooses a lane of the link, beginning behind the one that the last call took.
    fn other_lane(
        &mut self,
        first: Link,
        last: u16,
        mut is_idle: impl FnMut(Opened) -> bool,
    ) -> Link {
        let lanes = self.lanes;
        let mut chosen = None;
        for offset in (1..=lanes).map(|i| (last + i) % lanes) {
            match self.session(Link(first.0 + u32::from(offset))) {
                Some(session) if is_idle(session) => {
                    chosen = Some(offset);
                    break;
                }
                // A new session costs two packets: only if no other has an idle channel.
                None => chosen = chosen.map_or(Some(offset), |other: u16| Some(other.min(offset))),
                Some(_) => {}
            }
        }
        let offset = chosen.unwrap_or((last + 1) % lanes);
        self.bound[first.0 as usize].last = offset;
        Link(first.0 + u32::from(offset))
    }

    /// The session of `lane`, if it has one.
    #[inline]
    pub(crate) fn session(&self, lane: Link) -> Option<Opened> {
        let bound = self.bound.get(lane.0 as usize)?;
        Some((usize::from(bound.transport), bound.session?))
    }

    /// The number of the server that `lane` is bound to.
    #[inline]
    pub(crate) fn bound_to(&self, lane: Link) -> Option<u32> {
        self.bound.get(lane.0 as usize).map(|bound| bound.target).filter(|target| *target != NONE)
    }

    /// Binds a lane to a server. The lane must not be bound.
    pub(crate) fn bind(&mut self, lane: Link, target: u32) {
        let index = lane.0 as usize;
        if index >= self.bound.len() {
            self.bound.resize(index + 1, UNBOUND);
        }
        let server = &mut self.targets[target as usize];
        server.lanes += 1;
        if server.lanes == 1 {
            self.unused.retain(|unused| *unused != target);
            self.by_text.insert(server.text.clone(), target);
        }
        self.bound[index] = Bound { target, ..UNBOUND };
    }

    /// Unbinds a lane from its server. Returns the sessions to close: the lane's own, and if no
    /// lane is bound to the server any more, those of the server's race.
    pub(crate) fn unbind(&mut self, lane: Link) -> Vec<Opened> {
        let Some(bound) = self.bound.get_mut(lane.0 as usize) else { return Vec::new() };
        let bound = core::mem::replace(bound, UNBOUND);
        let Some(target) = self.targets.get_mut(bound.target as usize) else { return Vec::new() };
        target.lanes -= 1;
        let own = bound.session.map(|session| (usize::from(bound.transport), session));
        let mut close: Vec<_> = own.into_iter().collect();
        if target.lanes == 0
            && let Some((race, _)) = target.race.take()
        {
            close.extend(race.opening().map(|(_, session)| session));
            self.racing.retain(|t| *t != bound.target);
        }
        if target.lanes == 0 {
            self.by_text.remove(&target.text);
            self.unused.push(bound.target);
        }
        close
    }

    /// Gives `session` to a lane. The lane must be bound.
    pub(crate) fn opened(&mut self, lane: Link, (transport, session): Opened) {
        let bound = &mut self.bound[lane.0 as usize];
        (bound.transport, bound.session) = (transport as u16, Some(session));
        let place = session.place() as usize;
        if transport >= self.by_session.len() {
            self.by_session.resize_with(transport + 1, Vec::new);
        }
        let lanes = &mut self.by_session[transport];
        if place >= lanes.len() {
            lanes.resize(place + 1, Link(NONE));
        }
        lanes[place] = lane;
    }

    /// Handles the end of a session. The next call on its lane needs another session, and a race
    /// goes on without it. Returns nothing if the session had reached no server.
    pub(crate) fn closed(
        &mut self,
        now: Instant,
        (transport, session): Opened,
        reason: CloseReason,
        cause: Option<String>,
    ) -> Option<Closed> {
        for &target in &self.racing {
            let target = &mut self.targets[target as usize];
            let Some((race, _)) = &mut target.race else { continue };
            let lost = race.opening().find(|(_, opened)| *opened == (transport, session));
            if let Some((candidate, _)) = lost {
                race.failed(now, candidate);
                target.ended(candidate, reason, cause);
                return None;
            }
        }
        let lane = *self.by_session.get(transport)?.get(session.place() as usize)?;
        // The lane may have been bound anew since, and the place may be another session's.
        if self.session(lane) != Some((transport, session)) {
            return None;
        }
        let bound = &mut self.bound[lane.0 as usize];
        bound.session = None;
        let target = &mut self.targets[bound.target as usize];
        // Another locator may be in use by now.
        let used = target.chosen().filter(|_| target.transport == Some(transport));
        if let Some(candidate) = used {
            target.ended(candidate, reason, cause);
        }
        let is_gone = reason == CloseReason::PeerGone;
        let gone = used.filter(|_| is_gone).map(|candidate| target.locator(candidate).to_owned());
        let why = target.why();
        Some(Closed { link: self.link(lane), why, gone })
    }

    // Servers.

    /// The number of the server that links are bound to by the list of locators `text`.
    pub(crate) fn known(&self, text: &str) -> Option<u32> {
        self.by_text.get(text).copied()
    }

    /// Returns a number for the server at these locators, which [`Links::known`] finds by `text`
    /// once a lane is bound to the server.
    pub(crate) fn learn(&mut self, text: &str, locators: Vec<String>) -> u32 {
        let target = Target::new(text, locators);
        if let Some(&unused) = self.unused.last() {
            self.targets[unused as usize] = target;
            return unused;
        }
        self.targets.push(target);
        let target = self.targets.len() as u32 - 1;
        self.unused.push(target);
        target
    }

    /// The server with the number `target`.
    pub(crate) fn target(&mut self, target: u32) -> &mut Target<E> {
        &mut self.targets[target as usize]
    }

    /// Begins a race for a server's locators. The session that wins goes to `lane`.
    pub(crate) fn begin_race(&mut self, now: Instant, target: u32, lane: Link) {
        let server = &mut self.targets[target as usize];
        server.race = Some((server.race(now), lane));
        self.racing.push(target);
    }

    /// Ends a server's race and returns it.
    pub(crate) fn end_race(&mut self, target: u32) -> Option<(Race<Opened>, Link)> {
        self.racing.retain(|t| *t != target);
        self.targets[target as usize].race.take()
    }

    /// The numbers of the servers that have a race.
    #[inline]
    pub(crate) fn racing(&self) -> &[u32] {
        &self.racing
    }
}

#[cfg(test)]
mod tests;
