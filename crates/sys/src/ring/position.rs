//! The positions that the ends of a ring publish in its control block.

use super::{LINE, NEVER};

/// Returns true if a consumer may have published this position: the u64 at the start of a ring's
/// control block, in the machine's byte order.
#[must_use]
pub fn may_resume(position: u64) -> bool {
    position.is_multiple_of(LINE as u64) && position < NEVER
}
