//! Who is on the link: hardware addresses by IP address, for ARP and neighbour discovery alike, which ask and answer in
//! different words.
//!
//! ```text
//!            wanted                answered                 fresh_ns passed              wanted again
//!   (none) ─────────► Asking ───────────────────► Fresh ──────────────────► Stale ────────────────────► Checking
//!             everyone is asked   ◄── no answer to three ─────────────────────────── he alone is asked ──┘ │
//!                                                    └───────────────── answered ◄─────────────────────────┘
//! ```
//!
//! Always: an address is taken only from an answer to a question of ours, or from a question to us about whose sender nothing is
//! known; one that is known changes only after its owner was asked and kept silent (so that neither false answers nor floods of
//! them move traffic); entries and what waits for them are limited. The oldest unanswered gives way first.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;

use super::Stats;
use crate::Instant;
use crate::device::Mac;

/// Questions to all without an answer after which a neighbour is given up: with their waits doubled about one a second, as
/// RFC 1122 section 2.3.2.1 wants it.
const ASKED: u8 = 6;
/// Questions to himself without an answer after which a neighbour is thought to have moved.
const CHECKED: u8 = 3;
/// Frames that wait for one neighbour: a burst of a transport that begins.
const WAITING: usize = 64;
/// How much longer a neighbour has to answer when nothing is said against him: if he moved, he shall not be missed for long.
const UNDISPUTED: u64 = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Asking,
    Fresh,
    Stale,
    Checking,
    /// Told by the caller: never asked.
    Fixed,
}

#[derive(Debug)]
struct Entry {
    state: State,
    mac: Mac,
    /// Asking, Checking: when the next question goes out. Fresh: when it becomes Stale.
    due: Instant,
    /// Asking, Checking: how long the last question waits for its answer.
    wait_ns: u64,
    tries: u8,
    /// The last time somebody wanted it.
    wanted: Instant,
    waiting: Vec<Vec<u8>>,
}

impl Entry {
    /// It is asked whether it is still there.
    const fn check(&mut self, now: Instant, wait_ns: u64) {
        (self.state, self.due, self.tries, self.wait_ns) =
            (State::Checking, now.after(wait_ns), 1, wait_ns);
    }
}

/// A question to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ask {
    /// About whom.
    pub(super) addr: IpAddr,
    /// To whom; everyone if there is none.
    pub(super) to: Option<Mac>,
}

/// See the file.
#[derive(Debug)]
pub(super) struct Neighbours {
    entries: BTreeMap<IpAddr, Entry>,
    limit: usize,
    retry_ns: u64,
    fresh_ns: u64,
    waiting_bytes: usize,
    waiting_limit: usize,
    asks: VecDeque<Ask>,
    /// Frames whose neighbour has been found.
    ready: VecDeque<Vec<u8>>,
    /// When the first entry wants something.
    next: Instant,
    /// Grows whenever a known address changes or is lost.
    epoch: u32,
}

impl Neighbours {
    pub(super) fn new(config: &super::Config) -> Self {
        Self {
            entries: BTreeMap::new(),
            limit: config.neighbours.max(1),
            retry_ns: config.retry_ns,
            fresh_ns: config.fresh_ns,
            waiting_bytes: 0,
            waiting_limit: config.waiting_bytes,
            asks: VecDeque::new(),
            ready: VecDeque::new(),
            next: Instant::NEVER,
            epoch: 0,
        }
    }

