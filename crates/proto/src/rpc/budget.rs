//! Room for messages of which a part has arrived: one [`Budget`] for all connections that a
//! transport accepted, so that stalled senders neither take all memory nor keep others out.
//!
//! ```text
//!  take ─► has room ── brought … ──► give, leave
//!    │        └─ 5 s without a byte, or slow while another message waits for 1 s ─► late
//!    └───► waits, and its connection is not read ── room ─► granted
//! ```
//! The caller ends a connection that is late. A message takes room for its whole length before more
//! of it than [`EXEMPT_BYTES`] bytes are kept. So every message that has room can be finished, and
//! no two wait for each other. The shortest message that waits gets room first, and every 16th time
//! the oldest; long messages leave a fifth of the room to the others.
//!
//! Always holds: the room taken is no more than the limit, unless one message alone is longer.
//!
//! Not here: the memory, and the connections, of which the budget knows numbers.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::limits::MAX_MESSAGE;
use crate::Instant;
use crate::time::{MS, SECOND};
use waiting::{Waiter, Waiting};

mod waiting;

/// Messages up to this length need no room. With the most connections (65,536) these come to 256
/// MiB.
pub const EXEMPT_BYTES: usize = 4 << 10;
/// The room of one transport: four messages of the greatest length, and a fifth for the store's
/// values.
pub const BUDGET_BYTES: usize = 5 * MAX_MESSAGE;
/// Messages above this length are long: the store has no values that are longer.
const LONG: usize = (1 << 20) + EXEMPT_BYTES;
/// One in this many grants goes to the oldest message instead of the shortest.
const OLDEST_EVERY: u32 = 16;
/// A message of which no byte comes for this long is given up, as the datagram transport does.
const SILENT_NS: u64 = 5 * SECOND;
/// The time that a message waits for room before slow connections are ended to make some.
const WAIT_NS: u64 = SECOND;
/// The interval of progress checks while a message waits for room.
const CHECK_NS: u64 = 100 * MS;
/// The interval of progress checks of connections while no message waits for room.
const IDLE_CHECK_NS: u64 = SECOND;
/// A message that brings fewer bytes than this between two checks is slow: about 1 MiB a second.
const MIN_PROGRESS_BYTES: usize = 100 << 10;

/// A connection whose message has room.
#[derive(Debug)]
struct Holder {
    room: usize,
    since: Instant,
    brought_at: Instant,
    /// The bytes of the message that arrived since the last progress check.
    brought: usize,
}

/// The room for messages of which a part has arrived, and the connections that have or want room.
#[derive(Debug)]
pub struct Budget {
    most: usize,
    taken: usize,
    holders: BTreeMap<u32, Holder>,
    waiting: Waiting<usize>,
    granted: BTreeSet<u32>,
    /// The number of grants to connections that waited.
    grants: u32,
    late: BTreeSet<u32>,
    checked_at: Instant,
    check_at: Instant,
}

