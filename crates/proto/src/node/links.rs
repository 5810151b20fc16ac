//! What a machine's links stand for: the server that one is bound to, and the session with it. A link takes 16 bytes, so
//! that a million cost little and a request touches one line of them; 4 more lead from a session back to its link.
//!
//! A session carries so many requests at a time and no more. A machine with few links and many calls wants several
//! sessions for each: its links are then several *strands*, numbered like links, and this file calls them so.
//!
//! Always: a session stands for one link at most, and a server has a race only while it is listed in `racing`. Not here:
//! opening and closing sessions (the worker).

use std::io;

use sprat_proto::Instant;
use sprat_proto::node::machine::Link;
use sprat_proto::rpc::{CloseReason, SessionId};

use crate::locator::Locator;

mod target;

pub(crate) use target::{Opened, Target};

/// What a link is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    target: u32,
    door: u32,
    session: Option<SessionId>,
}

const _: () = assert!(size_of::<Bound>() == 16);
/// No target: the link is not bound.
const NONE: u32 = u32::MAX;
const UNBOUND: Bound = Bound { target: NONE, door: 0, session: None };

/// See the file.
#[derive(Debug)]
pub(crate) struct Links {
    /// Strands of a link.
    strands: u32,
    /// Calls so far.
    calls: u32,
    bound: Vec<Bound>,
    /// The servers: few, however many links there are.
    targets: Vec<Target>,
    /// Servers of which it is being decided by which locator they are reached.
    racing: Vec<u32>,
    /// The link of a session, by its door and its place there. One that is closed may still be here.
    by_session: Vec<Vec<Link>>,
}

impl Links {
    /// No links; each will have so many strands.
    pub(crate) const fn new(strands: u32) -> Self {
        Self {
            strands,
            calls: 0,
            bound: Vec::new(),
            targets: Vec::new(),
            racing: Vec::new(),
            by_session: Vec::new(),
        }
    }

    /// All strands of `link`.
    pub(crate) fn strands(&self, link: Link) -> impl Iterator<Item = Link> + use<> {
        let first = link.0 * self.strands;
        (first..first + self.strands).map(Link)
    }

    /// The first strand of `link`.
    pub(crate) fn first(&self, link: Link) -> Link {
        Link(link.0 * self.strands)
    }

    /// The link that a strand belongs to.
    pub(crate) fn link(&self, strand: Link) -> Link {
        Link(strand.0 / self.strands)
    }

    /// The strand for the next call on `link`, while `awaited` others are in progress: in turns, as many strands as carry
    /// them all.
    #[inline]
    pub(crate) fn strand(&mut self, link: Link, awaited: usize) -> Link {
        if self.strands == 1 {
            return link;
        }
        let first = link.0 * self.strands;
        let Some(bound) = self.bound.get(first as usize) else { return Link(first) };
        let channels = self.targets.get(bound.target as usize).map_or(1, |target| target.channels);
        if awaited < channels {
            return Link(first);
        }
        let wanted = (awaited / channels) as u32 + 1;
        self.calls = self.calls.wrapping_add(1);
        Link(first + self.calls % wanted.min(self.strands))
    }

    /// The number of the server that links are bound to by this text.
    pub(crate) fn known(&self, text: &str) -> Option<u32> {
        self.targets.iter().position(|t| t.links > 0 && t.text == text).map(|i| i as u32)
    }

    /// A number for the server at these locators, to be known by `text`.
    pub(crate) fn learn(&mut self, text: &str, list: Vec<Locator>) -> u32 {
        let target = Target::new(text, list);
        if let Some(i) = self.targets.iter().position(|t| t.links == 0) {
            self.targets[i] = target;
            return i as u32;
        }
        self.targets.push(target);
        self.targets.len() as u32 - 1
    }

    /// Binds a strand to a server. It must not be bound.
    pub(crate) fn bind(&mut self, strand: Link, target: u32) {
        let index = strand.0 as usize;
        if index >= self.bound.len() {
            self.bound.resize(index + 1, UNBOUND);
        }
        self.targets[target as usize].links += 1;
        self.bound[index] = Bound { target, ..UNBOUND };
    }

    /// Forgets what a strand is bound to; returns the sessions, by their doors, which are to be closed: its own, and where
    /// no strand is bound to that server any more, those that a race has begun.
    pub(crate) fn unbind(&mut self, strand: Link) -> Vec<Opened> {
        let Some(bound) = self.bound.get_mut(strand.0 as usize) else { return Vec::new() };
        let bound = std::mem::replace(bound, UNBOUND);
        let Some(target) = self.targets.get_mut(bound.target as usize) else { return Vec::new() };
        target.links -= 1;
        let mut close: Vec<_> =
            bound.session.map(|session| (bound.door as usize, session)).into_iter().collect();
        if target.links == 0
            && let Some((race, _)) = target.race.take()
        {
            close.extend(race.opening().map(|(_, session)| session));
            self.racing.retain(|t| *t != bound.target);
        }
        close
    }

