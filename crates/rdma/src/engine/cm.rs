//! Who is told what happens to connections, in order: behind rdma_cm's ids and event channels.
//!
//! ```text
//!   a queue pair's connection moves ──┐
//!   somebody asks at a listener ──────┼─► the party's channel (a mailbox with a descriptor) ─► whoever fetches
//!   the party says something itself ──┘
//! ```
//!
//! A party is one connection or one listener; it has at most one queue pair. What is told of it names it by a key of the
//! program's, so that the program finds its own object without a search.
//!
//! Always holds: what waits is of parties that there are, so that no key of an object that has gone comes out; what a party
//! may leave waiting of what others do is limited (a connection moves few times, a listener has its backlog).
//!
//! Not here: what the program makes of it, and sockets (`door`).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sprat_proto::rdma::{Conn, Qp, StartupError};

use super::events::{Asked, Link, Mailbox};

/// A party's number, never used twice.
pub(crate) type Number = u64;

/// What is told.
#[derive(Debug)]
pub(crate) enum News {
    /// A connection stands otherwise than before.
    Moved(Link),
    /// A peer asks.
    Asked(Asked),
    /// The party's own words.
    Own([u64; 2]),
}

#[derive(Debug)]
struct Party {
    channel: Number,
    key: u64,
    pair: Option<Qp>,
    /// The listener's number in the core.
    listener: Option<u32>,
    /// News of it that were fetched.
    fetched: u64,
    /// Requests that wait to be fetched.
    asked: usize,
}

/// See the file.
#[derive(Debug, Default)]
pub(crate) struct Parties {
    channels: BTreeMap<Number, Mailbox<(Number, News)>>,
    parties: BTreeMap<Number, Party>,
    pairs: BTreeMap<Qp, Number>,
    last: Number,
}

/// What is left of a party that has gone.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Its news that were fetched.
    pub(crate) fetched: u64,
    /// Its queue pair.
    pub(crate) pair: Option<Qp>,
    /// Its listener.
    pub(crate) listener: Option<u32>,
    /// Who asked and was not heard.
    pub(crate) asked: Vec<Conn>,
}

impl Parties {
    fn number(&mut self) -> Number {
        self.last += 1;
        self.last
    }

    /// A channel behind a descriptor: an eventfd that counts down by one.
    pub(crate) fn open(&mut self, fd: Arc<OwnedFd>) -> Number {
        let number = self.number();
        self.channels.insert(number, Mailbox::behind(fd));
        number
    }

    /// Closes a channel. What waits there is lost, and so is what comes; those who asked are returned.
    pub(crate) fn close(&mut self, channel: Number) -> Vec<Conn> {
        let waiting = self.channels.remove(&channel).map(|mut mail| mail.extract(|_| true));
        waiting.into_iter().flatten().filter_map(|(_, news)| asks(&news)).collect()
    }

    /// A new party.
    pub(crate) fn enter(&mut self, channel: Number, key: u64) -> Number {
        let number = self.number();
        let party = Party { channel, key, pair: None, listener: None, fetched: 0, asked: 0 };
        self.parties.insert(number, party);
        number
    }

    /// A party goes, and what waits of it.
    pub(crate) fn leave(&mut self, number: Number) -> Left {
        let Some(party) = self.parties.remove(&number) else { return Left::default() };
        if let Some(pair) = party.pair {
            self.pairs.remove(&pair);
        }
        let mail = self.channels.get_mut(&party.channel);
        let waiting = mail.map(|mail| mail.extract(|(of, _)| *of == number)).unwrap_or_default();
        let asked = waiting.iter().filter_map(|(_, news)| asks(news)).collect();
        Left { fetched: party.fetched, pair: party.pair, listener: party.listener, asked }
    }

