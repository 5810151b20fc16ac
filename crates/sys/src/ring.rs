//! A ring of variable-length records in shared memory, from one process to one other.
//!
//! ```text
//! control (256 B)                      data (a power of two)
//! 0    head: u64       by the consumer  ┌──────┬─────────────┬───────────┬──────┬───
//! 8    sleeping: u32   by the consumer  │ word │ payload …   │ (to 64 B) │ word │ …
//! 12   closed: u32     by the consumer  │      │             │           │      │
//! 128  waiting: u32    by the producer  └──────┴─────────────┴───────────┴──────┴───
//!                                        word = tag (40 bits) | length (24 bits)
//! ```
//!
//! Records begin at multiples of 64 bytes and never wrap: a pad record fills the end. The tag is a
//! function of the ring's secret and of the record's position, which grows for ever. So a word left
//! from an earlier lap, or payload that lies where a word will be, is no record, and nothing is
//! ever cleared. The producer writes the payload, then the word: one cache line both signals and
//! carries a small message, and the consumer polls only the word at its own head. The consumer
//! publishes its head every eighth of a ring, and the producer reads it only when the ring is full
//! by its last copy.
//!
//! Always holds, whatever the other side writes: no access outside the ring, no panic. A word is
//! read once and its length checked before use. A payload is copied out before any code reads it.
//! An impossible head or length makes the ring [`Broken`] for good.
//!
//! A long record may stay in the ring until its receiver knows where its bytes belong
//! ([`LeftRecord`]): only its first bytes are copied at once, and any check runs on that copy. The
//! producer gets no room back meanwhile ([`Consumer::release`]).
//!
//! **Sleeping.** A consumer that wants to sleep raises `sleeping`, has every processor pass a
//! barrier ([`barrier()`]), and reads its word once more. Either it sees the record, or the
//! producer, which reads `sleeping` after each record that it publishes, sees the flag. The barrier
//! is on the sleeper's side alone; a producer pays for a plain load. Where the kernel has no such
//! barrier, both sides use fences (`fenced`). A producer that waits for room proceeds likewise with
//! `waiting` and the head. The side that finds a flag lowers it and wakes its owner, by means
//! outside the ring.
//!
//! **Closing.** A consumer raises `closed` and takes what is there. With fences on both sides, it
//! finds a record, or the producer finds the flag.

use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence, fence};

use sprat_proto::datagrams::PaddedHeader;
use sprat_proto::device::Headers;

use crate::memory::{Region, Window};

mod barrier;
pub use barrier::{barrier, has_barrier};
mod position;
pub use position::may_resume;
#[cfg(test)]
mod handshake;
#[cfg(test)]
mod tests;

/// The longest record, in bytes.
pub const MAX_PAYLOAD: usize = 65_536;
/// A longer record may stay in the ring. A shorter one is cheaper to copy than memory of its own.
pub const LONG: usize = MAX_PAYLOAD / 4;
/// Number of bytes that a consumer copies at once of a record that it leaves in the ring.
pub const LEFT_HEAD: usize = 64;
/// The length in bytes of the control block before any ring's data.
pub const CONTROL: usize = 256;
/// The smallest ring, in bytes. The consumer publishes its head every eighth of the ring; the other
/// seven eighths must hold the longest record and the longest pad.
pub const MIN_SIZE: usize = 1 << 18;
/// The default size of a ring in bytes: with a quarter of it, messages of 64 KiB stream at half the
/// rate, and it fits into the last-level cache. Small messages do not depend on it.
pub const DEFAULT_SIZE: usize = 1 << 20;
/// The largest ring, in bytes.
pub const MAX_SIZE: usize = 1 << 26;

const LINE: usize = 64;
const WORD: usize = 8;
/// The distance in bytes from the position of a record to its payload.
const PAYLOAD: u64 = WORD as u64;
const _: () = assert!(WORD + PaddedHeader::CAPACITY <= LINE);
const HEAD: u64 = 0;
const SLEEPING: u64 = 8;
const CLOSED: u64 = 12;
const WAITING: u64 = 128;
/// In a position that no head reaches.
const NEVER: u64 = 1 << 63;
const LEN_MASK: u64 = 0xFF_FFFF;
/// The length field of a pad, the record that fills the end of the ring.
const PAD: u64 = LEN_MASK;

