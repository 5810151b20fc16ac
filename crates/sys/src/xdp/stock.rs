//! Chunks for arriving frames: which of them the kernel gets, and how many.
//!
//! ```text
//! idle ─ the last used one first ─► fill ring ─ in its order ─► rx ring ─► lent ─► idle
//! ```
//! The kernel takes chunks in the order of the fill ring. If it had all chunks, each frame would
//! lie in the chunk that was used longest ago, which no cache holds. So the kernel gets few chunks,
//! and more as soon as it uses them up faster than they come back.

/// The fewest chunks for arriving frames that the kernel has. A message sent without a request is
/// in at most half as many frames of 1500 bytes.
const FEW: u32 = 128;
/// Number of chunks for arriving frames that the kernel has while this side sleeps.
const ASLEEP: u32 = 512;
/// Number of consecutive polls that find nearly all chunks unused, after which the kernel gets
/// fewer chunks.
const CALM: u32 = 1024;

/// The idle chunks for arriving frames, and the number of chunks that the kernel is to have.
#[derive(Debug)]
pub(super) struct Stock {
    idle: Vec<u64>,
    wanted: u32,
    most: u32,
    calm: u32,
}

impl Stock {
    /// Makes a stock of `chunks`, all of them idle.
    pub(super) fn new(chunks: impl Iterator<Item = u64>) -> Self {
        let idle: Vec<u64> = chunks.collect();
        let most = u32::try_from(idle.len()).unwrap_or(u32::MAX);
        Self { idle, wanted: FEW.min(most), most, calm: 0 }
    }

    /// Adds an idle chunk to the stock.
    #[inline]
    pub(super) fn put(&mut self, chunk: u64) {
        self.idle.push(chunk);
    }

    /// Removes the chunk that was used last from the stock.
    #[inline]
    pub(super) fn take(&mut self) -> Option<u64> {
        self.idle.pop()
    }

    /// Returns the number of chunks to give the kernel, which has `left` chunks already.
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

    /// Returns the number of chunks to give the kernel before this side sleeps, if the kernel has
    /// `left` already.
    pub(super) fn owed_asleep(&self, left: u32) -> u32 {
        self.wanted.max(ASLEEP).min(self.most).saturating_sub(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a kernel that has `held` chunks `owed` more from the stock.
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
            assert!(held.len() as u32 >= FEW / 2, "there is room for arriving frames");
            let chunk = held.remove(0);
            used.insert(chunk);
            stock.put(chunk);
        }
        // The chunks that it was given at the start, and those that it was given before it used
        // any.
        assert!(used.len() as u32 <= 2 * FEW, "{} chunks", used.len());
    }

    #[test]
    fn a_burst_gets_all_chunks_and_a_calm_time_takes_them_back() {
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
