//! The output of a stream: frames in order, lent as parts of a gathering write or taken whole.
//!
//! Always holds: a header of which the peer has a part does not change; a request counts as sent
//! once its last byte is written, and can be unsent as long as nothing of it is written.

use arrayvec::ArrayVec;

use super::Stream;
use super::frame::{Frame, Front};
use super::head::Head;
use crate::Instant;
use crate::rpc::types::{Message, Slice, Slices};

impl Stream {
    /// Lends the next bytes of the stream to write, in order: at most `work` of them, so that no
    /// connection keeps other connections waiting.
    pub fn output<'m, const N: usize>(
        &'m mut self,
        now: Instant,
        memory: &'m (impl Slices + ?Sized),
        work: usize,
        parts: &mut ArrayVec<&'m [u8], N>,
    ) {
        let (mut room, mut begun) = (work + self.front_written, 0);
        for frame in self.frames.values_mut() {
            // A header of which the peer has a part does not change; the others get the time that
            // is left now.
            if begun > 0 || self.front_written == 0 {
                frame.head.encode(frame.deadline.since(now), frame.deadline, &mut frame.bytes);
            }
            begun += 1;
            room = room.saturating_sub(frame.len());
            if room == 0 || 2 * begun >= N {
                break;
            }
        }
        let mut left = work;
        let mut skip = self.front_written;
        for (_, frame) in self.frames.iter().take(begun) {
            let slices = frame.message.slices.iter().map(|&s| memory.bytes(s));
            for part in [&frame.bytes[..], &frame.message.bytes].into_iter().chain(slices) {
                let gone = skip.min(part.len());
                skip -= gone;
                let part = &part[gone..part.len().min(gone + left)];
                left -= part.len();
                if !part.is_empty() && parts.try_push(part).is_err() {
                    return;
                }
            }
        }
    }

    /// The stream's next frame as a whole, for a carrier of whole frames, which then calls
    /// [`Stream::written`] with the frame's length.
    pub fn front(&mut self, now: Instant) -> Option<Front<'_>> {
        let frame = self.frames.front_mut()?;
        frame.head.encode(frame.deadline.since(now), frame.deadline, &mut frame.bytes);
        Some(Front { header: &frame.bytes, message: &frame.message })
    }

    /// Takes the message of the stream's next frame, for a rendezvous: the frame counts as written,
    /// and the caller releases the slices.
    pub fn take_front(&mut self) -> Option<Message> {
        let (number, Frame { message, .. }) = self.frames.pop_front()?;
        self.unsent -= message.len();
        self.requests.was_sent(number);
        Some(message)
    }

    /// Records that the first `n` bytes that [`Stream::output`] lent have been written.
    pub fn written(&mut self, n: usize) {
        self.front_written += n;
        while let Some(frame) = self.frames.front_mut() {
            let len = frame.len();
            if frame.bytes.is_empty() || self.front_written < len {
                break;
            }
            self.front_written -= len;
            if let Some((number, frame)) = self.frames.pop_front() {
                self.requests.was_sent(number);
                self.drop_message(frame.message);
            }
        }
    }

    /// True if a frame of the stream waits to be written.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.frames.len() > 0
    }

    /// The next slice that the stream no longer needs. Call until `None`.
    pub fn released(&mut self) -> Option<Slice> {
        self.released.pop_front()
    }

    // Private.

    /// Queues a frame to the peer under the next number.
    pub(super) fn push(&mut self, head: Head, message: Message, deadline: Instant) {
        let number = self.next_number;
        self.next_number += 1;
        if self.ended.is_some() {
            self.released.extend(message.slices);
            return;
        }
        self.unsent += message.len();
        self.frames.push(number, Frame { head, bytes: ArrayVec::new(), message, deadline });
    }

    /// Removes the frame with this number from the queue if nothing of it has been written. Returns
    /// true if it was removed.
    pub(super) fn unsend(&mut self, number: u64) -> bool {
        if self.front_written > 0 && self.frames.oldest() == Some(number) {
            return false;
        }
        let Some((_, frame)) = self.frames.take(|other| other.cmp(&number)) else { return false };
        self.drop_message(frame.message);
        true
    }

    pub(super) fn drop_message(&mut self, message: Message) {
        self.unsent -= message.len();
        self.released.extend(message.slices);
    }
}
