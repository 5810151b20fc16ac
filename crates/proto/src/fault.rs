//! What may go wrong with a datagram on its way, drawn from a seed: one model for the simulator's wire and for the
//! fault-injecting wrapper around a real driver.

use crate::Rng;

/// How often what goes wrong, in parts per million of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Lost.
    pub drop_ppm: u32,
    /// Delivered twice.
    pub duplicate_ppm: u32,
    /// Held back so that later ones overtake it.
    pub reorder_ppm: u32,
    /// One bit flipped.
    pub corrupt_ppm: u32,
    /// Cut short.
    pub truncate_ppm: u32,
    /// The longest time that a held-back datagram waits, in nanoseconds.
    pub reorder_ns: u64,
}

/// What becomes of one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Fate {
    /// How many copies arrive: 0, 1 or 2.
    pub copies: u8,
    /// How much later than it would have been each copy arrives.
    pub delay_ns: [u64; 2],
    /// The bit to flip in the first copy.
    pub flip_bit: Option<usize>,
    /// The length to cut the first copy to.
    pub cut_to: Option<usize>,
}

impl Fault {
    /// Draws the fate of a datagram of `len` bytes.
    pub fn fate(&self, rng: &mut Rng, len: usize) -> Fate {
        let mut fate = Fate { copies: 1, ..Fate::default() };
        if rng.chance(self.drop_ppm) {
            fate.copies = 0;
            return fate;
        }
        if rng.chance(self.duplicate_ppm) {
            fate.copies = 2;
            fate.delay_ns[1] = rng.below(self.reorder_ns + 1);
        }
        if rng.chance(self.reorder_ppm) {
            fate.delay_ns[0] = rng.below(self.reorder_ns + 1);
        }
        if len > 0 && rng.chance(self.corrupt_ppm) {
            fate.flip_bit = Some(rng.below(8 * len as u64) as usize);
        }
        if len > 0 && rng.chance(self.truncate_ppm) {
            fate.cut_to = Some(rng.below(len as u64) as usize);
        }
        fate
    }
}
