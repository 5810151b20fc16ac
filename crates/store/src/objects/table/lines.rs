//! The lines of the hash table, in blocks of memory that come and go one by one.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The number of entries in a line.
pub(super) const WIDTH: usize = 8;
const EMPTY: [u64; WIDTH] = [0; WIDTH];

/// A line: eight entries on one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line([u64; WIDTH]);

/// Lines in blocks of two to the power of `BITS`. A block takes memory from the first write to one
/// of its lines until [`Blocks::free_below`] gives it back, so that neither growth nor its end
/// moves much memory at once.
#[derive(Debug)]
pub(super) struct Blocks<const BITS: u32> {
    blocks: Vec<Box<[Line]>>,
    /// The number of lines.
    len: usize,
    /// The blocks below this one were given back.
    freed: usize,
}

impl<const BITS: u32> Blocks<BITS> {
    const IN_BLOCK: usize = 1 << BITS;

    pub(super) fn new(len: usize) -> Self {
        let mut blocks = Vec::new();
        blocks.resize_with(len.div_ceil(Self::IN_BLOCK), Box::default);
        Self { blocks, len, freed: 0 }
    }

    /// Returns the number of lines.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds an empty line.
    pub(super) fn push(&mut self) {
        if self.len == self.blocks.len() * Self::IN_BLOCK {
            self.blocks.push(Box::default());
        }
        self.len += 1;
    }

    #[inline]
    pub(super) fn line(&self, n: usize) -> &[u64; WIDTH] {
        let block = &self.blocks[n >> BITS];
        block.get(n % Self::IN_BLOCK).map_or(&EMPTY, |Line(line)| line)
    }

    #[inline]
    pub(super) fn line_mut(&mut self, n: usize) -> &mut [u64; WIDTH] {
        let block = &mut self.blocks[n >> BITS];
        if block.is_empty() {
            // The last block of a table is shorter; blocks to which lines are added are whole.
            let lines =
                if BITS == SPILL_BITS { Self::IN_BLOCK } else { self.len - (n >> BITS << BITS) };
            *block = vec![Line(EMPTY); lines.min(Self::IN_BLOCK)].into();
        }
        &mut block[n % Self::IN_BLOCK].0
    }

    /// Gives back the memory of the blocks all of whose lines are below `n`.
    pub(super) fn free_below(&mut self, n: usize) {
        while self.freed < n >> BITS {
            self.blocks[self.freed] = Box::default();
            self.freed += 1;
        }
    }

    /// Returns the number of bytes of memory that the lines take.
    pub(super) fn memory_bytes(&self) -> u64 {
        let lines: usize = self.blocks.iter().map(|block| block.len()).sum();
        (size_of_val(&self.blocks[..]) + lines * size_of::<Line>()) as u64
    }
}

/// The size of a block of overflow lines, as a power of two.
pub(super) const SPILL_BITS: u32 = 6;
