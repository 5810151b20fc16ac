//! CRC32C (Castagnoli) in portable code, and the Internet checksum of IP, ICMP, UDP and TCP
//! (RFC 1071).
//!
//! Tests compare the fast implementations of CRC32C with this one, and the simulator uses it.

/// A function that continues a CRC32C: `crc` is the value so far (0 at the start), and the result
/// covers the earlier bytes and `bytes`.
pub type Crc32c = fn(crc: u32, bytes: &[u8]) -> u32;

/// The CRC32C of each byte, followed by as many zero bytes as the index of the table.
const TABLES: [[u32; 256]; WORD] = {
    let mut tables = [[0; 256]; WORD];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 { (c >> 1) ^ 0x82f6_3b78 } else { c >> 1 };
            bit += 1;
        }
        tables[0][i] = c;
        i += 1;
    }
    let mut zeros = 1;
    while zeros < WORD {
        let mut i = 0;
        while i < 256 {
            let c = tables[zeros - 1][i];
            tables[zeros][i] = (c >> 8) ^ tables[0][(c & 0xff) as usize];
            i += 1;
        }
        zeros += 1;
    }
    tables
};

/// The number of bytes that [`crc32c`] looks up at once.
const WORD: usize = 8;

/// Adds one byte to a CRC32C. `state` is the complement of the value so far.
#[inline]
pub(super) const fn step(state: u32, byte: u8) -> u32 {
    (state >> 8) ^ TABLES[0][((state ^ byte as u32) & 0xff) as usize]
}

/// Adds eight bytes to a CRC32C. `state` is the complement of the value so far.
#[inline]
fn step_word(state: u32, word: [u8; WORD]) -> u32 {
    let [a, b, c, d, e, f, g, h] = (u64::from_le_bytes(word) ^ u64::from(state)).to_le_bytes();
    let at = |zeros: usize, byte: u8| TABLES[zeros][usize::from(byte)];
    at(7, a) ^ at(6, b) ^ at(5, c) ^ at(4, d) ^ at(3, e) ^ at(2, f) ^ at(1, g) ^ at(0, h)
}

/// Continues a CRC32C by tables, eight bytes at a time (slicing by 8). The CRC of packets takes
/// most of the time of simulations with large objects.
#[must_use]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<WORD>();
    let state = words.iter().fold(!crc, |state, &word| step_word(state, word));
    !rest.iter().fold(state, |state, &byte| step(state, byte))
}

/// An Internet checksum in progress: a ones' complement sum of 16-bit words. Its parts may have any
/// length, odd ones too.
///
/// The sum adds words in little-endian order, which is faster on little-endian processors, and
/// swaps the bytes of the result (RFC 1071 section 2).
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    /// The Internet checksum's sum before carries are folded in. It has room for 2³² parts of 64
    /// KiB.
    value: u64,
    /// The Internet checksum so far covers an odd number of bytes.
    odd: bool,
}

impl Sum {
    /// Returns the Internet checksum's sum of no bytes.
    #[must_use]
    pub const fn new() -> Self {
        Self { value: 0, odd: false }
    }

    /// Makes the Internet checksum's sum from a plain sum of little-endian words of 16 or 32 bits
    /// that did not overflow.
    #[inline]
    #[must_use]
    pub(crate) const fn from_words(sum: u64) -> Self {
        Self { value: sum, odd: false }
    }

    /// Adds a 16-bit word to the Internet checksum. The number of bytes before it must be even.
    #[inline]
    #[must_use]
    pub const fn word(self, word: u16) -> Self {
        Self { value: self.value.wrapping_add(word.swap_bytes() as u64), odd: self.odd }
    }

    /// Adds `bytes` to the Internet checksum.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let sum = sum_words(bytes);
        // A part that begins in the middle of a word counts with the bytes of all its words
        // swapped.
        let sum = if self.odd { u64::from(fold(sum).swap_bytes()) } else { sum };
        Self { value: self.value.wrapping_add(sum), odd: self.odd ^ (bytes.len() % 2 == 1) }
    }

    /// Returns the Internet checksum's sum in 16 bits, not complemented: the value that a device
    /// with checksum offload expects in the checksum field.
    #[inline]
    #[must_use]
    pub const fn folded(self) -> u16 {
        fold(self.value).swap_bytes()
    }

    /// Returns the Internet checksum, the complement of the sum. It is 0 for bytes that contain
    /// their own correct checksum.
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

/// Returns the plain sum of `bytes` as little-endian 32-bit words, for the Internet checksum. It
/// does not overflow below 2³² words.
#[inline]
fn sum_words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let sum =
        words.iter().fold(0u64, |sum, &word| sum.wrapping_add(u64::from(u32::from_le_bytes(word))));
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum.wrapping_add(u64::from(u32::from_le_bytes(last)))
}

#[cfg(test)]
mod tests {
    use super::{Sum, crc32c, step};

    /// The numerical example of the Internet checksum in RFC 1071 section 3, as bytes and as words.
    #[test]
    fn rfc_1071_example() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(Sum::new().bytes(&bytes).folded(), 0xddf2);
        assert_eq!(Sum::new().word(0x0001).word(0xf203).bytes(&bytes[4..]).checksum(), !0xddf2);
    }

    /// An Internet checksum over parts of any lengths equals the one that is added word by word.
    #[test]
    fn a_sum_does_not_depend_on_the_cuts_between_its_parts() {
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
                        "{len} bytes cut at {cut} and {more} later"
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

    #[test]
    fn a_crc_by_words_is_the_crc_by_bytes() {
        let bytes: [u8; 41] = core::array::from_fn(|i| (i * i * 7 + 201) as u8);
        for len in 0..bytes.len() {
            let plain = !bytes[..len].iter().fold(!0, |state, &byte| step(state, byte));
            for cut in 0..=len {
                assert_eq!(crc32c(crc32c(0, &bytes[..cut]), &bytes[cut..len]), plain);
            }
        }
    }
}