    /// Grows whenever something that `find` said is no longer true before its time.
    #[inline]
    pub(super) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The hardware address of a neighbour and until when it may be used without asking here again; if it is not known, he is
    /// asked for.
    pub(super) fn find(
        &mut self,
        now: Instant,
        addr: IpAddr,
        stats: &mut Stats,
    ) -> Option<(Mac, Instant)> {
        if !self.entries.contains_key(&addr) {
            self.insert(now, addr, State::Asking, Mac::default(), stats);
            self.asks.push_back(Ask { addr, to: None });
            stats.neighbours_asked += 1;
            return None;
        }
        let entry = self.entries.get_mut(&addr)?;
        entry.wanted = now;
        match entry.state {
            State::Asking => None,
            State::Fixed => Some((entry.mac, Instant::NEVER)),
            State::Fresh if now < entry.due => Some((entry.mac, entry.due)),
            State::Checking => Some((entry.mac, entry.due)),
            State::Fresh | State::Stale => {
                entry.check(now, self.retry_ns.saturating_mul(UNDISPUTED));
                self.next = self.next.min(entry.due);
                self.asks.push_back(Ask { addr, to: Some(entry.mac) });
                Some((entry.mac, entry.due))
            }
        }
    }

    fn insert(&mut self, now: Instant, addr: IpAddr, state: State, mac: Mac, stats: &mut Stats) {
        if self.entries.len() >= self.limit {
            let rank = |e: &Entry| match e.state {
                State::Asking => 0,
                State::Stale => 1,
                State::Fresh | State::Checking => 2,
                State::Fixed => 3,
            };
            let oldest =
                self.entries.iter().min_by_key(|(_, e)| (rank(e), e.wanted)).map(|(addr, _)| *addr);
            if let Some(entry) = oldest.and_then(|addr| self.entries.remove(&addr)) {
                self.epoch = self.epoch.wrapping_add(1);
                self.waiting_bytes -= entry.waiting.iter().map(Vec::len).sum::<usize>();
                stats.drop_waiting += entry.waiting.len() as u64;
            }
        }
        let due = if state == State::Asking { now.after(self.retry_ns) } else { Instant::NEVER };
        self.next = self.next.min(due);
        let wait_ns = self.retry_ns;
        let entry = Entry { state, mac, due, wait_ns, tries: 1, wanted: now, waiting: Vec::new() };
        self.entries.insert(addr, entry);
    }

    /// The caller says where a neighbour is: he is never asked.
    pub(super) fn fix(&mut self, now: Instant, addr: IpAddr, mac: Mac, stats: &mut Stats) {
        if !self.entries.contains_key(&addr) {
            self.insert(now, addr, State::Fixed, mac, stats);
        }
        self.settle(addr, State::Fixed, mac, Instant::NEVER);
    }

    /// Keeps a frame until the neighbour, who was just asked for, answers.
    pub(super) fn wait(&mut self, addr: IpAddr, frame: Vec<u8>, stats: &mut Stats) {
        let room = self.waiting_limit - self.waiting_bytes;
        let entry = self.entries.get_mut(&addr);
        let Some(entry) = entry.filter(|e| e.waiting.len() < WAITING && frame.len() <= room) else {
            stats.drop_waiting += 1;
            return;
        };
        self.waiting_bytes += frame.len();
        entry.waiting.push(frame);
    }

    /// The neighbour is known now: what waited for him may go.
    fn settle(&mut self, addr: IpAddr, state: State, mac: Mac, due: Instant) {
        let Some(entry) = self.entries.get_mut(&addr) else { return };
        if entry.mac != mac {
            self.epoch = self.epoch.wrapping_add(1);
        }
        (entry.state, entry.mac, entry.due, entry.tries) = (state, mac, due, 0);
        self.next = self.next.min(due);
        for mut frame in entry.waiting.drain(..) {
            self.waiting_bytes -= frame.len();
            if let Some(to) = frame.first_chunk_mut() {
                *to = mac.0;
            }
            self.ready.push_back(frame);
        }
    }

