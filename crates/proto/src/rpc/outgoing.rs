//! A message that an endpoint sends.
//!
//! ```text
//! 0 ······ acked ······ next ······ granted ······ len      missing: packets before next to resend
//! ```
//!
//! Always: `acked <= next <= granted <= len`. Not here: which message is sent next.

use alloc::boxed::Box;

use super::missing::Missing;
use super::types::{Message, Slices};
use crate::wire::rpc::NACK_PACKETS;

/// A message that an endpoint sends.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pub(super) message: Message,
    pub(super) len: u32,
    /// The offset of the first byte of the message that was never sent.
    pub(super) next: u32,
    /// The offset in the message up to which the receiver takes bytes.
    pub(super) granted: u32,
    /// The offset in the message before which the receiver has every byte.
    pub(super) acked: u32,
    pub(super) missing: Option<Box<Missing>>,
    /// True once every byte of the message was given to the driver.
    pub(super) sent: bool,
}

/// A piece of a message, which one packet carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) offset: u32,
    pub(super) len: u32,
    /// True if the piece of the message was sent before.
    pub(super) again: bool,
}

impl Outgoing {
    /// Makes an outgoing message, of which `granted` bytes may be sent without a grant.
    pub(super) fn new(message: Message, len: u32, granted: u32) -> Self {
        Self {
            message,
            len,
            next: 0,
            granted: granted.min(len),
            acked: 0,
            missing: None,
            sent: false,
        }
    }

    /// Records a message without slices that the driver has taken in one packet. The copy is sent
    /// again if the packet is lost or the server refuses the request; it reuses the buffer of the
    /// last message.
    #[inline(always)]
    pub(super) fn set_sent(&mut self, bytes: &[u8]) {
        let len = bytes.len() as u32;
        self.message.bytes.clear();
        self.message.bytes.extend_from_slice(bytes);
        self.len = len;
        self.next = len;
        self.granted = len;
        self.acked = 0;
        self.missing = None;
        self.sent = true;
    }

    /// The next piece of the message to send, if any may be sent. It stays the next one until
    /// [`Outgoing::record_sent`].
    #[inline]
    pub(super) fn piece(&mut self, mss: u32) -> Option<Piece> {
        if self.missing.is_some() {
            if let Some(piece) = self.piece_again(mss) {
                return Some(piece);
            }
            self.missing = None;
        }
        if self.next < self.granted || (self.len == 0 && !self.sent) {
            // A grant that ends within a packet covers the whole packet.
            return Some(Piece {
                offset: self.next,
                len: mss.min(self.len - self.next),
                again: false,
            });
        }
        None
    }

    #[cold]
    fn piece_again(&mut self, mss: u32) -> Option<Piece> {
        let missing = self.missing.as_mut()?;
        loop {
            let packet = missing.pop()?;
            let offset = u64::from(missing.base) + u64::from(packet) * u64::from(mss);
            if offset < u64::from(self.next) || (offset == 0 && self.sent) {
                // The packet stays the next one until the driver takes it.
                missing.set(packet);
                let offset = offset as u32;
                return Some(Piece { offset, len: mss.min(self.len - offset), again: true });
            }
        }
    }

    /// Records that the driver took `piece` of the message.
    #[inline]
    pub(super) fn record_sent(&mut self, piece: Piece) {
        if piece.again {
            if let Some(missing) = &mut self.missing {
                missing.pop();
            }
            return;
        }
        self.next = piece.offset + piece.len;
        if self.next == self.len {
            self.sent = true;
        }
    }

    /// The number of the message's bytes that are not acknowledged.
    pub(super) fn remaining(&self) -> u32 {
        self.len - self.acked.min(self.next)
    }

    /// Records that the receiver has every byte of the message before `contig` and takes bytes up
    /// to `granted`. Returns how many bytes are newly acknowledged.
    pub(super) fn acknowledge(&mut self, contig: u32, granted: u32) -> u32 {
        self.granted = self.granted.max(granted.min(self.len));
        let acked = contig.min(self.next).max(self.acked);
        let newly = acked - self.acked;
        self.acked = acked;
        newly
    }

    /// The number of the message's bytes that are sent and not acknowledged.
    pub(super) fn in_flight(&self) -> u32 {
        self.next - self.acked
    }

    /// Marks the packets of the message that are sent and not acknowledged as missing, as far as
    /// one bitmap reaches.
    pub(super) fn resend(&mut self, mss: u32) {
        let mut missing = Missing { base: self.acked / mss * mss, ..Missing::default() };
        let packets =
            (self.next - missing.base).div_ceil(mss).clamp(u32::from(self.sent), NACK_PACKETS);
        (0..packets).for_each(|i| missing.set(i));
        self.missing = (!missing.is_empty()).then(|| Box::new(missing));
    }

    /// Starts the message over, as if nothing of it had been sent.
    pub(super) fn restart(&mut self, granted: u32) {
        self.next = 0;
        self.acked = 0;
        self.granted = granted.min(self.len);
        self.missing = None;
        self.sent = false;
    }

    /// Writes the bytes of `piece` of the message to `parts`, which has room for
    /// [`MAX_SLICES`](super::MAX_SLICES) parts and one more. Returns the number of parts.
    ///
    /// # Panics
    /// If `memory` gives a slice another length than it has.
    #[inline]
    pub(super) fn parts<'a>(
        &'a self,
        memory: &'a (impl Slices + ?Sized),
        piece: Piece,
        parts: &mut [&'a [u8]],
    ) -> usize {
        let (from, len) = (piece.offset as usize, piece.len as usize);
        let bytes = &self.message.bytes[..];
        if let Some(all) = bytes.get(from..from + len) {
            parts[0] = all;
            return 1;
        }
        self.parts_with_slices(memory, from, len, parts)
    }

    fn parts_with_slices<'a>(
        &'a self,
        memory: &'a (impl Slices + ?Sized),
        mut from: usize,
        mut len: usize,
        parts: &mut [&'a [u8]],
    ) -> usize {
        let mut count = 0;
        let slices = self.message.slices.iter().map(|&slice| memory.bytes(slice));
        for bytes in core::iter::once(&self.message.bytes[..]).chain(slices) {
            if len == 0 {
                break;
            }
            if from >= bytes.len() {
                from -= bytes.len();
                continue;
            }
            let n = len.min(bytes.len() - from);
            parts[count] = &bytes[from..from + n];
            count += 1;
            len -= n;
            from = 0;
        }
        count
    }
}
