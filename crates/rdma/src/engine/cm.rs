//! The ids and event channels of rdma_cm: events of connections and listeners, in order.
//!
//! ```text
//!   a connection changes its state ──┐
//!   a peer requests a connection ────┼─► event channel of the id ─► program
//!   the program posts an event ──────┘   (a queue with a descriptor)
//! ```
//!
//! An id has one connection or one listener, and at most one queue pair. An event carries a key of
//! the program's, by which the program finds its own object without a search.
//!
//! Always holds: every event that waits belongs to an id that exists, so that no key of a destroyed
//! object comes out. The events that peers can cause are limited: a connection changes its state a
//! few times, and a listener has its backlog.
//!
//! Not here: what the program makes of an event, and sockets.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sprat_proto::rdma::{Conn, Qp, StartupError};

use super::event_queue::EventQueue;
use super::state::{ConnectionState, PendingRequest};

/// The number of an rdma_cm id or of an event channel. It is never used twice.
pub(crate) type CmId = u64;

/// An event of an rdma_cm id.
#[derive(Debug)]
pub(crate) enum CmEvent {
    /// The state of the id's connection has changed.
    Connection(ConnectionState),
    /// A peer requests a connection at the id's listener.
    Request(PendingRequest),
    /// An event that the program itself posted to the id.
    Own([u64; 2]),
}

#[derive(Debug)]
struct Entry {
    channel: CmId,
    key: u64,
    pair: Option<Qp>,
    /// The number of the id's listener in the core, if it listens.
    listener: Option<u32>,
    /// The number of the id's events that the program has taken.
    taken: u64,
    /// The number of connection requests at the id that wait for the program to take them.
    asked: usize,
}

/// All rdma_cm ids and event channels of a device.
#[derive(Debug, Default)]
pub(crate) struct CmIds {
    channels: BTreeMap<CmId, EventQueue<(CmId, CmEvent)>>,
    ids: BTreeMap<CmId, Entry>,
    pairs: BTreeMap<Qp, CmId>,
    last: CmId,
}

/// The queue pair, listener and requests of a destroyed rdma_cm id, which its owner must end too.
#[derive(Debug, Default)]
pub(crate) struct Destroyed {
    /// The number of the destroyed id's events that the program has taken.
    pub(crate) taken: u64,
    /// The destroyed id's queue pair.
    pub(crate) pair: Option<Qp>,
    /// The destroyed id's listener.
    pub(crate) listener: Option<u32>,
    /// The connections whose requests waited at the destroyed id.
    pub(crate) asked: Vec<Conn>,
}

impl CmIds {
    fn next_id(&mut self) -> CmId {
        self.last += 1;
        self.last
    }

    /// Opens an event channel behind a descriptor, an eventfd that counts down by one. Returns its
    /// number.
    pub(crate) fn open_channel(&mut self, fd: Arc<OwnedFd>) -> CmId {
        let number = self.next_id();
        self.channels.insert(number, EventQueue::behind(fd));
        number
    }

    /// Closes an event channel and drops its events; returns the connections whose requests were
    /// among them.
    pub(crate) fn close_channel(&mut self, channel: CmId) -> Vec<Conn> {
        let waiting = self.channels.remove(&channel).map(|mut mail| mail.extract(|_| true));
        waiting.into_iter().flatten().filter_map(|(_, news)| requester(&news)).collect()
    }

    /// Creates an id whose events arrive with `key` through `channel`. Returns its number.
    pub(crate) fn create(&mut self, channel: CmId, key: u64) -> CmId {
        let number = self.next_id();
        let entry = Entry { channel, key, pair: None, listener: None, taken: 0, asked: 0 };
        self.ids.insert(number, entry);
        number
    }

    /// Destroys an id and drops its waiting events.
    pub(crate) fn destroy(&mut self, number: CmId) -> Destroyed {
        let Some(entry) = self.ids.remove(&number) else {
            return Destroyed::default();
        };
        if let Some(pair) = entry.pair {
            self.pairs.remove(&pair);
        }
        let mail = self.channels.get_mut(&entry.channel);
        let waiting = mail.map(|mail| mail.extract(|(of, _)| *of == number)).unwrap_or_default();
        let asked = waiting.iter().filter_map(|(_, news)| requester(news)).collect();
        Destroyed { taken: entry.taken, pair: entry.pair, listener: entry.listener, asked }
    }

