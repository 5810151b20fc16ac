//! Memory that idle connections have given back, for those that need some next. The memory that was
//! given back last is in the cache, and an allocator reads more than it returns.

use alloc::vec::Vec;

/// The most pieces of memory that are kept.
const MOST: usize = 64;

/// A few pieces of memory of one kind.
#[derive(Debug)]
pub(super) struct Kept<T>(Vec<T>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Kept<T> {
    pub(super) fn take(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Keeps a piece, or frees it if there are enough.
    pub(super) fn give(&mut self, piece: T) {
        if self.0.len() < MOST {
            self.0.push(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_piece_comes_first_and_few_are_kept() {
        let mut kept = Kept::default();
        (0..2 * MOST).for_each(|piece| kept.give(piece));
        assert!((0..MOST).rev().all(|piece| kept.take() == Some(piece)));
        assert_eq!(kept.take(), None);
    }
}