    /// The session that stands for a strand, by its door.
    #[inline]
    pub(crate) fn session(&self, strand: Link) -> Option<Opened> {
        let bound = self.bound.get(strand.0 as usize)?;
        Some((bound.door as usize, bound.session?))
    }

    /// The number of the server that a strand is bound to.
    pub(crate) fn bound_to(&self, strand: Link) -> Option<u32> {
        self.bound.get(strand.0 as usize).map(|bound| bound.target).filter(|target| *target != NONE)
    }

    /// The server with this number.
    pub(crate) fn target(&mut self, target: u32) -> &mut Target {
        &mut self.targets[target as usize]
    }

    /// A race begins for a server; the strand gets the session.
    pub(crate) fn begin_race(&mut self, now: Instant, target: u32, strand: Link) {
        let server = &mut self.targets[target as usize];
        server.race = Some((server.race(now), strand));
        self.racing.push(target);
    }

    /// A server's race is over: what was in it.
    pub(crate) fn end_race(&mut self, target: u32) -> Option<(crate::race::Race<Opened>, Link)> {
        self.racing.retain(|t| *t != target);
        self.targets[target as usize].race.take()
    }

    /// The servers that have a race.
    #[inline]
    pub(crate) fn racing(&self) -> &[u32] {
        &self.racing
    }

    /// `session` stands for a strand from now on. It must be bound.
    pub(crate) fn opened(&mut self, strand: Link, (door, session): Opened) {
        let bound = &mut self.bound[strand.0 as usize];
        (bound.door, bound.session) = (door as u32, Some(session));
        let place = session.place() as usize;
        if door >= self.by_session.len() {
            self.by_session.resize_with(door + 1, Vec::new);
        }
        let links = &mut self.by_session[door];
        if place >= links.len() {
            links.resize(place + 1, Link(NONE));
        }
        links[place] = strand;
    }

