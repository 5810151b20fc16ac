//! Copies that also extend a CRC32C, in one pass over the bytes.
//!
//! ```text
//!   memory ─ load ─► registers ─ store ─► copy
//!                        └─ fold into 256 bytes with the same CRC ─► sum
//! ```
//!
//! Others may write the source meanwhile. Each byte is read once, so the sum is that of the copy,
//! whatever mixture the copy is. A CPU that cannot fold copies first and then sums the copy.
//!
//! The folding is that of "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction" (Intel, 2009).

use super::copy::copy;
use super::guard::{self, Gone};
use crate::crc::crc32c;

/// The fewest bytes that are copied and summed in one pass. Fewer bytes take as long in two passes.
#[cfg(target_arch = "x86_64")]
const WORTH: usize = 1024;

/// Appends a copy of `part` to `bytes`. Returns the CRC32C `crc` extended over it.
#[must_use]
pub fn append_summed(bytes: &mut Vec<u8>, part: &[u8], crc: u32) -> u32 {
    // SAFETY: a slice is readable, and it lies in no vector that is borrowed mutably.
    unsafe { append(bytes, part.as_ptr(), part.len(), crc) }
}

/// Appends `n` bytes from `src` to `bytes`. Returns the CRC32C `crc` extended over the copies.
///
/// # Safety
/// `src` must be readable for `n` bytes and no part of the vector. Others may write the bytes
/// meanwhile.
#[inline]
pub(super) unsafe fn append(bytes: &mut Vec<u8>, src: *const u8, n: usize, crc: u32) -> u32 {
    bytes.reserve(n);
    let len = bytes.len();
    // SAFETY: the source is the caller's promise; the vector has room for `n` bytes behind its
    // first `len` and is borrowed mutably. Afterwards these bytes are written.
    let (done, sum) = unsafe {
        let dst = bytes.as_mut_ptr().add(len);
        let (done, sum) = fold(dst, src, n, crc).unwrap_or((0, crc));
        copy(dst.add(done), src.add(done), n - done);
        bytes.set_len(len + n);
        (done, sum)
    };
    crc32c(sum, &bytes[len + done..])
}

/// Copies `n` bytes from memory of the program. Returns the CRC32C `crc` extended over the copies.
///
/// # Errors
/// [`Gone`]; some bytes may have been copied.
///
/// # Safety
/// `to` must be writable for `n` bytes, and the two must not overlap.
#[inline]
pub(super) unsafe fn read(from: *const u8, to: *mut u8, n: usize, crc: u32) -> Result<u32, Gone> {
    // SAFETY: the caller's promise for `to`; of `from` the routine finds out, and the handler is
    // there. The bytes behind the folded ones are copied before they are lent.
    let (crc, rest) = unsafe {
        let (done, crc) = if guard::by_routine() { fold(to, from, n, crc)? } else { (0, crc) };
        let to = to.add(done);
        guard::read(from.wrapping_add(done), to, n - done)?;
        (crc, std::slice::from_raw_parts(to, n - done))
    };
    Ok(crc32c(crc, rest))
}

/// Copies bytes from the front of `n` bytes as far as this CPU can sum them at the same time.
/// Returns how many, and the CRC32C `crc` extended over them.
///
/// # Errors
/// [`Gone`] if the source faults; some bytes may have been copied.
///
/// # Safety
/// `to` must be writable for `n` bytes, and the two must not overlap. `from` must be readable, or
/// the handler of faults is installed and the thread does not block its signals.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn fold(to: *mut u8, from: *const u8, n: usize, crc: u32) -> Result<(usize, u32), Gone> {
    use std::arch::is_x86_feature_detected as has;

    use super::guard::routine::{self, Fold, STEP};

    if n < WORTH || !has!("avx512f") || !has!("vpclmulqdq") {
        return Ok((0, crc));
    }
    let state = [u64::from(!crc), 0, 0, 0, 0, 0, 0, 0];
    let mut fold = Fold { state, factors: FACTORS, folded: [0; STEP] };
    let whole = n - n % STEP;
    // SAFETY: the CPU has the features, `whole` is a multiple of the step and not 0; the rest is
    // the caller's promise.
    unsafe { routine::fold(to, from, whole, &mut fold) }?;
    Ok((whole, crc32c(!0, &fold.folded)))
}

/// Copies nothing and sums nothing, since only x86-64 can do both in one pass.
///
/// # Errors
/// None.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn fold(_: *mut u8, _: *const u8, _: usize, crc: u32) -> Result<(usize, u32), Gone> {
    Ok((0, crc))
}

#[cfg(target_arch = "x86_64")]
const FACTORS: [u64; 2] = {
    use super::guard::routine::STEP;
    [factor(8 * STEP + 32), factor(8 * STEP - 32)]
};

/// Returns the remainder of x^`power` by CRC32C's polynomial, reflected, and shifted as a product
/// of reflected numbers needs it.
#[cfg(target_arch = "x86_64")]
const fn factor(power: usize) -> u64 {
    /// CRC32C's polynomial without its highest bit.
    const POLYNOMIAL: u32 = 0x1edc_6f41;
    let (mut remainder, mut i) = (1_u32, 0);
    while i < power {
        let carry = remainder >> 31;
        remainder = remainder << 1 ^ if carry == 1 { POLYNOMIAL } else { 0 };
        i += 1;
    }
    (remainder.reverse_bits() as u64) << 1
}

#[cfg(test)]
mod tests;
