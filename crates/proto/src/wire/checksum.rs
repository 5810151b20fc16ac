//! CRC32C (Castagnoli), the portable version: the oracle for the fast ones and what tests and the simulator use; and the
//! checksum of IP, ICMP, UDP and TCP (RFC 1071).

/// Continues a CRC32C: `crc` is the value so far (0 at the start), the result covers what came before and `bytes`.
pub type Crc32c = fn(crc: u32, bytes: &[u8]) -> u32;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 { (c >> 1) ^ 0x82f6_3b78 } else { c >> 1 };
            bit += 1;
        }
        table[i] = c;
        i += 1;
    }
    table
};

/// One byte more; `state` is the complement of a value.
#[inline]
pub(super) const fn step(state: u32, byte: u8) -> u32 {
    (state >> 8) ^ TABLE[((state ^ byte as u32) & 0xff) as usize]
}

/// CRC32C by table, a byte at a time (RFC 3720 B.4 has test vectors).
#[must_use]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!crc, |state, &byte| step(state, byte))
}

/// A ones' complement sum of octets in pairs, under way. Its parts may have any length, odd ones too.
///
/// Pairs are added with their octets swapped, which the processor reads faster and the end undoes (RFC 1071 section 2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// Carries are folded in at the end: 2³² parts of 64 KiB would fit.
    value: u64,
    /// The octets so far are odd in number.
    odd: bool,
}

impl Sum {
    /// Of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { value: 0, odd: false }
    }

    /// Of numbers in the processor's order, least octet first, that were added without a carry lost: of pairs of octets, or of
    /// several at once.
    #[inline]
    #[must_use]
    pub(crate) const fn of_pairs(sum: u64) -> Self {
        Self { value: sum, odd: false }
    }

    /// Continued by a pair of octets. What came before must be even in number.
    #[inline]
    #[must_use]
    pub const fn word(self, word: u16) -> Self {
        Self { value: self.value.wrapping_add(word.swap_bytes() as u64), odd: self.odd }
    }

    /// Continued by `bytes`.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let sum = pairs(bytes);
        // A part that begins in the middle of a pair counts with the octets of all its pairs swapped.
        let sum = if self.odd { u64::from(fold(sum).swap_bytes()) } else { sum };
        Self { value: self.value.wrapping_add(sum), odd: self.odd ^ (bytes.len() % 2 == 1) }
    }

    /// The sum in 16 bits: what a device that computes the rest wants to find in the field.
    #[inline]
    #[must_use]
    pub const fn folded(self) -> u16 {
        fold(self.value).swap_bytes()
    }

    /// The checksum: its complement. Of octets that contain their own right checksum it is 0.
    #[inline]
    #[must_use]
    pub const fn checksum(self) -> u16 {
        !self.folded()
    }
}

const fn fold(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff).wrapping_add(sum >> 32);
    let sum = (sum & 0xffff_ffff).wrapping_add(sum >> 32);
    let sum = (sum & 0xffff).wrapping_add(sum >> 16);
    ((sum & 0xffff).wrapping_add(sum >> 16) & 0xffff) as u16
}

/// The sum of `bytes`, octets swapped, without folding. Nothing wraps below 2³² words of four octets.
#[inline]
fn pairs(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let sum =
        words.iter().fold(0u64, |sum, &word| sum.wrapping_add(u64::from(u32::from_le_bytes(word))));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum.wrapping_add(u64::from(u32::from_le_bytes(last)))
}

#[cfg(test)]
mod tests {
    use super::{Sum, crc32c};

    /// RFC 1071 section 3: the numerical example, as bytes and as pairs.
    #[test]
    fn rfc_1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::new().bytes(&bytes).folded(), 0xddf2);
        assert_eq!(Sum::new().word(0x0001).word(0xf203).bytes(&bytes[4..]).checksum(), !0xddf2);
    }

    /// Each way to cut octets into parts gives the sum that adding pair by pair gives.
    #[test]
    fn sums_do_not_depend_on_where_they_are_cut() {
        let bytes: [u8; 61] = core::array::from_fn(|i| (i * i * 7 + 201) as u8);
        for len in 0..bytes.len() {
            let bytes = &bytes[..len];
            let mut plain = 0u32;
            for pair in bytes.chunks(2) {
                plain += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |&b| u32::from(b));
                plain = (plain & 0xffff) + (plain >> 16);
            }
            for cut in 0..=len {
                let (a, b) = bytes.split_at(cut);
                for more in 0..=b.len().min(5) {
                    let sum = Sum::new().bytes(a).bytes(&b[..more]).bytes(&b[more..]);
                    assert_eq!(
                        u32::from(sum.folded()),
                        plain,
                        "{len} octets cut at {cut} and {more} later"
                    );
                }
            }
        }
        assert_eq!(Sum::new().bytes(&[0xff; 65_535]).bytes(&[0xff; 65_535]).folded(), 0xffff);
    }

    #[test]
    fn rfc_3720_vectors() {
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(0, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(crc32c(0, b"1234"), b"56789"), 0xe306_9283);
    }
}
