//! One ring of a memif link, as either end uses it.
//!
//! ```text
//! to the server:  head ─ the client fills, `Sink` ─►  tail ─ the server empties, `Source`
//! to the client:  tail ─ the server fills, `Sink` ─►  head ─ the client empties, `Source`,
//!                                                            and offers the slot again
//! ```
//!
//! Always holds: the peer's values are read once and checked before they are used. An impossible
//! index is [`Broken`], and an impossible descriptor a dropped frame. The client owns the memory
//! and uses its own layout; it takes only the used length of a buffer from a descriptor. Buffers
//! never move: after the ring is made, both ends write the first word of a descriptor alone (flags,
//! region and length).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sprat_proto::device::{HEADER, Headers, MAX_FRAME};
use sprat_proto::wire::memif::{
    COOKIE, DESCRIPTOR, DESCRIPTORS, Descriptor, FLAGS, HEAD, MASK_INTERRUPT, TAIL, ring_len,
};

use super::super::burst::Burst;
use sprat_sys::memory::{Region, Window};

/// The most slots that may be taken and not yet given back, as a divisor of the ring's size.
const HELD: u16 = 8;

/// The least length in bytes of a frame whose end is left in the ring: nearly all of a long message
/// travels in longer ones, and a message of one shorter frame is lent to its receiver.
const LEAST_LEFT: usize = 8192;

/// The error of a link whose peer wrote an impossible index, or an impossible buffer to fill. The
/// link ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Broken;

/// The layout of the buffers of a client's ring: buffer `i` belongs to descriptor `i`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Laid {
    /// The offset in the ring's region at which the buffers begin.
    pub(super) at: usize,
    /// Bytes of each buffer.
    pub(super) each: usize,
}

/// The place of a ring in the regions of its link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The index of the region that holds the ring. The ring begins there at `offset`.
    pub(super) region: u16,
    pub(super) offset: usize,
    pub(super) log2: u8,
}

/// A ring of a memif link, and the regions around it.
#[derive(Debug)]
pub(super) struct Ring {
    regions: Arc<[Arc<Region>]>,
    /// The index of the region that holds the ring.
    region: u16,
    size: u16,
    /// The cookie, the flags and the indices of the ring.
    header: Window,
    /// The descriptors of the ring. The window masks a position as a ring masks an index.
    descriptors: Window,
    /// The eventfd that the sender writes to wake the receiver.
    interrupt: OwnedFd,
    /// The layout of the buffers if this is the client's end; `None` at the server's end.
    laid: Option<Laid>,
}

impl Ring {
    /// Makes one end of the ring at `place`. `None` if the ring does not lie in its region, or at
    /// the client's end one of its buffers.
    pub(super) fn new(
        regions: &Arc<[Arc<Region>]>,
        place: Place,
        interrupt: OwnedFd,
        laid: Option<Laid>,
    ) -> Option<Self> {
        let Place { region, offset, log2 } = place;
        let memory = regions.get(usize::from(region))?;
        let end = offset.checked_add(ring_len(log2))?;
        let buffers = laid.is_none_or(|l| l.at + (l.each << log2) <= memory.len());
        if end > memory.len() || !buffers || !offset.is_multiple_of(8) {
            return None;
        }
        Some(Self {
            regions: Arc::clone(regions),
            region,
            size: 1 << log2,
            header: Window::new(memory, offset, DESCRIPTORS),
            descriptors: Window::new(memory, offset + DESCRIPTORS, DESCRIPTOR << log2),
            interrupt,
            laid,
        })
    }

    /// True if the ring's memory begins as that of a memif ring.
    pub(super) fn has_cookie(&self) -> bool {
        self.header.flag(0).load(Ordering::Relaxed) == COOKIE
    }

    pub(super) fn set_cookie(&self) {
        self.header.flag(0).store(COOKIE, Ordering::Relaxed);
    }

