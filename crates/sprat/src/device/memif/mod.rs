//! The driver `memif`: Ethernet frames through memory shared with another process, in the format of
//! VPP and DPDK, so that DPDK's `net_memif` is a peer as well as another Sprat. It needs no root,
//! and no frame passes the kernel.
//!
//! ```text
//! server  listens on a Unix socket; a link for each client, all of them one device: a frame goes
//!         to the link from which its destination last sent, a group's frame to all
//! client  has one link; connects again when it ends
//! ```
//!
//! Always holds: a peer harms its own link alone, which then ends and is counted. An address stays
//! with the living link that used it first.
//!
//! Not here: the exchange that makes a link (`control`), and the contents of a ring (`ring`).

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use sprat_proto::Instant;
use sprat_proto::device::{
    Device, HEADER, Headers, Info, MAX_PARTS, Mac, Offload, RxOffload, Sent,
};
use sprat_proto::time::{MS, SECOND};

use super::Nic;
use super::burst::Burst;
use crate::driver::shm::connected::Connected;
use crate::driver::shm::{Call, Listener, connect_at};
use sprat_sys::clock::Clock;

mod control;
mod counts;
mod options;
mod ring;
#[cfg(test)]
mod tests;

use control::{Control, Progress, Rings, Wanted};
use counts::Counts;
pub use options::Options;
#[cfg(fuzzing)]
pub(crate) use ring::fuzz::run as fuzz_ring;
use ring::{Broken, Source};

/// The most links of a memif server.
const MOST_LINKS: usize = 64;
/// The most hardware addresses of peers that a memif remembers.
const MOST_ADDRESSES: usize = 4096;
/// Number of polls of the rings between two polls of the sockets, which cost a system call.
const POLLS: u32 = 512;
/// Number of polls of the rings between two polls of the sockets while a link is being made.
const POLLS_OPENING: u32 = 16;
/// Number of polls of the rings between two polls of the sockets once a link is made: a client that
/// connects or leaves can wait some tenths of a millisecond.
const POLLS_LINKED: u32 = 8 * POLLS;
/// The time that a client has for the whole exchange that makes its link, in nanoseconds.
const PATIENCE_NS: u64 = 2 * SECOND;
/// The time after which a client tries to connect again, in nanoseconds.
const AGAIN_NS: u64 = 100 * MS;
/// The number by which epoll reports the listening socket. Links have lower numbers.
const LISTENER: u64 = u64::MAX;
/// The bit that epoll reports with a link's number if the process of the link's peer has ended.
const ENDED: u64 = 1 << 63;

/// The side of a memif: server or client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The side that listens. It uses the memory of its clients.
    Server,
    /// The side that connects. It makes the memory.
    Client,
}

/// The link to one peer of a memif.
#[derive(Debug)]
struct Link {
    /// The number of the link. No other link ever gets it.
    number: u64,
    control: Control,
    rings: Option<Box<Rings>>,
    /// The time by which the exchange that makes the link must have ended.
    until: Instant,
}

impl Link {
    #[inline(always)]
    fn has_something(&self) -> bool {
        self.rings
            .as_ref()
            .is_some_and(|rings| rings.source.has_something() || !rings.more.is_empty())
    }
}

/// The links that a frame is forwarded to.
enum Forward {
    /// The device has no link: the frame is dropped.
    Drop,
    /// The frame goes to the link at this index.
    Link(usize),
    /// The frame goes to every link, because no link is known for its destination address.
    Flood,
}

/// A packet device that is a memif.
#[derive(Debug)]
pub struct Memif {
    options: Options,
    wanted: Wanted,
    info: Info,
    listener: Option<Listener>,
    epoll: OwnedFd,
    /// The links, in the order of their numbers, which only grow. Usually there is one.
    links: Vec<Link>,
    next: u64,
    /// The lowest number of the link at which the next burst begins.
    after: u64,
    /// The number of the link of each hardware address, if there are several links. The field
    /// `last` has the address that was seen last.
    addresses: BTreeMap<Mac, u64>,
    last: Option<(Mac, u64)>,
    burst: Burst,
    /// Number of polls of the rings until the sockets are polled.
    polls_left: u32,
    clock: Clock,
    again: Instant,
    counts: Counts,
    /// The reason for which the last link ended.
    reason: Option<String>,
}