    /// A session has ended: the next call on its strand needs another one, and a race goes on without it. Returns the link
    /// whose server cannot be reached by it any more, and why.
    pub(crate) fn closed(
        &mut self,
        now: Instant,
        (door, session): Opened,
        reason: CloseReason,
        cause: Option<String>,
    ) -> Option<(Link, io::Error)> {
        for &target in &self.racing {
            let target = &mut self.targets[target as usize];
            let Some((race, _)) = &mut target.race else { continue };
            let lost = race.opening().find(|(_, opened)| *opened == (door, session));
            if let Some((candidate, _)) = lost {
                race.failed(now, candidate);
                target.ended(candidate, reason, cause);
                return None;
            }
        }
        let strand = *self.by_session.get(door)?.get(session.place() as usize)?;
        let bound = self.bound.get_mut(strand.0 as usize)?;
        // The place may have been a session's whose link was bound anew since.
        if bound.door as usize != door || bound.session != Some(session) {
            return None;
        }
        bound.session = None;
        let target = &mut self.targets[bound.target as usize];
        // Another locator may be in use by now.
        if let Some(candidate) = target.chosen().filter(|_| target.door == Some(door)) {
            target.ended(candidate, reason, cause);
        }
        let why = target.why();
        Some((self.link(strand), why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(texts: &[&str]) -> Vec<Locator> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    const RESET: CloseReason = CloseReason::Reset;
    const NOW: Instant = Instant::ZERO;

    #[test]
    fn links_share_servers_and_lead_to_their_sessions_and_back() {
        let mut links = Links::new(1);
        let texts = ["fast+shm:name=a", "tcp:host=::1,port=1"];
        let targets = [0, 1].map(|i: usize| links.learn(texts[i], list(&texts[i..=i])));
        // Learnt and never bound: forgotten.
        assert_eq!((links.known(texts[0]), targets), (None, [0, 0]));
        let a = links.learn(texts[0], list(&texts[..1]));
        links.bind(Link(5), a);
        links.bind(Link(2), a);
        assert_eq!((links.known(texts[0]), links.known(texts[1])), (Some(a), None));
        assert_eq!((links.bound_to(Link(2)), links.bound_to(Link(3))), (Some(a), None));
        links.target(a).choose(0, 3, 8);
        let [first, second] = [SessionId::new(1, 9), SessionId::new(2, 9)];
        links.opened(Link(5), (3, first));
        assert_eq!(links.session(Link(5)), Some((3, first)));
        let (link, why) = links.closed(NOW, (3, first), RESET, Some("broken".into())).unwrap();
        assert_eq!((link, why.to_string()), (Link(5), "fast+shm:name=a: broken".into()));
        assert_eq!(links.session(Link(5)), None);
        links.opened(Link(2), (3, second));
        for (door, session) in [(3, first), (2, second), (9, second), (3, SessionId::new(2, 99))] {
            assert!(links.closed(NOW, (door, session), RESET, None).is_none());
            assert_eq!(
                links.session(Link(2)),
                Some((3, second)),
                "{session:?} behind {door} is another one"
            );
        }
        assert_eq!(links.unbind(Link(2)), [(3, second)]);
        assert!(links.closed(NOW, (3, second), RESET, None).is_none());
        for link in [Link(2), Link(5), Link(77)] {
            assert_eq!(links.unbind(link), []);
        }
        assert_eq!(links.known(texts[0]), None, "nothing is bound to it any more");
    }

    #[test]
    fn a_race_knows_its_sessions_and_each_cause() {
        let mut links = Links::new(1);
        let text = "fast+shm:name=a;tcp:host=::1,port=1;fast+udp:host=::1,port=2";
        let target = links.learn(text, Locator::list(text).unwrap());
        links.bind(Link(0), target);
        links.begin_race(NOW, target, Link(0));
        links.target(target).failed(0, io::Error::other("not there"));
        let sessions = [(1, SessionId::new(1, 4)), (2, SessionId::new(1, 4))];
        let (race, _) = links.target(target).race.as_mut().unwrap();
        race.failed(NOW, 0);
        for (candidate, session) in (1..).zip(sessions) {
            race.began(NOW, candidate, session);
        }
        assert!(links.closed(NOW, sessions[0], CloseReason::Version, None).is_none());
        let why = links.target(target).why().to_string();
        let other = "what listens there speaks another protocol, or another version of ours";
        let each = ["fast+shm:name=a: not there", "fast+udp:host=::1,port=2: no answer"];
        assert_eq!(why, format!("{}; tcp:host=::1,port=1: {other}; {}", each[0], each[1]));
        assert_eq!(links.unbind(Link(0)), [sessions[1]], "nothing waits for it any more");
        assert!(links.racing().is_empty());
    }

    #[test]
    fn a_server_whose_session_ends_is_tried_from_the_best_locator_again() {
        let mut links = Links::new(1);
        let text = "fast+shm:name=a;tcp:host=::1,port=1";
        let target = links.learn(text, Locator::list(text).unwrap());
        links.bind(Link(0), target);
        let next = |links: &mut Links, reason| {
            links.target(target).choose(0, 7, 8);
            let session = (7, SessionId::new(1, 0));
            links.opened(Link(0), session);
            links.closed(NOW, session, reason, None).unwrap();
            assert_eq!(links.target(target).chosen(), None);
            links.begin_race(NOW, target, Link(0));
            links.end_race(target).unwrap().0.due(NOW)
        };
        assert_eq!(next(&mut links, RESET), Some(0));
        assert_eq!(
            next(&mut links, CloseReason::Version),
            Some(1),
            "there is no such server at the first"
        );
        assert_eq!(next(&mut links, CloseReason::PeerGone), Some(0));
    }

    #[test]
    fn calls_take_as_many_strands_as_they_need_in_turns() {
        let mut links = Links::new(4);
        let text = "fast+shm:name=a";
        for (link, channels) in [(Link(1), 8), (Link(2), usize::MAX)] {
            let target = links.learn(text, list(&[text]));
            links.target(target).choose(0, 0, channels);
            for strand in links.strands(link).collect::<Vec<_>>() {
                links.bind(strand, target);
            }
        }
        let mut taken = |link, awaited| {
            let mut taken = [0; 12];
            (0..12).for_each(|_| taken[links.strand(link, awaited).0 as usize] += 1);
            taken
        };
        assert_eq!(taken(Link(1), 7), [0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(taken(Link(1), 8), [0, 0, 0, 0, 6, 6, 0, 0, 0, 0, 0, 0]);
        assert_eq!(taken(Link(1), 1000), [0, 0, 0, 0, 3, 3, 3, 3, 0, 0, 0, 0]);
        assert_eq!(taken(Link(2), 1000), [0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0]);
        assert_eq!(links.strand(Link(70), 5), Link(280), "which is not bound");
    }
}
