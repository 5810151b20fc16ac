//! Random numbers with entropy of the kernel.

use std::io;

use sprat_proto::Rng;

/// Makes a random number generator with entropy of the kernel.
///
/// # Errors
/// The kernel gives none.
pub(crate) fn rng() -> io::Result<Rng> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed)?;
    Ok(Rng::new(seed))
}