impl Memif {
    /// Opens a memif. A server listens at once; a client connects, or tries again until a server
    /// listens.
    ///
    /// # Errors
    /// An option is impossible; the socket cannot be made; a server listens there already.
    pub fn open(options: Options) -> io::Result<Self> {
        let wanted = options.wanted()?;
        let mac = match options.mac {
            Some(mac) => mac,
            None => super::random_mac()?,
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let listener = match options.role {
            Role::Client => None,
            Role::Server => {
                let listener = Listener::bind_at(options.socket.clone())?;
                let data = epoll::EventData::new_u64(LISTENER);
                epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)?;
                Some(listener)
            }
        };
        let info = Info::without_offloads(mac, options.mtu);
        let (links, addresses) = (Vec::new(), BTreeMap::new());
        let burst = Burst::new(options.leaves);
        let (clock, counts) = (Clock::new(), Counts::default());
        let mut memif = Self {
            options,
            wanted,
            info,
            listener,
            epoll,
            links,
            next: 0,
            after: 0,
            addresses,
            last: None,
            burst,
            polls_left: POLLS,
            clock,
            again: Instant::ZERO,
            counts,
            reason: None,
        };
        memif.poll_sockets();
        Ok(memif)
    }

    /// Returns the number of peers that have a link.
    #[must_use]
    pub fn links(&self) -> usize {
        self.links.iter().filter(|l| l.rings.is_some()).count()
    }

    /// Returns the reason for which the last link ended. `None` if none has ended.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Polls the sockets: accepts and makes connections, handles the messages of peers, and ends
    /// links.
    #[cold]
    fn poll_sockets(&mut self) {
        let now = self.clock.now();
        self.connect(now);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = Vec::with_capacity(MOST_LINKS);
        // The only error is EINTR. The next poll finds the same events.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&none));
        let mut calls = false;
        for event in events {
            match event.data.u64() {
                LISTENER => calls = true,
                number if number & ENDED != 0 => self.process_ended(number & !ENDED),
                number => self.hear(number),
            }
        }
        let late = |l: &&Link| !l.control.is_done() && l.until <= now;
        let late: Vec<u64> = self.links.iter().filter(late).map(|l| l.number).collect();
        for number in late {
            self.end(number, "too slow");
        }
        // Last, since a peer that calls may need the place of one that was too slow.
        if calls {
            self.accept(now);
        }
        if !self.burst.holds() {
            self.give_back();
        }
        let done = self.links.iter().filter(|l| l.control.is_done()).count();
        self.polls_left = match self.links.len() {
            0 => POLLS,
            n if n == done => POLLS_LINKED,
            _ => POLLS_OPENING,
        };
    }

    /// Gives all slots that were taken back to the peers.
    fn give_back(&mut self) {
        for rings in self.links.iter_mut().filter_map(|l| l.rings.as_deref_mut()) {
            rings.sources().for_each(Source::give_back);
        }
    }

    /// Gives the peers the slots in which the burst left the ends of frames.
    #[cold]
    #[inline(never)]
    fn release(&mut self) {
        self.burst.release();
        self.give_back();
    }

