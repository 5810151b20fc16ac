//! The memory that a program has registered, by the numbers that the engine knows it by.
//!
//! ```text
//!  number = generation (12 bits) | slot (20 bits)
//! ```
//!
//! Always holds: the engine has checked every span against its registration before it comes here, and a region lives at
//! least as long as its registration, so that nothing is refused in practice; what is checked again costs one comparison.
//! A number is never given out twice: what a stream has still to send of a region that has gone finds nothing, not the
//! region's successor.

use std::sync::Arc;

use sprat_proto::rdma::{Memory, Span, Unmapped};

use crate::mem::Region;

/// Bits of a number that are the slot; the others count how often it was used.
const SLOT_BITS: u32 = 20;
const SLOTS: usize = 1 << SLOT_BITS;
const LAST_GENERATION: u32 = (1 << (32 - SLOT_BITS)) - 1;

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    region: Option<Arc<Region>>,
}

/// Registered regions.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Octets that came by [`Memory::write`].
    pub(crate) written: u64,
}

fn slot_of(number: u32) -> usize {
    number as usize % SLOTS
}

impl Regions {
    /// Takes a region in; returns its number, `None` if there are too many.
    pub(crate) fn insert(&mut self, region: Arc<Region>) -> Option<u32> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.slots.len() == SLOTS => return None,
            None => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
        };
        let slot = &mut self.slots[at as usize];
        slot.region = Some(region);
        Some(slot.generation << SLOT_BITS | at)
    }

    /// Lets a region go: its number stands for nothing.
    pub(crate) fn remove(&mut self, number: u32) {
        let Some(slot) = self.slots.get_mut(slot_of(number)) else { return };
        if slot.generation != number >> SLOT_BITS || slot.region.take().is_none() {
            return;
        }
        // A slot whose numbers are used up is used no more: 24 bytes for every four thousand registrations.
        if slot.generation < LAST_GENERATION {
            slot.generation += 1;
            self.free.push(slot_of(number) as u32);
        }
    }

    /// The region of a span, if the span lies within it.
    #[inline]
    pub(crate) fn of(&self, span: Span) -> Option<&Region> {
        let slot = self.slots.get(slot_of(span.region))?;
        if slot.generation != span.region >> SLOT_BITS {
            return None;
        }
        let region = slot.region.as_deref()?;
        let end = span.offset.checked_add(u64::from(span.len))?;
        (end <= region.len() as u64).then_some(region)
    }
}

impl Memory for Regions {
    #[inline]
    fn write(&mut self, span: Span, bytes: &[u8]) -> Result<(), Unmapped> {
        debug_assert_eq!(span.len as usize, bytes.len(), "a span is as long as what is copied");
        self.of(span).ok_or(Unmapped)?.copy_in(span.offset as usize, bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    #[inline]
    fn read(&mut self, span: Span, bytes: &mut [u8]) -> Result<(), Unmapped> {
        debug_assert_eq!(span.len as usize, bytes.len(), "a span is as long as what is copied");
        self.of(span).ok_or(Unmapped)?.copy_out(span.offset as usize, bytes);
        Ok(())
    }

    fn atomic(&mut self, span: Span, change: &mut dyn FnMut(u64) -> u64) -> Result<u64, Unmapped> {
        use std::sync::atomic::Ordering;
        let region = self.of(span).filter(|_| span.offset.is_multiple_of(8)).ok_or(Unmapped)?;
        let word = region.word(span.offset as usize);
        let mut old = word.load(Ordering::SeqCst);
        while let Err(other) = word.compare_exchange(old, change(old), Ordering::SeqCst, Ordering::SeqCst) {
            old = other;
        }
        Ok(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(region: u32, offset: u64, len: u32) -> Span {
        Span { region, offset, len }
    }

    #[test]
    fn copies_stay_within_the_region_and_its_life() {
        let mut regions = Regions::default();
        let first = regions.insert(Arc::new(Region::anonymous(4096).unwrap())).unwrap();
        let second = regions.insert(Arc::new(Region::anonymous(4096).unwrap())).unwrap();
        assert_ne!(first, second);
        regions.write(span(first, 4090, 6), b"sprats").unwrap();
        let mut bytes = [0; 6];
        regions.read(span(first, 4090, 6), &mut bytes).unwrap();
        assert_eq!(&bytes, b"sprats");
        regions.read(span(second, 4090, 6), &mut bytes).unwrap();
        assert_eq!(bytes, [0; 6]);
        assert_eq!(regions.write(span(first, 4091, 6), b"sprats"), Err(Unmapped));
        assert_eq!(regions.write(span(first, u64::MAX, 6), b"sprats"), Err(Unmapped));
        assert_eq!(regions.written, 6);
    }

    #[test]
    fn a_number_is_given_out_once() {
        let mut regions = Regions::default();
        let region = Arc::new(Region::anonymous(4096).unwrap());
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..3 * (LAST_GENERATION + 1) {
            let number = regions.insert(Arc::clone(&region)).unwrap();
            assert!(seen.insert(number), "{number}");
            regions.remove(number);
            regions.remove(number);
            assert_eq!(regions.read(span(number, 0, 1), &mut [0]), Err(Unmapped));
        }
        assert_eq!(regions.slots.len(), 3);
    }

    #[test]
    fn an_atomic_is_one_step_on_an_aligned_word() {
        let mut regions = Regions::default();
        let region = regions.insert(Arc::new(Region::anonymous(4096).unwrap())).unwrap();
        assert_eq!(regions.atomic(span(region, 8, 8), &mut |_| 5), Ok(0));
        assert_eq!(regions.atomic(span(region, 8, 8), &mut |old| old + 2), Ok(5));
        assert_eq!(regions.atomic(span(region, 8, 8), &mut |old| old), Ok(7));
        assert_eq!(regions.atomic(span(region, 4, 8), &mut |old| old), Err(Unmapped));
    }
}
