//! A ring of variable-length records in shared memory, from one process to one other.
//!
//! ```text
//! control (256 B)                      data (a power of two)
//! 0    head: u64       by the consumer  ┌──────┬─────────────┬───────────┬──────┬───
//! 8    sleeping: u32   by the consumer  │ word │ payload …   │ (to 64 B) │ word │ …
//! 128  waiting: u32    by the producer  └──────┴─────────────┴───────────┴──────┴───
//!                                        word = tag (40 bits) | length (24 bits)
//! ```
//!
//! Records begin at multiples of 64 bytes and never wrap: a pad record fills the end. The tag is a
//! function of the ring's secret and of the record's position, which grows for ever, so a word left
//! from an earlier lap, or payload that lies where a word will be, is no record, and nothing is
//! ever cleared. The producer writes the payload, then the word: one cache line both signals and
//! carries a small message, and the consumer watches just the word at its own head. The consumer
//! tells its head every eighth of a ring, and the producer looks at it only when its last copy says
//! full.
//!
//! What always holds, whatever the other side writes: no access outside the ring, no panic; a word
//! is read once and its length checked before use; a payload is copied out before any code reads
//! it; a head that cannot be, or a length that cannot be, makes the ring [`Broken`], for good.
//!
//! **Sleeping.** A consumer that wants to sleep raises `sleeping`, has every processor pass a
//! barrier ([`barrier()`]), and looks once more: either it sees the record, or the producer, which
//! looks at `sleeping` after it has published, sees the flag. The barrier is on the sleeper's side
//! alone; a producer pays for a plain load. Where the kernel has no such barrier, both sides use
//! fences (`fenced`). A producer that waits for room does the same with `waiting` and the head.
//! The side that finds a flag lowers it and wakes its owner, by means that are not the ring's
//! business.

use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use sprat_proto::datagrams::PaddedHeader;
use sprat_proto::device::Headers;

use crate::memory::{Region, Window};

#[cfg(test)]
mod handshake;
#[cfg(test)]
mod tests;

/// The longest record, in bytes.
pub const MAX_PAYLOAD: usize = 65_536;
/// Bytes of the control block before any ring's data.
pub const CONTROL: usize = 256;
/// The smallest ring, in bytes: what is free when all but the untold eighth has been read must hold
/// the longest record and the longest pad.
pub const MIN_SIZE: usize = 1 << 18;
/// The default size in bytes: large enough to keep both sides copying when messages of 64 KiB
/// stream (a quarter of it halves that rate), small enough for the last-level cache. Small messages
/// do not depend on it.
pub const DEFAULT_SIZE: usize = 1 << 20;
/// The largest ring, in bytes.
pub const MAX_SIZE: usize = 1 << 26;

const LINE: usize = 64;
const WORD: usize = 8;
/// From the position of a record to its payload.
const PAYLOAD: u64 = WORD as u64;
const _: () = assert!(WORD + PaddedHeader::CAPACITY <= LINE);
const HEAD: u64 = 0;
const SLEEPING: u64 = 8;
const WAITING: u64 = 128;
const LEN_MASK: u64 = 0xFF_FFFF;
/// The length field of a record that fills the rest of the ring.
const PAD: u64 = LEN_MASK;

/// The other side wrote what cannot be: this ring is of no use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer damaged the ring")]
pub struct Broken;

/// The place of a ring in its region, and the parameters that both sides agreed on.
#[derive(Clone, Debug)]
pub struct Place {
    /// The memory.
    pub memory: Arc<Region>,
    /// Offset of the control block: a multiple of 128.
    pub control: usize,
    /// Offset of the data: a multiple of 64.
    pub data: usize,
    /// Bytes of data: a power of two, from [`MIN_SIZE`] to [`MAX_SIZE`].
    pub size: usize,
    /// The secret of this ring's tags. It is random, so that no one can place a false record in a
    /// payload.
    pub secret: u64,
    /// True if the two sides use fences, because one of them lacks [`barrier()`].
    pub fenced: bool,
}

/// One side's view of a ring.
#[derive(Clone, Debug)]
struct Ring {
    control: Window,
    data: Window,
    secret: u64,
    fenced: bool,
}

