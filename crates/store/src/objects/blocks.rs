//! Memory for segments that is touched before the log needs it.
//!
//! The kernel gives memory page by page as it is touched for the first time, and a virtual machine
//! takes still longer: a fresh segment of 8 MiB costs the thread that first writes to it
//! milliseconds. So the log orders the next blocks when it takes one, and the host touches them
//! elsewhere, in a thread of its own.
//!
//! Invariant: a log waits for at most [`AHEAD`] blocks, and orders none beyond its limit. A block
//! that is not ready in time is taken fresh, so that up to [`AHEAD`] late ones may stay unused.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;

/// The maximum of blocks that a log orders ahead. One is ready after 10 ms, and writes of small
/// objects fill it in 30.
const AHEAD: u32 = 1;

/// A host that prepares blocks of memory for a log.
pub trait Prepare: Debug + Send {
    /// Orders a block of this many bytes of memory, all of which the host touches.
    fn order(&mut self, bytes: usize);

    /// Returns an ordered block if one is ready. Its bytes have any values.
    fn ready(&mut self) -> Option<Vec<u8>>;
}

/// The blocks that a log has ordered.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    host: Option<Box<dyn Prepare>>,
    ordered: u32,
}

impl Blocks {
    /// Lets `host` prepare blocks from now on.
    pub(super) fn prepare(&mut self, host: Box<dyn Prepare>) {
        (self.host, self.ordered) = (Some(host), 0);
    }

    /// Returns a block of `bytes` bytes, and orders the next ones: at most `later` will be taken.
    pub(super) fn take(&mut self, bytes: usize, later: u32) -> Vec<u8> {
        let Some(host) = &mut self.host else { return vec![0; bytes] };
        let ready = host.ready();
        self.ordered -= u32::from(ready.is_some());
        while self.ordered < later.min(AHEAD) {
            host.order(bytes);
            self.ordered += 1;
        }
        ready.filter(|block| block.len() == bytes).unwrap_or_else(|| vec![0; bytes])
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    /// A test's host, which prepares blocks at once or never.
    #[derive(Debug)]
    struct Host {
        is_fast: bool,
        blocks: VecDeque<Vec<u8>>,
        left: u32,
    }

    impl Prepare for Host {
        fn order(&mut self, bytes: usize) {
            self.left = self.left.checked_sub(1).expect("no more orders than blocks");
            self.blocks.push_back(vec![7; bytes]);
        }

        fn ready(&mut self) -> Option<Vec<u8>> {
            self.is_fast.then(|| self.blocks.pop_front()).flatten()
        }
    }

    /// All blocks but the first are prepared before the log takes them, and none that it will not
    /// take.
    #[test]
    fn blocks_are_ordered_ahead_and_none_in_vain() {
        let mut blocks = Blocks::default();
        blocks.prepare(Box::new(Host { is_fast: true, blocks: VecDeque::new(), left: 9 }));
        let taken: Vec<_> = (0..10).map(|n| blocks.take(64, 9 - n)).collect();
        assert_eq!(taken[0], [0; 64]);
        assert!(taken[1..].iter().all(|block| block == &[7; 64]));
        assert_eq!((blocks.ordered, blocks.take(64, 0)), (0, vec![0; 64]));
    }

    #[test]
    fn a_block_that_is_late_is_taken_fresh() {
        let mut blocks = Blocks::default();
        blocks.prepare(Box::new(Host { is_fast: false, blocks: VecDeque::new(), left: AHEAD }));
        for n in 0..10 {
            assert_eq!(blocks.take(64, 9 - n), [0; 64]);
            assert_eq!(blocks.ordered, AHEAD);
        }
    }
}