    /// A party is told by another channel from now on, also what waits of it; returns how much of it was fetched before.
    pub(crate) fn migrate(&mut self, number: Number, channel: Number) -> u64 {
        let Some(party) = self.parties.get_mut(&number) else { return 0 };
        let from = std::mem::replace(&mut party.channel, channel);
        let waiting =
            self.channels.get_mut(&from).map(|mail| mail.extract(|(of, _)| *of == number));
        if let Some(mail) = self.channels.get_mut(&channel) {
            waiting.into_iter().flatten().for_each(|news| mail.put(news));
        }
        party.fetched
    }

    /// What happens to the connection of `pair` is told of this party from now on.
    pub(crate) fn follow(&mut self, number: Number, pair: Qp) {
        let Some(party) = self.parties.get_mut(&number) else { return };
        if let Some(old) = party.pair.replace(pair) {
            self.pairs.remove(&old);
        }
        // One pair has one follower: the last.
        if let Some(other) = self.pairs.insert(pair, number).filter(|other| *other != number)
            && let Some(other) = self.parties.get_mut(&other)
        {
            other.pair = None;
        }
    }

    /// The queue pair that a party follows.
    pub(crate) fn pair(&self, number: Number) -> Option<Qp> {
        self.parties.get(&number)?.pair
    }

    /// A queue pair's number is void from now on, or it follows nobody.
    pub(crate) fn unfollow(&mut self, pair: Qp) {
        if let Some(party) =
            self.pairs.remove(&pair).and_then(|number| self.parties.get_mut(&number))
        {
            party.pair = None;
        }
    }

    /// The party listens.
    pub(crate) fn listens(&mut self, number: Number, listener: u32) {
        if let Some(party) = self.parties.get_mut(&number) {
            party.listener = Some(listener);
        }
    }

    /// It does no longer.
    pub(crate) fn listens_no_more(&mut self, number: Number) {
        if let Some(party) = self.parties.get_mut(&number) {
            party.listener = None;
        }
    }

    /// A queue pair's connection stands so now.
    pub(crate) fn moved(&mut self, pair: Qp, link: &Link) {
        if matches!(link, Link::Idle | Link::Opening) {
            return;
        }
        if let Some(&number) = self.pairs.get(&pair) {
            self.tell(number, News::Moved(link.clone()));
        }
    }

    /// A peer asks at this party's listener; false if so many wait that `most` are.
    pub(crate) fn asked(&mut self, number: Number, most: usize, asked: Asked) -> bool {
        match self.parties.get_mut(&number) {
            Some(party) if party.asked < most && self.channels.contains_key(&party.channel) => {
                party.asked += 1;
                self.tell(number, News::Asked(asked));
                true
            }
            _ => false,
        }
    }

    /// Puts something behind what waits of a party.
    pub(crate) fn tell(&mut self, number: Number, news: News) {
        let channel = self.parties.get(&number).map(|party| party.channel);
        if let Some(mail) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            mail.put((number, news));
        }
    }

    /// The queue pair of which the oldest news of a channel say that its connection has ended.
    pub(crate) fn ends_next(&self, channel: Number) -> Option<Qp> {
        let (number, news) = self.channels.get(&channel)?.front()?;
        let ended = matches!(news, News::Moved(Link::Disconnected(_)));
        if ended { self.pair(*number) } else { None }
    }

    /// The oldest news of a channel, with the party's key.
    pub(crate) fn fetch(&mut self, channel: Number) -> Option<(u64, News)> {
        let (number, news) = self.channels.get_mut(&channel)?.take()?;
        // What waits is of parties that there are.
        let party = self.parties.get_mut(&number)?;
        party.fetched += 1;
        party.asked -= usize::from(asks(&news).is_some());
        Some((party.key, news))
    }
}

/// Who asks by these news.
fn asks(news: &News) -> Option<Conn> {
    match news {
        News::Asked(asked) => Some(asked.conn),
        News::Moved(_) | News::Own(_) => None,
    }
}