impl Ring {
    fn new(place: &Place) -> Self {
        assert!(
            place.size.is_power_of_two() && (MIN_SIZE..=MAX_SIZE).contains(&place.size),
            "ring size"
        );
        assert!(
            place.control.is_multiple_of(128) && place.data.is_multiple_of(LINE),
            "ring alignment"
        );
        Self {
            control: Window::new(&place.memory, place.control, CONTROL),
            data: Window::new(&place.memory, place.data, place.size),
            secret: place.secret,
            fenced: place.fenced,
        }
    }

    /// The upper 40 bits of the word of a record at `position`. One bit is always set: a word of
    /// fresh memory is none.
    #[inline]
    fn tag(&self, position: u64) -> u64 {
        let x = (position ^ self.secret).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (x & !LEN_MASK) | (LEN_MASK + 1)
    }

    /// Orders this side's publishing store before it reads the other side's flag, as far as this
    /// side has to.
    #[inline]
    fn order(&self) {
        if self.fenced {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Lowers a flag of the control block if it is up; true if it was.
    #[inline(always)]
    fn take_flag(&self, flag: u64) -> bool {
        let flag = self.control.flag(flag);
        flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
    }
}

/// Bytes of the ring that a payload of `len` bytes takes.
#[inline]
const fn footprint(len: usize) -> usize {
    (WORD + len + LINE - 1) & !(LINE - 1)
}

/// The result of [`Producer::push`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Push {
    /// Published. If `wake`, the consumer sleeps or is about to, and must be woken.
    Done {
        /// This side has to wake the consumer.
        wake: bool,
    },
    /// No room now.
    Full,
}

/// The side that writes records.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    /// Position of the next record.
    tail: u64,
    /// The ring's tag.
    tag: u64,
    /// The consumer's head as last seen.
    head: u64,
    /// The room that the last push lacked; zero if it was not refused.
    lacking: u64,
}

impl Producer {
    /// The producer of a fresh ring.
    ///
    /// # Panics
    /// If the place is not as its fields demand.
    #[must_use]
    pub fn new(place: Place) -> Self {
        let ring = Ring::new(&place);
        let tag = ring.tag(0);
        Self { ring, tail: 0, tag, head: 0, lacking: 0 }
    }

    /// Publishes the concatenation of `parts` as one record.
    ///
    /// # Errors
    /// [`Broken`] if the consumer's head cannot be.
    ///
    /// # Panics
    /// If the record exceeds [`MAX_PAYLOAD`].
    #[inline(always)]
    pub fn push(&mut self, parts: &[&[u8]]) -> Result<Push, Broken> {
        let mut len = 0;
        for part in parts {
            len += part.len();
        }
        if !self.has_place(len)? {
            return Ok(Push::Full);
        }
        let mut at = self.tail + PAYLOAD;
        for part in parts {
            self.ring.data.copy_in(at, part);
            at += part.len() as u64;
        }
        Ok(self.done(len))
    }

    /// Pushes a header and one part.
    ///
    /// # Errors
    /// The errors of [`Producer::push`].
    ///
    /// # Panics
    /// The panics of [`Producer::push`].
    #[inline(always)]
    pub fn push_short(&mut self, head: &PaddedHeader, body: &[u8]) -> Result<Push, Broken> {
        let len = head.len() + body.len();
        if !self.has_place(len)? {
            return Ok(Push::Full);
        }
        let at = self.tail + PAYLOAD;
        // All of its room, since every record has as much.
        self.ring.data.copy_words_in(at, head.padded().as_chunks().0);
        self.ring.data.copy_in(at + head.len() as u64, body);
        Ok(self.done(len))
    }

