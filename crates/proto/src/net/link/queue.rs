//! The transmit queue of an IP stack: whole frames that wait for the device.
//!
//! Fragments, replies, solicitations and frames that waited for address resolution leave through
//! it. Datagrams with a cached route bypass it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::Instant;
use crate::device::{Device, Offload, Sent};
use crate::net::counters::StackCounters;
use crate::time::MS;

/// The most frames and bytes in the transmit queue: a datagram of 64 KiB in fragments, and replies
/// beside it.
pub(in crate::net) const MAX_FRAMES: usize = 512;
pub(in crate::net) const MAX_BYTES: usize = 2 << 20;
/// The time for which the first frame of the transmit queue waits for a full device. A
/// shared-memory device stays full while a peer reads nothing; that peer must neither block frames
/// to others nor keep this side from sleeping.
const BLOCKED_NS: u64 = 100 * MS;

/// The transmit queue: frames that wait for the device, in order.
#[derive(Debug)]
pub(in crate::net) struct TransmitQueue {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
    /// The time at which the device first refused the first frame of the transmit queue, or never.
    blocked_since: Instant,
}

impl Default for TransmitQueue {
    fn default() -> Self {
        Self { frames: VecDeque::new(), bytes: 0, blocked_since: Instant::NEVER }
    }
}

impl TransmitQueue {
    #[inline]
    pub(in crate::net) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns true if the transmit queue has room for this number of further frames and bytes.
    pub(in crate::net) fn has_room(&self, frames: usize, bytes: usize) -> bool {
        self.frames.len() + frames <= MAX_FRAMES && self.bytes + bytes <= MAX_BYTES
    }

    /// Appends a frame to the transmit queue, or drops it if the queue is full.
    pub(in crate::net) fn push(&mut self, frame: Vec<u8>, counters: &mut StackCounters) {
        if !self.has_room(1, frame.len()) {
            counters.drop_queue += 1;
            return;
        }
        self.bytes += frame.len();
        self.frames.push_back(frame);
    }

    /// Sends frames until the transmit queue is empty or the device is full.
    pub(in crate::net) fn output<D: Device>(
        &mut self,
        now: Instant,
        device: &mut D,
        counters: &mut StackCounters,
    ) {
        while let Some(frame) = self.frames.front() {
            if device.send(&[frame], Offload::None) == Sent::Full {
                if !self.drop_blocked(now, counters) {
                    return;
                }
                continue;
            }
            self.blocked_since = Instant::NEVER;
            counters.frames_out += 1;
            self.bytes -= frame.len();
            self.frames.pop_front();
        }
    }

    /// Drops all frames to the neighbour of the transmit queue's first frame if the device has
    /// refused that frame for too long. Returns true if it dropped them.
    fn drop_blocked(&mut self, now: Instant, counters: &mut StackCounters) -> bool {
        self.blocked_since = self.blocked_since.min(now);
        if now.since(self.blocked_since) < BLOCKED_NS {
            return false;
        }
        self.blocked_since = Instant::NEVER;
        let to = self.frames.front().and_then(|frame| frame.first_chunk::<6>().copied());
        let before = self.frames.len();
        self.frames.retain(|frame| frame.first_chunk().copied() != to);
        self.bytes = self.frames.iter().map(Vec::len).sum();
        counters.drop_queue += (before - self.frames.len()) as u64;
        true
    }

    /// Returns the numbers of frames and bytes in the transmit queue, for checks of their limits.
    #[cfg(test)]
    pub(in crate::net) fn size(&self) -> (usize, usize) {
        assert_eq!(self.bytes, self.frames.iter().map(Vec::len).sum::<usize>());
        (self.frames.len(), self.bytes)
    }
}
