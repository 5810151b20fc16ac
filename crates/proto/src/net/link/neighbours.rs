//! The neighbour cache (RFC 4861 section 5.1): MAC addresses of hosts on the link, for ARP and IPv6
//! neighbour discovery alike.
//!
//! ```text
//!          lookup                     reply            reachable_ns           lookup
//!   (none) ──────► Incomplete ─────────────► Reachable ───────────► Stale ───────────► Probe
//!           multicast    ▲                       ▲                          unicast    │  │
//!           solicitation │                       └────────────── reply ────────────────┘  │
//!                        └────────── no reply to MAX_UNICAST solicitations ───────────────┘
//! ```
//!
//! Always: the cache learns an address only from a reply to its own solicitation, or from a
//! solicitation of an unknown host. A known address changes only after its owner was solicited and
//! did not answer, so forged packets do not redirect traffic. The number of entries and the bytes
//! of waiting frames are limited; the entry that has been unresolved for longest is evicted first.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::Instant;
use crate::device::Mac;
use crate::net::counters::StackCounters;
use crate::net::options::StackOptions;

/// The number of broadcast or multicast solicitations before a neighbour counts as failed. Their
/// interval doubles, so that the rate stays near the one per second of RFC 1122 section 2.3.2.1.
const MAX_MULTICAST: u8 = 6;
/// The number of unicast solicitations before the cache gives up a known MAC address
/// (MAX_UNICAST_SOLICIT in RFC 4861 section 10).
const MAX_UNICAST: u8 = 3;
/// The most frames that wait for the address of one neighbour: a burst of a transport that starts.
const MAX_WAITING: usize = 64;
/// The factor by which the interval of unicast solicitations of a neighbour is longer while no
/// packet disputes its known address.
const UNDISPUTED: u64 = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Incomplete,
    Reachable,
    Stale,
    Probe,
    /// The caller set the neighbour's MAC address: the stack never solicits it.
    Permanent,
}

#[derive(Debug)]
struct Entry {
    state: State,
    mac: Mac,
    /// The time of the neighbour's next change. Incomplete, Probe: the time of the next
    /// solicitation. Reachable: the time at which the entry becomes stale.
    due: Instant,
    /// The time between the last solicitation of the neighbour and the next, in the states
    /// Incomplete and Probe, in nanoseconds.
    interval_ns: u64,
    /// The number of solicitations of the neighbour sent in its present state.
    tries: u8,
    last_used: Instant,
    waiting: Vec<Vec<u8>>,
}

impl Entry {
    /// Enters the neighbour's state Probe, for which the caller sends the first solicitation.
    const fn start_probe(&mut self, now: Instant, interval_ns: u64) {
        (self.state, self.due, self.tries, self.interval_ns) =
            (State::Probe, now.after(interval_ns), 1, interval_ns);
    }
}

/// A solicitation of a neighbour that the stack has to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Solicitation {
    /// The IP address of the neighbour to resolve.
    pub(super) target: IpAddr,
    /// The MAC address that the solicitation goes to; none for broadcast or multicast.
    pub(super) to: Option<Mac>,
}

/// The neighbour cache of an IP stack.
#[derive(Debug)]
pub(in crate::net) struct NeighbourCache {
    entries: BTreeMap<IpAddr, Entry>,
    max_entries: usize,
    retransmit_ns: u64,
    reachable_ns: u64,
    waiting_bytes: usize,
    max_waiting_bytes: usize,
    solicitations: VecDeque<Solicitation>,
    /// The frames whose neighbour has been resolved, and which wait to be sent.
    resolved: VecDeque<Vec<u8>>,
    /// The time before which no entry of the neighbour cache is due.
    next_due: Instant,
    generation: u32,
}

impl NeighbourCache {
    pub(super) fn new(options: &StackOptions) -> Self {
        Self {
            entries: BTreeMap::new(),
            max_entries: options.max_neighbours.max(1),
            retransmit_ns: options.retransmit_ns,
            reachable_ns: options.reachable_ns,
            waiting_bytes: 0,
            max_waiting_bytes: options.max_unresolved_bytes,
            solicitations: VecDeque::new(),
            resolved: VecDeque::new(),
            next_due: Instant::NEVER,
            generation: 0,
        }
    }

