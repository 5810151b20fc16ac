//! What a machine's links stand for: the server that one is bound to, and the session with it. A link takes 16 bytes, so
//! that a million cost little and a request touches one line of them; 4 more lead from a session back to its link.
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
#[derive(Debug, Default)]
pub(crate) struct Links {
    bound: Vec<Bound>,
    /// The servers: few, however many links there are.
    targets: Vec<Target>,
    /// The link of a session, by its door and its place there. One that is closed may still be here.
    by_session: Vec<Vec<Link>>,
}

impl Links {
    /// The number of the server that links are bound to by this text.
    pub(crate) fn known(&self, text: &str) -> Option<u32> {
        self.targets.iter().position(|t| t.links > 0 && t.text == text).map(|i| i as u32)
    }

    /// A number for the server at `to`, behind `door`, to be known by `text`.
    pub(crate) fn learn(&mut self, text: &str, to: Locator, door: usize) -> u32 {
        let target = Target { text: text.to_owned(), to, door: door as u32, links: 0 };
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
        let mut links = Links::default();
        let texts = ["fast+shm:name=a", "tcp:host=::1,port=1"];
        let targets = [0, 1].map(|door| links.learn(texts[door], texts[door].parse().unwrap(), door));
        // Learnt and never bound: forgotten.
        assert_eq!((links.known(texts[0]), targets), (None, [0, 0]));
        let a = links.learn(texts[0], texts[0].parse().unwrap(), 3);
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
}
