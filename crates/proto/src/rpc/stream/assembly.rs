//! The frames of a byte stream, put together from reads that end anywhere.
//!
//! ```text
//!  bytes ─► header whole? ──► Piece::Header ─► begin ─► message in these bytes: its range
//!             │ no                              ├─────► message goes on: Piece::Message later
//!             └─► partial                       └ skip: its bytes are dropped as they arrive
//! ```
//! Always holds: at most one of `partial`, `message` and `skip` is there; a message's memory is at
//! most [`GROWTH`] times what has arrived, or [`FIRST_PIECE`], so a claimed length allocates
//! nothing.

use alloc::vec::Vec;
use core::mem;
use core::ops::Range;

use super::head::{self, BadFrame, FIXED, Head};

/// The first piece of memory for a message that does not arrive in one read, in bytes.
pub(super) const FIRST_PIECE: usize = 4 << 10;
/// The memory of a message that arrives in parts, as a multiple of the bytes that have arrived.
pub(super) const GROWTH: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// The header of which a part has arrived on the stream.
    partial: Vec<u8>,
    /// The message of which a part has arrived on the stream.
    message: Option<(Head, Vec<u8>)>,
    /// The number of bytes still to arrive of a message that no request waits for.
    skip: usize,
}

/// A part of a frame that has arrived as a whole: the header or the message.
#[derive(Debug)]
pub(super) enum Piece {
    /// A frame's header, or the reason why the bytes are none. [`Assembly::begin`] or
    /// [`Assembly::skip`] must follow.
    Header(Result<Head, BadFrame>),
    /// A frame's message that arrived in parts, of which the last bytes are there.
    Message(Head, Vec<u8>),
}

impl Assembly {
    /// Takes bytes of the stream, `bytes[*at..]`, up to the end of a header or of a message that
    /// arrives in parts. `None` if that end has not arrived; the caller calls again while bytes are
    /// left.
    pub(super) fn next(&mut self, bytes: &[u8], at: &mut usize) -> Option<Piece> {
        let skipped = self.skip.min(bytes.len() - *at);
        self.skip -= skipped;
        *at += skipped;
        let rest = &bytes[*at..];
        if rest.is_empty() {
            return None;
        }
        let Some((head, got)) = &mut self.message else {
            return self.header(rest, at).map(Piece::Header);
        };
        let n = (head.len as usize - got.len()).min(rest.len());
        if got.capacity() - got.len() < n {
            grow(head, got, n);
        }
        got.extend_from_slice(&rest[..n]);
        *at += n;
        self.filled().map(|(head, message)| Piece::Message(head, message))
    }

    /// Begins the message that follows a header. If all of the message lies in `bytes`, returns its
    /// place and moves `at` past it.
    pub(super) fn begin(
        &mut self,
        head: Head,
        bytes: &[u8],
        at: &mut usize,
    ) -> Option<Range<usize>> {
        let end = *at + head.len as usize;
        if end > bytes.len() {
            self.message = Some((head, Vec::new()));
            return None;
        }
        Some(mem::replace(at, end)..end)
    }

    /// Drops the message that follows a header, as it arrives.
    pub(super) fn skip(&mut self, head: &Head) {
        self.skip = head.len as usize;
    }

    /// The vector to which the next bytes of the stream belong, if they continue a message, and how
    /// many of them: at least one, and there is capacity for them.
    pub(super) fn body(&mut self) -> Option<(&mut Vec<u8>, usize)> {
        let (head, got) = self.message.as_mut()?;
        if got.len() == got.capacity() {
            grow(head, got, 1);
        }
        let room = got.capacity().min(head.len as usize) - got.len();
        Some((got, room))
    }

    /// Takes the message that arrived in parts, if it is whole.
    pub(super) fn filled(&mut self) -> Option<(Head, Vec<u8>)> {
        self.message.take_if(|(head, got)| got.len() >= head.len as usize)
    }

    /// The length of the message of which a part has arrived; 0 if there is none.
    pub(super) fn len(&self) -> usize {
        self.message.as_ref().map_or(0, |(head, _)| head.len as usize)
    }

    /// True if no part of a frame has arrived.
    pub(super) fn is_between(&self) -> bool {
        self.partial.is_empty() && self.message.is_none() && self.skip == 0
    }

    /// The bytes reserved for the message of which a part has arrived.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> Option<usize> {
        self.message.as_ref().map(|(_, got)| got.capacity())
    }

    /// Takes a frame's header from the front of `rest`, or keeps the part of it that is there.
    fn header(&mut self, rest: &[u8], at: &mut usize) -> Option<Result<Head, BadFrame>> {
        if self.partial.is_empty() && rest.len() >= FIXED && rest.len() >= head::len(rest) {
            let len = head::len(rest);
            *at += len;
            return Some(Head::parse(&rest[..len]));
        }
        let whole = if self.partial.len() < FIXED { FIXED } else { head::len(&self.partial) };
        let n = (whole - self.partial.len()).min(rest.len());
        self.partial.extend_from_slice(&rest[..n]);
        *at += n;
        let is_whole =
            self.partial.len() >= FIXED && self.partial.len() >= head::len(&self.partial);
        match head::check(&self.partial) {
            Ok(()) if !is_whole => None,
            Ok(()) => Some(Head::parse(&mem::take(&mut self.partial))),
            Err(bad) => Some(Err(bad)),
        }
    }
}

/// Reserves memory for `more` bytes of a message, at least one: a multiple of the bytes that have
/// arrived, and never more than the message needs.
fn grow(head: &Head, got: &mut Vec<u8>, more: usize) {
    let have = got.len() + more;
    let target = FIRST_PIECE.max(GROWTH * have).min(head.len as usize);
    got.reserve_exact(target - got.len());
}