    /// Returns the neighbour cache's generation, a number that changes when a result of `lookup`
    /// becomes invalid before its time.
    #[inline]
    pub(in crate::net) const fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the MAC address of a neighbour and the time until which the caller may use it
    /// without another lookup. If the address is unknown, the cache starts to solicit it.
    pub(in crate::net) fn lookup(
        &mut self,
        now: Instant,
        addr: IpAddr,
        counters: &mut StackCounters,
    ) -> Option<(Mac, Instant)> {
        let Some(entry) = self.entries.get_mut(&addr) else {
            self.insert(now, addr, State::Incomplete, Mac::default(), counters);
            self.solicitations.push_back(Solicitation { target: addr, to: None });
            counters.neighbours_solicited += 1;
            return None;
        };
        entry.last_used = now;
        match entry.state {
            State::Incomplete => None,
            State::Permanent => Some((entry.mac, Instant::NEVER)),
            State::Reachable if now < entry.due => Some((entry.mac, entry.due)),
            State::Probe => Some((entry.mac, entry.due)),
            State::Reachable | State::Stale => {
                entry.start_probe(now, self.retransmit_ns.saturating_mul(UNDISPUTED));
                self.next_due = self.next_due.min(entry.due);
                let to = Some(entry.mac);
                self.solicitations.push_back(Solicitation { target: addr, to });
                Some((entry.mac, entry.due))
            }
        }
    }

    /// Inserts an entry into the neighbour cache, and evicts another if the cache is full.
    fn insert(
        &mut self,
        now: Instant,
        addr: IpAddr,
        state: State,
        mac: Mac,
        counters: &mut StackCounters,
    ) {
        if self.entries.len() >= self.max_entries {
            self.evict(counters);
        }
        let interval_ns = self.retransmit_ns;
        let due = if state == State::Incomplete { now.after(interval_ns) } else { Instant::NEVER };
        self.next_due = self.next_due.min(due);
        let (tries, last_used, waiting) = (1, now, Vec::new());
        self.entries
            .insert(addr, Entry { state, mac, due, interval_ns, tries, last_used, waiting });
    }

    /// Removes the entry of the neighbour cache that is worth least, and drops the frames that wait
    /// for it.
    fn evict(&mut self, counters: &mut StackCounters) {
        let worth = |e: &Entry| match e.state {
            State::Incomplete => 0,
            State::Stale => 1,
            State::Reachable | State::Probe => 2,
            State::Permanent => 3,
        };
        let least = self.entries.iter().min_by_key(|(_, e)| (worth(e), e.last_used));
        let Some(addr) = least.map(|(addr, _)| *addr) else { return };
        let Some(entry) = self.entries.remove(&addr) else { return };
        self.generation = self.generation.wrapping_add(1);
        self.waiting_bytes -= entry.waiting.iter().map(Vec::len).sum::<usize>();
        counters.drop_unresolved += entry.waiting.len() as u64;
    }

    /// Sets the MAC address of a neighbour permanently, so that the stack never solicits it.
    pub(in crate::net) fn set_permanent(
        &mut self,
        now: Instant,
        addr: IpAddr,
        mac: Mac,
        counters: &mut StackCounters,
    ) {
        if !self.entries.contains_key(&addr) {
            self.insert(now, addr, State::Permanent, mac, counters);
        }
        self.resolve(addr, State::Permanent, mac, Instant::NEVER);
    }

    /// Keeps a frame until a neighbour just looked up is resolved. The frame's destination MAC
    /// address is not filled in.
    pub(in crate::net) fn wait(
        &mut self,
        addr: IpAddr,
        frame: Vec<u8>,
        counters: &mut StackCounters,
    ) {
        let room = self.max_waiting_bytes - self.waiting_bytes;
        let entry = self.entries.get_mut(&addr);
        let Some(entry) = entry.filter(|e| e.waiting.len() < MAX_WAITING && frame.len() <= room)
        else {
            counters.drop_unresolved += 1;
            return;
        };
        self.waiting_bytes += frame.len();
        entry.waiting.push(frame);
    }

    /// Stores the MAC address of a neighbour and releases the frames that wait for it.
    fn resolve(&mut self, addr: IpAddr, state: State, mac: Mac, due: Instant) {
        let Some(entry) = self.entries.get_mut(&addr) else { return };
        if entry.mac != mac {
            self.generation = self.generation.wrapping_add(1);
        }
        (entry.state, entry.mac, entry.due, entry.tries) = (state, mac, due, 0);
        self.next_due = self.next_due.min(due);
        for mut frame in entry.waiting.drain(..) {
            self.waiting_bytes -= frame.len();
            if let Some(to) = frame.first_chunk_mut() {
                *to = mac.0;
            }
            self.resolved.push_back(frame);
        }
    }