/// The error of a ring whose other side wrote an impossible head or length. The ring is unusable
/// from then on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the peer damaged the ring")]
pub struct Broken;

/// The place of a ring in its region, and its parameters.
#[derive(Clone, Debug)]
pub struct Place {
    /// The region that holds the ring.
    pub memory: Arc<Region>,
    /// Offset of the ring's control block in the region: a multiple of 128.
    pub control: usize,
    /// Offset of the ring's data in the region: a multiple of 64.
    pub data: usize,
    /// The length of the ring's data in bytes: a power of two, from [`MIN_SIZE`] to [`MAX_SIZE`].
    pub size: usize,
    /// The secret of this ring's tags. It is random, so that no one can place a false record in a
    /// payload.
    pub secret: u64,
    /// True if the two sides use fences, because one of them lacks [`barrier()`].
    pub fenced: bool,
}

/// A shared-memory ring, as one of its two sides sees it.
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

    /// Returns the tag of a record at `position`: the upper 40 bits of its word. One bit is always
    /// set, so that a word of fresh memory is no record.
    #[inline]
    fn tag(&self, position: u64) -> u64 {
        let x = (position ^ self.secret).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ (x >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (x & !LEN_MASK) | (LEN_MASK + 1)
    }

    /// Orders this side's publishing store before its next read of the other side's flag. Without
    /// `fenced`, this side needs no fence.
    #[inline]
    fn order(&self) {
        if self.fenced {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Lowers a flag of the ring's control block if it is up. Returns true if it was.
    #[inline(always)]
    fn take_flag(&self, flag: u64) -> bool {
        let flag = self.control.flag(flag);
        flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
    }
}

/// Returns the bytes of the ring that a payload of `len` bytes takes.
const fn footprint(len: usize) -> usize {
    (WORD + len + LINE - 1) & !(LINE - 1)
}

/// The result of [`Producer::push`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Push {
    /// The record is published. If `wake`, the consumer sleeps or is about to sleep, and must be
    /// woken.
    Done {
        /// True if the producer has to wake the consumer.
        wake: bool,
    },
    /// The ring has no room for the record now.
    Full,
}

/// The side of a ring that writes records.
#[derive(Debug)]
pub struct Producer {
    ring: Ring,
    /// Position of the next record that the producer writes.
    tail: u64,
    /// The tag of the next record that the producer writes.
    tag: u64,
    /// The consumer's head, as the producer last read it.
    head: u64,
    /// Number of bytes of room that the last push lacked in the ring; 0 if it succeeded.
    lacking: u64,
}

impl Producer {
    /// Makes the producer of a fresh ring.
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
    /// [`Broken`] if the consumer's head is impossible.
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

    /// Publishes one record of a header and one part.
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

    /// Publishes a frame as one record: `headers`, and behind them `parts`, which have `len` bytes
    /// together.
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

    /// Makes sure that a record of `len` bytes fits at the producer's tail. Returns false if the
    /// ring is full.
    #[inline(always)]
    fn has_place(&mut self, len: usize) -> Result<bool, Broken> {
        let take = footprint(len);
        self.lacking = 0;
        let fits = len <= MAX_PAYLOAD
            && self.ring.data.place(self.tail) + take <= self.ring.data.size()
            && self.tail + take as u64 <= self.head + self.ring.data.size() as u64;
        Ok(fits || self.make_room(len, take)?)
    }

    /// Publishes the record whose payload of `len` bytes lies at the producer's tail.
    #[inline(always)]
    fn done(&mut self, len: usize) -> Push {
        self.publish(len as u64, footprint(len));
        self.ring.order();
        Push::Done { wake: self.ring.take_flag(SLEEPING) }
    }

    /// Reads the consumer's head, and writes a pad if the record does not fit before the ring's
    /// end. Returns false if the ring has no room for the record.
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

    /// Writes the word that makes the bytes at the tail a record, and moves the tail behind it.
    #[inline(always)]
    fn publish(&mut self, len: u64, take: usize) {
        let word = self.tag | len;
        self.ring.data.word(self.tail).store(word, Ordering::Release);
        self.tail += take as u64;
        // Now, not when the next record is waited for.
        self.tag = self.ring.tag(self.tail);
    }

    /// True if `need` bytes are free at the producer's tail.
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

    /// Publishes a record with any length, for tests of the consumer.
    #[doc(hidden)]
    pub fn forge(&mut self, len: u64) {
        self.publish(len, 0);
    }

    /// True if the consumer has closed the ring. If not, after a push, it takes the record.
    #[inline]
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.ring.control.flag(CLOSED).load(Ordering::Relaxed) != 0
    }

    /// True if the ring had no room for the producer's last push.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.lacking > 0
    }

    /// Asks the consumer to wake the producer when the ring has room. The caller then calls
    /// [`barrier()`] and [`Producer::has_room`].
    pub fn arm(&self) {
        self.ring.control.flag(WAITING).store(1, Ordering::Relaxed);
        self.ring.order();
    }

    /// True if the ring now has the room that the last push lacked. It is also true if the ring is
    /// broken, which the next push reports.
    pub fn has_room(&mut self) -> bool {
        self.room(self.lacking).unwrap_or(true)
    }

    /// Withdraws the producer's request to be woken.
    pub fn disarm(&self) {
        self.ring.control.flag(WAITING).store(0, Ordering::Relaxed);
    }
}

