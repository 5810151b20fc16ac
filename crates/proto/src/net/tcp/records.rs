//! Records: pieces of a stream that stay whole. A segment holds one or more of them, also when it
//! is sent again, so that a receiver finds the beginning of a record in each segment (RFC 5044
//! 5.1).
//!
//! ```text
//!  data    acknowledged │ in flight: segments of whole records │ unsent: lengths in `records`
//! ```
//!
//! A record never waits for others: those that wait to be sent anyway share a segment.
//!
//! Three things split a record, and the stream stays right: a path MTU that falls below its length,
//! a window that stays smaller than it, and a length above the MSS.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// The records that were not sent yet. There are none before the stream has its first: all that is
/// written then is a record.
#[derive(Debug, Default)]
pub(super) struct Records(Option<Box<Unsent>>);

/// The lengths of the records that were not sent yet, in the order of the stream.
#[derive(Debug, Default)]
struct Unsent {
    lens: VecDeque<u32>,
}

/// The next data of a stream of records: whole records in segments of one length, of which the last
/// may be shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Batch {
    pub(super) len: u32,
    /// The length of each segment but the last. In a batch of no bytes, that of the first record.
    pub(super) unit: u32,
}

impl Records {
    /// Returns true if the stream is one of records.
    pub(super) const fn is_used(&self) -> bool {
        self.0.is_some()
    }

    /// Begins the records of a stream of which `unsent` bytes were written before.
    pub(super) fn begin(&mut self, unsent: u32) {
        if self.0.is_none() {
            self.0 = Some(Box::default());
            self.push(unsent);
        }
    }

    /// Appends a record.
    pub(super) fn push(&mut self, len: u32) {
        if let Some(unsent) = self.0.as_mut().filter(|_| len > 0) {
            unsent.lens.push_back(len);
        }
    }

    /// Returns the records to send next in `room` bytes, in segments of at most `mss`: one segment,
    /// or several of together at most `most` bytes if the device cuts them. A segment takes as many
    /// whole records as fit. A record that is longer than a segment counts as several. Returns none
    /// if there is no record, and a batch of no bytes if the first does not fit.
    pub(super) fn next(&self, room: u32, most: u32, mss: u32) -> Option<Batch> {
        let lens = &self.0.as_ref()?.lens;
        let &first = lens.front()?;
        let most = room.min(most.max(mss));
        if first > mss {
            let len = first.min(most);
            let len = if len < first { len / mss * mss } else { len };
            return Some(Batch { len, unit: mss });
        }
        // The bytes of whole segments, and of the records in the segment behind them.
        let (mut whole, mut part) = (0, 0);
        let mut unit = mss;
        for &next in lens {
            if whole + part + next > most {
                break;
            }
            if part + next > unit {
                if whole == 0 {
                    unit = part;
                }
                // All segments but the last are of one length.
                if part < unit || next > unit {
                    break;
                }
                (whole, part) = (whole + part, 0);
            }
            part += next;
        }
        let unit = if whole > 0 { unit } else { part.max(first) };
        Some(Batch { len: whole + part, unit })
    }

    /// Removes the records of the first `count` unsent bytes, which were sent.
    pub(super) fn sent(&mut self, mut count: u32) {
        let Some(unsent) = &mut self.0 else { return };
        while let Some(first) = unsent.lens.front_mut().filter(|_| count > 0) {
            if *first > count {
                *first -= count;
                return;
            }
            count -= *first;
            unsent.lens.pop_front();
        }
    }
}