    #[inline(always)]
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.size - 1))
    }

    #[inline(always)]
    fn index(&self, at: usize) -> u16 {
        self.header.short(at as u64).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn publish(&self, at: usize, index: u16) {
        self.header.short(at as u64).store(index, Ordering::Release);
    }

    /// Returns the two words of a slot's descriptor.
    #[inline(always)]
    fn words(&self, slot: usize) -> [&AtomicU64; 2] {
        let at = (DESCRIPTOR * slot) as u64;
        [self.descriptors.word(at), self.descriptors.word(at + 8)]
    }

    #[inline(always)]
    fn descriptor(&self, slot: usize) -> Descriptor {
        Descriptor::of(self.words(slot).map(|word| word.load(Ordering::Relaxed)))
    }

    /// Writes a slot's descriptor as a whole.
    fn describe(&self, slot: usize, descriptor: Descriptor) {
        for (to, word) in self.words(slot).into_iter().zip(descriptor.words()) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Writes a slot's descriptor without its offset, which only the client ever writes, and only
    /// when it makes the ring.
    #[inline(always)]
    fn describe_again(&self, slot: usize, descriptor: Descriptor) {
        self.words(slot)[0].store(descriptor.words()[0], Ordering::Relaxed);
    }

    /// Writes the descriptors of all buffers of the client's ring.
    fn lay_out(&self, laid: Laid) {
        for slot in 0..usize::from(self.size) {
            self.describe(slot, self.own(laid, slot));
        }
    }

    /// Returns the descriptor of the empty buffer that the client offers in a slot.
    #[inline(always)]
    fn own(&self, laid: Laid, slot: usize) -> Descriptor {
        let offset = (laid.at + slot * laid.each) as u32;
        Descriptor { next: false, region: self.region, length: laid.each as u32, offset }
    }

    /// Returns the descriptor and the region of a slot's bytes. `None` if the descriptor is
    /// impossible.
    fn place(&self, slot: usize) -> Option<(Descriptor, &Region)> {
        let said = self.descriptor(slot);
        let known = match self.laid {
            Some(laid) => {
                let own = self.own(laid, slot);
                Descriptor {
                    next: said.next,
                    length: (said.length <= own.length).then_some(said.length)?,
                    ..own
                }
            }
            None => said,
        };
        let region = self.regions.get(usize::from(known.region))?;
        let end = u64::from(known.offset) + u64::from(known.length);
        (end <= region.len() as u64).then_some((known, region))
    }

    fn set_masked(&self, masked: bool) {
        let flags = self.header.short(FLAGS as u64);
        flags.store(if masked { MASK_INTERRUPT } else { 0 }, Ordering::Relaxed);
    }
}

/// The end of a ring that takes frames out. It gives slots back many at a time. The index that
/// gives them back shares a cache line with data that the peer reads for each frame in the other
/// direction, so each write of it costs the peer a cache miss.
#[derive(Debug)]
pub(super) struct Source {
    ring: Ring,
    /// The index of the next slot to be taken. The field `given` has the next one to be given back.
    next: u16,
    given: u16,
}

impl Source {
    /// Makes the receiving end of a new ring. The client offers all its buffers at once.
    pub(super) fn new(ring: Ring) -> Self {
        ring.set_masked(true);
        if let Some(laid) = ring.laid {
            ring.lay_out(laid);
            ring.publish(HEAD, ring.size);
        }
        Self { ring, next: 0, given: 0 }
    }

    /// Returns the number of slots that the peer has filled and this end has not taken.
    #[inline]
    fn filled(&self) -> Result<u16, Broken> {
        let produced = self.ring.index(if self.ring.laid.is_some() { TAIL } else { HEAD });
        let filled = produced.wrapping_sub(self.next);
        if filled <= self.ring.size { Ok(filled) } else { Err(Broken) }
    }

    /// True if the peer has changed its index. It reads one cache line.
    #[inline]
    pub(super) fn has_something(&self) -> bool {
        self.ring.index(if self.ring.laid.is_some() { TAIL } else { HEAD }) != self.next
    }

    /// Takes frames out of the ring until it is empty or the burst is full. Returns the number of
    /// bad frames.
    #[inline(always)]
    pub(super) fn take(&mut self, burst: &mut Burst) -> Result<u64, Broken> {
        let end = self.next.wrapping_add(self.filled()?);
        let mut bad = 0;
        while self.next != end && !burst.is_full() {
            if !self.take_plain(burst) {
                bad += u64::from(!self.take_frame(end, burst));
            }
        }
        if self.next.wrapping_sub(self.given) >= self.ring.size / HELD && !burst.holds() {
            self.give_back();
        }
        Ok(bad)
    }

    /// Takes one frame if it lies in one slot. Returns false if only [`Source::take_frame`] can
    /// decide.
    #[inline(always)]
    fn take_plain(&mut self, burst: &mut Burst) -> bool {
        let slot = self.ring.slot(self.next);
        let said = self.ring.descriptor(slot);
        let known = match self.ring.laid {
            Some(laid) => self.ring.own(laid, slot),
            None => said,
        };
        let (begin, n) = (known.offset as usize, said.length as usize);
        let Some(region) = self.ring.regions.get(usize::from(known.region)) else { return false };
        if said.next
            || said.length > known.length
            || !(HEADER..=MAX_FRAME).contains(&n)
            || begin + n > region.len()
        {
            return false;
        }
        if n >= LEAST_LEFT && burst.leaves() {
            burst.leave(region, begin, n);
        } else {
            region.append_to(begin, n, burst.begin());
            burst.end(true);
        }
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Takes one frame with all its slots. Returns false if it was a bad frame.
    #[inline(never)]
    fn take_frame(&mut self, end: u16, burst: &mut Burst) -> bool {
        let bytes = burst.begin();
        let start = bytes.len();
        let mut good = true;
        loop {
            let place = self.ring.place(self.ring.slot(self.next));
            self.next = self.next.wrapping_add(1);
            let Some((buffer, region)) = place else {
                good = false;
                break;
            };
            good &= bytes.len() - start + buffer.length as usize <= MAX_FRAME;
            if good {
                region.append_to(buffer.offset as usize, buffer.length as usize, bytes);
            }
            if !buffer.next {
                break;
            }
            if self.next == end {
                good = false;
                break;
            }
        }
        good &= bytes.len() - start >= HEADER;
        burst.end(good);
        good
    }

    /// Gives all slots that were taken back to the peer.
    #[inline(never)]
    pub(super) fn give_back(&mut self) {
        if self.given == self.next {
            return;
        }
        let Some(laid) = self.ring.laid else {
            self.given = self.next;
            return self.ring.publish(TAIL, self.next);
        };
        while self.given != self.next {
            let slot = self.ring.slot(self.given);
            self.ring.describe_again(slot, self.ring.own(laid, slot));
            self.given = self.given.wrapping_add(1);
        }
        self.ring.publish(HEAD, self.next.wrapping_add(self.ring.size));
    }

    /// Unmasks the ring's interrupt. Returns false if the peer has filled a slot already.
    pub(super) fn arm(&mut self) -> bool {
        self.give_back();
        self.ring.set_masked(false);
        // The flag must be there for the peer before this side looks for the last time.
        fence(Ordering::SeqCst);
        self.filled() == Ok(0)
    }

    /// Masks the ring's interrupt. This side never reads the interrupt's counter: the peer made it,
    /// and may let a read wait.
    pub(super) fn disarm(&self) {
        self.ring.set_masked(true);
    }

    pub(super) fn interrupt(&self) -> &OwnedFd {
        &self.ring.interrupt
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> &Arc<Region> {
        &self.ring.regions[usize::from(self.ring.region)]
    }
}

/// The end of a ring that puts frames in.
#[derive(Debug)]
pub(super) struct Sink {
    ring: Ring,
    /// The index of the next slot to be filled. The field `published` has the index that the peer
    /// can see.
    next: u16,
    published: u16,
    /// The peer's index when it was last read. A read of it costs a cache line of the other
    /// processor.
    seen: u16,
}

impl Sink {
    /// Makes the sending end of a new ring. The client describes its buffers once and for all.
    pub(super) fn new(ring: Ring) -> Self {
        if let Some(laid) = ring.laid {
            ring.lay_out(laid);
        }
        Self { ring, next: 0, published: 0, seen: 0 }
    }

    /// Returns the number of slots that can be filled by the peer's index as it was last read.
    #[inline]
    fn free(&self) -> u16 {
        match self.ring.laid {
            Some(_) => self.ring.size - self.next.wrapping_sub(self.seen),
            None => self.seen.wrapping_sub(self.next),
        }
    }

    /// Reads the peer's index. It is [`Broken`] if the index went back, or if it is more than a
    /// ring away from this end's.
    #[inline(never)]
    fn refresh(&mut self) -> Result<(), Broken> {
        let (size, before) = (self.ring.size, self.free());
        let seen = self.ring.index(if self.ring.laid.is_some() { TAIL } else { HEAD });
        let free = match self.ring.laid {
            Some(_) => size.checked_sub(self.next.wrapping_sub(seen)),
            None => Some(seen.wrapping_sub(self.next)).filter(|free| *free <= size),
        };
        // A peer that takes room back would have slots counted that there are not.
        if free.is_none_or(|free| free < before) {
            return Err(Broken);
        }
        self.seen = seen;
        Ok(())
    }

    /// Returns the buffer of a slot: its place and its length. The client uses its own layout, and
    /// not the descriptor.
    #[inline]
    fn room(&self, slot: usize) -> Option<Descriptor> {
        match self.ring.laid {
            Some(laid) => Some(self.ring.own(laid, slot)),
            None => self.ring.place(slot).map(|(d, _)| d),
        }
    }

    /// Puts one frame of `len` bytes, made of `parts`, into the ring. Returns false if there is no
    /// room now.
    pub(super) fn put(&mut self, parts: &[&[u8]], len: usize) -> Result<bool, Broken> {
        let mut slots: u16 = 0;
        let mut room = 0;
        while room < len {
            if slots == self.free() {
                self.refresh()?;
            }
            if slots == self.free() {
                // A ring that is too small for it altogether never has room.
                return if slots == self.ring.size { Err(Broken) } else { Ok(false) };
            }
            let slot = self.ring.slot(self.next.wrapping_add(slots));
            let buffer = self.room(slot).ok_or(Broken)?;
            // A buffer without room would make a frame of any number of slots.
            room += if buffer.length == 0 { return Err(Broken) } else { buffer.length as usize };
            slots += 1;
        }
        let mut parts = parts.iter().copied();
        let mut rest: &[u8] = &[];
        let mut left = len;
        for _ in 0..slots {
            let slot = self.ring.slot(self.next);
            // Asked again: the peer may have changed it, and what counts is what is written to.
            let buffer = self.room(slot).ok_or(Broken)?;
            let region = self.ring.regions.get(usize::from(buffer.region)).ok_or(Broken)?;
            let (mut at, mut used) = (buffer.offset as usize, 0);
            while used < buffer.length as usize && left > 0 {
                if rest.is_empty() {
                    rest = parts.next().unwrap_or_default();
                    continue;
                }
                let n = rest.len().min(buffer.length as usize - used);
                region.copy_in(at, &rest[..n]);
                (at, used, left, rest) = (at + n, used + n, left - n, &rest[n..]);
            }
            let full = Descriptor { next: left > 0, length: used as u32, ..buffer };
            self.ring.describe_again(slot, full);
            self.next = self.next.wrapping_add(1);
        }
        // The peer made a buffer smaller between the two looks: nothing of this was published.
        if left > 0 { Err(Broken) } else { Ok(true) }
    }

    /// Puts a frame of `headers` and `parts` into the ring if one buffer holds it. `None` if only
    /// [`Sink::put`] can decide.
    #[inline(always)]
    pub(super) fn put_behind(
        &mut self,
        headers: &Headers,
        parts: &[&[u8]],
    ) -> Result<Option<bool>, Broken> {
        if self.free() == 0 {
            self.refresh()?;
            if self.free() == 0 {
                return Ok(Some(false));
            }
        }
        let slot = self.ring.slot(self.next);
        let buffer = match self.ring.laid {
            Some(laid) => self.ring.own(laid, slot),
            None => self.ring.descriptor(slot),
        };
        let (begin, room) = (buffer.offset as usize, buffer.length as usize);
        let Some(region) = self.ring.regions.get(usize::from(buffer.region)) else {
            return Ok(None);
        };
        let Some(length) = region.fill(begin, room, headers.words(), headers.len(), parts) else {
            return Ok(None);
        };
        let full = Descriptor { next: false, length: length as u32, ..buffer };
        self.ring.describe_again(slot, full);
        self.next = self.next.wrapping_add(1);
        Ok(Some(true))
    }

    /// Shows the peer the frames that were put into the ring, and wakes it if it wants interrupts.
    #[inline]
    pub(super) fn flush(&mut self) {
        if self.published == self.next {
            return;
        }
        self.published = self.next;
        let header = &self.ring.header;
        let index = header.short(if self.ring.laid.is_some() { HEAD } else { TAIL } as u64);
        // The index must be visible before the peer's flag is read. One order for both is cheaper
        // than a fence.
        index.store(self.next, Ordering::SeqCst);
        if header.short(FLAGS as u64).load(Ordering::SeqCst) & MASK_INTERRUPT == 0 {
            signal(&self.ring.interrupt);
        }
    }
}

/// Adds one to an interrupt's eventfd, which the peer has open too. The peer may have filled it and
/// may let writes wait, so a full eventfd gets no write: it wakes as it is.
fn signal(interrupt: &OwnedFd) {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut [PollFd::new(interrupt, PollFlags::OUT)], Some(&now)).is_ok_and(|ready| ready > 0)
    {
        let _ = rustix::io::write(interrupt, &1_u64.to_le_bytes());
    }
}

/// Makes an eventfd for a ring's interrupt.
///
/// # Errors
/// No descriptors left.
pub(super) fn interrupt() -> io::Result<OwnedFd> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
}

#[cfg(fuzzing)]
pub(super) mod fuzz;
#[cfg(test)]
mod tests;