/// A record as [`Consumer::pop`] returns it.
#[derive(Debug)]
pub enum Record {
    /// It was copied, and has this length.
    Copied(usize),
    /// Its first [`LEFT_HEAD`] bytes were copied. All of it is in the ring.
    Left(LeftRecord),
}

/// A record that is left in the ring, until [`Consumer::release`]. The producer may write its bytes
/// at any time.
#[derive(Debug)]
pub struct LeftRecord {
    data: Window,
    position: u64,
    len: usize,
}

impl LeftRecord {
    /// The length of the record, which does not change.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is longer than LONG")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends a copy of the record's bytes from `from` on to `bytes`.
    ///
    /// # Panics
    /// If the record is shorter than `from`.
    pub fn append_to(&self, from: usize, bytes: &mut Vec<u8>) {
        assert!(from <= self.len, "{from} of {} bytes", self.len);
        self.data.append_to(self.position + from as u64, self.len - from, bytes);
    }
}

/// The side of a ring that reads records.
#[derive(Debug)]
pub struct Consumer {
    ring: Ring,
    /// Position of the next record that the consumer reads.
    head: u64,
    /// The consumer publishes its head once it is here. While records are left in the ring, the
    /// highest bit is set, so that the head never is.
    tell_at: u64,
    /// The tag that the next record must have.
    expect: u64,
    /// True if the producer waited for room that the consumer has published, and must be woken.
    wake: bool,
}

impl Consumer {
    /// Makes the consumer of a fresh ring.
    ///
    /// # Panics
    /// If the place is not as its fields demand.
    #[must_use]
    pub fn new(place: Place) -> Self {
        let ring = Ring::new(&place);
        let expect = ring.tag(0);
        let tell_at = tell_every(&ring);
        Self { ring, head: 0, tell_at, expect, wake: false }
    }

    /// Makes the consumer of a ring whose last one has ended. It reads records again that the last
    /// one read since it published its position.
    ///
    /// # Errors
    /// [`Broken`] if no consumer publishes such a position.
    ///
    /// # Panics
    /// If the place is not as its fields demand.
    pub fn resume(place: Place) -> Result<Self, Broken> {
        let mut this = Self::new(place);
        let head = this.ring.control.word(HEAD).load(Ordering::Acquire);
        if !may_resume(head) {
            return Err(Broken);
        }
        this.head = head;
        this.expect = this.ring.tag(head);
        this.tell_at = head + tell_every(&this.ring);
        Ok(this)
    }

    /// Closes the ring: a producer that pushes from now on finds it closed.
    ///
    /// # Panics
    /// If the ring is not fenced.
    pub fn close(&mut self) {
        assert!(self.ring.fenced, "a ring that is closed needs fences");
        self.ring.control.flag(CLOSED).store(1, Ordering::Relaxed);
        self.ring.order();
    }

