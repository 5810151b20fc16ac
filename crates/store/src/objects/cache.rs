//! Reads that bring memory into the processor's cache before it is needed.
//!
//! A processor has a dozen cache misses in progress at once, if the instructions between them are
//! few: it looks ahead by some hundred. So code that will need much memory reads it in a short loop
//! first. The reads have no other effect.

use core::hint::black_box;

/// The number of bytes of a line of the cache.
const LINE: usize = 64;

/// Reads all cache lines of `bytes`.
#[inline]
pub fn load(bytes: &[u8]) {
    // The compiler must not drop the reads.
    black_box(bytes.iter().step_by(LINE).fold(0, |read, byte| read ^ byte));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_length_are_loaded() {
        for len in [0, 1, LINE, LINE + 1, 10 * LINE] {
            load(&alloc::vec![1; len]);
        }
    }
}
