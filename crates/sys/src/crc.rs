//! CRC32C at the machine's speed, in the form that the protocol crate asks for
//! ([`sprat_proto::wire::checksum::Crc32c`]).
//!
//! Headers and small messages go through the CPU's own instruction, eight bytes at a time; longer
//! ones through crc-fast, which folds whole vectors but costs some ten nanoseconds to begin. The
//! portable version in `proto` is the oracle of both.

use crc_fast::{CrcAlgorithm, Digest};

/// The greatest length at which the CPU's CRC32C instruction is faster than crc-fast.
#[cfg(target_arch = "x86_64")]
const SHORT: usize = 256;
/// The least length that may be a piece of a long message, for which [`long`] fetches the bytes
/// behind it.
#[cfg(target_arch = "x86_64")]
const PIECE: usize = 1024;

/// Continues a CRC32C over `bytes`: `crc` is the value so far (0 at the start), and the result
/// covers the earlier bytes and `bytes`.
#[must_use]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() <= SHORT && std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the only condition of `short` is that this CPU has SSE4.2, which the line above
        // found.
        return unsafe { short(crc, bytes) };
    }
    long(crc, bytes)
}

/// Continues a CRC32C over many bytes by crc-fast. It is a function of its own, so that a short CRC
/// needs no room on the stack for crc-fast's state.
#[inline(never)]
fn long(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= PIECE {
        fetch_behind(bytes);
    }
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// Prefetches as many bytes behind `bytes` as it has, up to a page. A piece of a long message is
/// followed by the next one, whose bytes may be in no cache.
#[cfg(target_arch = "x86_64")]
fn fetch_behind(bytes: &[u8]) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    for at in (bytes.len()..bytes.len() + bytes.len().min(4096)).step_by(64) {
        let line = bytes.as_ptr().wrapping_add(at);
        // SAFETY: a hint reads nothing for the program and faults nowhere, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn short(crc: u32, bytes: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};

    let step = |state, word: &[u8; 8]| _mm_crc32_u64(state, u64::from_le_bytes(*word));
    let (words, rest) = bytes.as_chunks::<8>();
    // By four words, since a loop costs more instructions than it computes.
    let (fours, few) = words.as_chunks::<4>();
    let state = fours
        .iter()
        .fold(u64::from(!crc), |state, [a, b, c, d]| step(step(step(step(state, a), b), c), d));
    let mut state = few.iter().fold(state, step) as u32;
    // Of the rest, four, two and one: steps that wait for one another, so that few are soon done.
    let (half, rest) = rest.as_chunks::<4>();
    if let [half] = half {
        state = _mm_crc32_u32(state, u32::from_le_bytes(*half));
    }
    let (pair, rest) = rest.as_chunks::<2>();
    if let [pair] = pair {
        state = _mm_crc32_u16(state, u16::from_le_bytes(*pair));
    }
    if let [byte] = rest {
        state = _mm_crc32_u8(state, *byte);
    }
    !state
}

#[cfg(test)]
mod tests {
    use sprat_proto::Rng;
    use sprat_proto::wire::checksum::{self, Crc32c};

    use super::crc32c;

    #[test]
    fn agrees_with_the_portable_one_at_every_length_cut_and_alignment() {
        let mut rng = Rng::seeded(1);
        let mut bytes = vec![0; 70_000];
        rng.fill(&mut bytes);
        let lens = (0..700).chain([1400, 4096, 8188, 65_507, 69_990]);
        for len in lens {
            let from = rng.below(8) as usize;
            let bytes = &bytes[from..from + len];
            let whole = checksum::crc32c(0, bytes);
            assert_eq!(crc32c(0, bytes), whole, "{len} bytes at {from}");
            let (a, b) = bytes.split_at(rng.below(len as u64 + 1) as usize);
            assert_eq!(crc32c(crc32c(0, a), b), whole, "{len} bytes at {from}, cut at {}", a.len());
        }
    }

    #[test]
    fn has_the_form_that_the_protocol_takes() {
        let f: Crc32c = crc32c;
        // RFC 3720 B.4
        assert_eq!(f(0, &[0; 32]), 0x8a91_36aa);
    }
}