    /// Pushes a frame: `headers`, and `parts` of `len` bytes together behind them.
    ///
    /// # Errors
    /// The errors of [`Producer::push`].
    ///
    /// # Panics
    /// The panics of [`Producer::push`], and if the parts are longer than `len` so that they do not
    /// fit.
    #[inline]
    pub fn push_behind(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
        len: usize,
    ) -> Result<Push, Broken> {
        // All room of the headers is written, and must be the record's.
        let room = (headers.len() + len).max(Headers::CAPACITY);
        if !self.has_place(room)? {
            return Ok(Push::Full);
        }
        let begin = self.tail + PAYLOAD;
        self.ring.data.copy_words_in(begin, &headers.words().map(u64::to_le_bytes));
        let mut at = headers.len();
        for part in parts {
            assert!(part.len() <= room - at, "more than was said");
            self.ring.data.copy_in(begin + at as u64, part);
            at += part.len();
        }
        Ok(self.done(at))
    }

    /// True if a record of `len` bytes has room at the tail, at which it then begins.
    #[inline(always)]
    fn has_place(&mut self, len: usize) -> Result<bool, Broken> {
        let take = footprint(len);
        self.lacking = 0;
        let fits = len <= MAX_PAYLOAD
            && self.ring.data.place(self.tail) + take <= self.ring.data.size()
            && self.tail + take as u64 <= self.head + self.ring.data.size() as u64;
        Ok(fits || self.make_room(len, take)?)
    }

    /// The record at the tail is written.
    #[inline(always)]
    fn done(&mut self, len: usize) -> Push {
        self.publish(len as u64, footprint(len));
        self.ring.order();
        Push::Done { wake: self.ring.take_flag(SLEEPING) }
    }

    /// Sees what the consumer has read, and fills the end of the ring if the record does not fit
    /// there; false if there is no room for it.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, len: usize, take: usize) -> Result<bool, Broken> {
        assert!(len <= MAX_PAYLOAD, "the record is too long");
        let to_end = self.ring.data.size() - self.ring.data.place(self.tail);
        let pad = if take > to_end { to_end } else { 0 };
        if !self.room((take + pad) as u64)? {
            return Ok(false);
        }
        if pad > 0 {
            self.publish(PAD, pad);
        }
        Ok(true)
    }

    /// Makes what was written at the tail a record, and goes on behind it.
    #[inline(always)]
    fn publish(&mut self, len: u64, take: usize) {
        let word = self.tag | len;
        self.ring.data.word(self.tail).store(word, Ordering::Release);
        self.tail += take as u64;
        // Now, not when the next record is waited for.
        self.tag = self.ring.tag(self.tail);
    }

    /// True if `need` bytes are free at the tail.
    fn room(&mut self, need: u64) -> Result<bool, Broken> {
        let size = self.ring.data.size() as u64;
        if self.tail + need > self.head + size {
            let head = self.ring.control.word(HEAD).load(Ordering::Acquire);
            if head < self.head || head > self.tail || !head.is_multiple_of(LINE as u64) {
                return Err(Broken);
            }
            self.head = head;
        }
        let fits = self.tail + need <= self.head + size;
        self.lacking = if fits { 0 } else { need };
        Ok(fits)
    }

    /// Publishes a record of a length that nothing bounds, for tests of the other side.
    #[doc(hidden)]
    pub fn forge(&mut self, len: u64) {
        self.publish(len, 0);
    }

    /// True if the last push was refused.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.lacking > 0
    }

    /// Asks to be woken when there is room. Then comes [`barrier()`], then [`Producer::has_room`].
    pub fn arm(&self) {
        self.ring.control.flag(WAITING).store(1, Ordering::Relaxed);
        self.ring.order();
    }

    /// True if what the last push lacked has become free (or the ring is broken, which the next
    /// push will tell).
    pub fn has_room(&mut self) -> bool {
        self.room(self.lacking).unwrap_or(true)
    }

    /// No more need to be woken.
    pub fn disarm(&self) {
        self.ring.control.flag(WAITING).store(0, Ordering::Relaxed);
    }
}

/// The side that reads records.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    /// Position of the next record.
    head: u64,
    /// The head that the producer has read.
    told: u64,
    /// The tag that the next record will have.
    expect: u64,
    /// The producer waits for the published room, and must be woken.
    wake: bool,
}

impl Consumer {
    /// The consumer of a fresh ring.
    ///
    /// # Panics
    /// If the place is not as its fields demand.
    #[must_use]
    pub fn new(place: Place) -> Self {
        let ring = Ring::new(&place);
        let expect = ring.tag(0);
        Self { ring, head: 0, told: 0, expect, wake: false }
    }

