//! The floor of memory: one touch at a random place that the touch before decides.

use std::hint::black_box;

use super::{Limits, sample};

/// A cache line, and what an object's header fits in.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

/// Touches in one sample: the clock costs as much as a touch of near memory, so it is read once for several.
const TOUCHES: u32 = 16;

/// Nanoseconds of one dependent touch of a random cache line among `footprint_bytes`: each sample is the mean of sixteen
/// touches. The smallest footprint is one line.
///
/// # Errors
/// None now; the others of this kind have some.
pub fn memory(footprint_bytes: usize, limits: Limits) -> std::io::Result<Vec<u32>> {
    // Written, so that every page is there; the same value everywhere, which the compiler must not know.
    let lines = vec![Line([black_box(1); 8]); (footprint_bytes / 64).max(1)];
    let count = lines.len() as u128;
    let mut x = 0x9E37_79B9_7F4A_7C15u64;
    let mut samples = sample(limits, || {
        for _ in 0..TOUCHES {
            let at = (u128::from(x) * count) >> 64;
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(lines[at as usize].0[0]);
        }
        black_box(x);
        Ok(())
    })?;
    for ns in &mut samples {
        *ns /= TOUCHES;
    }
    Ok(samples)
}