    /// Handles a neighbour's reply: `addr` is at `mac`. A reply to a unicast solicitation may omit
    /// the MAC address.
    pub(super) fn reply_received(
        &mut self,
        now: Instant,
        addr: IpAddr,
        mac: Option<Mac>,
        counters: &mut StackCounters,
    ) {
        let reachable_until = now.after(self.reachable_ns);
        let Some(entry) = self.entries.get_mut(&addr) else {
            counters.drop_unsolicited += 1;
            return;
        };
        match (entry.state, mac) {
            (State::Incomplete, Some(mac)) => {
                counters.neighbours_resolved += 1;
                self.resolve(addr, State::Reachable, mac, reachable_until);
            }
            (State::Probe, same) if same.is_none_or(|mac| mac == entry.mac) => {
                let mac = entry.mac;
                self.resolve(addr, State::Reachable, mac, reachable_until);
            }
            (State::Incomplete, None) => counters.drop_neighbour += 1,
            (State::Reachable | State::Stale | State::Probe | State::Permanent, mac) => {
                self.claim_received(now, addr, mac, counters);
            }
        }
    }

    /// Handles a neighbour's request for an own address: its sender `addr` claims to be at `mac`.
    pub(super) fn request_received(
        &mut self,
        now: Instant,
        addr: IpAddr,
        mac: Mac,
        counters: &mut StackCounters,
    ) {
        match self.entries.get(&addr).map(|e| e.state) {
            // The sender probably expects packets, so it gets an entry if none must be evicted.
            None if self.entries.len() < self.max_entries => {
                self.insert(now, addr, State::Stale, mac, counters);
            }
            None => {}
            Some(State::Incomplete) => self.resolve(addr, State::Stale, mac, Instant::NEVER),
            Some(_) => self.claim_received(now, addr, Some(mac), counters),
        }
    }

    /// Handles an unsolicited claim that `addr` is at `mac`. If the neighbour is known with another
    /// MAC address, the cache solicits it there.
    pub(super) fn claim_received(
        &mut self,
        now: Instant,
        addr: IpAddr,
        mac: Option<Mac>,
        counters: &mut StackCounters,
    ) {
        let Some(entry) = self.entries.get_mut(&addr) else { return };
        if entry.state == State::Incomplete || mac.is_none_or(|mac| mac == entry.mac) {
            return;
        }
        counters.neighbours_disputed += 1;
        if matches!(entry.state, State::Reachable | State::Stale) {
            entry.start_probe(now, self.retransmit_ns);
            self.next_due = self.next_due.min(entry.due);
            let to = Some(entry.mac);
            self.solicitations.push_back(Solicitation { target: addr, to });
        }
    }

    /// Returns the number of entries of the neighbour cache.
    #[cfg(test)]
    pub(in crate::net) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes the next solicitation of a neighbour to send.
    pub(super) fn next_solicitation(&mut self) -> Option<Solicitation> {
        self.solicitations.pop_front()
    }

    /// Takes the next frame whose neighbour has been resolved.
    pub(super) fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.resolved.pop_front()
    }

    /// Returns true if `next_solicitation` or `next_frame` has something to send.
    #[inline]
    pub(super) fn has_output(&self) -> bool {
        !self.solicitations.is_empty() || !self.resolved.is_empty()
    }

    /// Returns the time at which the next timer of the neighbour cache expires, when to call
    /// `tick`.
    pub(in crate::net) const fn deadline(&self) -> Instant {
        self.next_due
    }

    /// Handles expired timers of the neighbour cache: solicits neighbours again, or gives them up.
    pub(in crate::net) fn tick(&mut self, now: Instant, counters: &mut StackCounters) {
        if now < self.next_due {
            return;
        }
        self.next_due = Instant::NEVER;
        let mut failed = Vec::new();
        for (&addr, entry) in &mut self.entries {
            if now >= entry.due {
                match entry.state {
                    State::Reachable => (entry.state, entry.due) = (State::Stale, Instant::NEVER),
                    State::Incomplete if entry.tries >= MAX_MULTICAST => {
                        failed.push(addr);
                        continue;
                    }
                    State::Probe if entry.tries >= MAX_UNICAST => {
                        self.generation = self.generation.wrapping_add(1);
                        (entry.state, entry.tries, entry.interval_ns) =
                            (State::Incomplete, 0, self.retransmit_ns);
                    }
                    _ => {}
                }
                if matches!(entry.state, State::Incomplete | State::Probe) {
                    let to = (entry.state == State::Probe).then_some(entry.mac);
                    counters.neighbours_solicited += u64::from(to.is_none());
                    self.solicitations.push_back(Solicitation { target: addr, to });
                    if entry.state == State::Incomplete && entry.tries > 0 {
                        entry.interval_ns = entry.interval_ns.saturating_mul(2);
                    }
                    entry.due = now.after(entry.interval_ns);
                    entry.tries += 1;
                }
            }
            self.next_due = self.next_due.min(entry.due);
        }
        for addr in failed {
            let Some(entry) = self.entries.remove(&addr) else { continue };
            counters.neighbours_failed += 1;
            counters.drop_unreachable += entry.waiting.len() as u64;
            self.waiting_bytes -= entry.waiting.iter().map(Vec::len).sum::<usize>();
        }
    }
}