    fn connect(&mut self, now: Instant) {
        if self.options.role == Role::Server || !self.links.is_empty() || now < self.again {
            return;
        }
        self.again = now.after(AGAIN_NS);
        match connect_at(&self.options.socket) {
            Ok(socket) => self.begin(now, Control::client(socket)),
            Err(e) => self.reason = Some(e.to_string()),
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..MOST_LINKS {
            let socket = match self.listener.as_mut().map_or(Call::None, Listener::take) {
                Call::Client(socket) => Some(socket),
                Call::TurnedAway => None,
                Call::None => return,
            };
            let ours = |c: &Connected| c.user().is_root() || c.user() == rustix::process::geteuid();
            let admitted = socket
                .and_then(|socket| Connected::new(socket).ok())
                .filter(|socket| ours(socket) && self.links.len() < MOST_LINKS)
                .and_then(|socket| Control::server(socket).ok());
            match admitted {
                Some(control) => self.begin(now, control),
                None => self.counts.links_refused += 1,
            }
        }
    }

    fn begin(&mut self, now: Instant, control: Control) {
        let number = self.next;
        self.next += 1;
        if control.socket().watch(&self.epoll, number, number | ENDED).is_ok() {
            let until = now.after(PATIENCE_NS);
            self.links.push(Link { number, control, rings: None, until });
        }
    }

    /// Returns the index of the link with this number. `None` if it has ended.
    fn place(&self, number: u64) -> Option<usize> {
        self.links.binary_search_by_key(&number, |l| l.number).ok()
    }

    /// Handles a few messages that the peer of this link has sent.
    fn hear(&mut self, number: u64) {
        for _ in 0..8 {
            let Some(place) = self.place(number) else { return };
            let link = &mut self.links[place];
            match link.control.turn(&self.wanted) {
                Progress::None => {}
                Progress::Linked(mut rings) => {
                    let data = epoll::EventData::new_u64(number);
                    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                    for source in rings.sources() {
                        if epoll::add(&self.epoll, source.interrupt(), data, flags).is_err() {
                            return self.end(number, "The interrupt cannot be waited for");
                        }
                    }
                    link.rings = Some(rings);
                    self.counts.links += 1;
                }
                Progress::Ended(why) => {
                    self.reason = Some(why);
                    return self.forget(number);
                }
            }
        }
    }

    /// Ends the link of a peer whose process has ended. It handles the peer's earlier messages
    /// first.
    fn process_ended(&mut self, number: u64) {
        self.hear(number);
        if self.place(number).is_some() {
            self.reason = Some("the peer has gone".to_owned());
            self.forget(number);
        }
    }

    /// Ends a link, and sends its peer the reason.
    fn end(&mut self, number: u64, why: &str) {
        if let Some(place) = self.place(number) {
            self.links[place].control.leave(why);
        }
        self.reason = Some(why.to_owned());
        self.forget(number);
    }

    fn forget(&mut self, number: u64) {
        if let Some(place) = self.place(number) {
            let mut link = self.links.remove(place);
            link.control.socket().unwatch(&self.epoll);
            for source in link.rings.iter_mut().flat_map(|rings| rings.sources()) {
                // The peer has this eventfd open too, so that closing it here would not remove it.
                let _ = epoll::delete(&self.epoll, source.interrupt());
            }
            self.counts.links_ended += 1;
            self.addresses.retain(|_, at| *at != number);
            self.last = None;
        }
    }

    #[cold]
    fn broken(&mut self, number: u64) {
        self.counts.links_broken += 1;
        self.end(number, "The ring is broken");
    }

    /// Receives frames of the link at index `place` into the burst.
    #[inline(always)]
    fn receive_from(&mut self, place: usize) {
        let before = self.burst.len();
        let link = &mut self.links[place];
        let number = link.number;
        let Some(rings) = &mut link.rings else { return };
        match rings.take(&mut self.burst) {
            Ok(bad) => self.counts.rx_bad += bad,
            Err(Broken) => self.broken(number),
        }
        // One peer needs no table.
        if self.options.role == Role::Server && self.links.len() > 1 {
            for i in before..self.burst.len() {
                self.learn(i, number);
            }
        }
    }

    /// Records that the source address of frame `i` of the burst is at the link that the frame came
    /// from.
    #[inline]
    fn learn(&mut self, i: usize, number: u64) {
        let source =
            self.burst.frame(i)[6..].first_chunk().map(|mac| Mac(*mac)).unwrap_or_default();
        if self.last != Some((source, number))
            && source.is_unicast()
            && self.addresses.len() < MOST_ADDRESSES
        {
            let at = *self.addresses.entry(source).or_insert(number);
            self.last = Some((source, at));
        }
    }

    /// Receives frames of several links. Each call begins at another link, so that all get their
    /// share.
    #[inline(never)]
    fn receive_in_turns(&mut self) {
        for _ in 0..self.links.len() {
            // A busy peer may keep a burst for itself: the next one begins behind it.
            let behind = self.links.partition_point(|l| l.number < self.after);
            let place = if behind < self.links.len() { behind } else { 0 };
            let Some(link) = self.links.get(place) else { break };
            self.after = link.number + 1;
            self.receive_from(place);
            if self.burst.is_full() {
                break;
            }
        }
    }

    /// Returns the links that a frame to `mac` goes to.
    #[inline(always)]
    fn lookup(&self, mac: Mac) -> Forward {
        if self.links.len() < 2 {
            return if self.links.is_empty() { Forward::Drop } else { Forward::Link(0) };
        }
        let number = match self.last {
            Some((last, number)) if last == mac => Some(number),
            _ => self.addresses.get(&mac).copied(),
        };
        number.and_then(|number| self.place(number)).map_or(Forward::Flood, Forward::Link)
    }

    /// Puts a frame into the rings of the link at index `place`. Returns `Some(false)` if they have
    /// no room, and `None` if the link has no rings.
    #[inline]
    fn put(&mut self, place: usize, parts: &[&[u8]], len: usize) -> Option<bool> {
        let link = &mut self.links[place];
        match link.rings.as_deref_mut()?.sink.put(parts, len) {
            Ok(done) => Some(done),
            Err(Broken) => {
                let number = link.number;
                self.broken(number);
                None
            }
        }
    }

    /// Sends a frame. If its link has no room, the frame is refused ([`Sent::Full`]) if it `waits`,
    /// else lost.
    fn send_parts(&mut self, parts: &[&[u8]], offload: Offload, waits: bool) -> Sent {
        let len = parts.iter().map(|p| p.len()).sum();
        if offload != Offload::None
            || parts.len() > MAX_PARTS
            || !(HEADER..=self.info.max_send).contains(&len)
        {
            self.counts.tx_invalid += 1;
            return Sent::Yes;
        }
        let mac =
            parts.first().and_then(|p| p.first_chunk()).map(|mac| Mac(*mac)).unwrap_or_default();
        match self.lookup(mac) {
            Forward::Drop => self.counts.tx_unconnected += 1,
            Forward::Flood => self.flood(parts, len),
            Forward::Link(place) => match self.put(place, parts, len) {
                Some(true) => {}
                Some(false) if waits => return Sent::Full,
                Some(false) => self.counts.tx_full += 1,
                None => self.counts.tx_unconnected += 1,
            },
        }
        Sent::Yes
    }

    /// Sends a frame of `headers` and `parts` that does not go to one buffer of one link.
    #[inline(never)]
    fn send_concatenated(&mut self, headers: &Headers, parts: &[&[u8]], offload: Offload) -> Sent {
        let octets = headers.to_bytes();
        let mut all = [&[][..]; MAX_PARTS];
        all[0] = &octets[..headers.len()];
        all[1..=parts.len()].copy_from_slice(parts);
        self.send_parts(&all[..=parts.len()], offload, true)
    }

    /// Puts a frame into the rings of all links, as a hub does. A link without room loses it.
    fn flood(&mut self, parts: &[&[u8]], len: usize) {
        // From the last one on: one that ends moves those behind it.
        for place in (0..self.links.len()).rev() {
            self.counts.tx_full += u64::from(self.put(place, parts, len) == Some(false));
        }
    }
}

impl Nic for Memif {
    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn arm(&mut self) -> bool {
        self.burst.release();
        self.burst.clear();
        self.links
            .iter_mut()
            .filter_map(|l| l.rings.as_deref_mut())
            .flat_map(Rings::sources)
            .all(Source::arm)
    }

