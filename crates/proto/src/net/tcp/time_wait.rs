//! The connections in TIME-WAIT that their programs have released, in little memory each (RFC 9293
//! 3.6, RFC 6191, RFC 1337).
//!
//! Always: there are not more than a limit, and the one that ends first makes room.
//! A reset does not end TIME-WAIT early (RFC 1337 3).

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::hash::BuildHasher as _;

use super::connection::Remains;
use super::flow::TcpFlow;
use super::input::Segment;
use super::seq::Seq;
use crate::net::ip::fields::IpFields;
use crate::rand::KeyedHash;
use crate::time::{MS, SECOND};
use crate::wire::tcp::{Flags, Tcp, TcpOptions};
use crate::{Instant, Rng};

/// The time in which a connection answers once to segments that it did not expect, so that two ends
/// do not answer each other for ever.
const QUIET_NS: u64 = 500 * MS;
/// The time after which the timestamps of a new connection are surely greater than those of the one
/// before.
const LATER_NS: u64 = SECOND;

/// A connection in TIME-WAIT.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    flow: TcpFlow,
    remains: Remains,
    since: Instant,
    until: Instant,
    quiet_until: Instant,
}

/// The effect of a segment for a connection in TIME-WAIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The segment is dropped.
    Nothing,
    /// An acknowledgement answers to the segment, in an IP packet with the connection's fields.
    Acknowledge(Tcp, IpFields),
    /// The segment is a SYN that may begin a new connection. The initial sequence number of this
    /// end has to be greater than the last one.
    Reopen { last: u32 },
}

/// The connections of a host in TIME-WAIT.
#[derive(Debug)]
pub(super) struct TimeWaits {
    waiting: Vec<Waiting>,
    /// The places in `waiting` that are free.
    free: Vec<u32>,
    by_flow: hashbrown::HashTable<u32>,
    by_end: BTreeSet<(Instant, u32)>,
    hash: KeyedHash,
    most: usize,
}

impl TimeWaits {
    /// Returns a memory of at most `most` connections.
    pub(super) fn new(most: usize, rng: &mut Rng) -> Self {
        Self {
            waiting: Vec::new(),
            free: Vec::new(),
            by_flow: hashbrown::HashTable::new(),
            by_end: BTreeSet::new(),
            hash: KeyedHash::new(rng),
            most,
        }
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.by_end.len()
    }

    /// Returns true if a connection is in TIME-WAIT.
    pub(super) fn contains(&self, flow: &TcpFlow) -> bool {
        self.find(flow).is_some()
    }

    /// Remembers a connection until then. Returns false if another one had to make room, or there
    /// is none at all.
    pub(super) fn insert(
        &mut self,
        now: Instant,
        until: Instant,
        flow: TcpFlow,
        remains: Remains,
    ) -> bool {
        self.remove(&flow);
        let is_full = self.len() >= self.most;
        let oldest = self.by_end.first().filter(|_| is_full).copied();
        if let Some((_, index)) = oldest {
            self.take(index);
        }
        if self.most == 0 {
            return false;
        }
        let waiting = Waiting { flow, remains, since: now, until, quiet_until: Instant::ZERO };
        let index = self.free.pop().unwrap_or(self.waiting.len() as u32);
        match self.waiting.get_mut(index as usize) {
            Some(place) => *place = waiting,
            None => self.waiting.push(waiting),
        }
        self.by_end.insert((until, index));
        let (all, hash) = (&self.waiting, &self.hash);
        let rehash = |index: &u32| hash.hash_one(all[*index as usize].flow);
        self.by_flow.insert_unique(hash.hash_one(flow), index, rehash);
        !is_full
    }

    /// Forgets a connection. Returns the number behind the last that this end has sent.
    pub(super) fn remove(&mut self, flow: &TcpFlow) -> Option<u32> {
        let index = self.find(flow)?;
        self.take(index);
        Some(self.waiting[index as usize].remains.next.0)
    }

    /// Returns true if a new connection from this end may take the place of one in TIME-WAIT,
    /// because the timestamps tell their segments apart (RFC 6191).
    pub(super) fn may_reuse(&self, now: Instant, flow: &TcpFlow) -> bool {
        self.find(flow).is_some_and(|index| {
            let waiting = &self.waiting[index as usize];
            waiting.remains.recent.is_some() && now.since(waiting.since) >= LATER_NS
        })
    }

