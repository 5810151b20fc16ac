//! Randomness of the kernel.

use std::io;

use sprat_proto::Rng;

/// Makes a generator with entropy of the kernel.
///
/// # Errors
/// The kernel gives none.
pub(crate) fn rng() -> io::Result<Rng> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    Ok(Rng::new(seed))
}
