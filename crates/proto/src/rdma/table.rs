//! A table of objects that callers name by number.
//!
//! ```text
//!  number = generation | index        index: 18 bits; in all: `BITS` bits
//! ```
//!
//! Invariant: a number that was given back names nothing until its index has passed through all
//! generations, so a late call does not reach a successor. No number is below 2¹⁸, and so none is
//! one that InfiniBand reserves.

use alloc::boxed::Box;
use alloc::vec::Vec;

const INDEX_BITS: u32 = 18;
/// The most objects of one table of the engine.
pub(super) const MOST: usize = 1 << INDEX_BITS;

/// A table of objects that callers name by numbers of `BITS` bits.
#[derive(Debug)]
pub(super) struct Table<T, const BITS: u32> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    item: Option<Box<T>>,
}

impl<T, const BITS: u32> Table<T, BITS> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// The number of objects in the table.
    pub(super) const fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Inserts into the table the object that `make` creates from its number. Returns `None` if the
    /// table is full.
    pub(super) fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() == MOST => return None,
            None => {
                self.slots.push(Slot { generation: 1, item: None });
                self.slots.len() as u32 - 1
            }
        };
        let slot = &mut self.slots[index as usize];
        let number = slot.generation << INDEX_BITS | index;
        slot.item = Some(Box::new(make(number)));
        Some(number)
    }

    /// Removes an object from the table. Its number is void from now on.
    pub(super) fn remove(&mut self, number: u32) -> Option<Box<T>> {
        let slot = self.slot(number)?;
        let item = slot.item.take()?;
        slot.generation = (slot.generation + 1) % (1 << (BITS - INDEX_BITS));
        slot.generation = slot.generation.max(1);
        self.free.push(number % (1 << INDEX_BITS));
        Some(item)
    }

    fn slot(&mut self, number: u32) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut((number % (1 << INDEX_BITS)) as usize)?;
        (slot.generation == number >> INDEX_BITS).then_some(slot)
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let slot = self.slots.get((number % (1 << INDEX_BITS)) as usize)?;
        if slot.generation != number >> INDEX_BITS {
            return None;
        }
        slot.item.as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slot(number)?.item.as_deref_mut()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.item.as_deref_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::{INDEX_BITS, Table};

    /// A removed number stays void while its index serves others, until the generations repeat.
    #[test]
    fn old_numbers_name_nothing() {
        let mut table: Table<u32, 20> = Table::new();
        let first = table.insert(|n| n).unwrap();
        let other = table.insert(|n| n).unwrap();
        assert_eq!((first, other), (1 << INDEX_BITS, 1 << INDEX_BITS | 1));
        assert_eq!(table.remove(first).as_deref(), Some(&first));
        assert!(table.remove(first).is_none() && table.get(first).is_none());
        let second = table.insert(|n| n).unwrap();
        assert_eq!(second, 2 << INDEX_BITS);
        assert!(table.get(first).is_none() && table.get_mut(second).is_some());
        table.remove(second);
        let third = table.insert(|n| n).unwrap();
        table.remove(third);
        assert_eq!(table.insert(|n| n), Some(first), "generation 0 is never used");
        assert_eq!(table.used(), 2);
    }
}