    /// Moves an id and its waiting events to another channel; returns how many of its events the
    /// program has taken.
    pub(crate) fn migrate(&mut self, number: CmId, channel: CmId) -> u64 {
        let Some(entry) = self.ids.get_mut(&number) else {
            return 0;
        };
        let from = std::mem::replace(&mut entry.channel, channel);
        let waiting =
            self.channels.get_mut(&from).map(|mail| mail.extract(|(of, _)| *of == number));
        if let Some(mail) = self.channels.get_mut(&channel) {
            waiting.into_iter().flatten().for_each(|news| mail.put(news));
        }
        entry.taken
    }

    /// Makes this id get the events of the connection of `pair` from now on.
    pub(crate) fn set_pair(&mut self, number: CmId, pair: Qp) {
        let Some(entry) = self.ids.get_mut(&number) else {
            return;
        };
        if let Some(old) = entry.pair.replace(pair) {
            self.pairs.remove(&old);
        }
        // One pair has one follower: the last.
        if let Some(other) = self.pairs.insert(pair, number).filter(|other| *other != number)
            && let Some(other) = self.ids.get_mut(&other)
        {
            other.pair = None;
        }
    }

    /// The queue pair of an rdma_cm id.
    pub(crate) fn pair(&self, number: CmId) -> Option<Qp> {
        self.ids.get(&number)?.pair
    }

    /// Takes a queue pair away from the id that has it.
    pub(crate) fn clear_pair(&mut self, pair: Qp) {
        if let Some(entry) = self.pairs.remove(&pair).and_then(|number| self.ids.get_mut(&number)) {
            entry.pair = None;
        }
    }

    /// Sets the listener of an rdma_cm id.
    pub(crate) fn set_listener(&mut self, number: CmId, listener: u32) {
        if let Some(entry) = self.ids.get_mut(&number) {
            entry.listener = Some(listener);
        }
    }

    /// Clears the listener of an id that no longer listens.
    pub(crate) fn clear_listener(&mut self, number: CmId) {
        if let Some(entry) = self.ids.get_mut(&number) {
            entry.listener = None;
        }
    }

    /// Adds an event to the id of a queue pair whose connection has changed its state.
    pub(crate) fn connection_changed(&mut self, pair: Qp, link: &ConnectionState) {
        if matches!(link, ConnectionState::Idle | ConnectionState::Opening) {
            return;
        }
        if let Some(&number) = self.pairs.get(&pair) {
            self.put(number, CmEvent::Connection(link.clone()));
        }
    }

    /// Adds a connection request to the events of a listening id; returns false if `most` requests
    /// wait already.
    pub(crate) fn request(&mut self, number: CmId, most: usize, asked: PendingRequest) -> bool {
        match self.ids.get_mut(&number) {
            Some(entry) if entry.asked < most && self.channels.contains_key(&entry.channel) => {
                entry.asked += 1;
                self.put(number, CmEvent::Request(asked));
                true
            }
            _ => false,
        }
    }

    /// Appends an event to the waiting events of an id.
    pub(crate) fn put(&mut self, number: CmId, news: CmEvent) {
        let channel = self.ids.get(&number).map(|entry| entry.channel);
        if let Some(mail) = channel.and_then(|channel| self.channels.get_mut(&channel)) {
            mail.put((number, news));
        }
    }

    /// The queue pair whose connection has ended by the oldest event of a channel, if that event is
    /// such an end.
    pub(crate) fn disconnects_next(&self, channel: CmId) -> Option<Qp> {
        let (number, news) = self.channels.get(&channel)?.front()?;
        let ended = matches!(news, CmEvent::Connection(ConnectionState::Disconnected(_)));
        if ended { self.pair(*number) } else { None }
    }

    /// Takes the oldest event of an event channel, with the id's key.
    pub(crate) fn take(&mut self, channel: CmId) -> Option<(u64, CmEvent)> {
        let (number, news) = self.channels.get_mut(&channel)?.take()?;
        // Every waiting event belongs to an id that exists.
        let entry = self.ids.get_mut(&number)?;
        entry.taken += 1;
        entry.asked -= usize::from(requester(&news).is_some());
        Some((entry.key, news))
    }
}

/// The connection that waits for an answer, if the event is a connection request.
fn requester(news: &CmEvent) -> Option<Conn> {
    match news {
        CmEvent::Request(asked) => Some(asked.conn),
        CmEvent::Connection(_) | CmEvent::Own(_) => None,
    }
}

