//! What a stream writes: frames that wait in order, lent as parts of a gathering write or taken
//! whole.
//!
//! Always holds: a header of which the peer has a part stays as it is; a request counts as sent
//! once its last byte is written, and one of which nothing was written can be taken back.

use arrayvec::ArrayVec;

use super::Stream;
use super::frame::{Frame, Front};
use super::head::Head;
use crate::Instant;
use crate::rpc::types::{Message, Slice, Slices};

impl Stream {
    /// Lends what is to be written next, in order: at most `work` bytes, so that no connection
    /// keeps the others waiting, and none if there is nothing.
    pub fn output<'m, const N: usize>(
        &'m mut self,
        now: Instant,
        memory: &'m (impl Slices + ?Sized),
        work: usize,
        parts: &mut ArrayVec<&'m [u8], N>,
    ) {
        let (mut room, mut begun) = (work + self.front_written, 0);
        for frame in &mut self.frames {
            // A header of which the peer has a part stays as it is; others say how much time is
            // left now.
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
        for frame in self.frames.iter().take(begun) {
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

    /// The next frame as a whole, for what carries whole frames; then call [`Stream::written`] with
    /// its length.
    pub fn front(&mut self, now: Instant) -> Option<Front<'_>> {
        let frame = self.frames.front_mut()?;
        frame.head.encode(frame.deadline.since(now), frame.deadline, &mut frame.bytes);
        Some(Front { header: &frame.bytes, message: &frame.message })
    }

    /// Takes the next frame's message, which the peer will fetch from where it lies: the frame
    /// counts as written. The caller gives its slices back.
    pub fn take_front(&mut self) -> Option<Message> {
        let Frame { message, request, .. } = self.frames.pop_front()?;
        self.unsent -= message.len();
        self.was_sent(request);
        Some(message)
    }

    /// The first `n` bytes that [`Stream::output`] lent have been written.
    pub fn written(&mut self, n: usize) {
        self.front_written += n;
        while let Some(frame) = self.frames.front() {
            let len = frame.len();
            if frame.bytes.is_empty() || self.front_written < len {
                break;
            }
            self.front_written -= len;
            if let Some(frame) = self.frames.pop_front() {
                self.was_sent(frame.request);
                self.drop_message(frame.message);
            }
        }
    }

    /// True if there is something to write.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.frames.is_empty()
    }

    /// A slice that is no longer needed; call until `None`.
    pub fn released(&mut self) -> Option<Slice> {
        self.released.pop_front()
    }

    // Private.

    pub(super) fn push(
        &mut self,
        head: Head,
        message: Message,
        deadline: Instant,
        request: Option<u64>,
    ) {
        if self.ended.is_some() {
            self.released.extend(message.slices);
            return;
        }
        self.unsent += message.len();
        self.frames.push_back(Frame { head, bytes: ArrayVec::new(), message, deadline, request });
    }

    /// Takes a request's frame out of the queue, if nothing of it has been written; true if so.
    pub(super) fn unsend(&mut self, seq: u64) -> bool {
        let Some(i) = self.frames.iter().position(|f| f.request == Some(seq)) else { return false };
        if i == 0 && self.front_written > 0 {
            return false;
        }
        if let Some(frame) = self.frames.remove(i) {
            self.drop_message(frame.message);
        }
        true
    }

    /// From here on a request may be executed.
    fn was_sent(&mut self, request: Option<u64>) {
        if let Some(request) = request.and_then(|seq| self.requests.get_mut(seq)) {
            request.sent = true;
        }
    }

    pub(super) fn drop_message(&mut self, message: Message) {
        self.unsent -= message.len();
        self.released.extend(message.slices);
    }
}