    /// The word at the head, read once.
    #[inline]
    fn word(&self) -> u64 {
        self.ring.data.word(self.head).load(Ordering::Acquire)
    }

    /// True if there is a record (or something as urgent: damage).
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.word() & !LEN_MASK == self.expect
    }

    /// Copies the next record to the start of `into`, which must hold [`MAX_PAYLOAD`] bytes, and
    /// returns its length; `None` if there is none.
    ///
    /// # Errors
    /// [`Broken`] if its length cannot be.
    #[inline(always)]
    pub fn pop(&mut self, into: &mut [u8]) -> Result<Option<usize>, Broken> {
        let word = self.word();
        if word & !LEN_MASK != self.expect {
            return Ok(None);
        }
        let len = (word & LEN_MASK) as usize;
        let take = footprint(len);
        let data = &self.ring.data;
        if len > MAX_PAYLOAD || data.place(self.head) + take > data.size() {
            return self.pop_odd(len, into);
        }
        data.copy_out(self.head + PAYLOAD, &mut into[..len]);
        self.advance(take);
        Ok(Some(len))
    }

    /// The record at the head has a length that no message has: goes on behind it if it is a pad.
    #[cold]
    #[inline(never)]
    fn pop_odd(&mut self, len: usize, into: &mut [u8]) -> Result<Option<usize>, Broken> {
        let to_end = self.ring.data.size() - self.ring.data.place(self.head);
        // No pad fills the whole ring, so two pads never follow each other, and this step runs at
        // most once.
        if len as u64 != PAD || to_end == self.ring.data.size() {
            return Err(Broken);
        }
        self.advance(to_end);
        self.pop(into)
    }

    #[inline]
    fn advance(&mut self, by: usize) {
        self.head += by as u64;
        self.expect = self.ring.tag(self.head);
        if self.head - self.told >= self.ring.data.size() as u64 / 8 {
            self.tell();
        }
    }

    /// Tells the producer how far the ring is read.
    #[cold]
    #[inline(never)]
    fn tell(&mut self) {
        self.told = self.head;
        self.ring.control.word(HEAD).store(self.head, Ordering::Release);
        self.ring.order();
        self.wake |= self.ring.take_flag(WAITING);
    }

    /// True once if the producer waits for room that it has been given: it must be woken.
    #[inline]
    pub fn take_wake(&mut self) -> bool {
        core::mem::take(&mut self.wake)
    }

    /// Asks to be woken at the next record. Then comes [`barrier()`], then [`Consumer::is_ready`].
    pub fn arm(&self) {
        self.ring.control.flag(SLEEPING).store(1, Ordering::Relaxed);
        self.ring.order();
    }

    /// No more need to be woken.
    pub fn disarm(&self) {
        self.ring.control.flag(SLEEPING).store(0, Ordering::Relaxed);
    }
}

pub use barrier::{barrier, has_barrier};

mod barrier {
    //! The sleeper's half of the handshake: a barrier on every processor that runs a thread of a
    //! registered process.

    use std::sync::OnceLock;
    use std::sync::atomic::{Ordering, fence};

    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

    static REGISTERED: OnceLock<bool> = OnceLock::new();

    /// True if this process can issue [`barrier()`] and takes part in those of others; registers it
    /// on the first call.
    pub fn has_barrier() -> bool {
        *REGISTERED.get_or_init(|| {
            membarrier_query().contains(MembarrierQuery::GLOBAL_EXPEDITED)
                && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        })
    }

    /// After this call, every process that registered for barriers has either not yet read the
    /// flags that this one has set, or all its earlier stores are visible here. Rings with a side
    /// that did not register (`fenced`) have fences of their own.
    pub fn barrier() {
        fence(Ordering::SeqCst);
        if has_barrier() {
            // Fails only for a command that `has_barrier` has just been told exists.
            let _ = membarrier(MembarrierCommand::GlobalExpedited);
        }
        fence(Ordering::SeqCst);
    }
}
