//! A timing wheel for the timers of requests in progress. It is lazy: an entry is never taken out
//! before it fires, and its owner ignores an entry that it has meanwhile replaced by another.
//!
//! Four levels have 64 buckets each, 65.5 µs · 64ⁿ wide: a far entry moves to a finer level when
//! its coarse bucket begins.
//!
//! Always holds: an entry fires once, at the first tick not before it is due.
//!
//! Not here: the meaning of an entry's number.

use alloc::vec::Vec;

use crate::Instant;

const TICK_BITS: u32 = 16;
const LEVELS: usize = 4;
const BUCKETS: usize = 64;

/// A timing wheel of numbers with due times.
#[derive(Debug)]
pub(super) struct Wheel {
    now_tick: u64,
    occupied: [u64; LEVELS],
    buckets: Vec<Vec<(Instant, u32)>>,
    moving: Vec<(Instant, u32)>,
    /// The tick at which the timing wheel's first occupied bucket begins; [`u64::MAX`] if none is
    /// occupied.
    next_tick: u64,
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self {
            now_tick: 0,
            occupied: [0; LEVELS],
            buckets: (0..LEVELS * BUCKETS).map(|_| Vec::new()).collect(),
            moving: Vec::new(),
            next_tick: u64::MAX,
        }
    }

    /// Adds an entry to the timing wheel: `(due, id)` fires at the first tick not before `due`.
    pub(super) fn insert(&mut self, due: Instant, id: u32) {
        let tick = (due.as_ns() >> TICK_BITS).saturating_add(1).max(self.now_tick + 1);
        let (mut level, mut tick) = (0, tick);
        while tick - (self.now_tick >> (6 * level)) >= BUCKETS as u64 && level < LEVELS - 1 {
            tick >>= 6;
            level += 1;
        }
        let tick = tick.min((self.now_tick >> (6 * level)) + BUCKETS as u64 - 1);
        let bucket = (tick % BUCKETS as u64) as usize;
        self.occupied[level] |= 1 << bucket;
        self.buckets[level * BUCKETS + bucket].push((due, id));
        self.next_tick = self.next_tick.min(tick << (6 * level));
    }

    /// The time when the timing wheel has an entry to fire or to move.
    #[inline]
    pub(super) fn next(&self) -> Option<Instant> {
        (self.next_tick != u64::MAX).then(|| Instant::from_ns(self.next_tick << TICK_BITS))
    }

    /// The tick at which the timing wheel's first occupied bucket begins.
    fn first_tick(&self) -> u64 {
        let mut best = u64::MAX;
        for (level, &occupied) in self.occupied.iter().enumerate() {
            if occupied == 0 {
                continue;
            }
            let at = self.now_tick >> (6 * level);
            let ahead = occupied.rotate_right(((at + 1) % BUCKETS as u64) as u32).trailing_zeros();
            best = best.min((at + 1 + u64::from(ahead)) << (6 * level));
        }
        best
    }

    /// Moves the timing wheel to `now` and appends every entry that is due to `fired`.
    pub(super) fn advance(&mut self, now: Instant, fired: &mut Vec<(Instant, u32)>) {
        let tick = now.as_ns() >> TICK_BITS;
        if tick <= self.now_tick {
            return;
        }
        for level in 0..LEVELS {
            let (from, to) = (self.now_tick >> (6 * level), tick >> (6 * level));
            let passed = (to - from).min(BUCKETS as u64);
            for step in 1..=passed {
                let bucket = ((from + step) % BUCKETS as u64) as usize;
                if self.occupied[level] & 1 << bucket != 0 {
                    self.occupied[level] &= !(1 << bucket);
                    self.moving.append(&mut self.buckets[level * BUCKETS + bucket]);
                }
            }
        }
        self.now_tick = tick;
        while let Some((due, id)) = self.moving.pop() {
            if due <= now {
                fired.push((due, id));
            } else {
                self.insert(due, id);
            }
        }
        self.next_tick = self.first_tick();
    }
}

#[cfg(test)]
mod tests {
    use super::Wheel;
    use crate::{Instant, Rng};
    use alloc::vec::Vec;

    /// A timing wheel fires each entry once, not early and at most two ticks late, whatever the
    /// order and the distance of the entries.
    #[test]
    fn nothing_is_lost_early_or_late() {
        let mut rng = Rng::seeded(1);
        let mut wheel = Wheel::new();
        let mut due: Vec<u64> = (0..500).map(|i| rng.below(1 << (18 + i % 24))).collect();
        for (id, &ns) in due.iter().enumerate() {
            wheel.insert(Instant::from_ns(ns), id as u32);
            assert_eq!(wheel.next_tick, wheel.first_tick());
        }
        let mut fired = Vec::new();
        while let Some(now) = wheel.next() {
            wheel.advance(now, &mut fired);
            assert!(wheel.next().is_none_or(|next| next > now));
            assert_eq!(wheel.next_tick, wheel.first_tick());
            for (at, id) in fired.drain(..) {
                let ns = core::mem::replace(&mut due[id as usize], u64::MAX);
                assert_eq!(at.as_ns(), ns);
                assert!(now.as_ns() >= ns && now.as_ns() <= ns + (2 << 16));
            }
        }
        assert!(due.iter().all(|&ns| ns == u64::MAX));
    }
}
