//! Memory for segments that is touched before the log needs it.
//!
//! The kernel gives memory page by page as it is touched for the first time, and a virtual machine
//! takes still longer: a fresh segment of 8 MiB costs the thread that first writes to it
//! milliseconds. So the log orders the next block while it fills a segment, and the host touches it
//! elsewhere, in a thread of its own. It touches as much as the log asks for, step by step: a server
//! whose log grows no more has no whole segment in vain.
//!
//! Invariant: a log waits for at most one block, and orders none beyond its limit. A block that is
//! not ready in time is taken fresh, so that a late one may stay unused.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt::Debug;

/// The number of orders for the parts of a block.
const STEPS: usize = 8;

/// A host that prepares blocks of memory for a log.
pub trait Prepare: Debug + Send {
    /// Orders a block of `bytes` bytes of memory, of which the host touches the first `touched`. The
    /// next order is for more of the same block, until all of it is touched and ready.
    fn order(&mut self, bytes: usize, touched: usize);

    /// Returns an ordered block if one is ready. Its bytes have any values.
    fn ready(&mut self) -> Option<Vec<u8>>;
}

/// The block that a log has ordered.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    host: Option<Box<dyn Prepare>>,
    /// The bytes of the ordered block that the host is to touch, 0 without an order.
    ordered: usize,
}

impl Blocks {
    /// Lets `host` prepare blocks from now on.
    pub(super) fn prepare(&mut self, host: Box<dyn Prepare>) {
        (self.host, self.ordered) = (Some(host), 0);
    }

    /// Orders the next block of `bytes` bytes, as far as a segment of that size in which `written`
    /// bytes are written needs it: from a quarter on, and all of it when three are written. So the
    /// host has the time of the last quarter for the last part. A block of 8 MiB takes it 10 ms,
    /// and writes of small objects fill one in 30.
    pub(super) fn order(&mut self, bytes: usize, written: usize) {
        let Some(host) = &mut self.host else { return };
        let needed = (2 * written).saturating_sub(bytes / 2).min(bytes);
        if needed >= self.ordered + bytes / STEPS || needed == bytes && self.ordered < bytes {
            host.order(bytes, needed);
            self.ordered = needed;
        }
    }

    /// Returns a block of `bytes` bytes: the ordered one if it is ready.
    pub(super) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let ready = self.host.as_mut().and_then(|host| host.ready());
        if ready.is_some() {
            self.ordered = 0;
        }
        ready.filter(|block| block.len() == bytes).unwrap_or_else(|| vec![0; bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 64;

    /// A test's host, which prepares a block at once or never.
    #[derive(Debug)]
    struct Host {
        is_fast: bool,
        touched: usize,
    }

    impl Prepare for Host {
        fn order(&mut self, bytes: usize, touched: usize) {
            assert!(self.touched < touched && touched <= bytes, "each order is for more");
            self.touched = touched;
        }

        fn ready(&mut self) -> Option<Vec<u8>> {
            (self.is_fast && self.touched == BYTES).then(|| {
                self.touched = 0;
                vec![7; BYTES]
            })
        }
    }

    fn with_host(is_fast: bool) -> Blocks {
        let mut blocks = Blocks::default();
        blocks.prepare(Box::new(Host { is_fast, touched: 0 }));
        blocks
    }

    /// A block is touched in steps while a segment fills, and is ready for the next one.
    #[test]
    fn a_block_is_ordered_as_the_segment_before_it_fills() {
        let mut blocks = with_host(true);
        assert_eq!(blocks.take(BYTES), [0; BYTES]);
        let mut orders = Vec::new();
        for _ in 0..3 {
            for written in 0..=BYTES {
                blocks.order(BYTES, written);
                orders.push(blocks.ordered);
            }
            assert_eq!(blocks.take(BYTES), [7; BYTES]);
            assert_eq!((orders[16], orders[32], orders[47], orders[48]), (0, 32, 56, 64));
            orders.dedup();
            assert_eq!(orders.len(), 1 + STEPS);
            orders.clear();
        }
    }

    /// A late block is that of the next order, so that there is never a second one.
    #[test]
    fn a_block_that_is_late_is_taken_fresh() {
        let mut blocks = with_host(false);
        for _ in 0..10 {
            blocks.order(BYTES, BYTES / 2);
            assert_eq!(blocks.take(BYTES), [0; BYTES]);
            assert_eq!(blocks.ordered, BYTES / 2);
        }
        blocks.order(BYTES, BYTES);
        assert_eq!(blocks.ordered, BYTES);
    }
}