    /// Reads the word at the consumer's head, once.
    #[inline]
    fn word(&self) -> u64 {
        self.ring.data.word(self.head).load(Ordering::Acquire)
    }

    /// True if there is a record to read, intact or broken; the next read reports a broken one.
    #[inline]
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.word() & !LEN_MASK == self.expect
    }

    /// Copies the next record to the start of `into`, which must hold [`MAX_PAYLOAD`] bytes. `None`
    /// if there is no record. If `leave`, a record longer than [`LONG`] stays in the ring, and the
    /// producer gets no more room until [`Consumer::release`].
    ///
    /// # Errors
    /// [`Broken`] if the record's length is impossible.
    #[inline(always)]
    pub fn pop(&mut self, into: &mut [u8], leave: bool) -> Result<Option<Record>, Broken> {
        let word = self.word();
        if word & !LEN_MASK != self.expect {
            return Ok(None);
        }
        let len = (word & LEN_MASK) as usize;
        let take = footprint(len);
        let data = &self.ring.data;
        if len > LONG || data.place(self.head) + take > data.size() {
            return self.pop_odd(len, into, leave);
        }
        data.copy_out(self.head + PAYLOAD, &mut into[..len]);
        self.advance(take);
        Ok(Some(Record::Copied(len)))
    }

    /// Handles a record at the head that is long, or whose length no message has: skips it if it is
    /// a pad, and reads the next record.
    #[cold]
    #[inline(never)]
    fn pop_odd(
        &mut self,
        len: usize,
        into: &mut [u8],
        leave: bool,
    ) -> Result<Option<Record>, Broken> {
        let data = &self.ring.data;
        let to_end = data.size() - data.place(self.head);
        if len <= MAX_PAYLOAD && footprint(len) <= to_end {
            let copied = if leave { LEFT_HEAD } else { len };
            data.copy_out(self.head + PAYLOAD, &mut into[..copied]);
            let record = if leave {
                self.tell_at |= NEVER;
                Record::Left(LeftRecord { data: data.clone(), position: self.head + PAYLOAD, len })
            } else {
                Record::Copied(len)
            };
            self.advance(footprint(len));
            return Ok(Some(record));
        }
        // No pad fills the whole ring, so two pads never follow each other, and this step runs at
        // most once.
        if len as u64 != PAD || to_end == self.ring.data.size() {
            return Err(Broken);
        }
        self.advance(to_end);
        self.pop(into, leave)
    }

    /// The records left in the ring are needed no more: their room is the producer's.
    pub fn release(&mut self) {
        self.tell_at &= !NEVER;
        if self.head >= self.tell_at {
            self.tell();
        }
    }

    #[inline]
    fn advance(&mut self, by: usize) {
        self.head += by as u64;
        self.expect = self.ring.tag(self.head);
        if self.head >= self.tell_at {
            self.tell();
        }
    }

    /// Publishes the consumer's head to the producer.
    #[cold]
    #[inline(never)]
    fn tell(&mut self) {
        self.tell_at = self.head + tell_every(&self.ring);
        self.ring.control.word(HEAD).store(self.head, Ordering::Release);
        self.ring.order();
        self.wake |= self.ring.take_flag(WAITING);
    }

    /// Returns true once if the producer waited for room that the consumer has published: it must
    /// be woken.
    #[inline]
    pub fn take_wake(&mut self) -> bool {
        core::mem::take(&mut self.wake)
    }

    /// Asks the producer to wake the consumer at the next record. The caller then calls
    /// [`barrier()`] and [`Consumer::is_ready`].
    pub fn arm(&self) {
        self.ring.control.flag(SLEEPING).store(1, Ordering::Relaxed);
        self.ring.order();
    }

    /// Withdraws the consumer's request to be woken.
    pub fn disarm(&self) {
        self.ring.control.flag(SLEEPING).store(0, Ordering::Relaxed);
    }
}

/// Number of bytes after which a consumer publishes its read position.
const fn tell_every(ring: &Ring) -> u64 {
    ring.data.size() as u64 / 8
}
