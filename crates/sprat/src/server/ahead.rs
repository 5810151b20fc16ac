//! The thread that allocates the memory of a server's next segments and touches its pages.
//!
//! ```text
//! worker ── order: bytes ──► thread: allocates, touches every page ── block ──► worker
//! ```
//!
//! The thread starts with the first order, sleeps between orders, and ends when the server does.
//! Without the thread, segments are touched by the worker.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use sprat_store::objects::blocks::Prepare;

/// The number of bytes that the thread touches before it yields the processor. If the worker has
/// the same core, this bounds the time for which the thread delays it.
const PIECE: usize = 64 << 10;
/// The smallest size of a page on any machine, in bytes.
const PAGE: usize = 4 << 10;

/// The worker's end of the thread that prepares segments.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    thread: Option<(Sender<usize>, Receiver<Vec<u8>>)>,
}

impl Prepare for Ahead {
    fn order(&mut self, bytes: usize) {
        if self.thread.is_none() {
            let (orders, ordered) = channel();
            let (blocks, ready) = channel();
            let work = move || {
                ordered.iter().map(touched).try_for_each(|block| blocks.send(block)).unwrap_or(());
            };
            // Without a thread the receiver finds its sender gone, and there is never a block.
            let _ = thread::Builder::new().name("segments".to_owned()).spawn(work);
            self.thread = Some((orders, ready));
        }
        if let Some((orders, _)) = &self.thread {
            let _ = orders.send(bytes);
        }
    }

    fn ready(&mut self) -> Option<Vec<u8>> {
        self.thread.as_ref()?.1.try_recv().ok()
    }
}

/// Allocates a block of this many bytes, and touches every page of it.
fn touched(bytes: usize) -> Vec<u8> {
    let mut block = vec![0; bytes];
    for piece in block.chunks_mut(PIECE) {
        // A zero could be optimized away.
        piece.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        thread::yield_now();
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_made_in_another_thread() {
        let mut ahead = Ahead::default();
        assert!(ahead.ready().is_none());
        ahead.order(3 * PIECE + 1);
        let (_, ready) = ahead.thread.as_ref().unwrap();
        let block = ready.recv().unwrap();
        assert_eq!(block.len(), 3 * PIECE + 1);
        assert!(block.iter().step_by(PAGE).all(|byte| *byte == 1), "every page was touched");
    }
}
