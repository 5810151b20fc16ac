//! CRC32C of memory that another process or thread may be writing at the same moment.
//!
//! No slice of such memory may exist, so the loop is inline assembly, opaque to the compiler like
//! the copies in [`copy`](super::copy). Each step folds 256 bytes into four vector registers. The
//! end leaves 256 private bytes that have the CRC of all folded bytes, and the library sums those
//! ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).

#[cfg(target_arch = "x86_64")]
use super::copy::copy;
#[cfg(target_arch = "x86_64")]
use crate::crc::crc32c;

/// The bytes of one step.
#[cfg(target_arch = "x86_64")]
const STEP: usize = 256;

/// The polynomial of CRC32C without its highest bit.
#[cfg(target_arch = "x86_64")]
const POLYNOMIAL: u32 = 0x1edc_6f41;

/// The remainder of x^`power`, reflected, and shifted as a product of reflected numbers needs it.
#[cfg(target_arch = "x86_64")]
const fn factor(power: usize) -> u64 {
    let (mut remainder, mut i) = (1_u32, 0);
    while i < power {
        let carry = remainder >> 31;
        remainder = remainder << 1 ^ if carry == 1 { POLYNOMIAL } else { 0 };
        i += 1;
    }
    (remainder.reverse_bits() as u64) << 1
}

/// The factors that move the low and the high half of 128 bits forward by one step.
#[cfg(target_arch = "x86_64")]
const FACTORS: [u64; 2] = [factor(8 * STEP + 32), factor(8 * STEP - 32)];

/// Extends the CRC32C `crc` over `n` bytes at `src`. Returns `None` if this CPU cannot fold. If the
/// bytes change meanwhile, the result is the CRC of any mixture.
///
/// # Safety
/// `src` must be readable for `n` bytes.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn sum(crc: u32, src: *const u8, n: usize) -> Option<u32> {
    if !std::arch::is_x86_feature_detected!("avx512f")
        || !std::arch::is_x86_feature_detected!("vpclmulqdq")
    {
        return None;
    }
    let mut block = [0; STEP];
    let (whole, rest) = (n - n % STEP, n % STEP);
    let crc = if whole > 0 {
        // SAFETY: the CPU has the features, and the first `whole` of the `n` bytes are readable.
        unsafe { fold(!crc, src, whole, &mut block) };
        crc32c(!0, &block)
    } else {
        crc
    };
    let rest = &mut block[..rest];
    // SAFETY: the bytes behind the first `whole` are readable, and `block` is memory of this
    // function.
    unsafe { copy(rest.as_mut_ptr(), src.add(whole), rest.len()) };
    Some(crc32c(crc, rest))
}

/// Leaves bytes in `folded` that have, from state 0, the CRC state of `n` bytes at `src` from
/// `state`.
///
/// # Safety
/// The CPU must have the features; `n` must be a multiple of [`STEP`] and not 0; `src` must be
/// readable for `n` bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,vpclmulqdq")]
unsafe fn fold(state: u32, src: *const u8, n: usize, folded: &mut [u8; STEP]) {
    let first = [u64::from(state), 0];
    // SAFETY: each step loads 256 of the `n` bytes, and only registers and `folded` are written.
    unsafe {
        core::arch::asm!(
            "vbroadcasti32x4 {k}, [{factors}]",
            "vmovdqu {s:x}, [{first}]",
            "vpxorq {a}, {s}, [{src}]",
            "vmovdqu64 {b}, [{src} + 64]",
            "vmovdqu64 {c}, [{src} + 128]",
            "vmovdqu64 {d}, [{src} + 192]",
            "sub {n}, 256",
            "jz 3f",
            "2:",
            "add {src}, 256",
            "vpclmulqdq {s}, {a}, {k}, 0x00",
            "vpclmulqdq {a}, {a}, {k}, 0x11",
            "vpclmulqdq {t}, {b}, {k}, 0x00",
            "vpclmulqdq {b}, {b}, {k}, 0x11",
            "vpternlogq {a}, {s}, [{src}], 0x96",
            "vpternlogq {b}, {t}, [{src} + 64], 0x96",
            "vpclmulqdq {s}, {c}, {k}, 0x00",
            "vpclmulqdq {c}, {c}, {k}, 0x11",
            "vpclmulqdq {t}, {d}, {k}, 0x00",
            "vpclmulqdq {d}, {d}, {k}, 0x11",
            "vpternlogq {c}, {s}, [{src} + 128], 0x96",
            "vpternlogq {d}, {t}, [{src} + 192], 0x96",
            "sub {n}, 256",
            "jnz 2b",
            "3:",
            "vmovdqu64 [{out}], {a}",
            "vmovdqu64 [{out} + 64], {b}",
            "vmovdqu64 [{out} + 128], {c}",
            "vmovdqu64 [{out} + 192], {d}",
            src = inout(reg) src => _,
            n = inout(reg) n => _,
            factors = in(reg) FACTORS.as_ptr(),
            first = in(reg) first.as_ptr(),
            out = in(reg) folded.as_mut_ptr(),
            a = out(zmm_reg) _, b = out(zmm_reg) _, c = out(zmm_reg) _, d = out(zmm_reg) _,
            k = out(zmm_reg) _, s = out(zmm_reg) _, t = out(zmm_reg) _,
            options(nostack),
        );
    }
}

/// Returns `None`, since only x86-64 folds.
///
/// # Safety
/// `src` must be readable for `n` bytes.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn sum(_: u32, _: *const u8, _: usize) -> Option<u32> {
    None
}

#[cfg(test)]
mod tests {
    use sprat_proto::Rng;
    use sprat_proto::wire::checksum;

    use super::super::Region;

    #[test]
    fn agrees_with_the_portable_crc_at_every_length_offset_and_start() {
        let mut rng = Rng::seeded(2);
        let mut bytes = vec![0; 70_000];
        rng.fill(&mut bytes);
        let region = Region::anonymous(1 << 17).expect("memory");
        region.copy_in(0, &bytes);
        for n in (0..1100).chain([2048, 4095, 32_764, 32_768, 65_536, 69_990]) {
            let (from, start) = (rng.below(8) as usize, rng.u32());
            // `None` only on a CPU that cannot fold.
            let Some(crc) = region.crc32c(from, n, start) else { continue };
            assert_eq!(crc, checksum::crc32c(start, &bytes[from..from + n]), "{n} bytes at {from}");
        }
    }
}
