//! Baseline of memory: one access to a random cache line, whose address depends on the access
//! before.

use std::hint::black_box;

use super::{Limits, sample};

/// A cache line, the size of an object's header.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line([u64; 8]);

/// Accesses in one sample. A clock reading costs as much as an access to a near cache, so one
/// reading serves several.
const TOUCHES: u32 = 16;

/// Measures one dependent access to a random cache line among `footprint_bytes`, at least one line.
/// Each sample is the mean of sixteen accesses, in nanoseconds.
///
/// # Errors
/// None so far. The signature is that of the other baselines.
pub fn memory(footprint_bytes: usize, limits: Limits) -> std::io::Result<Vec<u32>> {
    // Every page is written, so that it exists. The compiler must not know that all values are
    // equal.
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
