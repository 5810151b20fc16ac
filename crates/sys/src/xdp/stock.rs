//! Chunks for arriving frames: which of them the kernel gets, and how many.
//!
//! ```text
//! idle ─ the last used one first ─► fill ring ─ in its order ─► rx ─► lent to the caller ─► idle
//! ```
//! The kernel takes chunks in the order in which they were given to it. If it has all, each frame comes to lie where nothing has
//! been for longest, in nobody's cache. So it has few of them, and more as soon as it uses them up faster than they come back.

/// What the kernel has at least: a message that somebody may send unasked is in no more frames of 1500 octets than half of it.
const FEW: u32 = 128;
/// What it has while nobody looks.
const ASLEEP: u32 = 512;
/// So many looks in a row that find nearly all that it was given, and it gets fewer again.
const CALM: u32 = 1024;

/// See the file.
#[derive(Debug)]
pub(super) struct Stock {
    idle: Vec<u64>,
    wanted: u32,
    most: u32,
    calm: u32,
}

impl Stock {
    /// All of `chunks`, idle.
    pub(super) fn new(chunks: impl Iterator<Item = u64>) -> Self {
        let idle: Vec<u64> = chunks.collect();
        let most = u32::try_from(idle.len()).unwrap_or(u32::MAX);
        Self { idle, wanted: FEW.min(most), most, calm: 0 }
    }

    /// Nobody needs `chunk` any more.
    #[inline]
    pub(super) fn put(&mut self, chunk: u64) {
        self.idle.push(chunk);
    }

    /// One for the kernel, the last that was used.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u64> {
        self.idle.pop()
    }

    /// How many more the kernel is to get, of which it has `left`.
    #[inline]
    pub(super) fn owed(&mut self, left: u32) -> u32 {
        if left < self.wanted / 2 {
            (self.wanted, self.calm) = ((2 * self.wanted).min(self.most), 0);
        } else if left < self.wanted - self.wanted / 4 {
            self.calm = 0;
        } else if self.wanted > FEW {
            self.calm += 1;
            if self.calm == CALM {
                (self.wanted, self.calm) = ((self.wanted / 2).max(FEW), 0);
            }
        }
        self.wanted.saturating_sub(left)
    }

    /// The same before a sleep, in which much may come before anybody looks.
    pub(super) fn owed_asleep(&self, left: u32) -> u32 {
        self.wanted.max(ASLEEP).min(self.most).saturating_sub(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel with `held` chunks.
    fn offer(stock: &mut Stock, held: &mut Vec<u64>, owed: u32) {
        held.extend((0..owed).map_while(|_| stock.take()));
    }

    #[test]
    fn one_frame_at_a_time_keeps_to_few_chunks() {
        let (mut stock, mut held) = (Stock::new(0..2048), Vec::new());
        let mut used = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            let owed = stock.owed(held.len() as u32);
            offer(&mut stock, &mut held, owed);
            assert!(held.len() as u32 >= FEW / 2, "there is room for what comes");
            let chunk = held.remove(0);
            used.insert(chunk);
            stock.put(chunk);
        }
        // All that it was ever given, and those that it got when it had not used any of them yet.
        assert!(used.len() as u32 <= 2 * FEW, "{} chunks", used.len());
    }

    #[test]
    fn who_uses_them_up_gets_all_and_gives_them_back_when_it_is_calm() {
        let (mut stock, mut held) = (Stock::new(0..2048), Vec::new());
        for _ in 0..8 {
            let owed = stock.owed(held.len() as u32);
            offer(&mut stock, &mut held, owed);
            for chunk in held.drain(..) {
                stock.put(chunk);
            }
        }
        let owed = stock.owed(0);
        offer(&mut stock, &mut held, owed);
        assert_eq!(held.len(), 2048);
        for _ in 0..5 * CALM {
            let left = held.len() as u32;
            let owed = stock.owed(left);
            offer(&mut stock, &mut held, owed);
            stock.put(held.remove(0));
        }
        assert!(held.len() as u32 <= FEW, "{} chunks", held.len());
    }

    #[test]
    fn no_more_is_owed_than_there_are() {
        let mut stock = Stock::new(0..16);
        assert_eq!(stock.owed_asleep(0), 16);
        assert_eq!(stock.owed(0), 16);
        assert_eq!(stock.owed(16), 0);
        assert_eq!((0..20).map_while(|_| stock.take()).count(), 16);
        let stock = Stock::new(0..2048);
        assert_eq!(stock.owed_asleep(100), ASLEEP - 100);
    }
}
