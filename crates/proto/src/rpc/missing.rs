//! The packets of a message that are to be sent again, as a bitmap.

use crate::wire::rpc::NACK_PACKETS;

/// The packets of a message that are to be sent again: bit `i` stands for the packet at byte `base
/// + i · mss`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Missing {
    pub(super) base: u32,
    pub(super) bits: [u64; NACK_PACKETS as usize / 64],
}

impl Missing {
    pub(super) fn is_empty(&self) -> bool {
        self.bits == [0; 4]
    }

    pub(super) fn set(&mut self, packet: u32) {
        self.bits[(packet / 64) as usize] |= 1 << (packet % 64);
    }

    /// Removes the first packet from the bitmap of missing packets and returns its index.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let word = self.bits.iter().position(|&w| w != 0)?;
        let bit = self.bits[word].trailing_zeros();
        self.bits[word] &= self.bits[word] - 1;
        Some(word as u32 * 64 + bit)
    }

    /// The body of a NACK with this bitmap: big-endian words; bit 0 of the first word is the packet
    /// at `base`.
    pub(super) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (out, word) in bytes.chunks_exact_mut(8).zip(self.bits) {
            out.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Reads the bitmap of missing packets in the body of a NACK.
    pub(super) fn from_bytes(base: u32, bytes: &[u8]) -> Self {
        let mut missing = Self { base, ..Self::default() };
        for (word, chunk) in missing.bits.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = chunk.iter().fold(0, |w, &b| w << 8 | u64::from(b));
        }
        missing
    }
}