/// The state to report for a connection whose queue pair is destroyed; `None` if there is nothing
/// to report.
pub(super) fn state_without_pair(link: &ConnectionState) -> Option<ConnectionState> {
    match link {
        ConnectionState::Opening => Some(ConnectionState::Failed(StartupError::Cancelled)),
        ConnectionState::Connected { .. } => Some(ConnectionState::Disconnected(None)),
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

    fn asked(conn: u32) -> PendingRequest {
        let nobody = ([127, 0, 0, 1], 9).into();
        PendingRequest {
            conn: Conn(conn),
            peer: nobody,
            local: nobody,
            private_data: vec![],
            ird: None,
            ord: None,
        }
    }

    /// The program's own events that a channel returns, as pairs of key and first word.
    fn words(ids: &mut CmIds, channel: CmId) -> Vec<(u64, u64)> {
        let own = |news| match news {
            CmEvent::Own([word, _]) => word,
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(|| ids.take(channel)).map(|(key, news)| (key, own(news))).collect()
    }

    #[test]
    fn what_waits_of_a_party_goes_with_it_and_moves_with_it() {
        let (first, second) = (descriptor(), descriptor());
        let mut all = CmIds::default();
        let (one, two) =
            (all.open_channel(Arc::clone(&first)), all.open_channel(Arc::clone(&second)));
        let (a, b, c) = (all.create(one, 100), all.create(one, 200), all.create(one, 300));
        for (word, entry) in [a, b, c, a, b, c].into_iter().enumerate() {
            all.put(entry, CmEvent::Own([word as u64, 0]));
        }
        assert!(readable(&first) && !readable(&second));
        assert_eq!(all.destroy(b).taken, 0);
        assert_eq!(all.migrate(c, two), 0);
        assert!(readable(&second));
        assert_eq!(words(&mut all, one), [(100, 0), (100, 3)]);
        assert_eq!(words(&mut all, two), [(300, 2), (300, 5)]);
        assert!(!readable(&first) && !readable(&second));
        assert_eq!((all.destroy(a).taken, all.destroy(c).taken), (2, 2));
        all.put(a, CmEvent::Own([9, 0]));
        assert!(words(&mut all, one).is_empty());
    }

    #[test]
    fn a_pair_has_one_follower_and_only_moves_are_told() {
        let mut all = CmIds::default();
        let channel = all.open_channel(descriptor());
        let (a, b) = (all.create(channel, 1), all.create(channel, 2));
        all.set_pair(a, Qp(7));
        all.set_pair(b, Qp(7));
        assert_eq!((all.pair(a), all.pair(b)), (None, Some(Qp(7))));
        all.connection_changed(Qp(7), &ConnectionState::Opening);
        all.connection_changed(Qp(8), &ConnectionState::Disconnected(None));
        all.connection_changed(Qp(7), &ConnectionState::Disconnected(None));
        assert!(matches!(
            all.take(channel),
            Some((2, CmEvent::Connection(ConnectionState::Disconnected(None))))
        ));
        assert!(all.take(channel).is_none());
        all.clear_pair(Qp(7));
        all.connection_changed(Qp(7), &ConnectionState::Disconnected(None));
        assert!(all.take(channel).is_none());
        assert_eq!(all.destroy(b).pair, None);
    }

    #[test]
    fn so_many_ask_as_are_heard() {
        let mut all = CmIds::default();
        let channel = all.open_channel(descriptor());
        let entry = all.create(channel, 5);
        all.set_listener(entry, 3);
        assert!(all.request(entry, 2, asked(0)) && all.request(entry, 2, asked(1)));
        assert!(!all.request(entry, 2, asked(2)), "the backlog is 2");
        assert!(matches!(
            all.take(channel),
            Some((5, CmEvent::Request(PendingRequest { conn: Conn(0), .. })))
        ));
        assert!(all.request(entry, 2, asked(3)));
        let left = all.destroy(entry);
        assert_eq!((left.taken, left.listener, left.asked), (1, Some(3), vec![Conn(1), Conn(3)]));
        assert!(!all.request(entry, 2, asked(4)), "nobody listens");
        let entry = all.create(channel, 6);
        assert!(all.request(entry, 2, asked(5)));
        assert_eq!(all.close_channel(channel), [Conn(5)]);
        assert!(!all.request(entry, 2, asked(6)), "nobody hears");
    }
}