    /// Returns the time at which to call [`TimeWaits::tick`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.by_end.first().map(|(until, _)| *until)
    }

    /// Forgets the connections whose time is over.
    pub(super) fn tick(&mut self, now: Instant) {
        while let Some((_, index)) = self.by_end.first().filter(|first| first.0 <= now).copied() {
            self.take(index);
        }
    }

    /// Takes a segment, if its connection is in TIME-WAIT (RFC 9293 3.10.7.4). `until` is the new
    /// end of TIME-WAIT after a FIN. `clock` is this end's timestamp. `offers_timestamps` is true
    /// if a new connection would have timestamps.
    pub(super) fn input(
        &mut self,
        (now, until): (Instant, Instant),
        flow: &TcpFlow,
        segment: &Segment<'_>,
        clock: u32,
        offers_timestamps: bool,
    ) -> Option<Verdict> {
        let index = self.find(flow)?;
        let waiting = &mut self.waiting[index as usize];
        let (tcp, flags) = (&segment.tcp, segment.tcp.flags);
        let remains = &mut waiting.remains;
        if flags.has(Flags::RST) {
            return Some(Verdict::Nothing);
        }
        let time = tcp.options.timestamps.map(|(value, _)| value);
        if flags.has(Flags::SYN) && !flags.has(Flags::ACK.with(Flags::FIN)) {
            let time = time.filter(|_| offers_timestamps);
            if remains.may_reopen(Seq(tcp.seq), time) {
                return Some(Verdict::Reopen { last: remains.next.0 });
            }
        }
        let is_old = |recent: u32| time.is_none_or(|time| (time.wrapping_sub(recent) as i32) < 0);
        let is_old = remains.recent.is_some_and(is_old);
        let is_plain = segment.len() == 0 && Seq(tcp.seq) == remains.expected;
        if is_plain && !is_old {
            return Some(Verdict::Nothing);
        }
        let end = Seq(tcp.seq) + segment.len();
        let is_fin = flags.has(Flags::FIN) && end == remains.expected && !is_old;
        if !is_fin && now < waiting.quiet_until {
            return Some(Verdict::Nothing);
        }
        waiting.quiet_until = now.after(QUIET_NS);
        if is_fin {
            remains.recent = time.filter(|_| remains.recent.is_some());
        }
        let answer = waiting.acknowledgement(clock);
        if is_fin {
            // The peer has not got the last acknowledgement.
            self.by_end.remove(&(waiting.until, index));
            self.by_end.insert((until, index));
            waiting.until = until;
        }
        Some(Verdict::Acknowledge(answer, waiting.remains.fields))
    }

    fn find(&self, flow: &TcpFlow) -> Option<u32> {
        if self.by_flow.is_empty() {
            return None;
        }
        let is_it = |index: &u32| self.waiting[*index as usize].flow == *flow;
        self.by_flow.find(self.hash.hash_one(flow), is_it).copied()
    }

    fn take(&mut self, index: u32) {
        let Waiting { flow, until, .. } = self.waiting[index as usize];
        self.by_end.remove(&(until, index));
        let hash = self.hash.hash_one(flow);
        if let Ok(found) = self.by_flow.find_entry(hash, |other| *other == index) {
            found.remove();
        }
        self.free.push(index);
    }
}

impl Remains {
    /// Returns true if a SYN with this number and time may begin a new connection (RFC 6191 2).
    fn may_reopen(&self, seq: Seq, time: Option<u32>) -> bool {
        let is_beyond = seq.reaches(self.expected);
        match (self.recent, time) {
            (Some(recent), Some(time)) => {
                let ahead = time.wrapping_sub(recent) as i32;
                ahead > 0 || ahead == 0 && is_beyond
            }
            (None, Some(_)) => true,
            (_, None) => is_beyond,
        }
    }
}

impl Waiting {
    fn acknowledgement(&self, clock: u32) -> Tcp {
        let Remains { next, expected, window, recent, .. } = self.remains;
        let timestamps = recent.map(|recent| (clock, recent));
        Tcp {
            from: self.flow.local.port(),
            to: self.flow.peer.port(),
            seq: next.0,
            ack: expected.0,
            flags: Flags::ACK,
            window,
            urgent: 0,
            options: TcpOptions { timestamps, ..TcpOptions::default() },
        }
    }
}