impl Budget {
    /// Makes a budget of room for `most` bytes of incomplete messages.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            most,
            taken: 0,
            holders: BTreeMap::new(),
            waiting: Waiting::new(),
            granted: BTreeSet::new(),
            grants: 0,
            late: BTreeSet::new(),
            checked_at: Instant::ZERO,
            check_at: Instant::NEVER,
        }
    }

    /// Takes room for `len` more bytes of a message on the connection `name`. Returns false if
    /// there is no room; then the connection waits until [`Budget::granted`] names it. A connection
    /// waits for one message at a time.
    pub fn take(&mut self, now: Instant, name: u32, len: usize) -> bool {
        let is_shortest = self.waiting.shortest().is_none_or(|waiter| waiter.len > len);
        if self.fits(len) && is_shortest {
            self.hold(now, name, len);
            return true;
        }
        self.waiting.push(name, len, now);
        self.check_at = self.check_at.min(now.after(CHECK_NS));
        false
    }

    /// Records that `bytes` bytes of a message arrived on the connection `name`, which has room.
    pub fn brought(&mut self, now: Instant, name: u32, bytes: usize) {
        if let Some(holder) = self.holders.get_mut(&name) {
            holder.brought_at = now;
            holder.brought = holder.brought.saturating_add(bytes);
        }
    }

    /// Returns room for `len` bytes, which the connection `name` had taken, to the budget.
    pub fn give(&mut self, now: Instant, name: u32, len: usize) {
        let Some(holder) = self.holders.get_mut(&name) else { return };
        let len = len.min(holder.room);
        holder.room -= len;
        if holder.room == 0 {
            self.holders.remove(&name);
        }
        self.taken -= len;
        self.grant(now);
    }

    /// Returns all room of the connection `name` to the budget; the connection waits for none any
    /// more.
    pub fn leave(&mut self, now: Instant, name: u32) {
        if let Some(holder) = self.holders.remove(&name) {
            self.taken -= holder.room;
        }
        self.granted.remove(&name);
        self.late.remove(&name);
        self.waiting.remove(name);
        self.grant(now);
    }

    /// The next connection that waited for room and has it now. Call until `None` after
    /// [`Budget::give`] and [`Budget::leave`].
    pub fn granted(&mut self) -> Option<u32> {
        self.granted.pop_first()
    }

    /// The next connection that the caller must end, since its message stalls, or is the slowest
    /// while others wait for room; [`Budget::leave`] must follow. Call until `None` after
    /// [`Budget::tick`].
    pub fn late(&mut self) -> Option<u32> {
        self.late.pop_first()
    }

    /// True while a message waits for room in memory. Callers then read little at a time.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The number of connections that have room for a message or wait for some.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.holders.len() + self.waiting.len()
    }

    /// The time when [`Budget::tick`] is due.
    #[must_use]
    pub const fn deadline(&self) -> Instant {
        self.check_at
    }

    /// Checks the progress of all connections that have room, if a progress check is due.
    pub fn tick(&mut self, now: Instant) {
        if now < self.check_at {
            return;
        }
        let silent = |holder: &Holder| now.since(holder.brought_at) >= SILENT_NS;
        self.late = self
            .holders
            .iter()
            .filter(|(_, holder)| silent(holder))
            .map(|(name, _)| *name)
            .collect();
        let is_impatient = |waiter: &&Waiter| now.since(waiter.since) >= WAIT_NS;
        let impatient = self.waiting.by_age().take_while(is_impatient).count();
        let mut slow: Vec<(usize, u32)> = self
            .holders
            .iter()
            // A connection that got its room after the last check is not judged yet.
            .filter(|(_, holder)| {
                holder.since <= self.checked_at
                    && holder.brought < MIN_PROGRESS_BYTES
                    && !silent(holder)
            })
            .map(|(name, holder)| (holder.brought, *name))
            .collect();
        slow.sort_unstable();
        self.late.extend(
            slow.iter().take(impatient.saturating_sub(self.late.len())).map(|(_, name)| *name),
        );
        for holder in self.holders.values_mut() {
            holder.brought = 0;
        }
        self.checked_at = now;
        self.check_at = match (self.waiting.is_empty(), self.holders.is_empty()) {
            (false, _) => now.after(CHECK_NS),
            (true, false) => now.after(IDLE_CHECK_NS),
            (true, true) => Instant::NEVER,
        };
    }

    fn fits(&self, len: usize) -> bool {
        let most = if len > LONG { self.most / 5 * 4 } else { self.most };
        self.taken == 0 || self.taken.saturating_add(len) <= most
    }

    fn hold(&mut self, now: Instant, name: u32, len: usize) {
        self.taken += len;
        let fresh = Holder { room: 0, since: now, brought_at: now, brought: 0 };
        let holder = self.holders.entry(name).or_insert(fresh);
        holder.room += len;
        holder.brought_at = now;
        self.check_at = self.check_at.min(now.after(IDLE_CHECK_NS));
    }

    /// Grants room to waiting connections, as far as there is room for their messages.
    fn grant(&mut self, now: Instant) {
        while let Some(Waiter { name, len, .. }) = self.next()
            && self.fits(len)
        {
            self.waiting.remove(name);
            self.grants = self.grants.wrapping_add(1);
            self.hold(now, name, len);
            self.granted.insert(name);
        }
    }

    /// The connection that gets room next.
    fn next(&self) -> Option<Waiter> {
        if self.grants % OLDEST_EVERY == OLDEST_EVERY - 1 {
            return self.waiting.by_age().next().copied();
        }
        self.waiting.shortest().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(1).after(ms * MS)
    }

    fn late(budget: &mut Budget, now: Instant) -> Vec<u32> {
        budget.tick(now);
        core::iter::from_fn(|| budget.late()).collect()
    }

    fn granted(budget: &mut Budget) -> Vec<u32> {
        core::iter::from_fn(|| budget.granted()).collect()
    }

    #[test]
    fn room_is_for_whole_messages_and_the_shortest_gets_it_first() {
        let mut budget = Budget::new(100);
        assert!(budget.take(at(0), 1, 60) && budget.take(at(0), 2, 40) && !budget.has_waiting());
        assert!(
            !budget.take(at(0), 3, 50) && !budget.take(at(0), 4, 20) && !budget.take(at(0), 6, 20)
        );
        budget.give(at(1), 1, 20);
        assert_eq!(granted(&mut budget), [4]);
        budget.leave(at(1), 2);
        assert_eq!(granted(&mut budget), [6], "80 and 50 are too many");
        assert!(budget.take(at(1), 7, 20), "a shorter one passes one that waits");
        assert!(!budget.take(at(1), 8, 60) && !budget.take(at(1), 9, 50));
        budget.give(at(2), 1, 40);
        budget.leave(at(2), 7);
        assert_eq!(granted(&mut budget), [3], "of equal ones the oldest");
        for name in [8, 9] {
            budget.leave(at(2), name);
        }
        assert!(!budget.has_waiting());
        for name in [1, 3, 4, 6, 99] {
            budget.leave(at(3), name);
        }
        assert!(budget.take(at(3), 5, 1000), "one alone may be longer");
        assert!(!budget.take(at(3), 6, 1) && !budget.take(at(3), 7, 1));
        budget.leave(at(3), 6);
        budget.leave(at(3), 7);
        assert_eq!(
            (granted(&mut budget), budget.has_waiting()),
            (Vec::new(), false),
            "it waits no more"
        );
        budget.leave(at(3), 5);
        assert_eq!(late(&mut budget, at(9000)), []);
        assert_eq!((budget.taken, budget.deadline()), (0, Instant::NEVER));
    }

    #[test]
    fn a_message_without_progress_for_five_seconds_is_late() {
        let mut budget = Budget::new(100);
        assert!(budget.take(at(0), 1, 50) && budget.take(at(0), 2, 50));
        for ms in (0..4000).step_by(1000) {
            budget.brought(at(ms), 2, 1);
            let due = budget.deadline();
            assert_eq!(late(&mut budget, due), [], "after {ms} ms");
        }
        assert_eq!(late(&mut budget, at(5000)), [1], "the other one is slow, and no message waits");
        budget.leave(at(5000), 1);
        assert_eq!(late(&mut budget, at(7999)), []);
    }

    #[test]
    fn the_slowest_makes_room_for_one_that_has_waited_for_a_second() {
        let mut budget = Budget::new(BUDGET_BYTES);
        (1..=4).for_each(|name| assert!(budget.take(at(0), name, MAX_MESSAGE)));
        assert!(!budget.take(at(0), 9, MAX_MESSAGE));
        for ms in (50..1000).step_by(100) {
            // One is fast, two are slow, and one of them the slowest but the one that stands still.
            for (name, bytes) in [(1, 2 * MIN_PROGRESS_BYTES), (2, 10), (3, 20)] {
                budget.brought(at(ms), name, bytes);
            }
            assert_eq!(late(&mut budget, at(ms)), [], "after {ms} ms");
        }
        for (name, bytes) in [(1, 2 * MIN_PROGRESS_BYTES), (2, 10), (3, 20)] {
            budget.brought(at(1050), name, bytes);
        }
        assert_eq!(late(&mut budget, at(1050)), [4]);
        budget.leave(at(1050), 4);
        assert_eq!(granted(&mut budget), [9]);
        assert_eq!(late(&mut budget, at(2100)), [], "no message waits");
    }

    #[test]
    fn long_messages_leave_room_to_short_ones_and_the_oldest_is_not_forgotten() {
        let mut budget = Budget::new(BUDGET_BYTES);
        (1..=4).for_each(|name| assert!(budget.take(at(0), name, MAX_MESSAGE)));
        assert!(!budget.take(at(0), 5, MAX_MESSAGE));
        (6..22).for_each(|name| {
            assert!(budget.take(at(0), name, 1 << 20), "{name}: values of the store")
        });
        assert!(!budget.take(at(0), 22, 1 << 20));
        // Short ones come without end: each that leaves has a successor.
        for name in 23..100 {
            assert!(!budget.take(at(1), name, 1 << 20));
            budget.leave(at(1), name - 17);
            let next = granted(&mut budget);
            if next.is_empty() {
                assert!(
                    name <= 23 + OLDEST_EVERY,
                    "the oldest one's turn has come, and it waits for room"
                );
                budget.leave(at(1), 1);
                return;
            }
            assert_eq!(next, [name - 1]);
        }
        panic!("the long one starves");
    }

    /// 80 connections that stall with one byte of a message missing took 1.3 GB of memory, and kept
    /// an honest message out for ever.
    #[test]
    fn eighty_stalled_senders_keep_an_honest_one_out_for_seconds_only() {
        let mut budget = Budget::new(BUDGET_BYTES);
        let mut reading: Vec<u32> =
            (0..80).filter(|&name| budget.take(at(0), name, MAX_MESSAGE)).collect();
        assert_eq!(reading.len(), 4);
        assert!(!budget.take(at(0), 80, MAX_MESSAGE));
        let mut ended = 0;
        for ms in 1..10_000 {
            // Each brings all but a byte in the moment in which it is read.
            for name in reading.drain(..) {
                budget.brought(at(ms), name, MAX_MESSAGE - 1);
            }
            for name in late(&mut budget, at(ms)) {
                ended += 1;
                budget.leave(at(ms), name);
            }
            reading = granted(&mut budget);
            if reading.contains(&80) {
                assert!(ended <= 80 && ms < 6_000, "{ended} ended, {ms} ms");
                return;
            }
        }
        panic!("the honest message never got room; {ended} ended");
    }
}