/// How a connection stands whose queue pair is destroyed.
pub(super) fn without_pair(link: &Link) -> Option<Link> {
    match link {
        Link::Opening => Some(Link::Failed(StartupError::Cancelled)),
        Link::Connected { .. } => Some(Link::Disconnected(None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

    use super::*;

    fn descriptor() -> Arc<OwnedFd> {
        Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).unwrap())
    }

    fn readable(fd: &OwnedFd) -> bool {
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&none)).unwrap() == 1
    }

    fn asked(conn: u32) -> Asked {
        let nobody = ([127, 0, 0, 1], 9).into();
        Asked {
            conn: Conn(conn),
            peer: nobody,
            local: nobody,
            private_data: vec![],
            ird: None,
            ord: None,
        }
    }

    /// The words that are fetched, by key.
    fn words(parties: &mut Parties, channel: Number) -> Vec<(u64, u64)> {
        let own = |news| match news {
            News::Own([word, _]) => word,
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| parties.fetch(channel)).map(|(key, news)| (key, own(news))).collect()
    }

    #[test]
    fn what_waits_of_a_party_goes_with_it_and_moves_with_it() {
        let (first, second) = (descriptor(), descriptor());
        let mut all = Parties::default();
        let (one, two) = (all.open(Arc::clone(&first)), all.open(Arc::clone(&second)));
        let (a, b, c) = (all.enter(one, 100), all.enter(one, 200), all.enter(one, 300));
        for (word, party) in [a, b, c, a, b, c].into_iter().enumerate() {
            all.tell(party, News::Own([word as u64, 0]));
        }
        assert!(readable(&first) && !readable(&second));
        assert_eq!(all.leave(b).fetched, 0);
        assert_eq!(all.migrate(c, two), 0);
        assert!(readable(&second));
        assert_eq!(words(&mut all, one), [(100, 0), (100, 3)]);
        assert_eq!(words(&mut all, two), [(300, 2), (300, 5)]);
        assert!(!readable(&first) && !readable(&second));
        assert_eq!((all.leave(a).fetched, all.leave(c).fetched), (2, 2));
        all.tell(a, News::Own([9, 0]));
        assert!(words(&mut all, one).is_empty());
    }

    #[test]
    fn a_pair_has_one_follower_and_only_moves_are_told() {
        let mut all = Parties::default();
        let channel = all.open(descriptor());
        let (a, b) = (all.enter(channel, 1), all.enter(channel, 2));
        all.follow(a, Qp(7));
        all.follow(b, Qp(7));
        assert_eq!((all.pair(a), all.pair(b)), (None, Some(Qp(7))));
        all.moved(Qp(7), &Link::Opening);
        all.moved(Qp(8), &Link::Disconnected(None));
        all.moved(Qp(7), &Link::Disconnected(None));
        assert!(matches!(all.fetch(channel), Some((2, News::Moved(Link::Disconnected(None))))));
        assert!(all.fetch(channel).is_none());
        all.unfollow(Qp(7));
        all.moved(Qp(7), &Link::Disconnected(None));
        assert!(all.fetch(channel).is_none());
        assert_eq!(all.leave(b).pair, None);
    }

    #[test]
    fn so_many_ask_as_are_heard() {
        let mut all = Parties::default();
        let channel = all.open(descriptor());
        let party = all.enter(channel, 5);
        all.listens(party, 3);
        assert!(all.asked(party, 2, asked(0)) && all.asked(party, 2, asked(1)));
        assert!(!all.asked(party, 2, asked(2)), "the backlog is 2");
        assert!(matches!(all.fetch(channel), Some((5, News::Asked(Asked { conn: Conn(0), .. })))));
        assert!(all.asked(party, 2, asked(3)));
        let left = all.leave(party);
        assert_eq!((left.fetched, left.listener, left.asked), (1, Some(3), vec![Conn(1), Conn(3)]));
        assert!(!all.asked(party, 2, asked(4)), "nobody listens");
        let party = all.enter(channel, 6);
        assert!(all.asked(party, 2, asked(5)));
        assert_eq!(all.close(channel), [Conn(5)]);
        assert!(!all.asked(party, 2, asked(6)), "nobody hears");
    }
}