    fn disarm(&mut self) {
        for source in
            self.links.iter_mut().filter_map(|l| l.rings.as_deref_mut()).flat_map(Rings::sources)
        {
            source.disarm();
        }
        self.poll_sockets();
    }

    fn carries(&mut self) -> bool {
        self.links() > 0
    }

    fn has_rx_timestamps(&self) -> bool {
        false
    }

    fn queues(&self) -> usize {
        1
    }
}

impl Device for Memif {
    #[inline]
    fn recv_burst(&mut self) -> usize {
        if self.burst.holds() {
            self.release();
        }
        self.burst.clear();
        match &self.links[..] {
            [link] if !link.has_something() => {}
            [_] => self.receive_from(0),
            _ => self.receive_in_turns(),
        }
        self.polls_left -= 1;
        if self.polls_left == 0 {
            self.poll_sockets();
        }
        self.burst.len()
    }

    #[inline(always)]
    fn frame(&self, i: usize) -> (&[u8], RxOffload) {
        // The bytes came through memory alone, which damages nothing; but the peer may have got
        // them from a wire.
        (self.burst.frame(i), self.burst.arrival(i))
    }

    fn append_left(&self, i: usize, range: Range<usize>, bytes: &mut Vec<u8>) {
        self.burst.append_left(i, range, bytes);
    }

    fn send(&mut self, parts: &[&[u8]], offload: Offload) -> Sent {
        // The stack's outbox comes this way, in which a frame that waits for one peer holds up
        // those to the others.
        self.send_parts(parts, offload, self.links.len() < 2)
    }

    #[inline]
    fn send_with_headers(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
        offload: Offload,
    ) -> Sent {
        let whole = headers.len() + len;
        if let Forward::Link(place) = self.lookup(headers.destination())
            && let Some(rings) = self.links[place].rings.as_deref_mut()
            && offload == Offload::None
            && (HEADER..=self.info.max_send).contains(&whole)
        {
            match rings.sink.put_behind(headers, parts) {
                Ok(Some(true)) => return Sent::Yes,
                Ok(Some(false)) => return Sent::Full,
                Ok(None) => {}
                Err(Broken) => {
                    self.broken(self.links[place].number);
                    self.counts.tx_unconnected += 1;
                    return Sent::Yes;
                }
            }
        }
        self.send_concatenated(headers, parts, offload)
    }

    #[inline]
    fn flush(&mut self) {
        for rings in self.links.iter_mut().filter_map(|l| l.rings.as_deref_mut()) {
            rings.sink.flush();
        }
    }

    fn info(&self) -> Info {
        self.info
    }

    fn rx_timestamp_ns(&self, _: usize) -> Option<u64> {
        None
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counts.counters(each);
    }
}
