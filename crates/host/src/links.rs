//! What a machine's links stand for: the server that one is bound to, and the session with it. A link takes 16 bytes, so
//! that a million cost little and a request touches one line of them; 4 more lead from a session back to its link.
//!
//! A session carries so many requests at a time and no more. A machine with few links and many calls wants several
//! sessions for each: its links are then several *strands*, numbered like links, and this file calls them so.
//!
//! Always: a session stands for one link at most. Not here: opening and closing sessions (the worker).

use sprat_proto::rpc::SessionId;
use sprat_store::machine::Link;

use crate::locator::Locator;

/// A server that links are bound to, as the text names it.
#[derive(Debug)]
struct Target {
    text: String,
    to: Locator,
    door: u32,
    links: u32,
    /// Requests that a session with it carries at a time.
    channels: usize,
}

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
    /// The link of a session, by its door and its place there. One that is closed may still be here.
    by_session: Vec<Vec<Link>>,
}

impl Links {
    /// No links; each will have so many strands.
    pub(crate) const fn new(strands: u32) -> Self {
        Self { strands, calls: 0, bound: Vec::new(), targets: Vec::new(), by_session: Vec::new() }
    }

    /// All strands of `link`.
    pub(crate) fn strands(&self, link: Link) -> impl Iterator<Item = Link> + use<> {
        let first = link.0 * self.strands;
        (first..first + self.strands).map(Link)
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

    /// A number for the server at `to`, behind `door`, where a session carries `channels` requests at a time; to be known
    /// by `text`.
    pub(crate) fn learn(&mut self, text: &str, to: Locator, door: usize, channels: usize) -> u32 {
        let target = Target { text: text.to_owned(), to, door: door as u32, links: 0, channels };
        if let Some(i) = self.targets.iter().position(|t| t.links == 0) {
            self.targets[i] = target;
            return i as u32;
        }
        self.targets.push(target);
        self.targets.len() as u32 - 1
    }

    /// Binds `link` to a server. It must not be bound.
    pub(crate) fn bind(&mut self, link: Link, target: u32) {
        let index = link.0 as usize;
        if index >= self.bound.len() {
            self.bound.resize(index + 1, UNBOUND);
        }
        let server = &mut self.targets[target as usize];
        server.links += 1;
        self.bound[index] = Bound { target, door: server.door, session: None };
    }

    /// Forgets what `link` is bound to; returns the session, by its door, which is to be closed.
    pub(crate) fn unbind(&mut self, link: Link) -> Option<(usize, SessionId)> {
        let bound = std::mem::replace(self.bound.get_mut(link.0 as usize)?, UNBOUND);
        self.targets.get_mut(bound.target as usize)?.links -= 1;
        Some((bound.door as usize, bound.session?))
    }

    /// The session that stands for `link`, by its door.
    #[inline]
    pub(crate) fn session(&self, link: Link) -> Option<(usize, SessionId)> {
        let bound = self.bound.get(link.0 as usize)?;
        Some((bound.door as usize, bound.session?))
    }

    /// Where `link` leads: a door, and the locator behind it.
    pub(crate) fn target(&self, link: Link) -> Option<(usize, &Locator)> {
        let target = self.targets.get(self.bound.get(link.0 as usize)?.target as usize)?;
        Some((target.door as usize, &target.to))
    }

    /// `session` stands for `link` from now on. It must be bound.
    pub(crate) fn opened(&mut self, link: Link, session: SessionId) {
        let bound = &mut self.bound[link.0 as usize];
        bound.session = Some(session);
        let (door, place) = (bound.door as usize, session.place() as usize);
        if door >= self.by_session.len() {
            self.by_session.resize_with(door + 1, Vec::new);
        }
        let links = &mut self.by_session[door];
        if place >= links.len() {
            links.resize(place + 1, Link(NONE));
        }
        links[place] = link;
    }

    /// A session has ended: the next call on its link needs another one.
    pub(crate) fn closed(&mut self, door: usize, session: SessionId) {
        let link = self.by_session.get(door).and_then(|links| links.get(session.place() as usize));
        let Some(bound) = link.and_then(|link| self.bound.get_mut(link.0 as usize)) else { return };
        // The place may have been a session's whose link was bound anew since.
        if bound.door as usize == door && bound.session == Some(session) {
            bound.session = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_share_servers_and_lead_to_their_sessions_and_back() {
        let mut links = Links::new(1);
        let texts = ["fast+shm:name=a", "tcp:host=::1,port=1"];
        let targets = [0, 1].map(|door| links.learn(texts[door], texts[door].parse().unwrap(), door, 8));
        // Learnt and never bound: forgotten.
        assert_eq!((links.known(texts[0]), targets), (None, [0, 0]));
        let a = links.learn(texts[0], texts[0].parse().unwrap(), 3, 8);
        links.bind(Link(5), a);
        links.bind(Link(2), a);
        assert_eq!((links.known(texts[0]), links.known(texts[1])), (Some(a), None));
        assert_eq!(links.target(Link(2)).unwrap(), (3, &texts[0].parse().unwrap()));
        assert!(links.target(Link(3)).is_none() && links.session(Link(2)).is_none());
        let [first, second] = [SessionId::new(1, 9), SessionId::new(2, 9)];
        links.opened(Link(5), first);
        assert_eq!(links.session(Link(5)), Some((3, first)));
        links.closed(3, first);
        assert_eq!(links.session(Link(5)), None);
        links.opened(Link(2), second);
        for (door, session) in [(3, first), (2, second), (9, second), (3, SessionId::new(2, 99))] {
            links.closed(door, session);
            assert_eq!(links.session(Link(2)), Some((3, second)), "{session:?} behind {door} is another one");
        }
        assert_eq!(links.unbind(Link(2)), Some((3, second)));
        links.closed(3, second);
        assert_eq!(
            (links.unbind(Link(2)), links.unbind(Link(5)), links.unbind(Link(77))),
            (None, None, None)
        );
        assert_eq!(links.known(texts[0]), None, "nobody is bound to it any more");
    }

    #[test]
    fn calls_take_as_many_strands_as_they_need_in_turns() {
        let mut links = Links::new(4);
        let text = "fast+shm:name=a";
        for (link, channels) in [(Link(1), 8), (Link(2), usize::MAX)] {
            let target = links.learn(text, text.parse().unwrap(), 0, channels);
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
