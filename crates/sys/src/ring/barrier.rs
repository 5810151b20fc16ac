//! The sleeping side's half of the ring's wake handshake: a barrier on every processor that
//! runs a thread of a registered process.

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

static REGISTERED: OnceLock<bool> = OnceLock::new();

/// True if this process can issue [`barrier()`] and takes part in the barriers of other
/// processes. The first call registers it.
pub fn has_barrier() -> bool {
    *REGISTERED.get_or_init(|| {
        membarrier_query().contains(MembarrierQuery::GLOBAL_EXPEDITED)
            && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
    })
}

/// Issues a barrier on every processor that runs a registered process. After it, each such
/// process has either not yet read the flags that this one has set, or all its earlier stores
/// are visible here. Rings with a side that did not register (`fenced`) have fences of their
/// own.
pub fn barrier() {
    fence(Ordering::SeqCst);
    if has_barrier() {
        // Fails only for a command that `has_barrier` has just been told exists.
        let _ = membarrier(MembarrierCommand::GlobalExpedited);
    }
    fence(Ordering::SeqCst);
}