    /// `addr` says that its hardware address is `mac`, or, in an answer to one question, leaves that out.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        addr: IpAddr,
        mac: Option<Mac>,
        stats: &mut Stats,
    ) {
        let fresh_until = now.after(self.fresh_ns);
        let Some(entry) = self.entries.get_mut(&addr) else {
            stats.drop_unsolicited += 1;
            return;
        };
        match (entry.state, mac) {
            (State::Asking, Some(mac)) => {
                stats.neighbours_found += 1;
                self.settle(addr, State::Fresh, mac, fresh_until);
            }
            (State::Checking, same) if same.is_none_or(|mac| mac == entry.mac) => {
                let mac = entry.mac;
                self.settle(addr, State::Fresh, mac, fresh_until);
            }
            (State::Asking, None) => stats.drop_neighbour += 1,
            (State::Fresh | State::Stale | State::Checking | State::Fixed, mac) => {
                self.disputed(now, addr, mac, stats);
            }
        }
    }

    /// `addr` asked us, and says that its hardware address is `mac`.
    pub(super) fn asked_us(&mut self, now: Instant, addr: IpAddr, mac: Mac, stats: &mut Stats) {
        match self.entries.get(&addr).map(|e| e.state) {
            // He will want an answer: it is worth an entry, if that drives out nobody.
            None if self.entries.len() < self.limit => {
                self.insert(now, addr, State::Stale, mac, stats);
            }
            None => {}
            Some(State::Asking) => self.settle(addr, State::Stale, mac, Instant::NEVER),
            Some(_) => self.disputed(now, addr, Some(mac), stats),
        }
    }

    /// An unasked claim about a known neighbour: if it is another one than before, he is asked whether he is still there.
    pub(super) fn disputed(
        &mut self,
        now: Instant,
        addr: IpAddr,
        mac: Option<Mac>,
        stats: &mut Stats,
    ) {
        let Some(entry) = self.entries.get_mut(&addr) else { return };
        if entry.state == State::Asking || mac.is_none_or(|mac| mac == entry.mac) {
            return;
        }
        stats.neighbours_disputed += 1;
        if matches!(entry.state, State::Fresh | State::Stale) {
            entry.check(now, self.retry_ns);
            self.next = self.next.min(entry.due);
            self.asks.push_back(Ask { addr, to: Some(entry.mac) });
        }
    }

    /// How many are known or asked for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A question to be sent; call until `None`.
    pub(super) fn ask(&mut self) -> Option<Ask> {
        self.asks.pop_front()
    }

    /// A frame that has its neighbour's address now; call until `None`.
    pub(super) fn ready(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    /// True if `ask` and `ready` have nothing.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.asks.is_empty() && self.ready.is_empty()
    }

    /// When `tick` wants to be called.
    pub(super) const fn deadline(&self) -> Instant {
        self.next
    }

    /// It is `now`: unanswered questions are asked again, and given up in the end.
    pub(super) fn tick(&mut self, now: Instant, stats: &mut Stats) {
        if now < self.next {
            return;
        }
        self.next = Instant::NEVER;
        let mut lost = Vec::new();
        for (&addr, entry) in &mut self.entries {
            if now >= entry.due {
                match entry.state {
                    State::Fresh => (entry.state, entry.due) = (State::Stale, Instant::NEVER),
                    State::Asking if entry.tries >= ASKED => {
                        lost.push(addr);
                        continue;
                    }
                    State::Checking if entry.tries >= CHECKED => {
                        self.epoch = self.epoch.wrapping_add(1);
                        (entry.state, entry.tries, entry.wait_ns) =
                            (State::Asking, 0, self.retry_ns);
                    }
                    _ => {}
                }
                if matches!(entry.state, State::Asking | State::Checking) {
                    let to = (entry.state == State::Checking).then_some(entry.mac);
                    stats.neighbours_asked += u64::from(to.is_none());
                    self.asks.push_back(Ask { addr, to });
                    // Each further question to all waits twice as long.
                    if entry.state == State::Asking && entry.tries > 0 {
                        entry.wait_ns = entry.wait_ns.saturating_mul(2);
                    }
                    entry.due = now.after(entry.wait_ns);
                    entry.tries += 1;
                }
            }
            self.next = self.next.min(entry.due);
        }
        for addr in lost {
            let Some(entry) = self.entries.remove(&addr) else { continue };
            stats.neighbours_lost += 1;
            stats.drop_unreachable += entry.waiting.len() as u64;
            self.waiting_bytes -= entry.waiting.iter().map(Vec::len).sum::<usize>();
        }
    }
}
