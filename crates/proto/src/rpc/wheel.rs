//! A timing wheel that holds only what is in flight, lazily: an entry says "look at this one then"
//! and is never taken out before; its owner ignores one that he has since armed for another time.
//!
//! Four levels of 64 buckets, 65.5 µs · 64ⁿ wide: a far entry moves to a finer level when its
//! coarse bucket begins. Always: an entry fires once, at the first tick not before it is due. Not
//! here: what an entry stands for.

use alloc::vec::Vec;

use crate::Instant;

const TICK_BITS: u32 = 16;
const LEVELS: usize = 4;
const BUCKETS: usize = 64;

/// See the file.
#[derive(Debug)]
pub(super) struct Wheel {
    now_tick: u64,
    occupied: [u64; LEVELS],
    buckets: Vec<Vec<(Instant, u32)>>,
    moving: Vec<(Instant, u32)>,
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self {
            now_tick: 0,
            occupied: [0; LEVELS],
            buckets: (0..LEVELS * BUCKETS).map(|_| Vec::new()).collect(),
            moving: Vec::new(),
        }
    }

    /// Fires `(due, id)` at the first tick not before `due`.
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
    }

    /// When [`Wheel::advance`] has something to fire.
    pub(super) fn next(&self) -> Option<Instant> {
        let mut best: Option<u64> = None;
        for (level, &occupied) in self.occupied.iter().enumerate() {
            if occupied == 0 {
                continue;
            }
            let at = self.now_tick >> (6 * level);
            let ahead = occupied.rotate_right(((at + 1) % BUCKETS as u64) as u32).trailing_zeros();
            let tick = (at + 1 + u64::from(ahead)) << (6 * level);
            best = Some(best.map_or(tick, |b| b.min(tick)));
        }
        best.map(|tick| Instant::from_ns(tick << TICK_BITS))
    }

    /// Moves to `now` and appends to `fired` every entry that is due.
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
    }
}

#[cfg(test)]
mod tests {
    use super::Wheel;
    use crate::{Instant, Rng};
    use alloc::vec::Vec;

    /// Whatever the order and the distance, each entry fires once, not early and at most two ticks
    /// late.
    #[test]
    fn nothing_is_lost_early_or_late() {
        let mut rng = Rng::seeded(1);
        let mut wheel = Wheel::new();
        let mut due: Vec<u64> = (0..500).map(|i| rng.below(1 << (18 + i % 24))).collect();
        for (id, &ns) in due.iter().enumerate() {
            wheel.insert(Instant::from_ns(ns), id as u32);
        }
        let mut fired = Vec::new();
        while let Some(now) = wheel.next() {
            wheel.advance(now, &mut fired);
            assert!(wheel.next().is_none_or(|next| next > now));
            for (at, id) in fired.drain(..) {
                let ns = core::mem::replace(&mut due[id as usize], u64::MAX);
                assert_eq!(at.as_ns(), ns);
                assert!(now.as_ns() >= ns && now.as_ns() <= ns + (2 << 16));
            }
        }
        assert!(due.iter().all(|&ns| ns == u64::MAX));
    }
}
